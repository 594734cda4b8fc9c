"""Requests that have to wait for their turn: whose it is next, and who is sent away.

As long as a turn of the event loop is not used up, requests are served as they are read and nothing of this is asked
for. Beyond that they wait with their connection, of which nothing more is read meanwhile:

* a connection's requests keep their order;
* connections have their turns one after the other, within the kind of the request that each has in front;
* kinds share a turn of the loop evenly, in the order of ``Limits.queues``: what one does not use is the next one's. So
  ten thousand connections that send leave heartbeats, commands and pulls their place;
* what finds no room, or has waited too long, is answered SYSTEM_BUSY without being decoded (overload.py).

Time is counted by the work of this thread: a process that was stopped, or that others kept from its core, finds nobody
who has waited. Nor does the time count in which a peer does not read what it was answered.

Thread-safety: event loop only. Corresponds to BrokerController's executors with their queues, and BrokerFastFailure.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire.command import FLAG_ONEWAY, FLAG_RESPONSE
from spark_rocket.remoting.server.overload import (
    OTHER,
    OVERLOAD,
    BusyAnswer,
    Limits,
    OverloadStats,
    peek,
    peek_code,
    too_old,
)

if TYPE_CHECKING:
    from spark_rocket.remoting.server.channel import Channel

logger = logging.getLogger(__name__)

TURN = 5e-3  # seconds of a turn of the loop for requests that were read in it, and for those that wait
_SHORTEST = 0.1e-3  # of it, for one connection
_AT_ONCE = 32  # requests sent away before it is the others' turn
_PER_FRAME = 200  # bytes of memory beside its own


class Backlog:
    """What waits with one connection."""

    __slots__ = ("arrived", "at", "frames", "kind", "queued", "size")

    def __init__(self) -> None:
        self.frames: list[memoryview] = []
        self.at = 0  # the first that waits
        self.arrived = 0.0
        self.size = 0  # bytes in memory
        self.kind = OTHER  # of the first; all are counted there
        self.queued = False


class RequestQueue:
    """All that waits at one server."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: Limits, stats: OverloadStats, time_slice: float
    ) -> None:
        self.clock: Callable[[], float] = thread_time
        """Counts seconds of waiting."""
        self._loop = loop
        self._limits = limits
        self._stats = stats
        self._time_slice = time_slice
        self._queues: dict[str, deque[Channel]] = {}
        self._full: set[str] = set()
        self._scheduled = False
        self._overload = BusyAnswer(OVERLOAD)
        self.changed()

    def changed(self) -> None:
        """The limits have."""
        queues = self._limits.queues
        self._queues = {kind: self._queues.get(kind, deque()) for kind in queues}
        patient = [queue.patience for queue in queues.values() if queue.patience]
        self._least_patience = min(patient, default=float("inf"))

    # --- coming -------------------------------------------------------------------------------------------------

    def take(self, channel: Channel, frames: list[memoryview], size: int) -> None:
        """Have frames wait that were in ``size`` bytes, all or the rest of them."""
        stats = self._stats
        size += len(frames) * _PER_FRAME
        if stats.waiting_bytes + stats.unfinished_bytes + size > self._limits.max_request_bytes:
            frames = self._reject(channel, frames)
            if not frames:
                return
        backlog = channel.backlog
        if backlog is None:
            backlog = channel.backlog = Backlog()
            backlog.arrived = self.clock()
            backlog.kind = self._limits.kind_of(peek_code(frames[0]))
        stats.waiting[backlog.kind] += len(frames)
        stats.waiting_bytes += size
        backlog.size += size
        backlog.frames.extend(frames)
        channel.pause_for_backlog()
        self.wait_for_turn(channel)

    def _reject(self, channel: Channel, frames: list[memoryview]) -> list[memoryview]:
        """Answer all requests among them, and give back the rest."""
        kept, answers = [], []
        for index, frame in enumerate(frames):
            try:
                code, opaque, flag = peek(frame)
            except ProtocolError:  # for whoever serves it
                kept.extend(frames[index:])
                break
            if flag & FLAG_RESPONSE:
                kept.append(frame)
            elif answer := self.refusal(code, opaque, flag, frame[0]):
                answers.append(answer)
        channel.write_all(answers)
        return kept

    def refusal(self, code: int, opaque: int, flag: int, spelling: int) -> bytes:
        """What a request is told for which there is no room, and that is counted."""
        self._stats.refused[self._limits.kind_of(code), "overload"] += 1
        return b"" if flag & FLAG_ONEWAY else self._overload.encode(spelling, opaque)

    def wait_for_turn(self, channel: Channel) -> None:
        """A connection has something to serve and may be served."""
        backlog = channel.backlog
        if backlog is None or backlog.queued or channel.is_paused:
            return
        backlog.queued = True
        self._queues[backlog.kind].append(channel)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def reads_again(self, channel: Channel) -> None:
        """A peer takes its answers again: what waited for that begins to wait now."""
        if channel.backlog is not None:
            channel.backlog.arrived = self.clock()
            self.wait_for_turn(channel)

    def forget(self, channel: Channel) -> None:
        """A connection is gone, or nothing more of it is to be served."""
        backlog, channel.backlog = channel.backlog, None
        if backlog is not None:
            self._stats.waiting[backlog.kind] -= len(backlog.frames) - backlog.at
            self._stats.waiting_bytes -= backlog.size

    def head_waited(self, kind: str) -> float:
        """Seconds that the first in the queue of a kind has waited; 0 when nothing does."""
        queue = self._queues.get(kind)
        backlog = queue[0].backlog if queue else None
        return self.clock() - backlog.arrived if backlog is not None else 0.0

    # --- going --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """One turn of the loop."""
        self._scheduled = False
        now = perf_counter()
        end = now + TURN
        active = [queue for queue in self._queues.values() if queue]
        waiting = sum(len(queue) for queue in active)
        piece = min(self._time_slice, max(TURN / max(waiting, 1), _SHORTEST))
        for left, queue in zip(range(len(active), 0, -1), active, strict=True):
            until = now + (end - now) / left
            for _ in range(len(queue)):
                channel = queue.popleft()
                try:
                    self._serve(channel, piece)
                except Exception:  # the others are served all the same
                    logger.exception("what waited with %s was not served", channel)
                    channel.abort()
                now = perf_counter()
                if now >= until:
                    break
        if any(self._queues.values()):
            self._schedule()

    def _serve(self, channel: Channel, piece: float) -> None:
        backlog = channel.backlog
        if backlog is None:
            return
        backlog.queued = False
        if channel.is_paused or not channel.is_active:
            return
        waited = self.clock() - backlog.arrived
        full = self._is_full(backlog.kind)
        if (not full and waited < self._least_patience) or not self._send_away(channel, backlog, waited, full):
            count = channel.handle(backlog.frames[backlog.at :] if backlog.at else backlog.frames, piece)
            if channel.backlog is not backlog:  # it was garbage
                return
            self._done(backlog, count)
        if backlog.at < len(backlog.frames):
            kind = self._limits.kind_of(peek_code(backlog.frames[backlog.at]))
            if kind != backlog.kind:
                left = len(backlog.frames) - backlog.at
                self._stats.waiting[backlog.kind] -= left
                self._stats.waiting[kind] += left
                backlog.kind = kind
            self.wait_for_turn(channel)
        else:
            self._stats.waiting_bytes -= backlog.size
            channel.backlog = None
            channel.resume_after_backlog()

    def _is_full(self, kind: str) -> bool:
        """Whether so many wait that some have to go: then until half of the room is free, or a flood would take long to
        pass when it has ended."""
        waiting, capacity = self._stats.waiting[kind], self._limits.queues[kind].capacity
        if waiting > capacity:
            self._full.add(kind)
        elif waiting <= capacity // 2:
            self._full.discard(kind)
        return kind in self._full

    def _done(self, backlog: Backlog, count: int) -> None:
        backlog.at += count
        self._stats.waiting[backlog.kind] -= count

    def _send_away(self, channel: Channel, backlog: Backlog, waited: float, full: bool) -> bool:
        """Answer the first requests if they have waited too long, or their queue is too long; whether there were any.

        The oldest go: who asked for them has the least patience left.
        """
        answers: dict[str, BusyAnswer] = {}
        encoded, count = [], 0
        for frame in backlog.frames[backlog.at : backlog.at + _AT_ONCE]:
            try:
                code, opaque, flag = peek(frame)
            except ProtocolError:
                break
            kind = self._limits.kind_of(code)
            queue = self._limits.queues[kind]
            late = 0 < queue.patience <= waited
            too_many = full and kind == backlog.kind and self._stats.waiting[kind] - count > queue.capacity // 2
            if flag & FLAG_RESPONSE or not (late or too_many):
                break
            count += 1
            if not late:
                encoded.append(self.refusal(code, opaque, flag, frame[0]))
                continue
            self._stats.refused[kind, "timeout"] += 1
            if not flag & FLAG_ONEWAY:
                answer = answers.get(kind)
                if answer is None:
                    answer = answers[kind] = BusyAnswer(too_old(waited, self._stats.waiting[kind]))
                encoded.append(answer.encode(frame[0], opaque))
        self._done(backlog, count)
        channel.write_all([answer for answer in encoded if answer])
        return count > 0
