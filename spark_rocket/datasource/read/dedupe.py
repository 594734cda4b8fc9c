"""``dedupeWindow``: drop messages that duplicate one of the messages just before them in their queue.

Two messages are duplicates if they have the same ``msgId``, the same body (CRC and length, as stored) and the same
properties, except those in which a broker stores its own times. The ``msgId`` alone is not enough: a writer derives it
from a row's number, and a task that Spark retries may have its rows in another order or split differently, so another
row gets the id. A row is therefore dropped only if an equal row is there. Messages with other contents or another id
are not dropped.

A message at offset ``o`` is dropped if, and only if, a message at an offset from ``o - window`` to ``o - 1`` is equal,
whether that one was dropped itself or not. The queue alone decides: the result is the same after a restart, and for any
split of the queue into ranges. A task first reads the ``window`` messages before its range.

Messages that were deleted before the range cannot be compared. With ``tags`` or ``sqlFilter``, only messages that the
broker selects are compared; it selects a duplicate if it selects the original. For a compressed body only the CRC is
compared. No Python code runs per row.

Belongs to one task and thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.protocol.record.columns import STORED_SCHEMA

NEEDED = ("queueOffset", "msgId")
_STORED = tuple(STORED_SCHEMA.names)
# Properties that brokers add to a delayed message (not if its time had passed on arrival), and a CRC over the entire
# record, which includes its position.
_BROKER_PROPERTIES = r"(TIMER_(ENQUEUE|DEQUEUE|OUT)_MS|TIMER_ROLL_TIMES|REAL_TOPIC|REAL_QID|__CRC32#)\x01"
# In a string that begins with 0x02; the last 0x02 may be missing.
_NOT_COMPARED = rf"\x02({_BROKER_PROPERTIES}[^\x02]*|$)"
I64 = np.ndarray[Any, np.dtype[np.int64]]


class DuplicateFilter:
    """The last ``window`` messages of a queue."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._ids = pa.array([], pa.string())
        self._offsets = np.zeros(0, np.int64)
        self._bodies = np.zeros(0, np.int64)
        self._properties: list[pa.Array] = []  # of all these messages, per batch: too large to concatenate
        self.count = 0
        """Number of dropped messages."""

    @staticmethod
    def columns(wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns to decode for ``wanted``."""
        return (*wanted, *(column for column in NEEDED if column not in wanted), *_STORED)

    def drop(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch without duplicates. It must directly follow the previous batch."""
        if not batch.num_rows:
            return batch
        fresh = batch.column("msgId").cast(pa.string())
        ids = self._ids = pa.concat_arrays([self._ids, fresh]) if len(self._ids) else fresh
        offsets = np.concatenate([self._offsets, batch.column("queueOffset").to_numpy()])
        self._bodies = np.concatenate([self._bodies, batch.column("storedBody").to_numpy()])
        self._properties.append(batch.column("storedProperties"))
        keep = np.ones(len(ids), bool)
        codes = ids.dictionary_encode().indices.to_numpy()
        maybe = np.flatnonzero((np.bincount(codes) > 1)[codes])  # most ids are unique: compare only the others
        if len(maybe):
            codes = self._contents(maybe).dictionary_encode().indices.to_numpy()
            order = np.argsort(codes, kind="stable")  # groups equal messages, in the order of the queue
            before, after = maybe[order[:-1]], maybe[order[1:]]
            near = offsets[after] - offsets[before] <= self._window
            keep[after[(codes[order[1:]] == codes[order[:-1]]) & near]] = False
        first = int(np.searchsorted(offsets, int(offsets[-1]) + 1 - self._window))
        self._ids, self._offsets, self._bodies = ids.slice(first), offsets[first:], self._bodies[first:]
        while self._properties and first >= len(self._properties[0]):
            first -= len(self._properties.pop(0))
        if first:
            self._properties[0] = self._properties[0].slice(first)
        keep = keep[len(ids) - batch.num_rows :]
        if keep.all():
            return batch
        self.count += int(batch.num_rows - keep.sum())
        return batch.filter(pa.array(keep))

    def _contents(self, at: I64) -> pa.Array:
        """Return a binary string for each of these messages; equal messages have equal strings."""
        edges = np.cumsum([0, *(len(part) for part in self._properties)])
        cuts = np.searchsorted(at, edges)
        properties = pa.concat_arrays(
            [
                part.take(pa.array(at[low:high] - edge)).cast(pa.large_binary())
                for part, edge, low, high in zip(self._properties, edges, cuts, cuts[1:], strict=False)
                if high > low
            ]
        )
        if pc.any(pc.match_substring_regex(properties, _BROKER_PROPERTIES)).as_py():
            begin, between = (pa.scalar(text, properties.type) for text in (b"\x02", b""))
            begun = pc.binary_join_element_wise(begin, properties, between)
            properties = pc.replace_substring_regex(begun, _NOT_COMPARED, "")
        bodies = pa.Array.from_buffers(pa.binary(8), len(at), [None, pa.py_buffer(self._bodies[at])])
        ids = self._ids.take(pa.array(at))
        texts = (bodies.cast(pa.large_binary()), ids.cast(pa.large_binary()), properties)
        return pc.binary_join_element_wise(*texts, pa.scalar(b"\x02", pa.large_binary()))
