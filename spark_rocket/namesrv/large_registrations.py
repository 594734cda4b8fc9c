"""Decoding of registrations with many topics, which would block the event loop, on one worker thread.

Small registrations (nearly all) are decoded on the loop at once and do not depend on this. Decoding the largest allowed
one takes about a second; meanwhile the loop gets the interpreter every few milliseconds. One registration per
connection may be pending, ``max_per_host`` per address and ``max_waiting`` in total. Others are refused with
SYSTEM_BUSY; their brokers register again after their interval.

Thread-safety: used on the event loop only; only decoding runs on the worker. Not stored on disk.
Corresponds to the brokerRequestExecutor of org.apache.rocketmq.namesrv.NamesrvController.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.bodies.register import RegisterBrokerBody
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand

logger = logging.getLogger(__name__)

_MAX_WAITING = 8  # each holds a frame of at most 16 MiB
_MAX_PER_HOST = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    host: str
    request: RemotingCommand
    compressed: bool
    done: Callable[[RegisterBrokerBody | Exception], None]


class LargeRegistrations:
    """The pending large registrations."""

    def __init__(self, max_waiting: int = _MAX_WAITING, max_per_host: int = _MAX_PER_HOST) -> None:
        self._max_waiting = max_waiting
        self._max_per_host = max_per_host
        self._waiting: dict[Hashable, _Waiting] = {}  # by connection, oldest first: the one being decoded
        self._is_reading = False
        self._worker: ThreadPoolExecutor | None = None

    def read(
        self,
        connection: Hashable,
        host: str,
        request: RemotingCommand,
        compressed: bool,
        done: Callable[[RegisterBrokerBody | Exception], None],
    ) -> None:
        """Decode a body; ``done`` gets it, or the error, on the loop. RefusedError if too many are pending."""
        of_host = sum(waiting.host == host for waiting in self._waiting.values())
        if connection in self._waiting or of_host >= self._max_per_host or len(self._waiting) >= self._max_waiting:
            raise RefusedError(
                f"{len(self._waiting)} large registrations are pending, {of_host} of {host}",
                response_code=ResponseCode.SYSTEM_BUSY,
                remedy="The broker registers again after its interval.",
            )
        self._waiting[connection] = _Waiting(host, request, compressed, done)
        self._read_next()

    def _read_next(self) -> None:
        """Submit one registration at a time: withdrawn ones must not remain in the worker's queue."""
        connection = next(iter(self._waiting), None)
        if self._is_reading or connection is None:
            return
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "registrations")
        waiting = self._waiting[connection]

        def finish(read: asyncio.Future[RegisterBrokerBody]) -> None:
            self._is_reading = False
            is_wanted = self._waiting.get(connection) is waiting
            if is_wanted:
                del self._waiting[connection]
            self._read_next()
            if is_wanted and not read.cancelled():
                error = read.exception()
                waiting.done(error if isinstance(error, Exception) else read.result())

        self._is_reading = True
        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._worker, _decode, waiting.request, waiting.compressed).add_done_callback(finish)

    def withdraw(self, connection: Hashable) -> None:
        """Drop the pending registration of a broker that has unregistered or disconnected."""
        self._waiting.pop(connection, None)

    def close(self) -> None:
        """Drop all pending registrations. The decoding of the current one ends on its own."""
        self._waiting.clear()
        if self._worker is not None:
            self._worker.shutdown(wait=False)
            self._worker = None


def _decode(request: RemotingCommand, compressed: bool) -> RegisterBrokerBody:
    return RegisterBrokerBody.decode(request.body, compressed=compressed)
