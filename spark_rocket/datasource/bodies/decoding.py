"""What decoders give back, and how a batch that has bad records in it is decoded without losing its speed.

Arrow's parsers take a whole batch or refuse all of it. So a batch is first given to them whole; when they refuse, the
rows before and behind the one that they name (or its two halves, when they name none) are tried again. What is small,
or left when ``_TRIES`` attempts have failed, is decoded row by row (but see ``decode_together``). One bad record in a
batch thus costs about as much as decoding it twice; the worst batch what decoding row by row costs.

Pure. Corresponds to Spark's FailureSafeParser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

I64 = np.ndarray[Any, np.dtype[np.int64]]

_TRIES = 512
_SMALL = 16
_MOST_ROWS = 65_536
_NAMED_ROW = re.compile(r"(?:\bin row (\d+))|(?:\bRow #(\d+))")
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


def decode_each(bodies: pa.Array, fields: pa.Schema, decode: Callable[[bytes], dict[str, Any]]) -> Decoded:
    """Decode one body after the other, for formats whose library knows no other way."""
    rows: list[dict[str, Any] | None] = []
    bad: dict[int, str] = {}
    for index, body in enumerate(bodies.to_pylist()):
        try:
            rows.append(decode(body))
        except (*BAD, MemoryError) as error:
            rows.append(None)
            bad[index] = reason(error)
    columns = columns_of(rows, fields, bad)
    return Decoded(columns, dict(sorted(bad.items())))


def decode_together(
    bodies: pa.Array,
    fields: pa.Schema,
    doubtful: np.ndarray[Any, np.dtype[np.bool_]],
    prepare: Callable[[pa.Array], Callable[[int, int], list[pa.Array]]],
    slow: Callable[[pa.Array], Decoded],
    steps: int | None = None,
) -> Decoded:
    """Decode all bodies that a batch's parser takes with it, the others one by one.

    ``prepare`` is given bodies and returns what decodes a span of them or raises; it must never give a value to
    another row than its own. ``doubtful`` rows are not given to it. Where ``slow`` costs as much for one row as the
    parser for ``steps``, spans are cut so small at the first failure, and attempts never end.
    """
    count = len(bodies)
    sure = np.flatnonzero(~doubtful)
    one_by_one: list[int] = np.flatnonzero(doubtful).tolist()
    parts: list[list[pa.Array]] = []
    places: list[I64] = []
    if len(sure):
        decode = prepare(bodies if len(sure) == count else bodies.take(pa.array(sure)))
        spans = [(low, min(low + _MOST_ROWS, len(sure))) for low in range(0, len(sure), _MOST_ROWS)][::-1]
        tries = _TRIES
        while spans:
            low, high = spans.pop()
            if high <= low:
                continue
            if steps is not None:
                if tries < _TRIES and high - low > steps:
                    spans += [(at, min(at + steps, high)) for at in range(low, high, steps)][::-1]
                    continue
            elif tries == 0 or (tries < _TRIES and high - low <= _SMALL):
                one_by_one.extend(sure[low:high].tolist())
                continue
            try:
                parts.append(decode(low, high))
                places.append(sure[low:high])
            except (*BAD, MemoryError) as error:
                tries -= 1
                at = _named_row(error, high - low)
                if high - low == 1:
                    one_by_one.append(int(sure[low]))
                elif at is None:
                    middle = (low + high) // 2
                    spans += [(middle, high), (low, middle)]
                else:
                    one_by_one.append(int(sure[low + at]))
                    spans += [(low + at + 1, high), (low, low + at)]
    bad: dict[int, str] = {}
    if one_by_one:
        alone = np.array(sorted(one_by_one), np.int64)
        decoded = slow(bodies.take(pa.array(alone)))
        bad = {int(alone[index]): text for index, text in decoded.bad.items()}
        parts.append(decoded.columns)
        places.append(alone)
    if not parts:
        return Decoded([pa.array([], item.type) for item in fields])
    if len(parts) == 1:
        return Decoded(parts[0], bad)
    order = np.argsort(np.concatenate(places), kind="stable")
    back = pa.array(order)
    return Decoded([pa.concat_arrays(list(columns)).take(back) for columns in zip(*parts, strict=True)], bad)


def _named_row(error: BaseException, count: int) -> int | None:
    """The row that an error of Arrow's names. Only a hint: rows that are tried again are checked again."""
    match = _NAMED_ROW.search(str(error))
    if match is None:
        return None
    row = int(match[1]) if match[1] is not None else int(match[2]) - 1
    return row if 0 <= row < count else None
