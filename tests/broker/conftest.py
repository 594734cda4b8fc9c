"""A broker with its name server in this process, and single commands to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.replication import slave as slave_module
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store.tools.check import check_store
from spark_rocket.testing import LocalCluster
from tests.broker.pop_world import World
from tests.broker.replicas import Replicas
from tests.broker.wire import Wire
from tests.kit.brokers import parts_of
from tests.kit.clock import Clock

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def cluster() -> Iterator[LocalCluster]:
    """Stopped before the tests of other folders, some of which disable the disk of the process."""
    with LocalCluster(in_process=True) as running:
        yield running


@pytest.fixture
def parts(cluster: LocalCluster) -> BrokerParts:
    """The internals of that broker, which runs on another thread: read, or replace one attribute."""
    return parts_of(cluster)


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


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """POP on a store with a manual clock."""
    world = World(tmp_path)
    yield world
    world.close()
    assert check_store(tmp_path / "store", world.config()) == []


@pytest.fixture
def replicas(tmp_path: Path) -> Replicas:
    return Replicas(tmp_path)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave that lost its master retries soon."""
    monkeypatch.setattr(slave_module, "_FIRST_RETRY_DELAY_S", 0.02)
    monkeypatch.setattr(slave_module, "_MAX_RETRY_DELAY_S", 0.2)
    monkeypatch.setattr(slave_module, "_MAX_REFUSED_DELAY_S", 0.2)
