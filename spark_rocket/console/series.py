"""Time series in memory: new samples at full resolution, older ones thinned out, so that hours take little memory.

When a series is full, every second sample of its older half is removed. Names (of queues, of directions) may be added
later: their missing values are NaN. A number takes 8 bytes.

Thread-safety: callers hold the sampler's lock.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Mapping

MAX_SAMPLES = 600
RATE_WINDOW_S = 10.0
MAX_COLUMNS = 64
MAX_DRAWN_POINTS = 240  # maximum number of points in a chart


class Series:
    """Times (epoch seconds) and one column of numbers for each name."""

    def __init__(self, most: int = MAX_SAMPLES, most_columns: int = MAX_COLUMNS) -> None:
        self._most = most
        self._most_columns = most_columns
        self.times = array("d")
        self.columns: dict[str, array[float]] = {}

    def __len__(self) -> int:
        return len(self.times)

    def add(self, moment: float, values: Mapping[str, float]) -> None:
        """Add a sample. If the clock was set back, later samples are removed."""
        while self.times and self.times[-1] >= moment:
            self.times.pop()
            for column in self.columns.values():
                column.pop()
        if len(self.times) >= self._most:
            self._thin()
        for name in values:
            if name not in self.columns and len(self.columns) < self._most_columns:
                self.columns[name] = array("d", [math.nan]) * len(self.times)
        self.times.append(moment)
        for name, column in self.columns.items():
            column.append(values.get(name, math.nan))

    def to_json(self, names: Iterable[str] | None = None, *, points: int = MAX_DRAWN_POINTS) -> dict[str, object]:
        """Return ``{"times": [ms …], "columns": {name: [number or None …]}}``, always with the newest sample."""
        step = -(-len(self.times) // points) or 1
        first = (len(self.times) - 1) % step if self.times else 0
        wanted = self.columns if names is None else [name for name in names if name in self.columns]
        return {
            "times": [round(moment * 1000) for moment in self.times[first::step]],
            "columns": {
                name: [None if math.isnan(value) else round(value, 2) for value in self.columns[name][first::step]]
                for name in wanted
            },
        }

    def rates(self, *, points: int = MAX_DRAWN_POINTS) -> dict[str, object]:
        """Like ``to_json`` for columns of counters: the increase per second.

        A rate covers the time since the previous point, and at least ``RATE_WINDOW_S`` if there is as much. So it is
        right after a gap and where samples were removed. It is None where a counter was reset.
        """
        times = self.times
        step = -(-len(times) // points) or 1
        pairs = []
        before = 0
        for at in range((len(times) - 1) % step or step, len(times), step):
            while before < at - step and times[before + 1] <= times[at] - RATE_WINDOW_S:
                before += 1
            pairs.append((before, at))
        return {
            "times": [round(times[at] * 1000) for _, at in pairs],
            "columns": {
                name: [_increase(times, column, before, at) for before, at in pairs]
                for name, column in self.columns.items()
            },
        }

    def _thin(self) -> None:
        half = len(self.times) // 2
        for column in (self.times, *self.columns.values()):
            column[:half] = column[:half:2]


def _increase(times: array[float], column: array[float], before: int, at: int) -> float | None:
    """Return the increase per second between two samples."""
    grown = column[at] - column[before]
    if math.isnan(grown) or grown < 0:
        return None
    return round(grown / (times[at] - times[before]), 2)


class Rate:
    """The rate of a counter over about ``RATE_WINDOW_S`` seconds; None before the second sample.

    Consumers commit offsets only every five seconds, so a shorter window would fluctuate.
    """

    __slots__ = ("_samples", "value")

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self.value: float | None = None

    def count(self, moment: float, count: int) -> float | None:
        """Add a sample. If the counter (deleted, reset) or the clock decreases, the rate is reset."""
        samples = self._samples
        if samples and (count < samples[-1][1] or moment <= samples[-1][0]):
            samples.clear()
        samples.append((moment, count))
        while len(samples) > 2 and samples[1][0] <= moment - RATE_WINDOW_S:
            samples.popleft()
        begun, first = samples[0]
        self.value = (count - first) / (moment - begun) if moment > begun else None
        return self.value
