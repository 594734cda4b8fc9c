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
    golden,
    log_records,
    opened,
    overwrite,
    put,
    put_batch,
    recovery_of,
    small,
    trimmed_by_hand,
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
    store.close()
    assert check_store(config.store_path, config) == []
    return found


ALL = [[b"%04d" % i * 200 for i in range(COUNT) if i % 3 == queue_id] for queue_id in range(3)]


def test_clean(filled: StoreConfig) -> None:
    store = opened(filled)
    report = recovery_of(store)
    assert report.clean
    assert report.start_offset == 7 * filled.mapped_file_size_commit_log
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


def test_killed_without_harm(filled: StoreConfig) -> None:
    killed(filled)
    store = opened(filled)
    assert not recovery_of(store).clean
    assert (recovery_of(store).fixed_entries, recovery_of(store).cut_reason) == (0, "")
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
    shutil.copytree(config.store_path, config.store_path.parent / "image")
    store.close()
    image = replace(config, store_path_root_dir=config.store_path.parent / "image")
    store = opened(image)
    # 29 records a file: number 147 (3 s before the flushed 150) is in the sixth, and one file more for safety.
    assert recovery_of(store).start_offset == 4 * config.mapped_file_size_commit_log
    assert store.get_max_offset("T", 0) == 200
    store.close()


@pytest.mark.parametrize("torn", [1, 8, 40, 88, 200, 800])
@pytest.mark.parametrize("how", ["zero", "garble"])
def test_a_torn_last_record_is_cut_exactly(config: StoreConfig, torn: int, how: str) -> None:
    """The last ``torn`` bytes of the last unflushed record are missing."""
    clock = Clock()
    store = opened(config, clock)
    for i in range(20):
        put(store, "T", i % 3, b"%04d" % i * 200, b"KEYS\x01k%d\x02TAGS\x01t" % i)
    store.flush()
    clock.now += 1
    last = put(store, "T", 1, b"torn" * 200, b"KEYS\x01torn\x02TAGS\x01t")
    image = replace(config, store_path_root_dir=config.store_path.parent / "image")
    shutil.copytree(config.store_path, image.store_path)
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
    store.close()
    assert check_store(image.store_path, image) == []
    if how == "zero":
        assert not any(log_file(image, 0).read_bytes()[last.physical_offset :])


def test_a_torn_record_of_the_last_flushed_millisecond_is_cut(config: StoreConfig) -> None:
    """It has the checkpoint's time, so it could be the flushed record, except for its missing bytes."""
    store = opened(config)
    put(store, "T", 1, b"flushed")
    store.flush()
    last = put(store, "T", 1, b"torn" * 200, b"KEYS\x01torn\x02TAGS\x01t")
    image = replace(config, store_path_root_dir=config.store_path.parent / "image")
    shutil.copytree(config.store_path, image.store_path)
    store.close()
    overwrite(log_file(image, 0), last.end_physical_offset - 8, bytes(8))
    store = opened(image)
    assert store.max_physical_offset == last.physical_offset
    assert bodies(store, "T", 1) == [b"flushed"]
    store.close()
    assert check_store(image.store_path, image) == []


def test_bytes_that_look_like_a_record_in_a_torn_body_do_not_keep_a_store_closed(config: StoreConfig) -> None:
    """A sender has put a record with the correct offset into a body, and the power fails."""
    clock = Clock()
    store = opened(config, clock)
    put(store, "T", 0, b"old")
    forged = bytearray(store.look_message_by_offset(0) or b"")
    clock.now += 5000
    last = put(store, "T", 0, b"flushed")
    store.flush()
    end = last.end_physical_offset
    forged[28:36] = (end + 88).to_bytes(8, "big")
    put(store, "T", 0, bytes(forged))
    image = replace(config, store_path_root_dir=config.store_path.parent / "image")
    shutil.copytree(config.store_path, image.store_path)
    store.close()
    overwrite(log_file(image, 0), end, bytes(88))
    store = opened(image)
    assert store.max_physical_offset == end
    assert b"old" in recovery_of(store).quarantined[0].read_bytes()
    assert bodies(store, "T", 0) == [b"old", b"flushed"]
    store.close()
    assert check_store(image.store_path, image) == []


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


def test_lost_files_of_the_log(filled: StoreConfig) -> None:
    last = log_file(filled, 9)
    kept = last.read_bytes()
    last.unlink()
    with pytest.raises(StoreCorruptError, match="has later entries"):
        opened(filled)
    last.write_bytes(kept)
    middle = log_file(filled, 5)
    kept = middle.read_bytes()
    middle.unlink()
    with pytest.raises(StoreCorruptError, match=r"does not follow"):
        opened(filled)
    middle.write_bytes(kept)
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
    store.close()
    assert check_store(filled.store_path, filled) == []


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


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EROFS, errno.ENOSPC])
@pytest.mark.parametrize("what", ["write_abort", "Recovery.run", "IndexService.load"])
def test_a_start_that_the_disk_refuses_leaves_a_clean_store_clean(
    filled: StoreConfig, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        (filled.store_path / "abort").touch()
        raise OSError(number, os.strerror(number), "x")

    monkeypatch.setattr(f"spark_rocket.store.message_store.{what}", refuse)
    with pytest.raises(StoreNotWritableError, match=os.strerror(number)) as error:
        opened(filled)
    words = {
        errno.EACCES: "write permission",
        errno.EIO: "Repair",
        errno.EROFS: "Mount",
        errno.ENOSPC: "space",
    }
    assert words[number] in error.value.remedy
    monkeypatch.undo()
    store = opened(filled)
    assert recovery_of(store).clean
    store.close()
    assert read_all(filled) == ALL


def test_a_checkpoint_without_disk_space_leaves_a_clean_store_clean(
    filled: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (filled.store_path / "checkpoint").unlink()
    monkeypatch.setattr("spark_rocket.store.message_store.StoreCheckpoint.save", refuse)
    with pytest.raises(StoreNotWritableError, match="No space left"):
        opened(filled)
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


def test_a_log_without_its_first_files_is_read_from_the_others(filled: StoreConfig) -> None:
    for _ in range(2):
        log_file(filled, 0).unlink()
    store = opened(filled)
    lowest = store.get_min_offset("T", 0)
    assert lowest > 0
    assert bodies(store, "T", 0) == ALL[0][lowest:]
    assert store.get_message("T", 0, 0, 32, 1 << 20).next_begin_offset == lowest
    store.close()
    assert [problem.kind for problem in check_store(filled.store_path, filled)] == ["begin"]
    shutil.rmtree(filled.consume_queue_path)
    shutil.rmtree(filled.index_path)
    trimmed_by_hand(filled)
    assert read_all(filled) == [every[-len(found) :] for every, found in zip(ALL, read_all(filled), strict=True)]


def test_no_log_but_queues(filled: StoreConfig) -> None:
    shutil.rmtree(filled.commit_log_path)
    with pytest.raises(StoreCorruptError, match="has no files, but"):
        opened(filled)


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/T/1", "index", "checkpoint", "lock"])
def test_derived_files_are_rebuilt(filled: StoreConfig, lost: str, abort: bool) -> None:
    path = filled.store_path / lost
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if abort:
        killed(filled)
    assert read_all(filled) == ALL
    if lost.startswith("consume"):
        assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("index", [0, 1, -1])
def test_a_lost_file_of_a_queue(filled: StoreConfig, index: int) -> None:
    """The first: rebuilt. One in the middle: refused by name. The last: rebuilt."""
    path = sorted((filled.consume_queue_path / "T" / "1").iterdir())[index]
    path.unlink()
    if index == 1:
        with pytest.raises(StoreCorruptError, match="does not follow"):
            opened(filled)
        killed(filled)
        shutil.rmtree(path.parent)
    assert read_all(filled) == ALL


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\x11"])
def test_garbage_in_a_queue(filled: StoreConfig, fill: bytes) -> None:
    """It is repaired in the scanned part, at a clean start as well."""
    path = sorted((filled.consume_queue_path / "T" / "2").iterdir())[-1]
    path.write_bytes(fill * len(path.read_bytes()))
    if fill != b"\0":
        killed(filled)
    assert read_all(filled) == ALL


def test_invalid_entries_are_an_error_and_not_a_gap(filled: StoreConfig) -> None:
    path = sorted((filled.consume_queue_path / "T" / "2").iterdir())[0]
    overwrite(path, 40, b"\x11" * 8)
    store = opened(filled)
    with pytest.raises(StoreCorruptError, match=r"0 at byte 40: entry 2 does not match"):
        store.get_message("T", 2, 2, 10, 1 << 20)
    assert store.get_message("T", 2, 0, 10, 1 << 20).next_begin_offset == 2
    store.close()
    assert {problem.kind for problem in check_store(filled.store_path, filled)} == {"entry"}


@pytest.mark.parametrize(
    "name", ["commitlog/{log}", "consumequeue/T/0/" + "0" * 20, "index/{index}", "checkpoint", "abort", "lock"]
)
@pytest.mark.parametrize("damage", ["cut", "empty", "longer"])
def test_files_of_a_wrong_size(filled: StoreConfig, name: str, damage: str) -> None:
    """Either the store opens with everything in it, or the error names the invalid file."""
    index = sorted(filled.index_path.iterdir())[0].name
    path = filled.store_path / name.format(log=log_file(filled, 3).name, index=index)
    raw = path.read_bytes() if path.exists() else b""
    path.write_bytes({"cut": raw[: len(raw) // 2], "empty": b"", "longer": raw + bytes(100)}[damage])
    try:
        store = opened(filled)
    except StoreCorruptError as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:
        assert str(path) in str(refusal)
        assert refusal.remedy
        return
    found = [bodies(store, "T", queue_id) for queue_id in range(3)]
    store.close()
    assert found == ALL


def test_wrong_sizes_in_the_settings_are_named(filled: StoreConfig) -> None:
    for setting in ("mapped_file_size_commit_log", "mapped_file_size_consume_queue", "max_index_num"):
        wrong = replace(filled, **{setting: getattr(filled, setting) * 2})
        with pytest.raises(StoreCorruptError, match=r"mappedFileSizeCommitLog|mappedFileSizeConsumeQueue|maxIndexNum"):
            opened(wrong)
    assert read_all(filled) == ALL


def test_foreign_files_are_named(filled: StoreConfig) -> None:
    for name in ("commitlog/notes", "consumequeue/notes", "consumequeue/T/notes", "consumequeue/T/0/notes"):
        path = filled.store_path / name
        path.touch()
        with pytest.raises(StoreCorruptError, match="notes"):
            opened(filled)
        path.unlink()
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
    store.close()
    assert check_store(config.store_path, config) == []
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
    store.close()
    assert check_store(config.store_path, config) == []
    shutil.rmtree(config.consume_queue_path)
    store = opened(config)
    assert store.topics() == {"T", "%RETRY%g"}
    store.close()
    assert is_deleted("Gone", frozenset({"T"}))
    assert not is_deleted("Gone", None)


def test_an_empty_prepared_file_is_not_the_end(config: StoreConfig) -> None:
    store = opened(config)
    put(store, "T", 0, b"x")
    image = replace(config, store_path_root_dir=config.store_path.parent / "image")
    shutil.copytree(config.store_path, image.store_path)
    end = store.max_physical_offset
    store.close()
    path = image.commit_log_path / f"{config.mapped_file_size_commit_log:020d}"
    path.write_bytes(bytes(config.mapped_file_size_commit_log))
    store = opened(image)
    assert store.max_physical_offset == end
    store.close()
    assert not path.exists()
    assert check_store(image.store_path, image) == []


def test_log_without_crc_check_is_still_walked(filled: StoreConfig) -> None:
    config = replace(filled, check_crc_on_recover=False)
    assert read_all(config) == ALL
    assert golden(Path("/x")).mapped_file_size_commit_log == 1 << 20
    assert len(log_records(filled.store_path, filled)) > 250_000
