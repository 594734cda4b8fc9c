"""A broker with a manual clock and a producer of transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.broker.transactions.scene import Producer
from tests.broker.wire import Wire
from tests.kit.brokers import Served, served
from tests.kit.clock import Clock


@pytest.fixture
def serve(tmp_path: Path, clock: Clock) -> Callable[..., Any]:
    """Serve ``tmp_path / "store"`` with one producer of group GID_tx; a context manager."""

    @contextmanager
    def begin(directory: Path = tmp_path / "store", *, join: bool = True, **settings: Any) -> Iterator[Any]:
        with served(directory, clock, **settings) as (server, wire):
            producer = Producer(wire.address, clock)
            try:
                if join:
                    producer.join()
                yield server, wire, producer
            finally:
                producer.close()

    return begin


@pytest.fixture
def running(serve: Callable[..., Any]) -> Iterator[tuple[Served, Wire, Producer]]:
    with serve() as three:
        yield three


@pytest.fixture
def server(running: tuple[Served, Wire, Producer]) -> Served:
    return running[0]


@pytest.fixture
def wire(running: tuple[Served, Wire, Producer]) -> Wire:
    return running[1]


@pytest.fixture
def producer(running: tuple[Served, Wire, Producer]) -> Producer:
    """A member of the group GID_tx."""
    return running[2]
