"""Durations of puts in milliseconds: the maximum since the start, and the distribution over the last minute.

A put is one call; a batch counts as one. The time includes preparation (a new file, disk blocks), but not the wait for
the flush or for slaves.
Thread-safety: only for the thread that puts. No state on disk.
Corresponds to putMessageEntireTimeMax, putMessageDistributeTime and putLatency of StoreStatsService.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque

SAMPLES_PER_MINUTE = 6
# Upper bounds of Apache's classes, and their names; the last class is unbounded.
_ENDS = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
_CLASSES = (
    "[<=0ms]",
    "[0~10ms]",
    "[10~50ms]",
    "[50~100ms]",
    "[100~200ms]",
    "[200~500ms]",
    "[500ms~1s]",
    "[1~2s]",
    "[2~3s]",
    "[3~4s]",
    "[4~5s]",
    "[5~10s]",
    "[10s~]",
)


class PutTimes:
    """Put durations of one store."""

    def __init__(self) -> None:
        self.slow: Counter[int] = Counter()
        """Puts since the last sample that took 1 ms or more, by milliseconds. The put updates it."""
        self.failed = 0
        """Number of puts that stored nothing."""
        self._recent: deque[Counter[int]] = deque(maxlen=SAMPLES_PER_MINUTE)
        self._longest = 0
        self._puts = 0

    def sample(self, puts: int) -> None:
        """Start the next ten-second sample; ``puts`` is the total since the start."""
        self._longest = self.longest
        self.slow[0] = puts - self._puts - self.slow.total()
        self._recent.append(self.slow)
        self.slow, self._puts = Counter(), puts

    @property
    def longest(self) -> int:
        """Longest put since the start, in milliseconds."""
        return max(self._longest, max(self.slow, default=0))

    def last_minute(self) -> Counter[int]:
        """Count puts of the last minute by milliseconds, up to the last sample."""
        return sum(self._recent, Counter())

    def runtime_info(self) -> dict[str, str]:
        """Return entries for request 28, with Apache's names and formats."""
        minute = self.last_minute()
        classes: Counter[int] = Counter()
        for took, count in minute.items():
            classes[bisect_right(_ENDS, took)] += count
        return {
            "putMessageEntireTimeMax": str(self.longest),
            "putMessageFailedTimes": str(self.failed),
            # Apache's format ends with a space too.
            "putMessageDistributeTime": "".join(f"{name}:{classes[at]} " for at, name in enumerate(_CLASSES)),
            "putLatency99": f"{_percentile(minute, 0.99):.2f}",
            "putLatency999": f"{_percentile(minute, 0.999):.2f}",
        }


def _percentile(counts: Counter[int], share: float) -> int:
    """Return the duration that this share of the puts did not exceed."""
    wanted = counts.total() * share
    for took in sorted(counts):
        wanted -= counts[took]
        if wanted <= 0:
            return took
    return 0
