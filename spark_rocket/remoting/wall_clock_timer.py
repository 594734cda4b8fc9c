"""A timer on an event loop that follows the wall clock, which may be set, or moved by a test.

What is driven is one function, ``run(now_ms, *arguments)``: it does what is due and returns when to call it again
(now, if more is due at once; None, if nothing waits). Between two calls the loop serves everything else.

Thread-safety: used on the event loop only. Nothing is kept on disk.
Corresponds to the timer threads of ScheduleMessageService (which look every 100 ms) and TimerMessageStore, and to a
ScheduledExecutorService with one task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)

LONGEST_SLEEP = 1.0
"""The wall clock may be set forward while the loop sleeps."""
AFTER_ERROR = 10.0


class WallClockTimer:
    """Calls one function when something is due."""

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
        """When it runs next, in ms."""
        self._handle: asyncio.Handle | None = None
        self._closed = False

    def wake(self) -> None:
        """Run at once: at start, or after a change that may have made something due."""
        self.due = None
        self.expect(self._clock())

    def expect(self, due_ms: int) -> None:
        """Run at that time or before."""
        if self.due is None or due_ms < self.due:
            self._arm(due_ms, min((due_ms - self._clock()) / 1000, LONGEST_SLEEP))

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
            _log.exception("%s failed; retrying in %d s", getattr(self._call, "__qualname__", "timer"), AFTER_ERROR)
            self._arm(now, AFTER_ERROR)
            return
        if due is not None:
            self.expect(due)

    def close(self) -> None:
        """Run no more."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
