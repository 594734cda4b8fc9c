"""Every Spark type in every format and every Arrow representation: the same bodies, read back as the same values."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as spark_types
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)
from pyspark.sql.variant_utils import VariantUtils

from spark_rocket.datasource.capabilities import arrow_schema
from spark_rocket.datasource.options.bodies import BodyFormat, BodySettings
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parse import parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.write.writer import check_columns, with_bodies
from spark_rocket.errors import RowError, SchemaError
from tests.datasource.body_formats.formats import avro, columns, decoder, known_columns, protobuf, rows_of

TEXT, INT = StringType(), IntegerType()
LINE = columns(name="string", blob="binary", inner=columns(x="int", s="string"))
LINES = [{"name": "a", "blob": b"\xff", "inner": {"x": 1, "s": ""}}, {"name": None, "blob": None, "inner": None}]
NOON = datetime(2026, 1, 31, 12, 0, 0, 123456)


def variant(text: str) -> dict[str, bytes]:
    value, metadata = VariantUtils.parse_json(text)
    return {"value": bytes(value), "metadata": bytes(metadata)}


# The values of a column of each type; null is added to all.
SCALARS: dict[str, tuple[DataType, list[Any]]] = {
    "string": (TEXT, ["a", "", "ö", ' "quoted",\r\n\\', "a"]),
    "boolean": (BooleanType(), [True, False]),
    "tinyint": (ByteType(), [-128, 127]),
    "smallint": (ShortType(), [-(2**15), 2**15 - 1]),
    "int": (INT, [-(2**31), 0, 2**31 - 1]),
    "bigint": (LongType(), [-(2**63), 2**63 - 1]),
    "float": (FloatType(), [1.5, float("inf"), -0.0]),
    "double": (DoubleType(), [0.1, float("-inf"), 1e300]),
    "decimal": (DecimalType(10, 2), [Decimal("-1.50"), Decimal("99999999.99")]),
    "long decimal": (DecimalType(38, 18), [Decimal("12345678901234567890.123456789012345678")]),
    "date": (DateType(), [date(1, 1, 1), date(2026, 1, 31), date(9999, 12, 31)]),
    "timestamp": (TimestampType(), [NOON.replace(tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)]),
    "timestamp_ntz": (TimestampNTZType(), [NOON, datetime(9999, 12, 31)]),
}
NESTED: dict[str, tuple[DataType, list[Any]]] = {
    "binary": (BinaryType(), [b"", b"\xff\x00", b"ascii"]),
    "variant": (VariantType(), [variant('{"a":[1,"x"]}'), variant("[]")]),
    "struct": (LINE, LINES),
    "array": (ArrayType(TEXT), [[], ["a", "", None], [None]]),
    "array of structs": (ArrayType(LINE), [[], LINES, [None]]),
    "array of arrays": (ArrayType(ArrayType(TEXT)), [[], [[]], [["a"], None, [None]]]),
    "array of binary": (ArrayType(BinaryType()), [[b"\xff", b"", None]]),
    "map": (MapType(TEXT, TEXT), [[], [("a", "")], [("", None), ("b", "x")]]),
    "map of arrays": (MapType(TEXT, ArrayType(TEXT)), [[], [("a", []), ("b", None), ("c", ["x", None])]]),
    "map of maps": (MapType(TEXT, MapType(TEXT, BinaryType())), [[], [("a", []), ("b", [("c", b"\xff")])]]),
    "map of structs": (MapType(TEXT, LINE), [[("a", LINES[0]), ("b", LINES[1]), ("c", None)]]),
    "struct of maps": (StructType([StructField("m", MapType(TEXT, INT))]), [{"m": []}, {"m": None}, {"m": [("a", 1)]}]),
    "array of maps": (ArrayType(MapType(TEXT, INT)), [[], [[]], [[("a", 1)], None]]),
}
ONLY_ARROW: dict[str, tuple[DataType, list[Any]]] = {
    "day-time interval": (DayTimeIntervalType(), [timedelta(days=-1, microseconds=1)]),
    "void": (NullType(), []),
    "map of ints": (MapType(INT, TEXT), [[], [(1, "a")]]),
    "empty struct": (StructType([]), [{}]),
}
VARIANT = BodyFormat.VARIANT, "variant"
if hasattr(spark_types, "TimeType"):
    ONLY_ARROW["time"] = (spark_types.TimeType(), [time(23, 59, 59, 999_999), time(0)])
JSON, CSV, ARROW = (BodySettings(form) for form in (BodyFormat.JSON, BodyFormat.CSV, BodyFormat.ARROW))
AVRO_SCALARS = {
    "string": "string", "boolean": "boolean", "int": "int", "bigint": "long", "float": "float", "double": "double",
    "decimal": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
    "binary": "bytes",
}  # fmt: skip


def avro_type(kind: DataType) -> Any:
    """The nullable Avro type of a Spark type; KeyError if it has none."""
    count = iter(range(100))

    def convert(kind: DataType) -> Any:
        if isinstance(kind, StructType):
            fields = [{"name": field.name, "type": convert(field.dataType)} for field in kind]
            return ["null", {"type": "record", "name": f"R{next(count)}", "fields": fields}]
        if isinstance(kind, ArrayType):
            return ["null", {"type": "array", "items": convert(kind.elementType)}]
        if isinstance(kind, MapType):
            return ["null", {"type": "map", "values": convert(kind.valueType)}]
        ((name, _),) = [pair for pair in (SCALARS | NESTED).items() if pair[1][0] == kind]
        return ["null", AVRO_SCALARS[name]]

    return convert(kind)


def avro_settings(kind: DataType) -> BodySettings:
    record = {"type": "record", "name": "Row", "fields": [{"name": "c", "type": avro_type(kind)}]}
    return BodySettings(BodyFormat.AVRO, avro_schema=json.dumps(record))


def cases() -> list[Any]:
    made: list[tuple[str, BodySettings, str]] = [("json", JSON, name) for name in SCALARS | NESTED]
    made += [("csv", CSV, name) for name in SCALARS]
    made += [("arrow", ARROW, name) for name in SCALARS | NESTED | ONLY_ARROW]
    made += [
        ("text", BodySettings(BodyFormat.TEXT), "string"),
        ("variant", BodySettings(BodyFormat.VARIANT), "variant"),
    ]
    for name, (kind, _) in (SCALARS | NESTED).items():
        try:
            made.append(("avro", avro_settings(kind), name))
        except KeyError:
            continue
    return [pytest.param(settings, name, id=f"{form}-{name}") for form, settings, name in made]


def large(array: pa.Array) -> pa.Array:
    kinds = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return array.cast(kinds.get(array.type, array.type))


def view(array: pa.Array) -> pa.Array:
    kinds = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}
    return array.cast(kinds.get(array.type, array.type))


def dictionary(array: pa.Array) -> pa.Array:
    return array if pa.types.is_null(array.type) else array.dictionary_encode()


def represent(array: pa.Array, leaf: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """The same values with other leaves; lists become large with ``large``."""
    types, mask = pa.types, array.is_null()
    if types.is_struct(array.type):
        if not array.type.num_fields:
            return array
        members = [represent(member, leaf) for member in array.flatten()]
        fields = [
            item.with_type(member.type).with_nullable(True) for item, member in zip(array.type, members, strict=True)
        ]
        return pa.StructArray.from_arrays(members, fields=fields, mask=mask)
    if types.is_map(array.type):
        return pa.MapArray.from_arrays(
            array.offsets, represent(array.keys, leaf), represent(array.items, leaf), mask=mask
        )
    if types.is_list(array.type):
        values = represent(array.values, leaf)
        if leaf is large:
            return pa.LargeListArray.from_arrays(array.offsets.cast(pa.int64()), values, mask=mask)
        return pa.ListArray.from_arrays(array.offsets, values, mask=mask)
    return leaf(array)


def run_ends(array: pa.Array) -> pa.Array:
    """Runs of equal values, as Arrow has them for plain types."""
    return array if pa.types.is_nested(array.type) or pa.types.is_null(array.type) else pc.run_end_encode(array)


def sliced(array: pa.Array) -> pa.Array:
    """The same values in the middle of a longer array."""
    return pa.concat_arrays([array, array, array]).slice(len(array), len(array))


REPRESENTATIONS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "large": lambda array: represent(array, large),
    "view": lambda array: represent(array, view),
    "dictionary": lambda array: represent(array, dictionary),
    "run ends": run_ends,
    "slice": sliced,
    "slice of large": lambda array: sliced(represent(array, large)),
}


def options(settings: BodySettings | None) -> WriteOptions:
    parsed = parse_write_options({"nameServer": "x:1", "topic": "t"}, Scope.WRITE)
    return WriteOptions(**{**vars(parsed), "body": settings})


def written(settings: BodySettings | None, schema: StructType, batch: pa.RecordBatch) -> pa.RecordBatch:
    (found,) = with_bodies(iter([batch]), options(settings), schema)
    return found


def comparable(settings: BodySettings | None, batch: pa.RecordBatch) -> Any:
    """The rows. Arrow's streams also have the undefined bytes of null values: compare their schemas and rows."""
    rows = batch.to_pylist()
    if settings is ARROW:
        for row in rows:
            with pa.ipc.open_stream(row["body"]) as stream:
                row["body"] = stream.schema.to_string(), stream.read_all().to_pylist()
    return rows


def check_representations(settings: BodySettings | None, schema: StructType, batch: pa.RecordBatch) -> pa.Array:
    """Return the bodies, which must not depend on the representation of the columns."""
    expected = written(settings, schema, batch)
    for name, convert in REPRESENTATIONS.items():
        arrays = [convert(column) for column in batch.columns]
        assert [array.to_pylist() for array in arrays] == [column.to_pylist() for column in batch.columns]
        other = written(settings, schema, pa.RecordBatch.from_arrays(arrays, names=batch.schema.names))
        assert other.schema == expected.schema, name
        assert comparable(settings, other) == comparable(settings, expected), name
    return expected.column("body")


@pytest.mark.parametrize(("settings", "name"), cases())
def test_each_type_in_each_representation(settings: BodySettings, name: str) -> None:
    kind, values = (SCALARS | NESTED | ONLY_ARROW)[name]
    schema = columns(c=kind)
    check_columns(schema, options(settings))
    nullable = settings.format not in (BodyFormat.TEXT, BodyFormat.VARIANT)
    rows = [{"c": value} for value in [*values, *([None] if nullable else [])]]
    batch = pa.RecordBatch.from_pylist(rows, arrow_schema(schema))
    bodies = check_representations(settings, schema, batch)
    found = decoder(settings, schema).decode(bodies.cast(pa.binary()))
    assert not found.bad
    assert rows_of(found, arrow_schema(schema)) == batch.to_pylist()


@pytest.mark.parametrize("settings", [avro(), protobuf()], ids=["avro", "protobuf"])
def test_named_types_in_each_representation(settings: BodySettings) -> None:
    row = {
        "id": 1, "item": "x", "at": NOON.replace(microsecond=0, tzinfo=UTC), "price": Decimal("1.50"),
        "marks": [("k", 1)], "kind": "B", "lines": [{"n": 1}, {"n": None}], "later": None,
        "uid": "12345678-1234-5678-1234-567812345678", "clock": 5, "big": Decimal(7), "parts": [("p", {"n": 3})],
        "blob": b"\xff", "small": 3,
    }  # fmt: skip
    schema = known_columns(settings)
    rows = [{name: one[name] for name in schema.names} for one in (row, row | {"marks": [], "lines": [], "parts": []})]
    bodies = check_representations(settings, schema, pa.RecordBatch.from_pylist(rows, arrow_schema(schema)))
    assert rows_of(decoder(settings, schema).decode(bodies), arrow_schema(schema)) == rows


def test_nulls_that_protobuf_does_not_support() -> None:
    settings = protobuf()
    for column, value in {"marks": [("k", None)], "parts": [("k", None)], "lines": [None]}.items():
        schema = columns(**{column: known_columns(settings)[column].dataType})
        batch = pa.RecordBatch.from_pylist([{column: None}, {column: value}], arrow_schema(schema))
        with pytest.raises(RowError, match=f"row 1 of partition 0 cannot be written as protobuf: {column} has a null"):
            written(settings, schema, batch)


def test_message_columns_in_each_representation() -> None:
    schema = columns(
        body="string", topic="string", tags="string", keys="string", shardingKey="string", queueId="int",
        deliverAt="timestamp", properties=MapType(TEXT, TEXT),
    )  # fmt: skip
    row = {
        "body": "b", "topic": "t", "tags": "a", "keys": "k l", "shardingKey": "s", "queueId": 1,
        "deliverAt": NOON.replace(tzinfo=UTC), "properties": [("p", "q")],
    }  # fmt: skip
    rows = [row, dict.fromkeys(row) | {"body": "", "topic": "t", "properties": []}]
    batch = pa.RecordBatch.from_pylist(rows, arrow_schema(schema))
    check_representations(None, schema, batch)
    with_id = columns(id="int", **{name: schema[name].dataType for name in schema.names if name != "body"})
    arrays = [pa.array([1, None], pa.int32()), *batch.columns[1:]]
    for settings in (JSON, CSV, ARROW):
        check_representations(settings, with_id, pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(with_id)))


@pytest.mark.parametrize("settings", [None, JSON, CSV, ARROW, BodySettings(BodyFormat.TEXT)])
def test_empty_batches(settings: BodySettings | None) -> None:
    schema = columns(body="string")
    assert (
        list(with_bodies(iter([pa.RecordBatch.from_pylist([], arrow_schema(schema))]), options(settings), schema)) == []
    )


TIME = [spark_types.TimeType()] if hasattr(spark_types, "TimeType") else []
REFUSED: list[tuple[BodySettings, DataType, str, bool, bool]] = [
    # Format, type, path of the refused member, refused in writes, refused in reads.
    *((one, YearMonthIntervalType(), "c", True, True) for one in (JSON, CSV, ARROW, avro(), protobuf())),
    (ARROW, ArrayType(StructType([StructField("a", CalendarIntervalType())])), "c.element.a", True, True),
    *((one, kind, "c", True, True) for one in (JSON, CSV) for kind in (DayTimeIntervalType(), NullType(), *TIME)),
    (JSON, ArrayType(MapType(TEXT, DayTimeIntervalType())), "c.element.value", True, True),
    (JSON, MapType(INT, TEXT), "c", False, True),
    (JSON, MapType(BinaryType(), TEXT), "c", True, True),
    (JSON, StructType([StructField("a", StructType([]))]), "c.a", True, False),
    *((CSV, kind, "c", True, True) for kind, _ in NESTED.values()),
]


@pytest.mark.parametrize(("settings", "kind", "path", "in_writes", "in_reads"), REFUSED)
def test_unsupported_types(settings: BodySettings, kind: DataType, path: str, in_writes: bool, in_reads: bool) -> None:
    schema = columns(c=kind)
    message = rf"\[BAD_SCHEMA.TYPE\] the column {path} is .+, which .+ does not support"
    for is_refused, check in (
        (in_writes, lambda: check_columns(schema, options(settings))),
        (in_reads, lambda: decoder(settings, schema)),
    ):
        if is_refused:
            with pytest.raises(SchemaError, match=message):
                check()
        else:
            check()
