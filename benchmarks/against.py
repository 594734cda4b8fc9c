"""Today's benchmarks on this tree and on another commit, by turns: `make bench ARGS='--against REV --only wire'`.

Each side is a process, `python -m benchmarks.against MODULE NAME`, that prepares a benchmark once and measures it when
asked to. The sides alternate and begin by turns, so other load affects both. The other side runs the benchmarks of this
tree with the product of the commit, in a directory of its own. It imports one module of benchmarks: one whose module
needs what the commit does not have fails, and no other.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median

from benchmarks.lab import Lab
from benchmarks.registry import REGISTRY, Benchmark

ROOT = Path(__file__).parents[1]
PRODUCT = ("spark_rocket", "pyspark_rocket.py", "pyspark_rocketmq.py")
SHARED = ("benchmarks", "jobs")


@dataclass(frozen=True)
class Comparison:
    """Medians of both sides. The ratios of pairs are above 1 where this tree is better."""

    name: str
    before: float
    now: float
    unit: str
    ratio: float
    min: float
    max: float
    runs: int


class Side:
    """A process that measures one benchmark with the packages of a directory."""

    def __init__(self, entry: Benchmark, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.against", entry.module, entry.name],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(directory)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError), self._process:  # waits for its end, which that of its input is
            pass

    def measure(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"The benchmark ended with status {self._process.wait()}.")
        return float(line)


@contextlib.contextmanager
def product_of(revision: str) -> Iterator[Path]:
    """Return a directory with the product of a commit and the benchmarks of this tree."""
    archive = subprocess.run(
        ["git", "archive", revision, *PRODUCT], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    with tempfile.TemporaryDirectory(prefix="rocket-against-") as name:
        directory = Path(name)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(directory, filter="data")
        for shared in SHARED:
            (directory / shared).symlink_to(ROOT / shared)
        yield directory


def compare(entry: Benchmark, other: Path, runs: int) -> Comparison:
    """Measure both sides ``runs`` times, after a warm-up."""
    with Side(entry, other) as before, Side(entry, ROOT) as now:
        measured: dict[Side, list[float]] = {before: [], now: []}
        for turn in range(runs + 1):
            for side in (before, now) if turn % 2 else (now, before):
                measured[side].append(side.measure())
    return summarise(entry, measured[before][1:], measured[now][1:])


def summarise(entry: Benchmark, before: list[float], now: list[float]) -> Comparison:
    pairs = zip(before, now, strict=True)
    ratios = [old / new if entry.lower_is_better else new / old for old, new in pairs]
    return Comparison(
        entry.name, median(before), median(now), entry.unit, median(ratios), min(ratios), max(ratios), len(ratios)
    )


def main(module: str, name: str) -> None:
    import_module(module)  # registers its benchmarks
    with os.fdopen(os.dup(1), "w") as output, Lab() as lab:
        os.dup2(2, 1)  # what libraries print is no measurement
        pair = REGISTRY[name].prepare(lab, name.rpartition(".")[2])
        for _line in sys.stdin:
            print(json.dumps(pair.value()), file=output, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
