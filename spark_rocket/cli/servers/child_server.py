"""Servers that another server starts as processes of their own, watches, and starts again when they die.

What a child says on stderr is said here with its label before it. It ends with this process, however that ends
(child_process.py). A child that dies is started again, each time after twice the delay; one that dies within a minute
again and again is given up, and so is one that never started.

Thread-safety: one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum

from spark_rocket.cli.servers.child_process import ChildProcess
from spark_rocket.errors import ConfigError

_STOP_SECONDS = 30.0
_FIRST_DELAY_S = 1.0
_LAST_DELAY_S = 32.0
_STABLE_S = 60.0  # a child that was up for so long begins with the first delay again


class ChildServer:
    """One server's process, from its start to its end."""

    def __init__(self, label: str, child: ChildProcess) -> None:
        self.label = label
        self.process = child.process
        self.stopping = False
        self._child = child
        self._last_words = ""
        self._is_up = False
        self._reading = asyncio.create_task(self._relay())

    @classmethod
    async def start(cls, label: str, *arguments: str, environment: Mapping[str, str] | None = None) -> ChildServer:
        """Start ``rocket ARGUMENTS``. ``label`` names it in what is said of it. OSError when it cannot start."""
        return cls(label, await ChildProcess.start(*arguments, environment=environment))

    async def _relay(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(ValueError, OSError):  # a line without an end; a terminal that is gone
            async for line in self.process.stderr:
                self._last_words = line.decode(errors="replace").rstrip()
                if self._is_up or not self._last_words.startswith("rocket: "):
                    print(f"{self.label}: {self._last_words}", file=sys.stderr, flush=True)

    async def wait_until_up(self) -> dict[str, str]:
        """Wait for what it reports when it is up. ConfigError with its own words if it ends before that."""
        line = await self._child.ready_line()
        if not line:
            await self.ended()
            words = self._last_words.removeprefix("rocket: ") or f"It ended with status {self.process.returncode}."
            raise ConfigError(f"{self.label} did not start. {words}")
        self._is_up = True
        facts: dict[str, str] = json.loads(line)
        return facts

    async def ended(self) -> int:
        """Wait for its end; its exit status, negative for a signal."""
        status = await self.process.wait()
        await asyncio.wait([self._reading])
        return status

    async def stop(self, kill_after: float | None = None) -> None:
        """Stop it with SIGTERM and wait for its end; after ``kill_after`` seconds, if given, with SIGKILL."""
        self.stopping = True
        try:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            try:
                await asyncio.wait_for(self.ended(), kill_after)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self.process.kill()
                await self.ended()
        finally:
            self._child.release()


class End(Enum):
    """How a server ended."""

    STOPPED = "stopped"
    DIED = "died"
    NOT_STARTED = "not started"


class KeptServer:
    """A server that is started again when it dies. ``by_hand`` is the command that a user starts it with."""

    def __init__(self, label: str, by_hand: str, *arguments: str, environment: Mapping[str, str]) -> None:
        self.arguments = arguments
        self.environment = environment
        self._label = label
        self._by_hand = by_hand
        self._server: ChildServer | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start its process. OSError when that cannot be done."""
        self._server = await ChildServer.start(self._label, *self.arguments, environment=self.environment)

    async def wait_until_up(self) -> dict[str, str]:
        """Wait for what it reports, and watch it from then on. ConfigError with its own words if it ends before."""
        assert self._server is not None
        facts = await self._server.wait_until_up()
        self._watching = asyncio.create_task(keep_running(self._label, self._by_hand, self._run))
        return facts

    async def _run(self) -> End:
        """One life of the server."""
        try:
            if self._server is None:
                await self.start()
                assert self._server is not None
                await self._server.wait_until_up()
                say(f"The {self._label} is up again.")
            status = await self._server.ended()
        except (ConfigError, OSError) as error:
            say(f"{error}")
            return End.NOT_STARTED
        finally:
            server, self._server = self._server, None
            if server is not None:
                await server.stop(_STOP_SECONDS)
        say(f"The {self._label} {how_it_ended(status)}.")
        return End.DIED if status else End.STOPPED

    async def stop(self) -> None:
        """Stop it. Idempotent."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        server, self._server = self._server, None
        if server is not None:
            await server.stop(_STOP_SECONDS)


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


async def keep_running(
    what: str,
    by_hand: str,
    run: Callable[[], Awaitable[End]],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Run it, and again as long as it dies, or cannot start after it was up: a shortage may end, or a port be free.

    ``what`` names it. ``by_hand`` is the command that starts it.
    """
    delay, begun, was_up = _FIRST_DELAY_S, clock(), False
    while (end := await run()) is End.DIED or (end is End.NOT_STARTED and was_up):
        was_up = True
        if clock() - begun >= _STABLE_S:
            delay = _FIRST_DELAY_S
        if delay > _LAST_DELAY_S:
            say(f"The {what} died too often and is not started again. Start it with: {by_hand}")
            return
        say(f"Starting the {what} again in {delay:g} s.")
        await sleep(delay)
        delay *= 2
        begun = clock()


def say(text: str) -> None:
    """On the terminal, which may be gone."""
    with contextlib.suppress(OSError):
        print(text, flush=True)
