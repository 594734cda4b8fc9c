"""The store's interface for the broker: put, get, search by time, key and id, flush, close.

A put allocates disk blocks first, then writes the record and its consume-queue entry, and wakes pending pulls. No
message is ever partly visible, and a full disk is detected before a byte is written. The index is built from the log in
the background.

Thread-safety: puts, gets and topic changes are for one thread (the broker's event loop). ``when_flushed`` may be called
from any thread. Its callbacks run in a flush thread, the callbacks of ``when_indexed`` in the index thread. After a
crash: see recovery.py. Corresponds to org.apache.rocketmq.store.DefaultMessageStore.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from spark_rocket.common.system import now_ms
from spark_rocket.errors import StateError, StoreError, StoreNotWritableError
from spark_rocket.store.appender import ArriveCallback, MessageAppender
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.descriptors import keep_reserve, make_directory
from spark_rocket.store.flush import FlushCallback, FlushCommitLogService, FlushConsumeQueueService
from spark_rocket.store.index.index_service import IndexService
from spark_rocket.store.layout import ENTRY, STORE_TIME_END, DelayLevels, store_time
from spark_rocket.store.log.checkpoint import StoreCheckpoint
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.log.record_scan import RecordBlock
from spark_rocket.store.parts import StoreParts
from spark_rocket.store.paths import record_paths, refuse_foreign, refuse_left_behind
from spark_rocket.store.queues.queue_table import ConsumeQueueTable
from spark_rocket.store.queues.reader import StoreReader
from spark_rocket.store.queues.side_files import DeletedTopics, QueueEnds
from spark_rocket.store.recovery.recovery import Recovery, RecoveryReport
from spark_rocket.store.recovery.replica import Replica
from spark_rocket.store.results import GetMessageResult, QueryMessageResult
from spark_rocket.store.retention import DiskUsage, Retention, readable_bytes
from spark_rocket.store.store_lock import StoreLock, abort_path, write_abort

_GRANT_PERMISSION = "Give the broker's user read and write permission there."
_FREE_SPACE = "Free some space on that disk and restart the broker."
_REMEDIES = {
    errno.EACCES: _GRANT_PERMISSION,
    errno.EPERM: _GRANT_PERMISSION,
    errno.EROFS: "Mount that file system for writing; only `rocket store dump` and Spark's storePath can use it as is.",
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EMFILE: "Raise the limit of open files (ulimit -n, LimitNOFILE of the service) and restart the broker.",
    errno.ENFILE: "Raise the system's limit of open files (sysctl fs.file-max) and restart the broker.",
    errno.ENOMEM: "Raise the limit of mapped memory (ulimit -v, sysctl vm.max_map_count) and restart the broker.",
}


class MessageStore:
    """A store directory, open for one broker."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        store_host: tuple[str, int],
        clock: Callable[[], int] = now_ms,
        on_arrive: ArriveCallback | None = None,
        disk_usage: Callable[[Path], DiskUsage] = shutil.disk_usage,
    ) -> None:
        self.config = config
        self._clock = clock
        self._lock = StoreLock(config.store_path)
        self._checkpoint = StoreCheckpoint(config.store_path / "checkpoint")
        self._log = CommitLog(config)
        self._queues = ConsumeQueueTable(config)
        self._index = IndexService(config, self._log, self._checkpoint, clock) if config.message_index_enable else None
        self._deleted = DeletedTopics(config.store_path)
        self._ends = QueueEnds(config.store_path)
        delays = DelayLevels(config.delay_levels())
        self._parts = StoreParts(
            config, self._log, self._queues, self._index, self._deleted, self._ends, self._checkpoint, delays
        )
        self._reader = StoreReader(self._log, self._queues, config.max_filter_message_size)
        note = self._index.note if self._index is not None else None
        self._appender = MessageAppender(config, self._log, self._queues, delays, store_host, clock, on_arrive, note)
        # The appender's own methods: saves a call on the fast path.
        self.put_message = self._appender.put_message
        self.put_batch = self._appender.put_batch
        self._longest_get = 0  # milliseconds
        self._flush_log = FlushCommitLogService(
            config, self._log, self._checkpoint, self._get_store_timestamp, self._disk_failed
        )
        self._flush_queues = FlushConsumeQueueService(
            config, self._log, self._checkpoint, self._queues.take_dirty, self._get_store_timestamp, self._flush_log
        )
        self.replica: Replica | None = None
        """Copies the master's log, in a slave's store."""
        if config.is_replica:
            self.replica = Replica(self._parts, self._appender, self._flush_log, self._flush_queues, on_arrive)
        self._disk_refusal: StoreNotWritableError | None = None
        self._disk_failure: StoreNotWritableError | None = None
        self.retention = Retention(self._parts, self._refuse_writes, disk_usage)
        self._running = False
        self._boot_timestamp = 0
        self.recovery: RecoveryReport | None = None

    # --- opening and closing ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Lock the directory, recover, accept messages. StoreLockedError, StoreCorruptError, StoreNotWritableError."""
        if self.recovery is not None:
            raise StateError(
                f"The store in {self.config.store_path} is already started.",
                remedy="Create a new MessageStore to open it again.",
            )
        keep_reserve()
        try:
            make_directory(self.config.store_path)
            self._lock.acquire()
            self._lock_directories()
            self._open()
        except BaseException as error:
            if self._index is not None:
                self._index.close()
            self._queues.close()
            with suppress(StateError):
                self._log.close()
            self._lock.release()
            if isinstance(error, OSError):
                raise StoreNotWritableError(
                    f"The store in {self.config.store_path} cannot be opened: {error}.",
                    remedy=_REMEDIES.get(error.errno or 0, "Repair the disk or the directory and restart the broker."),
                    retriable=False,
                ) from error
            raise
        self._appender.refuse(None if self.replica is None else self.replica.refusal)  # before a flush may fail
        self._log.start()
        self._flush_log.start()
        self._flush_queues.start()
        if self._index is not None:
            self._index.start()
        self.retention.remover.remove_directories(self._queues.leftovers())
        self._boot_timestamp = self._clock()
        self._running = True

    def _lock_directories(self) -> None:
        """Create and lock all directories, and record their paths."""
        paths = self.config.paths
        used = paths.directories if self._index is not None else (paths.commit_log, paths.consume_queue)
        refuse_left_behind(paths)
        for directory in used:
            make_directory(directory)
        self._lock.acquire_directories(used)
        record_paths(paths)

    def _open(self) -> None:
        refuse_foreign(self.config.paths)
        clean = not abort_path(self.config.store_path).exists()
        self._checkpoint.load()
        self._log.load()
        self._queues.load()
        self._deleted.load()
        self._ends.load()
        try:
            write_abort(self.config.store_path)
            report = Recovery(self._parts).run(clean=clean)
            if self._index is not None:
                self._index.load(clean=report.clean)
            if not self._checkpoint.existed:
                self._checkpoint.save()
        except (StoreError, OSError):
            if clean:  # not a crash: the next attempt must treat the tail as cleanly stopped too
                with suppress(OSError):
                    abort_path(self.config.store_path).unlink(missing_ok=True)
            raise
        self.recovery = report
        self._appender.continue_from(report.last_store_timestamp)

    def close(self) -> None:
        """Flush everything, mark the stop as clean, unlock. StoreError if the flush fails."""
        if not self._running:
            return
        self._running = False
        reason = f"The store in {self.config.store_path} is closed."
        self._appender.refuse(StoreNotWritableError(reason, remedy="Start it."))
        if self._index is not None:
            self._index.stop()
        self._flush_log.stop()
        self._flush_queues.stop()
        self.retention.stop()
        self._log.shutdown()
        failure: OSError | None = None
        try:  # after an earlier failure both fail at once: a later success would prove nothing
            self._flush_log.flush()
            self._flush_queues.flush(thorough=True)
            if self._index is not None:
                self._index.flush()
            self._ends.save(self._queues, self._log.min_offset)
            abort_path(self.config.store_path).unlink(missing_ok=True)
        except OSError as error:
            failure = error
        self._appender.forget()
        if self._index is not None:
            self._index.close()
        self._queues.close()
        self._log.close()
        self._lock.release()
        if failure is not None:
            raise StoreError(
                f"The flush of the store in {self.config.store_path} failed: {failure}.",
                remedy="Repair the disk; the next start recovers the data on it.",
            )

    def _get_store_timestamp(self) -> int:
        return self._appender.store_timestamp

    def _disk_failed(self, error: OSError) -> None:
        self._disk_failure = StoreNotWritableError(
            f"The disk of {self.config.store_path} failed: {error}.",
            remedy="Repair the disk and restart the broker; it recovers the data on disk.",
            retriable=False,
        )
        self._appender.refuse(self._disk_failure)

    def _refuse_writes(self, error: StoreNotWritableError | None) -> None:
        """Reject writes while there is a retention error, unless a more serious one rejects them already."""
        if self._appender.write_error is self._disk_refusal:
            self._appender.refuse(error)
        self._disk_refusal = error
        if self._disk_failure is not None:  # the flush thread may have set it in between
            self._appender.refuse(self._disk_failure)

    def settings_changed(self, config: StoreConfig) -> None:
        """Apply the settings that may change while the store is open: the settings of retention."""
        self.retention.config = config

    def when_flushed(self, physical_offset: int, callback: FlushCallback) -> None:
        """Call back once everything below ``physical_offset`` is on disk (True), or after syncFlushTimeout (False)."""
        self._flush_log.wait_for(physical_offset, callback)

    def flush(self) -> None:
        """Flush log and consume queues to disk now. OSError when the disk fails."""
        self._flush_log.flush()
        self._flush_queues.flush(thorough=True)

    # --- getting ------------------------------------------------------------------------------------------------

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_msgs: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None = None,
    ) -> GetMessageResult:
        """Return raw records from a queue offset on; ``tag_codes`` selects by tags code (None: all)."""
        begun = self._clock()
        result = self._reader.get_message(topic, queue_id, offset, max_msgs, max_bytes, tag_codes)
        self._longest_get = max(self._longest_get, self._clock() - begun)
        return result

    def get_max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset after the last message; 0 if the queue has never had one."""
        queue = self._queues.find(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def get_min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the first available message, or of the next one if there is none."""
        queue = self._queues.find(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def get_offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """Return the first offset stored at or after a time, else the end; ``upper``: the last at or before it."""
        queue = self._queues.find(topic, queue_id)
        return self._reader.offset_by_time(queue, timestamp_ms, upper) if queue is not None else 0

    def get_store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message; −1 if it does not exist."""
        queue = self._queues.find(topic, queue_id)
        return self._reader.store_time(queue, offset) if queue is not None else -1

    def get_earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of the queue's first message; −1 without one."""
        queue = self._queues.find(topic, queue_id)
        return self._reader.store_time(queue, queue.min_offset) if queue is not None else -1

    def get_entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Return physical offset, size and tags code of up to ``count`` messages of a queue from ``offset`` on."""
        queue = self._queues.find(topic, queue_id)
        return list(ENTRY.iter_unpack(queue.read(offset, count))) if queue is not None else []

    def look_message(self, topic: str, queue_id: int, offset: int) -> bytes | None:
        """Return the record of a queue's message, None if damaged. StoreCorruptError if its entry is damaged."""
        queue = self._queues.find(topic, queue_id)
        return self._reader.message_at(queue, offset) if queue is not None else None

    def look_message_by_offset(self, physical_offset: int) -> bytes | None:
        """Return the record that starts at a physical offset, or None."""
        return self._reader.record_at(physical_offset)

    def is_message(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> bool:
        """Return whether a queue's message has this physical offset. Bytes of a body may look like a record too."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return False
        return bool(entries := self.get_entries(topic, queue_id, queue_offset, 1)) and entries[0][0] == physical_offset

    def log_bytes(self, physical_offset: int, limit: int) -> bytes:
        """Return raw bytes of the log, at most up to the end of a file; empty if there are none."""
        return self._log.read_up_to(physical_offset, limit)

    def log_since(self, timestamp: int, max_bytes: int) -> tuple[int, bool, Iterator[RecordBlock]]:
        """Return the log's last records, at most ``max_bytes``, with all stored at or after a time.

        Also returns the offset of the first one, and whether the limit has excluded none.
        """
        return self._reader.log_since(timestamp, max_bytes)

    @property
    def is_indexed(self) -> bool:
        """Whether a query finds all messages stored so far."""
        return self._index is None or self._index.behind <= 0

    def when_indexed(self, callback: Callable[[], None], timeout: float) -> None:
        """Call back, from any thread, once a query finds all messages stored so far, or after ``timeout`` seconds."""
        if self._index is None:
            callback()
        else:
            self._index.when_indexed(callback, timeout)

    def query_message(
        self,
        topic: str,
        key: str,
        max_num: int,
        begin_ms: int,
        end_ms: int,
        unique: bool = False,
        *,
        catch_up: bool = True,
    ) -> QueryMessageResult:
        """Return records of a topic with a key (only UNIQ_KEY, if ``unique``), stored in a time range.

        ``catch_up``: let the index catch up first, for at most 0.3 s.
        """
        if self._index is None:
            return QueryMessageResult()
        return self._index.query(topic, key, max_num, begin_ms, end_ms, unique=unique, catch_up=catch_up)

    # --- topics and metrics -------------------------------------------------------------------------------------

    def topics(self) -> set[str]:
        return {topic for topic, _ in self._queues.known()}

    def queue_keys(self) -> list[tuple[str, int]]:
        """Return topic and id of every queue, with or without messages."""
        return list(self._queues.table)

    def queues(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues that have had a message."""
        return sorted(queue_id for name, queue_id in self._queues.known() if name == topic)

    def delete_topic(self, topic: str) -> int:
        """Remove a topic's consume queues; return their number. Its records stay in the log until that is trimmed."""
        self._appender.forget(topic)
        if any(name == topic for name, _ in self._queues.table):
            self._deleted.add(topic, self._log.max_offset, self._log.min_offset)
            self._ends.forget(topic)
        self.retention.remover.forget(self.config.consume_queue_path / topic)
        count, directories = self._queues.delete_topic(topic)
        self.retention.remover.remove_directories(directories)
        return count

    @property
    def was_stopped(self) -> bool:
        """Whether this project's store was stopped cleanly before this start, at any time."""
        return self._ends.existed

    @property
    def write_error(self) -> StoreNotWritableError | None:
        """Why the store rejects messages at present; None if it accepts them."""
        return self._appender.write_error

    @property
    def max_physical_offset(self) -> int:
        return self._log.max_offset

    @property
    def min_physical_offset(self) -> int:
        return self._log.min_offset

    def first_store_time(self) -> int:
        """Return the store time of the log's oldest message; −1 without one."""
        head = self._log.read(self._log.min_offset, STORE_TIME_END)
        return store_time(head) if head else -1

    @property
    def store_timestamp(self) -> int:
        """Store time of the last message. Later messages have no earlier time, unless the clock is set back far."""
        return self._appender.store_timestamp

    @property
    def flushed_where(self) -> int:
        """Physical offset below which everything is on disk."""
        return self._log.flushed_where

    def sample(self) -> None:
        """Sample the counters for the metrics of the last minute. Call every ten seconds."""
        self._appender.sample()

    def runtime_info(self) -> dict[str, str]:
        """Return metrics for request 28, under Apache's names."""
        return {
            "bootTimestamp": str(self._boot_timestamp),
            "putMessageTimesTotal": str(self._appender.put_total),
            "putMessageSizeTotal": str(self._appender.put_bytes),
            "putMessageAverageSize": str(self._appender.put_bytes / max(self._appender.put_total, 1)),
            "commitLogMinOffset": str(self._log.min_offset),
            "commitLogMaxOffset": str(self._log.max_offset),
            "flushedWhere": str(self._log.flushed_where),
            "dispatchMaxBuffer": "0",
            "dispatchBehindBytes": "0",  # a put has written its queue entry when it returns
            "getMessageEntireTimeMax": str(self._longest_get),
            "remainHowManyDataToFlush": readable_bytes(max(self._log.max_offset - self._log.flushed_where, 0)),
            "remainTransientStoreBufferNumbs": str(2**31 - 1),  # Apache's value without a transientStorePool
            **self._appender.times.runtime_info(),
            "consumeQueueCount": str(len(self._queues.table)),
            **self.retention.runtime_info(),
        }
