"""Rows about a cluster: what is derived from the values of several brokers and queues."""

from __future__ import annotations

import pytest

from spark_rocket.client.admin import (
    BrokerStatus,
    DeadLetterTopic,
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
