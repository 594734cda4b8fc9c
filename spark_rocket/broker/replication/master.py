"""The master's side of the HA port: its log for every slave that connects, and who waits until a slave has it.

===========================  ========================================================================================
a slave                      gets
===========================  ========================================================================================
reports 0 first              the log from the beginning of its last file on, as from Apache's masters
reports another place first  the log from there on
reports what is not there    a heartbeat with the offset where the log ends, or begins; the connection is closed, and
                             both addresses are in the log. Apache's slaves say so as well, and try again
has all there is             a heartbeat at once the first time, and after ``haSendHeartbeatInterval`` without data
says nothing for long        the connection closed, after ``haHousekeepingInterval`` without a whole report; sooner when
                             too many are connected: the oldest that has reported nothing makes room
reports what was not sent    nothing better: counted is what was sent, and for senders that wait only what goes
                             beyond the first report
does not read                at most 1 MiB in this process's memory; what was not read is not reported either
===========================  ========================================================================================

Bytes are copied from the log's mapping once, 256 KiB at a time, which costs a hundredth of what sending them does: so
no connection holds a mapping, and the log's old pages are let go as after any other reading.

With SYNC_MASTER a sender waits for ``when_replicated``: SLAVE_NOT_AVAILABLE at once when no slave is connected, or none
is within ``haMaxGapNotInSync`` bytes; SUCCESS when one has the bytes; FLUSH_SLAVE_TIMEOUT after ``slaveTimeout``.

Thread-safety: everything on the event loop. Nothing is kept on disk.
Corresponds to org.apache.rocketmq.store.ha.{DefaultHAService, DefaultHAConnection, GroupTransferService}.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.errors import ConfigError, ProtocolError
from spark_rocket.logs import RateLimited
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.ha import TRANSFER_SIZE, ReportDecoder, encode_header
from spark_rocket.remoting.address import format_address, format_peer
from spark_rocket.remoting.server.sockets import leaves_reserve
from spark_rocket.remoting.tls.server import TlsGate
from spark_rocket.store.message_store import MessageStore

_log = logging.getLogger(__name__)
_READ = 256 << 10  # of the log at a time
_TURN = 1 << 20  # before others have their turn
_HIGH_WATER = 1 << 20
_LOOK_SECONDS = 0.005  # whether the log has grown, while a slave has all of it
_TICK_SECONDS = 1.0
_SETTLE_SECONDS = 1.0
_MOST_CONNECTIONS = 100

ReplicatedCallback = Callable[[ResponseCode], None]


class SlaveConnection(asyncio.Protocol):
    """One connection to the HA port, by a slave or whoever it is."""

    def __init__(self, master: ReplicationMaster) -> None:
        self._master = master
        self._store = master.store
        self._reports = ReportDecoder()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._told_end = False
        self._claimed = -1  # with the first report, when nothing had been compared or sent
        self.address = "unknown:0"
        self.next_offset = -1
        """Of the next byte to be sent; -1 until the slave has said where to begin."""
        self.acked = -1
        """The slave has the log up to there."""
        self.last_report = self.last_write = master.loop.time()
        self._sent = 0
        self.bytes_in_second = 0
        """How many were given to the socket in the last whole second."""

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        self.address = format_peer(transport.get_extra_info("peername"))
        sock = transport.get_extra_info("socket")
        name = f"HA port of {self._master.name}"
        if not leaves_reserve(sock, name, self.address) or not self._master.admit(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def secured(self, transport: asyncio.Transport) -> None:
        """The slave speaks TLS: this is where it can be read."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            reports = self._reports.feed(data)
        except ProtocolError as error:
            _log.warning("%s closed the HA connection of %s: %s", self._master.name, self.address, error)
            self.abort()
            return
        if not reports:
            return
        self.last_report = self._master.loop.time()
        if self.next_offset < 0:
            self._begin(reports[0])
        if self.next_offset >= 0:
            acked = min(max(reports), self.next_offset)
            if self.acked < 0:
                self._claimed = acked
            if acked > self.acked:
                self.acked = acked
                self._master.acknowledged(acked if acked > self._claimed else 0)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.push()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.next_offset >= 0:
            _log.info(
                "%s: the slave at %s is gone, it had the log up to %d", self._master.name, self.address, self.acked
            )
        elif self._reports.pending:
            _log.warning("%s: %s left the HA port in the middle of a report", self._master.name, self.address)
        self._master.forget(self)

    # --- sending --------------------------------------------------------------------------------------------------

    def _begin(self, offset: int) -> None:
        begin, end = self._store.min_physical_offset, self._store.max_physical_offset
        size = self._store.config.mapped_file_size_commit_log
        start = max(end - end % size, begin) if offset == 0 else offset
        if not begin <= start <= end:
            _log.warning(
                "%s: the slave at %s asks for the log from offset %d on, but it %s at %d: it is refused. %s",
                self._master.name,
                self.address,
                offset,
                "ends" if start > end else "begins",
                end if start > end else begin,
                "It has what this broker lost, or is another cluster's."
                if start > end
                else "What it lacks is deleted here: give it an empty store.",
            )
            self._write_heartbeat(end if start > end else begin)
            cast(asyncio.Transport, self._transport).close()
            return
        _log.info("%s: the slave at %s gets the log from offset %d on", self._master.name, self.address, start)
        self.next_offset = start
        self._master.began()
        self.push()

    def push(self) -> None:
        """Send what there is, as far as the slave takes it."""
        transport = self._transport
        if self._paused or self.next_offset < 0 or transport is None or transport.is_closing():
            return
        sent = 0
        while (left := self._store.max_physical_offset - self.next_offset) > 0:
            if sent >= _TURN:
                self._master.loop.call_soon(self.push)
                return
            data = memoryview(self._store.log_bytes(self.next_offset, min(left, _READ)))
            if not data:
                _log.warning(
                    "%s: offset %d of the log is deleted; the slave at %s, which has not got it, is let go",
                    self._master.name,
                    self.next_offset,
                    self.address,
                )
                transport.close()
                return
            frames: list[bytes | memoryview] = []
            for at in range(0, len(data), TRANSFER_SIZE):
                piece = data[at : at + TRANSFER_SIZE]
                frames += (encode_header(self.next_offset, len(piece)), piece)
                self.next_offset += len(piece)
            sent += len(data)
            self._sent += len(data)
            self.last_write = self._master.loop.time()
            transport.writelines(frames)
            if self._paused:
                return
        if not self._told_end:  # a slave that compares its log with this one waits for the end
            self._told_end = True
            self._write_heartbeat(self.next_offset)

    def _write_heartbeat(self, offset: int) -> None:
        self.last_write = self._master.loop.time()
        cast(asyncio.Transport, self._transport).write(encode_header(offset, 0))

    def tick(self, now: float, heartbeat: float, housekeeping: float) -> None:
        """Called every second."""
        self.bytes_in_second, self._sent = self._sent, 0
        if now - self.last_report > housekeeping:
            _log.warning(
                "%s closed the HA connection of %s: no report came for %.0f s",
                self._master.name,
                self.address,
                housekeeping,
            )
            self.abort()
        elif self.next_offset >= 0 and not self._paused and now - self.last_write > heartbeat:
            self._write_heartbeat(self.next_offset)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class ReplicationMaster:
    """All slaves of this broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: MessageStore, config: BrokerConfig, name: str) -> None:
        """``name``: what this broker is called in log lines."""
        self.loop = loop
        self.store = store
        self.name = name
        self._config = config
        self._connections: set[SlaveConnection] = set()
        self._server: asyncio.Server | None = None
        self._often = RateLimited(_log)
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._moved = asyncio.Event()  # a slave has got something, or is gone
        self._replicated = 0
        self._waiters: deque[tuple[int, float, ReplicatedCallback]] = deque()
        self._pushing = False
        self._looking: asyncio.TimerHandle | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._expiring: asyncio.TimerHandle | None = None

    async def start(self, sock: socket.socket) -> None:
        """Listen on a bound socket."""
        gate = TlsGate(self._config.server_tls(), lambda: SlaveConnection(self), name=f"HA port of {self.name}")
        self._server = await self.loop.create_server(gate.newcomer, sock=sock)
        self._tick()

    async def settle(self) -> None:
        """Before a stop: give slaves that are near the log's end a little time to get there."""
        end = self.store.max_physical_offset
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                while any(slave.acked < end for slave in self.slaves):
                    self._moved.clear()
                    await self._moved.wait()

    async def close(self) -> None:
        """Let every slave go; who waits for one is told that none came."""
        await self.settle()
        self._closed = True
        if self._server is not None:
            self._server.close()
            self._server = None
        for timer in (self._looking, self._ticking, self._expiring):
            if timer is not None:
                timer.cancel()
        for connection in list(self._connections):
            connection.abort()
        await self._empty.wait()
        while self._waiters:
            self._tell(self._waiters.popleft()[2], ResponseCode.FLUSH_SLAVE_TIMEOUT)

    @property
    def port(self) -> int:
        """The HA port; 0 when nobody can connect."""
        return self._server.sockets[0].getsockname()[1] if self._server is not None else 0

    @property
    def slaves(self) -> list[SlaveConnection]:
        """Those that follow the log."""
        return [connection for connection in self._connections if connection.next_offset >= 0]

    # --- who waits for a slave ------------------------------------------------------------------------------------

    def when_replicated(self, offset: int, callback: ReplicatedCallback) -> None:
        """Call back with SUCCESS once a slave has the log up to an offset; perhaps before this returns."""
        slaves = self.slaves
        if not slaves or offset - max(slave.acked for slave in slaves) >= self._config.ha_max_gap_not_in_sync:
            callback(ResponseCode.SLAVE_NOT_AVAILABLE)
            return
        if offset <= self._replicated:
            callback(ResponseCode.SUCCESS)
            return
        timeout = self._config.slave_timeout / 1000
        self._waiters.append((offset, self.loop.time() + timeout, callback))
        if self._expiring is None:
            self._expiring = self.loop.call_later(timeout, self._expire)
        if not self._pushing:  # once for all that are sent in this turn of the loop
            self._pushing = True
            self.loop.call_soon(self._push)

    def acknowledged(self, offset: int) -> None:
        """A slave has the log up to there."""
        self._moved.set()
        if offset <= self._replicated:
            return
        self._replicated = offset
        while self._waiters and self._waiters[0][0] <= offset:
            self._tell(self._waiters.popleft()[2], ResponseCode.SUCCESS)

    def _expire(self) -> None:
        self._expiring = None
        now = self.loop.time()
        while self._waiters and self._waiters[0][1] <= now:
            self._tell(self._waiters.popleft()[2], ResponseCode.FLUSH_SLAVE_TIMEOUT)
        if self._waiters:
            self._expiring = self.loop.call_at(self._waiters[0][1], self._expire)

    @staticmethod
    def _tell(callback: ReplicatedCallback, code: ResponseCode) -> None:
        try:
            callback(code)
        except Exception:  # the others get their answers
            _log.exception("a sender was not told what became of its message")

    def log_cut(self) -> None:
        """The log's end was cut off, on a slave that has slaves: they are to compare theirs anew."""
        self._replicated = min(self._replicated, self.store.max_physical_offset)
        for connection in self._connections:
            connection.abort()

    # --- called by connections, and from time to time -------------------------------------------------------------

    def admit(self, connection: SlaveConnection) -> bool:
        if self._closed or (len(self._connections) >= _MOST_CONNECTIONS and not self._close_oldest()):
            self._often.warning("refused", "%s refused the HA connection of %s", self.name, connection.address)
            return False
        self._connections.add(connection)
        self._empty.clear()
        return True

    def _close_oldest(self) -> bool:
        """Close the oldest connection that has reported nothing; whether there was one.

        Those who connect and say nothing would otherwise keep slaves out.
        """
        silent = [connection for connection in self._connections if connection.next_offset < 0]
        oldest = min(silent, key=lambda connection: connection.last_report, default=None)
        if oldest is None:
            return False
        self._connections.discard(oldest)
        self._often.warning(
            "silent",
            "%s closed the HA connection of %s: %d are open, and it has reported nothing",
            self.name,
            oldest.address,
            _MOST_CONNECTIONS,
        )
        oldest.abort()
        return True

    def forget(self, connection: SlaveConnection) -> None:
        self._connections.discard(connection)
        self._moved.set()
        if not self._connections:
            self._empty.set()

    def began(self) -> None:
        """There is a slave: see to it that it gets what comes."""
        if self._looking is None:
            self._look()

    def _look(self) -> None:
        slaves = self.slaves
        self._looking = self.loop.call_later(_LOOK_SECONDS, self._look) if slaves and not self._closed else None
        for slave in slaves:
            slave.push()

    def _push(self) -> None:
        self._pushing = False
        for slave in self.slaves:
            slave.push()

    def _tick(self) -> None:
        self._ticking = self.loop.call_later(_TICK_SECONDS, self._tick)
        now = self.loop.time()
        heartbeat = self._config.ha_send_heartbeat_interval / 1000
        housekeeping = self._config.ha_housekeeping_interval / 1000
        for connection in list(self._connections):
            connection.tick(now, heartbeat, housekeeping)


def bind_ha_port(host: str, port: int) -> socket.socket:
    """The socket that slaves connect to. ConfigError when the port is taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _cannot_listen(host, port, error) from error
    return sock


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    why = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return ConfigError(
        f"The broker cannot listen for slaves on {format_address(host, port)}: {why}.",
        remedy="Set haListenPort to a free port.",
    )
