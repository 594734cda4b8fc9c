"""Pops and notifications that found nothing and wait: until a message comes for their group, or their time is up.

Those that wait for the same thing, the same :class:`Place`, stand in one line, the oldest in front. A message that
comes in a queue of the topic, or in one of the group's retry topics for it, wakes the front of each line that it is
for: one pop of every group, not all of them. The front is run again. If it calls ``hold`` once more it found nothing
and keeps its place and its remaining time; the others sleep on, since they would find nothing either. If it is
answered, others are woken only when it says that there is ``more``. Notifications take nothing: of them as many are
woken as messages came.

Arrivals of one turn of the loop are gathered. A line with tags sleeps while only other tags come, since 8-byte tag
codes decide, as for the real filter; with SQL92 only the record can tell, so its front looks at once. One loop timer
per waiting request, none per arrival.

Thread-safety: used on the event loop only. Bounds: ``popPollingSize`` requests in a line, ``popPollingMapSize`` lines,
``maxPopPollingSize`` requests altogether. After a crash: nothing is kept; clients ask again.
Corresponds to org.apache.rocketmq.broker.longpolling.{PopLongPollingService, PopRequest, PollingHeader}.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from spark_rocket.broker.pop.requests import PopRequest
from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.protocol.ids import retry_topic
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel

_log = logging.getLogger(__name__)

_MAX_HELD_MS = 300_000
_NEARLY_OVER_MS = 50  # as Apache's: what has less left is not worth holding
# A waiting request whose connection is behind with reading is looked at again after this long.
_BACK_OFF_SECONDS = 0.05


class Kind(IntEnum):
    """What waits. Lines of different kinds are woken beside each other."""

    POP = 0
    ORDER = 1
    NOTIFICATION = 2


class Held(Enum):
    """What became of a request that found nothing."""

    HELD = 0
    FULL = 1
    TIMED_OUT = 2


class Place(NamedTuple):
    """What is waited for. ``queue_id`` -1 means every queue, ``tag_codes`` None that the tag does not decide."""

    topic: str
    group: str
    queue_id: int
    kind: Kind = Kind.POP
    tag_codes: frozenset[int] | None = None


@dataclass(slots=True, eq=False)
class _Waiter:
    """One waiting request."""

    channel: Channel
    request: RemotingCommand
    line: _Line
    again: Callable[[], None]
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Line:
    """Requests that wait for the same, the oldest first; ``arrivals``: since the front was looked at."""

    place: Place
    waiters: dict[_Waiter, None] = field(default_factory=dict)
    arrivals: int = 0


class PopLongPollingService:
    """The waiting requests by place and by connection. ``watched`` has the lines of each topic whose messages count."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: BrokerConfig, clock: Callable[[], int]) -> None:
        self._loop = loop
        self._config = config
        self._clock = clock
        self._lines: dict[Place, _Line] = {}
        self._by_channel: dict[Channel, dict[_Waiter, None]] = {}
        self._woken: list[_Line] = []
        self._running: _Waiter | None = None
        self._held_again = False
        self.watched: dict[str, dict[_Line, None]] = {}
        self.count = 0

    # --- waiting ------------------------------------------------------------------------------------------------

    def hold(self, channel: Channel, request: RemotingCommand, pop: PopRequest, again: Callable[[], None]) -> Held:
        """Keep a pop that found nothing; ``again`` runs when there may be a message, or when its time is up."""
        kind = Kind.ORDER if pop.order else Kind.POP
        place = Place(pop.topic, pop.group, pop.queue_id, kind, pop.wanted.tag_codes)
        return self.hold_at(place, channel, request, pop.born_time, pop.poll_time, again)

    def hold_at(
        self,
        place: Place,
        channel: Channel,
        request: RemotingCommand,
        born_time: int,
        poll_time: int,
        again: Callable[[], None],
    ) -> Held:
        """Keep a request until ``poll_time`` ms after its birth by the client's clock, but no longer than that."""
        running = self._running
        if running is not None and running.request is request:
            if running.timer is None:
                return Held.TIMED_OUT
            self._held_again = True
            return Held.HELD
        left = poll_time
        if born_time > 0:
            left = min(left, born_time + poll_time - self._clock())
        if left <= _NEARLY_OVER_MS:
            return Held.TIMED_OUT
        config = self._config
        if self.count >= config.max_pop_polling_size:
            return Held.FULL
        line = self._lines.get(place)
        if line is None:
            if len(self._lines) >= config.pop_polling_map_size:
                return Held.FULL
            line = self._open(place)
        elif len(line.waiters) >= config.pop_polling_size:
            return Held.FULL
        request.body = b""  # a view that would keep everything that was read with it
        waiter = _Waiter(channel, request, line, again)
        line.waiters[waiter] = None
        self._by_channel.setdefault(channel, {})[waiter] = None
        self.count += 1
        waiter.timer = self._loop.call_later(min(left, _MAX_HELD_MS) / 1000, self._end, waiter)
        return Held.HELD

    def polling_num(self, topic: str, group: str, queue_id: int) -> int:
        """How many pops wait for exactly this queue (or, -1, for all)."""
        return sum(
            len(line.waiters)
            for line in self.watched.get(topic, ())
            if line.place[:3] == (topic, group, queue_id) and line.place.kind is not Kind.NOTIFICATION
        )

    # --- waking -------------------------------------------------------------------------------------------------

    def notify_arriving(self, topic: str, queue_id: int, tags_code: int | None) -> None:
        """A message came (its tag's code; None: several of any tags). Ask only when the topic is ``watched``."""
        for line in self.watched[topic]:
            place = line.place
            if (
                (place.queue_id in (-1, queue_id) or topic != place.topic)  # retry topics are read whatever the queue
                and (tags_code is None or place.tag_codes is None or tags_code in place.tag_codes)
            ):
                self._wake(line, 1)

    def more(self, topic: str, queue_id: int, group: str) -> None:
        """There is something to be had without a new message: another took less than there was, a block ended."""
        for line in self.watched.get(topic, ()):
            place = line.place
            if place.group == group and (queue_id < 0 or place.queue_id in (-1, queue_id) or place.topic != topic):
                self._wake(line, 1)

    def wake_topic(self, topic: str) -> None:
        """Run everybody for the last time, because the topic itself changed."""
        for line in list(self.watched.get(topic, ())):
            for waiter in list(line.waiters):
                self._loop.call_soon(self._end, waiter)

    def channel_closed(self, channel: Channel) -> None:
        for waiter in list(self._by_channel.get(channel, ())):
            self._forget(waiter)

    def close(self) -> None:
        """Forget all of them; their connections are about to close."""
        for channel in list(self._by_channel):
            self.channel_closed(channel)
        self._woken.clear()

    # --- inside -------------------------------------------------------------------------------------------------

    def _wake(self, line: _Line, arrivals: int) -> None:
        if not line.arrivals:
            if not self._woken:
                self._loop.call_soon(self._serve_woken)
            self._woken.append(line)
        line.arrivals += arrivals

    def _serve_woken(self) -> None:
        woken, self._woken = self._woken, []
        for line in woken:
            self._serve(line)

    def _serve(self, line: _Line) -> None:
        """Run the front; of notifications, as many as messages came."""
        arrivals, line.arrivals = line.arrivals, 0
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
            if line.place.kind is not Kind.NOTIFICATION or not arrivals:
                return
        if behind:
            self._loop.call_later(_BACK_OFF_SECONDS, self._wake, line, arrivals)

    def _end(self, waiter: _Waiter) -> None:
        """Its time is up: what it finds now, or nothing, is its answer."""
        if waiter.timer is not None:
            self._forget(waiter)
            self._run(waiter)

    def _run(self, waiter: _Waiter) -> bool:
        """Run a request again; whether it goes on waiting."""
        self._running, self._held_again = waiter, False
        try:
            waiter.again()
        except Exception:  # the others that were woken with it still get theirs
            _log.exception("a waiting request of %s was not answered", waiter.line.place)
            self._wake(waiter.line, 1)
        finally:
            self._running = None
        return self._held_again

    def _open(self, place: Place) -> _Line:
        line = self._lines[place] = _Line(place)
        for topic in _topics(place):
            self.watched.setdefault(topic, {})[line] = None
        return line

    def _forget(self, waiter: _Waiter) -> None:
        if waiter.timer is None:
            return
        waiter.timer.cancel()
        waiter.timer = None
        self.count -= 1
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


def _topics(place: Place) -> tuple[str, ...]:
    """Whose messages count. In order mode retry topics are not read: messages come again in their own queue."""
    topic, group = place.topic, place.group
    if place.kind is Kind.ORDER:
        return (topic,)
    return (topic, retry_topic(topic, group, v2=False), retry_topic(topic, group, v2=True))
