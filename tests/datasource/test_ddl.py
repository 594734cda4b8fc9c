"""Schemas as text, without Spark. ``tests/spark/test_spark_functions.py`` compares them with Spark's own parser."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.datasource.column_types import TIMESTAMP, TIMESTAMP_NTZ, VARIANT, is_variant, list_of, type_name
from spark_rocket.datasource.ddl import parse_ddl
from spark_rocket.errors import SchemaError

SCHEMAS = {
    "id bigint": [pa.field("id", pa.int64())],
    "ID LONG, `a b``c` String": [pa.field("ID", pa.int64()), pa.field("a b`c", pa.string())],
    "a: int, b : DATE": [pa.field("a", pa.int32()), pa.field("b", pa.date32())],
    "a byte, b short, c real, d double, e boolean, f binary": [
        pa.field(name, kind)
        for name, kind in zip(
            "abcdef", (pa.int8(), pa.int16(), pa.float32(), pa.float64(), pa.bool_(), pa.binary()), strict=True
        )
    ],
    "a timestamp, b timestamp_ntz, c timestamp_ltz": [
        pa.field("a", TIMESTAMP), pa.field("b", TIMESTAMP_NTZ), pa.field("c", TIMESTAMP)
    ],
    "a decimal, b decimal(5), c DEC(38, 10), d numeric( 3 ,3 )": [
        pa.field("a", pa.decimal128(10)), pa.field("b", pa.decimal128(5)), pa.field("c", pa.decimal128(38, 10)),
        pa.field("d", pa.decimal128(3, 3)),
    ],
    "a array<int> NOT NULL": [pa.field("a", list_of(pa.int32()), nullable=False)],
    "m map<string,array<struct<x:int,y: string NOT NULL>>>": [
        pa.field("m", pa.map_(pa.string(), list_of(
            pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string(), nullable=False)])))),
    ],
    "s struct<a int, b:struct<c:date>>, e struct<>": [
        pa.field("s", pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.date32())]))])),
        pa.field("e", pa.struct([])),
    ],
    "a int COMMENT 'it\\'s', b variant": [
        pa.field("a", pa.int32()), pa.field("b", VARIANT)
    ],
}  # fmt: skip


@pytest.mark.parametrize("text", SCHEMAS)
def test_schemas(text: str) -> None:
    assert parse_ddl(text).equals(pa.schema(SCHEMAS[text]), check_metadata=True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", r"at the end \(character 1\): expected a name"),
        ("id", r"at the end \(character 3\): expected a type"),
        ("id bigint,", r"at the end \(character 11\): expected a name"),
        ("id bigint name string", r"at 'name' \(character 11\): expected a comma or the end"),
        ("id text", r"at 'text' \(character 4\): expected a type"),
        ("a array<int", r"at the end \(character 12\): expected '>'"),
        ("a map<string>", r"at '>' \(character 13\): expected ','"),
        ("a int not", r"expected 'null'"),
        ("a decimal(39)", r"expected at most 38 digits"),
        ("a decimal(3,4)", r"expected at most 38 digits"),
        ("a decimal(x)", r"at 'x' \(character 11\): expected a number"),
        ("a int comment b", r"expected a comment in quotes"),
        ("a varchar(3)", r"at 'varchar' \(character 3\): expected a type"),
        ("a " + "array<" * 5000, r"expected a type"),
    ],
)
def test_mistakes(text: str, problem: str) -> None:
    with pytest.raises(SchemaError, match=r"\[BAD_SCHEMA.DDL\].*" + problem):
        parse_ddl(text)


_SCALARS = st.sampled_from([pa.int8(), pa.int64(), pa.float32(), pa.string(), pa.binary(), TIMESTAMP, TIMESTAMP_NTZ])
_KINDS = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        inner.map(list_of),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.lists(inner, max_size=3).map(lambda kinds: pa.struct([(f"m{at}", kind) for at, kind in enumerate(kinds)])),
    ),
    max_leaves=6,
)


@given(st.lists(_KINDS, min_size=1, max_size=4))
def test_names_of_types_are_read_back(kinds: list[pa.DataType]) -> None:
    schema = pa.schema([(f"c{at}", kind) for at, kind in enumerate(kinds)])
    assert parse_ddl(", ".join(f"{item.name} {type_name(item.type)}" for item in schema)) == schema


@given(st.text(alphabet="ab`<>(),:'\" intarystucmpd19\\\n", max_size=40))
def test_any_text(text: str) -> None:
    """A schema or the error, nothing else."""
    with suppress(SchemaError):
        assert len(parse_ddl(text))


def test_variants_are_told_from_structs() -> None:
    assert is_variant(parse_ddl("v variant").field(0).type)
    assert not is_variant(parse_ddl("v struct<value: binary, metadata: binary>").field(0).type)
