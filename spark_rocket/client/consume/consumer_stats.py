"""Statistics of a consumer per topic, as in the ``statusTable`` shown by tools (307).

Rates and means are over the last minute, in steps of ten seconds; failures are those of the last hour, in steps of ten
minutes.

Corresponds to client.stat.ConsumerStatsManager.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable

from spark_rocket.protocol.wire.bodies.consumer import ConsumeStatus

INTERVAL_S = 10.0
INTERVALS = 6
FAILURES_INTERVAL_S = 600.0


class _StatsWindow:
    """Sums of the last ``INTERVALS`` intervals."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._steps: deque[tuple[int, defaultdict[str, float]]] = deque(maxlen=INTERVALS)

    def add(self, now: float, **amounts: float) -> None:
        step = int(now / self._interval)
        if not self._steps or self._steps[-1][0] != step:
            self._steps.append((step, defaultdict(float)))
        for name, amount in amounts.items():
            self._steps[-1][1][name] += amount

    def sums(self, now: float) -> tuple[dict[str, float], float]:
        """Return the sums, and the seconds since their first interval began, at least one interval."""
        recent = [(step, sums) for step, sums in self._steps if step > now / self._interval - INTERVALS]
        total: dict[str, float] = defaultdict(float)
        for _, sums in recent:
            for name, amount in sums.items():
                total[name] += amount
        return total, max([self._interval, *(now - step * self._interval for step, _ in recent[:1])])


class ConsumerStats:
    """Counts ``pulled`` and ``consumed`` messages; ``status`` returns the statistics."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._minute: dict[str, _StatsWindow] = defaultdict(lambda: _StatsWindow(INTERVAL_S))
        self._hour: dict[str, _StatsWindow] = defaultdict(lambda: _StatsWindow(FAILURES_INTERVAL_S))

    def pulled(self, topic: str, messages: int, seconds: float) -> None:
        with self._lock:
            self._minute[topic].add(self._clock(), pulls=1, pull_seconds=seconds, pulled=messages)

    def consumed(self, topic: str, calls: int, consumed: int, failed: int, seconds: float) -> None:
        """Count finished calls of the listener and their total duration."""
        if calls:
            with self._lock:
                now = self._clock()
                self._minute[topic].add(now, calls=calls, call_seconds=seconds, consumed=consumed, failed=failed)
                self._hour[topic].add(now, failed=failed)

    def status(self, topic: str) -> ConsumeStatus:
        with self._lock:
            sums, seconds = self._minute[topic].sums(self._clock())
            failures, _ = self._hour[topic].sums(self._clock())
        return ConsumeStatus(
            pull_rt=sums["pull_seconds"] * 1000 / (sums["pulls"] or 1),
            pull_tps=sums["pulled"] / seconds,
            consume_rt=sums["call_seconds"] * 1000 / (sums["calls"] or 1),
            consume_ok_tps=sums["consumed"] / seconds,
            consume_failed_tps=sums["failed"] / seconds,
            consume_failed_msgs=int(failures["failed"]),
        )
