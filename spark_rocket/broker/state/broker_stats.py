"""Counts of a broker: messages by topic, group and type since the start, and over the last minute, hour and day.

Counters only grow. They are sampled every ten seconds. A window is the difference between the last sample and the
oldest retained one: 7 at intervals of ten seconds, 7 of ten minutes, 25 of an hour. After a start, windows are
therefore shorter, not empty. The counters of a recreated topic begin at 0.

Pairs of a group and a topic are bounded (``GROUP_COUNTS``): when there are too many, the pair that has not changed for
the longest time is forgotten. If it is counted again, its counters begin at 0.

====================  ===============  ==========================
statistic             key              sum of
====================  ===============  ==========================
TOPIC_PUT_NUMS        topic            messages
TOPIC_PUT_SIZE        topic            bytes
GROUP_GET_NUMS        topic@group      messages
GROUP_GET_SIZE        topic@group      bytes
SNDBCK_PUT_NUMS       topic@group      messages sent back
BROKER_PUT_NUMS       cluster          messages
BROKER_GET_NUMS       cluster          messages
====================  ===============  ==========================

Not stored on disk. Corresponds to org.apache.rocketmq.store.stats.BrokerStatsManager and common.stats.StatsItem.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import NamedTuple, TypeAlias

from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import GROUP_COUNTS

SAMPLE_SECONDS = 10
MINUTE, HOUR, DAY = range(3)
_INTERVALS = (1, 60, 360)  # of a window's samples, in SAMPLE_SECONDS
_RETAINED = (7, 7, 25)  # number of samples that a window retains

Key: TypeAlias = tuple[str, str]
"""Topic and group; the group is empty for a topic, both are empty for the broker."""
_Counts: TypeAlias = tuple[int, int, int]  # messages, bytes, messages sent back
_Sample: TypeAlias = dict[Key, _Counts]

_NO_COUNTS: _Counts = (0, 0, 0)
BROKER: Key = ("", "")
MESSAGES, BYTES, SEND_BACKS = range(3)

_WINDOWS = (10, 60, 600)

# Types of messages, as in RocketMQ 5's TopicMessageType; the numbers are indexes in TopicCounts' lists.
NORMAL, FIFO, DELAY, TRANSACTION = range(4)
MESSAGE_TYPES = ("normal", "fifo", "delay", "transaction")
_SIZES = 33  # powers of two
_QUEUES_IN_ENTRY = 16


class TopicCounts:
    """Messages stored in a topic since the start, by message type. ``sizes[n]`` messages had at most 2**n bytes."""

    __slots__ = ("bytes", "messages", "sizes")

    def __init__(self) -> None:
        self.messages = [0, 0, 0, 0]
        self.bytes = [0, 0, 0, 0]
        self.sizes = [0] * _SIZES

    def add(self, kind: int, count: int, size: int) -> None:
        """Count ``count`` stored messages with a total of ``size`` bytes."""
        self.messages[kind] += count
        self.bytes[kind] += size
        self.sizes[((size - 1) // count).bit_length()] += count


@dataclass(slots=True)
class GroupCounts:
    """What a group has done with a topic since the start: messages delivered to it, and sent back by it."""

    gets: int = 0
    get_bytes: int = 0
    send_backs: int = 0
    dead_letters: int = 0
    pulled: dict[int, int] = field(default_factory=dict)
    """The offsets up to which it has pulled, by queue id."""


def _weight(counts: GroupCounts) -> int:
    """A pair with many queues counts more than once."""
    return 1 + len(counts.pulled) // _QUEUES_IN_ENTRY


class BrokerRates(NamedTuple):
    """Rates per second, over three windows each.

    ``puts``: messages stored; ``found``, ``missed``, ``total``: pulls with messages, without, and both;
    ``transferred``: messages delivered.
    """

    puts: list[float]
    found: list[float]
    missed: list[float]
    total: list[float]
    transferred: list[float]


class BrokerStats:
    """Running totals, sampled every ``SAMPLE_SECONDS``."""

    def __init__(self) -> None:
        self.puts = 0
        self.gets = 0
        self.finds = 0
        """Pulls and pops that found messages; ``gets`` counts the messages."""
        self.get_misses = 0
        self.topics: dict[str, TopicCounts] = {}
        self.groups: OrderedDict[tuple[str, str], GroupCounts] = OrderedDict()
        """By group and topic; pairs that did not change before the last samples are first."""
        self.committed: dict[str, int] = {}
        """Transactions by topic."""
        self.rolled_back: dict[str, int] = {}
        self._weight = 0
        most = max(_WINDOWS) // SAMPLE_SECONDS + 1
        self._samples: deque[tuple[int, ...]] = deque([(0,) * 6], maxlen=most)
        self.windows = StatsWindows(self)

    def topic(self, topic: str) -> TopicCounts:
        counts = self.topics.get(topic)
        if counts is None:
            counts = self.topics[topic] = TopicCounts()
        return counts

    def group(self, group: str, topic: str) -> GroupCounts:
        return self.groups.get((group, topic)) or self._new_group((group, topic))

    def _new_group(self, key: tuple[str, str]) -> GroupCounts:
        counts = self.groups[key] = GroupCounts()
        self._grow()
        return counts

    def _grow(self) -> None:
        """Count one more entry; forget the pairs that have not changed for the longest time if there are too many."""
        self._weight += 1
        while self._weight > STATE_LIMITS[GROUP_COUNTS].total and len(self.groups) > 1:
            self._weight -= _weight(self.groups.popitem(last=False)[1])

    def forget_topic(self, topic: str) -> None:
        self.topics.pop(topic, None)
        self._forget([key for key in self.groups if key[1] == topic])
        self.committed.pop(topic, None)
        self.rolled_back.pop(topic, None)

    def forget_group(self, group: str) -> None:
        self._forget([key for key in self.groups if key[0] == group])

    def _forget(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            self._weight -= _weight(self.groups.pop(key))

    def fetched(self, group: str, topic: str, count: int, size: int) -> GroupCounts:
        """Count a group's pull or pop that found messages of a topic."""
        self.gets += count
        self.finds += 1
        key = (group, topic)
        counts = self.groups.get(key)
        if counts is None:
            counts = self._new_group(key)
        counts.gets += count
        counts.get_bytes += size
        return counts

    def pulled(self, group: str, topic: str, queue_id: int, count: int, size: int, following: int) -> None:
        """Count a pull that found messages. ``following``: the offset up to which the group has pulled the queue."""
        queues = self.fetched(group, topic, count, size).pulled
        if queue_id not in queues and len(queues) % _QUEUES_IN_ENTRY == _QUEUES_IN_ENTRY - 1:
            queues[queue_id] = following
            self._grow()
        else:
            queues[queue_id] = following

    def pulled_of(self, group: str, topic: str) -> Mapping[int, int]:
        """Offsets up to which a group has pulled, by queue id."""
        counts = self.groups.get((group, topic))
        return {} if counts is None else counts.pulled

    def sample(self, enqueued: int = 0, delivered: int = 0) -> None:
        """Take a sample. ``enqueued``, ``delivered``: the timer's counts, if there is a timer."""
        self._samples.append((self.puts, self.gets, self.get_misses, self.finds, enqueued, delivered))
        self.windows.sample()

    def minute_rates(self) -> tuple[float, float]:
        """Puts and gets per second over the last minute of samples."""
        return self._rate(0, 60), self._rate(1, 60)

    def timer_rates(self) -> tuple[float, float]:
        """Messages per second enqueued in the timer and delivered by it, over 10 s."""
        return self._rate(4, SAMPLE_SECONDS), self._rate(5, SAMPLE_SECONDS)

    def rates(self) -> BrokerRates:
        puts, gets, missed, found = ([self._rate(kind, window) for window in _WINDOWS] for kind in range(4))
        total = [one + other for one, other in zip(found, missed, strict=True)]
        return BrokerRates(puts, found, missed, total, gets)

    def _rate(self, kind: int, window: int) -> float:
        steps = min(window // SAMPLE_SECONDS, len(self._samples) - 1)
        if steps == 0:
            return 0.0
        return (self._samples[-1][kind] - self._samples[-1 - steps][kind]) / (steps * SAMPLE_SECONDS)


class Window(NamedTuple):
    """A sum over a window, with the window's seconds and messages."""

    sum: int
    seconds: int
    messages: int

    @property
    def per_second(self) -> float:
        return self.sum / self.seconds if self.seconds else 0.0

    @property
    def average(self) -> float:
        return self.sum / self.messages if self.messages else 0.0


class StatsWindows:
    """Samples of a broker's counts over a minute, an hour and a day."""

    def __init__(self, stats: BrokerStats, today: Callable[[], date] = date.today) -> None:
        self._stats = stats
        self._today = today
        self._day = today()
        self._count = 0
        self._last: _Sample = {}
        self._retained: tuple[deque[tuple[int, _Sample]], ...] = tuple(
            deque([(0, {})], maxlen=most) for most in _RETAINED
        )
        self.morning = (0, 0)
        """Puts and gets since the start, at the beginning of the day."""
        self.yesterday_morning = (0, 0)

    def sample(self) -> None:
        """Take a sample; called every ``SAMPLE_SECONDS``."""
        self._count += 1
        before, self._last = self._last, self._read()
        self._forget(before.keys() - self._last.keys())
        for samples, interval in zip(self._retained, _INTERVALS, strict=True):
            if self._count % interval == 0:
                samples.append((self._count, self._last))
        today = self._today()
        if today != self._day:
            self._day = today
            self.yesterday_morning, self.morning = self.morning, (self._stats.puts, self._stats.gets)

    def _read(self) -> _Sample:
        """Return all counts. Unchanged ones share the last sample's objects: retained samples need little memory."""
        stats, last = self._stats, self._last
        counts: _Sample = {(topic, ""): (sum(one.messages), sum(one.bytes), 0) for topic, one in stats.topics.items()}
        for (group, topic), one in list(stats.groups.items()):
            key = (topic, group)
            count = counts[key] = (one.gets, one.get_bytes, one.send_backs)
            if last.get(key) != count:
                stats.groups.move_to_end((group, topic))
        counts[BROKER] = (stats.puts, 0, stats.gets)
        if counts == last:
            return last
        keys = {key: key for key in last}
        values = last.get
        return {
            keys.get(key, key): old if (old := values(key)) == count and old is not None else count
            for key, count in counts.items()
        }

    def _forget(self, keys: Collection[Key]) -> None:
        """Remove these from the retained samples."""
        for samples in self._retained:
            for _, sample in samples:
                for key in keys:
                    sample.pop(key, None)

    def knows(self, key: Key) -> bool:
        topic, group = key
        return key == BROKER or (group, topic) in self._stats.groups or (not group and topic in self._stats.topics)

    def window(self, key: Key, column: int, which: int = MINUTE) -> Window:
        """A column's sum over one of the three windows."""
        old, new, seconds = self._between(key, which)
        return Window(new[column] - old[column], seconds, new[MESSAGES] - old[MESSAGES])

    def _between(self, key: Key, which: int) -> tuple[_Counts, _Counts, int]:
        """The counts at the begin and at the end of a window, and its seconds."""
        begun, first = self._retained[which][0]
        old, new = first.get(key, _NO_COUNTS), self._last.get(key, _NO_COUNTS)
        if new[MESSAGES] < old[MESSAGES]:
            old = _NO_COUNTS  # recreated since then: counts from 0
        return old, new, (self._count - begun) * SAMPLE_SECONDS

    # --- over a minute, for 202, 208 and /metrics ---------------------------------------------------------------

    def put_tps(self, topic: str) -> float:
        return self.window((topic, ""), MESSAGES).per_second

    def put_size(self, topic: str) -> float:
        return self.window((topic, ""), BYTES).per_second

    def get_tps(self, group: str, topic: str) -> float:
        return self.window((topic, group), MESSAGES).per_second

    def of_group(self, group: str, topic: str) -> tuple[float, float, int]:
        """Messages and bytes per second that a group got from a topic, and the number of messages that it sent back."""
        old, new, seconds = self._between((topic, group), MINUTE)
        if old is new:  # as the counts of most of very many pairs
            return 0.0, 0.0, 0
        return (
            (new[MESSAGES] - old[MESSAGES]) / seconds,
            (new[BYTES] - old[BYTES]) / seconds,
            new[SEND_BACKS] - old[SEND_BACKS],
        )
