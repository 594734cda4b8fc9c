"""Limits of the memory for all connections in this process.

=======================  ==================================================  ==========================================
budget                   counts                                              if it is exhausted
=======================  ==================================================  ==========================================
:class:`PendingBytes`    received bytes of incomplete requests               the connection with the most is closed
:class:`ResponseBytes`   unread responses, the brokers' responses that they  further ones wait; connections that do not
                         are created from, and their copies                  read are closed
=======================  ==================================================  ==========================================

A broker's response cannot be cancelled, and its size is not known before it arrives. So a call that requests messages
first waits for room, and its response is dropped if there is no room when it arrives (:class:`Batch`). Then the call
waits for room of that size and retries. After 15 s it fails with TOO_MANY_REQUESTS.

The size of a compressed message is not known before it is decompressed either. So its call waits for room for the
largest allowed message, in a separate budget of half the size, and releases what the message does not need.

While calls wait, a connection is closed if it has read neither a complete response nor 16 KiB within 2 s. If no call
gets room for 10 s, the connection with the most is closed.

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
"""Required progress of a connection between two checks. Ping responses count too, but are smaller."""
_COPIES = 3
"""Copies of a message while it is written: in the broker's response, serialized, and in grpcio."""
_UNPACKED_COPIES = 2
"""Copies of a decompressed message: serialized, and in grpcio."""


class Connection(Protocol):
    """The interface of connections for a budget. Connections must be hashable."""

    forwarded: int
    """Bytes written to the client so far."""

    def abort(self) -> None:
        """Close the connection at once."""


class _Budget:
    """A limit of bytes. ``what`` names the bytes in log lines."""

    def __init__(self, limit: int, what: str) -> None:
        self.limit = limit
        self.used = 0
        self.closed = 0
        """Connections closed so far."""
        self._what = what
        self._held: dict[Connection, int] = {}

    def held(self, connection: Connection) -> int:
        """Return the bytes of a connection."""
        return self._held.get(connection, 0)

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""
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
            "closed connection %s: %d bytes of %s, the limit of all connections is %d bytes",
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
        """Count received bytes. May close connections, including this one."""
        self._add(connection, count)
        self._shrink(self.limit)

    def taken(self, connection: Connection, count: int) -> None:
        """Remove the bytes of a complete message."""
        self._remove(connection, count)


class _Room:
    """Admits bytes into memory. Connections take turns; the calls of a connection are served in order.

    A request for more than ``limit`` bytes is admitted only when nothing else is.
    """

    def __init__(self, limit: int) -> None:
        self.full_since = 0.0
        """When the first call began to wait, or a call was last admitted."""
        self._limit = limit
        self._taken = 0
        self._waiters: dict[Connection, dict[asyncio.Future[None], int]] = {}

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiters)

    def has(self, count: int) -> bool:
        """Whether ``count`` bytes are admitted without waiting."""
        return not self._waiters and self._fits(count)

    async def take(self, connection: Connection, count: int) -> None:
        """Wait until ``count`` bytes are admitted."""
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
            else:  # it has just been admitted
                self._taken -= count
            self._wake()
            raise

    def leave(self, count: int) -> None:
        """Release room; a negative ``count`` takes it without waiting."""
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
        if waiters:  # now the other connections are first
            self._waiters[connection] = waiters


class ResponseBytes(_Budget):
    """Counts responses until they are written, and batches of messages until the batch is written."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit, "unread responses")
        self._room = _Room(limit)
        self._unpacked = _Room(limit // 2)  # separate: its waiters already hold room that others wait for
        self._writes: Counter[Connection] = Counter()
        self._progressed: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None

    def batch(self, connection: Connection) -> Batch:
        """Create a batch for a call that requests messages from a broker."""
        return Batch(self, connection)

    async def wait_for_room(self, connection: Connection, count: int) -> None:
        """Wait for room and count a response. A response above the limit needs an empty budget."""
        self._add(connection, count)
        self._shrink(2 * self.limit)
        try:
            await self.admit(connection, count)
        except BaseException:
            self._remove(connection, count)
            raise

    def sent(self, connection: Connection, count: int) -> None:
        """Release the room of a response that is written or whose call has ended."""
        self._remove(connection, count)
        self.leave(count)

    def write_begins(self, connection: Connection) -> None:
        """Record that a response waits for the client's flow control window."""
        self._writes[connection] += 1

    def write_ends(self, connection: Connection) -> None:
        """Record that a response is written or its call has ended."""
        self._writes[connection] -= 1
        if not self._writes[connection]:
            del self._writes[connection]
        if self._timer is not None:
            self._progressed.add(connection)

    # --- room -------------------------------------------------------------------------------------------------

    def has_room(self, count: int) -> bool:
        """Whether ``count`` bytes are admitted without waiting."""
        return self._room.has(count)

    async def admit(self, connection: Connection, count: int) -> None:
        """Wait for room for ``count`` expected bytes."""
        await self._take(self._room, connection, count)

    def grow(self, connection: Connection, admitted: int, count: int) -> None:
        """Count ``count`` arrived bytes of a connection, of which ``admitted`` have room already."""
        self._room.leave(admitted - count)
        self._add(connection, count)

    def leave(self, count: int) -> None:
        """Release room."""
        self._room.leave(count)

    async def admit_unpacked(self, connection: Connection, count: int) -> None:
        """Wait for room to decompress a message."""
        await self._take(self._unpacked, connection, count)
        self._add(connection, count)

    def leave_unpacked(self, connection: Connection, count: int) -> None:
        """Release room that a decompressed message does not need any more."""
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
    """The memory for the messages that a call requests from a broker. A context manager that releases it at the end.

    Send the request after :meth:`wait` returns. Keep the response if :meth:`take` returns True. Otherwise drop it and
    retry after another :meth:`wait`, which waits for room of that size.
    """

    def __init__(self, budget: ResponseBytes, connection: Connection) -> None:
        self._size = 0  # bytes of the accepted response
        self._budget = budget
        self._connection = connection
        self._admitted = 0  # expected bytes
        self._held = 0  # arrived bytes
        self._needed = 0
        self._unpacked = 0  # bytes of the message in progress

    @property
    def size(self) -> int:
        """The maximum size of a message: of the accepted response, and of the decompressed message."""
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
        """Wait until a request can be sent. RemotingTooMuchRequestError if clients do not read in time."""
        self._budget.leave(self._admitted)
        self._admitted = 0
        try:
            async with asyncio.timeout(_MAX_BATCH_WAIT_S):
                await self._budget.admit(self._connection, self._needed)
        except TimeoutError:
            raise RemotingTooMuchRequestError(
                f"{self._budget.used} bytes of responses are unread by clients (maxUnreadAnswerBytes).",
                remedy="Retry later.",
            ) from None
        self._admitted = self._needed

    def take(self, size: int) -> bool:
        """Accept a response of ``size`` bytes; False if there is no room."""
        needed = _COPIES * size
        if needed > self._admitted and not self._budget.has_room(needed - self._admitted):
            self._needed = needed
            return False
        self._budget.grow(self._connection, self._admitted, needed)
        self._held, self._size = needed, size
        return True

    async def reserve(self, size: int) -> None:
        """Wait for room to decompress a message of up to ``size`` bytes. The previous message is written."""
        self.keep(0)
        await self._budget.admit_unpacked(self._connection, _UNPACKED_COPIES * size)
        self._unpacked = size

    def keep(self, size: int) -> None:
        """Set the actual size of the decompressed message and release the rest."""
        unused, self._unpacked = self._unpacked - size, size
        self._budget.leave_unpacked(self._connection, _UNPACKED_COPIES * unused)
