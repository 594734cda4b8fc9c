"""What both ends of a connection keep, without the connection: frames in progress, numbers, and who waits for what.

Bytes go in with :meth:`Session.receive` and whole frames come out, for ``RemotingCommand.decode``: they are decoded one
by one by whoever serves them, so that what came before garbage is still served. A frame that is a response is matched
with :meth:`Session.take`; every other frame is a request, on either side.

Numbers (``opaque``) count up and wrap within 31 bits, because the wire's field is a signed int.
Thread-safety: ``receive`` and ``detach`` belong to the one thread that reads; the rest may be called from several
threads, since each is one atomic step on a dict or a counter.
Corresponds to the responseTable and requestId of NettyRemotingAbstract and RemotingCommand.
"""

from __future__ import annotations

import itertools
from typing import Generic, TypeVar

from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH, FrameSplitter

Waiter = TypeVar("Waiter")

MAX_OPAQUE = 0x7FFFFFFF


class Session(Generic[Waiter]):
    """One connection's state; ``Waiter`` is what the owner keeps per unanswered request."""

    __slots__ = ("_numbers", "_waiters", "detach", "receive", "splitter")

    def __init__(self, max_frame_length: int = MAX_FRAME_LENGTH, first_opaque: int = 1) -> None:
        self.splitter = splitter = FrameSplitter(max_frame_length)
        self.receive = splitter.feed  # bound once: this is called for every read
        self.detach = splitter.detach
        self._numbers = itertools.count(first_opaque)
        self._waiters: dict[int, Waiter] = {}

    def __len__(self) -> int:
        """Requests that wait for their answer."""
        return len(self._waiters)

    def skip(self, count: int) -> None:
        """Throw away the frame in progress, of which so many bytes are yet to come."""
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
        """Whether half a frame has come."""
        return self.splitter.pending > 0 or self.receive != self.splitter.feed

    def next_opaque(self) -> int:
        return next(self._numbers) & MAX_OPAQUE

    def expect(self, opaque: int, waiter: Waiter) -> None:
        self._waiters[opaque] = waiter

    def expects(self, opaque: int) -> bool:
        """Whether :meth:`take` would find somebody."""
        return opaque in self._waiters

    def take(self, opaque: int) -> Waiter | None:
        """The waiter of a request, once: for its answer, or to give it up. None: answered, given up or never asked."""
        return self._waiters.pop(opaque, None)

    def drain(self) -> list[Waiter]:
        """All waiters, each once even against a concurrent :meth:`take`: the connection is lost."""
        waiters = (self._waiters.pop(opaque, None) for opaque in list(self._waiters))
        return [waiter for waiter in waiters if waiter is not None]
