"""Locks of queues for ordered consumption: one client of a group consumes a queue at a time.

A lock ends ``rebalanceLockMaxLiveTime`` after its last renewal, and is counted until then (protocol/requests/state.py).
It survives the end of its connection, as in Apache's broker: the client may still process messages that it received.
Only when the last member of the group unregisters, all locks of the group end.

After a crash: nothing is stored; clients lock again. Corresponds to
org.apache.rocketmq.broker.client.rebalance.RebalanceLockManager, which never removes expired locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spark_rocket.model import MessageQueue
from spark_rocket.protocol.requests.state import QUEUE_LOCKS
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.state_quota import StateQuota, weight_of

_MAX_EXPIRED = 20_000


@dataclass(slots=True)
class _Lock:
    """A locked queue. ``renewed``: the time of the last renewal; ``channel`` is counted for it."""

    client_id: str
    renewed: int
    channel: Channel
    weight: int


class RebalanceLockManager:
    """Locks by group and queue. ``clock``: monotonic milliseconds."""

    def __init__(self, clock: Callable[[], int], live_time_ms: int) -> None:
        self._clock = clock
        self._live_time = live_time_ms
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}
        self._quota = StateQuota(QUEUE_LOCKS)

    @property
    def count(self) -> int:
        """The number of locks, with those that have expired since the last call of :meth:`expire`."""
        return sum(map(len, self._locks.values()))

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str, channel: Channel) -> list[MessageQueue]:
        """Lock or renew queues that are free, expired or the client's own; returns the queues that it now holds.

        RefusedError if there are too many locks; those before it in ``queues`` are held.
        """
        now = self._clock()
        locks = self._locks.get(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id != client_id and now - lock.renewed <= self._live_time:
                continue
            weight = weight_of(group, client_id, queue.topic, queue.broker_name)
            if lock is None or lock.channel is not channel or lock.weight != weight:
                self._quota.take(channel, weight)
                if lock is not None:
                    self._quota.release(lock.channel, lock.weight)
                locks[queue] = _Lock(client_id, now, channel, weight)
                self._locks[group] = locks
            else:
                lock.client_id, lock.renewed = client_id, now
            held.append(queue)
        return held

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        locks = self._locks.get(group, {})
        self._remove(group, [queue for queue in queues if (lock := locks.get(queue)) and lock.client_id == client_id])

    def release_group(self, group: str) -> None:
        """End the locks of a group whose last member has unregistered."""
        self._remove(group, list(self._locks.get(group, ())))

    def expire(self) -> None:
        """Remove expired locks, at most ``_MAX_EXPIRED``; the next call removes more."""
        oldest = self._clock() - self._live_time
        left = _MAX_EXPIRED
        for group, locks in list(self._locks.items()):
            expired = [queue for queue, lock in locks.items() if lock.renewed < oldest][:left]
            self._remove(group, expired)
            left -= len(expired)

    def _remove(self, group: str, queues: Iterable[MessageQueue]) -> None:
        locks = self._locks.get(group)
        if locks is None:
            return
        for queue in queues:
            lock = locks.pop(queue, None)
            if lock is not None:
                self._quota.release(lock.channel, lock.weight)
        if not locks:
            del self._locks[group]
