"""PullMessage, UpdateOffset, GetOffset, QueryOffset: reading by queue and offset. Apache's proxy does not support them.

=================  =====================================================================================================
PullMessage        returns the status, the messages from the offset, and always the next offset: also without messages
                   (MESSAGE_NOT_FOUND), and for an offset outside the queue (ILLEGAL_OFFSET; the queue's begin or end).
                   The filter is applied; filtered messages are skipped. Long polling as requested, at most 20 s; none
                   by default
UpdateOffset       sets the group's offset of a queue; negative offsets are ILLEGAL_OFFSET
GetOffset          returns that offset; OFFSET_NOT_FOUND if the group has none
QueryOffset        returns the queue's first offset, its end, or the first offset of a time
=================  =====================================================================================================

Messages do not become invisible and are not acked: a pull can be repeated. The request names queue and broker. The
broker can be omitted if the topic is on one broker only.

Corresponds to the broker's PullMessageProcessor and ConsumerManageProcessor, for which Apache's proxy has no
counterpart.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from spark_rocket.client.core.client_config import MAX_MESSAGE_SIZE
from spark_rocket.model import TAGS
from spark_rocket.protocol.record.record import RecordView, iter_records
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.proxy import definitions
from spark_rocket.proxy.cluster.proxy_cluster import REQUEST_SECONDS, ProxyCluster
from spark_rocket.proxy.messages.message_out import Body, body_with_room, milliseconds_of, properties_of, write_message
from spark_rocket.proxy.messages.names import ParsedFilter, group_of, read_filter, topic_of
from spark_rocket.proxy.messages.statuses import StatusError, refusal_of, status
from spark_rocket.proxy.messaging import Family
from spark_rocket.proxy.methods.routing import existing_topic
from spark_rocket.proxy.transport.message_bytes import Batch
from spark_rocket.proxy.transport.proxy_context import ProxyContext

MAX_WAIT_MS = 20_000

_RESPONSE_MS = 500  # part of the call's deadline that is reserved for the response
_SUSPEND = 2
_SUBSCRIPTION = 4
_DEFAULT_BATCH_MESSAGES = 32
_MAX_PULL_BYTES = 8 << 20
_LATEST_MS = 253_402_300_799_999
_Code = definitions.Code
_Policy = definitions.QueryOffsetPolicy
_OK = status(_Code.OK)


class PullFamily(Family):
    """Pulling messages, and offsets."""

    def __init__(self, cluster: ProxyCluster, *, max_message_size: int = MAX_MESSAGE_SIZE) -> None:
        """``max_message_size``: the limit of decompressed bodies."""
        self._cluster = cluster
        self._max_message_size = max_message_size

    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {
            "PullMessage": self.pull_message,
            "UpdateOffset": self.update_offset,
            "GetOffset": self.get_offset,
            "QueryOffset": self.query_offset,
        }

    # --- pull ---------------------------------------------------------------------------------------------------

    async def pull_message(self, context: ProxyContext, request: Any) -> AsyncIterator[Any]:
        broker, topic, queue_id = await self._queue_of(request.message_queue)
        group = group_of(request.group)
        if request.offset < 0:
            raise StatusError(_Code.ILLEGAL_OFFSET, f"invalid offset {request.offset}: QueryOffset returns the first")
        if request.batch_size < 1:
            raise StatusError(_Code.BAD_REQUEST, f"invalid batch_size {request.batch_size}: use at least 1")
        wanted = read_filter(request.filter_expression)
        wait_ms = _wait_ms(context, request)
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(request.offset),
            "maxMsgNums": str(request.batch_size),
            "sysFlag": str(_SUBSCRIPTION | (_SUSPEND if wait_ms > 0 else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(wait_ms),
            "subscription": wanted.expression,
            "subVersion": "0",
            "expressionType": wanted.kind,
        }
        if request.batch_size > _DEFAULT_BATCH_MESSAGES:
            ext["maxMsgBytes"] = str(_MAX_PULL_BYTES)
        async with context.batch() as batch:
            response = await self._pull(batch, broker, ext, wait_ms / 1000 + REQUEST_SECONDS)
            if response.code == ResponseCode.SUCCESS:
                is_found = False
                for record, properties in _chosen(response.body, wanted):
                    if not is_found:
                        yield _response(status=_OK)
                        is_found = True
                    body = body_with_room(record, self._max_message_size, batch)
                    yield _message(record, properties, topic, await body)
                if not is_found:
                    yield _response(status=status(_Code.MESSAGE_NOT_FOUND, "no match message"))
            elif response.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
                yield _response(status=status(_Code.MESSAGE_NOT_FOUND, "no new message"))
            elif response.code == ResponseCode.PULL_OFFSET_MOVED:
                first, end = response.ext_fields["minOffset"], response.ext_fields["maxOffset"]
                message = f"offset {request.offset} is outside the queue, which has {first} to {end}"
                yield _response(status=status(_Code.ILLEGAL_OFFSET, message))
            else:
                raise refusal_of(response)
        yield _response(next_offset=int(response.ext_fields["nextBeginOffset"]))

    async def _pull(self, batch: Batch, broker: str, ext: dict[str, str], seconds: float) -> RemotingCommand:
        """Return the broker's response. The request is retried later if there is no room for the response."""
        while True:
            await batch.wait()
            response = await self._cluster.ask(broker, RequestCode.PULL_MESSAGE, ext, seconds=seconds)
            if batch.take(len(response.body)):
                return response
            del response  # free the memory while waiting for room

    # --- offsets ------------------------------------------------------------------------------------------------

    async def update_offset(self, context: ProxyContext, request: Any) -> Any:
        broker, topic, queue_id = await self._queue_of(request.message_queue)
        if request.offset < 0:
            raise StatusError(_Code.ILLEGAL_OFFSET, f"invalid offset {request.offset}: use at least 0")
        ext = _place(topic, queue_id, group_of(request.group))
        ext["commitOffset"] = str(request.offset)
        await self._cluster.demand(broker, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        return definitions.UpdateOffsetResponse(status=_OK)

    async def get_offset(self, context: ProxyContext, request: Any) -> Any:
        broker, topic, queue_id = await self._queue_of(request.message_queue)
        ext = _place(topic, queue_id, group_of(request.group))
        ext["setZeroIfNotFound"] = "false"
        response = await self._cluster.ask(broker, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        if response.code != ResponseCode.SUCCESS:
            raise refusal_of(
                response, _Code.OFFSET_NOT_FOUND if response.code == ResponseCode.QUERY_NOT_FOUND else None
            )
        return definitions.GetOffsetResponse(status=_OK, offset=int(response.ext_fields["offset"]))

    async def query_offset(self, context: ProxyContext, request: Any) -> Any:
        broker, topic, queue_id = await self._queue_of(request.message_queue)
        ext = _place(topic, queue_id)
        policy = request.query_offset_policy
        if policy == _Policy.BEGINNING:
            code = RequestCode.GET_MIN_OFFSET
        elif policy == _Policy.END:
            code = RequestCode.GET_MAX_OFFSET
        elif policy == _Policy.TIMESTAMP and request.HasField("timestamp"):
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            ext["timestamp"] = str(min(max(milliseconds_of(request.timestamp), 0), _LATEST_MS))
        else:
            problem = "TIMESTAMP without timestamp" if policy == _Policy.TIMESTAMP else str(policy)
            raise StatusError(_Code.BAD_REQUEST, f"invalid query_offset_policy {problem}")
        response = await self._cluster.demand(broker, code, ext)
        return definitions.QueryOffsetResponse(status=_OK, offset=int(response.ext_fields["offset"]))

    async def _queue_of(self, queue: Any) -> tuple[str, str, int]:
        """Return broker, topic and queue id. StatusError for an unknown queue, which brokers do not always report."""
        topic = await existing_topic(self._cluster, topic_of(queue.topic))
        name = queue.broker.name
        if not name:
            if len(topic.brokers) != 1:
                brokers = ", ".join(queues.broker_name for queues in topic.brokers)
                raise StatusError(
                    _Code.BAD_REQUEST,
                    f"topic {topic.name} is on brokers {brokers}: specify the broker of the queue, as in QueryRoute",
                )
            name = topic.brokers[0].broker_name
        queues = topic.on(name)
        if queues is None:
            raise StatusError(_Code.BAD_REQUEST, f"topic {topic.name} is not on broker {name[:80]!r}")
        if not 0 <= queue.id < queues.read_queue_nums:
            raise StatusError(
                _Code.BAD_REQUEST,
                f"invalid queue {queue.id}: topic {topic.name} has {queues.read_queue_nums} queues on {name}",
            )
        return name, topic.name, queue.id


_response = definitions.PullMessageResponse


def _chosen(body: Any, wanted: ParsedFilter) -> Iterator[tuple[RecordView, dict[str, str]]]:
    """Yield records and properties, without messages of other tags with the same hash."""
    for record in list(iter_records(body)):  # fail on malformed data before the first message is sent
        properties = properties_of(record)
        if wanted.tags is None or wanted.tags.matches(properties.get(TAGS)):
            yield record, properties


def _message(record: RecordView, properties: dict[str, str], topic: str, body: Body) -> Any:
    """Create a response in a separate function, so that no variable holds the message while it is written."""
    response = _response()
    write_message(response.message, record, properties, topic, body)
    return response


def _wait_ms(context: ProxyContext, request: Any) -> int:
    wait = min(milliseconds_of(request.long_polling_timeout), MAX_WAIT_MS)
    if context.deadline is not None:
        wait = min(wait, int((context.deadline - time.monotonic()) * 1000) - _RESPONSE_MS)
    return max(wait, 0)


def _place(topic: str, queue_id: int, group: str | None = None) -> dict[str, str]:
    ext = {"topic": topic, "queueId": str(queue_id)}
    if group is not None:
        ext["consumerGroup"] = group
    return ext
