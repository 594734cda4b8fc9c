"""SendMessage and RecallMessage: requests of the messaging service to the broker's own 310, 320 and 370.

The proxy chooses the queue, whatever the request says: messages without a group go to the writable queues of all the
topic's brokers in turn, a group to the one that its hash names among all of them, as in Apache's proxy. (Classic
producers that choose by the hash of a sharding key use another hash, so a group's messages are in one order only if one
kind of client sends them.) A group's queue changes when a broker comes or goes.

A message without a group is sent to another broker when one cannot be reached, or is lost before it answers: then the
message may be stored twice, with one id, as when a client sends again. Transactions, and messages of a group, fail.

Several messages of a request are stored as one batch, all or none; they are alike: one topic, one type, one group, one
encoding, and NORMAL or FIFO. What makes a message an ordinary one or not is in message_in.py.

Topics are never created by a message. One with the attribute ``message.type`` takes messages of that type only, as in
Apache's proxy; where it is not set, and where it is MIXED, every type is welcome.

Not served, because this broker has no such queues: priorities and lite topics (NOT_IMPLEMENTED).
Thread-safety: used on the event loop only. Corresponds to SendMessageActivity, RecallMessageActivity and
ProducerProcessor of org.apache.rocketmq.proxy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

from spark_rocket.client.core.config import MAX_MESSAGE_SIZE
from spark_rocket.errors import ProtocolError, RemotingConnectError
from spark_rocket.model import DLQ_PREFIX, RETRY_PREFIX
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.ids import RecallMessageHandle
from spark_rocket.protocol.record.batch import encode_batch_body
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import Buffer, RemotingCommand
from spark_rocket.proxy import definitions
from spark_rocket.proxy.cluster.cluster import REQUEST_SECONDS, Cluster, Queue, Topic
from spark_rocket.proxy.messages.message_in import (
    DELAY,
    FIFO,
    LITE,
    NORMAL,
    PRIORITY,
    TRANSACTION,
    Incoming,
    read_message,
)
from spark_rocket.proxy.messages.names import topic_of
from spark_rocket.proxy.messages.statuses import StatusError, refusal_of, status
from spark_rocket.proxy.messaging import Family
from spark_rocket.proxy.methods.clients import ClientRegistry
from spark_rocket.proxy.methods.routes import accepted_types, existing_topic
from spark_rocket.proxy.methods.transactions import transaction_id
from spark_rocket.proxy.transport.context import Context

MAX_MESSAGES = 4096
"""Of one request: the others wait meanwhile."""

_Code = definitions.Code
_SEND = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
_SUCCESS = int(ResponseCode.SUCCESS)
#: Of a message that is stored, though not as safely as the settings want.
_STORED = frozenset(
    (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
)
_MASK = (1 << 64) - 1
_MOST_TURNS = 100_000
_LEAST_SECONDS, _MOST_SECONDS = 0.1, 60.0
_NAMES = {kind: definitions.MessageType.Name(kind) for kind in (NORMAL, FIFO, DELAY, TRANSACTION, LITE, PRIORITY)}
_NOT_HERE = {
    LITE: "lite topics are not implemented: this broker has no queues of them. Send to a topic of its own instead",
    PRIORITY: "priorities are not implemented: this broker delivers in the order of arrival. "
    "Send to a topic for each priority instead",
}


class SendFamily(Family):
    """Takes messages, and takes them back."""

    def __init__(self, cluster: Cluster, clients: ClientRegistry, *, max_message_size: int = MAX_MESSAGE_SIZE) -> None:
        """``max_message_size``: bytes of a body, and of all bodies and properties of a request."""
        self._cluster = cluster
        self._clients = clients
        self._max_message_size = max_message_size
        self._turns: dict[str, int] = {}
        self._ok = status(_Code.OK)

    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {"SendMessage": self.send_message, "RecallMessage": self.recall_message}

    async def send_message(self, context: Context, request: Any) -> Any:
        topic = self._topic_of(request)
        found = await existing_topic(self._cluster, topic)
        incoming = await self._read(request, topic)
        del request  # the bodies would be in memory twice while the broker is waited for
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
        broker, answer = await self._send(context, found, first, code, ext, body)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            self._cluster.topics.suspect(topic)
        return self._answer(broker, answer, incoming)

    def _topic_of(self, request: Any) -> str:
        count = len(request.messages)
        if not count:
            raise StatusError(_Code.MESSAGE_CORRUPTED, "no message to send")
        if count > MAX_MESSAGES:
            raise StatusError(
                _Code.MESSAGE_CORRUPTED, f"{count} messages in one request, at most {MAX_MESSAGES} are taken"
            )
        return topic_of(request.messages[0].topic)

    async def _read(self, request: Any, topic: str) -> list[Incoming]:
        """The messages of a request, checked. Those of one request together are no larger than a message may be."""
        now, left = self._cluster.clock(), self._max_message_size
        messages = request.messages
        if len(messages) == 1:
            return [read_message(messages[0], topic, now, left)]
        incoming = []
        for message in messages:
            one = read_message(message, topic, now, self._max_message_size)
            incoming.append(one)
            left -= len(one.body) + len(one.properties)
            if left < 0:  # before all of 130 MiB are looked at
                raise StatusError(
                    _Code.MESSAGE_BODY_TOO_LARGE, f"the messages have more than {self._max_message_size} bytes together"
                )
            if one.sys_flag:  # to pack a body anew takes time
                await asyncio.sleep(0)
        _check_alike(request, incoming)
        return incoming

    def _batch_body(self, incoming: list[Incoming]) -> bytes:
        born = incoming[0].born
        is_alike = all(message.born == born for message in incoming)
        body = encode_batch_body(
            [
                (
                    0,
                    message.body,
                    (message.properties + ("" if is_alike else f"\x02BORN_TIMESTAMP\x01{message.born}")).encode(),
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
        self, context: Context, topic: Topic, first: Incoming, code: int, ext: dict[str, str], body: Buffer
    ) -> tuple[str, RemotingCommand]:
        """The broker that took the request, and its answer."""
        seconds = REQUEST_SECONDS
        if context.deadline is not None:
            seconds = min(max(context.deadline - time.monotonic(), _LEAST_SECONDS), _MOST_SECONDS)
        tried: set[str] = set()
        while True:
            broker, queue_id = self._queue(topic, first.group, tried)
            ext["e"] = str(queue_id)
            try:
                return broker, await self._cluster.ask(broker, code, ext, body, seconds)
            except RemotingConnectError:
                self._cluster.topics.suspect(topic.name)
                tried.add(broker)
                if first.group or first.kind == TRANSACTION or tried.issuperset(queue[0] for queue in topic.writable):
                    raise
                ext = dict(ext)

    def _queue(self, topic: Topic, group: str, tried: Collection[str]) -> Queue:
        """A group's queue, or the next one in turn, not of a broker that was tried, nor of one that is away."""
        if not topic.writable:
            raise StatusError(_Code.FORBIDDEN, f"no writable queue: topic[{topic.name}] is not for sending")
        if group:
            return topic.writable[queue_of_group(group, len(topic.writable))]
        turns = self._turns
        queues = topic.in_turn
        turn = turns.get(topic.name, -1) + 1
        if turn == 0 and len(turns) >= _MOST_TURNS:  # of topics long deleted, mostly
            turns.clear()
        step = 0
        for step in range(len(queues)):
            broker = queues[(turn + step) % len(queues)][0]
            if broker not in tried and not self._cluster.is_away(broker):
                break
        else:  # all are away: one that was not tried may be back
            step = next(at for at in range(len(queues)) if queues[(turn + at) % len(queues)][0] not in tried)
        turns[topic.name] = turn + step
        return queues[(turn + step) % len(queues)]

    def _answer(self, broker: str, answer: RemotingCommand, incoming: list[Incoming]) -> Any:
        ext = answer.ext_fields
        found = self._ok
        if answer.code != _SUCCESS:
            refusal = refusal_of(answer)
            if answer.code not in _STORED:
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

    async def recall_message(self, context: Context, request: Any) -> Any:
        topic = await existing_topic(self._cluster, topic_of(request.topic))
        ext = {"topic": topic.name, "recallHandle": request.recall_handle}
        try:
            broker = RecallMessageHandle.decode(request.recall_handle).broker_name
        except ProtocolError:
            broker = ""
        if topic.on(broker) is None:
            raise StatusError(_Code.BAD_REQUEST, "recall handle is invalid: give the one that SendMessage answered")
        answer = await self._cluster.demand(broker, RequestCode.RECALL_MESSAGE, ext)
        return definitions.RecallMessageResponse(status=self._ok, message_id=answer.ext_fields["msgId"])


@lru_cache(8192)
def queue_of_group(group: str, queues: int) -> int:
    """The queue of a message group: by the consistent hash of its hash code, as in Apache's proxy."""
    return consistent_hash(java_hash(group), queues)


def consistent_hash(number: int, buckets: int) -> int:
    """A bucket for a number, mostly the same one when there are more buckets: Guava's Hashing.consistentHash."""
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
            f"topic[{topic.name}] takes {topic.attributes['message.type']} messages (its attribute "
            f"message.type), this one is {_NAMES[kind]}",
        )


def _check_alike(request: Any, incoming: list[Incoming]) -> None:
    """What messages of one request have in common, as in Apache's proxy."""
    resource = request.messages[0].topic
    first = incoming[0]
    alike = (first.kind, first.declared, first.group)
    for message, one in zip(request.messages, incoming, strict=True):
        if message.topic != resource:
            raise StatusError(_Code.MESSAGE_CORRUPTED, "topic in message is not same")
        if one.sys_flag != first.sys_flag:
            raise StatusError(_Code.MESSAGE_CORRUPTED, "body encoding in message is not same")
        if (one.kind, one.declared, one.group) != alike:
            raise _conflict("messages of one request have one type and one message group")
    if first.kind not in (NORMAL, FIFO):
        raise _conflict(f"{_NAMES[first.kind]} messages are sent one in a request")
    if first.declared and first.declared != first.kind:
        raise _conflict(f"the messages' type does not fit their properties, which make them {_NAMES[first.kind]}")


def _conflict(why: str) -> StatusError:
    return StatusError(_Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, why)
