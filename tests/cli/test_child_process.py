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

from spark_rocket.cli.servers.child import ChildProcess, End, LineReader, supervise
from spark_rocket.remoting.server.remoting_server import run
from spark_rocket.testing.processes import ServerProcess
from tests.cli.descriptors import WatchedDescriptors, closes_its_pipes


@pytest.mark.live
def test_a_child_reports_and_exits_when_its_lifeline_closes(tmp_path: Path) -> None:
    async def start_and_stop() -> None:
        child = await ChildProcess.start("namesrv", "--port", "0", "--data", str(tmp_path))
        opened = WatchedDescriptors()
        facts = json.loads(await child.ready_line())
        opened.some()  # with the numbers that have just become free
        assert facts["nameServer"].startswith("127.0.0.1:")
        child.release()
        opened.some()
        assert await stderr_of(child) == b""
        assert await child.wait() == 0
        child.release()
        opened.check()

    run_and_leave_nothing_open(start_and_stop())


def run_and_leave_nothing_open(main: Coroutine[Any, Any, None]) -> None:
    with closes_its_pipes():
        run(main)


async def stderr_of(child: ChildProcess) -> bytes:
    try:
        lines = []
        while line := await child.stderr.line():
            lines.append(line)
        return b"".join(lines)
    finally:
        child.stderr.close()


def test_lines_are_read_from_a_pipe() -> None:
    """Lines can arrive in parts, several at once, longer than the limit, and without a line end."""

    async def read() -> None:
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            reader = LineReader(os.fdopen(reading, "rb", buffering=0))
            first = asyncio.create_task(reader.line())
            pipe.write(b"one")
            await asyncio.sleep(0)
            pipe.write(b" line\nsecond\nthird")
            assert [await first, await reader.line()] == [b"one line\n", b"second\n"]
            rest = asyncio.create_task(reader.line())
            long = b"x" * (1 << 20)
            await asyncio.to_thread(pipe.write, long)
        assert await rest + await reader.line() == b"third" + long
        assert len(rest.result()) == 1 << 20
        assert await reader.line() == b""
        reader.close()

    run_and_leave_nothing_open(read())


@pytest.mark.live
def test_no_python_code_runs_in_the_child_before_exec(tmp_path: Path) -> None:
    """That is unsafe in a process with threads: a child started by uvloop died without a message."""
    is_armed = True
    os.register_at_fork(after_in_child=lambda: os._exit(7) if is_armed else None)

    async def start() -> None:
        child = await ChildProcess.start("namesrv", "--port", "0", "--data", str(tmp_path))
        assert await child.ready_line() != b""
        child.release()
        await stderr_of(child)
        assert await child.wait() == 0

    try:
        run_and_leave_nothing_open(start())
    finally:
        is_armed = False


@pytest.mark.live
def test_a_child_that_exits_before_it_is_ready() -> None:
    async def start() -> None:
        child = await ChildProcess.start("namesrv", "--port", "malformed")
        assert await child.ready_line() == b""
        assert b"malformed" in await stderr_of(child)
        assert await child.wait() != 0
        child.release()

    run_and_leave_nothing_open(start())


@pytest.mark.live
def test_a_failed_start_leaks_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")

    async def start() -> None:
        with pytest.raises(FileNotFoundError):
            await ChildProcess.start("namesrv")

    run_and_leave_nothing_open(start())


@pytest.mark.live
def test_the_wait_for_a_child_can_be_cancelled(tmp_path: Path) -> None:
    async def start() -> None:
        child = await ChildProcess.start("namesrv", "--port", "0", "--data", str(tmp_path))
        waiting = asyncio.create_task(child.ready_line())
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        child.release()
        await stderr_of(child)
        await child.wait()

    run_and_leave_nothing_open(start())


def test_repeated_crashes_end_the_restarts(capsys: pytest.CaptureFixture[str]) -> None:
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

    asyncio.run(supervise("console", "rocket console", die, clock=lambda: now, sleep=sleep))
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
def test_restarts_of_a_child(ends: list[End], starts_again: int) -> None:
    left, waited = iter(ends), []

    async def run() -> End:
        return next(left)

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    asyncio.run(supervise("console", "rocket console", run, sleep=sleep))
    assert len(waited) == starts_again


@pytest.mark.live
def test_a_child_inherits_no_descriptors_of_its_grandparent(tmp_path: Path) -> None:
    """An inherited descriptor would keep the pipe open and block its reader."""
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
    opened = WatchedDescriptors()
    opened.some()
    server.stop()
    server.kill()
    opened.check()


def test_an_open_pipe_is_detected() -> None:
    ends: tuple[int, ...] = ()
    with pytest.raises(AssertionError), closes_its_pipes():
        ends = os.pipe()
    for end in ends:
        os.close(end)
    with closes_its_pipes():
        for end in os.pipe():
            os.close(end)
