"""The property string of a message: ``name 0x01 value`` pairs, separated by 0x02, UTF-8.

Apache's 4.9 clients and brokers write no separator after the last pair, 5.x clients do. Both are accepted; this module
writes none, and adds a missing one when it appends a pair. On disk and in batches the length is a signed 16-bit number,
hence ``MAX_PROPERTIES_LENGTH``. For duplicate names the last pair counts.

Decoding accepts any bytes: invalid UTF-8 becomes U+FFFD, as in Java, because stored messages must stay readable.
``column_properties.py`` decodes many property strings at once.

Corresponds to common.message.MessageDecoder's {messageProperties2String, string2messageProperties} and
common.message.MessageConst.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, AnyStr

from spark_rocket.errors import ProtocolError

PROPERTY_SEPARATOR = b"\x02"
MAX_PROPERTIES_LENGTH = 32_767
PROPERTIES_LIMIT = MAX_PROPERTIES_LENGTH - 512  # for senders: brokers and clients add CLUSTER, WAIT and others

_REMEDY = "Property names and values are text without the characters U+0001 and U+0002."


def join_properties(properties: Mapping[str, str]) -> bytes:
    """Encode properties of a stored message again, unchecked: a separator in a value must not make it undeliverable."""
    return join_text(properties).encode()


def join_text(properties: Mapping[str, str]) -> str:
    """Like ``join_properties``, but return text."""
    return "\x02".join([name + "\x01" + value for name, value in properties.items()])


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode ``properties`` as a property string, in their order."""
    try:
        raw = join_properties(properties)
    except UnicodeEncodeError as error:
        raise ProtocolError(f"A property has invalid Unicode text: {error.reason}.", remedy=_REMEDY) from None
    except TypeError:
        wrong = next((one for one in properties.items() if not all(isinstance(text, str) for text in one)), None)
        if wrong is None:
            raise
        raise ProtocolError(
            f"Property {wrong[0]!r} is not text: its value has type {type(wrong[1]).__name__}.", remedy=_REMEDY
        ) from None
    count = len(properties)
    if count and (raw.count(b"\x01") != count or raw.count(b"\x02") != count - 1):
        names = [name for name, value in properties.items() if {"\x01", "\x02"} & set(f"{name}{value}")]
        raise ProtocolError(f"Property {names[0]!r} contains a separator character.", remedy=_REMEDY)
    return raw


def decode_properties(raw: bytes | bytearray | memoryview | str) -> dict[str, str]:
    """Decode a property string; pieces without 0x01 are skipped."""
    text = raw if isinstance(raw, str) else str(raw, "utf-8", "replace")
    pieces = text.split("\x02")
    if not pieces[-1]:
        pieces.pop()
    try:
        return dict([piece.split("\x01", 1) for piece in pieces])  # a short piece: ValueError
    except ValueError:
        return dict([piece.split("\x01", 1) for piece in pieces if "\x01" in piece])


def find_property(raw: AnyStr, name: AnyStr) -> AnyStr | None:
    """Return the value of one property without decoding the others; the last duplicate counts."""
    one: Any
    two: Any
    one, two = ("\x01", "\x02") if isinstance(raw, str) else (b"\x01", b"\x02")
    start = raw.rfind(two + name + one)
    if start >= 0:
        start += len(name) + 2
    elif raw.startswith(name + one):
        start = len(name) + 1
    else:
        return None
    end = raw.find(two, start)
    return raw[start:] if end < 0 else raw[start:end]


def append_property(raw: bytes, name: str | bytes, value: str | bytes) -> bytes:
    """Return ``raw`` with one more pair at its end."""
    try:
        name = name.encode() if isinstance(name, str) else name
        value = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError as error:
        raise ProtocolError(f"A property has invalid Unicode text: {error.reason}.", remedy=_REMEDY) from None
    if b"\x01" in name or b"\x02" in name or b"\x01" in value or b"\x02" in value:
        raise ProtocolError(f"Property {name!r} contains a separator character.", remedy=_REMEDY)
    if not raw:
        return name + b"\x01" + value
    return b"".join((raw, name, b"\x01", value) if raw[-1] == 2 else (raw, b"\x02", name, b"\x01", value))


def remove_property(raw: bytes, name: bytes) -> bytes:
    """Return ``raw`` without the pairs of that name; the other pairs keep their bytes and order."""
    start = name + b"\x01"
    if start not in raw:
        return raw
    return b"\x02".join([piece for piece in raw.split(b"\x02") if not piece.startswith(start)])
