"""One port for plaintext and TLS, PROXY headers of trusted addresses only, limits on connections."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ConfigError
from spark_rocket.proxy.transport.limits import GrpcLimits
from spark_rocket.proxy.transport.proxy_protocol import BAD, MORE, PLAIN, PROXIED, TLS, TrustedAddresses, classify
from spark_rocket.remoting.tls.contexts import ServerTls, self_signed
from spark_rocket.remoting.tls.settings import TlsMode, TlsSettings
from tests.proxy.grpc_world import LIMIT, Peer, World, framed, world

pytestmark = pytest.mark.live

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
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
        (b"PROXY TCP4 192.0.2 192.0.2.1 1 2\r\n", (BAD, 0, None)),
        (b"PROXY TCP4 192.0.2.7 192.0.2.1 99999 2\r\n", (BAD, 0, None)),
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
    assert classify(start) == expected


@pytest.mark.parametrize("header", [V1, V2_4, V2_6])
def test_incomplete_first_bytes(header: bytes) -> None:
    assert {classify(header[:end])[0] for end in range(len(header))} == {MORE}


@given(st.one_of(st.binary(max_size=600), st.binary(max_size=300).map(lambda more: SIGNATURE + more)))
def test_any_first_bytes(start: bytes) -> None:
    kind, size, _ = classify(start)
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
    with world(tls=server_tls(files), trusted_proxies=["127.0.0.0/8"]) as running:
        yield running


def received(raw: socket.socket) -> bytes:
    """Read until the end, which is a reset if the server has not read everything."""
    data = b""
    try:
        while chunk := raw.recv(4096):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def dial(world: World) -> socket.socket:
    return socket.create_connection(("127.0.0.1", world.server.port), timeout=LIMIT)


def is_closed_after(world: World, sent: bytes) -> bool:
    """Whether the server closes a connection without a response after these bytes."""
    with dial(world) as raw:
        raw.sendall(sent)
        return received(raw) == b""


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
        dial(secured) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as wrapped,
    ):
        assert wrapped.selected_alpn_protocol() == "h2"


def test_clients_behind_a_proxy(secured: World) -> None:
    secured.seen.clear()
    for header in (V1, V2_4, V2_6, b"PROXY UNKNOWN\r\n"):
        with Peer(secured.server.port, before=header) as peer:
            assert peer.ended(peer.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")
    peers = [peer for _, peer, _ in secured.seen]
    assert peers[:3] == ["192.0.2.7:40000", "192.0.2.7:40000", "[2001:db8::7]:40000"]
    assert peers[3].startswith("127.0.0.1:")


def test_a_header_in_several_reads(secured: World) -> None:
    with dial(secured) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in V1 + PREFACE + EMPTY_SETTINGS:
            raw.sendall(bytes((byte,)))
        assert raw.recv(9)[3] == 4  # SETTINGS
        assert "192.0.2.7:40000" in [one.peer for one in secured.server.connections]


def test_a_header_from_an_untrusted_address(caplog: pytest.LogCaptureFixture) -> None:
    """It could contain any address, and so bypass lists of addresses."""
    for trusted in ((), ["192.0.2.0/24", "::1"]):
        with world(trusted_proxies=trusted) as running:
            for header in (V1, V2_4, b"PROXY UNKNOWN\r\n"):
                assert is_closed_after(running, header + PREFACE + EMPTY_SETTINGS)
            assert not running.server.connections
            with Peer(running.server.port) as peer:
                assert peer.ended(peer.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")
    assert "its address is not in proxyProtocolTrustedAddresses" in caplog.text


def test_a_second_header_closes_the_connection(secured: World) -> None:
    assert is_closed_after(secured, V1 + V1.replace(b"192.0.2.7", b"127.0.0.1") + PREFACE + EMPTY_SETTINGS)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("192.0.2.9", True), ("192.0.2.8", False), ("fd00::1", True)],
)
def test_trusted_addresses(host: str, expected: bool) -> None:
    assert (host in TrustedAddresses(["10.0.0.0/8", "192.0.2.9", "fd00::/8"])) is expected


def test_invalid_trusted_addresses() -> None:
    with pytest.raises(ConfigError, match=r"Invalid address 'loadbalancer'"):
        TrustedAddresses(["loadbalancer"])


@pytest.mark.parametrize("start", [b"PROXY nonsense\r\n", b"\x16\x03\x01\x00\x05hello", b""])
def test_invalid_first_bytes_open_no_connection(secured: World, start: bytes) -> None:
    with dial(secured) as raw:
        if start:
            raw.sendall(start)
            received(raw)
    secured.wait(lambda: not secured.server.front.connections)


def test_tls_without_a_certificate() -> None:
    with world() as running, dial(running) as raw:
        raw.sendall(b"\x16\x03\x01")
        assert received(raw) == b""


def test_plaintext_where_tls_is_enforced(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    with world(tls=server_tls(files, TlsMode.ENFORCING)) as running:
        assert is_closed_after(running, PREFACE + EMPTY_SETTINGS)
        credentials = grpc.ssl_channel_credentials((files / "certificate.pem").read_bytes())
        with grpc.secure_channel(f"localhost:{running.server.port}", credentials) as safe:
            assert echo(safe) == b"x" * 100_000
    assert "tls.server.mode=enforcing" in caplog.text


def test_a_certificate_that_changes(tmp_path: Path) -> None:
    write(tmp_path)
    with world(tls=server_tls(tmp_path)) as running:
        address = ("127.0.0.1", running.server.port)
        before = ssl.get_server_certificate(address, timeout=LIMIT)
        written = write(tmp_path)
        assert before.strip() != written.strip()
        assert ssl.get_server_certificate(address, timeout=LIMIT).strip() == written.strip()


def test_a_certificate_that_cannot_be_generated(caplog: pytest.LogCaptureFixture) -> None:
    class Missing(ServerTls):
        def context(self) -> ssl.SSLContext:
            raise ModuleNotFoundError("No module named 'cryptography'")

    with (
        world(tls=Missing(TlsSettings(test_mode=True))) as running,
        dial(running) as raw,
    ):
        raw.sendall(b"\x16\x03\x01")
        assert received(raw) == b""
    assert "there is no certificate: No module named 'cryptography'" in caplog.text


# --- limits on connections ------------------------------------------------------------------------------------


def test_silent_connections_are_closed() -> None:
    with (
        world(limits=GrpcLimits(first_bytes_timeout=0.2)) as running,
        dial(running) as silent,
        dial(running) as slow,
    ):
        slow.sendall(b"\x16")
        assert received(silent) == b""
        running.wait(lambda: running.server.front.connections == 0)


def test_silent_connections_end_with_the_server() -> None:
    with world() as running, dial(running) as raw:
        raw.sendall(b"PR")
        running.wait(lambda: running.server.front.connections == 1)
        running.do(running.server.close(0.0))
        assert received(raw) == b""


@pytest.mark.parametrize(
    ("limits", "reason"),
    [(GrpcLimits(max_connections=1), "total"), (GrpcLimits(max_connections_per_address=1), "address")],
)
def test_too_many_connections(limits: GrpcLimits, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with world(limits=limits) as running:
        with Peer(running.server.port) as first:
            assert is_closed_after(running, PREFACE + EMPTY_SETTINGS)
            assert running.server.front.refused == {reason: 1}
            assert first.ended(first.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")
        running.wait(lambda: not running.server.front.connections)
        with Peer(running.server.port) as peer:
            assert peer.ended(peer.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")
    assert "refused gRPC connection 127.0.0.1:" in caplog.text


def test_the_limit_of_an_address_is_that_of_the_client_behind_a_load_balancer() -> None:
    limits = GrpcLimits(max_connections_per_address=1)
    with world(limits=limits, trusted_proxies=["127.0.0.1"]) as running:
        with (
            Peer(running.server.port, before=V1),
            Peer(running.server.port, before=V2_6),
            dial(running) as raw,
        ):
            raw.sendall(V1 + PREFACE + EMPTY_SETTINGS)
            assert received(raw) == b""
        running.wait(lambda: not running.server.front.connections)


_FEW_DESCRIPTORS = """
import logging, resource, socket, sys
logging.basicConfig(format="LOG %(message)s", stream=sys.stdout)
from tests.proxy.grpc_world import LIMIT, Peer, framed, world
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
with world() as running:
    print(running.server.port, flush=True)
    while sys.stdin.readline() != "end\\n":
        print("open", running.server.front.connections, flush=True)
"""


def is_served(port: int) -> bool:
    try:
        with Peer(port) as peer:
            return peer.ended(peer.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")
    except (AssertionError, OSError):
        return False


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while data := connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return not data


def settled(process: subprocess.Popen[str], opened: list[socket.socket]) -> int:
    """The number of open connections, once the process and its clients agree on it."""
    assert process.stdin is not None
    assert process.stdout is not None
    until = time.monotonic() + LIMIT
    while True:
        process.stdin.write("\n")
        process.stdin.flush()
        while not (line := process.stdout.readline()).startswith("open"):
            assert line
        number = int(line.split()[1])
        if number + sum(map(is_closed, opened)) == len(opened):
            return number
        assert time.monotonic() < until


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are numbered as Linux does")
@pytest.mark.parametrize(
    ("first", "then", "least"),
    [(b"", b"", 300), (PREFACE + EMPTY_SETTINGS, b"", 100), (b"", PREFACE + EMPTY_SETTINGS, 100)],
    ids=["silent", "greeting", "silent, then greeting"],
)
def test_500_connections_with_400_descriptors(first: bytes, then: bytes, least: int) -> None:
    """A connection needs three descriptors; further connections are refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 700:
        pytest.skip("needs 700 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 700), hard))
    command = [sys.executable, "-c", textwrap.dedent(_FEW_DESCRIPTORS)]
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert process.stdout is not None
        port = int(process.stdout.readline())
        process.send_signal(signal.SIGSTOP)
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT)) for _ in range(500)]
        for one in opened:
            one.sendall(first)
        process.send_signal(signal.SIGCONT)  # it finds them all at once
        assert "the connection of" in process.stdout.readline()
        number = settled(process, opened)
        if then:
            process.send_signal(signal.SIGSTOP)
            for one in opened:
                with contextlib.suppress(OSError):
                    one.sendall(then)
            process.send_signal(signal.SIGCONT)
            until = time.monotonic() + LIMIT
            while number * 3 > 400:
                number = settled(process, opened)
                assert time.monotonic() < until
        assert least < number <= (400 // 3 if first or then else 400)
        until = time.monotonic() + LIMIT
        for one in opened:
            one.close()
        while not is_served(port):
            assert time.monotonic() < until
        process.communicate("end\n", timeout=LIMIT)
        assert process.returncode == 0


# --- backpressure ---------------------------------------------------------------------------------------------


def test_bytes_wait_for_a_client_that_does_not_read(secured: World) -> None:
    """With open windows, the connection itself is full."""
    secured.seen.clear()
    with Peer(secured.server.port) as peer:
        peer.h2.increment_flow_control_window(2**30)
        stream = peer.request("/t.T/Flood", framed(b""))
        peer.h2.increment_flow_control_window(2**30, stream)
        peer.flush()
        secured.wait(lambda: bool(secured.seen) and secured.server.unread.used > 0)
        with Peer(secured.server.port) as other:
            for _ in range(20):
                other.ended(other.request("/t.T/Echo", framed(b"x")))
        assert len(secured.seen) < 200  # 20 MB, most of it in the kernel
    secured.wait(secured.idle)
