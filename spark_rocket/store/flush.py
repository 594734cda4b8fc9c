"""Flushing: one thread for the commit log, one for the consume queues and the checkpoint.

=====================  ========================================================================================
what                   when
=====================  ========================================================================================
commit log, ASYNC      every 500 ms if 4 pages are dirty, every 10 s if any page is
commit log, SYNC       as soon as a send waits: one ``fdatasync`` for all waiting sends (group commit)
consume queues         every 1 s those with 2 dirty pages; every 60 s, and every 256 MiB of log, all (thorough)
checkpoint             the log's time after each flush of the log; the queues' only after a thorough flush
=====================  ========================================================================================

A failed ``fdatasync`` is not retried: the kernel has marked the pages clean, so a later success proves nothing. The
store then accepts no more writes, waiters get ``False``, every later flush of log or queues fails at once, and the
checkpoint stays unchanged. A restart recovers the data on disk. A flush that could not open its file because no
descriptor or memory was left (ShortageError) changes nothing and is retried by the next flush.

Thread-safety: ``wait_for`` from any thread. Callbacks run in a flush thread, each exactly once.
Corresponds to CommitLog's FlushRealTimeService and GroupCommitService, and FlushConsumeQueueService.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from spark_rocket.common.logs import RateLimited
from spark_rocket.protocol.durability import durability
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.descriptors import ShortageError
from spark_rocket.store.layout import ENTRY_SIZE
from spark_rocket.store.log.checkpoint import StoreCheckpoint
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.log.mapped_file import PAGE_SIZE, sync_file_system
from spark_rocket.store.queues.consume_queue import ConsumeQueue

_log = logging.getLogger(__name__)
_THOROUGH_BYTES = 256 << 20
_MANY_QUEUES = 32  # a new queue needs four syncs; above this, one sync of the file system is cheaper

FlushCallback = Callable[[bool], None]


class FlushCommitLogService:
    """Flushes the commit log and calls back the waiters."""

    def __init__(
        self,
        config: StoreConfig,
        commit_log: CommitLog,
        checkpoint: StoreCheckpoint,
        store_timestamp: Callable[[], int],
        on_failure: Callable[[OSError], None],
    ) -> None:
        self._config = config
        self._log = commit_log
        self._checkpoint = checkpoint
        self._store_timestamp = store_timestamp
        self._on_failure = on_failure
        self._waiters: deque[tuple[int, float, FlushCallback]] = deque()
        self._wake = threading.Event()
        self._flushing = threading.Lock()
        self._stop = False
        self.failure: OSError | None = None
        """Error of the first failed flush of this or the other service."""
        self._last_thorough = 0.0
        self._limited = RateLimited(_log)  # without a descriptor, each flush for a waiting send fails
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="store-flush-commitlog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, without a flush; see :meth:`flush`."""
        self._stop = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def held(self) -> AbstractContextManager[object]:
        """Return a context manager that blocks flushes while it is entered."""
        return self._flushing

    def wait_for(self, physical_offset: int, callback: FlushCallback) -> None:
        """Call back with True once everything below the offset is on disk, with False on timeout or failure."""
        if physical_offset <= self._log.flushed_where:
            callback(True)
            return
        self._waiters.append((physical_offset, time.monotonic() + self._config.sync_flush_timeout / 1000, callback))
        self._wake.set()

    def expire(self) -> None:
        """Call back timed-out waiters. Called from the other flush thread, since this one may block on the disk."""
        now = time.monotonic()
        while self._waiters:
            try:
                waiter = self._waiters.popleft()
            except IndexError:
                return
            if waiter[1] > now:
                self._waiters.appendleft(waiter)  # oldest first: the others have not timed out either
                return
            self._call_back(waiter[2], waiter[0] <= self._log.flushed_where)

    def flush(self) -> None:
        """Flush now and call back the satisfied waiters. OSError when the disk fails."""
        with self._flushing:
            self.refuse_after_failure()
            timestamp = self._store_timestamp()  # read first: its message is below the offset flushed next
            try:
                flushed = self._log.flush()
            except ShortageError:
                raise
            except OSError as error:
                self.fail(error)
                raise
            self._call_back_up_to(flushed)
            if timestamp != self._checkpoint.physic_msg_timestamp:
                self._checkpoint.physic_msg_timestamp = timestamp
                self._checkpoint.save(sync=False)

    def fail(self, error: OSError) -> None:
        """Record a failed flush; call back all waiters with False."""
        self.failure = self.failure or error
        self._on_failure(error)
        self._call_back_up_to(-1)

    def refuse_after_failure(self) -> None:
        """Raise OSError if a flush has failed before."""
        if self.failure is not None:
            self._call_back_up_to(-1)
            raise OSError(self.failure.errno, f"{self.failure.strerror}, in an earlier flush")

    def _call_back_up_to(self, flushed: int) -> None:
        """Call back the waiters below ``flushed``; all waiters, with False, if it is negative."""
        for _ in range(len(self._waiters)):
            try:
                waiter = self._waiters.popleft()
            except IndexError:
                return
            if flushed < 0 or waiter[0] <= flushed:
                self._call_back(waiter[2], flushed >= 0)
            else:
                self._waiters.append(waiter)

    @staticmethod
    def _call_back(callback: FlushCallback, ok: bool) -> None:
        try:
            callback(ok)
        except Exception:  # an error of one waiter must not stop flushing for all
            _log.exception("flush callback failed")

    def _run(self) -> None:
        interval = self._config.flush_interval_commit_log / 1000
        sync = durability(self._config.flush_disk_type.value).on_disk
        while not self._stop:
            woken = self._wake.wait(interval)
            self._wake.clear()
            failed = self.failure is not None
            if self._stop or failed:
                if self._waiters:
                    self._call_back_up_to(-1 if failed else self._log.flushed_where)
                continue
            dirty = self._log.max_offset - self._log.flushed_where
            now = time.monotonic()
            thorough = now - self._last_thorough >= self._config.flush_commit_log_thorough_interval / 1000
            enough = dirty >= self._config.flush_commit_log_least_pages * PAGE_SIZE
            if dirty > 0 and (woken or sync or enough or thorough):
                if enough or thorough:
                    self._last_thorough = now
                try:
                    self.flush()
                except OSError as error:
                    self._limited.log(logging.ERROR, None, "flush of the commit log failed: %s", error)
            elif self._waiters:
                self._call_back_up_to(self._log.flushed_where)


class FlushConsumeQueueService:
    """Flushes consume queues and the checkpoint; also times out the other service's waiters."""

    def __init__(
        self,
        config: StoreConfig,
        commit_log: CommitLog,
        checkpoint: StoreCheckpoint,
        dirty: Callable[[], list[ConsumeQueue]],
        store_timestamp: Callable[[], int],
        commit_log_service: FlushCommitLogService,
    ) -> None:
        self._config = config
        self._log = commit_log
        self._checkpoint = checkpoint
        self._dirty = dirty
        self._store_timestamp = store_timestamp
        self._commit_log_service = commit_log_service
        self._pending: dict[Path, ConsumeQueue] = {}
        self._flushing = threading.Lock()
        self._wake = threading.Event()
        self._last_thorough = time.monotonic()
        self._thorough_offset = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thorough_offset = self._log.max_offset
        self._thread = threading.Thread(target=self._run, name="store-flush-consumequeue", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def held(self) -> AbstractContextManager[object]:
        """Return a context manager that blocks flushes while it is entered."""
        return self._flushing

    def flush(self, *, thorough: bool) -> None:
        """Flush queues with enough unflushed entries, all if ``thorough``. OSError when the disk fails."""
        with self._flushing:
            self._commit_log_service.refuse_after_failure()
            timestamp = self._store_timestamp()  # read first, see above
            offset = self._log.max_offset
            try:
                self._flush_queues(thorough)
            except ShortageError:
                raise
            except OSError as error:
                self._commit_log_service.fail(error)
                raise
            if thorough:
                if timestamp:
                    self._checkpoint.logics_msg_timestamp = timestamp
                self._checkpoint.save()
                self._thorough_offset = offset

    def _flush_queues(self, thorough: bool) -> None:
        for queue in self._dirty():
            self._pending[queue.files.directory] = queue
        least = 1 if thorough else self._config.flush_consume_queue_least_pages * PAGE_SIZE // ENTRY_SIZE
        due = [queue for queue in self._pending.values() if queue.unflushed >= least]
        if len(due) > _MANY_QUEUES:
            ends = [(queue, queue.max_offset) for queue in due]
            renamed = [queue for queue in due if queue.unsynced_names]
            for queue in renamed:
                queue.unsynced_names = False
            try:
                sync_file_system(self._config.consume_queue_path)
            except OSError:
                for queue in renamed:
                    queue.unsynced_names = True
                raise
            for queue, end in ends:
                queue.flushed_offset = end
        else:
            for queue in due:
                with suppress(FileNotFoundError):  # its topic was deleted meanwhile
                    queue.flush()
        self._pending = {key: queue for key, queue in self._pending.items() if 0 < queue.unflushed < least}

    def _run(self) -> None:
        interval = self._config.flush_interval_consume_queue / 1000
        while not self._wake.wait(interval):
            self._commit_log_service.expire()
            now = time.monotonic()
            thorough = (
                now - self._last_thorough >= self._config.flush_consume_queue_thorough_interval / 1000
                or self._log.max_offset - self._thorough_offset >= _THOROUGH_BYTES
            )
            if self._commit_log_service.failure is not None:
                continue
            try:
                self.flush(thorough=thorough)
            except OSError as error:
                _log.error("flush of the consume queues failed: %s", error)
            if thorough:
                self._last_thorough = now
