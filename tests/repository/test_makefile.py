"""What the Makefile's targets install, and when again: the Makefile itself, with a tools/setup.sh that takes notes."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTES = """#!/bin/sh
echo "$@" >>calls
if [ "$1" = packages ]; then mkdir -p "$2/bin"; fi
"""
DEMO, ALL = "packages .venv demo", "packages .venv demo,dev,docs"

pytestmark = [pytest.mark.skipif(shutil.which("make") is None, reason="there is no make"), pytest.mark.live]


class Project:
    """A folder with the Makefile and what its targets are made from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(ROOT / "Makefile", folder)
        shutil.copy(ROOT / "pyproject.toml", folder)
        shutil.copy(ROOT / "constraints.txt", folder)
        setup = folder / "tools" / "setup.sh"
        setup.parent.mkdir()
        setup.write_text(NOTES)
        lock = folder / "tests" / "proxy" / "official" / "node" / "package-lock.json"
        lock.parent.mkdir(parents=True)
        lock.write_text("{}")

    def make(self, *targets: str) -> list[str]:
        """The packages that this installed, one line for each call, and the last thing that it ran."""
        calls = self.folder / "calls"
        calls.unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "ARGS"))}
        subprocess.run(["make", *targets], cwd=self.folder, env=environment, check=True, capture_output=True)
        made = calls.read_text().splitlines() if calls.exists() else []
        return [call for call in made if call.startswith("packages")] + [call for call in made[-1:] if "run" in call]

    def change(self, name: str) -> None:
        """Make everything older but this file."""
        before = time.time() - 100
        for path in self.folder.rglob("*"):
            os.utime(path, (before, before))
        (self.folder / name).touch()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


RUN_DEMO = "run .venv python -m jobs.demo"
RUN_TEST = (
    "run .venv python -m pytest -n 3 --dist loadfile"
    " -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true --max-worker-restart 2"
)


def test_the_demo_installs_only_what_it_needs_and_the_tests_add_the_rest(project: Project) -> None:
    assert project.make("demo") == [DEMO, RUN_DEMO]
    assert project.make("demo") == [RUN_DEMO]
    assert project.make("test") == [ALL, RUN_TEST]
    assert project.make("demo") == [RUN_DEMO]
    assert project.make("bench") == ["run .venv python -m benchmarks"]


def test_the_tests_alone_install_everything(project: Project) -> None:
    installed = project.make("test")
    assert installed == [ALL, RUN_TEST]
    assert project.make("test") == [RUN_TEST]
    assert project.make("demo") == [RUN_DEMO]


def test_setup_is_all_that_lint_and_tests_need_side_by_side(project: Project) -> None:
    assert project.make("setup") == [ALL]
    assert project.make("prepare", "setup") == []
    assert project.make("test") == [RUN_TEST]


def test_several_targets_at_once_install_one_after_the_other(project: Project) -> None:
    made = project.make("-j4", "test", "demo")
    assert made[0] == ALL  # make may have seen by then that it contains the demo's
    assert made[1:-1] in ([], [DEMO])


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt", "tools/setup.sh"])
def test_what_changes_is_installed_again(project: Project, changed: str) -> None:
    project.make("test")
    project.change(changed)
    assert project.make("demo") == [DEMO, RUN_DEMO]
    assert project.make("demo") == [RUN_DEMO]
    assert project.make("test") == [ALL, RUN_TEST]
    assert project.make("test") == [RUN_TEST]
    shutil.rmtree(project.folder / ".venv")
    assert project.make("setup") == [ALL]
