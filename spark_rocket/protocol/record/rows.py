"""Rows of a data frame -> batch bodies (320), checked all together and encoded when they are sent.

``plan_rows`` checks every row and says where it will be, so that a caller can cut requests; their bytes are made one
request at a time, for so many still lie in the CPU's cache when the kernel copies them.

Rows of which all values are as long as those of the row before lie in a batch body like the rows of a matrix: NumPy
fills it column by column, and what is the same in all rows, such as heads and names, from one example. Most data
frames have few places where lengths change. Rows that are not alike are put together by Arrow (``columnar_encode``),
which takes twice as long.

Thread-safety: a plan belongs to one thread. Corresponds to MessageDecoder.encodeMessages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_rocket.protocol.record.column_encoder import (
    binary_values,
    encode_batch,
    encode_properties_columns,
    refuse_separators,
    value_offsets,
)
from spark_rocket.protocol.record.layout import BATCH_HEADER, BATCH_OVERHEAD, PROPERTIES_LENGTH

_I64 = np.ndarray[Any, np.dtype[np.int64]]
_BODY = "body"
_ROWS_A_RUN = 1000  # on average, from which on a batch is worth cutting into runs


class _Column(NamedTuple):
    """Values of a column: their bytes, and where each begins."""

    data: Any  # a buffer, or None if all are empty
    offsets: _I64


class RowsPlan:
    """Rows that are known to be good."""

    def __init__(self, positions: _I64, property_lengths: _I64, edges: Sequence[int]) -> None:
        self.positions = positions
        """The ``n + 1`` positions at which rows would start in one batch body of all, the last being its length."""
        self.property_lengths = property_lengths
        self.edges = edges
        """Where rows begin whose lengths are not those of the row before; 0 and the end alone if that is nearly
        everywhere."""

    def encode(self, low: int, high: int) -> memoryview:
        """The batch body of the rows from ``low`` to before ``high``."""
        raise NotImplementedError


class _AlikePlan(RowsPlan):
    """Runs of rows with the same lengths."""

    def __init__(self, body: _Column, pieces: list[bytes | _Column], edges: list[int]) -> None:
        firsts = np.array(edges[:-1])
        counts = np.diff(edges)
        bodies = body.offsets[firsts + 1] - body.offsets[firsts]
        properties = sum(
            len(piece) if isinstance(piece, bytes) else piece.offsets[firsts + 1] - piece.offsets[firsts]
            for piece in pieces
        ) + np.zeros(len(firsts), np.int64)
        sizes = bodies + properties + BATCH_OVERHEAD
        positions = np.zeros(edges[-1] + 1, np.int64)
        np.cumsum(np.repeat(sizes, counts), out=positions[1:])
        super().__init__(positions, np.repeat(properties, counts), edges)
        self._body = body
        self._pieces = pieces

    def encode(self, low: int, high: int) -> memoryview:
        start = int(self.positions[low])
        out = np.empty(int(self.positions[high]) - start, np.uint8)
        inner = [edge for edge in self.edges if low < edge < high]
        for first, end in pairwise((low, *inner, high)):
            self._fill(out[int(self.positions[first]) - start :], first, end - first)
        return out.data

    def _fill(self, out: np.ndarray[Any, np.dtype[np.uint8]], first: int, count: int) -> None:
        size = int(self.positions[first + 1] - self.positions[first])
        properties = int(self.property_lengths[first])
        head = BATCH_HEADER.pack(size, 0, 0, 0, size - BATCH_OVERHEAD - properties)
        at = 0
        for piece in (head, self._body, PROPERTIES_LENGTH.pack(properties), *self._pieces):
            if isinstance(piece, bytes):
                width = len(piece)
                values = np.frombuffer(piece, f"V{width}")
            else:
                begin = int(piece.offsets[first])
                width = int(piece.offsets[first + 1]) - begin
                if not width:
                    continue
                values = np.frombuffer(piece.data, f"V{width}", count, begin)
            np.ndarray(count, f"V{width}", out, at, size)[:] = values
            at += width


class _AnyPlan(RowsPlan):
    """Rows of any lengths."""

    def __init__(self, bodies: pa.Array, properties: pa.Array) -> None:
        bodies, body_lengths = binary_values(bodies, "body")
        properties, property_lengths = binary_values(properties, "property string")
        positions = np.zeros(len(bodies) + 1, np.int64)
        np.cumsum(body_lengths + property_lengths + BATCH_OVERHEAD, out=positions[1:])
        super().__init__(positions, property_lengths, (0, len(bodies)))
        self._bodies = bodies
        self._properties = properties
        self._encoded: memoryview | None = None

    def encode(self, low: int, high: int) -> memoryview:
        if self._encoded is None:  # all at once: rows that are sent one by one are mostly such
            self._encoded, _ = encode_batch(self._bodies, self._properties)
        return self._encoded[self.positions[low] : self.positions[high]]


def plan_rows(bodies: pa.Array, columns: Mapping[str, pa.Array | None], map_column: pa.Array | None = None) -> RowsPlan:
    """Check rows whose properties are ``columns`` and ``map_column``, as ``encode_properties_columns`` has them.

    RowProtocolError knows the row.
    """
    count = len(bodies)
    given = {name: value for name, value in columns.items() if value is not None and value.null_count < count}
    if count and map_column is None and not any(value.null_count for value in (bodies, *given.values())):
        body, *values = (_column(value, name) for name, value in ((_BODY, bodies), *given.items()))
        edges = _edges((body, *values), count)
        if edges is not None:
            return _AlikePlan(body, _pieces(given, values), edges)
    return _AnyPlan(bodies, encode_properties_columns(count, given, map_column))


def _column(array: pa.Array, name: str) -> _Column:
    values, _ = binary_values(array, name)
    if name != _BODY:
        refuse_separators(values, name)
    return _Column(values.buffers()[2], value_offsets(values))


def _edges(columns: Sequence[_Column], count: int) -> list[int] | None:
    """The ends of runs of rows with the same lengths; None if the runs are short."""
    changes = np.zeros(count - 1, np.bool_)
    for column in columns:
        lengths = np.diff(column.offsets)
        changes |= lengths[1:] != lengths[:-1]
        if np.count_nonzero(changes) > count // _ROWS_A_RUN:
            return None
    return [0, *(np.flatnonzero(changes) + 1).tolist(), count]


def _pieces(names: Iterable[str], values: Sequence[_Column]) -> list[bytes | _Column]:
    """What a row's properties consist of: texts that are the same in all rows, and columns."""
    pieces: list[bytes | _Column] = []
    text = b""
    for name, value in zip(names, values, strict=True):
        pieces += (text + name.encode() + b"\x01", value)
        text = b"\x02"
    return [*pieces, text] if text else pieces
