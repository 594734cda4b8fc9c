"""Requests of the blocking client, and the promise of a response.

Thread-safety: all methods. Corresponds to org.apache.rocketmq.remoting.netty.ResponseFuture.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.connection import RemotingConnection
from spark_rocket.remoting.client.promise import Promise
from spark_rocket.remoting.session import Pending

LOOP_MARGIN_S = 2.0  # how long after its deadline a request is settled at most


class Submitted(Pending):
    """A request that any thread may submit and abandon.

    ``connection`` is set together with ``opaque``, before the request can wait or be sent.
    """

    connection: RemotingConnection | None = None

    def abandon(self) -> None:
        """Ignore the response, if there is none yet."""
        if self.connection is not None:
            self.connection.abandon(self)


class Request(Promise[Any], Submitted):
    """The promise of a response, or of ``convert(response)``. ``on_error`` is called first with an error."""

    permit: Callable[[], object] | None = None
    """Releases the permit of the request when it is settled."""

    def __init__(
        self,
        code: int,
        timeout: float,
        convert: Callable[[RemotingCommand], Any] | None = None,
        on_error: Callable[[BaseException], object] | None = None,
    ) -> None:
        super().__init__()
        self.code = code
        self.begin(timeout, time.monotonic())
        self._convert = convert
        self._on_error = on_error

    def respond(self, response: RemotingCommand) -> None:
        if self._convert is None:
            self.resolve(response)
            return
        try:
            value = self._convert(response)
        except Exception as error:
            self.fail(error)
        else:
            self.resolve(value)

    def fail(self, error: BaseException) -> None:
        if self._on_error is not None:
            self._on_error(error)
        super().fail(error)

    def release(self) -> None:
        """Release the permit, once: nothing comes between the load and the store (``promise``)."""
        permit, self.permit = self.permit, None
        if permit is not None:
            permit()

    def _settle(self, outcome: Any) -> None:
        self.release()
        super()._settle(outcome)

    def wait(self) -> Any:
        """Return the result. The request is abandoned if the wait is interrupted."""
        try:
            # The loop settles it at its deadline. Only a loop that has ended, at the interpreter's exit, does not.
            return self.result(max(0.0, self.deadline - time.monotonic()) + LOOP_MARGIN_S)
        except TimeoutError:
            if self.connection is not None:
                self.fail(self.connection.late(self))
            return self.result(0)
        except BaseException:
            self.abandon()
            self.release()
            raise
