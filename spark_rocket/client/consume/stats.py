"""How fast a consumer pulls and consumes, topic by topic: the ``statusTable`` that tools are shown (307).

Rates and means are over the last minute, in steps of ten seconds; failures are those of the last hour, in steps of ten
minutes. What was before is forgotten.

Thread-safety: all methods. Corresponds to org.apache.rocketmq.client.stat.ConsumerStatsManager.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_rocket.protocol.wire.bodies import ConsumeStatus

STEP = 10.0
STEPS = 6
FAILURES_STEP = 600.0


@dataclass(slots=True)
class _Counts:
    """Of one step."""

    step: int
    pulls: int = 0
    pull_seconds: float = 0.0
    pulled: int = 0
    calls: int = 0
    call_seconds: float = 0.0
    consumed: int = 0
    failed: int = 0


@dataclass(slots=True)
class _Topic:
    minute: deque[_Counts] = field(default_factory=lambda: deque(maxlen=STEPS))
    failures: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=STEPS))


class ConsumerStats:
    """``pulled`` and ``consumed`` are told, ``status`` is asked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}

    def pulled(self, topic: str, messages: int, seconds: float) -> None:
        """A pull found messages, so long after it was sent."""
        with self._lock:
            counts = self._now(topic)
            counts.pulls += 1
            counts.pull_seconds += seconds
            counts.pulled += messages

    def consumed(self, topic: str, calls: int, consumed: int, failed: int, seconds: float) -> None:
        """Calls of the listener have ended, which took so long together."""
        if not calls:
            return
        with self._lock:
            counts = self._now(topic)
            counts.calls += calls
            counts.call_seconds += seconds
            counts.consumed += consumed
            counts.failed += failed
            if failed:
                failures, step = self._topics[topic].failures, int(self._clock() / FAILURES_STEP)
                if failures and failures[-1][0] == step:
                    failed += failures.pop()[1]
                failures.append((step, failed))

    def _now(self, topic: str) -> _Counts:
        step = int(self._clock() / STEP)
        minute = self._topics.setdefault(topic, _Topic()).minute
        if not minute or minute[-1].step != step:
            minute.append(_Counts(step))
        return minute[-1]

    def status(self, topic: str) -> ConsumeStatus:
        """As of now."""
        with self._lock:
            known = self._topics.get(topic)
            if known is None:
                return ConsumeStatus()
            now = self._clock()
            minute = [counts for counts in known.minute if counts.step > now / STEP - STEPS]
            hour = [failed for step, failed in known.failures if step > now / FAILURES_STEP - STEPS]
        status = ConsumeStatus(consume_failed_msgs=sum(hour))
        if minute:
            seconds = max(STEP, now - minute[0].step * STEP)
            status.pull_rt = _mean_ms(sum(c.pull_seconds for c in minute), sum(c.pulls for c in minute))
            status.pull_tps = sum(c.pulled for c in minute) / seconds
            status.consume_rt = _mean_ms(sum(c.call_seconds for c in minute), sum(c.calls for c in minute))
            status.consume_ok_tps = sum(c.consumed for c in minute) / seconds
            status.consume_failed_tps = sum(c.failed for c in minute) / seconds
        return status


def _mean_ms(seconds: float, count: int) -> float:
    return seconds * 1000 / count if count else 0.0
