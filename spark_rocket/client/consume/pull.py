"""Queries about a queue to its brokers; the result of a pull and its messages.

The statuses of a pull:

==================  =====================  ============================================================================
status              code                   meaning
==================  =====================  ============================================================================
FOUND               0                      ``records`` is a run of records; brokers compare only hashes of tags, so
                                           compare them again (``decode_records(tags=…)``, ``messages`` does)
NO_NEW_MSG          19                     the queue ends here
NO_MATCHED_MSG      20                     no matching message up to ``next_offset``
OFFSET_ILLEGAL      21                     before ``min_offset``: deleted; after ``max_offset``: never written;
                                           between them: a tool has reset the group to ``next_offset`` (5.x)
==================  =====================  ============================================================================

Every pull carries its own subscription (sysFlag bit 4), so brokers serve it even if they do not know the group. It
commits nothing (bit 1): see process_queue.py. Brokers compare only hashes of tags, and may start before the requested
offset: ``messages_of`` and ``batches_of`` drop messages before ``start`` and those without a matching tag.

Corresponds to PullResult and PullStatus of org.apache.rocketmq.client.consumer, to PullAPIWrapper.processPullResult,
and to the offset methods of MQClientAPIImpl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Generic, TypedDict, TypeVar

from spark_rocket.common.arguments import check_filter
from spark_rocket.common.extras import requires
from spark_rocket.common.values import FrozenValue
from spark_rocket.errors import ProtocolError, RunTooLargeError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.filter.tags import SUB_ALL, TYPE_SQL92, TYPE_TAG, TagExpression
from spark_rocket.protocol.namespace import NO_NAMESPACE, Namespace
from spark_rocket.protocol.record.messages import UndecodableError, damaged_record, decode_messages
from spark_rocket.protocol.record.record import view_record
from spark_rocket.protocol.wire.bodies.consume_queue import QueryConsumeQueueResponseBody
from spark_rocket.protocol.wire.codes import BROKER_NAME, V5_0_0, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.messages import QueryConsumeQueueRequestHeader
from spark_rocket.protocol.wire.headers.pull import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

WAITS_TEXT = "%s: %s The group waits there: reset its offset behind the message."
"""The log line for a queue whose next message cannot be decoded."""
DEFAULT_MAX_MSGS = 32
SUSPEND_MARGIN_S = 10.0  # seconds; brokers check long polls for expiry every 5 s

RETRY_TOPIC = "RETRY_TOPIC"  # property of a retried message: its original topic

_SUSPEND = 0x2
_SUBSCRIPTION = 0x4


class PullStatus(Enum):
    """The result of a pull; see the table above."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


_STATUS = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MSG,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MSG,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}
STATUS_CODES = frozenset(_STATUS)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PullResult(FrozenValue):
    """The response of a pull; ``records`` is empty unless FOUND."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: memoryview
    from_master: bool = True
    suggested_broker: int = 0  # the broker id for the next pull
    namespace: Namespace = NO_NAMESPACE  # of the names in the records


class PullOptions(TypedDict, total=False):
    """Options of a pull besides its queue and offset.

    ``max_msgs``: default 32; many brokers return no more at a time. ``max_bytes`` limits the response, if the broker
    supports that field. ``tags``: an expression like ``a || b``. ``sql``: filter at the broker by an SQL92 expression
    instead (enablePropertyFilter). With ``suspend_ms`` the broker waits that long for a message if there is none yet.
    ``timeout`` (seconds; default: the reader's) is added to it.
    """

    max_msgs: int
    max_bytes: int | None
    tags: str
    sql: str | None
    suspend_ms: int
    timeout: float | None


def pull_seconds(options: PullOptions, usual: float) -> float:
    seconds = options.get("timeout") or usual
    suspend_ms = options.get("suspend_ms", 0)
    return seconds + suspend_ms / 1000 + SUSPEND_MARGIN_S if suspend_ms > 0 else seconds


def pull_result(response: RemotingCommand, from_master: bool, namespace: Namespace = NO_NAMESPACE) -> PullResult:
    """Decode a response with one of ``STATUS_CODES``."""
    header = PullMessageResponseHeader.from_ext(response.ext_fields)
    status = _STATUS[response.code]
    body = response.body if status is PullStatus.FOUND else b""
    return PullResult(
        status,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        body if isinstance(body, memoryview) else memoryview(body),
        from_master,
        header.suggest_which_broker_id,
        namespace,
    )


# --- decoding ------------------------------------------------------------------------------------------------------


def show_origin(messages: list[MessageExt]) -> None:
    """Restore the original topic of retried messages."""
    for message in messages:
        message.topic = message.get_property(RETRY_TOPIC) or message.topic


def messages_of(found: PullResult, queue: MessageQueue, start: int, tags: TagExpression) -> list[MessageExt]:
    """Decode the messages from ``start`` on, in order. UndecodableError has those before the one it names."""
    try:
        messages = decode_messages(found.records, queue.broker_name, namespace=found.namespace)
    except UndecodableError as error:
        error.messages = _chosen(error.messages, start, tags)
        raise
    return _chosen(messages, start, tags)


def _chosen(messages: list[MessageExt], start: int, tags: TagExpression) -> list[MessageExt]:
    if not tags.matches_all:
        messages = [message for message in messages if tags.matches(message.tags)]
    if messages and messages[0].queue_offset < start:
        messages = [message for message in messages if message.queue_offset >= start]
    return messages


def batches_of(found: PullResult, queue: MessageQueue, start: int, tags: TagExpression) -> Iterator[pa.RecordBatch]:
    """Decode the messages as non-empty batches: one, unless the bodies exceed the decompression limit.

    UndecodableError after the batches with the messages before the one it names.
    """
    with requires("Reading Arrow batches", "arrow"):
        from spark_rocket.protocol.record.columns import decode_records  # imported here because loading Arrow is slow

    decode = partial(
        decode_records,
        broker_name=queue.broker_name,
        tags=None if tags.matches_all else tags.tags,
        namespace=found.namespace,
    )
    records, damaged = memoryview(found.records), None
    position: int | None = start
    while position is not None:
        end = None
        try:
            batch = decode(records, start_offset=position)
        except RunTooLargeError as error:
            end = error.queue_offset
            batch = decode(records, start_offset=position, end_offset=end)
        except ProtocolError:
            damaged = damaged_record(records)
            if damaged is None:
                raise
            records = records[: damaged.position]
            continue
        if len(batch):
            yield batch
        position = end
    if damaged is not None:
        raise damaged


# --- queries -------------------------------------------------------------------------------------------------------

SUCCESS = frozenset({int(ResponseCode.SUCCESS)})
_SUCCESS_OR_NOT_FOUND = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})
_COMMITTED_OR_UNKNOWN = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)})
_SUCCESS_OR_UNSUPPORTED = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BrokerQuery(FrozenValue, Generic[T]):
    """A request about a queue to a broker that has it, and the decoder of its response."""

    queue: MessageQueue
    code: RequestCode
    ext: dict[str, str]
    doing: str
    value: Callable[[RemotingCommand], T]
    allowed: frozenset[int] = SUCCESS

    @property
    def what(self) -> str:
        """What the query is, in errors."""
        return f"{self.doing} {self.queue.name}"

    def request(self, *, oneway: bool = False) -> RemotingCommand:
        """Build the request. It names the broker, which a proxy needs to forward it."""
        self.ext[BROKER_NAME] = self.queue.broker_name
        return RemotingCommand.request(self.code, self.ext, oneway=oneway)


def pull(
    group: str, queue: MessageQueue, offset: int, options: PullOptions, value: Callable[[RemotingCommand], T]
) -> BrokerQuery[T]:
    """A pull; ``value`` decodes responses with one of ``STATUS_CODES``."""
    suspend_ms, sql = options.get("suspend_ms", 0), options.get("sql")
    check_filter(options.get("tags"), sql)
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=options.get("max_msgs", DEFAULT_MAX_MSGS),
        sys_flag=_SUBSCRIPTION | (_SUSPEND if suspend_ms > 0 else 0),
        commit_offset=0,
        suspend_timeout_millis=suspend_ms,
        sub_version=0,
        subscription=sql or options.get("tags") or SUB_ALL,
        expression_type=TYPE_SQL92 if sql else TYPE_TAG,
        max_msg_bytes=options.get("max_bytes"),
    )
    return BrokerQuery(
        queue, RequestCode.PULL_MESSAGE, header.to_ext(), f"the pull at {offset} of", value, STATUS_CODES
    )


def min_offset(queue: MessageQueue) -> BrokerQuery[int]:
    return BrokerQuery(
        queue,
        RequestCode.GET_MIN_OFFSET,
        GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id).to_ext(),
        "the query of the first offset of",
        # 5.x may return -1 for a queue that never had a message.
        lambda response: max(0, GetMinOffsetResponseHeader.from_ext(response.ext_fields).offset),
    )


def max_offset(queue: MessageQueue) -> BrokerQuery[int]:
    return BrokerQuery(
        queue,
        RequestCode.GET_MAX_OFFSET,
        GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id).to_ext(),
        "the query of the end of",
        lambda response: max(0, GetMaxOffsetResponseHeader.from_ext(response.ext_fields).offset),
    )


def message_sizes(queue: MessageQueue, offset: int, count: int) -> BrokerQuery[list[int]]:
    header = QueryConsumeQueueRequestHeader(topic=queue.topic, queue_id=queue.queue_id, index=offset, count=count)

    def value(response: RemotingCommand) -> list[int]:
        if not response.body:  # 5.x, when there is nothing at the offset
            return []
        body = QueryConsumeQueueResponseBody.from_json(response.body)
        return [entry.physic_size for entry in body.queue_data or ()]

    doing = "the query of message sizes in"
    # Proxies do not forward it: no size is known.
    return BrokerQuery(queue, RequestCode.QUERY_CONSUME_QUEUE, header.to_ext(), doing, value, _SUCCESS_OR_UNSUPPORTED)


def committed_offset(group: str, queue: MessageQueue, *, or_zero: bool = False) -> BrokerQuery[int | None]:
    """``or_zero``: without an offset, return 0 if the broker has the queue's first message in memory."""
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        set_zero_if_not_found=None if or_zero else False,
    )

    def value(response: RemotingCommand) -> int | None:
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return QueryConsumerOffsetResponseHeader.from_ext(response.ext_fields).offset

    doing = f"the query of the offset of group {group} in"
    return BrokerQuery(queue, RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext(), doing, value, _SUCCESS_OR_NOT_FOUND)


def has_offset(group: str, queue: MessageQueue) -> BrokerQuery[bool]:
    """Whether the group has a committed offset.

    A 0 of a 4.x broker proves nothing: it also stands for no offset while the queue's first message is in memory.
    """
    query = committed_offset(group, queue)

    def value(response: RemotingCommand) -> bool:
        found = query.value(response)
        return found is not None and (found > 0 or response.version >= V5_0_0)

    return BrokerQuery(queue, query.code, query.ext, query.doing, value, query.allowed)


def commit(group: str, queue: MessageQueue, offset: int) -> BrokerQuery[bool]:
    """Commit an offset; the result is False if the broker does not know the group."""
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )
    return BrokerQuery(
        queue,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        header.to_ext(),
        f"the offset {offset} of group {group} for",
        lambda response: response.code == ResponseCode.SUCCESS,
        _COMMITTED_OR_UNKNOWN,
    )


def earliest_store_time(queue: MessageQueue) -> BrokerQuery[int | None]:
    header = GetEarliestMsgStoretimeRequestHeader(topic=queue.topic, queue_id=queue.queue_id)

    def value(response: RemotingCommand) -> int | None:
        if response.code != ResponseCode.SUCCESS:
            return None
        timestamp = GetEarliestMsgStoretimeResponseHeader.from_ext(response.ext_fields).timestamp
        return None if timestamp < 0 else timestamp

    doing = "the query of the earliest store time of"
    return BrokerQuery(
        queue, RequestCode.GET_EARLIEST_MSG_STORETIME, header.to_ext(), doing, value, _SUCCESS_OR_UNSUPPORTED
    )


def store_time(group: str, queue: MessageQueue, offset: int) -> BrokerQuery[int]:
    """The store time of the message at an offset in ms; -1 if there is none or it is unreadable."""

    def value(response: RemotingCommand) -> int:
        found = pull_result(response, from_master=True)
        try:
            record = view_record(found.records, check_crc=False)
        except ProtocolError:  # for example an empty response
            return -1
        return record.store_timestamp if record.queue_offset == offset else -1

    return pull(group, queue, offset, PullOptions(max_msgs=1), value)


def offset_for_time(queue: MessageQueue, timestamp_ms: int) -> BrokerQuery[int]:
    """The result is only an estimate: see Reader.offset_for_time."""
    return BrokerQuery(
        queue,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms).to_ext(),
        "the search by time in",
        lambda response: SearchOffsetResponseHeader.from_ext(response.ext_fields).offset,
    )
