"""The master's side of the HA port: sends the log to slaves, and notifies waiting senders of replication.

============================  =======================================================================================
the slave                     the master
============================  =======================================================================================
reports 0 first               sends the log from the beginning of its last file on, as Apache's masters do
reports another offset first  sends the log from that offset on
reports an invalid offset     sends a heartbeat with the offset where the log ends, or begins, closes the connection,
                              and logs both addresses. Apache's slaves log it as well, and retry
has the complete log          sends a heartbeat, the first one at once, then after ``haSendHeartbeatInterval`` without
                              data
is silent                     closes the connection after ``haHousekeepingInterval`` without a complete report. If
                              there are too many connections, it closes the oldest one without any report
reports unsent bytes          limits the report to the bytes sent; only reports beyond the first one release waiting
                              senders
does not read                 buffers at most 1 MiB; unread bytes are not acknowledged
============================  =======================================================================================

Data is copied from the log's mapping once, in pieces of 256 KiB; this costs 1 % of sending it. So no connection holds a
mapping, and old pages of the log are released as after any other read.

With SYNC_MASTER, a sender waits for ``when_replicated``: SLAVE_NOT_AVAILABLE at once if no slave is connected, or none
is within ``haMaxGapNotInSync`` bytes; SUCCESS when a slave has the bytes; FLUSH_SLAVE_TIMEOUT after ``slaveTimeout``.

Not stored on disk. Corresponds to org.apache.rocketmq.store.ha.{DefaultHAService, DefaultHAConnection,
GroupTransferService}.
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

from spark_rocket.broker.broker_environment import BrokerEnvironment
from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import ConfigError, ProtocolError
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.ha import TRANSFER_SIZE, ReportDecoder, encode_header
from spark_rocket.remoting.address import format_address, format_peer
from spark_rocket.remoting.server.sockets import leaves_reserve
from spark_rocket.remoting.socket_options import set_no_delay
from spark_rocket.remoting.tls.tls_gate import TlsGate
from spark_rocket.store.message_store import MessageStore

_log = logging.getLogger(__name__)
_READ_BYTES = 256 << 10
_TURN_BYTES = 1 << 20  # sent to one slave before the event loop runs other callbacks
_HIGH_WATER_BYTES = 1 << 20
_POLL_SECONDS = 0.005  # interval of checks whether the log has grown
_TICK_SECONDS = 1.0
_SETTLE_SECONDS = 1.0
_MAX_CONNECTIONS = 100

ReplicatedCallback = Callable[[ResponseCode], None]


class SlaveConnection(asyncio.Protocol):
    """One connection to the HA port, usually from a slave."""

    def __init__(self, master: ReplicationMaster) -> None:
        self._master = master
        self._store = master.store
        self._reports = ReportDecoder()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._is_aborted = False
        self._end_was_sent = False
        self._first_acked = -1  # the first report, before anything was compared or sent
        self.address = "unknown:0"
        self.next_offset = -1
        """Offset of the next byte to send; -1 until the slave has reported where to begin."""
        self.acked = -1
        """Offset up to which the slave has the log."""
        self.last_report = self.last_write = master.loop.time()
        self._sent = 0
        self.bytes_in_second = 0
        """Bytes written to the socket in the last full second."""

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        self.address = format_peer(transport.get_extra_info("peername"))
        sock = transport.get_extra_info("socket")
        name = f"HA port of {self._master.name}"
        if not leaves_reserve(sock, name, self.address) or not self._master.admit(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        set_no_delay(sock)

    def secured(self, transport: asyncio.Transport) -> None:
        """Use the TLS transport of a slave that uses TLS."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            reports = self._reports.feed(data)
        except ProtocolError as error:
            self._master.log(
                self.address, "%s closed the HA connection of %s: %s", self._master.name, self.address, error
            )
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
                self._first_acked = acked
            if acked > self.acked:
                self.acked = acked
                self._master.acknowledged(acked if acked > self._first_acked else 0)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.push()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.next_offset >= 0:
            self._master.log(
                self.address,
                "%s: the slave at %s disconnected; it had the log up to %d",
                self._master.name,
                self.address,
                self.acked,
                level=logging.INFO,
            )
        elif self._reports.pending and not self._is_aborted:
            self._master.log(
                self.address, "%s: %s closed the HA connection within a report", self._master.name, self.address
            )
        self._master.forget(self)

    # --- sending --------------------------------------------------------------------------------------------------

    def _begin(self, offset: int) -> None:
        begin, end = self._store.min_physical_offset, self._store.max_physical_offset
        size = self._store.config.mapped_file_size_commit_log
        start = max(end - end % size, begin) if offset == 0 else offset
        if not begin <= start <= end:
            self._master.log(
                self.address,
                "%s: refused the slave at %s: it requested the log from offset %d on, but the log %s at %d. %s",
                self._master.name,
                self.address,
                offset,
                "ends" if start > end else "begins",
                end if start > end else begin,
                "This broker has lost data, or the slave belongs to another cluster."
                if start > end
                else "The data that the slave requires is deleted: start the slave with an empty store.",
            )
            self._write_heartbeat(end if start > end else begin)
            cast(asyncio.Transport, self._transport).close()
            return
        self._master.log(
            self.address,
            "%s: sending the log to the slave at %s, from offset %d on",
            self._master.name,
            self.address,
            start,
            level=logging.INFO,
        )
        self.next_offset = start
        self._master.began()
        self.push()

    def push(self) -> None:
        """Send new data, up to the limit of the write buffer."""
        transport = self._transport
        if self._paused or self.next_offset < 0 or transport is None or transport.is_closing():
            return
        sent = 0
        while (left := self._store.max_physical_offset - self.next_offset) > 0:
            if sent >= _TURN_BYTES:
                self._master.loop.call_soon(self.push)
                return
            data = memoryview(self._store.log_bytes(self.next_offset, min(left, _READ_BYTES)))
            if not data:
                self._master.log(
                    self.address,
                    "%s: closed the HA connection of %s: offset %d of the log, which the slave lacks, is deleted",
                    self._master.name,
                    self.address,
                    self.next_offset,
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
        if not self._end_was_sent:  # a slave that compares its log with this one waits for the end
            self._end_was_sent = True
            self._write_heartbeat(self.next_offset)

    def _write_heartbeat(self, offset: int) -> None:
        self.last_write = self._master.loop.time()
        cast(asyncio.Transport, self._transport).write(encode_header(offset, 0))

    def tick(self, now: float, heartbeat: float, housekeeping: float) -> None:
        """Check timeouts and send heartbeats; called every second."""
        self.bytes_in_second, self._sent = self._sent, 0
        if now - self.last_report > housekeeping:
            self._master.log(
                self.address,
                "%s closed the HA connection of %s: no report for %.0f s",
                self._master.name,
                self.address,
                housekeeping,
            )
            self.abort()
        elif self.next_offset >= 0 and not self._paused and now - self.last_write > heartbeat:
            self._write_heartbeat(self.next_offset)

    def abort(self) -> None:
        self._is_aborted = True
        if self._transport is not None:
            self._transport.abort()


class ReplicationMaster:
    """All slaves of this broker."""

    def __init__(self, environment: BrokerEnvironment, store: MessageStore) -> None:
        self.loop = environment.loop
        self.store = store
        self.name = environment.name
        self._config = environment.config
        self._connections: set[SlaveConnection] = set()
        self._server: asyncio.Server | None = None
        self.log = RateLimited(_log).peer
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._progress = asyncio.Event()  # a slave has acknowledged something, or disconnected
        self._replicated = 0
        self._waiters: deque[tuple[int, float, ReplicatedCallback]] = deque()
        self._pushing = False
        self._polling: asyncio.TimerHandle | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._expiring: asyncio.TimerHandle | None = None

    async def start(self, sock: socket.socket) -> None:
        gate = TlsGate(self._config.server_tls(), lambda: SlaveConnection(self), name=f"HA port of {self.name}")
        self._server = await self.loop.create_server(gate.newcomer, sock=sock)
        self._tick()

    async def settle(self) -> None:
        """Wait, before a stop, until the slaves have the complete log; at most ``_SETTLE_SECONDS``."""
        end = self.store.max_physical_offset
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                while any(slave.acked < end for slave in self.slaves):
                    self._progress.clear()
                    await self._progress.wait()

    async def close(self) -> None:
        """Disconnect all slaves; waiting senders get FLUSH_SLAVE_TIMEOUT."""
        await self.settle()
        self._closed = True
        if self._server is not None:
            self._server.close()
            self._server = None
        for timer in (self._polling, self._ticking, self._expiring):
            if timer is not None:
                timer.cancel()
        for connection in list(self._connections):
            connection.abort()
        await self._empty.wait()
        while self._waiters:
            self._call_back(self._waiters.popleft()[2], ResponseCode.FLUSH_SLAVE_TIMEOUT)

    @property
    def port(self) -> int:
        """The HA port; 0 if it is closed."""
        return self._server.sockets[0].getsockname()[1] if self._server is not None else 0

    @property
    def slaves(self) -> list[SlaveConnection]:
        return [connection for connection in self._connections if connection.next_offset >= 0]

    # --- waiting senders ------------------------------------------------------------------------------------------

    def when_replicated(self, offset: int, callback: ReplicatedCallback) -> None:
        """Call back with SUCCESS once a slave has the log up to an offset, possibly before this method returns."""
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
        if not self._pushing:  # once for all sends in this iteration of the loop
            self._pushing = True
            self.loop.call_soon(self._push)

    def acknowledged(self, offset: int) -> None:
        """Handle the report of a slave that has the log up to an offset."""
        self._progress.set()
        if offset <= self._replicated:
            return
        self._replicated = offset
        while self._waiters and self._waiters[0][0] <= offset:
            self._call_back(self._waiters.popleft()[2], ResponseCode.SUCCESS)

    def _expire(self) -> None:
        self._expiring = None
        now = self.loop.time()
        while self._waiters and self._waiters[0][1] <= now:
            self._call_back(self._waiters.popleft()[2], ResponseCode.FLUSH_SLAVE_TIMEOUT)
        if self._waiters:
            self._expiring = self.loop.call_at(self._waiters[0][1], self._expire)

    @staticmethod
    def _call_back(callback: ReplicatedCallback, code: ResponseCode) -> None:
        try:
            callback(code)
        except Exception:  # must not affect the other waiters
            _log.exception("the response to a send failed")

    def log_cut(self) -> None:
        """Handle the truncation of the log on a slave that has slaves itself: they must compare their logs again."""
        self._replicated = min(self._replicated, self.store.max_physical_offset)
        for connection in self._connections:
            connection.abort()

    # --- called by connections, and periodically ------------------------------------------------------------------

    def admit(self, connection: SlaveConnection) -> bool:
        if self._closed or (len(self._connections) >= _MAX_CONNECTIONS and not self._close_oldest()):
            self.log(connection.address, "%s refused the HA connection of %s", self.name, connection.address)
            return False
        self._connections.add(connection)
        self._empty.clear()
        return True

    def _close_oldest(self) -> bool:
        """Close the oldest connection without any report; False if there is none.

        Otherwise, silent connections could block slaves.
        """
        silent = [connection for connection in self._connections if connection.next_offset < 0]
        oldest = min(silent, key=lambda connection: connection.last_report, default=None)
        if oldest is None:
            return False
        self._connections.discard(oldest)
        self.log(
            oldest.address,
            "%s closed the HA connection of %s: no report from it, and %d connections are open",
            self.name,
            oldest.address,
            _MAX_CONNECTIONS,
        )
        oldest.abort()
        return True

    def forget(self, connection: SlaveConnection) -> None:
        self._connections.discard(connection)
        self._progress.set()
        if not self._connections:
            self._empty.set()

    def began(self) -> None:
        """Start polling the log for new data, now that there is a slave."""
        if self._polling is None:
            self._poll()

    def _poll(self) -> None:
        slaves = self.slaves
        self._polling = self.loop.call_later(_POLL_SECONDS, self._poll) if slaves and not self._closed else None
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
    """Bind the socket for slaves; ConfigError if the port is in use."""
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
