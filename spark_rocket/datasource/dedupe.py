"""``dedupeWindow``: messages left out because one of those just before them in their queue has the same ``msgId``.

A writer's repeat has the ``msgId`` of the first attempt, and goes to the same queue whenever that can be written. A
message at offset ``o`` is left out if, and only if, one at an offset from ``o - window`` to ``o - 1`` has its id,
whether that one was left out itself or not. So it is decided by the queue alone: the same after a restart, and wherever
the queue is cut into ranges. A task reads the ids of the ``window`` messages before its range first.

What was deleted before the range is no longer there to be found. With ``tags`` or ``sqlFilter`` only messages that the
broker chooses are seen; a repeat is chosen as its first is. No Python runs per row.

Belongs to one task and thread. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from spark_rocket.client.reader import Reader
from spark_rocket.datasource.fetch import read_range
from spark_rocket.datasource.offsets import name
from spark_rocket.datasource.options import ReadOptions
from spark_rocket.datasource.patience import Patience
from spark_rocket.datasource.ranges import OffsetRange
from spark_rocket.datasource.schema import SOURCE_SCHEMA, Projection, project

log = logging.getLogger("spark_rocket.datasource")

_NEEDED = ("queueOffset", "msgId")
_WIDTH = 32  # of an id: 32 hexadecimal digits, nearly always
_MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)


class Repeats:
    """The ids of the last ``window`` messages of a queue.

    Most ids are met once, which numbers made of them say several times faster than texts: only ids whose number occurs
    twice are compared.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._ids = pa.array([], pa.string())
        self._offsets = np.zeros(0, np.int64)
        self._marks = np.zeros(0, np.uint64)
        self.count = 0
        """Messages left out."""

    @staticmethod
    def columns(wanted: tuple[str, ...]) -> tuple[str, ...]:
        """What is to be decoded for ``wanted``."""
        return (*wanted, *(column for column in _NEEDED if column not in wanted))

    def drop(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without repeats; it goes on behind the one before."""
        if not batch.num_rows:
            return batch
        fresh = batch.column("msgId").cast(pa.string())
        ids = pa.concat_arrays([self._ids, fresh]) if len(self._ids) else fresh
        offsets = np.concatenate([self._offsets, batch.column("queueOffset").to_numpy()])
        marks = _marks(fresh)
        known = np.concatenate([self._marks, marks]) if marks is not None else self._marks
        keep = np.ones(len(ids), bool)
        if len(known) == len(ids):
            order = np.argsort(known)
            again = known[order[1:]] == known[order[:-1]]
            twice = np.zeros(len(ids), bool)
            twice[order[1:][again]] = twice[order[:-1][again]] = True
            maybe = np.flatnonzero(twice)
        else:
            maybe = np.arange(len(ids))
        if len(maybe):
            texts = ids.take(pa.array(maybe)) if len(maybe) < len(ids) else ids
            codes = texts.dictionary_encode().indices.to_numpy()
            order = np.argsort(codes, kind="stable")  # each id's messages together, in the order of the queue
            before, after = maybe[order[:-1]], maybe[order[1:]]
            near = offsets[after] - offsets[before] <= self._window
            keep[after[(codes[order[1:]] == codes[order[:-1]]) & near]] = False
        first = int(np.searchsorted(offsets, int(offsets[-1]) + 1 - self._window))
        self._ids, self._offsets = ids.slice(first), offsets[first:]
        self._marks = known[first:] if len(known) == len(ids) else np.zeros(0, np.uint64)
        keep = keep[len(ids) - batch.num_rows :]
        if keep.all():
            return batch
        self.count += int(batch.num_rows - keep.sum())
        return batch.filter(pa.array(keep))


def _marks(ids: pa.Array) -> np.ndarray[Any, np.dtype[np.uint64]] | None:
    """A number for each id, the same for the same; None if some have another width."""
    count = len(ids)
    edges = np.frombuffer(ids.buffers()[1], np.int32, ids.offset + count + 1)[ids.offset :]
    if (np.diff(edges) != _WIDTH).any():
        return None
    words = np.frombuffer(ids.buffers()[2], np.uint64, count * 4, int(edges[0])).reshape(count, 4)
    marks: np.ndarray[Any, np.dtype[np.uint64]] = (words * _MIX).sum(axis=1, dtype=np.uint64)
    return marks


def read_without_repeats(
    span: OffsetRange, options: ReadOptions, projection: Projection, reader: Reader, window: int
) -> Iterator[pa.RecordBatch]:
    """As ``read_range``, without repeats."""
    repeats = Repeats(window)
    patience = Patience(options.retry_timeout_ms)
    lowest = patience.call(lambda: reader.min_offset(span.queue), f"to ask for the start of {name(span.queue)}")
    start = max(span.start - window, lowest)
    if start < span.start:
        # Nothing is lost of what has been read before, should it be deleted just now.
        before = replace(options, fail_on_data_loss=False)
        ids = project(StructType([SOURCE_SCHEMA[column] for column in _NEEDED]))
        for _ in read_range(OffsetRange(span.queue, start, span.start), before, ids, reader, repeats):
            pass
    repeats.count = 0
    yield from read_range(span, options, projection, reader, repeats)
    if repeats.count:
        log.info("left out %d repeats of %s from %d to %d", repeats.count, name(span.queue), span.start, span.end - 1)
