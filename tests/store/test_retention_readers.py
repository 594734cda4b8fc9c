"""Retention: its effects on readers, and on queues, index and topics."""

from __future__ import annotations

import errno
import logging
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.store import GetMessageStatus, StoreConfig, file_remover, retention
from spark_rocket.store.index.index_service import IndexService
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.queues.side_files import DeletedTopics
from spark_rocket.store.tools.check import check_store
from tests.store.conftest import MakeStore
from tests.store.helpers import bodies, index_of, mapped_files, opened, put, trim
from tests.store.retention_rig import COUNT, FILES, QUEUES, SIZE, Trimmable, body, first_number

# --- what readers see ------------------------------------------------------------------------------------------------


def test_readers_see_the_new_beginning_at_once(it: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    store = it.store
    reader = store.get_message("T", 1, 10, 32, 1 << 20)
    first = store.look_message_by_offset(5 * SIZE)
    assert first is not None
    begin = decode_messages(first)[0].store_timestamp
    monkeypatch.setattr(store.retention.remover, "retry", lambda: None)  # nothing is deleted yet
    monkeypatch.setattr(retention, "_SLICE_QUEUES", 0)  # and no queue trimmed
    store.settings_changed(replace(it.config, file_reserved_size=store.max_physical_offset - 5 * SIZE))
    assert store.retention.run(it.clock.now).removed == 5
    assert len(it.logs()) == FILES
    assert store.min_physical_offset == 5 * SIZE
    left = first_number(store)
    for queue_id in range(QUEUES):
        low = store.get_min_offset("T", queue_id)
        assert low == (left - queue_id + 2) // 3
        for offset in (0, low - 1):
            gone = store.get_message("T", queue_id, offset, 32, 1 << 20)
            assert gone.status is GetMessageStatus.OFFSET_TOO_SMALL
            assert (gone.next_begin_offset, gone.min_offset, gone.max_offset) == (low, low, COUNT // 3)
        assert store.get_message("T", queue_id, low, 32, 1 << 20).status is GetMessageStatus.FOUND
        assert store.get_store_time("T", queue_id, low - 1) == -1
        assert store.get_earliest_store_time("T", queue_id) == store.get_store_time("T", queue_id, low) >= begin
        assert store.get_offset_by_time("T", queue_id, 0) == low
        assert store.get_offset_by_time("T", queue_id, 0, upper=True) == low
    middle = reader.next_begin_offset  # of a reader in progress
    assert store.get_message("T", 1, middle, 32, 1 << 20).status is GetMessageStatus.OFFSET_TOO_SMALL
    assert store.look_message_by_offset(0) is None
    assert store.look_message_by_offset(5 * SIZE) == first
    assert store.query_message("T", "k0", 10, 0, 1 << 60).records == []
    assert len(store.query_message("T", f"k{left}", 10, 0, 1 << 60).records) == 1
    # All of this queue's messages are gone, its end is where it was.
    assert (store.get_min_offset("Old", 0), store.get_max_offset("Old", 0)) == (1, 1)
    assert store.get_message("Old", 0, 0, 32, 1 << 20).status is GetMessageStatus.OFFSET_TOO_SMALL
    assert store.get_message("Old", 0, 1, 32, 1 << 20).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
    assert store.get_earliest_store_time("Old", 0) == -1
    assert store.query_message("Old", "old", 10, 0, 1 << 60).records == []
    monkeypatch.undo()
    it.run()
    assert len(it.logs()) == FILES - 5
    assert first_number(store) == left


def test_an_index_that_is_behind_goes_on_where_the_log_begins(it: Trimmable) -> None:
    it.store.close()
    shutil.rmtree(it.config.index_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndexService, "_step", lambda *_: False)  # nothing is indexed
        store = it.open()
        it.trim_to(1)
        assert index_of(store).behind == store.max_physical_offset
    assert index_of(store).catch_up(60)
    assert len(store.query_message("T", f"k{COUNT - 1}", 10, 0, 1 << 60).records) == 1
    store.close()
    first = min(it.config.index_path.iterdir())
    assert int.from_bytes(first.read_bytes()[16:24], "big") >= store.min_physical_offset
    it.open()


# --- what follows the log --------------------------------------------------------------------------------------------


def test_queues_and_index_are_trimmed_after_the_log(it: Trimmable) -> None:
    assert len(it.queue_files()) == 6
    index_files = len(list(it.config.index_path.iterdir()))
    assert index_files > 1
    it.trim_to(2)
    left = first_number(it.store)
    for queue_id in range(QUEUES):
        low = it.store.get_min_offset("T", queue_id)
        assert [path.name for path in it.queue_files("T", queue_id)] == [
            f"{offset:020d}" for offset in range(low // 20 * 400, COUNT // 3 * 20, 400)
        ]
    assert [path.name for path in it.queue_files("Old")] == [f"{0:020d}"]
    assert 0 < len(list(it.config.index_path.iterdir())) < index_files
    for i in range(left, COUNT):
        assert len(it.store.query_message("T", f"k{i}", 10, 0, 1 << 60).records) == 1
    put(it.store, "Old", 0, b"more")
    assert bodies(it.store, "Old", 0) == [b"more"]


@pytest.mark.parametrize(
    ("queues", "seconds", "slices"), [(2, 1000, 3), (1000, 0, 5)], ids=["many queues", "a slow disk"]
)
def test_queues_are_trimmed_in_slices(
    it: Trimmable, monkeypatch: pytest.MonkeyPatch, queues: int, seconds: float, slices: int
) -> None:
    """Four queues: one slice in the run, the others on request; one in each takes long."""
    monkeypatch.setattr(retention, "_SLICE_QUEUES", queues)
    monkeypatch.setattr(retention, "_SLICE_S", seconds)
    it.store.settings_changed(replace(it.config, file_reserved_size=1))
    assert it.store.retention.run(it.clock.now).unfinished
    count = 2
    while it.store.retention.trim_queues():
        count += 1
    assert count == slices
    assert not it.store.retention.run(it.clock.now).unfinished
    it.store.retention.trim_again()
    assert it.store.retention.trim_queues()
    it.drain()
    assert len(it.queue_files()) == 1


def test_an_unreadable_queue_does_not_stop_the_others(it: Trimmable, caplog: pytest.LogCaptureFixture) -> None:
    hidden = it.config.store_path / "hidden"
    directory = it.config.consume_queue_path / "T" / "0"
    directory.rename(hidden)
    with caplog.at_level(logging.ERROR):
        it.trim_to(1)
    assert [text.split(":")[0] for text in caplog.messages] == ["cannot trim queue 0 of topic T"]
    assert len(it.queue_files("T", 1)) < 6
    hidden.rename(directory)
    it.store.retention.trim_again()
    it.run()
    assert len(it.queue_files("T", 0)) < 6


def test_a_stop_deletes_removed_files(it: Trimmable) -> None:
    it.config = replace(it.config, delete_commit_log_files_interval=60_000)
    it.store.settings_changed(replace(it.config, file_reserved_size=1))
    assert it.store.retention.run(it.clock.now).removed == FILES - 1
    it.store.close()
    assert len(it.logs()) == 1
    it.open()


def test_a_stop_does_not_wait_long_for_deletions(it: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_remover, "_STOP_TIMEOUT_S", 0.0)
    deleting, go_on = threading.Event(), threading.Event()
    real = MappedFile.destroy

    def destroy(file: MappedFile) -> None:
        deleting.set()
        assert go_on.wait(60)
        real(file)

    monkeypatch.setattr(MappedFile, "destroy", destroy)
    it.store.settings_changed(replace(it.config, file_reserved_size=1))
    assert it.store.retention.run(it.clock.now).removed == FILES - 1
    assert deleting.wait(60)
    timer = threading.Timer(0.05, go_on.set)
    timer.start()
    it.store.close()
    timer.join()
    monkeypatch.undo()
    assert len(it.logs()) == FILES - 1
    it.open()
    first_number(it.store)
    it.trim_to(1)
    assert len(it.logs()) == 1


def test_a_recreated_topic_keeps_its_files(it: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pending deletions of the old topic have the names of the new topic's files."""
    monkeypatch.setattr(it.store.retention.remover, "retry", lambda: None)
    it.store.settings_changed(replace(it.config, file_reserved_size=1))
    it.store.retention.run(it.clock.now)
    assert it.store.delete_topic("T") == QUEUES
    for number in range(30):
        put(it.store, "T", 0, body(number))
    monkeypatch.undo()
    it.drain()
    assert [path.name for path in it.queue_files()] == [f"{0:020d}", f"{400:020d}"]
    assert len(it.logs()) <= 3
    assert bodies(it.store, "T", 0) == [body(number) for number in range(30)]


def deleted_directories(config: StoreConfig) -> list[str]:
    return sorted(path.name for path in config.store_path.iterdir() if "deleted" in path.name)


def test_a_topic_is_deleted_without_waiting_for_its_files(
    it: Trimmable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its directory is renamed at once, without waiting for a deletion of a log file."""
    deleting, go_on = threading.Event(), threading.Event()
    destroy, rmtree = MappedFile.destroy, shutil.rmtree

    def slow_destroy(file: MappedFile) -> None:
        if file.path.parent == it.config.commit_log_path:
            deleting.set()
            assert go_on.wait(60)
        destroy(file)

    def slow_rmtree(path: Path) -> None:
        assert threading.current_thread() is not threading.main_thread()
        rmtree(path)

    monkeypatch.setattr(MappedFile, "destroy", slow_destroy)
    monkeypatch.setattr(shutil, "rmtree", slow_rmtree)
    it.store.settings_changed(replace(it.config, file_reserved_size=1))
    it.store.retention.run(it.clock.now)
    assert deleting.wait(60)
    for round_ in range(2):
        assert it.store.delete_topic("T") == (1 if round_ else QUEUES)
        assert it.store.topics() == {"Old"}
        assert not (it.config.consume_queue_path / "T").exists()
        for number in range(30):
            put(it.store, "T", 0, body(number))
    assert deleted_directories(it.config) == ["consumequeue.deleted-0", "consumequeue.deleted-1"]
    directories = {path.parent for path in mapped_files(it.config.store_path) if "consumequeue" in str(path)}
    queues = it.config.consume_queue_path
    assert {queues / "T" / "0"} <= directories <= {queues / "T" / "0", queues / "Old" / "0"}, "deleted ones are let go"
    it.store.flush()
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    shutil.copytree(it.config.store_path, tmp_path / "killed")
    go_on.set()
    it.drain()
    assert deleted_directories(it.config) == []
    assert bodies(it.store, "T", 0) == [body(number) for number in range(30)]
    again = Trimmable(replace(it.config, store_path_root_dir=tmp_path / "killed"), it.clock, it.disk, it.store)
    again.open()
    assert bodies(again.store, "T", 0) == [body(number) for number in range(30)]
    again.drain()
    assert deleted_directories(again.config) == [], "what was left over is deleted at the next start"
    again.store.close()
    assert check_store(again.config.store_path, again.config) == []


@pytest.mark.parametrize("can_rename", [True, False])
def test_a_topic_is_deleted_where_queues_are_kept_elsewhere(
    it: Trimmable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_rename: bool
) -> None:
    """The directory is a link, or a separate file system, from which no file can be renamed."""
    it.store.close()
    elsewhere = tmp_path / "elsewhere" / "queues"
    elsewhere.parent.mkdir()
    it.config.consume_queue_path.rename(elsewhere)
    it.config.consume_queue_path.symlink_to(elsewhere)
    it.open()
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        if not can_rename:
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(path))
        assert target == elsewhere.with_name("queues.deleted-0")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    assert it.store.delete_topic("T") == QUEUES
    assert not (elsewhere / "T").exists()
    assert put(it.store, "T", 0, b"new").queue_offset == 0
    it.drain()
    assert [path.name for path in elsewhere.parent.iterdir()] == ["queues"]
    assert bodies(it.store, "T", 0) == [b"new"]


def test_a_failed_deletion_is_retried_and_others_wait(
    it: Trimmable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stubborn = f"{2 * SIZE:020d}"
    real = MappedFile.destroy

    def destroy(file: MappedFile) -> None:
        if file.path.name == stubborn:
            raise OSError(errno.EPERM, "Operation not permitted", str(file.path))
        real(file)

    monkeypatch.setattr(MappedFile, "destroy", destroy)
    with caplog.at_level(logging.WARNING):
        it.trim_to(1)
        it.run()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert len(it.logs()) == FILES - 2
    assert len(it.queue_files()) == 6
    monkeypatch.undo()
    it.run()
    assert len(it.logs()) == 1
    assert len(it.queue_files()) <= 2


def test_deleted_topics_are_forgotten_with_their_records(it: Trimmable) -> None:
    it.store.delete_topic("Old")
    put(it.store, "Young", 0, b"x")
    it.store.delete_topic("Young")
    for i in range(100):
        put(it.store, "T", 0, body(i))
    it.store.flush()
    names = DeletedTopics(it.config.store_path)
    names.load()
    assert set(names.offsets) == {"Old", "Young"}
    it.trim_to(1)
    it.run()
    names.load()
    assert names.offsets == {}


def test_a_recreated_topic_starts_at_0_without_old_records(it: Trimmable, tmp_path: Path) -> None:
    """The record of its deletion is lost; the ends of its queues must not be remembered either."""
    (it.config.store_path / "config" / "topics.json").write_text('{"topicConfigTable":{"T":{},"U":{}}}')
    it.store.delete_topic("T")
    for i in range(100):
        put(it.store, "U", 0, body(i))
    it.store.flush()
    it.trim_to(1)
    it.run()
    put(it.store, "T", 1, body(0))
    shutil.copytree(it.config.store_path, tmp_path / "killed")
    store = opened(replace(it.config, store_path_root_dir=tmp_path / "killed"), it.clock)
    assert [store.get_max_offset("T", queue_id) for queue_id in range(QUEUES)] == [0, 1, 0]
    assert bodies(store, "T", 1) == [body(0)]
    assert put(store, "T", 0, b"").queue_offset == 0
    store.close()


def test_a_store_without_an_index_is_trimmed(make_store: MakeStore) -> None:
    store = make_store(message_index_enable=False)
    for number in range(100):
        put(store, "T", 0, body(number))
    trim(store)
    assert store.min_physical_offset > 0
    kept = bodies(store, "T", 0)
    assert kept == [body(number) for number in range(100 - len(kept), 100)]
