"""A message out of a run of records that is read only as far as somebody looks.

A consumer is given many messages and often looks at their bodies only. What that takes is read at once; the numbers at
the head of a record, and its property string, are kept as they are until they are asked for. ``record.py`` has the byte
table, checks records and makes these messages.

Thread-safety: none, as of any message: it belongs to one thread at a time. No RocketMQ class corresponds to it.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from spark_rocket.model import MessageExt
from spark_rocket.protocol.ids import unpack_host
from spark_rocket.protocol.record.properties import decode_properties, find_property

_HEAD = struct.Struct(">IIIiiqqiq8sq8siqi")  # up to and including the body's length, with IPv4 hosts
# Where in it a field is; offset_msg_id has its second half there.
_HEAD_FIELDS = {
    "store_size": 0,
    "body_crc": 2,
    "queue_id": 3,
    "flag": 4,
    "physical_offset": 6,
    "offset_msg_id": 6,
    "sys_flag": 7,
    "born_timestamp": 8,
    "born_host": 9,
    "store_timestamp": 10,
    "store_host": 11,
    "reconsume_times": 12,
    "prepared_transaction_offset": 13,
}
_VALUES = attrgetter(*(field.name for field in fields(MessageExt)))


class LazyMessage(MessageExt):
    """A message that is read as far as it is asked for: its topic, body and place in its queue are; the numbers at its
    record's head, and its properties, when somebody wants them.

    A value as any other ``MessageExt``: equal to one with the same fields, copied and pickled as one. It holds copies,
    not the run that it came in. Checked before it is made: nothing that is read later can fail.
    """

    __slots__ = ("_added", "_head", "_properties", "_raw_properties")

    _head: bytes | tuple[Any, ...]
    _raw_properties: bytes
    _properties: dict[str, str] | None  # none: not read yet
    _added: tuple[str, str] | None  # a property more, while they are not read

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A field of the head whose slot nobody has filled yet."""
            index = _HEAD_FIELDS.get(name)
            if index is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            head = self._head
            if type(head) is bytes:
                head = self._head = _HEAD.unpack(head)
            value = head[index]
            if name == "offset_msg_id":
                value = f"{head[11].hex().upper()}{value & 0xFFFFFFFFFFFFFFFF:016X}"
            elif type(value) is bytes:
                value = _host_of(value)
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

    __hash__ = None  # type: ignore[assignment]  # it can change, as every message

    def __reduce__(self) -> tuple[type[MessageExt], tuple[Any, ...]]:
        return MessageExt, _values(self)


def _values(message: MessageExt) -> tuple[Any, ...]:
    values: tuple[Any, ...] = _VALUES(message)
    return values


@lru_cache(1024)
def _host_of(raw: bytes) -> tuple[str, int]:
    return unpack_host(raw)
