"""The keys of many records and their hashes, for the index.

A record is found by its UNIQ_KEY and by each of the space-separated words of KEYS. The index knows a key by
``|hashCode("topic#key")|`` of Java (0 for the one number that has no absolute value). UNIQ_KEYs, which every message
has, and KEYS of one word are found and hashed with NumPy, all of a block at once; other KEYS word by word.

Pure functions. Corresponds to IndexService.buildIndex and IndexFile.indexKeyHashMethod.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.filter.tags import java_hash, java_hash_many
from spark_rocket.protocol.record.layout import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from spark_rocket.store.log.alike import layout_of
from spark_rocket.store.log.record_scan import Ints, RecordBlock

_UNIQ_KEY = re.compile(b"UNIQ_KEY\x01")
_KEYS = re.compile(b"KEYS\x01")
_FEWEST = 16  # records that are looked at as rows of a matrix
_LONGEST = 1 << 15
_POWERS = np.ones(_LONGEST + 1, np.uint32)
_POWERS[1:] = 31
np.multiply.accumulate(_POWERS, out=_POWERS)  # wraps at 32 bits, as Java's int does

Hashes = npt.NDArray[np.int32]


def key_hash(topic: str, key: str) -> int:
    """The number by which the index knows a key."""
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value == 1 << 31 else value


@lru_cache(maxsize=4096)
def _prefix_hash(topic: str) -> int:
    return java_hash(f"{topic}#") & 0xFFFFFFFF


def _absolute(hashes: npt.NDArray[np.uint32]) -> Hashes:
    signed = hashes.view(np.int32)
    absolute: Hashes = np.where(signed == np.int32(-(1 << 31)), np.int32(0), np.abs(signed))
    return absolute


def keys_of(block: RecordBlock) -> tuple[Ints, Hashes]:
    """Of each key of a block: the index of its record, and its hash; in the order in which the index takes them."""
    source = np.frombuffer(block.data, np.uint8)
    found = _keys_of_alike(block)
    if found is not None:
        return found
    topics = block.topics()
    uniq_records, starts, ends = _values(block, source, _UNIQ_KEY, 9)
    hashes = _hash_values(block, source, topics, uniq_records, starts, ends)
    order = [(uniq_records, np.zeros(len(uniq_records), np.int64), hashes)]
    key_records, starts, ends = _values(block, source, _KEYS, 5)
    if len(key_records):
        spaces = np.flatnonzero(source == ord(" "))
        has_many = np.searchsorted(spaces, starts) < np.searchsorted(spaces, ends)
        alone = ~has_many & (ends > starts)
        hashes = _hash_values(block, source, topics, key_records[alone], starts[alone], ends[alone])
        order.append((key_records[alone], np.ones(len(hashes), np.int64), hashes))
        key_records, starts, ends = key_records[has_many], starts[has_many], ends[has_many]
    if len(key_records):
        texts, records, places = [], [], []
        for record, start, end in zip(key_records.tolist(), starts.tolist(), ends.tolist(), strict=True):
            topic = topics[record]
            for place, word in enumerate(block.data[start:end].split(b" "), 1):
                if word:
                    texts.append(f"{topic}#{word.decode('utf-8', 'replace')}")
                    records.append(record)
                    places.append(place)
        order.append(
            (np.array(records, np.int64), np.array(places, np.int64), _absolute(java_hash_many(texts).view(np.uint32)))
        )
    numbers = np.concatenate([part[0] for part in order])
    places_all = np.concatenate([part[1] for part in order])
    hashes_all = np.concatenate([part[2] for part in order])
    keep = (block.sys_flags[numbers] & TRANSACTION_MASK) != TRANSACTION_ROLLBACK
    chosen = np.lexsort((places_all, numbers))
    chosen = chosen[keep[chosen]]
    return numbers[chosen], hashes_all[chosen]


def _keys_of_alike(block: RecordBlock) -> tuple[Ints, Hashes] | None:
    """The same for records of one topic whose properties have the same names in the same places; None for others."""
    count = len(block)
    if count < _FEWEST:
        return None
    begin, end = int(block.property_starts[0]), int(block.property_ends[0])
    topic_begin, topic_end = int(block.topic_starts[0]), int(block.topic_ends[0])
    step = int(block.property_starts[1]) - begin
    places = np.arange(count) * step
    columns = block.property_starts, block.property_ends, block.topic_starts, block.topic_ends
    firsts = begin, end, topic_begin, topic_end
    if not all(bool((column - places == first).all()) for column, first in zip(columns, firsts, strict=True)):
        return None
    topics = np.ndarray((count, topic_end - topic_begin), np.uint8, block.data, topic_begin, (step, 1))
    if not (topics == topics[0]).all():
        return None
    rows = np.ascontiguousarray(np.ndarray((count, end - begin), np.uint8, block.data, begin, (step, 1)))
    values = layout_of(rows).values if end > begin else None
    if values is None:
        return None
    prefix = _prefix_hash(topics[0].tobytes().decode("utf-8", "replace"))
    hashes = []
    for name in (b"UNIQ_KEY", b"KEYS"):
        if name in values:
            start, stop = values[name]
            units = rows[:, start:stop]
            if start == stop or units.max() >= 0x80 or (name == b"KEYS" and (units == ord(" ")).any()):
                return None
            powers = _POWERS[: stop - start][::-1]
            before = np.uint32(prefix * int(_POWERS[stop - start]) & 0xFFFFFFFF)
            hashes.append(_absolute(units.astype(np.uint32) @ powers + before))
    if not hashes:
        return None
    numbers = np.repeat(np.arange(count), len(hashes))
    keep = (block.sys_flags[numbers] & TRANSACTION_MASK) != TRANSACTION_ROLLBACK
    return numbers[keep], np.stack(hashes, axis=1).reshape(-1)[keep]


def _values(
    block: RecordBlock, source: npt.NDArray[np.uint8], name: re.Pattern[bytes], width: int
) -> tuple[Ints, Ints, Ints]:
    """Records that have a property, and where its value starts and ends."""
    none = np.zeros(0, np.int64)
    found = np.array([match.start() for match in name.finditer(block.data)], np.int64)
    if not len(found):
        return none, none, none
    records = np.searchsorted(block.property_starts, found, side="right") - 1
    inside = records >= 0
    found, records = found[inside], records[inside]
    begins, stops = block.property_starts[records], block.property_ends[records]
    real = (found + width <= stops) & ((found == begins) | (source[np.maximum(found - 1, 0)] == 2))
    found, records, stops = found[real], records[real], stops[real]
    if not len(found):
        return none, none, none
    last = np.append(records[1:] != records[:-1], True)  # of a property given twice the last counts
    found, records, stops = found[last], records[last], stops[last]
    separators = np.flatnonzero(source == 2)
    starts = found + width
    at = np.searchsorted(separators, starts)
    ends = (
        np.where(at < len(separators), separators[np.minimum(at, max(len(separators) - 1, 0))], stops)
        if len(separators)
        else stops
    )
    return records, starts, np.minimum(ends, stops)


def _hash_values(
    block: RecordBlock, source: npt.NDArray[np.uint8], topics: list[str], records: Ints, starts: Ints, ends: Ints
) -> Hashes:
    """``key_hash`` of values that stand in the block's bytes; values of one length at a time, as rows of a matrix."""
    hashes = np.zeros(len(records), np.int32)
    names = [topics[record] for record in records.tolist()]
    prefixes = np.fromiter(map(_prefix_hash, names), np.uint32, len(names))
    lengths = ends - starts
    for length in np.unique(lengths).tolist():
        chosen = np.flatnonzero(lengths == length)
        if not length:
            hashes[chosen] = _absolute(prefixes[chosen])
            continue
        units = np.lib.stride_tricks.sliding_window_view(source, length)[starts[chosen]]
        if units.max() < 0x80:
            powers = _POWERS[length - 1 :: -1] if length > 1 else _POWERS[:1]
            hashes[chosen] = _absolute(units.astype(np.uint32) @ powers + prefixes[chosen] * _POWERS[length])
        else:  # not one unit a byte: hashed as text
            texts = [row.tobytes().decode("utf-8", "replace") for row in units]
            hashes[chosen] = [key_hash(names[i], text) for i, text in zip(chosen.tolist(), texts, strict=True)]
    return hashes
