"""Requests of readers: pulls, ends and times of queues, and offsets of groups.

Fields in the order required, then optional; see ``base`` for the encoding.
Corresponds to remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_rocket.protocol.wire.headers.base import Header, Int, Long


@dataclass(slots=True, eq=False, repr=False)
class PullMessageRequestHeader(Header):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long
    suspend_timeout_millis: Long
    sub_version: Long
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int | None = None
    request_source: Int | None = None
    proxy_froward_client_id: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class PullMessageResponseHeader(Header):
    """Response to a pull; its body is a run of records."""

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    offset_delta: Long | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None
    forbidden_type: Int | None = None


@dataclass(slots=True, eq=False, repr=False)
class QueryConsumerOffsetRequestHeader(Header):
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None


@dataclass(slots=True, eq=False, repr=False)
class QueryConsumerOffsetResponseHeader(Header):
    """Response to QUERY_CONSUMER_OFFSET."""

    offset: Long


@dataclass(slots=True, eq=False, repr=False)
class UpdateConsumerOffsetRequestHeader(Header):
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long


@dataclass(slots=True, eq=False, repr=False)
class SearchOffsetRequestHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class SearchOffsetResponseHeader(Header):
    """Response to SEARCH_OFFSET_BY_TIMESTAMP."""

    offset: Long


@dataclass(slots=True, eq=False, repr=False)
class GetMaxOffsetRequestHeader(Header):
    """GET_MAX_OFFSET."""

    topic: str
    queue_id: Int
    committed: bool = True


@dataclass(slots=True, eq=False, repr=False)
class GetMaxOffsetResponseHeader(Header):
    """Response to GET_MAX_OFFSET."""

    offset: Long


@dataclass(slots=True, eq=False, repr=False)
class GetMinOffsetRequestHeader(Header):
    """GET_MIN_OFFSET."""

    topic: str
    queue_id: Int


@dataclass(slots=True, eq=False, repr=False)
class GetMinOffsetResponseHeader(Header):
    """Response to GET_MIN_OFFSET."""

    offset: Long


@dataclass(slots=True, eq=False, repr=False)
class GetEarliestMsgStoretimeRequestHeader(Header):
    """GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: Int


@dataclass(slots=True, eq=False, repr=False)
class GetEarliestMsgStoretimeResponseHeader(Header):
    """Response to GET_EARLIEST_MSG_STORETIME."""

    timestamp: Long
