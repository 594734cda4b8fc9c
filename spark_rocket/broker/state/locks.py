"""Which client of a group may consume a queue in order: locks that end 60 seconds after their last renewal.

Thread-safety: event loop only. After a crash: nothing is kept; clients ask again within 20 seconds.
Corresponds to org.apache.rocketmq.broker.client.rebalance.RebalanceLockManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spark_rocket.model import MessageQueue


class RebalanceLockManager:
    """group -> queue -> (client, time of the last renewal).

    ``clock`` gives milliseconds, and must be one that nobody sets: set back, it would make a dead client's locks last.
    """

    def __init__(self, clock: Callable[[], int], live_time_ms: int) -> None:
        self._clock = clock
        self._live_time = live_time_ms
        self._locks: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> list[MessageQueue]:
        """Lock or renew what is free, expired or the client's own; the queues it now holds."""
        now = self._clock()
        locks = self._locks.setdefault(group, {})
        held = []
        for queue in queues:
            owner = locks.get(queue)
            if owner is None or owner[0] == client_id or now - owner[1] > self._live_time:
                locks[queue] = (client_id, now)
                held.append(queue)
        return held

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        locks = self._locks.get(group, {})
        for queue in queues:
            owner = locks.get(queue)
            if owner is not None and owner[0] == client_id:
                del locks[queue]
        if not locks:
            self._locks.pop(group, None)
