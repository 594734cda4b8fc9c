"""The columnar view of a run of records: the positions of records and their parts, and the header fields.

The body of a pull response and a piece of the commit log are such runs; ``columns.py`` creates Arrow columns from them.
Guarantees: the first record is at 0, each starts where the previous one ends, the last one ends the run, and all parts
are inside their record. Anything else is a ProtocolError.

Working memory is reused: on virtual machines the first touch of a page can cost more than decoding all records on it.
Without pyarrow, which servers do not load.

Thread-safety: an instance belongs to one call and points into the scratch memory lent to it; borrowing and returning a
``Scratch`` are single steps of the interpreter. No RocketMQ class corresponds to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.record.layout import (
    AT,
    FIXED_SIZE,
    HEADER_SIZE,
    HOSTS_MASK,
    INT,
    MAGIC_V1,
    UNWRAP_MASK,
)
from spark_rocket.protocol.record.parts import FAULTS, HEADER, damaged, find_parts, heads_of, record_starts
from spark_rocket.protocol.record.spans import body_crcs, gather
from spark_rocket.protocol.record.uniform import Rows, value_range

_MAX_BUFFER_BYTES = 2**31 - 1 - 64  # Arrow's offsets for binary and string are 32 bits wide
_I64 = np.ndarray[Any, np.dtype[np.int64]]
_U8 = np.ndarray[Any, np.dtype[np.uint8]]
_MAX_RETAINED_BLOCK_BYTES = 32 * 1024 * 1024  # larger blocks are not retained
_MAX_IDLE_SCRATCHES = 4


class Scratch:
    """Named blocks of bytes. The content of a block is valid until the next request of the same name."""

    def __init__(self) -> None:
        self._blocks: dict[str, _U8] = {}

    def bytes(self, name: str, size: int) -> _U8:
        """Return ``size`` uninitialized bytes."""
        block = self._blocks.get(name)
        if block is None or len(block) < size:
            block = np.empty(size + size // 4, np.uint8)
            if len(block) <= _MAX_RETAINED_BLOCK_BYTES:
                self._blocks[name] = block
        return block[:size]


_idle: list[Scratch] = []


@contextmanager
def borrowed_scratch() -> Iterator[Scratch]:
    """A scratch for one decode; results that outlive it must not point into its blocks."""
    try:
        scratch = _idle.pop()
    except IndexError:
        scratch = Scratch()
    try:
        yield scratch
    finally:
        if len(_idle) < _MAX_IDLE_SCRATCHES:
            _idle.append(scratch)


class RecordRun:
    """A run of records whose lengths have all been checked: positions of every part, and the fixed header fields."""

    def __init__(self, buffer: bytes | bytearray | memoryview, scratch: Scratch, *, with_tails: bool) -> None:
        raw: _U8 = np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)
        if len(raw) > _MAX_BUFFER_BYTES:
            raise ProtocolError(
                f"Too many bytes of records to decode at once: {len(raw):,}.", remedy="Pull fewer messages."
            )
        self.raw = raw
        self._same: dict[str, int] = {}  # fields with equal values in all records
        self._step = self._equal_step(scratch)  # the size of each record; 0: they differ
        if self._step:
            self.starts = np.arange(0, len(raw), self._step)
        else:
            self.starts = record_starts(raw)
            self._heads = heads_of(raw, self.starts)
        self.is_uniform = False  # whether all records and their parts have equal lengths
        self.tails: Rows | None = None  # if so and requested: everything after the bodies
        self.sizes = self.number("size")
        self.born_extra: int | _I64 = 0  # extra bytes of IPv6 hosts: 0 or 12
        self.store_extra: int | _I64 = 0
        self.plain = self._same.get("magic") == MAGIC_V1 and not self._same.get("sys_flag", -1) & HOSTS_MASK
        if self.plain and self._find_equal_parts(scratch if with_tails else None):
            self.is_uniform = True
            return
        parts = find_parts(raw, self.starts, self.starts + self.sizes, self._heads)
        bad = np.flatnonzero(parts.faults)
        if len(bad):
            raise damaged(raw, int(self.starts[bad[0]]), FAULTS[parts.faults[bad[0]]])
        self.plain = parts.plain
        self.born_extra, self.store_extra = parts.born_extra, parts.store_extra
        self.body_start, self.body_end, self.topic_start, self.topic_end, self.properties_start = parts.places
        self.properties_end = self.starts + self.sizes

    def _equal_step(self, scratch: Scratch) -> int:
        """Return the size of the records if all have the same one, as messages of sensors often do, else 0.

        The record headers are copied into one array, so that later reads of their fields are local in memory.
        """
        raw = self.raw
        first: int = INT.unpack_from(raw.data, 0)[0] if len(raw) >= FIXED_SIZE else 0
        if first < FIXED_SIZE or len(raw) % first:
            return 0
        count = len(raw) // first
        heads = scratch.bytes("heads", count * HEADER_SIZE).reshape(count, -1)
        heads[:] = np.ndarray(heads.shape, np.uint8, raw, strides=(first, 1))
        _, low, high = value_range(heads)
        if low[:4].tobytes() != high[:4].tobytes():
            return 0
        self._heads = heads.view(HEADER)[:, 0]
        for name, at in AT.items():
            end = at + HEADER[name].itemsize
            if low[at:end].tobytes() == high[at:end].tobytes():
                self._same[name] = int(self._heads[name][0])
        return first

    def _find_equal_parts(self, scratch: Scratch | None) -> bool:
        """Find the parts from the first record, if it is representative. ``find_parts`` reports errors of others."""
        raw, step, count = self.raw, self._step, len(self.starts)
        body_end = HEADER_SIZE + self._same.get("body_length", -1)
        if not HEADER_SIZE <= body_end <= step - 3:
            return False
        topic_end = body_end + 1 + int(raw[body_end])
        if topic_end + 2 > step or topic_end + 2 + int.from_bytes(raw[topic_end : topic_end + 2].tobytes()) != step:
            return False
        if scratch is None:
            for at, length in ((body_end, 1), (topic_end, 2)):
                fields = self.cells(at, at + length)
                if not bool((fields == fields[0]).all()):
                    return False
        else:
            rows = scratch.bytes("tails", count * (step - body_end)).reshape(count, -1)
            rows[:] = self.cells(body_end, step)
            tails = value_range(rows)
            if tails.vary(0, 1) or tails.vary(topic_end - body_end, topic_end - body_end + 2):
                return False
            self.tails = tails
        self.body_start, self.body_end = self.starts + HEADER_SIZE, self.starts + body_end
        self.topic_start, self.topic_end = self.body_end + 1, self.starts + topic_end
        self.properties_start, self.properties_end = self.topic_end + 2, self.starts + step
        return True

    def cells(self, start: int, end: int) -> _U8:
        """Return the same bytes of every record as rows; only if all records have equal parts."""
        return np.ndarray((len(self.starts), end - start), np.uint8, self.raw, start, (self._step, 1))

    def __len__(self) -> int:
        return len(self.starts)

    def number(self, name: str) -> _I64:
        """Return a header field as native 64-bit integers; for hosts the first 8 bytes."""
        at = AT[name]
        if at > AT["born_host"] and not self.plain:
            moved = self.starts + at + self.born_extra + (self.store_extra if at > AT["store_host"] else 0)
            return gather(self.raw, moved, HEADER[name].str)
        if name in self._same:
            return np.full(len(self.starts), self._same[name])
        values: _I64 = self._heads[name].astype(np.int64)
        return values

    def same_number(self, name: str) -> int | None:
        """Return the constant value of a field; None: it may differ."""
        return self._same.get(name) if self.plain else None

    def check_crc(self) -> None:
        real = body_crcs(self.raw.data, self.body_start, self.body_end)
        wrong = np.flatnonzero(real != self.number("body_crc"))
        if len(wrong):
            raise damaged(self.raw, int(self.starts[wrong[0]]), "has a body that does not match its CRC")

    def keep_offsets(self, start: int | None, end: int | None) -> None:
        """Drop other queue offsets. Inner batches stay: only unwrapping shows the offsets in them."""
        if start is None and end is None:
            return
        offsets = self.number("queue_offset")
        if not len(offsets):
            return
        if (start is None or int(offsets.min()) >= start) and (end is None or int(offsets.max()) < end):
            return
        keep = np.ones(len(offsets), bool)
        if start is not None:
            keep &= offsets >= start
        if end is not None:
            keep &= offsets < end
        if not keep.all():
            keep |= (self.number("sys_flag") & UNWRAP_MASK) == UNWRAP_MASK
        if keep.all():
            return
        self._step, self.is_uniform, self.tails = 0, False, None
        self._heads = self._heads[keep]
        for name in ("starts", "sizes", "body_start", "body_end", "topic_start", "topic_end"):
            setattr(self, name, getattr(self, name)[keep])
        self.properties_start, self.properties_end = self.properties_start[keep], self.properties_end[keep]
        if not self.plain:
            self.born_extra, self.store_extra = np.asarray(self.born_extra)[keep], np.asarray(self.store_extra)[keep]
