"""Finding and grouping bytes: what plain Python finds and groups."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.store.log.byte_search import find_all, group


@given(st.lists(st.sampled_from([b"a", b"ab", b"abc", b"\0", b"cab"]), max_size=60).map(b"".join), st.integers(0, 2))
def test_find_all(data: bytes, anchor: int) -> None:
    found = find_all(np.frombuffer(data, np.uint8), b"abc", anchor)
    assert found.tolist() == [match.start() for match in re.finditer(b"abc", data)]


@given(st.lists(st.binary(max_size=2), max_size=80))
def test_group(values: list[bytes]) -> None:
    data = b"".join(values)
    ends = np.cumsum([len(value) for value in values], dtype=np.int64) if values else np.zeros(0, np.int64)
    starts = ends - np.array([len(value) for value in values], np.int64)
    numbers, different = group(data, starts, ends)
    assert [different[number] for number in numbers.tolist()] == values
    assert len(set(different)) == len(different)


def test_many_different_values() -> None:
    values = [str(number % 100).encode() for number in range(1_000)]
    ends = np.cumsum([len(value) for value in values])
    starts = ends - np.array([len(value) for value in values])
    numbers, different = group(b"".join(values), starts, ends)
    assert [different[number] for number in numbers.tolist()] == values
    assert len(different) == 100
