"""A server on a thread of its own, and a client that sees bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest

from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.frame import FrameSplitter
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.event_loop import new_event_loop
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.dispatcher import Handler, not_supported
from spark_rocket.remoting.tls.contexts import ServerTls
from spark_rocket.remoting.tls.settings import TlsSettings
from tests.kit.scripted import Fake
from tests.remoting.tls_world import LIMIT, Certificates

ECHO = 1
SILENT = 2  # never answered
FAIL = 3


class ServerThread(Fake):
    """A server with three codes of its own. ``requests`` are those that it handled itself."""

    defaults: ClassVar[Mapping[str, Any]] = {"default_handler": not_supported}

    def __init__(self, handlers: Mapping[int, Handler] | None = None, **options: Any) -> None:
        every: dict[int, Handler] = {ECHO: self._echo, SILENT: self._silent, FAIL: self._fail}
        super().__init__(handlers={**every, **(handlers or {})}, **options)

    def _echo(self, channel: object, request: RemotingCommand) -> RemotingCommand:
        self.note(request)
        return RemotingCommand.response(request, 0, None, request.ext_fields, request.body)

    def _silent(self, channel: object, request: RemotingCommand) -> None:
        self.note(request)

    def _fail(self, channel: object, request: RemotingCommand) -> RemotingCommand:
        raise ValueError("no such luck")


class RawClient:
    """A socket that sends and receives frames."""

    def __init__(self, connection: socket.socket | str) -> None:
        if isinstance(connection, str):
            host, _, port = connection.rpartition(":")
            connection = socket.create_connection((host.strip("[]"), int(port)))
        connection.settimeout(10)
        self.socket = connection
        self.splitter = FrameSplitter()
        self.frames: list[memoryview] = []

    def send(self, *commands: RemotingCommand) -> None:
        self.socket.sendall(b"".join(command.encode() for command in commands))

    def receive(self) -> RemotingCommand:
        while not self.frames:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError
            self.frames.extend(self.splitter.feed(data))
        return RemotingCommand.decode(self.frames.pop(0))

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        self.send(command)
        return self.receive()

    def at_end(self) -> bool:
        """True when the server has closed the connection without another byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()


Serve = Callable[..., ServerThread]
Dial = Callable[[str], RawClient]


def request(code: int = ECHO, opaque: int = 1, body: bytes = b"", **ext: str) -> RemotingCommand:
    command = RemotingCommand.request(code, dict(ext), body)
    command.opaque = opaque
    return command


@pytest.fixture
def serve() -> Iterator[Callable[..., ServerThread]]:
    """Starts servers; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(*args: Any, **options: Any) -> ServerThread:
            server = ServerThread(*args, **options)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def dial() -> Iterator[Callable[[str], RawClient]]:
    """Opens raw connections; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def connect(address: str) -> RawClient:
            client = RawClient(address)
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture(params=[new_event_loop, asyncio.new_event_loop], ids=["default", "asyncio"])
def loop_factory(request: pytest.FixtureRequest) -> object:
    return request.param


def with_channel(
    serve: Callable[..., ServerThread], dial: Callable[[str], RawClient], **options: object
) -> tuple[ServerThread, RawClient, Channel]:
    """A server, a client, and the server's side of its connection."""
    channels: list[Channel] = []

    def keep(channel: Channel, command: RemotingCommand) -> RemotingCommand:
        channels.append(channel)
        return RemotingCommand.response(command)

    server = serve({9: keep}, **options)
    client = dial(server.address)
    client.ask(request(9))
    return server, client, channels[0]


@pytest.fixture
def client() -> Iterator[RemotingClient]:
    with RemotingClient() as client:
        yield client


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def permissive(certificates: Certificates) -> Iterator[ServerThread]:
    server = ServerThread(tls=certificates.server_tls())
    yield server
    server.close()


@contextlib.contextmanager
def serving(tls: ServerTls | None, **options: Any) -> Iterator[ServerThread]:
    server = ServerThread(tls=tls, **options)
    try:
        yield server
    finally:
        server.close()


def ask(address: str, tls: TlsSettings | None, body: bytes = b"hello", timeout: float = LIMIT) -> bytes:
    with RemotingClient(tls=tls, connect_timeout=timeout) as client:
        return bytes(client.invoke(address, request(body=body), timeout).body)
