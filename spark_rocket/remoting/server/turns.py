"""The turns of a server's event loop: whether the time for requests is used up, and whether the loop may sleep.

A turn begins with the first read after the loop has looked for events. Its time is used up ``length_s`` later: requests
that are read then are queued (request_queue.py).

Apache's server has threads instead.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from spark_rocket.common.system import cores
from spark_rocket.remoting.server.request_queue import TURN_S

_BUSY_GAP_S = 250e-6
"""Reads at shorter intervals mean a peer that waits for each response, or many peers."""


class LoopTurns:
    """Call :meth:`read` at each read."""

    def __init__(self, busy_poll_s: float) -> None:
        self.length_s = TURN_S
        self.is_over = False
        # Spinning on the only core would delay the peer's next request.
        self._busy_poll_s = busy_poll_s if cores() > 1 else 0.0
        self._last_read = 0.0
        self._awake_until = 0.0
        self._is_awake = False
        self._is_scheduled = False  # the end of the present turn
        self._begun = 0.0

    def read(self) -> None:
        """Keep the loop from sleeping for ``busy_poll_s`` if requests arrive in quick succession.

        With a peer that sends its next request after each response (one sync producer) the server's core is asleep each
        time, and on virtual machines waking it takes longer than processing: measured 10,000 round trips/s without this
        and 19,000 with it. Slower traffic, below some 4,000 reads/s, is not affected.
        """
        now = perf_counter()
        if now - self._last_read < _BUSY_GAP_S and self._busy_poll_s:
            self._awake_until = now + self._busy_poll_s
            if not self._is_awake:
                self._is_awake = True
                if not self._is_scheduled:
                    self._begun = now
                asyncio.get_running_loop().call_soon(self._poll)
        elif not self._is_awake and not self._is_scheduled:
            self._is_scheduled = True
            self._begun = now
            asyncio.get_running_loop().call_soon(self._end)
        if now - self._begun > self.length_s:
            self.is_over = True
        self._last_read = now

    def _poll(self) -> None:
        self._begun = now = perf_counter()
        self.is_over = False
        if now < self._awake_until:  # a loop with pending callbacks polls its sockets without waiting
            asyncio.get_running_loop().call_soon(self._poll)
        else:
            self._is_awake = False

    def _end(self) -> None:
        self._is_scheduled = self.is_over = False
        self._begun = perf_counter()
