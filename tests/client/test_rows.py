"""Rows about a cluster: what is derived from the values of several brokers and queues, and the kinds of groups."""

from __future__ import annotations

import pytest

from spark_rocket.client.admin import (
    STOPPED_SECONDS,
    BrokerStatus,
    DeadLetterTopic,
    GroupHistory,
    GroupKind,
    GroupState,
    Member,
    PlannedReset,
    QueueProgress,
    TopicInfo,
    TopicKind,
    TopicState,
    default_perms,
)
from spark_rocket.errors import RemotingConnectError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.config import PlainAccessConfig, TopicConfig
from spark_rocket.protocol.wire.bodies.stats import TopicOffset, TopicStatsTable


def state(*queues: tuple[int, int, int]) -> TopicState:
    """Queues with first offset, end and last store time."""
    table = {MessageQueue("t", "a", at): TopicOffset(*offsets) for at, offsets in enumerate(queues)}
    return TopicState.of(TopicStatsTable(dict(reversed(table.items()))))


def test_a_topic_sums_up_its_queues() -> None:
    topic = state((2, 5, 70), (0, 0, 0), (8, 9, 90))
    assert [row.queue.queue_id for row in topic.queues] == [0, 1, 2]
    assert (topic.messages, topic.end, topic.last_stored_ms) == (4, 14, 90)
    assert topic.newest == topic.queues[2]
    assert DeadLetterTopic.of("%DLQ%g", topic) == DeadLetterTopic("g", "%DLQ%g", 4, 90)
    empty = state((7, 7, 60))
    assert (empty.messages, empty.newest, state().last_stored_ms) == (0, None, 0)


def test_a_topic_on_several_brokers() -> None:
    configs = {"b": TopicConfig("t", 4, 4, 4), "a": TopicConfig("t", 2, 1, 2, attributes={"message.type": "FIFO"})}
    info = TopicInfo("t", TopicKind.USER, configs)
    assert (info.read_queues, info.write_queues, info.perm, info.message_type) == (6, 5, "RW", "FIFO")
    assert [(row.broker_name, row.read_queues, row.message_type) for row in info.rows] == [
        ("a", 2, "FIFO"),
        ("b", 4, "UNSPECIFIED"),
    ]


@pytest.mark.parametrize(("committed", "lag"), [(4, 6), (-1, 10), (12, 0)])
def test_lag_of_a_queue(committed: int, lag: int) -> None:
    assert QueueProgress(MessageQueue("t", "a", 0), 10, committed, None, 0).lag == lag


@pytest.mark.parametrize(("committed", "target", "change"), [(None, 5, None), (5, 5, 0), (9, 5, -4), (2, 5, 3)])
def test_a_reset_skips_or_repeats_messages(committed: int | None, target: int, change: int | None) -> None:
    assert PlannedReset(MessageQueue("t", "a", 0), committed, target).change == change


def test_an_unavailable_broker_has_the_error_and_its_text() -> None:
    failure = RemotingConnectError("No connection.", remedy="Start it.")
    assert BrokerStatus("c", "a", 0, "127.0.0.1:1", None, failure).error == "No connection. Start it."
    assert BrokerStatus("c", "a", 0, "127.0.0.1:1", None).error is None


@pytest.mark.parametrize(
    ("account", "perms"),
    [
        (PlainAccessConfig("k"), ("DENY", "DENY")),
        (PlainAccessConfig("k", admin=True), ("all", "all")),
        (PlainAccessConfig("k", admin=True, topic_perms=["t=PUB"]), ("DENY", "DENY")),
        (PlainAccessConfig("k", default_topic_perm="SUB"), ("SUB", "DENY")),
    ],
)
def test_implicit_permissions_of_an_account(account: PlainAccessConfig, perms: tuple[str, str]) -> None:
    assert default_perms(account) == perms


# --- the kind of a group, poll by poll ------------------------------------------------------------------------------

MEMBER = Member("client", "10.0.0.5:4", "JAVA", "V5_3_3", ["a"])
NO_VALUE: frozenset[str] = frozenset()
CONSUMERS = frozenset(["orders", "%RETRY%g"])


def group_state(*committed: int, end: int = 100, members: int = 0) -> GroupState:
    queues = [QueueProgress(MessageQueue("orders", "a", i), end, offset, None, 0) for i, offset in enumerate(committed)]
    return GroupState("g", [MEMBER] * members, {}, None, None, None, queues, 0.0)


def after(*looks: tuple[float, GroupState], topics: frozenset[str] = NO_VALUE) -> GroupKind:
    history = GroupHistory()
    for moment, found in looks:
        history.update(moment, found, topics)
    return history.kind


def test_groups_with_members_and_without_offsets() -> None:
    assert after((0, group_state(5, members=2))) is GroupKind.ONLINE
    assert after((0, group_state(-1, 0))) is GroupKind.NEW
    assert after((0, group_state())) is GroupKind.NEW


@pytest.mark.parametrize("retry", ["%RETRY%g", "%RETRY%g_orders", "%RETRY%g+orders"])
def test_one_poll_distinguishes_streams_from_offline_consumers(retry: str) -> None:
    assert after((0, group_state(5))) is GroupKind.STREAM
    assert after((0, group_state(5)), topics=frozenset([retry])) is GroupKind.IDLE
    assert after((0, group_state(5)), topics=frozenset(["%RETRY%g2", "%RETRY%other"])) is GroupKind.STREAM


def test_a_stream_with_lag_and_no_commits_has_stopped() -> None:
    begun = (0.0, group_state(5, 5))
    assert after(begun, (STOPPED_SECONDS - 1, group_state(5, 5))) is GroupKind.STREAM
    assert after(begun, (STOPPED_SECONDS, group_state(5, 5, end=200))) is GroupKind.STOPPED
    again = (STOPPED_SECONDS + 1, group_state(5, 6, end=200))
    assert after(begun, (STOPPED_SECONDS, group_state(5, 5)), again) is GroupKind.STREAM
    moved = (STOPPED_SECONDS - 1, group_state(5, 6))
    assert after(begun, moved, (2 * STOPPED_SECONDS - 2, group_state(5, 6))) is GroupKind.STREAM
    assert after(begun, moved, (2 * STOPPED_SECONDS - 1, group_state(5, 6))) is GroupKind.STOPPED


def test_a_stream_has_stopped_though_the_clock_was_set_back() -> None:
    still = group_state(5, 5)
    assert after((1e9, still), (0, still), (STOPPED_SECONDS, still)) is GroupKind.STOPPED


def test_a_stream_without_lag_has_not_stopped() -> None:
    done = group_state(100)
    assert after((0, done), (10 * STOPPED_SECONDS, done)) is GroupKind.STREAM
    late = [(10 * STOPPED_SECONDS, group_state(100, end=101)), (11 * STOPPED_SECONDS, group_state(100, end=102))]
    assert after((0, done), late[0]) is GroupKind.STREAM
    assert after((0, done), *late) is GroupKind.STOPPED


def test_start_of_the_lag() -> None:
    history = GroupHistory()
    for moment, found in [(1, group_state(100)), (2, group_state(100, end=101)), (3, group_state(100, end=102))]:
        history.update(moment, found, NO_VALUE)
    assert history.waiting_since == 2
    history.update(4, group_state(101, end=103), NO_VALUE)
    assert history.waiting_since == 4
    history.update(5, group_state(103, end=103), NO_VALUE)
    assert history.waiting_since is None


def test_consumers_that_left_are_not_a_stream() -> None:
    """Clients of RocketMQ 5 have no retry topic until a message is consumed again."""
    online = (0.0, group_state(5, members=1))
    assert after(online, (1, group_state(5))) is GroupKind.IDLE
    assert after(online, (1, group_state(9))) is GroupKind.IDLE  # the consumers committed when they left
    assert after(online, (1, group_state(9)), (10 * STOPPED_SECONDS, group_state(9))) is GroupKind.IDLE


def test_a_stream_in_a_former_consumer_group() -> None:
    looks = [(0, group_state(5)), (1, group_state(6)), (2, group_state(7))]
    assert after(*looks[:2], topics=CONSUMERS) is GroupKind.IDLE  # one commit may be a reset
    assert after(*looks, topics=CONSUMERS) is GroupKind.STREAM
    assert after(*looks, (2 + STOPPED_SECONDS, group_state(7)), topics=CONSUMERS) is GroupKind.STOPPED
    assert after(*looks, (3, group_state(8, members=1)), (4, group_state(8)), topics=CONSUMERS) is GroupKind.IDLE


def test_an_unavailable_broker_is_not_progress() -> None:
    away = group_state(5)
    looks = [(0, group_state(5, 5)), (1, away), (2, group_state(5, 5)), (3, away), (4, group_state(5, 5))]
    assert after(*looks, topics=CONSUMERS) is GroupKind.IDLE


def test_labels_of_the_kinds() -> None:
    assert [kind.label for kind in GroupKind] == [
        "online",
        "Spark stream",
        "Spark stream, stopped",
        "no consumers",
        "nothing consumed yet",
    ]
    assert [str(kind) for kind in GroupKind] == ["online", "stream", "stopped", "idle", "new"]
