"""NumPy and Arrow arrays without pandas, compared with pyarrow's own conversions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_rocket.protocol.record.arrays import array_of, binary_of, numpy_of, strings_of


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.float64])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100])
def test_numbers(dtype: type, count: int) -> None:
    values: np.ndarray[Any, Any] = np.arange(2 * count).astype(dtype)[::2]
    assert array_of(values).equals(pa.array(values))
    missing = np.arange(count) % 3 == 1
    array = array_of(values, missing)
    array.validate(full=True)
    assert array.equals(pa.array(values, mask=missing))
    assert numpy_of(pa.array(values)[1:]).tolist() == values[1:].tolist()
    assert numpy_of(pa.array(missing)[1:]).tolist() == missing[1:].tolist()
    assert array_of(missing, ~missing).equals(pa.array(missing, mask=~missing))


@pytest.mark.parametrize("strings", [[], [""], ["a", "", "größe", "\N{SNOWMAN}"]])
def test_strings(strings: list[str]) -> None:
    array = strings_of(strings)
    array.validate(full=True)
    assert array.equals(pa.array(strings, pa.string()))


def test_binary_values_and_nulls() -> None:
    values = [b"a", None, b"", b"\x80", None, *[b"longer"] * 9]
    array = binary_of(values)
    array.validate(full=True)
    assert array.equals(pa.array(values, pa.binary()))
    assert strings_of(["a", None]).equals(pa.array(["a", None]))
