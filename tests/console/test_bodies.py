"""Any bodies as text, JSON and bytes. Avro is in test_avro.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_rocket.console.avro import avro_text
from spark_rocket.console.bodies import MAX_TEXT_LENGTH, preview, show
from spark_rocket.protocol.body_text import hex_lines, json_lines, text_of

CALM = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@CALM
@given(st.lists(JSON, max_size=4) | st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_formatted_json_is_equal(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    lines = json_lines(text)
    assert lines is not None
    assert json.loads(lines) == json.loads(text)


def test_numbers_and_order_are_not_changed() -> None:
    assert json_lines('{"b": 1.10, "a": 12345678901234567890123, "c": [], "d": {}, "e": [1,2]}') == (
        '{\n  "b": 1.10,\n  "a": 12345678901234567890123,\n  "c": [],\n  "d": {},\n  "e": [\n    1,\n    2\n  ]\n}'
    )


@pytest.mark.parametrize("text", ["", "1", '"a"', "{", "[1,]", "nothing", "[" * 500 + "]" * 500])
def test_text_that_is_not_formatted_as_json(text: str) -> None:
    assert json_lines(text) is None


@CALM
@given(st.binary(max_size=300))
def test_any_bytes_are_shown(body: bytes) -> None:
    shown = show(body, avro_text=avro_text)
    assert shown["size"] == len(body)
    assert bytes.fromhex("".join(line[10:58] for line in str(shown["hex"]).splitlines())) == body
    preview(body)
    json.dumps(shown)


def test_a_truncated_character_is_not_binary() -> None:
    assert text_of("Grüße"[:3].encode()[:-1], is_cut=True) == "Gr"
    for body in ("Grü".encode()[:-1], b"\xff\xfe", b"a\x00b"):
        assert text_of(body) is None
    assert text_of(b"\xc3", is_cut=True) is None
    assert preview(b"a\n b\t c") == "a b c"
    assert hex_lines(b"AB\x00").split() == ["00000000", "41", "42", "00", "|AB.|"]


def test_a_long_body_is_truncated() -> None:
    shown = show(b"x" * (MAX_TEXT_LENGTH + 10))
    assert len(str(shown["text"])) == MAX_TEXT_LENGTH
    assert shown["textCut"]
    assert shown["hexCut"]
