"""The slave's side: it connects to its master's HA port, and makes its log the same as the master's.

Before the first byte is taken the end of its own log is compared with the master's. To that end the slave reports not
where its log ends, but where a record begins a little before; masters of both makes send from there on.

===================================  ================================================================================
the master sends                     the slave
===================================  ================================================================================
what its own log has, up to its end  goes on from there
something else from a record on      cuts its log there (the master never had the rest), and connects again
less: a heartbeat before the end     the same, where the master ends
something else from the very         looks further back: 1 MiB, 16 MiB, then file by file
beginning, or nothing
from a later place on: its log       compares from there on, or refuses when its own log ends before
begins there
nothing of all that                  refuses: the log is another cluster's, or the master has lost its own. Nothing is
                                     changed, a line says whose messages both have, and it is tried again
===================================  ================================================================================

What is cut off is kept in ``quarantine`` (store/replica.py). After each growth the slave reports how far its log goes,
and else every ``haSendHeartbeatInterval``; it counts whole records only. A master that says nothing for
``haHousekeepingInterval`` is left; one that is gone is looked for again after 0.1 s, then longer, up to 5 s, after a
refusal up to 30 s. What keeps it from following is logged once, until it changes.

Thread-safety: everything on the event loop, but for the copying of what is cut off.
After a crash: the log is whole up to some record, and the comparison begins there.
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
_CONNECT_SECONDS = 5.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_REFUSED_PAUSE = 30.0
_TURN = 1 << 20
_HEAD = 4096  # bytes of a record that are looked at to say whose it is


class _LookElsewhereError(Exception):
    """The comparison with the master's log has come to an end: connect again."""


class _MasterConnection(asyncio.Protocol):
    """One connection to the master: the comparison, and then the copying."""

    def __init__(self, slave: ReplicationSlave, start: int) -> None:
        """``start``: what is reported first; below the log's end, what follows is compared."""
        self._slave = slave
        self._replica = slave.replica
        self._decoder = TransferDecoder()
        self._transport: asyncio.Transport | None = None
        self._pieces: list[tuple[int, memoryview]] = []  # received in this turn of the loop
        self._size = 0
        self._scheduled = False
        self._start = start
        # To ask for 0 would be to ask for the master's last file.
        self._asked = 0 if self._replica.is_empty else max(start, 1)
        self._compared = self._asked
        self.closed: asyncio.Future[None] = slave.loop.create_future()
        self.is_following = self._replica.is_empty
        self.cut_at = -1
        """Where the log is to be cut; -1 for nowhere."""
        self.differs = False
        """Nothing that was compared is the same."""
        self.master_begins = -1
        """Where, if later than what was asked for."""
        self.sample = b""
        """The beginning of what the master has at ``start``."""
        self.last_read = self.last_report = slave.loop.time()
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        self._report(self._asked)

    def data_received(self, data: bytes) -> None:
        self.last_read = self._slave.loop.time()
        self._received += len(data)
        try:
            self._pieces += self._decoder.feed(data)
        except ProtocolError as error:
            self._end(error)
            return
        self._size += len(data)
        if self._size >= _TURN:
            self._process()
        elif not self._scheduled:  # the loop reads several times before it calls anything else
            self._scheduled = True
            self._slave.loop.call_soon(self._process)

    def _process(self) -> None:
        pieces, self._pieces = self._pieces, []
        self._size, self._scheduled = 0, False
        if self.closed.done():
            return
        before = self._slave.store.max_physical_offset
        try:
            self._take(pieces)
        except (_LookElsewhereError, RocketError, OSError) as error:
            self._end(error)
            return
        if self.is_following and pieces and not self._slave.is_following:
            self._slave.follows()
        if self._slave.store.max_physical_offset > before:
            self._report(self._slave.store.max_physical_offset)
            self._slave.grew()

    def _take(self, pieces: list[tuple[int, memoryview]]) -> None:
        """Give the store what follows each other at once: looking at many records costs little more than at few."""
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
        where = (
            f" in the middle of a transfer, {pending} bytes before its end"
            if (pending := self._decoder.pending)
            else ""
        )
        self._end(exc or ConnectionResetError(f"the master closed the connection{where}"))

    def _end(self, error: Exception) -> None:
        self._replica.forget()
        if not self.closed.done():
            if isinstance(error, _LookElsewhereError):
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
        """Called every second."""
        self._slave.bytes_in_second, self._received = self._received, 0
        if now - self.last_read > housekeeping:
            self._end(TimeoutError(f"nothing came from the master for {housekeeping:.0f} s"))
        elif now - self.last_report > heartbeat:
            self._report(self._slave.store.max_physical_offset if self.is_following else self._asked)

    def _compare(self, offset: int, piece: memoryview) -> memoryview:
        """Compare with the log; what lies behind its end comes back. Raises when the two differ."""
        store = self._slave.store
        end = store.max_physical_offset
        if not piece and offset > self._compared:
            self.master_begins = offset
            raise _LookElsewhereError
        if not piece:  # that is all it has
            self._diverged(offset)
        if offset != self._compared:
            raise StoreError(f"The master sends offset {offset} where {self._compared} comes next.")
        if offset == self._asked:
            self.sample = bytes(self._asked - self._start) + piece[:_HEAD]
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
        """The master's log is another from there on, or ends there."""
        cut = self._replica.record_before(offset, self._start)
        if cut > self._start:
            self.cut_at = cut
        else:
            self.differs = True
        raise _LookElsewhereError


class ReplicationSlave:
    """Keeps a slave's log the same as its master's."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        config: BrokerConfig,
        name: str,
        on_cut: Callable[[], None],
    ) -> None:
        """``name``: what this broker is called in log lines. ``on_cut`` is called when the log's end was cut off."""
        if store.replica is None:
            raise StateError("The store is not a slave's.", remedy="Open it with is_replica.")
        self.loop = loop
        self.store = store
        self.replica: Replica = store.replica
        self.name = name
        self.master_address = config.ha_master_address
        """The HA address of the master; empty while nobody knows it."""
        self.is_following = False
        """Whether the log is known to be the beginning of the master's."""
        self.problem = ""
        """What keeps it from that."""
        self.bytes_in_second = 0
        """How many came in the last whole second."""
        self._config = config
        self._tls = client_tls(config.client_tls())
        self._on_cut = on_cut
        self._known = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: _MasterConnection | None = None
        self._pause = _FIRST_PAUSE
        self._closing = False
        self._sample = b""  # what the master has where the last comparison began
        self._grown: list[asyncio.Future[None]] = []
        if self.master_address:
            self._known.set()

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
        """Follow the broker with this HA address; nobody while it is empty."""
        if ha_address == self.master_address:
            return
        _log.info("%s: the master's HA address is now %s", self.name, ha_address or "unknown")
        self.master_address = ha_address
        self._pause = _FIRST_PAUSE
        if ha_address:
            self._known.set()
        else:
            self._known.clear()
        if self._connection is not None:
            self._connection._end(_LookElsewhereError())

    # --- called by the connection ---------------------------------------------------------------------------------

    def follows(self) -> None:
        """The log is the beginning of the master's."""
        _log.info(
            "%s follows its master at %s from offset %d on",
            self.name,
            self.master_address,
            self.store.max_physical_offset,
        )
        self.is_following = True
        self.problem = ""

    def grew(self) -> None:
        """The log has grown."""
        self._pause = _FIRST_PAUSE
        for future in self._grown:
            if not future.done():
                future.set_result(None)
        self._grown.clear()

    def last_heard(self) -> tuple[float | None, float | None]:
        """How many seconds ago the master sent something, and was told something; None without a connection."""
        connection, now = self._connection, self.loop.time()
        return (None, None) if connection is None else (now - connection.last_read, now - connection.last_report)

    async def reached(self, offset: int) -> None:
        """Until the log has everything below an offset."""
        while self.store.max_physical_offset < offset:
            future = self.loop.create_future()
            self._grown.append(future)
            await future

    # --- following ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        points: Iterator[int] | None = None  # to compare from, further and further back; None: from the log's end on
        while not self._closing:
            await self._known.wait()
            longest = _LONGEST_PAUSE
            try:
                if points is None:
                    points = self.replica.check_points()
                start = 0 if self.replica.is_empty else next(points, None)
                if start is None:
                    raise StoreError(self._nothing_in_common(), remedy=_NOTHING_IN_COMMON)
                connection = await self._follow(start)
                self._sample = connection.sample
                if connection.cut_at >= 0:
                    await self._cut(connection.cut_at)
                if not connection.differs:
                    points = None
                if connection.master_begins >= 0:
                    points = iter([self._begin_of_both(connection.master_begins)])
                continue
            except (RocketError, OSError) as error:
                points = None
                if isinstance(error, StoreError):
                    longest = _REFUSED_PAUSE
                self._complain(error)
            except Exception as error:  # a mistake of ours must not end it silently
                points = None
                _log.exception("%s does not follow its master at %s", self.name, self.master_address)
                self.problem = str(error)
            self.is_following = False
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, longest)

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
        """Until the connection ends, which is an error unless the comparison does it."""
        address = self.master_address
        host, port = parse_address(address)
        async with asyncio.timeout(_CONNECT_SECONDS):  # wait_for may lose the cancelling by close
            connection = await self._connect(host, port, start)
        self._connection, begun = connection, self.loop.time()
        if address != self.master_address:
            connection._end(_LookElsewhereError())
        ticker = self.loop.create_task(self._tick(connection))
        try:
            await connection.closed
            return connection
        finally:
            if self.is_following and self.loop.time() - begun > _LONGEST_PAUSE:
                self._pause = _FIRST_PAUSE
            self.is_following = False
            self.bytes_in_second = 0
            self._connection = None
            ticker.cancel()
            if not connection.closed.done():
                connection.closed.cancel()
            connection._end(_LookElsewhereError())

    async def _tick(self, connection: _MasterConnection) -> None:
        while True:
            await asyncio.sleep(1.0)
            connection.tick(
                self.loop.time(),
                self._config.ha_send_heartbeat_interval / 1000,
                self._config.ha_housekeeping_interval / 1000,
            )

    def _begin_of_both(self, offset: int) -> int:
        """Where the comparison begins with a master whose log begins later than this one."""
        end = self.store.max_physical_offset
        if offset < end:
            return offset
        raise StoreError(
            f"The log of the master at {self.master_address} begins at offset {offset}; the log of {self.name} ends at "
            f"{end}, and what lies between is deleted there.",
            remedy="Stop this broker and move its store elsewhere: with an empty store it begins anew.",
        )

    async def _cut(self, offset: int) -> None:
        end = self.store.max_physical_offset
        await asyncio.to_thread(self.replica.quarantine, offset)
        path = self.replica.truncate(offset)
        self._on_cut()
        _log.warning(
            "%s had %d bytes of log, from offset %d to %d, that its master at %s does not have. They are cut off; a "
            "copy is in %s.",
            self.name,
            end - offset,
            offset,
            end,
            self.master_address,
            path,
        )

    def _complain(self, error: BaseException) -> None:
        text = str(error) or type(error).__name__
        if text != self.problem:
            _log.warning("%s does not follow its master at %s: %s", self.name, self.master_address, text)
        self.problem = text

    def _nothing_in_common(self) -> str:
        own = _whose(self.store.log_bytes(self.store.min_physical_offset, _HEAD))
        other = _whose(self._sample)
        return (
            f"The log in {self.store.config.commit_log_path} of {self.name} (offsets "
            f"{self.store.min_physical_offset} to {self.store.max_physical_offset}) has nothing in common with that of "
            f"{self.master_address}: its first record is {own}, there stands {other}."
        )


_NOTHING_IN_COMMON = (
    "Nothing was changed. If this broker is to follow that one, stop it and move its store elsewhere: with an empty "
    "store it begins anew."
)


def _whose(record: bytes) -> str:
    """Who stored a record, and when; by its beginning."""
    if len(record) < 8 or not any(record):
        return "nothing"
    size = int.from_bytes(record[:4], "big")
    found = scan_record(record[:size], check_crc=False).record if size <= len(record) else None
    if found is None:
        return "what is no record, or a long one"
    moment = datetime.fromtimestamp(found.store_timestamp / 1000).isoformat(sep=" ", timespec="seconds")
    topic = str(found.topic, "utf-8", "replace")
    return f"of topic {topic}, stored by {format_address(*unpack_host(found.store_host))} at {moment}"
