"""Keys of many records and their hashes, for the index.

A record is found by its UNIQ_KEY and by each space-separated word of KEYS. The index stores a key as Java's
``|hashCode("topic#key")|`` (0 for -2147483648, which has no absolute value in 32 bits).

Pure functions. Corresponds to IndexService.buildIndex and IndexFile.indexKeyHashMethod.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.layout import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from spark_rocket.store.log.record_scan import Ints, RecordBlock

Hashes = npt.NDArray[np.int32]


def key_hash(topic: str, key: str) -> int:
    """Return the hash of a key in the index."""
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value == 1 << 31 else value


def _absolute(hashes: npt.NDArray[np.int32]) -> Hashes:
    absolute: Hashes = np.abs(hashes) & np.int32(0x7FFFFFFF)  # of the smallest number: itself, then 0
    return absolute


def keys_of(block: RecordBlock) -> tuple[Ints, Hashes]:
    """Return record number and hash of each key of a block, in index order."""
    properties, prefixes = block.properties(), _prefixes(block)
    unique, starts, ends = properties.values(b"UNIQ_KEY")
    unique_hashes = properties.hashes(starts, ends, prefixes[unique])
    keyed, starts, ends = properties.values(b"KEYS")
    values, starts, ends = properties.words(starts, ends)
    keyed = keyed[values]
    records = np.concatenate((unique, keyed))
    hashes = np.concatenate((unique_hashes, properties.hashes(starts, ends, prefixes[keyed])))
    is_rolled_back = (block.sys_flags & TRANSACTION_MASK) == TRANSACTION_ROLLBACK
    if is_rolled_back.any():
        keep = ~is_rolled_back[records]
        records, hashes = records[keep], hashes[keep]
    order = np.argsort(records, kind="stable")
    return records[order], _absolute(hashes.view(np.int32)[order])


def _prefixes(block: RecordBlock) -> npt.NDArray[np.uint32]:
    """Return the hash of each record's topic with a number sign."""
    topic = block.topic()
    topics = block.topics() if topic is None else [topic]
    hashes = {name: java_hash(f"{name}#") & 0xFFFFFFFF for name in set(topics)}
    found = np.array([hashes[name] for name in topics], np.uint32)
    return found if topic is None else np.repeat(found, len(block))
