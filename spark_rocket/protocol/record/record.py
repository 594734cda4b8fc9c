"""Stored records one at a time: encode, check and decode.

``layout.py`` has the byte table. After a crash: ``scan_record`` distinguishes complete records from torn ones by
lengths and CRC. Corresponds to store.CommitLog.checkMessageAndReturnSize and common.message.{MessageDecoder,
MessageExtEncoder}.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from mmap import mmap
from typing import NamedTuple
from zlib import crc32

from spark_rocket.errors import ProtocolError
from spark_rocket.model import MessageExt
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.ids import IPV4_HOST_SIZE, IPV6_HOST_SIZE, offset_id_text, unpack_host
from spark_rocket.protocol.record.compression import MAX_BATCH_LENGTH, MAX_BODY_LENGTH, decompress_body
from spark_rocket.protocol.record.layout import (
    AT,
    BLANK_SIZE,
    BORN_HOST_V6,
    COMPRESSED,
    CRC_MASK,
    FIXED_SIZE,
    HEADERS,
    HOSTS_MASK,
    INT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_TOPIC_LENGTH_V1,
    PROPERTIES_LENGTH,
    SIZE_AND_MAGIC,
    STORE_HOST_V6,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
    UNWRAP_MASK,
)
from spark_rocket.protocol.record.properties import decode_properties

_HOST_BITS = {
    (IPV4_HOST_SIZE, IPV4_HOST_SIZE): 0,
    (IPV6_HOST_SIZE, IPV4_HOST_SIZE): BORN_HOST_V6,
    (IPV4_HOST_SIZE, IPV6_HOST_SIZE): STORE_HOST_V6,
    (IPV6_HOST_SIZE, IPV6_HOST_SIZE): HOSTS_MASK,
}
_SYS_FLAG_AT = AT["sys_flag"]


def encode_record(
    topic: bytes,
    queue_id: int,
    body: Buffer,
    properties: bytes,
    *,
    queue_offset: int,
    physical_offset: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Encode one record. Hosts are packed (``pack_host``); their lengths set the two host bits of the system flag."""
    hosts = _HOST_BITS.get((len(born_host), len(store_host)))
    if hosts is None:
        raise ProtocolError(
            f"Invalid packed hosts {born_host!r} and {store_host!r}: expected 8 or 20 bytes each.",
            remedy="Use pack_host.",
        )
    head = HEADERS[hosts]
    topic_length = len(topic)
    v2 = topic_length > MAX_TOPIC_LENGTH_V1
    body_length = len(body)
    try:
        return b"".join(
            (
                head.pack(
                    head.size + body_length + topic_length + len(properties) + (4 if v2 else 3),
                    MAGIC_V2 if v2 else MAGIC_V1,
                    crc32(body) & CRC_MASK,
                    queue_id,
                    flag,
                    queue_offset,
                    physical_offset,
                    sys_flag & ~HOSTS_MASK | hosts,
                    born_timestamp,
                    born_host,
                    store_timestamp,
                    store_host,
                    reconsume_times,
                    prepared_transaction_offset,
                    body_length,
                ),
                body,
                TOPIC_LENGTH_V2.pack(topic_length) if v2 else TOPIC_LENGTH_V1.pack(topic_length),
                topic,
                PROPERTIES_LENGTH.pack(len(properties)),
                properties,
            )
        )
    except struct.error as error:
        raise ProtocolError(
            f"A message of topic {bytes(topic[:80])!r} does not fit into a record: {error}.",
            remedy="Body, topic (32,767 bytes) and properties (32,767 bytes) must fit their length fields.",
        ) from None


def encode_blank(size: int) -> bytes:
    """Return the first 8 bytes of a blank of ``size`` bytes; the rest is never read."""
    try:
        return SIZE_AND_MAGIC.pack(size, MAGIC_BLANK)
    except struct.error:
        raise ProtocolError(
            f"Invalid size of a blank: {size} bytes.", remedy="Use the rest of a file, less than 2^31 bytes."
        ) from None


class RecordView(NamedTuple):
    """A checked record in a buffer: numbers and packed hosts, and views of body, topic and properties."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: memoryview
    topic: memoryview
    properties: memoryview

    def to_message(self, broker_name: str = "", *, decompress: bool = True) -> MessageExt:
        """Return a copy as a ``MessageExt``, independent of the buffer; ``decompress``: also decompress the body."""
        body: bytes = bytes(self.body)
        if decompress and self.sys_flag & COMPRESSED:
            is_batch = self.sys_flag & UNWRAP_MASK == UNWRAP_MASK
            body = decompress_body(body, self.sys_flag, MAX_BATCH_LENGTH if is_batch else MAX_BODY_LENGTH)
        return MessageExt(
            topic=str(self.topic, "utf-8", "replace"),
            body=body,
            properties=decode_properties(self.properties),
            flag=self.flag,
            broker_name=broker_name,
            queue_id=self.queue_id,
            queue_offset=self.queue_offset,
            physical_offset=self.physical_offset,
            store_size=self.size,
            sys_flag=self.sys_flag,
            body_crc=self.body_crc,
            born_timestamp=self.born_timestamp,
            born_host=unpack_host(self.born_host),
            store_timestamp=self.store_timestamp,
            store_host=unpack_host(self.store_host),
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
            offset_msg_id=offset_id_text(self.store_host, self.physical_offset),
        )


class ScanKind(Enum):
    """The result of ``scan_record``."""

    GOOD = "good"
    BLANK = "blank"
    END = "end"
    BAD = "bad"


class ScanResult(NamedTuple):
    """``size`` (GOOD, BLANK): bytes to skip; ``reason`` (BAD): the error; ``record`` (GOOD): the view."""

    kind: ScanKind
    size: int = 0
    reason: str = ""
    record: RecordView | None = None


_END = ScanResult(ScanKind.END)


def scan_record(
    buffer: Buffer | mmap, position: int = 0, limit: int | None = None, *, check_crc: bool = True
) -> ScanResult:
    """Check ``position`` of a commit-log file whose bytes end at ``limit``; never raises for invalid bytes."""
    view = memoryview(buffer)
    end = len(view) if limit is None else min(limit, len(view))
    room = end - position
    if room < BLANK_SIZE:
        return _END
    size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
    if magic == MAGIC_BLANK:
        if BLANK_SIZE <= size <= room:
            return ScanResult(ScanKind.BLANK, size)
        return ScanResult(ScanKind.BAD, reason=f"a blank of {size} bytes with {room} left in the file")
    if magic == 0 and size == 0:
        return _END
    record = _view(view, position, end, check_crc)
    if isinstance(record, str):
        return ScanResult(ScanKind.BAD, reason=record)
    return ScanResult(ScanKind.GOOD, record.size, record=record)


def _view(view: memoryview, position: int, end: int, check_crc: bool) -> RecordView | str:
    """Return the record at ``position``, or the reason why it is invalid."""
    room = end - position
    if room < FIXED_SIZE:
        return f"{room} bytes are too few for a record"
    (sys_flag,) = INT.unpack_from(view, position + _SYS_FLAG_AT)
    head = HEADERS[sys_flag & HOSTS_MASK]
    body_at = position + head.size
    if body_at > end:
        return f"{room} bytes are too few for a record with IPv6 hosts"
    numbers = head.unpack_from(view, position)
    size, magic, body_crc = numbers[:3]
    body_length: int = numbers[-1]
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"invalid magic {magic:#010x}"
    topic_head = TOPIC_LENGTH_V1 if magic == MAGIC_V1 else TOPIC_LENGTH_V2
    if not FIXED_SIZE <= size <= room:
        return f"a size of {size} bytes with {room} there"
    end = position + size
    topic_length_at = body_at + body_length
    topic_at = topic_length_at + topic_head.size
    if body_length < 0 or topic_at > end:
        return f"a body of {body_length} bytes in a record of {size}"
    (topic_length,) = topic_head.unpack_from(view, topic_length_at)
    properties_length_at = topic_at + topic_length
    properties_at = properties_length_at + PROPERTIES_LENGTH.size
    if topic_length < 0 or properties_at > end:
        return f"a topic of {topic_length} bytes in a record of {size}"
    (properties_length,) = PROPERTIES_LENGTH.unpack_from(view, properties_length_at)
    if properties_length < 0 or properties_at + properties_length != end:
        return f"properties of {properties_length} bytes that do not end with their record of {size}"
    body = view[body_at:topic_length_at]
    if check_crc and crc32(body) & CRC_MASK != body_crc:
        return f"a body whose CRC is not the stored {body_crc:#010x}"
    topic, properties = view[topic_at:properties_length_at], view[properties_at:end]
    return RecordView._make((*numbers[:-1], body, topic, properties))


def view_record(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> RecordView:
    """Return the record at ``position``; ``ProtocolError`` if it is incomplete or damaged."""
    view = memoryview(buffer)
    record: RecordView | str = f"position {position} is outside {len(view)} bytes"
    if 0 <= position < len(view):
        record = _view(view, position, len(view), check_crc)
    if isinstance(record, str):
        raise ProtocolError(
            f"Invalid message record at byte {position}: {record}.",
            remedy="The response or file is damaged or truncated: read it again, or check the store.",
        )
    return record


def decode_record(
    buffer: Buffer, position: int = 0, check_crc: bool = True, broker_name: str = "", *, decompress: bool = True
) -> MessageExt:
    """Return the record at ``position`` as a message (an inner batch as the one message that is stored)."""
    return view_record(buffer, position, check_crc=check_crc).to_message(broker_name, decompress=decompress)


def iter_records(buffer: Buffer, *, check_crc: bool = False) -> Iterator[RecordView]:
    """Yield the records of a run, such as the body of a pull response."""
    position = 0
    while position < len(buffer):
        record = view_record(buffer, position, check_crc=check_crc)
        yield record
        position += record.size
