"""Bodies made of columns, and read back as they were."""

from __future__ import annotations

import json
from datetime import UTC as ZONE
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as steady
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, DateType, DoubleType, FloatType, StructType, TimestampNTZType
from pyspark.sql.variant_utils import VariantUtils

from spark_rocket.datasource.body_formats.codecs import decoder, known_columns
from spark_rocket.datasource.body_formats.encoding import BodyEncoder
from spark_rocket.datasource.body_formats.settings import BodyFormat, BodySettings
from spark_rocket.errors import RowError, SchemaError
from tests.datasource.body_formats.formats import avro, columns, list_of, map_to, protobuf, rows_of

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
    batch = pa.RecordBatch.from_pylist(rows, to_arrow_schema(schema, timezone="UTC"))
    return BodyEncoder(settings, schema, KEPT, "partition 0").encode(batch)


def read_back(settings: BodySettings, schema: StructType, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    found = decoder(settings, schema).decode(batch.column("body").cast(pa.binary()))
    assert not found.bad
    return rows_of(found, to_arrow_schema(schema, timezone="UTC"))


def rows_like(fields: dict[str, tuple[Any, st.SearchStrategy[Any]]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(st.fixed_dictionaries({name: st.none() | some for name, (_, some) in fields.items()}), max_size=5)


@pytest.mark.parametrize("fields", [FLAT, FLAT | NESTED])
def test_json_is_read_back_as_it_was(fields: dict[str, tuple[Any, st.SearchStrategy[Any]]]) -> None:
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
def test_csv_is_read_back_as_it_was(rows: list[dict[str, Any]]) -> None:
    schema = columns(**{name: kind for name, (kind, _) in FLAT.items()})
    settings = BodySettings(BodyFormat.CSV, csv_delimiter="|")
    assert read_back(settings, schema, encode(settings, schema, rows)) == rows


def test_what_json_looks_like() -> None:
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


def test_arrow_puts_rows_of_the_same_message_together() -> None:
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
def test_avro_and_protobuf_are_read_back_as_they_were(settings: BodySettings) -> None:
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
    with pytest.raises(SchemaError, match="a column itme, and what"):
        encode(settings, columns(itme="string"), [])
    with pytest.raises(SchemaError, match="the column id is bigint, not int"):
        encode(settings, columns(id="int"), [])


def test_frames_that_make_no_bodies() -> None:
    with pytest.raises(SchemaError, match="no column to make a body of"):
        encode(BodySettings(BodyFormat.JSON), columns(keys="string"), [])
    with pytest.raises(SchemaError, match=r"the column li is list<.*>, which CSV has no values for"):
        encode(BodySettings(BodyFormat.CSV), columns(li=list_of(columns(x="int"))), [])
    with pytest.raises(SchemaError, match=r"one column of type string, and there is struct<a:int>"):
        encode(BodySettings(BodyFormat.TEXT), columns(a="int"), [])
    assert encode(BodySettings(BodyFormat.TEXT), columns(a="string"), [{"a": "x"}]).column("body").to_pylist() == ["x"]
