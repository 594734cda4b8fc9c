"""The definition of a benchmark, and the registry of all benchmarks.

A benchmark prepares once and returns a ``Pair``: a function that measures the subject and one for its ceiling,
the same work without the subject. Both run once to warm up and then alternate, so other load affects both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.lab import Lab

Measure = Callable[[], float]


@dataclass(frozen=True)
class Pair:
    value: Measure
    ceiling: Measure


@dataclass(frozen=True)
class Benchmark:
    """A benchmark. ``prepare`` receives the name's last part: `128` of `spark.read.128`."""

    name: str
    unit: str
    ceiling: str
    lower_is_better: bool
    prepare: Callable[[Lab, str], Pair]
    target: float | None = None
    """The ratio that is aimed at, or more."""

    @property
    def module(self) -> str:
        """The module that registers it."""
        return getattr(self.prepare, "func", self.prepare).__module__  # of a partial


@dataclass(frozen=True)
class Result:
    """An entry of the JSON file. ``ratio`` is 1 at the ceiling, also if lower is better."""

    name: str
    value: float
    unit: str
    ceiling: float
    ratio: float
    min: float
    max: float
    runs: int


REGISTRY: dict[str, Benchmark] = {}


def benchmark(
    *names: str, unit: str, ceiling: str, lower_is_better: bool = False, target: float | None = None
) -> Callable[[Callable[[Lab, str], Pair]], Callable[[Lab, str], Pair]]:
    """Register a function under one or several names."""

    def register(prepare: Callable[[Lab, str], Pair]) -> Callable[[Lab, str], Pair]:
        for name in names:
            REGISTRY[name] = Benchmark(name, unit, ceiling, lower_is_better, prepare, target)
        return prepare

    return register


def select(prefixes: list[str]) -> Iterator[Benchmark]:
    """Return the benchmarks whose name begins with one of the prefixes; all without prefixes."""
    for name, entry in REGISTRY.items():
        if not prefixes or any(name.startswith(prefix) for prefix in prefixes):
            yield entry


def run(entry: Benchmark, lab: Lab, runs: int) -> Result:
    """Run one warm-up, then ``runs`` of each in turn; return medians."""
    try:
        pair = entry.prepare(lab, entry.name.rpartition(".")[2])
        pair.ceiling()
        pair.value()
        values, ceilings = [], []
        for _ in range(runs):
            ceilings.append(pair.ceiling())
            values.append(pair.value())
    finally:
        lab.clear()
    return summarise(entry, values, ceilings)


def summarise(entry: Benchmark, values: list[float], ceilings: list[float]) -> Result:
    value, ceiling = median(values), median(ceilings)
    ratio = ceiling / value if entry.lower_is_better else value / ceiling
    return Result(entry.name, value, entry.unit, ceiling, ratio, min(values), max(values), len(values))
