"""Replies to request messages: pushed to the requester, stored, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import ReplyMessageRequestHeader, SendMessageRequestHeader
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Peer, Wire

pytestmark = pytest.mark.live

TOPIC = "DefaultCluster_REPLY_TOPIC"
Ask = Callable[..., RemotingCommand]


class Requester(Peer):
    """A client that produces, and responds to a push with a given code."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.code = int(ResponseCode.SUCCESS)
        self.goes_away = False
        self.answer = self._pushed
        self.beat(producers=["GID_requests"], client_id="requester@1")

    def _pushed(self, request: RemotingCommand) -> RemotingCommand:
        if self.goes_away:
            self.client.disconnect(self.address)
        return RemotingCommand.response(request, self.code)


@pytest.fixture
def requester(cluster: LocalCluster) -> Iterator[Requester]:
    with closing(Requester(cluster.broker_address)) as client:
        yield client


@pytest.fixture
def ask(wire: Wire) -> Ask:
    def reply(
        properties: str,
        code: int = RequestCode.SEND_REPLY_MESSAGE_V2,
        queue_id: int = 0,
        sys_flag: int = 0,
        body: bytes = b"reply",
        topic: str = TOPIC,
    ) -> RemotingCommand:
        header = SendMessageRequestHeader("g", topic, "TBW102", 4, queue_id, sys_flag, 123, 7, properties)
        ext = header.to_ext_v2() if code == RequestCode.SEND_REPLY_MESSAGE_V2 else header.to_ext()
        return wire.ask(code, body, **ext)

    return reply


def test_a_reply_goes_to_the_newest_connection(cluster: LocalCluster, requester: Requester, ask: Ask) -> None:
    """The old connection may be dead: a client reconnects after a network failure, and the old one stays open."""
    with closing(Requester(cluster.broker_address)) as again:
        assert ask("REPLY_TO_CLIENT\x01requester@1").code == 0
        assert bytes(again.asked.get(timeout=30).body) == b"reply"
    assert requester.asked.empty()


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_a_reply_is_pushed_to_its_requester(
    cluster: LocalCluster, requester: Requester, ask: Ask, code: RequestCode
) -> None:
    answer = ask("CORRELATION_ID\x01c1\x02REPLY_TO_CLIENT\x01requester@1\x02MSG_TYPE\x01reply", code)
    assert answer.code == ResponseCode.SUCCESS
    pushed = requester.asked.get(timeout=10)
    assert pushed.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    assert pushed.body == b"reply"
    header = ReplyMessageRequestHeader.from_ext(pushed.ext_fields)
    assert (header.producer_group, header.topic, header.flag, header.born_timestamp) == ("g", TOPIC, 7, 123)
    assert header.born_host.startswith("/127.0.0.1:")
    assert header.store_host == f"/{cluster.broker_address}"
    properties = decode_properties(header.properties or "")
    assert properties.pop("PUSH_REPLY_TIME").isdecimal()
    sent = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "requester@1", "MSG_TYPE": "reply"}
    assert properties == {**sent, "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert len(answer.ext_fields["msgId"]) == 32, "it is stored as well"


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        ("CORRELATION_ID\x01c1", "reply message properties[REPLY_TO_CLIENT] is null"),
        ("REPLY_TO_CLIENT\x01unknown@1", "push reply message fail, channel of <unknown@1> not found."),
        ("REPLY_TO_CLIENT\x01requester@1", "push reply message to requester@1fail."),
    ],
)
def test_a_failed_push_is_reported_and_stored(requester: Requester, ask: Ask, properties: str, remark: str) -> None:
    requester.code = int(ResponseCode.SYSTEM_ERROR)
    first, second = ask(properties), ask(properties)
    assert (first.code, first.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert int(second.ext_fields["queueOffset"]) == int(first.ext_fields["queueOffset"]) + 1


def test_a_requester_that_disconnects(requester: Requester, ask: Ask) -> None:
    requester.goes_away = True
    assert ask("REPLY_TO_CLIENT\x01requester@1").code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"queue_id": 99}, ResponseCode.INVALID_PARAMETER),
        ({"sys_flag": 4}, ResponseCode.MESSAGE_ILLEGAL),
        ({"body": bytes(4 * 1024 * 1024 + 1)}, ResponseCode.MESSAGE_ILLEGAL),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
    ],
)
def test_what_is_refused(ask: Ask, fields: dict[str, object], code: ResponseCode) -> None:
    assert ask("REPLY_TO_CLIENT\x01unknown@1", **fields).code == code


def test_replies_need_not_be_stored(requester: Requester, ask: Ask, wire: Wire) -> None:
    with wire.settings(storeReplyMessageEnable=False):
        answer = ask("REPLY_TO_CLIENT\x01requester@1")
    assert (answer.code, answer.ext_fields["msgId"], answer.ext_fields["queueOffset"]) == (0, "0", "0")
