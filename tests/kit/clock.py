"""A clock that a test moves."""

from __future__ import annotations

from typing import Any

START = 1_795_230_000_000


class Clock:
    """A clock that only tests advance, in the caller's unit: milliseconds unless ``now`` specifies another."""

    def __init__(self, now: float = START) -> None:
        self.now: Any = now
        self.pauses: list[float] = []

    def __call__(self) -> Any:
        return self.now

    def sleep(self, seconds: float) -> None:
        """For clocks of seconds."""
        self.pauses.append(seconds)
        self.now += seconds
