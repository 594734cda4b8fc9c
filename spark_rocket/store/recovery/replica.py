"""A slave's store: it takes the bytes of its master's log, and makes of them what the master made of messages.

Bytes come in pieces that end anywhere. What is written are whole records only, so that the log ends where one does
whatever happens; the beginning of a record that is not whole yet waits in memory, and so do the blank record at a
file's end and what lies behind it, which are written at once. Whole records are looked at as recovery does, written
as they are, and entered into the consume queues before readers see them; the index follows by itself.

What is refused, with nothing written: bytes that do not go on where the log ends; bytes that are no records, or that
say that they stand elsewhere (StoreCorruptError); an empty log's first byte that is no file's first. A body that does
not have its CRC is damaged at the master: that is said in the log, and the record is copied as it is.

Taking back (:meth:`Replica.truncate`) is for a tail that the master does not have. First a copy of it is put on disk in
``quarantine``, under the offset where it began. Then the checkpoint is made to say that nothing is known to be on disk,
and the ends of queues are forgotten; then index, log and queues are cut. A crash in between leaves the log long or
short, and recovery reads all of it.

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
from spark_rocket.protocol.record.layout import BLANK_SIZE, FIXED_SIZE
from spark_rocket.protocol.record.record import RecordView, scan_record
from spark_rocket.store.appender import ArriveCallback, MessageAppender
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.descriptors import make_directory, sync_directory
from spark_rocket.store.flush import FlushCommitLogService, FlushConsumeQueueService
from spark_rocket.store.index.service import IndexService
from spark_rocket.store.layout import ENTRY_TYPE, DelayLevels
from spark_rocket.store.log.checkpoint import Checkpoint
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.log.mapped_file import free_name
from spark_rocket.store.log.record_scan import Stop, next_good, parse, walk
from spark_rocket.store.queues.consume_queue import ConsumeQueue
from spark_rocket.store.queues.dispatch import Dispatcher, QueueGap
from spark_rocket.store.queues.queue_table import ConsumeQueueTable
from spark_rocket.store.queues.side_files import DeletedTopics, QueueEnds

_FEW = 24  # records that are quicker looked at one by one
_COPY = 1 << 20
_BACK = (64 << 10, 1 << 20, 16 << 20)  # how far before the end a comparison with the master's log begins

Bytes = bytes | bytearray | memoryview


class Replica:
    """The part of a store that follows another."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        appender: MessageAppender,
        delays: DelayLevels,
        deleted: DeletedTopics,
        ends: QueueEnds,
        checkpoint: Checkpoint,
        flush_log: FlushCommitLogService,
        flush_queues: FlushConsumeQueueService,
        on_arrive: ArriveCallback | None,
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._index = index
        self._appender = appender
        self._delays = delays
        self._deleted = deleted
        self._ends = ends
        self._checkpoint = checkpoint
        self._flush_log = flush_log
        self._flush_queues = flush_queues
        self._on_arrive = on_arrive
        self._held = bytearray()  # received, but not enough to be written
        self._needed = 0  # so many bytes are
        self._quarantined: tuple[int, int, Path] | None = None
        self._dispatcher = self._new_dispatcher()
        self.refusal = StoreNotWritableError(
            f"The store in {config.store_path} is a slave's: it takes messages from its master only.",
            remedy="Send to the master. To make a master of this broker, set brokerRole and brokerId, and start it.",
        )
        """Why the store takes no messages."""

    def _new_dispatcher(self) -> Dispatcher:
        return Dispatcher(
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

    # --- taking ---------------------------------------------------------------------------------------------------

    @property
    def received_offset(self) -> int:
        """Where the next byte belongs; the log ends before it if the last record is not whole yet."""
        return self._log.max_offset + len(self._held)

    @property
    def is_empty(self) -> bool:
        """Whether the log may begin anywhere."""
        return not self._log.queue.files or self._log.max_offset == self._log.min_offset

    def forget(self) -> None:
        """The master is gone: forget the beginning of a record that is not whole."""
        self._held, self._needed = bytearray(), 0

    def append(self, offset: int, data: Bytes) -> None:
        """Take bytes of the master's log. StoreError, and nothing is taken, when they are not what comes next.

        StoreCorruptError when they are no records, OSError when the disk is full: what was held is forgotten then.
        """
        error = self._appender.write_error
        if error is not None and error is not self.refusal:
            raise error
        if not self._held and self.is_empty and offset != self._log.max_offset:
            self._begin_at(offset)
        if offset != self.received_offset:
            raise StoreError(
                f"Bytes of the log from offset {offset} on do not follow {self.received_offset}, where the log in "
                f"{self._log.queue.directory} goes on."
            )
        if self._held:
            if len(self._held) + len(data) < self._needed:
                self._held += data
                return
            run = b"".join((self._held, data))
        else:
            run = bytes(data)
        self.forget()
        done = self._take(run)
        if done < len(run):
            self._held += memoryview(run)[done:]

    def _begin_at(self, offset: int) -> None:
        if offset % self._log.file_size:
            raise StoreError(
                f"The master's log begins at offset {offset}, where none of the files of {self._log.file_size} bytes "
                f"in {self._log.queue.directory} would.",
                remedy="Set mappedFileSizeCommitLog to what the master has.",
            )
        with self._flush_log.held():
            if self._log.queue.files:  # one that nothing was written to
                self._log.cut(self._log.max_offset)
            self._log.open_at(offset, flushed=offset)

    def _take(self, run: bytes) -> int:
        """Write what is whole of a run; how much that was."""
        log, done = self._log, 0
        while done < len(run):
            part = run[done:] if done else run
            starts, end, stop, reason = walk(part, log.file_size - log.position)
            if starts:
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
            raise self._no_record(log.max_offset, reason or "zeros")
        return done

    def _no_record(self, offset: int, reason: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"What the master sends for offset {offset} is no record that belongs there: {reason}.",
            remedy="Run `rocket store check` on the master's store when it is stopped; mappedFileSizeCommitLog must be "
            f"the same at both ({self._log.file_size} here).",
        )

    def _write(self, part: bytes, starts: list[int], end: int) -> None:
        """Records of one file to the log and the queues, or to neither."""
        log = self._log
        base = log.max_offset
        dispatcher = self._dispatcher
        reason, damaged = "", -1
        records = _few_records(part, base, starts) if len(starts) <= _FEW else []
        if records:
            timestamp = records[-1].store_timestamp
        else:
            block, reason = parse(part, base, starts, end)
            if reason:
                damaged = base + starts[len(block)]
                block, reason = parse(part, base, starts, end, check_crc=False)
                if reason:
                    end = starts[len(block)]
            if not len(block):
                raise self._no_record(base + end, reason)
            timestamp = int(block.store_timestamps[-1])
        if log.position + end + BLANK_SIZE > log.file_size:
            raise self._no_record(base, "it reaches to the end of the file")
        log.make_room(end)
        log.write(memoryview(part)[:end])
        try:
            if not records:
                dispatcher.dispatch(block)
            for record in records:
                dispatcher.dispatch_one(record)
        except BaseException as error:
            log.take_back(end)
            self._cut_queues(base)
            self._dispatcher = self._new_dispatcher()
            if isinstance(error, QueueGap):
                raise StoreCorruptError(
                    f"{error}, but the master's log goes on with that.",
                    remedy=f"Stop the broker and run `rocket store rebuild {self._config.store_path}`.",
                ) from None
            raise
        log.advance(end)
        self._appender.store_timestamp = timestamp
        if reason:
            raise self._no_record(base + end, reason)
        if damaged >= 0:
            log.report_damage(damaged, "it came like this from the master")

    # --- comparing with a master ------------------------------------------------------------------------------------

    def check_points(self) -> Iterator[int]:
        """Where to begin to compare the log's end with the master's: records' beginnings, further and further back."""
        queue, begin = self._log.queue, self._log.min_offset
        last = self._log.max_offset
        for distance in _BACK:
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
        """The beginning of the record that an offset lies in (or that begins there); ``start`` is one's beginning.

        ``start`` again when what stands there is not followed by records up to that offset.
        """
        at = start
        while at < offset:
            file = self._log.queue.find(at)
            if file is None:
                return start
            head = file.read(at - file.file_from_offset, _COPY)
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

    # --- taking back ------------------------------------------------------------------------------------------------

    def quarantine(self, offset: int) -> Path:
        """Put a copy of the log from an offset on into the directory quarantine. OSError when the disk is full."""
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
                at += copy.write(file.read(position, min(_COPY, file.size - position, end - at)))
            copy.flush()
            os.fsync(copy.fileno())
        part.replace(path)
        sync_directory(directory)
        self._quarantined = (offset, end, path)
        return path

    def truncate(self, offset: int) -> Path:
        """Cut the log where a record begins. What is cut off is in the file that is returned."""
        known = self._quarantined
        if known is not None and known[:2] == (offset, self._log.max_offset):
            path = known[2]
        else:
            path = self.quarantine(offset)
        self._quarantined = None
        self.forget()
        checkpoint = self._checkpoint
        with self._flush_log.held(), self._flush_queues.held():
            self._appender.store_timestamp = 0
            checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = checkpoint.index_msg_timestamp = 0
            checkpoint.save()
            self._ends.forget_all()
            self._deleted.cut(offset)
            self._log.max_offset = offset  # first of all, so that the index goes no further
            if self._index is not None:
                self._index.cut(offset)
            self._log.cut(offset)
            self._cut_queues(offset)
            self._dispatcher = self._new_dispatcher()
        return path

    def _cut_queues(self, offset: int) -> None:
        for queue in self._queues.opened():
            if queue.cut(offset) and not queue.dirty:
                self._queues.mark_dirty(queue)


def _few_records(part: bytes, base: int, starts: list[int]) -> list[RecordView]:
    """The records that begin there; none if one of them is not good."""
    records = []
    for start in starts:
        record = scan_record(part, start).record
        if record is None or record.physical_offset != base + start:
            return []
        records.append(record)
    return records
