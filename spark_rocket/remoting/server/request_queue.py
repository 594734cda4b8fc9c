"""Queued requests: the order of their processing, and which requests are rejected.

While the time of a turn of the event loop is not used up, requests are processed as they are read, without this queue.
Further requests are queued by connection, and the connection is not read meanwhile:

* the requests of a connection keep their order;
* connections take turns, within the kind of the first queued request of each;
* kinds share a turn of the loop evenly, in the order of ``Limits.queues``: unused time goes to the next. So heartbeats,
  commands and pulls are processed even if ten thousand connections send messages;
* requests without room in the queue of their kind, or queued for too long, get the response SYSTEM_BUSY (overload.py).
  They are decoded like any other: the queue stores frames, because commands may need many times the memory.

Time is the CPU time of this thread: a suspended process, or one that waits for a core, rejects nothing because of that.
Neither does time count in which a peer does not read its responses.

Corresponds to BrokerController's executors with their queues, and BrokerFastFailure.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import TypeAlias

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.overload import OTHER, TOO_OLD, Limits, OverloadStats, refuse

logger = logging.getLogger(__name__)

TURN_S = 5e-3  # seconds per turn of the loop, each for requests read in it and for queued ones
_MIN_SLICE_S = 0.1e-3  # seconds for one connection
_FRAME_OVERHEAD_BYTES = 200  # bytes of overhead

Refuse: TypeAlias = Callable[[RemotingCommand], RemotingCommand | None]
"""Returns the response to a rejected request, None for a request to process."""
Serve: TypeAlias = Callable[[Channel, list[memoryview], float, Refuse | None], int]
"""Processes frames for so many seconds, and returns their number."""


class _Backlog:
    """The queued frames of one connection."""

    __slots__ = ("arrived", "at", "frames", "kind", "queued", "size")

    def __init__(self, arrived: float, kind: str) -> None:
        self.frames: list[memoryview] = []
        self.at = 0  # the first unprocessed frame
        self.arrived = arrived
        self.size = 0  # bytes in memory
        self.kind = kind  # the kind of the first request; all are counted there
        self.queued = False


class RequestQueue:
    """All queued requests of one server."""

    def __init__(self, limits: Limits, stats: OverloadStats, time_slice: float, serve: Serve) -> None:
        self.clock: Callable[[], float] = thread_time
        """The clock of queue times in seconds."""
        self._limits = limits
        self._stats = stats
        self._time_slice = time_slice
        self._serve_frames = serve
        self._backlogs: dict[Channel, _Backlog] = {}
        self._queues: dict[str, deque[Channel]] = {}
        self._full: set[str] = set()
        self._scheduled = False
        self.changed()

    def changed(self) -> None:
        """Apply changed limits."""
        queues = self._limits.queues
        self._queues = {kind: self._queues.get(kind, deque()) for kind in queues}
        self._shortest_max_wait = min((queue.max_wait for queue in queues.values() if queue.max_wait), default=math.inf)

    def __contains__(self, channel: Channel) -> bool:
        return channel in self._backlogs

    def take(self, channel: Channel, frames: list[memoryview], size: int) -> None:
        """Queue frames that were received in ``size`` bytes."""
        stats = self._stats
        size += len(frames) * _FRAME_OVERHEAD_BYTES
        if stats.waiting_bytes + stats.unfinished_bytes + size > self._limits.max_request_bytes:
            while frames:  # interrupted if the peer does not read its responses
                frames = frames[self._serve_frames(channel, frames, math.inf, self._refuse_all) :]
            return
        backlog = self._backlogs.get(channel)
        if backlog is None:
            backlog = self._backlogs[channel] = _Backlog(self.clock(), self._kind_of(frames[0]))
        stats.waiting[backlog.kind] += len(frames)
        stats.waiting_bytes += size
        backlog.size += size
        backlog.frames.extend(frames)
        channel.stop_reading()
        self._wait_for_turn(channel, backlog)

    def _kind_of(self, frame: memoryview) -> str:
        try:
            return self._limits.kind_of(RemotingCommand.decode(frame).code)
        except ProtocolError:  # the connection is closed when it is processed
            return OTHER

    def _wait_for_turn(self, channel: Channel, backlog: _Backlog) -> None:
        if not backlog.queued and not channel.is_paused:
            backlog.queued = True
            self._queues[backlog.kind].append(channel)
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def reads_again(self, channel: Channel) -> None:
        """A peer reads its responses again: its queue time starts now."""
        backlog = self._backlogs.get(channel)
        if backlog is not None:
            backlog.arrived = self.clock()
            self._wait_for_turn(channel, backlog)

    def forget(self, channel: Channel) -> None:
        """Drop the requests of a connection that has ended or is invalid."""
        backlog = self._backlogs.pop(channel, None)
        if backlog is not None:
            self._stats.waiting[backlog.kind] -= len(backlog.frames) - backlog.at
            self._stats.waiting_bytes -= backlog.size

    def head_waited(self, kind: str) -> float:
        """Return the queue time of the first request of a kind in seconds; 0 if there is none."""
        queue = self._queues.get(kind)
        backlog = self._backlogs.get(queue[0]) if queue else None
        return self.clock() - backlog.arrived if backlog is not None else 0.0

    # --- serving ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """One turn of the loop."""
        self._scheduled = False
        now = perf_counter()
        end = now + TURN_S
        active = [queue for queue in self._queues.values() if queue]
        waiting = sum(len(queue) for queue in active)
        piece = min(self._time_slice, max(TURN_S / max(waiting, 1), _MIN_SLICE_S))
        for left, queue in zip(range(len(active), 0, -1), active, strict=True):
            until = now + (end - now) / left
            for _ in range(len(queue)):
                channel = queue.popleft()
                try:
                    self._serve(channel, piece)
                except Exception:  # the others must still be processed
                    logger.exception("queued requests of %s failed", channel)
                    channel.abort()
                now = perf_counter()
                if now >= until:
                    break
        if any(self._queues.values()):
            self._schedule()

    def _serve(self, channel: Channel, piece: float) -> None:
        backlog = self._backlogs.get(channel)
        if backlog is None:
            return
        backlog.queued = False
        if channel.is_paused or not channel.is_active:
            return
        stats, frames = self._stats, backlog.frames[backlog.at :] if backlog.at else backlog.frames
        count = self._serve_frames(channel, frames, piece, self._refusal(backlog))
        if self._backlogs.get(channel) is not backlog:  # it was invalid
            return
        backlog.at += count
        left = len(backlog.frames) - backlog.at
        stats.waiting[backlog.kind] -= count
        if not left:
            stats.waiting_bytes -= backlog.size
            del self._backlogs[channel]
            channel.read_on()
            return
        stats.waiting[backlog.kind] -= left
        backlog.kind = self._kind_of(backlog.frames[backlog.at])
        stats.waiting[backlog.kind] += left
        self._wait_for_turn(channel, backlog)

    def _refusal(self, backlog: _Backlog) -> Refuse | None:
        """Return the function that rejects requests of a connection now; None if all are accepted.

        The oldest requests of a full queue are rejected, because their senders have the least time left.
        """
        limits, stats = self._limits, self._stats
        waited = self.clock() - backlog.arrived
        full = self._is_full(backlog.kind)
        if not full and waited < self._shortest_max_wait:
            return None
        seen = 0

        def decide(request: RemotingCommand) -> RemotingCommand | None:
            nonlocal seen
            seen += 1
            kind = limits.kind_of(request.code)
            queue = limits.queues[kind]
            if 0 < queue.max_wait <= waited:
                stats.refused[kind, "timeout"] += 1
                remark = TOO_OLD % (waited * 1000, stats.waiting[kind])
                return RemotingCommand.response(request, ResponseCode.SYSTEM_BUSY, remark)
            if full and kind == backlog.kind and stats.waiting[kind] - seen >= queue.capacity // 2:
                return refuse(request, limits, stats)
            return None

        return decide

    def _refuse_all(self, request: RemotingCommand) -> RemotingCommand:
        return refuse(request, self._limits, self._stats)

    def _is_full(self, kind: str) -> bool:
        """Whether requests of a kind are rejected: from a full queue on until it is half empty.

        Otherwise the effects of a flood would outlast it.
        """
        waiting, capacity = self._stats.waiting[kind], self._limits.queues[kind].capacity
        if waiting > capacity:
            self._full.add(kind)
        elif waiting <= capacity // 2:
            self._full.discard(kind)
        return kind in self._full
