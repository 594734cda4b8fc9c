"""Requests of the sampler to available and unavailable brokers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import le
from types import SimpleNamespace
from typing import Any

import pytest

from spark_rocket.client.admin import (
    BrokerRuntime,
    BrokerStatus,
    GroupInfo,
    GroupState,
    QueueProgress,
    QueueState,
    TopicInfo,
    TopicKind,
    TopicState,
)
from spark_rocket.console.sampler import GROUPS, MAX_INTERVAL_S, OVERVIEW, TOPICS, Sampler
from spark_rocket.console.state import GONE_SECONDS, BrokerRecord, GroupRecord, TopicRecord
from spark_rocket.errors import BrokerError, NameServerUnreachableError, RemotingConnectError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from spark_rocket.protocol.wire.codes import ResponseCode
from tests.console.conftest import eventually

ALL = frozenset((OVERVIEW, TOPICS, GROUPS))
AWAY = RemotingConnectError("No connection to 127.0.0.1:2.", remedy="Start it.")


class FakeAdmin:
    """Two brokers, ``a`` and ``b``, of which ``b`` can be unavailable."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away = False
        self.dead = False
        self.offset = 10
        self.read = 4
        self.lost: Exception | None = None

    @property
    def names(self) -> list[str]:
        return ["a"] if self.away else ["a", "b"]

    def brokers(self) -> list[BrokerStatus]:
        self.asked.append("brokers")
        if self.lost is not None:
            raise self.lost
        runtime = BrokerRuntime.of({"brokerVersionDesc": "V5_3_3", "putMessageTimesTotal": str(self.offset)})
        return [
            BrokerStatus(
                "c",
                name,
                0,
                f"127.0.0.1:{i}",
                runtime if name in self.names else None,
                None if name in self.names else AWAY,
            )
            for i, name in enumerate("ab", 1)
        ]

    def _fail(self, failed: dict[str, Any]) -> None:
        if self.away:
            failed["b"] = AWAY

    def topic_list(self, *, failed: dict[str, Any]) -> list[TopicInfo]:
        self._fail(failed)
        both = {name: TopicConfig("t", 1, 1) for name in self.names}
        only = [] if self.away else [TopicInfo("only-b", TopicKind.USER, {"b": TopicConfig("only-b", 1, 1)})]
        if self.dead:
            only.append(TopicInfo("%DLQ%g", TopicKind.DLQ, {"a": TopicConfig("%DLQ%g", 1, 1)}))
        return [TopicInfo("t", TopicKind.USER, both), *only]

    def groups(self, *, failed: dict[str, Any]) -> list[GroupInfo]:
        self._fail(failed)
        return [GroupInfo("g", {name: SubscriptionGroupConfig("g") for name in self.names})]

    def topic_states(self, infos: list[TopicInfo], *, failed: dict[str, Any]) -> dict[str, TopicState]:
        self.asked.append("topics")
        self._fail(failed)
        self.named = [info.name for info in infos]
        state = TopicState([QueueState(MessageQueue("t", name, 0), 0, self.offset, 5) for name in self.names])
        return {name: state for name in ("t", "%DLQ%g") if name in self.named}

    def group_states(self, names: list[str], *, delays: bool, failed: dict[str, Any]) -> dict[str, GroupState]:
        self.asked.append("groups")
        self._fail(failed)
        queues = [QueueProgress(MessageQueue("t", name, 0), self.offset, self.read, None, 0) for name in self.names]
        return {"g": GroupState("g", [], {}, None, None, None, queues, 0.0)}

    def consume_queue(self, queue: MessageQueue, offset: int, count: int) -> Any:
        self.asked.append("sizes")
        return SimpleNamespace(entries=[SimpleNamespace(size=100)] * count)


def sampler_of(admin: FakeAdmin, fast: float = 2.0) -> Sampler:
    return Sampler(SimpleNamespace(admin=admin, sampling=admin, name_servers=[]), fast=fast)  # type: ignore[arg-type]


def test_an_unavailable_broker_keeps_its_last_data() -> None:
    admin = FakeAdmin()
    sampler = sampler_of(admin)
    sampler.sample(ALL)
    assert set(sampler.topics) == {"t", "only-b"}
    admin.away, admin.offset = True, 12
    sampler.ask_lists_again()
    sampler.sample(ALL)
    assert set(sampler.topics) == {"t", "only-b"}  # its deletion is not known
    state = sampler.topics["t"].state
    assert state is not None
    assert {row.queue.broker_name: row.max_offset for row in state.queues} == {"a": 12, "b": 10}
    broker = sampler.brokers["b/0"].to_json()
    assert broker["trouble"] == {
        "code": "CONNECT_FAILED",
        "text": "No connection to 127.0.0.1:2.",
        "remedy": "Start it.",
        "response": None,
    }
    assert broker["awaySince"]
    assert broker["version"] == "5.3.3"
    assert sampler.failed["b"].remedy == "Start it."
    admin.away = False
    sampler.ask_lists_again()
    sampler.sample(ALL)
    assert sampler.brokers["b/0"].to_json()["trouble"] is None
    assert not sampler.failed


def test_the_history_of_a_consumed_topic_needs_no_request() -> None:
    admin = FakeAdmin()
    sampler = sampler_of(admin)
    sampler.sample(ALL)
    counts = sampler.topics["t"].counts
    assert {name: list(column) for name, column in counts.columns.items()} == {"in": [20.0], "out": [0.0]}
    admin.asked.clear()
    admin.offset, admin.read = 13, 9
    sampler.sample(frozenset())  # no page is open
    assert "topics" not in admin.asked
    assert {name: list(column) for name, column in counts.columns.items()} == {"in": [20.0, 26.0], "out": [0.0, 10.0]}
    admin.offset, admin.read = 15, 7  # a group that was reset has consumed nothing
    sampler.sample(ALL)
    assert {name: column[-1] for name, column in counts.columns.items()} == {"in": 30.0, "out": 10.0}
    admin.read = 8
    sampler.sample(frozenset())
    assert counts.columns["out"][-1] == 12.0


def test_the_history_of_a_topic_has_a_gap_without_one_of_its_brokers() -> None:
    admin = FakeAdmin()
    sampler = sampler_of(admin)
    sampler.sample(ALL)
    counts = sampler.topics["t"].counts
    admin.away, admin.offset = True, 12
    sampler.sample(ALL)
    sampler.sample(frozenset())
    assert list(counts.columns["in"]) == [20.0]
    admin.away = False
    sampler.sample(frozenset())
    assert list(counts.columns["in"]) == [20.0, 24.0]


def test_the_history_of_a_topic_without_groups_is_from_its_pages() -> None:
    admin = FakeAdmin()
    admin.group_states = lambda names, *, delays, failed: {}  # type: ignore[method-assign]
    sampler = sampler_of(admin)
    sampler.sample(ALL)
    sampler.sample(frozenset())
    counts = sampler.topics["t"].counts
    assert {name: list(column) for name, column in counts.columns.items()} == {"in": [20.0]}
    admin.offset = 11
    sampler.topics["t"].sampled -= 10.0
    sampler.fresh_topic("t")  # the page of the topic
    sampler.sample(frozenset())
    assert list(counts.columns["in"]) == [20.0, 22.0]


def test_an_unregistered_broker_is_shown_for_some_time_though_the_clock_was_set_back() -> None:
    sampler = sampler_of(FakeAdmin())
    sampler.sample(ALL)
    record = next(iter(sampler.brokers.values()))
    now = record.sampled
    assert not record.gone(now + 86_400)
    assert not record.gone(now)
    assert record.gone(now + GONE_SECONDS + 1)


def test_an_unregistered_broker_is_shown_for_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = FakeAdmin()
    sampler = sampler_of(admin)
    sampler.sample(ALL)
    every = admin.brokers
    admin.brokers = lambda: every()[:1]  # type: ignore[method-assign]
    sampler.sample(ALL)
    gone = sampler.brokers["b/0"].to_json()
    assert gone["trouble"]["code"] == "BROKER_GONE"  # type: ignore[index]
    assert gone["awaySince"]
    assert sampler.failed["b"].code == "BROKER_GONE"  # every page reports missing data
    monkeypatch.setattr("spark_rocket.console.state.GONE_SECONDS", -1.0)
    sampler.sample(ALL)
    assert set(sampler.brokers) == {"a/0"}
    admin.brokers = every  # type: ignore[method-assign]
    sampler.sample(ALL)
    assert sampler.brokers["b/0"].trouble is None


def test_deleted_groups_are_removed() -> None:
    admin = FakeAdmin()
    sampler = sampler_of(admin)
    sampler.sample(ALL)
    admin.groups = lambda *, failed: []  # type: ignore[method-assign]
    sampler.ask_lists_again()
    sampler.sample(ALL)
    assert not sampler.groups


def test_topics_are_requested_only_while_they_are_viewed() -> None:
    admin = FakeAdmin()
    sampler = sampler_of(admin)
    sampler.sample(frozenset())
    assert admin.asked == ["brokers", "groups"]
    assert not sampler.looking
    assert not sampler.is_known(TOPICS)
    sampler.note_view(TOPICS)
    assert sampler.looking == {TOPICS}
    sampler.sample(sampler.looking)
    assert admin.asked[2:] == ["brokers", "topics", "sizes", "groups"]
    assert sampler.topics["t"].to_json()["bytes"] == 20 * 100
    sampler.sample(sampler.looking)
    assert admin.asked.count("sizes") == 1


def test_the_overview_requests_only_dead_letter_topics() -> None:
    admin = FakeAdmin()
    admin.dead = True
    sampler = sampler_of(admin)
    sampler.sample(frozenset())
    assert sampler.topics["%DLQ%g"].to_json()["messages"] is None
    sampler.sample(frozenset((OVERVIEW,)))
    assert admin.named == ["%DLQ%g"]
    assert sampler.topics["%DLQ%g"].to_json()["messages"] == 20


def test_a_new_view_shortens_the_interval() -> None:
    admin = FakeAdmin()
    sampler = sampler_of(admin, fast=0.01)
    sampler.start()
    try:
        eventually(lambda: sampler.passes, lambda passes: passes == 1)
        for passes in (2, 3, 4):
            sampler.note_view(OVERVIEW)
            eventually(lambda: sampler.passes, partial(le, passes))
    finally:
        sampler.close()


def test_a_large_cluster_is_sampled_less_often() -> None:
    sampler = sampler_of(FakeAdmin())
    assert sampler.pace == 2.0
    sampler.cost = 1.0
    assert sampler.pace == 10.0
    sampler.cost = 100.0
    assert sampler.pace == MAX_INTERVAL_S


def test_an_unreachable_cluster_recovers() -> None:
    admin = FakeAdmin()
    sampler = sampler_of(admin)
    admin.lost = NameServerUnreachableError("No response.", remedy="Start one.")
    sampler.sample(ALL)
    assert sampler.trouble is not None
    assert sampler.trouble.code == "NAME_SERVER_UNREACHABLE"
    admin.lost = None
    sampler.sample(ALL)
    assert sampler.trouble is None
    assert len(sampler.groups["g"].lag) == 1


def test_pages_and_sampler_have_separate_connections() -> None:
    """On a large cluster, responses for a page would wait behind hundreds for the sampler."""
    own, page = FakeAdmin(), FakeAdmin()
    sampler = Sampler(SimpleNamespace(admin=page, sampling=own, name_servers=[]), fast=2.0)  # type: ignore[arg-type]
    sampler.sample(ALL)
    assert page.asked == []
    asked = len(own.asked)
    records: list[TopicRecord | GroupRecord] = [*sampler.topics.values(), *sampler.groups.values()]
    for record in records:
        record.sampled = 0.0
    assert sampler.fresh_topic("t") is not None
    assert sampler.fresh_group("g") is not None
    assert page.asked == ["topics", "groups"]
    assert len(own.asked) == asked


def test_samples_of_the_future_are_old() -> None:
    """The clock was set back since they were taken."""
    admin = FakeAdmin()
    sampler = sampler_of(admin)
    sampler.sample(ALL)
    sampler.fresh_group("g")
    topic, group = sampler.topics["t"], sampler.groups["g"]
    topic.sampled += 3600
    topic.measured += 3600
    group.detailed += 3600
    admin.asked.clear()
    sampler.fresh_topic("t")
    sampler.fresh_group("g")
    assert admin.asked == ["topics", "sizes", "groups"]


def test_created_topics_are_listed_at_once() -> None:
    admin = FakeAdmin()
    sampler = sampler_of(admin)
    sampler.sample(ALL)
    admin.dead = True
    sampler.ask_lists_again()
    assert "%DLQ%g" in sampler.topics
    admin.topic_list = lambda *, failed: (_ for _ in ()).throw(AWAY)  # type: ignore[method-assign]
    sampler.ask_lists_again()  # the change itself was made
    assert "%DLQ%g" in sampler.topics


def test_a_refused_request_is_not_shown_as_an_unavailable_broker() -> None:
    status = BrokerStatus("c", "a", 0, "127.0.0.1:1", None, AWAY)
    refused = replace(status, failure=BrokerError("Refused.", response_code=ResponseCode.NO_PERMISSION))
    for each, code in ((status, AWAY.code), (refused, "NO_PERMISSION")):
        record = BrokerRecord(each)
        record.update(1.0, each)
        assert record.trouble is not None
        assert record.trouble.code == code
