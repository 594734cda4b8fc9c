"""Byte strings of any lengths, handled many at a time, with the same result as one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.property_spans import PropertySpans
from spark_rocket.protocol.record.spans import ByteArray, Ints, copy_spans, java_hashes, walk_sizes

NAMES = (b"TAGS", b"KEYS", b"UNIQ_KEY", b"LONG_NAME_OF_A_PROPERTY")
PIECES = st.sampled_from([*NAMES, b"\x01", b"\x02", b"a", b"\0", b" ", "é".encode(), b"NAME", b"\xff"])
FRAGMENTS = [
    *(b"\n", b"a", b"\xff", b"\x80", b"\xed\xa0\x80", b"\xc0\x80"),
    *(letter.encode()[:size] for letter in "é中🚀" for size in range(1, len(letter.encode()) + 1)),
]
lengths = st.integers(0, 20) | st.integers(0, 1200) | st.just(32) | st.integers(4000, 9000)


def joined(texts: list[bytes], gap: bytes = b"") -> tuple[ByteArray, Ints, Ints]:
    """Return the strings in one buffer, and their starts and lengths."""
    sizes = np.array([len(text) for text in texts], np.int64)
    raw = np.frombuffer(b"".join(text + gap for text in texts) + b"-", np.uint8)
    return raw, np.cumsum(sizes + len(gap)) - sizes - len(gap), sizes


@settings(deadline=None)
@given(st.lists(lengths, max_size=30), st.integers(0, 3))
def test_copies(sizes: list[int], gap: int) -> None:
    texts = [bytes((number + at) % 251 for at in range(size)) for number, size in enumerate(sizes)]
    raw, starts, counts = joined(texts, b"\xee" * gap)
    target = np.zeros(len(raw), np.uint8)
    copy_spans(raw, starts, counts, target, starts)
    for start, text in zip(starts.tolist(), texts, strict=True):
        assert target[start : start + len(text)].tobytes() == text
        assert not target[start + len(text) : start + len(text) + gap].any()


@given(
    st.lists(st.text(max_size=40) | st.text("ab") | st.sampled_from(["é" * 20_000, "a" * 90_000]), max_size=9)
    | st.lists(st.text("ab", max_size=40), max_size=9),
    st.sampled_from([b"", b"-", b"-" * 10_000, b"\xee"]),
)
def test_hashes(texts: list[str], gap: bytes) -> None:
    raw, starts, sizes = joined([text.encode("utf-8", "replace") for text in texts], gap)
    before = np.array([java_hash(f"{number}#") & 0xFFFFFFFF for number in range(len(texts))], np.uint32)
    clean = [text.encode("utf-8", "replace").decode() for text in texts]
    assert java_hashes(raw, starts, starts + sizes).view(np.int32).tolist() == [java_hash(text) for text in clean]
    assert java_hashes(raw, starts, starts + sizes, before).view(np.int32).tolist() == [
        java_hash(f"{number}#{text}") for number, text in enumerate(clean)
    ]


@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=5).map(b"".join) | st.binary(max_size=20), max_size=9))
def test_hashes_of_invalid_strings(texts: list[bytes]) -> None:
    """Sequences that end with their string, or would continue in the next one; and the newlines around them."""
    raw, starts, sizes = joined(texts)
    found = java_hashes(raw, starts, starts + sizes)
    assert found.view(np.int32).tolist() == [java_hash(text.decode("utf-8", "replace")) for text in texts]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(PIECES, max_size=9).map(b"".join), max_size=8))
def test_properties(texts: list[bytes]) -> None:
    raw, starts, sizes = joined(texts, b"\xee\xee")
    spans = PropertySpans(raw, starts, sizes)
    assert spans.has_nul == any(b"\0" in text for text in texts)
    for name in NAMES:
        rows, begins, ends = spans.values(name)
        data = spans.hashes(begins, ends).view(np.int32).tolist()
        must = {row: value for row, text in enumerate(texts) if (value := find_property(text, name)) is not None}
        assert dict(zip(rows.tolist(), data, strict=True)) == {
            row: java_hash(value.decode("utf-8", "replace")) for row, value in must.items()
        }
        same = spans.same_value(begins, ends)
        assert {same} == set(must.values()) if len(set(must.values())) == 1 else same is None
        assert spans.may_have(name + b"\x01") or not must
        values, begins, ends = spans.words(begins, ends)
        words = [(row, word) for row, value in must.items() for word in value.split(b" ") if word]
        assert rows[values].tolist() == [row for row, _ in words]
        assert spans.hashes(begins, ends).view(np.int32).tolist() == [
            java_hash(word.decode("utf-8", "replace")) for _, word in words
        ]


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(0, 9), st.integers(-9, 30))
def test_walks(sizes: list[int], rest: int, wrong: int) -> None:
    data = b"".join(size.to_bytes(4, "big") + bytes(size - 4) for size in sizes if size >= 4)
    data += wrong.to_bytes(4, "big", signed=True) + bytes(rest)
    starts, at = [], 0
    while at <= len(data) - 8 and (size := int.from_bytes(data[at : at + 4], "big", signed=True)) >= 8:
        starts.append(at)
        at += size
    found, end = walk_sizes(data, 8)
    assert (found.tolist(), end) == (starts, at)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_walk_over_too_few_bytes(size: int) -> None:
    found, end = walk_sizes(bytes(size), 8)
    assert (len(found), end) == (0, 0)
