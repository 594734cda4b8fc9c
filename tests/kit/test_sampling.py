"""What ``make test`` leaves out exists, and ``make long`` runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import sampling
from tests.kit.sampling import SOME, chosen, named_files, part

ROOT = Path(__file__).parents[2]


class Named:
    """What ``chosen`` uses of a test."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid
        self.path = ROOT / nodeid.partition("::")[0]


def choose(names: list[str], *named: str) -> list[str]:
    files = {ROOT / name for name in named}
    return [item.nodeid for item in chosen([Named(name) for name in names], files)]  # type: ignore[misc]


@pytest.mark.parametrize("place", SOME)
def test_an_entry_names_a_file_or_a_test(place: str) -> None:
    file, _, test = place.partition("::")
    assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8")


def test_some_of_each_entry_and_all_others_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SOME", {"a.py": 2, "b.py::test_it": 1})
    monkeypatch.setattr(sampling, "ALL", False)
    names = ["a.py::test_1", "b.py::test_it[1]", "a.py::test_2", "b.py::test_other", "a.py::test_3", "b.py::test_it[2]"]
    taken = choose(names)
    assert taken == [name for name in names if name in taken]
    assert "b.py::test_other" in taken
    assert sum(name.startswith("a.py") for name in taken) == 2
    assert sum("test_it" in name for name in taken) == 1
    assert choose(["a.py::test_3"]) == ["a.py::test_3"], "a named test runs"
    assert choose(names, "a.py", "c.py") == [name for name in names if name.startswith("a.py") or name in taken]
    monkeypatch.setattr(sampling, "ALL", True)
    assert choose(names) == names


def test_another_seed_takes_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ALL", False)
    names = [f"tests/spark/test_traps.py::test_{number}" for number in range(30)]
    seen = set()
    for seed in range(20):
        monkeypatch.setattr(sampling, "SEED", str(seed))
        seen.update(choose(names))
    assert len(seen) > 25


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["tests/kit/test_tiers.py"], ["tests/kit/test_tiers.py"]),
        (["tests/kit/test_tiers.py::test_a", "tests/kit/clock.py"], ["tests/kit/test_tiers.py", "tests/kit/clock.py"]),
        (["tests/kit"], []),
        ([], []),
    ],
)
def test_files_that_the_command_names(pytestconfig: pytest.Config, arguments: list[str], named: list[str]) -> None:
    class Command:
        """What a worker's configuration has of the command."""

        args = arguments or ["tests"]
        invocation_params = pytest.Config.InvocationParams(args=(), plugins=None, dir=ROOT)

    assert named_files(Command()) == {ROOT / name for name in named}  # type: ignore[arg-type]


@pytest.mark.live
def test_make_long_runs_what_is_left_out() -> None:
    file = "tests/cost/test_rpcs.py"
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "long", "-p", "no:cacheprovider", file]
    done = subprocess.run(
        ["env", "LONG=1", *command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    found = [line for line in done.stdout.splitlines() if line.startswith(file)]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(found) > SOME[f"{file}::test_a_request_beyond_a_bound_is_refused"]
    assert all(part(line) for line in found)
