"""Avro bodies, by fastavro (the extra ``avro``): raw datums, or single objects with their schema's fingerprint.

=======  ========================================================================
bytes    a single object
=======  ========================================================================
0, 1     C3 01
2 … 9    CRC-64-AVRO of the schema's canonical form, little endian
10 …     the datum
=======  ========================================================================

=======  ========================================================================
bytes    a datum with the header of a schema registry (``avroEncoding=confluent``)
=======  ========================================================================
0        00
1 … 4    the schema's ID, big endian. It is not checked: only the registry knows it
5 …      the datum
=======  ========================================================================

Types are those of Spark's ``from_avro``. Rejected are unions of several types (except numbers and null), recursive
schemas, and arrays of values without bytes (a body of five bytes could have a billion of them). Dates and times of any
year are read, as numbers that Arrow supports. A negative enum index is invalid; in a union fastavro counts from the
end. Belongs to one task.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from spark_rocket.common.extras import pip_install
from spark_rocket.datasource.bodies.decoding import BAD, BodyError, library_text, reason
from spark_rocket.datasource.column_types import TIMESTAMP, TIMESTAMP_NTZ, list_of, type_name
from spark_rocket.datasource.options.bodies import AvroEncoding, BodySettings
from spark_rocket.errors import OptionError, ProtocolError, SchemaError, StateError
from spark_rocket.protocol.avro_shape import check_nesting, measure

_HEADER = b"\xc3\x01"
_REGISTRY_HEADER = 5  # bytes
_MAX_VALUES = 20_000  # columns and fields; the fields of a named type count at each use
_REMEDY = "Read the body as binary, and use from_avro in the query."
_PLAIN: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "local-timestamp-millis"): TIMESTAMP_NTZ,
    ("long", "local-timestamp-micros"): TIMESTAMP_NTZ,
    ("string", "uuid"): pa.string(),
}
# Fastavro converts these to times of day and UUIDs, which Spark's Avro reader returns as numbers and strings.
_IGNORED = ("time-millis", "time-micros", "uuid")
_MAX_DIGITS = 38
# The type names of numbers for fastavro's reader, chosen so that no other schema uses them.
_SYMBOL, _MILLIS = "spark-rocket-symbol", "spark-rocket-millis"


class AvroSchema:
    """A parsed schema, its columns, and its single-object header."""

    def __init__(self, settings: BodySettings) -> None:
        try:
            import fastavro
            import fastavro.read
            import fastavro.schema
        except ImportError:
            raise StateError(
                "bodyFormat=avro requires the package fastavro, which is not installed.",
                remedy=f"Run {pip_install('avro')} on the driver and on the executors.",
            ) from None
        self._library = fastavro
        self._encoding = settings.avro_encoding
        try:
            raw = json.loads(settings.avro_schema)
            check_nesting(raw)
            self.parsed: Any = fastavro.parse_schema(_without_ignored(raw))
            shape = measure(self.parsed)
            form = fastavro.schema.to_parsing_canonical_form(self.parsed)
            digest = fastavro.schema.fingerprint(form, "CRC-64-AVRO")
        except (*BAD, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
            raise OptionError(
                f"option avroSchema is not an Avro schema: {library_text(error)}.",
                remedy="Use JSON, or the path of a file.",
            ) from None
        except ProtocolError as error:
            raise SchemaError(error.message, remedy=_REMEDY) from None
        if shape.values > _MAX_VALUES:
            raise SchemaError(
                f"The Avro schema has {shape.values:,} columns and fields, above the limit of {_MAX_VALUES:,}.",
                remedy=_REMEDY,
            )
        self.header = _HEADER + bytes.fromhex(digest)
        fastavro.read.LOGICAL_READERS[f"int-{_SYMBOL}"] = _symbol
        fastavro.read.LOGICAL_READERS[f"long-{_MILLIS}"] = _micros
        self._reading = _for_reading(self.parsed)
        self._named: dict[str, Any] = {}
        _collect(self.parsed, self._named)
        kind = self._column_type(self.parsed)
        if not pa.types.is_struct(kind):
            raise OptionError(
                f"option avroSchema describes {type_name(kind)}, not a record.", remedy="Bodies must be records."
            )
        self.columns = pa.schema(list(kind))
        self._to_write = _map_converter(kind) or _same

    def _column_type(self, schema: Any) -> pa.DataType:
        if isinstance(schema, list):
            rest = [branch for branch in schema if _type_name(branch) != "null"]
            if len(rest) == 1:
                return self._column_type(rest[0])
            names = {_type_name(branch) for branch in rest}
            if names and names <= {"int", "long"}:
                return pa.int64()
            if names and names <= {"float", "double"}:
                return pa.float64()
            if not rest:
                return pa.null()
            raise SchemaError(
                f"the Avro schema has a union of {', '.join(sorted(names))}, which is not a column type.",
                remedy=_REMEDY,
            )
        if isinstance(schema, str):
            if schema in _PLAIN:
                return _PLAIN[schema]
            return self._column_type(self._named[schema])
        kind, logical = schema["type"], schema.get("logicalType", "")
        if kind in ("record", "error"):
            return pa.struct([(field["name"], self._column_type(field["type"])) for field in schema["fields"]])
        if kind == "array":
            return list_of(self._column_type(schema["items"]))
        if kind == "map":
            return pa.map_(pa.string(), self._column_type(schema["values"]))
        if logical == "decimal" and kind in ("bytes", "fixed"):
            if schema["precision"] > _MAX_DIGITS:
                raise SchemaError(
                    f"the Avro schema has a decimal of {schema['precision']} digits, above Spark's {_MAX_DIGITS}.",
                    remedy="Read the body as binary, and decode it in the query.",
                )
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if isinstance(kind, (dict, list)):
            return self._column_type(kind)
        return _LOGICAL.get((kind, logical)) or self._column_type(kind)

    def read(self, body: bytes) -> dict[str, Any]:
        """Decode a body; all of its bytes must be used."""
        has_registry_header = len(body) >= _REGISTRY_HEADER and not body[0]
        start = 0
        if self._encoding is AvroEncoding.CONFLUENT:
            if not has_registry_header:
                raise BodyError(f"it begins with {body[:5].hex() or 'nothing'}, but schema registry headers with 00")
            start = _REGISTRY_HEADER
        elif self._encoding is not AvroEncoding.RAW and body[:10] == self.header:
            start = 10
        try:
            if self._encoding is AvroEncoding.SINGLE or (self._encoding is AvroEncoding.AUTO and body[:2] == _HEADER):
                self._check_single(body)
            return self._datum(body, start)
        except BAD as error:
            if not has_registry_header:
                raise
            number = int.from_bytes(body[1:_REGISTRY_HEADER], "big")
            if self._encoding is AvroEncoding.CONFLUENT:
                hint = f"does it have avroSchema? The schema registry's ID of its schema is {number}"
            else:
                hint = f"if it has the header of a schema registry (schema {number}), set avroEncoding=confluent"
            raise BodyError(f"{reason(error)}; {hint}") from None

    def _check_single(self, body: bytes) -> None:
        if body[:10] != self.header:
            raise BodyError(
                f"it begins with {body[:10].hex()}, but single objects of avroSchema with {self.header.hex()}"
                + (" (raw datums need avroEncoding=raw)" if self._encoding is AvroEncoding.AUTO else "")
            )

    def _datum(self, body: bytes, start: int) -> dict[str, Any]:
        file = io.BytesIO(body)
        file.seek(start)
        try:
            value: Any = self._library.schemaless_reader(file, self._reading, None)
        except (BodyError, UnicodeDecodeError, RecursionError):
            raise
        except EOFError:
            raise BodyError("the datum ends too early") from None
        except BAD:
            raise BodyError(f"the datum is invalid before byte {file.tell()}") from None
        if file.tell() != len(body):
            raise BodyError(f"the datum ends at byte {file.tell()} of {len(body)}")
        return value  # type: ignore[no-any-return]

    def write(self, row: dict[str, Any]) -> bytes:
        """Encode a row as a single object, or as a raw datum if ``avroEncoding=raw``."""
        file = io.BytesIO()
        if self._encoding is not AvroEncoding.RAW:
            file.write(self.header)
        self._library.schemaless_writer(file, self.parsed, self._to_write(row), strict_allow_default=True)
        return file.getvalue()


def _same(value: Any) -> Any:
    return value


def _map_converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function that converts lists of pairs to dicts, as which Arrow returns maps; None if a type has none.

    The type tells an empty map from an empty list.
    """
    if pa.types.is_struct(kind):
        members = {item.name: found for item in kind if (found := _map_converter(item.type))}
        if not members:
            return None
        return lambda value: (
            value and value | {name: convert(value[name]) for name, convert in members.items() if name in value}
        )
    if pa.types.is_list(kind):
        item = _map_converter(kind.value_type)
        return item and (lambda value: value and [item(one) for one in value])
    if pa.types.is_map(kind):
        held = _map_converter(kind.item_type) or _same
        return lambda value: None if value is None else {name: held(one) for name, one in dict(value).items()}
    return None


def _without_ignored(schema: Any) -> Any:
    """Return a schema without the logical types that Spark's Avro reader ignores, such as invalid ones."""
    if isinstance(schema, list):
        return [_without_ignored(branch) for branch in schema]
    if isinstance(schema, dict):
        logical = schema.get("logicalType")
        ignored = logical in _IGNORED or (logical == "decimal" and not _is_decimal(schema))
        return {key: _without_ignored(value) for key, value in schema.items() if not (key == "logicalType" and ignored)}
    return schema


def _is_decimal(schema: dict[str, Any]) -> bool:
    """Return whether a decimal has the attributes that the specification requires. Otherwise its type is bytes."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    return type(precision) is int and type(scale) is int and 0 <= scale <= precision > 0


def _for_reading(schema: Any) -> Any:
    """Return a schema that reads dates and times as Arrow's numbers, and enums with their own reader."""
    if isinstance(schema, list):
        return [_for_reading(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    logical = schema.get("logicalType", "")
    if schema["type"] == "enum":
        return {"type": "int", "logicalType": _SYMBOL, "symbols": schema["symbols"]}
    if schema["type"] in ("int", "long") and (schema["type"], logical) in _LOGICAL:
        return {"type": schema["type"]} | ({"logicalType": _MILLIS} if logical.endswith("-millis") else {})
    made = schema | {key: _for_reading(schema[key]) for key in ("type", "items", "values") if key in schema}
    if "fields" in schema:
        made["fields"] = [field | {"type": _for_reading(field["type"])} for field in schema["fields"]]
    if "__named_schemas" in schema:
        made["__named_schemas"] = {name: _for_reading(one) for name, one in schema["__named_schemas"].items()}
    return made


def _symbol(index: int, schema: Any, _: Any = None) -> str:
    if not 0 <= index < len(schema["symbols"]):
        raise BodyError(f"invalid index {index} for an enum of {len(schema['symbols'])} symbols")
    return str(schema["symbols"][index])


def _micros(millis: int, *_: Any) -> int:
    return millis * 1000


def _type_name(schema: Any) -> str:
    kind = schema["type"] if isinstance(schema, dict) else schema
    return kind if isinstance(kind, str) else _type_name(kind)


def _collect(schema: Any, named: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named)
    elif isinstance(schema, dict):
        if schema.get("type") in ("record", "error", "enum", "fixed"):
            named[schema["name"]] = schema
        for key in ("type", "items", "values"):
            _collect(schema.get(key), named)
        for field in schema.get("fields", ()):
            _collect(field["type"], named)
