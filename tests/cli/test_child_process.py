"""Processes that a server starts: each descriptor of theirs is closed once, and no other one with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.cli.servers.child import ChildProcess, End, keep_running
from spark_rocket.remoting.server.server import run
from spark_rocket.testing.processes import ServerProcess
from tests.cli.descriptors import Opened, closes_its_pipes


def test_a_child_reports_and_ends_with_its_lifeline(tmp_path: Path) -> None:
    async def start_and_stop() -> None:
        child = await ChildProcess.start("namesrv", "--port", "0", "--data", str(tmp_path))
        opened = Opened()
        facts = json.loads(await child.ready_line())
        opened.some()  # with the numbers that have just become free
        assert facts["nameServer"].startswith("127.0.0.1:")
        child.release()
        opened.some()
        assert child.process.stderr is not None
        assert await child.process.stderr.read() == b""
        assert await child.process.wait() == 0
        child.release()
        opened.check()

    run_and_leave_nothing_open(start_and_stop())


def run_and_leave_nothing_open(main: Coroutine[Any, Any, None]) -> None:
    with closes_its_pipes():
        run(main)


def test_a_child_that_ends_before_it_is_up() -> None:
    async def start() -> None:
        child = await ChildProcess.start("namesrv", "--port", "nonsense")
        assert await child.ready_line() == b""
        assert child.process.stderr is not None
        assert b"nonsense" in await child.process.stderr.read()
        assert await child.process.wait() != 0
        child.release()

    run_and_leave_nothing_open(start())


def test_a_child_that_cannot_be_started_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")

    async def start() -> None:
        with pytest.raises(FileNotFoundError):
            await ChildProcess.start("namesrv")

    run_and_leave_nothing_open(start())


def test_the_wait_for_a_child_can_be_cancelled(tmp_path: Path) -> None:
    async def start() -> None:
        child = await ChildProcess.start("namesrv", "--port", "0", "--data", str(tmp_path))
        waiting = asyncio.create_task(child.ready_line())
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        child.release()
        assert child.process.stderr is not None
        await child.process.stderr.read()
        await child.process.wait()

    run_and_leave_nothing_open(start())


def test_a_child_that_dies_again_and_again_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    now, waited = 0.0, []
    lives = iter([1.0, 1.0, 100.0, *[1.0] * 20])

    async def die() -> End:
        nonlocal now
        now += next(lives)
        return End.DIED

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        waited.append(seconds)

    asyncio.run(keep_running("console", "rocket console", die, clock=lambda: now, sleep=sleep))
    assert waited == [1, 2, 1, 2, 4, 8, 16, 32]  # the third was up for long
    assert "Start it with: rocket console" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ends", "starts_again"),
    [
        ([End.STOPPED], 0),
        ([End.NOT_STARTED], 0),
        ([End.DIED, End.STOPPED], 1),
        ([End.DIED, End.NOT_STARTED, End.NOT_STARTED, End.STOPPED], 3),
    ],
)
def test_when_a_child_is_started_again(ends: list[End], starts_again: int) -> None:
    left, waited = iter(ends), []

    async def run() -> End:
        return next(left)

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    asyncio.run(keep_running("console", "rocket console", run, sleep=sleep))
    assert len(waited) == starts_again


@pytest.mark.live
def test_a_child_has_no_descriptors_of_the_program_that_started_its_parent(tmp_path: Path) -> None:
    """Which would wait for the end of a pipe that the child holds open."""
    ready_read, ready_write = os.pipe()
    lifeline_read, lifeline_write = os.pipe()
    command = ["up", "--brokers", "2", "--ephemeral", "--nameserver-port", "0", "--broker-port", "0", "--no-grpc"]
    command += ["--no-metrics", "--ready-fd", str(ready_write), "--lifeline-fd", str(lifeline_read)]
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_rocket.cli", *command],
        stdout=subprocess.DEVNULL,
        pass_fds=(ready_write, lifeline_read),
    )
    os.close(ready_write)
    os.close(lifeline_read)
    with os.fdopen(ready_read) as ready:
        assert set(json.loads(ready.read())) == {"nameServer", "broker"}
    os.close(lifeline_write)
    assert process.wait(60) == 0


@pytest.mark.live
def test_a_server_of_a_test_cluster_can_be_stopped_twice(tmp_path: Path) -> None:
    server = ServerProcess(["namesrv", "--port", "0", "--data", str(tmp_path)], tmp_path / "log", 60)
    server.stop()
    opened = Opened()
    opened.some()
    server.stop()
    server.kill()
    opened.check()


def test_a_pipe_that_stays_open_is_found() -> None:
    ends: tuple[int, ...] = ()
    with pytest.raises(AssertionError), closes_its_pipes():
        ends = os.pipe()
    for end in ends:
        os.close(end)
    with closes_its_pipes():
        for end in os.pipe():
            os.close(end)
