"""One client, and its Telemetry streams: commands wait there until the client reads them.

Answers to the client wait for room, so that one who sends and does not read is not read from either. Commands that the
server sends by itself find room or end the stream, and the client opens another.

Thread-safety: used on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from spark_rocket.errors import RemotingConnectError, RemotingTimeoutError
from spark_rocket.protocol.wire.bodies import ConsumerData
from spark_rocket.protocol.wire.codes import LanguageCode
from spark_rocket.proxy.transport.context import GrpcCode, RpcError

MAX_WAITING = 256
ANSWER_SECONDS = 5.0


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


class Client:
    """One client, as its settings tell."""

    __slots__ = (
        "_waiting",
        "access_key",
        "address",
        "data",
        "id",
        "kind",
        "language",
        "last_seen",
        "settings",
        "shown",
        "since",
        "size",
        "streams",
        "topics",
        "unsubscribed",
        "version",
    )

    def __init__(self, client_id: str, address: str, settings: Any, now_ms: int) -> None:
        self.id = client_id
        self.access_key = ""
        """Whose it is, where there is access control: nobody else may speak for it."""
        self.address = address
        self.settings = settings
        """As the client sent them."""
        self.shown: Any = None
        """As it was told them last."""
        self.size = 0
        """Bytes of its settings."""
        self.kind: int = settings.client_type
        self.language = LanguageCode.OTHER.name
        self.version = ""
        self.since = now_ms
        self.last_seen = 0.0
        self.streams: list[CommandStream] = []
        self.data: dict[str, ConsumerData] = {}
        """The consumer groups that it is a member of, and what it consumes there."""
        self.unsubscribed: set[str] = set()
        """Those of them that its settings do not name."""
        self.topics: set[str] = set()
        """The topics that it produces to, as far as it has said."""
        self._waiting: dict[str, asyncio.Future[Any]] = {}

    def tell(self, command: Any) -> bool:
        """Send a TelemetryCommand; False when no stream takes it."""
        return any(stream.tell(command) for stream in reversed(self.streams))

    async def ask(self, command: Any, nonce: str, seconds: float = ANSWER_SECONDS) -> Any:
        """Send a command that is answered, by its nonce; the answer. RemotingError when there is none."""
        if not self.tell(command):
            raise RemotingConnectError(f"{self.id} has no open Telemetry stream.")
        self._waiting[nonce] = answer = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise RemotingTimeoutError(f"{self.id} has not answered within {seconds:.0f} s.") from None
        finally:
            self._waiting.pop(nonce, None)

    def answered(self, nonce: str, command: Any) -> None:
        """The client's answer has come; nobody waits for one that is late, or twice there."""
        waiting = self._waiting.pop(nonce, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(command)

    def end(self) -> None:
        """It is gone: nobody waits for it any longer."""
        self.streams.clear()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(RemotingConnectError(f"{self.id} has gone."))
