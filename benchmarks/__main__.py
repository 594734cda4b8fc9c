"""`python -m benchmarks [--only NAME …] [--json FILE] [--runs N]`: print a table of rates and their ceilings.

A ratio of 1 is the ceiling; a target is the least ratio that is aimed at.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path

from benchmarks import (
    acl,
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
)
from benchmarks.lab import Lab
from benchmarks.registry import REGISTRY, Result, run, select
from jobs.terminal import table

# Importing these modules registers their benchmarks.
FAMILIES = (
    codec,
    store,
    store_disk,
    store_search,
    broker,
    grpc,
    client,
    client_send,
    metrics,
    acl,
    console,
    overload,
    pop,
    reading,
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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="names or prefixes: spark.read")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as a list of objects")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs after the warm-up (default: 3)")
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

    results: list[Result] = []
    failed: list[str] = []
    try:
        with Lab() as lab:
            for entry in chosen:
                print(f"{entry.name} …", file=sys.stderr, flush=True)
                try:
                    results.append(run(entry, lab, options.runs))
                except Exception:
                    failed.append(entry.name)
                    traceback.print_exc()
    finally:  # also on Ctrl-C: the results so far
        print(as_table(results))
        if options.json:
            options.json.write_text(json.dumps([result.as_json() for result in results], indent=2) + "\n")
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
