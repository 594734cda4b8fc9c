"""``make verify``: run every suite that ``make test`` skips, in turn, and write a dated page of the results.

A failed suite does not end the run. The page, ``docs/reference/verification.md``, is written again after each suite:
an interrupted run leaves the results so far. ``--short`` runs fewer rounds of most suites, in about 20 minutes on two
quiet cores; ``--only NAME`` runs one suite and keeps the rows of the others. A suite's variables are taken from the
environment (``KILL_ROUNDS=20 make verify ARGS='--only crash'``). Each row names its form, commit and day.

The suites are targets of the Makefile. pytest's counts, failures and figures are read from its JUnit report: a test
states a figure with the fixture ``figure``. Logs are in ``build/verify``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "verify"
PAGE = ROOT / "docs" / "reference" / "verification.md"
# The suites' own pages, which do not make a commit a changed one.
WRITTEN = (PAGE, ROOT / "docs" / "internals" / "request-costs.md")


@dataclass(frozen=True)
class Suite:
    """A target of the Makefile, with its variables in the two forms. ``short`` is None: not in the short form.

    The full form is that of ``make`` without variables. ``takes`` names further variables that the environment may set.
    """

    name: str
    shows: str
    short: dict[str, str] | None
    full: dict[str, str] = field(default_factory=dict)
    max_minutes: int = 60
    takes: tuple[str, ...] = ()

    def given(self) -> dict[str, str]:
        """Return the variables of this suite that the environment sets."""
        names = {*(self.short or {}), *self.takes} - {"ARGS"}
        return {name: os.environ[name] for name in sorted(names) if name in os.environ}


# The tests of the sink under tests/crash belong to `chaos-sink`, which runs them with more rounds.
_LONG = "--ignore=tests/crash"
_FEW_BENCHMARKS = "--runs 1 --only spark.read.128 spark.write.128 spark.write.lines spark.read.flights client grpc"

SUITES = (
    Suite(
        "long",
        "tests of a minute each",
        {"ARGS": f"{_LONG} --ignore=tests/repository/test_install.py"},
        {"ARGS": _LONG},
        max_minutes=120,
        takes=("DIFFERENCES_SEED", "DIFFERENCES_SCHEMAS"),
    ),
    Suite("connect", "Spark tests on Spark Connect", {"ARGS": "-k 'test_read or test_stream'"}),
    Suite(
        "crash",
        "torn files and kills under load",
        {"TORN_IMAGES": "100", "KILL_ROUNDS": "5", "BAD_FILES": "some"},
        max_minutes=120,
    ),
    Suite("failover", "masters, slaves and name servers are killed and isolated", {"FAILOVER_ROUNDS": "4"}),
    Suite("chaos", "consumers join and leave, brokers restart", {"PUSH_MEMBERS": "30", "PUSH_SECONDS": "20"}),
    Suite(
        "chaos-sink",
        "the exactly-once sink under kills",
        {"SINK_KILLS": "25", "SINK_HISTORIES": "300", "ARGS": "--deselect=tests/crash/test_sink_spark.py"},
        max_minutes=120,
        takes=("SINK_SEED",),
    ),
    Suite("fuzz", "invalid input for all decoders", {"FUZZ_CASES": "50000"}),
    Suite("cost", "CPU time and memory of hostile requests", None),
    Suite("bench", "benchmarks beside their ceilings", {"ARGS": _FEW_BENCHMARKS}, max_minutes=120),
    Suite("soak", "a stream under steady load", {"ARGS": "--minutes 1"}),
    Suite("matrix", "versions of Python and PySpark", None, max_minutes=180),
)


@dataclass
class Outcome:
    """A row of the page."""

    suite: str
    form: str
    of: str
    """The commit and the day."""
    result: str
    seconds: float
    counts: str = ""
    figures: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def run(suite: Suite, form: str, variables: dict[str, str]) -> Outcome:
    """Run a suite. What it started is ended with it, also at the time limit and on Ctrl-C."""
    log, report, rows = (FOLDER / f"{suite.name}{ending}" for ending in (".log", ".xml", ".json"))
    for path in (report, rows):
        path.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment |= {name: value for name, value in variables.items() if name != "ARGS"}
    arguments = variables.get("ARGS", "")
    if suite.name == "bench":
        arguments += f" --json {rows}"
    elif suite.name not in ("matrix", "soak"):
        arguments += f" --junitxml={report}"
    of = f"`{_commit()}`, {datetime.now(UTC).date().isoformat()}"
    begun = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        command = ["make", "--no-print-directory", suite.name, f"ARGS={arguments.strip()}"]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(suite.max_minutes * 60)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
    result = "passed" if status == 0 else "timed out" if status is None else "failed"
    outcome = Outcome(suite.name, form, of, result, time.monotonic() - begun)
    if report.exists():
        read_report(report, outcome)
    elif rows.exists():
        read_benchmarks(rows, outcome)
    else:
        outcome.figures = _figures_of(log.read_text(encoding="utf-8", errors="replace").splitlines())
    if status != 0 and not outcome.failures:
        outcome.failures = log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
    return outcome


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the group of ``process``, of which ``process`` itself is the leader."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        if process.poll() is None:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                continue
    process.wait()


def _figures_of(lines: list[str]) -> list[str]:
    """Return the rows of the matrix, and the soak's rate and lag."""
    rows = [" ".join(line.replace("|", " ").split()) for line in lines if line.startswith("| 3.")]
    return rows + [line for line in lines if line.endswith(("were read", "(target: 2)"))]


def read_report(path: Path, outcome: Outcome) -> None:
    """Add the counts, figures and failures of pytest's JUnit report."""
    root = ET.parse(path).getroot()
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    for case in root.iter("testcase"):
        kind = "passed"
        for child, name in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            if case.find(child) is not None:
                kind = name
        totals[kind] += 1
        if kind == "failed":
            outcome.failures.append(f"{case.get('classname', '')}::{case.get('name', '')}")
        outcome.figures += [each.get("value", "") for each in case.iter("property") if each.get("name") == "figure"]
    outcome.counts = ", ".join(f"{count:,} {kind}" for kind, count in totals.items() if count)


def read_benchmarks(path: Path, outcome: Outcome) -> None:
    """Add a figure for each benchmark: its median, and the ratio to its ceiling."""
    results = json.loads(path.read_text())
    outcome.counts = f"{len(results)} benchmarks"
    outcome.figures = [
        f"`{each['name']}` {each['value']:,.3g} {each['unit']}, {each['ratio']:.2f} of its ceiling"
        if each["value"] < 100
        else f"`{each['name']}` {each['value']:,.0f} {each['unit']}, {each['ratio']:.2f} of its ceiling"
        for each in results
    ]


def page(outcomes: list[Outcome]) -> str:
    """Return the page as Markdown."""
    python = platform.python_version()
    rows, details = [], []
    by_name = {outcome.suite: outcome for outcome in outcomes}
    for suite in SUITES:
        outcome = by_name.get(suite.name)
        if outcome is None:
            rows.append(f"| `make {suite.name}` | {suite.shows} | | not run | | | |")
            continue
        took = _duration(outcome.seconds)
        cells = (f"`make {suite.name}`", suite.shows, outcome.form, outcome.result, took, outcome.counts, outcome.of)
        rows.append(f"| {' | '.join(cells)} |")
        details += [f"* `make {suite.name}`: {figure}" for figure in outcome.figures]
        details += [f"* `make {suite.name}` failed: {failure}" for failure in outcome.failures]
    return "\n".join(
        [
            "# Verification",
            "",
            "For reviewers: results of the suites that `make test` skips, written by `make verify`"
            " (`make verify ARGS=--short`: fewer rounds, about 20 minutes).",
            "",
            f"On {os.cpu_count()} cores, {platform.system()}, Python {python}. The full form is that of the Makefile;"
            " variables of a form replace its own.",
            "",
            "| suite | shows | form | result | duration | counts | commit, day |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            "## Figures and failures",
            "",
            *(details or ["None were reported."]),
            "",
        ]
    )


def _duration(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    written = [f":!{page.relative_to(ROOT)}" for page in WRITTEN]
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *written)
    return git("rev-parse", "--short=8", "HEAD") + (" with changes" if changed else "")


def earlier(text: str) -> list[Outcome]:
    """Read the outcomes back from a page: a run of one suite keeps the rows of the others, in any clone."""
    outcomes: dict[str, Outcome] = {}
    for line in text.splitlines():
        _, quoted, rest = line.partition("`make ")
        suite, _, rest = rest.partition("`")
        if line.startswith("| ") and quoted:
            form, result, took, counts, of = (cell.strip() for cell in line.split("|")[3:8])
            if result != "not run":
                minutes, _, seconds = took.partition(":")
                outcomes[suite] = Outcome(suite, form, of, result, int(minutes) * 60.0 + int(seconds), counts)
        elif line.startswith("* ") and quoted and rest.startswith(": "):
            outcomes[suite].figures.append(rest.removeprefix(": "))
        elif line.startswith("* ") and quoted:
            outcomes[suite].failures.append(rest.removeprefix(" failed: "))
    return list(outcomes.values())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make verify", description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer rounds: about 20 minutes on two quiet cores")
    parser.add_argument("--only", nargs="+", choices=[suite.name for suite in SUITES], help="run these suites")
    given = parser.parse_args(arguments)
    form = "short" if given.short else "full"
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = PAGE.read_text(encoding="utf-8") if given.only and PAGE.exists() else ""
    outcomes = {each.suite: each for each in earlier(text)}
    chosen = [
        (suite, variables)
        for suite in SUITES
        if (not given.only or suite.name in given.only)
        and (variables := suite.short if given.short else suite.full) is not None
    ]
    for suite, variables in chosen:
        print(f"{datetime.now(UTC):%H:%M:%S} make {suite.name} …", flush=True)
        more = suite.given()
        of_row = " ".join([form, *(f"{name}={value}" for name, value in more.items())])
        outcomes[suite.name] = outcome = run(suite, of_row, variables | more)
        failures = "".join(f"\n    {failure}" for failure in outcome.failures)
        print(f"  {outcome.result} in {_duration(outcome.seconds)}: {outcome.counts}{failures}", flush=True)
        PAGE.write_text(page(list(outcomes.values())), encoding="utf-8")
    print(f"Results: {PAGE.relative_to(ROOT)}")
    return int(any(outcomes[suite.name].result != "passed" for suite, _ in chosen))


if __name__ == "__main__":
    sys.exit(main())
