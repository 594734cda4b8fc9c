"""Stores that are closed and checked when their test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.store import MessageStore, StoreConfig
from spark_rocket.store.index import service as index_service
from spark_rocket.store.tools.check import check_store
from tests.store.helpers import Clock, opened, small

MakeStore = Callable[..., MessageStore]


@pytest.fixture(autouse=True)
def _index_has_time() -> Iterator[None]:
    """A broker's stop and queries wait only so long for the index; on a busy machine that would fail tests."""
    with pytest.MonkeyPatch.context() as patch:  # not the test's own, which is to be undone before stores are closed
        patch.setattr(index_service, "_CLOSE_PATIENCE", 60.0)
        patch.setattr(index_service, "_QUERY_PATIENCE", 60.0)
        yield


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_store(tmp_path: Path, clock: Clock) -> Iterator[MakeStore]:
    """Makes a store in ``tmp_path`` (or opens the one that is there); what is open at the end is closed and checked."""
    made: list[MessageStore] = []

    def make(config: StoreConfig | None = None, *, on_arrive: Any = None, **settings: Any) -> MessageStore:
        store = opened(config or small(tmp_path / "store", **settings), clock, on_arrive=on_arrive)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()
    for config in {store.config for store in made}:
        assert check_store(config.store_path, config) == []


@pytest.fixture
def store(make_store: MakeStore) -> MessageStore:
    return make_store()
