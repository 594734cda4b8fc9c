"""The index of a store: lookup of records by key. Built from the log in the background.

A background thread reads the log after the writer and adds the keys of entire blocks to the newest file. Where records
of batches and their properties are, it knows from the writer (:meth:`IndexService.note`), as long as it is not far
behind: a scan would read each record again. It finds other records by scanning the log, for example those before a
start. It works in short steps with pauses, longer ones while the writer is busy,
because both share an interpreter. Only a clean stop and queries wait for it: with :meth:`IndexService.when_indexed`,
during which the thread makes no pauses, or in :meth:`IndexService.query` itself. Both have a short timeout and do not
wait for the rebuild of a large log (``index_last_update_physical_offset`` is the end of the index).

The end of the index follows from its last file (``endPhyOffset``) and is not stored elsewhere. File names are creation
times, yyyyMMddHHmmssSSS.

Thread-safety: locked; ``query`` from the store's thread. A full file is flushed when no query waits, without the lock,
because it takes long; then the checkpoint covers it. After a kill: files that the checkpoint does not cover are deleted
and rebuilt by the thread. Corresponds to org.apache.rocketmq.store.index.IndexService.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.descriptors import ShortageError, sync_directory
from spark_rocket.store.index.index_file import DamagedIndexError, IndexFile, find_index_files
from spark_rocket.store.index.keys import Hashes, WrittenRun, keys_of, keys_of_runs
from spark_rocket.store.index.search import IndexSearch, stored_at
from spark_rocket.store.log.checkpoint import StoreCheckpoint
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.record_scan import Ints, LogScan, next_good
from spark_rocket.store.results import QueryMessageResult

_log = logging.getLogger(__name__)
_STEP_RECORDS = 2_000  # per step in the background (about 2 ms),
_LARGE_STEP_RECORDS = 4_000  # and while a query waits
_MIN_STEP_BYTES = 512 << 10
_MAX_STEP_BYTES = 4 << 20
_POLL_S = 0.1
_IDLE_PAUSE_FACTOR = 1.0  # pause, as a multiple of the preceding work
_BUSY_PAUSE_FACTOR = 16.0
_BUSY_BYTES = 4 << 20  # written per poll
_MAX_NOTED_BYTES = 256 << 20  # of the log; 16 bytes of memory for each of its records,
_MAX_NOTED_RUNS = 4096  # and about 500 for each batch
_YIELD_S = 0.0002  # between steps, so that other threads get the lock
_QUERY_TIMEOUT_S = 0.3
_CLOSE_TIMEOUT_S = 3.0


class _Waiter(NamedTuple):
    """A callback for the time when the index covers the log below an offset."""

    offset: int
    deadline: float
    callback: Callable[[], None]


class IndexService:
    """All index files of a store."""

    def __init__(
        self, config: StoreConfig, commit_log: CommitLog, checkpoint: StoreCheckpoint, clock: Callable[[], int]
    ) -> None:
        self._config = config
        self._log = commit_log
        self._checkpoint = checkpoint
        self._clock = clock
        self._files: list[IndexFile] = []
        self._offset = 0  # the log below is in the index
        self._record_bytes = 0  # mean size in the last block
        self._partial = -1  # offset of a record of which only some keys may be in the index
        self._lock = threading.RLock()
        self._written: deque[WrittenRun] = deque()  # in ascending order; the store's thread appends
        self._full: list[IndexFile] = []  # full files that are not known to be on disk
        self._waiters: deque[_Waiter] = deque()
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._failed = False
        self._sync_failed = False

    def load(self, *, clean: bool) -> None:
        """Open the files; after a kill, without those that were still being written."""
        paths, incomplete = find_index_files(self._config, is_clean=clean, refuse=_refuse)
        for path in incomplete:
            path.unlink()
        lost = False
        covered_time = self._checkpoint.index_msg_timestamp
        last_timestamp = -1
        for path in paths:
            file = IndexFile(path, self._config.max_hash_slot_num, self._config.max_index_num)
            # The checkpoint covers full files, by time: of two that end in the same millisecond, only the first.
            safe = file.is_full and file.end_timestamp <= covered_time and file.end_timestamp != last_timestamp
            last_timestamp = file.end_timestamp
            is_valid = 1 < file.count <= file.capacity and 0 <= file.end_offset < self._log.max_offset
            if (clean or safe) and not lost and not (is_valid and self._is_continuation(file)):
                _log.warning("rebuilding index file %s: it is damaged or does not continue the file before it", path)
                lost = True
            lost = lost or not is_valid or not (clean or safe)
            if lost:  # later files are lost too, since the index must not have gaps
                file.destroy()
                continue
            self._files.append(file)
        if self._files:
            self._offset = self._partial = self._files[-1].end_offset

    def _is_continuation(self, file: IndexFile) -> bool:
        """Return whether a file's header fits the log, and the log has no keys between the previous file and this."""
        for offset, timestamp in (file.begin_offset, file.begin_timestamp), (file.end_offset, file.end_timestamp):
            if offset >= self._log.min_offset and stored_at(self._log, offset) != timestamp:
                return False
        end = self._files[-1].end_offset if self._files else -1
        if file.begin_offset < end or file.end_offset < file.begin_offset:
            return False
        start = max(end, self._log.min_offset)
        stop = max(min(file.begin_offset, start + _MAX_STEP_BYTES), start)
        for block in LogScan(self._log.queue, start, stop, check_crc=False, chunk=_MIN_STEP_BYTES):
            records, _ = keys_of(block)
            if (block.physical_offsets[records] > end).any():
                return False
        return True

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="store-index", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and catch up with the log, with a timeout."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._notify()
        if not self.catch_up(_CLOSE_TIMEOUT_S):
            _log.info("index is %d bytes behind the log; it continues at the next start", self.behind)
        self._sync_full()  # before the checkpoint is written

    def close(self) -> None:
        with self._lock:
            for file in self._files:
                file.close()
            self._files = []

    def flush(self) -> None:
        """Flush unflushed files, and the names of all.

        OSError when the disk fails, and on every later call; ShortageError when the flush was not started.
        """
        self._sync_full()
        with self._lock:
            if self._sync_failed:
                raise OSError(errno.EIO, "an earlier flush of the index failed", str(self._config.index_path))
            try:
                if self._files:
                    self._files[-1].flush()
                    sync_directory(self._config.index_path)
            except ShortageError:
                raise
            except OSError:
                self._sync_failed = True
                raise

    def _sync_full(self) -> None:
        """Flush full files. Not retried after a failure: a later success would prove nothing."""
        while self._full and not self._sync_failed:
            file = self._full[0]
            try:
                file.flush()
                sync_directory(self._config.index_path)
            except ShortageError as error:
                self._log_failure(error)
                return
            except OSError as error:
                self._sync_failed = True
                _log.error("flush of index file %s failed: %s", file.file.path, error)
                return
            with self._lock:
                if file in self._files:  # neither trimmed nor rebuilt meanwhile
                    timestamp = max(self._checkpoint.index_msg_timestamp, file.end_timestamp)
                    self._checkpoint.index_msg_timestamp = timestamp
                self._full = [other for other in self._full if other is not file]

    def trim(self, min_offset: int) -> list[MappedFile]:
        """Remove and return the files with only keys of records before an offset, never the last.

        The caller destroys them.
        """
        with self._lock:
            gone = 0
            while gone < len(self._files) - 1 and self._files[gone].end_offset < min_offset:
                gone += 1
            trimmed, self._files = self._files[:gone], self._files[gone:]
        return [file.file for file in trimmed]

    def cut(self, max_offset: int) -> None:
        """Delete files with keys of records beyond the log's new end ``max_offset``; the thread rebuilds them."""
        with self._lock:
            valid = [file for file in self._files if file.end_offset < max_offset]
            for file in self._files[len(valid) :]:
                file.destroy()
            if len(valid) < len(self._files):
                self._offset = self._partial = valid[-1].end_offset if valid else -1
                self._full = [file for file in self._full if file in valid]
                self._files = valid
            self._offset = min(self._offset, max_offset)
            self._written.clear()

    @property
    def behind(self) -> int:
        """Bytes of the log that are not yet in the index."""
        return self._log.max_offset - self._offset

    # --- building -----------------------------------------------------------------------------------------------

    def note(self, run: WrittenRun) -> None:
        """Remember where the records of a batch are, which the writer has just made visible."""
        if len(self._written) < _MAX_NOTED_RUNS and self.behind < _MAX_NOTED_BYTES:
            self._written.append(run)

    def catch_up(self, timeout: float) -> bool:
        """Index up to the log's current end; return False after ``timeout`` seconds or an error."""
        deadline = time.monotonic() + timeout
        target = self._log.max_offset
        try:
            while self._offset < target:
                if not self._step(_LARGE_STEP_RECORDS) or time.monotonic() > deadline:
                    return self._offset >= target
        except OSError as error:
            self._log_failure(error)
            return False
        return True

    def when_indexed(self, callback: Callable[[], None], timeout: float) -> None:
        """Call back, from any thread, once the index covers the current log, or after ``timeout`` seconds."""
        target = self._log.max_offset
        if self._offset >= target or self._thread is None:
            callback()
            return
        self._waiters.append(_Waiter(target, time.monotonic() + timeout, callback))
        self._wake.set()

    def _notify(self) -> None:
        """Call back the waiters that are satisfied or timed out."""
        now = time.monotonic()
        for _ in range(len(self._waiters)):
            waiter = self._waiters.popleft()
            if self._offset < waiter.offset and now < waiter.deadline and not self._stopped:
                self._waiters.append(waiter)
                continue
            try:
                waiter.callback()
            except Exception:  # an error of one waiter must not stop the index
                _log.exception("index callback failed")

    def _run(self) -> None:
        seen, is_working = self._log.max_offset, True
        while True:
            if not (self._waiters and is_working):
                self._pause(_POLL_S)
            if self._stopped:
                return
            is_busy = self._log.max_offset - seen > _BUSY_BYTES
            seen = self._log.max_offset
            is_working = self._build(seen, _BUSY_PAUSE_FACTOR if is_busy else _IDLE_PAUSE_FACTOR)
            self._notify()

    def _build(self, end: int, pause_factor: float) -> bool:
        """Index the log up to ``end``; return False if that is not possible at present."""
        while self._offset < end and not self._stopped:
            begin = time.perf_counter()
            has_waiters = bool(self._waiters)
            try:
                if not self._step(_LARGE_STEP_RECORDS if has_waiters else _STEP_RECORDS):
                    return False
            except OSError as error:
                self._log_failure(error)
                return False
            if has_waiters:
                self._notify()
                time.sleep(_YIELD_S)
            else:
                self._pause((time.perf_counter() - begin) * pause_factor)
        return True

    def _pause(self, seconds: float) -> None:
        """Flush full files and sleep, unless there are waiters."""
        if not self._waiters:
            self._sync_full()
        self._wake.wait(seconds)
        self._wake.clear()

    def _log_failure(self, error: OSError) -> None:
        if not self._failed:
            _log.warning("cannot write the index in %s, will retry: %s", self._config.index_path, error)
        self._failed = True

    def _step(self, records: int = _STEP_RECORDS) -> bool:
        """Index one block of about so many records; return False if there is none."""
        with self._lock:
            self._offset = max(self._offset, self._log.min_offset)
            # Read the end here: a replica's log may have been truncated since the caller read it.
            target = self._log.max_offset
            try:
                return self._step_to(target, records)
            except DamagedIndexError as damage:
                self._discard(self._files[-2:][0], damage)
                return True
            except FileNotFoundError:
                if self._offset >= self._log.min_offset:
                    raise
                return True  # the log was just trimmed

    def _step_to(self, target: int, records: int) -> bool:
        file = self._log.queue.find(self._offset)
        if file is None or self._offset >= target:
            return False
        base, written = file.file_from_offset, self._written
        while written and written[0].begin < self._offset:
            written.popleft()
        if written and written[0].begin == self._offset:
            self._put_written(file, records)
            return True
        target = min(target, written[0].begin) if written else target
        chunk = min(max(records * self._record_bytes, _MIN_STEP_BYTES), _MAX_STEP_BYTES)
        scan = LogScan(self._log.queue, self._offset, target, check_crc=False, chunk=chunk)
        for block in scan:
            numbers, hashes = keys_of(block)
            self._put(block.physical_offsets[numbers], hashes, block.store_timestamps[numbers])
            self._record_bytes = int(block.sizes.sum()) // len(block)
            self._offset = int(block.physical_offsets[-1] + block.sizes[-1])
            self._failed = False
            return True
        if scan.end.offset > self._offset:  # only a blank record
            self._offset = scan.end.offset
            return True
        self._log.report_damage(self._offset, "its keys are not indexed")
        self._offset = min(base + next_good(file, self._offset - base), target)
        return True

    def _put_written(self, file: MappedFile, records: int) -> None:
        """Index about so many records from the index's end on, of runs that the writer has noted there."""
        runs: list[WrittenRun] = []
        rest, begin = None, self._offset
        end = begin
        for number in range(len(self._written)):
            if records <= 0 or end - begin >= _MAX_STEP_BYTES or self._written[number].begin != end:
                break
            run, rest = self._written[number].split(records)
            runs.append(run)
            end, records = run.end, records - len(run.offsets)
        self._put(*keys_of_runs(runs, file.read(begin - file.file_from_offset, end - begin)))
        for _ in runs:
            self._written.popleft()
        if rest is not None:
            self._written.appendleft(rest)
        self._offset = end
        self._failed = False

    def _put(self, offsets: Ints, hashes: Hashes, timestamps: Ints) -> None:
        """Add keys: the physical offsets of their records, their hashes, and the store times."""
        if self._partial >= 0 and len(offsets) and offsets[0] <= self._partial:
            fresh = np.array(
                [
                    offset > self._partial or (offset == self._partial and not self._has(int(hashes[i]), int(offset)))
                    for i, offset in enumerate(offsets.tolist())
                ]
            )
            offsets, hashes, timestamps = offsets[fresh], hashes[fresh], timestamps[fresh]
        done = 0
        while done < len(hashes):
            file = self._writable()
            done += file.put(hashes[done:], offsets[done:], timestamps[done:])
            self._partial = int(offsets[done - 1])  # if the next file fails: no duplicate and no missing keys
        self._partial = -1

    def _has(self, hashed: int, offset: int) -> bool:
        for file in self._files[-2:]:
            newest_first = (found for found in file.find(hashed, 1, file.count) if found is not None)
            if next((found for found in newest_first if found <= offset), -1) == offset:
                return True
        return False

    def _writable(self) -> IndexFile:
        if self._files and not self._files[-1].is_full:
            return self._files[-1]
        directory = self._config.index_path
        if self._files and self._files[-1] not in self._full:
            self._full.append(self._files[-1])
        directory.mkdir(exist_ok=True)
        moment = datetime.fromtimestamp(self._clock() / 1000)
        name = _name(moment)
        last = self._files[-1].file.path.name if self._files else ""
        while name <= last:  # names are in order of creation, even with several files per millisecond
            moment += timedelta(milliseconds=1)
            name = _name(moment)
        file = IndexFile(directory / name, self._config.max_hash_slot_num, self._config.max_index_num, create=True)
        self._files.append(file)
        return file

    # --- finding ------------------------------------------------------------------------------------------------

    def query(
        self,
        topic: str,
        key: str,
        max_num: int,
        begin_ms: int,
        end_ms: int,
        *,
        unique: bool = False,
        catch_up: bool = True,
    ) -> QueryMessageResult:
        """Return records with a key: the newest ``max_num`` of those stored in a time range, in log order.

        Returns fewer if they exceed 8 MiB together, or if thousands of records of other keys with the same hash are
        among them: the store's thread serves no other request meanwhile.
        """
        while True:
            if catch_up:
                self.catch_up(_QUERY_TIMEOUT_S)
            found = self._query(topic, key, max_num, begin_ms, end_ms, unique)
            if found is not None:
                return found
            catch_up = True  # index the discarded part again

    def _discard(self, damaged: IndexFile, damage: DamagedIndexError) -> None:
        """Delete a damaged file and all later ones, since the index must not have gaps. The thread rebuilds them."""
        _log.error("%s Rebuilding the index from that file on.", damage.message)
        at = self._files.index(damaged)
        for file in self._files[at:]:
            file.destroy()
        self._files = self._files[:at]
        self._full = [file for file in self._full if file in self._files]
        self._offset = self._partial = self._files[-1].end_offset if self._files else -1

    def _query(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, unique: bool
    ) -> QueryMessageResult | None:
        """Search once; return None if a damaged file was found and discarded."""
        result = QueryMessageResult()
        search = IndexSearch(self._log, topic, key, max_num, begin_ms, end_ms, unique=unique)
        with self._lock:
            if self._files:
                result.index_last_update_timestamp = self._files[-1].end_timestamp
                result.index_last_update_physical_offset = self._files[-1].end_offset
            for file in reversed(self._files):
                try:
                    if not search.search_file(file):
                        break
                except DamagedIndexError as damage:
                    self._discard(file, damage)
                    return None
        result.records = search.records()
        return result


def _refuse(path: Path, what: str, remedy: str) -> None:
    raise StoreCorruptError(f"{path} {what}.", remedy=remedy)


def _name(moment: datetime) -> str:
    return moment.strftime("%Y%m%d%H%M%S") + f"{moment.microsecond // 1000:03d}"
