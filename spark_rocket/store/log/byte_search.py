"""Finding and telling apart many short byte strings at once, without a Python step for each.

Pure. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_COMMON = 16  # different values that are looked for together


def find_all(source: Bytes, pattern: bytes, anchor: int) -> Ints:
    """Where ``pattern`` stands in ``source``. ``anchor``: the place in it of its rarest byte, which is looked for."""
    found = np.flatnonzero(source == pattern[anchor]) - anchor
    found = found[(found >= 0) & (found <= len(source) - len(pattern))]
    for place, byte in enumerate(pattern):
        if place != anchor:
            found = found[source[found + place] == byte]
    return found


def group(data: bytes, starts: Ints, ends: Ints) -> tuple[Ints, list[bytes]]:
    """The different values among many ranges of ``data``, and for each range which of them it is."""
    numbers = np.full(len(starts), -1, np.int64)
    values: list[bytes] = []
    source = np.frombuffer(data, np.uint8)
    lengths = ends - starts
    left = np.arange(len(starts))
    while len(left) and len(values) < _COMMON:
        first = left[0]
        length = int(lengths[first])
        value = data[int(starts[first]) : int(ends[first])]
        same = lengths[left] == length
        if length:
            rows = np.lib.stride_tricks.sliding_window_view(source, length)[starts[left[same]]]
            same[same] = (rows == np.frombuffer(value, np.uint8)).all(axis=1)
        numbers[left[same]] = len(values)
        values.append(value)
        left = left[~same]
    known = {value: number for number, value in enumerate(values)}
    for index in left.tolist():
        value = data[int(starts[index]) : int(ends[index])]
        number = known.get(value)
        if number is None:
            number = known[value] = len(values)
            values.append(value)
        numbers[index] = number
    return numbers, values
