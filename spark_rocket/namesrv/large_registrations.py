"""Registrations of many topics, which take too long to read for the event loop: one worker thread reads them in turn.

A small registration (nearly all of them) is read on the loop at once and does not depend on this. Reading the largest
that is allowed takes about a second; meanwhile the loop gets the interpreter every few milliseconds. One registration
per connection may wait, ``max_per_host`` per address and ``max_waiting`` in total. Others are refused with SYSTEM_BUSY;
their brokers register again after their interval.

Thread-safety: belongs to the event loop; only decoding runs on the worker. Nothing is kept on disk.
Corresponds to the brokerRequestExecutor of org.apache.rocketmq.namesrv.NamesrvController.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor

from spark_rocket.errors import RefusedError
from spark_rocket.protocol.bodies import RegisterBrokerBody
from spark_rocket.protocol.codes import ResponseCode
from spark_rocket.protocol.command import RemotingCommand

logger = logging.getLogger(__name__)

_MAX_WAITING = 8  # each holds a frame of at most 16 MiB
_MAX_PER_HOST = 4


class LargeRegistrations:
    """The large registrations that wait or are being read."""

    def __init__(self, max_waiting: int = _MAX_WAITING, max_per_host: int = _MAX_PER_HOST) -> None:
        self._max_waiting = max_waiting
        self._max_per_host = max_per_host
        self._waiting: dict[Hashable, tuple[str, asyncio.Future[RegisterBrokerBody]]] = {}
        self._worker: ThreadPoolExecutor | None = None

    def read(
        self,
        connection: Hashable,
        host: str,
        request: RemotingCommand,
        compressed: bool,
        done: Callable[[RegisterBrokerBody | Exception], None],
    ) -> None:
        """Decode a request's body; ``done`` gets it, or the error, on the loop. RefusedError if too many wait."""
        of_host = sum(other == host for other, _ in self._waiting.values())
        if connection in self._waiting or of_host >= self._max_per_host or len(self._waiting) >= self._max_waiting:
            raise RefusedError(
                f"{len(self._waiting)} large registrations are being read, {of_host} of {host}",
                response_code=ResponseCode.SYSTEM_BUSY,
                remedy="The broker registers again after its interval.",
            )
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "registrations")
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._worker, _decode, request, compressed)
        self._waiting[connection] = host, future

        def finish(read: asyncio.Future[RegisterBrokerBody]) -> None:
            if self._waiting.get(connection) == (host, read):
                del self._waiting[connection]
            if not read.cancelled():
                error = read.exception()
                done(error if isinstance(error, Exception) else read.result())

        future.add_done_callback(finish)

    def withdraw(self, connection: Hashable) -> None:
        """The connection's broker unregistered or is gone: what waits of it must not register it again."""
        waiting = self._waiting.pop(connection, None)
        if waiting is not None:
            waiting[1].cancel()

    def close(self) -> None:
        """Read nothing more. A registration that is being read ends on its own."""
        for connection in list(self._waiting):
            self.withdraw(connection)
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)
            self._worker = None


def _decode(request: RemotingCommand, compressed: bool) -> RegisterBrokerBody:
    return RegisterBrokerBody.decode(request.body, compressed=compressed)
