"""One Telemetry stream's way out: commands wait here until the client reads them.

Answers to the client wait for room, so that one who sends and does not read is not read from either. Commands that the
server sends by itself find room or end the stream, and the client opens another.

Thread-safety: used on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from spark_rocket.proxy.transport.context import GrpcCode, RpcError

MAX_WAITING = 256


class CommandStream:
    """Commands in order, and then the end."""

    __slots__ = ("_changed", "_commands", "_ended", "_error", "_taken")

    def __init__(self) -> None:
        self._commands: deque[Any] = deque()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._ended = False
        self._error: RpcError | None = None

    def tell(self, command: Any) -> bool:
        """Send a command; False when the stream is over, or is over now because the client does not read."""
        if self._ended:
            return False
        if len(self._commands) >= MAX_WAITING:
            self.end(RpcError(GrpcCode.RESOURCE_EXHAUSTED, f"{MAX_WAITING} commands of this stream are not read"))
            return False
        self._commands.append(command)
        self._changed.set()
        return True

    async def answer(self, command: Any) -> None:
        """Send a command when there is room."""
        while len(self._commands) >= MAX_WAITING and not self._ended:
            self._taken.clear()
            await self._taken.wait()
        self.tell(command)

    def end(self, error: RpcError | None = None) -> None:
        """After what waits: the end, or the status of a failure."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._changed.set()
            self._taken.set()

    async def __aiter__(self) -> AsyncIterator[Any]:
        """What there is to send; RpcError at the end when there is one."""
        while True:
            while self._commands:
                command = self._commands.popleft()
                self._taken.set()
                yield command
            if self._ended:
                if self._error is not None:
                    raise self._error
                return
            self._changed.clear()
            await self._changed.wait()
