"""Bodies encoded from columns, and decoded again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC as ZONE
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as steady
from hypothesis import strategies as st
from pyspark.sql.types import BooleanType, DateType, DoubleType, FloatType, StructType, TimestampNTZType
from pyspark.sql.variant_utils import VariantUtils

from spark_rocket.datasource.bodies.encoding import BodyEncoder
from spark_rocket.datasource.capabilities import arrow_schema
from spark_rocket.datasource.options.bodies import BodyFormat, BodySettings
from spark_rocket.errors import RowError, SchemaError
from tests.datasource.body_formats.formats import (
    UTC,
    avro,
    columns,
    decoder,
    known_columns,
    list_of,
    map_to,
    protobuf,
    rows_of,
)

KEPT = frozenset({"keys", "properties", "queueid"})
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
FLAT: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "i": ("int", st.integers(-(2**31), 2**31 - 1)),
    "l": ("bigint", st.integers(-(2**63), 2**63 - 1)),
    "f": (DoubleType(), st.floats(allow_nan=False)),
    "g": (FloatType(), st.floats(width=32, allow_nan=False)),
    "b": (BooleanType(), st.booleans()),
    "s": ("string", TEXTS),
    "de": ("price", st.decimals(-(10**7), 10**7, places=2)),
    "t": ("timestamp", st.datetimes(timezones=st.just(ZONE))),
    "n": (TimestampNTZType(), st.datetimes()),
    "d": (DateType(), st.dates()),
}
LINE = st.fixed_dictionaries({"x": st.none() | st.integers(0, 9), "s": st.none() | TEXTS})
MARKS = st.dictionaries(TEXTS, st.none() | st.integers(0, 9), max_size=2).map(lambda pairs: list(pairs.items()))
NESTED: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "li": (list_of(columns(x="int", s="string")), st.lists(LINE, max_size=3)),
    "st": (columns(x="timestamp"), st.fixed_dictionaries({"x": st.none() | st.datetimes(timezones=st.just(ZONE))})),
    "by": ("binary", st.binary(max_size=4)),
    "m": (map_to("int"), MARKS),
}  # fmt: skip


def encode(settings: BodySettings, schema: StructType, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pylist(rows, arrow_schema(schema))
    return BodyEncoder(settings, schema, KEPT, "partition 0").encode(batch)


def read_back(settings: BodySettings, schema: StructType, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    found = decoder(settings, schema).decode(batch.column("body").cast(pa.binary()))
    assert not found.bad
    return rows_of(found, arrow_schema(schema))


def rows_like(fields: dict[str, tuple[Any, st.SearchStrategy[Any]]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(st.fixed_dictionaries({name: st.none() | some for name, (_, some) in fields.items()}), max_size=5)


@pytest.mark.parametrize("fields", [FLAT, FLAT | NESTED])
def test_json_round_trips(fields: dict[str, tuple[Any, st.SearchStrategy[Any]]]) -> None:
    schema = columns(**{name: kind for name, (kind, _) in fields.items()})
    settings = BodySettings(BodyFormat.JSON)

    @steady(max_examples=40)
    @given(rows_like(fields))
    def holds(rows: list[dict[str, Any]]) -> None:
        batch = encode(settings, schema, rows)
        for body in batch.column("body").to_pylist():
            assert isinstance(json.loads(body), dict)
        assert read_back(settings, schema, batch) == rows

    holds()


@steady(max_examples=40)
@given(rows_like(FLAT))
def test_csv_round_trips(rows: list[dict[str, Any]]) -> None:
    schema = columns(**{name: kind for name, (kind, _) in FLAT.items()})
    settings = BodySettings(BodyFormat.CSV, csv_delimiter="|")
    assert read_back(settings, schema, encode(settings, schema, rows)) == rows


@steady(max_examples=40)
@given(st.lists(st.none() | TEXTS, max_size=5))
def test_a_single_csv_column_round_trips(values: list[str | None]) -> None:
    schema, settings = columns(s="string"), BodySettings(BodyFormat.CSV)
    rows = [{"s": value} for value in values]
    assert read_back(settings, schema, encode(settings, schema, rows)) == rows


def test_the_text_of_json() -> None:
    schema = columns(id="int", name="string", at="timestamp", f=DoubleType(), v="variant", keys="string")
    content, metadata = VariantUtils.parse_json('{"a": [1]}')
    variant = {"value": content, "metadata": metadata}
    at = datetime(2026, 1, 31, 12, tzinfo=ZONE)
    batch = encode(
        BodySettings(BodyFormat.JSON),
        schema,
        [
            {"id": 1, "name": 'a"\n\\ö', "at": at, "f": 1.5, "v": variant, "keys": "k"},
            {"id": None, "name": None, "at": None, "f": float("nan"), "v": None, "keys": None},
        ],
    )
    assert batch.schema.names == ["keys", "body"]
    assert batch.column("body").to_pylist() == [
        '{"id":1,"name":"a\\"\\n\\\\ö","at":"2026-01-31T12:00:00.000000Z","f":1.5,"v":{"a":[1]}}',
        '{"f":"NaN"}',
    ]


# Microseconds since 1970, and the text of Spark's to_json, which has only three decimals.
FAR = {
    253402300799999999: "9999-12-31T23:59:59.999999",
    253402318799000000: "+10000-01-01T04:59:59.000000",  # a sentinel of New York: 9999-12-31 23:59:59
    -62167219200000000: "0000-01-01T00:00:00.000000",
    -62167219200000001: "-0001-12-31T23:59:59.999999",
    -70000000000000000: "-0249-10-15T19:33:20.000000",
    2**63 - 1: "+294247-01-10T04:00:54.775807",
    -(2**63): "-290308-12-21T19:59:05.224192",
}
TIMES = pa.schema([("t", pa.timestamp("us", "UTC")), ("n", pa.timestamp("us")), ("d", pa.date32())])
MICROS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([*FAR])


def times(moments: Sequence[int | None], days: Sequence[int | None]) -> pa.RecordBatch:
    micros = pa.array(moments, pa.int64())
    return pa.RecordBatch.from_arrays(
        [*(micros.cast(kind) for kind in TIMES.types[:2]), pa.array(days, pa.int32()).cast(pa.date32())], schema=TIMES
    )


def encode_times(settings: BodySettings, batch: pa.RecordBatch) -> pa.Array:
    schema = columns(t="timestamp", n=TimestampNTZType(), d=DateType())
    return BodyEncoder(settings, schema, KEPT).encode(batch).column("body")


def test_the_text_of_far_times() -> None:
    days = [micros // 86_400_000_000 for micros in FAR]
    found = encode_times(BodySettings(BodyFormat.JSON), times([*FAR], days)).to_pylist()
    for body, text in zip(found, FAR.values(), strict=True):
        assert json.loads(body) == {"t": f"{text}Z", "n": text, "d": text.partition("T")[0]}
    (line,) = encode_times(BodySettings(BodyFormat.CSV), times([253402318799000000], [2**31 - 1])).to_pylist()
    assert line == "+10000-01-01T04:59:59.000000Z,+10000-01-01T04:59:59.000000,+5881580-07-11"


@pytest.mark.parametrize("form", [BodyFormat.JSON, BodyFormat.CSV])
def test_times_of_any_year_round_trip(form: BodyFormat) -> None:
    @steady(max_examples=60)
    @given(st.lists(st.tuples(st.none() | MICROS, st.none() | st.integers(-(2**31), 2**31 - 1)), max_size=5))
    def holds(rows: list[tuple[int | None, int | None]]) -> None:
        batch = times([moment for moment, _ in rows], [day for _, day in rows])
        schema = columns(t="timestamp", n=TimestampNTZType(), d=DateType())
        found = decoder(BodySettings(form), schema).decode(encode_times(BodySettings(form), batch).cast(pa.binary()))
        assert not found.bad
        assert pa.RecordBatch.from_arrays(found.columns, schema=TIMES).equals(batch)

    holds()


def test_an_unsupported_time_is_rejected_with_its_row() -> None:
    record = {"type": "record", "name": "R", "fields": [
        {"name": "t", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]}]}  # fmt: skip
    settings = BodySettings(BodyFormat.AVRO, avro_schema=json.dumps(record))
    batch = times([0, None, 253402318799000000], [None] * 3).select(["t"])
    with pytest.raises(RowError, match="row 2 of partition 7 cannot be written as avro: date value out of range"):
        BodyEncoder(settings, columns(t="timestamp"), KEPT, "partition 7").encode(batch)


def test_far_times_within_values() -> None:
    schema = columns(st=columns(x="timestamp"), m=map_to("timestamp"), li=list_of(columns(x=DateType())))
    fields = arrow_schema(schema)
    moment, day = pa.scalar(253402318799000000, UTC), pa.scalar(2932897, pa.int32()).cast(pa.date32())
    row = {"st": {"x": moment}, "m": [("k", moment)], "li": [{"x": day}]}
    batch = pa.RecordBatch.from_arrays([pa.array([row[item.name]], item.type) for item in fields], schema=fields)
    bodies = BodyEncoder(BodySettings(BodyFormat.JSON), schema, KEPT).encode(batch).column("body")
    assert bodies.to_pylist() == [
        '{"st":{"x":"+10000-01-01T04:59:59.000000Z"},"m":{"k":"+10000-01-01T04:59:59.000000Z"},'
        '"li":[{"x":"+10000-01-01"}]}'
    ]
    found = decoder(BodySettings(BodyFormat.JSON), schema).decode(bodies.cast(pa.binary()))
    assert pa.RecordBatch.from_arrays(found.columns, schema=fields).equals(batch)


def test_the_names_of_csv_numbers() -> None:
    schema = columns(f=DoubleType(), g=FloatType())
    values = [float("nan"), float("inf"), float("-inf"), 1.5, None]
    found = encode(BodySettings(BodyFormat.CSV), schema, [{"f": value, "g": value} for value in values])
    assert found.column("body").to_pylist() == ["NaN,NaN", "Infinity,Infinity", "-Infinity,-Infinity", "1.5,1.5", ","]
    assert str(read_back(BodySettings(BodyFormat.CSV), schema, found)) == str([{"f": one, "g": one} for one in values])


def test_arrow_combines_rows_with_equal_message_columns() -> None:
    schema = columns(id="int", keys="string", properties=map_to("string"), queueId="int")
    settings = BodySettings(BodyFormat.ARROW, arrow_rows=3)
    keys = ["a", "a", None, None, "b", "b", "b", "b"]
    marks = [None, None, [("p", "1")], [("p", "2")], None, None, None, None]
    rows = [
        {"id": index, "keys": key, "properties": mark, "queueId": 1}
        for index, (key, mark) in enumerate(zip(keys, marks, strict=True))
    ]
    batch = encode(settings, schema, rows)
    assert batch.column("keys").to_pylist() == ["a", None, None, "b", "b"]
    values = columns(id="int")
    found = decoder(settings, values).decode(batch.column("body"))
    assert found.rows is not None
    assert found.rows.tolist() == [0, 0, 1, 2, 3, 3, 3, 4]
    assert found.columns[0].to_pylist() == list(range(8))


@pytest.mark.parametrize("settings", [avro(), protobuf()])
def test_avro_and_protobuf_round_trip(settings: BodySettings) -> None:
    schema = known_columns(settings)
    row = {
        "id": 1, "item": "x", "at": datetime(2026, 1, 31, tzinfo=ZONE), "price": Decimal("1.50"), "marks": [("k", 1)],
        "kind": "B", "lines": [{"n": 1}, {"n": None}], "later": None, "uid": "12345678-1234-5678-1234-567812345678",
        "clock": 5, "big": Decimal(7), "parts": [("p", {"n": 3})], "blob": b"\x00", "small": 3,
    }  # fmt: skip
    row = {name: row[name] for name in schema.names}
    assert read_back(settings, schema, encode(settings, schema, [row, row])) == [row, row]
    with pytest.raises(RowError, match=r"row 1 of partition 0 cannot be written as (avro|protobuf): "):
        encode(settings, schema, [row, row | {"kind": "NO SUCH KIND"}])
    with pytest.raises(SchemaError, match="a column itme, which is missing in"):
        encode(settings, columns(itme="string"), [])
    with pytest.raises(SchemaError, match="the column id is bigint, not int"):
        encode(settings, columns(id="int"), [])


def test_frames_without_body_columns() -> None:
    with pytest.raises(SchemaError, match="no columns for the body"):
        encode(BodySettings(BodyFormat.JSON), columns(keys="string"), [])
    with pytest.raises(SchemaError, match=r"one column of type string, but the body columns are struct<a:int>"):
        encode(BodySettings(BodyFormat.TEXT), columns(a="int"), [])
    assert encode(BodySettings(BodyFormat.TEXT), columns(a="string"), [{"a": "x"}]).column("body").to_pylist() == ["x"]
