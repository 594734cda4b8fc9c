"""Readable forms of a message body: text, indented JSON, Avro by its schema, and hex.

Formatting JSON keeps the digits of numbers and the order of keys. :mod:`spark_rocket.console.avro` decodes Avro in a
separate process.

Thread-safety: pure functions. RocketMQ has no counterpart.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from spark_rocket.console.avro import CONTAINER
from spark_rocket.console.avro_process import decode_avro
from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire import json as json_codec

MAX_TEXT_LENGTH = 256 << 10
MAX_HEX_BYTES = 4 << 10
MAX_DEPTH = 200
PREVIEW_CHARACTERS = 160

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def show(
    body: bytes, schema: str | None = None, *, avro_text: Callable[[bytes, str | None], str] = decode_avro
) -> dict[str, object]:
    """Return all forms of a body. ``kind`` names the most specific one: ``avro``, ``json``, ``text`` or ``binary``."""
    shown: dict[str, object] = {
        "size": len(body),
        "kind": "binary",
        "text": None,
        "json": None,
        "avro": None,
        "avroProblem": None,
        "hex": hex_lines(body[:MAX_HEX_BYTES]),
        "hexCut": len(body) > MAX_HEX_BYTES,
        "textCut": len(body) > MAX_TEXT_LENGTH,
    }
    text = text_of(body)
    if text is not None:
        shown["text"], shown["kind"] = text[:MAX_TEXT_LENGTH], "text"
        if len(body) <= MAX_TEXT_LENGTH and (pretty := json_lines(text)) is not None:
            shown["json"], shown["kind"] = pretty, "json"
    if schema or body.startswith(CONTAINER):
        try:
            shown["avro"], shown["kind"] = avro_text(body, schema), "avro"
        except ProtocolError as error:
            shown["avroProblem"] = str(error)
    return shown


def preview(body: bytes, at: int = 0) -> str:
    """Return the beginning of a body on one line; if the position ``at`` is farther on, the part around it."""
    first = max(at - PREVIEW_CHARACTERS // 4, 0) if at > PREVIEW_CHARACTERS // 2 else 0
    farthest = max(first - 3, 0)
    while first > farthest and body[first] & 0xC0 == 0x80:  # within a character, which has at most 4 bytes
        first -= 1
    text = text_of(body[first : first + PREVIEW_CHARACTERS * 4])
    if text is None:
        return f"{len(body):,} bytes: {body[:24].hex(' ')}"
    line = " ".join(text.split())
    more = "…" if len(line) > PREVIEW_CHARACTERS or len(body) > first + PREVIEW_CHARACTERS * 4 else ""
    return ("…" if first else "") + line[:PREVIEW_CHARACTERS] + more


def text_of(body: bytes) -> str | None:
    """Decode UTF-8 without control characters; None for other bodies. A truncated last character is dropped."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data" or error.start < len(body) - 3 or not error.start:
            return None
        text = body[: error.start].decode()
    return None if _CONTROL.search(text) else text


def hex_lines(body: bytes) -> str:
    """Format lines of offset, sixteen bytes, and their ASCII characters."""
    lines = []
    for at in range(0, len(body), 16):
        row = body[at : at + 16]
        signs = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {signs}")
    return "\n".join(lines)


# --- JSON -------------------------------------------------------------------------------------------------------


def json_lines(text: str) -> str | None:
    """Indent a JSON object or array; None for other text."""
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
            if depth > MAX_DEPTH:
                return None
        last = token
    return "".join(parts)
