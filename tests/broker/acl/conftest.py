"""Clients with accounts, for a module's ``cluster``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from spark_rocket.protocol.auth import Credentials
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire

Connect = Callable[[Credentials | None], Wire]


@pytest.fixture
def as_(cluster: LocalCluster) -> Iterator[Connect]:
    """A client by its credentials."""
    clients: list[RemotingClient] = []

    def connected(credentials: Credentials | None) -> Wire:
        clients.append(RemotingClient(credentials=credentials))
        return Wire(clients[-1], cluster.broker_address)

    yield connected
    for client in clients:
        client.close()
