"""Requests that the broker forwards to consumers: their responses, and the errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from spark_rocket.broker.processors import consumer_requests
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.record.record import decode_record
from spark_rocket.protocol.wire.bodies.consumer import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from spark_rocket.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Peer, Wire, request_of, subscribed

pytestmark = pytest.mark.live

CODES = (
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)


class Consumer(Peer):
    """A member of a group with scripted responses."""

    def __init__(self, address: str, client_id: str, group: str, topic: str) -> None:
        super().__init__(address)
        self.client_id = client_id
        self.group, self.topic = group, topic
        self.joins()

    def joins(self, expression: str = "*", version: int = 1) -> None:
        self.beat(subscribed(self.group, self.topic, expression, version), client_id=self.client_id)

    def _take(self, address: str, request: RemotingCommand) -> RemotingCommand | None:
        return super()._take(address, request) if request.code in CODES else None

    def answers(self, body: bytes = b"", code: int = 0, remark: str | None = None) -> None:
        self.answer = lambda request: RemotingCommand.response(request, code, remark, body=body)


@pytest.fixture
def consumers(cluster: LocalCluster, topic: str, group: str) -> Iterator[list[Consumer]]:
    made = [Consumer(cluster.broker_address, f"client-{number}", group, topic) for number in range(2)]
    yield made
    for consumer in made:
        consumer.close()


# --- 307, 309 ---------------------------------------------------------------------------------------------------


def test_the_running_information_of_a_consumer(wire: Wire, consumers: list[Consumer], group: str) -> None:
    info = ConsumerRunningInfo({"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"})
    consumers[1].answers(info.to_json())
    fields = {"consumerGroup": group, "clientId": "client-1", "jstackEnable": "true"}
    assert wire.read(ConsumerRunningInfo, RequestCode.GET_CONSUMER_RUNNING_INFO, **fields) == info
    assert consumers[1].asked.get(timeout=20).ext_fields == fields
    assert consumers[0].asked.empty()


def test_a_message_is_consumed_directly(wire: Wire, consumers: list[Consumer], topic: str, group: str) -> None:
    msg_id = wire.send(topic, b"this one", {"TAGS": "t"}).ext_fields["msgId"]
    result = ConsumeMessageDirectlyResult(consume_result="CR_LATER", spent_time_mills=3)
    consumers[0].answers(result.to_json())
    fields = {"consumerGroup": group, "clientId": "client-0", "msgId": msg_id}
    assert wire.read(ConsumeMessageDirectlyResult, RequestCode.CONSUME_MESSAGE_DIRECTLY, **fields) == result
    asked = consumers[0].asked.get(timeout=20)
    assert asked.ext_fields["brokerName"] == "broker-a"
    message = decode_record(asked.body)
    assert (message.body, message.offset_msg_id, message.topic) == (b"this one", msg_id, topic)


@pytest.mark.parametrize("code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY])
def test_a_consumer_that_is_missing_leaves_or_refuses(
    wire: Wire, consumers: list[Consumer], topic: str, group: str, code: int
) -> None:
    member = consumers[0]
    fields = {"consumerGroup": group, "clientId": "client-0", "msgId": wire.send(topic).ext_fields["msgId"]}
    for wrong in ({"clientId": "client-9"}, {"consumerGroup": "Unknown"}):
        absent = wire.ask(code, **{**fields, **wrong})
        assert (absent.code, (absent.remark or "").endswith("not online")) == (ResponseCode.SYSTEM_ERROR, True)
    member.answers(code=3, remark="not me")
    refused = wire.ask(code, **fields)
    assert (refused.code, refused.remark) == (3, "not me")
    member.asked.get(timeout=20)
    member.answer = lambda request: None
    later = wire.ask_later(code, **fields)
    member.asked.get(timeout=20)
    member.close()
    gone = later.result(20)
    assert gone.code == ResponseCode.SYSTEM_ERROR
    assert f"invoke consumer <{group}> <client-0> Exception: " in (gone.remark or "")


def test_a_consumer_that_does_not_answer(
    wire: Wire, consumers: list[Consumer], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_requests, "_RELAY_TIMEOUT_S", 0.05)
    answer = wire.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup=group, clientId="client-0")
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert (answer.remark or "").startswith(f"consumer <{group}> <client-0> Timeout: ")


@pytest.mark.parametrize("msg_id", ["", "x", "7F00000100002A9F00000000FFFFFFFF"])
def test_a_missing_message(wire: Wire, consumers: list[Consumer], group: str, msg_id: str) -> None:
    answer = wire.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, consumerGroup=group, clientId="client-0", msgId=msg_id)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert consumers[0].asked.empty()


# --- 223 and 221 ------------------------------------------------------------------------------------------------


def test_offsets_of_consumers(
    wire: Wire, consumers: list[Consumer], topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    tables = [{MessageQueue(topic, "broker-a", number): 5 + number} for number in range(2)]

    def status(**fields: object) -> dict[str, dict[MessageQueue, int]]:
        return wire.read(GetConsumerStatusBody, code, topic=topic, group=group, **fields).consumer_table

    for consumer, table in zip(consumers, tables, strict=True):
        consumer.answers(GetConsumerStatusBody(message_queue_table=table).to_json())
    assert status() == {"client-0": tables[0], "client-1": tables[1]}
    asked = consumers[0].asked.get(timeout=20)
    assert asked.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    assert asked.ext_fields == {"topic": topic, "group": group}
    assert status(clientAddr="client-1") == {"client-1": tables[1]}
    assert status(clientAddr="client-9") == {}
    consumers[0].answers(code=3, remark="not supported")
    assert status() == {"client-1": tables[1]}
    consumers[0].answers(b"{nonsense")
    assert status() == {"client-1": tables[1]}
    consumers[0].answer = lambda request: None
    monkeypatch.setattr(consumer_requests, "_STATUS_TIMEOUT_S", 0.05)
    assert status(clientAddr="client-0") == {}
    nobody = wire.ask(code, topic=topic, group="Unknown")
    assert nobody.remark == "No Any Consumer online in the consumer group: [Unknown]"


@pytest.fixture
def committed(wire: Wire, topic: str, group: str) -> Iterator[list[int]]:
    """Messages, offsets of the group, and a broker that resets them through the members."""
    wire.create_group(group)
    offsets = [4, 5, 6, 10]
    for number, offset in enumerate(offsets):
        wire.send_batch(topic, [Message.of(topic, b"x")] * 10, queue_id=number)
        wire.commit(group, topic, offset, number)
    with wire.settings(useServerSideResetOffset=False):
        yield offsets


# --- 222 and 220 ------------------------------------------------------------------------------------------------


def test_members_get_their_new_offsets(
    wire: Wire, consumers: list[Consumer], topic: str, group: str, committed: list[int]
) -> None:
    unknown = wire.reset("Unknown", topic, timestamp=-1)
    assert (unknown.code, unknown.remark) == (1, "THe consumer group <Unknown> not exist")

    def table(raw: bytes) -> list[int]:
        offsets = ResetOffsetBody.from_json(raw).offset_table
        assert {queue.broker_name for queue in offsets} == {"broker-a"}
        return [offsets[MessageQueue(topic, "broker-a", number)] for number in range(4)]

    for fields, expected in (
        ({"timestamp": -1, "isForce": True}, [10, 10, 10, 10]),
        ({"timestamp": -1, "isForce": False}, committed),
        ({"timestamp": 0, "isForce": False}, [0, 0, 0, 0]),
    ):
        answer = wire.reset(group, topic, **fields)
        assert (answer.code, table(bytes(answer.body))) == (0, expected)
        for consumer in consumers:
            told = consumer.asked.get(timeout=20)
            assert (told.code, told.is_oneway) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, True)
            assert (told.ext_fields["topic"], told.ext_fields["group"]) == (topic, group)
            assert table(bytes(told.body)) == expected
    # The broker itself has moved nothing: the members commit where they are then.
    assert wire.pull(topic, 5, consumerGroup=group).code == ResponseCode.SUCCESS


def test_members_in_cpp_get_their_format(
    wire: Wire, consumers: list[Consumer], topic: str, group: str, committed: list[int]
) -> None:
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    request = request_of(code, group=group, topic=topic, timestamp=0, isForce=True)
    request.language = LanguageCode.CPP
    assert wire.client.invoke(wire.address, request, timeout=10).code == ResponseCode.SUCCESS
    rows = ResetOffsetBodyForC.from_json(bytes(consumers[0].asked.get(timeout=20).body)).offset_table
    assert [(row.topic, row.broker_name, row.queue_id, row.offset) for row in rows] == [
        (topic, "broker-a", number, 0) for number in range(4)
    ]


def test_no_member_to_notify(wire: Wire, topic: str, group: str, committed: list[int]) -> None:
    answer = wire.reset(group, topic, timestamp=-1)
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert "Consumer not online, so can not reset offset" in (answer.remark or "")


# --- subscriptions that differ ----------------------------------------------------------------------------------


def test_consumers_that_subscribe_differently_are_named_once(
    consumers: list[Consumer], topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = consumers

    def warned() -> list[str]:
        found = [record.message for record in caplog.records if "have different subscriptions" in record.message]
        caplog.clear()
        return found

    with caplog.at_level(logging.WARNING):
        first.joins()
        assert warned() == []
        second.joins("a || b", 2)
        (text,) = warned()
        assert f"Consumers of group {group} have different subscriptions: client-1 has {topic} by 'a || b'" in text
        assert f"client-0 has {topic} by '*'" in text
        for _ in range(3):
            second.joins("a || b", 2)
            first.joins()
        assert warned() == []
        second.joins("c", 3)
        assert warned() == []  # once for a host and group in ten seconds
