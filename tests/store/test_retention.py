"""Retention: when files are deleted, and writes that are refused while the disk is too full."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from spark_rocket.errors import StoreError, StoreNotWritableError
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.store import PutStatus
from spark_rocket.store.log.mapped_file import MappedFile
from tests.client.test_interrupts_everywhere import at_line
from tests.kit.clock import START
from tests.store.helpers import BORN, bodies, failing, put
from tests.store.retention_rig import COUNT, FILES, SIZE, Disk, Trimmable, at_hour, body

HOUR = 3_600_000


# --- what goes when --------------------------------------------------------------------------------------------------


def of_size(size: int) -> dict[str, object]:
    return {"file_reserved_size": size}


BY_FORCE = "clean_file_forcibly_enable"


@pytest.mark.parametrize(
    ("hour", "percent", "is_young", "settings", "removed", "reason"),
    [
        pytest.param(12, 0, False, {}, 0, "", id="outside the hours"),
        pytest.param(4, 0, False, {}, FILES - 1, "older than fileReservedTime; deleteWhen 4", id="in the hour"),
        *(
            pytest.param(13, 0, False, {"delete_when": hours}, FILES - 1, "older than fileReservedTime", id=hours)
            for hours in ("4;13", "13 ; 4", ";13;")
        ),
        pytest.param(12, 75, False, {}, 0, "", id="a disk not too full"),
        pytest.param(12, 75.1, False, {}, FILES - 1, "older than fileReservedTime; disk 75% full", id="a full disk"),
        pytest.param(12, 80, True, {}, 0, "", id="a full disk and young files"),
        pytest.param(12, 85, True, {}, 0, "", id="below the level of force"),
        pytest.param(12, 99, True, {BY_FORCE: False}, 0, "", id="without force"),
        pytest.param(4, 0, False, {"delete_file_batch_max": 4}, 4, "older than fileReservedTime", id="a bounded run"),
        pytest.param(12, 0, False, of_size(1), FILES - 1, "beyond fileReservedSize", id="by size, all"),
        pytest.param(12, 0, False, of_size(6 * SIZE), 3, "beyond fileReservedSize", id="by size"),
    ],
)
def test_what_goes_when(
    it: Trimmable,
    hour: int,
    percent: float,
    is_young: bool,
    settings: dict[str, Any],
    removed: int,
    reason: str,
) -> None:
    it.store.settings_changed(replace(it.config, **settings))
    it.clock.now = START + 1000 * COUNT if is_young else at_hour(hour, it.clock.now)
    it.disk.at(percent)
    report = it.run()
    assert (report.removed, report.disk_used) == (removed, pytest.approx(percent / 100, abs=1e-4))
    assert report.reason.startswith(reason)
    assert it.logs()[0] == f"{SIZE * removed:020d}"
    assert it.store.min_physical_offset == SIZE * removed


def test_size_counts_to_the_byte(it: Trimmable) -> None:
    end = it.store.max_physical_offset
    for reserved, removed in ((end - 4 * SIZE, 4), (end - 5 * SIZE + 1, 0), (end - 5 * SIZE, 1)):
        it.store.settings_changed(replace(it.config, file_reserved_size=reserved))
        assert it.run().removed == removed


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


def test_a_request_deletes_at_any_hour_for_twenty_runs(it: Trimmable) -> None:
    it.store.settings_changed(replace(it.config, delete_file_batch_max=1, file_reserved_time=1000))
    it.store.retention.delete_expired()
    for _ in range(19):
        assert it.run().removed == 0
    it.store.settings_changed(replace(it.config, delete_file_batch_max=1))
    assert it.run().removed == 1
    assert it.run().removed == 0


def test_forced_deletion_brings_the_disk_below_the_level(it: Trimmable, caplog: pytest.LogCaptureFixture) -> None:
    it.clock.now = START + 1000 * COUNT  # nothing has expired
    it.disk.at(85)
    it.disk.used += 2 * SIZE + 1
    report = it.run()
    assert report.removed == 3
    assert "diskSpaceCleanForciblyRatio" in report.reason
    (told,) = [record for record in caplog.records if "deleting " in record.getMessage()]
    assert told.levelno == logging.WARNING
    assert "3 files of" in told.getMessage()
    assert " on, with messages younger than fileReservedTime: disk 85% full" in told.getMessage()


def test_forced_deletion_of_expired_files_does_not_warn(it: Trimmable, caplog: pytest.LogCaptureFixture) -> None:
    it.store.settings_changed(replace(it.config, delete_file_batch_max=1))
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


def test_unflushed_files_are_not_deleted(it: Trimmable) -> None:
    for i in range(100):
        put(it.store, "T", 0, body(i))
    assert len(it.logs()) > FILES + 1
    it.store.settings_changed(replace(it.config, file_reserved_size=1))
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
    it.store.settings_changed(replace(it.config, clean_file_forcibly_enable=False))
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
    put(it.store, "Old", 0, b"unflushed")
    it.disk.at(95)
    it.run()
    monkeypatch.setattr(MappedFile, "flush", failing(errno.EIO))
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


@pytest.mark.parametrize("full", [None, StoreNotWritableError("full", remedy="")])
def test_a_failed_disk_stays_refused(it: Trimmable, full: StoreNotWritableError | None) -> None:
    """Whenever the flush thread finds it while another thread changes the refusal of retention: before each line."""
    store = it.store
    for at in range(1, 100):
        store._disk_failure = store._disk_refusal = None
        store._appender.refuse(None)
        change, fails = partial(store._refuse_writes, full), partial(store._disk_failed, OSError("broken"))
        reached, _ = at_line(at, fails, change, ("store/message_store.py",))
        if not reached:
            break
        assert store.write_error is not None, at
        assert "broken" in store.write_error.message, at
    assert at > 3


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
    it.store.settings_changed(replace(it.config, file_reserved_time=1000))
    assert it.run().removed == 0
    it.disk.at(89)
    assert it.run().removed > 0
