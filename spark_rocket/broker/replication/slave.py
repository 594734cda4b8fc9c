"""The slave's side of replication: connects to its master's HA port, and makes its log equal to the master's.

Before any data is accepted, the end of the slave's log is compared with the master's. For this purpose the slave
reports not the end of its log, but the start of a record some distance before it. This master and Apache's masters send
from there on.

====================================  ===============================================================================
the master's data                     the slave
====================================  ===============================================================================
equal up to the end of its own log    continues from there
different from some record on         truncates its log there (the master never had the rest), and reconnects
ends earlier: a heartbeat before      same, at the master's end
the slave's end
different from the first byte, or     reconnects with an earlier start: 1 MiB, 16 MiB, then file by file
missing
starts later: the master's log        compares from there on, or refuses if its own log ends before that
begins there
different at all starts               refuses: the log belongs to another cluster, or the master has lost its own.
                                      Nothing is changed. The origin of both logs is logged, and the slave retries
====================================  ===============================================================================

Truncated data is retained in ``quarantine`` (store/recovery/replica.py). The slave reports the end of its log, complete
records only, whenever it has grown, and otherwise every ``haSendHeartbeatInterval``. A master that is silent for
``haHousekeepingInterval`` is disconnected. Connections are retried after 0.1 s, then with increasing delays up to 5 s,
after a refusal up to 30 s. A problem is logged once, until it changes.

Thread-safety: used on the event loop only, except for copying data to quarantine.
After a crash: the log is complete up to some record, and the comparison starts there.
Corresponds to org.apache.rocketmq.store.ha.DefaultHAClient, which does not compare.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import cast

import numpy as np

from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.errors import ProtocolError, RocketError, StateError, StoreError
from spark_rocket.protocol.ids import unpack_host
from spark_rocket.protocol.record.record import scan_record
from spark_rocket.protocol.wire.ha import TransferDecoder, encode_report
from spark_rocket.remoting.address import format_address, parse_address
from spark_rocket.remoting.tls.contexts import client_tls
from spark_rocket.remoting.tls.problems import problem_of
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.recovery.replica import Replica

_log = logging.getLogger(__name__)
_CONNECT_TIMEOUT_S = 5.0
_FIRST_RETRY_DELAY_S = 0.1
_MAX_RETRY_DELAY_S = 5.0
_MAX_REFUSED_DELAY_S = 30.0
_TURN_BYTES = 1 << 20
_HEAD_BYTES = 4096  # of a record, read to identify its origin


class _ReconnectError(Exception):
    """The comparison with the master's log has ended, or the master has changed: reconnect."""


class _MasterConnection(asyncio.Protocol):
    """One connection to the master: first compares, then copies."""

    def __init__(self, slave: ReplicationSlave, start: int) -> None:
        """``start``: the offset of the first report; data between it and the log's end is compared."""
        self._slave = slave
        self._replica = slave.replica
        self._decoder = TransferDecoder()
        self._transport: asyncio.Transport | None = None
        self._pieces: list[tuple[int, memoryview]] = []  # received in this iteration of the loop
        self._size = 0
        self._scheduled = False
        self._start = start
        # A request for 0 means the beginning of the master's last file.
        self._requested = 0 if self._replica.is_empty else max(start, 1)
        self._compared = self._requested
        self.closed: asyncio.Future[None] = slave.loop.create_future()
        self.is_following = self._replica.is_empty
        self.cut_at = -1
        """Offset at which to truncate the log; -1 if not needed."""
        self.differs = False
        """Whether the logs differ from the start of the comparison on."""
        self.master_begins = -1
        """Beginning of the master's log, if later than the requested offset; otherwise -1."""
        self.sample = b""
        """The first bytes of the master's log at ``start``."""
        self.last_read = self.last_report = slave.loop.time()
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        self._report(self._requested)

    def data_received(self, data: bytes) -> None:
        self.last_read = self._slave.loop.time()
        self._received += len(data)
        try:
            self._pieces += self._decoder.feed(data)
        except ProtocolError as error:
            self._end(error)
            return
        self._size += len(data)
        if self._size >= _TURN_BYTES:
            self._process()
        elif not self._scheduled:  # the loop may read several times before it runs other callbacks
            self._scheduled = True
            self._slave.loop.call_soon(self._process)

    def _process(self) -> None:
        pieces, self._pieces = self._pieces, []
        self._size, self._scheduled = 0, False
        if self.closed.done():
            return
        before = self._slave.store.max_physical_offset
        try:
            self._append(pieces)
        except (_ReconnectError, RocketError, OSError) as error:
            self._end(error)
            return
        if self.is_following and pieces and not self._slave.is_following:
            self._slave.follows()
        if self._slave.store.max_physical_offset > before:
            self._report(self._slave.store.max_physical_offset)
            self._slave.grew()

    def _append(self, pieces: list[tuple[int, memoryview]]) -> None:
        """Append contiguous pieces together: checking many records costs little more than checking a few."""
        run: list[memoryview] = []
        start = end = 0
        for offset, piece in pieces:
            if not self.is_following:
                piece = self._compare(offset, piece)
                offset = self._slave.store.max_physical_offset
            if not piece:
                continue
            if run and offset != end:
                self._replica.append(start, b"".join(run))
                run = []
            if not run:
                start = offset
            run.append(piece)
            end = offset + len(piece)
        if run:
            self._replica.append(start, b"".join(run))

    def connection_lost(self, exc: Exception | None) -> None:
        self._process()
        where = f" within a transfer, {pending} bytes before its end" if (pending := self._decoder.pending) else ""
        self._end(exc or ConnectionResetError(f"the master closed the connection{where}"))

    def _end(self, error: Exception) -> None:
        self._replica.forget()
        if not self.closed.done():
            if isinstance(error, _ReconnectError):
                self.closed.set_result(None)
            else:
                self.closed.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    def _report(self, offset: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.last_report = self._slave.loop.time()
            self._transport.write(encode_report(offset))

    def tick(self, now: float, heartbeat: float, housekeeping: float) -> None:
        """Check timeouts and send reports; called every second."""
        self._slave.bytes_in_second, self._received = self._received, 0
        if now - self.last_read > housekeeping:
            self._end(TimeoutError(f"no data from the master for {housekeeping:.0f} s"))
        elif now - self.last_report > heartbeat:
            self._report(self._slave.store.max_physical_offset if self.is_following else self._requested)

    def _compare(self, offset: int, piece: memoryview) -> memoryview:
        """Compare data with the log; returns the data beyond the log's end. Raises if the two differ."""
        store = self._slave.store
        end = store.max_physical_offset
        if not piece and offset > self._compared:
            self.master_begins = offset
            raise _ReconnectError
        if not piece:  # the master's log ends here
            self._diverged(offset)
        if offset != self._compared:
            raise StoreError(f"The master sent offset {offset}, expected {self._compared}.")
        if offset == self._requested:
            self.sample = bytes(self._requested - self._start) + piece[:_HEAD_BYTES]
        while piece and self._compared < end:
            own = np.frombuffer(store.log_bytes(self._compared, len(piece)), np.uint8)
            same = own == np.frombuffer(piece, np.uint8, len(own))
            if not same.all():
                self._diverged(self._compared + int(np.argmin(same)))
            self._compared += len(own)
            piece = piece[len(own) :]
        if self._compared == end:
            self.is_following = True
            self._report(end)
        return piece

    def _diverged(self, offset: int) -> None:
        """Record that the master's log differs from an offset on, or ends there."""
        cut = self._replica.record_before(offset, self._start)
        if cut > self._start:
            self.cut_at = cut
        else:
            self.differs = True
        raise _ReconnectError


class ReplicationSlave:
    """Keeps a slave's log equal to its master's."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        config: BrokerConfig,
        name: str,
        on_cut: Callable[[], None],
    ) -> None:
        """``name``: this broker's name in log lines. ``on_cut``: called after a truncation of the log."""
        if store.replica is None:
            raise StateError("The store is not open as a slave's.", remedy="Open it with is_replica.")
        self.loop = loop
        self.store = store
        self.replica: Replica = store.replica
        self.name = name
        self.master_address = config.ha_master_address
        """The HA address of the master; empty if unknown."""
        self.is_following = False
        """Whether the log is known to be a prefix of the master's."""
        self.problem = ""
        """The reason why it is not following."""
        self.bytes_in_second = 0
        """Bytes received in the last full second."""
        self._config = config
        self._tls = client_tls(config.client_tls())
        self._on_cut = on_cut
        self._master_is_known = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: _MasterConnection | None = None
        self._retry_delay = _FIRST_RETRY_DELAY_S
        self._closing = False
        self._sample = b""  # the master's data at the start of the last comparison
        self._grown: list[asyncio.Future[None]] = []
        if self.master_address:
            self._master_is_known.set()

    def start(self) -> None:
        self._task = self.loop.create_task(self._run())

    async def close(self) -> None:
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def set_master(self, ha_address: str) -> None:
        """Follow the broker with this HA address; stop following if it is empty."""
        if ha_address == self.master_address:
            return
        _log.info("%s: the master's HA address is now %s", self.name, ha_address or "unknown")
        self.master_address = ha_address
        self._retry_delay = _FIRST_RETRY_DELAY_S
        if ha_address:
            self._master_is_known.set()
        else:
            self._master_is_known.clear()
        if self._connection is not None:
            self._connection._end(_ReconnectError())

    # --- called by the connection ---------------------------------------------------------------------------------

    def follows(self) -> None:
        """Record that the log is a prefix of the master's."""
        _log.info(
            "%s follows its master at %s from offset %d on",
            self.name,
            self.master_address,
            self.store.max_physical_offset,
        )
        self.is_following = True
        self.problem = ""

    def grew(self) -> None:
        self._retry_delay = _FIRST_RETRY_DELAY_S
        for future in self._grown:
            if not future.done():
                future.set_result(None)
        self._grown.clear()

    def last_heard(self) -> tuple[float | None, float | None]:
        """Seconds since the last data from the master, and since the last report to it; None without a connection."""
        connection, now = self._connection, self.loop.time()
        return (None, None) if connection is None else (now - connection.last_read, now - connection.last_report)

    async def reached(self, offset: int) -> None:
        """Wait until the log has all data below an offset."""
        while self.store.max_physical_offset < offset:
            future = self.loop.create_future()
            self._grown.append(future)
            await future

    # --- following ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        points: Iterator[int] | None = None  # descending starts of comparisons; None: begin near the log's end
        while not self._closing:
            await self._master_is_known.wait()
            max_delay = _MAX_RETRY_DELAY_S
            try:
                if points is None:
                    points = self.replica.check_points()
                start = 0 if self.replica.is_empty else next(points, None)
                if start is None:
                    raise StoreError(self._no_common_data(), remedy=_NO_COMMON_DATA_REMEDY)
                connection = await self._follow(start)
                self._sample = connection.sample
                if connection.cut_at >= 0:
                    await self._cut(connection.cut_at)
                if not connection.differs:
                    points = None
                if connection.master_begins >= 0:
                    points = iter([self._common_start(connection.master_begins)])
                continue
            except (RocketError, OSError) as error:
                points = None
                if isinstance(error, StoreError):
                    max_delay = _MAX_REFUSED_DELAY_S
                self._log_problem(error)
            except Exception as error:  # an internal error must not silently end replication
                points = None
                _log.exception("%s does not follow its master at %s", self.name, self.master_address)
                self.problem = str(error)
            self.is_following = False
            await asyncio.sleep(self._retry_delay)
            self._retry_delay = min(2 * self._retry_delay, max_delay)

    async def _connect(self, host: str, port: int, start: int) -> _MasterConnection:
        if self._tls is None:
            return (await self.loop.create_connection(lambda: _MasterConnection(self, start), host, port))[1]
        try:
            return (
                await self.loop.create_connection(
                    lambda: _MasterConnection(self, start),
                    host,
                    port,
                    ssl=self._tls.context(),
                    server_hostname=host,
                    ssl_shutdown_timeout=1.0,
                )
            )[1]
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
            problem = problem_of(error, server=False, name=host)
            raise ConnectionError(f"it {problem.text}. {problem.remedy}".strip()) from error

    async def _follow(self, start: int) -> _MasterConnection:
        """Connect and wait for the end of the connection; raises unless the comparison ended it."""
        address = self.master_address
        host, port = parse_address(address)
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):  # wait_for may lose the cancellation by close
            connection = await self._connect(host, port, start)
        self._connection, begun = connection, self.loop.time()
        if address != self.master_address:
            connection._end(_ReconnectError())
        ticker = self.loop.create_task(self._tick(connection))
        try:
            await connection.closed
            return connection
        finally:
            if self.is_following and self.loop.time() - begun > _MAX_RETRY_DELAY_S:
                self._retry_delay = _FIRST_RETRY_DELAY_S
            self.is_following = False
            self.bytes_in_second = 0
            self._connection = None
            ticker.cancel()
            if not connection.closed.done():
                connection.closed.cancel()
            connection._end(_ReconnectError())

    async def _tick(self, connection: _MasterConnection) -> None:
        while True:
            await asyncio.sleep(1.0)
            connection.tick(
                self.loop.time(),
                self._config.ha_send_heartbeat_interval / 1000,
                self._config.ha_housekeeping_interval / 1000,
            )

    def _common_start(self, offset: int) -> int:
        """Start of the comparison with a master whose log begins at ``offset``, later than this one."""
        end = self.store.max_physical_offset
        if offset < end:
            return offset
        raise StoreError(
            f"The log of the master at {self.master_address} begins at offset {offset}; the log of {self.name} ends at "
            f"{end}, and the data in between is deleted.",
            remedy="Stop this broker and move its store elsewhere; with an empty store, it copies the master's log.",
        )

    async def _cut(self, offset: int) -> None:
        end = self.store.max_physical_offset
        await asyncio.to_thread(self.replica.quarantine, offset)
        path = self.replica.truncate(offset)
        self._on_cut()
        _log.warning(
            "%s truncated its log by %d bytes, from offset %d to %d, which its master at %s does not have; a copy is "
            "in %s.",
            self.name,
            end - offset,
            offset,
            end,
            self.master_address,
            path,
        )

    def _log_problem(self, error: BaseException) -> None:
        text = str(error) or type(error).__name__
        if text != self.problem:
            _log.warning("%s does not follow its master at %s: %s", self.name, self.master_address, text)
        self.problem = text

    def _no_common_data(self) -> str:
        own = _describe_record(self.store.log_bytes(self.store.min_physical_offset, _HEAD_BYTES))
        other = _describe_record(self._sample)
        return (
            f"The log in {self.store.config.commit_log_path} of {self.name} (offsets "
            f"{self.store.min_physical_offset} to {self.store.max_physical_offset}) has no data in common with that of "
            f"{self.master_address}: its first record is {own}, the master's at this offset is {other}."
        )


_NO_COMMON_DATA_REMEDY = (
    "Nothing was changed. To make this broker a slave of that one, stop it and move its store elsewhere; with an empty "
    "store, it copies the master's log."
)


def _describe_record(record: bytes) -> str:
    """Topic, storing broker and store time of a record, from its first bytes."""
    if len(record) < 8 or not any(record):
        return "missing"
    size = int.from_bytes(record[:4], "big")
    found = scan_record(record[:size], check_crc=False).record if size <= len(record) else None
    if found is None:
        return "invalid or too long to show"
    moment = datetime.fromtimestamp(found.store_timestamp / 1000).isoformat(sep=" ", timespec="seconds")
    topic = str(found.topic, "utf-8", "replace")
    return f"of topic {topic}, stored by {format_address(*unpack_host(found.store_host))} at {moment}"
