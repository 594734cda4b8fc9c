"""A process without a free descriptor: the store continues, and failed operations are retried."""

from __future__ import annotations

import errno
import gc
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.protocol.durability import FlushDiskType
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.store import MessageStore, PutStatus, descriptors
from spark_rocket.store.descriptors import ShortageError
from spark_rocket.store.log.mapped_file import MappedFile
from tests.store.conftest import MakeStore
from tests.store.helpers import BORN, bodies, flush_log, flush_queues, index_of, opened, put, put_batch, small

_OPEN = Path("/proc/self/fd")


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Use all descriptors of this process, with a low limit. Another thread may close one in the meantime."""
    gc.collect()  # garbage has descriptors
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    highest = max(int(path.name) for path in _OPEN.iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


class Shortage:
    """``os.open`` that fails from its n-th call on, with the reserve gone too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 1 << 30
        self.number = errno.EMFILE
        real = os.open

        def open_one(path: Any, flags: int, *mode: int) -> int:
            self.left -= 1
            if self.left < 0:
                raise OSError(self.number, os.strerror(self.number))
            return real(path, flags, *mode)

        monkeypatch.setattr(os, "open", open_one)

    def over(self) -> None:
        self.left = 1 << 30


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shortage]:
    with pytest.MonkeyPatch.context() as patch:
        found = Shortage(patch)
        yield found
        found.over()


@pytest.mark.skipif(not _OPEN.is_dir(), reason="Linux only")
def test_the_store_goes_on_without_a_free_descriptor(make_store: MakeStore) -> None:
    """New log files, new queues, files of queues, flushes, reads of unmapped files."""
    store = make_store(max_mapped_consume_queue_files=2)
    put(store, "T", 0, b"before")
    expected: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(5)}
    expected[0].append(b"before")
    with no_descriptor_left():
        for number in range(300):
            body = b"%d " % number * 100
            put(store, "T", number % 5, body, b"KEYS\x01k%d" % number)
            expected[number % 5].append(body)
            if not number % 50:
                store.flush()
        assert store.max_physical_offset > 2 * (32 << 10)
        for queue_id, messages in expected.items():
            assert bodies(store, "T", queue_id) == messages
        put_batch(store, "U", 0, [(0, b"%d" % number, b"") for number in range(50)])  # over three files of its queue
        store.flush()
        assert store.write_error is None
    put(store, "T", 1, b"after")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_flush_that_cannot_open_a_file_is_done_later(make_store: MakeStore, shortage: Shortage, number: int) -> None:
    """The disk was not used, so the flush can be retried."""
    store = make_store()
    put(store, "T", 0, b"first")
    shortage.left, shortage.number = 0, number
    with pytest.raises(ShortageError):
        store.flush()
    shortage.over()
    assert store.write_error is None
    result = put(store, "T", 0, b"second")
    store.flush()
    assert store.flushed_where == result.end_physical_offset
    told: list[bool] = []
    store.when_flushed(result.end_physical_offset, told.append)
    assert told == [True]


def test_flushes_that_fail_are_logged_once(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each waiting sender causes one more flush."""
    store = make_store(flush_disk_type=FlushDiskType.SYNC_FLUSH, message_index_enable=False)
    result = put(store, "T", 0, b"x")
    tried = threading.Semaphore(0)

    def refuse(*_: object) -> None:
        tried.release()
        raise ShortageError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(MappedFile, "flush", refuse)
        for _ in range(20):
            store.when_flushed(result.end_physical_offset, lambda ok: None)
            assert tried.acquire(timeout=30)
    assert caplog.text.count("flush of the commit log failed") == 1


def test_a_failed_mapping_is_a_memory_error(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patch:
        patch.setattr("spark_rocket.store.log.mapped_file.mmap.mmap", fail)
        result = store.put_message("T", 0, b"x", b"", born_timestamp=1, born_host=BORN)
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "can be mapped" in result.reason
    assert "has no room" not in result.reason
    put(store, "T", 0, b"x")


@pytest.mark.parametrize("queues", [1, 40])
def test_names_of_queues_are_synced_by_the_flush_that_can(
    make_store: MakeStore, shortage: Shortage, monkeypatch: pytest.MonkeyPatch, queues: int
) -> None:
    store = make_store(message_index_enable=False)
    for queue_id in range(queues):
        put(store, "T", queue_id, b"x")
    flush_log(store)
    shortage.left = 0
    with pytest.raises(ShortageError):
        flush_queues(store)
    shortage.over()
    synced: list[str] = []
    for name in ("sync_directory", "sync_file_system"):
        for module in ("queues.consume_queue", "flush"):
            target = f"spark_rocket.store.{module}.{name}"
            monkeypatch.setattr(target, lambda directory: synced.append(str(directory)), raising=False)
    flush_queues(store)
    assert str(store.config.consume_queue_path) in synced


def test_the_index_is_flushed_later_too(make_store: MakeStore, shortage: Shortage) -> None:
    store = make_store()
    for number in range(450):  # more than two files of the index
        put(store, "T", 0, b"", b"KEYS\x01k%d" % number)
    assert len(store.query_message("T", "k449", 1, 0, 1 << 62).records) == 1
    index = index_of(store)
    shortage.left = 0
    with pytest.raises(ShortageError):
        index.flush()
    shortage.over()
    index.flush()


def test_a_queue_that_cannot_be_opened_is_not_treated_as_empty(make_store: MakeStore, shortage: Shortage) -> None:
    first = make_store()
    for queue_id in range(3):
        for number in range(30):
            put(first, "T", queue_id, b"%d" % number)
    first.close()
    for left in range(8):
        store = make_store()
        shortage.left = left
        result = store.put_message("T", 1, b"more", b"", born_timestamp=1, born_host=BORN)
        shortage.over()
        if result.status is PutStatus.PUT_OK:
            assert result.queue_offset == 30
            break
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "Too many open files" in result.reason
        assert store.get_max_offset("T", 1) == 30
        assert bodies(store, "T", 1) == [b"%d" % number for number in range(30)]
        store.close()
    assert left > 0


def _single(store: MessageStore, body: bytes) -> PutStatus:
    return store.put_message("T", 0, body, b"", born_timestamp=1, born_host=BORN).status


def _batch(store: MessageStore, body: bytes) -> PutStatus:
    raw = encode_batch_body([(0, body, b"")] * 45)
    return store.put_batch("T", 0, raw, born_timestamp=1, born_host=BORN).status


@pytest.mark.parametrize("send", [_single, _batch])
def test_no_record_without_its_entry_wherever_descriptors_end(
    make_store: MakeStore, shortage: Shortage, send: Callable[[MessageStore, bytes], PutStatus]
) -> None:
    """The files that a batch's entries go to are ready before its records are in the log."""
    store = make_store(message_index_enable=False)
    stored = refused = 0  # files of the queue have 20 entries
    for left in range(16):
        while stored % 20:
            put(store, "T", 0, b"%d" % stored)
            stored += 1
        before = store.max_physical_offset
        shortage.left = left
        status = send(store, b"x" * 500)
        shortage.over()
        if status is PutStatus.PUT_OK:
            stored += 45 if send is _batch else 1
        else:
            refused += 1
            assert status is PutStatus.SERVICE_NOT_AVAILABLE
            assert store.max_physical_offset == before
        assert store.get_max_offset("T", 0) == stored
        assert len(bodies(store, "T", 0)) == stored
    assert refused > 0


def test_a_store_without_reserved_descriptors_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no null device, say."""
    monkeypatch.setattr(os, "devnull", "/nowhere")
    monkeypatch.setattr(descriptors, "_reserve", [])
    store = opened(small(tmp_path / "store"))
    put(store, "T", 0, b"x")
    store.close()
