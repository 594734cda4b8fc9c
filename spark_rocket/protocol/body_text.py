"""Message bodies for people: as text, indented JSON or hex. Used by the command line and the console.

Formatting JSON keeps the digits of numbers and the order of keys. Pure functions.
"""

from __future__ import annotations

import re

from spark_rocket.protocol.wire import json as json_codec

MAX_DEPTH = 200
_HEX_BYTES = 16
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def text_of(body: bytes, *, is_cut: bool = False) -> str | None:
    """Decode UTF-8 without control characters except whitespace; None for other bodies.

    ``is_cut``: it may end within a character, which is dropped.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.reason != "unexpected end of data" or error.start < len(body) - 3 or not error.start:
            return None
        text = body[: error.start].decode()
    return None if _CONTROL.search(text) else text


def hex_lines(body: bytes) -> str:
    """Format bytes like ``hexdump -C``: offsets, bytes and characters."""
    lines = []
    for start in range(0, len(body), _HEX_BYTES):
        part = body[start : start + _HEX_BYTES]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part[:8].hex(' '):<23}  {part[8:].hex(' '):<23}  |{shown}|")
    return "\n".join(lines)


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
