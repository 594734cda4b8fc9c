"""Stores that are closed and checked when their test ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.store import MessageStore, StoreConfig
from spark_rocket.store.index import index_service
from spark_rocket.store.tools.check import check_store
from tests.kit.clock import START, Clock
from tests.store.helpers import opened, put, small
from tests.store.retention_rig import COUNT, FILES, QUEUES, Disk, Trimmable, at_hour, body
from tests.store.timer_rig import Rig, small_timer

MakeStore = Callable[..., MessageStore]
MakeRig = Callable[..., Rig]


@pytest.fixture(autouse=True)
def _index_has_time() -> Iterator[None]:
    """A broker's stop and queries wait only briefly for the index, which would fail tests on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:  # not the test's own, which is to be undone before stores are closed
        patch.setattr(index_service, "_CLOSE_TIMEOUT_S", 60.0)
        patch.setattr(index_service, "_QUERY_TIMEOUT_S", 60.0)
        yield


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_store(tmp_path: Path, clock: Clock) -> Iterator[MakeStore]:
    """Create or open a store in ``tmp_path``; open stores are closed and checked at the end."""
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
def config(tmp_path: Path, template: Path) -> StoreConfig:
    """A copy of the module's store, which is closed."""
    shutil.copytree(template, tmp_path / "store")
    return small(tmp_path / "store")


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[MakeRig]:
    """Makes a store with its timer, by default in ``tmp_path / "store"``; closed and checked at the end."""
    made: list[Rig] = []

    def make(config: StoreConfig | None = None, clock: Clock | None = None, **timer: Any) -> Rig:
        made.append(Rig(config or small_timer(tmp_path / "store"), clock, **timer))
        return made[-1]

    yield make
    for rig in made:
        rig.close()
        assert check_store(rig.config.store_path, rig.config) == []


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig()


@pytest.fixture
def store(make_store: MakeStore) -> MessageStore:
    return make_store()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config, clock = small(tmp_path_factory.mktemp("template") / "store"), Clock()
    store = opened(config, clock)
    put(store, "Old", 0, b"of the first file only", b"KEYS\x01old")
    for i in range(COUNT):
        clock.now = START + 1000 * i
        put(store, "T", i % QUEUES, body(i), b"KEYS\x01k%d\x02TAGS\x01t" % i)
    store.close()
    assert len(list(config.commit_log_path.iterdir())) == FILES
    return config.store_path


@pytest.fixture
def it(tmp_path: Path, template: Path) -> Iterator[Trimmable]:
    config = small(tmp_path / "store", delete_when="4", file_reserved_time=1)
    shutil.copytree(template, config.store_path)
    clock = Clock(at_hour(12, START + 1000 * COUNT))
    disk = Disk()
    subject = Trimmable(config, clock, disk, opened(config, clock, disk_usage=disk))
    yield subject
    subject.store.close()
    assert check_store(config.store_path, config) == []
