"""The client against the real server and against a scripted peer."""

from __future__ import annotations

import errno
import gc
import logging
import os
import random
import socket
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, cast
from unittest.mock import Mock

import pytest

from spark_rocket.errors import (
    BrokerError,
    ProtocolError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    StateError,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client import connection
from spark_rocket.remoting.client.remoting_client import RemotingClient
from tests.kit.forking import in_child

from .conftest import ECHO, FAIL, SILENT, RawClient, Serve, request

pytestmark = pytest.mark.live


class Peer:
    """A listening socket whose responses the test writes."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self) -> RawClient:
        self.listener.settimeout(10)
        return RawClient(self.listener.accept()[0])


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.listener.close()


def test_invoke(serve: Serve, client: RemotingClient) -> None:
    response = client.invoke(serve().address, request(ECHO, 0, b"body", topic="T"))
    assert response.is_response
    assert (response.code, response.ext_fields, bytes(response.body)) == (0, {"topic": "T"}, b"body")


def test_error_codes_are_returned_as_responses(serve: Serve, client: RemotingClient) -> None:
    server = serve()
    assert client.invoke(server.address, request(999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert client.invoke(server.address, request(FAIL)).remark == "ValueError: no such luck"


def test_host_names_and_ipv6(serve: Serve, client: RemotingClient) -> None:
    assert client.invoke(f"localhost:{serve().server.port}", request()).code == 0
    if socket.has_ipv6:
        assert client.invoke(serve(host="::1").address, request()).code == 0


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 16 * 1024 + 1, 65_536, 100_000, 16_000_000])
def test_bodies_of_all_sizes(serve: Serve, client: RemotingClient, size: int) -> None:
    body = random.Random(size).randbytes(size)
    response = client.invoke(serve().address, request(ECHO, 0, body), timeout=30)
    assert response.body == body


def test_a_large_body_is_a_view_of_the_received_bytes(serve: Serve, client: RemotingClient) -> None:
    response = client.invoke(serve().address, request(ECHO, 0, bytes(1 << 20)))
    assert isinstance(response.body, memoryview)
    assert memoryview(response.body.obj).nbytes > 1 << 20


def test_responses_out_of_order(peer: Peer, client: RemotingClient) -> None:
    futures = [client.invoke_async(peer.address, request(ECHO, 0, bytes([n]))) for n in range(5)]
    server = peer.accept()
    asked = [server.receive() for _ in futures]
    assert len({command.opaque for command in asked}) == 5
    server.send(*(RemotingCommand.response(command, body=command.body) for command in reversed(asked)))
    assert [bytes(future.result(10).body) for future in futures] == [bytes([n]) for n in range(5)]
    server.close()


def test_one_way(serve: Serve, client: RemotingClient) -> None:
    server = serve()
    client.invoke_oneway(server.address, request(ECHO, 0, b"gone"))
    assert server.arrived.acquire(timeout=10)
    assert server.requests[0].is_oneway
    assert client.invoke(server.address, request()).code == 0


# --- time ---------------------------------------------------------------------------------------------------------


def test_the_late_response_of_a_timed_out_call_is_ignored(peer: Peer, client: RemotingClient) -> None:
    with pytest.raises(RemotingTimeoutError, match=rf"{peer.address} did not respond to request code 1 ") as caught:
        client.invoke(peer.address, request(), timeout=0.3)
    assert caught.value.retriable
    server = peer.accept()
    late = server.receive()
    future = client.invoke_async(peer.address, request(ECHO, 0, b"next"))
    asked = server.receive()
    server.send(RemotingCommand.response(late, body=b"late"), RemotingCommand.response(asked, body=asked.body))
    assert bytes(future.result(10).body) == b"next"
    server.close()


def test_an_async_call_times_out(serve: Serve, client: RemotingClient) -> None:
    address = serve().address
    client.invoke(address, request())  # connected: the next call waits only for its response
    slow = client.invoke_async(address, request(SILENT), timeout=60)
    quick = client.invoke_async(address, request(SILENT), timeout=0.01)
    with pytest.raises(RemotingTimeoutError, match="code 2"):
        quick.result(10)
    assert not slow.done()
    assert client.invoke(address, request()).code == 0


class Body(bytearray):
    """Bytes with weak references."""


def test_an_answered_request_is_released_before_its_deadline(serve: Serve, client: RemotingClient) -> None:
    address = serve().address
    asked = Body(b"x" * 100_000)
    future = client.invoke_async(address, request(ECHO, 0, cast(bytes, asked)), timeout=3600)
    body = future.result(10).body
    assert isinstance(body, memoryview)
    seen: list[weakref.ref[Any]] = [weakref.ref(asked), weakref.ref(body), weakref.ref(future)]
    del asked, future, body
    client.invoke_async(address, request(), timeout=3600).result(10)  # the reader has released the first response
    gc.collect()
    assert [ref() for ref in seen] == [None, None, None]


def test_a_peer_that_does_not_read(peer: Peer, client: RemotingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is closed if it reads nothing for a time."""
    monkeypatch.setattr(connection, "STALL_S", 0.1)
    waiting = client.invoke_async(peer.address, request(), timeout=60)
    server = peer.accept()

    errors: list[RemotingError] = []
    while not waiting.done():
        try:
            client.invoke_oneway(peer.address, request(ECHO, 0, bytes(8_000_000)), timeout=0.05)
        except RemotingError as error:
            errors.append(error)
    assert any(isinstance(error, RemotingTimeoutError) for error in errors)
    with pytest.raises(RemotingConnectError, match=peer.address):
        waiting.result(10)
    with server.socket, suppress(ConnectionResetError):  # it has ended; the last request may have opened another
        while server.socket.recv(1 << 20):
            pass


# --- bounds -------------------------------------------------------------------------------------------------------


def test_requests_in_flight_are_bounded(serve: Serve) -> None:
    server = serve()
    with RemotingClient(max_in_flight=2) as client:
        client.invoke(server.address, request())
        held = [client.invoke_async(server.address, request(SILENT), timeout=60) for _ in range(2)]
        for call in (client.invoke, client.invoke_oneway):
            with pytest.raises(RemotingTooMuchRequestError, match=r"Too many requests in flight \(2\)"):
                call(server.address, request(), timeout=0.01)
        with pytest.raises(RemotingTooMuchRequestError):
            client.invoke_async(server.address, request(), timeout=0.01).result(10)
        client.disconnect(server.address)
        for future in held:
            with pytest.raises(RemotingConnectError):
                future.result(10)
        # Every permit was released, however its request ended.
        futures = [client.invoke_async(server.address, request()) for _ in range(50)]
        assert [future.result(10).code for future in futures] == [0] * 50


def test_permits_are_released_after_failures(serve: Serve) -> None:
    server = serve()
    with RemotingClient(max_in_flight=1) as client:
        client.invoke(server.address, request())
        for _ in range(3):
            with pytest.raises(ProtocolError):
                client.invoke_async(server.address, RemotingCommand.request(1, {"a": "\ud800"})).result(10)
            with pytest.raises(ProtocolError):
                client.invoke(server.address, RemotingCommand.request(1, {"a": "\ud800"}))
            with pytest.raises(RemotingTimeoutError):
                client.invoke(server.address, request(SILENT), timeout=0.01)
            with pytest.raises(RemotingConnectError):
                client.invoke_async("127.0.0.1:1", request()).result(10)
            assert client.invoke(server.address, request()).code == 0


# --- connections --------------------------------------------------------------------------------------------------


def test_no_listener(client: RemotingClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    for call in (client.invoke, client.invoke_oneway):
        with pytest.raises(RemotingConnectError, match=address) as caught:
            call(address, request())
        assert caught.value.retriable
        assert "Check the address" in str(caught.value)
    with pytest.raises(RemotingConnectError, match=address):
        client.invoke_async(address, request()).result(10)


def test_invalid_address(client: RemotingClient) -> None:
    with pytest.raises(RemotingConnectError, match="Invalid address 'nowhere'") as caught:
        client.invoke("nowhere", request())
    assert not caught.value.retriable


def test_a_lost_connection_fails_all_calls_and_the_next_one_reconnects(peer: Peer, client: RemotingClient) -> None:
    futures = [client.invoke_async(peer.address, request(), timeout=60) for _ in range(3)]
    with ThreadPoolExecutor(1) as pool:
        sync = pool.submit(client.invoke, peer.address, request(), 60)
        server = peer.accept()
        for _ in range(4):
            server.receive()
        server.close()
        for future in [*futures, sync]:
            with pytest.raises(RemotingConnectError, match=f"{peer.address} was lost"):
                future.result(10)
    again = client.invoke_async(peer.address, request())
    server = peer.accept()
    server.send(RemotingCommand.response(server.receive()))
    assert again.result(10).code == 0
    server.close()


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP, as a web server"),
        (bytes.fromhex("00000008 00000004") + b"{!!}", "invalid frame"),
    ],
)
def test_invalid_responses(peer: Peer, client: RemotingClient, garbage: bytes, reason: str) -> None:
    future = client.invoke_async(peer.address, request(), timeout=60)
    server = peer.accept()
    server.receive()
    server.socket.sendall(garbage)
    with pytest.raises(RemotingConnectError, match=reason):
        future.result(10)
    assert server.at_end()
    server.close()


def test_a_truncated_large_response(peer: Peer, client: RemotingClient) -> None:
    future = client.invoke_async(peer.address, request(), timeout=60)
    server = peer.accept()
    response = RemotingCommand.response(server.receive(), body=bytes(1_000_000)).encode()
    server.socket.sendall(response[:500_000])
    server.close()
    with pytest.raises(RemotingConnectError, match="lost"):
        future.result(10)


# --- requests from the server -------------------------------------------------------------------------------------


def pushed(serve: Serve, client: RemotingClient) -> Callable[[int], RemotingCommand]:
    """Send a request from the server to the client and return the client's response."""
    server = serve()
    client.invoke(server.address, request())
    (channel,) = server.server.channels

    def push(code: int) -> RemotingCommand:
        async def ask() -> RemotingCommand:
            return await channel.invoke(RemotingCommand.request(code, {}, b"?"), 10)

        response = server.do(ask())
        assert isinstance(response, RemotingCommand)
        return response

    return push


def test_a_request_from_the_server(serve: Serve) -> None:
    seen: list[tuple[str, int]] = []

    def handle(address: str, command: RemotingCommand) -> RemotingCommand | None:
        seen.append((address, command.code))
        if command.code == 500:
            raise RuntimeError("no such luck")
        return RemotingCommand.response(command, body=b"!")

    with RemotingClient(request_handler=handle) as client:
        push = pushed(serve, client)
        assert bytes(push(307).body) == b"!"
        failed = push(500)
        assert (failed.code, failed.remark) == (ResponseCode.SYSTEM_ERROR, "RuntimeError: no such luck")
        assert [code for _, code in seen] == [307, 500]
        assert client.is_connected(seen[0][0])


@pytest.mark.parametrize(
    "request_code", [RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.GET_CONSUMER_RUNNING_INFO]
)
@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        pytest.param(OSError("no \udcff"), 1, "OSError: no ?", id="lone surrogate"),
        pytest.param(
            BrokerError("No \udcff.", remedy="Ask.", response_code=16), 16, "No ?. Ask.", id="code and remedy"
        ),
        pytest.param(OSError("x" * 5_000), 1, f"OSError: {'x' * 4_087} … (5,009 characters)", id="long"),
        pytest.param(StateError("x" * 2**25), 1, f"{'x' * 4_096} … (33,554,432 characters)", id="longer than a header"),
    ],
)
def test_the_error_of_a_handler_is_sent(
    serve: Serve, caplog: pytest.LogCaptureFixture, request_code: int, error: Exception, code: int, remark: str
) -> None:
    caplog.set_level(logging.CRITICAL, "spark_rocket.remoting")  # pytest-xdist cannot send a lone surrogate in a log
    with RemotingClient(request_handler=Mock(side_effect=error)) as client:
        failed = pushed(serve, client)(request_code)
        assert (failed.code, failed.remark) == (code, remark)


def test_a_response_of_a_handler_that_cannot_be_encoded(serve: Serve) -> None:
    def handle(address: str, command: RemotingCommand) -> RemotingCommand | None:
        return RemotingCommand.response(command, remark="\udcff")

    with RemotingClient(request_handler=handle) as client:
        failed = pushed(serve, client)(307)
        assert failed.code == ResponseCode.SYSTEM_ERROR
        assert failed.remark


def test_a_request_from_the_server_without_a_handler(serve: Serve, client: RemotingClient) -> None:
    response = pushed(serve, client)(307)
    assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert response.remark == " request type 307 not supported"


def test_a_callback_may_send_and_wait(serve: Serve) -> None:
    """Over the same connection, and with only one request in flight at a time."""
    address = serve().address
    results: SimpleQueue[int] = SimpleQueue()
    with RemotingClient(max_in_flight=1) as client:

        def call_again(_: object) -> None:
            results.put(client.invoke(address, request()).code)
            client.invoke_async(address, request()).add_done_callback(lambda done: results.put(done.result().code))

        client.invoke_async(address, request()).add_done_callback(call_again)
        assert [results.get(timeout=10) for _ in range(2)] == [0, 0]


def test_a_handler_may_send_and_wait(serve: Serve) -> None:
    def handle(address: str, command: RemotingCommand) -> RemotingCommand | None:
        return RemotingCommand.response(command, body=client.invoke(address, request(ECHO, 0, b"asked")).body)

    with RemotingClient(request_handler=handle) as client:
        assert bytes(pushed(serve, client)(307).body) == b"asked"


# --- the end ------------------------------------------------------------------------------------------------------


def test_close(serve: Serve) -> None:
    client = RemotingClient()
    address = serve().address
    client.invoke(address, request())
    waiting = client.invoke_async(address, request(SILENT), timeout=60)
    client.close()
    client.close()
    with pytest.raises(RemotingConnectError, match="the client is closed"):
        waiting.result(10)
    for call in (client.invoke, client.invoke_async, client.invoke_oneway):
        with pytest.raises(StateError, match="closed"):
            call(address, request())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_after_a_fork_each_process_has_its_own_connections(serve: Serve, client: RemotingClient) -> None:
    server = serve()
    assert client.invoke(server.address, request(ECHO, 0, b"parent")).body == b"parent"
    waiting = client.invoke_async(server.address, request(SILENT), timeout=60)

    def has_its_own() -> bool:
        assert not client.is_connected(server.address)
        code = client.invoke(server.address, request(), timeout=60).code
        client.close()
        return code == 0

    in_child(has_its_own)
    assert client.is_connected(server.address)
    assert client.invoke(server.address, request(ECHO, 0, b"parent")).body == b"parent"
    assert not waiting.done()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_without_a_free_descriptor(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    with RemotingClient() as one, RemotingClient() as other:
        for each in (one, other):
            assert each.invoke(server.address, request()).code == 0
        monkeypatch.setattr(os, "open", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        in_child(lambda: not (one.is_connected(server.address) or other.is_connected(server.address)))
