"""The HTTP server of metrics: responses to Prometheus and to other peers."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.errors import ConfigError
from spark_rocket.remoting.address import is_loopback
from spark_rocket.remoting.http import http_server as http
from spark_rocket.remoting.http.http_server import MAX_CONNECTIONS, MAX_HEADER_BYTES, HttpResponse, HttpServer
from spark_rocket.remoting.server.remoting_server import run
from spark_rocket.remoting.tls.contexts import ServerTls
from spark_rocket.remoting.tls.settings import TlsSettings
from tests.kit.waiting import until_async

pytestmark = pytest.mark.live

LIMIT = 30


async def _text() -> HttpResponse:
    return HttpResponse(b"figures\n")


async def _fails() -> HttpResponse:
    raise ValueError("of no concern to a peer")


ROUTES = {"/metrics": _text, "/fails": _fails}


def serve(work: Callable[[HttpServer], Awaitable[None]], host: str = "127.0.0.1") -> None:
    async def main() -> None:
        server = HttpServer(host, 0, ROUTES, name="test")
        await server.start()
        try:
            async with asyncio.timeout(LIMIT):
                await work(server)
        finally:
            await server.close()

    run(main())


async def ask(server: HttpServer, raw: bytes, *, ends: bool = False) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(raw)
        with suppress(ConnectionError):
            if ends:
                writer.write_eof()
            return await reader.read()
        return b""
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def request(first: str = "GET /metrics HTTP/1.1", host: str = "localhost:5557", more: str = "") -> bytes:
    return f"{first}\r\nHost: {host}\r\n{more}\r\n".encode("latin-1")


def test_get_and_head() -> None:
    async def work(server: HttpServer) -> None:
        response = await ask(server, request())
        head, _, body = response.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Length: 8" in head
        assert body == b"figures\n"
        assert (await ask(server, request("HEAD /metrics HTTP/1.1"))).partition(b"\r\n\r\n")[::2] == (head, b"")
        assert b"200 OK" in await ask(server, b"GET /metrics?x=1 HTTP/1.0\r\n\r\n")

    serve(work)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (request("POST /metrics HTTP/1.1", more="Content-Length: 3\r\n"), 405),
        (request("GET /secret HTTP/1.1"), 404),
        (request("GET /../metrics HTTP/1.1"), 404),
        (request("GET http://localhost/metrics HTTP/1.1"), 400),
        (request("GET /metrics"), 400),
        (request("GET /metrics SPDY/3"), 400),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
        (request(more="Host: localhost\r\n"), 400),
        (request(more="no colon\r\n"), 400),
        (request(more=" folded: x\r\n"), 400),
        (request(more="a: b\nc: d\r\n"), 400),
        (request(more=f"X: {'y' * MAX_HEADER_BYTES}\r\n"), 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (request("GET /fails HTTP/1.1"), 500),
    ],
)
def test_invalid_requests(raw: bytes, status: int, caplog: pytest.LogCaptureFixture) -> None:
    async def work(server: HttpServer) -> None:
        response = await ask(server, raw)
        assert response.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"of no concern" not in response

    serve(work)
    assert bool(caplog.records) == (status == 500)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:5557", "localhost.evil.example", "a@localhost", "", "[", "10.0.0.1"]
)
def test_pages_of_other_sites_cannot_read_a_loopback_server(host: str) -> None:
    async def work(server: HttpServer) -> None:
        assert (await ask(server, request(host=host))).startswith(b"HTTP/1.1 403 ")

    serve(work)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost", "LOCALHOST:80", "[::1]:5557", "127.8.8.8"])
def test_names_of_this_machine(host: str) -> None:
    async def work(server: HttpServer) -> None:
        assert (await ask(server, request(host=host))).startswith(b"HTTP/1.1 200 ")

    serve(work)


def test_a_public_server_accepts_any_host_name() -> None:
    async def work(server: HttpServer) -> None:
        assert (await ask(server, request(host="prometheus.example"))).startswith(b"HTTP/1.1 200 ")

    serve(work, "0.0.0.0")


def test_incomplete_and_missing_headers() -> None:
    async def work(server: HttpServer) -> None:
        assert (await ask(server, b"GET / HTTP/1.1\r\nHost", ends=True)).startswith(b"HTTP/1.1 400 ")
        assert await ask(server, b"", ends=True) == b""

    serve(work)


def test_slow_headers_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEADER_SECONDS", 0.01)

    async def work(server: HttpServer) -> None:
        assert await ask(server, b"GET /metrics HTTP/1.1\r\n") == b""

    serve(work)


def test_incomplete_handshakes_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEADER_SECONDS", 0.01)

    async def work() -> None:
        tls = ServerTls(TlsSettings(test_mode=True)).listening()
        server = HttpServer("127.0.0.1", 0, {"/metrics": _text}, ssl=tls)
        await server.start()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            with suppress(ConnectionError):
                async with asyncio.timeout(30):
                    assert await reader.read() == b""
            writer.close()
        finally:
            await server.close()

    asyncio.run(work())


@pytest.mark.parametrize("size", [48 << 10, 1 << 20])  # of the smaller one, the server's loop has all at once
def test_a_peer_that_does_not_read_is_dropped(
    size: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def with_small_buffer(sock: socket.socket, *_: str) -> bool:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return True

    async def large() -> HttpResponse:
        return HttpResponse(bytes(size))

    async def work(server: HttpServer) -> None:
        server.routes["/metrics"] = large
        loop = asyncio.get_running_loop()
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.setblocking(False)
            await loop.sock_connect(peer, ("127.0.0.1", server.port))
            await loop.sock_sendall(peer, request())
            await until_async(lambda: "connection dropped" in caplog.text)
            received = 0
            with suppress(ConnectionError):
                while part := await loop.sock_recv(peer, 1 << 16):
                    received += len(part)
        assert received < size

    caplog.set_level(logging.DEBUG, http.logger.name)
    monkeypatch.setattr(http, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr(http, "leaves_reserve", with_small_buffer)
    serve(work)


def test_connections_are_bounded() -> None:
    async def work(server: HttpServer) -> None:
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MAX_CONNECTIONS)]
        assert (await ask(server, request())).startswith(b"HTTP/1.1 200 ")  # the oldest silent connection is closed
        with suppress(ConnectionError):
            assert await held[0][0].read() == b""
        held[-1][1].write(request())
        assert (await held[-1][0].read()).startswith(b"HTTP/1.1 200 ")
        for _, writer in held:
            writer.close()

    serve(work)


def test_closing_during_a_request_is_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def work(server: HttpServer) -> None:
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MAX_CONNECTIONS)]
        for _, writer in held:
            writer.write(b"GET /metrics HTTP/1.1\r\n")
        assert (await ask(server, request())).startswith(b"HTTP/1.1 200 ")
        with suppress(ConnectionError):
            assert await held[0][0].read() == b""
        for _, writer in held:
            writer.close()

    serve(work)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_active_requests_are_not_closed_for_new_connections() -> None:
    asked, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def slow() -> HttpResponse:
        asked.release()
        await go_on.wait()
        return HttpResponse(b"figures\n")

    async def work(server: HttpServer) -> None:
        server.routes["/metrics"] = slow
        responses = [asyncio.create_task(ask(server, request())) for _ in range(MAX_CONNECTIONS)]
        for _ in range(MAX_CONNECTIONS):
            await asked.acquire()
        assert await ask(server, request()) == b""
        go_on.set()
        for response in responses:
            assert (await response).startswith(b"HTTP/1.1 200 ")

    serve(work)


def test_a_port_in_use() -> None:
    async def work(server: HttpServer) -> None:
        with pytest.raises(ConfigError, match="the port is in use"):
            await HttpServer("127.0.0.1", server.port, ROUTES).start()
        with pytest.raises(ConfigError, match="cannot listen"):
            await HttpServer("192.0.2.1", 0, ROUTES).start()

    serve(work)


def test_loopback() -> None:
    assert [
        is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "", "localhost.x", "1.2.3.4")
    ] == [
        *[True] * 3,
        *[False] * 4,
    ]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_header_is_parsed_or_rejected(raw: bytes) -> None:
    with suppress(http._BadRequestError):
        http._parse(raw + b"\r\n\r\n")
