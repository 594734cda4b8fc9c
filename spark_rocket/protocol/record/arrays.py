"""NumPy arrays and strings as Arrow arrays, and back, without pandas.

``pa.array``, ``pa.scalar`` and ``Array.to_numpy`` import pandas if it is installed, and so does a kernel with a Python
value as argument. That costs as much CPU time as all imports of PySpark, in every new Python worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

_Any = np.ndarray[Any, Any]
_MAX_BUFFER_BYTES = 2**31 - 1


def array_of(values: _Any, missing: np.ndarray[Any, np.dtype[np.bool_]] | None = None) -> pa.Array:
    """Return an array of numbers (over the memory of ``values``) or booleans, with nulls where ``missing`` is true."""
    data = np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(data.dtype)
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    bits = np.packbits(data, bitorder="little") if data.dtype == np.bool_ else data
    return pa.Array.from_buffers(kind, len(data), [valid, pa.py_buffer(bits)])


def binary_of(values: Iterable[bytes | None]) -> pa.Array:
    """Return an array of binary values."""
    parts = list(values)
    missing = np.array([part is None for part in parts], bool)
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    data = [part or b"" for part in parts]
    edges = np.fromiter(accumulate(map(len, data), initial=0), np.int64, len(parts) + 1)
    if edges[-1] > _MAX_BUFFER_BYTES:
        raise pa.ArrowCapacityError(f"{edges[-1]} bytes in one array of binary values")
    buffers = [valid, pa.py_buffer(edges.astype(np.int32)), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.binary(), len(parts), buffers)


def strings_of(texts: Iterable[str | None]) -> pa.Array:
    """Return an array of strings."""
    return binary_of(None if text is None else text.encode() for text in texts).cast(pa.string())


def binary_scalar(value: bytes) -> pa.Scalar:
    """Return a binary value for a kernel."""
    return binary_of([value])[0]


def string_scalar(text: str | None) -> pa.Scalar:
    """Return a string for a kernel."""
    return strings_of([text])[0]


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


def to_strings(array: pa.Array) -> pa.Array:
    """Convert binary to string; invalid UTF-8 becomes U+FFFD."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in array.to_pylist()]
        return pa.array(texts, pa.string())


@lru_cache(8)
def repeated_text(text: str, count: int) -> pa.Array:
    """Return a column with one constant text."""
    data = text.encode()
    return pa.Array.from_buffers(
        pa.string(), count, [None, even_edges((len(data),), count), pa.py_buffer(data * count)]
    )


@lru_cache(8)
def even_edges(lengths: tuple[int, ...], count: int) -> pa.Buffer:
    """Return the offsets of ``count`` repetitions of strings with these lengths."""
    edges = np.zeros(count * len(lengths) + 1, np.int32)
    if lengths:
        ends = np.cumsum(lengths, dtype=np.int32)
        edges[1:] = np.add.outer(np.arange(count, dtype=np.int32) * ends[-1], ends).ravel()
    return pa.py_buffer(edges)


@lru_cache(2)
def repeated_texts(texts: tuple[bytes, ...], count: int) -> pa.Array:
    """Return a column with repetitions of some strings."""
    edges = even_edges(tuple(map(len, texts)), count)
    return pa.Array.from_buffers(pa.string(), count * len(texts), [None, edges, pa.py_buffer(b"".join(texts) * count)])
