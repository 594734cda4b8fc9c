"""ReceiveMessage: consuming by POP, for SimpleConsumer and PushConsumer.

A receive is one POP_MESSAGE for all queues of the topic on one broker, regardless of the requested queue: RocketMQ 5
clients receive from a broker, and the Node.js client knows only queue 0. Without a valid broker in the request, the
brokers alternate. Ordered groups use ordered pops.

=========================  =========================================================================================
ReceiveMessage             effect
=========================  =========================================================================================
batch size                 at least 1, at most 32; larger sizes count as 32
invisible duration         10 s to 12 h, else ILLEGAL_INVISIBLE_TIME; with ``auto_renew`` 60 s, renewed (renewals.py)
long polling timeout       5 to 20 s, and half a second less than the call's deadline; calls with less than 5 s left
                           get ILLEGAL_POLLING_TIME (BAD_REQUEST for clients before 5.0.3)
tag of a message           compared again, because brokers compare hashes; messages of other tags are acked
attempts of a message      after the group's maximum it goes to the dead-letter topic. Consumers of that topic start
                           with new attempts, while Apache's proxy does not deliver these messages
=========================  =========================================================================================

The responses are the status, the messages, and the delivery time; an empty receive is MESSAGE_NOT_FOUND. If the call
ends before the client has read all of them, the messages become visible within a second, and the delivery does not
count as an attempt: a client ignores the messages of a cancelled call.

A broker continues the receive of an ended call for at most 5 s; messages of its response are released. Corresponds to
org.apache.rocketmq.proxy.grpc.v2.consumer.{ReceiveMessageActivity, ReceiveMessageResponseStreamWriter}.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, NamedTuple

from spark_rocket.client.core.client_config import MAX_MESSAGE_SIZE
from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import RemotingError
from spark_rocket.model import TAGS
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.proxy import definitions
from spark_rocket.proxy.cluster.proxy_cluster import REQUEST_SECONDS, ProxyCluster, Topic
from spark_rocket.proxy.messages.message_out import (
    Body,
    body_with_room,
    message_id_of,
    milliseconds_of,
    write_message,
    write_time,
)
from spark_rocket.proxy.messages.names import ParsedFilter, group_of, read_filter, topic_of
from spark_rocket.proxy.messages.statuses import StatusError, refusal_of, status
from spark_rocket.proxy.messaging import CLIENT_ID, Family
from spark_rocket.proxy.methods.acknowledging import check_invisible_time
from spark_rocket.proxy.methods.popped import PoppedMessage, popped_of
from spark_rocket.proxy.methods.receipts import Receipts
from spark_rocket.proxy.methods.renewals import RENEWED_FOR_MS, Renewals
from spark_rocket.proxy.methods.routing import existing_topic
from spark_rocket.proxy.transport.message_bytes import Batch
from spark_rocket.proxy.transport.proxy_context import ProxyContext

_often = RateLimited(logging.getLogger(__name__))

MAX_BATCH_MESSAGES = 32
MIN_INVISIBLE_MS = 10_000
MIN_POLLING_MS = 5_000
MAX_POLLING_MS = 20_000
SLICE_MS = 5_000
"""The polling time of one request to a broker; it is repeated while the client waits."""
MAX_ATTEMPT_ID = 256

_CLIENT_VERSION = "x-mq-client-version"
_KNOWS_ILLEGAL_POLLING_TIME = (5, 0, 3)
_INIT_MAX = "1"
_NOTHING_YET = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)
_LEFT_OVER_MS = 500  # part of the call's deadline, if possible, for the response
_RESPONSE_MS = 1_500  # reserved for the response of a call without polling time
_Code = definitions.Code
_OK = status(_Code.OK)
_USUAL_SETTINGS = SubscriptionGroupConfig()


class _ReceiveRequest(NamedTuple):
    """A validated ReceiveMessage."""

    client_id: str
    group: str
    topic: str
    broker: str
    wanted: ParsedFilter
    invisible_ms: int
    auto_renew: bool
    max_attempts: int


class ReceiveFamily(Family):
    """Receives messages."""

    def __init__(
        self,
        cluster: ProxyCluster,
        receipts: Receipts,
        renewals: Renewals,
        *,
        max_message_size: int = MAX_MESSAGE_SIZE,
        min_polling_ms: int = MIN_POLLING_MS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``max_message_size``: the limit of decompressed bodies."""
        self._cluster = cluster
        self._max_message_size = max_message_size
        self._min_polling_ms = min_polling_ms
        self._monotonic = monotonic
        self._turns = 0
        self._receipts = receipts
        self._renewals = renewals

    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {"ReceiveMessage": self.receive_message}

    async def receive_message(self, context: ProxyContext, request: Any) -> AsyncGenerator[Any, None]:
        asked, ext = await self._read(context, request)
        async with context.batch() as batch:
            response = await self._pop(asked, ext, batch)
            if response.code == ResponseCode.SUCCESS:
                popped = self._popped_of(response, asked)
                try:
                    chosen = await self._choose(asked, popped)
                    yield self._first(asked, chosen)
                    for one in chosen:
                        yield _message(asked, one, await body_with_room(one.record, self._max_message_size, batch))
                    yield self._last()
                    popped = []
                finally:
                    self._release(asked, popped)
                return
        if response.code in _NOTHING_YET:
            yield _response(status=status(_Code.MESSAGE_NOT_FOUND, "no new message"))
        elif response.code == ResponseCode.POLLING_FULL:
            yield _response(status=status(_Code.TOO_MANY_REQUESTS, response.remark or "polling full"))
        else:
            if response.code == ResponseCode.TOPIC_NOT_EXIST:
                self._cluster.topics.suspect(asked.topic)
            raise refusal_of(response)
        yield self._last()

    def _last(self) -> Any:
        """Return the last response, with the delivery time."""
        last = _response()
        write_time(last.delivery_timestamp, self._cluster.clock())
        return last

    async def _read(self, context: ProxyContext, request: Any) -> tuple[_ReceiveRequest, dict[str, str]]:
        polling_ms = self._polling_ms(context, request)
        name, group = topic_of(request.message_queue.topic), group_of(request.group)
        if request.batch_size < 1:
            raise StatusError(_Code.BAD_REQUEST, f"invalid batch_size {request.batch_size}: use at least 1")
        auto_renew = request.auto_renew
        if auto_renew:
            invisible_ms = RENEWED_FOR_MS
            self._renewals.check_room()
        else:
            invisible_ms = milliseconds_of(request.invisible_duration)
            check_invisible_time(invisible_ms, MIN_INVISIBLE_MS)
        wanted = read_filter(request.filter_expression)
        topic = await existing_topic(self._cluster, name)
        settings = await self._cluster.groups.get(group) or _USUAL_SETTINGS
        broker = self._broker_of(topic, request.message_queue.broker.name)
        ext = {
            "consumerGroup": group,
            "topic": name,
            "queueId": "-1",
            "maxMsgNums": str(min(request.batch_size, MAX_BATCH_MESSAGES)),
            "invisibleTime": str(invisible_ms),
            "pollTime": str(polling_ms),
            "initMode": _INIT_MAX,
            "expType": wanted.kind,
            "exp": wanted.expression,
            "order": "true" if settings.consume_message_orderly else "false",
        }
        if request.HasField("attempt_id"):
            if len(request.attempt_id) > MAX_ATTEMPT_ID:  # the broker stores it on disk
                raise StatusError(
                    _Code.BAD_REQUEST,
                    f"attempt_id has {len(request.attempt_id)} characters, at most {MAX_ATTEMPT_ID} are allowed",
                )
            ext["attemptId"] = request.attempt_id
        client_id = context.metadata[CLIENT_ID]
        max_attempts = settings.retry_max_times + 1
        return _ReceiveRequest(client_id, group, name, broker, wanted, invisible_ms, auto_renew, max_attempts), ext

    def _broker_of(self, topic: Topic, named: str) -> str:
        """Choose the broker to receive from."""
        readable = topic.readable
        if named in readable:
            return named
        if not readable:
            raise StatusError(_Code.FORBIDDEN, f"topic {topic.name} has no readable queue")
        self._turns += 1
        available = [broker for broker in readable if broker not in self._cluster.unavailable] or readable
        return available[self._turns % len(available)]

    def _polling_ms(self, context: ProxyContext, request: Any) -> int:
        """Return the polling time in milliseconds."""
        deadline = context.deadline
        left_ms = MAX_POLLING_MS if deadline is None else int((deadline - self._monotonic()) * 1000)
        asked_ms = left_ms - _RESPONSE_MS
        if request.HasField("long_polling_timeout"):
            asked_ms = milliseconds_of(request.long_polling_timeout)
        if left_ms < self._min_polling_ms:
            known = _version_of(context.metadata.get(_CLIENT_VERSION, "")) >= _KNOWS_ILLEGAL_POLLING_TIME
            raise StatusError(
                _Code.ILLEGAL_POLLING_TIME if known else _Code.BAD_REQUEST,
                f"the call's deadline is in {left_ms} ms, polling needs at least {self._min_polling_ms} ms",
            )
        if deadline is not None:  # responses after the deadline would be lost
            left_ms = max(left_ms - _LEFT_OVER_MS, self._min_polling_ms)
        return min(max(asked_ms, self._min_polling_ms), MAX_POLLING_MS, left_ms)

    async def _pop(self, asked: _ReceiveRequest, ext: dict[str, str], batch: Batch) -> RemotingCommand:
        """Return the broker's response. Each request polls for some seconds, because it cannot be cancelled.

        Messages without room in memory are released.
        """
        left_ms = int(ext["pollTime"])
        while True:
            await batch.wait()
            slice_ms = min(left_ms, SLICE_MS)
            now = str(self._cluster.clock())
            response = await self._pop_once(asked, {**ext, "pollTime": str(slice_ms), "bornTime": now}, slice_ms)
            if not batch.take(len(response.body)):
                self._release(asked, self._popped_of(response, asked))
                del response  # free the memory while waiting for room
                continue
            left_ms -= slice_ms
            if left_ms <= 0 or response.code not in _NOTHING_YET:
                return response

    async def _pop_once(self, asked: _ReceiveRequest, ext: dict[str, str], poll_ms: int) -> RemotingCommand:
        seconds = poll_ms / 1000 + REQUEST_SECONDS
        response = await self._cluster.begin(asked.broker, RequestCode.POP_MESSAGE, ext, seconds=seconds)
        try:
            return await asyncio.shield(response)
        except asyncio.CancelledError:  # the client cancelled the call
            response.add_done_callback(partial(self._release_unread, asked))
            raise
        except RemotingError as error:
            self._cluster.failed(asked.broker)
            self._cluster.topics.suspect(asked.topic)
            raise type(error)(
                f"Broker {asked.broker}: {error.message}", remedy="Retry; other brokers of the topic are available."
            ) from None

    def _release_unread(self, asked: _ReceiveRequest, response: asyncio.Future[RemotingCommand]) -> None:
        """Release the messages of a broker's response to an ended call."""
        if not response.cancelled() and response.exception() is None and response.result().code == ResponseCode.SUCCESS:
            self._release(asked, self._popped_of(response.result(), asked))

    def _popped_of(self, response: RemotingCommand, asked: _ReceiveRequest) -> list[PoppedMessage]:
        return popped_of(response, asked.broker, asked.topic, asked.group, self._receipts.given)

    async def _choose(self, asked: _ReceiveRequest, popped: list[PoppedMessage]) -> list[PoppedMessage]:
        """Select the messages to deliver. Ack messages of other tags; messages without attempts become dead letters."""
        tags = asked.wanted.tags
        chosen, others = popped, []
        if tags is not None:
            chosen = [each for each in popped if tags.matches(each.properties.get(TAGS))]
            others = [each for each in popped if not tags.matches(each.properties.get(TAGS))]
        if others:
            handles = [await self._receipts.read(each.handle) for each in others]
            await self._receipts.ack(asked.group, asked.topic, handles)
        most = asked.max_attempts
        if all(each.attempt <= most for each in chosen):
            return chosen
        return [each for each in chosen if each.attempt <= most or not await self._give_up(asked, each)]

    async def _give_up(self, asked: _ReceiveRequest, popped: PoppedMessage) -> bool:
        """Make a message a dead letter; return whether it succeeded. If not, it is delivered again."""
        message_id = message_id_of(popped.record, popped.properties)
        try:
            handle = await self._receipts.read(popped.handle)
            await self._receipts.give_up(asked.group, asked.topic, handle, message_id, popped.handle)
        except (StatusError, RemotingError) as error:
            text = "message %s of %s could not become a dead letter: %s"
            _often.warning(asked.topic, text, message_id, asked.topic, error.message)
            return False
        return True

    def _first(self, asked: _ReceiveRequest, chosen: list[PoppedMessage]) -> Any:
        """Return the status, and start renewing the messages if requested."""
        if not chosen:
            return _response(status=status(_Code.MESSAGE_NOT_FOUND, "no match message"))
        if asked.auto_renew:
            for popped in chosen:
                self._renewals.keep(asked.client_id, asked.group, asked.topic, popped.handle)
        return _response(status=_OK)

    def _release(self, asked: _ReceiveRequest, popped: list[PoppedMessage]) -> None:
        """Release messages that the client did not receive."""
        if popped:
            taken = [self._renewals.take(asked.client_id, asked.group, each.handle) for each in popped]
            for each in taken:
                self._renewals.settle(each)
            self._renewals.release(asked.group, asked.topic, taken, unseen=True)


_response = definitions.ReceiveMessageResponse


def _message(asked: _ReceiveRequest, popped: PoppedMessage, body: Body) -> Any:
    response = _response()
    message = response.message
    write_message(message, popped.record, popped.properties, asked.topic, body)
    system = message.system_properties
    system.receipt_handle = popped.handle
    system.delivery_attempt = popped.attempt
    write_time(system.invisible_duration, asked.invisible_ms)
    return response


def _version_of(text: str) -> tuple[int, ...]:
    """Parse ``5.0.3`` as numbers, up to the first part that is not a number."""
    numbers: list[int] = []
    for part in text.split("."):
        if not (part.isascii() and part.isdigit() and len(part) < 6):
            break
        numbers.append(int(part))
    return tuple(numbers)
