"""How many messages came and went, in all and lately: what code 28 shows, by group and topic, as 208 does, and what
/metrics says. Counts by topic are plain attributes, since the send path adds to them.

Thread-safety: event loop only. Nothing is kept on disk.
Corresponds to org.apache.rocketmq.store.StoreStatsService and GROUP_GET_NUMS of store.stats.BrokerStatsManager.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from spark_rocket.broker.metrics.stats_windows import SAMPLE_SECONDS, StatsWindows

_WINDOWS = (10, 60, 600)

# What a message is, as RocketMQ 5's TopicMessageType names it; the numbers are places in TopicCounts' lists.
NORMAL, FIFO, DELAY, TRANSACTION = range(4)
MESSAGE_TYPES = ("normal", "fifo", "delay", "transaction")
_SIZES = 33  # powers of two


class TopicCounts:
    """What came for a topic since the start, by message type. ``sizes[n]`` messages had at most 2**n bytes.

    Normal messages that were sent singly are in ``plain`` (as ``sizes``) and ``plain_bytes`` alone: two steps are what
    the send path has time for.
    """

    __slots__ = ("bytes", "messages", "plain", "plain_bytes", "sizes")

    def __init__(self) -> None:
        self.plain = [0] * _SIZES
        self.plain_bytes = 0
        self.messages = [0, 0, 0, 0]
        self.bytes = [0, 0, 0, 0]
        self.sizes = [0] * _SIZES

    def add(self, kind: int, count: int, size: int) -> None:
        """``count`` messages came, of ``size`` bytes together."""
        self.messages[kind] += count
        self.bytes[kind] += size
        self.sizes[((size - 1) // count).bit_length()] += count

    def of(self, kind: int) -> tuple[int, int]:
        """Messages and bytes of a type."""
        if kind == NORMAL:
            return self.messages[kind] + sum(self.plain), self.bytes[kind] + self.plain_bytes
        return self.messages[kind], self.bytes[kind]

    @property
    def puts(self) -> int:
        return sum(self.messages) + sum(self.plain)

    @property
    def put_bytes(self) -> int:
        return sum(self.bytes) + self.plain_bytes

    @property
    def all_sizes(self) -> list[int]:
        return [one + other for one, other in zip(self.sizes, self.plain, strict=True)]


class GroupCounts:
    """What a group was given of a topic and gave back since the start."""

    __slots__ = ("dead_letters", "get_bytes", "gets", "send_backs")

    def __init__(self) -> None:
        self.gets = 0
        self.get_bytes = 0
        self.send_backs = 0
        self.dead_letters = 0


class Rates(NamedTuple):
    """A second, three figures each: messages put; pulls that found messages, that did not, both; messages given."""

    puts: str
    found: str
    missed: str
    total: str
    transferred: str


class BrokerStats:
    """Running totals, sampled every ``SAMPLE_SECONDS``."""

    def __init__(self) -> None:
        self.puts = 0
        self.gets = 0
        self.finds = 0
        """Pulls and pops that found messages; ``gets`` counts the messages."""
        self.get_misses = 0
        self.topics: dict[str, TopicCounts] = {}
        self.groups: dict[tuple[str, str], GroupCounts] = {}
        """By group and topic."""
        self.committed: dict[str, int] = {}
        """Transactions by topic."""
        self.rolled_back: dict[str, int] = {}
        most = max(_WINDOWS) // SAMPLE_SECONDS + 1
        self._samples: deque[tuple[int, int, int, int]] = deque([(0, 0, 0, 0)], maxlen=most)
        self.windows = StatsWindows(self)

    def topic(self, topic: str) -> TopicCounts:
        """The counts of a topic, to be kept by who counts."""
        counts = self.topics.get(topic)
        if counts is None:
            counts = self.topics[topic] = TopicCounts()
        return counts

    def group(self, group: str, topic: str) -> GroupCounts:
        counts = self.groups.get((group, topic))
        if counts is None:
            counts = self.groups[group, topic] = GroupCounts()
        return counts

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted."""
        self.topics.pop(topic, None)
        for key in [key for key in self.groups if key[1] == topic]:
            del self.groups[key]
        self.committed.pop(topic, None)
        self.rolled_back.pop(topic, None)

    def forget_group(self, group: str) -> None:
        """A group was deleted."""
        for key in [key for key in self.groups if key[0] == group]:
            del self.groups[key]

    def fetched(self, group: str, topic: str, count: int, size: int) -> None:
        """A group's pull found messages of a topic."""
        self.gets += count
        self.finds += 1
        key = (group, topic)
        counts = self.groups.get(key)
        if counts is None:
            counts = self.groups[key] = GroupCounts()
        counts.gets += count
        counts.get_bytes += size

    def sample(self) -> None:
        self._samples.append((self.puts, self.gets, self.get_misses, self.finds))
        self.windows.sample()

    def fetch_rate(self, group: str, topic: str) -> float:
        """Messages a second that a group was given of a topic, over the last minute of samples."""
        return self.windows.get_tps(group, topic)

    def minute_rates(self) -> tuple[float, float]:
        """Puts and gets a second over the last minute of samples."""
        return self._rate(0, 60), self._rate(1, 60)

    def rates(self) -> Rates:
        """Over 10 s, 1 min and 10 min, as Apache spells them."""
        puts, gets, missed, found = ([self._rate(kind, window) for window in _WINDOWS] for kind in range(4))
        total = [one + other for one, other in zip(found, missed, strict=True)]
        return Rates(*(" ".join(f"{rate:.6f}" for rate in rates) for rates in (puts, found, missed, total, gets)))

    def _rate(self, kind: int, window: int) -> float:
        steps = min(window // SAMPLE_SECONDS, len(self._samples) - 1)
        if steps == 0:
            return 0.0
        return (self._samples[-1][kind] - self._samples[-1 - steps][kind]) / (steps * SAMPLE_SECONDS)
