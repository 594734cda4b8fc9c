"""The state of a connection at either end, without I/O or clock: bytes become frames, responses find their requests.

=================  ===================================================================================================
bytes in           :meth:`Session.receive` returns the complete frames for ``RemotingCommand.decode``. The owner of the
                   socket decodes them one by one, so that valid frames before an invalid one are still processed. A
                   socket that receives into :meth:`Session.buffer` does not copy the rest of a large frame
responses          :meth:`Session.take` finds the request of a response; every other frame is a request, on either side
deadlines          ``next_deadline`` is the nearest; :meth:`Session.expire` removes the requests that are late
bytes out          :func:`pieces_of` a command
=================  ===================================================================================================

A request leaves the session exactly once: with its response, at its deadline, when it is abandoned, or with the
connection. Until the connection is open, its earlier deadline for connecting counts. Numbers (``opaque``) count up and
wrap within 31 bits, because the field on the wire is a signed int.

Thread-safety: the thread of the connection's loop, except ``next_opaque``.
Corresponds to the responseTable, requestId and scanResponseTable of NettyRemotingAbstract.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod

from spark_rocket.protocol import Buffer
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH, FrameSplitter

MAX_OPAQUE = 0x7FFFFFFF
SEPARATE_BODY_BYTES = 16 * 1024  # a larger body is passed to the transport separately, not copied

Pieces = tuple[Buffer, ...]


def pieces_of(command: RemotingCommand) -> Pieces:
    """Return the frame of a command. ProtocolError if it cannot be encoded."""
    if len(command.body) > SEPARATE_BODY_BYTES:
        return command.encode_head(), command.body
    return (command.encode(),)


class Pending(ABC):
    """A request in flight. ``respond`` or ``fail`` is called once, on the connection's loop: neither may block."""

    code: int
    timeout: float
    deadline: float
    connect_by: float
    sent = 0.0  # to the connection
    opaque = 0

    def begin(self, timeout: float, now: float) -> None:
        """Start the timeout of the request."""
        self.timeout = timeout
        self.deadline = self.connect_by = now + timeout

    @abstractmethod
    def respond(self, response: RemotingCommand) -> None:
        """Handle the response."""

    @abstractmethod
    def fail(self, error: BaseException) -> object:
        """Handle an error instead of a response."""


class Session:
    """The state of one connection."""

    __slots__ = ("_frames", "_numbers", "_pending", "_to_skip", "is_open", "next_deadline")

    def __init__(
        self, max_frame_length: int = MAX_FRAME_LENGTH, *, first_opaque: int = 1, is_open: bool = True
    ) -> None:
        self.is_open = is_open
        self.next_deadline = math.inf
        """No request is late before; it may have left in the meantime."""
        self._frames = FrameSplitter(max_frame_length)
        self._to_skip = 0  # bytes of an abandoned frame that have not arrived yet
        self._numbers = itertools.count(first_opaque)
        self._pending: dict[int, Pending] = {}

    # --- bytes ------------------------------------------------------------------------------------------------

    def receive(self, data: bytes | bytearray | memoryview) -> list[memoryview]:
        """Return the frames that these bytes complete. ProtocolError for bytes that are not a frame."""
        if self._to_skip:
            skipped = min(self._to_skip, len(data))
            self._to_skip -= skipped
            if skipped == len(data):
                return []
            data = data[skipped:]
        return self._frames.feed(data)

    def buffer(self, spare: memoryview) -> memoryview:
        """Return where to receive: the place of a large frame, or ``spare``, which the next read may overwrite."""
        return self._frames.place() or spare

    def filled(self, count: int, spare: memoryview) -> list[memoryview]:
        """Like ``receive`` of ``count`` bytes that were received into ``buffer(spare)``."""
        if self._frames.place() is None:
            return self.receive(bytes(spare[:count]))
        frame = self._frames.filled(count)
        return [] if frame is None else [frame]

    @property
    def unfinished_bytes(self) -> int:
        """The received bytes of an incomplete frame."""
        return self._frames.pending

    @property
    def in_progress(self) -> bool:
        """Whether a frame is incomplete."""
        return self._frames.pending > 0 or self._to_skip > 0

    def begun_frame(self, most: int) -> memoryview:
        """Return at most ``most`` bytes of the incomplete frame."""
        return self._frames.begun(most)[0]

    def skip(self) -> None:
        """Discard the incomplete frame, and its missing bytes when they arrive."""
        self._to_skip = self._frames.begun(0)[1]
        self._frames.abandon()

    # --- requests ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of pending requests."""
        return len(self._pending)

    def next_opaque(self) -> int:
        return next(self._numbers) & MAX_OPAQUE

    def expect(self, request: Pending) -> None:
        """Expect the response to the request with the number ``request.opaque``."""
        self._pending[request.opaque] = request
        deadline = request.deadline if self.is_open else request.connect_by
        if deadline < self.next_deadline:
            self.next_deadline = deadline

    def expects(self, opaque: int) -> bool:
        """Whether a request with this number is pending."""
        return opaque in self._pending

    def take(self, opaque: int) -> Pending | None:
        """Remove and return the request of a response; None if it has left the session, or was never sent."""
        return self._pending.pop(opaque, None)

    def forget(self, request: Pending) -> bool:
        """Remove a request whose response is not wanted. False if it is not here, whatever else has its number."""
        if self._pending.get(request.opaque) is not request:
            return False
        del self._pending[request.opaque]
        return True

    def expire(self, now: float) -> list[Pending]:
        """Remove and return the requests that are late, the oldest first."""
        late: list[Pending] = []
        self.next_deadline = math.inf
        for request in list(self._pending.values()):
            deadline = request.deadline if self.is_open else request.connect_by
            if deadline <= now:
                del self._pending[request.opaque]
                late.append(request)
            elif deadline < self.next_deadline:
                self.next_deadline = deadline
        return late

    def drain(self) -> list[Pending]:
        """Remove and return all requests of a lost connection, the oldest first."""
        pending, self._pending = self._pending, {}
        return list(pending.values())
