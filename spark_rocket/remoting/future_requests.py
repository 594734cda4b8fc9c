"""Requests in flight on an event loop, for connections of clients and servers: their futures and their deadlines.

Corresponds to ResponseFuture and NettyRemotingAbstract.scanResponseTable.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from spark_rocket.errors import RemotingTimeoutError
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.session import Pending, Session

MIN_CHECK_INTERVAL_S = 0.01  # a request expires at most this late


class FutureRequest(Pending):
    """A request whose response settles a future of the running loop. ``forget`` is called if it is cancelled."""

    def __init__(
        self, request: RemotingCommand, timeout: float, begun: float, forget: Callable[[Pending], object]
    ) -> None:
        self.code = request.code
        self.opaque = request.opaque
        self.begin(timeout, begun)
        self.future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(lambda future: forget(self) if future.cancelled() else None)

    def respond(self, response: RemotingCommand) -> None:
        if not self.future.done():
            self.future.set_result(response)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class DeadlineTimer:
    """Reports the late requests of a session. One timer for the nearest deadline suffices: most have responses by then.

    Call :meth:`watch` after the session expects a request.
    """

    __slots__ = ("_due", "_handle", "_late", "_loop", "_session")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, session: Session, late: Callable[[list[Pending]], object]
    ) -> None:
        self._loop = loop
        self._session = session
        self._late = late
        self._handle: asyncio.TimerHandle | None = None
        self._due = math.inf

    def watch(self) -> None:
        if self._session.next_deadline < self._due:
            self._wait(self._session.next_deadline - time.monotonic())

    def _wait(self, seconds: float) -> None:
        self.stop()
        self._due = self._session.next_deadline
        self._handle = self._loop.call_later(max(seconds, 0.0), self.expire)

    def expire(self) -> None:
        """Remove the late requests from the session and report them."""
        self._due = math.inf
        now = time.monotonic()
        late = self._session.expire(now)
        if self._session.next_deadline < math.inf:
            self._wait(max(self._session.next_deadline - now, MIN_CHECK_INTERVAL_S))
        if late:
            self._late(late)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


def no_response(peer: str, request: Pending) -> RemotingTimeoutError:
    """Return the error of a request without a response in time."""
    try:
        what = RequestCode(request.code).name
    except ValueError:
        what = f"request code {int(request.code)}"
    return RemotingTimeoutError(
        f"{peer} did not respond to {what} within {round(request.timeout, 3):g} s.",
        remedy="The request may have been executed; a longer timeout allows for slow servers.",
    )
