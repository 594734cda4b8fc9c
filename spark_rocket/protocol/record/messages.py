"""Runs of records, such as the body of a pull response, as messages.

Most consumers only use the bodies, so a common record becomes a ``LazyMessage`` (``make bench``: client.pull).

Thread-safety: functions are pure; a message belongs to one thread at a time.
Corresponds to common.message.MessageDecoder.decodesBatch.
"""

from __future__ import annotations

from dataclasses import fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from zlib import crc32

from spark_rocket.errors import ProtocolError, RunTooLargeError
from spark_rocket.model import MessageExt
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.ids import offset_id_text, unpack_host
from spark_rocket.protocol.namespace import NAME_PROPERTIES, NO_NAMESPACE, Namespace, unwrapped_properties
from spark_rocket.protocol.record.batch_body import decode_batch_body, inner_base
from spark_rocket.protocol.record.compression import MAX_RUN_BYTES
from spark_rocket.protocol.record.layout import (
    AT,
    COMPRESSED,
    COMPRESSION_MASK,
    CRC_MASK,
    FIXED_SIZE,
    HEADER_SIZE,
    HEADERS,
    HOSTS_MASK,
    MAGIC_V1,
    UNWRAP_MASK,
    header_struct,
)
from spark_rocket.protocol.record.properties import decode_properties, find_property
from spark_rocket.protocol.record.record import view_record

_HEADER = HEADERS[0]
_HEADER_INDEX = {name: index for index, name in enumerate(AT)} | {
    "store_size": list(AT).index("size"),
    "offset_msg_id": list(AT).index("physical_offset"),
}
_STORE_HOST = _HEADER_INDEX["store_host"]
_CHECKED = header_struct("size", "magic", "body_crc", "queue_offset", "sys_flag", "body_length")
_PLACE = header_struct("size", "queue_id", "queue_offset")
_UNUSUAL = COMPRESSED | HOSTS_MASK | UNWRAP_MASK
_VALUES = attrgetter(*(field.name for field in fields(MessageExt)))


class LazyMessage(MessageExt):
    """A message whose header fields and properties are decoded on first access.

    A value like any ``MessageExt``: equal to one with the same fields, copied and pickled as one. It holds copies, not
    the run that it came in. Its record was checked before, so decoding cannot fail later.
    """

    __slots__ = ("_added", "_head", "_properties", "_raw_properties")

    _head: bytes | tuple[Any, ...]
    _raw_properties: bytes
    _properties: dict[str, str] | None  # None: not decoded yet
    _added: tuple[str, str] | None  # one more property, as long as they are not decoded

    @classmethod
    def of_record(
        cls, topic: str, body: bytes, broker_name: str, queue_offset: int, head: bytes, raw_properties: bytes
    ) -> LazyMessage:
        """Make a message of a checked record. ``__init__`` is that of ``MessageExt``, for ``dataclasses.replace``."""
        message = cls.__new__(cls)
        message.topic = topic
        message.body = body
        message.broker_name = broker_name
        message.queue_offset = queue_offset
        message._head = head
        message._raw_properties = raw_properties
        message._properties = message._added = None
        return message

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Fill the slot of a header field on first access."""
            index = _HEADER_INDEX.get(name)
            if index is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            head = self._head
            if type(head) is bytes:
                head = self._head = _HEADER.unpack(head)
            value = head[index]
            if name == "offset_msg_id":
                value = offset_id_text(head[_STORE_HOST], value)
            elif type(value) is bytes:
                value = unpack_host(value)
            setattr(self, name, value)
            return value

        @property
        def properties(self) -> dict[str, str]:
            found = self._properties
            if found is None:
                found = self._properties = decode_properties(self._raw_properties)
                if self._added is not None:
                    found[self._added[0]] = self._added[1]
            return found

        @properties.setter
        def properties(self, properties: dict[str, str]) -> None:
            self._properties = properties

    def set_property(self, name: str, value: str) -> None:
        if self._properties is None and self._added is None:
            self._added = name, value
        else:
            self.properties[name] = value

    def get_property(self, name: str) -> str | None:
        if self._properties is not None or (self._added is not None and self._added[0] == name):
            return self.properties.get(name)
        found = find_property(self._raw_properties, name.encode("utf-8", "replace"))
        return None if found is None else found.decode("utf-8", "replace")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageExt):
            return NotImplemented
        return _values(self) == _values(other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __reduce__(self) -> tuple[type[MessageExt], tuple[Any, ...]]:
        return MessageExt, _values(self)


def _values(message: MessageExt) -> tuple[Any, ...]:
    values: tuple[Any, ...] = _VALUES(message)
    return values


class UndecodableError(ProtocolError):
    """A record that cannot be decoded: the bytes ``position`` to ``end`` of a run. ``messages``: those before it."""

    def __init__(self, error: ProtocolError, messages: list[MessageExt], raw: bytes, position: int) -> None:
        size: int
        self.queue_id: int
        self.queue_offset: int
        size, self.queue_id, self.queue_offset = _PLACE.unpack_from(raw, position)
        super().__init__(f"The message at offset {self.queue_offset}: {error.message}", remedy=error.remedy)
        self.reason = error.message
        self.messages = messages
        self.position = position
        self.end = position + size


def decode_messages(
    buffer: Buffer,
    broker_name: str = "",
    *,
    check_crc: bool = True,
    decompress: bool = True,
    namespace: Namespace = NO_NAMESPACE,
) -> list[MessageExt]:
    """Decode every message of a run of records; an inner batch yields the messages in it.

    ``namespace`` is removed from the names in them. Without ``decompress``, as servers use it, compressed bodies stay
    as they are, also those of inner batches.

    RunTooLargeError, a ProtocolError, if bodies inflate to more than ``MAX_RUN_BYTES`` together. UndecodableError for a
    whole record with a damaged content.

    Usual records (v1, IPv4 hosts, not compressed, not an inner batch) are checked here; ``view_record`` handles all
    others and finds out what is wrong with a record.
    """
    raw = buffer if isinstance(buffer, bytes) else bytes(buffer)
    messages: list[MessageExt] = []
    add = messages.append
    unpack = _CHECKED.unpack_from
    topic, topic_raw = "", b""
    length = len(raw)
    inflated = 0
    last_head = length - FIXED_SIZE
    position = 0
    while position < length:
        if position <= last_head:
            size, magic, crc, queue_offset, sys_flag, body_length = unpack(raw, position)
            end = position + size
            body_at = position + HEADER_SIZE
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
                        topic = namespace.unwrap(its_topic.decode("utf-8", "replace"))
                    properties = raw[properties_at:end]
                    if namespace:
                        properties = unwrapped_properties(properties, namespace)
                    head = raw[position:body_at]
                    add(LazyMessage.of_record(topic, body, broker_name, queue_offset, head, properties))
                    position = end
                    continue
        try:
            unusual, size, inflated = _decode_unusual(raw, position, broker_name, check_crc, decompress, inflated)
        except RunTooLargeError:
            raise
        except ProtocolError as error:
            if position > last_head or not position < end <= length:
                raise
            raise UndecodableError(error, messages, raw, position) from error
        for message in unusual if namespace else ():
            message.topic = namespace.unwrap(message.topic)
            for name in NAME_PROPERTIES.intersection(message.properties):
                message.properties[name] = namespace.unwrap(message.properties[name])
        messages += unusual
        position += size
    return messages


def damaged_record(buffer: Buffer) -> UndecodableError | None:
    """Return the first record of a run that a columnar decoder cannot decode; None if the run itself is damaged.

    The run may have any decompressed size: its messages are not collected.
    """
    raw = buffer if isinstance(buffer, bytes) else bytes(buffer)
    position = 0
    while position <= len(raw) - FIXED_SIZE:
        try:
            _, size, _ = _decode_unusual(raw, position, "", False, True, 0)
        except ProtocolError as error:
            damaged = UndecodableError(error, [], raw, position)
            return damaged if position < damaged.end <= len(raw) else None
        position += size
    return None


def _decode_unusual(
    raw: bytes, position: int, broker_name: str, check_crc: bool, decompress: bool, inflated: int
) -> tuple[list[MessageExt], int, int]:
    """Return the messages of any record, its size, and the number of bytes decompressed so far."""
    record = view_record(raw, position, check_crc=check_crc)
    message = record.to_message(broker_name, decompress=decompress)
    is_compressed = record.sys_flag & COMPRESSED
    if is_compressed:
        inflated += len(message.body)
        if inflated > MAX_RUN_BYTES:
            raise RunTooLargeError(
                f"The decompressed bodies of a run of {len(raw):,} bytes exceed {MAX_RUN_BYTES:,} bytes.",
                queue_offset=record.queue_offset,
                remedy="Pull fewer messages at a time (pull_batch_size).",
            )
    if record.sys_flag & UNWRAP_MASK != UNWRAP_MASK or (is_compressed and not decompress):
        return [message], record.size, inflated
    sys_flag = message.sys_flag & ~(UNWRAP_MASK | COMPRESSED | COMPRESSION_MASK)
    first = inner_base(bytes(record.properties), record.queue_offset)
    inner = [
        replace(
            message,
            body=bytes(body),
            properties=decode_properties(properties),
            flag=flag,
            queue_offset=queue_offset,
            sys_flag=sys_flag,
            body_crc=0,
        )
        for queue_offset, (flag, body, properties) in enumerate(decode_batch_body(message.body), first)
    ]
    return inner, record.size, inflated
