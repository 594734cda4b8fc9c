"""The result of decoders, and fast decoding of batches with bad records.

Arrow's parsers accept or reject a batch as a unit. A rejected batch is therefore split into ``_PIECES`` pieces, which
are retried, down to pieces of ``small`` rows, which are decoded row by row. One bad record costs about as much as
decoding the batch twice; the worst batch costs what decoding row by row costs, and a few attempts.

Pure. Corresponds to Spark's FailureSafeParser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from json import JSONDecodeError
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from spark_rocket.datasource.column_types import type_name

I64 = np.ndarray[Any, np.dtype[np.int64]]
DecodeSpan = Callable[[int, int], list[pa.Array]]
"""Decodes the bodies from one index up to another, or raises."""

_PIECES = 16
_MAX_ROWS = 65_536
# Errors that conversions and parsers raise for invalid bytes.
BAD = (ValueError, OverflowError, TypeError, ArithmeticError, LookupError, EOFError, RecursionError, pa.ArrowException)


class BodyError(ValueError):
    """Says in plain words why a body is invalid."""


class ColumnError(BodyError):
    """A value that its column cannot hold; the message names the column, or the path of its member."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"the column {path}: {problem}")
        self.path, self.problem = path, problem


@dataclass
class Decoded:
    """The columns of a batch's bodies. Rows of bad records are null."""

    columns: list[pa.Array]
    bad: dict[int, str] = field(default_factory=dict)
    """The reason why a body could not be decoded, by its index in the batch."""
    rows: I64 | None = None
    """The index of each row's body; None: one row per body."""
    count: int | None = None
    """The number of decoded bodies (at least one), if the others do not fit into the limit; None: all bodies."""


class Decoder(Protocol):
    """The reader of a body format. Belongs to one task."""

    def decode(self, bodies: pa.Array) -> Decoded:
        """Decode a batch of non-null binary bodies."""


def reason(error: BaseException) -> str:
    """Return one short line that says why a body is invalid.

    Messages of Python are replaced: they name codecs and types of Python, not what is wrong with the body.
    """
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.object[error.start]:#04x} at position {error.start} is not UTF-8"
    if isinstance(error, JSONDecodeError):
        return f"it is not JSON from character {error.pos} on"
    if isinstance(error, (BodyError, pa.ArrowException)):
        return one_line(str(error))
    return next((text for kind, text in _REASONS if isinstance(error, kind)), "it is damaged")


_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (EOFError, "it ends too early"),
    (RecursionError, "it is nested too deeply"),
    (MemoryError, "it needs more memory than there is"),
)


def library_text(error: BaseException) -> str:
    """Return the message of an error of a library as one short line."""
    return one_line(str(error)) or type(error).__name__


def one_line(text: str) -> str:
    """Shorten a string to one line that is safe to show and store: parsers quote their invalid input."""
    text = " ".join(text.split())
    text = text if len(text) <= 200 else text[:200] + "…"
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def bytes_and_edges(bodies: pa.Array) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], I64]:
    """Return the bytes of a binary array, and the start of each value and the end of the last one."""
    width = np.int64 if pa.types.is_large_binary(bodies.type) or pa.types.is_large_string(bodies.type) else np.int32
    _, offsets, data = bodies.buffers()
    if not len(bodies):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    edges = np.frombuffer(offsets, width)[bodies.offset : bodies.offset + len(bodies) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8), edges


def columns_of(rows: Sequence[Any], fields: pa.Schema, bad: dict[int, str]) -> list[pa.Array]:
    """Convert dicts (None is a bad record) to columns; a value that does not fit its type makes its record bad."""
    kind = pa.struct(list(fields))

    def build(low: int, high: int) -> list[pa.Array]:
        try:
            return [pa.array(rows[low:high], kind)]
        except (*BAD, MemoryError) as error:
            if high - low == 1:
                bad[low] = reason(_with_column(rows[low], fields) or error)
                return [pa.nulls(1, kind)]
            middle = (low + high) // 2
            return build(low, middle) + build(middle, high)

    if not len(fields):
        return []
    parts = build(0, len(rows)) if rows else [pa.array([], kind)]
    return list((parts[0] if len(parts) == 1 else pa.concat_arrays(parts)).flatten())


def _with_column(row: dict[str, Any], fields: pa.Schema) -> ColumnError | None:
    """Return the error of the first column that cannot hold its value."""
    for item in fields:
        try:
            pa.array([row.get(item.name)], item.type)
        except (*BAD, MemoryError):
            return ColumnError(item.name, f"its value does not fit {type_name(item.type)}")
    return None


class OneByOneDecoder:
    """Decodes one body after the other, for formats whose library has no batch interface."""

    def __init__(self, fields: pa.Schema, read: Callable[[bytes], dict[str, Any]]) -> None:
        self._fields = fields
        self._read = read

    def decode(self, bodies: pa.Array) -> Decoded:
        rows: list[dict[str, Any] | None] = []
        bad: dict[int, str] = {}
        for index, body in enumerate(bodies.to_pylist()):
            try:
                rows.append(self._read(body))
            except (*BAD, MemoryError) as error:
                rows.append(None)
                bad[index] = reason(error)
        columns = columns_of(rows, self._fields, bad)
        return Decoded(columns, dict(sorted(bad.items())))


def spans_of(joined: pa.Array, read: Callable[[pa.Buffer, int], list[pa.Array]]) -> DecodeSpan:
    """Return a decoder of spans for a parser that accepts the bytes of all values, and their count."""
    data, edges = bytes_and_edges(joined)
    buffer = pa.py_buffer(data)

    def decode(low: int, high: int) -> list[pa.Array]:
        begin, end = int(edges[low]), int(edges[high])
        return read(buffer.slice(begin, end - begin), high - low)

    return decode


def decode_together(
    bodies: pa.Array,
    fields: pa.Schema,
    doubtful: np.ndarray[Any, np.dtype[np.bool_]],
    prepare: Callable[[pa.Array], DecodeSpan],
    slow: Callable[[pa.Array], Decoded],
    small: int = 32,
) -> Decoded:
    """Decode the bodies that the batch parser accepts with it, and the others with ``slow``.

    ``prepare`` returns a function that decodes a span of its bodies or raises. It must never assign a value to another
    row. ``doubtful`` rows are decoded by ``slow`` directly.
    """
    sure = np.flatnonzero(~doubtful)
    refused: list[int] = np.flatnonzero(doubtful).tolist()
    parts: list[list[pa.Array]] = []
    places: list[I64] = []

    def attempt(low: int, high: int) -> None:
        try:
            parts.append(decode(low, high))
        except (*BAD, MemoryError):
            if high - low <= small:
                refused.extend(sure[low:high].tolist())
                return
            step = -(-(high - low) // _PIECES)
            for at in range(low, high, step):
                attempt(at, min(at + step, high))
        else:
            places.append(sure[low:high])

    if len(sure):
        decode = prepare(bodies if len(sure) == len(bodies) else bodies.take(pa.array(sure)))
        for low in range(0, len(sure), _MAX_ROWS):
            attempt(low, min(low + _MAX_ROWS, len(sure)))
    bad: dict[int, str] = {}
    if refused:
        alone = np.array(sorted(refused), np.int64)
        decoded = slow(bodies.take(pa.array(alone)))
        bad = {int(alone[index]): text for index, text in decoded.bad.items()}
        parts.append(decoded.columns)
        places.append(alone)
    if not parts:
        return Decoded([pa.array([], item.type) for item in fields])
    if len(parts) == 1:
        return Decoded(parts[0], bad)
    back = pa.array(np.argsort(np.concatenate(places), kind="stable"))
    return Decoded([pa.concat_arrays(list(columns)).take(back) for columns in zip(*parts, strict=True)], bad)
