"""Attacks of clients: the memory of the process stays bounded, and other clients are served."""

from __future__ import annotations

import contextlib
import gzip
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import h2.exceptions
import hpack
import pytest

from spark_rocket.proxy import definitions
from spark_rocket.proxy.transport.limits import MAX_FIELDS, has_more_fields
from spark_rocket.testing import LocalCluster
from tests.proxy.caller import Caller
from tests.proxy.grpc_world import HEADERS, LIMIT, Peer, framed
from tests.proxy.outgoing import message, send
from tests.proxy.proxy_process import Watched, proxy_process
from tests.proxy.test_access import ALICE, headers, now

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the memory of a process"),
    pytest.mark.live,
]

MIB = 1 << 20
SEND = f"/{definitions.SERVICE}/SendMessage"
CLIENT = [("x-mq-client-id", "attacker")]

# --- the messaging service ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def apart() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(apart: LocalCluster) -> Iterator[tuple[str, int]]:
    with proxy_process(apart.name_server) as running:
        yield running


@pytest.fixture
def victim(proxy: tuple[str, int]) -> Iterator[Caller]:
    with Caller(proxy[0], "victim") as caller:
        yield caller


def port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


def test_68_million_messages_in_132_kb(apart: LocalCluster, proxy: tuple[str, int], victim: Caller) -> None:
    endpoint, pid = proxy
    topic = apart.create_topic("bomb")
    bomb = gzip.compress(b"\x0a\0" * (68 << 20), 9)
    assert len(bomb) < 140_000
    with Watched(pid) as watched, Peer(port_of(endpoint)) as attacker:
        fields, _ = post(attacker, SEND, framed(bomb, 1), ("grpc-encoding", "gzip"))
        assert fields["grpc-status"] in ("8", "12")
        assert send(victim, message(topic)).status.code == definitions.Code.OK
    assert watched.most - watched.before < 50


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0a\0" * (8 * MIB),
        b"\x0a\x84\x80\x80\x08" + b"\x12\0\x12\0" * (4 * MIB + 1),
        b"\x0a\x8a\x80\x80\x08\x1a\x85\x80\x80\x08" + b"\x0a\0" * (8 * MIB + 2) + b"\0",
    ],
    ids=["messages", "properties", "tags"],
)
def test_16_mib_of_empty_fields(apart: LocalCluster, proxy: tuple[str, int], victim: Caller, payload: bytes) -> None:
    endpoint, pid = proxy
    topic = apart.create_topic("fields")
    with Watched(pid) as watched, Peer(port_of(endpoint)) as attacker:
        began = time.process_time()
        assert has_more_fields(payload, definitions.SendMessageRequest, MAX_FIELDS)
        assert time.process_time() - began < 2.0  # it stops at the limit
        fields, _ = post(attacker, SEND, framed(payload))
        assert fields["grpc-status"] == "8"
        assert send(victim, message(topic)).status.code == definitions.Code.OK
    assert watched.most - watched.before < 100


def post(peer: Peer, path: str, body: bytes, *more: tuple[str, str]) -> tuple[dict[str, str], bytes]:
    """A request that is larger than the window."""
    stream: int = peer.h2.get_next_available_stream_id()
    peer.h2.send_headers(stream, {**dict(HEADERS), ":path": path, **dict([*CLIENT, *more])}.items())
    at = 0
    with contextlib.suppress(h2.exceptions.StreamClosedError):  # it has been answered before its end
        while at < len(body):
            size = min(peer.h2.local_flow_control_window(stream), 16_384, len(body) - at)
            if not size:
                peer.flush()
                assert peer.read()
                continue
            peer.h2.send_data(stream, body[at : at + size], end_stream=at + size == len(body))
            at += size
    peer.flush()
    return peer.ended(stream)


# --- authentication -------------------------------------------------------------------------------------------

METHODS = definitions.messaging().descriptor.services_by_name["MessagingService"].methods


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True, access_key="root-key", secret_key="r00t-s3cr3t") as running:
        yield running


@pytest.mark.parametrize(
    "signature",
    [{}, headers(ALICE), {"authorization": "Bearer x"}, {**headers(ALICE), "x-mq-date-time": now(9.0)}],
    ids=["none", "unknown", "malformed", "wrong"],
)
@pytest.mark.parametrize("method", [method for method in METHODS if method.name != "Telemetry"], ids=lambda m: m.name)
def test_unsigned_requests_are_not_parsed(guarded: LocalCluster, method: Any, signature: dict[str, str]) -> None:
    """The message is invalid and larger than the limit of its method: it is not parsed."""
    answer_class = getattr(definitions, method.output_type.name)
    with Peer(port_of(guarded.grpc_endpoint)) as peer:
        path = f"/{definitions.SERVICE}/{method.name}"
        stream = peer.request(path, b"\0\x03\0\0\0" + b"\xff" * 100, end=False, headers=[*CLIENT, *signature.items()])
        fields, data = peer.ended(stream)
        if fields["grpc-status"] == "12":
            pytest.skip("not served")
        assert fields["grpc-status"] == "0"
        assert answer_class.FromString(data[5:]).status.code == definitions.Code.UNAUTHORIZED


def test_an_unsigned_telemetry_stream(guarded: LocalCluster) -> None:
    with Peer(port_of(guarded.grpc_endpoint)) as peer:
        stream = peer.request(f"/{definitions.SERVICE}/Telemetry", framed(b"\xff"), end=False, headers=CLIENT)
        assert peer.ended(stream)[0]["grpc-status"] == str(grpc.StatusCode.UNAUTHENTICATED.value[0])


# --- HTTP/2 ---------------------------------------------------------------------------------------------------

_SERVER = """
import sys
from tests.proxy.grpc_world import world
with world() as running:
    print(running.server.port, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def attacked() -> Iterator[tuple[int, int]]:
    """Port and process of a gRPC server."""
    command = [sys.executable, "-c", textwrap.dedent(_SERVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
        process.communicate("\n", timeout=LIMIT)
        assert process.returncode == 0


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def rapid_reset(number: int) -> bytes:
    block = hpack.Encoder().encode([*HEADERS[:2], (":path", "/t.T/Hold"), *HEADERS[3:]], huffman=False)
    streams = range(2 * number * 100 + 1, 2 * (number + 1) * 100 + 1, 2)
    return b"".join(
        frame(1, 4, stream, block) + frame(0, 1, stream, framed(b"x")) + frame(3, 0, stream, b"\0\0\0\x08")
        for stream in streams
    )


def continuation(number: int) -> bytes:
    fields = b"".join(b"\0\x07x-%05d\x7f\x80\x07" % at + b"y" * 1_031 for at in range(15))
    return frame(1, 0, 1, b"\x83\x86\x84") if number == 0 else frame(9, 0, 1, fields)


def settings(number: int) -> bytes:
    return frame(4, 0, 0, b"\0\x04\0\0\xff\xff" * 10) * 200


def pings(number: int) -> bytes:
    return frame(6, 0, 0, b"12345678") * 500


def empty_data(number: int) -> bytes:
    block = hpack.Encoder().encode([*HEADERS[:2], (":path", "/t.T/Both"), *HEADERS[3:]], huffman=False)
    return frame(1, 4, 1, block) if number == 0 else frame(0, 0, 1) * 500


@pytest.mark.parametrize("attack", [rapid_reset, continuation, settings, pings, empty_data])
def test_floods(attacked: tuple[int, int], attack: Callable[[int], bytes]) -> None:
    """grpcio closes the connection, or works it off; nothing piles up, and other clients are served."""
    port, pid = attacked
    with (
        Watched(pid) as watched,
        Peer(port) as other,
        contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=LIMIT)) as attacker,
    ):
        attacker.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
        attacker.settimeout(0.2)
        for number in range(200):
            try:
                attacker.sendall(attack(number))
            except TimeoutError:
                break  # the server reads no more before its answers are read
            except OSError:
                break  # it has closed the connection
            if number % 20 == 0:
                assert other.ended(other.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")
        assert other.ended(other.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")
    assert watched.most - watched.before < 60


def test_anything_at_all(attacked: tuple[int, int]) -> None:
    """Frames right and wrong."""
    import random

    port, _ = attacked
    chance = random.Random(15)
    block = hpack.Encoder().encode(HEADERS)
    for _ in range(150):
        parts = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)]
        for number in range(1, chance.randint(2, 40), 2):
            parts.append(frame(1, 4, number, block))
            parts.append(frame(0, chance.choice([0, 1]), number, framed(b"x", chance.randint(0, 1))))
            kind = chance.randint(0, 12)
            parts.append(frame(kind, chance.randint(0, 255), chance.randint(0, number), chance.randbytes(8)))
        data = bytearray(b"".join(parts))
        for _ in range(chance.choice([0, 1, 4])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as raw, contextlib.suppress(OSError):
            for at in range(0, len(data), 500):
                raw.sendall(data[at : at + 500])
    with Peer(port) as peer:
        assert peer.ended(peer.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")
