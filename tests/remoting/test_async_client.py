"""The Remoting client of an event loop: responses, timeouts, lost connections, server requests, TLS and signatures."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from spark_rocket.errors import (
    RemotingConnectError,
    RemotingTooMuchRequestError,
)
from spark_rocket.protocol.auth import ACCESS_KEY, Credentials, SecretKey, is_signed_by
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client import connection
from spark_rocket.remoting.client.async_client import AsyncRemotingClient
from spark_rocket.remoting.server.channel import Channel
from tests.remoting.conftest import ECHO, SILENT, ServerThread

pytestmark = pytest.mark.live

LIMIT = 30.0
PUSH = 77


@pytest.fixture
def server() -> Iterator[ServerThread]:
    running = ServerThread()
    yield running
    running.close()


def with_client(work: Callable[[AsyncRemotingClient], Coroutine[Any, Any, Any]], **settings: Any) -> Any:
    async def run() -> Any:
        client = AsyncRemotingClient(**settings)
        try:
            async with asyncio.timeout(LIMIT):
                return await work(client)
        finally:
            await client.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks are left"

    return asyncio.run(run())


def request(code: int = ECHO, body: bytes = b"", **ext: str) -> RemotingCommand:
    return RemotingCommand.request(code, ext, body)


def test_responses_match_their_requests(server: ServerThread) -> None:
    async def work(client: AsyncRemotingClient) -> None:
        bodies = [b"%d" % at * (1 if at % 3 else 50_000) for at in range(60)]
        responses = await asyncio.gather(*(client.invoke(server.address, request(body=body)) for body in bodies))
        assert [bytes(response.body) for response in responses] == bodies
        assert client.is_connected(server.address)
        assert len(server.server.channels) == 1  # all first requests waited for one connection

    made: list[str] = []
    with_client(work, on_connect=made.append)
    assert made == [server.address]


def test_a_cancelled_future_is_released(server: ServerThread) -> None:
    async def work(client: AsyncRemotingClient) -> None:
        response = await client.ask(server.address, request(SILENT), LIMIT)
        response.cancel()
        await asyncio.sleep(0)
        assert [len(one.session) for one in client._connections.values()] == [0]

    with_client(work)


@pytest.mark.parametrize("steps", range(6))
def test_a_cancellation_is_not_lost_when_the_connection_opens(server: ServerThread, steps: int) -> None:
    opened = asyncio.Event()

    async def work(client: AsyncRemotingClient) -> None:
        task = asyncio.ensure_future(client.invoke(server.address, request(SILENT), LIMIT))
        await opened.wait()
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    with_client(work, on_connect=lambda _: opened.set())


def test_no_listener() -> None:
    free = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
    free.close()

    async def work(client: AsyncRemotingClient) -> None:
        results = await asyncio.gather(*(client.invoke(address, request()) for _ in range(5)), return_exceptions=True)
        assert all(isinstance(error, RemotingConnectError) and address in str(error) for error in results)

    with_client(work)


def test_a_server_that_does_not_read() -> None:
    """Pending data is bounded."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        async def work(client: AsyncRemotingClient) -> None:
            asked: list[asyncio.Future[RemotingCommand]] = []

            async def fill() -> None:
                for _ in range(200):
                    asked.append(await client.ask(address, request(body=b"x" * 1_000_000), LIMIT))
                    await asyncio.sleep(0)

            with pytest.raises(RemotingTooMuchRequestError, match="unread requests"):
                await fill()
            assert len(asked) < 50
            for response in asked:
                response.cancel()

        with_client(work, max_unsent=2_000_000)


def test_cancelled_requests_notice_a_server_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is closed, although no request is late."""
    monkeypatch.setattr(connection, "STALL_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        async def work(client: AsyncRemotingClient) -> None:
            waiting = await client.ask(address, request(body=bytes(1 << 26)), 10 * LIMIT)
            while not waiting.done():
                (await client.ask(address, request(), 10 * LIMIT)).cancel()
                await asyncio.sleep(0)
            with pytest.raises(RemotingConnectError, match="does not read"):
                waiting.result()

        with_client(work, max_unsent=1 << 40)


@pytest.mark.parametrize("later", [False, True])
def test_requests_from_a_server(later: bool) -> None:
    answered: list[RemotingCommand] = []

    def ask_back(channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        asked = channel.invoke(RemotingCommand.request(PUSH, {"who": "you"}), LIMIT)

        def done(future: asyncio.Future[RemotingCommand]) -> None:
            answered.append(future.result())
            channel.write(RemotingCommand.response(command))

        asked.add_done_callback(done)
        return None

    server = ServerThread({9: ask_back})

    def on_push(address: str, command: RemotingCommand) -> Any:
        assert (address, command.ext_fields) == (server.address, {"who": "you"})
        response = RemotingCommand.response(command, body=b"me")
        if not later:
            return response
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, response)
        return future

    try:
        with_client(lambda client: client.invoke(server.address, request(9), LIMIT), on_push=on_push)
    finally:
        server.close()
    assert [bytes(one.body) for one in answered] == [b"me"]


def test_requests_are_signed(server: ServerThread) -> None:
    credentials = Credentials("some-key", "s0me-s3cr3t")
    with_client(lambda client: client.invoke(server.address, request(body=b"x", a="b")), credentials=credentials)
    (seen,) = server.requests
    assert seen.ext_fields[ACCESS_KEY] == "some-key"
    assert is_signed_by(seen, SecretKey("s0me-s3cr3t"))
