"""Child servers: started as separate processes, supervised, and restarted when they die.

A child is a ``rocket`` command. Two pipes connect it to its parent. It writes one line to the first (``--ready-fd``)
when it is up. It stops when the second is closed (``--lifeline-fd``): the parent holds the other end, and the system
closes that end however the parent terminates.

A child is started with ``subprocess.Popen``, which executes no Python code between fork and exec (vfork). Each pipe end
has one owner, a file object, which closes it once. The pipes are read with ``add_reader``. The event loop's own
subprocesses and pipe transports are not used: uvloop forks with Python code in the child, which is unsafe in a process
with threads, and it closes a descriptor again in a later turn of the loop, when the number may belong to a new
connection or store file.

A child that dies is restarted with exponential backoff. A child that repeatedly dies within a minute is not restarted
any more, and a child that never started is not retried. Its stderr is relayed with its label as a prefix.

Thread-safety: one event loop. ``testing.processes`` starts servers without an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from enum import Enum
from io import FileIO

from spark_rocket.cli.servers.foreground import print_line
from spark_rocket.errors import ConfigError

_MAX_LINE_BYTES = 1 << 20  # a longer line on the child's stderr is split
_READ_BYTES = 4096
_FIRST_DELAY_S = 1.0
_LAST_DELAY_S = 32.0
_STABLE_S = 60.0  # the backoff is reset after this uptime


class LineReader:
    """The lines that a child writes to a pipe, read by the event loop. It owns its end of the pipe."""

    def __init__(self, pipe: FileIO) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe
        self._buffer = b""

    async def line(self) -> bytes:
        """Return the next line with its newline; at the end of the pipe the unfinished line, then ``b""``."""
        while b"\n" not in self._buffer and len(self._buffer) < _MAX_LINE_BYTES:
            data = await self._read()
            if not data:
                rest, self._buffer = self._buffer, b""
                return rest
            self._buffer += data
        end = self._buffer.find(b"\n", 0, _MAX_LINE_BYTES) + 1 or _MAX_LINE_BYTES
        line, self._buffer = self._buffer[:end], self._buffer[end:]
        return line

    async def _read(self) -> bytes:
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pipe.fileno(), readable.set)
        try:
            while True:
                await readable.wait()
                readable.clear()
                data = self._pipe.read(_READ_BYTES)
                if data is not None:
                    return data
        finally:
            loop.remove_reader(self._pipe.fileno())

    def close(self) -> None:
        self._pipe.close()


class ChildProcess:
    """A process, its stderr and its two pipes. Its stdout is discarded. The reader of ``stderr`` closes it."""

    def __init__(
        self, process: subprocess.Popen[bytes], stderr: LineReader, ready: LineReader, lifeline: FileIO
    ) -> None:
        self.pid = process.pid
        self.stderr = stderr
        self._process = process
        self._ready = ready
        self._lifeline = lifeline

    @classmethod
    async def start(cls, *arguments: str, environment: Mapping[str, str] | None = None) -> ChildProcess:
        """Start ``rocket ARGUMENTS`` with these variables added to the environment. OSError if it cannot start."""
        with ExitStack() as own_ends, ExitStack() as child_ends:
            stderr, stderr_write = _pipe(own_ends, child_ends)
            ready, ready_write = _pipe(own_ends, child_ends)
            lifeline_read, lifeline = _pipe(child_ends, own_ends)
            command = [sys.executable, "-m", "spark_rocket.cli", *arguments]
            command += ["--ready-fd", str(ready_write.fileno()), "--lifeline-fd", str(lifeline_read.fileno())]
            process = subprocess.Popen(  # noqa: ASYNC220 - returns when the child has called exec
                command,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr_write.fileno(),
                pass_fds=(ready_write.fileno(), lifeline_read.fileno()),
                start_new_session=True,  # Ctrl-C in the terminal is for this process, which then stops the child
            )
            own_ends.pop_all()
            return cls(process, LineReader(stderr), LineReader(ready), lifeline)

    async def ready_line(self) -> bytes:
        """Wait for the line that the child writes when it is up; empty if it ended before that. Call it once."""
        try:
            line = await self._ready.line()
        finally:
            self._ready.close()
        return line if line.endswith(b"\n") else b""

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the child has ended."""
        self._process.send_signal(number)

    async def wait(self) -> int:
        """Wait for the exit status, negative for a signal. Blocks a thread: call it when stderr has ended."""
        return await asyncio.to_thread(self._process.wait)

    def release(self) -> None:
        """Close the lifeline, which tells the child to stop, and the other pipe if it is still open."""
        self._ready.close()
        self._lifeline.close()


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[FileIO, FileIO]:
    reading, writing = os.pipe()
    return (
        reader.enter_context(os.fdopen(reading, "rb", buffering=0)),
        writer.enter_context(os.fdopen(writing, "wb", buffering=0)),
    )


class ChildServer:
    def __init__(self, label: str, child: ChildProcess, *, relays: bool = True) -> None:
        self.label = label
        self.pid = child.pid
        self.stopping = False
        self._child = child
        self._last_line = ""
        self._relays = relays
        self._is_up = False
        self._ending = asyncio.create_task(self._run_to_end())

    @classmethod
    async def start(
        cls, label: str, *arguments: str, environment: Mapping[str, str] | None = None, relays: bool = True
    ) -> ChildServer:
        """Start ``rocket ARGUMENTS``. OSError if it cannot start.

        ``label`` names it in messages. ``relays``: relay its stderr.
        """
        return cls(label, await ChildProcess.start(*arguments, environment=environment), relays=relays)

    async def _run_to_end(self) -> int:
        """Relay stderr until it ends, then wait for the exit status."""
        try:
            while line := await self._child.stderr.line():
                self._relay(line.decode(errors="replace").rstrip())
        finally:
            self._child.stderr.close()
        return await self._child.wait()

    def _relay(self, line: str) -> None:
        self._last_line = line or self._last_line
        if not self._relays or (not self._is_up and self._last_line.startswith("rocket: ")):
            return
        with contextlib.suppress(OSError):  # the terminal is closed; the child's pipe must not fill up
            print(f"{self.label}: {self._last_line}", file=sys.stderr, flush=True)

    async def wait_until_up(self) -> dict[str, str]:
        """Wait for the facts that it reports when it is up. ConfigError with its last message if it ends before."""
        line = await self._child.ready_line()
        if not line:
            words = self.last_message(await self.ended())
            raise ConfigError(f"{self.label} did not start. {words}")
        self._is_up = True
        facts: dict[str, str] = json.loads(line)
        return facts

    def last_message(self, status: int) -> str:
        """Return the last line of its stderr, or its exit status."""
        return self._last_line.removeprefix("rocket: ") or f"It exited with status {status}."

    async def ended(self) -> int:
        """Wait for its end and return the exit status, negative for a signal."""
        return await asyncio.shield(self._ending)

    async def stop(self, kill_after: float | None = None) -> None:
        """Stop it with SIGTERM and wait for its end; after ``kill_after`` seconds, if given, with SIGKILL."""
        self.stopping = True
        try:
            self._child.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(kill_after):
                    await self.ended()
            except TimeoutError:
                self._child.send_signal(signal.SIGKILL)
                await self.ended()
        finally:
            self._child.release()


class End(Enum):
    STOPPED = "stopped"
    DIED = "died"
    NOT_STARTED = "not started"


class SupervisedServer:
    """A server that is restarted when it dies. ``command``: the command by which a user starts it.

    Subclasses can override the messages for start, failed start and end.
    """

    stop_seconds = 30.0
    relays = True

    def __init__(self, label: str, command: str, *arguments: str, environment: Mapping[str, str]) -> None:
        self.label = label
        self.arguments = arguments
        self.environment = environment
        self._command = command
        self._server: ChildServer | None = None
        self._supervisor: asyncio.Task[None] | None = None

    def up_text(self, facts: Mapping[str, str]) -> str:
        return f"The {self.label} is up again."

    def not_started_text(self, error: ConfigError | OSError) -> str:
        return str(error)

    def ended_text(self, server: ChildServer, status: int) -> str:
        return f"The {self.label} {exit_text(status)}."

    async def start(self) -> None:
        self._server = await ChildServer.start(
            self.label, *self.arguments, environment=self.environment, relays=self.relays
        )

    async def wait_until_up(self) -> dict[str, str]:
        """Wait until it is up, return its facts and supervise it. ConfigError with its last message if it ends."""
        assert self._server is not None
        facts = await self._server.wait_until_up()
        self.supervise()
        return facts

    def supervise(self) -> None:
        """Supervise the server in the background, and start it if it is not started."""
        self._supervisor = asyncio.create_task(supervise(self.label, self._command, self._run))

    async def _run(self) -> End:
        try:
            if self._server is None:
                await self.start()
                assert self._server is not None
                print_line(self.up_text(await self._server.wait_until_up()))
            status = await self._server.ended()
            print_line(self.ended_text(self._server, status))
        except (ConfigError, OSError) as error:
            print_line(self.not_started_text(error))
            return End.NOT_STARTED
        finally:
            await self._stop_server()
        return End.DIED if status else End.STOPPED

    async def stop(self) -> None:
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.wait([supervisor])
        await self._stop_server()

    async def _stop_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(self.stop_seconds)


def exit_text(status: int) -> str:
    return f"was terminated by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"


async def supervise(
    what: str,
    command: str,
    run: Callable[[], Awaitable[End]],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Run a server and restart it when it dies.

    A restart that fails is retried too: a shortage may end, or a port become free. ``what`` names the server.
    ``command`` is the command that starts it.
    """
    delay, begun, was_up = _FIRST_DELAY_S, clock(), False
    while (end := await run()) is End.DIED or (end is End.NOT_STARTED and was_up):
        was_up = True
        if clock() - begun >= _STABLE_S:
            delay = _FIRST_DELAY_S
        if delay > _LAST_DELAY_S:
            print_line(f"The {what} died too often and is not restarted any more. Start it with: {command}")
            return
        print_line(f"Restarting the {what} in {delay:g} s.")
        await sleep(delay)
        delay *= 2
        begun = clock()
