"""Requests of a producer have the fields and values recorded from Apache's own client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_rocket.client import Producer
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from tests import golden
from tests.client.fakes import STORED, FakeCluster, says

pytestmark = pytest.mark.live

BORN = "g"  # the only field whose value differs each time


def recorded(code: int) -> list[golden.GoldenFrame]:
    return [frame for frame in golden.frames() if frame.is_request and frame.request_code == code]


def decoded(frame: golden.GoldenFrame) -> RemotingCommand:
    return RemotingCommand.decode(frame.raw[4:])


@pytest.fixture
def sent(
    fake: Callable[..., FakeCluster], closing: Callable[[Producer], Producer]
) -> Callable[[RemotingCommand, Any], RemotingCommand]:
    def send(like: RemotingCommand, messages: Message | list[Message]) -> RemotingCommand:
        mq = fake(1)
        ext = like.ext_fields
        topic, queue_id = ext["b"], int(ext["e"])
        mq.add(topic, queues=queue_id + 1)
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            mq.everywhere(code, says(0, ext=STORED))
        producer = closing(Producer(ext["a"], name_server=mq.name_server.address, member=False))
        producer.send(messages, queue=MessageQueue(topic, "b0", queue_id))
        (request,) = mq.brokers[0].requests
        return request

    return send


def with_body(frame: golden.GoldenFrame) -> bool:
    """Apache's client refuses to send messages without one, so one recorded message was built by hand."""
    return frame.index["bodyLength"] > 0


@pytest.mark.parametrize("frame", list(filter(with_body, recorded(310))), ids=lambda frame: frame.name)
def test_a_single_send(frame: golden.GoldenFrame, sent: Callable[..., RemotingCommand]) -> None:
    java = decoded(frame)
    ext = java.ext_fields
    properties = decode_properties(ext["i"])
    ours = sent(java, Message(ext["b"], bytes(java.body), properties, int(ext["h"])))
    assert (ours.code, bytes(ours.body), ours.flag & 1) == (java.code, java.body, 0)
    assert ours.ext_fields.keys() == ext.keys()
    kept = ext.keys() - {BORN, "i", "n"}
    assert {name: ours.ext_fields[name] for name in kept} == {name: ext[name] for name in kept}
    assert decode_properties(ours.ext_fields["i"]) == properties


@pytest.mark.parametrize("frame", recorded(320), ids=lambda frame: frame.name)
def test_a_batch(frame: golden.GoldenFrame, sent: Callable[..., RemotingCommand]) -> None:
    java = decoded(frame)
    ext = java.ext_fields
    parts = decode_batch_body(bytes(java.body))
    messages = [Message(ext["b"], bytes(body), decode_properties(raw), flag) for flag, body, raw in parts]
    ours = sent(java, messages)
    assert [(flag, bytes(body)) for flag, body, _ in decode_batch_body(ours.body)] == [
        (flag, bytes(body)) for flag, body, _ in parts
    ]
    assert [decode_properties(raw) for *_, raw in decode_batch_body(ours.body)] == [
        message.properties for message in messages
    ]
    kept = ext.keys() - {BORN, "i", "n"}
    assert {name: ours.ext_fields[name] for name in kept} == {name: ext[name] for name in kept}
    assert decode_properties(ours.ext_fields["i"]) == decode_properties(ext["i"])
