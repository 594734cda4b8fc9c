"""Recovery: cut tails, repaired files, and stores that are refused by name."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from spark_rocket.errors import StoreCorruptError, StoreNotWritableError
from spark_rocket.store import StoreConfig
from spark_rocket.store.queues.side_files import DeletedTopics
from spark_rocket.store.recovery import recovery
from spark_rocket.store.recovery.recovery import is_deleted
from spark_rocket.store.tools.check import check_store
from tests.kit.clock import START, Clock
from tests.store.helpers import (
    bodies,
    close_right,
    image_of,
    opened,
    overwrite,
    put,
    put_batch,
    recovery_of,
    small,
)

COUNT = 330


@pytest.fixture
def config(tmp_path: Path) -> StoreConfig:
    return small(tmp_path / "store")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store of ten log files, with messages in three queues, 10 ms apart."""
    config, clock = small(tmp_path_factory.mktemp("template") / "store"), Clock()
    store = opened(config, clock)
    for i in range(COUNT):
        clock.now += 10
        put(store, "T", i % 3, b"%04d" % i * 200, b"KEYS\x01k%d\x02TAGS\x01t" % i)
    store.close()
    assert len(list(config.commit_log_path.iterdir())) == 10
    return config.store_path


@pytest.fixture
def filled(config: StoreConfig, template: Path) -> StoreConfig:
    shutil.copytree(template, config.store_path)
    return config


def log_file(config: StoreConfig, index: int) -> Path:
    return sorted(config.commit_log_path.iterdir())[index]


def killed(config: StoreConfig) -> None:
    (config.store_path / "abort").touch()


def read_all(config: StoreConfig) -> list[list[bytes]]:
    store = opened(config)
    found = [bodies(store, "T", queue_id) for queue_id in range(3)]
    close_right(store)
    return found


ALL = [[b"%04d" % i * 200 for i in range(COUNT) if i % 3 == queue_id] for queue_id in range(3)]


@pytest.mark.parametrize("abort", [False, True])
def test_a_start_without_harm(filled: StoreConfig, abort: bool) -> None:
    if abort:
        killed(filled)
    store = opened(filled)
    report = recovery_of(store)
    assert report.clean is not abort
    assert report.start_offset == 7 * filled.mapped_file_size_commit_log or abort
    assert (report.fixed_entries, report.cut_reason) == (0, "")
    assert report.last_store_timestamp == START + 10 * COUNT
    store.close()
    assert read_all(filled) == ALL


@pytest.mark.parametrize("lost", ["", "T/1", "T"])
def test_a_clean_start_scans_a_bounded_end(filled: StoreConfig, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_CLEAN_BYTES", 5000)
    if lost:
        shutil.rmtree(filled.consume_queue_path / lost)
    store = opened(filled)
    scanned = store.max_physical_offset - recovery_of(store).start_offset
    assert scanned == store.max_physical_offset if lost else 3000 < scanned < 6000
    store.close()
    assert read_all(filled) == ALL


def test_a_start_after_a_kill_begins_at_the_checkpoint(config: StoreConfig) -> None:
    clock = Clock()
    store = opened(config, clock)
    for i in range(200):
        clock.now += 1000
        put(store, "T", 0, b"x" * 1000)
        if i == 150:
            store.flush()
    image = image_of(config)
    store.close()
    store = opened(image)
    # 29 records a file: number 147 (3 s before the flushed 150) is in the sixth, and one file more for safety.
    assert recovery_of(store).start_offset == 4 * config.mapped_file_size_commit_log
    assert store.get_max_offset("T", 0) == 200
    store.close()


@pytest.mark.parametrize("later", [0, 1], ids=["same millisecond as the flushed ones", "later"])
@pytest.mark.parametrize("torn", [1, 8, 40, 88, 200, 800])
@pytest.mark.parametrize("how", ["zero", "garble"])
def test_a_torn_last_record_is_cut_exactly(config: StoreConfig, torn: int, how: str, later: int) -> None:
    """The last ``torn`` bytes of the last unflushed record are missing."""
    clock = Clock()
    store = opened(config, clock)
    for i in range(20):
        put(store, "T", i % 3, b"%04d" % i * 200, b"KEYS\x01k%d\x02TAGS\x01t" % i)
    store.flush()
    clock.now += later
    last = put(store, "T", 1, b"torn" * 200, b"KEYS\x01torn\x02TAGS\x01t")
    image = image_of(config)
    store.close()
    data = bytes(torn) if how == "zero" else b"\xff" * torn
    overwrite(log_file(image, 0), last.end_physical_offset - torn, data)

    store = opened(image)
    if how == "garble" and torn < 20:  # changed properties alone cannot be detected
        assert store.max_physical_offset in (last.physical_offset, last.end_physical_offset)
    else:
        assert store.max_physical_offset == last.physical_offset
        assert recovery_of(store).cut_reason
        assert bodies(store, "T", 1) == [b"%04d" % i * 200 for i in range(20) if i % 3 == 1]
    close_right(store)
    if how == "zero":
        assert not any(log_file(image, 0).read_bytes()[last.physical_offset :])


def test_bytes_that_look_like_a_record_in_a_torn_body_do_not_keep_a_store_closed(config: StoreConfig) -> None:
    """A sender has put a record with the correct offset into a body, and the power fails."""
    clock = Clock()
    store = opened(config, clock)
    put(store, "T", 0, b"old")
    forged = bytearray(store.look_message_by_offset(0) or b"")
    clock.now += 5000
    end = put(store, "T", 0, b"flushed").end_physical_offset
    store.flush()
    forged[28:36] = (end + 88).to_bytes(8, "big")
    put(store, "T", 0, bytes(forged))
    image = image_of(config)
    store.close()
    overwrite(log_file(image, 0), end, bytes(88))
    store = opened(image)
    assert store.max_physical_offset == end
    assert b"old" in recovery_of(store).quarantined[0].read_bytes()
    assert bodies(store, "T", 0) == [b"old", b"flushed"]
    close_right(store)


def test_a_bad_record_in_the_middle_is_never_hidden(filled: StoreConfig) -> None:
    """After a clean stop and after a kill: the record had been flushed."""
    before = log_file(filled, 8).read_bytes()
    overwrite(log_file(filled, 8), 5000, b"\xff")
    place = rf"{log_file(filled, 8).name} at byte 4\d\d\d "
    for _ in range(2):  # and the second attempt is no less careful
        with pytest.raises(StoreCorruptError, match=place):
            opened(filled)
    assert not (filled.store_path / "abort").exists()
    killed(filled)
    with pytest.raises(StoreCorruptError, match=place):
        opened(filled)
    assert [problem.kind for problem in check_store(filled.store_path, filled)][:2] == ["abort", "record"]
    log_file(filled, 8).write_bytes(before)
    assert read_all(filled) == ALL


def test_a_refused_store_opens_without_its_checkpoint_and_keeps_what_was_cut(
    filled: StoreConfig, caplog: pytest.LogCaptureFixture
) -> None:
    overwrite(log_file(filled, 8), 5000, b"\xff")
    with pytest.raises(StoreCorruptError) as error:
        opened(filled)
    assert str(filled.store_path / "checkpoint") in error.value.remedy
    (filled.store_path / "checkpoint").unlink()
    store = opened(filled)
    assert "possibly flushed (there is no checkpoint)" in caplog.text
    assert "never flushed" not in caplog.text
    assert recovery_of(store).quarantined
    assert store.max_physical_offset < 8 * filled.mapped_file_size_commit_log + 5000
    store.close()
    kept = b"".join(path.read_bytes() for path in recovery_of(store).quarantined)
    assert b"0329" * 200 in kept
    found = read_all(filled)
    assert [queue == every[: len(queue)] for queue, every in zip(found, ALL, strict=True)] == [True] * 3


def test_the_end_of_the_log_zeroed_after_a_clean_stop_is_refused(filled: StoreConfig) -> None:
    path = log_file(filled, 9)
    end = path.read_bytes().rstrip(b"\0")
    overwrite(path, len(end) - 1500, bytes(1500))
    with pytest.raises(StoreCorruptError, match="has later entries"):
        opened(filled)
    killed(filled)
    with pytest.raises(StoreCorruptError, match="later records were flushed according to the checkpoint"):
        opened(filled)


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        pytest.param(9, 10, "has later entries", id="the last"),
        pytest.param(5, 6, "does not follow", id="one in the middle"),
        pytest.param(0, 10, "has no files, but", id="all"),
    ],
)
def test_lost_files_of_the_log(filled: StoreConfig, first: int, last: int, message: str) -> None:
    kept = {path: path.read_bytes() for path in sorted(filled.commit_log_path.iterdir())[first:last]}
    for path in kept:
        path.unlink()
    with pytest.raises(StoreCorruptError, match=message):
        opened(filled)
    for path, data in kept.items():
        path.write_bytes(data)
    assert read_all(filled) == ALL


def test_messages_cut_without_a_checkpoint_are_reported(filled: StoreConfig, caplog: pytest.LogCaptureFixture) -> None:
    """The last file of the log is lost, and then the checkpoint deleted: queues end earlier."""
    log_file(filled, 9).unlink()
    (filled.store_path / "checkpoint").unlink()
    store = opened(filled)
    ends = [store.get_max_offset("T", queue_id) for queue_id in range(3)]
    lost = COUNT - sum(ends)
    assert lost > 3
    assert f"lacks {lost} messages of 3 consume queues" in caplog.text
    assert f"it ended at {COUNT // 3}, and now at {min(ends)}" in caplog.text
    close_right(store)


@pytest.mark.parametrize("at", [0, 8, 16])
@pytest.mark.parametrize("garbled", [2_000_000_000_000, -5])
@pytest.mark.parametrize("abort", [False, True])
def test_an_invalid_time_in_the_checkpoint_is_corrected_and_logged(
    filled: StoreConfig, caplog: pytest.LogCaptureFixture, at: int, garbled: int, abort: bool
) -> None:
    path = filled.store_path / "checkpoint"
    overwrite(path, at, garbled.to_bytes(8, "big", signed=True))
    if abort:
        killed(filled)
        if at == 0 and garbled > 0:  # the log may have lost its end
            with pytest.raises(StoreCorruptError, match="later records were flushed according to the checkpoint"):
                opened(filled)
            return
    store = opened(filled)
    name = {0: "physic", 8: "logics", 16: "index"}[at]
    assert f"{name}MsgTimestamp {garbled}; last message of the log: {START + 10 * COUNT}" in caplog.text
    assert int.from_bytes(path.read_bytes()[at : at + 8], "big", signed=True) == 0
    assert store.query_message("T", "k7", 1, 0, 1 << 62).records
    store.close()
    assert read_all(filled) == ALL


REFUSALS = {errno.EACCES: "write permission", errno.EIO: "Repair", errno.EROFS: "Mount", errno.ENOSPC: "space"}
REFUSALS |= {errno.EMFILE: "ulimit -n", errno.ENFILE: "fs.file-max", errno.ENOMEM: "max_map_count"}


@pytest.mark.parametrize(
    ("what", "number"),
    [*(("write_abort", number) for number in REFUSALS)]
    + [(what, errno.ENOSPC) for what in ("Recovery.run", "IndexService.load", "StoreCheckpoint.save")],
)
def test_a_start_that_the_disk_refuses_leaves_a_clean_store_clean(
    filled: StoreConfig, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        (filled.store_path / "abort").touch()
        raise OSError(number, os.strerror(number), "x")

    if what == "StoreCheckpoint.save":  # which is written at a start only if it is missing
        (filled.store_path / "checkpoint").unlink()
    monkeypatch.setattr(f"spark_rocket.store.message_store.{what}", refuse)
    with pytest.raises(StoreNotWritableError, match=os.strerror(number)) as error:
        opened(filled)
    assert REFUSALS[number] in error.value.remedy
    monkeypatch.undo()
    assert not (filled.store_path / "abort").exists()
    assert read_all(filled) == ALL


def test_an_unreadable_list_of_deleted_topics(filled: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(path: Path) -> dict[str, int]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(DeletedTopics, "_read", staticmethod(forbid))
    with pytest.raises(StoreCorruptError, match=r"deletedTopic\.json cannot be read: Permission denied") as error:
        opened(filled)
    assert "read permission" in error.value.remedy
    assert "Delete" not in error.value.remedy


@pytest.mark.parametrize(
    ("pattern", "which", "fill", "abort"),
    [
        pytest.param("consumequeue/T/1/*", slice(1), None, False, id="the first file of a queue"),
        pytest.param("consumequeue/T/1/*", slice(-1, None), None, False, id="the last file of a queue"),
        pytest.param("consumequeue/T/2/*", slice(-1, None), b"\0", False, id="zeros in a queue"),
        pytest.param("consumequeue/T/2/*", slice(-1, None), b"\xff", True, id="garbage in a queue"),
        pytest.param("index/*", slice(1), None, False, id="the first file of the index"),
        pytest.param("checkpoint", slice(1), b"", False, id="an empty checkpoint"),
    ],
)
def test_derived_files_that_are_lost_or_damaged_are_rebuilt(
    filled: StoreConfig, pattern: str, which: slice, fill: bytes | None, abort: bool
) -> None:
    for path in sorted(filled.store_path.glob(pattern))[which]:
        if fill is None:
            path.unlink()
        else:
            path.write_bytes(fill * path.stat().st_size)
    if abort:
        killed(filled)
    assert read_all(filled) == ALL


def test_wrong_sizes_in_the_settings_are_named(filled: StoreConfig) -> None:
    for setting in ("mapped_file_size_commit_log", "mapped_file_size_consume_queue", "max_index_num"):
        wrong = replace(filled, **{setting: getattr(filled, setting) * 2})
        with pytest.raises(StoreCorruptError, match=r"mappedFileSizeCommitLog|mappedFileSizeConsumeQueue|maxIndexNum"):
            opened(wrong)
    assert read_all(filled) == ALL


@pytest.mark.parametrize("abort", [False, True])
def test_a_deleted_topic_stays_deleted(config: StoreConfig, abort: bool) -> None:
    store = opened(config)
    for queue_id in range(3):
        put_batch(store, "T", queue_id, [(0, b"old", b"KEYS\x01k")] * 10)
    store.delete_topic("T")
    put(store, "T", 1, b"new")
    store.close()
    if abort:
        killed(config)
    store = opened(config)
    assert store.queues("T") == [1]
    assert bodies(store, "T", 1) == [b"new"]
    assert put(store, "T", 2, b"newer").queue_offset == 0
    close_right(store)
    (config.store_path / "config" / "deletedTopic.json").write_text("{")
    store = opened(config)
    assert store.queues("T") == [1, 2]
    store.close()
    (config.store_path / "config" / "deletedTopic.json.bak").write_bytes(b"\xff")
    with pytest.raises(StoreCorruptError, match=r"deletedTopic\.json"):
        opened(config)


def test_a_topic_deleted_by_another_broker_stays_deleted(config: StoreConfig) -> None:
    (config.store_path / "config").mkdir(parents=True)
    (config.store_path / "config" / "topics.json").write_text('{"topicConfigTable": {"T": {}}}')
    store = opened(config)
    for topic in ("T", "Gone", "%RETRY%g"):
        put_batch(store, topic, 0, [(0, b"x", b"KEYS\x01k")] * 10)
    store.close()
    shutil.rmtree(config.consume_queue_path / "Gone")
    store = opened(config)
    assert store.topics() == {"T", "%RETRY%g"}
    close_right(store)
    shutil.rmtree(config.consume_queue_path)
    store = opened(config)
    assert store.topics() == {"T", "%RETRY%g"}
    store.close()
    assert is_deleted("Gone", frozenset({"T"}))
    assert not is_deleted("Gone", None)


def test_an_empty_prepared_file_is_not_the_end(config: StoreConfig) -> None:
    store = opened(config)
    put(store, "T", 0, b"x")
    image, end = image_of(config), store.max_physical_offset
    store.close()
    path = image.commit_log_path / f"{config.mapped_file_size_commit_log:020d}"
    path.write_bytes(bytes(config.mapped_file_size_commit_log))
    store = opened(image)
    assert store.max_physical_offset == end
    close_right(store)
    assert not path.exists()


def test_log_without_crc_check_is_still_walked(filled: StoreConfig) -> None:
    assert read_all(replace(filled, check_crc_on_recover=False)) == ALL
