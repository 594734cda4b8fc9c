"""Bytes that connections occupy in this process, bounded over all of them.

=======================  ==================================================  ==========================================
budget                   counts                                              when it is exhausted
=======================  ==================================================  ==========================================
:class:`PendingBytes`    received bytes of incomplete requests               the connection with the most is closed
:class:`ResponseBytes`   responses that the client does not read, and the    further ones wait; connections that do not
                         brokers' answers that they are made of, with        read are closed
                         their copies
=======================  ==================================================  ==========================================

An answer of a broker cannot be stopped, and its size is not known before it comes. So a call that asks for messages
waits for room first, and its answer is dropped if there is no room left when it comes (:class:`Batch`). Then the call
waits for room of that size, and asks again. After 15 s it fails with TOO_MANY_REQUESTS.

The size of a compressed message is not known before it is unpacked either. So its call waits for room for the largest
that is unpacked, half as much room as others have, and gives back what the message does not need.

While calls wait, a connection is closed that has not read for 2 s, neither a whole response nor 16 KiB. When none of
them gets room for 10 s, the connection with the most is closed.

Thread-safety: event loop only. Nothing survives a restart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Protocol

from spark_rocket.errors import RemotingTooMuchRequestError
from spark_rocket.logs import RateLimited

_log = logging.getLogger(__name__)
_often = RateLimited(_log)

_CHECK_INTERVAL_S = 2.0
_MAX_WAIT_S = 10.0
_MAX_BATCH_WAIT_S = 15.0
_MIN_PROGRESS_BYTES = 16 * 1024
"""Of a connection, between two checks. Answers to pings count too, and are smaller."""
_COPIES = 3
"""Of a message that is being written: in the broker's answer, serialized, and in grpcio."""
_UNPACKED_COPIES = 2
"""Of a message that was unpacked: serialized, and in grpcio."""


class Connection(Protocol):
    """What a budget needs of a connection: a hashable object."""

    forwarded: int
    """Bytes written to the client so far."""

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


class _Room:
    """Bytes that may be in memory. Connections take turns, the calls of each in their order.

    More than ``limit`` bytes at once are let in when nothing else is.
    """

    def __init__(self, limit: int) -> None:
        self.full_since = 0.0
        """When a call last began to wait before all others, or was let in."""
        self._limit = limit
        self._taken = 0
        self._waiters: dict[Connection, dict[asyncio.Future[None], int]] = {}

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiters)

    def has(self, count: int) -> bool:
        """Whether ``count`` bytes are let in at once."""
        return not self._waiters and self._fits(count)

    async def take(self, connection: Connection, count: int) -> None:
        """Wait until ``count`` bytes are let in."""
        if self.has(count):
            self._taken += count
            return
        if not self._waiters:
            self.full_since = time.monotonic()
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(connection, {})[waiter] = count
        try:
            await waiter
        except BaseException:
            if waiter.cancelled():
                self._dequeue(connection, waiter)
            else:  # it has just been let in
                self._taken -= count
            self._wake()
            raise

    def leave(self, count: int) -> None:
        """Give room back; a negative ``count`` takes it without waiting."""
        self._taken -= count
        self._wake()

    def _fits(self, count: int) -> bool:
        return not self._taken or self._taken + count <= self._limit

    def _wake(self) -> None:
        while self._waiters:
            connection, waiters = next(iter(self._waiters.items()))
            waiter, count = next(iter(waiters.items()))
            if not waiter.cancelled():
                if not self._fits(count):
                    return
                self._taken += count
                self.full_since = time.monotonic()
                waiter.set_result(None)
            self._dequeue(connection, waiter)

    def _dequeue(self, connection: Connection, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters.pop(connection, {})
        waiters.pop(waiter, None)
        if waiters:  # the other connections are first now
            self._waiters[connection] = waiters


class ResponseBytes(_Budget):
    """Responses until they are written, and batches of messages until all of a batch is written."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit, "unread responses")
        self._room = _Room(limit)
        self._unpacked = _Room(limit // 2)  # of their own: who waits for it has room already that others wait for
        self._writes: Counter[Connection] = Counter()
        self._progressed: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None

    def batch(self, connection: Connection) -> Batch:
        """For a call that asks a broker for messages."""
        return Batch(self, connection)

    async def wait_for_room(self, connection: Connection, count: int) -> None:
        """Count a response as soon as the budget has room; a response above the limit needs an empty budget."""
        self._add(connection, count)
        self._shrink(2 * self.limit)
        try:
            await self.admit(connection, count)
        except BaseException:
            self._remove(connection, count)
            raise

    def sent(self, connection: Connection, count: int) -> None:
        """A response that had room is written, or its call has ended."""
        self._remove(connection, count)
        self.leave(count)

    def write_begins(self, connection: Connection) -> None:
        """A response waits for the client's flow control window."""
        self._writes[connection] += 1

    def write_ends(self, connection: Connection) -> None:
        """It is written, or its call has ended."""
        self._writes[connection] -= 1
        if not self._writes[connection]:
            del self._writes[connection]
        if self._timer is not None:
            self._progressed.add(connection)

    # --- room -------------------------------------------------------------------------------------------------

    def has_room(self, count: int) -> bool:
        """Whether ``count`` bytes are admitted at once."""
        return self._room.has(count)

    async def admit(self, connection: Connection, count: int) -> None:
        """Take room for ``count`` bytes that may come."""
        await self._take(self._room, connection, count)

    def grow(self, connection: Connection, admitted: int, count: int) -> None:
        """``count`` bytes of a connection are here, of which ``admitted`` have room already."""
        self._room.leave(admitted - count)
        self._add(connection, count)

    def leave(self, count: int) -> None:
        """Give room back."""
        self._room.leave(count)

    async def admit_unpacked(self, connection: Connection, count: int) -> None:
        """Take room for a message that is to be unpacked."""
        await self._take(self._unpacked, connection, count)
        self._add(connection, count)

    def leave_unpacked(self, connection: Connection, count: int) -> None:
        """It is smaller than that by so much, or is written."""
        self._remove(connection, count)
        self._unpacked.leave(count)

    async def _take(self, room: _Room, connection: Connection, count: int) -> None:
        if self._timer is None and not room.has(count):
            self._start_timer()
        await room.take(connection, count)

    # --- clients that do not read -----------------------------------------------------------------------------

    def _start_timer(self) -> None:
        self._progressed.clear()
        before = {connection: connection.forwarded for connection in self._writes}
        self._timer = asyncio.get_running_loop().call_later(_CHECK_INTERVAL_S, self._check, before)

    def _check(self, before: dict[Connection, int]) -> None:
        self._timer = None
        waited_for = [room for room in (self._room, self._unpacked) if room.is_waited_for]
        if not waited_for:
            return
        now = time.monotonic()
        stalled = [one for one, forwarded in before.items() if self._is_stalled(one, forwarded)]
        if not stalled and self._held and any(now - room.full_since > _MAX_WAIT_S for room in waited_for):
            stalled = [self._largest()]
            for room in waited_for:
                room.full_since = now
        for connection in stalled:
            self._close(connection)
        self._start_timer()

    def _is_stalled(self, connection: Connection, forwarded_before: int) -> bool:
        return (
            connection in self._writes
            and connection not in self._progressed
            and self.held(connection) > 0
            and connection.forwarded - forwarded_before < _MIN_PROGRESS_BYTES
        )


class Batch:
    """The messages that one call asks a broker for. A context manager: at its end they are written or dropped.

    A broker may be asked when :meth:`wait` returns. Its answer is kept if :meth:`take` has room for it; else it is
    dropped, and the broker is asked again when there is room for an answer of that size.
    """

    def __init__(self, budget: ResponseBytes, connection: Connection) -> None:
        self._size = 0  # of the answer that was taken
        self._budget = budget
        self._connection = connection
        self._admitted = 0  # bytes that may come
        self._held = 0  # bytes that are here
        self._needed = 0
        self._unpacked = 0  # bytes of the message that is being written

    @property
    def size(self) -> int:
        """Bytes that one message may have: of the answer that was taken, and of what is unpacked."""
        return self._size + self._unpacked

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.keep(0)
        if self._held:
            self._budget.sent(self._connection, self._held)
        else:
            self._budget.leave(self._admitted)

    async def wait(self) -> None:
        """Until a broker may be asked. RemotingTooMuchRequestError when clients do not read for too long."""
        self._budget.leave(self._admitted)
        self._admitted = 0
        try:
            async with asyncio.timeout(_MAX_BATCH_WAIT_S):
                await self._budget.admit(self._connection, self._needed)
        except TimeoutError:
            raise RemotingTooMuchRequestError(
                f"{self._budget.used} bytes of responses wait to be read by clients (maxUnreadAnswerBytes).",
                remedy="Try again in a moment.",
            ) from None
        self._admitted = self._needed

    def take(self, size: int) -> bool:
        """Keep an answer of ``size`` bytes; False if there is no room."""
        needed = _COPIES * size
        if needed > self._admitted and not self._budget.has_room(needed - self._admitted):
            self._needed = needed
            return False
        self._budget.grow(self._connection, self._admitted, needed)
        self._held, self._size = needed, size
        return True

    async def reserve(self, size: int) -> None:
        """Wait for room to unpack one message of up to ``size`` bytes. The message before it is written."""
        self.keep(0)
        await self._budget.admit_unpacked(self._connection, _UNPACKED_COPIES * size)
        self._unpacked = size

    def keep(self, size: int) -> None:
        """The message has ``size`` bytes now that it is unpacked."""
        unused, self._unpacked = self._unpacked - size, size
        self._budget.leave_unpacked(self._connection, _UNPACKED_COPIES * unused)
