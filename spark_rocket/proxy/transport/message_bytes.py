"""The limit of the memory for messages that brokers have delivered and clients have not read.

A broker's response cannot be cancelled, and its size is not known before it arrives. So a call that requests messages
first waits until there is room, and its response is dropped if it does not fit when it arrives. Then the call waits for
room of that size and retries. After 5 s it fails with TOO_MANY_REQUESTS.

The size of a compressed message is not known before it is decompressed either. So its call waits for room for the
largest allowed message, in a second limit of half the size, and releases what the message does not need. Calls that
wait there hold room in the first limit only, and those that have both only write: no call waits for another one in a
circle.

A client that does not read holds its room until its call's deadline, or until grpcio closes its connection.

Nothing survives a restart.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from spark_rocket.errors import RemotingTooMuchRequestError

_MAX_WAIT_S = 5.0
_COPIES = 3
"""Copies of a message while it is written: in the broker's response, serialized, and in grpcio."""
_UNPACKED_COPIES = 2
"""Copies of a decompressed message: serialized, and in grpcio."""


class ByteSemaphore:
    """Admits bytes up to a limit, first come, first served. More than the limit is admitted only alone."""

    def __init__(self, limit: int) -> None:
        self.used = 0
        self._limit = limit
        self._waiters: OrderedDict[asyncio.Future[None], int] = OrderedDict()

    def take(self, count: int) -> bool:
        """Take ``count`` bytes without waiting; False if there is no room, or others wait."""
        if self._waiters or not self._fits(count):
            return False
        self.used += count
        return True

    async def acquire(self, count: int) -> None:
        """Take ``count`` bytes. RemotingTooMuchRequestError if clients do not read in time."""
        if self.take(count):
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = count
        try:
            async with asyncio.timeout(_MAX_WAIT_S):
                await waiter
        except BaseException as error:
            self._waiters.pop(waiter, None)
            if not waiter.cancelled():  # it has just been admitted
                self.used -= count
            self._wake()
            if isinstance(error, TimeoutError):
                raise RemotingTooMuchRequestError(
                    f"{self.used} bytes of responses are unread by clients (maxUnreadAnswerBytes).",
                    remedy="Retry later.",
                ) from None
            raise

    def release(self, count: int) -> None:
        self.used -= count
        self._wake()

    def _fits(self, count: int) -> bool:
        return not self.used or self.used + count <= self._limit

    def _wake(self) -> None:
        while self._waiters:
            waiter, count = next(iter(self._waiters.items()))
            if not self._fits(count):
                return
            del self._waiters[waiter]
            if not waiter.cancelled():
                self.used += count
                waiter.set_result(None)


class MessageBytes:
    """The limit of all calls of a server."""

    def __init__(self, limit: int) -> None:
        self.stored = ByteSemaphore(limit)
        """Messages as brokers sent them."""
        self.unpacked = ByteSemaphore(limit // 2)
        """Decompressed messages."""

    @property
    def used(self) -> int:
        return self.stored.used + self.unpacked.used

    def batch(self) -> Batch:
        return Batch(self)


class Batch:
    """The room for the messages that a call requests from a broker. A context manager that releases it at the end.

    Send the request after :meth:`wait` returns. Keep the response if :meth:`take` returns True. Otherwise drop it and
    retry after another :meth:`wait`, which waits for room of that size.
    """

    def __init__(self, limit: MessageBytes) -> None:
        self._limit = limit
        self._stored = 0  # bytes in use
        self._unpacked = 0
        self._needed = 0  # bytes of the dropped response

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.keep(0)
        self._release_stored()

    async def wait(self) -> None:
        """Wait until a request can be sent. RemotingTooMuchRequestError if clients do not read in time."""
        self._release_stored()
        await self._limit.stored.acquire(self._needed)
        self._stored = self._needed

    def take(self, size: int) -> bool:
        """Accept a response of ``size`` bytes; False if there is no room."""
        needed = _COPIES * size
        if needed > self._stored and not self._limit.stored.take(needed - self._stored):
            self._needed = needed
            return False
        self._limit.stored.release(max(self._stored - needed, 0))
        self._stored = needed
        return True

    def _release_stored(self) -> None:
        self._limit.stored.release(self._stored)
        self._stored = 0

    async def reserve(self, size: int) -> None:
        """Wait for room to decompress a message of up to ``size`` bytes. The previous message is written."""
        self.keep(0)
        await self._limit.unpacked.acquire(_UNPACKED_COPIES * size)
        self._unpacked = _UNPACKED_COPIES * size

    def keep(self, size: int) -> None:
        """Set the actual size of the decompressed message and release the rest."""
        unused = self._unpacked - _UNPACKED_COPIES * size
        self._limit.unpacked.release(unused)
        self._unpacked -= unused
