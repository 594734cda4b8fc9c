"""A slave's connection to its master's HA port: compares the two logs, then appends what the master sends.

Before any data is accepted, the end of the slave's log is compared with the master's. For this purpose the slave
reports not the end of its log, but the start of a record some distance before it. This master and Apache's masters send
from there on. The slave reports the end of its log, complete records only, whenever it has grown, and otherwise every
``haSendHeartbeatInterval``. A master that is silent for ``haHousekeepingInterval`` is disconnected.

After a crash: the log is complete up to some record, and the comparison starts there. Corresponds to
org.apache.rocketmq.store.ha.DefaultHAClient, which does not compare.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import numpy as np

from spark_rocket.errors import ProtocolError, RocketError, StoreError
from spark_rocket.protocol.wire.ha import TransferDecoder, encode_report
from spark_rocket.remoting.socket_options import set_caller_options
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.recovery.replica import Replica

_TURN_BYTES = 1 << 20
HEAD_BYTES = 4096  # of a record, read to identify its origin


class ReconnectError(Exception):
    """The comparison with the master's log has ended, or the master has changed: reconnect."""


class MasterConnection(asyncio.Protocol):
    """One connection to the master: first compares, then copies."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        replica: Replica,
        start: int,
        *,
        on_following: Callable[[], None],
        on_growth: Callable[[], None],
    ) -> None:
        """``start``: the offset of the first report; data between it and the log's end is compared.

        ``on_following``: called once when the log is known to be a prefix of the master's; ``on_growth``: called when
        data was appended.
        """
        self._loop = loop
        self._store = store
        self._replica = replica
        self._on_following = on_following
        self._on_growth = on_growth
        self._decoder = TransferDecoder()
        self._transport: asyncio.Transport | None = None
        self._pieces: list[tuple[int, memoryview]] = []  # received in this iteration of the loop
        self._size = 0
        self._scheduled = False
        self._start = start
        # A request for 0 means the beginning of the master's last file.
        self._requested = 0 if self._replica.is_empty else max(start, 1)
        self._compared = self._requested
        self.closed: asyncio.Future[None] = loop.create_future()
        self.is_following = self._replica.is_empty
        self._is_reported = False
        self.cut_at = -1
        """Offset at which to truncate the log; -1 if not needed."""
        self.differs = False
        """Whether the logs differ from the start of the comparison on."""
        self.master_begins = -1
        """Beginning of the master's log, if later than the requested offset; otherwise -1."""
        self.sample = b""
        """The first bytes of the master's log at ``start``."""
        self.last_read = self.last_report = loop.time()
        self._received = 0
        self.bytes_in_second = 0
        """Bytes received in the last full second."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        set_caller_options(transport.get_extra_info("socket"))
        self._report(self._requested)

    def data_received(self, data: bytes) -> None:
        self.last_read = self._loop.time()
        self._received += len(data)
        try:
            self._pieces += self._decoder.feed(data)
        except ProtocolError as error:
            self.end(error)
            return
        self._size += len(data)
        if self._size >= _TURN_BYTES:
            self._process()
        elif not self._scheduled:  # the loop may read several times before it runs other callbacks
            self._scheduled = True
            self._loop.call_soon(self._process)

    def _process(self) -> None:
        pieces, self._pieces = self._pieces, []
        self._size, self._scheduled = 0, False
        if self.closed.done():
            return
        before = self._store.max_physical_offset
        try:
            self._append(pieces)
        except (ReconnectError, RocketError, OSError) as error:
            self.end(error)
            return
        if self.is_following and pieces and not self._is_reported:
            self._is_reported = True
            self._on_following()
        if self._store.max_physical_offset > before:
            self._report(self._store.max_physical_offset)
            self._on_growth()

    def _append(self, pieces: list[tuple[int, memoryview]]) -> None:
        """Append contiguous pieces together: checking many records costs little more than checking a few."""
        run: list[memoryview] = []
        start = end = 0
        for offset, piece in pieces:
            if not self.is_following:
                piece = self._compare(offset, piece)
                offset = self._store.max_physical_offset
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
        self.end(exc or ConnectionResetError(f"the master closed the connection{where}"))

    def end(self, error: Exception) -> None:
        self._replica.forget()
        if not self.closed.done():
            if isinstance(error, ReconnectError):
                self.closed.set_result(None)
            else:
                self.closed.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    def _report(self, offset: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.last_report = self._loop.time()
            self._transport.write(encode_report(offset))

    def tick(self, now: float, heartbeat: float, housekeeping: float) -> None:
        """Check timeouts and send reports; called every second."""
        self.bytes_in_second, self._received = self._received, 0
        if now - self.last_read > housekeeping:
            self.end(TimeoutError(f"no data from the master for {housekeeping:.0f} s"))
        elif now - self.last_report > heartbeat:
            self._report(self._store.max_physical_offset if self.is_following else self._requested)

    def _compare(self, offset: int, piece: memoryview) -> memoryview:
        """Compare data with the log; returns the data beyond the log's end. Raises if the two differ."""
        store = self._store
        end = store.max_physical_offset
        if not piece and offset > self._compared:
            self.master_begins = offset
            raise ReconnectError
        if not piece:  # the master's log ends here
            self._diverged(offset)
        if offset != self._compared:
            raise StoreError(f"The master sent offset {offset}, expected {self._compared}.")
        if offset == self._requested:
            self.sample = bytes(self._requested - self._start) + piece[:HEAD_BYTES]
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
        raise ReconnectError
