"""The console that ``rocket up`` starts: a process of its own, so that it takes nothing of the broker's.

It ends with whoever started it: it holds the end of a pipe. That a port is taken is said in one line, and is no reason
for ``rocket up`` not to be up. A console that dies is started again (child_server.py). Thread-safety: one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
from contextlib import AsyncExitStack
from typing import Protocol

from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.cli.servers.child_process import ChildProcess
from spark_rocket.cli.servers.child_server import End, keep_running, say
from spark_rocket.client.core.config import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, SECURITY_TOKEN_VARIABLE
from spark_rocket.console.settings import PASSWORD_VARIABLE

_STOP_SECONDS = 5.0
_NO_ACCOUNT = (
    "  It has no account, where requests must be signed. Start with "
    f"{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE} set;\n"
    f"  or with {PASSWORD_VARIABLE}: behind that login it acts with the broker's own account, if it has one."
)


class ConsoleWanted(Protocol):
    """The options that say so."""

    @property
    def console_port(self) -> int | None: ...
    @property
    def no_console(self) -> bool: ...
    @property
    def ready_fd(self) -> int | None: ...


def start_console(servers: AsyncExitStack, options: ConsoleWanted, name_server: str, config: BrokerConfig) -> None:
    """Start it beside the servers, without waiting: it says by itself where it is, or why it is not.

    It calls them with TLS if they call each other so. With access control its requests are signed by the account of the
    environment. Without one, a console that has a login takes the brokers' own; one that is open to all does not.

    A program that starts ``rocket up`` (``--ready-fd``) has none unless it names a port.
    """
    if options.no_console or (options.ready_fd is not None and options.console_port is None):
        return
    port = 8080 if options.console_port is None else options.console_port
    tls = config.tls_settings()
    called = tls.client_environment() if tls.is_client else {}
    missing = ""
    if config.acl_enable and not os.environ.get(ACCESS_KEY_VARIABLE):
        own = config.own_credentials if os.environ.get(PASSWORD_VARIABLE) else None
        if own is None:
            missing = f"\n{_NO_ACCOUNT}"
        else:
            called |= {ACCESS_KEY_VARIABLE: own.access_key, SECRET_KEY_VARIABLE: own.secret_key}
            called |= {SECURITY_TOKEN_VARIABLE: own.security_token} if own.security_token else {}
    running = keep_running("console", "rocket console", lambda: _run(name_server, port, called, missing))
    task = asyncio.create_task(running)

    async def stop() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    servers.push_async_callback(stop)


async def _run(name_server: str, port: int, environment: dict[str, str], note: str) -> End:
    """One console, from its start to its end."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        say(f"No console: {' and '.join(missing)} are not installed.")
        return End.NOT_STARTED
    arguments = ["console", "-n", name_server, "--port", str(port)]
    try:
        child = await ChildProcess.start(*arguments, environment=environment)
    except OSError as error:
        say(f"No console: {error.strerror or error}.")
        return End.NOT_STARTED
    process = child.process
    try:
        assert process.stderr is not None
        words = asyncio.create_task(_last_words(process.stderr))
        line = await child.ready_line()
        if line:
            say(f"Console: {json.loads(line)['console']}{note}")
        status = await process.wait()
        said = (await words).removeprefix("rocket: ") or f"It ended with status {status}."
        if not line:
            say(f"No console: {said}")
            return End.NOT_STARTED
        say(f"The console has ended. {said}")
        return End.DIED if status else End.STOPPED
    finally:
        child.release()  # by which it ends
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _last_words(stream: asyncio.StreamReader) -> str:
    last = ""
    with contextlib.suppress(ValueError, OSError):  # a line without an end; a terminal that is gone
        async for line in stream:
            last = line.decode(errors="replace").rstrip() or last
    return last
