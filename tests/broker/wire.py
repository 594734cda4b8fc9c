"""Single commands to a server, as any client would send them."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.delivery.held_requests import HeldKind, HeldRequest
from spark_rocket.model import Message, MessageExt
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.java_properties import parse_properties
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.client import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.bodies.route import KVTable
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient

SUSPEND = 2
SUBSCRIPTION = 4
#: Of a pull that waits for a message.
HELD: dict[str, Any] = {"sysFlag": SUSPEND | SUBSCRIPTION, "suspendTimeoutMillis": 30_000}

#: What a broker of default settings adds to every message that is sent.
BROKER_PROPERTIES = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}


B = TypeVar("B", bound=Body)


class Wire:
    """Requests to one address."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self.client = client
        self.address = address

    def ask(self, code: int, body: bytes = b"", /, **fields: Any) -> RemotingCommand:
        return self.client.invoke(self.address, request_of(code, body, **fields), timeout=10.0)

    def ask_later(self, code: int, body: bytes = b"", /, **fields: Any) -> Future[RemotingCommand]:
        return self.client.invoke_async(self.address, request_of(code, body, **fields), timeout=30.0)

    def read(self, kind: type[B], code: int, body: bytes = b"", /, **fields: Any) -> B:
        """The body of the response, which must be a success."""
        answer = self.ask(code, body, **fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return kind.from_json(bytes(answer.body))

    def tell(self, code: int, body: bytes = b"", /, **fields: Any) -> None:
        self.client.invoke_oneway(self.address, request_of(code, body, oneway=True, **fields))

    # --- messages -----------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        body: bytes = b"hello",
        properties: dict[str, str] | None = None,
        *,
        queue_id: int = 0,
        **more: Any,
    ) -> RemotingCommand:
        """SEND_MESSAGE_V2 as encoded by a Java client; ``more`` overrides single letters."""
        return self.ask(RequestCode.SEND_MESSAGE_V2, body, **{**send_fields(topic, properties, queue_id), **more})

    def send_later(self, topic: str, body: bytes, properties: dict[str, str] | None = None) -> Future[RemotingCommand]:
        return self.ask_later(RequestCode.SEND_MESSAGE_V2, body, **send_fields(topic, properties))

    def send_batch(self, topic: str, messages: Sequence[Message], *, queue_id: int = 0, **more: Any) -> RemotingCommand:
        fields = {**send_fields(topic, {}, queue_id), "i": "WAIT\x01true", "m": True, **more}
        return self.ask(RequestCode.SEND_BATCH_MESSAGE, bytes(encode_batch_body(messages)), **fields)

    def pull_fields(
        self, topic: str, offset: int, *, queue_id: int = 0, tags: str = "*", **more: Any
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {
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
        return {name: value for name, value in {**fields, **more}.items() if value is not None}

    def pull(self, topic: str, offset: int, **more: Any) -> RemotingCommand:
        return self.ask(RequestCode.PULL_MESSAGE, **self.pull_fields(topic, offset, **more))

    def pull_later(self, topic: str, offset: int, **more: Any) -> Future[RemotingCommand]:
        return self.ask_later(RequestCode.PULL_MESSAGE, **self.pull_fields(topic, offset, **more))

    def hold(self, topic: str, offset: int, **more: Any) -> Future[RemotingCommand]:
        """A pull that the broker holds until a message arrives."""
        return self.pull_later(topic, offset, **{**HELD, **more})

    def messages(self, topic: str, offset: int = 0, **more: Any) -> list[MessageExt]:
        return messages_of(self.pull(topic, offset, **more))

    def bodies(self, topic: str, offset: int = 0, **more: Any) -> list[bytes]:
        return bodies_of(self.pull(topic, offset, **more))

    def end(self, topic: str, queue_id: int = 0) -> int:
        """The offset of the next message."""
        return int(self.ask(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=queue_id).ext_fields["offset"])

    def query(self, topic: str, key: str, **more: Any) -> RemotingCommand:
        """The messages with a key."""
        times = {"beginTimestamp": 0, "endTimestamp": (1 << 63) - 1}
        return self.ask(RequestCode.QUERY_MESSAGE, **{"topic": topic, "key": key, "maxNum": 64, **times, **more})

    # --- administration -----------------------------------------------------------------------------------------

    def create_topic(self, topic: str, **fields: Any) -> RemotingCommand:
        defaults = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG", "order": False}
        asked = {"topic": topic, "defaultTopic": "TBW102", **defaults, **fields}
        return self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **asked)

    def topic_config(self, topic: str) -> TopicConfig | None:
        answer = self.ask(RequestCode.GET_TOPIC_CONFIG, topic=topic)
        return TopicConfig.from_json(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else None

    def delete_topic(self, topic: str) -> RemotingCommand:
        return self.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)

    def create_group(self, group: str, **fields: Any) -> None:
        body = json.dumps({"groupName": group, **fields}).encode()
        answer = self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def commit(self, group: str, topic: str, offset: int, queue_id: int = 0) -> RemotingCommand:
        fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
        return self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)

    def committed(self, group: str, topic: str, queue_id: int = 0, **more: Any) -> int | None:
        """The committed offset; None if the broker reports that there is none."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, **more}
        answer = self.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return int(answer.ext_fields["offset"])

    def reset(self, group: str, topic: str, **fields: Any) -> RemotingCommand:
        asked = {"group": group, "topic": topic, "isForce": True, **fields}
        return self.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **asked)

    def beat(
        self, *consumers: ConsumerData, producers: Sequence[str] = (), client_id: str = "client"
    ) -> RemotingCommand:
        """The response to a heartbeat, which must be a success."""
        data = HeartbeatData(client_id, [ProducerData(group) for group in producers], list(consumers))
        answer = self.ask(RequestCode.HEART_BEAT, data.to_json())
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    def configure(self, **settings: Any) -> RemotingCommand:
        text = "\n".join(f"{name}={_text(value)}" for name, value in settings.items())
        return self.ask(RequestCode.UPDATE_BROKER_CONFIG, text.encode())

    def shown(self) -> dict[str, str]:
        """The settings of the broker."""
        text = bytes(self.ask(RequestCode.GET_BROKER_CONFIG).body).decode()
        return {name: value for name, value, _ in parse_properties(text)}

    @contextmanager
    def settings(self, **settings: Any) -> Iterator[None]:
        """With other settings of the broker, and with the earlier ones again at the end."""
        before = self.shown()
        answer = self.configure(**settings)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        try:
            yield
        finally:
            answer = self.configure(**{name: before[name] for name in settings})
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    def runtime(self) -> dict[str, str]:
        return self.read(KVTable, RequestCode.GET_BROKER_RUNTIME_INFO).table


class Peer(Wire):
    """A client with a connection of its own: keeps the broker's requests, and answers as ``answer`` does."""

    def __init__(self, address: str, credentials: Credentials | None = None) -> None:
        super().__init__(RemotingClient(credentials=credentials, request_handler=self._take), address)
        self.asked: queue.Queue[RemotingCommand] = queue.Queue()
        self.answer: Callable[[RemotingCommand], RemotingCommand | None] = lambda request: None

    def _take(self, address: str, request: RemotingCommand) -> RemotingCommand | None:
        request.body = bytes(request.body)
        self.asked.put(request)
        return self.answer(request)

    def close(self) -> None:
        self.client.close()


def subscribed(
    group: str, topic: str, expression: str = "*", version: int = 1, kind: str = "TAG", **more: Any
) -> ConsumerData:
    """A consumer of one topic, for a heartbeat."""
    subscription = SubscriptionData.build(topic, expression, version, kind)
    return ConsumerData(group, subscription_data_set=[subscription], **more)


def messages_of(answer: RemotingCommand) -> list[MessageExt]:
    return decode_messages(bytes(answer.body))


def bodies_of(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in messages_of(answer)]


def send_fields(topic: str, properties: dict[str, str] | None = None, queue_id: int = 0) -> dict[str, Any]:
    """The header of SEND_MESSAGE_V2."""
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


def request_of(code: int, body: bytes = b"", /, *, oneway: bool = False, **fields: Any) -> RemotingCommand:
    ext = {name: _text(value) for name, value in fields.items()}
    return RemotingCommand.request(code, ext, body, oneway=oneway)


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def held_by(parts: BrokerParts, topic: str) -> list[HeldRequest]:
    """The held pulls of a topic."""
    return [held for held in list(parts.held_requests.of_topic(topic)) if held.place.kind is HeldKind.PULL]


def held_pulls(wire: Wire, parts: BrokerParts, topic: str) -> int:
    """The number of held pulls of a topic, including those sent before over the same connection."""
    wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    return len(held_by(parts, topic))


def time_is_up(parts: BrokerParts, topic: str) -> None:
    """Let the held requests of a topic time out."""
    parts.loop.call_soon_threadsafe(parts.held_requests.wake_topic, topic)
