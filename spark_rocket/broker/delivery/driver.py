"""Wakes what delivers waiting messages, at the millisecond that something is due, and keeps its work in small slices.

What is driven has one method, ``deliver(now_ms, budget_seconds)``: it delivers what is due for about that long and
returns when to call again (now, if it did not get done; None, if nothing waits). Between two slices the event loop
serves everybody else. Whoever puts a message that is to wait says so with :meth:`DeliveryDriver.expect`, so that the
driver is not asleep for longer than that.

Thread-safety: used on the event loop only. After a crash: it keeps nothing; what is overdue is delivered at start.
Corresponds to the timer threads of ScheduleMessageService (which look every 100 ms) and TimerMessageStore.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)

SLICE_SECONDS = 0.002
"""How long sends and pulls wait at most for a slice, but for a large message."""
LONGEST_SLEEP = 1.0
"""The wall clock may be set forward while the loop sleeps."""
AFTER_ERROR = 10.0


class DeliveryDriver:
    """Drives one ``deliver``."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], int], deliver: Callable[[int, float], int | None]
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._deliver = deliver
        self._due: int | None = None
        self._handle: asyncio.Handle | None = None
        self._closed = False

    def wake(self) -> None:
        """Look at once: at start, or after a change that may have made something due."""
        self._due = None
        self.expect(self._clock())

    def expect(self, due_ms: int) -> None:
        """Something is due then; be awake."""
        if self._due is None or due_ms < self._due:
            self._arm(due_ms, min((due_ms - self._clock()) / 1000, LONGEST_SLEEP))

    def _arm(self, due_ms: int, seconds: float) -> None:
        if self._closed:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._due = due_ms
        if seconds <= 0:
            self._handle = self._loop.call_soon(self._run)
        else:
            self._handle = self._loop.call_later(seconds, self._run)

    def _run(self) -> None:
        self._handle = self._due = None
        now = self._clock()
        try:
            due = self._deliver(now, SLICE_SECONDS)
        except Exception:  # one bad turn must not end all deliveries
            _log.exception("waiting messages could not be delivered; tried again in %d s", AFTER_ERROR)
            self._arm(now, AFTER_ERROR)
            return
        if due is not None:
            self.expect(due)

    def close(self) -> None:
        """Deliver no more."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
