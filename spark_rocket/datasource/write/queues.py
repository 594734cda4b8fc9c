"""The queues of a task's rows: those that rows may name, and those that are drawn for free blocks.

The queue of a free block is a function of the write, the block's lot and the topic's writable queues. A queue that is
added or removed moves no lot between the others. A retried task draws the queue of the first attempt, where a reader
can detect the duplicate.

A ``TaskQueues`` belongs to one task and thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue


class QueuesOf(Protocol):
    """Look up the writable queues of a topic; ``ordered``: including queues of unavailable brokers."""

    def __call__(self, topic: str, *, ordered: bool = False) -> Sequence[MessageQueue]: ...


class TaskQueues:
    """Chooses queues. ``key`` is the write's; a look-up that fails is repeated within a ``retry_deadline``."""

    def __init__(self, queues_of: QueuesOf, key: bytes, retry_deadline: Callable[[], RetryDeadline]) -> None:
        self._queues_of = queues_of
        self._key = key
        self._retry_deadline = retry_deadline
        self._ordered: dict[str, list[MessageQueue]] = {}

    def ordered(self, topic: str) -> list[MessageQueue]:
        """Return the queues that rows may name, sorted; the same ones for all rows of the task."""
        queues = self._ordered.get(topic)
        if queues is None:
            queues = self._ordered[topic] = sorted(self._find(topic, ordered=True))
        return queues

    def drawn(self, topic: str, lot: int) -> MessageQueue:
        """Draw the queue of a lot."""
        return choose_queue(lot, self._find(topic, ordered=False), self._key)

    def drawn_elsewhere(self, topic: str, lot: int, avoid: Collection[str]) -> MessageQueue | None:
        """Draw a queue of brokers other than these; None if none is known now."""
        try:
            queues = [queue for queue in self._queues_of(topic) if queue.broker_name not in avoid]
        except RocketError:
            return None
        return choose_queue(lot, queues, self._key) if queues else None

    def _find(self, topic: str, *, ordered: bool) -> Sequence[MessageQueue]:
        return self._retry_deadline().call(lambda: self._queues_of(topic, ordered=ordered), f"to find {topic}")


def choose_queue(lot: int, queues: Sequence[MessageQueue], key: bytes) -> MessageQueue:
    """Draw a number for the lot in each queue; return the queue with the highest."""
    salt = lot.to_bytes(8, "big")

    def drawn(queue: MessageQueue) -> bytes:
        name = f"{queue.broker_name}\0{queue.queue_id}".encode()
        return hashlib.blake2b(name, digest_size=8, key=key, salt=salt).digest()

    return max(queues, key=drawn)
