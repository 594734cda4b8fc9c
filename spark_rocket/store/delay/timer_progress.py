"""How far the timer is, put on disk: a mark is remembered in ``timercheck`` once what it speaks of is there.

The order is commit log, timer log, wheel, check point: none says more than what is before it. A mark whose messages
the commit log has not brought to disk yet waits for that, while newer ones are taken.

Thread-safety: ``take`` and ``forget`` for the store's one thread; ``flush`` may be called from one other.
After a crash: the check point is the last that was saved whole. Corresponds to TimerFlushService of TimerMessageStore.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from spark_rocket.store.delay.timer_checkpoint import TimerCheckpoint
from spark_rocket.store.delay.timer_log import TimerLog
from spark_rocket.store.delay.timer_wheel import TimerWheel
from spark_rocket.store.message_store import MessageStore

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
