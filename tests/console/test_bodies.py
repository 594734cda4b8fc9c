"""Bodies as text, JSON, Avro and bytes, whatever they are."""

from __future__ import annotations

import io
import json
import zlib
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_rocket.console import bodies
from spark_rocket.console.bodies import (
    MOST_RECORDS,
    MOST_TEXT,
    avro_text,
    hex_lines,
    json_lines,
    preview,
    show,
    text_of,
)
from spark_rocket.errors import ProtocolError

CALM = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@CALM
@given(st.lists(JSON) | st.dictionaries(st.text(), JSON))
def test_json_set_out_is_the_same_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    lines = json_lines(text)
    assert lines is not None
    assert json.loads(lines) == json.loads(text)


def test_numbers_and_order_stay_as_they_were_written() -> None:
    assert json_lines('{"b": 1.10, "a": 12345678901234567890123, "c": [], "d": {}, "e": [1,2]}') == (
        '{\n  "b": 1.10,\n  "a": 12345678901234567890123,\n  "c": [],\n  "d": {},\n  "e": [\n    1,\n    2\n  ]\n}'
    )


@pytest.mark.parametrize("text", ["", "1", '"a"', "{", "[1,]", "nothing", "[" * 500 + "]" * 500])
def test_what_is_no_json_to_be_set_out(text: str) -> None:
    assert json_lines(text) is None


@CALM
@given(st.binary(max_size=300))
def test_any_bytes_are_shown(body: bytes) -> None:
    shown = show(body)
    assert shown["size"] == len(body)
    assert bytes.fromhex("".join(line[8:56] for line in str(shown["hex"]).splitlines())) == body
    preview(body)
    json.dumps(shown)


def test_a_character_cut_off_is_no_binary() -> None:
    assert text_of("Grüße"[:3].encode()[:-1]) == "Gr"
    assert text_of(b"\xff\xfe") is None
    assert text_of(b"a\x00b") is None
    assert text_of(b"\xc3") is None
    assert preview(b"a\n b\t c") == "a b c"
    assert hex_lines(b"AB\x00").split() == ["000000", "41", "42", "00", "AB."]


def test_a_long_body_is_cut_where_it_is_shown() -> None:
    shown = show(b"x" * (MOST_TEXT + 10))
    assert len(str(shown["text"])) == MOST_TEXT
    assert shown["textCut"]
    assert shown["hexCut"]


# --- Avro -----------------------------------------------------------------------------------------------------------


def container(schema: Any, records: list[Any], **options: Any) -> bytes:
    file = io.BytesIO()
    fastavro.writer(file, schema, records, **options)
    return file.getvalue()


def test_containers_packed_and_not() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "bytes"}]}
    records = [{"a": i, "b": b"\x01"} for i in range(200)]
    for codec in ("null", "deflate"):
        found = json.loads(avro_text(container(schema, records, codec=codec, sync_interval=100), None))
        assert found == [{"a": i, "b": "01"} for i in range(MOST_RECORDS)]


@CALM
@given(st.binary(max_size=80))
def test_a_damaged_container_is_said(tail: bytes) -> None:
    for body in (b"Obj\x01" + tail, container("long", [1, 2])[:-20] + tail):
        shown = show(body)
        assert (shown["avro"] is None) == (shown["avroProblem"] is not None)


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MOST_UNPACKED", 10_000)
    body = container("bytes", [b"\x00" * 100_000], codec="deflate")
    assert len(body) < 1_000
    with pytest.raises(ProtocolError, match="unpacks to more"):
        avro_text(body, None)
    packer = zlib.compressobj(wbits=-15)
    assert len(packer.compress(b"") + packer.flush()) < 10


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": "null"},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]},
        {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        ["null", {"type": "map", "values": {"type": "array", "items": "null"}}],
    ],
)
def test_arrays_of_nothing_are_refused(schema: Any) -> None:
    # A billion of them in six bytes.
    with pytest.raises(ProtocolError, match=r"no bytes|cannot be used"):
        avro_text(b"\x80\xa8\xd6\xb9\x07\x00", json.dumps(schema))


@pytest.mark.parametrize("schema", ["", "{", '"nothing"', "[]", '{"type": "record"}', "12"])
def test_a_schema_that_is_none(schema: str) -> None:
    with pytest.raises(ProtocolError):
        avro_text(b"\x02", schema)


def test_a_single_object_is_read_by_its_schema() -> None:
    assert avro_text(b"\xc3\x01" + bytes(8) + b"\x54", '"long"') == "42"
