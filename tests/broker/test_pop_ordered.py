"""Ordered pops over the wire: one pop of a queue at a time, and the same messages until they are acked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_rocket.model import MessageExt
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.testing import LocalCluster
from tests.broker.test_notification import NONE, SOME, Asker
from tests.broker.test_pop import Popper, receipts
from tests.broker.transactions.scene import GOLDEN_SIZES
from tests.broker.wire import Wire
from tests.kit.brokers import Served, served
from tests.kit.clock import Clock

pytestmark = pytest.mark.live

Got = list[tuple[MessageExt, str]]


class Consumer(Popper):
    """A consumer with ordered pops."""

    def pop(self, **fields: object) -> RemotingCommand:
        return super().pop(**{"order": True, **fields})

    def got(self, answer: RemotingCommand) -> Got:
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code == ResponseCode.POLLING_TIMEOUT, answer
            return []
        return list(zip(decode_messages(bytes(answer.body)), receipts(answer), strict=True))

    def ack_all(self, got: Got) -> None:
        for message, receipt in got:
            assert self.ack(message, receipt).code == ResponseCode.SUCCESS


def bodies(got: Got) -> list[bytes]:
    return [message.body for message, _ in got]


def send(wire: Wire, topic: str, *texts: bytes, queue_id: int = 0) -> None:
    for text in texts:
        assert wire.send(topic, text, queue_id=queue_id).code == 0


@pytest.fixture
def consumer(wire: Wire, group: str, topic: str) -> Consumer:
    return Consumer(wire, group, topic)


def test_a_queue_is_popped_by_one_at_a_time(consumer: Consumer) -> None:
    send(consumer.wire, consumer.topic, b"0", b"1", b"2")
    send(consumer.wire, consumer.topic, b"other", queue_id=1)
    first = consumer.take(maxMsgNums=2, queueId=0)
    assert bodies(first) == [b"0", b"1"]
    assert all(" 999 " in receipt for _, receipt in first)
    assert bodies(consumer.take()) == [b"other"]  # queue 0 is blocked, 1 is not
    assert consumer.take() == []
    assert consumer.ack(*first[1]).code == ResponseCode.SUCCESS
    assert consumer.take() == []
    assert consumer.ack(*first[0]).code == ResponseCode.SUCCESS
    assert bodies(consumer.take()) == [b"2"]


def test_a_blocked_pop_waits_for_the_ack(consumer: Consumer) -> None:
    asker = Asker(consumer.wire, consumer.group, consumer.topic)
    send(consumer.wire, consumer.topic, b"0", b"1")
    first = consumer.take(maxMsgNums=1)
    waiting = asker.pop_later(order=True)
    assert asker.polling_num() == "1"
    send(consumer.wire, consumer.topic, b"2")
    assert asker.polling_num() == "1"
    assert asker.notification(order=True).ext_fields == NONE
    assert asker.notification().ext_fields == SOME  # unordered pops block no client
    consumer.ack_all(first)
    second = consumer.got(waiting.result(30))
    assert bodies(second) == [b"1", b"2"]
    told = asker.notification_later(order=True)
    send(consumer.wire, consumer.topic, b"3")
    assert (asker.polling_num(), told.done()) == ("0", False)
    consumer.ack_all(second)
    assert told.result(30).ext_fields == SOME


def test_a_blocked_pop_waits_for_the_end_of_the_invisible_time(consumer: Consumer) -> None:
    asker = Asker(consumer.wire, consumer.group, consumer.topic)
    send(consumer.wire, consumer.topic, b"0", b"1")
    assert consumer.pop(invisibleTime=300).ext_fields["orderCountInfo"] == "0 0 0"
    answer = asker.pop_later(order=True).result(30)
    assert bodies(consumer.got(answer)) == [b"0", b"1"]
    assert answer.ext_fields["orderCountInfo"] == "0 qo0%0 1;0 qo0%1 1;0 0 1"
    (message, receipt), _ = consumer.got(answer)
    assert consumer.change(message, receipt, 1).code == ResponseCode.SUCCESS
    rest = consumer.got(answer)[1:]
    consumer.ack_all(rest)
    again = asker.pop_later(order=True).result(30)
    assert bodies(consumer.got(again)) == [b"0", b"1"]


def test_a_changed_time_has_a_receipt_of_its_own(consumer: Consumer) -> None:
    send(consumer.wire, consumer.topic, b"0")
    ((message, receipt),) = consumer.take(invisibleTime=1_000)
    answer = consumer.change(message, receipt, 60_000)
    ext = answer.ext_fields
    popped = receipt.split(" ")[1]
    assert (answer.code, ext["popTime"], ext["reviveQid"]) == (0, popped, "999")
    assert int(ext["invisibleTime"]) >= 60_000
    parts = receipt.split(" ")
    parts[2] = ext["invisibleTime"]
    assert consumer.ack(message, " ".join(parts)).code == 0
    assert consumer.change(message, receipt, 60_000).ext_fields == {}  # acked: nothing to change
    assert consumer.ack(message, receipt).code == 0  # once more


def test_the_same_attempt_gets_the_same_messages(consumer: Consumer) -> None:
    send(consumer.wire, consumer.topic, b"0", b"1")
    first = consumer.take(attemptId="a")
    assert consumer.take(attemptId="b") == []
    again = consumer.take(attemptId="a")
    assert bodies(first) == bodies(again) == [b"0", b"1"]
    consumer.ack_all(again)
    assert consumer.take(attemptId="c") == []


def test_batch_acks_in_order(consumer: Consumer) -> None:
    send(consumer.wire, consumer.topic, b"0", b"1", b"2")
    got = consumer.take()
    popped, invisible = got[0][1].split(" ")[1:3]
    ack = {"c": consumer.group, "t": consumer.topic, "r": "0", "so": 0, "q": 0, "rq": 999}
    ack |= {"pt": int(popped), "it": int(invisible), "b": "Bw=="}  # bits 0, 1 and 2
    body = dumps_fastjson({"brokerName": "broker-a", "acks": [ack]})
    assert consumer.wire.ask(RequestCode.BATCH_ACK_MESSAGE, body).code == 0
    offset = consumer.wire.ask(
        RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=consumer.group, topic=consumer.topic, queueId=0
    )
    assert offset.ext_fields["offset"] == "3"


def test_an_ack_of_a_message_that_was_not_popped_is_refused(consumer: Consumer) -> None:
    send(consumer.wire, consumer.topic, b"0", b"1")
    ((message, receipt),) = consumer.take(maxMsgNums=1)
    message.queue_offset = 1
    assert consumer.ack(message, receipt).code == ResponseCode.MESSAGE_ILLEGAL


def test_a_group_that_consumes_orderly_pops_in_order_unasked(consumer: Consumer) -> None:
    config = SubscriptionGroupConfig(group_name=consumer.group, consume_message_orderly=True)
    assert consumer.wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config.to_json()).code == 0
    send(consumer.wire, consumer.topic, b"0", b"1")
    answer = consumer.pop(order=False, maxMsgNums=1)
    assert answer.ext_fields["reviveQid"] == "999"
    assert consumer.take(order=False) == []


def test_a_reset_frees_the_queue(consumer: Consumer) -> None:
    send(consumer.wire, consumer.topic, b"0", b"1")
    consumer.take()
    fields = {"group": consumer.group, "topic": consumer.topic, "queueId": 0, "offset": 1, "timestamp": -1}
    answer = consumer.wire.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields, isForce=True)
    assert answer.code == 0, answer.remark
    assert bodies(consumer.take()) == [b"1"]


def test_a_recreated_topic_starts_at_0(consumer: Consumer, cluster: LocalCluster) -> None:
    send(consumer.wire, consumer.topic, b"old")
    assert bodies(consumer.take()) == [b"old"]
    cluster.delete_topic(consumer.topic)
    cluster.create_topic(consumer.topic)
    send(consumer.wire, consumer.topic, b"new")
    assert bodies(consumer.take()) == [b"new"]


# --- stops and kills ----------------------------------------------------------------------------------------------


def test_order_and_blocks_outlast_a_stop(tmp_path: Path) -> None:
    clock = Clock()
    with served(tmp_path, clock, **GOLDEN_SIZES) as (_, wire):
        consumer = Consumer(wire, "g", "T")
        send(wire, "T", b"0", b"1", b"2")
        first = consumer.take(maxMsgNums=2, bornTime=0)
        consumer.ack_all(first[:1])
    with served(tmp_path, clock, **GOLDEN_SIZES) as (_, wire):
        consumer = Consumer(wire, "g", "T")
        assert consumer.take(bornTime=0) == []
        consumer.ack_all(first[1:])
        got = consumer.take(bornTime=0)
        assert bodies(got) == [b"2"]
        clock.now += 60_000
        assert bodies(consumer.take(bornTime=0)) == [b"2"]


def test_a_kill_loses_nothing_and_keeps_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any time: all messages from the first unacked one on are delivered again, in order."""
    monkeypatch.setattr("spark_rocket.broker.server._ORDER_SAVE_SECONDS", 3_600)
    clock = Clock()
    images: list[tuple[Path, bytes, bytes, Got]] = []
    with served(tmp_path / "store", clock, flushConsumerOffsetInterval=3_600_000, **GOLDEN_SIZES) as (server, wire):
        consumer = Consumer(wire, "g", "T")
        send(wire, "T", b"0", b"1", b"2", b"3", b"4", b"5")

        def image(left: bytes, left_if_acked: bytes, got: Got) -> None:
            path = tmp_path / f"image-{len(images)}"
            shutil.copytree(tmp_path / "store", path, ignore=shutil.ignore_patterns("*.tmp"))  # being replaced
            images.append((path, left, left_if_acked, got))

        first = consumer.take(maxMsgNums=3, bornTime=0)
        image(b"012345", b"012345", first)  # acks of an unknown pop are dropped
        consumer.ack_all(first[:1])
        save(server)
        image(b"12345", b"345", first)
        consumer.ack_all(first[1:2])
        image(b"12345", b"345", first)
        consumer.ack_all(first[2:])
        clock.now += 1
        second = consumer.take(bornTime=0)
        image(b"12345", b"12345", second)
        save(server, "order")
        image(b"345", b"", second)  # of a pop since the offsets were saved
        consumer.ack_all(second[2:])
        save(server)
        image(b"345", b"", second)
        consumer.ack_all(second)
        save(server)
        image(b"", b"", second)
    now = clock.now
    for path, left, left_if_acked, got in images:
        shutil.copytree(path, path.with_suffix(".acked"))
        for directory, late, wanted in ((path, [], left), (path.with_suffix(".acked"), got[::-1], left_if_acked)):
            clock.now = now
            with served(directory, clock, **GOLDEN_SIZES) as (_, wire):
                consumer = Consumer(wire, "g", "T")
                consumer.ack_all(late)
                clock.now += 60_000
                assert b"".join(bodies(consumer.take(bornTime=0))) == wanted, path


def save(server: Served, *names: str) -> None:
    """Save the config files, like their timers."""

    async def work() -> None:
        parts = server.broker.parts
        for name in names or ("offsets", "order"):
            await parts.saver.save(name)

    server.do(work())
