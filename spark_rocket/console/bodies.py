"""A message's body as people read it: text, JSON set out in lines, Avro by its schema, and the bytes.

JSON is set out as it was written: numbers keep their digits, keys their order. Avro needs fastavro (the extra
``avro``); an object container file brings its schema, for others one is given. Whatever a body says of its own size
is not believed: containers are unpacked here, with a bound, and arrays of what takes no bytes are refused.

Pure. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import re
import zlib
from collections.abc import Iterator
from typing import Any

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol import json_codec

MOST_TEXT = 256 << 10
MOST_HEX = 4 << 10
MOST_UNPACKED = 4 << 20
MOST_RECORDS = 50
MOST_DEPTH = 200
PREVIEW = 160

_CONTAINER = b"Obj\x01"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def show(body: bytes, schema: str | None = None) -> dict[str, object]:
    """Every form that it has. ``kind`` says which is the best: ``avro``, ``json``, ``text`` or ``binary``."""
    shown: dict[str, object] = {
        "size": len(body),
        "kind": "binary",
        "text": None,
        "json": None,
        "avro": None,
        "avroProblem": None,
        "hex": hex_lines(body[:MOST_HEX]),
        "hexCut": len(body) > MOST_HEX,
        "textCut": len(body) > MOST_TEXT,
    }
    text = text_of(body)
    if text is not None:
        shown["text"], shown["kind"] = text[:MOST_TEXT], "text"
        if len(body) <= MOST_TEXT and (pretty := json_lines(text)) is not None:
            shown["json"], shown["kind"] = pretty, "json"
    if schema or body.startswith(_CONTAINER):
        try:
            shown["avro"], shown["kind"] = avro_text(body, schema), "avro"
        except ProtocolError as error:
            shown["avroProblem"] = str(error)
    return shown


def preview(body: bytes) -> str:
    """The beginning on one line."""
    text = text_of(body[: PREVIEW * 4])
    if text is None:
        return f"{len(body):,} bytes: {body[:24].hex(' ')}"
    line = " ".join(text.split())
    return line[:PREVIEW] + ("…" if len(line) > PREVIEW or len(body) > PREVIEW * 4 else "")


def text_of(body: bytes) -> str | None:
    """UTF-8 without control characters, or None. A character that is cut off at the end is no mistake."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data" or error.start < len(body) - 3 or not error.start:
            return None
        text = body[: error.start].decode()
    return None if _CONTROL.search(text) else text


def hex_lines(body: bytes) -> str:
    """Offset, sixteen bytes, and what of them is ASCII."""
    lines = []
    for at in range(0, len(body), 16):
        row = body[at : at + 16]
        signs = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {signs}")
    return "\n".join(lines)


# --- JSON -------------------------------------------------------------------------------------------------------


def json_lines(text: str) -> str | None:
    """An object or an array set out in lines, or None if it is none."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        json_codec.loads(text)
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    depth = 0
    last = ""
    for token in _TOKEN.findall(text):
        if token in "}]":
            depth -= 1
            if last not in "{[":
                parts.append("\n" + "  " * depth)
        elif last and last in "{[,":
            parts.append("\n" + "  " * depth)
        parts.append(": " if token == ":" else token)
        if token in "{[":
            depth += 1
            if depth > MOST_DEPTH:
                return None
        last = token
    return "".join(parts)


# --- Avro -------------------------------------------------------------------------------------------------------


def can_avro() -> bool:
    return importlib.util.find_spec("fastavro") is not None


def avro_text(body: bytes, schema: str | None) -> str:
    """The datum, or the first records of a container, as JSON in lines. ProtocolError says why not."""
    if not can_avro():
        raise ProtocolError(
            "Avro needs the package fastavro where the console runs.", remedy="pip install 'spark-rocket[avro]'."
        )
    is_container = body.startswith(_CONTAINER)
    if is_container:
        written, datums = _container(body)
        parsed = _parsed(written)
        values = [value for data, count in datums for value in _read(parsed, data, count)][:MOST_RECORDS]
        shown: Any = values
    else:
        parsed = _parsed(schema or "")
        data = body[10:] if body.startswith(b"\xc3\x01") else body
        shown = _read(parsed, data, 1)[0]
    text = json.dumps(shown, indent=2, ensure_ascii=False, default=_plain)
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "\n…"


def _plain(value: object) -> str:
    return value.hex(" ") if isinstance(value, bytes) else str(value)


def _parsed(schema: str) -> Any:
    fastavro = importlib.import_module("fastavro")
    try:
        raw = json.loads(schema)
        parsed = fastavro.parse_schema(raw)
    except Exception as error:  # a schema that is none makes fastavro raise many things
        raise ProtocolError(
            f"The Avro schema cannot be used: {_reason(error)}.", remedy="Give an Avro schema as JSON."
        ) from None
    named: dict[str, Any] = {}
    if _has_empty_items(parsed, named, 0):
        raise ProtocolError(
            "The Avro schema has arrays or maps of what takes no bytes.",
            remedy="A body of five bytes could have a billion of those: they are not shown.",
        )
    return parsed


def _has_empty_items(schema: Any, named: dict[str, Any], depth: int) -> bool:
    """Whether there is an array or a map of values that take no bytes."""
    if depth > MOST_DEPTH:
        return True
    if isinstance(schema, list):
        return any(_has_empty_items(part, named, depth + 1) for part in schema)
    if not isinstance(schema, dict):
        return False
    if "name" in schema:
        named[schema["name"]] = schema
    kind = schema.get("type")
    if kind == "array":
        return _is_empty(schema["items"], named, 0) or _has_empty_items(schema["items"], named, depth + 1)
    if kind == "map":
        return _has_empty_items(schema["values"], named, depth + 1)
    if kind in ("record", "error"):
        return any(_has_empty_items(field["type"], named, depth + 1) for field in schema["fields"])
    return isinstance(kind, dict | list) and _has_empty_items(kind, named, depth + 1)


def _is_empty(schema: Any, named: dict[str, Any], depth: int) -> bool:
    if isinstance(schema, str):
        return schema == "null" or (schema in named and depth < 20 and _is_empty(named[schema], named, depth + 1))
    if isinstance(schema, list):
        return False  # a union has its branch's number
    kind = schema.get("type")
    if kind == "fixed":
        return bool(schema.get("size") == 0)
    if kind in ("record", "error"):
        return depth >= 20 or all(_is_empty(field["type"], named, depth + 1) for field in schema["fields"])
    if kind in ("array", "map", "enum"):
        return False
    return _is_empty(kind, named, depth + 1) if kind is not None and depth < 20 else False


def _read(schema: Any, data: bytes, count: int) -> list[Any]:
    fastavro = importlib.import_module("fastavro")
    stream = io.BytesIO(data)
    values = []
    for _ in range(min(count, MOST_RECORDS)):
        try:
            values.append(fastavro.schemaless_reader(stream, schema, None))
        except Exception as error:  # bytes that are not the schema's make fastavro raise many things
            raise ProtocolError(
                f"The body is not what the Avro schema says: {_reason(error)}.",
                remedy="Give the schema that it was written with.",
            ) from None
    return values


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _container(body: bytes) -> tuple[str, list[tuple[bytes, int]]]:
    """The schema and the unpacked blocks of an object container file, as many as are shown."""
    reader = _Bytes(body, len(_CONTAINER))
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


def _blocks(reader: _Bytes, codec: str) -> Iterator[tuple[bytes, int]]:
    records = 0
    while not reader.is_at_end and records < MOST_RECORDS:
        count, data = reader.long(), reader.bytes()
        reader.take(16)
        if count <= 0:
            raise reader.cut()
        if codec == "deflate":
            data = _inflated(data)
        elif codec != "null":
            raise ProtocolError(
                f"The Avro container is packed with {codec!r}.",
                remedy="Shown are those packed with deflate or not at all.",
            )
        yield data, count
        records += count


def _inflated(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(-15)
    try:
        plain = unpacker.decompress(data, MOST_UNPACKED)
    except zlib.error:
        raise ProtocolError("A block of the Avro container cannot be unpacked.") from None
    if unpacker.unconsumed_tail:
        raise ProtocolError(
            f"A block of the Avro container unpacks to more than {MOST_UNPACKED >> 20} MiB.",
            remedy="Download the body and read it elsewhere.",
        )
    return plain


class _Bytes:
    """Avro's numbers and byte strings, one after another."""

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
