"""Tags of written rows: a tag that no tag expression selects is refused, with its row."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StringType

from spark_rocket.datasource.capabilities import arrow_schema
from spark_rocket.datasource.options.bodies import BodyFormat, BodySettings
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parse import parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.write.writer import with_bodies
from spark_rocket.errors import ProtocolError, RowError
from spark_rocket.protocol.filter.tags import UNSELECTABLE_TAG, parse_tags
from tests.datasource.body_formats.formats import columns, map_to

SCHEMA = columns(id="int", Tags="string", properties=map_to("string"))


def write(*batches: list[dict[str, Any]]) -> list[str | None]:
    parsed = parse_write_options({"nameServer": "x:1", "topic": "t"}, Scope.WRITE)
    options = WriteOptions(**{**vars(parsed), "body": BodySettings(BodyFormat.JSON)})
    made = (pa.RecordBatch.from_pylist(rows, arrow_schema(SCHEMA)) for rows in batches)
    return [tag for batch in with_bodies(made, options, SCHEMA) for tag in batch.column("Tags").to_pylist()]


def row(tags: str | None, **properties: str) -> dict[str, Any]:
    return {"id": 1, "Tags": tags, "properties": list(properties.items())}


def is_selectable(tag: str) -> bool:
    try:
        return parse_tags(tag).tags == {tag}
    except ProtocolError:
        return False


@given(st.text("a*| \t\n\x00ö", min_size=1, max_size=5))
def test_the_pattern_finds_the_tags_that_no_expression_selects(tag: str) -> None:
    pattern = re.compile(UNSELECTABLE_TAG.replace(r"\z", r"\Z"))
    assert (pattern.search(tag) is None) == is_selectable(tag)


@pytest.mark.parametrize("tag", ["a||b", " a", "a ", "*", "||", "\n", "ö||"])
def test_a_tag_that_no_expression_selects(tag: str) -> None:
    good = [row("a"), row(None), row("a b"), row("a|b"), row("**"), row("ö"), row("")]
    assert write(good, good) == ["a", None, "a b", "a|b", "**", "ö", ""] * 2
    with pytest.raises(RowError) as caught:
        write(good, [*good, row(tag), row("a")])
    assert caught.value.code == "BAD_ROW.TAGS"
    assert caught.value.message.startswith(f"row 14 of partition 0: tags is {tag!r}, which no consumer can select")


def test_tags_of_copied_properties() -> None:
    with pytest.raises(RowError, match="row 2 of partition 0: tags is ' b'"):
        write([row(None), row("a"), row(None, TAGS=" b")])
    assert write([row("b", TAGS=" b", KEYS="*")]) == ["b"]


def test_tags_without_a_column() -> None:
    schema = columns(body=StringType())
    parsed = parse_write_options({"nameServer": "x:1", "topic": "t"}, Scope.WRITE)
    batch = pa.RecordBatch.from_pylist([{"body": " *"}], arrow_schema(schema))
    assert [found.num_rows for found in with_bodies(iter([batch]), parsed, schema)] == [1]
