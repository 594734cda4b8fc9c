"""Single commands to a server, as any client would send them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import cast

from spark_rocket.broker.assembly import BrokerParts
from spark_rocket.broker.delivery.long_polling import HeldPull
from spark_rocket.model import Message, MessageExt
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient

SUSPEND = 2
SUBSCRIPTION = 4

#: What a broker of default settings adds to every message that is sent.
BROKER_PROPERTIES = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}


class Wire:
    """Requests to one address."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self.client = client
        self.address = address

    def ask(self, code: int, body: bytes = b"", /, **fields: object) -> RemotingCommand:
        ext = {name: _text(value) for name, value in fields.items()}
        return self.client.invoke(self.address, RemotingCommand.request(code, ext, body), timeout=10.0)

    def tell(self, code: int, body: bytes = b"", /, **fields: object) -> None:
        ext = {name: _text(value) for name, value in fields.items()}
        self.client.invoke_oneway(self.address, RemotingCommand.request(code, ext, body, oneway=True))

    def send(
        self,
        topic: str,
        body: bytes = b"hello",
        properties: dict[str, str] | None = None,
        *,
        queue_id: int = 0,
        **more: object,
    ) -> RemotingCommand:
        """SEND_MESSAGE_V2 as encoded by a Java client; ``more`` overrides single letters."""
        return self.ask(RequestCode.SEND_MESSAGE_V2, body, **{**_send_fields(topic, properties, queue_id), **more})

    def send_later(self, topic: str, body: bytes, properties: dict[str, str] | None = None) -> Future[RemotingCommand]:
        ext = {name: _text(value) for name, value in _send_fields(topic, properties, 0).items()}
        request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, ext, body)
        return self.client.invoke_async(self.address, request, timeout=30.0)

    def send_batch(
        self, topic: str, messages: Sequence[Message], *, queue_id: int = 0, **more: object
    ) -> RemotingCommand:
        body = bytes(encode_batch_body(messages))
        fields: dict[str, object] = {
            "a": "producers",
            "b": topic,
            "c": "TBW102",
            "d": 4,
            "e": queue_id,
            "f": 0,
            "g": 1_795_229_620_131,
            "h": 0,
            "i": "WAIT\x01true",
            "j": 0,
            "m": True,
        }
        return self.ask(RequestCode.SEND_BATCH_MESSAGE, body, **{**fields, **more})

    def create_group(self, group: str) -> None:
        body = SubscriptionGroupConfig(group_name=group).to_json()
        assert self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code == 0

    def pull_fields(
        self, topic: str, offset: int, *, queue_id: int = 0, tags: str = "*", **more: object
    ) -> dict[str, str]:
        fields: dict[str, object] = {
            "consumerGroup": "readers",
            "topic": topic,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": SUBSCRIPTION,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": tags,
            "subVersion": 0,
            "expressionType": "TAG",
        }
        return {name: _text(value) for name, value in {**fields, **more}.items() if value is not None}

    def pull(self, topic: str, offset: int, **more: object) -> RemotingCommand:
        request = RemotingCommand.request(RequestCode.PULL_MESSAGE, self.pull_fields(topic, offset, **more))  # type: ignore[arg-type]
        return self.client.invoke(self.address, request, timeout=10.0)

    def pull_later(self, topic: str, offset: int, **more: object) -> Future[RemotingCommand]:
        request = RemotingCommand.request(RequestCode.PULL_MESSAGE, self.pull_fields(topic, offset, **more))  # type: ignore[arg-type]
        return self.client.invoke_async(self.address, request, timeout=30.0)

    def messages(self, topic: str, offset: int = 0, **more: object) -> list[MessageExt]:
        return decode_messages(bytes(self.pull(topic, offset, **more).body))


def _send_fields(topic: str, properties: dict[str, str] | None, queue_id: int) -> dict[str, object]:
    return {
        "a": "producers",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue_id,
        "f": 0,
        "g": 1_795_229_620_131,
        "h": 0,
        "i": encode_properties(properties or {}).decode(),
        "j": 0,
        "k": False,
        "m": False,
        "n": "broker-a",
    }


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def held_by(parts: BrokerParts, topic: str) -> list[HeldPull]:
    """The held pulls of a topic."""
    return [pull for key, pulls in list(parts.held_pulls._by_queue.items()) if key[0] == topic for pull in pulls]


def held_pulls(wire: Wire, parts: BrokerParts, topic: str) -> int:
    """The number of held pulls of a topic, including those sent before over the same connection."""
    wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    return len(held_by(parts, topic))


def time_is_up(parts: BrokerParts, topic: str) -> None:
    """Let the held pulls of a topic time out."""

    def expire() -> None:
        for pull in held_by(parts, topic):
            cast("partial[None]", pull.respond).args[2].until = 0.0  # one with an SQL92 filter looks at it too
            parts.held_pulls._expire(pull)

    parts.loop.call_soon_threadsafe(expire)
