"""How much came and went over the last minute, hour and day, by topic, by group, and of the whole broker.

Counts that only grow (:mod:`stats`) are read every ten seconds; a window is the difference between the last reading and
the oldest that is still kept: seven of every ten seconds, seven of every ten minutes, 25 of every hour, so that a
broker which has just started has short windows rather than none. A topic that was deleted and made anew begins at 0.

====================  ===============  ==========================
statistic             key              sum of
====================  ===============  ==========================
TOPIC_PUT_NUMS        topic            messages
TOPIC_PUT_SIZE        topic            bytes
GROUP_GET_NUMS        topic@group      messages
GROUP_GET_SIZE        topic@group      bytes
SNDBCK_PUT_NUMS       topic@group      messages given back
BROKER_PUT_NUMS       cluster          messages
BROKER_GET_NUMS       cluster          messages
====================  ===============  ==========================

Thread-safety: event loop only. Nothing is kept on disk.
Corresponds to org.apache.rocketmq.store.stats.BrokerStatsManager and common.stats.StatsItem.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from spark_rocket.broker.metrics.stats import BrokerStats

SAMPLE_SECONDS = 10
MINUTE, HOUR, DAY = range(3)
_EVERY = (1, 60, 360)  # samples between two readings that a window keeps
_KEPT = (7, 7, 25)

Key: TypeAlias = tuple[str, str]  # topic and group; the group is "" of a topic, both are of the broker
_Reading: TypeAlias = dict[Key, tuple[int, int, int]]  # messages, bytes, messages given back

BROKER: Key = ("", "")
MESSAGES, BYTES, SEND_BACKS = range(3)


class Window(NamedTuple):
    """What came together in so many seconds, and in how many messages."""

    sum: int
    seconds: int
    messages: int

    @property
    def per_second(self) -> float:
        return self.sum / self.seconds if self.seconds else 0.0

    @property
    def average(self) -> float:
        """Per message."""
        return self.sum / self.messages if self.messages else 0.0


class StatsWindows:
    """Readings of a broker's counts."""

    def __init__(self, stats: BrokerStats, today: Callable[[], date] = date.today) -> None:
        self._stats = stats
        self._today = today
        self._day = today()
        self._count = 0
        self._last: _Reading = {}
        self._kept: tuple[deque[tuple[int, _Reading]], ...] = tuple(deque([(0, {})], maxlen=most) for most in _KEPT)
        self.morning = (0, 0)
        """Puts and gets since the start, when the day began."""
        self.yesterday_morning = (0, 0)

    def sample(self) -> None:
        """Take a reading; every ``SAMPLE_SECONDS``."""
        self._count += 1
        self._last = self._read()
        for kept, every in zip(self._kept, _EVERY, strict=True):
            if self._count % every == 0:
                kept.append((self._count, self._last))
        today = self._today()
        if today != self._day:
            self._day = today
            self.yesterday_morning, self.morning = self.morning, (self._stats.puts, self._stats.gets)

    def _read(self) -> _Reading:
        """All counts; what has not changed is the last reading's own, so that what is kept takes little memory."""
        stats, last = self._stats, self._last
        counts: _Reading = {(topic, ""): (one.puts, one.put_bytes, 0) for topic, one in stats.topics.items()}
        for (group, topic), one in stats.groups.items():
            counts[topic, group] = (one.gets, one.get_bytes, one.send_backs)
        counts[BROKER] = (stats.puts, 0, stats.gets)
        if counts == last:
            return last
        keys = {key: key for key in last}
        values = last.get
        return {
            keys.get(key, key): old if (old := values(key)) == count and old is not None else count
            for key, count in counts.items()
        }

    def knows(self, key: Key) -> bool:
        """Whether anything has been counted under it."""
        topic, group = key
        return key == BROKER or (group, topic) in self._stats.groups or (not group and topic in self._stats.topics)

    def window(self, key: Key, column: int, which: int = MINUTE) -> Window:
        """A column's sum over one of the three windows."""
        begun, first = self._kept[which][0]
        old, new = first.get(key, _NOTHING), self._last.get(key, _NOTHING)
        if new[MESSAGES] < old[MESSAGES]:
            old = _NOTHING  # it was deleted meanwhile, and counts from 0 again
        return Window(new[column] - old[column], (self._count - begun) * SAMPLE_SECONDS, new[MESSAGES] - old[MESSAGES])

    # --- a minute's, for 202, 208 and /metrics ------------------------------------------------------------------

    def put_tps(self, topic: str) -> float:
        return self.window((topic, ""), MESSAGES).per_second

    def put_size(self, topic: str) -> float:
        """Bytes a second."""
        return self.window((topic, ""), BYTES).per_second

    def get_tps(self, group: str, topic: str) -> float:
        return self.window((topic, group), MESSAGES).per_second

    def get_size(self, group: str, topic: str) -> float:
        """Bytes a second."""
        return self.window((topic, group), BYTES).per_second

    def send_back_nums(self, group: str, topic: str) -> int:
        """Messages given back."""
        return self.window((topic, group), SEND_BACKS).sum


_NOTHING = (0, 0, 0)
