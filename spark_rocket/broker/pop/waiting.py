"""Pops and notifications that found nothing and wait: until a message comes for their group, or their time is up.

Those that wait for the same thing, the same :class:`Place`, stand in one line, the oldest in front. A message that
comes in a queue of the topic, or in one of the group's retry topics for it, wakes the front of each line that it is
for: one pop of every group, not all of them. What happens next is up to what that one found:

=========  =========================================================================================================
answer     then
=========  =========================================================================================================
``DONE``   it is gone, and with it all that there was: the others sleep on
``MORE``   it is gone; there is more than it could take, or it failed: the next one is woken
``TOLD``   it is gone, but took nothing (a notification): as many are woken as messages came
``WAITS``  it stays in its place for its remaining time; another would find nothing either
``AGAIN``  it stays, and is run again in the next turn: what came did not match, and there is more to look at
=========  =========================================================================================================

Arrivals of one turn of the loop are gathered. A line with tags sleeps while only other tags come, since 8-byte tag
codes decide, as for the real filter; with SQL92 only the record can tell, so its front looks at once. A line that is
served for more than a slice of time lets others have their turn. One loop timer per waiting request, none per arrival.

Thread-safety: used on the event loop only. Bounds: ``popPollingSize`` requests in a line, ``popPollingMapSize`` lines,
``maxPopPollingSize`` requests altogether. After a crash: nothing is kept; clients ask again.
Corresponds to org.apache.rocketmq.broker.longpolling.{PopLongPollingService, PopRequest, PollingHeader}.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, IntEnum, auto
from time import perf_counter
from typing import NamedTuple

from spark_rocket.broker.config import BrokerConfig
from spark_rocket.broker.topics import RETRY_PREFIX
from spark_rocket.remoting.server import Channel

_log = logging.getLogger(__name__)

_MAX_HELD_MS = 300_000
_NEARLY_OVER_MS = 50  # as Apache's: what has less left is not worth holding
_SLICE_SECONDS = 0.002
# A waiting request whose connection is behind with reading is looked at again after this long.
_BACK_OFF_SECONDS = 0.05


class Kind(IntEnum):
    """What waits. Lines of different kinds are woken beside each other."""

    POP = auto()
    ORDER = auto()
    NOTIFICATION = auto()


class Place(NamedTuple):
    """What is waited for. ``queue_id`` -1 means every queue, ``tag_codes`` None that the tag does not decide."""

    topic: str
    group: str
    queue_id: int
    kind: Kind = Kind.POP
    tag_codes: frozenset[int] | None = None


class Woken(Enum):
    """What became of a request that was run again; the table is in the module's text."""

    DONE = auto()
    MORE = auto()
    TOLD = auto()
    WAITS = auto()
    AGAIN = auto()


class Polling(Enum):
    """Whether a request waits: if not, ``FULL`` is answered 209 and ``TIMEOUT`` 210."""

    HELD = auto()
    FULL = auto()
    TIMEOUT = auto()


class Waiter:
    """One waiting request. ``again(last)`` runs it again and writes its answer; the last time it must answer."""

    __slots__ = ("again", "channel", "place", "timer")

    def __init__(self, channel: Channel, place: Place, again: Callable[[bool], Woken]) -> None:
        self.channel = channel
        self.place = place
        self.again = again
        self.timer: asyncio.TimerHandle | None = None


class _Line:
    """Who waits for the same, the oldest first."""

    __slots__ = ("arrivals", "place", "waiters")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.waiters: dict[Waiter, None] = {}
        self.arrivals = 0


def retry_topic_v1(topic: str, group: str) -> str:
    """The retry topic of a group for one topic, as every Apache broker reads it."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def retry_topic_v2(topic: str, group: str) -> str:
    """As ``enableRetryTopicV2`` names it; ``+`` is in no topic's or group's name, so it can be taken apart again."""
    return f"{RETRY_PREFIX}{group}+{topic}"


class PopLongPollingService:
    """The waiting requests by place and by connection. ``watched`` has the lines of each topic whose messages count."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: BrokerConfig, clock: Callable[[], int]) -> None:
        self._loop = loop
        self._config = config
        self._clock = clock
        self._lines: dict[Place, _Line] = {}
        self._by_channel: dict[Channel, dict[Waiter, None]] = {}
        self._woken: list[_Line] = []
        self.watched: dict[str, dict[_Line, None]] = {}
        self.count = 0

    # --- waiting ------------------------------------------------------------------------------------------------

    def hold(self, waiter: Waiter, born_time: int, poll_time: int) -> Polling:
        """Keep a request until ``poll_time`` ms after its birth, by the client's clock; not longer than that from now."""
        left = poll_time
        if born_time > 0:
            left = min(left, born_time + poll_time - self._clock())
        if left <= _NEARLY_OVER_MS:
            return Polling.TIMEOUT
        config = self._config
        line = self._lines.get(waiter.place)
        if self.count >= config.max_pop_polling_size:
            return Polling.FULL
        if line is None:
            if len(self._lines) >= config.pop_polling_map_size:
                return Polling.FULL
            line = self._open(waiter.place)
        elif len(line.waiters) >= config.pop_polling_size:
            return Polling.FULL
        line.waiters[waiter] = None
        self._by_channel.setdefault(waiter.channel, {})[waiter] = None
        self.count += 1
        waiter.timer = self._loop.call_later(min(left, _MAX_HELD_MS) / 1000, self._expire, waiter)
        return Polling.HELD

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
            if place.queue_id in (-1, queue_id) or topic != place.topic:  # retry topics are read whatever the queue
                if tags_code is None or place.tag_codes is None or tags_code in place.tag_codes:
                    self._wake(line, 1)

    def wake(self, topic: str, group: str, queue_id: int) -> None:
        """There is something to be had without a new message: another took less than there was, a block ended."""
        for line in self.watched.get(topic, ()):
            place = line.place
            if place.group == group and place.topic == topic and (queue_id < 0 or place.queue_id in (-1, queue_id)):
                self._wake(line, 1)

    def wake_topic(self, topic: str) -> None:
        """Answer everybody, because the topic itself changed."""
        for line in list(self.watched.get(topic, ())):
            for waiter in list(line.waiters):
                self._forget(waiter)
                self._loop.call_soon(self._run, waiter, True)

    def channel_closed(self, channel: Channel) -> None:
        for waiter in list(self._by_channel.get(channel, ())):
            self._forget(waiter)

    def close(self) -> None:
        """Forget all of them; their connections are about to close."""
        for line in list(self._lines.values()):
            for waiter in list(line.waiters):
                self._forget(waiter)
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
        until = perf_counter() + _SLICE_SECONDS
        for line in woken:
            arrivals, line.arrivals = line.arrivals, 0
            self._serve(line, arrivals, until)

    def _serve(self, line: _Line, arrivals: int, until: float) -> None:
        behind = False
        for waiter in list(line.waiters):
            if waiter not in line.waiters:  # its connection closed meanwhile
                continue
            if not waiter.channel.is_active:
                self._forget(waiter)
                continue
            if not waiter.channel.is_writable:
                behind = True
                continue
            if perf_counter() > until:
                self._wake(line, arrivals)
                return
            woken = self._run(waiter, False)
            if woken is Woken.WAITS:
                return
            if woken is Woken.AGAIN:
                self._wake(line, arrivals)
                return
            self._forget(waiter)
            arrivals -= woken is Woken.TOLD
            if woken is Woken.DONE or arrivals <= 0:
                return
        if behind:
            self._loop.call_later(_BACK_OFF_SECONDS, self._wake, line, arrivals)

    def _expire(self, waiter: Waiter) -> None:
        self._forget(waiter)
        self._run(waiter, True)

    @staticmethod
    def _run(waiter: Waiter, last: bool) -> Woken:
        try:
            return waiter.again(last)
        except Exception:  # the others that were woken with it still get theirs
            _log.exception("a waiting request of %s was not answered", waiter.place)
            return Woken.MORE

    def _open(self, place: Place) -> _Line:
        line = self._lines[place] = _Line(place)
        for topic in _topics(place):
            self.watched.setdefault(topic, {})[line] = None
        return line

    def _forget(self, waiter: Waiter) -> None:
        if waiter.timer is None:
            return
        waiter.timer.cancel()
        waiter.timer = None
        self.count -= 1
        own = self._by_channel[waiter.channel]
        del own[waiter]
        if not own:
            del self._by_channel[waiter.channel]
        line = self._lines[waiter.place]
        del line.waiters[waiter]
        if not line.waiters:
            del self._lines[waiter.place]
            for topic in _topics(waiter.place):
                lines = self.watched[topic]
                del lines[line]
                if not lines:
                    del self.watched[topic]


def _topics(place: Place) -> tuple[str, ...]:
    """Whose messages count. In order mode retry topics are not read: messages come again in their own queue."""
    topic, group = place.topic, place.group
    if place.kind is Kind.ORDER:
        return (topic,)
    return (topic, retry_topic_v1(topic, group), retry_topic_v2(topic, group))
