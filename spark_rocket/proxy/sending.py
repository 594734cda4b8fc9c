"""SendMessage and RecallMessage: requests of the messaging service to the broker's own 310, 320 and 370.

The proxy chooses the queue, whatever the request says: messages without a group go to the topic's writable queues in
turn, a group to the one that its hash names, as in Apache's proxy. (Classic producers that choose by the hash of a
sharding key reckon otherwise, so a group's messages are in one order only if one kind of client sends them.)

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
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from spark_rocket.broker.topics import DLQ_PREFIX, RETRY_PREFIX
from spark_rocket.protocol.bodies import TopicConfig
from spark_rocket.protocol.codes import PERM_WRITE, RequestCode, ResponseCode
from spark_rocket.protocol.command import RemotingCommand
from spark_rocket.protocol.record import encode_batch_body
from spark_rocket.protocol.subscription import java_hash
from spark_rocket.proxy import definitions
from spark_rocket.proxy.clients import ClientRegistry
from spark_rocket.proxy.context import Context
from spark_rocket.proxy.local_broker import LocalBroker, ProxyChannel
from spark_rocket.proxy.message_in import DELAY, FIFO, LITE, NORMAL, PRIORITY, TRANSACTION, Incoming, read_message
from spark_rocket.proxy.messaging import Family
from spark_rocket.proxy.names import topic_of
from spark_rocket.proxy.routes import accepted_types, existing_topic
from spark_rocket.proxy.statuses import StatusError, status, status_code_of
from spark_rocket.proxy.transactions import transaction_id

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
_NAMES = {kind: definitions.MessageType.Name(kind) for kind in (NORMAL, FIFO, DELAY, TRANSACTION, LITE, PRIORITY)}
_NOT_HERE = {
    LITE: "lite topics are not implemented: this broker has no queues of them. Send to a topic of its own instead",
    PRIORITY: "priorities are not implemented: this broker delivers in the order of arrival. "
    "Send to a topic for each priority instead",
}


class SendFamily(Family):
    """Takes messages, and takes them back."""

    def __init__(self, broker: LocalBroker, clients: ClientRegistry) -> None:
        self._broker = broker
        self._clients = clients
        self._service = broker.service
        self._channel = lru_cache(1024)(ProxyChannel)  # by the client's address, for the records' born host
        self._turns: dict[str, int] = {}
        self._ok = status(_Code.OK)

    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {"SendMessage": self.send_message, "RecallMessage": self.recall_message}

    async def send_message(self, context: Context, request: Any) -> Any:
        messages = request.messages
        if not messages:
            raise StatusError(_Code.MESSAGE_CORRUPTED, "no message to send")
        if len(messages) > MAX_MESSAGES:
            raise StatusError(
                _Code.MESSAGE_CORRUPTED, f"{len(messages)} messages in one request, at most {MAX_MESSAGES} are taken"
            )
        resource = messages[0].topic
        topic = topic_of(resource)
        config = existing_topic(self._broker, topic)
        now = self._service.clock()
        most = self._service.config.max_message_size
        if len(messages) == 1:
            incoming = [read_message(messages[0], topic, now, most)]
        else:
            incoming = []
            left = most
            for message in messages:
                incoming.append(read_message(message, topic, now, most))
                left -= len(incoming[-1].body) + len(incoming[-1].properties)
                if left < 0:  # before all of 130 MiB are looked at
                    raise StatusError(
                        _Code.MESSAGE_BODY_TOO_LARGE, f"the messages have more than {most} bytes together"
                    )
                if incoming[-1].sys_flag:  # to pack a body anew takes time
                    await asyncio.sleep(0)
            _check_alike(request, incoming)
        first = incoming[0]
        _check_type(config, first.kind)
        ext = {
            "a": topic,  # as in Apache's proxy, whose producers have no groups
            "b": topic,
            "c": "",
            "d": "0",
            "e": str(self._queue(config, first.group)),
            "f": str(first.sys_flag),
            "g": str(first.born),
            "h": "0",
        }
        channel = self._channel(context.peer)
        if first.kind == TRANSACTION:
            self._clients.produces(context, topic)
        if len(incoming) == 1:
            ext["i"] = first.properties
            answer = await self._broker.ask(channel, _SEND, ext, first.body)
        else:
            body = _batch_body(incoming)
            if len(body) > most:
                raise StatusError(
                    _Code.MESSAGE_BODY_TOO_LARGE, f"the messages have {len(body)} bytes together, max is {most}"
                )
            answer = await self._broker.ask(channel, _SEND_BATCH, ext, body)
        return self._answer(answer, incoming)

    def _queue(self, config: TopicConfig, group: str) -> int:
        queues = config.write_queue_nums
        if not config.perm & PERM_WRITE or queues < 1:
            raise StatusError(_Code.FORBIDDEN, f"no writable queue: topic[{config.topic_name}] is not for sending")
        if group:
            return queue_of_group(group, queues)
        turns = self._turns
        if len(turns) > _MOST_TURNS:  # of topics long deleted, mostly
            turns.clear()
        turn = turns[config.topic_name] = turns.get(config.topic_name, -1) + 1
        return turn % queues

    def _answer(self, answer: RemotingCommand, incoming: list[Incoming]) -> Any:
        ext = answer.ext_fields
        found = self._ok
        if answer.code != _SUCCESS:
            code = status_code_of(answer.code)
            remark = answer.remark or f"the broker answered {answer.code}"
            if answer.code not in _STORED:
                raise StatusError(code, remark)
            found = status(code, remark)
        response = definitions.SendMessageResponse(status=found)
        add = response.entries.add
        if len(incoming) == 1:
            first = incoming[0]
            add(
                status=found,
                message_id=first.message_id,
                transaction_id=transaction_id(ext, self._service.config.broker_name)
                if first.kind == TRANSACTION
                else first.message_id,
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
        ext = {"topic": topic_of(request.topic), "recallHandle": request.recall_handle}
        channel = self._channel(context.peer)
        answer = await self._broker.demand(channel, RequestCode.RECALL_MESSAGE, ext)
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


def _check_type(config: TopicConfig, kind: int) -> None:
    if kind in _NOT_HERE:
        raise StatusError(_Code.NOT_IMPLEMENTED, _NOT_HERE[kind])
    if kind not in accepted_types(config) and not config.topic_name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise StatusError(
            _Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"topic[{config.topic_name}] takes {config.attributes['message.type']} messages (its attribute "
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


def _batch_body(incoming: list[Incoming]) -> bytes:
    born = incoming[0].born
    if all(message.born == born for message in incoming):
        return encode_batch_body([(0, message.body, message.properties.encode()) for message in incoming])
    return encode_batch_body(
        [
            (0, message.body, f"{message.properties}\x02BORN_TIMESTAMP\x01{message.born}".encode())
            for message in incoming
        ]
    )
