"""The options for message bodies, parsed into values. Pure, except that the driver reads the schema files.

Tasks receive the files' contents, so executors need no access to the files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from spark_rocket.common.files import read_file
from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.parsers import Values, bad_value, matching
from spark_rocket.errors import OptionError
from spark_rocket.protocol.namespace import NO_NAMESPACE, Namespace


class BodyFormat(Enum):
    """The format of message bodies."""

    JSON = "json"
    CSV = "csv"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    ARROW = "arrow"
    TEXT = "text"
    VARIANT = "variant"


class BadRecords(Enum):
    """What to do with a message whose body cannot be decoded."""

    FAIL = "fail"
    NULL = "null"
    COLUMN = "column"
    DROP = "drop"
    DEAD_LETTER = "deadLetter"


class AvroEncoding(Enum):
    """The header of Avro bodies."""

    AUTO = "auto"
    RAW = "raw"
    SINGLE = "single"
    CONFLUENT = "confluent"


class EpochUnit(Enum):
    """What a number in a column of type date or timestamp counts, since 1970."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"
    DAYS = "days"


@dataclass(frozen=True, eq=False, repr=False)
class EpochUnits(FrozenValue):
    """The units of columns of type date or timestamp."""

    default: tuple[EpochUnit, ...] = ()
    """At most one for timestamps, and days for dates."""
    columns: tuple[tuple[str, EpochUnit], ...] = ()
    """Pairs of a column, or the end of a member's path, and its unit."""


NO_UNITS = EpochUnits()


@dataclass(frozen=True, eq=False, repr=False)
class BodySettings(FrozenValue):
    """All body options, for reads and writes."""

    format: BodyFormat
    metadata: tuple[tuple[str, str], ...] | None = ()
    """Pairs of a message's column and its name in the rows; None selects all columns."""
    bad_records: BadRecords = BadRecords.FAIL
    bad_record_column: str = "_bad_record"
    dead_letter_topic: str | None = None
    avro_schema: str = ""
    avro_encoding: AvroEncoding = AvroEncoding.AUTO
    protobuf_descriptor: bytes = b""
    protobuf_message: str = ""
    csv_delimiter: str = ","
    csv_escape: str = "\\"
    time_zone: str | None = None
    """The zone of times without one; None: ``default_zone``."""
    default_zone: str = "UTC"
    """Spark's session has another one (``batch_reader.py``)."""
    json_quoted_values: bool = False
    json_epoch_units: EpochUnits = NO_UNITS
    arrow_rows: int = 1000


def metadata_columns(option: str, text: str) -> tuple[tuple[str, str], ...] | None:
    """Parse ``queueOffset, storeTimestamp as stored_at``, or ``*``."""
    if text.strip() == "*":
        return None
    pairs = []
    for part in text.split(","):
        match = re.fullmatch(r"(\w+)(?:\s+as\s+(\S.*))?", part.strip(), re.IGNORECASE)
        if match is None:
            raise bad_value(option, text, "columns such as `queueOffset, storeTimestamp as stored_at`, or *")
        pairs.append((match[1], (match[2] or match[1]).strip("`")))
    return tuple(pairs)


def delimiter(option: str, text: str) -> str:
    text = {"\\t": "\t", "tab": "\t"}.get(text, text)
    if len(text) != 1 or not text.isascii() or text in '"\r\n\0':
        raise bad_value(option, text, "one ASCII character, or `tab`")
    return text


def escape_character(option: str, text: str) -> str:
    if len(text) != 1 or not text.isascii() or text in "\r\n\0":
        raise bad_value(option, text, 'one ASCII character, such as \\ or "')
    return text


def time_zone(option: str, text: str) -> str:
    from spark_rocket.datasource.time_zones import zone_of

    try:
        return zone_of(text).name
    except ValueError:
        raise bad_value(option, text, "a time zone such as Asia/Shanghai, +08:00 or UTC") from None


def epoch_units(option: str, text: str) -> EpochUnits:
    """Parse ``ms, days, after.paid_at=us``."""
    default: list[EpochUnit] = []
    columns: dict[str, EpochUnit] = {}
    for part in text.split(","):
        name, mark, unit = (piece.strip() for piece in part.rpartition("="))
        known = next((one for one in EpochUnit if one.value == unit), None)
        is_repeated = (
            name in columns
            if mark
            else known is not None and any((known is EpochUnit.DAYS) == (one is EpochUnit.DAYS) for one in default)
        )
        if known is None or is_repeated or bool(mark) != bool(name):
            raise bad_value(
                option, text, "units (s, ms, us, ns, days), each once or for a column: ms, days, paid_at=us"
            )
        if mark:
            columns[name] = known
        else:
            default.append(known)
    return EpochUnits(tuple(default), tuple(columns.items()))


def _read(option: str, path: str) -> bytes:
    try:
        return read_file(Path(path).expanduser())
    except (OSError, ValueError, RuntimeError) as problem:  # also a NUL character, and the home of an unknown user
        raise OptionError(
            f"option {option}: {path} cannot be read: {getattr(problem, 'strerror', None) or problem}.",
            remedy="The driver reads the file: use a path that exists on the driver.",
        ) from None


def avro_schema(option: str, text: str) -> str:
    """Return the schema text. A literal begins like JSON; any other value is a path."""
    if text.lstrip()[:1] in ("{", "[", '"'):
        return text
    try:
        return _read(option, text).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OptionError(f"option {option}: {text} is not UTF-8.", remedy="Name a schema file (.avsc).") from None


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
    "csvEscape": "csv_escape",
    "timeZone": "time_zone",
    "jsonQuotedValues": "json_quoted_values",
    "jsonEpochUnits": "json_epoch_units",
    "arrowRowsPerMessage": "arrow_rows",
}
_REQUIRED = {
    BodyFormat.AVRO: {"avroSchema": "a schema as JSON, or the path of a schema file"},
    BodyFormat.PROTOBUF: {
        "protobufDescriptor": "a file written by protoc --include_imports --descriptor_set_out=…",
        "protobufMessage": "the message's full name, such as shop.Order",
    },
}


def body_settings(
    values: Values,
    topics: tuple[str, ...] = (),
    pattern: str | None = None,
    namespace: Namespace = NO_NAMESPACE,
) -> BodySettings | None:
    """Return the settings of parsed options, or None without ``bodyFormat``. Raises OptionError on contradictions."""
    form: BodyFormat | None = values.get("bodyFormat")
    if form is None:
        return None
    for name, what in _REQUIRED.get(form, {}).items():
        if name not in values:
            example = f'.option("{name}", …): {what}'
            raise error("BAD_OPTION.REQUIRES", option="bodyFormat", value=form.value, needed=name, example=example)
    bad: BadRecords = values.get("badRecords", BadRecords.FAIL)
    dead_letters: str | None = values.get("deadLetterTopic")
    is_read = dead_letters is not None and (
        dead_letters in topics or (pattern is not None and bool(matching(pattern, [dead_letters], namespace)))
    )
    _check_dead_letters(bad, dead_letters, is_read=is_read)
    if "badRecordColumn" in values.given and bad is not BadRecords.COLUMN:
        raise OptionError(
            f"option badRecordColumn requires badRecords=column, not badRecords={bad.value}.",
            remedy="Remove it, or set badRecords=column.",
        )
    fields = {field: values[option] for option, field in _FIELDS.items() if option in values}
    settings = BodySettings(form, bad_records=bad, **fields)
    if settings.csv_delimiter == settings.csv_escape:
        raise OptionError(
            f"option csvDelimiter is {settings.csv_delimiter!r}, which is also the value of csvEscape.",
            remedy="Set csvEscape to another character.",
        )
    return settings


def _check_dead_letters(bad: BadRecords, topic: str | None, *, is_read: bool) -> None:
    if (bad is BadRecords.DEAD_LETTER) != (topic is not None):
        raise OptionError(
            "option deadLetterTopic is missing for badRecords=deadLetter."
            if topic is None
            else f"option deadLetterTopic requires badRecords=deadLetter, not badRecords={bad.value}.",
            remedy='Set both: .option("badRecords", "deadLetter").option("deadLetterTopic", "orders-bad").',
        )
    if is_read:
        raise OptionError(
            f"option deadLetterTopic is {topic}, which this query also reads: it would read its bad records again.",
            remedy="Use a topic that the query does not read.",
        )
