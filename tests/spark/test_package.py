"""``rocket package``: workers that have only pyspark, pyarrow and numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_rocket.cli.package import write_package
from spark_rocket.testing import LocalCluster
from tests.spark import bare_workers


@pytest.mark.long
def test_bare_workers_say_what_is_missing_and_run_what_was_taken_along(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.create_topic("bare", 2)
    cluster.create_topic("bare-copy", 2)
    package = tmp_path / "spark_rocket.zip"
    write_package(package)
    done = subprocess.run(
        [sys.executable, bare_workers.__file__, cluster.name_server, "bare", str(package), str(tmp_path)],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ON_CONNECT")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    absent, *messages, rows, ended = map(json.loads, done.stdout.splitlines()[:5])
    findings = map(json.loads, done.stdout.splitlines()[5:])
    assert absent == ["spark_rocket", "pandas", "orjson", "uvloop"]
    assert len(messages) == 2, "to read and to write"
    for message in messages:
        assert 'format("rocket") cannot run on the worker' in message
        assert "`rocket package` writes spark_rocket.zip" in message
    assert rows == list(range(20))
    assert ended is True
    executor = [finding for finding in findings if finding["about"].startswith("executor")]
    assert [finding["grade"] for finding in executor] == ["ok", "ok"], executor
