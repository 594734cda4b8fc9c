"""Messages with a delivery time are delivered when due, and not if they are recalled (370)."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_rocket.client import Producer
from spark_rocket.errors import BrokerError, ProtocolError
from spark_rocket.model import Message
from spark_rocket.protocol.ids import RecallMessageHandle
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.testing import LocalCluster
from tests.broker.test_delayed import later
from tests.broker.wire import Wire, messages_of
from tests.kit.brokers import served
from tests.kit.clock import START, Clock

pytestmark = pytest.mark.live

TIMER = "rmq_sys_wheel_timer"


def recall(wire: Wire, topic: str, handle: object) -> tuple[int, str | None]:
    answer = wire.ask(RequestCode.RECALL_MESSAGE, producerGroup="g", topic=topic, recallHandle=handle)
    return answer.code, answer.remark


def test_timed_messages_are_delivered_at_their_millisecond(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock) as (server, wire):
        wire.send("Late", b"b", {"TIMER_DELIVER_MS": str(START + 1700), "TAGS": "t"}, queue_id=1)
        wire.send("Late", b"a", {"TIMER_DELAY_MS": "1300"}, queue_id=1)
        pull = wire.hold("Late", 0, queue_id=1)
        clock.now = START + 1299
        server.wake()
        assert not pull.done()
        clock.now = START + 1300
        server.wake()
        (message,) = messages_of(pull.result(20))
        assert (message.body, message.store_timestamp, message.queue_id) == (b"a", START + 1300, 1)
    clock.now = START + 5000
    with served(tmp_path, clock) as (server, wire):  # the other was due while the broker was stopped
        server.wake()
        found = wire.messages("Late", queue_id=1)
        assert [message.body for message in found] == [b"a", b"b"]
        assert found[1].properties["TIMER_OUT_MS"] == str(START + 1000)
        assert found[1].tags == "t"


def test_a_recalled_message_is_not_delivered(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock, recallMessageEnable=True) as (server, wire):
        answers = [wire.send("Late", body, {"TIMER_DELAY_SEC": "3"}) for body in (b"a", b"b")]
        handle = answers[0].ext_fields["recallHandle"]
        answer = wire.ask(RequestCode.RECALL_MESSAGE, producerGroup="g", topic="Late", recallHandle=handle)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext_fields["msgId"] == answers[0].ext_fields["transactionId"]
        *_, stored = wire.messages(TIMER)
        assert stored.body == b"0"
        assert stored.properties["TIMER_DEL_UNIQKEY"] == f"Late+{answer.ext_fields['msgId']}"
        assert (stored.properties["PGROUP"], stored.tags) == ("g", "_RECALL_TAG_")
        clock.now = START + 3000
        server.wake()
        assert wire.bodies("Late") == [b"b"]
        assert recall(wire, "Late", handle) == (ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")


def test_invalid_recalls_at_the_broker(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock, recallMessageEnable=True, brokerName="b") as (_, wire):
        wire.send("Late", b"a")
        illegal = ResponseCode.ILLEGAL_OPERATION
        soon = str(START + 5000)

        def tried(topic: str, broker: str, time: str) -> tuple[int, str | None]:
            return recall(wire, "Late", RecallMessageHandle(topic, broker, time, "id").encode())

        assert recall(wire, "Late", "invalid") == (illegal, "recall handle is invalid")
        assert tried("Other", "b", soon) == (illegal, "recall failed, topic not match")
        assert tried("Late", "a", soon) == (illegal, "recall failed, broker service not available")
        for time in (str(START), "soon", str(START + 259_200_000), "9" * 30):
            assert tried("Late", "b", time) == (illegal, "recall failed, timestamp invalid")
        missing = (ResponseCode.TOPIC_NOT_EXIST, "recall failed, the topic[None] not exist")
        assert recall(wire, "None", "x") == missing
        assert wire.messages(TIMER) == []
        wire.configure(allowRecallWhenBrokerNotWriteable=False)
        wire.configure(brokerPermission=4)
        assert tried("Late", "b", soon)[0] == ResponseCode.SERVICE_NOT_AVAILABLE
        wire.configure(recallMessageEnable=False)
        forbidden = (ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        assert tried("Late", "b", soon) == forbidden


def test_a_recall_waits_for_the_disk(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock, recallMessageEnable=True, flushDiskType="SYNC_FLUSH") as (server, wire):
        handle = wire.send("Late", b"a", {"TIMER_DELAY_SEC": "3"}).ext_fields["recallHandle"]
        assert recall(wire, "Late", handle)[0] == ResponseCode.SUCCESS
        store = server.broker.parts.store
        assert store.flushed_where == store.max_physical_offset


def test_a_broker_without_the_timer(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock, recallMessageEnable=True, timerWheelEnable=False) as (_, wire):
        wire.send("Late", b"a")
        handle = RecallMessageHandle("Late", "broker-a", str(START + 1000), "id").encode()
        assert recall(wire, "Late", handle)[0] == ResponseCode.SYSTEM_ERROR


# --- the real clock ---------------------------------------------------------------------------------------------


def test_a_producers_timed_message_and_its_recall(cluster: LocalCluster, wire: Wire, topic: str) -> None:
    with Producer("late", name_server=cluster.name_server) as producer:
        queue = producer.queues(topic)[0]
        unwanted = producer.send(Message.of(topic, b"unwanted", properties={"TIMER_DELAY_MS": "2000"}), queue=queue)
        sent = producer.send(Message.of(topic, b"late", properties={"TIMER_DELAY_MS": "300"}), queue=queue)
        assert unwanted.recall_handle is not None
        assert producer.recall_message(topic, unwanted.recall_handle) == unwanted.msg_id
        last = producer.send(Message.of(topic, b"last", properties={"TIMER_DELAY_MS": "2000"}), queue=queue)
        assert producer.send(Message.of(topic, b"now"), queue=queue).recall_handle is None
        (message,) = messages_of(later(wire, topic, 1))
        assert message.body == b"late"
        waited = wire.messages(TIMER, sent.queue_offset)[0].store_timestamp
        assert message.store_timestamp >= waited + 299
        (message,) = messages_of(later(wire, topic, 2))
        assert message.body == b"last"  # and not the one before it
        assert last.recall_handle is not None
        with pytest.raises(BrokerError, match=r"timestamp invalid\. The message was delivered, or is about to be"):
            producer.recall_message(topic, last.recall_handle)
        with pytest.raises(ProtocolError, match=r"Invalid recall handle 'invalid'\. Pass SendResult\.recall_handle"):
            producer.recall_message(topic, "invalid")
