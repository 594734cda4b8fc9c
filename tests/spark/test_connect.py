"""Spark Connect: some of the tests of this folder, through a server. ``make connect`` runs them all."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.spark.sessions import ON_CONNECT, ROOT

TESTS = ("test_write.py::test_every_column_round_trips",)


@pytest.mark.long
@pytest.mark.skipif(ON_CONNECT, reason="all tests run on Spark Connect")
def test_tests_on_spark_connect() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *(f"tests/spark/{name}" for name in TESTS)],
        cwd=ROOT,
        env=os.environ | {"ON_CONNECT": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout
