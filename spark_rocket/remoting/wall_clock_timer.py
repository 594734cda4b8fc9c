"""A timer on an event loop that follows the wall clock, even if the clock is set, or moved by a test.

It calls one function, ``run(now_ms, *arguments)``, which does what is due and returns the time of the next call (now if
more is due; None if nothing is pending). The loop runs other tasks between two calls.

Nothing is stored on disk. Corresponds to the timer threads of ScheduleMessageService (which poll every 100 ms) and
TimerMessageStore, and to a ScheduledExecutorService with one task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)

MAX_SLEEP_S = 1.0
"""Limited because the wall clock may be set forward during the sleep."""
ERROR_DELAY_S = 10.0


class WallClockTimer:
    """Calls one function when it is due."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        run: Callable[..., int | None],
        *arguments: object,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._call = run
        self._arguments = arguments
        self.due: int | None = None
        """The time of the next call, in ms."""
        self._handle: asyncio.Handle | None = None
        self._closed = False

    def wake(self) -> None:
        """Run immediately: at the start, or after a change that may have made something due."""
        self.due = None
        self.expect(self._clock())

    def expect(self, due_ms: int) -> None:
        """Run at this time or earlier."""
        if self.due is None or due_ms < self.due:
            self._arm(due_ms, min((due_ms - self._clock()) / 1000, MAX_SLEEP_S))

    def _arm(self, due_ms: int, seconds: float) -> None:
        if self._closed:
            return
        if self._handle is not None:
            self._handle.cancel()
        self.due = due_ms
        if seconds <= 0:
            self._handle = self._loop.call_soon(self._run)
        else:
            self._handle = self._loop.call_later(seconds, self._run)

    def _run(self) -> None:
        self._handle = self.due = None
        now = self._clock()
        try:
            due = self._call(now, *self._arguments)
        except Exception:  # one error must not end all later calls
            _log.exception("%s failed; retrying in %d s", getattr(self._call, "__qualname__", "timer"), ERROR_DELAY_S)
            self._arm(now, ERROR_DELAY_S)
            return
        if due is not None:
            self.expect(due)

    def close(self) -> None:
        """Stop the timer."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
