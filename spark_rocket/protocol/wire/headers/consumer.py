"""Requests of consumers: send-back, POP, notifications and polling.

Fields in the order required, then optional; see ``base`` for the encoding.
Corresponds to remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_rocket.protocol.wire.headers.base import Header, Int, Long


@dataclass(slots=True, eq=False, repr=False)
class ConsumerSendMsgBackRequestHeader(Header):
    """CONSUMER_SEND_MSG_BACK."""

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None


@dataclass(slots=True, eq=False, repr=False)
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


@dataclass(slots=True, eq=False, repr=False)
class PopMessageResponseHeader(Header):
    """Response to POP_MESSAGE."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    rest_num: Long
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class AckMessageRequestHeader(Header):
    """ACK_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long


@dataclass(slots=True, eq=False, repr=False)
class ChangeInvisibleTimeRequestHeader(Header):
    """CHANGE_MESSAGE_INVISIBLETIME."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    invisible_time: Long
    suspend: bool | None = None


@dataclass(slots=True, eq=False, repr=False)
class PeekMessageRequestHeader(Header):
    """PEEK_MESSAGE."""

    topic: str
    queue_id: Int
    max_msg_nums: Int
    consumer_group: str


@dataclass(slots=True, eq=False, repr=False)
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


@dataclass(slots=True, eq=False, repr=False)
class NotificationResponseHeader(Header):
    """Response to NOTIFICATION."""

    has_msg: bool = False
    polling_full: bool = False


@dataclass(slots=True, eq=False, repr=False)
class PollingInfoRequestHeader(Header):
    """POLLING_INFO."""

    consumer_group: str
    topic: str
    queue_id: Int


@dataclass(slots=True, eq=False, repr=False)
class PollingInfoResponseHeader(Header):
    """Response to POLLING_INFO."""

    polling_num: Int
