"""The options that say what bodies are, parsed into values. Pure, but for the schema files, read where the driver is.

Their texts travel to the tasks, so executors need not see the files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.parsers import Values, bad_value
from spark_rocket.errors import OptionError


class BodyFormat(Enum):
    """What bodies are."""

    JSON = "json"
    CSV = "csv"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    ARROW = "arrow"
    TEXT = "text"
    VARIANT = "variant"


class BadRecords(Enum):
    """What becomes of a message whose body cannot be decoded."""

    FAIL = "fail"
    NULL = "null"
    COLUMN = "column"
    DROP = "drop"
    DEAD_LETTER = "deadLetter"


class AvroEncoding(Enum):
    """Whether Avro's bodies begin with the single-object header."""

    AUTO = "auto"
    RAW = "raw"
    SINGLE = "single"


@dataclass(frozen=True)
class BodySettings:
    """All of them, for reads and writes."""

    format: BodyFormat
    metadata: tuple[tuple[str, str], ...] | None = ()
    """Pairs of a message's column and its name in the rows; None is all of them."""
    bad_records: BadRecords = BadRecords.FAIL
    bad_record_column: str = "_bad_record"
    dead_letter_topic: str | None = None
    avro_schema: str = ""
    avro_encoding: AvroEncoding = AvroEncoding.AUTO
    protobuf_descriptor: bytes = b""
    protobuf_message: str = ""
    csv_delimiter: str = ","
    arrow_rows: int = 1000


def metadata_columns(option: str, text: str) -> tuple[tuple[str, str], ...] | None:
    """``queueOffset, storeTimestamp as stored_at``, or ``*``."""
    if text.strip() == "*":
        return None
    pairs = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)(?:\s+as\s+(\S.*?))?\s*", part, re.IGNORECASE)
        if match is None:
            raise bad_value(option, text, "columns as in `queueOffset, storeTimestamp as stored_at`, or *")
        pairs.append((match[1], (match[2] or match[1]).strip("`")))
    return tuple(pairs)


def delimiter(option: str, text: str) -> str:
    text = {"\\t": "\t", "tab": "\t"}.get(text, text)
    if len(text) != 1 or not text.isascii() or text in '"\r\n\0':
        raise bad_value(option, text, "one ASCII character, or `tab`")
    return text


def _read(option: str, path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as problem:
        raise OptionError(
            f"option {option}: {path} cannot be read: {problem.strerror or problem}.",
            remedy="It is read on the driver: give a path that the driver sees.",
        ) from None


def avro_schema(option: str, text: str) -> str:
    """A literal begins as JSON does; all else is a path."""
    if text.lstrip()[:1] in ("{", "[", '"'):
        return text
    try:
        return _read(option, text).decode()
    except UnicodeDecodeError:
        raise OptionError(f"option {option}: {text} is no text.", remedy="Name a schema file (.avsc).") from None


def descriptor_file(option: str, text: str) -> bytes:
    return _read(option, text)


_FIELDS = {
    "metadataColumns": "metadata",
    "badRecordColumn": "bad_record_column",
    "deadLetterTopic": "dead_letter_topic",
    "avroSchema": "avro_schema",
    "avroEncoding": "avro_encoding",
    "protobufDescriptor": "protobuf_descriptor",
    "protobufMessage": "protobuf_message",
    "csvDelimiter": "csv_delimiter",
    "arrowRowsPerMessage": "arrow_rows",
}
_REQUIRED = {
    BodyFormat.AVRO: {"avroSchema": "a schema as JSON, or the path of a schema file"},
    BodyFormat.PROTOBUF: {
        "protobufDescriptor": "a file made by protoc --include_imports --descriptor_set_out=…",
        "protobufMessage": "the message's full name, as in shop.Order",
    },
}


def body_settings(values: Values, topics: tuple[str, ...] = (), pattern: str | None = None) -> BodySettings | None:
    """The settings of parsed options, or None without ``bodyFormat``; contradictions are refused."""
    form: BodyFormat | None = values.get("bodyFormat")
    if form is None:
        return None
    for name, what in _REQUIRED.get(form, {}).items():
        if name not in values:
            example = f'.option("{name}", …): {what}'
            raise error("BAD_OPTION.ALONE", option="bodyFormat", value=form.value, needed=name, example=example)
    bad: BadRecords = values.get("badRecords", BadRecords.FAIL)
    _check_dead_letters(bad, values.get("deadLetterTopic"), topics, pattern)
    if values.is_given("badRecordColumn") and bad is not BadRecords.COLUMN:
        raise OptionError(
            f"option badRecordColumn is given together with badRecords={bad.value}.",
            remedy="Leave it out, or set badRecords=column.",
        )
    fields = {field: values[option] for option, field in _FIELDS.items() if option in values}
    return BodySettings(form, bad_records=bad, **fields)


def _check_dead_letters(bad: BadRecords, topic: str | None, topics: tuple[str, ...], pattern: str | None) -> None:
    if (bad is BadRecords.DEAD_LETTER) != (topic is not None):
        raise OptionError(
            "option deadLetterTopic is missing for badRecords=deadLetter."
            if topic is None
            else f"option deadLetterTopic is given together with badRecords={bad.value}.",
            remedy='They go together: .option("badRecords", "deadLetter").option("deadLetterTopic", "orders-bad").',
        )
    if topic is not None and (topic in topics or (pattern is not None and re.fullmatch(pattern, topic))):
        raise OptionError(
            f"option deadLetterTopic is {topic}, which is read here too: bad records would come again.",
            remedy="Use a topic that is not read here.",
        )
