"""The snippets of the testing guide that need no Spark; ``tests/spark/test_recipes.py`` runs the others."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from spark_rocket.testing import LocalCluster
from tests.cli.test_rocket import started
from tests.kit.pages import Example, commands, examples

pytestmark = pytest.mark.live

PAGE = "docs/guides/testing.md"
FREE_PORTS = [f"--{name}-port=0" for name in ("nameserver", "broker", "grpc", "console", "metrics")]


def _is_of_spark(example: Example) -> bool:
    return "totals" in (example.title or example.code)


def test_tests_of_the_guide_pass(tmp_path: Path) -> None:
    files = [example for example in examples(PAGE) if example.language == "python" and not _is_of_spark(example)]
    for file in files:
        assert file.title
        (tmp_path / file.title).write_text(file.code)
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_servers_of_the_guide_start() -> None:
    (transcript,) = (each for each in examples(PAGE) if each.language == "console" and not _is_of_spark(each))
    ((command, shown),) = commands(transcript.code)
    with started(*command[1:], *FREE_PORTS, last="Console:") as (_, printed):
        for line in shown:
            assert line.split("127.0.0.1")[0].removesuffix("…") in printed


def test_arguments_of_the_guide_exist() -> None:
    table = (
        (Path(__file__).parents[2] / PAGE)
        .read_text(encoding="utf-8")
        .partition("Arguments of")[2]
        .partition("\n\n`")[0]
    )
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = {part.partition("=")[0] for row in rows for part in row.split("`")[1::2]}
    accepted = set(inspect.signature(LocalCluster).parameters)
    assert accepted - documented == {"start_timeout", "security_token"}
    assert documented <= accepted
