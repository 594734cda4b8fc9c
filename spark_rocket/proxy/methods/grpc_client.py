"""A client and its Telemetry streams, which queue commands until the client reads them.

Responses wait for room in the queue, as backpressure for a client that sends without reading. Commands of the server
that find the queue full end the stream; the client then opens another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from spark_rocket.errors import RemotingConnectError, RemotingTimeoutError
from spark_rocket.protocol.wire.bodies.client import ConsumerData
from spark_rocket.protocol.wire.codes import LanguageCode
from spark_rocket.proxy.transport.proxy_context import GrpcCode, RpcError

MAX_WAITING = 256
RESPONSE_SECONDS = 5.0


class CommandStream:
    """A queue of commands with an end."""

    __slots__ = ("_changed", "_commands", "_ended", "_error", "_taken")

    def __init__(self) -> None:
        self._commands: deque[Any] = deque()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._ended = False
        self._error: RpcError | None = None

    def send(self, command: Any) -> bool:
        """Queue a command. False if the stream has ended, or ends now because the client does not read."""
        if self._ended:
            return False
        if len(self._commands) >= MAX_WAITING:
            self.end(RpcError(GrpcCode.RESOURCE_EXHAUSTED, f"{MAX_WAITING} commands of this stream are unread"))
            return False
        self._commands.append(command)
        self._changed.set()
        return True

    async def respond(self, command: Any) -> None:
        """Wait for room and queue a command."""
        while len(self._commands) >= MAX_WAITING and not self._ended:
            self._taken.clear()
            await self._taken.wait()
        self.send(command)

    def end(self, error: RpcError | None = None) -> None:
        """End the stream after the queued commands, optionally with an error."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._changed.set()
            self._taken.set()

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield the commands to send. Raises RpcError at the end if there is an error."""
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


class GrpcClient:
    """A client, as defined by its settings."""

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
        """The owner, with access control: other accounts cannot use this client id."""
        self.address = address
        self.settings = settings
        """The settings that the client sent."""
        self.shown: Any = None
        """The settings that were last sent to the client."""
        self.size = 0
        """Size of its settings in bytes."""
        self.kind: int = settings.client_type
        self.language = LanguageCode.OTHER.name
        self.version = ""
        self.since = now_ms
        self.last_seen = 0.0
        self.streams: list[CommandStream] = []
        self.data: dict[str, ConsumerData] = {}
        """Its subscriptions by consumer group."""
        self.unsubscribed: set[str] = set()
        """The groups that its settings do not name."""
        self.topics: set[str] = set()
        """The known topics that it produces to."""
        self._waiting: dict[str, asyncio.Future[Any]] = {}

    def send(self, command: Any) -> bool:
        """Send a TelemetryCommand. False if no stream accepts it."""
        return any(stream.send(command) for stream in reversed(self.streams))

    async def ask(self, command: Any, nonce: str, seconds: float = RESPONSE_SECONDS) -> Any:
        """Send a command with a nonce and return the client's response. RemotingError without a response."""
        if not self.send(command):
            raise RemotingConnectError(f"{self.id} has no open Telemetry stream.")
        self._waiting[nonce] = response = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                return await response
        except TimeoutError:
            raise RemotingTimeoutError(f"{self.id} did not respond within {seconds:.0f} s.") from None
        finally:
            self._waiting.pop(nonce, None)

    def responded(self, nonce: str, command: Any) -> None:
        """Deliver a response of the client. Late and duplicate responses are ignored."""
        waiting = self._waiting.pop(nonce, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(command)

    def end(self) -> None:
        """Fail pending requests after the client was removed."""
        self.streams.clear()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(RemotingConnectError(f"{self.id} has disconnected."))
