"""Keys of many records and their hashes, for the index.

A record is found by its UNIQ_KEY and by each space-separated word of KEYS. The index stores a key as Java's
``|hashCode("topic#key")|`` (0 for -2147483648, which has no absolute value in 32 bits).

Pure functions. Corresponds to IndexService.buildIndex and IndexFile.indexKeyHashMethod.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.layout import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from spark_rocket.protocol.record.property_spans import PropertySpans
from spark_rocket.store.log.record_scan import Ints, RecordBlock

Hashes = npt.NDArray[np.int32]


class WrittenRun(NamedTuple):
    """Consecutive records that were just written to the log, as their writer knows them. None is rolled back."""

    topic: str
    store_timestamp: int
    offsets: Ints
    """Physical offsets."""
    lengths: Ints
    """Lengths of the properties before the ``tail``."""
    tail: int
    """Bytes at the end of each record: properties of the batch, which have no keys."""
    end: int
    """Physical offset after the last record."""

    @property
    def begin(self) -> int:
        return int(self.offsets[0])

    def split(self, count: int) -> tuple[WrittenRun, WrittenRun | None]:
        """Return the first ``count`` records, and the others if there are any."""
        if count >= len(self.offsets):
            return self, None
        first = self._replace(offsets=self.offsets[:count], lengths=self.lengths[:count], end=int(self.offsets[count]))
        return first, self._replace(offsets=self.offsets[count:], lengths=self.lengths[count:])


def tail_of(batch_properties: bytes) -> int:
    """Return the length of the properties of a batch if they have no keys, or 0."""
    return 0 if b"KEY" in batch_properties else len(batch_properties)


def key_hash(topic: str, key: str) -> int:
    """Return the hash of a key in the index."""
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value == 1 << 31 else value


def _absolute(hashes: npt.NDArray[np.int32]) -> Hashes:
    absolute: Hashes = np.abs(hashes) & np.int32(0x7FFFFFFF)  # of the smallest number: itself, then 0
    return absolute


def keys_of(block: RecordBlock) -> tuple[Ints, Hashes]:
    """Return record number and hash of each key of a block, in index order."""
    records, hashes = _keys(block.properties(), _prefixes(block))
    is_rolled_back = (block.sys_flags & TRANSACTION_MASK) == TRANSACTION_ROLLBACK
    if is_rolled_back.any():
        keep = ~is_rolled_back[records]
        records, hashes = records[keep], hashes[keep]
    return records, hashes


def keys_of_runs(runs: Sequence[WrittenRun], data: bytes) -> tuple[Ints, Hashes, Ints]:
    """Return physical offset, hash and store time of each key, in index order; ``data``: the adjacent records."""
    counts = [len(run.offsets) for run in runs]
    offsets = np.concatenate([run.offsets for run in runs])
    lengths = np.concatenate([run.lengths for run in runs])
    ends = np.append(offsets[1:], runs[-1].end) - runs[0].begin - np.repeat([run.tail for run in runs], counts)
    properties = PropertySpans(np.frombuffer(data, np.uint8), ends - lengths, lengths)
    prefixes = np.array([_prefix(run.topic) for run in runs], np.uint32).repeat(counts)
    records, hashes = _keys(properties, prefixes)
    timestamps = np.array([run.store_timestamp for run in runs]).repeat(counts)
    return offsets[records], hashes, timestamps[records]


def _keys(properties: PropertySpans, prefixes: npt.NDArray[np.uint32]) -> tuple[Ints, Hashes]:
    """Return record number and hash of each key, in index order. ``prefixes``: hashes of what is before the keys."""
    unique, *of_unique = properties.values(b"UNIQ_KEY")
    keyed, *of_keys = properties.values(b"KEYS")
    values, *of_words = properties.words(*of_keys)
    records = np.concatenate((unique, keyed[values]))
    starts, ends = map(np.concatenate, zip(of_unique, of_words, strict=True))
    hashes = properties.hashes(starts, ends, prefixes[records])
    order = np.argsort(records, kind="stable")
    return records[order], _absolute(hashes.view(np.int32)[order])


@lru_cache(1024)
def _prefix(topic: str) -> int:
    return java_hash(f"{topic}#") & 0xFFFFFFFF


def _prefixes(block: RecordBlock) -> npt.NDArray[np.uint32]:
    """Return the hash of each record's topic with a number sign."""
    topic = block.topic()
    topics = block.topics() if topic is None else [topic]
    found = np.array([_prefix(name) for name in topics], np.uint32)
    return found if topic is None else np.repeat(found, len(block))
