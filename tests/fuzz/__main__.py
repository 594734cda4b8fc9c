"""``make fuzz``: millions of cases over all targets, two processes at a time.

They are gone through in rounds, a tenth of the cases each, so that a run that is ended early has been everywhere.
Atheris (libFuzzer) drives the targets where it is installed, tests/fuzz/engine.py elsewhere. What is found interesting
goes to ``build/fuzz/<target>``, what is wrong to ``build/fuzz/findings.txt``; ``python -m tests.fuzz keep`` puts those
of the former that reach something new into the corpus. A case may take two seconds and 1 GiB.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import os
import random
import resource
import sys
import time
import traceback
from collections import deque
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fuzz import corpus

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

BUILD = Path("build/fuzz")
MOST_SECONDS = 2.0
MOST_MEMORY = 1 << 30
_KEPT_BYTES = 6_000  # of a target's corpus
_LOOKED_AT = 1_000  # inputs of a run, the shortest first
_ROUNDS = 10
_ROUND_CASES = 1_000  # at least, of a target
#: Cases of these take long (Arrow, files, large tables): they get a fiftieth.
_SLOW = {"frame", "columnar", "broker_conf", "broker_conf_update"}


def _targets() -> tuple[dict[str, Target], bool]:
    """The table, and whether its decoders tell atheris where they go."""
    logging.disable(logging.CRITICAL)
    if find_spec("atheris") is None:
        return importlib.import_module("tests.fuzz.targets").TARGETS, False
    atheris = importlib.import_module("atheris")
    quiet = contextlib.redirect_stderr(io.StringIO())  # a line for each module
    with quiet, atheris.instrument_imports(include=["spark_rocket"]):
        return importlib.import_module("tests.fuzz.targets").TARGETS, True


def _work(target: Target, guided: bool, cases: int, seed: int) -> None:
    """One target, in this process alone."""
    from tests.fuzz.engine import Finding, check, fuzz

    inputs = [*target.seeds(), *corpus.load(target.name)]
    kept = BUILD / target.name
    kept.mkdir(parents=True, exist_ok=True)
    if not guided:  # libFuzzer goes on with these by itself
        inputs += sorted((path.read_bytes() for path in kept.glob("*")), key=len)[:_LOOKED_AT]
    statm = Path("/proc/self/statm")
    if statm.exists():  # Linux
        used = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, resource.RLIM_INFINITY))
    told = BUILD / "findings.txt"
    seen = {line.split("\t")[2] for line in told.read_text(encoding="utf-8").splitlines()} if told.exists() else set()

    def tell(found: Finding) -> None:
        if found.where not in seen:
            seen.add(found.where)
            print(f"FINDING {found}", flush=True)
            with told.open("a", encoding="utf-8") as file:
                file.write(f"{found.target}\t{found.what!r}\t{found.where}\t{found.data!r}\n")

    if not guided:
        report = fuzz(target, inputs, cases, seed)
        for found in report.findings:
            tell(found)
        for number, data in enumerate(report.kept):
            (kept / f"{seed}-{number}").write_bytes(data)
        print(f"DONE {report.cases} {report.edges}", flush=True)
        return

    import atheris

    for number, data in enumerate(inputs):
        (kept / f"seed-{number}").write_bytes(data)

    def one(data: bytes) -> None:
        begun = time.thread_time()
        found = check(target, data)
        if found is None and time.thread_time() - begun > MOST_SECONDS:
            found = Finding(target.name, data, "too slow", target.name)
        if found is not None:
            tell(found)

    flags = {
        "runs": cases,
        "seed": seed,
        "max_len": target.longest,
        "timeout": 60,
        "rss_limit_mb": 4096,
        "print_final_stats": 1,
        "artifact_prefix": f"{BUILD}/crash-{target.name}-",
    }
    atheris.Setup([sys.argv[0], *(f"-{name}={value}" for name, value in flags.items()), str(kept)], one)
    atheris.Fuzz()


def _start(target: Target, guided: bool, cases: int, seed: int, log: Path) -> int:
    """A child for one target; its id. It has the instrumented package from its parent, which took ten seconds."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(written, 1)
        os.dup2(written, 2)
        _work(target, guided, cases, seed)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _result(name: str, log: Path, status: int) -> tuple[int, str, int]:
    """Of a child that has ended: its cases, coverage and findings."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    done, coverage = 0, "?"
    findings = sum(line.startswith("FINDING") for line in lines)
    for line in lines:
        if line.startswith("stat::number_of_executed_units:"):
            done = int(line.split()[1])
        elif line.startswith("DONE "):
            _, count, coverage = line.split()
            done = int(count)
        elif " cov: " in line:
            coverage = line.partition(" cov: ")[2].split()[0]
    if status or not done:
        findings += 1
        print(f"{name} ended with {status}; its end, from {log}:", *lines[-15:], sep="\n    ", flush=True)
    return done, coverage, findings


def _fuzz(options: argparse.Namespace) -> int:
    targets, guided = _targets()
    names = options.targets or list(targets)
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "findings.txt").unlink(missing_ok=True)
    shares = {name: 0.02 if name in _SLOW else 1.0 for name in names}
    unit = options.cases / sum(shares.values())
    begun = time.monotonic()
    total = wrong = 0
    running: dict[int, tuple[str, Path, float]] = {}
    print(
        f"{len(names)} targets, {options.cases:,} cases, seed {options.seed}, {'atheris' if guided else 'own engine'}"
    )
    rounds = max(min(_ROUNDS, int(unit * min(shares.values())) // _ROUND_CASES), 1)
    waiting = deque((number, name) for number in range(rounds) for name in names)
    while waiting or running:
        while waiting and len(running) < options.processes:
            number, name = waiting.popleft()
            log = BUILD / f"{name}-{number}.log"
            cases = int(unit * shares[name] / rounds) + 1
            child = _start(targets[name], guided, cases, options.seed + number, log)
            running[child] = name, log, time.monotonic()
        child, status = os.wait()
        name, log, started = running.pop(child)
        done, coverage, findings = _result(name, log, status)
        total += done
        wrong += findings
        now = time.monotonic()
        print(
            f"{name:20} {done:10,} cases {done / (now - started):8,.0f}/s  coverage {coverage:>5}  findings {findings}"
            f"   all: {total:,} of {options.cases:,}, {total / (now - begun):,.0f}/s",
            flush=True,
        )
    print(f"{total:,} cases in {time.monotonic() - begun:,.0f} s, {wrong} findings (seed {options.seed})", flush=True)
    return 1 if wrong else 0


def _keep(names: list[str]) -> int:
    from tests.fuzz.engine import Tracer, check
    from tests.fuzz.targets import TARGETS

    logging.disable(logging.CRITICAL)
    for name in names or TARGETS:
        target = TARGETS[name]
        tracer = Tracer()
        for data in (b"", *target.seeds(), *corpus.load(name)):
            check(target, data, tracer.run)
        room = _KEPT_BYTES - sum(map(len, corpus.load(name)))
        new: list[bytes] = []
        found = {path.read_bytes() for path in (BUILD / name).glob("*")}
        for data in sorted(found, key=lambda data: (len(data), data))[:_LOOKED_AT]:
            if len(data) > min(room, 1024):
                continue
            before = len(tracer.edges)
            if check(target, data, tracer.run) is None and len(tracer.edges) > before:
                new.append(data)
                room -= len(data)
        corpus.add(name, new)
        print(f"{name:20} {len(new)} more kept, {len(tracer.edges)} edges", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run: Any = verbs.add_parser("run")
    run.add_argument("--cases", type=int, default=int(os.environ.get("FUZZ_CASES") or 10_000_000))
    run.add_argument("--processes", type=int, default=2)
    run.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    run.add_argument("targets", nargs="*")
    verbs.add_parser("keep").add_argument("targets", nargs="*")
    options = parser.parse_args()
    return _fuzz(options) if options.verb == "run" else _keep(options.targets)


if __name__ == "__main__":
    raise SystemExit(main())
