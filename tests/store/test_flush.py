"""Flushing: group commit, callbacks, time-outs, the checkpoint behind the disk, and a failing disk."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from struct import unpack_from

import pytest

from spark_rocket.errors import StoreError
from spark_rocket.store import FlushDiskType, MessageStore, PutStatus
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.tools.check import check_store
from tests.kit.clock import START, Clock
from tests.store.conftest import MakeStore
from tests.store.helpers import BORN, bodies, flush_log, flush_queues, opened, put, recovery_of, small

WAIT = 30


class Answers:
    """Callbacks and their arguments."""

    def __init__(self) -> None:
        self.told: dict[int, bool] = {}
        self._changed = threading.Condition()

    def callback(self, number: int) -> Callable[[bool], None]:
        def told(ok: bool) -> None:
            with self._changed:
                assert number not in self.told
                self.told[number] = ok
                self._changed.notify_all()

        return told

    def wait(self, count: int) -> dict[int, bool]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.told) >= count, WAIT)
            return dict(self.told)


class SlowDisk:
    """``MappedFile.flush`` that blocks until it is released, and counts calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.count = 0
        real = MappedFile.flush

        def flush(file: MappedFile, *span: int) -> None:
            self.count += 1
            self.entered.set()
            assert self.let_go.wait(WAIT)
            real(file, *span)

        monkeypatch.setattr(MappedFile, "flush", flush)


@pytest.fixture
def sync_store(make_store: MakeStore) -> MessageStore:
    return make_store(flush_disk_type=FlushDiskType.SYNC_FLUSH, message_index_enable=False)


def test_waiters_are_answered_when_their_bytes_are_on_disk(sync_store: MessageStore) -> None:
    answers = Answers()
    for i in range(50):
        result = put(sync_store, "T", 0, b"%d" % i)
        sync_store.when_flushed(result.end_physical_offset, answers.callback(i))
    assert answers.wait(50) == dict.fromkeys(range(50), True)
    assert sync_store.flushed_where == sync_store.max_physical_offset
    sync_store.when_flushed(sync_store.flushed_where, answers.callback(50))  # already there: at once
    assert answers.told[50] is True


def test_many_waiters_share_one_flush(sync_store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, answers = SlowDisk(monkeypatch), Answers()
    first = put(sync_store, "T", 0, b"first")
    sync_store.when_flushed(first.end_physical_offset, answers.callback(0))
    assert disk.entered.wait(WAIT)
    for i in range(1, 40):  # these come while the disk is busy with the first
        result = put(sync_store, "T", 0, b"%d" % i)
        sync_store.when_flushed(result.end_physical_offset, answers.callback(i))
    assert answers.told == {}
    disk.let_go.set()
    assert answers.wait(40) == dict.fromkeys(range(40), True)
    assert disk.count == 2


def test_a_slow_disk_is_reported_and_the_message_stays(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
        sync_flush_timeout=0,
        flush_interval_consume_queue=10,  # its thread looks after those who wait for the other's
        message_index_enable=False,
    )
    disk, answers = SlowDisk(monkeypatch), Answers()
    result = put(store, "T", 0, b"slow")
    store.when_flushed(result.end_physical_offset, answers.callback(0))
    assert disk.entered.wait(WAIT)
    assert answers.wait(1) == {0: False}
    disk.let_go.set()
    assert bodies(store, "T", 0) == [b"slow"]


def test_asynchronous_flush_by_pages(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(flush_interval_commit_log=1)
    disk, answers = SlowDisk(monkeypatch), Answers()
    disk.let_go.set()
    put(store, "T", 0, b"x" * 20_000)  # four pages: flushed without anybody asking
    assert disk.entered.wait(WAIT)
    result = put(store, "T", 0, b"little")
    store.when_flushed(result.end_physical_offset, answers.callback(0))  # one who waits is not made to
    assert answers.wait(1) == {0: True}


def checkpoint_of(store: MessageStore) -> tuple[int, int]:
    times: tuple[int, int] = unpack_from(">2q", (store.config.store_path / "checkpoint").read_bytes())
    return times


def test_the_checkpoint_moves_behind_the_disk(store: MessageStore, clock: Clock) -> None:
    put(store, "T", 0, b"")
    flush_log(store)
    assert checkpoint_of(store) == (START, 0)
    clock.now += 10
    put(store, "T", 0, b"")
    store.flush()
    assert checkpoint_of(store) == (START + 10, START + 10)
    clock.now += 10
    put(store, "T", 0, b"")
    flush_queues(store, thorough=False)
    assert checkpoint_of(store) == (START + 10, START + 10)
    store.close()
    assert checkpoint_of(store) == (START + 20, START + 20)
    assert len((store.config.store_path / "checkpoint").read_bytes()) == 4096


def test_consume_queues_are_flushed_by_pages(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(mapped_file_size_consume_queue=20_000)
    flushed: list[Path] = []
    real = MappedFile.flush

    def flush(file: MappedFile, *span: int) -> None:
        flushed.append(file.path.parent)
        real(file, *span)

    monkeypatch.setattr(MappedFile, "flush", flush)
    for _ in range(500):
        put(store, "Big", 0, b"")
    put(store, "Small", 0, b"")
    root = store.config.consume_queue_path
    flush_queues(store, thorough=False)
    assert flushed == [root / "Big" / "0"]
    flush_queues(store)
    assert flushed == [root / "Big" / "0", root / "Small" / "0"]
    flush_queues(store)
    assert len(flushed) == 2


@pytest.mark.parametrize("directory", ["commitlog", "consumequeue", "index"])
def test_after_a_failed_flush_no_page_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    """The disk fails once and then works: neither the checkpoint nor a clean stop may claim that all is there."""
    config, clock = small(tmp_path / "store"), Clock()
    store = opened(config, clock)
    put(store, "T", 0, b"safe", b"KEYS\x01k")
    store.flush()
    assert len(store.query_message("T", "k", 1, 0, 1 << 62).records) == 1
    clock.now += 10
    result = put(store, "T", 0, b"lost?", b"KEYS\x01k")
    real = MappedFile.flush
    failed: list[Path] = []

    def fails_once(file: MappedFile, *span: int) -> None:
        if not failed and directory in file.path.parts:
            failed.append(file.path)
            raise OSError(errno.EIO, "Input/output error")
        real(file, *span)

    monkeypatch.setattr(MappedFile, "flush", fails_once)
    if directory != "index":
        with pytest.raises(OSError, match="Input/output error"):
            store.flush()
        for _ in range(2):
            with pytest.raises(OSError, match="earlier flush"):
                flush_queues(store)
            with pytest.raises(OSError, match="earlier flush"):
                flush_log(store)
        refused = store.put_message("T", 0, b"more", b"", born_timestamp=1, born_host=BORN)
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
        answers = Answers()
        if directory == "commitlog":
            store.when_flushed(result.end_physical_offset, answers.callback(0))
            assert answers.wait(1) == {0: False}
    with pytest.raises(StoreError, match=r"The flush of the store in .* failed"):
        store.close()
    assert len(failed) == 1
    assert (config.store_path / "abort").exists()
    log_time, queue_time = checkpoint_of(store)
    assert (log_time, queue_time) == {
        "commitlog": (START, START),
        "consumequeue": (START + 10, START),
        "index": (START + 10, START + 10),
    }[directory]
    monkeypatch.undo()
    store = opened(config, clock)
    assert not recovery_of(store).clean
    assert bodies(store, "T", 0) == [b"safe", b"lost?"]
    assert len(store.query_message("T", "k", 10, 0, 1 << 62).records) == 2
    store.close()
    assert check_store(config.store_path, config) == []


def test_a_waiters_mistake_does_not_stop_the_others(sync_store: MessageStore) -> None:
    answers = Answers()

    def mistaken(ok: bool) -> None:
        raise RuntimeError("mine")

    result = put(sync_store, "T", 0, b"")
    sync_store.when_flushed(result.end_physical_offset, mistaken)
    result = put(sync_store, "T", 0, b"")
    sync_store.when_flushed(result.end_physical_offset, answers.callback(1))
    assert answers.wait(1) == {1: True}
