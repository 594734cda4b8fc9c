"""Pieces of a stopped store's log that can be read apart from each other: by another process, on another machine.

A span lies in one file, and begins and ends where a record does. The place is found without help from consume queues:
the first record behind a round number of bytes that is whole, says that it stands there, and has its CRC. Nobody's
message body looks like that by accident, but it might on purpose; so whoever reads a span also proves that its chain of
records arrives exactly at its end.

What is not a whole record is told to ``lost``, which raises or lets the reading go on at the next whole record: a
record that is damaged, zeros in the middle, a file that is missing or too short. Bytes behind which no whole record
comes are the torn tail that a killed broker leaves, and are left out, as is what its next start would cut off
(salvage.py); not so when consume queues of a cleanly stopped store have entries for them.

Thread-safety: reads files only, with descriptors of its own. Values, but for the iteration.
Corresponds to nothing in RocketMQ.
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
from spark_rocket.store.log.record_scan import CHUNK, LogScan, RecordBlock, Stop, is_good, next_good, stored_at
from spark_rocket.store.tools.view import ViewedFile

Lost = Callable[[str], None]
"""Told what is damaged, and where; returns if the reading is to go on."""

_WINDOW = 64 << 10
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
    """Of the first record; None if that cannot be read."""
    is_last: bool = False
    """Nothing whole comes behind it."""
    queued_end: int = 0
    """The log is known to reach so far. For the last span of a store that was stopped cleanly."""


def plan_spans(
    log: MappedFileQueue, size: int, *, queued_end: int, cut: int | None = None, lost: Lost
) -> list[LogSpan]:
    """Cut a log into spans of about ``size`` bytes; a rest of less than half of that is not cut off.

    ``cut``: where the log ends, whatever lies behind.
    """
    files = list(log.files)
    while files and _store_timestamp(files[-1], 0) is None and next_good(files[-1], 0) == files[-1].size:
        files.pop()  # made ahead of the writer, or nothing whole ever got there
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
            lost(f"{log.directory} has no records, but consume queues have entries for some up to offset {queued_end}")
        elif any(file.has_data(0) for file in log.files):
            lost(f"{log.directory} has no whole record, but something else than zeros")
        return []
    spans[-1] = replace(spans[-1], is_last=True, queued_end=queued_end)
    return spans


def _edges(file: MappedFile, size: int) -> Iterator[int]:
    """Positions within a file, not its ends, where a record starts, about ``size`` bytes from one another."""
    wanted = size
    while wanted + size // 2 < file.size:
        found = _first_record(file, wanted)
        if found >= file.size:
            return
        yield found
        wanted = max(found - found % size, wanted) + size


def _first_record(file: MappedFile, position: int) -> int:
    """Where the first good record from a position on starts: mostly near, so a little is read first."""
    for match in _MAGIC.finditer(file.read(position, _WINDOW)):
        start = position + match.start() - 4
        if start >= position and is_good(file, start):
            return start
    return next_good(file, position - 1)


def _store_timestamp(file: MappedFile, position: int) -> int | None:
    stored = stored_at(_alone(file), file.file_from_offset + position, check_crc=True)
    return stored if stored >= 0 else None


def _alone(file: MappedFile) -> MappedFileQueue:
    """A row of this file only, for a scan."""
    row = MappedFileQueue(file.path.parent, file.size, setting="mappedFileSizeCommitLog")
    row.add(file)
    return row


def read_span(span: LogSpan, lost: Lost, *, chunk: int = CHUNK) -> Iterator[RecordBlock]:
    """The good records of a span, block by block, CRC checked. OSError if the file is gone."""
    file = ViewedFile(span.path, span.file_size, span.file_from_offset)
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
                f"{span.path}: what stands at offset {span.end} looks like a record, but lies within another.",
                remedy="Read with another minPartitions: the file is then cut elsewhere.",
            )
        following = span.file_from_offset + next_good(file, offset - span.file_from_offset)
        if following >= file_end and span.is_last:
            break
        following = min(following, span.end)
        why = reason or "zeros where a record should be"
        lost(f"{_place(span, offset)}: {why}; {following - offset} bytes are no records")
        offset = following
    if span.queued_end > offset:
        lost(f"{_place(span, offset)}: the log ends, but consume queues have entries up to offset {span.queued_end}")


def _place(span: LogSpan, offset: int) -> str:
    return f"{span.path} at byte {offset - span.file_from_offset} (offset {offset})"
