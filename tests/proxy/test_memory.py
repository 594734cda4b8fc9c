"""``rocket proxy`` as a process: its memory stays below 200 MiB, and other clients are served."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from spark_rocket.client import Producer
from spark_rocket.model import Message
from spark_rocket.proxy import definitions
from spark_rocket.testing import LocalCluster
from tests.kit.waiting import until
from tests.proxy.caller import Caller, resource
from tests.proxy.grpc_world import Peer, framed
from tests.proxy.outgoing import message, send
from tests.proxy.proxy_process import Watched, proxy_process

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the memory of a process"),
    pytest.mark.live,
]

MOST_MIB = 200
LARGE = 4_000_000
CONNECTIONS = CALLS = 20
PULL, RECEIVE, SEND = (f"/{definitions.SERVICE}/{name}" for name in ("PullMessage", "ReceiveMessage", "SendMessage"))
CLIENT = [("x-mq-client-id", "attacker")]
Request = Callable[[str], Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def proxy(cluster: LocalCluster) -> Iterator[tuple[str, int]]:
    """Endpoint and process of a new proxy."""
    with proxy_process(cluster.name_server) as running:
        yield running


def topic_of(cluster: LocalCluster, name: str, size: int, count: int, codec: str) -> Any:
    """A queue with a number of messages, stored as a few KiB with a codec, or incompressible without one."""
    topic = cluster.create_topic(name, 1)
    with Producer("p", name_server=cluster.name_server, compress_type=codec or "zlib") as producer:
        for _ in range(count):
            producer.send(Message(topic, bytes(size) if codec else os.urandom(size)))
    return definitions.MessageQueue(topic=resource(topic))


def asking(make: Callable[..., Any], seconds: int, queue: Any, **more: Any) -> Request:
    """Requests for the messages of a queue, by group, with a polling time in seconds."""
    wanted = {"message_queue": queue, "batch_size": 32, "filter_expression": {"expression": "*"}, **more}
    return lambda group: make(group=resource(group), long_polling_timeout={"seconds": seconds}, **wanted)


pull = partial(asking, definitions.PullMessageRequest, 5)
receive = partial(asking, definitions.ReceiveMessageRequest, 10, invisible_duration={"seconds": 60})


MESSAGES = {
    "large": (LARGE, 4, 0, ""),
    "begun": (LARGE, 4, 1_000, ""),
    "batches": (60_000, 40, 0, ""),
    "zlib": (LARGE, 4, 0, "zlib"),
    "lz4": (LARGE, 4, 1_000, "lz4"),
    "zstd": (LARGE, 4, 1_000, "zstd"),
}
CALLED = {"pulls": (PULL, pull), "receives": (RECEIVE, receive)}
#: Each keeps both cores busy for six seconds.
SHORT = (("pulls", "begun"), ("receives", "batches"), ("receives", "zlib"))


@pytest.mark.parametrize(
    ("path", "make", "size", "count", "window", "codec"),
    [
        pytest.param(
            *CALLED[calls],
            *MESSAGES[kind],
            id=f"{calls}-{kind}",
            marks=() if (calls, kind) in SHORT else pytest.mark.long,
        )
        for calls in CALLED
        for kind in MESSAGES
    ],
)
def test_400_calls_that_read_nothing(
    cluster: LocalCluster,
    proxy: tuple[str, int],
    path: str,
    make: Callable[[Any], Request],
    size: int,
    count: int,
    window: int,
    codec: str,
) -> None:
    """Small HTTP/2 windows: responses of brokers would accumulate in the proxy."""
    endpoint, pid = proxy
    method = path.rpartition("/")[2]
    name = f"{method}-{size}-{window}-{codec}"
    request = make(topic_of(cluster, name, size, count, codec))
    other = cluster.create_topic(f"{name}-other")
    with Caller(endpoint, "victim") as victim, ExitStack() as stack:
        assert send(victim, message(other)).status.code == definitions.Code.OK
        watched = stack.enter_context(Watched(pid))
        for index in range(CONNECTIONS):
            attacker = stack.enter_context(Peer(int(endpoint.rpartition(":")[2])))
            attacker.h2.update_settings({4: window})
            attacker.flush()
            for call in range(CALLS):
                raw = framed(request(f"{name}-{index}-{call}").SerializeToString())
                attacker.request(path, raw, headers=CLIENT)
        end = time.monotonic() + 6.0
        while time.monotonic() < end:
            assert send(victim, message(other)).status.code == definitions.Code.OK
        stack.pop_all().close()  # the attackers leave
        received = 0
        while received < size:
            answers = list(victim.stream(method, request(f"{name}-victims")))
            received += sum(len(answer.message.body) for answer in answers)
    assert watched.most < MOST_MIB


def test_100_sends_while_a_broker_does_not_read(cluster: LocalCluster, proxy: tuple[str, int]) -> None:
    """Requests above the limit get TOO_MANY_REQUESTS."""
    endpoint, pid = proxy
    topic = cluster.create_topic("Slow")
    raw = framed(definitions.SendMessageRequest(messages=[message(topic, bytes(LARGE))]).SerializeToString())
    with Caller(endpoint, "victim") as victim, ExitStack() as stack:
        assert send(victim, message(topic)).status.code == definitions.Code.OK
        watched = stack.enter_context(Watched(pid))
        attackers = [stack.enter_context(Peer(int(endpoint.rpartition(":")[2]))) for _ in range(5)]
        os.kill(cluster.pid, signal.SIGSTOP)
        try:
            codes = Counter(
                definitions.SendMessageResponse.FromString(attacker.ended(stream)[1][5:]).status.code
                for attacker, streams in [(attacker, sends(attacker, raw, end=True)) for attacker in attackers]
                for stream in streams
            )
        finally:
            os.kill(cluster.pid, signal.SIGCONT)
        assert set(codes) == {definitions.Code.TOO_MANY_REQUESTS, definitions.Code.PROXY_TIMEOUT}
        until(lambda: send(victim, message(topic, bytes(1_000_000))).status.code == definitions.Code.OK)
    assert watched.most < MOST_MIB


def sends(peer: Peer, body: bytes, *, end: bool = False) -> list[int]:
    """Send until the connection blocks; it may be closed meanwhile."""
    streams = [peer.request(SEND, end=False, headers=CLIENT) for _ in range(CALLS)]
    at = dict.fromkeys(streams, 0)
    while at:
        for stream in list(at):
            while at[stream] < len(body):
                window = peer.h2.local_flow_control_window(stream)
                piece = body[at[stream] : at[stream] + min(window, 16_384)]
                if not piece:
                    break
                peer.h2.send_data(stream, piece)
                at[stream] += len(piece)
            if at[stream] == len(body):
                del at[stream]
                if end:
                    peer.h2.end_stream(stream)
        peer.flush()
        if at and not peer.read():
            break
    return streams
