"""The pytest plugin: fixtures ``rocket`` (one cluster per run) and ``rocket_topic`` (a new topic per test).

pytest imports this module in every run if spark_rocket is installed, so expensive imports are deferred until a fixture
is used. ``PYSPARK_PYTHON`` defaults to the running interpreter: otherwise Spark's workers run ``python3`` from PATH,
which may lack the packages of this virtual environment.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from spark_rocket.testing.cluster import LocalCluster

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@pytest.fixture(scope="session")
def rocket() -> Iterator[LocalCluster]:
    """A name server and a broker on free ports, for all tests of the run.

    ``rocket.name_server`` is its address, ``rocket.grpc_endpoint`` the one for RocketMQ 5's own clients.
    """
    from spark_rocket.testing.cluster import LocalCluster

    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def rocket_topic(rocket: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a topic with four queues that only this test uses."""
    test = re.sub(r"[^a-zA-Z0-9_-]+", "_", request.node.name)[:80]
    topic = rocket.create_topic(f"{test}-{os.getpid()}-{next(_numbers)}")
    yield topic
    rocket.delete_topic(topic)
