"""The pytest plugin, in a separate pytest run, as in a user's tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

USERS_TESTS = """
import os, sys

names = set()

def test_worker_interpreter():
    assert os.environ["PYSPARK_PYTHON"] == sys.executable

def check(rocket, rocket_topic):
    from spark_rocket.remoting.client.remoting_client import RemotingClient
    from spark_rocket.protocol.wire.command import RemotingCommand
    assert rocket_topic not in names
    names.add(rocket_topic)
    with RemotingClient() as client:
        found = client.invoke(rocket.broker_address, RemotingCommand.request(351, {"topic": rocket_topic}))
        assert found.code == 0

def test_one(rocket, rocket_topic):
    check(rocket, rocket_topic)

def test_two(rocket, rocket_topic):
    check(rocket, rocket_topic)
    assert len(names) == 2
"""


def test_fixtures_give_a_cluster_and_a_topic_per_test(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(USERS_TESTS)
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False, env=_plain())
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}


def test_the_plugin_imports_few_modules() -> None:
    program = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import spark_rocket.testing.plugin\n"
        "new = set(sys.modules) - before\n"
        "print(sorted(name for name in new if name.startswith('spark_rocket.') or '.' not in name))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    modules = [
        "spark_rocket",
        "spark_rocket.common",
        "spark_rocket.common.version",
        "spark_rocket.testing",
        "spark_rocket.testing.plugin",
    ]
    assert done.stdout.strip() == str(modules)
