"""One port for plaintext and TLS, and what a proxy in front says."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.proxy.frames import PREFACE
from spark_rocket.proxy.listener import BAD, MORE, PLAIN, PROXIED, TLS, look_at
from spark_rocket.remoting.self_signed import self_signed
from spark_rocket.remoting.tls import TlsMode, TlsSettings
from spark_rocket.remoting.tls_contexts import ServerTls
from tests.proxy.grpc_world import LIMIT, Peer, World, framed, world

V1 = b"PROXY TCP4 192.0.2.7 192.0.2.1 40000 8081\r\n"
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def v2(command: int, family: int, payload: bytes) -> bytes:
    return SIGNATURE + bytes((command, family)) + struct.pack(">H", len(payload)) + payload


V2_4 = v2(0x21, 0x11, socket.inet_aton("192.0.2.7") + socket.inet_aton("192.0.2.1") + struct.pack(">HH", 40000, 8081))
V2_6 = v2(
    0x21,
    0x21,
    socket.inet_pton(socket.AF_INET6, "2001:db8::7")
    + socket.inet_pton(socket.AF_INET6, "::1")
    + struct.pack(">HH", 40000, 8081)
    + b"\x04\x00\x01x",  # and something more about the connection
)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (b"", (MORE, 0, None)),
        (b"\x16\x03\x01", (TLS, 0, None)),
        (PREFACE, (PLAIN, 0, None)),
        (b"PRI", (PLAIN, 0, None)),
        (b"PR", (MORE, 0, None)),
        (b"GET /", (PLAIN, 0, None)),
        (b"\r\n\r\nGET", (PLAIN, 0, None)),
        (V1 + PREFACE, (PROXIED, len(V1), "192.0.2.7:40000")),
        (V1[:-1], (MORE, 0, None)),
        (b"PROXY UNKNOWN\r\n", (PROXIED, 15, None)),
        (b"PROXY UNKNOWN ff ff 1 2\r\nPRI", (PROXIED, 25, None)),
        (b"PROXY TCP6 2001:db8::7 ::1 40000 8081\r\n", (PROXIED, 39, "[2001:db8::7]:40000")),
        (b"PROXY nonsense\r\n", (BAD, 0, None)),
        (b"PROXY " + b"x" * 200, (BAD, 0, None)),
        (V2_4 + PREFACE, (PROXIED, len(V2_4), "192.0.2.7:40000")),
        (V2_6, (PROXIED, len(V2_6), "[2001:db8::7]:40000")),
        (v2(0x20, 0x00, b""), (PROXIED, 16, None)),  # the proxy itself, to see whether we are here
        (v2(0x21, 0x11, b"short"), (PROXIED, 21, None)),
        (v2(0x21, 0x31, b"x" * 216), (PROXIED, 232, None)),
        (v2(0x11, 0x11, bytes(12)), (BAD, 0, None)),
        (v2(0x21, 0x11, bytes(600)), (BAD, 0, None)),
    ],
)
def test_first_bytes(start: bytes, expected: tuple[int, int, str | None]) -> None:
    assert look_at(start) == expected


@pytest.mark.parametrize("header", [V1, V2_4, V2_6])
def test_first_bytes_that_are_not_all_there(header: bytes) -> None:
    assert {look_at(header[:end])[0] for end in range(len(header))} == {MORE}


@given(st.one_of(st.binary(max_size=600), st.binary(max_size=300).map(lambda more: SIGNATURE + more)))
def test_any_first_bytes(start: bytes) -> None:
    kind, size, _ = look_at(start)
    assert kind in (PLAIN, TLS, PROXIED, MORE, BAD)
    assert 0 <= size <= len(start)


def write(directory: Path) -> str:
    pair = self_signed(["localhost", "127.0.0.1"])
    (directory / "certificate.pem").write_bytes(pair.certificate)
    (directory / "key.pem").write_bytes(pair.key)
    return pair.certificate.decode()


def server_tls(directory: Path, mode: TlsMode = TlsMode.PERMISSIVE) -> ServerTls:
    settings = TlsSettings(
        mode=mode,
        server_cert_path=str(directory / "certificate.pem"),
        server_key_path=str(directory / "key.pem"),
    )
    return ServerTls(settings, alpn=["h2"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    write(directory)
    return directory


@pytest.fixture(scope="module")
def secured(files: Path) -> Iterator[World]:
    with world(tls=server_tls(files)) as running:
        yield running


def received(raw: socket.socket) -> bytes:
    """Everything until the end, which is a reset if the server has not read all."""
    data = b""
    try:
        while chunk := raw.recv(4096):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def echo(channel: grpc.Channel) -> bytes:
    answer: bytes = channel.unary_unary("/t.T/Echo")(b"x" * 100_000, timeout=LIMIT)
    return answer


def test_tls_and_plaintext_on_one_port(secured: World, files: Path) -> None:
    credentials = grpc.ssl_channel_credentials((files / "certificate.pem").read_bytes())
    with (
        grpc.secure_channel(f"localhost:{secured.server.port}", credentials) as safe,
        grpc.insecure_channel(secured.target) as plain,
    ):
        for _ in range(2):
            assert echo(safe) == echo(plain) == b"x" * 100_000
        assert len(list(safe.unary_stream("/t.T/Count")(b"30 100000 0"))) == 30


def test_http_2_is_agreed_upon(secured: World, files: Path) -> None:
    context = ssl.create_default_context(cafile=str(files / "certificate.pem"))
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", secured.server.port), timeout=LIMIT) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as wrapped,
    ):
        assert wrapped.selected_alpn_protocol() == "h2"


def test_who_a_proxy_speaks_for(secured: World) -> None:
    secured.seen.clear()
    for header in (V1, V2_4, V2_6, b"PROXY UNKNOWN\r\n"):
        with Peer(secured.server.port, before=header) as peer:
            assert peer.ended(peer.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")
    peers = [peer for _, peer, _ in secured.seen]
    assert peers[:3] == ["192.0.2.7:40000", "192.0.2.7:40000", "[2001:db8::7]:40000"]
    assert peers[3].startswith("127.0.0.1:")


def test_a_header_that_comes_in_pieces(secured: World) -> None:
    secured.seen.clear()
    with socket.create_connection(("127.0.0.1", secured.server.port), timeout=LIMIT) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in V1 + PREFACE + b"\0\0\0\4\0\0\0\0\0":
            raw.sendall(bytes((byte,)))
        assert raw.recv(9)[3] == 4  # SETTINGS
        secured.wait(lambda: [one.peer for one in secured.server.connections].count("192.0.2.7:40000") == 1)


@pytest.mark.parametrize("start", [b"PROXY nonsense\r\n", b"\x16\x03\x01\x00\x05hello", b"PRI"[:0]])
def test_what_becomes_no_connection(secured: World, start: bytes) -> None:
    before = len(secured.server.connections)
    with socket.create_connection(("127.0.0.1", secured.server.port), timeout=LIMIT) as raw:
        if start:
            raw.sendall(start)
            received(raw)
    secured.wait(lambda: len(secured.server.connections) <= before)


def test_tls_without_a_certificate() -> None:
    with world() as running, socket.create_connection(("127.0.0.1", running.server.port), timeout=LIMIT) as raw:
        raw.sendall(b"\x16\x03\x01")
        assert received(raw) == b""


def test_a_certificate_that_cannot_be_made(caplog: pytest.LogCaptureFixture) -> None:
    class Missing(ServerTls):
        def context(self) -> ssl.SSLContext:
            raise ModuleNotFoundError("No module named 'cryptography'")

    with (
        world(tls=Missing(TlsSettings(test_mode=True))) as running,
        socket.create_connection(("127.0.0.1", running.server.port), timeout=LIMIT) as raw,
    ):
        raw.sendall(b"\x16\x03\x01")
        assert received(raw) == b""
    assert "for which there is no certificate: No module named 'cryptography'" in caplog.text


def test_connections_that_say_nothing_end_with_the_server() -> None:
    with world() as running, socket.create_connection(("127.0.0.1", running.server.port), timeout=LIMIT) as raw:
        raw.sendall(b"PR")
        running.wait(lambda: bool(running.server._listener._newcomers))
        running.run(running.server.close(0.0))
        assert received(raw) == b""
