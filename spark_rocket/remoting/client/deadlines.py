"""Deadlines: a timer thread, and tables whose entries have deadlines.

A :class:`DeadlineTable` has one action in the timer, for its nearest deadline. So an entry that is removed in time, as
almost all are, does not burden the timer.

Thread-safety: all methods. Times are seconds of ``time.monotonic``.
Corresponds to the HashedWheelTimer and scanResponseTable of NettyRemotingClient.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MIN_CHECK_INTERVAL_S = 0.01  # the minimum interval of checks of a table: an entry expires at most this late


class Timer:
    """Runs actions at their times on one daemon thread, which the first action starts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()  # actions with equal times run in the order of their creation
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def call_at(self, when: float, action: Callable[[], object]) -> None:
        """Run a short action at ``when`` or soon after. Its errors are logged."""
        with self._changed:
            heapq.heappush(self._heap, (when, next(self._order), action))
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._run, name="rocket-timer", daemon=True)
                thread.start()
                self._thread = thread  # set last: if the thread cannot be started, the next action retries
            elif self._heap[0][0] == when:
                self._changed.notify_all()  # all: an interrupted wait may have left a stale waiter

    def run_due(self, now: float) -> float | None:
        """Run the actions due at ``now``; return the time of the next one, or None."""
        while True:
            with self._changed:
                if not self._heap or self._heap[0][0] > now:
                    return self._heap[0][0] if self._heap else None
                action = heapq.heappop(self._heap)[2]
            try:
                action()  # outside the lock: it may add another action
            except BaseException:  # including SystemExit of a callback: the thread serves all deadlines
                logger.exception("timer action failed")

    def _run(self) -> None:
        while True:
            due = self.run_due(self._clock())
            with self._changed:
                if self._closed:
                    return
                if self._heap and (due is None or self._heap[0][0] < due):
                    continue  # an earlier action was added in the meantime
                self._changed.wait(None if due is None else max(0.0, due - self._clock()))

    def close(self) -> None:
        """Drop all actions and end the thread."""
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify_all()


class DeadlineTable(Generic[K, V]):
    """Entries with deadlines. Each leaves the table once: taken, drained, or passed to ``expire`` at its deadline."""

    def __init__(self, timer: Timer, expire: Callable[[V], object]) -> None:
        self._timer = timer
        self._expire = expire
        self._entries: dict[K, tuple[V, float]] = {}
        self._nearest = math.inf
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def put(self, key: K, entry: V, deadline: float) -> None:
        """Add an entry."""
        self._entries[key] = entry, deadline
        if deadline < self._nearest:
            self._watch(deadline)

    def take(self, key: K) -> V | None:
        """Remove an entry; None if it has left the table."""
        found = self._entries.pop(key, None)
        return None if found is None else found[0]

    def drain(self) -> list[V]:
        """Remove all entries, each once even against a concurrent :meth:`take`."""
        taken = [self.take(key) for key in list(self._entries)]
        return [entry for entry in taken if entry is not None]

    def _watch(self, deadline: float) -> None:
        with self._lock:
            if deadline < self._nearest:
                self._timer.call_at(deadline, self._expire_late)
                self._nearest = deadline

    def _expire_late(self) -> None:
        now = time.monotonic()
        with self._lock:
            if now < self._nearest:
                return  # an earlier nearest deadline; the current one has its own action
            self._nearest = math.inf
        nearest = math.inf
        late: list[K] = []
        for key, (_, deadline) in list(self._entries.items()):
            if deadline <= now:
                late.append(key)
            else:
                nearest = min(nearest, deadline)
        if nearest < math.inf:
            self._watch(max(nearest, now + MIN_CHECK_INTERVAL_S))
        for key in late:
            entry = self.take(key)
            if entry is not None:
                try:
                    self._expire(entry)
                except BaseException:  # including SystemExit of a callback: the others must expire too
                    logger.exception("callback of an expired request failed")
