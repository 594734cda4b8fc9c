"""``config/timercheck``: how far the timer is, on disk.

====  =====  ==================================================================================================
at    type   meaning
====  =====  ==================================================================================================
0     int64  lastReadTimeMs: every message of the slots before this time is delivered, and that is on disk
8     int64  lastTimerLogFlushPos: the timer log is on disk up to here
16    int64  lastTimerQueueOffset: entries of the timer's queue before this one are in that part of the timer log
24    int64  masterTimerQueueOffset: the same, as a master's; Apache's goes on from the smaller of the two. Here:
             entries from this one on may wait although their time is before lastReadTimeMs
32    int64  dataVersion: stateVersion
40    int64  dataVersion: timestamp
48    int64  dataVersion: counter
====  =====  ==================================================================================================

56 bytes; Apache's broker maps a page, so that the file has 4,096, the rest zero. All zeros say as much as no file.

The order on disk is commit log, timer log, wheel, checkpoint (:class:`TimerProgress`): none says more than what is
before it. A mark whose messages the commit log has not brought to disk yet waits for that, while newer ones are taken.

Thread-safety: one thread at a time; ``TimerProgress.flush`` may be called by one other. After a crash: written with one
``pwrite`` behind the flush that makes it true, so that it is old at worst, never ahead.
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
_REMEDY = "Delete it: every message that is still in the topic rmq_sys_wheel_timer is then delivered, again or not."


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
        """Read the file. StoreCorruptError when it cannot be one."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return
        if not any(raw):
            return
        self._decode(raw, str(self.path))

    def take_over(self, raw: bytes, owner: str) -> None:
        """Have a master's on disk: for the slave that may be made a master. StoreCorruptError when it cannot be one."""
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
        """StoreCorruptError for a read time behind ``latest_ms``: what is pending would never be looked at."""
        if self.last_read_time_ms > latest_ms:
            raise StoreCorruptError(
                f"{self.path} says at byte 0 that messages are delivered up to {self.last_read_time_ms}, "
                "which is in the future.",
                remedy=f"Set the clock right. If it is: {_REMEDY[0].lower()}{_REMEDY[1:]}",
            )

    def encode(self) -> bytes:
        """The 56 bytes."""
        return FIELDS.pack(*(getattr(self, name) for name in _NAMES))

    def save(self) -> None:
        """Write the fields and put them on the disk."""
        new = not self.path.exists()
        if new:
            make_directory(self.path.parent)
        write_head(self.path, TIMER_CHECKPOINT_SIZE, self.encode())
        if new:
            sync_directory(self.path.parent)


_log = logging.getLogger(__name__)


class Mark(NamedTuple):
    """A moment's progress; it may be remembered when the commit log is on disk up to ``physical_offset``."""

    read_time: int
    queue_offset: int
    log_position: int
    slots_done: int
    replay_until: int
    physical_offset: int


class TimerProgress:
    """The newest mark, the one that waits for the disk, and the one that is saved."""

    def __init__(self, store: MessageStore, log: TimerLog, wheel: TimerWheel, checkpoint: TimerCheckpoint) -> None:
        self._store = store
        self._timer_log = log
        self._wheel = wheel
        self._checkpoint = checkpoint
        self._mark: Mark | None = None
        self._waiting: Mark | None = None
        self._saved: Mark | None = None

    def take(self, mark: Mark) -> None:
        self._mark = mark

    def forget(self) -> None:
        """Timer log and wheel are made anew: no mark means anything."""
        self._mark = self._saved = self._waiting = None

    @property
    def dirty(self) -> bool:
        """Whether there is something to flush; that time has passed is nothing."""
        return self._mark is not None and (self._saved is None or self._mark[1:5] != self._saved[1:5])

    def flush_all(self) -> None:
        """All that was done, to the message. OSError."""
        self._store.flush()
        self._waiting = None
        self.flush()

    def flush(self) -> None:
        """Put timer log and wheel on disk, and remember the progress if what was delivered is. OSError."""
        mark = self._waiting or self._mark
        if mark is None or not self.dirty:
            return
        if self._store.flushed_where < mark.physical_offset:
            self._waiting = mark
            return
        self._waiting = None
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
                "%d files of %s, whose messages are all delivered, were removed.",
                removed,
                self._timer_log.files.directory,
            )
