"""RocketMQ's own clients and a separate cluster, whose broker checks transactions soon."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.proxy.official.clients import Official

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared() -> Iterator[LocalCluster]:
    settings = {"transactionTimeOut": 500, "transactionCheckInterval": 500, "recallMessageEnable": True}
    settings |= {"enablePropertyFilter": True}
    with LocalCluster(in_process=True, config=settings) as running:
        yield running


@pytest.fixture(scope="session", params=["python", "node"])
def official(
    request: pytest.FixtureRequest, shared: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Official]:
    home: Path = tmp_path_factory.mktemp("home")
    client = Official(request.param, shared.grpc_endpoint, home)
    yield client
    client.close()


@pytest.fixture
def topic(shared: LocalCluster) -> str:
    return shared.create_topic(f"Official-{next(_numbers)}")


@pytest.fixture
def group() -> str:
    return f"GID-official-{next(_numbers)}"


@pytest.fixture
def wire(shared: LocalCluster) -> Iterator[Wire]:
    with RemotingClient() as client:
        yield Wire(client, shared.broker_address)
