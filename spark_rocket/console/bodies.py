"""Readable forms of a message body: text, indented JSON, Avro by its schema (in a separate process), and hex.

RocketMQ has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_rocket.console.avro import CONTAINER
from spark_rocket.console.avro_process import decode_avro
from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.body_text import hex_lines, json_lines, text_of

MAX_TEXT_LENGTH = 256 << 10
MAX_HEX_BYTES = 4 << 10
PREVIEW_CHARACTERS = 160


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
    text = text_of(body, is_cut=True)
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
    text = text_of(body[first : first + PREVIEW_CHARACTERS * 4], is_cut=True)
    if text is None:
        return f"{len(body):,} bytes: {body[:24].hex(' ')}"
    line = " ".join(text.split())
    more = "…" if len(line) > PREVIEW_CHARACTERS or len(body) > first + PREVIEW_CHARACTERS * 4 else ""
    return ("…" if first else "") + line[:PREVIEW_CHARACTERS] + more
