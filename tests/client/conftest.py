from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import pytest

from spark_rocket.client import Admin, Producer, PushConsumer, Reader
from spark_rocket.client.core.client_config import ClientConfig
from spark_rocket.client.core.instance import ClientInstance, acquire, release
from spark_rocket.testing import LocalCluster
from tests.client.producing import Produce
from tests.client.pushing import FIRST, SUCCESS, Consume
from tests.kit.scripted import FakeCluster

T = TypeVar("T")


@pytest.fixture
def fake() -> Iterator[Callable[..., FakeCluster]]:
    """Builds fake clusters; all are closed at the end."""
    with ExitStack() as stack:

        def build(brokers: int = 2) -> FakeCluster:
            cluster = FakeCluster(brokers)
            stack.callback(cluster.close)
            return cluster

        yield build


@pytest.fixture
def mq(request: pytest.FixtureRequest, fake: Callable[..., FakeCluster]) -> FakeCluster:
    """Simulated servers with topic ``t``; a module may set ``BROKERS`` and ``QUEUES`` per broker."""
    cluster = fake(getattr(request.module, "BROKERS", 2))
    cluster.add("t", getattr(request.module, "QUEUES", 1))
    cluster.accept()
    return cluster


@pytest.fixture
def closing() -> Iterator[Callable[[T], T]]:
    """Close clients at the end, before their servers."""
    with ExitStack() as stack:

        def later(client: T) -> T:
            stack.callback(client.close)  # type: ignore[attr-defined]
            return client

        yield later


@pytest.fixture
def produce(mq: FakeCluster, closing: Callable[[Producer], Producer]) -> Produce:
    """Builds producers without heartbeats, which would arrive between the sends at any time."""

    def make(group: str = "g", **options: Any) -> Producer:
        return closing(Producer(group, name_server=mq.name_server.address, **{"member": False, **options}))

    return make


@pytest.fixture
def acquired() -> Iterator[Callable[..., ClientInstance]]:
    """Acquires the shared instance of a name server's address and further settings; released at the end."""
    with ExitStack() as stack:

        def make(name_server: str, **settings: Any) -> ClientInstance:
            instance = acquire(ClientConfig((name_server,), **settings))
            stack.callback(release, instance)
            return instance

        yield make


@pytest.fixture
def nobody() -> str:
    """An address without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[Callable[[], str]]:
    """Build addresses at which connections are neither accepted nor refused, like those of a dead machine."""
    with ExitStack() as stack:

        def make() -> str:
            listening = stack.enter_context(socket.socket())
            listening.bind(("127.0.0.1", 0))
            listening.listen(0)
            for _ in range(2):  # they fill the accept queue
                caller = stack.enter_context(socket.socket())
                caller.setblocking(False)
                caller.connect_ex(listening.getsockname())
            return f"127.0.0.1:{listening.getsockname()[1]}"

        yield make


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Real servers; a module may set other arguments in ``CLUSTER``."""
    with LocalCluster(**{"in_process": True} | getattr(request.module, "CLUSTER", {})) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.name_server) as one:
        yield one


@pytest.fixture(scope="module")
def reader(cluster: LocalCluster) -> Iterator[Reader]:
    with Reader(cluster.name_server) as one:
        yield one


@pytest.fixture(scope="module")
def producer(cluster: LocalCluster) -> Iterator[Producer]:
    with Producer("p", name_server=cluster.name_server) as one:
        yield one


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return "g_" + str(abs(hash(request.node.nodeid)))


@pytest.fixture
def topic(request: pytest.FixtureRequest, cluster: LocalCluster, group: str) -> str:
    """A topic of the test at the real servers; a module may set its number of queues as ``QUEUES``."""
    return cluster.create_topic("t" + group, getattr(request.module, "QUEUES", 4))


@pytest.fixture
def consumer(cluster: LocalCluster, group: str, closing: Callable[[Any], Any]) -> Consume:
    """Builds push consumers of the real servers, from the first message."""
    usual: dict[str, Any] = {"consume_from_where": FIRST, "consume_threads": 3}
    usual |= {"name_server": cluster.name_server, "group": group}

    def build(listener: Any = None, **settings: Any) -> PushConsumer:
        made: PushConsumer = closing(PushConsumer(listener=listener, **usual | settings))
        return made

    return build


@pytest.fixture
def consume(consumer: Consume) -> Consume:
    """Starts push consumers of a topic. Without a listener of any kind, they accept all messages."""

    def start(topic: str, listener: Any = None, tags: str = "*", **settings: Any) -> PushConsumer:
        if listener is None and not {"orderly", "batches"} & settings.keys():
            settings["listener"] = lambda *_: SUCCESS
        elif listener is not None:
            settings["listener"] = listener
        made = consumer(**settings)
        made.subscribe(topic, tags)
        made.start()
        return made

    return start
