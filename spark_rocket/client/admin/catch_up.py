"""Estimate when a reader with a lag will have caught up, from its lag at several times.

``seconds_left`` divides the lag by its decrease per second. ``CatchUp`` takes the decrease from observations: it
assumes that messages arrive and are read at the mean rates of the last ``WINDOW_SECONDS``, and has no estimate from one
observation. There is no estimate while the lag does not decrease.

Not thread-safe.
"""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 600.0
_MAX_OBSERVATIONS = 600


def seconds_left(lag: int, decrease: float, seconds: float = 1.0) -> float | None:
    """Return the seconds until there is no lag, if it decreases by ``decrease`` in ``seconds``; None if it does not."""
    if not lag:
        return 0.0
    return lag * seconds / decrease if decrease > 0 and seconds > 0 else None


class CatchUp:
    """The observations of one reader."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_MAX_OBSERVATIONS)

    def add(self, moment: float, lag: int) -> float | None:
        """Add the lag in messages at ``moment`` in seconds. Return the seconds until there is none; None if unknown."""
        if not lag:
            self._seen.clear()
            return 0.0
        if self._seen and moment < self._seen[-1][0]:  # the clock was set back
            self._seen.clear()
        while len(self._seen) > 1 and moment - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.popleft()
        self._seen.append((moment, lag))
        first, before = self._seen[0]
        return seconds_left(lag, before - lag, moment - first)
