"""Retention: when files are deleted, and writes that are refused while the disk is too full."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import replace

import pytest

from spark_rocket.errors import StoreError
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.store import PutStatus
from spark_rocket.store.log.mapped_file import MappedFile
from tests.kit.clock import START
from tests.store.helpers import BORN, bodies, put
from tests.store.retention_rig import COUNT, FILES, SIZE, Disk, Trimmable, at_hour, body

HOUR = 3_600_000


# --- what goes when --------------------------------------------------------------------------------------------------


def test_nothing_is_deleted_outside_the_hours(it: Trimmable) -> None:
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


def test_a_full_disk_deletes_no_young_files(it: Trimmable) -> None:
    it.disk.at(80)
    it.clock.now = START + HOUR
    assert it.run().removed == 0


def test_a_request_deletes_at_any_hour_for_twenty_runs(it: Trimmable) -> None:
    it.store.retention.config = replace(it.config, delete_file_batch_max=1, file_reserved_time=1000)
    it.store.retention.delete_expired()
    for _ in range(19):
        assert it.run().removed == 0
    it.store.retention.config = replace(it.config, delete_file_batch_max=1)
    assert it.run().removed == 1
    assert it.run().removed == 0


def test_a_run_is_bounded(it: Trimmable) -> None:
    it.store.retention.config = replace(it.config, delete_file_batch_max=4)
    it.clock.now = at_hour(4, it.clock.now)
    assert [it.run().removed for _ in range(4)] == [4, 4, 1, 0]


def test_forced_deletion_brings_the_disk_below_the_level(it: Trimmable, caplog: pytest.LogCaptureFixture) -> None:
    it.clock.now = START + 1000 * COUNT  # nothing has expired
    it.disk.at(85)
    assert it.run().removed == 0
    it.disk.used += 2 * SIZE + 1
    report = it.run()
    assert report.removed == 3
    assert "diskSpaceCleanForciblyRatio" in report.reason
    (told,) = [record for record in caplog.records if "deleting " in record.getMessage()]
    assert told.levelno == logging.WARNING
    assert "3 files of" in told.getMessage()
    assert " on, with messages younger than fileReservedTime: disk 85% full" in told.getMessage()


def test_forced_deletion_of_expired_files_does_not_warn(it: Trimmable, caplog: pytest.LogCaptureFixture) -> None:
    it.store.retention.config = replace(it.config, delete_file_batch_max=1)
    it.disk.at(85)
    it.disk.used += SIZE
    with caplog.at_level(logging.INFO):
        assert it.run().removed == 1
    (told,) = [record for record in caplog.records if "deleting " in record.getMessage()]
    assert told.levelno == logging.INFO
    assert "1 file of" in told.getMessage()
    assert " on: " in told.getMessage()


def test_files_pending_deletion_count_as_free(it: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_no_forced_deletion_if_it_is_disabled(it: Trimmable) -> None:
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


def test_unflushed_files_are_not_deleted(it: Trimmable) -> None:
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
    assert [text.rsplit(": the age", 1)[0] for text in caplog.messages] == [f"{path} does not begin with a record"]
    path.write_bytes(whole)
    assert it.run().removed == FILES - 2


# --- the disk's warning level ----------------------------------------------------------------------------------------


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
    assert "rejecting messages until" in told[0]
    assert "accepting messages again" in told[1]


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
    with pytest.raises(StoreError, match=r"The flush of the store in .* failed"):
        it.store.close()
    it.open()


def test_both_disks_count(it: Trimmable) -> None:
    it.disk.queues = Disk()
    it.disk.queues.at(95)
    assert it.run().disk_used == 0.95
    assert it.store.write_error is not None
    assert "[CL:  0.00 CQ:  0.95 INDEX:  0.95]" in it.store.write_error.message


def test_the_log_is_not_deleted_by_force_for_the_sake_of_another_disk(it: Trimmable) -> None:
    """A consume queue has 20 bytes of a message: deleting the entire log would not free its disk."""
    it.disk.queues = Disk()
    it.disk.queues.at(89)
    it.store.retention.config = replace(it.config, file_reserved_time=1000)
    assert it.run().removed == 0
    it.disk.at(89)
    assert it.run().removed > 0
