"""The state of a connection at either end, without I/O: incomplete frames, request numbers, pending requests.

:meth:`Session.receive` takes bytes and returns complete frames for ``RemotingCommand.decode``. The caller decodes them
one by one, so that valid frames before an invalid one are still processed. A response is matched with its request by
:meth:`Session.take`; every other frame is a request, on either side.

Numbers (``opaque``) count up and wrap within 31 bits, because the field on the wire is a signed int.
Thread-safety: ``receive`` and ``detach`` belong to the reading thread. The other methods may be called from several
threads, because each is one atomic operation on a dict or a counter.
Corresponds to the responseTable and requestId of NettyRemotingAbstract and RemotingCommand.
"""

from __future__ import annotations

import itertools
from typing import Generic, TypeVar

from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH, FrameSplitter

Waiter = TypeVar("Waiter")

MAX_OPAQUE = 0x7FFFFFFF


class Session(Generic[Waiter]):
    """The state of one connection; ``Waiter`` is the owner's data per pending request."""

    __slots__ = ("_numbers", "_waiters", "detach", "receive", "splitter")

    def __init__(self, max_frame_length: int = MAX_FRAME_LENGTH, first_opaque: int = 1) -> None:
        self.splitter = splitter = FrameSplitter(max_frame_length)
        self.receive = splitter.feed  # bound once: this is called for every read
        self.detach = splitter.detach
        self._numbers = itertools.count(first_opaque)
        self._waiters: dict[int, Waiter] = {}

    def __len__(self) -> int:
        """The number of pending requests."""
        return len(self._waiters)

    def skip(self, count: int) -> None:
        """Discard the incomplete frame, of which ``count`` bytes have not arrived yet."""
        receive = self.splitter.feed
        self.splitter.abandon()

        def rest(data: bytes | bytearray | memoryview) -> list[memoryview]:
            nonlocal count
            count -= len(data)
            if count > 0:
                return []
            self.receive = receive
            return receive(data[len(data) + count :]) if count else []

        if count:
            self.receive = rest

    @property
    def in_progress(self) -> bool:
        """Whether a frame is incomplete."""
        return self.splitter.pending > 0 or self.receive != self.splitter.feed

    def next_opaque(self) -> int:
        return next(self._numbers) & MAX_OPAQUE

    def expect(self, opaque: int, waiter: Waiter) -> None:
        self._waiters[opaque] = waiter

    def expects(self, opaque: int) -> bool:
        """Whether a request with this number is pending."""
        return opaque in self._waiters

    def take(self, opaque: int) -> Waiter | None:
        """Remove and return the waiter of a request; None if it was answered, abandoned or never sent."""
        return self._waiters.pop(opaque, None)

    def pending(self) -> list[Waiter]:
        """Return the waiters of all pending requests, the oldest first."""
        return list(self._waiters.values())

    def drain(self) -> list[Waiter]:
        """Remove and return all waiters of a lost connection, each once even with a concurrent :meth:`take`."""
        waiters = (self._waiters.pop(opaque, None) for opaque in list(self._waiters))
        return [waiter for waiter in waiters if waiter is not None]
