"""In-memory slots of the timer that are due soon: their pending messages and recalls.

Each pending message is one number: its delivery time in milliseconds and the position of its unit in the timer log.
Messages with equal times are in order of arrival. A slot is *begun* once one of its messages was delivered.

No state on disk: after a crash the units are loaded again from the wheel. Corresponds to the dequeue queues of
TimerMessageStore.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from spark_rocket.protocol.record.properties import find_property

_POSITION = (1 << 64) - 1


class Recall(NamedTuple):
    """Location of a recall in the commit log."""

    offset_py: int
    size_py: int
    topic_hash: int


class DueSlots:
    """Pending messages of the loaded slots."""

    def __init__(self) -> None:
        self._heap: list[int] = []  # millisecond << 64 | position in the timer log
        self._remaining: dict[int, int] = {}  # by slot: units in the heap
        self._recalls: dict[int, dict[str, Recall]] = {}
        self.begun: set[int] = set()
        self.done = 0
        """Number of done slots with deliveries."""

    def clear(self) -> None:
        self._heap.clear()
        self._remaining.clear()
        self._recalls.clear()
        self.begun.clear()

    @property
    def first_due(self) -> int | None:
        """Delivery time of the first message; None if none is pending."""
        return self._heap[0] >> 64 if self._heap else None

    @property
    def first_position(self) -> int:
        """Position of the first message's unit; only valid if one is pending."""
        return self._heap[0] & _POSITION

    def positions(self) -> list[int]:
        """Return the positions of all pending units, in order of delivery time."""
        return [key & _POSITION for key in sorted(self._heap)]

    def push(self, slot: int, due: int, position: int) -> None:
        heappush(self._heap, due << 64 | position)
        self._remaining[slot] = self._remaining.get(slot, 0) + 1

    def pop(self, slot: int) -> None:
        """Remove the first message, which is of that slot."""
        heappop(self._heap)
        self._remaining[slot] -= 1
        self.begun.add(slot)

    def recall(self, slot: int, key: bytes, place: Recall) -> None:
        self._recalls.setdefault(slot, {})[key.decode("utf-8", "replace")] = place

    def recalls_before(self, slot: int) -> list[Recall]:
        return [place for at, recalls in self._recalls.items() if at < slot for place in recalls.values()]

    def is_recalled(self, slot: int, properties: bytes) -> bool:
        recalls = self._recalls.get(slot)
        unique_key = find_property(properties, b"UNIQ_KEY")
        if not recalls or unique_key is None:
            return False
        key = unique_key.decode("utf-8", "replace")
        topic = (find_property(properties, b"REAL_TOPIC") or b"").decode("utf-8", "replace")
        return key in recalls or f"{topic}+{key}" in recalls

    def done_to(self, limit: int) -> int:
        """Return the first slot with pending messages, at most ``limit``: all slots before it are done."""
        return min((slot for slot, count in self._remaining.items() if count and slot < limit), default=limit)

    def forget_before(self, slot: int) -> None:
        for table in (self._remaining, self._recalls):
            for done in [other for other in table if other < slot]:
                del table[done]
        begun = {other for other in self.begun if other >= slot}
        self.done += len(self.begun) - len(begun)
        self.begun = begun
