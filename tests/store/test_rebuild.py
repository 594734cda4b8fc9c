"""Rebuild of consume queues and index from the log: a broker's bytes, and old or new files after a crash."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.errors import StoreCorruptError, StoreError, StoreLockedError
from spark_rocket.protocol.record.record import iter_records, view_record
from spark_rocket.store import MessageStore, StoreConfig
from spark_rocket.store.index.index_file import IndexFile
from spark_rocket.store.tools import rebuild
from spark_rocket.store.tools.check import check_store
from spark_rocket.store.tools.rebuild import Hole, put_in_place, rebuild_store
from tests.golden import extract_store
from tests.kit.clock import Clock
from tests.store.helpers import (
    bodies,
    close_right,
    failing,
    golden,
    opened,
    overwrite,
    put,
    put_batch,
    small,
    trimmed_by_hand,
)

Files = dict[str, bytes]


def queues(directory: Path) -> Files:
    """Files with entries. Others, for example with only prepared records, do not matter."""
    files = {str(path.relative_to(directory)): path.read_bytes() for path in directory.glob("consumequeue/*/*/*")}
    return {name: raw for name, raw in files.items() if any(raw)}


def index(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(directory.glob("index/*"))]


def everything(directory: Path) -> Files:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def others(directory: Path) -> Files:
    """All files but those that are rebuilt."""
    return {name: raw for name, raw in everything(directory).items() if not name.startswith(("consumequeue", "index"))}


def kinds(config: StoreConfig) -> list[str]:
    return sorted({problem.kind for problem in check_store(config.store_path, config)})


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few files of everything, with a topic that was deleted and one that was deleted and recreated."""
    config = small(tmp_path_factory.mktemp("template") / "store")
    clock = Clock()
    store = opened(config, clock)
    for i in range(120):
        clock.now += 100
        put(store, "T", i % 2, b"%d-" % i * 200, b"KEYS\x01k%d\x02UNIQ_KEY\x01u%d\x02TAGS\x01t%d" % (i, i, i % 3))
        if i % 10 == 0:
            put(store, "U", 0, b"u%d" % i)
        if i == 60:
            put(store, "Gone", 0, b"x" * 500)
            put(store, "Recreated", 0, b"old", b"KEYS\x01a")
            put(store, "Recreated", 0, b"older")
            store.delete_topic("Gone")
            store.delete_topic("Recreated")
    put(store, "Recreated", 0, b"new")
    put(store, "Half", 0, b"prepared", sys_flag=0x4)
    put(store, "Last", 0, b"one")
    put_batch(store, "B", 0, [(0, b"x", b"KEYS\x01b")] * 30)
    store.close()
    return config.store_path


# --- the same bytes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean", "killed"])
@pytest.mark.parametrize("state", ["there", "lost", "garbled"])
def test_a_real_brokers_files_are_rebuilt_identically(name: Any, state: str, tmp_path: Path) -> None:
    directory = extract_store(name, tmp_path)
    before, keys, rest = queues(directory), index(directory), others(directory)
    if state == "lost":
        shutil.rmtree(directory / "consumequeue")
        shutil.rmtree(directory / "index")
    elif state == "garbled":
        for path in (*directory.glob("consumequeue/*/*/*"), *directory.glob("index/*")):
            path.write_bytes(bytes(reversed(path.read_bytes())))
    config = golden(directory)
    untouched = everything(directory)
    dry = rebuild_store(directory, config, dry_run=True)
    assert everything(directory) == untouched
    report = rebuild_store(directory, config)
    assert report == dry
    assert (queues(directory), index(directory), others(directory)) == (before, keys, rest)
    assert report.entries == report.records == (1239 if name == "clean" else 1299)
    assert not (directory / "rebuild.tmp").exists()
    assert kinds(config) == ([] if name == "clean" else ["abort"])


def test_our_files_are_rebuilt_identically(config: StoreConfig) -> None:
    before, keys = queues(config.store_path), index(config.store_path)
    report = rebuild_store(config.store_path, config)
    assert queues(config.store_path) == before
    assert index(config.store_path) == keys
    assert (report.queues, report.kept, report.holes, report.damage) == (6, 0, [], [])
    assert kinds(config) == []
    store = opened(config)
    assert bodies(store, "Recreated", 0) == [b"new"]
    assert put(store, "T", 0, b"more").queue_offset == 60
    store.close()
    assert kinds(config) == []


def test_a_log_trimmed_at_its_beginning(config: StoreConfig) -> None:
    """A queue keeps its offsets. One without messages is not changed, because it would start at 0 again."""
    store = opened(config)
    first = view_record(store.get_message("Last", 0, 0, 1, 1 << 20).records).physical_offset
    while store.max_physical_offset < first + (64 << 10):
        put(store, "T", 0, b"z" * 1000)
    end = {key: store.get_max_offset(*key) for key in (("T", 0), ("T", 1), ("U", 0), ("Last", 0), ("B", 0))}
    store.close()
    for path in sorted(config.commit_log_path.iterdir()):
        if int(path.name) <= first:
            path.unlink()
    trimmed_by_hand(config)
    shutil.rmtree(config.index_path)
    opened(config).close()
    assert kinds(config) == []
    report = rebuild_store(config.store_path, config)
    assert report.kept >= 3
    assert kinds(config) == []
    store = opened(config)
    assert {key: store.get_max_offset(*key) for key in end} == end
    assert store.get_min_offset("Last", 0) == 1
    assert put(store, "Last", 0, b"next").queue_offset == 1
    assert bodies(store, "T", 0)[-1] == b"z" * 1000
    close_right(store)


def test_topics_off_the_list_stay_deleted(config: StoreConfig) -> None:
    """By the rule of recovery: without a directory, and not in topics.json."""
    (config.store_path / "config" / "topics.json").write_text('{"topicConfigTable": {"T": {}}}')
    shutil.rmtree(config.consume_queue_path / "B")
    rebuild_store(config.store_path, config)
    assert sorted(path.name for path in config.consume_queue_path.iterdir()) == ["Last", "Recreated", "T", "U"]
    assert kinds(config) == []


def test_without_an_index(config: StoreConfig) -> None:
    shutil.rmtree(config.index_path)
    report = rebuild_store(config.store_path, replace(config, message_index_enable=False))
    assert report.keys == 0
    assert not config.index_path.exists()


# --- damage -----------------------------------------------------------------------------------------------------


def records(config: StoreConfig, topic: str, queue_id: int) -> list[tuple[int, int]]:
    """Offset and size of each record of a queue."""
    path = config.consume_queue_path / topic / str(queue_id)
    raw = b"".join(file.read_bytes() for file in sorted(path.iterdir()))
    entries = [raw[at : at + 20] for at in range(0, len(raw), 20)]
    return [(int.from_bytes(e[:8], "big"), int.from_bytes(e[8:12], "big")) for e in entries if any(e)]


def damage(config: StoreConfig, offset: int, at: int = 88) -> Path:
    path = config.commit_log_path / f"{offset >> 15 << 15:020d}"
    place = offset % (32 << 10) + at
    overwrite(path, place, bytes([path.read_bytes()[place] ^ 0xFF]))
    return path


def numbered(config: StoreConfig, count: int) -> list[bytes]:
    """Fill a store with messages in three queues; return their bodies."""
    store = opened(config)
    sent = [b"%d-" % i * 150 for i in range(count)]
    for i, body in enumerate(sent):
        put(store, "T", i % 3, body)
    store.close()
    return sent


def served(store: MessageStore, queue_id: int) -> dict[int, bytes]:
    """Offset to body, as a consumer reads a queue."""
    found: dict[int, bytes] = {}
    offset = store.get_min_offset("T", queue_id)
    while offset < store.get_max_offset("T", queue_id):
        result = store.get_message("T", queue_id, offset, 5, 1 << 20)
        found |= {record.queue_offset: bytes(record.body) for record in iter_records(result.records)}
        offset = result.next_begin_offset
    return found


@pytest.mark.parametrize("state", ["there", "lost"])
def test_damage_is_refused_or_skipped_and_shifts_nothing(config: StoreConfig, state: str) -> None:
    victim, size = records(config, "T", 1)[7]
    before = queues(config.store_path)
    path = damage(config, victim)
    if state == "lost":
        shutil.rmtree(config.consume_queue_path)
    untouched = everything(config.store_path)
    for dry_run in (True, False):
        with pytest.raises(StoreCorruptError) as error:
            rebuild_store(config.store_path, config, dry_run=dry_run)
        assert f"{path} at byte {victim % (32 << 10)} (offset {victim}), {size} bytes" in error.value.message
        assert f"intact records follow at offset {victim + size}" in error.value.message
        assert "--skip-damage" in error.value.remedy
    assert everything(config.store_path) == untouched
    report = rebuild_store(config.store_path, config, skip_damage=True)
    assert report.holes == [Hole("T", 1, 7, 7)]
    assert [(one.offset, one.length) for one in report.damage] == [(victim, size)]
    after = queues(config.store_path)
    if state == "there":
        assert after == before  # the old entry for the lost record was kept, tags code and all
    else:
        name = "consumequeue/T/1/00000000000000000000"
        assert {path: raw for path, raw in after.items() if path != name} == {
            p: r for p, r in before.items() if p != name
        }
        assert after[name][:152] == before[name][:152]  # up to the tags code, which cannot be restored
        assert after[name][160:] == before[name][160:]
    assert kinds(config) == ["hidden", "offsets", "record"]


@pytest.mark.parametrize("state", ["there", "lost"])
@pytest.mark.parametrize("how", ["missing", "short", "short and missing"])
def test_files_of_the_log_that_are_missing_or_short_are_filled_up(tmp_path: Path, how: str, state: str) -> None:
    """A broker then starts and serves all intact messages at their offsets."""
    config = small(tmp_path / "store")
    sent = numbered(config, 800)
    files = sorted(config.commit_log_path.iterdir())
    begin = int(files[2].name) + (0 if how == "missing" else 9_999)
    end = int(files[4 if how == "short and missing" else 3].name)
    if how != "missing":
        os.truncate(files[2], 9_999)
    for file in {"missing": files[2:3], "short and missing": files[3:4]}.get(how, []):
        file.unlink()
    whole = {
        queue: {
            number: sent[number * 3 + queue]
            for number, (at, size) in enumerate(records(config, "T", queue))
            if at + size <= begin or at >= end
        }
        for queue in range(3)
    }
    if state == "lost":
        shutil.rmtree(config.consume_queue_path)
    before = everything(config.store_path)
    with pytest.raises(StoreCorruptError, match=r"bytes, but|are missing") as error:
        rebuild_store(config.store_path, config)
    assert "--skip-damage" in error.value.remedy
    dry = rebuild_store(config.store_path, config, skip_damage=True, dry_run=True)
    assert everything(config.store_path) == before
    assert rebuild_store(config.store_path, config, skip_damage=True) == dry
    assert dry.holes
    assert dry.filled == {"missing": files[2:3], "short": files[2:3]}.get(how, files[2:4])
    assert {path.stat().st_size for path in config.commit_log_path.iterdir()} == {32 << 10}
    made = queues(config.store_path)
    with pytest.raises(StoreCorruptError, match="intact records follow at offset"):
        rebuild_store(config.store_path, config)
    assert rebuild_store(config.store_path, config, skip_damage=True).holes == dry.holes
    assert queues(config.store_path) == made
    store = opened(config)
    assert {queue: served(store, queue) for queue in range(3)} == whole
    assert put(store, "T", 0, b"next").queue_offset == 267
    store.close()
    assert kinds(config) == ["hidden", "offsets", "record"]


def test_lost_first_and_last_messages_keep_their_numbers(config: StoreConfig) -> None:
    first = records(config, "U", 0)[0][0]
    last, only = records(config, "T", 1)[-1][0], records(config, "Last", 0)[0][0]
    for offset in (first, last, only):
        damage(config, offset)
    before = queues(config.store_path)
    report = rebuild_store(config.store_path, config, skip_damage=True)
    assert report.holes == [Hole("U", 0, 0, 0), Hole("Last", 0, 0, 0), Hole("T", 1, 59, 59)]
    assert report.kept == 1
    assert queues(config.store_path) == before


def test_an_invalid_number_is_refused_even_then(config: StoreConfig) -> None:
    """The CRC covers only the body, so a queue offset can have any value."""
    at = records(config, "T", 0)[9][0]
    damage(config, records(config, "U", 0)[0][0])
    damage(config, at, 22)
    before = everything(config.store_path)
    with pytest.raises(StoreCorruptError, match=r"T, queue 0: messages 9 to .* are lost: the log has no room"):
        rebuild_store(config.store_path, config, skip_damage=True)
    assert everything(config.store_path) == before


def test_a_torn_tail_is_damage_only_after_a_clean_stop(config: StoreConfig) -> None:
    last = records(config, "B", 0)[-1][0]
    damage(config, last, 88)
    with pytest.raises(StoreCorruptError, match="it is at the end, and the store was stopped cleanly"):
        rebuild_store(config.store_path, config)
    (config.store_path / "abort").touch()
    assert rebuild_store(config.store_path, config).holes == []
    store = opened(config)
    assert store.get_max_offset("B", 0) == 29
    store.close()
    assert kinds(config) == []


def test_a_log_that_ends_before_its_checkpoint(config: StoreConfig) -> None:
    path = sorted(config.commit_log_path.iterdir())[-1]
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(StoreCorruptError, match="ends with a message of"):
        rebuild_store(config.store_path, config)
    assert rebuild_store(config.store_path, config, skip_damage=True).lower_checkpoint_to > 0
    assert "checkpoint" not in kinds(config)


# --- what is refused --------------------------------------------------------------------------------------------


def test_a_store_in_use(config: StoreConfig) -> None:
    store = opened(config)
    for dry_run in (True, False):
        with pytest.raises(StoreLockedError):
            rebuild_store(config.store_path, config, dry_run=dry_run)
    store.close()


def test_unknown_sizes_are_not_guessed(config: StoreConfig) -> None:
    with pytest.raises(StoreError, match="sizes of the files") as error:
        rebuild_store(config.store_path)
    assert "-c broker.conf" in error.value.remedy
    shutil.rmtree(config.index_path)
    with pytest.raises(StoreError, match="sizes of the files"):
        rebuild_store(config.store_path)


def test_directories_without_a_store_and_with_another_kind(config: StoreConfig, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a directory"):
        rebuild_store(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="has no files"):
        rebuild_store(tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []
    (config.store_path / "consumequeue_ext" / "T").mkdir(parents=True)
    with pytest.raises(StoreError, match="consumequeue_ext, which this package cannot rebuild"):
        rebuild_store(config.store_path, config)
    shutil.rmtree(config.store_path / "consumequeue_ext")
    first = sorted(config.commit_log_path.iterdir())[0]
    first.write_bytes(first.read_bytes() + b"1")
    with pytest.raises(StoreCorruptError, match=f"{first}: it has 32769 bytes"):
        rebuild_store(config.store_path, config, skip_damage=True)


# --- a crash, a full disk ---------------------------------------------------------------------------------------


def test_a_full_disk_keeps_the_old_entries(config: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(config.store_path)
    monkeypatch.setattr(IndexFile, "put", failing())
    with pytest.raises(StoreError, match="No space left") as error:
        rebuild_store(config.store_path, config)
    assert "free some space" in error.value.remedy
    assert everything(config.store_path) == before


def test_a_directory_without_write_permission(config: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    opens = os.open

    def refuse(path: Path | str, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opens(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match=r"store/lock cannot be written: Read-only file system\.") as error:
        rebuild_store(config.store_path, config)
    assert "Rebuild a copy of the store" in error.value.remedy


def test_a_crash_between_the_two_leaves_a_valid_old_and_new_file(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, keys = queues(config.store_path), index(config.store_path)
    for path in config.store_path.glob("consumequeue/*/*/*"):
        path.write_bytes(bytes(reversed(path.read_bytes())))

    class Crash(BaseException):
        pass

    def crashing(new: Path, old: Path) -> None:
        if old.name == "index":
            raise Crash
        put_in_place(new, old)

    monkeypatch.setattr(rebuild, "put_in_place", crashing)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # nor did it tidy up
    with pytest.raises(Crash):
        rebuild_store(config.store_path, config)
    monkeypatch.undo()
    assert queues(config.store_path) == before
    assert index(config.store_path) == keys
    notes: list[str] = []
    assert check_store(config.store_path, config, notes=notes) == []
    assert any("rebuild.tmp" in note for note in notes)
    rebuild_store(config.store_path, config)
    assert not (config.store_path / "rebuild.tmp").exists()


def test_directories_change_places_where_the_system_cannot_do_it_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp" / "new").mkdir(parents=True)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "was").touch()
    (tmp_path / "tmp" / "new" / "is").touch()
    monkeypatch.setattr(rebuild, "_libc", object())
    put_in_place(tmp_path / "tmp" / "new", tmp_path / "old")
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["is"]
    assert (tmp_path / "tmp" / "old.old" / "was").exists()
