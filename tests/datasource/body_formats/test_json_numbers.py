"""Numbers made eight digits at a time are those that Python makes, or are left to others."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.datasource.bodies.json_numbers import decimal_numbers, whole_numbers

_Array = np.ndarray[Any, Any]


def places(texts: list[str], between: str = '"a.5":') -> tuple[_Array, _Array, _Array]:
    """The texts among others, as they lie in bodies."""
    data, starts, ends = b" " * 16, [], []
    for text in texts:
        data += between.encode()
        starts.append(len(data))
        data += text.encode()
        ends.append(len(data))
    raw = np.frombuffer(data + b"," * 16, np.uint8)
    words = np.ndarray((len(raw) - 7,), "<u8", raw, strides=(1,))
    return words, np.array(starts), np.array(ends)


def same(found: _Array, texts: list[str], kind: Callable[[str], float]) -> bool:
    return [struct.pack(">d", one) for one in found.tolist()] == [struct.pack(">d", kind(text)) for text in texts]


@given(st.lists(st.integers(0, 10**16 - 1), min_size=1, max_size=20))
@settings(deadline=None)
def test_whole_numbers(numbers: list[int]) -> None:
    found = whole_numbers(*places([str(number) for number in numbers]))
    assert found is not None
    assert found.dtype == np.int64
    assert found.tolist() == numbers


@given(st.lists(st.tuples(st.integers(0, 10**15 - 1), st.integers(0, 7)), min_size=1, max_size=20))
@settings(deadline=None)
def test_decimal_numbers(parts: list[tuple[int, int]]) -> None:
    """Of up to 15 digits; the nearest doubles."""
    texts = []
    for number, behind in parts:
        digits = str(number).zfill(behind + 1)
        texts.append(f"{digits[:-behind]}.{digits[-behind:]}" if behind else digits)
    found = decimal_numbers(*places(texts))
    assert found is not None
    assert same(found, texts, float)


@given(st.lists(st.floats(0, allow_nan=False, allow_infinity=False).map(repr), min_size=1, max_size=5))
@settings(deadline=None)
def test_any_double_is_right_or_left_to_others(texts: list[str]) -> None:
    found = decimal_numbers(*places(texts))
    assert found is None or same(found, texts, float)


@pytest.mark.parametrize(
    "odd", ["", ".", "1.", ".5", "1..5", "1.5.5", "1e5", "+1", "-1", "1/5", "1.5/", "0x1", "1 ", "٣", "1" * 17]
)
@pytest.mark.parametrize("others", [[], ["1", "2.5"], ["123456789.25"]])
def test_what_is_no_such_number(odd: str, others: list[str]) -> None:
    texts = [*others, odd]
    assert whole_numbers(*places(texts)) is None
    assert decimal_numbers(*places(texts)) is None


@pytest.mark.parametrize(
    "text", ["0", "7", "12345678", "123456789", "9999999999999999", "0.1", "12345678.1234567", "0.3", "1234567.25"]
)
def test_usual_numbers_are_made_here(text: str) -> None:
    found = decimal_numbers(*places([text, "1"]))
    assert found is not None
    assert same(found, [text, "1"], float)
