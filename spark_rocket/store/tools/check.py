"""Check of a store directory: every invariant of its files, compared with the log, read-only.

==============  ====================================================================================================
part            checks
==============  ====================================================================================================
files           names, sizes, no gaps; ``abort`` absent; ``lock`` and ``checkpoint`` valid
commit log      contiguous, complete records, each with a matching CRC and physical offset; a blank record at the end
                of every file but the last; only zeros after the end
queue offsets   dense per queue, from 0 if the log is complete
beginning       not later than at the last clean stop, unless retention has deleted files
consume queues  a correct entry for every record, including the tags code; no entry without a record; fillers before
                the first entry, zeros after the last
index           every key of every record found by hash chain; no entry without a key; header and slots correct
checkpoint      not ahead of the log
==============  ====================================================================================================

For a stopped store (``StoreLockedError`` otherwise), of Apache's broker or this one. One problem does not hide others:
the scan continues after damage, and an invalid file does not prevent the check of the others. The tail of a killed
store (``abort``) is not checked: whatever the next start cuts, fixes or builds is not a problem. Used as an API, by
``rocket store check``, in the teardown of every test that opens a store, and by the crash tests. Reads the log once by
``pread``; memory does not grow with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.layout import ENTRY_SIZE, ENTRY_TYPE, FILLER, FILLER_SIZE
from spark_rocket.store.log.checkpoint import StoreCheckpoint
from spark_rocket.store.paths import LMQ_PREFIX, StorePaths
from spark_rocket.store.problems import ProblemKind, StoreProblem, read_error_text
from spark_rocket.store.queues.consume_queue import ConsumeQueue
from spark_rocket.store.queues.dispatch import runs_of
from spark_rocket.store.queues.side_files import QueueEnds
from spark_rocket.store.read_only import Progress, ReadOnlyStore, open_read_only
from spark_rocket.store.recovery.lost_begin import REMEDY, find_lost_begin
from spark_rocket.store.recovery.recovery import is_deleted, topics_on_record
from spark_rocket.store.store_lock import abort_path
from spark_rocket.store.tools.check_index import IndexCheck
from spark_rocket.store.tools.check_timer import check_timer
from spark_rocket.store.tools.salvage import Damage, Salvage

_BROKER = "Start and stop its broker, which fixes this."
_REBUILD = "`rocket store rebuild DIR` rebuilds queues and index from the log."
_LOG = (
    "Restore the file from a copy. Without one, `rocket store rebuild DIR --skip-damage` retains the intact records; "
    "`rocket store dump` shows them."
)
REMEDIES = {
    ProblemKind.UNREADABLE: (
        "Run this as the user who owns the store. If the disk has errors, copy the readable files to another one."
    ),
    ProblemKind.LOCK: _BROKER,
    ProblemKind.ABORT: _BROKER,
    ProblemKind.RECORD: _LOG,
    ProblemKind.HIDDEN: _LOG,
    ProblemKind.BEGIN: REMEDY,
    ProblemKind.END: _BROKER,
    ProblemKind.TAIL: "Start and stop its broker: it cuts the data after the end, or reports why not.",
    ProblemKind.QUEUE: _REBUILD,
    ProblemKind.OFFSETS: _LOG,
    ProblemKind.ENTRY: _REBUILD,
    ProblemKind.FILLER: _REBUILD,
    ProblemKind.INDEX: _REBUILD,
    ProblemKind.INDEX_BEHIND: _BROKER,
    ProblemKind.CHECKPOINT: "Delete it: the next start reads the entire log and creates it again.",
    ProblemKind.TIMER: _BROKER,
}
"""What to do about a problem, by its kind. For ``files`` it depends on the path, see :func:`remedy_of`."""

_LARGEST_EXT_ADDRESS = -(1 << 31) - 1  # tags codes from here down are addresses in consumequeue_ext


def check_store(
    path: Path | str,
    config: StoreConfig | None = None,
    *,
    progress: Progress | None = None,
    notes: list[str] | None = None,
) -> list[StoreProblem]:
    """Return all problems of the store in ``path``.

    Without ``config`` the file sizes are taken from the files, and the index's from Apache's defaults. A sentence for
    each part that could not be checked is added to ``notes``.
    """
    with open_read_only(path, config) as view:
        check = _Check(view, progress)
        problems = check.run()
        if notes is not None:
            notes += [*check.notes, *view.unchecked()]
        return problems


def remedy_of(problem: StoreProblem, paths: StorePaths) -> str:
    """Return what to do about a problem of the store with these directories."""
    of_queue = problem.path.is_relative_to(paths.consume_queue)
    if problem.kind in REMEDIES:
        return _REBUILD if of_queue and problem.kind is ProblemKind.TAIL else REMEDIES[problem.kind]
    if of_queue or problem.path.is_relative_to(paths.index):
        return f"{_REBUILD} Move files that do not belong there elsewhere."
    return f"{_LOG} Move files that do not belong there elsewhere."


@dataclass(slots=True)
class _Seen:
    """Messages of a queue in the log."""

    first: int
    next: int
    wrong: list[StoreProblem]


class _Check:
    """One check of one store."""

    def __init__(self, view: ReadOnlyStore, progress: Progress | None) -> None:
        self._view = view
        self._config = view.config
        self._log = view.log
        self._progress = progress
        self._problems = view.problems
        self._known = topics_on_record(view.path)
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._max_timestamp = 0
        self.notes: list[str] = []
        self._damage: list[Damage] = []
        batches = view.path / "batchconsumequeue"
        self._elsewhere = {path.name for path in batches.iterdir()} if batches.is_dir() else set()
        self._no_queues = not view.queues and view.has_rocksdb

    def _add(self, kind: ProblemKind, path: Path, text: str, offset: int = -1) -> None:
        self._problems.append(StoreProblem(kind, path, text, offset))

    def run(self) -> list[StoreProblem]:
        path = self._view.path
        if self._view.is_killed:
            self._add(
                ProblemKind.ABORT,
                abort_path(path),
                "the last owner did not stop cleanly: start and stop the broker first",
            )
        lock = path / "lock"
        if lock.exists() and lock.read_bytes() != b"lock":
            self._add(ProblemKind.LOCK, lock, "its content is not the word lock")
        if self._log.files and all(file.size != self._log.file_size for file in self._log.files):
            return self._problems  # the sizes are not this store's: all other checks would be meaningless
        unknown = None if self._view.index_size_known else self.notes
        index = IndexCheck(self._config, self._problems, unknown, is_killed=self._view.is_killed)
        self._check_log(index)
        self._check_queues()
        self._check_begin()
        index.finish(self._log.min_offset)
        self._check_checkpoint()
        try:
            self._problems += check_timer(self._config, self._log.end_offset, is_killed=self._view.is_killed)
        except OSError as error:
            self._add(ProblemKind.TIMER, Path(error.filename or path / "timerlog"), read_error_text(error))
        return self._problems

    # --- the log ------------------------------------------------------------------------------------------------

    def _check_log(self, index: IndexCheck) -> None:
        if not self._log.files:
            return
        scan = Salvage(self._view, self._progress)
        for part in scan:
            if isinstance(part, Damage):
                self._report(part, part.offset + part.length)
                self._damage.append(part)
                index.skip(part)
                continue
            self._max_timestamp = max(self._max_timestamp, int(part.store_timestamps.max()))
            for key, number, entries in runs_of(part, self._view.delays, self._view.deleted):
                if key[0] not in self._elsewhere:
                    self._check_run(key, number, entries)
            index.take(part)
        if not self._view.is_killed:  # the next start of a killed store cuts the tail and removes preallocated files
            self._check_end(scan)

    def _check_end(self, scan: Salvage) -> None:
        file = self._log.find(scan.end)
        if scan.tail is not None:
            self._report(scan.tail)
        elif file is not None and file is not self._log.files[-1] and scan.end < file.file_from_offset + file.size:
            self._add(ProblemKind.END, file.path, "the log ends here, but files follow", scan.end)

    def _report(self, damage: Damage, next_good: int = -1) -> None:
        if next_good < 0:
            kind = ProblemKind.TAIL if damage.is_zero else ProblemKind.RECORD
            text = "there are nonzero bytes after the end of the log" if damage.is_zero else damage.reason
            self._add(kind, damage.path, text, damage.offset)
            return
        self._add(ProblemKind.RECORD, damage.path, f"{damage.reason} ({damage.length} bytes)", damage.offset)
        self._add(
            ProblemKind.HIDDEN, damage.path, f"intact records follow, the first at offset {next_good}", damage.offset
        )

    def _check_run(self, key: tuple[str, int], offset: int, entries: bytes) -> None:
        """Compare records of one queue with consecutive offsets with the queue's entries."""
        count = len(entries) // ENTRY_SIZE
        path = self._config.consume_queue_path / key[0] / str(key[1])
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Seen(offset, offset, [])
            if offset and not self._log.min_offset:
                seen.wrong.append(
                    StoreProblem(ProblemKind.OFFSETS, path, f"the first message in the log is number {offset}, not 0")
                )
        elif offset < seen.next:  # the topic was deleted and recreated: drop problems of the old one
            seen.wrong.clear()
            seen.first = offset
        elif offset > seen.next:
            text = f"messages {seen.next} to {offset - 1} are not in the log"
            seen.wrong.append(StoreProblem(ProblemKind.OFFSETS, path, text))
        seen.next = offset + count
        queue = self._view.queue(*key)
        if queue is None or not queue.files.is_sound:
            return
        present = queue.read(offset, count) if offset * ENTRY_SIZE >= queue.files.min_offset else b""
        if present != entries and self._view.is_killed and entries.startswith(present):
            return  # not dispatched yet; the next start does that
        if present != entries:
            has, must = np.frombuffer(present, ENTRY_TYPE), np.frombuffer(entries, ENTRY_TYPE)
            same = has == must[: len(has)]
            same |= (has["tags_code"] <= _LARGEST_EXT_ADDRESS) & (has["size"] == must["size"][: len(has)])
            at = len(same) if same.all() else int(np.argmin(same))
            if at < count:
                here = has[at : at + 1].tolist() or "nothing"
                text = f"entry {offset + at} is {here}, but its record requires {must[at : at + 1].tolist()}"
                seen.wrong.append(StoreProblem(ProblemKind.ENTRY, path, text, offset + at))

    def _check_begin(self) -> None:
        ends = QueueEnds(self._view.path)
        ends.load()
        queues = (queue for key in self._view.queues if (queue := self._view.queue(*key)) and queue.files.is_sound)
        lost = find_lost_begin(ends.log_begin, self._log, queues)
        if lost is not None:
            self._add(ProblemKind.BEGIN, self._log.directory, str(lost), lost.start)

    # --- consume queues -----------------------------------------------------------------------------------------

    def _check_queues(self) -> None:
        for key, seen in self._seen.items():
            queue = self._view.queue(*key)
            path = self._config.consume_queue_path / key[0] / str(key[1])
            if queue is None:
                if not self._no_queues and not self._view.is_killed and not is_deleted(key[0], self._known):
                    self._add(
                        ProblemKind.QUEUE, path, f"the queue is missing, but the log has messages up to {seen.next - 1}"
                    )
                continue
            self._problems += seen.wrong
            if not queue.files.is_sound:
                continue
            if queue.max_offset > seen.next and not self._view.is_killed:
                text = f"there are {queue.max_offset} entries, but the log's last message is number {seen.next - 1}"
                self._add(ProblemKind.ENTRY, path, text, seen.next)
            if queue.min_offset < seen.first:
                self._check_old(queue, queue.min_offset, seen.first)
        for key in self._view.queues:
            queue = self._view.queue(*key)
            if queue is None or key[0].startswith(LMQ_PREFIX) or not queue.files.is_sound:
                continue
            if key not in self._seen and not self._view.is_killed:
                self._check_old(queue, queue.min_offset, queue.max_offset)
            self._check_surroundings(queue)

    def _check_old(self, queue: ConsumeQueue, first: int, end: int) -> None:
        """Check entries without a record: they may only point before the log's beginning, or into damage."""
        entries = np.frombuffer(queue.read(first, end - first), ENTRY_TYPE)
        physical = entries["physical_offset"].astype(np.int64)
        loose = (physical >= self._log.min_offset) & (entries["size"] != FILLER_SIZE)
        for damage in self._damage:
            loose &= (physical < damage.offset) | (physical >= damage.offset + damage.length)
        if loose.any():
            number = first + int(np.argmax(loose))
            self._add(ProblemKind.ENTRY, queue.files.directory, f"entry {number} has no record in the log", number)

    def _check_surroundings(self, queue: ConsumeQueue) -> None:
        files = queue.files
        if not files.files:
            return
        first = files.files[0]
        blank = queue.min_offset * ENTRY_SIZE - first.file_from_offset
        head = first.read(0, min(max(blank, 0), first.size))
        if 0 < blank <= first.size and head != FILLER * (blank // ENTRY_SIZE) and not self._log.min_offset:
            self._add(ProblemKind.FILLER, first.path, "the bytes before the first entry are not fillers")
        if not self._view.is_killed and queue.has_data_behind():
            text = "there are nonzero bytes after the last entry"
            self._add(ProblemKind.TAIL, files.directory, text, queue.max_offset)

    # --- the checkpoint -----------------------------------------------------------------------------------------

    def _check_checkpoint(self) -> None:
        checkpoint = StoreCheckpoint(self._config.store_path / "checkpoint")
        try:
            checkpoint.load()
        except (StoreCorruptError, OSError) as error:
            text = read_error_text(error) if isinstance(error, OSError) else error.message
            self._add(ProblemKind.CHECKPOINT, checkpoint.path, text)
            return
        if not checkpoint.existed:
            if self._log.files:
                self._add(ProblemKind.CHECKPOINT, checkpoint.path, "there is a log, but no checkpoint")
            return
        for name, value in checkpoint.times.items():
            if value > self._max_timestamp and self._seen:
                text = f"{name} {value} is ahead of the log's last message ({self._max_timestamp})"
                self._add(ProblemKind.CHECKPOINT, checkpoint.path, text)
