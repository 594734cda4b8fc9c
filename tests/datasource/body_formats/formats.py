"""Schemas and helpers for tests of body formats."""

from __future__ import annotations

import json
from datetime import UTC as ZONE
from datetime import datetime
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from spark_rocket.datasource.bodies import codecs
from spark_rocket.datasource.bodies.csv_reader import CsvDecoder
from spark_rocket.datasource.bodies.decoding import Decoded, Decoder
from spark_rocket.datasource.options.bodies import BodyFormat, BodySettings
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.read_tasks import rows_of as rows_of_read
from spark_rocket.datasource.schema import MESSAGE_SCHEMA
from spark_rocket.datasource.spark_schema import columns_of, spark_schema
from spark_rocket.protocol.record.columns import BODY_FAULT

UTC = pa.timestamp("us", "UTC")

_PLAIN: dict[str, DataType] = {
    "string": StringType(), "bigint": LongType(), "int": IntegerType(), "binary": BinaryType(),
    "variant": VariantType(), "timestamp": TimestampType(), "price": DecimalType(10, 2), "unsigned": DecimalType(20, 0),
}  # fmt: skip


def columns(**types: str | DataType) -> StructType:
    """A schema; ``StructType.fromDDL`` needs a session."""
    return StructType(
        [StructField(name, _PLAIN[kind] if isinstance(kind, str) else kind) for name, kind in types.items()]
    )


def list_of(kind: DataType) -> ArrayType:
    return ArrayType(kind)


def map_to(kind: str | DataType) -> MapType:
    return MapType(StringType(), _PLAIN[kind] if isinstance(kind, str) else kind)


def decoder(settings: BodySettings, schema: StructType) -> Decoder:
    return codecs.decoder(settings, columns_of(schema, settings))


def typed_rows(options: ReadOptions, schema: StructType, messages: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The batches of a read with this schema."""
    wanted = columns_of(schema, options.body)
    messages = messages.append_column(BODY_FAULT, pa.nulls(len(messages), BODY_FAULT.type))
    return list(rows_of_read(iter([messages]), options, wanted))


def csv_decoder(fields: pa.Schema, delimiter: str = ",", escape: str = "\\") -> CsvDecoder:
    return CsvDecoder(fields, delimiter, escape)


def known_columns(settings: BodySettings) -> StructType:
    return spark_schema(codecs.known_columns(settings))


AVRO = json.dumps(
    {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "item", "type": ["null", "string"], "default": None},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
            {"name": "marks", "type": {"type": "map", "values": "int"}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "lines", "type": {"type": "array", "items": {
                "type": "record", "name": "Line", "fields": [{"name": "n", "type": ["int", "null"]}]}}},
            {"name": "later", "type": ["null", "Line"], "default": None},
            {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        ],
    }
)  # fmt: skip


def avro(**more: Any) -> BodySettings:
    return BodySettings(BodyFormat.AVRO, avro_schema=AVRO, **more)


def descriptor() -> bytes:
    """shop.Order, as described by protoc."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    file.enum_type.add(name="Kind").value.extend(
        [descriptor_pb2.EnumValueDescriptorProto(name=name, number=number) for number, name in enumerate("AB")]
    )
    order = file.message_type.add(name="Order")
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    rows: list[tuple[str, int, int, str]] = [
        ("id", field.TYPE_INT64, one, ""),
        ("item", field.TYPE_STRING, one, ""),
        ("at", field.TYPE_MESSAGE, one, ".google.protobuf.Timestamp"),
        ("big", field.TYPE_UINT64, one, ""),
        ("kind", field.TYPE_ENUM, one, ".shop.Kind"),
        ("lines", field.TYPE_MESSAGE, many, ".shop.Line"),
        ("marks", field.TYPE_MESSAGE, many, ".shop.Order.MarksEntry"),
        ("parts", field.TYPE_MESSAGE, many, ".shop.Order.PartsEntry"),
        ("blob", field.TYPE_BYTES, one, ""),
        ("small", field.TYPE_UINT32, one, ""),
    ]
    for number, (name, kind, label, type_name) in enumerate(rows, 1):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    for name, kind, value_type in (
        ("MarksEntry", field.TYPE_INT32, None),
        ("PartsEntry", field.TYPE_MESSAGE, ".shop.Line"),
    ):
        entry = order.nested_type.add(name=name)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=one)
        entry.field.add(name="value", number=2, type=kind, label=one, type_name=value_type)
    line = file.message_type.add(name="Line")
    line.field.add(name="n", number=1, type=field.TYPE_INT32, label=one, proto3_optional=True, oneof_index=0)
    line.oneof_decl.add(name="_n")
    node = file.message_type.add(name="Node")
    node.field.add(name="next", number=1, type=field.TYPE_MESSAGE, label=one, type_name=".shop.Node")
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def protobuf(message: str = "shop.Order") -> BodySettings:
    return BodySettings(BodyFormat.PROTOBUF, protobuf_descriptor=descriptor(), protobuf_message=message)


def reading(**options: str) -> ReadOptions:
    return parse_read_options({"subscribe": "orders", **options}, Scope.READ)


def batch_of(*bodies: bytes) -> pa.RecordBatch:
    """Messages as returned by the reader."""
    count = len(bodies)
    made: dict[str, Any] = {
        "topic": ["orders"] * count,
        "brokerName": ["broker-a"] * count,
        "queueId": [3] * count,
        "queueOffset": list(range(100, 100 + count)),
        "body": list(bodies),
        "tags": ["T"] * count,
        "keys": [None] * count,
        "properties": [[("mine", "1"), ("UNIQ_KEY", "U"), ("TAGS", "T"), ("DELAY", "3")]] * count,
        "msgId": ["U"] * count,
    }
    target = pa.schema([field for field in MESSAGE_SCHEMA if field.name in made])
    return pa.RecordBatch.from_pydict(made, schema=target)


def bodies(*values: bytes) -> pa.Array:
    return pa.array(values, pa.binary())


def rows_of(decoded: Decoded, fields: pa.Schema) -> list[dict[str, Any]]:
    """The rows, after a check of each column's exact type."""
    for column, item in zip(decoded.columns, fields, strict=True):
        assert column.type.equals(item.type, check_metadata=True)
        column.validate(full=True)
    return pa.table(decoded.columns, fields.names).to_pylist()


def check_alone(decoder: Decoder, fields: pa.Schema, values: list[bytes]) -> Decoded:
    """Check that each body of a batch has the same result as alone: its own row, or a reason."""
    together = decoder.decode(bodies(*values))
    found = pa.table(together.columns, fields.names)
    for column, item in zip(found.columns, fields, strict=True):
        assert column.type.equals(item.type)
        column.validate(full=True)
    assert set(together.bad) <= set(range(len(values)))
    if together.rows is None:
        assert found.num_rows == len(values)
    else:
        assert found.num_rows == len(together.rows)
    places = list(range(len(values))) if together.rows is None else together.rows.tolist()
    at = 0
    for index, value in enumerate(values):
        alone = decoder.decode(bodies(value))
        assert (0 in alone.bad) == (index in together.bad), (value, alone.bad, together.bad)
        count = places.count(index)
        expected = pa.table(alone.columns, fields.names)
        assert str(found.slice(at, count).to_pydict()) == str(expected.to_pydict()), value
        if index in together.bad:
            assert count == 1
            assert all(column.null_count == 1 for column in expected.columns)
        at += count
    return together


ELEMENT = pa.field("element", pa.int32())
INF = float("inf")
VALUES = """1|-0|1.0|1e3|99999999999|true|null|NaN|Inf|-Infinity|"x"|"2026-01-31"|
"2026-01-31T12:00:00Z"|"2026-01-31 12"|
"2026-01-31T1200Z"|"2026-01-31T12:00:00.5+0230"|"2026-1-3"|"2026-01-31T12:00:00."|"2026-01-31Z"|
"2026-01-31T12:00+25:00"|"1.5"|1.555|1e400|1e39|"NaN"|[]|[1,2]|[1.5]|[null]|{}|{"x":"2026-01-31"}|{"x":5}|"\\ud800"|
"\\u0000"|"é"|01|-|+1|"|0.1|1E5|""|"1e2"|"9999-12-31T23:59:59.999999Z"|"2026-02-30"|"a,b"|1,2|"",|",|"a""b\"""".replace(
    "\n", ""
).split("|")  # fmt: skip
NOISE = ["{", "}", ",", '"', " ", "\n", "\r", "\0", "[", "]", ":", "{}", '{"i":1}', "\ufeff", "\t"]
FIELDS = pa.schema(
    [
        ("i", pa.int32()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("t", UTC),
        ("n", pa.timestamp("us")),
        ("de", pa.decimal128(10, 2)),
        ("l", pa.list_(ELEMENT)),
        ("st", pa.struct([("x", pa.date32())])),
    ]
)
"""Columns of most types."""


def noon(**more: int) -> datetime:
    return datetime(2026, 1, 31, 12, tzinfo=ZONE).replace(**more)  # type: ignore[arg-type]
