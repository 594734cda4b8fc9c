"""Requests of producers, their responses, and requests of brokers to producers.

Fields in the order required, then optional; see ``base`` for the encoding.
Corresponds to remoting.protocol.header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_rocket.protocol.wire.headers.base import Header, Int, Long, build, ext_of, table_of


@dataclass(slots=True, eq=False, repr=False)
class SendMessageRequestHeader(Header):
    """SEND_MESSAGE and SEND_REPLY_MESSAGE with these names; V2 and batches with the names a to n in this order."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    batch: bool = False
    broker_name: str | None = field(default=None, metadata={"wire": "bname"})

    @classmethod
    def from_ext_v2(cls, ext: Mapping[str, str]) -> SendMessageRequestHeader:
        """Decode the one-letter fields of requests 310, 320 and 325."""
        return build(cls, _LETTERS, ext)

    def to_ext_v2(self) -> dict[str, str]:
        """Encode as one-letter fields."""
        return ext_of(self, _LETTERS)


_LETTERS = table_of(SendMessageRequestHeader, "abcdefghijklmn")


@dataclass(slots=True, eq=False, repr=False)
class SendMessageResponseHeader(Header):
    """Response to a send: the place of the message."""

    msg_id: str
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class EndTransactionRequestHeader(Header):
    """END_TRANSACTION."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    msg_id: str
    topic: str | None = None
    from_transaction_check: bool = False
    transaction_id: str | None = None
    broker_name: str | None = field(default=None, metadata={"wire": "bname"})


@dataclass(slots=True, eq=False, repr=False)
class CheckTransactionStateRequestHeader(Header):
    """CHECK_TRANSACTION_STATE."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = field(default=None, metadata={"wire": "bname"})


@dataclass(slots=True, eq=False, repr=False)
class ReplyMessageRequestHeader(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    born_host: str
    store_host: str
    store_timestamp: Long
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool = False


@dataclass(slots=True, eq=False, repr=False)
class RecallMessageRequestHeader(Header):
    """RECALL_MESSAGE."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class RecallMessageResponseHeader(Header):
    """Response to RECALL_MESSAGE."""

    msg_id: str
