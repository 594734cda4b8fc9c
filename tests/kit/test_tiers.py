"""The guard of the unit tier, in runs of pytest of its own, and the files that it leaves out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.tiers import ROOT, has_unit_tests

pytestmark = pytest.mark.live

TESTS = """
import socket, subprocess, sys, threading
import pytest

def listen():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))

@pytest.fixture
def listening():
    listen()

def test_socket():
    listen()

def test_socket_of_a_fixture(listening):
    pass

def test_socket_of_a_thread():
    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()

def test_process():
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_neither(tmp_path):
    first, second = socket.socketpair()
    first.close()
    second.close()

@pytest.mark.live
def test_marked(listening):
    pass
"""
WRONG = ("test_socket", "test_socket_of_a_fixture", "test_socket_of_a_thread", "test_process")


def test_a_unit_test_that_opens_or_starts_something_fails(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        "from tests.kit.tiers import Guard\n\n\ndef pytest_configure(config):\n"
        "    config.addinivalue_line('markers', 'live:')\n    config.pluginmanager.register(Guard())\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert {line.split("::")[1].split(" ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")} == {
        *WRONG
    }, done.stdout + done.stderr
    assert "4 failed, 2 passed" in done.stdout
    assert "mark it live" in done.stdout


@pytest.mark.parametrize(
    ("file", "has_some"),
    [
        ("kit/test_tiers.py", False),  # all are marked in one line
        ("client/test_lost_connections.py", False),  # in several
        ("spark/test_tls.py", False),  # by their folder
        ("store/test_state_machine.py", False),  # by their names
        ("kit/test_sampling.py", True),  # one test is marked
        ("common/test_units.py", True),
    ],
)
def test_files_without_unit_tests_are_left_out(file: str, has_some: bool) -> None:
    assert has_unit_tests(ROOT / "tests" / file) is has_some
