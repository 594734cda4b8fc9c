"""Long polling: pops and notifications without messages are held until one arrives or their timeout expires.

Requests for the same :class:`PollingKey` are queued in one line, the oldest first. A message that arrives in a queue of
the topic, or in the group's retry topics for it, wakes the first request of each matching line: one pop of every group,
not all of them. That request is run again. If it calls ``hold`` again, there was no message for it: it keeps its
position and its remaining time, and the others are not woken because they would not find a message either. If it is
completed, others are woken only by a call of ``more``. Notifications do not consume messages: each arrival wakes one.

A run examines a part of a topic with many queues (turns.py). After a wake-up, the oldest request of a line runs in
consecutive iterations of the loop until all parts are examined: at rest, no queue has a message for a held request.

Arrivals within one iteration of the loop are collected. A line with a tag filter is not woken by messages with other
tags: 8-byte tag codes decide, as in the filter. An SQL92 filter needs the record, so the first request is run at once.
Each held request has one loop timer; arrivals have none.

Limits: ``popPollingSize`` requests in a line, ``popPollingMapSize`` lines, ``maxPopPollingSize`` requests in total, and
those of a connection and an address (protocol/requests/state.py). After a crash, held requests are lost; clients retry.
Corresponds to org.apache.rocketmq.broker.longpolling.{PopLongPollingService, PopRequest, PollingHeader}.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from time import monotonic
from typing import NamedTuple

from spark_rocket.broker.pop.requests import PopRequest
from spark_rocket.broker.pop.turns import parts_of
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.steps import STEP_S
from spark_rocket.protocol.ids import retry_topic
from spark_rocket.protocol.requests.state import HELD_POPS
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.state_quota import StateQuota, weight_of

_log = logging.getLogger(__name__)

_MAX_HELD_MS = 300_000
_MIN_HELD_MS = 50  # as Apache's: requests with less time left are not held
# Delay before a held request is retried if its connection is not writable.
_BACK_OFF_S = 0.05


class PollingKind(IntEnum):
    """Type of a held request. Lines of different types are woken independently."""

    POP = 0
    ORDER = 1
    NOTIFICATION = 2


class Held(Enum):
    """Result of holding a request."""

    HELD = 0
    FULL = 1
    TIMED_OUT = 2


class PollingKey(NamedTuple):
    """What a request waits for. ``queue_id`` -1: every queue; ``tag_codes`` None: any tag."""

    topic: str
    group: str
    queue_id: int
    kind: PollingKind = PollingKind.POP
    tag_codes: frozenset[int] | None = None


@dataclass(slots=True, eq=False)
class _HeldPop:
    """A held request."""

    channel: Channel
    request: RemotingCommand
    line: _Line
    again: Callable[[], None]
    weight: int
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Line:
    """Requests for the same place, the oldest first.

    ``arrivals``: number of messages since the last run; ``parts``: number of runs until all queues are examined.
    """

    place: PollingKey
    waiters: dict[_HeldPop, None] = field(default_factory=dict)
    arrivals: int = 0
    parts: int = 0
    is_woken: bool = False


class PopLongPollingService:
    """Held requests by place and by connection. ``watched`` has the lines of each topic that wakes any."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        clock: Callable[[], int],
        queues_of: Callable[[str], int] = lambda topic: 1,
    ) -> None:
        """``queues_of``: returns the number of read queues of a topic."""
        self._loop = loop
        self._config = config
        self._clock = clock
        self._queues_of = queues_of
        self._lines: dict[PollingKey, _Line] = {}
        self._by_channel: dict[Channel, dict[_HeldPop, None]] = {}
        self._woken: deque[_Line] = deque()
        self._is_serving = False
        self._running: _HeldPop | None = None
        self._held_again = False
        self.watched: dict[str, dict[_Line, None]] = {}
        self._quota = StateQuota(HELD_POPS)
        self.count = 0

    # --- waiting ------------------------------------------------------------------------------------------------

    def hold(self, channel: Channel, request: RemotingCommand, pop: PopRequest, again: Callable[[], None]) -> Held:
        """Hold a pop; ``again`` is called when there may be a message, or when the timeout expires."""
        kind = PollingKind.ORDER if pop.order else PollingKind.POP
        place = PollingKey(pop.topic, pop.group, pop.queue_id, kind, pop.wanted.tag_codes)
        return self.hold_at(place, channel, request, pop.born_time, pop.poll_time, again)

    def hold_at(
        self,
        place: PollingKey,
        channel: Channel,
        request: RemotingCommand,
        born_time: int,
        poll_time: int,
        again: Callable[[], None],
    ) -> Held:
        """Hold a request for ``poll_time`` ms, but not longer than until ``born_time + poll_time``."""
        running = self._running
        if running is not None and running.request is request:
            if running.timer is None:
                return Held.TIMED_OUT
            self._held_again = True
            return Held.HELD
        left = poll_time
        if born_time > 0:
            left = min(left, born_time + poll_time - self._clock())
        if left <= _MIN_HELD_MS:
            return Held.TIMED_OUT
        config = self._config
        weight = _weight(place, request)
        if self.count >= config.max_pop_polling_size or self._quota.problem(channel, weight) is not None:
            return Held.FULL
        line = self._lines.get(place)
        if line is None:
            if len(self._lines) >= config.pop_polling_map_size:
                return Held.FULL
            line = self._open(place)
            line.parts = self._parts_of(place) - 1  # the request itself has examined one
            if line.parts > 0:
                self._schedule(line)
        elif len(line.waiters) >= config.pop_polling_size:
            return Held.FULL
        request.body = b""  # the view would keep the complete receive buffer in memory
        request.ext_fields = {}
        waiter = _HeldPop(channel, request, line, again, weight)
        self._quota.add(channel, weight)
        line.waiters[waiter] = None
        self._by_channel.setdefault(channel, {})[waiter] = None
        self.count += 1
        waiter.timer = self._loop.call_later(min(left, _MAX_HELD_MS) / 1000, self._end, waiter)
        return Held.HELD

    def polling_num(self, group: str, topic: str, queue_id: int) -> int:
        """The number of held pops of exactly this queue (-1: of all queues)."""
        return sum(
            len(line.waiters)
            for line in self.watched.get(topic, ())
            if line.place[:3] == (topic, group, queue_id) and line.place.kind is not PollingKind.NOTIFICATION
        )

    # --- waking -------------------------------------------------------------------------------------------------

    def notify_arriving(self, topic: str, queue_id: int, tags_code: int | None) -> None:
        """Wake requests for a message (its tag code; None: several messages). The topic must be ``watched``."""
        for line in self.watched[topic]:
            place = line.place
            if (
                (place.queue_id in (-1, queue_id) or topic != place.topic)  # retry topics are read whatever the queue
                and (tags_code is None or place.tag_codes is None or tags_code in place.tag_codes)
            ):
                self._wake(line, 1)

    def more(self, group: str, topic: str, queue_id: int) -> None:
        """Wake requests without a new message: a pop left messages in the queue, or a block ended."""
        for line in self.watched.get(topic, ()):
            place = line.place
            if place.group == group and (queue_id < 0 or place.queue_id in (-1, queue_id) or place.topic != topic):
                self._wake(line, 1)

    def wake_topic(self, topic: str) -> None:
        """Run all requests of a topic for the last time because the topic itself changed."""
        for line in list(self.watched.get(topic, ())):
            for waiter in list(line.waiters):
                self._loop.call_soon(self._end, waiter)

    def channel_closed(self, channel: Channel) -> None:
        for waiter in list(self._by_channel.get(channel, ())):
            self._forget(waiter)

    def close(self) -> None:
        """Drop all held requests; their connections are about to close."""
        for channel in list(self._by_channel):
            self.channel_closed(channel)
        self._woken.clear()

    # --- inside -------------------------------------------------------------------------------------------------

    def _wake(self, line: _Line, arrivals: int) -> None:
        line.arrivals += arrivals
        self._schedule(line)

    def _schedule(self, line: _Line) -> None:
        if not line.is_woken:
            line.is_woken = True
            self._woken.append(line)
            self._serve_soon()

    def _serve_soon(self) -> None:
        if not self._is_serving:
            self._is_serving = True
            self._loop.call_soon(self._serve_woken)

    def _serve_woken(self) -> None:
        """Serve the woken lines, those that take long in later iterations of the loop."""
        self._is_serving = False
        deadline = monotonic() + STEP_S
        for _ in range(len(self._woken)):
            line = self._woken.popleft()
            line.is_woken = False
            self._serve(line)
            if monotonic() >= deadline:
                break
        if self._woken:
            self._serve_soon()

    def _serve(self, line: _Line) -> None:
        """Run the first requests of a line, and again later if they have examined only a part of the queues."""
        arrivals, line.arrivals = line.arrivals, 0
        if arrivals:
            line.parts = self._parts_of(line.place)
        line.parts -= 1
        self._run_first(line, max(arrivals, 1))
        if line.parts > 0 and line.waiters:
            self._schedule(line)

    def _run_first(self, line: _Line, arrivals: int) -> None:
        """Run the first request, or as many notifications as messages have arrived."""
        behind = False
        for waiter in list(line.waiters):
            if waiter.timer is None:  # its connection closed meanwhile
                continue
            if not waiter.channel.is_active:
                self._forget(waiter)
                continue
            if not waiter.channel.is_writable:
                behind = True
                continue
            if self._run(waiter):
                return
            self._forget(waiter)
            arrivals -= 1
            if line.place.kind is not PollingKind.NOTIFICATION or not arrivals:
                return
        if behind:
            self._loop.call_later(_BACK_OFF_S, self._wake, line, arrivals)

    def _parts_of(self, place: PollingKey) -> int:
        """The number of runs that examine all queues of a place."""
        topics = _topics(place)[place.queue_id >= 0 :]  # one queue, and all of the retry topics
        return max((parts_of(self._queues_of(topic)) for topic in topics), default=1)

    def _end(self, waiter: _HeldPop) -> None:
        """Run a request for the last time: its timeout has expired."""
        if waiter.timer is not None:
            self._forget(waiter)
            self._run(waiter)

    def _run(self, waiter: _HeldPop) -> bool:
        """Run a request again; return whether it is still held."""
        self._running, self._held_again = waiter, False
        try:
            waiter.again()
        except Exception:  # the other woken requests still get a response
            _log.exception("failed to respond to a held request of %s", waiter.line.place)
            self._wake(waiter.line, 1)
        finally:
            self._running = None
        return self._held_again

    def _open(self, place: PollingKey) -> _Line:
        line = self._lines[place] = _Line(place)
        for topic in _topics(place):
            self.watched.setdefault(topic, {})[line] = None
        return line

    def _forget(self, waiter: _HeldPop) -> None:
        if waiter.timer is None:
            return
        waiter.timer.cancel()
        waiter.timer = None
        self.count -= 1
        self._quota.release(waiter.channel, waiter.weight)
        own = self._by_channel[waiter.channel]
        del own[waiter]
        if not own:
            del self._by_channel[waiter.channel]
        line = waiter.line
        del line.waiters[waiter]
        if not line.waiters:
            del self._lines[line.place]
            for topic in _topics(line.place):
                lines = self.watched[topic]
                del lines[line]
                if not lines:
                    del self.watched[topic]


def _weight(place: PollingKey, request: RemotingCommand) -> int:
    """How often a request counts: once more for each 16 tags or 128 characters of its filter, and for a long name."""
    names = weight_of(place.topic, place.group)
    return names + len(place.tag_codes or ()) // 16 + len(request.ext_fields.get("exp") or "") // 128


def _topics(place: PollingKey) -> tuple[str, ...]:
    """The topics that wake a line. Ordered pops do not read retry topics: messages stay in their own queue."""
    topic, group = place.topic, place.group
    if place.kind is PollingKind.ORDER:
        return (topic,)
    return (topic, retry_topic(topic, group, v2=False), retry_topic(topic, group, v2=True))
