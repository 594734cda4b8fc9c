"""``dedupeWindow``: messages left out because one of those just before them in their queue is the same.

Two messages are the same if they have the same ``msgId``, the same body (CRC and length, as stored) and the same
properties but those in which a broker notes times of its own. The ``msgId`` alone would not do: a writer makes it of a
row's number, and a task that Spark repeats may have its rows in another order, or cut otherwise, so that another row
gets it. So a row is never left out unless its equal is there; repeats with other contents, or under another id, stay.

A message at offset ``o`` is left out if, and only if, one at an offset from ``o - window`` to ``o - 1`` is the same,
whether that one was left out itself or not. So it is decided by the queue alone: the same after a restart, and wherever
the queue is cut into ranges. A task reads the ``window`` messages before its range first.

What was deleted before the range is no longer there to be found. With ``tags`` or ``sqlFilter`` only messages that the
broker chooses are seen; a repeat is chosen as its first is. Of a compressed body the CRC alone is compared. No Python
runs per row.

Belongs to one task and thread. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.protocol.record.columns import STORED_SCHEMA

NEEDED = ("queueOffset", "msgId")
_STORED = tuple(STORED_SCHEMA.names)
# What brokers write into a message that waits (one that comes when its time has passed has none of it), and a CRC over
# all of a record, its place included.
_BROKERS_OWN = r"(TIMER_(ENQUEUE|DEQUEUE|OUT)_MS|TIMER_ROLL_TIMES|REAL_TOPIC|REAL_QID|__CRC32#)\x01"
_NOT_COMPARED = rf"\x02({_BROKERS_OWN}[^\x02]*|$)"  # of a string that begins with 0x02; the last 0x02 may be missing
I64 = np.ndarray[Any, np.dtype[np.int64]]


class Repeats:
    """The last ``window`` messages of a queue."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._ids = pa.array([], pa.string())
        self._offsets = np.zeros(0, np.int64)
        self._bodies = np.zeros(0, np.int64)
        self._properties: list[pa.Array] = []  # of all these messages, batch by batch: they are too large to be joined
        self.count = 0
        """Messages left out."""

    @staticmethod
    def columns(wanted: tuple[str, ...]) -> tuple[str, ...]:
        """What is to be decoded for ``wanted``."""
        return (*wanted, *(column for column in NEEDED if column not in wanted), *_STORED)

    def drop(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without repeats; it goes on behind the one before."""
        if not batch.num_rows:
            return batch
        fresh = batch.column("msgId").cast(pa.string())
        ids = self._ids = pa.concat_arrays([self._ids, fresh]) if len(self._ids) else fresh
        offsets = np.concatenate([self._offsets, batch.column("queueOffset").to_numpy()])
        self._bodies = np.concatenate([self._bodies, batch.column("storedBody").to_numpy()])
        self._properties.append(batch.column("storedProperties"))
        keep = np.ones(len(ids), bool)
        codes = ids.dictionary_encode().indices.to_numpy()
        maybe = np.flatnonzero((np.bincount(codes) > 1)[codes])  # most ids occur once: only the others are compared
        if len(maybe):
            codes = self._contents(maybe).dictionary_encode().indices.to_numpy()
            order = np.argsort(codes, kind="stable")  # those that are the same together, in the order of the queue
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
        """A text for each of these messages, the same for those that are the same."""
        edges = np.cumsum([0, *(len(part) for part in self._properties)])
        cuts = np.searchsorted(at, edges)
        properties = pa.concat_arrays(
            [
                part.take(pa.array(at[low:high] - edge)).cast(pa.large_binary())
                for part, edge, low, high in zip(self._properties, edges, cuts, cuts[1:], strict=False)
                if high > low
            ]
        )
        if pc.any(pc.match_substring_regex(properties, _BROKERS_OWN)).as_py():
            begin, between = (pa.scalar(text, properties.type) for text in (b"\x02", b""))
            begun = pc.binary_join_element_wise(begin, properties, between)
            properties = pc.replace_substring_regex(begun, _NOT_COMPARED, "")
        bodies = pa.Array.from_buffers(pa.binary(8), len(at), [None, pa.py_buffer(self._bodies[at])])
        ids = self._ids.take(pa.array(at))
        texts = (bodies.cast(pa.large_binary()), ids.cast(pa.large_binary()), properties)
        return pc.binary_join_element_wise(*texts, pa.scalar(b"\x02", pa.large_binary()))
