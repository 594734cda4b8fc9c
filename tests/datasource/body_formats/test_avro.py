"""The decoder of Avro: results, limits of schemas, logical types."""

from __future__ import annotations

import io
import json
import re
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as steady
from hypothesis import strategies as st

from spark_rocket.datasource.bodies.avro import AvroSchema
from spark_rocket.datasource.bodies.decoding import OneByOneDecoder
from spark_rocket.datasource.bodies.encoding import BodyEncoder
from spark_rocket.datasource.options.bodies import AvroEncoding, BodyFormat, BodySettings
from spark_rocket.datasource.spark_schema import spark_schema
from spark_rocket.errors import OptionError, SchemaError
from tests.datasource.body_formats.formats import (
    avro,
    bodies,
    check_alone,
    columns,
    decoder,
    known_columns,
    list_of,
    map_to,
    noon,
    rows_of,
)

ORDER = {
    "id": 1, "item": "x", "at": noon(), "price": Decimal("1.50"), "marks": {"k": 1}, "kind": "B",
    "lines": [{"n": 1}, {"n": None}], "later": {"n": 2}, "uid": "12345678-1234-5678-1234-567812345678", "clock": 5,
}  # fmt: skip


def test_avro() -> None:
    schema = AvroSchema(avro())
    assert spark_schema(schema.columns) == columns(
        id="bigint", item="string", at="timestamp", price="price", marks=map_to("int"), kind="string",
        lines=list_of(columns(n="int")), later=columns(n="int"), uid="string", clock="int",
    )  # fmt: skip
    fields = schema.columns
    avro_decoder = OneByOneDecoder(fields, schema.read)
    single = schema.write(ORDER)
    assert single[:10] == schema.header
    datum = single[10:]
    values = [single, datum, datum + b"\0", datum[:-1], b"", b"\xc3\x01" + single[2:9] + b"?" + datum, b"\xff" * 30]
    found = check_alone(avro_decoder, fields, values)
    rows = rows_of(found, fields)
    assert rows[0] == rows[1] == {**ORDER, "marks": [("k", 1)]}
    assert sorted(found.bad) == [2, 3, 4, 5, 6]
    assert "the datum ends at byte" in found.bad[2]
    assert "raw datums need avroEncoding=raw" in found.bad[5]
    raw = AvroSchema(avro(avro_encoding=AvroEncoding.RAW))
    assert raw.write(ORDER) == datum
    lonely = BodySettings(
        BodyFormat.AVRO, avro_schema='{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'
    )
    minus_98 = b"\xc3\x01"  # the long -98, which looks like a header
    assert (
        "raw datums need"
        in OneByOneDecoder(pa.schema([("id", pa.int64())]), AvroSchema(lonely).read).decode(bodies(minus_98)).bad[0]
    )
    assert len(single) == len(datum) + 10
    for literal, wrong in (
        ("{", "not an Avro schema"),
        ('"string"', "not a record"),
        ('{"type":"record"}', "not an Avro schema"),
    ):
        with pytest.raises(OptionError, match=wrong):
            AvroSchema(BodySettings(BodyFormat.AVRO, avro_schema=literal))
    union = '{"type":"record","name":"T","fields":[{"name":"u","type":["int","string"]}]}'
    with pytest.raises(SchemaError, match="a union of int, string"):
        AvroSchema(BodySettings(BodyFormat.AVRO, avro_schema=union))
    assert fastavro.__version__


def avro_record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def each_uses(depth: int, *names: str) -> dict[str, Any]:
    """The schema looks flat: each type refers to the previous one, once for each name."""
    types = {
        f"f{level}": avro_record(f"T{level}", **dict.fromkeys(names, f"T{level - 1}" if level else "long"))
        for level in range(depth)
    }
    return avro_record("Top", **types)


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (avro_record("T", next=["null", "T"]), "T contains itself"),
        (avro_record("T", next="T"), "T contains itself"),
        (avro_record("n.T", next={"type": "array", "items": "T"}), "n.T contains itself"),
        (avro_record("T", next={"type": "map", "values": ["null", "T"]}), "T contains itself"),
        (avro_record("A", b=avro_record("B", c=["null", avro_record("C", a="A")])), "A contains itself"),
        (each_uses(120, "a"), "nested deeper than 100 levels"),
        (each_uses(5_000, "a"), "nested deeper than 100 levels"),
        (json.loads("[" * 800 + "]" * 800), "nested deeper than 100 levels"),
        (each_uses(40, "a", "b"), "columns and fields, above the limit of 20,000"),
    ],
)
def test_avro_schemas_of_exponential_size(schema: Any, wanted: str) -> None:
    """fastavro would crash the worker's process, or the columns would exhaust its memory."""
    with pytest.raises(SchemaError, match=wanted):
        AvroSchema(BodySettings(BodyFormat.AVRO, avro_schema=json.dumps(schema)))


def test_the_header_of_a_schema_registry() -> None:
    """A header of 00 and the schema's ID: skipped with avroEncoding=confluent, and named in other reasons."""
    confluent = AvroSchema(avro(avro_encoding=AvroEncoding.CONFLUENT))
    datum = AvroSchema(avro(avro_encoding=AvroEncoding.RAW)).write(ORDER)
    header = b"\0\0\0\1\7"
    values = [
        header + datum,
        datum,
        b"",
        b"\0\0\0\1",
        header,
        header + datum[:-1],
        header + datum + b"\0",
        confluent.header,
    ]
    found = check_alone(OneByOneDecoder(confluent.columns, confluent.read), confluent.columns, values)
    assert rows_of(found, confluent.columns)[0] == {**ORDER, "marks": [("k", 1)]}
    assert [*found.bad] == [*range(1, len(values))]
    assert found.bad[1] == f"it begins with {datum[:5].hex()}, but schema registry headers with 00"
    assert found.bad[2] == "it begins with nothing, but schema registry headers with 00"
    for at in (4, 5, 6):
        assert found.bad[at].endswith("; does it have avroSchema? The schema registry's ID of its schema is 263")
    for encoding in (AvroEncoding.AUTO, AvroEncoding.RAW, AvroEncoding.SINGLE):
        schema = AvroSchema(avro(avro_encoding=encoding))
        (reason,) = OneByOneDecoder(schema.columns, schema.read).decode(bodies(values[0])).bad.values()
        assert reason.endswith(
            "; if it has the header of a schema registry (schema 263), set avroEncoding=confluent"
        ), reason


def test_bodies_with_the_header_of_a_schema_registry_are_not_written() -> None:
    with pytest.raises(OptionError, match="avroEncoding is confluent, which is for reads"):
        BodyEncoder(avro(avro_encoding=AvroEncoding.CONFLUENT), spark_schema(AvroSchema(avro()).columns), frozenset())


def raw_avro(kind: Any, *longs: int) -> Any:
    """The value of a record's only field, decoded from these numbers, or the reason why it is invalid."""
    record = {"type": "record", "name": "R", "fields": [{"name": "c", "type": kind}]}
    settings = BodySettings(BodyFormat.AVRO, avro_schema=json.dumps(record), avro_encoding=AvroEncoding.RAW)
    datum = io.BytesIO()
    for number in longs:
        fastavro.schemaless_writer(datum, "long", number)
    found = decoder(settings, known_columns(settings)).decode(bodies(datum.getvalue()))
    (column,) = found.columns
    for number, width in ((pa.int64(), pa.types.is_timestamp), (pa.int32(), pa.types.is_date)):
        column = column.cast(number) if width(column.type) else column
    return found.bad.get(0) or column.to_pylist()[0]


@pytest.mark.parametrize(
    ("logical", "number", "value"),
    [
        ("timestamp-micros", 253402300800_000000, 253402300800_000000),
        ("timestamp-micros", -62135596800_000001, -62135596800_000001),
        ("timestamp-millis", 253402300800_001, 253402300800_001000),
        ("timestamp-millis", -1, -1000),
        ("local-timestamp-micros", -(1 << 62), -(1 << 62)),
        ("local-timestamp-millis", 5, 5000),
        ("timestamp-millis", 1 << 62, "the column c: its value does not fit timestamp"),
    ],
)
def test_avro_times_of_any_year(logical: str, number: int, value: int | str) -> None:
    for kind in ({"type": "long", "logicalType": logical}, ["null", {"type": "long", "logicalType": logical}]):
        found = raw_avro(kind, *([] if isinstance(kind, dict) else [1]), number)
        assert found == value or re.search(str(value), str(found)), found


@pytest.mark.parametrize("text", ["12345678-1234-5678-1234-56781234ABCD", "123456781234567812345678ABCDEF01", "x"])
def test_avro_uuids_are_the_written_strings(text: str) -> None:
    """As in from_avro, which does not normalize them to lower case or hyphens."""
    record = {"type": "record", "name": "R", "fields": [{"name": "c", "type": ["null", {
        "type": "string", "logicalType": "uuid"}]}]}  # fmt: skip
    schema = AvroSchema(BodySettings(BodyFormat.AVRO, avro_schema=json.dumps(record)))
    fields = pa.schema([("c", pa.string())])
    assert schema.columns == fields
    assert OneByOneDecoder(fields, schema.read).decode(bodies(schema.write({"c": text}))).columns[0].to_pylist() == [
        text
    ]


@pytest.mark.parametrize(
    "more", [{}, {"precision": None}, {"precision": 0}, {"precision": "9"}, {"precision": 2, "scale": 3}]
)
def test_invalid_avro_decimals_are_bytes(more: dict[str, Any]) -> None:
    """As in the specification and in Spark: an invalid logical type is ignored."""
    assert raw_avro({"type": "bytes", "logicalType": "decimal", **more}, 1, 7) == b"\x0e"
    assert raw_avro({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, 1, 6) == Decimal("0.12")
    with pytest.raises(SchemaError, match="a decimal of 39 digits, above Spark's 38"):
        raw_avro({"type": "bytes", "logicalType": "decimal", "precision": 39}, 0)


def test_avro_dates_of_any_year_and_invalid_indexes() -> None:
    day = {"type": "int", "logicalType": "date"}
    assert [raw_avro(day, number) for number in (2932897, -800000, 0)] == [2932897, -800000, 0]
    enum = {"type": "enum", "name": "K", "symbols": ["A", "B"]}
    assert [raw_avro(enum, number) for number in (0, 1)] == ["A", "B"]
    assert all("for an enum of 2 symbols" in raw_avro(enum, number) for number in (-1, 2))
    twice = {"type": "record", "name": "S", "fields": [{"name": "a", "type": enum}, {"name": "b", "type": ["K"]}]}
    assert raw_avro(twice, 1, 0, 0) == {"a": "B", "b": "A"}
    assert "invalid index -1" in raw_avro(twice, 1, 0, -1)


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "record", "name": "E", "fields": []},
        {"type": "record", "name": "E", "fields": [{"name": "n", "type": {"type": "null"}}]},
        {"type": "fixed", "name": "F", "size": 0},
    ],
)
def test_avro_arrays_of_zero_byte_elements(items: Any) -> None:
    """A datum of five bytes can contain a billion of them."""
    with pytest.raises(SchemaError, match="elements without bytes"):
        raw_avro({"type": "array", "items": items}, 0)
    assert raw_avro({"type": "array", "items": ["null", items] if items != "null" else ["null", "int"]}, 1, 0, 0) == [
        None
    ]


@steady(max_examples=40)
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_avro_does_not_affect_other_rows(values: list[bytes]) -> None:
    schema = AvroSchema(avro())
    fields = schema.columns
    check_alone(OneByOneDecoder(fields, schema.read), fields, [*values, schema.write(ORDER)])
