"""The timers that deliver pending messages: delayed, timed and half messages, and the check points of pops.

Each timer runs the work of one system topic in slices, so that it delays requests by about two milliseconds at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spark_rocket.remoting.wall_clock_timer import WallClockTimer

#: Maximum delay of sends and pulls by one slice of deliveries; a large message may exceed it.
_SLICE_SECONDS = 0.002


class DeliveryTimers:
    """The timers of one broker, by the topic that stores the pending messages."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], int]) -> None:
        self._loop = loop
        self._clock = clock
        self.by_topic: dict[str, WallClockTimer] = {}

    def add(self, topic: str, deliver: Callable[[int, float], int | None]) -> None:
        """``deliver`` gets the time (ms) and a budget in seconds, and returns when to call it again."""
        self.by_topic[topic] = WallClockTimer(self._loop, self._clock, deliver, _SLICE_SECONDS)

    def expect(self, topic: str, due: int) -> None:
        """Deliver the messages of a system topic at this time (ms), if they are delivered here."""
        timer = self.by_topic.get(topic)
        if timer is not None:
            timer.expect(due)

    def start(self) -> None:
        for timer in self.by_topic.values():
            timer.wake()

    def close(self) -> None:
        for timer in self.by_topic.values():
            timer.close()
