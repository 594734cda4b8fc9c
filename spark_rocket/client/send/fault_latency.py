"""Which broker a send goes to when some of them are slow or failing.

Without fault avoidance the next queue in turn, of another broker than the one that has just failed. With it, every send
tells how long it took, and a broker is passed over for a time that depends on that:

==================  =======  =======  ========  =====  =====  ======  =======
a send took (ms)    50       100      550       1,000  2,000  3,000   15,000
passed over for     0        0        30 s      60 s   120 s  180 s   600 s
==================  =======  =======  ========  =====  =====  ======  =======

A broker that could not be asked at all counts as one that took 30 s. If all are passed over, one of the better half is
taken all the same.

Pure: the clock is given. Thread-safety: all methods.
Corresponds to org.apache.rocketmq.client.latency.{MQFaultStrategy, LatencyFaultToleranceImpl}.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence

from spark_rocket.model import MessageQueue

LATENCY_MAX = (0.05, 0.1, 0.55, 1.0, 2.0, 3.0, 15.0)
NOT_AVAILABLE_DURATION = (0.0, 0.0, 30.0, 60.0, 120.0, 180.0, 600.0)
ISOLATED = 30.0


class FaultStrategy:
    """Chooses queues. Times are seconds of ``clock``."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        enabled: bool = False,
        latency_max: Sequence[float] = LATENCY_MAX,
        not_available_duration: Sequence[float] = NOT_AVAILABLE_DURATION,
    ) -> None:
        self.enabled = enabled
        self._clock = clock
        self._latency_max = latency_max
        self._not_available_duration = not_available_duration
        self._turns = itertools.count(random.randrange(1024))
        self._faults: dict[str, tuple[float, float]] = {}  # broker -> (latency, from when on it is taken again)

    def select(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        """The queue for the next attempt; ``last_broker`` is where the one before failed."""
        if self.enabled and self._faults:
            return self._select_available(queues)
        if last_broker is not None:
            queues = [queue for queue in queues if queue.broker_name != last_broker] or queues
        return queues[next(self._turns) % len(queues)]

    def update(self, broker: str, latency: float, *, isolated: bool = False) -> None:
        """A send took so long; ``isolated``: the broker could not be asked."""
        if self.enabled:
            step = bisect_right(self._latency_max, ISOLATED if isolated else latency)
            duration = self._not_available_duration[step - 1] if step else 0.0
            self._faults[broker] = latency, self._clock() + duration

    def is_available(self, broker: str) -> bool:
        fault = self._faults.get(broker)
        return fault is None or self._clock() >= fault[1]

    def _select_available(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        turn = next(self._turns)
        for step in range(len(queues)):
            queue = queues[(turn + step) % len(queues)]
            if self.is_available(queue.broker_name):
                return queue
        brokers = {queue.broker_name for queue in queues}
        best_first = sorted(brokers, key=lambda broker: self._faults[broker])
        better = best_first[turn % max(1, len(best_first) // 2)]
        own = [queue for queue in queues if queue.broker_name == better]
        return own[turn % len(own)]
