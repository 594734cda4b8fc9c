"""`python -m benchmarks [--only NAME …] [--json FILE] [--runs N] [--against REV]`: print a table of rates and ceilings.

A ratio of 1 is the ceiling; a target is the least ratio that is aimed at. With ``--against``, the table compares this
tree with a commit, measured by turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from benchmarks import (
    acl,
    backlog,
    broker,
    client,
    client_send,
    cluster,
    codec,
    console,
    grpc,
    metrics,
    overload,
    pop,
    reading,
    replication,
    spark,
    spark_lookup,
    spark_once,
    spark_real,
    spark_stream,
    spark_typed,
    store,
    store_disk,
    store_search,
    tls,
    wire,
)
from benchmarks.against import Comparison, compare, product_of
from benchmarks.lab import Lab
from benchmarks.registry import REGISTRY, Benchmark, Result, run, select
from jobs.terminal import table

# Importing these modules registers their benchmarks.
FAMILIES = (
    codec,
    store,
    store_disk,
    store_search,
    broker,
    wire,
    grpc,
    client,
    client_send,
    metrics,
    acl,
    console,
    overload,
    pop,
    reading,
    backlog,
    replication,
    cluster,
    tls,
    spark,
    spark_lookup,
    spark_once,
    spark_real,
    spark_stream,
    spark_typed,
)


def figure(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def as_table(results: list[Result]) -> str:
    header = ["", "median", "unit", "min – max", "ceiling", "ratio", "target", "meaning of the ceiling"]
    rows = [
        [
            result.name,
            figure(result.value),
            result.unit,
            f"{figure(result.min)} – {figure(result.max)}",
            figure(result.ceiling),
            f"{result.ratio:.2f}",
            "" if entry.target is None else f"{entry.target:.2f}",
            entry.ceiling,
        ]
        for result in results
        for entry in (REGISTRY[result.name],)
    ]
    return table(header, rows)


def as_comparison(results: list[Comparison]) -> str:
    header = ["", "before", "now", "unit", "ratio", "min – max"]
    rows = [
        [
            result.name,
            figure(result.before),
            figure(result.now),
            result.unit,
            f"{result.ratio:.2f}",
            f"{result.min:.2f} – {result.max:.2f}",
        ]
        for result in results
    ]
    return table(header, rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="names or prefixes: spark.read")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as a list of objects")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs after the warm-up (default: 3)")
    parser.add_argument("--against", metavar="REV", help="compare with a commit, by turns; a ratio above 1 is better")
    parser.add_argument("--list", action="store_true", help="only list the names")
    options = parser.parse_args(arguments)
    chosen = list(select(options.only))
    if not chosen:
        parser.error(f"unknown benchmark {' or '.join(options.only)}; valid names: {', '.join(REGISTRY)}")
    if options.list:
        print("\n".join(entry.name for entry in chosen))
        return 0
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    with ExitStack() as stack:
        if options.against is None:
            lab = stack.enter_context(Lab())
            return _report(chosen, lambda entry: run(entry, lab, options.runs), as_table, options.json)
        try:
            other = stack.enter_context(product_of(options.against))
        except subprocess.CalledProcessError:  # git said why
            return 2
        return _report(chosen, lambda entry: compare(entry, other, options.runs), as_comparison, options.json)


R = TypeVar("R", Result, Comparison)


def _report(
    chosen: list[Benchmark], measure: Callable[[Benchmark], R], shown: Callable[[list[R]], str], file: Path | None
) -> int:
    """Measure all; print the table and write the file, also on Ctrl-C: the results so far."""
    results: list[R] = []
    failed: list[str] = []
    try:
        for entry in chosen:
            print(f"{entry.name} …", file=sys.stderr, flush=True)
            try:
                results.append(measure(entry))
            except Exception:
                failed.append(entry.name)
                traceback.print_exc()
    finally:
        print(shown(results))
        if file:
            file.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
