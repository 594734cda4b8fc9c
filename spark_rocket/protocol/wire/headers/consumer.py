"""Requests of consumers and readers: pulls, offsets, group membership, send-back, POP.

Fields in the order required, then optional; see ``base`` for the encoding.
Corresponds to remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_rocket.protocol.wire.headers.base import Header, Int, Long


@dataclass(slots=True)
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


@dataclass(slots=True)
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


@dataclass(slots=True)
class QueryConsumerOffsetRequestHeader(Header):
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None


@dataclass(slots=True)
class QueryConsumerOffsetResponseHeader(Header):
    """Response to QUERY_CONSUMER_OFFSET."""

    offset: Long


@dataclass(slots=True)
class UpdateConsumerOffsetRequestHeader(Header):
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long


@dataclass(slots=True)
class SearchOffsetRequestHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: str | None = None


@dataclass(slots=True)
class SearchOffsetResponseHeader(Header):
    """Response to SEARCH_OFFSET_BY_TIMESTAMP."""

    offset: Long


@dataclass(slots=True)
class GetMaxOffsetRequestHeader(Header):
    """GET_MAX_OFFSET."""

    topic: str
    queue_id: Int
    committed: bool = True


@dataclass(slots=True)
class GetMaxOffsetResponseHeader(Header):
    """Response to GET_MAX_OFFSET."""

    offset: Long


@dataclass(slots=True)
class GetMinOffsetRequestHeader(Header):
    """GET_MIN_OFFSET."""

    topic: str
    queue_id: Int


@dataclass(slots=True)
class GetMinOffsetResponseHeader(Header):
    """Response to GET_MIN_OFFSET."""

    offset: Long


@dataclass(slots=True)
class GetEarliestMsgStoretimeRequestHeader(Header):
    """GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: Int


@dataclass(slots=True)
class GetEarliestMsgStoretimeResponseHeader(Header):
    """Response to GET_EARLIEST_MSG_STORETIME."""

    timestamp: Long


@dataclass(slots=True)
class GetConsumerListByGroupRequestHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP."""

    consumer_group: str


@dataclass(slots=True)
class NotifyConsumerIdsChangedRequestHeader(Header):
    """NOTIFY_CONSUMER_IDS_CHANGED."""

    consumer_group: str


@dataclass(slots=True)
class ConsumerSendMsgBackRequestHeader(Header):
    """CONSUMER_SEND_MSG_BACK."""

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None


@dataclass(slots=True)
class PopMessageRequestHeader(Header):
    """POP_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: Int
    max_msg_nums: Int
    invisible_time: Long
    poll_time: Long
    born_time: Long
    init_mode: Int
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


@dataclass(slots=True)
class PopMessageResponseHeader(Header):
    """Response to POP_MESSAGE."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    rest_num: Long
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(slots=True)
class AckMessageRequestHeader(Header):
    """ACK_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long


@dataclass(slots=True)
class ChangeInvisibleTimeRequestHeader(Header):
    """CHANGE_MESSAGE_INVISIBLETIME."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    invisible_time: Long
    suspend: bool | None = None


@dataclass(slots=True)
class PeekMessageRequestHeader(Header):
    """PEEK_MESSAGE."""

    topic: str
    queue_id: Int
    max_msg_nums: Int
    consumer_group: str


@dataclass(slots=True)
class NotificationRequestHeader(Header):
    """NOTIFICATION."""

    consumer_group: str
    topic: str
    queue_id: Int
    poll_time: Long
    born_time: Long
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


@dataclass(slots=True)
class NotificationResponseHeader(Header):
    """Response to NOTIFICATION."""

    has_msg: bool = False
    polling_full: bool = False


@dataclass(slots=True)
class PollingInfoRequestHeader(Header):
    """POLLING_INFO."""

    consumer_group: str
    topic: str
    queue_id: Int


@dataclass(slots=True)
class PollingInfoResponseHeader(Header):
    """Response to POLLING_INFO."""

    polling_num: Int
