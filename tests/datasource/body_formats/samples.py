"""A valid body of every format, with the settings and columns to read it."""

from __future__ import annotations

import pyarrow as pa

from spark_rocket.datasource.bodies.arrow_bodies import write_stream
from spark_rocket.datasource.bodies.avro import AvroSchema
from spark_rocket.datasource.bodies.codecs import known_columns
from spark_rocket.datasource.bodies.protobuf import ProtobufType
from spark_rocket.datasource.column_types import VARIANT
from spark_rocket.datasource.options.bodies import AvroEncoding, BodyFormat, BodySettings
from tests.datasource.body_formats.formats import FIELDS, avro, noon, protobuf
from tests.datasource.body_formats.test_avro import ORDER

JSON_FIELDS = pa.schema(
    [*FIELDS, ("x", pa.binary()), ("m", pa.map_(pa.string(), pa.decimal128(38, 18))), ("v", VARIANT)]
)
JSON_VALUES = {
    "i": "1",
    "f": "1.5",
    "g": "2.5",
    "b": "true",
    "s": '"é\\n\\ud83d"',
    "d": '"2026-01-31"',
    "de": "12.5",
    "l": "[1,null]",
    "t": '"2026-01-31T12:00:00.123456+02:00"',
    "n": '"2026-01-31 12:00:00"',
    "st": '{"x":"2026-01-31"}',
    "x": '"aGVs"',
    "m": '{"k":12345.678}',
    "v": '{"a":[1,"x",{"b":null}],"c":1e5}',
}
CSV_FIELDS = pa.schema([item for item in FIELDS if not pa.types.is_nested(item.type)])
FORMATS = [
    "json",
    "json by Arrow",
    "csv",
    "text",
    "variant",
    "arrow",
    "protobuf",
    "avro auto",
    "avro raw",
    "avro single",
    "avro confluent",
]


def json_of(values: dict[str, str]) -> bytes:
    members = ",".join(f'"{name}":{value}' for name, value in values.items())
    return f"{{{members}}}".encode()


def stream() -> bytes:
    """A body with Arrow columns of several types."""
    strings = pa.array(["a", None, "a"]).dictionary_encode()
    columns = {
        "i": [1, 2, None],
        "s": strings,
        "de": pa.array([None, "1.5", "2"]).cast(pa.decimal128(9, 4)),
        "l": [[1], None, []],
    }
    return write_stream(pa.record_batch(columns))


def sample(form: str) -> tuple[BodySettings, pa.Schema, bytes]:
    """The settings and columns of a format, and a valid body."""
    if form in ("json", "json by Arrow"):  # the latter: the columns that its parser reads
        fields = JSON_FIELDS if form == "json" else FIELDS
        return BodySettings(BodyFormat.JSON), fields, json_of(JSON_VALUES)
    if form == "csv":
        line = b'1,1.5,2.5,true,"a \\"quoted\\" text",2026-01-31,2026-01-31T12:00:00Z,2026-01-31 12:00:00,12.5'
        return BodySettings(BodyFormat.CSV), CSV_FIELDS, line
    if form == "text":
        return BodySettings(BodyFormat.TEXT), pa.schema([("value", pa.string())]), "aé€😀".encode()
    if form == "variant":
        return BodySettings(BodyFormat.VARIANT), pa.schema([("value", VARIANT)]), JSON_VALUES["v"].encode()
    if form == "arrow":
        fields = pa.schema(
            [("i", pa.int32()), ("s", pa.string()), ("de", pa.decimal128(5, 2)), ("l", pa.list_(pa.int8()))]
        )
        return BodySettings(BodyFormat.ARROW), fields, stream()
    if form == "protobuf":
        settings = protobuf()
        row = {
            "id": 7,
            "item": "é",
            "at": noon().replace(tzinfo=None),
            "big": 1 << 63,
            "kind": "B",
            "lines": [{"n": 1}],
            "blob": b"\xff",
        }
        kind = ProtobufType(settings)
        row |= {"marks": [("k", 1)], "parts": [("p", {"n": 2})], "small": 5}
        return settings, kind.columns, kind.write(row)
    settings = avro(avro_encoding=AvroEncoding(form.removeprefix("avro ")))
    schema = AvroSchema(avro(avro_encoding=AvroEncoding.RAW))
    prefix = {"single": schema.header, "confluent": b"\0\0\0\0\7"}.get(settings.avro_encoding.value, b"")
    return settings, known_columns(settings), prefix + schema.write(ORDER)
