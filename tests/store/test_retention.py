"""Retention: what goes when, what readers see of it, and what a crash in the middle of it leaves."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from spark_rocket.errors import StoreError
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.store import GetMessageStatus, MessageStore, PutStatus, StoreConfig, file_remover, retention
from spark_rocket.store.index.service import IndexService
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.queues.side_files import DeletedTopics
from spark_rocket.store.tools.check import check_store
from tests.store.helpers import BORN, START, Clock, bodies, golden, index_of, log_of, mapped_files, opened, put, small

HOUR = 3_600_000
COUNT = 330  # messages of 0.8 KiB, a second apart, 39 in a file of the log
QUEUES = 3
FILES = 10
SIZE = 32 << 10
GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass
class Disk:
    """A disk of 1000 log files, as full as it is told to be."""

    used: int = 0
    total: int = 1000 * SIZE
    queues: Disk | None = None
    """That of the consume queues, if they have one of their own."""

    @property
    def free(self) -> int:
        return self.total - self.used

    def at(self, percent: float) -> None:
        self.used = int(self.total * percent / 100)

    def __call__(self, path: Path) -> Disk:
        return self.queues if self.queues is not None and path.name == "consumequeue" else self


@dataclass
class Trimmable:
    """A store with a clock and a disk of its own."""

    config: StoreConfig
    clock: Clock
    disk: Disk
    store: MessageStore

    def open(self) -> MessageStore:
        self.store = opened(self.config, self.clock, disk_usage=self.disk)
        return self.store

    def run(self) -> retention.RetentionReport:
        """A run, and everything that it leaves for later."""
        report = self.store.retention.run(self.clock.now)
        while self.store.retention.trim_queues():
            pass
        self.drain()
        return report

    def drain(self) -> None:
        """Until all is deleted, or something cannot be."""
        self.store.retention.remover.finish()

    def trim_to(self, files: int) -> None:
        """Let all but so many files of the log go, by size."""
        self.store.retention.config = replace(
            self.config, file_reserved_size=1 + SIZE * (files - 1), delete_file_batch_max=1000
        )
        self.run()

    def logs(self) -> list[str]:
        return sorted(path.name for path in self.config.commit_log_path.iterdir())

    def queue_files(self, topic: str = "T", queue_id: int = 0) -> list[Path]:
        return sorted((self.config.consume_queue_path / topic / str(queue_id)).iterdir())


def body(number: int) -> bytes:
    return b"%04d" % number * 200


def number_of(raw: bytes) -> int:
    return int(raw[:4])


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


def at_hour(hour: int, after: int) -> int:
    """The first time after that, in milliseconds, that lies in an hour of this machine's day."""
    while time.localtime(after / 1000).tm_hour != hour:
        after += 60_000
    return after


def first_number(store: MessageStore) -> int:
    """Of the first message that is left: all before it are gone, all from it on can be read."""
    numbers = sorted(number_of(raw) for queue_id in range(QUEUES) for raw in bodies(store, "T", queue_id))
    assert numbers == list(range(numbers[0], COUNT))
    return numbers[0]


# --- what goes when ---------------------------------------------------------------------------------------------


def test_nothing_goes_outside_the_hours(it: Trimmable) -> None:
    report = it.run()
    assert (report.removed, report.reason, report.disk_used) == (0, "", 0.0)
    assert len(it.logs()) == FILES


def test_expired_files_go_in_the_hours(it: Trimmable) -> None:
    it.clock.now = at_hour(4, it.clock.now)
    report = it.run()
    assert report.removed == FILES - 1
    assert "deleteWhen 4" in report.reason
    assert it.logs() == [f"{SIZE * (FILES - 1):020d}"]
    assert it.store.min_physical_offset == SIZE * (FILES - 1)
    assert it.run().removed == 0  # the last file is being written


@pytest.mark.parametrize("hours", ["4;13", "13 ; 4", ";13;"])
def test_several_hours(it: Trimmable, hours: str) -> None:
    it.store.retention.config = replace(it.config, delete_when=hours)
    it.clock.now = at_hour(13, it.clock.now)
    assert it.run().removed == FILES - 1


def test_a_file_is_as_old_as_what_was_stored_after_it(it: Trimmable) -> None:
    for path in it.config.commit_log_path.iterdir():
        os.utime(path, (1, 1))  # what a restore from a copy may do
    third = it.store.look_message_by_offset(3 * SIZE)
    assert third is not None
    stored = decode_messages(third)[0].store_timestamp
    it.store.retention.delete_expired()
    it.clock.now = stored + HOUR - 1
    assert it.run().removed == 2
    it.clock.now = stored + HOUR
    assert it.run().removed == 1
    assert it.store.min_physical_offset == 3 * SIZE


def test_a_full_disk_needs_no_hour(it: Trimmable) -> None:
    it.disk.at(75)
    assert it.run().removed == 0
    it.disk.at(75.1)
    report = it.run()
    assert report.removed == FILES - 1
    assert report.reason == "older than fileReservedTime; disk 75% full"


def test_a_full_disk_takes_nothing_young(it: Trimmable) -> None:
    it.disk.at(80)
    it.clock.now = START + HOUR
    assert it.run().removed == 0


def test_by_request_twenty_runs_need_no_hour(it: Trimmable) -> None:
    it.store.retention.config = replace(it.config, delete_file_batch_max=1, file_reserved_time=1000)
    it.store.retention.delete_expired()
    for _ in range(19):
        assert it.run().removed == 0
    it.store.retention.config = replace(it.config, delete_file_batch_max=1)
    assert it.run().removed == 1
    assert it.run().removed == 0


def test_a_run_has_a_bound(it: Trimmable) -> None:
    it.store.retention.config = replace(it.config, delete_file_batch_max=4)
    it.clock.now = at_hour(4, it.clock.now)
    assert [it.run().removed for _ in range(4)] == [4, 4, 1, 0]


def test_by_force_as_many_as_bring_the_disk_back(it: Trimmable, caplog: pytest.LogCaptureFixture) -> None:
    it.clock.now = START + 1000 * COUNT  # nothing has expired
    it.disk.at(85)
    assert it.run().removed == 0
    it.disk.used += 2 * SIZE + 1
    report = it.run()
    assert report.removed == 3
    assert "diskSpaceCleanForciblyRatio" in report.reason
    (told,) = [record for record in caplog.records if " deleted" in record.getMessage()]
    assert told.levelno == logging.WARNING
    assert "3 files of" in told.getMessage()
    assert "are deleted, with messages younger than fileReservedTime: disk 85% full" in told.getMessage()


def test_by_force_what_has_expired_is_no_reason_to_warn(it: Trimmable, caplog: pytest.LogCaptureFixture) -> None:
    it.store.retention.config = replace(it.config, delete_file_batch_max=1)
    it.disk.at(85)
    it.disk.used += SIZE
    with caplog.at_level(logging.INFO):
        assert it.run().removed == 1
    (told,) = [record for record in caplog.records if " deleted" in record.getMessage()]
    assert told.levelno == logging.INFO
    assert "1 file of" in told.getMessage()
    assert " on is deleted: " in told.getMessage()


def test_what_is_still_to_be_deleted_counts_as_free(it: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    it.clock.now = START + 1000 * COUNT
    it.disk.at(85)
    it.disk.used += 3 * SIZE
    monkeypatch.setattr(it.store.retention.remover, "retry", lambda: None)
    assert it.store.retention.run(it.clock.now).removed == 3
    assert it.store.retention.remover.pending_bytes >= 3 * SIZE
    assert it.store.retention.run(it.clock.now).removed == 0
    monkeypatch.undo()
    it.disk.at(85)
    assert it.run().removed == 0
    assert len(it.logs()) == FILES - 3


def test_no_force_where_it_is_not_wanted(it: Trimmable) -> None:
    it.store.retention.config = replace(it.config, clean_file_forcibly_enable=False)
    it.clock.now = START + 1000 * COUNT
    it.disk.at(99)
    assert it.run().removed == 0


def test_by_size(it: Trimmable) -> None:
    end = it.store.max_physical_offset
    it.store.retention.config = replace(it.config, file_reserved_size=end - 4 * SIZE)
    report = it.run()
    assert (report.removed, report.reason) == (4, "beyond fileReservedSize")
    it.store.retention.config = replace(it.config, file_reserved_size=end - 5 * SIZE + 1)
    assert it.run().removed == 0
    it.store.retention.config = replace(it.config, file_reserved_size=1)
    assert it.run().removed == 5
    assert it.run().removed == 0


def test_what_is_not_on_disk_stays(it: Trimmable) -> None:
    for i in range(100):
        put(it.store, "T", 0, body(i))
    assert len(it.logs()) > FILES + 1
    it.store.retention.config = replace(it.config, file_reserved_size=1)
    assert it.run().removed == FILES - 1
    it.store.flush()
    assert it.run().removed > 0
    assert it.store.min_physical_offset == it.store.max_physical_offset // SIZE * SIZE


def test_a_file_that_follows_and_cannot_be_read_keeps_what_is_before(
    it: Trimmable, caplog: pytest.LogCaptureFixture
) -> None:
    it.clock.now = at_hour(4, it.clock.now)
    second, path = (it.config.commit_log_path / f"{number * SIZE:020d}" for number in (1, 2))
    second.rename(it.config.store_path / "hidden")
    with caplog.at_level(logging.WARNING):
        assert it.run().removed == 0
    assert f"{second} cannot be read ([Errno 2]" in caplog.messages[-1]
    caplog.clear()
    (it.config.store_path / "hidden").rename(second)
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.write(b"\xff" * 100)
    with caplog.at_level(logging.WARNING):
        assert it.run().removed == 1
        assert it.run().removed == 0
    assert [text.split(",")[0] for text in caplog.messages] == [f"{path} does not begin with a record"]
    path.write_bytes(whole)
    assert it.run().removed == FILES - 2


# --- the disk's warning level -----------------------------------------------------------------------------------


def test_writes_are_refused_while_the_disk_is_too_full(it: Trimmable, caplog: pytest.LogCaptureFixture) -> None:
    it.clock.now = START + 1000 * COUNT
    it.store.retention.config = replace(it.config, clean_file_forcibly_enable=False)
    it.disk.at(90)
    it.run()
    put(it.store, "T", 0, body(COUNT))
    it.disk.at(90.5)
    with caplog.at_level(logging.INFO):
        it.run()
        it.run()
        refused = it.store.put_message("T", 0, b"late", b"", born_timestamp=1, born_host=BORN)
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "the broker's disk is full [CL:  0.91 CQ:  0.91 INDEX:  0.91], messages are put to" in refused.reason
        assert "90 % of diskSpaceWarningLevelRatio" in refused.reason
        assert len(bodies(it.store, "T", 0)) == COUNT // 3 + 1
        it.disk.at(89)
        it.run()
        put(it.store, "T", 0, b"in time")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "no messages are taken" in told[0]
    assert "messages are taken again" in told[1]


def test_another_refusal_stays(it: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    put(it.store, "Old", 0, b"unflushed")
    it.disk.at(95)
    it.run()
    monkeypatch.setattr(MappedFile, "flush", fail)
    with pytest.raises(OSError, match="Input/output error"):
        it.store.flush()
    monkeypatch.undo()
    it.disk.at(10)
    it.run()
    refused = it.store.put_message("T", 0, b"late", b"", born_timestamp=1, born_host=BORN)
    assert "Input/output error" in refused.reason
    with pytest.raises(StoreError, match="could not be flushed"):
        it.store.close()
    it.open()


def test_both_disks_count(it: Trimmable) -> None:
    it.disk.queues = Disk()
    it.disk.queues.at(95)
    assert it.run().disk_used == 0.95
    assert it.store.write_error is not None
    assert "[CL:  0.00 CQ:  0.95 INDEX:  0.95]" in it.store.write_error.message


def test_the_log_is_not_deleted_by_force_for_the_sake_of_another_disk(it: Trimmable) -> None:
    """Of a message's bytes the consume queue has twenty: the whole log would go, and the disk stay as full."""
    it.disk.queues = Disk()
    it.disk.queues.at(89)
    it.store.retention.config = replace(it.config, file_reserved_time=1000)
    assert it.run().removed == 0
    it.disk.at(89)
    assert it.run().removed > 0


# --- what readers see -------------------------------------------------------------------------------------------


def test_readers_see_the_new_beginning_at_once(it: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    store = it.store
    reader = store.get_message("T", 1, 10, 32, 1 << 20)
    first = store.look_message_by_offset(5 * SIZE)
    assert first is not None
    begin = decode_messages(first)[0].store_timestamp
    monkeypatch.setattr(store.retention.remover, "retry", lambda: None)  # nothing is deleted yet
    monkeypatch.setattr(retention, "_SLICE", 0)  # and no queue trimmed
    store.retention.config = replace(it.config, file_reserved_size=store.max_physical_offset - 5 * SIZE)
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
    middle = reader.next_begin_offset  # of somebody who is just reading
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


def test_a_view_of_a_file_outlives_it(it: Trimmable) -> None:
    file = log_of(it.store).queue.files[0]
    view = memoryview(file.mm)
    before = bytes(view[:SIZE])
    it.trim_to(1)
    assert not file.path.exists()
    assert view[:SIZE] == before
    view.release()


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


# --- what follows the log ---------------------------------------------------------------------------------------


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


def test_a_slice_ends_when_it_takes_long(it: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_SLICE_SECONDS", 0)
    it.store.retention.config = replace(it.config, file_reserved_size=1)
    it.store.retention.run(it.clock.now)
    slices = 1
    while it.store.retention.trim_queues():
        slices += 1
    assert slices == QUEUES + 1, "at least one queue in each"
    it.drain()
    assert len(it.queue_files()) == 1


def test_many_queues_are_trimmed_in_slices(it: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_SLICE", 2)
    monkeypatch.setattr(retention, "_SLICE_SECONDS", 1000)
    it.store.retention.config = replace(it.config, file_reserved_size=1)
    assert it.store.retention.run(it.clock.now).unfinished
    assert it.store.retention.trim_queues()  # four queues
    assert not it.store.retention.trim_queues()
    assert not it.store.retention.run(it.clock.now).unfinished
    it.store.retention.trim_again()
    assert it.store.retention.trim_queues()


def test_a_queue_that_cannot_be_read_does_not_keep_the_others(it: Trimmable, caplog: pytest.LogCaptureFixture) -> None:
    hidden = it.config.store_path / "hidden"
    directory = it.config.consume_queue_path / "T" / "0"
    directory.rename(hidden)
    with caplog.at_level(logging.ERROR):
        it.trim_to(1)
    assert [text.split(":")[0] for text in caplog.messages] == ["queue 0 of topic T is not trimmed"]
    assert len(it.queue_files("T", 1)) < 6
    hidden.rename(directory)
    it.store.retention.trim_again()
    it.run()
    assert len(it.queue_files("T", 0)) < 6


def test_what_was_left_over_is_deleted_after_the_next_start(it: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(it.store.retention.remover, "retry", lambda: None)
    it.store.retention.config = replace(it.config, file_reserved_size=1)
    it.store.retention.run(it.clock.now)
    it.store.close()
    monkeypatch.undo()
    assert len(it.logs()) == FILES
    it.open()
    assert first_number(it.store) == 0
    it.trim_to(1)
    assert len(it.logs()) == 1
    assert all(len(it.queue_files("T", queue_id)) <= 2 for queue_id in range(QUEUES))


def test_a_stop_deletes_what_was_taken_out(it: Trimmable) -> None:
    it.config = replace(it.config, delete_commit_log_files_interval=60_000)
    it.store.retention.config = replace(it.config, file_reserved_size=1)
    assert it.store.retention.run(it.clock.now).removed == FILES - 1
    it.store.close()
    assert len(it.logs()) == 1
    it.open()


def test_a_stop_does_not_wait_long_for_deletions(it: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_remover, "_PATIENCE", 0.0)
    deleting, go_on = threading.Event(), threading.Event()
    real = MappedFile.destroy

    def destroy(file: MappedFile) -> None:
        deleting.set()
        assert go_on.wait(60)
        real(file)

    monkeypatch.setattr(MappedFile, "destroy", destroy)
    it.store.retention.config = replace(it.config, file_reserved_size=1)
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


def test_a_topic_made_anew_keeps_its_files(it: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was still to be deleted of the old one has the names of the new one's files."""
    monkeypatch.setattr(it.store.retention.remover, "retry", lambda: None)
    it.store.retention.config = replace(it.config, file_reserved_size=1)
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
    """Only its directory's name goes at once; and nobody waits for a file of the log that is being deleted just now."""
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
    it.store.retention.config = replace(it.config, file_reserved_size=1)
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
    again = Trimmable(replace(it.config, store_path=tmp_path / "killed"), it.clock, it.disk, it.store)
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
    """The directory is a link, or a file system of its own, out of which nothing can be renamed."""
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


def test_a_file_that_cannot_be_deleted_is_tried_again_and_others_wait(
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


def test_a_topic_made_anew_counts_from_the_beginning_though_no_record_of_the_old_one_is_left(
    it: Trimmable, tmp_path: Path
) -> None:
    """Nothing says any more that it was deleted; where its queues ended must not be remembered either."""
    (it.config.store_path / "config" / "topics.json").write_text('{"topicConfigTable":{"T":{},"U":{}}}')
    it.store.delete_topic("T")
    for i in range(100):
        put(it.store, "U", 0, body(i))
    it.store.flush()
    it.trim_to(1)
    it.run()
    put(it.store, "T", 1, body(0))
    shutil.copytree(it.config.store_path, tmp_path / "killed")
    store = opened(replace(it.config, store_path=tmp_path / "killed"), it.clock)
    assert [store.get_max_offset("T", queue_id) for queue_id in range(QUEUES)] == [0, 1, 0]
    assert bodies(store, "T", 1) == [body(0)]
    assert put(store, "T", 0, b"").queue_offset == 0
    store.close()


# --- restarts and crashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["clean", "killed", "no checkpoint"])
@pytest.mark.parametrize("files", [1, 2, 6])
def test_a_trimmed_store_opens_again(it: Trimmable, how: str, files: int) -> None:
    it.trim_to(files)
    left = first_number(it.store)
    for attempt in range(2):
        it.store.close()
        if how != "clean":
            (it.config.store_path / "abort").touch()
        if how == "no checkpoint":
            (it.config.store_path / "checkpoint").unlink()
        it.open()
        assert first_number(it.store) == left
        assert (it.store.get_min_offset("Old", 0), it.store.get_max_offset("Old", 0)) == (1, 1), attempt
        assert it.store.min_physical_offset == (FILES - files) * SIZE
    assert put(it.store, "Old", 0, b"next").queue_offset == 1
    assert bodies(it.store, "Old", 0) == [b"next"]


def test_lost_queues_of_a_trimmed_store_begin_where_the_log_does(it: Trimmable) -> None:
    it.trim_to(2)
    left = first_number(it.store)
    it.store.close()
    shutil.rmtree(it.config.consume_queue_path)
    it.open()
    assert first_number(it.store) == left
    assert [it.store.get_max_offset("T", queue_id) for queue_id in range(QUEUES)] == [COUNT // 3] * QUEUES
    it.store.close()
    (it.config.store_path / "abort").touch()
    shutil.rmtree(it.config.consume_queue_path / "T" / "1")
    it.open()
    assert first_number(it.store) == left


def test_a_crash_at_any_point(it: Trimmable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of the directory before and after each deletion: all of them recover, and lose nothing more."""
    images: list[Path] = []
    real = MappedFile.destroy

    def copy() -> None:
        images.append(tmp_path / f"image-{len(images)}")
        shutil.copytree(it.config.store_path, images[-1])

    def destroy(file: MappedFile) -> None:
        real(file)
        copy()

    monkeypatch.setattr(MappedFile, "destroy", destroy)
    put(it.store, "T", 0, body(COUNT))
    it.store.flush()
    copy()
    it.trim_to(3)
    it.store.retention.config = replace(it.config, file_reserved_size=1)
    it.run()
    monkeypatch.undo()
    assert len(images) > 2 * FILES
    before = -1
    for image in images:
        config = replace(it.config, store_path=image)
        store = opened(config, it.clock, disk_usage=it.disk)
        numbers = sorted(number_of(raw) for queue_id in range(QUEUES) for raw in bodies(store, "T", queue_id))
        assert numbers == list(range(numbers[0], COUNT + 1))
        assert numbers[0] >= before
        before = numbers[0]
        assert [store.get_max_offset("T", queue_id) for queue_id in range(QUEUES)] == [111, 110, 110]
        assert store.get_max_offset("Old", 0) == 1
        subject = Trimmable(config, it.clock, it.disk, store)
        subject.trim_to(1)
        assert len(subject.logs()) == 1
        store.close()
        assert check_store(image, config) == []
        shutil.rmtree(image)


# --- Apache's stores --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_a_store_of_apaches_is_trimmed(tmp_path: Path, name: str) -> None:
    with tarfile.open(GOLDEN / f"store-4.9.8-{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    path = next(tmp_path.glob("**/commitlog")).parent
    config = replace(golden(path), file_reserved_size=1)
    store = opened(config, disk_usage=Disk())
    ends = {
        (topic, queue_id): store.get_max_offset(topic, queue_id)
        for topic in store.topics()
        for queue_id in store.queues(topic)
    }
    subject = Trimmable(config, Clock(), Disk(), store)
    assert subject.run().removed >= 1
    begin = store.min_physical_offset
    assert begin > 0
    store.close()
    assert [problem for problem in check_store(path, config) if problem.kind != "index.behind"] == []
    store = opened(config, disk_usage=Disk())
    assert store.min_physical_offset == begin
    for (topic, queue_id), end in ends.items():
        assert store.get_max_offset(topic, queue_id) == end
        assert len(bodies(store, topic, queue_id)) == end - store.get_min_offset(topic, queue_id)
    store.close()
