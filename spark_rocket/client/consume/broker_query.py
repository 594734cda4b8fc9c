"""Queries about a queue that its broker answers: each a request and what its answer means.

Thread-safety: queries are values.
Corresponds to the offset methods of org.apache.rocketmq.client.impl.MQClientAPIImpl.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_rocket.client.consume.pull import STATUS_CODES, PullOptions, pull_request, pull_result
from spark_rocket.errors import ProtocolError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.record.record import view_record
from spark_rocket.protocol.wire.bodies import QueryConsumeQueueResponseBody
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

T = TypeVar("T")

SUCCESS = frozenset({int(ResponseCode.SUCCESS)})
_FOUND_OR_NOT = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})
_TAKEN_OR_UNKNOWN = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)})
_SAID_OR_NOT_KNOWN = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)})


@dataclass(frozen=True, slots=True)
class BrokerQuery(Generic[T]):
    """A question about a queue that is asked in either way, and what its answer says."""

    code: RequestCode
    ext: dict[str, str]
    what: str
    value: Callable[[RemotingCommand], T]
    allowed: frozenset[int] = SUCCESS


def min_offset(queue: MessageQueue) -> BrokerQuery[int]:
    return BrokerQuery(
        RequestCode.GET_MIN_OFFSET,
        GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id).to_ext(),
        "the question for the first offset of",
        # 5.x may say -1 of a queue that has had no message.
        lambda answer: max(0, GetMinOffsetResponseHeader.from_ext(answer.ext_fields).offset),
    )


def max_offset(queue: MessageQueue) -> BrokerQuery[int]:
    return BrokerQuery(
        RequestCode.GET_MAX_OFFSET,
        GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id).to_ext(),
        "the question for the end of",
        lambda answer: max(0, GetMaxOffsetResponseHeader.from_ext(answer.ext_fields).offset),
    )


def message_sizes(queue: MessageQueue, offset: int, count: int) -> BrokerQuery[list[int]]:
    header = QueryConsumeQueueRequestHeader(topic=queue.topic, queue_id=queue.queue_id, index=offset, count=count)

    def value(answer: RemotingCommand) -> list[int]:
        if not answer.body:  # 5.x, when there is nothing at the offset
            return []
        body = QueryConsumeQueueResponseBody.from_json(answer.body)
        return [entry.physic_size for entry in body.queue_data or ()]

    return BrokerQuery(RequestCode.QUERY_CONSUME_QUEUE, header.to_ext(), "the question for sizes of messages in", value)


def committed_offset(group: str, queue: MessageQueue, *, or_zero: bool = False) -> BrokerQuery[int | None]:
    """``or_zero``: of a group that has none 0, if the queue's first message is still in the broker's memory."""
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        set_zero_if_not_found=None if or_zero else False,
    )

    def value(answer: RemotingCommand) -> int | None:
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return QueryConsumerOffsetResponseHeader.from_ext(answer.ext_fields).offset

    what = f"the question for the offset of group {group} in"
    return BrokerQuery(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext(), what, value, _FOUND_OR_NOT)


def commit(group: str, queue: MessageQueue, offset: int) -> BrokerQuery[bool]:
    """Its answer: False if the broker does not know the group."""
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )
    return BrokerQuery(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        header.to_ext(),
        f"the offset {offset} of group {group} for",
        lambda answer: answer.code == ResponseCode.SUCCESS,
        _TAKEN_OR_UNKNOWN,
    )


def earliest_store_time(queue: MessageQueue) -> BrokerQuery[int | None]:
    header = GetEarliestMsgStoretimeRequestHeader(topic=queue.topic, queue_id=queue.queue_id)

    def value(answer: RemotingCommand) -> int | None:
        if answer.code != ResponseCode.SUCCESS:
            return None
        timestamp = GetEarliestMsgStoretimeResponseHeader.from_ext(answer.ext_fields).timestamp
        return None if timestamp < 0 else timestamp

    what = "the question for the first time of"
    return BrokerQuery(RequestCode.GET_EARLIEST_MSG_STORETIME, header.to_ext(), what, value, _SAID_OR_NOT_KNOWN)


def store_time(group: str, queue: MessageQueue, offset: int) -> BrokerQuery[int]:
    """When the message at an offset was stored, in ms; -1 if there is none at it, or it cannot be read."""
    request = pull_request(group, queue, offset, PullOptions(max_msgs=1))

    def value(answer: RemotingCommand) -> int:
        found = pull_result(answer, from_master=True)
        try:
            record = view_record(found.records, check_crc=False)
        except ProtocolError:  # nothing there, for one
            return -1
        return record.store_timestamp if record.queue_offset == offset else -1

    return BrokerQuery(RequestCode.PULL_MESSAGE, request.ext_fields, f"the pull at {offset} of", value, STATUS_CODES)


def offset_for_time(queue: MessageQueue, timestamp_ms: int) -> BrokerQuery[int]:
    """Its answer is a hint only: see Reader.offset_for_time."""
    return BrokerQuery(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms).to_ext(),
        "the search by time in",
        lambda answer: SearchOffsetResponseHeader.from_ext(answer.ext_fields).offset,
    )
