"""What decoders return, and how a batch with bad records in it is decoded at nearly full speed.

Arrow's parsers accept a whole batch or refuse all of it. So a refused batch is cut into ``_PIECES`` pieces that are
tried again, down to pieces of ``small`` rows, which are decoded row by row. One bad record costs about as much as
decoding the batch twice; the worst batch costs what decoding row by row costs, and a few attempts.

Pure. Corresponds to Spark's FailureSafeParser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

I64 = np.ndarray[Any, np.dtype[np.int64]]
DecodeSpan = Callable[[int, int], list[pa.Array]]
"""Decodes the bodies from one place up to another, or raises."""

_PIECES = 16
_MAX_ROWS = 65_536
# What conversions and parsers raise about the bytes that they are given.
BAD = (ValueError, OverflowError, TypeError, ArithmeticError, LookupError, EOFError, RecursionError, pa.ArrowException)


@dataclass
class Decoded:
    """The columns of a batch's bodies. Rows of bad records are null."""

    columns: list[pa.Array]
    bad: dict[int, str] = field(default_factory=dict)
    """Why a body could not be decoded, by its place in the batch."""
    rows: I64 | None = None
    """The body that each row is of; None is one row for each body."""
    count: int | None = None
    """How many of the bodies these are (at least one), if they become so much that the rest must wait; None is all."""


class Decoder(Protocol):
    """A body format, for reading. Belongs to one task."""

    def decode(self, bodies: pa.Array) -> Decoded:
        """Decode a batch of binary bodies, none of them null."""


def reason(error: BaseException) -> str:
    """An error's text in one short line."""
    return line(str(error)) or type(error).__name__


def line(text: str) -> str:
    """A text in one short line that can be shown and stored anywhere: parsers quote what they could not read."""
    text = " ".join(text.split())
    text = text if len(text) <= 200 else text[:200] + "…"
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def raw(bodies: pa.Array) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], I64]:
    """The bytes of a binary array, and where each of its values begins (and the last one ends)."""
    width = np.int64 if pa.types.is_large_binary(bodies.type) or pa.types.is_large_string(bodies.type) else np.int32
    _, offsets, data = bodies.buffers()
    if not len(bodies):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    edges = np.frombuffer(offsets, width)[bodies.offset : bodies.offset + len(bodies) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8), edges


def columns_of(rows: Sequence[Any], fields: pa.Schema, bad: dict[int, str]) -> list[pa.Array]:
    """Columns of dictionaries (None is a bad record); values that do not fit their type make their record bad."""
    kind = pa.struct(list(fields))

    def build(low: int, high: int) -> list[pa.Array]:
        try:
            return [pa.array(rows[low:high], kind)]
        except (*BAD, MemoryError) as error:
            if high - low == 1:
                bad[low] = reason(error)
                return [pa.nulls(1, kind)]
            middle = (low + high) // 2
            return build(low, middle) + build(middle, high)

    if not len(fields):
        return []
    parts = build(0, len(rows)) if rows else [pa.array([], kind)]
    return list((parts[0] if len(parts) == 1 else pa.concat_arrays(parts)).flatten())


class OneByOneDecoder:
    """Decodes one body after the other, for formats whose library has no other way."""

    def __init__(
        self,
        fields: pa.Schema,
        read: Callable[[bytes], dict[str, Any]],
        errors: tuple[type[BaseException], ...] = (*BAD, MemoryError),
    ) -> None:
        self._fields = fields
        self._read = read
        self._errors = errors

    def decode(self, bodies: pa.Array) -> Decoded:
        rows: list[dict[str, Any] | None] = []
        bad: dict[int, str] = {}
        for index, body in enumerate(bodies.to_pylist()):
            try:
                rows.append(self._read(body))
            except self._errors as error:
                rows.append(None)
                bad[index] = reason(error)
        columns = columns_of(rows, self._fields, bad)
        return Decoded(columns, dict(sorted(bad.items())))


def spans_of(joined: pa.Array, read: Callable[[pa.Buffer, int], list[pa.Array]]) -> DecodeSpan:
    """What decodes a span of binary values with a parser that takes the bytes of all of them, and their count."""
    data, edges = raw(joined)
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
    """Decode all bodies that the batch parser accepts with it, and the others with ``slow``.

    ``prepare`` takes bodies and returns a function that decodes a span of them or raises. It must never assign a value
    to another row. ``doubtful`` rows are decoded by ``slow`` at once.
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
