"""On Windows there is one clear error, wherever one begins; a Python that takes itself for Windows' stands for one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
SAID = "spark_rocket does not support Windows"

#: The libraries are imported first, since they ask for the system as well.
WINDOWS = """
import asyncio, logging.handlers, select, socket, subprocess, sys, tempfile, threading
import click, numpy, orjson, pyarrow.csv, pyspark.sql, pyspark.sql.streaming, rich.console
sys.platform = "win32"
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
del select.poll, socket.MSG_DONTWAIT
"""


def on_windows(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WINDOWS + code], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize(
    "code",
    [
        "from spark_rocket.client import Producer",
        "from spark_rocket.client import PushConsumer",
        "from spark_rocket.client import Reader",
        "from spark_rocket.client import Admin",
        "import spark_rocket.datasource.stream",
        "import spark_rocket.datasource.write.writer",
        "import spark_rocket.datasource.read.store_directory",
        "from spark_rocket.testing import LocalCluster",
    ],
)
def test_the_client_and_the_connector_name_the_system_and_the_remedy(code: str) -> None:
    done = on_windows(code)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("spark_rocket.errors.StateError: ")
    assert SAID in last
    assert "WSL 2" in last


def test_so_does_the_command_line() -> None:
    done = on_windows("from spark_rocket.cli import main; sys.exit(main(['up', '--ephemeral']))")
    assert done.returncode == 1
    remedy = "Run it in WSL 2 (wsl --install), together with Spark and Python."
    assert done.stderr == f"rocket: {SAID}; it supports Linux and macOS. {remedy}\n"
    assert on_windows("from spark_rocket.cli import main; main(['--version'])").returncode == 0


def test_spark_finds_the_format() -> None:
    """The error comes at the first use, because a missing format would not explain itself."""
    done = on_windows("import pyspark_rocket; print(pyspark_rocket.DefaultSource.name())")
    assert (done.returncode, done.stdout) == (0, "rocket\n"), done.stderr
