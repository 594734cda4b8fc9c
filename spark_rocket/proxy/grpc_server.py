"""The calls carried by a gRPC server of our own, on the broker's event loop. See context.py for the interface.

An empty call costs grpcio's asyncio server some 280 µs, most of it on the way between its C core's threads and the
event loop; here it costs an eighth. And grpcio cannot take plaintext and TLS on one port.

=====================  ==============================================================
module                 what it does
=====================  ==============================================================
listener               accepts; TLS or not; the PROXY protocol
grpc_connection        one connection: events to calls, answers to writes
grpc_call              one call: its handler's run and its end
grpc_messages          messages in data, times, texts
http2, http2_output    a connection's state, without the connection
request_headers        what may be in a request's header fields
frames, hpack,         bytes
huffman
=====================  ==============================================================

Bounds: connections, of all and of an address (``limits``); bytes of requests that are not complete or not taken
(``max_held``, of all connections together); and those of http2.py, for each connection. A connection that has sent very
much is served a while, then it is the others' turn, the sooner the more of them there are; methods of a kind that have
waited longer than that kind's patience, or for which there is no memory, get their ``busy`` answer.

Thread-safety: made, started and closed on the event loop. Nothing is kept on disk.
Corresponds to org.apache.rocketmq.proxy.grpc.GrpcServer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

from spark_rocket.logs import log_once_per
from spark_rocket.proxy.context import Rpc
from spark_rocket.proxy.grpc_call import Carrier
from spark_rocket.proxy.grpc_connection import GrpcConnection
from spark_rocket.proxy.listener import Listener
from spark_rocket.remoting.overload import Limits, OverloadStats
from spark_rocket.remoting.tls_contexts import ServerTls

_log = logging.getLogger(__name__)
_once = log_once_per(10, _log)


class Http2Server:
    """A server of these methods on one address; with ``tls`` it takes that too, on the same port."""

    def __init__(
        self,
        host: str,
        port: int,
        rpcs: Mapping[str, Rpc] = {},
        *,
        tls: ServerTls | None = None,
        idle_timeout: float = 120.0,
        limits: Limits | None = None,
        overload: OverloadStats | None = None,
        max_held: int = 512 * 1024 * 1024,
    ) -> None:
        self.rpcs: dict[bytes, Rpc] = {}
        self.connections: set[GrpcConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()  # handlers that wait for something
        self.held = 0
        self.max_held = max_held
        self.closing = False
        self.loop: asyncio.AbstractEventLoop
        self._given = rpcs
        self._idle_timeout = idle_timeout
        self.limits = limits or Limits()
        self.overload = overload or OverloadStats()
        self.clock: Callable[[], float] = time.thread_time
        """Counts seconds of waiting, by this thread's work."""
        self.waiting = 0  # connections whose requests wait for their turn
        self._addresses: Counter[str] = Counter()
        self._listener = Listener(host, port, lambda peer: GrpcConnection(self, peer), tls)
        self._spare: Carrier | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event

    @property
    def port(self) -> int:
        """The real port, also when 0 was asked for."""
        return self._listener.port

    async def bind(self) -> None:
        """Have the address: whoever calls waits until this serves. ConfigError when it cannot be had."""
        self.loop = asyncio.get_running_loop()
        self._empty = asyncio.Event()
        self._empty.set()
        await self._listener.bind()

    def when_called(self, action: Callable[[], None]) -> None:
        """Have ``action`` called, once, when somebody waits."""
        self._listener.when_called(action)

    def serve(self, rpcs: Mapping[str, Rpc]) -> None:
        """Serve these methods."""
        self.rpcs = {path.encode(): rpc for path, rpc in rpcs.items()}
        self._listener.accept()
        self._sweep()

    async def start(self) -> None:
        """Serve. ConfigError when the address cannot be had."""
        await self.bind()
        self.serve(self._given)

    async def close(self, grace: float = 1.0) -> None:
        """Take no more calls, give those under way ``grace`` seconds, cancel the rest."""
        self.closing = True
        self._listener.close()
        await self._listener.wait_closed()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.drain()
        await self._wait_empty(grace)
        for connection in list(self.connections):
            connection.end_calls()
            connection.close()
        await self._wait_empty(grace)
        for connection in list(self.connections):
            connection.abort()
        await self._empty.wait()
        if self._spare is not None:
            self._spare.task.cancel()
            self._spare = None
        if self.tasks:
            await asyncio.wait(self.tasks)

    async def _wait_empty(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._empty.wait(), seconds)

    # --- called by connections and calls ----------------------------------------------------------------------

    def admit(self, connection: GrpcConnection) -> None:
        """A connection is made."""
        limits, host = self.limits, connection.host
        reason = ""
        if len(self.connections) >= limits.max_connections:
            reason = "total"
        elif 0 < limits.max_connections_per_address <= self._addresses[host]:
            reason = "address"
        self.connections.add(connection)
        self._addresses[host] += 1
        self._empty.clear()
        if reason:
            self.overload.connections_refused[reason] += 1
            _once.warning(reason, "%s refused: %d connections are open", connection, len(self.connections) - 1)
        if self.closing or reason:
            connection.abort()

    def forget(self, connection: GrpcConnection) -> None:
        """A connection is gone."""
        if connection in self.connections:
            self.connections.discard(connection)
            self._addresses[connection.host] -= 1
            if not self._addresses[connection.host]:
                del self._addresses[connection.host]
        if not self.connections:
            self._empty.set()

    def carrier(self) -> Carrier:
        """A task for a handler, if it should need one."""
        spare = self._spare
        if spare is None or spare.task.cancelling():
            self._spare = spare = Carrier(self.loop)
        return spare

    def employ(self, carrier: Carrier) -> asyncio.Task[None]:
        """It does need it."""
        self._spare = None
        task = carrier.task
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _sweep(self) -> None:
        now = time.monotonic()
        for connection in list(self.connections):
            connection.look(now, self._idle_timeout)
        self._sweeper = self.loop.call_later(self._idle_timeout / 4, self._sweep)
