"""The options that say what bodies are, parsed into values. Pure, but for the schema files, read where the driver is.

Their texts travel to the tasks, so executors need not see the files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from spark_rocket.datasource.options.conditions import error
from spark_rocket.datasource.options.parsers import bad_value
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


def _named(kind: type[Enum], option: str, text: str) -> Enum:
    for member in kind:
        if member.value.lower() == text.strip().lower():
            return member
    raise bad_value(option, text, f"one of {', '.join(str(member.value) for member in kind)}")


def body_format(option: str, text: str) -> Enum:
    return _named(BodyFormat, option, text)


def bad_records(option: str, text: str) -> Enum:
    return _named(BadRecords, option, text)


def avro_encoding(option: str, text: str) -> Enum:
    return _named(AvroEncoding, option, text)


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


# Which options need which format; every one of them needs bodyFormat.
_OF_FORMAT = {
    "avroSchema": BodyFormat.AVRO,
    "avroEncoding": BodyFormat.AVRO,
    "protobufDescriptor": BodyFormat.PROTOBUF,
    "protobufMessage": BodyFormat.PROTOBUF,
    "csvDelimiter": BodyFormat.CSV,
    "arrowRowsPerMessage": BodyFormat.ARROW,
}
_REQUIRED = {
    BodyFormat.AVRO: {"avroSchema": "a schema as JSON, or the path of a schema file"},
    BodyFormat.PROTOBUF: {
        "protobufDescriptor": "a file made by protoc --include_imports --descriptor_set_out=…",
        "protobufMessage": "the message's full name, as in shop.Order",
    },
}
_OF_READING = ("metadataColumns", "badRecords", "badRecordColumn", "deadLetterTopic")


def body_settings(
    values: Mapping[str, object], topics: tuple[str, ...] = (), pattern: str | None = None
) -> BodySettings | None:
    """The settings of parsed options, or None without ``bodyFormat``; contradictions are refused."""
    given = values["given"]
    assert isinstance(given, frozenset)
    form = values.get("bodyFormat")
    if not isinstance(form, BodyFormat):
        for name in (*_OF_READING, *_OF_FORMAT):
            if name.lower() in given:
                raise error("BAD_OPTION.NO_EFFECT", option=name, needed="bodyFormat")
        return None
    for name, wanted in _OF_FORMAT.items():
        if name.lower() in given and form is not wanted:
            hint = f": {name} is for bodyFormat={wanted.value}"
            raise error("BAD_OPTION.TOGETHER", option=name, other=f"bodyFormat={form.value}", hint=hint)
    for name, what in _REQUIRED.get(form, {}).items():
        if name.lower() not in given:
            raise error(
                "BAD_OPTION.ALONE",
                option="bodyFormat",
                value=form.value,
                needed=name,
                example=f'.option("{name}", …): {what}',
            )
    bad = values.get("badRecords")
    bad = bad if isinstance(bad, BadRecords) else BadRecords.FAIL
    dead_letter_topic = values.get("deadLetterTopic")
    if (bad is BadRecords.DEAD_LETTER) != (dead_letter_topic is not None):
        raise OptionError(
            "option deadLetterTopic is missing for badRecords=deadLetter."
            if dead_letter_topic is None
            else f"option deadLetterTopic is given together with badRecords={bad.value}.",
            remedy='They go together: .option("badRecords", "deadLetter").option("deadLetterTopic", "orders-bad").',
        )
    if dead_letter_topic is not None and (
        dead_letter_topic in topics or (pattern is not None and re.fullmatch(pattern, str(dead_letter_topic)))
    ):
        raise OptionError(
            f"option deadLetterTopic is {dead_letter_topic}, which is read here too: bad records would come again.",
            remedy="Use a topic that is not read here.",
        )
    if "badrecordcolumn" in given and bad is not BadRecords.COLUMN:
        raise OptionError(
            f"option badRecordColumn is given together with badRecords={bad.value}.",
            remedy="Leave it out, or set badRecords=column.",
        )
    settings: dict[str, object] = {
        "metadata": values.get("metadataColumns", ()),
        "bad_record_column": values.get("badRecordColumn"),
        "avro_schema": values.get("avroSchema"),
        "avro_encoding": values.get("avroEncoding"),
        "protobuf_descriptor": values.get("protobufDescriptor"),
        "protobuf_message": values.get("protobufMessage"),
        "csv_delimiter": values.get("csvDelimiter"),
        "arrow_rows": values.get("arrowRowsPerMessage"),
    }
    kept = {name: value for name, value in settings.items() if value is not None}
    if "metadatacolumns" in given:
        kept["metadata"] = values.get("metadataColumns")
    return BodySettings(
        format=form,
        bad_records=bad,
        dead_letter_topic=str(dead_letter_topic) if dead_letter_topic is not None else None,
        **kept,  # type: ignore[arg-type]
    )
