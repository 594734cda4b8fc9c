"""How many messages came and went, in all and lately: what code 28 shows, and by group and topic, as 208 does.

Thread-safety: event loop only. Nothing is kept on disk.
Corresponds to org.apache.rocketmq.store.StoreStatsService and GROUP_GET_NUMS of store.stats.BrokerStatsManager.
"""

from __future__ import annotations

from collections import deque

SAMPLE_SECONDS = 10
_WINDOWS = (10, 60, 600)
_MINUTE = 60 // SAMPLE_SECONDS  # samples


class BrokerStats:
    """Running totals, sampled every ``SAMPLE_SECONDS``."""

    def __init__(self) -> None:
        self.puts = 0
        self.gets = 0
        self.get_misses = 0
        self._samples: deque[tuple[int, int, int]] = deque([(0, 0, 0)], maxlen=max(_WINDOWS) // SAMPLE_SECONDS + 1)
        self._fetched: dict[tuple[str, str], int] = {}
        self._fetched_lately: deque[dict[tuple[str, str], int]] = deque(maxlen=_MINUTE)

    def fetched(self, group: str, topic: str, count: int) -> None:
        """A group's pull found messages of a topic."""
        self.gets += count
        key = (group, topic)
        self._fetched[key] = self._fetched.get(key, 0) + count

    def sample(self) -> None:
        self._samples.append((self.puts, self.gets, self.get_misses))
        self._fetched_lately.append(self._fetched)
        self._fetched = {}

    def fetch_rate(self, group: str, topic: str) -> float:
        """Messages a second that a group was given of a topic, over the last minute of samples."""
        count = sum(sample.get((group, topic), 0) for sample in self._fetched_lately)
        return count / (len(self._fetched_lately) * SAMPLE_SECONDS) if count else 0.0

    def rates(self) -> tuple[str, str, str]:
        """Puts, found gets and missed gets a second over 10 s, 1 min and 10 min, as Apache spells them."""
        # The checker cannot count: range(3) makes three.
        return tuple(" ".join(f"{self._rate(kind, window):.6f}" for window in _WINDOWS) for kind in range(3))  # type: ignore[return-value]

    def _rate(self, kind: int, window: int) -> float:
        steps = min(window // SAMPLE_SECONDS, len(self._samples) - 1)
        if steps == 0:
            return 0.0
        return (self._samples[-1][kind] - self._samples[-1 - steps][kind]) / (steps * SAMPLE_SECONDS)
