"""Remembers which messages this console has resent, so that pages mark them.

RocketMQ stores nothing about it at a message, so the marks are in memory: of the last ``MAX_RESENT`` messages, until
the console ends. Messages that others have resent have no mark.

Thread-safety: all methods. RocketMQ's dashboard has no counterpart.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from spark_rocket.common.system import now_ms
from spark_rocket.model import MessageExt, MessageQueue

Place = tuple[MessageQueue, int]
"""A queue and an offset."""
MAX_RESENT = 20_000


def place_of(message: MessageExt) -> Place:
    return MessageQueue(message.topic, message.broker_name, message.queue_id), message.queue_offset


class Resent:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: OrderedDict[Place, int] = OrderedDict()

    def add(self, message: MessageExt) -> None:
        with self._lock:
            place = place_of(message)
            self._times[place] = now_ms()
            self._times.move_to_end(place)
            if len(self._times) > MAX_RESENT:
                self._times.popitem(last=False)

    def when(self, message: MessageExt) -> int | None:
        """Return when the message was last resent, in ms; None if it was not."""
        with self._lock:
            return self._times.get(place_of(message))
