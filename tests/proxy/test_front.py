"""The public port in each TLS mode: certificates, addresses of clients, limits of connections."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from spark_rocket.errors import ConfigError
from spark_rocket.proxy.transport.calls import address_of
from spark_rocket.proxy.transport.credentials import server_credentials
from spark_rocket.proxy.transport.front import Front
from spark_rocket.proxy.transport.limits import GrpcLimits
from spark_rocket.remoting.tls.contexts import ServerTls
from spark_rocket.remoting.tls.settings import ClientAuth, TlsMode, TlsSettings
from tests.kit.waiting import until, until_async
from tests.proxy.grpc_world import LIMIT, Peer, World, framed, world
from tests.remoting.tls_world import Certificates

pytestmark = pytest.mark.live

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
MODES = list(TlsMode)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def serving(certificates: Certificates, mode: TlsMode, limits: GrpcLimits | None = None) -> World:
    return world(tls=None if mode is TlsMode.DISABLED else certificates.server_tls(mode=mode), limits=limits)


@pytest.fixture(scope="module")
def permissive(certificates: Certificates) -> Iterator[World]:
    with serving(certificates, TlsMode.PERMISSIVE) as running:
        yield running


def dial(world: World) -> socket.socket:
    return socket.create_connection(("127.0.0.1", world.server.port), timeout=LIMIT)


def received(raw: socket.socket) -> bytes:
    """Read until the end, which is a reset if the server has not read everything."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := raw.recv(4096):
            data += chunk
    return data


def secure(world: World, certificates: Certificates, *own: bytes) -> grpc.Channel:
    """``own``: the key and the certificate of the client."""
    credentials = grpc.ssl_channel_credentials(certificates.authority.certificate.read_bytes(), *own)
    return grpc.secure_channel(world.target, credentials, [("grpc.use_local_subchannel_pool", 1)])


def echo(channel: grpc.Channel, size: int = 100_000) -> int:
    return len(channel.unary_unary("/t.T/Echo")(bytes(size), timeout=LIMIT))


def is_served(port: int) -> bool:
    try:
        with Peer(port) as peer:
            return peer.ended(peer.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")
    except (AssertionError, OSError):
        return False


# --- TLS ------------------------------------------------------------------------------------------------------


def test_tls_and_plaintext_on_one_port(permissive: World, certificates: Certificates) -> None:
    with secure(permissive, certificates) as safe, grpc.insecure_channel(permissive.target) as plain:
        for _ in range(2):
            assert echo(safe) == echo(plain) == 100_000
        assert len(list(safe.unary_stream("/t.T/Count")(b"30 100000 0"))) == 30


def test_plaintext_where_tls_is_enforced(certificates: Certificates) -> None:
    with serving(certificates, TlsMode.ENFORCING) as running:
        with dial(running) as raw:
            raw.sendall(PREFACE + EMPTY_SETTINGS)
            assert received(raw)[:1] in (b"", b"\x15")  # possibly a TLS alert
        with secure(running, certificates) as safe:
            assert echo(safe) == 100_000


def test_tls_where_it_is_disabled(certificates: Certificates) -> None:
    with serving(certificates, TlsMode.DISABLED) as running:
        with pytest.raises(ssl.SSLError):
            certificates.dial(running.target)
        assert is_served(running.server.port)


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
def test_invalid_tls_records(certificates: Certificates, mode: TlsMode) -> None:
    with serving(certificates, mode) as running:
        with dial(running) as raw:
            raw.sendall(b"\x16\x03\x01\x00\x05hello")
            assert received(raw)[:1] in (b"", b"\x15")
        with secure(running, certificates) as safe:
            assert echo(safe) == 100_000


def test_http_2_and_the_version_of_tls(permissive: World, certificates: Certificates) -> None:
    context = certificates.openssl()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with certificates.dial(permissive.target, context) as sock:
        assert (sock.selected_alpn_protocol(), sock.version()) == ("h2", "TLSv1.3")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        certificates.dial(permissive.target, context)


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
def test_a_certificate_that_changes(certificates: Certificates, tmp_path: Path, mode: TlsMode) -> None:
    """New connections get the new one; what is not a pair changes nothing."""

    def write(certificate: Path, key: Path) -> None:
        (tmp_path / "c.pem").write_bytes(certificate.read_bytes())
        (tmp_path / "k.pem").write_bytes(key.read_bytes())

    write(*certificates.server)
    settings = TlsSettings(mode=mode, server_cert_path=str(tmp_path / "c.pem"), server_key_path=str(tmp_path / "k.pem"))
    with world(tls=ServerTls(settings)) as running:
        address = ("127.0.0.1", running.server.port)

        def served() -> str:
            return ssl.get_server_certificate(address, timeout=LIMIT).strip()

        first, second = (pair.certificate.read_text().strip() for pair in (certificates.server, certificates.elsewhere))
        assert served() in first
        write(*certificates.elsewhere)
        assert served() in second
        (tmp_path / "k.pem").write_bytes(b"broken")
        assert served() in second
        write(*certificates.server)
        assert served() in first


def test_clients_must_show_a_certificate(certificates: Certificates) -> None:
    tls = certificates.server_tls(mode=TlsMode.ENFORCING, auth=ClientAuth.REQUIRE)
    with world(tls=tls) as running:
        for pair, is_accepted in ((certificates.client, True), (certificates.strange, False), (None, False)):
            own = () if pair is None else (pair.key.read_bytes(), pair.certificate.read_bytes())
            with secure(running, certificates, *own) as channel:
                if is_accepted:
                    assert echo(channel) == 100_000
                else:
                    with pytest.raises(grpc.RpcError):
                        echo(channel)


def test_client_certificates_cannot_be_optional(certificates: Certificates) -> None:
    with pytest.raises(ConfigError, match="optional is not supported on the gRPC port"):
        world(tls=certificates.server_tls(auth=ClientAuth.OPTIONAL))


def test_an_encrypted_key(certificates: Certificates) -> None:
    tls = certificates.server_tls(certificates.encrypted, server_key_password="secret", mode=TlsMode.ENFORCING)
    with world(tls=tls) as running, secure(running, certificates) as channel:
        assert echo(channel) == 100_000


def test_a_generated_certificate() -> None:
    tls = ServerTls(TlsSettings(test_mode=True), ["127.0.0.1"])
    with world(tls=tls) as running:
        trusted = ssl.get_server_certificate(("127.0.0.1", running.server.port), timeout=LIMIT)
        with grpc.secure_channel(running.target, grpc.ssl_channel_credentials(trusted.encode())) as channel:
            assert echo(channel) == 100_000


def test_credentials_need_a_valid_pair(certificates: Certificates) -> None:
    with pytest.raises(ConfigError, match="not the private key"):
        server_credentials(certificates.server_tls(certificates.server._replace(key=certificates.client.key)))


# --- addresses of clients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_the_address_of_a_client(certificates: Certificates, mode: TlsMode) -> None:
    """Access control sees it: also behind the front it is the client's."""
    with serving(certificates, mode) as running:
        for _ in range(3):
            if mode is TlsMode.DISABLED:
                raw: socket.socket = dial(running)
            else:
                context = certificates.openssl()
                context.set_alpn_protocols(["h2"])
                raw = certificates.dial(running.target, context)
            with Peer(running.server.port, raw) as peer:
                peer.ended(peer.request("/t.T/Echo", framed(b"")))
                assert running.seen[-1][1] == "{}:{}".format(*peer.socket.getsockname())


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("ipv4:10.0.0.7:4711", "10.0.0.7:4711"),
        ("ipv6:%5B::1%5D:4711", "[::1]:4711"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", "[fe80::1%eth0]:4711"),
        ("unix:/tmp/rocket-grpc-x/10.0.0.7:4711", "10.0.0.7:4711"),
        ("unix:/tmp/rocket-grpc-x/%5B::1%5D:4711", "[::1]:4711"),
        ("unix:", "unknown:0"),
        ("vsock:2:3", "unknown:0"),
        ("", "unknown:0"),
    ],
)
def test_peers_as_grpcio_names_them(peer: str, expected: str) -> None:
    assert address_of(peer) == expected


def test_an_ipv6_address(certificates: Certificates) -> None:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        for tls in (None, certificates.server_tls()):
            with World(host="::1", tls=tls) as running:
                channel = grpc.insecure_channel(f"[::1]:{running.server.port}")
                with channel:
                    assert echo(channel) == 100_000
                assert running.seen[-1][1].startswith("[::1]:")


# --- limits of connections ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [TlsMode.DISABLED, TlsMode.PERMISSIVE])
def test_silent_connections_are_closed(certificates: Certificates, mode: TlsMode) -> None:
    with (
        serving(certificates, mode, GrpcLimits(handshake_timeout=0.2)) as running,
        dial(running) as silent,
        dial(running) as slow,
    ):
        slow.sendall(b"PR")
        for one in (silent, slow):
            received(one)


def test_silent_connections_end_with_the_server(certificates: Certificates) -> None:
    with serving(certificates, TlsMode.PERMISSIVE) as running, dial(running) as raw:
        assert is_served(running.server.port)  # so that it has accepted the first one
        running.do(running.server.close(0.0))
        assert received(raw) == b""


@pytest.mark.parametrize("mode", [TlsMode.DISABLED, TlsMode.PERMISSIVE])
def test_too_many_connections(certificates: Certificates, mode: TlsMode) -> None:
    with serving(certificates, mode, GrpcLimits(max_connections=1)) as running:
        with Peer(running.server.port) as first:
            with dial(running) as raw:
                assert received(raw) == b""
            assert first.ended(first.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")
        until(lambda: is_served(running.server.port))


_FEW_DESCRIPTORS = """
import logging, resource, sys
from spark_rocket.remoting.tls.contexts import ServerTls
from spark_rocket.remoting.tls.settings import TlsMode, TlsSettings
from tests.proxy.grpc_world import world
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
tls = ServerTls(TlsSettings(test_mode=True)) if sys.argv[1] == "permissive" else None
with world(tls=tls) as running:
    print(running.server.port, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize(("mode", "most"), [("disabled", 360), ("permissive", 120)])
def test_500_connections_with_400_descriptors(mode: str, most: int) -> None:
    """A connection needs one descriptor, and three behind the front; further connections are refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 700:
        pytest.skip("needs 700 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 700), hard))
    command = [sys.executable, "-c", textwrap.dedent(_FEW_DESCRIPTORS), mode]
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert process.stdout is not None
        port = int(process.stdout.readline())
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT)) for _ in range(500)]
        for one in opened:
            with contextlib.suppress(OSError):
                one.sendall(PREFACE + EMPTY_SETTINGS)
        served = sum(map(is_greeted, opened))
        assert most * 3 // 4 < served <= most
        for one in opened:
            one.close()
        until(lambda: is_served(port))
        process.communicate("end\n", timeout=LIMIT)
        assert process.returncode == 0


def is_greeted(connection: socket.socket) -> bool:
    """Whether the server's SETTINGS arrive, and not its close."""
    try:
        return connection.recv(9)[3:4] == b"\4"
    except ConnectionError:
        return False


# --- backpressure ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [TlsMode.DISABLED, TlsMode.PERMISSIVE])
def test_bytes_wait_for_a_client_that_does_not_read(certificates: Certificates, mode: TlsMode) -> None:
    """With open windows, the connection itself is full."""
    with serving(certificates, mode) as running, Peer(running.server.port) as peer:
        peer.h2.increment_flow_control_window(2**30)
        stream = peer.request("/t.T/Flood", framed(b""))
        peer.h2.increment_flow_control_window(2**30, stream)
        peer.flush()
        running.wait(lambda: len(running.seen) > 10)
        with Peer(running.server.port) as other:
            for _ in range(20):
                other.ended(other.request("/t.T/Echo", framed(b"x")))
        assert len(running.seen) < 200  # 20 MB, most of it in the kernel


async def test_the_first_bytes_wait_for_grpcio() -> None:
    """More of them than the local connection takes: nothing more is read from the client."""
    with socket.create_server(("127.0.0.1", 0)) as public, socket.socket(socket.AF_UNIX) as local:
        front = Front(public, GrpcLimits())
        local.bind(front.target(tls=False).removeprefix("unix:"))
        local.listen()
        await front.start()
        with socket.create_connection(public.getsockname(), LIMIT):
            await until_async(lambda: front.open)
            (client,) = front.open
            client.data_received(bytes(1_000_000))
            await until_async(lambda: client.server is not None)
            assert not client.transport.is_reading()
            with local.accept()[0] as grpcio:
                await asyncio.to_thread(grpcio.recv, 1_000_000, socket.MSG_WAITALL)
            await until_async(client.transport.is_reading)
        await front.close()
