"""The CPU time of processes that have ended."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.processes import descendants_cpu_seconds

pytestmark = pytest.mark.live

_SPENT_S = 0.1
# Like pyspark.daemon: it ignores SIGCHLD, then forks a worker. It writes a line when the worker has ended.
_DAEMON = f"""
import os, select, signal, sys, time
from benchmarks.spark_daemon import keep_cpu_times

if sys.argv[1] == "kept":
    keep_cpu_times()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
worker = os.fork()
if worker == 0:
    while time.process_time() < {_SPENT_S}:
        pass
    os._exit(0)
try:
    select.select([os.pidfd_open(worker)], [], [])
    while True:
        os.kill(worker, 0)
except ProcessLookupError:
    print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("time", ["kept", "forgotten"])
def test_the_time_of_a_worker_of_sparks_daemon_that_has_ended(time: str) -> None:
    daemon = subprocess.Popen([sys.executable, "-c", _DAEMON, time], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline()
        spent = descendants_cpu_seconds(daemon.pid)
    assert spent >= _SPENT_S / 2 if time == "kept" else spent == 0
