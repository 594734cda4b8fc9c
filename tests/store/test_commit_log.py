"""The commit log: writer and allocator may meet at any moment."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spark_rocket.store.check import check_store
from spark_rocket.store.commit_log import CommitLog
from spark_rocket.store.mapped_file import MappedFile
from spark_rocket.store.mapped_file_queue import MappedFileQueue
from tests.store.helpers import bodies, opened, put, small


def test_the_allocator_never_makes_a_file_that_the_writer_just_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocator is let in at every step of a roll-over; no file of the log is then taken for one nobody uses."""
    config = small(tmp_path / "store")
    monkeypatch.setattr(CommitLog, "start", lambda log: None)  # its thread; the test is the allocator
    store = opened(config)
    log = store._log
    helpers: list[threading.Thread] = []

    def let_the_allocator_in() -> None:
        current = log._current
        if current is not None:
            helper = threading.Thread(target=log._prepare_next, args=(current,))
            helper.start()
            helper.join(0.2)  # it waits for the writer, if it is right
            helpers.append(helper)

    add = MappedFileQueue.add

    def watched_add(queue: MappedFileQueue, file: MappedFile) -> None:
        let_the_allocator_in()
        add(queue, file)
        let_the_allocator_in()

    monkeypatch.setattr(MappedFileQueue, "add", watched_add)
    for i in range(4):
        put(store, "T", 0, b"%d" % i * 30_000)
        for helper in helpers:
            helper.join()
        assert log._next is None or log._next.file_from_offset == log.queue.end_offset
    assert len(helpers) >= 6
    monkeypatch.setattr(MappedFileQueue, "add", add)
    store.close()
    assert len(list(config.commit_log_path.iterdir())) == 4
    assert check_store(config.store_path, config) == []
    store = opened(config)
    assert bodies(store, "T", 0) == [b"%d" % i * 30_000 for i in range(4)]
    store.close()
