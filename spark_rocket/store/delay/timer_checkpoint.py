"""``config/timercheck``: the timer's progress on disk.

====  =====  ==================================================================================================
at    type   meaning
====  =====  ==================================================================================================
0     int64  lastReadTimeMs: every message of the slots before this time is delivered, durably
8     int64  lastTimerLogFlushPos: the timer log is on disk up to this position
16    int64  lastTimerQueueOffset: entries of the timer's queue before this one are in that part of the timer log
24    int64  masterTimerQueueOffset: the same for a master; Apache's broker continues from the smaller of the two.
             Here: entries from this one on may be pending although their time is before lastReadTimeMs
32    int64  dataVersion: stateVersion
40    int64  dataVersion: timestamp
48    int64  dataVersion: counter
====  =====  ==================================================================================================

56 bytes. Apache's broker maps a page, so the file has 4,096 bytes, the rest zero. A file of zeros counts as missing.

The flush order is commit log, timer log, wheel, checkpoint (:class:`TimerProgress`): none is ahead of the one before
it. A mark whose messages are not yet flushed to the commit log stays pending, while newer marks are set.

Thread-safety: one thread at a time; ``TimerProgress.flush`` may be called by one other. The checkpoint is written with
one ``pwrite`` after the flushes it depends on. After a crash it may be old, but is never ahead.
Corresponds to org.apache.rocketmq.store.timer.TimerCheckpoint and TimerFlushService.
"""

from __future__ import annotations

import logging
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.delay.timer_log import TimerLog
from spark_rocket.store.delay.timer_wheel import TimerWheel
from spark_rocket.store.descriptors import make_directory, sync_directory
from spark_rocket.store.log.mapped_file import write_head
from spark_rocket.store.message_store import MessageStore

TIMER_CHECKPOINT_SIZE = 4096
FIELDS = Struct(">7q")
_NAMES = (
    "last_read_time_ms", "last_timer_log_flush_pos", "last_timer_queue_offset", "master_timer_queue_offset",
    "state_version", "timestamp", "counter",
)  # fmt: skip
_REMEDY = "Delete it: all messages that are still in the topic rmq_sys_wheel_timer are then delivered, some again."


class TimerCheckpoint:
    """The seven fields, in memory and on disk."""

    def __init__(self, store_path: Path) -> None:
        self.path = store_path / "config" / "timercheck"
        self.last_read_time_ms = 0
        self.last_timer_log_flush_pos = 0
        self.last_timer_queue_offset = 0
        self.master_timer_queue_offset = 0
        self.state_version = 0
        self.timestamp = 0
        self.counter = 0
        self.existed = False

    def load(self) -> None:
        """Read the file. StoreCorruptError if it is invalid."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return
        if not any(raw):
            return
        self._decode(raw, str(self.path))

    def take_over(self, raw: bytes, owner: str) -> None:
        """Save a master's checkpoint, for a slave that may become master. StoreCorruptError if it is invalid."""
        if any(raw):
            before = self.encode()
            self._decode(raw, f"The timer's checkpoint of {owner}")
            if self.encode() != before:
                self.save()

    def _decode(self, raw: bytes, name: str) -> None:
        if len(raw) not in (FIELDS.size, TIMER_CHECKPOINT_SIZE):
            raise StoreCorruptError(f"{name} has {len(raw)} bytes, not {TIMER_CHECKPOINT_SIZE}.", remedy=_REMEDY)
        values = FIELDS.unpack_from(raw)
        if min(values) < 0:
            raise StoreCorruptError(
                f"{name} has a negative number at byte {8 * values.index(min(values))}.", remedy=_REMEDY
            )
        for name, value in zip(_NAMES, values, strict=True):
            setattr(self, name, value)
        self.existed = True

    def refuse_future(self, latest_ms: int) -> None:
        """Reject a read time after ``latest_ms``: pending messages would never be delivered. StoreCorruptError."""
        if self.last_read_time_ms > latest_ms:
            raise StoreCorruptError(
                f"{self.path} has at byte 0 a read time in the future: messages are delivered up to "
                f"{self.last_read_time_ms}.",
                remedy=f"Check the clock. If it is correct: {_REMEDY[0].lower()}{_REMEDY[1:]}",
            )

    def encode(self) -> bytes:
        return FIELDS.pack(*(getattr(self, name) for name in _NAMES))

    def save(self) -> None:
        new = not self.path.exists()
        if new:
            make_directory(self.path.parent)
        write_head(self.path, TIMER_CHECKPOINT_SIZE, self.encode())
        if new:
            sync_directory(self.path.parent)


_log = logging.getLogger(__name__)


class TimerMark(NamedTuple):
    """A snapshot of the progress; it may be saved when the commit log is flushed up to ``physical_offset``."""

    read_time: int
    queue_offset: int
    log_position: int
    slots_done: int
    replay_until: int
    physical_offset: int


class TimerProgress:
    """The newest mark, the mark pending on the commit log's flush, and the saved mark."""

    def __init__(self, store: MessageStore, log: TimerLog, wheel: TimerWheel, checkpoint: TimerCheckpoint) -> None:
        self._store = store
        self._timer_log = log
        self._wheel = wheel
        self._checkpoint = checkpoint
        self._mark: TimerMark | None = None
        self._pending: TimerMark | None = None
        self._saved: TimerMark | None = None

    def set(self, mark: TimerMark) -> None:
        self._mark = mark

    def forget(self) -> None:
        """Drop all marks: timer log and wheel are being rebuilt."""
        self._mark = self._saved = self._pending = None

    @property
    def dirty(self) -> bool:
        """Whether there is progress to flush, apart from the read time."""
        return self._mark is not None and (self._saved is None or self._mark[1:5] != self._saved[1:5])

    def flush_all(self) -> None:
        """Flush the store, then all progress up to the last message. OSError."""
        self._store.flush()
        self._pending = None
        self.flush()

    def flush(self) -> None:
        """Flush timer log and wheel, and save the progress if the delivered messages are on disk. OSError."""
        mark = self._pending or self._mark
        if mark is None or not self.dirty:
            return
        if self._store.flushed_where < mark.physical_offset:
            self._pending = mark
            return
        self._pending = None
        if self._saved is None or mark.log_position != self._saved.log_position:
            self._timer_log.flush(self._saved.log_position if self._saved is not None else 0, mark.log_position)
            self._wheel.flush()
        checkpoint = self._checkpoint
        checkpoint.last_read_time_ms = mark.read_time
        checkpoint.last_timer_log_flush_pos = mark.log_position
        checkpoint.last_timer_queue_offset = mark.queue_offset
        checkpoint.master_timer_queue_offset = mark.replay_until
        checkpoint.timestamp = max(mark.read_time, checkpoint.timestamp)
        checkpoint.counter += 1
        checkpoint.save()
        self._saved = mark
        removed = self._timer_log.expire(mark.read_time)
        if removed:
            _log.info(
                "removed %d files of %s: all their messages are delivered", removed, self._timer_log.files.directory
            )
