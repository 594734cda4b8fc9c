from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import pytest

from spark_rocket.client import Admin, Producer, PushConsumer, Reader
from spark_rocket.testing import LocalCluster
from tests.client.fakes import FakeCluster
from tests.client.pushing import FIRST

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
            return "127.0.0.1:%d" % listening.getsockname()[1]  # noqa: UP031

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
def consumer(cluster: LocalCluster, group: str, closing: Callable[[Any], Any]) -> Callable[..., PushConsumer]:
    def build(listener: Any = None, **settings: Any) -> PushConsumer:
        settings.setdefault("consume_from_where", FIRST)
        settings.setdefault("consume_threads", 3)
        settings.setdefault("name_server", cluster.name_server)
        settings.setdefault("group", group)
        made: PushConsumer = closing(PushConsumer(listener=listener, **settings))
        return made

    return build
