"""Avro as readable JSON. An object container file contains its schema; for other bodies, the user supplies it.

fastavro (the extra ``avro``) decodes. Sizes in a body or a schema are not trusted: containers are decompressed here
with a limit, and ``protocol.avro_shape`` refuses schemas that could crash the process. ``avro_process`` limits the
remaining risks (a schema of forty lines can have a billion values).

RocketMQ has no counterpart.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import zlib
from collections.abc import Iterator
from typing import Any

from spark_rocket.common.extras import missing_extra
from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.avro_shape import check_nesting, measure

MAX_TEXT_LENGTH = 256 << 10
MAX_UNPACKED_BYTES = 4 << 20
MAX_RECORDS = 50
CONTAINER = b"Obj\x01"


def can_avro() -> bool:
    return importlib.util.find_spec("fastavro") is not None


def check_avro() -> None:
    """MissingExtraError if fastavro is not installed."""
    if not can_avro():
        raise missing_extra("Decoding Avro", "fastavro")


def avro_text(body: bytes, schema: str | None) -> str:
    """Decode a datum, or the first records of a container, as indented JSON. ProtocolError if it is invalid."""
    check_avro()
    is_container = body.startswith(CONTAINER)
    if is_container:
        written, datums = _container(body)
        parsed = _parsed(written)
        values = [value for data, count in datums for value in _read(parsed, data, count)][:MAX_RECORDS]
        shown: Any = values
    else:
        parsed = _parsed(schema or "")
        data = body[10:] if body.startswith(b"\xc3\x01") else body
        shown = _read(parsed, data, 1)[0]
    text = json.dumps(shown, indent=2, ensure_ascii=False, default=_plain)
    return text if len(text) <= MAX_TEXT_LENGTH else text[:MAX_TEXT_LENGTH] + "\n…"


def _plain(value: object) -> str:
    return value.hex(" ") if isinstance(value, bytes) else str(value)


def _parsed(schema: str) -> Any:
    fastavro = importlib.import_module("fastavro")
    try:
        raw = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise _unusable(_reason(error)) from None
    check_nesting(raw)
    try:
        parsed = fastavro.parse_schema(raw)
        measure(parsed)
    except (ProtocolError, MemoryError):
        raise
    except Exception as error:  # fastavro raises various exceptions for a malformed schema
        raise _unusable(_reason(error)) from None
    return parsed


def _unusable(why: str) -> ProtocolError:
    return ProtocolError(f"Invalid Avro schema: {why}.", remedy="Give an Avro schema as JSON.")


def _read(schema: Any, data: bytes, count: int) -> list[Any]:
    fastavro = importlib.import_module("fastavro")
    stream = io.BytesIO(data)
    values = []
    for _ in range(min(count, MAX_RECORDS)):
        try:
            values.append(fastavro.schemaless_reader(stream, schema, None))
        except MemoryError:
            raise
        except Exception as error:  # fastavro raises various exceptions for malformed data
            raise ProtocolError(
                f"The body does not match the Avro schema: {_reason(error)}.",
                remedy="Give the schema that the body was written with.",
            ) from None
    return values


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _container(body: bytes) -> tuple[str, list[tuple[bytes, int]]]:
    """Return the schema and the first decompressed blocks of an object container file."""
    reader = _AvroReader(body, len(CONTAINER))
    meta: dict[str, bytes] = {}
    while (count := reader.long()) != 0:
        if count < 0:
            reader.long()
            count = -count
        if count > 1000:
            raise reader.cut()
        for _ in range(count):
            name = reader.bytes().decode("utf-8", "replace")
            meta[name] = reader.bytes()
    reader.take(16)
    codec = meta.get("avro.codec", b"null").decode("utf-8", "replace")
    return meta.get("avro.schema", b"").decode("utf-8", "replace"), list(_blocks(reader, codec))


def _blocks(reader: _AvroReader, codec: str) -> Iterator[tuple[bytes, int]]:
    records = 0
    while not reader.is_at_end and records < MAX_RECORDS:
        count, data = reader.long(), reader.bytes()
        reader.take(16)
        if count <= 0:
            raise reader.cut()
        if codec == "deflate":
            data = _inflated(data)
        elif codec != "null":
            raise ProtocolError(
                f"Unsupported codec {codec!r} of the Avro container.",
                remedy="Supported codecs: null and deflate.",
            )
        yield data, count
        records += count


def _inflated(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(-15)
    try:
        plain = unpacker.decompress(data, MAX_UNPACKED_BYTES)
    except zlib.error:
        raise ProtocolError("A block of the Avro container cannot be decompressed.") from None
    if unpacker.unconsumed_tail:
        raise ProtocolError(
            f"A block of the Avro container is larger than {MAX_UNPACKED_BYTES >> 20} MiB decompressed.",
            remedy="Download the body and read it elsewhere.",
        )
    return plain


class _AvroReader:
    """Reads Avro's numbers and byte strings."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._data)

    def cut(self) -> ProtocolError:
        return ProtocolError(f"The Avro container is damaged at byte {self._at}.")

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self._data) - self._at:
            raise self.cut()
        self._at += count
        return self._data[self._at - count : self._at]

    def long(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > 63:
                raise self.cut()

    def bytes(self) -> bytes:
        return self.take(self.long())
