"""A broker's counts of a minute, an hour and a day; its producers; its system topics."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.state.broker_stats import (
    BROKER,
    BYTES,
    DAY,
    HOUR,
    MESSAGES,
    SEND_BACKS,
    BrokerStats,
    StatsWindows,
)
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.wire.bodies.route import TopicList
from spark_rocket.protocol.wire.bodies.stats import (
    BrokerStatsDataBody,
    ConsumeStatsList,
    ProducerTableInfo,
    TopicStatsTable,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode, version_name
from tests.broker.wire import Wire
from tests.kit.brokers import served
from tests.kit.clock import Clock


@pytest.fixture
def counted(tmp_path: Path, clock: Clock) -> Iterator[tuple[BrokerStats, Wire]]:
    """The statistics of a new broker."""
    with served(tmp_path, clock) as (server, wire):
        yield server.broker.parts.stats, wire


def test_windows_are_as_long_as_there_are_readings() -> None:
    counts = BrokerStats()
    windows = counts.windows
    topic, group = counts.topic("t"), counts.group("g", "t")
    assert windows.window(("t", ""), MESSAGES) == (0, 0, 0)
    assert windows.put_tps("t") == 0
    topic.messages[0], topic.bytes[0] = 60, 6_000
    group.gets, group.get_bytes, group.send_backs = 30, 300, 2
    counts.puts, counts.gets = 60, 30
    counts.sample()
    assert windows.window(("t", ""), MESSAGES) == (60, 10, 60)
    assert windows.window(("t", ""), BYTES).average == 100
    assert windows.put_tps("t") == 6
    assert windows.put_size("t") == 600
    assert windows.get_tps("g", "t") == 3
    assert windows.of_group("g", "t") == (3, 30, 2)
    assert windows.of_group("g", "other") == (0, 0, 0)
    assert windows.window(BROKER, MESSAGES).sum == 60
    assert windows.window(BROKER, SEND_BACKS).sum == 30
    for _ in range(6):
        counts.sample()
    assert windows.window(("t", ""), MESSAGES) == (0, 60, 0), "more than a minute ago"
    assert windows.window(("t", ""), MESSAGES, HOUR) == (60, 70, 60)
    for _ in range(420):
        counts.sample()
    assert windows.window(("t", ""), MESSAGES, HOUR).sum == 0
    assert windows.window(("t", ""), MESSAGES, DAY) == (60, 4_270, 60)
    assert windows.window(("nothing", ""), BYTES, DAY) == (0, 4_270, 0)


def test_a_recreated_topic_counts_from_0() -> None:
    counts = BrokerStats()
    counts.topic("t").messages[0] = 100
    counts.sample()
    counts.forget_topic("t")
    assert not counts.windows.knows(("t", ""))
    counts.topic("t").messages[0] = 7
    for _ in range(6):
        counts.sample()
    assert counts.windows.window(("t", ""), MESSAGES).sum == 7


def test_readings_share_what_has_not_changed() -> None:
    counts = BrokerStats()
    for topic in ("idle", "busy"):
        counts.topic(topic).messages[0] = 1

    def sampled() -> dict[tuple[str, str], tuple[int, int, int]]:
        counts.sample()
        return counts.windows._last

    first = sampled()
    assert sampled() is first
    counts.topic("busy").messages[0] = 2
    second = sampled()
    assert second[("busy", "")] == (2, 0, 0)
    assert second[("idle", "")] is first[("idle", "")]
    assert {id(key) for key in second} == {id(key) for key in first}


def test_a_day_begins_at_midnight() -> None:
    days = iter([date(2026, 1, 1), date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 2), date(2026, 1, 3)])
    counts = BrokerStats()
    windows = StatsWindows(counts, lambda: next(days))
    seen = []
    for puts in (5, 8, 20, 21):
        counts.puts = puts
        windows.sample()
        seen.append((windows.yesterday_morning[0], windows.morning[0]))
    assert seen == [(0, 0), (0, 8), (0, 8), (8, 21)]


@pytest.mark.live
def test_statistics_are_requested_by_name_and_key(counted: tuple[BrokerStats, Wire], topic: str, group: str) -> None:
    stats, wire = counted
    wire.send_batch(topic, [Message.of(topic, b"x" * 10)] * 30)
    wire.pull(topic, 0, consumerGroup=group, maxMsgNums=30)
    group_counts = stats.group(group, topic)
    counts = stats.topic(topic)
    counts.messages[0], counts.bytes[0] = 30, 600  # round numbers
    stats.sample()

    def asked(name: str, key: str) -> tuple[int, float, float]:
        body = wire.read(BrokerStatsDataBody, RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
        assert body.stats_minute == body.stats_hour == body.stats_day
        return body.stats_minute.sum, body.stats_minute.tps, body.stats_minute.avgpt

    assert asked("TOPIC_PUT_NUMS", topic) == (30, 3.0, 1.0)
    assert asked("TOPIC_PUT_SIZE", topic) == (600, 60.0, 20.0)
    assert asked("GROUP_GET_NUMS", f"{topic}@{group}") == (30, 3.0, 1.0)
    assert asked("GROUP_GET_SIZE", f"{topic}@{group}")[0] == group_counts.get_bytes > 0
    assert asked("SNDBCK_PUT_NUMS", f"{topic}@{group}") == (0, 0.0, 0.0)
    assert asked("BROKER_GET_NUMS", "DefaultCluster")[0] == 30
    table = wire.read(TopicStatsTable, RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    assert table.topic_put_tps == 3.0
    for name, key in (
        ("TOPIC_PUT_NUMS", "nothing"),
        ("GROUP_GET_NUMS", topic),
        ("GROUP_GET_NUMS", f"{topic}@unknown"),
        ("BROKER_PUT_NUMS", "another"),
        ("UNKNOWN", topic),
    ):
        answer = wire.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")


@pytest.mark.live
def test_progress_of_all_groups(wire: Wire, topic: str, group: str) -> None:
    wire.send_batch(topic, [Message.of(topic, b"x")] * 5, queue_id=1)
    wire.pull(topic, 0, consumerGroup=group, queue_id=1, maxMsgNums=3)
    wire.commit(group, topic, 2, 1)
    body = wire.read(ConsumeStatsList, RequestCode.GET_BROKER_CONSUME_STATS, isOrder=False)
    every = {name: found for one in body.consume_stats_list for name, found in one.items()}
    (found,) = every[group]
    row = found.offset_table[MessageQueue(topic, "broker-a", 1)]
    assert (row.broker_offset, row.consumer_offset, row.pull_offset) == (5, 2, 3)
    assert every["TOOLS_CONSUMER"] == []
    assert body.broker_addr == wire.address
    rows = [row for groups in every.values() for stats in groups for row in stats.offset_table.values()]
    assert body.total_diff == sum(row.broker_offset - row.consumer_offset for row in rows)
    assert body.total_inflight_diff >= 1
    body = wire.read(ConsumeStatsList, RequestCode.GET_BROKER_CONSUME_STATS, isOrder=True)
    assert {name: found for one in body.consume_stats_list for name, found in one.items()}[group] == []


@pytest.mark.live
def test_all_producers(wire: Wire, group: str) -> None:
    wire.beat(producers=[group], client_id="1.2.3.4@5")
    table = wire.read(ProducerTableInfo, RequestCode.GET_ALL_PRODUCER_INFO).data
    (one,) = table[group]
    assert (one.client_id, one.language) == ("1.2.3.4@5", "PYTHON")
    assert one.remote_ip.startswith("127.0.0.1:")
    assert version_name(one.version) == "5.3.3"


@pytest.mark.parametrize(
    ("ordinal", "name"),
    [
        (409, "4.9.8"),
        (401, "4.9.4"),
        (335, "4.6.1"),
        (213, "4.0.0"),
        (212, "4.0.0-SNAPSHOT"),
        (413, "5.0.0"),
        (493, "5.4.0"),
        (121, "3.x (121)"),
        (-1, "unknown (-1)"),
        (612, "higher than 5.9.9"),
    ],
)
def test_versions_have_names(ordinal: int, name: str) -> None:
    assert version_name(ordinal) == name


@pytest.mark.live
def test_topics_of_the_system(wire: Wire) -> None:
    topics = wire.read(TopicList, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).topic_list
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC"} <= set(topics)
    # Topics that tools omit from lists of a user's topics, including those of this cluster and broker.
    assert {"DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC", "rmq_sys_REVIVE_LOG_DefaultCluster"} <= set(
        topics
    )


@pytest.mark.live
def test_queues_without_a_topic_are_deleted_when_asked(wire: Wire, parts: BrokerParts, topic: str) -> None:
    wire.send(topic, b"stays")
    gone = f"{topic}-gone"
    wire.create_topic(gone)
    wire.send(gone, b"goes")
    del parts.topics.table[gone]
    assert wire.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == ResponseCode.SUCCESS
    assert gone not in parts.store.topics()
    assert wire.bodies(topic) == [b"stays"]
