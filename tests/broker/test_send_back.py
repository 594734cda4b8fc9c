"""Messages that consumers return: their place, number of retries, and unchanged fields."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.model import MessageExt
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from tests import golden
from tests.broker.test_delayed import SCHEDULE
from tests.broker.wire import BROKER_PROPERTIES, Wire
from tests.kit.brokers import Served, served
from tests.kit.clock import Clock

pytestmark = pytest.mark.live

LEVELS = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
GROUP, RETRY, DLQ = "GID", "%RETRY%GID", "%DLQ%GID"


@pytest.fixture
def broker(tmp_path: Path, clock: Clock) -> Iterator[tuple[Served, Wire]]:
    with served(tmp_path, clock) as running:
        yield running


def give_back(wire: Wire, message: MessageExt | int, **more: object) -> tuple[int, str | None]:
    offset = message if isinstance(message, int) else message.physical_offset
    answer = wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **{"offset": offset, "group": GROUP, "delayLevel": 0, **more})
    return answer.code, answer.remark


def sent(wire: Wire, properties: dict[str, str] | None = None, topic: str = "Orders") -> MessageExt:
    wire.send(topic, b"body", properties or {}, h=7)
    return wire.messages(topic)[-1]


def test_a_returned_message_is_redelivered_16_times_and_then_a_dead_letter(
    broker: tuple[Served, Wire], clock: Clock
) -> None:
    server, wire = broker
    message = first = sent(wire, {"TAGS": "t", "KEYS": "k", "UNIQ_KEY": "u", "mine": "1"})
    for times in range(16):
        assert give_back(wire, message) == (0, None)
        level = 3 + times if times < 15 else 18
        server.pass_time(LEVELS[level - 1] * 1000 - 1)
        assert len(wire.messages(RETRY, times)) == 0
        server.pass_time(1)
        (message,) = wire.messages(RETRY, times)
        assert (message.reconsume_times, message.queue_id) == (times + 1, 0)
        assert message.properties == {
            "TAGS": "t",
            "KEYS": "k",
            "UNIQ_KEY": "u",
            **BROKER_PROPERTIES,
            "mine": "1",
            "RETRY_TOPIC": "Orders",
            "ORIGIN_MESSAGE_ID": first.offset_msg_id,
            "WAIT": "false",
            "DELAY": str(level),
            "REAL_TOPIC": RETRY,
            "REAL_QID": "0",
        }
        for name in ("body", "flag", "sys_flag", "born_timestamp", "born_host"):
            assert getattr(message, name) == getattr(first, name)
    assert give_back(wire, message) == (0, None)
    assert wire.messages(RETRY, 16) == []
    assert wire.messages(DLQ)[0].reconsume_times == 17
    assert wire.messages(DLQ)[0].properties == {**message.properties, "DELAY": "0"}
    assert wire.topic_config(DLQ) == TopicConfig(DLQ, 1, 1, 6)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"delayLevel": 0}, 3),
        ({"delayLevel": 5}, 5),
        ({"delayLevel": 99}, 18),
        ({"delayLevel": -1}, 0),
        ({"maxReconsumeTimes": 0}, 0),
        ({"maxReconsumeTimes": 1}, 3),
        ({"maxReconsumeTimes": -1}, 0),
        ({"originTopic": "Orders", "originMsgId": "x", "unitMode": False}, 3),
    ],
)
def test_how_long_it_waits(broker: tuple[Served, Wire], fields: dict[str, object], where: int) -> None:
    _, wire = broker
    assert give_back(wire, sent(wire), **fields) == (0, None)
    assert len(wire.messages(DLQ) if not where else wire.messages(SCHEDULE, queue_id=where - 1)) == 1


def test_the_groups_own_limit(broker: tuple[Served, Wire]) -> None:
    """For clients that send none, and those before 3.4.9, whose number is meaningless."""
    _, wire = broker
    wire.create_group(GROUP, retryMaxTimes=0)
    give_back(wire, sent(wire))
    assert len(wire.messages(DLQ)) == 1
    ext = {"offset": str(sent(wire).physical_offset), "group": GROUP, "delayLevel": "0", "maxReconsumeTimes": "9"}
    old = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
    old.version = 120
    assert wire.client.invoke(wire.address, old, timeout=10).code == 0
    assert len(wire.messages(DLQ)) == 2


def test_a_group_without_retries(broker: tuple[Served, Wire]) -> None:
    _, wire = broker
    message = sent(wire)
    wire.create_group(GROUP, retryQueueNums=0)
    assert give_back(wire, message) == (0, None)
    assert (wire.topic_config(RETRY), wire.topic_config(DLQ)) == (None, None)
    assert wire.messages(SCHEDULE, queue_id=2) == []


def test_a_group_with_many_retry_queues(broker: tuple[Served, Wire]) -> None:
    _, wire = broker
    message = sent(wire)
    wire.create_group(GROUP, retryQueueNums=3)
    for _ in range(40):
        assert give_back(wire, message, delayLevel=1)[0] == 0
    waiting = [*wire.messages(SCHEDULE), *wire.messages(SCHEDULE, 32)]
    assert {one.properties["REAL_QID"] for one in waiting} == {"0", "1", "2"}


def test_what_is_refused(broker: tuple[Served, Wire]) -> None:
    _, wire = broker
    message = sent(wire)
    assert give_back(wire, 10_000_000) == (1, "look message by offset failed, 10000000")
    assert give_back(wire, -1) == (1, "look message by offset failed, -1")
    assert give_back(wire, message.physical_offset + 1)[0] == 1
    code, remark = give_back(wire, message, originTopic="Another")
    assert (code, remark) == (1, "look message by offset failed to check the topic name Another, it is Orders")
    assert give_back(wire, message, group="not a group!")[0] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    wire.configure(autoCreateSubscriptionGroup=False)
    assert give_back(wire, message, group="New")[0] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert wire.send("%RETRY%New").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert wire.topic_config("%RETRY%New") is None
    with wire.settings(brokerPermission=4):
        assert give_back(wire, message)[0] == ResponseCode.NO_PERMISSION
    wire.create_topic(RETRY, perm=4)
    assert give_back(wire, message) == (ResponseCode.NO_PERMISSION, f"the topic[{RETRY}] sending message is forbidden")
    missing = wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, group=GROUP, delayLevel=0)
    assert missing.code == ResponseCode.SYSTEM_ERROR
    assert wire.messages(SCHEDULE, queue_id=2) == []


def test_a_retried_message_may_name_the_topic_it_was_sent_to(broker: tuple[Served, Wire], clock: Clock) -> None:
    """Like clients, which show it with that name."""
    server, wire = broker
    give_back(wire, sent(wire), delayLevel=1, originTopic="Orders")
    server.pass_time(1000)
    (again,) = wire.messages(RETRY)
    assert give_back(wire, again, delayLevel=1, originTopic="Orders") == (0, None)
    assert give_back(wire, again, delayLevel=1, originTopic=RETRY) == (0, None)


def test_properties_that_could_not_be_sent(broker: tuple[Served, Wire]) -> None:
    """Any stored message can be returned."""
    _, wire = broker
    wire.send("Odd", b"x", i="a\x01b\x01c\x02UNIQ_KEY\x01u\x02nothing\x02__CRC32#\x01123")
    (message,) = wire.messages("Odd")
    assert give_back(wire, message) == (0, None)
    (waiting,) = wire.messages(SCHEDULE, queue_id=2)
    assert waiting.properties["a"] == "b\x01c"
    assert "__CRC32#" not in waiting.properties


@pytest.mark.parametrize("level", [0, -1])
def test_with_synchronous_flush_the_answer_waits_for_the_disk(tmp_path: Path, clock: Clock, level: int) -> None:
    with served(tmp_path, clock, flushDiskType="SYNC_FLUSH") as (server, wire):
        message = sent(wire)
        store = server.broker.parts.store
        assert give_back(wire, message, delayLevel=level) == (0, None)
        assert server.run(lambda: store.flushed_where) == server.run(lambda: store.max_physical_offset)


def test_one_way(broker: tuple[Served, Wire]) -> None:
    _, wire = broker
    wire.tell(RequestCode.CONSUMER_SEND_MSG_BACK, offset=sent(wire).physical_offset, group=GROUP, delayLevel=-1)
    wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert len(wire.messages(DLQ)) == 1


def test_it_is_stored_as_apaches_broker_stores_it(tmp_path: Path) -> None:
    """Returned records of Apache's directory are stored as by Apache's broker."""
    directory = golden.extract_store("clean", tmp_path)
    rows = [row for row in golden.expected("clean") if row["topic"] in ("GoldenRetry", "%RETRY%GID_golden_retry")]
    assert len(rows) > 4
    theirs = {
        (row["uniqKey"], row["reconsumeTimes"]): row
        for row in golden.expected("clean")
        if row["topic"].endswith("GID_golden_retry")
    }
    ask = {"group": "GID_golden_retry", "originTopic": "GoldenRetry", "maxReconsumeTimes": 1}
    sizes: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 2000}
    clock = Clock(rows[0]["storeTimestamp"])
    with served(directory, clock, **sizes, maxHashSlotNum=500, maxIndexNum=1000) as (_, wire):
        retried = dead = 0
        for row in rows:
            there = theirs.get((row["uniqKey"], row["reconsumeTimes"] + 1))
            if there is None:
                continue
            asked = wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=row["commitLogOffset"], delayLevel=1, **ask)
            assert asked.code == 0
            if there["topic"].startswith("%DLQ%"):
                here = wire.messages(there["topic"], 2 + dead)[0]
                dead += 1
            else:
                here = wire.messages(SCHEDULE, wire.end(SCHEDULE) - 1)[0]
                retried += 1
            assert here.properties == there["properties"]
            assert (here.reconsume_times, here.born_timestamp) == (there["reconsumeTimes"], there["bornTimestamp"])
        assert (retried, dead) == (4, 2)
