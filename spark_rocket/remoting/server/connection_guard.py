"""Limits the cost of idle, slow and silent connections.

===============================  =====================================================================================
connection                       action
===============================  =====================================================================================
that never sent a byte           ``first_request``: closed
with an incomplete frame         ``slow_writer``, and a second for each 16 KiB that arrived: closed
with growing unread responses    ``slow_reader`` without a byte read: dropped
a frame beyond the memory limit  rejected with SYSTEM_BUSY after its header was received; the rest of it is skipped
without any byte from the peer   ``idle_timeout``: closed
===============================  =====================================================================================

Unread responses of all connections together: above ``max_answer_bytes`` ``on_unread`` is called, to prevent large
responses; above twice that the slowest readers are dropped.

Corresponds to NettyServerHandler's IdleStateHandler and channelWritabilityChanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass

from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.overload import Limits, OverloadStats, refuse
from spark_rocket.remoting.server.sockets import leaves_reserve

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0  # seconds between checks
_SWEEPS = 4  # per idle timeout
_MIN_BYTES_PER_S = 16 * 1024  # bytes per second of a large frame
_MAX_HEADER_BYTES = 64 * 1024  # of a rejected frame
_LOG_SECONDS = 10.0
_STALLED_S = 3.0  # seconds without a new byte of an incomplete frame


@dataclass(slots=True)
class _SlowPeer:
    """An incomplete frame, or a peer that does not read its responses."""

    since: float
    progress: float  # time of the last byte received or read by the peer
    size: int = 0


class ConnectionGuard:
    """Watches the connections of one server."""

    def __init__(
        self, name: str, channels: Set[Channel], limits: Limits, stats: OverloadStats, idle_timeout: float
    ) -> None:
        self.on_tick: Callable[[], None] | None = None
        """Called every second."""
        self.on_unread: Callable[[bool], None] | None = None
        """Called when there are too many unread responses, and when there are few again."""
        self.clock: Callable[[], float]
        self._name = name
        self._channels = channels
        self._limits = limits
        self._stats = stats
        self._idle_timeout = idle_timeout
        self._loop: asyncio.AbstractEventLoop
        self.newcomers: dict[Channel, float] = {}  # the oldest first
        self._unfinished: dict[Channel, _SlowPeer] = {}
        self.behind: dict[Channel, _SlowPeer] = {}
        self._addresses: Counter[str] = Counter()
        self._too_much_unread = False
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._checked_at = 0.0
        self._often = RateLimited(logger, _LOG_SECONDS, lambda: self.clock())

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.clock = self._loop.time
        self._checked_at = self.clock()
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._tick)
        self._sweeper = self._loop.call_later(self._idle_timeout / _SWEEPS, self._sweep_again)

    def close(self) -> None:
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()

    # --- connections --------------------------------------------------------------------------------------------

    def admit(self, channel: Channel) -> bool:
        """Whether the limits allow another connection, in total and from its address."""
        limits, open_already = self._limits, len(self._channels)
        if open_already >= limits.max_connections:
            self._stats.connections_refused["total"] += 1
            self._often.warning("total", "rejected %s: %d connections are open (maxConnections)", channel, open_already)
            return False
        if not leaves_reserve(channel, self._name, channel.remote_addr):
            self._stats.connections_refused["descriptors"] += 1
            return False
        host = channel.remote_addr.rpartition(":")[0]
        if 0 < limits.max_connections_per_address <= self._addresses[host]:
            self._stats.connections_refused["address"] += 1
            self._often.warning(
                "address",
                "rejected %s: %d connections are open from its address (maxConnectionsPerAddress)",
                channel,
                self._addresses[host],
            )
            return False
        self._addresses[host] += 1
        self.newcomers[channel] = self.clock()
        return True

    def forget(self, channel: Channel) -> None:
        """An admitted connection has ended."""
        host = channel.remote_addr.rpartition(":")[0]
        self._addresses[host] -= 1
        if not self._addresses[host]:
            del self._addresses[host]
        self.whole(channel)
        self.reads_again(channel)

    # --- incomplete frames --------------------------------------------------------------------------------------------

    def unfinished(self, channel: Channel) -> None:
        """A part of a frame was received."""
        self.newcomers.pop(channel, None)
        if not channel.in_progress:  # the rest is skipped
            self.whole(channel)
            return
        now = self.clock()
        entry = self._unfinished.pop(channel, None) or _SlowPeer(now, now)
        self._unfinished[channel] = entry  # moved to the end: the first one has been stalled longest
        entry.progress = now
        size = channel.pending
        stats = self._stats
        stats.unfinished_bytes += size - entry.size
        entry.size = size
        if stats.waiting_bytes + stats.unfinished_bytes > self._limits.max_request_bytes:
            self._make_room(channel, now)

    def whole(self, channel: Channel) -> None:
        """A connection is no longer new, and has no incomplete frame."""
        self.newcomers.pop(channel, None)
        entry = self._unfinished.pop(channel, None)
        if entry is not None:
            self._stats.unfinished_bytes -= entry.size

    def _make_room(self, channel: Channel, now: float) -> None:
        """Free memory: a peer that stopped within a frame is dropped before frames that still make progress."""
        other, entry = next(iter(self._unfinished.items()))
        if now - entry.progress < _STALLED_S:
            self._refuse(channel)
            return
        self.whole(other)
        self._stats.slow_writers += 1
        self._often.warning("writer", "dropped %s: stalled within a frame, freed %d bytes", other, entry.size)
        other.abort()

    def _refuse(self, channel: Channel) -> None:
        """Reject an incomplete frame, as soon as its header was received."""
        start = channel.begun_frame(_MAX_HEADER_BYTES)
        if len(start) < 4 or len(start) < 4 + int.from_bytes(start[1:4], "big"):
            if len(start) >= _MAX_HEADER_BYTES:
                self._often.warning("header", "dropped %s: no memory for a request with a large header", channel)
                channel.abort()
            return
        try:
            command = RemotingCommand.decode(start)
        except ProtocolError:
            channel.abort()
            return
        if not command.is_response:
            self.whole(channel)
            channel.skip()
            response = refuse(command, self._limits, self._stats)
            if not command.is_oneway:
                channel.write(response)

    # --- unread responses ---------------------------------------------------------------------------------------

    def reads_nothing(self, channel: Channel) -> None:
        """A peer is behind with reading."""
        if channel not in self.behind:
            now = self.clock()
            entry = self.behind[channel] = _SlowPeer(now, now, channel.unread)
            self._stats.unread_bytes += entry.size
            self._weigh()

    def reads_again(self, channel: Channel) -> None:
        """The peer has read nearly all responses, or has disconnected."""
        entry = self.behind.pop(channel, None)
        if entry is not None:
            self._stats.unread_bytes -= entry.size
            self._weigh()

    def _weigh(self) -> None:
        unread, most = self._stats.unread_bytes, self._limits.max_answer_bytes
        if self._too_much_unread:
            if unread <= most * 3 // 4:
                self._too_much_unread = False
                if self.on_unread is not None:
                    self.on_unread(False)
        elif unread > most:
            self._too_much_unread = True
            self._often.warning("unread", "%d bytes of responses are unread by %d peers", unread, len(self.behind))
            if self.on_unread is not None:
                self.on_unread(True)
        if unread > 2 * most:
            self._drop_worst(most)

    def _drop_worst(self, most: int) -> None:
        """Drop the readers without progress for the longest time, until the rest is within the limit."""
        left = self._stats.unread_bytes
        for channel, entry in sorted(self.behind.items(), key=lambda item: item[1].progress):
            if left <= most:
                return
            left -= entry.size
            self._drop_reader(channel, entry)

    def _drop_reader(self, channel: Channel, entry: _SlowPeer) -> None:
        del self.behind[channel]
        self._stats.unread_bytes -= entry.size
        self._stats.slow_readers += 1
        self._often.warning("reader", "dropped %s: not reading, %d bytes unread", channel, entry.size)
        channel.abort()

    # --- checks -------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._tick)
        self.check()
        if self.on_tick is not None:
            self.on_tick()

    def check(self) -> None:
        """Check all connections that may have exceeded a time limit."""
        now, limits = self.clock(), self._limits
        stopped, self._checked_at = now - self._checked_at - CHECK_INTERVAL_S, now
        if stopped > CHECK_INTERVAL_S:  # the process or its loop was suspended, not the peers
            self.newcomers = {channel: since + stopped for channel, since in self.newcomers.items()}
            for entry in [*self._unfinished.values(), *self.behind.values()]:
                entry.since += stopped
                entry.progress += stopped
        for channel, since in list(self.newcomers.items()):
            if now - since < limits.first_request:
                break
            del self.newcomers[channel]
            self._stats.silent += 1
            channel.abort()
        for channel, frame in list(self._unfinished.items()):
            if now - frame.since >= limits.slow_writer + frame.size / _MIN_BYTES_PER_S:
                self.whole(channel)
                self._stats.slow_writers += 1
                took = now - frame.since
                self._often.warning("writer", "dropped %s: incomplete frame after %.0f s", channel, took)
                channel.abort()
        for channel, entry in list(self.behind.items()):
            size = channel.unread
            if size < entry.size:
                entry.progress = now
            self._stats.unread_bytes += size - entry.size
            entry.size = size
        for channel, entry in list(self.behind.items()):
            if now - entry.progress >= limits.slow_reader:
                self._drop_reader(channel, entry)
        self._weigh()

    def _sweep_again(self) -> None:
        self._sweeper = self._loop.call_later(self._idle_timeout / _SWEEPS, self._sweep_again)
        self.sweep()

    def sweep(self) -> None:
        """Close idle connections, and detect incomplete frames that started after a complete one."""
        for channel in list(self._channels):
            channel.close_if_idle(_SWEEPS)
            if channel.in_progress and not channel.needs_attention:
                channel.needs_attention = True
                self.unfinished(channel)
