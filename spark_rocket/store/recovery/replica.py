"""A slave's store: appends the bytes of its master's log, and updates consume queues and index from them.

Bytes arrive in chunks with arbitrary boundaries. Only complete records are written, so that the log always ends at a
record's end. The start of an incomplete record is buffered in memory. So are a file's blank record and the bytes after
it, until they can be written at once. Complete records are checked as in recovery, written unchanged, and added to the
consume queues before readers see them. The index thread indexes them later.

Rejected, with nothing written: bytes that do not continue the log; bytes that are not records, or records with another
physical offset (StoreCorruptError); for an empty log, a first byte that is not at a file's beginning. A body that does
not match its CRC is damaged at the master: this is logged, and the record is copied unchanged.

Truncation (:meth:`Replica.truncate`) removes a tail that the master does not have. First the tail is copied durably to
``quarantine``, under its first offset. Then the checkpoint is reset, so that nothing counts as flushed, and the ends of
queues are dropped. Then index, log and queues are cut. A crash in between leaves the log long or short, and recovery
reads all of it.

Thread-safety: for the store's one thread; ``quarantine`` may run beside it while nothing is appended.
After a crash: see recovery.py. Corresponds to CommitLog.appendData, DefaultMessageStore.appendToCommitLog and
truncateDirtyFiles.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from spark_rocket.errors import StoreCorruptError, StoreError, StoreNotWritableError
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.record.layout import BLANK_SIZE, FIXED_SIZE
from spark_rocket.protocol.record.record import RecordView, scan_record
from spark_rocket.store.appender import ArriveCallback, MessageAppender
from spark_rocket.store.descriptors import make_directory, sync_directory
from spark_rocket.store.flush import FlushCommitLogService, FlushConsumeQueueService
from spark_rocket.store.layout import ENTRY_TYPE
from spark_rocket.store.log.mapped_file import free_name
from spark_rocket.store.log.record_scan import Ints, Stop, next_good, parse, walk
from spark_rocket.store.parts import StoreParts
from spark_rocket.store.queues.consume_queue import ConsumeQueue
from spark_rocket.store.queues.dispatch import CommitLogDispatcher, QueueGap

_MAX_SINGLE_CHECKS = 24  # records, up to which checking one by one is faster
_COPY_BYTES = 1 << 20
_COMPARISON_DISTANCES_BYTES = (
    64 << 10,
    1 << 20,
    16 << 20,
)  # bytes before the end where comparisons with the master's log start


class Replica:
    """The part of a store that replicates a master's log."""

    def __init__(
        self,
        parts: StoreParts,
        appender: MessageAppender,
        flush_log: FlushCommitLogService,
        flush_queues: FlushConsumeQueueService,
        on_arrive: ArriveCallback | None,
    ) -> None:
        self._config = parts.config
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._delays = parts.delays
        self._deleted = parts.deleted
        self._ends = parts.ends
        self._checkpoint = parts.checkpoint
        self._appender = appender
        self._flush_log = flush_log
        self._flush_queues = flush_queues
        self._on_arrive = on_arrive
        self._buffer = bytearray()  # received, but incomplete
        self._needed = 0  # buffered bytes needed for the next write
        self._quarantined: tuple[int, int, Path] | None = None
        self._dispatcher = self._new_dispatcher()
        self.refusal = StoreNotWritableError(
            f"The store in {parts.config.store_path} is a slave's: it accepts messages only from its master.",
            remedy="Send to the master. To make this broker a master, set brokerRole and brokerId, and restart it.",
        )
        """Why the store rejects messages."""

    def _new_dispatcher(self) -> CommitLogDispatcher:
        return CommitLogDispatcher(
            self._queues,
            self._delays,
            self._deleted,
            may_start_anywhere=True,
            ignores=lambda topic, offset: False,
            on_entries=self._arrived if self._on_arrive is not None else None,
        )

    def _arrived(self, queue: ConsumeQueue, entries: bytes) -> None:
        assert self._on_arrive is not None
        codes: set[int] = set(np.frombuffer(entries, ENTRY_TYPE)["tags_code"].tolist())
        for code in codes:
            self._on_arrive(queue.topic, queue.queue_id, queue.max_offset, code, self._appender.store_timestamp)

    # --- appending ------------------------------------------------------------------------------------------------

    @property
    def received_offset(self) -> int:
        """Offset of the next byte; the log ends before it while the last record is incomplete."""
        return self._log.max_offset + len(self._buffer)

    @property
    def is_empty(self) -> bool:
        """Whether the log is empty, so that it may start at any file's offset."""
        return not self._log.queue.files or self._log.max_offset == self._log.min_offset

    def forget(self) -> None:
        """Drop the start of an incomplete record, after the connection to the master ended."""
        self._buffer, self._needed = bytearray(), 0

    def append(self, offset: int, data: Buffer) -> None:
        """Append bytes of the master's log. StoreError, with nothing appended, if they do not continue it.

        StoreCorruptError if they are not records, OSError if the disk is full: buffered bytes are dropped then.
        """
        error = self._appender.write_error
        if error is not None and error is not self.refusal:
            raise error
        if not self._buffer and self.is_empty and offset != self._log.max_offset:
            self._begin_at(offset)
        if offset != self.received_offset:
            raise StoreError(
                f"Log bytes from offset {offset} do not continue {self._log.queue.directory}, which ends at "
                f"{self.received_offset}."
            )
        if self._buffer:
            if len(self._buffer) + len(data) < self._needed:
                self._buffer += data
                return
            run = b"".join((self._buffer, data))
        else:
            run = bytes(data)
        self.forget()
        done = self._write_complete(run)
        if done < len(run):
            self._buffer += memoryview(run)[done:]

    def _begin_at(self, offset: int) -> None:
        if offset % self._log.file_size:
            raise StoreError(
                f"The master's log begins at offset {offset}, which is not a multiple of the {self._log.file_size} "
                f"bytes of a file in {self._log.queue.directory}.",
                remedy="Set mappedFileSizeCommitLog to the master's value.",
            )
        with self._flush_log.held():
            if self._log.queue.files:  # an empty file
                self._log.cut(self._log.max_offset)
            self._ends.begin_at(offset)
            self._log.open_at(offset, flushed=offset)

    def _write_complete(self, run: bytes) -> int:
        """Write the complete records of a run; return the number of bytes written."""
        log, done = self._log, 0
        while done < len(run):
            part = run[done:] if done else run
            starts, end, stop, reason = walk(part, log.file_size - log.position)
            if len(starts):
                self._write(part, starts, end)
                done += end
            if stop is Stop.LIMIT:
                size = int.from_bytes(part[end : end + 4], "big") if len(part) - end >= 8 else 8
                self._needed = size
                return done
            if stop is Stop.BLANK and log.position:
                rest = log.file_size - log.position
                if len(run) - done < rest:
                    self._needed = rest
                    return done
                log.end_file(run[done : done + rest])
                done += rest
                continue
            raise self._invalid_record(log.max_offset, reason or "zeros")
        return done

    def _invalid_record(self, offset: int, reason: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"The master sent an invalid record for offset {offset}: {reason}.",
            remedy="Stop the master and run `rocket store check` on its store; mappedFileSizeCommitLog must be equal "
            f"on both brokers ({self._log.file_size} here).",
        )

    def _write(self, part: bytes, starts: Ints, end: int) -> None:
        """Write records of one file to the log and the queues, or to neither."""
        log = self._log
        base = log.max_offset
        dispatcher = self._dispatcher
        reason, damaged = "", -1
        records = _few_records(part, base, starts.tolist()) if len(starts) <= _MAX_SINGLE_CHECKS else []
        if records:
            timestamp = records[-1].store_timestamp
        else:
            block, reason = parse(part, base, starts, end)
            if reason:
                damaged = base + int(starts[len(block)])
                block, reason = parse(part, base, starts, end, check_crc=False)
                if reason:
                    end = int(starts[len(block)])
            if not len(block):
                raise self._invalid_record(base + end, reason)
            timestamp = int(block.store_timestamps[-1])
        if log.position + end + BLANK_SIZE > log.file_size:
            raise self._invalid_record(base, "it leaves no room for the blank record at the end of the file")
        log.make_room(end)
        log.write(memoryview(part)[:end])
        try:
            if not records:
                dispatcher.dispatch(block)
            for record in records:
                dispatcher.dispatch_one(record)
        except BaseException as error:
            log.erase(end)
            self._cut_queues(base)
            self._dispatcher = self._new_dispatcher()
            if isinstance(error, QueueGap):
                raise StoreCorruptError(
                    f"{error}, where the master's log continues.",
                    remedy=f"Stop the broker and run `rocket store rebuild {self._config.store_path}`.",
                ) from None
            raise
        log.advance(end)
        self._appender.continue_from(timestamp)
        if reason:
            raise self._invalid_record(base + end, reason)
        if damaged >= 0:
            log.report_damage(damaged, "the master sent it so")

    # --- comparing with a master ------------------------------------------------------------------------------------

    def check_points(self) -> Iterator[int]:
        """Yield starts of records, further and further back, from which to compare the log with the master's."""
        queue, begin = self._log.queue, self._log.min_offset
        last = self._log.max_offset
        for distance in _COMPARISON_DISTANCES_BYTES:
            wanted = max(self._log.max_offset - distance, begin)
            file = queue.find(wanted)
            if file is None or wanted >= last:
                continue
            position = wanted - file.file_from_offset
            at = file.file_from_offset + (next_good(file, position - 1) if position else 0)
            if at < last:
                yield at
                last = at
        for file in reversed(queue.files):
            if file.file_from_offset < last:
                last = file.file_from_offset
                yield last

    def record_before(self, offset: int, start: int) -> int:
        """Return the start of the record that contains an offset; ``start`` is the start of an earlier record.

        Returns ``start`` if there are not only records from there to the offset.
        """
        at = start
        while at < offset:
            file = self._log.queue.find(at)
            if file is None:
                return start
            head = file.read(at - file.file_from_offset, _COPY_BYTES)
            position = 0
            while position + 4 <= len(head):
                size = int.from_bytes(head[position : position + 4], "big")
                if size < BLANK_SIZE or at + size > file.file_from_offset + file.size:
                    return start
                if at + size > offset:
                    return at
                if size < FIXED_SIZE and at + size != file.file_from_offset + file.size:
                    return start
                at += size
                position += size
        return at

    # --- truncating -------------------------------------------------------------------------------------------------

    def quarantine(self, offset: int) -> Path:
        """Copy the log from an offset on to the directory quarantine. OSError if the disk is full."""
        end = self._log.max_offset
        directory = self._config.store_path / "quarantine"
        make_directory(directory)
        path, part = free_name(directory, offset), directory / "part"
        with part.open("wb") as copy:
            at = offset
            while at < end:
                file = self._log.queue.find(at)
                assert file is not None
                position = at - file.file_from_offset
                at += copy.write(file.read(position, min(_COPY_BYTES, file.size - position, end - at)))
            copy.flush()
            os.fsync(copy.fileno())
        part.replace(path)
        sync_directory(directory)
        self._quarantined = (offset, end, path)
        return path

    def truncate(self, offset: int) -> Path:
        """Cut the log at the start of a record; return the file with a copy of the rest."""
        known = self._quarantined
        if known is not None and known[:2] == (offset, self._log.max_offset):
            path = known[2]
        else:
            path = self.quarantine(offset)
        self._quarantined = None
        self.forget()
        checkpoint = self._checkpoint
        with self._flush_log.held(), self._flush_queues.held():
            self._appender.continue_from(0)
            checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = checkpoint.index_msg_timestamp = 0
            checkpoint.save()
            self._ends.forget_all()
            self._deleted.cut(offset)
            self._log.hide_from(offset)  # first, so that the index thread stops there
            if self._index is not None:
                self._index.cut(offset)
            self._log.cut(offset)
            self._cut_queues(offset)
            self._dispatcher = self._new_dispatcher()
        return path

    def _cut_queues(self, offset: int) -> None:
        for queue in self._queues.opened():
            if queue.cut(offset):
                self._queues.mark_dirty(queue)


def _few_records(part: bytes, base: int, starts: list[int]) -> list[RecordView]:
    """Return the records at these starts; an empty list if one of them is invalid."""
    records = []
    for start in starts:
        record = scan_record(part, start).record
        if record is None or record.physical_offset != base + start:
            return []
        records.append(record)
    return records
