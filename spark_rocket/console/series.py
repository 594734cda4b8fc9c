"""Samples over time, in memory: the newest as they came, older ones ever more thinly, so that hours fit into little.

When a series is full, every second sample of its older half goes. Names (of queues, of directions) may come late: what
was not known yet is a gap, NaN. Numbers are 8 bytes each.

Thread-safety: none of its own; the sampler's lock is held around it. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Mapping

MOST_SAMPLES = 600
WINDOW = 10.0
MOST_COLUMNS = 64
DRAWN = 240  # points, of which no drawing shows more


class Series:
    """Times (seconds since 1970) and one column of numbers for each name."""

    def __init__(self, most: int = MOST_SAMPLES, most_columns: int = MOST_COLUMNS) -> None:
        self._most = most
        self._most_columns = most_columns
        self.times = array("d")
        self.columns: dict[str, array[float]] = {}

    def __len__(self) -> int:
        return len(self.times)

    def add(self, moment: float, values: Mapping[str, float]) -> None:
        """One sample. A clock that was set back makes the samples after that moment void."""
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

    def to_json(self, names: Iterable[str] | None = None, *, points: int = DRAWN) -> dict[str, object]:
        """``{"times": [ms …], "columns": {name: [number or None …]}}``, the newest sample always among them."""
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

    def _thin(self) -> None:
        half = len(self.times) // 2
        for column in (self.times, *self.columns.values()):
            column[:half] = column[:half:2]


class Rate:
    """How fast a counter grows, over the last ``WINDOW`` seconds or so; None before the second sample.

    Over so many because consumers tell brokers every five seconds only how far they are.
    """

    __slots__ = ("_samples", "value")

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self.value: float | None = None

    def count(self, moment: float, count: int) -> float | None:
        """A counter that ran backwards (deleted, reset) or a clock that did begins anew."""
        samples = self._samples
        if samples and (count < samples[-1][1] or moment <= samples[-1][0]):
            samples.clear()
        samples.append((moment, count))
        while len(samples) > 2 and samples[1][0] <= moment - WINDOW:
            samples.popleft()
        begun, first = samples[0]
        self.value = (count - first) / (moment - begun) if moment > begun else None
        return self.value
