"""Requests that nobody waits for, of one connection: written together, and given up when their time is over.

A frame is written at once while few are unanswered (``WINDOW``). Above that the peer has enough to do: frames are held
until the next answers come, since whoever reads those writes what is held, or until ``FLUSH_SIZE`` bytes are, which the
thread that posts writes itself. So a producer that sends faster than its broker answers makes one system call for
dozens of requests, and the broker reads them with one. Nothing is held longer than ``HOLD`` seconds.

Whoever writes to the connection, holding ``writing``, first writes what is held: one thread's requests keep their
order, and a frame that the kernel took half of is completed before anything else.

Deadlines are looked at together: only the nearest one is entered in the timer, and all are when it has come, so that
a request that is answered costs the timer nothing. A time-out is at most ``HOLD`` late.

Thread-safety: all methods. Corresponds to Netty's ChannelOutboundBuffer and the responseTable's scan.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from spark_rocket.errors import RemotingTimeoutError
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import Buffer
from spark_rocket.remoting.client.timer import DeadlineTimer
from spark_rocket.remoting.client.waiters import Waiter

logger = logging.getLogger(__name__)

WINDOW = 16  # requests unanswered up to which each is written at once
FLUSH_SIZE = 32 * 1024
HOLD = 0.01

Entry: TypeAlias = tuple[Waiter, float, float, int]  # and its deadline, its time-out, its request's code


class Outbox:
    """See the module. ``write`` writes a buffer without waiting and says how much of it the kernel took."""

    def __init__(self, address: str, write: Callable[[Buffer], int], timer: DeadlineTimer) -> None:
        self.held: deque[Buffer] = deque()
        self.writing = threading.Lock()
        self.waiting: dict[int, Entry] = {}
        self._write = write
        self._timer = timer
        self._size = 0  # about: of what is held
        self._due = False  # the timer is to come by
        self._deadlines = _Deadlines(address, self.waiting, timer)

    # --- who waits --------------------------------------------------------------------------------------------

    def expect(self, opaque: int, waiter: Waiter, deadline: float, timeout: float, code: int) -> None:
        """An answer is to come."""
        self.waiting[opaque] = waiter, deadline, timeout, code
        if deadline < self._deadlines.nearest:
            self._deadlines.watch(deadline)

    def take(self, opaque: int) -> Waiter | None:
        """The waiter of a request, once."""
        entry = self.waiting.pop(opaque, None)
        return None if entry is None else entry[0]

    def drain(self) -> list[Waiter]:
        """All waiters: the connection is lost."""
        waiters = [self.take(opaque) for opaque in list(self.waiting)]
        return [waiter for waiter in waiters if waiter is not None]

    # --- what is held -----------------------------------------------------------------------------------------

    def hold(self, frame: bytes) -> bool:
        """Keep a frame for later; False if what is held should be written now, by the caller."""
        held = self.held
        held.append(frame)
        self._size += len(frame)
        # After the append: whoever answers the last of those that were written takes them out before it looks here.
        if len(self.waiting) - len(held) < WINDOW or self._size >= FLUSH_SIZE:
            return False
        if not self._due:
            self._come_by()
        return True

    def take_held(self) -> bytes:
        """What is held, and not held any more. Only for the holder of ``writing``."""
        held = self.held
        self._size = 0
        return b"".join([held.popleft() for _ in range(len(held))])

    def flush(self) -> None:
        """Write what is held as far as that goes without waiting."""
        if self.writing.acquire(blocking=False):  # else whoever writes takes it along, or the timer comes by
            try:
                data = self.take_held()
                sent = self._write(data) if data else 0
                if sent < len(data):
                    self.held.appendleft(memoryview(data)[sent:])
            finally:
                self.writing.release()
            if self.held and not self._due:
                self._come_by()

    def _come_by(self) -> None:
        self._due = True
        self._timer.call_at(time.monotonic() + HOLD, self)

    def needed(self) -> bool:
        """For the timer."""
        return True

    def expire(self) -> None:
        """For the timer."""
        self._due = False
        if self.held:
            self.flush()
            if self.held and not self._due:  # somebody else writes
                self._come_by()


class _Deadlines:
    """The deadlines of all who wait: one entry in the timer, for the nearest."""

    def __init__(self, address: str, waiting: dict[int, Entry], timer: DeadlineTimer) -> None:
        self.nearest = math.inf
        self._address = address
        self._waiting = waiting
        self._timer = timer
        self._lock = threading.Lock()

    def watch(self, deadline: float) -> None:
        """One that is nearer than all others, unless somebody has brought a nearer one meanwhile."""
        with self._lock:
            if deadline < self.nearest:
                self._timer.call_at(deadline, self)
                self.nearest = deadline

    def needed(self) -> bool:
        """For the timer."""
        return True

    def expire(self) -> None:
        """For the timer."""
        now = time.monotonic()
        with self._lock:
            if now < self.nearest:
                return  # it was the nearest once; the one that is has an entry of its own
            self.nearest = nearest = math.inf
        late: list[int] = []
        for opaque, (_, deadline, _, _) in list(self._waiting.items()):
            if deadline <= now:
                late.append(opaque)
            elif deadline < nearest:
                nearest = deadline
        self.watch(max(nearest, now + HOLD))
        for opaque in late:
            entry = self._waiting.pop(opaque, None)
            if entry is not None:
                waiter, _, timeout, code = entry
                try:
                    waiter.fail(no_answer(self._address, code, timeout))
                except BaseException:  # a call-back's, even its SystemExit, is not for the others who wait
                    logger.exception("a call-back for a time-out of %s failed", self._address)


def no_answer(address: str, code: int, timeout: float) -> RemotingTimeoutError:
    try:
        what = RequestCode(code).name
    except ValueError:
        what = f"request code {int(code)}"
    return RemotingTimeoutError(
        f"{address} did not answer {what} within {timeout:g} s.",
        remedy="It may have been carried out all the same; a longer timeout waits for slow servers.",
    )
