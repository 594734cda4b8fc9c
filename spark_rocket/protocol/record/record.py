"""The message record: in the commit log, and one after another in the body of a pull answer.

======== ======= ============================================================== ================
offset   size    field (big endian)                                             (IPv4 hosts)
======== ======= ============================================================== ================
0        4       total size, this field included
4        4       magic: 0xDAA320A7 v1, 0xDAA320AB v2, 0xCBD43194 blank
8        4       CRC-32 of the body as stored, top bit cleared
12       4       queue id
16       4       flag, the user's
20       8       queue offset: which message of its queue
28       8       physical offset: where in the commit log
36       4       system flag
40       8       born timestamp, ms
48       8 or 20 born host: IP and int32 port; 20 with BORN_HOST_V6
56       8       store timestamp, ms
64       8 or 20 store host; 20 with STORE_HOST_V6
72       4       reconsume times
76       8       prepared transaction offset
84       4 + n   body
…        1 + n   topic (v2: 2 + n)
…        2 + n   properties
======== ======= ============================================================== ================

v2 is written when the topic is longer than 127 bytes. A *blank* (total size = the rest of the file, magic, nothing
else) ends a commit-log file that has no room for the next record; zeros mean that nothing was written yet.

A *batch body* (request 320, and the body of an inner-batch record) is a run of: int32 total size, int32 0, int32 0,
int32 flag, 4 + n body, 2 + n properties.

Thread-safety: pure functions. After a crash: ``scan_record`` tells whole records from torn ones by lengths and CRC.
Corresponds to store.CommitLog.checkMessageAndReturnSize and common.message.{MessageDecoder, MessageExtEncoder}.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import Enum
from mmap import mmap
from typing import NamedTuple, TypeAlias
from zlib import crc32

from spark_rocket.errors import ProtocolError, RunTooLargeError
from spark_rocket.model import Message, MessageExt
from spark_rocket.protocol.ids import IPV4_HOST_SIZE, IPV6_HOST_SIZE, unpack_host
from spark_rocket.protocol.record.compression import MAX_BATCH_LENGTH, MAX_BODY_LENGTH, MAX_RUN, decompress_body
from spark_rocket.protocol.record.lazy_message import LazyMessage
from spark_rocket.protocol.record.properties import decode_properties, encode_properties

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
BLANK_SIZE = 8  # the least that must be free after a record, so that a blank fits
FIXED_SIZE = 91  # a v1 record with IPv4 hosts and nothing in it
CRC_MASK = 0x7FFFFFFF
MAX_TOPIC_LENGTH_V1 = 127

# Bits of the system flag.
COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300

_HOSTS_MASK = BORN_HOST_V6 | STORE_HOST_V6
_HOST_BITS = {
    (IPV4_HOST_SIZE, IPV4_HOST_SIZE): 0,
    (IPV6_HOST_SIZE, IPV4_HOST_SIZE): BORN_HOST_V6,
    (IPV4_HOST_SIZE, IPV6_HOST_SIZE): STORE_HOST_V6,
    (IPV6_HOST_SIZE, IPV6_HOST_SIZE): _HOSTS_MASK,
}
# Everything up to and including the body's length, by the two host bits of the system flag.
_HEADS = {
    bits: struct.Struct(f">IIIiiqqiq{born_host}sq{store_host}siqi")
    for (born_host, store_host), bits in _HOST_BITS.items()
}
_CHECKED = struct.Struct(">III8xq8xi44xi")  # of a head with IPv4 hosts: size, magic, CRC, queue offset, flag, body
_UNUSUAL = COMPRESSED | _HOSTS_MASK | NEED_UNWRAP | INNER_BATCH
_UNWRAP = NEED_UNWRAP | INNER_BATCH
_TWO_WORDS = struct.Struct(">II")
_SYS_FLAG = struct.Struct(">i")
_SYS_FLAG_AT = 36
_TOPIC_V1 = struct.Struct(">B")
_SHORT = struct.Struct(">h")
_BATCH_HEAD = struct.Struct(">iiiii")


def record_size(body: int, topic: int, properties: int, *, born_v6: bool = False, store_v6: bool = False) -> int:
    """Bytes that a record takes, from the lengths in bytes of what is in it."""
    v2 = topic > MAX_TOPIC_LENGTH_V1
    return FIXED_SIZE + body + topic + properties + v2 + 12 * born_v6 + 12 * store_v6


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
    """One record. Hosts are packed (``pack_host``); their lengths decide the two host bits of the system flag."""
    hosts = _HOST_BITS.get((len(born_host), len(store_host)), -1)
    if hosts < 0:
        raise ProtocolError(
            f"Packed hosts {born_host!r} and {store_host!r} are not 8 or 20 bytes each.", remedy="Use pack_host."
        )
    head = _HEADS[hosts]
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
                    sys_flag & ~_HOSTS_MASK | hosts,
                    born_timestamp,
                    born_host,
                    store_timestamp,
                    store_host,
                    reconsume_times,
                    prepared_transaction_offset,
                    body_length,
                ),
                body,
                _SHORT.pack(topic_length) if v2 else _TOPIC_V1.pack(topic_length),
                topic,
                _SHORT.pack(len(properties)),
                properties,
            )
        )
    except struct.error as error:
        raise ProtocolError(
            f"A message of topic {bytes(topic[:80])!r} fits no record: {error}.",
            remedy="Body, topic (32,767 bytes) and properties (32,767 bytes) must fit their length fields.",
        ) from None


def encode_blank(size: int) -> bytes:
    """The first 8 bytes of a blank that fills ``size`` bytes; what follows is never read."""
    try:
        return _TWO_WORDS.pack(size, MAGIC_BLANK)
    except struct.error:
        raise ProtocolError(
            f"A blank cannot fill {size} bytes.", remedy="It fills the rest of a file, which fits 32 bits."
        ) from None


class RecordView:
    """A checked record in a buffer: numbers read, body, topic and properties as views into the buffer."""

    __slots__ = (
        "body",
        "body_crc",
        "born_host",
        "born_timestamp",
        "flag",
        "magic",
        "physical_offset",
        "prepared_transaction_offset",
        "properties",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "size",
        "store_host",
        "store_timestamp",
        "sys_flag",
        "topic",
    )

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
        """A copy as a ``MessageExt`` that outlives the buffer; ``decompress`` undoes what the system flag says."""
        body: bytes = bytes(self.body)
        if decompress and self.sys_flag & COMPRESSED:
            is_batch = self.sys_flag & _UNWRAP == _UNWRAP
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
            offset_msg_id=f"{self.store_host.hex().upper()}{self.physical_offset & 0xFFFFFFFFFFFFFFFF:016X}",
        )


class ScanKind(Enum):
    """What ``scan_record`` found."""

    GOOD = "good"
    BLANK = "blank"
    END = "end"
    BAD = "bad"


class ScanResult(NamedTuple):
    """``size`` is how far to go on (GOOD, BLANK), ``reason`` what is wrong (BAD), ``record`` the view (GOOD)."""

    kind: ScanKind
    size: int = 0
    reason: str = ""
    record: RecordView | None = None


_END = ScanResult(ScanKind.END)


def scan_record(
    buffer: Buffer | mmap, position: int = 0, limit: int | None = None, *, check_crc: bool = True
) -> ScanResult:
    """What stands at ``position`` of a commit-log file whose bytes end at ``limit``; never raises for bytes."""
    view = memoryview(buffer)
    end = len(view) if limit is None else min(limit, len(view))
    room = end - position
    if room < BLANK_SIZE:
        return _END
    size, magic = _TWO_WORDS.unpack_from(view, position)
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
    """The record at ``position``, or what is wrong with it."""
    room = end - position
    if room < FIXED_SIZE:
        return f"{room} bytes are too few for a record"
    (sys_flag,) = _SYS_FLAG.unpack_from(view, position + _SYS_FLAG_AT)
    head = _HEADS[sys_flag & _HOSTS_MASK]
    body_at = position + head.size
    if body_at > end:
        return f"{room} bytes are too few for a record with IPv6 hosts"
    record = RecordView.__new__(RecordView)
    (
        size,
        record.magic,
        record.body_crc,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.store_timestamp,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        body_length,
    ) = head.unpack_from(view, position)
    topic_head = _TOPIC_V1 if record.magic == MAGIC_V1 else _SHORT
    if record.magic not in (MAGIC_V1, MAGIC_V2):
        return f"magic {record.magic:#010x} is no record's"
    if not FIXED_SIZE <= size <= room:
        return f"a size of {size} bytes with {room} there"
    end = position + size
    topic_length_at = body_at + body_length
    topic_at = topic_length_at + topic_head.size
    if body_length < 0 or topic_at > end:
        return f"a body of {body_length} bytes in a record of {size}"
    (topic_length,) = topic_head.unpack_from(view, topic_length_at)
    properties_length_at = topic_at + topic_length
    properties_at = properties_length_at + 2
    if topic_length < 0 or properties_at > end:
        return f"a topic of {topic_length} bytes in a record of {size}"
    (properties_length,) = _SHORT.unpack_from(view, properties_length_at)
    if properties_length < 0 or properties_at + properties_length != end:
        return f"properties of {properties_length} bytes that do not end with their record of {size}"
    record.size = size
    record.body = view[body_at:topic_length_at]
    record.topic = view[topic_at:properties_length_at]
    record.properties = view[properties_at:end]
    if check_crc and crc32(record.body) & CRC_MASK != record.body_crc:
        return f"a body whose CRC is not the stored {record.body_crc:#010x}"
    return record


def view_record(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> RecordView:
    """The record at ``position``; ``ProtocolError`` when there is no whole and sound one."""
    view = memoryview(buffer)
    record: RecordView | str = f"position {position} is outside {len(view)} bytes"
    if 0 <= position < len(view):
        record = _view(view, position, len(view), check_crc)
    if isinstance(record, str):
        raise ProtocolError(
            f"No message record at byte {position}: {record}.",
            remedy="The answer or file is damaged or cut short: read it again, or check the store.",
        )
    return record


def decode_record(
    buffer: Buffer, position: int = 0, check_crc: bool = True, broker_name: str = "", *, decompress: bool = True
) -> MessageExt:
    """The record at ``position`` as a message (an inner batch as the one message that it is stored as)."""
    return view_record(buffer, position, check_crc=check_crc).to_message(broker_name, decompress=decompress)


def iter_records(buffer: Buffer, *, check_crc: bool = False) -> Iterator[RecordView]:
    """Every record of a run, such as a pull answer's body."""
    position = 0
    while position < len(buffer):
        record = view_record(buffer, position, check_crc=check_crc)
        yield record
        position += record.size


def decode_messages(
    buffer: Buffer, broker_name: str = "", *, check_crc: bool = True, decompress: bool = True
) -> list[MessageExt]:
    """Every message of a run of records; inner batches come out as the messages in them.

    Without ``decompress``, as servers want it, compressed bodies stay as they are, also those of inner batches.
    RunTooLargeError, a ProtocolError, when bodies inflate to more than ``MAX_RUN`` together.

    Usual records (v1, IPv4 hosts, not compressed, no inner batch) are checked here and read as ``LazyMessage`` does;
    all others, and whatever is wrong with one, are left to ``view_record``.
    """
    raw = buffer if isinstance(buffer, bytes) else bytes(buffer)
    messages: list[MessageExt] = []
    add = messages.append
    unpack = _CHECKED.unpack_from
    new = LazyMessage.__new__
    topic, topic_raw = "", b""
    length = len(raw)
    inflated = 0
    last_head = length - FIXED_SIZE
    position = 0
    while position < length:
        if position <= last_head:
            size, magic, crc, queue_offset, sys_flag, body_length = unpack(raw, position)
            end = position + size
            body_at = position + 88
            topic_at = body_at + body_length
            if (
                magic == MAGIC_V1
                and not sys_flag & _UNUSUAL
                and end <= length
                and body_at <= topic_at <= end - 3
                and (properties_at := topic_at + 3 + raw[topic_at]) <= end
                and raw[properties_at - 2] < 0x80
                and properties_at + (raw[properties_at - 2] << 8 | raw[properties_at - 1]) == end
            ):
                body = raw[body_at:topic_at]
                if not check_crc or crc32(body) & CRC_MASK == crc:
                    its_topic = raw[topic_at + 1 : properties_at - 2]
                    if its_topic != topic_raw:
                        topic_raw = its_topic
                        topic = its_topic.decode("utf-8", "replace")
                    message = new(LazyMessage)
                    message.topic = topic
                    message.body = body
                    message.broker_name = broker_name
                    message.queue_offset = queue_offset
                    message._head = raw[position:body_at]
                    message._raw_properties = raw[properties_at:end]
                    message._properties = message._added = None
                    add(message)
                    position = end
                    continue
        record = view_record(raw, position, check_crc=check_crc)
        plain = record.to_message(broker_name, decompress=decompress)
        if record.sys_flag & COMPRESSED:
            inflated += len(plain.body)
            if inflated > MAX_RUN:
                raise RunTooLargeError(
                    f"The bodies of a run of {length:,} bytes inflate to more than {MAX_RUN:,}.",
                    queue_offset=record.queue_offset,
                    remedy="Pull fewer at a time (pull_batch_size); one alone can always be read.",
                )
        if record.sys_flag & _UNWRAP == _UNWRAP and (decompress or not record.sys_flag & COMPRESSED):
            messages += _unwrap(plain)
        else:
            add(plain)
        position += record.size
    return messages


def _unwrap(batch: MessageExt) -> list[MessageExt]:
    """The messages of an inner-batch record: consecutive queue offsets from its INNER_BASE on."""
    base = batch.properties.get("INNER_BASE", "")
    first = int(base) if base.isascii() and base.isdigit() and len(base) < 20 else batch.queue_offset
    return [
        MessageExt(
            batch.topic,
            bytes(body),
            decode_properties(properties),
            flag,
            batch.broker_name,
            batch.queue_id,
            queue_offset,
            batch.physical_offset,
            batch.store_size,
            batch.sys_flag & ~(INNER_BATCH | NEED_UNWRAP | COMPRESSED | COMPRESSION_MASK),
            0,
            batch.born_timestamp,
            batch.born_host,
            batch.store_timestamp,
            batch.store_host,
            batch.reconsume_times,
            batch.prepared_transaction_offset,
            batch.offset_msg_id,
        )
        for queue_offset, (flag, body, properties) in enumerate(decode_batch_body(batch.body), first)
    ]


def encode_batch_body(messages: Iterable[Message | tuple[int, Buffer, bytes]]) -> bytes:
    """The body of a batch send, from messages or from (flag, body, property string)."""
    pieces: list[Buffer] = []
    for message in messages:
        if isinstance(message, Message):
            flag, body, properties = message.flag, message.body, encode_properties(message.properties)
        else:
            # The checker takes a Message's attributes for the tuple's types.
            flag, body, properties = message  # type: ignore[assignment]
        try:
            head = _BATCH_HEAD.pack(22 + len(body) + len(properties), 0, 0, flag, len(body))
            pieces += (head, body, _SHORT.pack(len(properties)), properties)
        except struct.error as error:
            raise ProtocolError(
                f"A message of {len(body):,} body and {len(properties):,} property bytes fits no batch: {error}.",
                remedy="Properties take at most 32,767 bytes, the flag is a 32-bit number.",
            ) from None
    return b"".join(pieces)


def decode_batch_body(buffer: Buffer) -> list[tuple[int, memoryview, bytes]]:
    """(flag, body, property string) of each message in a batch body; bodies are views into it."""
    view = memoryview(buffer)
    end = len(view)
    position = 0
    messages: list[tuple[int, memoryview, bytes]] = []
    try:
        while position < end:
            size, _, _, flag, body_length = _BATCH_HEAD.unpack_from(view, position)
            body_at = position + 20
            properties_at = body_at + body_length + 2
            if body_length < 0 or properties_at > end:
                raise _bad_batch(position)
            (properties_length,) = _SHORT.unpack_from(view, properties_at - 2)
            position += size
            if properties_length < 0 or properties_at + properties_length != position or position > end:
                raise _bad_batch(body_at - 20)
            messages.append((flag, view[body_at : properties_at - 2], bytes(view[properties_at:position])))
    except struct.error:
        raise _bad_batch(position) from None
    return messages


def _bad_batch(position: int) -> ProtocolError:
    return ProtocolError(
        f"A batch has no whole message at byte {position}.", remedy="The batch is damaged or cut short: send it again."
    )
