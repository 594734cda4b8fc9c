"""The recipes for lakes, killed with SIGKILL before and after each step: each row is in the table once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.object_store import CutError, Hook, ObjectStore, nothing, object_store
from tests.kit.pages import ROOT

pytestmark = pytest.mark.live


def rows(*ids: int, price: float = 1.0) -> list[dict[str, Any]]:
    return [{"id": at, "item": "tea" if at % 2 else "coffee", "price": price} for at in ids]


BATCHES = [
    {"step": "append_once", "batch": 0, "rows": rows(0, 1, 2)},
    {"step": "append_once", "batch": 1, "rows": rows(3, 4)},
    {"step": "upsert_once", "batch": 2, "rows": rows(1, 5, price=2.0)},
]
CHANGES = [
    {"step": "apply_once", "batch": 0, "rows": [row | {"op": "U"} for row in rows(0, 1, 2, 3)]},
    {
        "step": "apply_once",
        "batch": 1,
        "rows": [row | {"op": op} for row, op in zip(rows(1, 2, 5, 6, price=2.0), "UDUD", strict=True)],
    },
]
CHANGED = sorted([*rows(0, 3), *rows(1, 5, price=2.0)], key=lambda row: row["id"])
WANTED = sorted([*rows(0, 2, 3, 4), *rows(1, 5, price=2.0)], key=lambda row: row["id"])


class Runner:
    """A process that runs micro-batches of one recipe, each in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], table: dict[str, Any]) -> None:
        self._process = process
        self._table = table
        self.child = 0
        self.said: list[Any] = []

    def run(self, order: dict[str, Any]) -> int:
        """Return the exit status; that of a killed process is -9. ``said`` has what it printed."""
        assert self._process.stdin is not None
        print(json.dumps({"query": "q", **self._table, **order}), file=self._process.stdin, flush=True)
        self.child = self._next()
        print("go", file=self._process.stdin, flush=True)
        self.said = []
        while not isinstance(said := self._next(), dict):
            self.said.append(said)
        return said["status"]

    def _next(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the runner ended"
        return json.loads(line)

    def read(self) -> list[dict[str, Any]]:
        assert self.run({"step": "read"}) == 0, self.said
        return sorted(self.said[0], key=lambda row: row["id"])


@contextmanager
def runner(form: str, **table: Any) -> Iterator[Runner]:
    command = [sys.executable, "-m", "tests.lakes.runner", form]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Runner(process, table)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store() as made:
        yield made


class Killer:
    """Kills the process at the first place of its requests where none was killed so far."""

    def __init__(self, made: Runner, *, every_request: bool) -> None:
        self.places: dict[str, None] = {}
        self._made = made
        self._every_request = every_request
        self._seen: Counter[str] = Counter()

    def run(self, order: dict[str, Any]) -> int:
        self._seen.clear()
        return self._made.run(order)

    def hook(self, when: str) -> Hook:
        def see(method: str, key: str) -> None:
            if method != "PUT" and not self._every_request:
                return
            name = key.rpartition("/")[2]
            place = f"{when} {method} {'data' if name.endswith('parquet') else name}"
            self._seen[place] += 1
            if self._seen[place] > 1:
                place += f", {self._seen[place]}"
            if place not in self.places:
                self.places[place] = None
                os.kill(self._made.child, signal.SIGKILL)
                raise CutError

        return see


def check_delta(form: str, store: ObjectStore, *, every_request: bool) -> int:
    """Run the micro-batches, each until it ends. Return the number of kills."""
    batches, wanted = (CHANGES, CHANGED) if form == "changes" else (BATCHES, WANTED)
    kills = 0
    with runner(form, table="s3://lake/orders", options=store.options) as made:
        for version, order in enumerate(batches, 1):
            killer = Killer(made, every_request=every_request)
            store.before, store.after = killer.hook("before"), killer.hook("after")
            while (status := killer.run(order)) != 0:
                assert status == -signal.SIGKILL, made.said
            steps = ("data", f"{version:020}.json")
            assert {f"{when} PUT {step}" for when in ("before", "after") for step in steps} <= set(killer.places)
            kills += len(killer.places)
            store.before = store.after = nothing
            assert made.run(order) == 0, made.said  # repeated
        assert made.read() == wanted
    return kills


@pytest.mark.parametrize(("form", "kills"), [("delta", 12), pytest.param("changes", 8, marks=pytest.mark.long)])
def test_delta_writes_each_row_once(form: str, kills: int, store: ObjectStore) -> None:
    assert check_delta(form, store, every_request=False) >= kills


@pytest.mark.long
@pytest.mark.parametrize("form", ["delta", "changes"])
def test_delta_writes_each_row_once_whichever_request_is_the_last(form: str, store: ObjectStore) -> None:
    assert check_delta(form, store, every_request=True) > 50


def iceberg_kills(made: Runner, order: dict[str, Any]) -> list[str]:
    places: list[str] = []
    while (status := made.run(order | {"kill_at": len(places)})) != 0:
        assert status == -signal.SIGKILL, made.said
        places += made.said
    return places


def test_iceberg_writes_each_row_once(tmp_path: Path) -> None:
    with runner("iceberg", table=str(tmp_path)) as made:
        for order in BATCHES:
            places = iceberg_kills(made, order)
            assert {"before parquet", "before avro", "before commit", "before json", "after commit"} <= set(places)
            assert made.run(order) == 0, made.said  # repeated
        assert made.read() == WANTED


@pytest.mark.parametrize(
    ("form", "refusal"), [("delta", "oncurrent transaction"), ("iceberg", "Requirement failed: branch main")]
)
def test_a_driver_that_is_late_writes_nothing(form: str, refusal: str, store: ObjectStore, tmp_path: Path) -> None:
    """It has read the table before another driver wrote the micro-batch."""
    table: dict[str, Any] = {"table": str(tmp_path)}
    if form == "delta":
        table = {"table": "s3://lake/orders", "options": store.options}
    with runner(form, **table) as made:
        for order in BATCHES[1:]:
            assert made.run(order | {"is_late": True}) == 1
            assert refusal in made.said[-1]
        assert made.read() == [row for row in WANTED if row["id"] not in (0, 2)]
