"""``rocket acl`` against brokers with users (ACL 2.0)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_rocket.cli.connect import Link
from spark_rocket.client import Admin
from spark_rocket.client.admin import AccessMode, BrokerAccess
from spark_rocket.errors import BrokerError
from spark_rocket.protocol.namespace import NO_NAMESPACE
from spark_rocket.protocol.wire.bodies.config import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from spark_rocket.testing import LocalCluster
from tests.cli.conftest import CommandResult, Run

pytestmark = pytest.mark.live

ROOT = ("--access-key", "root-key", "--secret-key", "r00t-s3cr3t")


@pytest.fixture(scope="module")
def users() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True, acl="2.0", access_key="root-key", secret_key="r00t-s3cr3t") as running:
        yield running


@pytest.fixture
def admin(users: LocalCluster) -> Iterator[Admin]:
    with Admin(users.name_server, access_key="root-key", secret_key="r00t-s3cr3t") as found:
        yield found
        for user in found.users(users.broker_address):
            if user.username != "root-key":
                found.delete_user(user.username or "")


@pytest.fixture
def rocket(users: LocalCluster, run: Run, admin: Admin) -> Run:
    """``rocket acl …`` as a Super user, beside the user ``alice``."""
    admin.create_user("alice", "al1ce-s3cr3t")

    def rocket(*arguments: object, answer: str | None = None) -> CommandResult:
        said = run("acl", *arguments, "-n", users.name_server, *ROOT, answer=answer)
        assert "--secrets" in arguments or "s3cr3t" not in said.out + said.err
        return said

    return rocket


def test_users_are_listed(rocket: Run, users: LocalCluster) -> None:
    assert rocket("allow", "alice", "Topic:orders*", "sub", "Get", "--from", "10.0.0.0/8").out == (
        "Allowed alice Sub,Get on Topic:orders*.\n"
    )
    assert rocket("deny", "alice", "Group:secret", "All", "--default").out == "Denied alice All on Group:secret.\n"
    lines = rocket("list").out.splitlines()
    assert lines[0].endswith(f"{users.broker_address}: ACL 2.0")
    assert [line.split(None, 3) for line in lines[2:]] == [
        ["root-key", "Super", "enable", "everything"],
        ["alice", "Normal", "enable", "Topic:orders*=Sub,Get from 10.0.0.0/8"],
        ["deny", "Group:secret=All", "(default)"],
    ]
    (found,) = rocket("list", "--json").json
    assert (found["address"], found["acl"]) == (users.broker_address, "2.0")
    assert found["users"][1]["password"] == "********"
    assert found["users"][1]["permissions"][0] == {
        "resource": "Topic:orders*",
        "decision": "Allow",
        "actions": ["Sub", "Get"],
        "sourceIps": ["10.0.0.0/8"],
        "policyType": "Custom",
    }
    assert "al1ce-s3cr3t" in rocket("list", "--secrets").out
    assert rocket("show", "alice", "--secrets", "--json").json[0]["password"] == "al1ce-s3cr3t"
    shown = rocket("show", "alice").out.splitlines()
    assert shown[0].endswith(f"{users.broker_address}: ACL 2.0")
    assert [line.split() for line in shown[1:3]] == [["type", "Normal"], ["status", "enable"]]
    assert rocket("show", "bob").failed("No broker has a user 'bob'")


def test_a_user_is_created_changed_and_deleted(rocket: Run, admin: Admin, users: LocalCluster, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("b0b-s3cr3t\n")
    assert rocket("update", "bob", "--yes").failed("Account bob is new: give --secret-file", status=2)
    assert rocket("update", "bob", "--secret-file", file, answer="n").status == 1
    assert rocket("update", "bob", "--secret-file", file, "--yes").out.endswith("Updated user bob.\n")
    assert admin.user(users.broker_address, "bob") == UserInfo("bob", "b0b-s3cr3t", "Normal", "enable")
    assert rocket("update", "bob", "--secret-file", file, "--yes").out == "Already up to date.\n"
    said = rocket("update", "bob", "--admin", "--disable", "--yes")
    assert [line.split() for line in said.out.splitlines()[2:4]] == [
        ["type", "Normal", "Super"],
        ["status", "enable", "disable"],
    ]
    assert admin.user(users.broker_address, "bob") == UserInfo("bob", "b0b-s3cr3t", "Super", "disable")
    assert rocket("update", "carl", "--secret-file", file, "--disable", "--yes").status == 0
    assert admin.user(users.broker_address, "carl") == UserInfo("carl", "b0b-s3cr3t", "Normal", "disable")
    assert rocket("delete", "bob", answer="n").status == 1
    assert rocket("delete", "bob", answer="y").out.endswith("Deleted user bob.\n")
    assert rocket("delete", "bob").failed("No broker has a user 'bob'")
    assert "It is the last Super user" in rocket("delete", "root-key", answer="n").out
    assert admin.user(users.broker_address, "bob") is None


def test_actions_are_added(rocket: Run, admin: Admin, users: LocalCluster) -> None:
    """The commands that the doctor prints grant one action, and must not take another away."""

    def entries() -> list[PolicyEntryInfo]:
        found = admin.acl(users.broker_address, "alice")
        assert found is not None
        return found.policies[0].entries

    assert rocket("allow", "alice", "Topic:a", "Pub", "--from", "127.0.0.1").status == 0
    assert rocket("allow", "alice", "topic:a", "Get").status == 0
    assert entries() == [PolicyEntryInfo("Topic:a", ["Pub", "Get"], ["127.0.0.1"], "Allow")]
    assert rocket("deny", "alice", "Topic:a", "Sub").status == 0
    assert entries() == [PolicyEntryInfo("Topic:a", ["Sub"], [], "Deny")]


def test_permissions_are_revoked(rocket: Run, admin: Admin, users: LocalCluster) -> None:
    for resource in ("Topic:a", "Topic:b", "Group:c"):
        assert rocket("allow", "alice", resource, "Pub,Sub").status == 0
    found = admin.acl(users.broker_address, "alice")
    assert found is not None
    assert [entry.resource for entry in found.policies[0].entries] == ["Topic:a", "Topic:b", "Group:c"]
    assert rocket("revoke", "alice", "Topic:a", answer="n").status == 1
    assert rocket("revoke", "alice", "Topic:a", "--yes").out == "Deleted the permission of alice on Topic:a.\n"
    assert rocket("revoke", "alice", answer="y").out.endswith("Deleted all permissions of alice.\n")
    assert admin.acl(users.broker_address, "alice") is None
    with pytest.raises(BrokerError, match="not exist"):
        admin.acl(users.broker_address, "bob")


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("allow", "alice", "Topic:a", "Push"), 2, "invalid action 'Push': use All, Pub, Sub"),
        (("allow", "alice", "Topics:a", "Pub"), 1, "The resource is null"),
        (("allow", "bob", "Topic:a", "Pub"), 1, "The subject is not exist"),
        (("allow", "alice", "Topic:a"), 2, "Missing argument"),
        (("update", "alice", "--topic", "orders=SUB", "--yes"), 2, "without --topic: use `rocket acl allow"),
        (("white-list", "10.0.0.1", "--yes"), 2, "without a white list"),
    ],
)
def test_invalid_arguments(rocket: Run, arguments: tuple[str, ...], status: int, text: str) -> None:
    said = rocket(*arguments)
    assert (said.status, text in said.err) == (status, True), said.err


def test_verbs_of_the_other_kind(run: Run) -> None:
    with LocalCluster(in_process=True, access_key="root-key", secret_key="r00t-s3cr3t") as accounts:
        where = ("-n", accounts.name_server, *ROOT)
        for verb in ("allow", "deny"):
            said = run("acl", verb, "alice-key", "Topic:a", "Pub", *where)
            assert said.failed("have accounts (ACL 1.0), not users: use `rocket acl update alice-key", status=2)
        assert run("acl", "revoke", "alice-key", "--yes", *where).failed("have accounts (ACL 1.0)", status=2)
        assert run("acl", "update", "root-key", "--disable", "--yes", *where).failed("without --enable", status=2)
    with LocalCluster(in_process=True) as neither:
        said = run("acl", "list", "-n", neither.name_server)
        assert said.out.endswith(": no access control. Every client may do everything.\n")
        assert run("acl", "list", "--json", "-n", neither.name_server).json[0]["acl"] is None
        assert run("acl", "update", "alice-key", "-n", neither.name_server).failed("have no access control")


class _Mixed:
    """An Admin's view of brokers of both kinds."""

    namespace = NO_NAMESPACE

    def access_modes(self, **_: object) -> list[BrokerAccess]:
        return [BrokerAccess("one", "one:1", AccessMode.PLAIN), BrokerAccess("two", "two:1", AccessMode.AUTH)]

    def __enter__(self) -> _Mixed:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_brokers_of_both_kinds_are_changed_one_by_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "admin", lambda link: _Mixed())
    for arguments in (("update", "a"), ("delete", "a"), ("allow", "a", "*", "All"), ("white-list", "*")):
        assert run("acl", *arguments).failed("one has ACL 1.0, two has ACL 2.0. Select brokers with --broker.")


def test_permissions_of_the_default_policy_come_last() -> None:
    from spark_rocket.client.admin import BrokerUsers

    policies = [PolicyInfo("Default", [PolicyEntryInfo("*", ["Get"])]), PolicyInfo("Custom", [])]
    found = BrokerUsers([], [], [AclInfo("User:alice", policies)])
    assert [policy.policy_type for policy in found.policies("alice")] == ["Custom", "Default"]
    assert found.policies("bob") == []
