"""Decisions of ACL 2.0, by cases and against a model that sorts all matching entries."""

from __future__ import annotations

import ipaddress
import random

import pytest

from spark_rocket.acl.policies import Policies, PolicyEntry, resource_key
from spark_rocket.acl.user_table import UserTable
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.requests.needs import Action, Pair, Resource
from spark_rocket.protocol.requests.state import POLICY_ENTRIES, STATE_LIMITS
from spark_rocket.protocol.wire.bodies.config import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

HERE = "10.0.0.1"


def policies(*entries: tuple[str, list[str], str], default: tuple[tuple[str, list[str], str], ...] = ()) -> Policies:
    infos = [
        PolicyInfo(kind, [PolicyEntryInfo(resource, actions, None, decision) for resource, actions, decision in given])
        for kind, given in (("Custom", entries), ("Default", default))
        if given
    ]
    return Policies().updated(AclInfo("User:ada", infos))


def refusal(found: Policies, kind: Resource, name: str, *actions: Action, source: str = HERE) -> str | None:
    return found.refusal(Pair(kind, name, actions, None), name, source)


def test_one_action_is_enough() -> None:
    found = policies(("Topic:orders", ["Get"], "Allow"))
    assert refusal(found, Resource.TOPIC, "orders", Action.SUB, Action.GET) is None
    assert refusal(found, Resource.TOPIC, "orders", Action.SUB) == "no matched policies."
    assert refusal(found, Resource.GROUP, "orders", Action.GET) == "no matched policies."


def test_the_most_specific_entry_decides() -> None:
    found = policies(
        ("*", ["All"], "Allow"),
        ("Topic:*", ["Pub"], "Deny"),
        ("Topic:or*", ["Pub"], "Allow"),
        ("Topic:ord*", ["Pub"], "Deny"),
        ("Topic:orders", ["Pub"], "Allow"),
    )
    for name, expected in (("orders", None), ("ord", "the decision is deny."), ("orb", None)):
        assert refusal(found, Resource.TOPIC, name, Action.PUB) == expected, name
    assert refusal(found, Resource.TOPIC, "bills", Action.PUB) == "the decision is deny."
    assert refusal(found, Resource.TOPIC, "bills", Action.SUB) is None  # no entry for Topic: has Sub
    assert refusal(found, Resource.CLUSTER, "c", Action.UPDATE) is None


def test_the_default_policy_counts_where_no_custom_entry_matches() -> None:
    found = policies(
        ("Topic:orders", ["Sub"], "Deny"), default=(("Topic:orders", ["All"], "Allow"), ("Group:*", ["Sub"], "Allow"))
    )
    assert refusal(found, Resource.TOPIC, "orders", Action.SUB) == "the decision is deny."
    assert refusal(found, Resource.TOPIC, "orders", Action.PUB) is None
    assert refusal(found, Resource.GROUP, "g", Action.SUB) is None


def test_source_addresses() -> None:
    entry = PolicyEntryInfo("Topic:t", ["Sub"], ["10.1.0.0/16", "192.168.0.7", "fd00::/8"], "Allow")
    found = Policies().updated(AclInfo("User:ada", [PolicyInfo(None, [entry])]))
    for source, expected in (
        ("10.1.255.1", None),
        ("192.168.0.7", None),
        ("::ffff:10.1.0.1", None),
        ("[fd00::1]", None),
        ("10.2.0.1", "no matched policies."),
        ("not an address", "no matched policies."),
    ):
        assert refusal(found, Resource.TOPIC, "t", Action.SUB, source=source) == expected, source


def test_all_topics_need_an_entry_for_any_topic() -> None:
    listing = Action.LIST
    assert refusal(policies(("Topic:*", ["List"], "Allow")), Resource.TOPIC, "*", listing) is None
    assert refusal(policies(("*", ["List"], "Allow")), Resource.TOPIC, "*", listing) is None
    for resource in ("Topic:a*", "Topic:a", "Group:*"):
        assert refusal(policies((resource, ["List"], "Allow")), Resource.TOPIC, "*", listing) is not None, resource


def test_stores_of_other_topics_need_an_entry_of_their_own() -> None:
    found = policies(("Topic:*", ["All"], "Allow"), ("*", ["All"], "Allow"))
    assert refusal(found, Resource.TOPIC, "SCHEDULE_TOPIC_XXXX", Action.SUB) is not None
    assert refusal(found, Resource.TOPIC, "SCHEDULE_TOPIC_XXXX", Action.GET) is None
    own = policies(("Topic:SCHEDULE_TOPIC_XXXX", ["Sub"], "Allow"))
    assert refusal(own, Resource.TOPIC, "SCHEDULE_TOPIC_XXXX", Action.SUB) is None


def test_a_denied_group_includes_its_retry_topics_of_pop() -> None:
    found = policies(("Group:*", ["Sub"], "Allow"), ("Group:victims", ["All"], "Deny"))
    for name in ("victims", "victims_orders", "victims+orders"):
        assert refusal(found, Resource.GROUP, name, Action.SUB) == "the decision is deny.", name
    assert refusal(found, Resource.GROUP, "victim", Action.SUB) is None


@pytest.mark.parametrize("seed", range(20))
def test_decisions_of_a_model(seed: int) -> None:
    rng = random.Random(seed)
    names = ("a", "ab", "abc", "b", "ba")
    resources = ["*", *(f"{kind}:{end}" for kind in ("Topic", "Group") for end in ("*", "a", "ab", "a*", "ab*", "b*"))]
    sources = (None, ["10.0.0.0/8"], ["11.0.0.0/8"])

    def entry() -> PolicyEntryInfo:
        actions = rng.sample(["Pub", "Sub", "Get", "All"], rng.randint(1, 2))
        return PolicyEntryInfo(rng.choice(resources), actions, rng.choice(sources), rng.choice(("Allow", "Deny")))

    given = {kind: {one.resource: one for one in (entry() for _ in range(6))} for kind in ("Custom", "Default")}
    info = AclInfo("User:ada", [PolicyInfo(kind, list(found.values())) for kind, found in given.items()])
    found = Policies().updated(info)

    def rank(resource: str, kind: str, name: str) -> tuple[int, int] | None:
        if resource == "*":
            return (0, 0)
        its_kind, _, its_name = resource.partition(":")
        if its_kind != kind:
            return None
        if its_name == "*":
            return (1, 0)
        if its_name.endswith("*"):
            return (2, len(its_name)) if name.startswith(its_name[:-1]) else None
        return (3, 0) if its_name == name else None

    def expected(kind: str, name: str, actions: list[str]) -> bool | None:
        address = ipaddress.ip_address(HERE)
        for entries in given.values():
            matching = [
                (place, one.decision == "Allow")
                for one in entries.values()
                if (place := rank(one.resource, kind, name)) is not None
                and ("All" in one.actions or set(actions) & set(one.actions))
                and (one.source_ips is None or any(address in ipaddress.ip_network(ip) for ip in one.source_ips))
            ]
            if matching:
                return max(matching)[1]
        return None

    for kind in (Resource.TOPIC, Resource.GROUP):
        for name in names:
            for actions in ((Action.PUB,), (Action.SUB, Action.GET), (Action.CREATE,)):
                decision = expected(kind.value, name, [action.value for action in actions])
                texts = {True: None, False: "the decision is deny.", None: "no matched policies."}
                assert refusal(found, kind, name, *actions) == texts[decision], (kind, name, actions)


@pytest.mark.parametrize(
    "resource",
    ["", "orders", "Topic", "Topic:", "Topic:**", "Topic:a*b", "Any:x", "Topic:a\nb", "Topic: a", ":a", "**"],
)
def test_invalid_resources(resource: str) -> None:
    with pytest.raises(RefusedError):
        resource_key(resource)
    with pytest.raises(RefusedError):
        PolicyEntry.of(PolicyEntryInfo(resource, ["Sub"]))


def test_names_in_other_cases() -> None:
    entry = PolicyEntry.of(PolicyEntryInfo("topic:Orders", ["sub", "PUB"], None, "deny")).info
    assert (entry.resource, entry.actions, entry.decision) == ("Topic:Orders", ["Pub", "Sub"], "Deny")


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (PolicyEntryInfo("Topic:t", []), "The actions is empty."),
        (PolicyEntryInfo("Topic:t", ["Fly"]), "The actions is empty."),
        (PolicyEntryInfo("Topic:t", ["Any"]), "The actions can not be Any."),
        (PolicyEntryInfo("Topic:t", ["Sub"], ["10.0.0.0/40"]), "The source ip is invalid."),
        (PolicyEntryInfo("Topic:t", ["Sub"], [" "]), "The source ip is empty."),
        (PolicyEntryInfo("Topic:t", ["Sub"], None, "Maybe"), "The decision is null or illegal."),
        (PolicyEntryInfo("Topic:t", ["Sub"], ["10.0.0.1"] * 101), "at most 100"),
    ],
)
def test_invalid_entries(entry: PolicyEntryInfo, text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        PolicyEntry.of(entry)


@pytest.mark.parametrize("name", ["", " ", " a", "a\0", "a" * 256, "a,b", "a/b", "a:b", "\ud800"])
def test_invalid_names_of_users(name: str) -> None:
    with pytest.raises(RefusedError):
        UserTable().with_created(UserInfo(name, "s3cr3t"))


def test_policies_have_a_bound() -> None:
    def acl(user: str, entries: int, kind: str = "Custom") -> AclInfo:
        found = [PolicyEntryInfo(f"Topic:{kind}{at}", ["Sub"]) for at in range(entries)]
        return AclInfo(f"User:{user}", [PolicyInfo(kind, found)])

    most = STATE_LIMITS[POLICY_ENTRIES].total
    users = [f"u{at}" for at in range(most // 2_000)]
    table = UserTable.of([UserInfo(name, "s3cr3t") for name in (*users, "last")], [acl(name, 2_000) for name in users])
    assert table.entries == most
    with pytest.raises(RefusedError, match="at most"):
        table.with_acl("User:last", acl("last", 1))
    table = table.without_user("u0")
    assert table.entries == most - 2_000
    assert table.with_acl("User:last", acl("last", 1)).entries == most - 1_999
    with pytest.raises(RefusedError, match="2,000"):
        table.with_acl("User:u1", acl("u1", 1, "Default"))
