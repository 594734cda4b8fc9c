"""Printing messages: as a line, as a record or as JSON, with the body in one of several forms.

=======  ==============================================================================================================
auto     text if it is UTF-8 without control characters, else hex
text     text; invalid bytes as \\xNN
json     JSON: indented in a record, on one line in lists; text if it is invalid JSON
hex      offsets, bytes and characters, 16 bytes per line
none     nothing
=======  ==============================================================================================================

On a terminal, control characters are escaped as \\xNN in every form: a message must not control the terminal. In pipes
and files, text is unchanged.

Corresponds to the output of mqadmin's PrintMessageByQueueCommand and QueryMsgByIdSubCommand.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
import unicodedata
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.text import escape_controls
from spark_rocket.common.attributes import pick
from spark_rocket.common.units import count_text, moment_text, size_text
from spark_rocket.protocol.body_text import hex_lines, json_lines, text_of

if TYPE_CHECKING:
    from spark_rocket.model import MessageExt

FORMS = ("auto", "text", "json", "hex", "none")
body_option = click.option(
    "--body", "form", type=click.Choice(FORMS), default="auto", help="format of bodies (auto: text, else hex)"
)
_MAX_HEX_BYTES = 1024  # for "auto"; "hex" has no limit
_MIN_WIDTH = 20


# --- bodies ----------------------------------------------------------------------------------------------------------


def body_text(body: bytes, form: str) -> str:
    if form == "none":
        return ""
    if form == "hex":
        return hex_lines(body)
    text = text_of(body)
    if form == "json":
        if text is not None and (pretty := json_lines(text)) is not None:
            return escape_controls(pretty)
        form = "auto"
    if form == "auto" and text is None:
        left = len(body) - _MAX_HEX_BYTES
        more = f"\n… {count_text(left)} more bytes; --body hex shows all." if left > 0 else ""
        return hex_lines(body[:_MAX_HEX_BYTES]) + more
    return escape_controls(body.decode("utf-8", "backslashreplace"))


def body_line(body: bytes, form: str) -> str:
    """Format a body on one line: line ends as \\n, binary bodies as hex."""
    if form == "none":
        return ""
    if form == "json":
        try:
            return escape_controls(json.dumps(json.loads(body), ensure_ascii=False))
        except ValueError:
            form = "auto"
    text = text_of(body)
    if form == "hex" or (form == "auto" and text is None):
        return body.hex(" ", 4)
    text = body.decode("utf-8", "backslashreplace")
    if any(char in text for char in "\n\r\t"):  # otherwise unchanged, so that JSON can be copied
        text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return escape_controls(text)


# --- messages --------------------------------------------------------------------------------------------------------


def json_of(message: MessageExt, form: str = "auto") -> dict[str, Any]:
    """Return a message for ``--json``: ``body`` (text, or a value with ``--body json``) or ``bodyBase64``."""
    names = "topic broker_name queue_id queue_offset msg_id offset_msg_id tags keys born_timestamp store_timestamp"
    value = pick(message, f"{names} store_size reconsume_times flag sys_flag properties")
    value |= {"bornHost": "{}:{}".format(*message.born_host), "storeHost": "{}:{}".format(*message.store_host)}
    if form == "none":
        return value
    if form == "json":
        try:
            return value | {"body": json.loads(message.body)}
        except ValueError:
            pass
    text = text_of(message.body)
    if text is None or form == "hex":
        return value | {"bodyBase64": base64.b64encode(message.body).decode()}
    return value | {"body": text}


def record(message: MessageExt, form: str = "auto") -> None:
    show.record(
        {
            "Topic": message.topic,
            "Queue": f"{message.broker_name or '?'}/{message.queue_id}, offset {count_text(message.queue_offset)}",
            "Message id": message.msg_id,
            "Offset id": message.offset_msg_id,
            "Tags": message.tags,
            "Keys": message.keys,
            "Born": "{} at {}:{}".format(moment_text(message.born_timestamp), *message.born_host),
            "Stored": "{} at {}:{}".format(moment_text(message.store_timestamp), *message.store_host),
            "Size": size_text(message.store_size),
            "Consumed before": f"{message.reconsume_times} times",
        }
    )
    others = {name: value for name, value in message.properties.items() if name not in ("TAGS", "KEYS", "UNIQ_KEY")}
    if others:
        print()
        show.record(dict(sorted(others.items())), "Properties")
    if form != "none":
        print(f"\nBody, {count_text(len(message.body))} bytes")
        if message.body:
            print(body_text(message.body, form))


def put(message: MessageExt, form: str, is_long: bool, as_json: bool) -> None:
    """Print one of several messages and flush it: as a line of JSON, as a record, or as a line of text."""
    if as_json:
        show.line(json_of(message, form))
    elif is_long:
        record(message, form)
        print(flush=True)
    elif form == "hex":
        print(line(message, "none"))
        print(hex_lines(message.body), flush=True)
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(line(message, form, width), flush=True)


def line(message: MessageExt, form: str = "auto", width: int | None = None) -> str:
    """Format a message on one line: store time, queue, tags, keys, body; cut to a width."""
    when = moment_text(message.store_timestamp)
    where = f"{message.broker_name}/{message.queue_id}@{message.queue_offset}"
    marks = " ".join(f"{sign}{text}" for sign, text in (("#", message.tags), ("!", message.keys)) if text)
    parts = [when, where, escape_controls(marks), body_line(message.body, form)]
    return cut("  ".join(part for part in parts if part), width)


def cut(text: str, width: int | None) -> str:
    """Cut a line to a width in terminal columns: characters of some scripts take two."""
    if width is None or len(text) * 2 <= width:
        return text
    room, width = 0, max(width, _MIN_WIDTH)
    for place, char in enumerate(text):
        room += _columns(char)
        if room > width:
            while room + 1 > width:  # room for the ellipsis
                room -= _columns(text[place])
                place -= 1
            return text[: place + 1] + "…"
    return text


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
