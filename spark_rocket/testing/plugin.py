"""The pytest plugin: fixtures ``rocket`` (a cluster for the whole run) and ``rocket_topic`` (a fresh topic per test).

pytest imports this module in every run of everyone who has spark_rocket installed, so nothing heavy is imported until a
fixture is used. ``PYSPARK_PYTHON`` is set to the running interpreter when it is not set: without it Spark's workers run
``python3`` from PATH, which need not have the packages of this virtual environment.
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
