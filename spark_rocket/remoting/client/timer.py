"""Deadlines of many requests, watched by one thread.

A heap of (time, deadline); one whose request was answered meanwhile stays, which is cheaper than looking for it, and
does nothing at its time. Lest a busy client keep as many as it asks in a whole time-out, the heap is swept whenever it
has doubled. So a deadline must be small: it knows its request's number, not the request. The thread starts with the
first entry and is a daemon.
Thread-safety: all methods. Corresponds to the HashedWheelTimer and scanResponseTable of NettyRemotingClient.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)

SWEEP_FROM = 1024  # entries


class Deadline(Protocol):
    """What is done when a time has come."""

    def needed(self) -> bool:
        """False once the deadline has nothing to do any more; it never becomes True again."""
        ...

    def expire(self) -> None:
        """Must be quick. What it raises is logged."""
        ...


class DeadlineTimer:
    """``call_at`` a time of ``clock``, which only tests replace."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Deadline]] = []
        self._sweep_at = SWEEP_FROM
        self._order = itertools.count()  # equal times: first come first served, and deadlines are never compared
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._heap)

    def call_at(self, when: float, deadline: Deadline) -> None:
        """``expire`` on the timer's thread at ``when`` or soon after, unless it is not needed by then."""
        with self._changed:
            if len(self._heap) >= self._sweep_at:
                self._heap = [entry for entry in self._heap if entry[2].needed()]
                heapq.heapify(self._heap)
                self._sweep_at = max(SWEEP_FROM, 2 * len(self._heap))
            heapq.heappush(self._heap, (when, next(self._order), deadline))
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._run, name="rocket-timer", daemon=True)
                thread.start()
                self._thread = thread  # only then: where no thread can be had now, the next entry tries again
            elif self._heap[0][0] == when:
                # All, though there is one: an interrupt within may leave a waiter in the list that is no more.
                self._changed.notify_all()

    def run_due(self, now: float) -> float | None:
        """Do what is due at ``now``; when the next entry is due, or None."""
        while True:
            with self._changed:
                if not self._heap or self._heap[0][0] > now:
                    return self._heap[0][0] if self._heap else None
                deadline = heapq.heappop(self._heap)[2]
            try:
                deadline.expire()  # outside the lock: it may enter another deadline
            except BaseException:  # a call-back's, even its SystemExit, must not end the thread of all deadlines
                logger.exception("a call-back for a deadline failed")

    def _run(self) -> None:
        while True:
            due = self.run_due(self._clock())
            with self._changed:
                if self._closed:
                    return
                if self._heap and (due is None or self._heap[0][0] < due):
                    continue  # something nearer came in between
                self._changed.wait(None if due is None else max(0.0, due - self._clock()))

    def close(self) -> None:
        """Forget all entries and end the thread."""
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()
