"""A broker with its name server in this process, and a way to talk to it in bare commands."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from spark_rocket.broker.service import BrokerService
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.remoting.client.client import RemotingClient
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.threads import ServerThread
from tests.broker.wire import Wire

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def cluster() -> Iterator[LocalCluster]:
    """Gone when another folder's tests come: some of them take the disk from the whole process."""
    with LocalCluster(in_process=True) as running:
        yield running


@pytest.fixture
def service(cluster: LocalCluster) -> BrokerService:
    """The insides of that broker, which runs on another thread: look, or replace one attribute."""
    server = cluster._server
    assert isinstance(server, ServerThread)
    assert server.service is not None
    return server.service


@pytest.fixture
def wire(cluster: LocalCluster) -> Iterator[Wire]:
    with RemotingClient() as client:
        wire = Wire(client, cluster.broker_address)
        wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO)  # connected: what is asked from now on arrives in that order
        yield wire


@pytest.fixture
def namesrv(cluster: LocalCluster) -> Iterator[Wire]:
    with RemotingClient() as client:
        yield Wire(client, cluster.name_server)


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return cluster.create_topic(f"Topic-{next(_numbers)}")


@pytest.fixture
def group() -> str:
    return f"GID-{next(_numbers)}"
