"""Requests for all queues of a topic examine them in parts, so that a topic's queues do not bound a request's cost.

One request examines at most :data:`MAX_EXAMINED_QUEUES` queues of a topic, and of each retry topic of its group. The
next request with the same group and filter continues where it ended. So every queue is examined once in
``ceil(queues / MAX_EXAMINED_QUEUES)`` requests, or is read as soon as those before it have been. A held request
continues by itself, in later iterations of the loop, until all queues are examined (delivery/held_requests.py).

Positions are not stored: after a restart, parts start at any queue. Apache's broker examines all queues in one request.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Hashable, Sequence

MAX_EXAMINED_QUEUES = 1_024
"""Of one topic in one request: 2 ms if they are empty, 10 ms if a tag filter skips messages in all of them."""
_MAX_POSITIONS = 10_000


def is_divided(queues: int) -> bool:
    """Return whether one request examines only a part of so many queues."""
    return queues > MAX_EXAMINED_QUEUES


def parts_of(queues: int) -> int:
    """Return the number of requests that examine all queues of a topic."""
    return -(-queues // MAX_EXAMINED_QUEUES)


def place_of(group: str, topic: str, kind: str, tag_codes: frozenset[int] | None) -> Hashable:
    """Return the key of a position: requests that find the same messages continue each other."""
    return group, topic, kind, hash(tag_codes)


class QueueTurns:
    """The next queue to examine, for topics with more than ``MAX_EXAMINED_QUEUES`` queues."""

    def __init__(self) -> None:
        self._next: OrderedDict[Hashable, int] = OrderedDict()  # the least recently used first

    def part(self, place: Hashable, queues: int, start: int) -> Sequence[int]:
        """Return the ids of the queues to examine: all, beginning with ``start``, if they are few."""
        if not is_divided(queues):
            return [(start + at) % queues for at in range(queues)]
        start = self._next.get(place, -1)
        if start < 0:
            start = random.randrange(queues)
        part = [(start + at) % queues for at in range(MAX_EXAMINED_QUEUES)]
        self.continue_at(place, queues, part[-1] + 1)
        return part

    def continue_at(self, place: Hashable, queues: int, queue_id: int) -> None:
        """Begin the next part with this queue instead of the first that was not in the last part."""
        if not is_divided(queues):
            return
        self._next[place] = queue_id % queues
        self._next.move_to_end(place)
        if len(self._next) > _MAX_POSITIONS:
            self._next.popitem(last=False)
