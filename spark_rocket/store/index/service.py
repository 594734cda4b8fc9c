"""The index of a store: which records have a key. Built from the log behind the writer's back.

A background thread reads the log after the writer and puts the keys of whole blocks into the newest file; it works in
short steps with pauses between, longer ones while the writer is busy, because it shares an interpreter with it. Nothing
waits for it but a clean stop and queries: with :meth:`IndexService.when_indexed`, beside which the thread does nothing
else and makes no pauses, or in :meth:`IndexService.query` itself. Both give up soon: the rebuild of a large log is not
waited for (``index_last_update_physical_offset`` says how far the index is).

How far the index is follows from its last file (``endPhyOffset``); nothing about it is kept elsewhere. File names are
the time of making, yyyyMMddHHmmssSSS.

Thread-safety: locked; ``query`` from the store's thread. A file that is full is put on disk when nobody waits, and
without the lock, because it takes long; then the checkpoint vouches for it. After a kill: files that it does not vouch
for are thrown away, and the thread builds them anew. Corresponds to org.apache.rocketmq.store.index.IndexService.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.descriptors import ShortageError, sync_directory
from spark_rocket.store.index.index_file import DamagedIndexError, IndexFile
from spark_rocket.store.index.keys import keys_of
from spark_rocket.store.index.search import IndexSearch, stored_at
from spark_rocket.store.log.checkpoint import Checkpoint
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.record_scan import LogScan, RecordBlock, next_good
from spark_rocket.store.results import QueryMessageResult

_log = logging.getLogger(__name__)
_CHUNK = 128 << 10  # at a time behind the writer's back, and when somebody waits
_LARGE_CHUNK = 1 << 20
_POLL = 0.1
_PAUSE_IDLE = 1.0  # pauses, as multiples of the work before
_PAUSE_BUSY = 16.0
_BUSY = 4 << 20  # bytes a poll
_TURN = 0.0002  # seconds between steps, in which others get the lock
_QUERY_PATIENCE = 0.3
_CLOSE_PATIENCE = 3.0


class _Waiter(NamedTuple):
    """Somebody who is to be told when the index has the log below an offset."""

    offset: int
    deadline: float
    callback: Callable[[], None]


class IndexService:
    """All index files of a store."""

    def __init__(
        self, config: StoreConfig, commit_log: CommitLog, checkpoint: Checkpoint, clock: Callable[[], int]
    ) -> None:
        self._config = config
        self._log = commit_log
        self._checkpoint = checkpoint
        self._clock = clock
        self._files: list[IndexFile] = []
        self._offset = 0  # the log below is in the index
        self._partial = -1  # a record of which only some keys may be in it
        self._lock = threading.RLock()
        self._full: list[IndexFile] = []  # that are not known to be on disk
        self._waiters: deque[_Waiter] = deque()
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._failed = False
        self._sync_failed = False

    def load(self, *, clean: bool) -> None:
        """Open the files; after a kill without those that were still being written."""
        directory = self._config.index_path
        names = sorted(directory.iterdir()) if directory.is_dir() else []
        size = self._config.index_file_size
        lost = False
        vouched_for = self._checkpoint.index_msg_timestamp
        last_timestamp = -1
        for path in names:
            if len(path.name) != 17 or not path.name.isdecimal() or not path.is_file():
                raise StoreCorruptError(
                    f"{path} is not a file of the index: those have 17 digits for a name.",
                    remedy="Move it elsewhere; `rocket store check` tells what is then missing.",
                )
            length = path.stat().st_size
            if length == 0 or (not clean and length < size and path is names[-1]):
                path.unlink()
                continue
            if length != size:
                raise StoreCorruptError(
                    f"{path} has {length} bytes where maxHashSlotNum and maxIndexNum say {size}.",
                    remedy="Set both to what this directory was made with, or run `rocket store rebuild "
                    f"{self._config.store_path}` (with the broker's -c), which makes the index anew from the log.",
                )
            file = IndexFile(path, self._config.max_hash_slot_num, self._config.max_index_num)
            # The checkpoint vouches for full files, by time: of two that end in the same millisecond, for the first.
            safe = file.is_full and file.end_timestamp <= vouched_for and file.end_timestamp != last_timestamp
            last_timestamp = file.end_timestamp
            whole = 1 < file.count <= file.capacity and 0 <= file.end_offset < self._log.max_offset
            if (clean or safe) and not lost and not (whole and self._goes_on(file)):
                _log.warning("%s is damaged, or does not go on where the one before it ends: made anew", path)
                lost = True
            lost = lost or not whole or not (clean or safe)
            if lost:  # and so is what follows: the index has no holes
                file.destroy()
                continue
            self._files.append(file)
        if self._files:
            self._offset = self._partial = self._files[-1].end_offset

    def _goes_on(self, file: IndexFile) -> bool:
        """Whether a file's header fits the log, and no key stands in the log between the file before and this one."""
        for offset, timestamp in (file.begin_offset, file.begin_timestamp), (file.end_offset, file.end_timestamp):
            if offset >= self._log.min_offset and stored_at(self._log, offset) != timestamp:
                return False
        end = self._files[-1].end_offset if self._files else -1
        if file.begin_offset < end or file.end_offset < file.begin_offset:
            return False
        start = max(end, self._log.min_offset)
        stop = max(min(file.begin_offset, start + _LARGE_CHUNK), start)
        for block in LogScan(self._log.queue, start, stop, check_crc=False, chunk=_CHUNK):
            records, _ = keys_of(block)
            if (block.physical_offsets[records] > end).any():
                return False
        return True

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="store-index", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and let the index catch up."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._answer()
        if not self.catch_up(_CLOSE_PATIENCE):
            _log.info("the index is behind the log by %d bytes; it goes on at the next start", self.behind)
        self._sync_full()  # before the checkpoint is written

    def close(self) -> None:
        with self._lock:
            for file in self._files:
                file.close()
            self._files = []

    def flush(self) -> None:
        """Put what is not on disk there, and the names of all. OSError when the disk fails, and ever after;
        ShortageError when nothing was tried."""
        self._sync_full()
        with self._lock:
            if self._sync_failed:
                raise OSError(errno.EIO, "the index could not be flushed before", str(self._config.index_path))
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
        """Put files that are full on disk. After a failure never again: a later success would prove nothing."""
        while self._full and not self._sync_failed:
            file = self._full[0]
            try:
                file.flush()
                sync_directory(self._config.index_path)
            except ShortageError as error:
                self._complain(error)
                return
            except OSError as error:
                self._sync_failed = True
                _log.error("%s could not be put on disk: %s", file.file.path, error)
                return
            with self._lock:
                if file in self._files:  # neither trimmed nor made anew meanwhile
                    timestamp = max(self._checkpoint.index_msg_timestamp, file.end_timestamp)
                    self._checkpoint.index_msg_timestamp = timestamp
                self._full = [other for other in self._full if other is not file]

    def trim(self, min_offset: int) -> list[MappedFile]:
        """Take out the files that have nothing but keys of records before an offset, never the last.

        The caller destroys them.
        """
        with self._lock:
            gone = 0
            while gone < len(self._files) - 1 and self._files[gone].end_offset < min_offset:
                gone += 1
            trimmed, self._files = self._files[:gone], self._files[gone:]
        return [file.file for file in trimmed]

    def cut(self, max_offset: int) -> None:
        """The log ends there now: files with keys of what was behind go, and the thread builds them anew."""
        with self._lock:
            kept = [file for file in self._files if file.end_offset < max_offset]
            for file in self._files[len(kept) :]:
                file.destroy()
            if len(kept) < len(self._files):
                self._offset = self._partial = kept[-1].end_offset if kept else -1
                self._full = [file for file in self._full if file in kept]
                self._files = kept
            self._offset = min(self._offset, max_offset)

    @property
    def behind(self) -> int:
        """Bytes of the log that are not in the index yet."""
        return self._log.max_offset - self._offset

    # --- building -----------------------------------------------------------------------------------------------

    def catch_up(self, patience: float) -> bool:
        """Index up to the log's present end; False if that takes longer than ``patience`` seconds, or fails."""
        deadline = time.monotonic() + patience
        target = self._log.max_offset
        try:
            while self._offset < target:
                if not self._step(_LARGE_CHUNK) or time.monotonic() > deadline:
                    return self._offset >= target
        except OSError as error:
            self._complain(error)
            return False
        return True

    def when_indexed(self, callback: Callable[[], None], patience: float) -> None:
        """Call back, from any thread, once the index has all that the log has now, or after ``patience`` seconds."""
        target = self._log.max_offset
        if self._offset >= target or self._thread is None:
            callback()
            return
        self._waiters.append(_Waiter(target, time.monotonic() + patience, callback))
        self._wake.set()

    def _answer(self) -> None:
        now = time.monotonic()
        for _ in range(len(self._waiters)):
            waiter = self._waiters.popleft()
            if self._offset < waiter.offset and now < waiter.deadline and not self._stopped:
                self._waiters.append(waiter)
                continue
            try:
                waiter.callback()
            except Exception:  # a waiter's mistake must not stop the index
                _log.exception("an index callback failed")

    def _run(self) -> None:
        seen, goes_on = self._log.max_offset, True
        while True:
            if not (self._waiters and goes_on):
                self._pause(_POLL)
            if self._stopped:
                return
            is_busy = self._log.max_offset - seen > _BUSY
            seen = self._log.max_offset
            goes_on = self._build(seen, _PAUSE_BUSY if is_busy else _PAUSE_IDLE)
            self._answer()

    def _build(self, end: int, pause: float) -> bool:
        """Index the log up to there; False when that cannot be done now."""
        while self._offset < end and not self._stopped:
            begin = time.perf_counter()
            is_awaited = bool(self._waiters)
            try:
                if not self._step(_LARGE_CHUNK if is_awaited else _CHUNK):
                    return False
            except OSError as error:
                self._complain(error)
                return False
            if is_awaited:
                self._answer()
                time.sleep(_TURN)
            else:
                self._pause((time.perf_counter() - begin) * pause)
        return True

    def _pause(self, seconds: float) -> None:
        """There is time, until somebody waits."""
        if not self._waiters:
            self._sync_full()
        self._wake.wait(seconds)
        self._wake.clear()

    def _complain(self, error: OSError) -> None:
        if not self._failed:
            _log.warning("the index in %s cannot be written, it waits: %s", self._config.index_path, error)
        self._failed = True

    def _step(self, chunk: int = _CHUNK) -> bool:
        """Index one block of records; False when there is none."""
        with self._lock:
            self._offset = max(self._offset, self._log.min_offset)
            # Not where it ended before: a replica's may have been cut since, and no record end there any more.
            target = self._log.max_offset
            try:
                return self._step_on(target, chunk)
            except DamagedIndexError as damage:
                self._make_anew(self._files[-2:][0], damage)
                return True
            except FileNotFoundError:
                if self._offset >= self._log.min_offset:
                    raise
                return True  # the log was trimmed just now

    def _step_on(self, target: int, chunk: int) -> bool:
        file = self._log.queue.find(self._offset)
        if file is None or self._offset >= target:
            return False
        base = file.file_from_offset
        scan = LogScan(self._log.queue, self._offset, target, check_crc=False, chunk=chunk)
        for block in scan:
            self._put(block)
            self._offset = int(block.physical_offsets[-1] + block.sizes[-1])
            self._failed = False
            return True
        if scan.end.offset > self._offset:  # nothing but a blank record was between
            self._offset = scan.end.offset
            return True
        self._log.report_damage(self._offset, "its keys are not put into the index")
        self._offset = min(base + next_good(file, self._offset - base), target)
        return True

    def _put(self, block: RecordBlock) -> None:
        records, hashes = keys_of(block)
        offsets = block.physical_offsets[records]
        timestamps = block.store_timestamps[records]
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
            self._partial = int(offsets[done - 1])  # should the next file fail: no key twice, none left out
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
        while name <= last:  # names are in the order of making, even when several are made in a millisecond
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
        """Records with a key, the newest ``max_num`` of those stored in the time span, in the order of the log.

        Fewer when they have more than 8 MiB together, or when thousands of records of other keys with the same hash
        are among them: the store's thread can serve nobody else meanwhile.
        """
        while True:
            if catch_up:
                self.catch_up(_QUERY_PATIENCE)
            found = self._query(topic, key, max_num, begin_ms, end_ms, unique)
            if found is not None:
                return found
            catch_up = True  # with what was thrown away

    def _make_anew(self, damaged: IndexFile, damage: DamagedIndexError) -> None:
        """Throw a damaged file away, and those behind it: the index has no holes. The thread builds them anew."""
        _log.error("%s The index is made anew from that file on.", damage.message)
        at = self._files.index(damaged)
        for file in self._files[at:]:
            file.destroy()
        self._files = self._files[:at]
        self._full = [file for file in self._full if file in self._files]
        self._offset = self._partial = self._files[-1].end_offset if self._files else -1

    def _query(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, unique: bool
    ) -> QueryMessageResult | None:
        """None when a damaged file was met, which is thrown away then."""
        result = QueryMessageResult()
        search = IndexSearch(self._log, topic, key, max_num, begin_ms, end_ms, unique=unique)
        with self._lock:
            if self._files:
                result.index_last_update_timestamp = self._files[-1].end_timestamp
                result.index_last_update_physical_offset = self._files[-1].end_offset
            for file in reversed(self._files):
                try:
                    if not search.look_into(file):
                        break
                except DamagedIndexError as damage:
                    self._make_anew(file, damage)
                    return None
        result.records = search.records()
        return result


def _name(moment: datetime) -> str:
    return moment.strftime("%Y%m%d%H%M%S") + f"{moment.microsecond // 1000:03d}"
