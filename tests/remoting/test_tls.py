"""TLS between our client, our server and others: accepted and rejected connections, and their errors."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.errors import RemotingConnectError
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.overload import Limits
from spark_rocket.remoting.server.remoting_server import RemotingServer
from spark_rocket.remoting.tls import tls_gate as tls_server
from spark_rocket.remoting.tls.problems import problem_of
from spark_rocket.remoting.tls.settings import ClientAuth, TlsMode, TlsSettings, Verify
from tests.kit.waiting import until
from tests.remoting.conftest import RawClient, ServerThread, ask, request, serving
from tests.remoting.tls_world import LIMIT, Certificates

pytestmark = pytest.mark.live

ENFORCING = TlsMode.ENFORCING


# --- accepted connections -----------------------------------------------------------------------------------------


def test_tls_and_plaintext_on_one_port(permissive: ServerThread, certificates: Certificates) -> None:
    assert ask(permissive.address, certificates.of_client()) == b"hello"
    assert ask(permissive.address, None) == b"hello"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_foreign_client(permissive: ServerThread, certificates: Certificates, version: ssl.TLSVersion) -> None:
    context = certificates.openssl()
    context.minimum_version = context.maximum_version = version
    with certificates.dial(permissive.address, context) as sock:
        assert sock.version() == {ssl.TLSVersion.TLSv1_2: "TLSv1.2", ssl.TLSVersion.TLSv1_3: "TLSv1.3"}[version]
        raw = RawClient(sock)
        assert raw.ask(request(body=b"x" * 300_000)).body == b"x" * 300_000
        raw.send(*(request(opaque=number, body=b"y" * number) for number in range(50)))
        assert [len(raw.receive().body) for _ in range(50)] == list(range(50))


def test_a_foreign_server(certificates: Certificates) -> None:
    """Like Java's, this server sends tickets after the handshake, and it is slow."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.server)
    context.num_tickets = 5

    def serve(listening: socket.socket) -> None:
        raw, _ = listening.accept()
        with context.wrap_socket(raw, server_side=True) as sock:
            client = RawClient(sock)
            frame = client.receive()
            data = RemotingCommand.response(frame, 0, None, {}, bytes(frame.body)).encode()
            for at in range(0, len(data), 700):
                sock.sendall(data[at : at + 700])
            with contextlib.suppress(ssl.SSLError, OSError):  # the client sends no close_notify
                sock.unwrap()

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve, listening)
        port = listening.getsockname()[1]
        assert ask(f"127.0.0.1:{port}", certificates.of_client(), b"z" * 200_000) == b"z" * 200_000
        served.result(LIMIT)


def test_large_messages_in_both_directions_by_many_threads(
    permissive: ServerThread, certificates: Certificates
) -> None:
    """One connection: readers must not block writers, and records must not be mixed."""
    threads, rounds = 8, 12

    def work(number: int) -> None:
        for turn in range(rounds):
            size = (number * 131 + turn * 70_001) % 700_000 if turn % 3 else 1_500_000
            body = bytes([number * 16 + turn]) * size
            if turn % 2:
                assert client.invoke(permissive.address, request(body=body), LIMIT).body == body
            else:
                futures = [client.invoke_async(permissive.address, request(body=body), LIMIT) for _ in range(2)]
                assert all(future.result(LIMIT).body == body for future in futures)

    with (
        RemotingClient(tls=certificates.of_client(), connect_timeout=LIMIT) as client,
        ThreadPoolExecutor(threads) as pool,
    ):
        list(pool.map(work, range(threads)))


def test_data_for_a_slow_reader_is_bounded(certificates: Certificates) -> None:
    """The requests are small, so one thread sends them all and reads then: OpenSSL's connections are for one thread."""
    paused = threading.Event()
    handled = 0

    def big(channel: Channel, command: RemotingCommand) -> RemotingCommand:
        nonlocal handled
        handled += 1
        server.loop.call_soon(lambda: channel.is_writable or paused.set())
        return RemotingCommand.response(command, body=bytes(1_000_000))

    with serving(certificates.server_tls(), high_water=64 * 1024) as server:
        server.server.handlers[9] = big
        with certificates.dial(server.address) as sock:
            raw = RawClient(sock)
            raw.send(*(request(9, number) for number in range(40)))
            assert paused.wait(LIMIT)
            assert handled < 40
            assert [raw.receive().opaque for _ in range(40)] == list(range(40))


def test_pushed_requests_reach_a_client(certificates: Certificates) -> None:
    """No caller waits, so the connection's own thread reads."""
    came = threading.Event()

    def taken(_: str, command: RemotingCommand) -> None:
        came.set()

    with (
        serving(certificates.server_tls(mode=ENFORCING)) as server,
        RemotingClient(tls=certificates.of_client(), connect_timeout=LIMIT, request_handler=taken) as client,
    ):
        client.invoke(server.address, request(), LIMIT)
        push = RemotingCommand.request(40, {})
        push.flag |= 2
        server.run(lambda: [channel.write(push) for channel in server.server.channels])
        assert came.wait(LIMIT)
        channel = next(iter(server.server.channels))
        assert channel._transport is not None
        assert channel._transport.get_extra_info("ssl_object").version() == "TLSv1.3"


# --- mutual -------------------------------------------------------------------------------------------------------


def test_clients_must_show_a_certificate(certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    with serving(certificates.server_tls(mode=ENFORCING, auth=ClientAuth.REQUIRE)) as server:
        assert ask(server.address, certificates.of_client(certificates.client)) == b"hello"
        for pair, text in (
            (None, "it requires a client certificate.*tls.client.certPath"),
            (certificates.strange, "does not trust the CA of our certificate"),
            (certificates.expired, "rejected our certificate: expired"),
        ):
            with pytest.raises(RemotingConnectError, match=text):
                ask(server.address, certificates.of_client(pair))
    for text in ("presented no certificate", "certificate that is not trusted", "an expired certificate"):
        assert text in caplog.text


def test_clients_may_show_a_certificate(certificates: Certificates) -> None:
    with serving(certificates.server_tls(auth=ClientAuth.OPTIONAL)) as server:
        assert ask(server.address, certificates.of_client(certificates.client)) == b"hello"
        assert ask(server.address, certificates.of_client()) == b"hello"
        with pytest.raises(RemotingConnectError, match="does not trust the CA"):
            ask(server.address, certificates.of_client(certificates.strange))


# --- connections that clients reject ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "code", "text"),
    [
        ("expired", "TLS_EXPIRED", "expired certificate"),
        ("elsewhere", "TLS_WRONG_NAME", "is not valid for 127.0.0.1"),
        ("strange", "TLS_WRONG_CA", "not trusted"),
    ],
)
def test_an_untrusted_server_certificate(certificates: Certificates, pair: str, code: str, text: str) -> None:
    with serving(certificates.server_tls(getattr(certificates, pair))) as server:
        with pytest.raises(RemotingConnectError, match=text) as found:
            ask(server.address, certificates.of_client())
        assert found.value.code == code
        assert found.value.retriable is (code == "TLS_EXPIRED")  # it may be renewed while a stream waits
        assert server.address in found.value.message
        assert found.value.remedy
        # Without verification, any certificate is accepted.
        assert ask(server.address, certificates.of_client(verify=Verify.NONE)) == b"hello"


@pytest.mark.parametrize("error", [ssl.SSLEOFError(8, "EOF"), ConnectionResetError(), ssl.SSLZeroReturnError()])
def test_a_client_that_leaves_the_handshake(error: Exception) -> None:
    """Usually it does not trust the server: the log of the server must not send its operator to another server."""
    problem = problem_of(error, server=True)
    assert (problem.kind, problem.text) == ("ENDED", "disconnected during the handshake")
    assert "tls.server.certPath" in problem.remedy
    assert "tls.server.mode" in problem_of(error, server=False).remedy


def test_checks_are_reduced_only_on_request(certificates: Certificates) -> None:
    with serving(certificates.server_tls(certificates.elsewhere)) as server:
        assert ask(server.address, certificates.of_client(verify=Verify.CA)) == b"hello"
    with serving(certificates.server_tls(certificates.strange)) as server:
        with pytest.raises(RemotingConnectError, match="not trusted"):
            ask(server.address, certificates.of_client(verify=Verify.CA))
        with pytest.raises(RemotingConnectError, match="not trusted"):  # the system's CAs
            ask(server.address, TlsSettings(enable=True))
        assert ask(server.address, TlsSettings(enable=True, auth_server=False)) == b"hello"


def test_servers_without_tls(certificates: Certificates) -> None:
    with serving(None) as server:
        with pytest.raises(RemotingConnectError, match=r"tls.server.mode") as found:
            ask(server.address, certificates.of_client())
        assert found.value.code == "TLS_ENDED"
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:

        def serve() -> None:
            with listening.accept()[0] as sock:
                sock.recv(1)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                while sock.recv(65536):
                    pass

        served = pool.submit(serve)
        with pytest.raises(RemotingConnectError, match="does not use TLS on this port") as found:
            ask(f"127.0.0.1:{listening.getsockname()[1]}", certificates.of_client())
        assert found.value.code == "TLS_NOT_TLS"
        served.result(LIMIT)


def test_a_silent_server_times_out(certificates: Certificates) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with pytest.raises(RemotingConnectError, match="did not complete the TLS handshake in time") as found:
            ask(f"127.0.0.1:{listening.getsockname()[1]}", certificates.of_client(), timeout=2.0)
        assert found.value.code == "TLS_TIMEOUT"


# --- connections that servers reject ------------------------------------------------------------------------------


def test_plaintext_at_a_port_that_enforces_tls(certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    with serving(certificates.server_tls(mode=ENFORCING)) as server:
        assert ask(server.address, certificates.of_client()) == b"hello"
        for _ in range(5):
            with pytest.raises(RemotingConnectError):
                ask(server.address, None)
        assert not server.server.channels
    lines = [record.getMessage() for record in caplog.records if "enforcing" in record.getMessage()]
    assert len(lines) == 1  # and not five
    assert re.search(r"connection of 127.0.0.1:\d+: it does not use TLS", lines[0])


def test_tls_at_a_port_without_tls(caplog: pytest.LogCaptureFixture, certificates: Certificates) -> None:
    with serving(None) as server, pytest.raises(RemotingConnectError):
        ask(server.address, certificates.of_client())
    assert "uses TLS, which is disabled here" in caplog.text


HELLO = b"\x16\x03\x01"


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (HELLO + b"\x00\x05hello", "failed in the TLS handshake|sent an invalid TLS record"),
        (b"\x16" + b"garbage" * 10, "sent an invalid TLS record"),
        (HELLO + b"\xff\xff" + b"x" * 1000, "TLS"),  # a record above the maximum length
        (b"\x16\x02\x00\x00\x10" + b"x" * 16, "TLS"),
    ],
)
def test_invalid_tls_records(
    certificates: Certificates, caplog: pytest.LogCaptureFixture, start: bytes, text: str
) -> None:
    with serving(certificates.server_tls()) as server:
        with dialled(server.address) as sock, contextlib.suppress(OSError):
            sock.sendall(start)
            while sock.recv(4096):  # possibly an alert, then the close
                pass
        until(lambda: not server.run(lambda: server.server.channels))
        assert ask(server.address, certificates.of_client()) == b"hello"
    assert re.search(text, caplog.text)


def client_hello(certificates: Certificates) -> bytes:
    """The start of a client's handshake."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        certificates.openssl().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


def dialled(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=LIMIT)


def test_an_incomplete_handshake(
    certificates: Certificates, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_server, "HANDSHAKE_SECONDS", 0.1)
    with serving(certificates.server_tls()) as server, dialled(server.address) as sock:
        sock.sendall(client_hello(certificates)[:-10])
        assert sock.recv(1) == b""
    assert "did not complete the TLS handshake in time" in caplog.text


def test_incomplete_handshakes_count_as_connections(certificates: Certificates) -> None:
    hello = client_hello(certificates)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(certificates.server_tls(), limits=Limits(max_connections=3)))
        for _ in range(3):
            sock = stack.enter_context(dialled(server.address))
            sock.sendall(hello)
            assert sock.recv(1) == b"\x16"  # the server's part, so that it is counted
        with pytest.raises(RemotingConnectError):
            ask(server.address, certificates.of_client())


class InMemory:
    """A client's TLS in memory, so that its records can be cut and altered."""

    def __init__(self, address: str, certificates: Certificates, piece: int = 1 << 20, *, first: bytes = b"") -> None:
        """``first`` is sent together with the end of the handshake."""
        self.socket = dialled(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = certificates.openssl().wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")
        self.piece = piece
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.send(self.outgoing.read())
                self.incoming.write(self.socket.recv(65536))
        if first:
            self.tls.write(first)
        self.send(self.outgoing.read())

    def send(self, data: bytes | bytearray) -> None:
        for at in range(0, len(data), self.piece):
            self.socket.sendall(data[at : at + self.piece])

    def encrypted(self, command: RemotingCommand) -> bytearray:
        self.tls.write(command.encode())
        return bytearray(self.outgoing.read())


def test_a_client_hello_in_pieces(permissive: ServerThread, certificates: Certificates) -> None:
    client = InMemory(permissive.address, certificates, piece=1)
    with client.socket:
        client.send(client.encrypted(request(body=b"in pieces")))
        plain = b""
        while b"in pieces" not in plain:
            client.incoming.write(client.socket.recv(65536))
            with contextlib.suppress(ssl.SSLWantReadError):
                plain += client.tls.read(65536)


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
def test_a_request_together_with_the_end_of_the_handshake(certificates: Certificates, mode: TlsMode) -> None:
    """Its response is encrypted: the bytes after the handshake are never taken for plaintext."""
    with serving(certificates.server_tls(mode=mode)) as server:
        client = InMemory(server.address, certificates, first=request(body=b"at once").encode())
        with client.socket:
            plain = b""
            while b"at once" not in plain:
                data = client.socket.recv(65536)
                assert data
                assert b"at once" not in data
                client.incoming.write(data)
                with contextlib.suppress(ssl.SSLWantReadError):
                    plain += client.tls.read(65536)


def test_an_altered_record_closes_the_connection(permissive: ServerThread, certificates: Certificates) -> None:
    seen = len(permissive.requests)
    client = InMemory(permissive.address, certificates)
    with client.socket, contextlib.suppress(ConnectionResetError):
        record = client.encrypted(request(body=b"altered"))
        record[-1] ^= 1
        client.send(record)
        while client.socket.recv(65536):
            pass
    assert len(permissive.requests) == seen


def test_renegotiation_is_refused(permissive: ServerThread, certificates: Certificates) -> None:
    """Like ``R`` in openssl s_client, with TLS 1.2, which supports it."""
    out, err = s_client(permissive.address, certificates, b"R\n", "-tls1_2")
    assert b"Verify return code: 0 (ok)" in out
    assert b"no renegotiation" in err


def s_client(address: str, certificates: Certificates, typed: bytes, *options: str) -> tuple[bytes, bytes]:
    ca = str(certificates.authority.certificate)
    command = [_openssl(), "s_client", "-connect", address, "-CAfile", ca, *options]
    done = subprocess.run(command, input=typed, capture_output=True, timeout=60, check=False)
    return done.stdout, done.stderr


def _openssl() -> str:
    found = shutil.which("openssl")
    if found is None:
        pytest.skip("there is no openssl here")
    return found


class Wire(asyncio.Transport):
    """A writer that records the bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.closed = False

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.written += len(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_altered_handshake(certificates: Certificates, data: st.DataObject) -> None:
    """A client's first flight, altered, cut and split, is rejected or awaited."""
    hello = bytearray(client_hello(certificates))
    for _ in range(data.draw(st.integers(0, 4))):
        hello[data.draw(st.integers(1, len(hello) - 1))] = data.draw(st.integers(0, 255))
    garbage = data.draw(st.binary(max_size=40))
    sent = bytes(hello[: data.draw(st.integers(1, len(hello)))]) + garbage
    cut = data.draw(st.integers(0, len(sent)))

    async def meet() -> None:
        made = Channel(server)
        newcomer = tls_server.TlsGate(server_tls, lambda: made, name="server").newcomer()
        wire = Wire()
        newcomer._transport = wire
        for piece in (sent[:cut], sent[cut:]):
            if piece:
                newcomer.data_received(piece)
        assert not wire.closed or newcomer._timer is None
        assert wire.written < 100_000
        newcomer._end_handshake()

    server, server_tls = RemotingServer("127.0.0.1", 0, {}), certificates.server_tls()
    asyncio.run(meet())


# --- leaks --------------------------------------------------------------------------------------------------------


def test_no_leaks(certificates: Certificates) -> None:
    hello = client_hello(certificates)
    with serving(certificates.server_tls(mode=ENFORCING, auth=ClientAuth.REQUIRE)) as server:
        ask(server.address, certificates.of_client(certificates.client))
        for _ in range(5):
            ask(server.address, certificates.of_client(certificates.client))
            for bad in (certificates.of_client(), certificates.of_client(certificates.strange), None):
                with pytest.raises(RemotingConnectError):
                    ask(server.address, bad)
            with pytest.raises(RemotingConnectError):
                ask(server.address, certificates.of_client(trust=certificates.stranger.certificate))
            with dialled(server.address) as sock:
                sock.sendall(hello)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: not server.run(lambda: server.server.channels))
        port = int(server.address.rpartition(":")[2])
        until(lambda: _open_sockets(port) == 1)  # the listening socket remains


def _open_sockets(port: int) -> int:
    """Sockets with this port at either end that a process has open."""
    found = 0
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, *_, inode = line.split()[:10]
        found += f"{port:04X}" in (local[-4:], remote[-4:]) and inode != "0"
    return found
