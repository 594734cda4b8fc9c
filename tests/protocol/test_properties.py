"""Property strings: one table driving encode, decode, trailing separators and every truncation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.record.properties import (
    append_property,
    decode_properties,
    encode_properties,
    find_property,
    remove_property,
)
from spark_rocket.protocol.record.uniform import layout_of, value_range

TABLE = [
    ({}, b""),
    ({"TAGS": "TagA"}, b"TAGS\x01TagA"),
    ({"KEYS": "a b", "WAIT": "true"}, b"KEYS\x01a b\x02WAIT\x01true"),
    ({"empty": "", "é": "日本", "x": "y"}, "empty\x01\x02é\x01日本\x02x\x01y".encode()),
    ({"": "nameless"}, b"\x01nameless"),
]
CASES = pytest.mark.parametrize(("properties", "raw"), TABLE)


@CASES
def test_encode(properties: dict[str, str], raw: bytes) -> None:
    assert encode_properties(properties) == raw


@CASES
def test_decode(properties: dict[str, str], raw: bytes) -> None:
    for kind in (bytes, bytearray, memoryview):
        assert decode_properties(kind(raw)) == properties
    assert decode_properties(raw.decode()) == properties
    if raw:
        assert decode_properties(raw + b"\x02") == properties  # as 5.x clients end it


@CASES
def test_every_truncation_keeps_the_whole_pairs(properties: dict[str, str], raw: bytes) -> None:
    whole = list(properties.items())
    for size in range(len(raw)):
        decoded = decode_properties(raw[:size])
        count = raw[:size].count(b"\x02")
        assert list(decoded.items())[:count] == whole[:count]
        assert len(decoded) <= count + 1


@CASES
def test_find_append_remove(properties: dict[str, str], raw: bytes) -> None:
    assert find_property(raw, b"absent") is None
    assert remove_property(raw, b"absent") == raw
    for name, value in properties.items():
        assert find_property(raw, name.encode()) == value.encode()
        left = {other: text for other, text in properties.items() if other != name}
        assert remove_property(raw, name.encode()) == encode_properties(left)
    for start in (raw, raw + b"\x02" if raw else raw):
        assert decode_properties(append_property(start, "NEW", "value")) == {**properties, "NEW": "value"}


def test_names_that_end_alike_are_told_apart() -> None:
    raw = encode_properties({"XTAGS": "no", "TAGSX": "no", "v": "TAGS"})
    assert find_property(raw, b"TAGS") is None
    assert remove_property(raw, b"TAGS") == raw
    assert find_property(append_property(raw, b"TAGS", b"yes"), b"TAGS") == b"yes"


def test_the_last_of_a_repeated_name_counts() -> None:
    raw = b"a\x011\x02b\x012\x02a\x013"
    assert decode_properties(raw) == {"a": "3", "b": "2"}
    assert find_property(raw, b"a") == b"3"
    assert remove_property(raw, b"a") == b"b\x012"


def test_append_adds_the_separator_only_if_missing() -> None:
    assert append_property(b"", "a", "b") == b"a\x01b"
    assert append_property(b"x\x01y", "a", "b") == append_property(b"x\x01y\x02", "a", "b") == b"x\x01y\x02a\x01b"


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (b"\x02\x02", {}),
        (b"no separator", {}),
        (b"a\x01b\x02junk\x02c\x01d", {"a": "b", "c": "d"}),
        (b"a\x01b\x01c", {"a": "b\x01c"}),
        (b"a\x01\xff", {"a": "\N{REPLACEMENT CHARACTER}"}),
    ],
)
def test_odd_strings_are_read_as_far_as_they_go(raw: bytes, wanted: dict[str, str]) -> None:
    assert decode_properties(raw) == wanted


@pytest.mark.parametrize(
    "properties", [{"a\x01": "b"}, {"a": "b\x02"}, {"a": "x", "b\x02": "y"}, {"a": "\ud800"}, {"\udfff": "b"}]
)
def test_what_cannot_be_encoded(properties: dict[str, str]) -> None:
    with pytest.raises(ProtocolError):
        encode_properties(properties)
    name, value = list(properties.items())[-1]
    with pytest.raises(ProtocolError):
        append_property(b"", name, value)


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=10)


@given(st.dictionaries(text, text, max_size=6))
def test_any_properties_survive(properties: dict[str, str]) -> None:
    raw = encode_properties(properties)
    assert decode_properties(raw) == properties
    assert all(find_property(raw, name.encode()) == value.encode() for name, value in properties.items())


_PIECES = st.sampled_from([b"\x01", b"\x02", b"TAGS", b"KEYS", b"a", b"b", b"\0", "é".encode()])


@given(st.lists(_PIECES, max_size=12).map(b"".join), st.integers(0, 40), st.data())
def test_many_strings_at_once_as_one_by_one(text: bytes, places: int, data: st.DataObject) -> None:
    """Strings of one length, which differ in some bytes: the result for all holds for each."""
    rows = [bytearray(text) for _ in range(3)]
    for _ in range(places if text else 0):
        row, at = data.draw(st.sampled_from(rows)), data.draw(st.integers(0, len(text) - 1))
        row[at] = data.draw(st.sampled_from(b"\x01\x02abcdefgh\xc3"))
    layout = layout_of(value_range(np.array([list(row) for row in rows], np.uint8).reshape(3, len(text))))
    for changed in map(bytes, rows) if layout is not None else ():
        assert layout is not None
        found = {name: changed[start:end] for name, (start, end) in layout.values.items()}
        assert found == {name: find_property(changed, name) for name in layout.names if name in found}
        assert all(find_property(changed, name) is None for name in layout.names - found.keys())
        if layout.is_exact:
            assert decode_properties(changed) == {name.decode(): value.decode() for name, value in found.items()}
    if layout is None:
        assert len(set(map(bytes, rows))) > 1 or b"\0" in text
