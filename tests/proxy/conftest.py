"""A cluster with its gRPC endpoint in this process, and calls of its methods by name."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Iterator

import pytest

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.proxy.server import ProxyServer
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.kit.brokers import parts_of
from tests.proxy.caller import Caller

_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines, each on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    names = inspect.signature(pyfuncitem.function).parameters
    asyncio.run(pyfuncitem.function(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="package")
def cluster() -> Iterator[LocalCluster]:
    """Gone when another folder's tests come: some of them take the disk from the whole process."""
    with LocalCluster(in_process=True) as running:
        yield running


@pytest.fixture
def parts(cluster: LocalCluster) -> BrokerParts:
    return parts_of(cluster)


@pytest.fixture
def proxy(cluster: LocalCluster) -> ProxyServer:
    """The insides of the proxy, which runs on another thread."""
    return cluster.proxy.server


@pytest.fixture
def wire(cluster: LocalCluster) -> Iterator[Wire]:
    """The same broker by the classic protocol."""
    with RemotingClient() as client:
        yield Wire(client, cluster.broker_address)


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Caller]:
    """A client that is not registered yet."""
    with Caller(cluster.grpc_endpoint, f"test@{next(_numbers)}") as caller:
        yield caller


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return cluster.create_topic(f"Topic-{next(_numbers)}")


@pytest.fixture
def group() -> str:
    return f"GID-{next(_numbers)}"
