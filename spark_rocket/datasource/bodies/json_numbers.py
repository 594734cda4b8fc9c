"""Many numbers, as JSON's grammar has them, to an array: eight digits at a time, without a call for each.

A number's last eight bytes are one 64-bit word. Bytes before the number are made zeros, that all are digits is two
masks, and three multiplications make their value of them, for all numbers of a column at once. What is behind a point
is another such word. ``(whole * 10**n + behind) / 10**n`` of no more than 15 digits is the nearest double, as both
sides of the division are exact.

What is not covered (more digits, exponents, a point further than seven digits before the end) and what is no number is
answered None, for whoever knows better. Pure. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_I64 = np.ndarray[Any, np.dtype[np.int64]]
_F64 = np.ndarray[Any, np.dtype[np.float64]]
_U64 = np.ndarray[Any, np.dtype[np.uint64]]

_MOST_DIGITS = 16
_EXACT_DIGITS = 15  # that a double has of any decimal number
_EVERY = 0x0101010101010101
_ZEROS = np.uint64(0x30 * _EVERY)
_POINTS = np.uint64(0x2E * _EVERY)
_ONES, _TOPS, _LAST_TOP = np.uint64(_EVERY), np.uint64(0x80 * _EVERY), np.uint64(1 << 63)
_SIXES, _HALVES, _THREES = np.uint64(6 * _EVERY), np.uint64(0xF0 * _EVERY), np.uint64(0x33 * _EVERY)
_LAST = np.array([(1 << 64) - (1 << 8 * (8 - count)) for count in range(9)], np.uint64)  # so many bytes of a word
_BEFORE = ~_LAST & _ZEROS
_PLACES = np.uint64(0x0706050403020100)  # times a byte's lowest bit: how many bytes are behind it, in the top byte
_PAIRS = np.uint64(0x000000FF000000FF)
_HUNDREDS, _UNITS = np.uint64(100 + (1_000_000 << 32)), np.uint64(1 + (10_000 << 32))
_TENS = 10 ** np.arange(_EXACT_DIGITS + 1)
_ONE, _FOUR, _SEVEN, _EIGHT, _TEN, _SIXTEEN = (np.uint64(number) for number in (1, 4, 7, 8, 10, 16))
_WORD, _HALF = np.uint64(56), np.uint64(32)


def whole_numbers(words: _U64, starts: _I64, ends: _I64) -> _I64 | None:
    """Numbers without a sign. ``words`` are the eight bytes from each place on; there are 16 before every number."""
    lengths = ends - starts
    if int(lengths.min()) < 1 or (most := int(lengths.max())) > _MOST_DIGITS:
        return None
    values = _value(words[ends - 8], np.minimum(lengths, 8) if most > 8 else lengths)
    if values is None or most <= 8:
        return values
    higher = _value(words[ends - 16], np.maximum(lengths - 8, 0))
    return None if higher is None else higher * 100_000_000 + values


def decimal_numbers(words: _U64, starts: _I64, ends: _I64) -> _F64 | None:
    """Likewise, with a point or without."""
    lengths = ends - starts
    if int(lengths.min()) < 1:
        return None
    last = words[ends - 8]
    inside = np.minimum(lengths, 8)
    last &= _LAST[inside]
    last |= _BEFORE[inside]
    other = last ^ _POINTS
    points = (other - _ONES) & ~other & _TOPS
    if not points.any():
        values = whole_numbers(words, starts, ends)
        return None if values is None else values.astype(np.float64)
    if bool((points & (points - _ONE)).any()) or bool((points >= _LAST_TOP).any()):
        return None  # two points, or one at the end
    points >>= _SEVEN
    behind = ((points * _PLACES) >> _WORD).astype(np.int64)
    point = ends - behind - (points != 0)
    if int((point - starts + behind).max()) > _EXACT_DIGITS:
        return None
    before = whole_numbers(words, starts, point)
    fraction = _value(last, behind)
    if before is None or fraction is None:
        return None
    tens = _TENS[behind]
    decimals: _F64 = (before * tens + fraction) / tens
    return decimals


def _value(words: _U64, counts: _I64) -> _I64 | None:
    """Of the last bytes of each word, all of them digits; 0 of none. The words are used up."""
    words &= _LAST[counts]
    words |= _BEFORE[counts]
    if not bool((((words & _HALVES) | (((words + _SIXES) & _HALVES) >> _FOUR)) == _THREES).all()):
        return None
    words -= _ZEROS
    words = words * _TEN + (words >> _EIGHT)
    words = (words & _PAIRS) * _HUNDREDS + ((words >> _SIXTEEN) & _PAIRS) * _UNITS
    return (words >> _HALF).astype(np.int64)
