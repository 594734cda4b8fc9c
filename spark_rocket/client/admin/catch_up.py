"""Estimate when a reader with a lag will have caught up, from its lag at several times.

The estimate assumes that messages arrive and are read at the mean rates of the last ``WINDOW_SECONDS``: it divides the
lag by its decrease per second. There is no estimate from one observation, nor while the lag does not decrease.

Not thread-safe.
"""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 600.0
_MAX_OBSERVATIONS = 600


class CatchUp:
    """The observations of one reader."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_MAX_OBSERVATIONS)

    def add(self, moment: float, lag: int) -> float | None:
        """Add the lag in messages at ``moment`` in seconds. Return the seconds until there is none; None if unknown."""
        if not lag:
            self._seen.clear()
            return 0.0
        while len(self._seen) > 1 and moment - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.popleft()
        self._seen.append((moment, lag))
        first, before = self._seen[0]
        if moment <= first or lag >= before:
            return None
        return lag * (moment - first) / (before - lag)
