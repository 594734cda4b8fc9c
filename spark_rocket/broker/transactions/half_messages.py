"""Records of the transaction topics, and the messages made from them.

==========================  ===========================================================================================
RMQ_SYS_TRANS_HALF_TOPIC    undecided messages, stored as ordinary ones: the sender's topic and queue in REAL_TOPIC and
                            REAL_QID, its group in PGROUP, the unique key also in __transactionId__ (since 5.1). Copies
                            made by checks also have TRANSACTION_CHECK_TIMES and TRAN_PREPARED_QUEUE_OFFSET (the offset
                            of the original)
RMQ_SYS_TRANS_OP_HALF_TOPIC decisions: tag ``d``; the body has the queue offsets of half messages in the queue of the
                            same id: one (4.9), or several, each followed or separated by a comma (5.x)
TRANS_CHECK_MAX_TIME_TOPIC  half messages that were never decided, unchanged
==========================  ===========================================================================================

Corresponds to TransactionalMessageUtil, TransactionalMessageBridge and AbstractTransactionalMessageCheckListener.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from spark_rocket.errors import ProtocolError
from spark_rocket.model import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from spark_rocket.protocol.ids import encode_offset_msg_id
from spark_rocket.protocol.record.layout import TRANSACTION_MASK
from spark_rocket.protocol.record.properties import append_property, find_property, remove_property
from spark_rocket.protocol.record.record import RecordView, encode_record, view_record
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import CheckTransactionStateRequestHeader
from spark_rocket.store.results import PutResult

CHECK_TIMES = b"TRANSACTION_CHECK_TIMES"
FIRST_OFFSET = b"TRAN_PREPARED_QUEUE_OFFSET"
IMMUNITY = b"CHECK_IMMUNITY_TIME_IN_SECONDS"
OP_PROPERTIES = b"TAGS\x01d"
_CRC32 = b"__CRC32#"
_OP_TAG = b"d"


class HalfMessage(NamedTuple):
    """A half message: its record, and the properties that the broker needs."""

    record: RecordView
    properties: bytes
    group: str
    first: int
    """Queue offset of the original: its own, unless it is a copy."""
    check_times: int

    @classmethod
    def view(cls, raw: bytes | None) -> HalfMessage | None:
        """Decode a half message; None if the record is damaged or has another topic."""
        if raw is None:
            return None
        try:
            record = view_record(raw)
        except ProtocolError:
            return None
        if record.topic != HALF_TOPIC.encode():
            return None
        properties = remove_property(bytes(record.properties), _CRC32)
        group = (find_property(properties, b"PGROUP") or b"").decode("utf-8", "replace")
        first = min(number(find_property(properties, FIRST_OFFSET), record.queue_offset), record.queue_offset)
        return cls(record, properties, group, first, number(find_property(properties, CHECK_TIMES), 0))

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy that a check has made of an earlier one."""
        return self.check_times > 0 or self.first != self.record.queue_offset

    def real_place(self) -> tuple[str, int]:
        """The destination topic and queue id; ValueError if the properties are missing or invalid."""
        topic, queue_id = find_property(self.properties, b"REAL_TOPIC"), find_property(self.properties, b"REAL_QID")
        number_of_queue = number(queue_id, -1)
        if not topic or topic == HALF_TOPIC.encode() or not 0 <= number_of_queue < 1 << 31:
            raise ValueError("missing or invalid properties REAL_TOPIC and REAL_QID of a half message")
        return topic.decode(), number_of_queue

    def immunity_ms(self, timeout: int) -> int:
        """Time after its creation without checks: the sender's immunity time, or ``timeout``."""
        text = find_property(self.properties, IMMUNITY)
        seconds = number(text, -1) if text else -1
        return timeout if seconds < 0 else seconds * 1000

    def copy_properties(self, *, checked: bool) -> bytes:
        properties = self.properties
        if checked:
            times = b"%d" % (self.check_times + 1)
            properties = append_property(remove_property(properties, CHECK_TIMES), CHECK_TIMES, times)
        return append_property(remove_property(properties, FIRST_OFFSET), FIRST_OFFSET, b"%d" % self.first)

    def sent_properties(self) -> bytes:
        """The properties of the committed message, without the offset of the original that this broker adds."""
        return remove_property(self.properties, FIRST_OFFSET)

    def sys_flag(self, state: int) -> int:
        return self.record.sys_flag & ~TRANSACTION_MASK | state

    def check_request(self, copy: PutResult) -> RemotingCommand:
        """CHECK_TRANSACTION_STATE (39) for its new copy; ValueError if it has no valid destination."""
        record = self.record
        topic, queue_id = self.real_place()
        properties = remove_property(self.copy_properties(checked=True), FIRST_OFFSET)
        unique_key = find_property(properties, b"UNIQ_KEY")
        key = None if unique_key is None else unique_key.decode("utf-8", "replace")
        header = CheckTransactionStateRequestHeader(
            tran_state_table_offset=copy.queue_offset,
            commit_log_offset=copy.physical_offset,
            msg_id=key,
            transaction_id=key,
            offset_msg_id=encode_offset_msg_id(record.store_host, copy.physical_offset),
        )
        body = encode_record(
            topic.encode(),
            queue_id,
            record.body,
            properties,
            queue_offset=copy.queue_offset,
            physical_offset=copy.physical_offset,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            store_timestamp=record.store_timestamp,
            store_host=record.store_host,
            flag=record.flag,
            sys_flag=record.sys_flag,
            reconsume_times=record.reconsume_times,
        )
        return RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), body, oneway=True)


def given_up_half(raw: bytes | None) -> tuple[RecordView, bytes, int] | None:
    """Decode a record of TRANS_CHECK_MAX_TIME_TOPIC; None for any other record.

    Returns the record, the properties of a half message without counted checks, and the queue offset of the original
    (-1: unknown).
    """
    try:
        record = view_record(raw or b"")
    except ProtocolError:
        return None
    if record.topic != CHECK_MAX_TIME_TOPIC.encode():
        return None
    properties = remove_property(remove_property(bytes(record.properties), _CRC32), CHECK_TIMES)
    first = number(find_property(properties, FIRST_OFFSET), -1)
    return record, append_property(properties, CHECK_TIMES, b"0"), first


def number(text: bytes | None, default: int) -> int:
    """The number in a property, or ``default`` if it is missing or invalid."""
    return int(text) if text is not None and text.isdigit() and len(text) < 19 else default


def op_body(half_offsets: Iterable[int]) -> bytes:
    return ",".join(map(str, sorted(half_offsets))).encode()


def decided_offsets(raw: bytes | None) -> list[int]:
    """The offsets of half messages in an op record; empty if it is damaged or not an op record."""
    if raw is None:
        return []
    try:
        record = view_record(raw)
    except ProtocolError:
        return []
    if find_property(bytes(record.properties), b"TAGS") != _OP_TAG:
        return []
    return [int(part) for part in bytes(record.body).split(b",") if part.isdigit() and len(part) < 19]
