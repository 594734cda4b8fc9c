"""Bytes that connections occupy in this process, bounded over all of them.

======================  ========================================  =================================================
budget                  counts                                    when it is exhausted
======================  ========================================  =================================================
:class:`PendingBytes`   received bytes of incomplete requests     the connection with the most is closed
:class:`UnreadBytes`    responses that the client does not read   further responses wait, up to the same number of
                                                                  bytes; then the connection with the most is closed
======================  ========================================  =================================================

While responses wait, connections that have not read for a second are closed; after 5 s, the one with the most is.

Thread-safety: event loop only. Nothing survives a restart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from typing import Protocol

from spark_rocket.logs import RateLimited

_log = logging.getLogger(__name__)
_often = RateLimited(_log)

_CHECK_INTERVAL_S = 1.0
_MAX_WAIT_S = 5.0


class Connection(Protocol):
    """What a budget needs of a connection: a hashable object."""

    def abort(self) -> None:
        """Close it now."""


class _Budget:
    """``what`` names the bytes in log lines."""

    def __init__(self, limit: int, what: str) -> None:
        self.limit = limit
        self.used = 0
        self.closed = 0
        """Connections closed so far."""
        self._what = what
        self._held: dict[Connection, int] = {}

    def held(self, connection: Connection) -> int:
        """Bytes of one connection."""
        return self._held.get(connection, 0)

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self.used -= self._held.pop(connection, 0)

    def _add(self, connection: Connection, count: int) -> None:
        self._held[connection] = self._held.get(connection, 0) + count
        self.used += count

    def _remove(self, connection: Connection, count: int) -> None:
        held = self._held.get(connection, 0)
        count = min(count, held)
        self.used -= count
        if count == held:
            self._held.pop(connection, None)
        else:
            self._held[connection] = held - count

    def _largest(self) -> Connection:
        return max(self._held, key=self._held.__getitem__)

    def _shrink(self, limit: int) -> None:
        while self.used > limit and self._held:
            self._close(self._largest())

    def _close(self, connection: Connection) -> None:
        held = self.held(connection)
        self.forget(connection)
        self.closed += 1
        _often.warning(
            self._what,
            "closed connection %s: it occupied %d bytes with %s, and the limit of all connections is %d bytes",
            connection,
            held,
            self._what,
            self.limit,
        )
        connection.abort()


class PendingBytes(_Budget):
    """Received bytes of incomplete requests. An estimate: frame and header bytes count until a request ends."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit, "incomplete requests")

    def received(self, connection: Connection, count: int) -> None:
        """May close connections, this one too."""
        self._add(connection, count)
        self._shrink(self.limit)

    def taken(self, connection: Connection, count: int) -> None:
        """A message is complete."""
        self._remove(connection, count)


class UnreadBytes(_Budget):
    """Responses whose bytes wait for the client's flow control window."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit, "unread responses")
        self._writing = 0  # bytes; the others wait for room
        self._writes: Counter[Connection] = Counter()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._full_since = 0.0
        self._progressed: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def wait_for_room(self, connection: Connection, count: int) -> None:
        """Count a response as soon as the budget has room; a response above the limit needs an empty budget."""
        self._add(connection, count)
        self._shrink(2 * self.limit)
        try:
            while self._writing and self._writing + count > self.limit:
                await self._wait()
        except BaseException:
            self._remove(connection, count)
            raise
        self._writing += count
        self._writes[connection] += 1
        if self._writing < self.limit:
            self._wake()

    def sent(self, connection: Connection, count: int) -> None:
        """The client's transport has taken a response that had room, or its call has ended."""
        self._writing -= count
        self._writes[connection] -= 1
        if not self._writes[connection]:
            del self._writes[connection]
        self._remove(connection, count)
        if self._waiters:
            self._progressed.add(connection)
            self._wake()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters.append(waiter)
        if self._timer is None:
            self._full_since = time.monotonic()
            self._start_timer()
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it had been woken: another one may go on
                self._wake()
            raise

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # else cancelled
                waiter.set_result(None)
                return

    def _start_timer(self) -> None:
        self._progressed.clear()
        self._timer = asyncio.get_running_loop().call_later(_CHECK_INTERVAL_S, self._check, set(self._writes))

    def _check(self, before: set[Connection]) -> None:
        self._timer = None
        if not self._waiters:
            return
        stalled = [one for one in before if one in self._writes and one not in self._progressed]
        if not stalled and self._held and time.monotonic() - self._full_since > _MAX_WAIT_S:
            stalled = [self._largest()]
            self._full_since = time.monotonic()
        for connection in stalled:
            self._close(connection)
        if self._waiters:
            self._start_timer()
