"""How long puts took, in milliseconds: the longest since the start, and all of the last minute.

A put is a call: a batch is one. What the store had to prepare for it (a new file, room on the disk) is counted; the
wait for the disk or for slaves is not.
Thread-safety: for the thread that puts. Nothing is kept on disk.
Corresponds to putMessageEntireTimeMax, putMessageDistributeTime and putLatency of StoreStatsService.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque

SAMPLES_A_MINUTE = 6
# The upper ends of Apache's classes, and their names, of which the last has no end.
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
    """Counts of one store."""

    def __init__(self) -> None:
        self.slow: Counter[int] = Counter()
        """Puts since the last sample that took a millisecond or more, by the milliseconds; the put adds to it."""
        self.failed = 0
        """Puts that stored nothing."""
        self._recent: deque[Counter[int]] = deque(maxlen=SAMPLES_A_MINUTE)
        self._longest = 0
        self._puts = 0

    def sample(self, puts: int) -> None:
        """Begin the next ten seconds; ``puts`` is how many there were since the start."""
        self._longest = self.longest
        self.slow[0] = puts - self._puts - self.slow.total()
        self._recent.append(self.slow)
        self.slow, self._puts = Counter(), puts

    @property
    def longest(self) -> int:
        return max(self._longest, max(self.slow, default=0))

    def last_minute(self) -> Counter[int]:
        """Puts by milliseconds, up to the last sample."""
        return sum(self._recent, Counter())

    def runtime_info(self) -> dict[str, str]:
        """For request 28, under Apache's names and in its words."""
        minute = self.last_minute()
        classes: Counter[int] = Counter()
        for took, count in minute.items():
            classes[bisect_right(_ENDS, took)] += count
        return {
            "putMessageEntireTimeMax": str(self.longest),
            "putMessageFailedTimes": str(self.failed),
            # The blank at its end is Apache's.
            "putMessageDistributeTime": "".join(f"{name}:{classes[at]} " for at, name in enumerate(_CLASSES)),
            "putLatency99": f"{_percentile(minute, 0.99):.2f}",
            "putLatency999": f"{_percentile(minute, 0.999):.2f}",
        }


def _percentile(counts: Counter[int], share: float) -> int:
    """The milliseconds that this share of the puts did not exceed."""
    wanted = counts.total() * share
    for took in sorted(counts):
        wanted -= counts[took]
        if wanted <= 0:
            return took
    return 0
