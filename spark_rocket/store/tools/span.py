"""Spans of a stopped store's log that can be read independently: by other processes, on other machines.

A span is within one file, and starts and ends at a record's boundary. The boundary is found without consume queues: the
first record after a round number of bytes with valid lengths, a matching physical offset and a matching CRC. A message
body does not look like that by accident, but it might on purpose. The reader of a span therefore also checks that its
chain of records ends exactly at the span's end.

Damage is reported to ``lost``, which raises an error or returns to continue at the next intact record: damaged records,
zeros between records, files that are missing or too short. Bytes without a later intact record are the torn tail of a
killed broker. They are skipped, and so is the data that its next start would cut off (salvage.py), unless consume
queues of a cleanly stopped store have entries for them.

Thread-safety: only reads files, with separate descriptors. Pure values, except for the iteration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from spark_rocket.errors import StoreCorruptError
from spark_rocket.protocol.record.layout import MAGIC_V1, MAGIC_V2
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue
from spark_rocket.store.log.record_scan import CHUNK_BYTES, LogScan, RecordBlock, Stop, is_good, next_good, stored_at

Lost = Callable[[str], None]
"""Called with a description of damage and its place; raises, or returns to continue."""

_WINDOW_BYTES = 64 << 10
_MAGIC = re.compile(b"|".join(re.escape(magic.to_bytes(4, "big")) for magic in (MAGIC_V1, MAGIC_V2)))


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The records that start in ``[start, end)``, physical offsets within one file."""

    path: Path
    file_from_offset: int
    file_size: int
    start: int
    end: int
    store_timestamp: int | None
    """Store time of the first record; None if it cannot be read."""
    is_last: bool = False
    """No intact record follows."""
    queued_end: int = 0
    """End of the log according to the consume queues. For the last span of a cleanly stopped store."""


def plan_spans(
    log: MappedFileQueue, size: int, *, queued_end: int, cut: int | None = None, lost: Lost
) -> list[LogSpan]:
    """Split a log into spans of about ``size`` bytes; a rest of less than half of that is not split off.

    ``cut``: the end of the log, regardless of later data.
    """
    files = list(log.files)
    while files and _store_timestamp(files[-1], 0) is None and next_good(files[-1], 0) == files[-1].size:
        files.pop()  # created ahead of the writer, or without an intact record
    spans: list[LogSpan] = []
    behind = files[0].file_from_offset if files else log.min_offset
    for file in files:
        base = file.file_from_offset
        if base != behind:
            lost(f"{log.directory}: bytes {behind} to {base - 1} of the log are gone: a file is missing or too short")
        behind = base + file.size
        edges = [0, *_edges(file, size), file.size]
        spans += [
            LogSpan(file.path, base, file.size, base + low, base + high, _store_timestamp(file, low))
            for low, high in pairwise(edges)
        ]
    if cut is not None:
        spans = [replace(span, end=min(span.end, cut)) for span in spans if span.start < cut]
    if not spans:
        if cut is not None:
            return []
        if queued_end > behind:
            lost(f"{log.directory} has no records, but consume queues have entries up to offset {queued_end}")
        elif any(file.has_data(0) for file in log.files):
            lost(f"{log.directory} has no intact record, but nonzero bytes")
        return []
    spans[-1] = replace(spans[-1], is_last=True, queued_end=queued_end)
    return spans


def _edges(file: MappedFile, size: int) -> Iterator[int]:
    """Yield positions inside a file where records start, about ``size`` bytes apart."""
    wanted = size
    while wanted + size // 2 < file.size:
        found = _first_record(file, wanted)
        if found >= file.size:
            return
        yield found
        wanted = max(found - found % size, wanted) + size


def _first_record(file: MappedFile, position: int) -> int:
    """Return the start of the first good record from a position on; reads a small window first."""
    for match in _MAGIC.finditer(file.read(position, _WINDOW_BYTES)):
        start = position + match.start() - 4
        if start >= position and is_good(file, start):
            return start
    return next_good(file, position - 1)


def _store_timestamp(file: MappedFile, position: int) -> int | None:
    stored = stored_at(_alone(file), file.file_from_offset + position, check_crc=True)
    return stored if stored >= 0 else None


def _alone(file: MappedFile) -> MappedFileQueue:
    """Return a queue of only this file, for a scan."""
    row = MappedFileQueue(file.path.parent, file.size, setting="mappedFileSizeCommitLog")
    row.add(file)
    return row


def read_span(span: LogSpan, lost: Lost, *, chunk: int = CHUNK_BYTES) -> Iterator[RecordBlock]:
    """Yield the good records of a span in blocks, with CRC check. OSError if the file is gone."""
    file = MappedFile(span.path, span.file_size, span.file_from_offset)
    file_end = span.file_from_offset + span.file_size
    offset = span.start
    while offset < span.end:
        scan = LogScan(_alone(file), offset, span.end, chunk=chunk)
        yield from scan
        offset, stop, reason = scan.end.offset, scan.end.stop, scan.end.reason
        if stop is Stop.LIMIT and offset == span.end:
            break
        if stop is Stop.LIMIT or (span.end < file_end and is_good(file, offset - span.file_from_offset)):
            raise StoreCorruptError(
                f"{span.path}: the bytes at offset {span.end} look like a record, but are inside another.",
                remedy="Read with another minPartitions: the file is then split elsewhere.",
            )
        following = span.file_from_offset + next_good(file, offset - span.file_from_offset)
        if following >= file_end and span.is_last:
            break
        following = min(following, span.end)
        why = reason or "zeros instead of a record"
        lost(f"{_place(span, offset)}: {why}; {following - offset} bytes are lost")
        offset = following
    if span.queued_end > offset:
        lost(f"{_place(span, offset)}: the log ends, but consume queues have entries up to offset {span.queued_end}")


def _place(span: LogSpan, offset: int) -> str:
    return f"{span.path} at byte {offset - span.file_from_offset} (offset {offset})"
