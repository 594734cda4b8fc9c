"""SendMessage and RecallMessage: converted to the broker's requests 310, 320 and 370.

The proxy chooses the queue, regardless of the request. Messages without a group go to the writable queues of all
brokers in turn. The hash of a message group selects one of all queues, as in Apache's proxy. (Classic producers that
choose by the hash of a sharding key use another hash, so a group is ordered only if one type of client sends it.) The
queue of a group changes when a broker is added or removed.

A message without a group is sent to another broker if one is unreachable or its connection is lost before the response.
Then the message may be stored twice with the same id, as after a client's retry. Transactions and messages of a group
fail instead.

The messages of a request are stored as one atomic batch. They must be homogeneous: one topic, one type, one group, one
encoding, and NORMAL or FIFO. message_in.py defines the type of a message.

Messages never create a topic. A topic with the attribute ``message.type`` accepts only messages of that type, as in
Apache's proxy. Without the attribute, and with MIXED, it accepts all types.

Priorities and lite topics are not supported, because this broker does not have them (NOT_IMPLEMENTED). Corresponds to
SendMessageActivity, RecallMessageActivity and ProducerProcessor of org.apache.rocketmq.proxy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

from spark_rocket.client.core.client_config import MAX_MESSAGE_SIZE
from spark_rocket.errors import ProtocolError, RemotingConnectError
from spark_rocket.model import DLQ_PREFIX, RETRY_PREFIX, MessageQueue
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.ids import RecallMessageHandle
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.proxy import definitions
from spark_rocket.proxy.cluster.proxy_cluster import REQUEST_SECONDS, ProxyCluster, Topic
from spark_rocket.proxy.messages.message_in import (
    DELAY,
    FIFO,
    LITE,
    NORMAL,
    PRIORITY,
    TRANSACTION,
    IncomingMessage,
    read_message,
)
from spark_rocket.proxy.messages.names import topic_of
from spark_rocket.proxy.messages.statuses import StatusError, refusal_of, status
from spark_rocket.proxy.messaging import Family
from spark_rocket.proxy.methods.client_registry import ClientRegistry
from spark_rocket.proxy.methods.routing import accepted_types, existing_topic
from spark_rocket.proxy.methods.transactions import transaction_id
from spark_rocket.proxy.transport.proxy_context import ProxyContext

_Code = definitions.Code
_SEND = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
_SUCCESS = int(ResponseCode.SUCCESS)
#: Codes for a message that is stored, but less durably than configured.
_STORED = frozenset(
    (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
)
_MASK = (1 << 64) - 1
_MAX_TURNS = 100_000
_MIN_TIMEOUT_S, _MAX_TIMEOUT_S = 0.1, 60.0
_NAMES = {kind: definitions.MessageType.Name(kind) for kind in (NORMAL, FIFO, DELAY, TRANSACTION, LITE, PRIORITY)}
_NOT_HERE = {
    LITE: "lite topics are not implemented: use a separate topic instead",
    PRIORITY: "priorities are not implemented: this broker delivers in the order of arrival. "
    "Use a topic for each priority instead",
}


class SendFamily(Family):
    """Sends and recalls messages."""

    def __init__(
        self, cluster: ProxyCluster, clients: ClientRegistry, *, max_message_size: int = MAX_MESSAGE_SIZE
    ) -> None:
        """``max_message_size``: bytes of a body, and of all bodies and properties of a request."""
        self._cluster = cluster
        self._clients = clients
        self._max_message_size = max_message_size
        self._turns: dict[str, int] = {}
        self._ok = status(_Code.OK)

    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {"SendMessage": self.send_message, "RecallMessage": self.recall_message}

    async def send_message(self, context: ProxyContext, request: Any) -> Any:
        topic = self._topic_of(request)
        found = await existing_topic(self._cluster, topic)
        incoming = await self._read(request, topic)
        del request  # do not hold the bodies twice while waiting for the broker
        first = incoming[0]
        _check_type(found, first.kind)
        ext = {
            "a": topic,  # as in Apache's proxy, whose producers have no groups
            "b": topic,
            "c": "",
            "d": "0",
            "e": "",  # the queue, chosen below
            "f": str(first.sys_flag),
            "g": str(first.born),
            "h": "0",
        }
        if first.kind == TRANSACTION:
            await self._clients.produces(context, topic)
        if len(incoming) == 1:
            ext["i"] = first.properties
            code, body = _SEND, first.body
        else:
            ext["m"] = "true"
            code, body = _SEND_BATCH, self._batch_body(incoming)
        broker, response = await self._send(context, found, first, code, ext, body)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            self._cluster.topics.suspect(topic)
        return self._response(broker, response, incoming)

    def _topic_of(self, request: Any) -> str:
        count = len(request.messages)
        if not count:
            raise StatusError(_Code.MESSAGE_CORRUPTED, "no message to send")
        return topic_of(request.messages[0].topic)

    async def _read(self, request: Any, topic: str) -> list[IncomingMessage]:
        """Validate the messages of a request. Together they must not be larger than the maximum of one message."""
        now, left = self._cluster.clock(), self._max_message_size
        messages = request.messages
        if len(messages) == 1:
            return [read_message(messages[0], topic, now, left)]
        incoming = []
        for message in messages:
            one = read_message(message, topic, now, self._max_message_size)
            incoming.append(one)
            left -= len(one.body) + len(one.properties)
            if left < 0:  # fail before all of up to 130 MiB are checked
                raise StatusError(
                    _Code.MESSAGE_BODY_TOO_LARGE, f"the messages have more than {self._max_message_size} bytes together"
                )
            if one.sys_flag:  # recompressing a body takes time
                await asyncio.sleep(0)
        _check_homogeneous(request, incoming)
        return incoming

    def _batch_body(self, incoming: list[IncomingMessage]) -> bytes:
        born = incoming[0].born
        is_uniform = all(message.born == born for message in incoming)
        body = encode_batch_body(
            [
                (
                    0,
                    message.body,
                    (message.properties + ("" if is_uniform else f"\x02BORN_TIMESTAMP\x01{message.born}")).encode(),
                )
                for message in incoming
            ]
        )
        most = self._max_message_size
        if len(body) > most:
            raise StatusError(
                _Code.MESSAGE_BODY_TOO_LARGE, f"the messages have {len(body)} bytes together, max is {most}"
            )
        return body

    async def _send(
        self, context: ProxyContext, topic: Topic, first: IncomingMessage, code: int, ext: dict[str, str], body: Buffer
    ) -> tuple[str, RemotingCommand]:
        """Send the request; return the broker and its response."""
        seconds = REQUEST_SECONDS
        if context.deadline is not None:
            seconds = min(max(context.deadline - time.monotonic(), _MIN_TIMEOUT_S), _MAX_TIMEOUT_S)
        tried: set[str] = set()
        while True:
            queue = self._queue(topic, first.group, tried)
            broker, ext["e"] = queue.broker_name, str(queue.queue_id)
            try:
                return broker, await self._cluster.ask(broker, code, ext, body, seconds)
            except RemotingConnectError:
                self._cluster.topics.suspect(topic.name)
                tried.add(broker)
                if (
                    first.group
                    or first.kind == TRANSACTION
                    or tried.issuperset(each.broker_name for each in topic.writable)
                ):
                    raise
                ext = dict(ext)

    def _queue(self, topic: Topic, group: str, tried: Collection[str]) -> MessageQueue:
        """Choose the queue of a group, or the next queue of a broker that is available and not yet tried."""
        if not topic.writable:
            raise StatusError(_Code.FORBIDDEN, f"topic[{topic.name}] has no writable queue")
        if group:
            return topic.writable[queue_of_group(group, len(topic.writable))]
        turns = self._turns
        queues = topic.in_turn
        turn = turns.get(topic.name, -1) + 1
        if turn == 0 and len(turns) >= _MAX_TURNS:  # mostly of deleted topics
            turns.clear()
        step = 0
        for step in range(len(queues)):
            broker = queues[(turn + step) % len(queues)].broker_name
            if broker not in tried and broker not in self._cluster.unavailable:
                break
        else:  # all are unavailable: try one that was not tried yet
            step = next(at for at in range(len(queues)) if queues[(turn + at) % len(queues)].broker_name not in tried)
        turns[topic.name] = turn + step
        return queues[(turn + step) % len(queues)]

    def _response(self, broker: str, sent: RemotingCommand, incoming: list[IncomingMessage]) -> Any:
        ext = sent.ext_fields
        found = self._ok
        if sent.code != _SUCCESS:
            refusal = refusal_of(sent)
            if sent.code not in _STORED:
                raise refusal
            found = status(refusal.code, refusal.message)
        response = definitions.SendMessageResponse(status=found)
        add = response.entries.add
        if len(incoming) == 1:
            first = incoming[0]
            add(
                status=found,
                message_id=first.message_id,
                transaction_id=transaction_id(ext, broker) if first.kind == TRANSACTION else first.message_id,
                offset=int(ext["queueOffset"]),
                recall_handle=ext.get("recallHandle", ""),
            )
        else:
            for offset, message in enumerate(incoming, int(ext["queueOffset"])):
                entry = add()
                entry.status.CopyFrom(found)
                entry.message_id = message.message_id
                entry.offset = offset
        return response

    async def recall_message(self, context: ProxyContext, request: Any) -> Any:
        topic = await existing_topic(self._cluster, topic_of(request.topic))
        ext = {"topic": topic.name, "recallHandle": request.recall_handle}
        try:
            broker = RecallMessageHandle.decode(request.recall_handle).broker_name
        except ProtocolError:
            broker = ""
        if topic.on(broker) is None:
            raise StatusError(_Code.BAD_REQUEST, "invalid recall handle: use the handle in the response of SendMessage")
        response = await self._cluster.demand(broker, RequestCode.RECALL_MESSAGE, ext)
        return definitions.RecallMessageResponse(status=self._ok, message_id=response.ext_fields["msgId"])


@lru_cache(8192)
def queue_of_group(group: str, queues: int) -> int:
    """Return the queue of a message group, by the consistent hash of its hash code, as in Apache's proxy."""
    return consistent_hash(java_hash(group), queues)


def consistent_hash(number: int, buckets: int) -> int:
    """Return a bucket for a number, like Guava's Hashing.consistentHash: mostly stable when buckets are added."""
    state = number & _MASK
    bucket = 0
    while True:
        state = (2862933555777941757 * state + 1) & _MASK
        following = int((bucket + 1) / (((state >> 33) + 1) / 0x80000000))
        if following >= buckets:
            return bucket
        bucket = following


def _check_type(topic: Topic, kind: int) -> None:
    if kind in _NOT_HERE:
        raise StatusError(_Code.NOT_IMPLEMENTED, _NOT_HERE[kind])
    if kind not in accepted_types(topic) and not topic.name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise StatusError(
            _Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"topic[{topic.name}] accepts only {topic.attributes['message.type']} messages (its attribute "
            f"message.type), this one is {_NAMES[kind]}",
        )


def _check_homogeneous(request: Any, incoming: list[IncomingMessage]) -> None:
    """Check that the messages of a request are homogeneous, as in Apache's proxy."""
    resource = request.messages[0].topic
    first = incoming[0]
    expected = (first.kind, first.declared, first.group)
    for message, one in zip(request.messages, incoming, strict=True):
        if message.topic != resource:
            raise StatusError(_Code.MESSAGE_CORRUPTED, "topic in message is not same")
        if one.sys_flag != first.sys_flag:
            raise StatusError(_Code.MESSAGE_CORRUPTED, "body encoding in message is not same")
        if (one.kind, one.declared, one.group) != expected:
            raise _conflict("messages of one request must have the same type and message group")
    if first.kind not in (NORMAL, FIFO):
        raise _conflict(f"{_NAMES[first.kind]} messages must be sent one per request")
    if first.declared and first.declared != first.kind:
        raise _conflict(f"the messages' type does not match their properties, which define {_NAMES[first.kind]}")


def _conflict(why: str) -> StatusError:
    return StatusError(_Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, why)
