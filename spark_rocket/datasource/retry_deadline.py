"""Retry with a deadline: a broker restart during a query is a delay, not a failure, until the deadline.

An instance belongs to one piece of work and one thread. Clock and sleep are injected, so tests do not wait.
Corresponds to the retry loops of DefaultMQProducerImpl and MQClientAPIImpl.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from spark_rocket.errors import RocketError

T = TypeVar("T")
log = logging.getLogger("spark_rocket.datasource")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0
_RETRIABLE_CODES = frozenset({2, 14})  # SYSTEM_BUSY, SERVICE_NOT_AVAILABLE: the broker requests a retry


def is_retriable(error: RocketError) -> bool:
    """Return whether a retry of the same request may succeed."""
    return error.retriable or error.response_code in _RETRIABLE_CODES


class RetryDeadline:
    """Retries until a deadline. One instance per piece of work; call ``reset`` after each success."""

    def __init__(
        self,
        limit_ms: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limit = limit_ms / 1000
        self._clock = clock
        self._sleep = sleep
        self._since: float | None = None
        self._pause = _FIRST_PAUSE

    def reset(self) -> None:
        self._since = None
        self._pause = _FIRST_PAUSE

    def wait(self, error: RocketError, doing: str) -> None:
        """Pause before the next attempt, or raise ``error`` if it is not retriable or the deadline has passed."""
        now = self._clock()
        if self._since is None:
            self._since = now
        tried = now - self._since
        if not is_retriable(error):
            raise error
        if tried + self._pause > self._limit:
            error.remedy = f"{error.remedy} Tried {doing} for {tried:.0f} s (option retryTimeout).".strip()
            raise error
        log.warning("attempt %s failed, retrying in %.1f s: %s", doing, self._pause, error)
        self._sleep(self._pause)
        self._pause = min(_LONGEST_PAUSE, self._pause * 2)

    def call(self, ask: Callable[[], T], doing: str) -> T:
        """Call ``ask`` until it succeeds. Raises its error when it is not retriable or the deadline has passed."""
        while True:
            try:
                answer = ask()
            except RocketError as error:
                self.wait(error, doing)
            else:
                self.reset()
                return answer
