"""Keys of many records and their hashes, for the index.

A record is found by its UNIQ_KEY and by each space-separated word of KEYS. The index stores a key as Java's
``|hashCode("topic#key")|`` (0 for -2147483648, which has no absolute value in 32 bits).

Pure functions. Corresponds to IndexService.buildIndex and IndexFile.indexKeyHashMethod.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.filter.tags import java_hash, java_hash_many
from spark_rocket.protocol.record.layout import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.uniform import layout_of, rows_of
from spark_rocket.store.log.record_scan import Ints, RecordBlock

Hashes = npt.NDArray[np.int32]


def key_hash(topic: str, key: str) -> int:
    """Return the hash of a key in the index."""
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value == 1 << 31 else value


def _absolute(hashes: npt.NDArray[np.int32]) -> Hashes:
    absolute: Hashes = np.where(hashes == np.int32(-(1 << 31)), np.int32(0), np.abs(hashes))
    return absolute


def keys_of(block: RecordBlock) -> tuple[Ints, Hashes]:
    """Return record number and hash of each key of a block, in index order."""
    uniform = _keys_of_uniform(block)
    if uniform is not None:
        return uniform
    names: list[str] = []
    records: list[int] = []
    is_rolled_back = ((block.sys_flags & TRANSACTION_MASK) == TRANSACTION_ROLLBACK).tolist()
    ranges = zip(block.property_starts.tolist(), block.property_ends.tolist(), strict=True)
    for record, (topic, (start, end)) in enumerate(zip(block.topics(), ranges, strict=True)):
        if is_rolled_back[record]:
            continue
        properties = block.data[start:end]
        unique_key = find_property(properties, b"UNIQ_KEY")
        keys = [] if unique_key is None else [unique_key]
        keys += [word for word in (find_property(properties, b"KEYS") or b"").split(b" ") if word]
        names += [f"{topic}#{key.decode('utf-8', 'replace')}" for key in keys]
        records += [record] * len(keys)
    return np.array(records, np.int64), _absolute(java_hash_many(names))


def _keys_of_uniform(block: RecordBlock) -> tuple[Ints, Hashes] | None:
    """Return the keys of a uniform run of records of one topic; None for any other run."""
    count = len(block)
    topics = rows_of(block.data, block.topic_starts, block.topic_ends)
    rows = rows_of(block.data, block.property_starts, block.property_ends)
    layout = layout_of(rows) if rows is not None else None
    if topics is None or rows is None or layout is None or topics.vary(0, len(topics.low)):
        return None
    prefix = java_hash(f"{topics.first.decode('utf-8', 'replace')}#") & 0xFFFFFFFF
    hashes = []
    for name in (b"UNIQ_KEY", b"KEYS"):
        if name in layout.values:
            start, stop = layout.values[name]
            units = rows.cells[:, start:stop]
            if start == stop or rows.high[start:stop].max() >= 0x80 or (name == b"KEYS" and (units == ord(" ")).any()):
                return None
            powers = np.full(stop - start + 1, 31, np.uint32)
            powers[-1] = 1
            powers = np.multiply.accumulate(powers[::-1], dtype=np.uint32)[::-1]  # wraps at 32 bits, as Java's int does
            before = np.uint32(prefix * int(powers[0]) & 0xFFFFFFFF)
            hashes.append(_absolute((units.astype(np.uint32) @ powers[1:] + before).view(np.int32)))
    if not hashes:
        return None
    numbers = np.repeat(np.arange(count), len(hashes))
    keep = (block.sys_flags[numbers] & TRANSACTION_MASK) != TRANSACTION_ROLLBACK
    return numbers[keep], np.stack(hashes, axis=1).reshape(-1)[keep]
