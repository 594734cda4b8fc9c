"""A slave: makes its log equal to its master's, over one connection after the other (master_connection.py).

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

Truncated data is retained in ``quarantine`` (store/recovery/replica.py). Connections are retried after 0.1 s, then with
increasing delays up to 5 s, after a refusal up to 30 s. A problem is logged once, until it changes.

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

from spark_rocket.broker.broker_environment import BrokerEnvironment
from spark_rocket.broker.replication.master_connection import HEAD_BYTES, MasterConnection, ReconnectError
from spark_rocket.common.units import moment_text
from spark_rocket.errors import RocketError, StateError, StoreError
from spark_rocket.protocol.ids import unpack_host
from spark_rocket.protocol.record.record import scan_record
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


class ReplicationSlave:
    """Keeps a slave's log equal to its master's."""

    def __init__(self, environment: BrokerEnvironment, store: MessageStore, on_cut: Callable[[], None]) -> None:
        """``on_cut``: called after a truncation of the log."""
        if store.replica is None:
            raise StateError("The store is not open as a slave's.", remedy="Open it with is_replica.")
        config = self._config = environment.config
        self.loop = environment.loop
        self.store = store
        self.replica: Replica = store.replica
        self.name = environment.name
        self.master_address = config.ha_master_address
        """The HA address of the master; empty if unknown."""
        self.is_following = False
        """Whether the log is known to be a prefix of the master's."""
        self.problem = ""
        """The reason why it is not following."""
        self._tls = client_tls(config.client_tls())
        self._on_cut = on_cut
        self._master_is_known = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: MasterConnection | None = None
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
            self._connection.end(ReconnectError())

    @property
    def bytes_in_second(self) -> int:
        """Bytes received in the last full second."""
        return 0 if self._connection is None else self._connection.bytes_in_second

    def _follows(self) -> None:
        """Record that the log is a prefix of the master's."""
        _log.info(
            "%s follows its master at %s from offset %d on",
            self.name,
            self.master_address,
            self.store.max_physical_offset,
        )
        self.is_following = True
        self.problem = ""

    def _grew(self) -> None:
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

    async def _connect(self, host: str, port: int, start: int) -> MasterConnection:
        def make() -> MasterConnection:
            return MasterConnection(
                self.loop, self.store, self.replica, start, on_following=self._follows, on_growth=self._grew
            )

        if self._tls is None:
            return (await self.loop.create_connection(make, host, port))[1]
        context = self._tls.context()
        try:
            return (
                await self.loop.create_connection(
                    make, host, port, ssl=context, server_hostname=host, ssl_shutdown_timeout=1.0
                )
            )[1]
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
            problem = problem_of(error, server=False, name=host)
            raise ConnectionError(f"it {problem.text}. {problem.remedy}".strip()) from error

    async def _follow(self, start: int) -> MasterConnection:
        """Connect and wait for the end of the connection; raises unless the comparison ended it."""
        address = self.master_address
        host, port = parse_address(address)
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            connection = await self._connect(host, port, start)
        self._connection, begun = connection, self.loop.time()
        if address != self.master_address:
            connection.end(ReconnectError())
        ticker = self.loop.create_task(self._tick(connection))
        try:
            await connection.closed
            return connection
        finally:
            if self.is_following and self.loop.time() - begun > _MAX_RETRY_DELAY_S:
                self._retry_delay = _FIRST_RETRY_DELAY_S
            self.is_following = False
            self._connection = None
            ticker.cancel()
            if not connection.closed.done():
                connection.closed.cancel()
            connection.end(ReconnectError())

    async def _tick(self, connection: MasterConnection) -> None:
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
        own = _describe_record(self.store.log_bytes(self.store.min_physical_offset, HEAD_BYTES))
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
    moment = moment_text(found.store_timestamp, "seconds")
    topic = str(found.topic, "utf-8", "replace")
    return f"of topic {topic}, stored by {format_address(*unpack_host(found.store_host))} at {moment}"
