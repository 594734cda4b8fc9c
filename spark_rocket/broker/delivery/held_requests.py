"""Long polling: requests without messages are held until one arrives or their timeout expires.

Requests that wait for the same :class:`HeldPlace` form one line, the oldest first. An arrival wakes the lines of its
topic and queue whose tag codes (8 bytes, as in the filter) match. An SQL92 filter needs the record: any tag wakes its
line.
Woken lines are served in the next iteration of the loop, once for all arrivals until then, in one of two ways:

=================================  ====================================================================================
request                            a woken line runs
=================================  ====================================================================================
pull                               each request that waits at an offset before the end of the arrived messages
pop, in order or not               the first request: one pop of every group. If it is completed, others are woken only
                                   by :meth:`HeldRequests.more`; if it fails, the next one runs a little later
notification                       the first ones, as many as messages have arrived: they do not consume messages
=================================  ====================================================================================

A request that runs and calls :meth:`HeldRequests.hold` again found no message: it keeps its position and its remaining
time. Pops behind it are not woken, because they would not find a message either.

A pop or notification for all queues examines a part of a topic with many queues (pop/turns.py). After a wake-up, the
oldest one of a line runs in consecutive iterations of the loop until all parts are examined: at rest, no queue has a
message for a held request.

Each held request has one loop timer; arrivals have none. So its response is sent when the timeout expires, not on a
later tick. Requests of a connection that does not read are run later. If accounts or permissions have changed since a
request was checked, it ends without messages: its client asks again, and is checked again.

Limits: ``maxHeldPulls`` pulls; ``popPollingSize`` pops in a line, ``popPollingMapSize`` lines of pops,
``maxPopPollingSize`` pops in total; and those of a connection and an address (protocol/requests/state.py), where a
request with a long filter counts more. After a crash, held requests are lost; clients retry. Corresponds to
org.apache.rocketmq.broker.longpolling.{PullRequestHoldService, ManyPullRequest, PopLongPollingService, PollingHeader}.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from time import monotonic
from typing import NamedTuple

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.steps import STEP_S
from spark_rocket.protocol.ids import retry_topic
from spark_rocket.protocol.requests.state import HELD_POPS, HELD_PULLS
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.remoting_server import failure_of
from spark_rocket.remoting.server.state_quota import StateQuota, weight_of

_log = logging.getLogger(__name__)

MAX_HELD_MS = 300_000
ANY_QUEUE = -1
# Delay before requests of a line run again if a connection is not writable, or if one has failed.
_BACK_OFF_S = 0.05


class HeldKind(IntEnum):
    """Type of a held request. Lines of different types are woken independently."""

    POP = 0
    ORDER = 1
    NOTIFICATION = 2
    PULL = 3


class HoldResult(Enum):
    """Result of holding a request."""

    HELD = 0
    FULL = 1
    TIMED_OUT = 2


class HeldPlace(NamedTuple):
    """What a request waits for. ``tag_codes`` None: any tag; ``group``: empty for pulls, which wake together."""

    topic: str
    group: str
    queue_id: int
    kind: HeldKind = HeldKind.POP
    tag_codes: frozenset[int] | None = None


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A request, as its processor hands it over."""

    channel: Channel
    request: RemotingCommand
    place: HeldPlace
    again: Callable[[], RemotingCommand | None]
    """Runs the request again; returns its response, or None if it was held again."""
    nothing: Callable[[], RemotingCommand]
    """Returns its response without messages."""
    offset: int = -1
    """For a pull, the offset of the message that it waits for."""
    weight: int = field(init=False, default=1)
    rules: object = field(init=False, default=None)
    line: _Line = field(init=False)
    timer: asyncio.TimerHandle | None = field(init=False, default=None)
    """None if it is not held."""


@dataclass(slots=True, eq=False)
class _Line:
    """Requests for the same place, the oldest first.

    ``watches``: the topics and queues whose messages wake it; ``arrivals``: number of messages since the last run;
    ``end``: the offset after them; ``parts``: number of runs until all queues are examined.
    """

    place: HeldPlace
    family: HeldFamily
    watches: tuple[tuple[str, int], ...]
    waiters: dict[HeldRequest, None] = field(default_factory=dict)
    arrivals: int = 0
    end: int = 0
    parts: int = 0
    is_woken: bool = False
    late: tuple[int, int] | None = None
    """Arrivals and their end for requests that run after a while: their connection was not writable, or one failed."""


class HeldFamily:
    """Held requests with common bounds: pulls; pops and notifications."""

    def __init__(self, quota: str) -> None:
        self.quota = StateQuota(quota)
        self.lines: dict[HeldPlace, _Line] = {}
        self.count = 0


class HeldRequests:
    """Held requests by place and by connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        rules: Callable[[], object] = lambda: None,
        parts_of: Callable[[str], int] = lambda topic: 1,
    ) -> None:
        """``rules``: returns the accounts and permissions in force, another object after each change; ``parts_of``:
        the number of runs that examine all queues of a topic."""
        self._loop = loop
        self._config = config
        self._rules = rules
        self._parts = parts_of
        self.pulls = HeldFamily(HELD_PULLS)
        self.pops = HeldFamily(HELD_POPS)
        self._watched: dict[str, dict[int, dict[_Line, None]]] = {}
        """Topic -> queue, or ANY_QUEUE -> lines that its messages wake."""
        self._by_channel: dict[Channel, dict[HeldRequest, None]] = {}
        self._woken: deque[_Line] = deque()
        self._is_serving = False
        self._running: HeldRequest | None = None
        self._held_again = False

    # --- waiting ------------------------------------------------------------------------------------------------

    def hold(self, held: HeldRequest, milliseconds: int) -> HoldResult:
        """Hold a request until it is woken, but at most for a time; one that runs again keeps its own time."""
        request, channel, place = held.request, held.channel, held.place
        running = self._running
        if running is not None and running.request is request:
            if running.timer is None:
                return HoldResult.TIMED_OUT
            running.offset = held.offset
            self._held_again = True
            return HoldResult.HELD
        if milliseconds <= 0:
            return HoldResult.TIMED_OUT
        family = self.pulls if place.kind is HeldKind.PULL else self.pops
        held.weight = _weight(place, request)
        most, most_lines, most_in_line = self._bounds(place)
        if family.count >= most or family.quota.problem(channel, held.weight) is not None:
            return HoldResult.FULL
        line = family.lines.get(place)
        if line is None:
            if len(family.lines) >= most_lines:
                return HoldResult.FULL
            line = self._open(family, place)
        elif len(line.waiters) >= most_in_line:
            return HoldResult.FULL
        request.body = b""  # the view would keep the complete receive buffer in memory
        request.ext_fields = {}
        held.rules, held.line = self._rules(), line
        family.quota.add(channel, held.weight)
        family.count += 1
        line.waiters[held] = None
        self._by_channel.setdefault(channel, {})[held] = None
        held.timer = self._loop.call_later(min(milliseconds, MAX_HELD_MS) / 1000, self._end, held)
        return HoldResult.HELD

    def of_topic(self, topic: str) -> Iterator[HeldRequest]:
        """Return the requests that messages of a topic wake."""
        return (held for line in self._lines_of(topic) for held in line.waiters)

    def polling_num(self, group: str, topic: str, queue_id: int) -> int:
        """The number of held pops of exactly this queue (-1: of all queues)."""
        kinds = (HeldKind.POP, HeldKind.ORDER)
        return sum(
            len(line.waiters)
            for line in self._lines_of(topic)
            if line.place[:3] == (topic, group, queue_id) and line.place.kind in kinds
        )

    # --- waking -------------------------------------------------------------------------------------------------

    def notify_arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_code: int | None, store_timestamp: int = 0
    ) -> None:
        """Wake requests for one message (its tag code) or several (None) before ``next_offset``."""
        queues = self._watched.get(topic)
        if queues is None:
            return
        for queue in (queue_id, ANY_QUEUE):
            for line in queues.get(queue, ()):
                tag_codes = line.place.tag_codes
                if tags_code is None or tag_codes is None or tags_code in tag_codes:
                    self._wake(line, 1, next_offset)

    def more(self, group: str, topic: str, queue_id: int) -> None:
        """Wake pops and notifications without a new message: a pop left messages in the queue, or a block ended."""
        for line in self._lines_of(topic, queue_id):
            if line.place.group == group:
                self._wake(line, 1)

    def wake_topic(self, topic: str) -> None:
        """Run all requests of a topic for the last time because the topic changed."""
        for held in self.of_topic(topic):
            self._loop.call_soon(self._end, held)

    def offsets_reset(self, group: str, topic: str) -> None:
        """Run the pulls of a topic for the last time and wake the pops of a group, whose offsets have changed."""
        for held in self.of_topic(topic):
            if held.place.kind is HeldKind.PULL:
                self._loop.call_soon(self._end, held)
        self.more(group, topic, ANY_QUEUE)

    def channel_closed(self, channel: Channel) -> None:
        for held in list(self._by_channel.get(channel, ())):
            self._forget(held)

    def close(self) -> None:
        """Drop all held requests; their connections are about to close."""
        for channel in list(self._by_channel):
            self.channel_closed(channel)
        self._woken.clear()

    # --- serving ------------------------------------------------------------------------------------------------

    def _wake(self, line: _Line, arrivals: int, end: int = 0) -> None:
        line.arrivals += arrivals
        if end > line.end:
            line.end = end
        if not line.is_woken:
            self._schedule(line)

    def _schedule(self, line: _Line) -> None:
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
        """Run requests of a line, and again later if they have examined only a part of the queues."""
        arrivals, line.arrivals = line.arrivals, 0
        end, line.end = line.end, 0
        if arrivals:
            line.parts = self._parts_of(line)
        line.parts -= 1
        self._run_line(line, max(arrivals, 1), end)
        if line.parts > 0 and line.waiters and not line.is_woken:
            self._schedule(line)

    def _run_line(self, line: _Line, arrivals: int, end: int) -> None:
        kind = line.place.kind
        behind = False
        for held in list(line.waiters):
            if held.timer is None or held.offset >= end:  # ended meanwhile; waits for later messages
                continue
            if not held.channel.is_active:
                self._forget(held)
                continue
            if not held.channel.is_writable:
                behind = True
                continue
            stays = self._run(held)
            if kind is HeldKind.PULL:
                continue
            arrivals -= 1
            if stays or kind is not HeldKind.NOTIFICATION or not arrivals:
                return
        if behind:
            self._wake_later(line, arrivals, end)

    def _wake_later(self, line: _Line, arrivals: int, end: int = 0) -> None:
        if line.late is None:
            self._loop.call_later(_BACK_OFF_S, self._wake_late, line)
        more, furthest = line.late or (0, 0)
        line.late = more + arrivals, max(furthest, end)

    def _wake_late(self, line: _Line) -> None:
        if line.late is not None:
            arrivals, end = line.late
            line.late = None
            self._wake(line, arrivals, end)

    def _end(self, held: HeldRequest) -> None:
        """Run a request for the last time: its timeout has expired, or its topic has changed."""
        if held.timer is None:
            return
        if held.channel.is_active and not held.channel.is_writable:
            held.timer.cancel()
            held.timer = self._loop.call_later(_BACK_OFF_S, self._end, held)
            return
        self._forget(held)
        if held.channel.is_active:
            self._run(held)

    def _run(self, held: HeldRequest) -> bool:
        """Run a request again and write its response; return whether it is still held."""
        self._running, self._held_again = held, False
        try:
            if held.rules is self._rules():
                response = held.again()
            else:
                response = held.nothing()
                if held.place.kind is not HeldKind.PULL:
                    self._wake(held.line, 1)  # the message is for the next one
        except Exception as error:  # the other woken requests still get a response
            response = failure_of(held.channel, held.request, error)
            if held.place.kind is not HeldKind.PULL:
                self._wake_later(held.line, 1)  # not now: what fails for all would end the whole line
        finally:
            self._running = None
        if self._held_again:
            return True
        self._forget(held)
        if response is not None and not held.request.is_oneway:
            try:
                held.channel.write(response)
            except Exception:  # again, the others get theirs
                _log.exception("failed to respond to a held request of %s", held.place)
        return False

    # --- inside -------------------------------------------------------------------------------------------------

    def _bounds(self, place: HeldPlace) -> tuple[int, int, int]:
        """The most requests of a family, lines, and requests in a line."""
        config = self._config
        if place.kind is HeldKind.PULL:
            return config.max_held_pulls, config.max_held_pulls, config.max_held_pulls
        return config.max_pop_polling_size, config.pop_polling_map_size, config.pop_polling_size

    def _lines_of(self, topic: str, queue_id: int = ANY_QUEUE) -> list[_Line]:
        """The lines that messages of a topic wake, or of one of its queues."""
        queues = self._watched.get(topic, {})
        keys = queues if queue_id < 0 else (queue_id, ANY_QUEUE)
        return [line for key in keys for line in queues.get(key, ())]

    def _parts_of(self, line: _Line) -> int:
        """The number of runs that examine all queues of a place."""
        parts = 1
        for topic, queue_id in line.watches:
            if queue_id < 0:
                parts = max(parts, self._parts(topic))
        return parts

    def _open(self, family: HeldFamily, place: HeldPlace) -> _Line:
        line = family.lines[place] = _Line(place, family, _watches(place))
        for topic, queue_id in line.watches:
            self._watched.setdefault(topic, {}).setdefault(queue_id, {})[line] = None
        line.parts = self._parts_of(line) - 1  # the request itself has examined one
        if line.parts > 0:
            self._schedule(line)
        return line

    def _forget(self, held: HeldRequest) -> None:
        if held.timer is None:
            return
        held.timer.cancel()
        held.timer = None
        line = held.line
        family = line.family
        family.count -= 1
        family.quota.release(held.channel, held.weight)
        own = self._by_channel[held.channel]
        del own[held]
        if not own:
            del self._by_channel[held.channel]
        del line.waiters[held]
        if not line.waiters:
            self._close(line)

    def _close(self, line: _Line) -> None:
        del line.family.lines[line.place]
        for topic, queue_id in line.watches:
            queues = self._watched[topic]
            lines = queues[queue_id]
            del lines[line]
            if not lines:
                del queues[queue_id]
            if not queues:
                del self._watched[topic]


def _weight(place: HeldPlace, request: RemotingCommand) -> int:
    """How often a request counts: once more for each 16 tags or 128 characters of its filter, and for a long name."""
    ext = request.ext_fields
    expression = ext.get("subscription" if place.kind is HeldKind.PULL else "exp") or ""
    return weight_of(place.topic, place.group) + len(place.tag_codes or ()) // 16 + len(expression) // 128


def _watches(place: HeldPlace) -> tuple[tuple[str, int], ...]:
    """The queues whose messages wake a line. Retry topics are read whatever the queue, but not by pulls and pops in
    order: those messages stay in their own queue."""
    topic, group, queue_id = place.topic, place.group, place.queue_id
    own = (topic, max(queue_id, ANY_QUEUE))
    if place.kind in (HeldKind.ORDER, HeldKind.PULL):
        return (own,)
    retries = [(retry_topic(topic, group, v2=v2), ANY_QUEUE) for v2 in (False, True)]
    return (own, *retries)
