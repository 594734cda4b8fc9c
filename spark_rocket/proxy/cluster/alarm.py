"""Wakes what is due by a clock that may be set, or that a test moves.

Thread-safety: used on the event loop only. Corresponds to a ScheduledExecutorService with one task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)

LONGEST_SECONDS = 1.0
"""The wall clock may be set forward meanwhile."""
AFTER_ERROR_MS = 10_000


class Alarm:
    """Calls ``run(now_ms)`` when something is due; it returns when the next thing is, or None."""

    def __init__(self, clock: Callable[[], int], run: Callable[[int], int | None]) -> None:
        self._clock = clock
        self._run = run
        self._due: int | None = None
        self._handle: asyncio.Handle | None = None
        self._closed = False

    @property
    def due(self) -> int | None:
        """When it runs next, in ms."""
        return self._due

    def wake(self) -> None:
        """Run now, as the clock may have been moved."""
        if self._due is not None:
            self._fire()

    def expect(self, due_ms: int) -> None:
        """Something is due then."""
        if self._closed or (self._due is not None and self._due <= due_ms):
            return
        if self._handle is not None:
            self._handle.cancel()
        self._due = due_ms
        seconds = min(max((due_ms - self._clock()) / 1000, 0.0), LONGEST_SECONDS)
        self._handle = asyncio.get_running_loop().call_later(seconds, self._fire)

    def _fire(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._due = None
        now = self._clock()
        try:
            due = self._run(now)
        except Exception:
            _log.exception("what is due could not be done; tried again in %d ms", AFTER_ERROR_MS)
            due = now + AFTER_ERROR_MS
        if due is not None:
            self.expect(due)

    def close(self) -> None:
        """Run no more."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = self._due = None
