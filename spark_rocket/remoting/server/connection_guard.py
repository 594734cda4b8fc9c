"""Looks after connections that cost without asking for anything: who says nothing, half of something, or reads nothing.

===============================  =====================================================================================
connection                       after
===============================  =====================================================================================
that never sent a byte           ``first_request``: closed
with half a frame                ``slow_writer``, and a second for each 16 KiB that came: closed
whose answers pile up            ``slow_reader`` without taking a byte: dropped
a frame that would be too much   answered SYSTEM_BUSY as soon as its header is there, and the rest of it thrown away
===============================  =====================================================================================

Answers that nobody reads, of all together: above ``max_answer_bytes`` ``on_unread`` is told, which should see to it
that nobody gets large ones; above twice that the worst are dropped.

Thread-safety: event loop only. Corresponds to NettyServerHandler's IdleStateHandler and channelWritabilityChanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire.command import FLAG_RESPONSE
from spark_rocket.remoting.server.descriptors import leaves_reserve
from spark_rocket.remoting.server.overload import Limits, OverloadStats, header_is_whole, peek

if TYPE_CHECKING:
    from spark_rocket.remoting.server.server import Channel, RemotingServer

logger = logging.getLogger(__name__)

TICK = 1.0  # seconds between looks
_SLOWEST = 16 * 1024  # bytes a second of a large frame
_LONGEST_HEADER = 64 * 1024  # that is waited for when there is no memory for it
_SAY_AGAIN = 10.0  # seconds
_STALLED = 3.0  # likewise, without a byte of a frame that was begun


class _Behind:
    """A peer that does not read its answers."""

    __slots__ = ("since", "size")

    def __init__(self, size: int, since: float) -> None:
        self.size = size
        self.since = since  # it last took something


class _Unfinished:
    """A frame that is not whole."""

    __slots__ = ("grew", "since", "size")

    def __init__(self, since: float) -> None:
        self.size = 0
        self.since = since
        self.grew = since  # bytes of it came last


class ConnectionGuard:
    """The looks at one server's connections."""

    def __init__(self, server: RemotingServer, limits: Limits, stats: OverloadStats) -> None:
        self.on_tick: Callable[[], None] | None = None
        """Called every second."""
        self.on_unread: Callable[[bool], None] | None = None
        """Told when unread answers become too many, and when they are few again."""
        self._server = server
        self._limits = limits
        self._stats = stats
        self._loop: asyncio.AbstractEventLoop
        self.clock: Callable[[], float]
        self._newcomers: dict[Channel, float] = {}  # the oldest first
        self._unfinished: dict[Channel, _Unfinished] = {}
        self._behind: dict[Channel, _Behind] = {}
        self._addresses: Counter[str] = Counter()
        self._too_much_unread = False
        self._timer: asyncio.TimerHandle | None = None
        self._looked = 0.0
        self._said: dict[str, tuple[float, int]] = {}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.clock = loop.time
        self._looked = loop.time()
        self._timer = loop.call_later(TICK, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # --- connections --------------------------------------------------------------------------------------------

    def admit(self, channel: Channel) -> bool:
        """Whether there is room for one more connection, in this process and of its address too."""
        limits, open_already = self._limits, len(self._server.channels)
        if open_already >= limits.max_connections:
            self._stats.connections_refused["total"] += 1
            self._say("total", f"{channel} refused: {open_already} connections are open already (maxConnections)")
            return False
        if not leaves_reserve(channel.descriptor, self._server.name, channel.remote_addr):
            self._stats.connections_refused["descriptors"] += 1
            return False
        host = channel.remote_addr.rpartition(":")[0]
        if 0 < limits.max_connections_per_address <= self._addresses[host]:
            self._stats.connections_refused["address"] += 1
            self._say(
                "address",
                f"{channel} refused: {self._addresses[host]} connections are open from its address already"
                " (maxConnectionsPerAddress)",
            )
            return False
        self._addresses[host] += 1
        self._newcomers[channel] = self.clock()
        return True

    def forget(self, channel: Channel) -> None:
        """A connection that was admitted is gone."""
        host = channel.remote_addr.rpartition(":")[0]
        self._addresses[host] -= 1
        if not self._addresses[host]:
            del self._addresses[host]
        self._newcomers.pop(channel, None)
        self.whole(channel)
        self.reads_again(channel)

    def spoke(self, channel: Channel) -> None:
        """Its first bytes have come."""
        self._newcomers.pop(channel, None)

    # --- half frames --------------------------------------------------------------------------------------------

    def unfinished(self, channel: Channel) -> None:
        """More of a frame has come, but not all."""
        self.spoke(channel)
        if not channel.in_progress:  # it was thrown away
            self.whole(channel)
            return
        now = self.clock()
        entry = self._unfinished.pop(channel, None) or _Unfinished(now)
        self._unfinished[channel] = entry  # behind all others: in front is who has sent nothing for longest
        entry.grew = now
        size = channel.pending
        stats = self._stats
        stats.unfinished_bytes += size - entry.size
        entry.size = size
        if stats.waiting_bytes + stats.unfinished_bytes > self._limits.max_request_bytes:
            self._make_room(channel, now)

    def whole(self, channel: Channel) -> bool:
        """All of it has come; whether one was under way."""
        entry = self._unfinished.pop(channel, None)
        if entry is None:
            return False
        self._stats.unfinished_bytes -= entry.size
        return True

    def _make_room(self, channel: Channel, now: float) -> None:
        """There is too much: who has stopped within a frame goes before those who go on with theirs."""
        other, entry = next(iter(self._unfinished.items()))
        if now - entry.grew < _STALLED:
            self._give_up(channel)
            return
        self.whole(other)
        self._stats.slow_writers += 1
        self._say("writer", f"{other} dropped: it stopped within a frame, and its {entry.size} bytes are needed")
        other.abort()

    def _give_up(self, channel: Channel) -> None:
        """There is no memory for the rest of a frame: its sender is told so if it can be."""
        start, missing = channel.begun_frame(_LONGEST_HEADER)
        if header_is_whole(start, len(start)):
            try:
                code, opaque, flag = peek(start)
            except ProtocolError:
                channel.abort()
                return
            if not flag & FLAG_RESPONSE:
                self.whole(channel)
                answer = self._server.request_queue.refusal(code, opaque, flag, start[0])
                channel.skip(missing)
                channel.write_all([answer] if answer else [])
        elif len(start) >= _LONGEST_HEADER:
            self._say("header", f"{channel} dropped: there is no memory for a request with so long a header")
            channel.abort()

    # --- unread answers -----------------------------------------------------------------------------------------

    def reads_nothing(self, channel: Channel) -> None:
        """More waits for a peer than it should."""
        if channel not in self._behind:
            entry = self._behind[channel] = _Behind(channel.unread, self.clock())
            self._stats.unread_bytes += entry.size
            self._weigh()

    def reads_again(self, channel: Channel) -> None:
        """It has taken nearly all, or is gone."""
        entry = self._behind.pop(channel, None)
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
            self._say("unread", f"{unread} bytes of answers are not read by {len(self._behind)} peers")
            if self.on_unread is not None:
                self.on_unread(True)
        if unread > 2 * most:
            self._drop_worst(most)

    def _drop_worst(self, most: int) -> None:
        """Those who have taken nothing for longest, until what remains is not too much."""
        left = self._stats.unread_bytes
        for channel, entry in sorted(self._behind.items(), key=lambda item: item[1].since):
            if left <= most:
                return
            left -= entry.size
            self._drop_reader(channel, entry)

    def _drop_reader(self, channel: Channel, entry: _Behind) -> None:
        del self._behind[channel]
        self._stats.unread_bytes -= entry.size
        self._stats.slow_readers += 1
        self._say("reader", f"{channel} dropped: it reads nothing, and {entry.size} bytes wait for it")
        channel.abort()

    # --- looks --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK, self._tick)
        self.look()
        if self.on_tick is not None:
            self.on_tick()

    def look(self) -> None:
        """At all who may have waited for too long."""
        now, limits = self.clock(), self._limits
        stopped, self._looked = now - self._looked - TICK, now
        if stopped > TICK:  # the whole process, or its loop: it was not for want of bytes
            self._newcomers = {channel: since + stopped for channel, since in self._newcomers.items()}
            for begun in self._unfinished.values():
                begun.since += stopped
                begun.grew += stopped
            for behind in self._behind.values():
                behind.since += stopped
        for channel, since in list(self._newcomers.items()):
            if now - since < limits.first_request:
                break
            del self._newcomers[channel]
            self._stats.silent += 1
            channel.abort()
        for channel, frame in list(self._unfinished.items()):
            if now - frame.since >= limits.slow_writer + frame.size / _SLOWEST:
                self.whole(channel)
                self._stats.slow_writers += 1
                self._say("writer", f"{channel} dropped: after {now - frame.since:.0f} s it has sent half a frame")
                channel.abort()
        for channel, entry in list(self._behind.items()):
            size = channel.unread
            if size < entry.size:
                entry.since = now
            self._stats.unread_bytes += size - entry.size
            entry.size = size
        for channel, entry in list(self._behind.items()):
            if now - entry.since >= limits.slow_reader:
                self._drop_reader(channel, entry)
        self._weigh()

    def _say(self, what: str, text: str) -> None:
        """A warning, but not one for each of ten thousand."""
        now = self.clock()
        last, unsaid = self._said.get(what, (-_SAY_AGAIN, 0))
        if now - last < _SAY_AGAIN:
            self._said[what] = last, unsaid + 1
            return
        self._said[what] = now, 0
        logger.warning("%s%s", text, f"; {unsaid} more like it before" if unsaid else "")
