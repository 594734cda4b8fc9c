"""Notifications (200054), the number of held pops (200055), and peeks (200052)."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

import pytest

from spark_rocket.broker.assembly import BrokerParts
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.codes import SEE_FAQ, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from tests.broker.wire import Wire
from tests.kit.waiting import until

pytestmark = pytest.mark.live

SOME, NONE = {"hasMsg": "true", "pollingFull": "false"}, {"hasMsg": "false", "pollingFull": "false"}


def now() -> int:
    return int(time.time() * 1000)


class Asker:
    """A consumer that requests a notification before it pops."""

    def __init__(self, wire: Wire, group: str, topic: str) -> None:
        self.wire = wire
        self.group = group
        self.topic = topic

    def notification(self, **fields: object) -> RemotingCommand:
        return self.notification_later(**{"pollTime": 0, **fields}).result(30)

    def notification_later(self, **fields: object) -> Future[RemotingCommand]:
        ask: dict[str, Any] = {"queueId": -1, "pollTime": 60_000, "bornTime": now(), **fields}
        return self._later(RequestCode.NOTIFICATION, ask)

    def pop_later(self, **fields: object) -> Future[RemotingCommand]:
        ask = {"queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000, "pollTime": 60_000, "initMode": 0}
        return self._later(RequestCode.POP_MESSAGE, {**ask, "bornTime": now(), **fields})

    def _later(self, code: RequestCode, fields: dict[str, Any]) -> Future[RemotingCommand]:
        ask = {"consumerGroup": self.group, "topic": self.topic, **fields}
        ext = {
            name: ("true" if value else "false") if isinstance(value, bool) else str(value)
            for name, value in ask.items()
        }
        request = RemotingCommand.request(code, ext)
        return self.wire.client.invoke_async(self.wire.address, request, timeout=30.0)

    def polling_num(self, queue_id: int = -1) -> str:
        answer = self.wire.ask(RequestCode.POLLING_INFO, consumerGroup=self.group, topic=self.topic, queueId=queue_id)
        return answer.ext_fields["pollingNum"]

    def peek(self, **fields: object) -> RemotingCommand:
        ask = {"consumerGroup": self.group, "topic": self.topic, "queueId": -1, "maxMsgNums": 32}
        return self.wire.ask(RequestCode.PEEK_MESSAGE, **{**ask, **fields})


@pytest.fixture
def asker(wire: Wire, group: str, topic: str) -> Asker:
    return Asker(wire, group, topic)


# --- notifications ------------------------------------------------------------------------------------------------


def test_existing_messages_are_announced_at_once(asker: Asker) -> None:
    assert asker.notification().ext_fields == NONE
    asker.wire.send(asker.topic, queue_id=2)
    for _ in range(2):
        answer = asker.notification()
        assert (answer.code, answer.ext_fields) == (0, SOME)
    assert asker.notification(queueId=2).ext_fields == SOME
    assert asker.notification(queueId=1).ext_fields == NONE
    assert len(decode_messages(bytes(asker.pop_later().result(30).body))) == 1
    assert asker.notification().ext_fields == NONE


def test_later_messages_are_announced(asker: Asker) -> None:
    waiting = [asker.notification_later(), asker.notification_later()]
    of_queue_1 = asker.notification_later(queueId=1)
    assert asker.polling_num() == "0"  # of pops; and all the above wait now
    assert not any(each.done() for each in waiting)
    asker.wire.send(asker.topic, queue_id=3)
    assert waiting[0].result(30).ext_fields == SOME
    assert not waiting[1].done()
    asker.wire.send(asker.topic, queue_id=1)
    assert waiting[1].result(30).ext_fields == of_queue_1.result(30).ext_fields == SOME


def test_no_notification_at_the_timeout(asker: Asker) -> None:
    assert asker.notification(pollTime=100).ext_fields == NONE
    assert asker.notification(pollTime=60_000, bornTime=now() - 60_000).ext_fields == NONE


def test_only_requested_tags_are_announced(asker: Asker) -> None:
    asker.wire.send(asker.topic, properties={"TAGS": "A"})
    assert asker.notification(expType="TAG", exp="B").ext_fields == NONE
    assert asker.notification(expType="TAG", exp="A || B").ext_fields == SOME
    waiting = asker.notification_later(expType="TAG", exp="B")
    asker.wire.send(asker.topic, properties={"TAGS": "A"})
    assert asker.polling_num() == "0"
    assert not waiting.done()
    asker.wire.send(asker.topic, properties={"TAGS": "B"})
    assert waiting.result(30).ext_fields == SOME


def test_redelivered_messages_are_announced_and_shown(asker: Asker) -> None:
    asker.wire.send(asker.topic, b"once")
    assert asker.pop_later(invisibleTime=1_000).result(30).code == 0
    assert asker.notification_later().result(30).ext_fields == SOME
    (message,) = decode_messages(bytes(asker.peek().body))
    assert (message.body, message.reconsume_times) == (b"once", 1)
    assert asker.pop_later().result(30).code == 0


def test_too_many_waiters_get_an_error(asker: Asker, parts: BrokerParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.config, "pop_polling_size", 1)
    first = asker.notification_later()
    answer = asker.notification(pollTime=60_000)
    assert answer.ext_fields == {"hasMsg": "false", "pollingFull": "true"}
    asker.wire.send(asker.topic)
    assert first.result(30).ext_fields == SOME


def test_a_deleted_topic_ends_held_pops(asker: Asker, cluster: Any) -> None:
    waiting, pop = asker.notification_later(), asker.pop_later()
    assert asker.polling_num() == "1"
    cluster.delete_topic(asker.topic)
    assert waiting.result(30).code == pop.result(30).code == ResponseCode.TOPIC_NOT_EXIST


# --- waiting pops -------------------------------------------------------------------------------------------------


def test_a_waiting_pop_is_answered_by_a_message(asker: Asker) -> None:
    first, second = asker.pop_later(), asker.pop_later()
    of_queue_1 = asker.pop_later(queueId=1)
    assert (asker.polling_num(), asker.polling_num(1), asker.polling_num(2)) == ("2", "1", "0")
    asker.wire.send(asker.topic, b"one", queue_id=3)
    (message,) = decode_messages(bytes(first.result(30).body))
    assert message.body == b"one"
    assert (asker.polling_num(), second.done()) == ("1", False)
    asker.wire.send(asker.topic, b"two", queue_id=0)
    assert second.result(30).code == 0
    asker.wire.send(asker.topic, b"three", queue_id=1)
    assert of_queue_1.result(30).code == 0
    assert asker.polling_num() == "0"


def test_a_waiting_pop_ends_with_210_and_too_many_with_209(
    asker: Asker, parts: BrokerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = asker.pop_later(pollTime=100).result(30)
    assert (answer.code, answer.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    monkeypatch.setattr(parts.config, "pop_polling_size", 1)
    first = asker.pop_later()
    assert asker.pop_later().result(30).code == ResponseCode.POLLING_FULL
    asker.wire.send(asker.topic)
    assert first.result(30).code == 0


def test_a_held_pop_skips_filtered_messages(asker: Asker) -> None:
    waiting = asker.pop_later(expType="SQL92", exp="n > 5")
    assert asker.polling_num() == "1"
    for number in (1, 2, 7):
        asker.wire.send(asker.topic, b"%d" % number, {"n": str(number)}, queue_id=1)
    (message,) = decode_messages(bytes(waiting.result(30).body))
    assert message.body == b"7"


def test_the_pops_of_a_closed_connection_take_nothing(asker: Asker) -> None:
    with RemotingClient() as client:
        other = Asker(Wire(client, asker.wire.address), asker.group, asker.topic)
        assert other.polling_num() == "0"  # connected: what is asked from now on arrives in that order
        other.pop_later()
        assert other.polling_num() == "1"
    until(lambda: asker.polling_num() == "0")
    waiting = asker.pop_later()
    asker.wire.send(asker.topic, b"mine")
    assert waiting.result(30).code == 0


# --- peeking ------------------------------------------------------------------------------------------------------


def test_a_peek_takes_nothing(asker: Asker) -> None:
    answer = asker.peek()
    assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
    for number in range(3):
        asker.wire.send(asker.topic, b"%d" % number, queue_id=number)
    for _ in range(2):
        answer = asker.peek()
        assert (answer.code, answer.remark, answer.ext_fields["restNum"]) == (0, "FOUND", "0")
        assert sorted(message.body for message in decode_messages(bytes(answer.body))) == [b"0", b"1", b"2"]
    answer = asker.peek(maxMsgNums=2)
    assert (len(decode_messages(bytes(answer.body))), answer.ext_fields["restNum"]) == (2, "1")
    (message,) = decode_messages(bytes(asker.peek(queueId=1).body))
    assert message.body == b"1"
    assert asker.peek(maxMsgNums=0).ext_fields["restNum"] == "3"


# --- refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [RequestCode.NOTIFICATION, RequestCode.POLLING_INFO, RequestCode.PEEK_MESSAGE])
def test_invalid_entries_are_named(
    asker: Asker, parts: BrokerParts, code: RequestCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[str, object] = {"consumerGroup": asker.group, "topic": asker.topic, "queueId": 0}
    fields |= {"maxMsgNums": 1, "pollTime": 0, "bornTime": 0}

    def refused(**wrong: object) -> tuple[int, str]:
        answer = asker.wire.ask(code, **{**fields, **wrong})
        return answer.code, answer.remark or ""

    assert refused(topic="Nowhere") == (17, f"topic[Nowhere] not exist, apply first please! {SEE_FAQ}")
    bad_queue = ResponseCode.INVALID_PARAMETER if code == RequestCode.PEEK_MESSAGE else ResponseCode.SYSTEM_ERROR
    assert refused(queueId=4)[0] == bad_queue
    assert "queueId[4] is illegal" in refused(queueId=4)[1]
    assert refused(consumerGroup="no group!")[0] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert refused(queueId="x")[0] == ResponseCode.SYSTEM_ERROR
    monkeypatch.setattr(parts.config, "broker_permission", 2)
    assert refused()[0] == ResponseCode.NO_PERMISSION
