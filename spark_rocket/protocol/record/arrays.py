"""NumPy arrays and strings as Arrow arrays, and back, without pandas.

``pa.array``, ``pa.scalar`` and ``Array.to_numpy`` import pandas if it is installed, and so does a kernel with a Python
value as argument. That costs as much CPU time as all imports of PySpark, in every new Python worker.

Thread-safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

_Any = np.ndarray[Any, Any]


def array_of(values: _Any, missing: np.ndarray[Any, np.dtype[np.bool_]] | None = None) -> pa.Array:
    """Return an array of numbers over the memory of ``values``, with nulls where ``missing`` is true."""
    data = np.ascontiguousarray(values)
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(data.dtype), len(data), [valid, pa.py_buffer(data)])


def strings_of(texts: Iterable[str]) -> pa.Array:
    """Return an array of strings."""
    parts = [text.encode() for text in texts]
    edges = np.fromiter(accumulate(map(len, parts), initial=0), np.int32, len(parts) + 1)
    return pa.Array.from_buffers(pa.string(), len(parts), [None, pa.py_buffer(edges), pa.py_buffer(b"".join(parts))])


def binary_scalar(value: bytes, kind: pa.DataType | None = None) -> pa.Scalar:
    """Return a scalar of ``kind``: binary, unless another type of strings is given."""
    kind = kind or pa.binary()
    is_large = kind in (pa.large_binary(), pa.large_string())
    edges = pa.py_buffer(np.array([0, len(value)], np.int64 if is_large else np.int32))
    return pa.Array.from_buffers(kind, 1, [None, edges, pa.py_buffer(value)])[0]


def numpy_of(array: pa.Array) -> _Any:
    """Return the values of an array of numbers or booleans without nulls."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(0, bool if pa.types.is_boolean(array.type) else array.type.to_pandas_dtype())
    if pa.types.is_boolean(array.type):
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        return bits[array.offset : array.offset + len(array)].astype(bool)
    dtype = np.dtype(array.type.to_pandas_dtype())
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)
