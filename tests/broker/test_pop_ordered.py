"""Ordered pops over the wire: one pop of a queue at a time, and the same messages until they are acked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.testing import LocalCluster
from tests.broker.popping import NONE, SOME, Popper, Taken, taken
from tests.broker.transactions.scene import GOLDEN_SIZES
from tests.broker.wire import Wire, bodies_of
from tests.kit.brokers import Served, served
from tests.kit.clock import Clock

pytestmark = pytest.mark.live


def bodies(popped: Taken) -> list[bytes]:
    return [message.body for message, _ in popped]


@pytest.fixture
def consumer(wire: Wire, group: str, topic: str) -> Popper:
    return Popper(wire, group, topic, order=True)


def test_a_queue_is_popped_by_one_at_a_time(consumer: Popper) -> None:
    consumer.send(b"0", b"1", b"2")
    consumer.send(b"other", queue_id=1)
    first = consumer.take(maxMsgNums=2, queueId=0)
    assert bodies(first) == [b"0", b"1"]
    assert all(" 999 " in receipt for _, receipt in first)
    assert consumer.take_bodies() == [b"other"]  # queue 0 is blocked, 1 is not
    assert consumer.take() == []
    consumer.ack_all(first[1:])
    assert consumer.take() == []
    consumer.ack_all(first[:1])
    assert consumer.take_bodies() == [b"2"]


def test_a_blocked_pop_waits_for_the_ack(consumer: Popper) -> None:
    consumer.send(b"0", b"1")
    first = consumer.take(maxMsgNums=1)
    waiting = consumer.pop_later()
    assert consumer.polling_num() == "1"
    consumer.send(b"2")
    assert consumer.polling_num() == "1"
    assert consumer.notification(order=True) == NONE
    assert consumer.notification() == SOME  # unordered pops block no client
    consumer.ack_all(first)
    second = taken(waiting.result(30))
    assert bodies(second) == [b"1", b"2"]
    told = consumer.notification_later(order=True)
    consumer.send(b"3")
    assert (consumer.polling_num(), told.done()) == ("0", False)
    consumer.ack_all(second)
    assert told.result(30).ext_fields == SOME


def test_a_blocked_pop_waits_for_the_end_of_the_invisible_time(consumer: Popper) -> None:
    consumer.send(b"0", b"1")
    assert consumer.pop(invisibleTime=300).ext_fields["orderCountInfo"] == "0 0 0"
    answer = consumer.pop_later().result(30)
    assert bodies_of(answer) == [b"0", b"1"]
    assert answer.ext_fields["orderCountInfo"] == "0 qo0%0 1;0 qo0%1 1;0 0 1"
    (message, receipt), *rest = taken(answer)
    assert consumer.change(message, receipt, 1).code == ResponseCode.SUCCESS
    consumer.ack_all(rest)
    assert bodies_of(consumer.pop_later().result(30)) == [b"0", b"1"]


def test_a_changed_time_has_a_receipt_of_its_own(consumer: Popper) -> None:
    consumer.send(b"0")
    ((message, receipt),) = consumer.take(invisibleTime=1_000)
    answer = consumer.change(message, receipt, 60_000)
    ext, parts = answer.ext_fields, receipt.split(" ")
    assert (answer.code, ext["popTime"], ext["reviveQid"]) == (0, parts[1], "999")
    assert int(ext["invisibleTime"]) >= 60_000
    parts[2] = ext["invisibleTime"]
    assert consumer.ack(message, " ".join(parts)).code == 0
    assert consumer.change(message, receipt, 60_000).ext_fields == {}  # acked: nothing to change
    assert consumer.ack(message, receipt).code == 0  # once more


def test_the_same_attempt_gets_the_same_messages(consumer: Popper) -> None:
    consumer.send(b"0", b"1")
    first = consumer.take(attemptId="a")
    assert consumer.take(attemptId="b") == []
    again = consumer.take(attemptId="a")
    assert bodies(first) == bodies(again) == [b"0", b"1"]
    consumer.ack_all(again)
    assert consumer.take(attemptId="c") == []


def test_batch_acks_in_order(consumer: Popper) -> None:
    consumer.send(b"0", b"1", b"2")
    popped, invisible = consumer.take()[0][1].split(" ")[1:3]
    ack = {"c": consumer.group, "t": consumer.topic, "r": "0", "so": 0, "q": 0, "rq": 999}
    ack |= {"pt": int(popped), "it": int(invisible), "b": "Bw=="}  # bits 0, 1 and 2
    body = dumps_fastjson({"brokerName": "broker-a", "acks": [ack]})
    assert consumer.wire.ask(RequestCode.BATCH_ACK_MESSAGE, body).code == 0
    assert consumer.wire.committed(consumer.group, consumer.topic) == 3


def test_an_ack_of_a_message_that_was_not_popped_is_refused(consumer: Popper) -> None:
    consumer.send(b"0", b"1")
    ((message, receipt),) = consumer.take(maxMsgNums=1)
    assert consumer.ack(message, receipt, offset=1).code == ResponseCode.MESSAGE_ILLEGAL


def test_a_group_that_consumes_orderly_pops_in_order_unasked(consumer: Popper) -> None:
    consumer.wire.create_group(consumer.group, consumeMessageOrderly=True)
    consumer.send(b"0", b"1")
    assert consumer.pop(order=False, maxMsgNums=1).ext_fields["reviveQid"] == "999"
    assert consumer.take(order=False) == []


def test_a_reset_frees_the_queue(consumer: Popper) -> None:
    consumer.send(b"0", b"1")
    consumer.take()
    answer = consumer.wire.reset(consumer.group, consumer.topic, queueId=0, offset=1, timestamp=-1)
    assert answer.code == 0, answer.remark
    assert consumer.take_bodies() == [b"1"]


def test_a_recreated_topic_starts_at_0(consumer: Popper, cluster: LocalCluster) -> None:
    consumer.send(b"old")
    assert consumer.take_bodies() == [b"old"]
    cluster.delete_topic(consumer.topic)
    cluster.create_topic(consumer.topic)
    consumer.send(b"new")
    assert consumer.take_bodies() == [b"new"]


# --- stops and kills ----------------------------------------------------------------------------------------------


def test_order_and_blocks_outlast_a_stop(tmp_path: Path) -> None:
    clock = Clock()
    with served(tmp_path, clock, **GOLDEN_SIZES) as (_, wire):
        consumer = Popper(wire, "g", "T", order=True)
        consumer.send(b"0", b"1", b"2")
        first = consumer.take(maxMsgNums=2)
        consumer.ack_all(first[:1])
    with served(tmp_path, clock, **GOLDEN_SIZES) as (_, wire):
        consumer = Popper(wire, "g", "T", order=True)
        assert consumer.take() == []
        consumer.ack_all(first[1:])
        assert consumer.take_bodies() == [b"2"]
        clock.now += 60_000
        assert consumer.take_bodies() == [b"2"]


def test_a_kill_loses_nothing_and_keeps_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any time: all messages from the first unacked one on are delivered again, in order."""
    monkeypatch.setattr("spark_rocket.broker.broker._ORDER_SAVE_SECONDS", 3_600)
    clock = Clock()
    images: list[tuple[Path, bytes, bytes, Taken]] = []
    with served(tmp_path / "store", clock, flushConsumerOffsetInterval=3_600_000, **GOLDEN_SIZES) as (server, wire):
        consumer = Popper(wire, "g", "T", order=True)
        consumer.send(b"0", b"1", b"2", b"3", b"4", b"5")

        def image(left: bytes, left_if_acked: bytes, got: Taken) -> None:
            path = tmp_path / f"image-{len(images)}"
            shutil.copytree(tmp_path / "store", path, ignore=shutil.ignore_patterns("*.tmp"))  # being replaced
            images.append((path, left, left_if_acked, got))

        first = consumer.take(maxMsgNums=3)
        image(b"012345", b"012345", first)  # acks of an unknown pop are dropped
        consumer.ack_all(first[:1])
        save(server)
        image(b"12345", b"345", first)
        consumer.ack_all(first[1:2])
        image(b"12345", b"345", first)
        consumer.ack_all(first[2:])
        clock.now += 1
        second = consumer.take()
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
                consumer = Popper(wire, "g", "T", order=True)
                consumer.ack_all(late)
                clock.now += 60_000
                assert b"".join(consumer.take_bodies()) == wanted, path


def save(server: Served, *names: str) -> None:
    """Save the config files, like their timers."""

    async def work() -> None:
        parts = server.broker.parts
        for name in names or ("offsets", "order"):
            await parts.saver.save(name)

    server.do(work())
