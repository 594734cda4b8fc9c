"""NOT NULL in members of columns: exact Arrow types, and nulls that make a record invalid."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from spark_rocket.datasource.bodies.arrow_bodies import write_stream
from spark_rocket.datasource.capabilities import arrow_schema
from spark_rocket.errors import RecordError, SchemaError
from tests.datasource.body_formats.formats import batch_of, columns, reading, typed_rows

TEXT, INT = StringType(), IntegerType()


def struct(kind: DataType, *, nullable: bool = False) -> StructType:
    return StructType([StructField("x", kind, nullable), StructField("y", TEXT)])


def read(schema: StructType, *bodies: bytes, form: str = "json", **options: str) -> list[dict[str, Any]]:
    parsed = reading(bodyFormat=form, metadataColumns="queueOffset", **options)
    schema = StructType([*schema.fields, *columns(queueOffset="bigint").fields])
    found = typed_rows(parsed, schema, batch_of(*bodies))
    for batch in found:
        assert batch.schema.equals(arrow_schema(schema), check_metadata=True)
        batch.validate(full=True)
    return [row for batch in found for row in batch.to_pylist()]


# Type of the column c, values without a null where none may be, and values with one at a path.
CASES: dict[str, tuple[DataType, list[Any], list[tuple[str, Any]]]] = {
    "map": (MapType(TEXT, INT, False), [{"a": 1}, {}, None], [("c.value", {"a": 1, "b": None})]),
    "array": (ArrayType(INT, False), [[1, 2], [], None], [("c.element", [1, None]), ("c.element", [None])]),
    "struct": (struct(INT), [{"x": 1, "y": None}, {"x": 2, "y": "b"}, None], [("c.x", {"y": "a"}), ("c.x", {})]),
    "map of maps": (
        MapType(TEXT, MapType(TEXT, INT, False), True),
        [{"a": {"b": 1}, "c": None}, {"a": {}}, None],
        [("c.value.value", {"a": None, "b": {"c": None}})],
    ),
    "required map of optional values": (
        MapType(TEXT, MapType(TEXT, INT, True), False),
        [{"a": {"b": None}}, None],
        [("c.value", {"a": None})],
    ),
    "array of structs": (
        ArrayType(struct(struct(INT), nullable=True), False),
        [[{"x": {"x": 1, "y": None}, "y": None}, {"x": None, "y": "b"}], [], None],
        [("c.element", [None]), ("c.element.x.x", [{"x": {"y": "a"}}])],
    ),
    "struct of arrays": (
        struct(ArrayType(MapType(TEXT, TEXT, False), False)),
        [{"x": [{"a": "b"}, {}], "y": None}, {"x": [], "y": "b"}, None],
        [("c.x", {"y": "a"}), ("c.x.element", {"x": [None]}), ("c.x.element.value", {"x": [{"a": "b"}, {"a": None}]})],
    ),
}  # fmt: skip


def plain(value: Any) -> Any:
    """A value of a row as JSON has it: Arrow has lists of pairs for maps."""
    if isinstance(value, list):
        pairs = value and all(isinstance(one, tuple) for one in value)
        return {key: plain(one) for key, one in value} if pairs else [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def same(found: Any, expected: Any) -> bool:
    """Whether two values are equal; an empty map of a row is an empty list."""
    return json.dumps(plain(found)).replace("{}", "[]") == json.dumps(expected).replace("{}", "[]")


def encoded(form: str, kind: DataType, value: Any) -> bytes:
    """A body with the column ``c``. Arrow bodies have it without NOT NULL."""
    if form == "json":
        return json.dumps({"c": value}).encode()

    def of(kind: DataType, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(kind, MapType):
            return [(key, of(kind.valueType, one)) for key, one in value.items()]
        if isinstance(kind, ArrayType):
            return [of(kind.elementType, one) for one in value]
        return (
            {one.name: of(one.dataType, value.get(one.name)) for one in kind} if isinstance(kind, StructType) else value
        )

    def loose(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_map(kind):
            return pa.map_(pa.string(), loose(kind.item_type))
        if pa.types.is_list(kind):
            return pa.list_(loose(kind.value_type))
        return pa.struct([(one.name, loose(one.type)) for one in kind]) if pa.types.is_struct(kind) else kind

    array = pa.array([of(kind, value)], loose(arrow_schema(columns(c=kind)).field(0).type))
    return write_stream(pa.record_batch([array], ["c"]))


@pytest.mark.parametrize("form", ["json", "arrow"])
@pytest.mark.parametrize("name", CASES)
def test_members_that_must_not_be_null(form: str, name: str) -> None:
    kind, good, bad = CASES[name]
    schema = columns(c=kind)
    bodies = [encoded(form, kind, value) for value in good]
    assert all(same(row["c"], value) for row, value in zip(read(schema, *bodies, form=form), good, strict=True))
    for path, value in bad:
        wrong = encoded(form, kind, value)
        where = f"orders/broker-a/3 at {100 + len(good)} cannot be decoded as {form}: the column {path}: it is null"
        with pytest.raises(RecordError, match=where):
            read(schema, *bodies, wrong, form=form)
        rows = read(schema, *bodies, wrong, *bodies, form=form, badRecords="null")
        assert all(same(row["c"], value) for row, value in zip(rows, [*good, None, *good], strict=True))
        rows = read(schema, *bodies, wrong, *bodies, form=form, badRecords="drop")
        assert [row["queueOffset"] for row in rows] == [
            100 + at for at in range(2 * len(good) + 1) if at != len(good)
        ]  # fmt: skip


def test_an_arrow_body_with_a_null_is_one_bad_record() -> None:
    kind = MapType(TEXT, INT, False)
    loose = pa.map_(pa.string(), pa.int32())
    rows: list[Any] = [[("a", 1)], [("b", None)], [("c", None)], None]
    good = write_stream(pa.record_batch([pa.array(rows[:1] * 3, loose)], ["c"]))
    wrong = write_stream(pa.record_batch([pa.array(rows, loose)], ["c"]))
    found = read(columns(c=kind), good, wrong, good, form="arrow", badRecords="null")
    assert [row["queueOffset"] for row in found] == [100] * 3 + [101] + [102] * 3
    assert [row["c"] for row in found] == [[("a", 1)]] * 3 + [None] + [[("a", 1)]] * 3


def test_the_first_member_is_named_among_columns() -> None:
    schema = columns(a=ArrayType(INT, False), s=struct(INT), v=VariantType())
    body = b'{"a": [1], "s": {"x": null}, "v": null}'
    with pytest.raises(RecordError, match=r"the column s\.x: it is null, but the schema declares it NOT NULL"):
        read(schema, body)


def test_columns_are_always_nullable() -> None:
    with pytest.raises(SchemaError, match="the body column id is nullable, but the schema declares it NOT NULL"):
        read(StructType([StructField("id", INT, False)]), b"{}")
