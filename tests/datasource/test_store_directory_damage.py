"""``storePath`` without Spark: stores of killed brokers, and damaged and truncated files."""

from __future__ import annotations

import logging
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.read.store_directory import read_span_task
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
from spark_rocket.errors import (
    DataLossError,
    StoreError,
)
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.read_only import open_read_only
from spark_rocket.store.tools.check import check_store
from spark_rocket.store.tools.dump import dump_log
from spark_rocket.store.tools.rebuild import rebuild_store
from spark_rocket.store.tools.salvage import Damage
from tests.datasource.store_directories import (
    bodies,
    garble,
    log_files,
    places,
    plan,
    positions,
    read,
    records_of,
    touch,
)
from tests.kit.clock import Clock
from tests.store.helpers import opened, put, put_batch, small


@pytest.fixture
def full(directory: Path) -> Path:
    """One file of a log with 50 messages, stopped cleanly."""
    store = opened(small(directory))
    for number in range(50):
        put(store, "Orders", 0, b"%d" % number * 100)
    store.close()
    assert len(log_files(directory)) == 1
    return directory


NUMBERS = [b"%d" % number * 100 for number in range(50)]


def test_a_torn_tail_is_left_out(full: Path) -> None:
    (full / "abort").touch()
    (log,) = log_files(full)
    last = positions(full)[-1]
    whole = log.read_bytes()
    for cut in (4, 8, 40, 150):
        log.write_bytes(whole)
        garble(log, last + cut, bytes(len(whole) - last - cut))
        assert bodies(full) == NUMBERS[:49]
        assert bodies(full, minPartitions=7) == NUMBERS[:49]
    log.write_bytes(whole)
    garble(log, last + 100)
    assert bodies(full) == NUMBERS[:49]


@pytest.mark.parametrize("partitions", [1, 7])
@pytest.mark.parametrize("broken", [0, 1, 25, 48])
@pytest.mark.parametrize("how", ["body", "size", "zeros", "place"])
def test_damage_before_whole_records(
    full: Path, partitions: int, broken: int, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    (log,) = log_files(full)
    start = positions(full)[broken]
    at, data = {
        "body": (start + 90, b"\xee" * 8),
        "size": (start, b"\x00\x00\x00\x0b"),
        "zeros": (start, bytes(80)),
        "place": (start + 28, b"\xee" * 8),
    }[how]
    garble(log, at, data)
    with pytest.raises(DataLossError, match=rf"{log.name} at byte {start} \(offset {start}\)") as caught:
        bodies(full, minPartitions=partitions)
    assert "failOnDataLoss=false" in caught.value.remedy
    with caplog.at_level(logging.WARNING):
        found = bodies(full, minPartitions=partitions, failOnDataLoss="false")
    assert found == NUMBERS[:broken] + NUMBERS[broken + 1 :]
    assert len([text for text in caplog.messages if str(start) in text]) == 1


class Killed:
    """Copy the store with a part of the first long batch, as after a kill during its write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, after: int) -> None:
        self.path = directory.with_name("killed")
        real = CommitLog.advance

        def advance(log: CommitLog, size: int) -> None:
            if not self.path.exists():
                start, end = log.position, log.position + size
                records = bytes(log.mm[start:end])
                kept = records[4 : 4 + after]
                log.mm[start:end] = bytes(4) + kept + bytes(size - 4 - len(kept))
                shutil.copytree(directory, self.path)
                log.mm[start:end] = records
            real(log, size)

        monkeypatch.setattr(CommitLog, "advance", advance)


@pytest.mark.parametrize("after", [1, 100, 4096, 15_001, 1 << 30])
@pytest.mark.parametrize("before", ["nothing", "flushed", "unflushed", "no checkpoint", "file full"])
def test_a_kill_while_a_long_batch_is_written(
    directory: Path, before: str, after: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Complete records after a zero size were never acknowledged, and no broker serves them."""
    clock = Clock()
    store = opened(config := small(directory), clock)
    count = {"nothing": 0, "file full": 70}.get(before, 20)
    promised = [b"%d" % number * 100 for number in range(count)]
    for body in promised[: count // 2]:
        put(store, "Orders", 0, body)
    if before in ("flushed", "file full"):
        store.flush()
    clock.now += 10_000
    for body in promised[count // 2 :]:
        put(store, "Orders", 0, body)
    if before == "flushed":
        store.flush()
    with monkeypatch.context() as context:
        killed = Killed(context, directory, after).path
        put_batch(store, "Orders", 0, [(0, b"%d" % number * 100, b"") for number in range(80)])
    store.close()
    if before == "no checkpoint":
        (killed / "checkpoint").unlink()
    config = replace(config, store_path_root_dir=killed)
    with caplog.at_level(logging.WARNING):
        for partitions in (1, 9):
            assert bodies(killed, minPartitions=partitions) == promised
    assert ("the broker's next start cuts them off" in caplog.text) == (after >= 4096)
    assert [problem.kind for problem in check_store(killed, config)] in (["abort"], ["abort", "checkpoint"])
    with open_read_only(killed, config) as view:
        found = list(dump_log(view))
        assert [bytes(record.body) for record in found if not isinstance(record, Damage)] == promised
        assert len([record for record in found if isinstance(record, Damage)]) == 1
    again = opened(config)
    assert again.get_max_offset("Orders", 0) == count
    again.close()
    assert check_store(killed, config) == []
    assert bodies(killed) == promised


@pytest.mark.parametrize("place", [0, 12, 30, 95])
@pytest.mark.parametrize("width", [4, 80])
@pytest.mark.parametrize("lost", ["nothing", "consumequeue"])
def test_zeros_in_flushed_data_are_damage(directory: Path, place: int, width: int, lost: str) -> None:
    store = opened(small(directory), clock := Clock())
    for number in range(100):
        clock.now += 1000
        put(store, "Orders", 0, b"%03d" % number * 100)
    store.flush()
    killed = directory.with_name("killed")
    shutil.copytree(directory, killed)
    store.close()
    shutil.rmtree(killed / lost, ignore_errors=True)
    for file in log_files(killed):
        for at, size in records_of(file.read_bytes()):
            if file.read_bytes()[at + 88 : at + 91] == b"%03d" % place:
                garble(file, at, bytes(min(width, size)))
                found = (file.name, at)
    with pytest.raises(DataLossError, match=f"{found[0]} at byte {found[1]} "):
        bodies(killed)
    rows = bodies(killed, failOnDataLoss="false")
    assert rows == [b"%03d" % number * 100 for number in range(100) if number != place]


def test_messages_that_only_the_consume_queue_has(full: Path) -> None:
    (log,) = log_files(full)
    starts = positions(full)
    garble(log, starts[-3], bytes((32 << 10) - starts[-3]))
    with pytest.raises(DataLossError, match="the log ends, but consume queues have entries"):
        bodies(full)
    assert bodies(full, failOnDataLoss="false") == NUMBERS[:-3]
    (full / "abort").touch()
    assert bodies(full) == NUMBERS[:-3]


@pytest.mark.parametrize("index", [0, 1, 2])
def test_missing_and_short_files(directory: Path, index: int) -> None:
    store = opened(small(directory))
    for number in range(200):
        put(store, "Orders", 0, b"%d" % number * 250)
    store.close()
    whole = bodies(directory)
    files = log_files(directory)
    assert len(files) > 3
    raw = files[index].read_bytes()
    os.truncate(files[index], 20_000)
    with pytest.raises(DataLossError, match="missing or too short"):
        bodies(directory)
    found = bodies(directory, failOnDataLoss="false")
    assert 0 < len(found) < len(whole)
    assert set(found) < set(whole)
    files[index].write_bytes(raw)
    assert bodies(directory) == whole
    files[index + 1].unlink()
    with pytest.raises(DataLossError, match="missing or too short"):
        bodies(directory)
    assert set(bodies(directory, failOnDataLoss="false")) < set(whole)


def test_the_last_file_or_all_files_missing(directory: Path) -> None:
    store = opened(small(directory))
    for number in range(200):
        put(store, "Orders", 0, b"%d" % number * 250)
    store.close()
    files = log_files(directory)
    files[-1].unlink()
    with pytest.raises(DataLossError, match="the log ends, but consume queues have entries"):
        bodies(directory)
    for file in files[:-1]:
        file.unlink()
    with pytest.raises(DataLossError, match="has no records, but consume queues have"):
        bodies(directory)
    assert bodies(directory, failOnDataLoss="false") == []


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 messages in several files, stopped cleanly; every damage changes the bodies."""
    directory = tmp_path_factory.mktemp("image") / "store"
    store = opened(small(directory))
    chance = random.Random(1)
    for number in range(200):
        put(store, "Orders", number % 3, b"%03d" % number + chance.randbytes(chance.randint(200, 900)))
    store.close()
    return directory


@pytest.mark.parametrize("seed", range(30))
def test_damage_hides_no_intact_messages_and_is_always_reported(image: Path, directory: Path, seed: int) -> None:
    chance = random.Random(seed)
    shutil.copytree(image, directory)
    whole: dict[tuple[str, int, int], bytes] = {}  # position and body of each record
    for file in log_files(directory):
        raw = file.read_bytes()
        whole |= {(file.name, at, size): raw[at + 88 : at + 91] for at, size in records_of(raw)}
    assert len(whole) == 200
    for _ in range(chance.randint(1, 4)):
        file = chance.choice(log_files(directory))
        length = 64 << chance.randint(0, 7)
        at = chance.randrange((32 << 10) - length)
        garble(file, at, chance.choice([bytes(length), chance.randbytes(length)]))
        whole = {place: body for place, body in whole.items() if not _touches(place, file.name, at, length)}
    if chance.random() < 0.2:
        file, size = chance.choice(log_files(directory)), chance.randrange(32 << 10)
        os.truncate(file, size)
        whole = {place: body for place, body in whole.items() if not _touches(place, file.name, size, 1 << 30)}
    partitions = chance.choice([1, 5, 20])
    found = sorted(body[:3] for body in bodies(directory, minPartitions=partitions, failOnDataLoss="false"))
    assert found == sorted(whole.values())
    if len(whole) < 200:
        with pytest.raises(DataLossError):
            bodies(directory, minPartitions=partitions)
    else:
        assert len(bodies(directory, minPartitions=partitions)) == 200


def _touches(place: tuple[str, int, int], file: str, at: int, length: int) -> bool:
    return place[0] == file and place[1] < at + length and at < place[1] + place[2]


def test_a_log_without_any_whole_record(full: Path) -> None:
    (log,) = log_files(full)
    log.write_bytes(os.urandom(32 << 10))
    shutil.rmtree(full / "consumequeue")
    with pytest.raises(DataLossError, match="no intact record"):
        plan(full)
    assert plan(full, failOnDataLoss="false") == []


def test_preallocated_and_leftover_files_are_not_damage(full: Path) -> None:
    os.truncate(touch(full / "commitlog" / f"{32 << 10:020d}"), 32 << 10)
    touch(full / "commitlog" / f"{64 << 10:020d}")
    assert bodies(full) == NUMBERS


def test_garbled_consume_queues_change_nothing(full: Path) -> None:
    for file in (full / "consumequeue" / "Orders" / "0").iterdir():
        file.write_bytes(os.urandom(file.stat().st_size))
    (full / "abort").touch()
    assert bodies(full) == NUMBERS


def test_records_within_a_body_do_not_start_a_partition(directory: Path) -> None:
    """A body contains copies of records, whose positions do not match, so no partition starts at them."""
    store = opened(small(directory))
    for number in range(30):
        put(store, "Orders", 0, b"%d" % number * 50)
    raw = store.get_message("Orders", 0, 0, 30, 1 << 20).records
    put(store, "Orders", 0, bytes(raw))
    put(store, "Orders", 0, b"last")
    store.close()
    for partitions in (1, 3, 8):
        assert len(bodies(directory, minPartitions=partitions)) == 32


def test_a_forged_record_in_a_body_is_detected(directory: Path) -> None:
    store = opened(small(directory))
    result = put(store, "Orders", 0, b"x" * 8000)
    size = 8000 + 91 + len("Orders")
    inner = bytearray(store.get_message("Orders", 0, 0, 1, 1 << 20).records)
    offset = result.physical_offset + size + 88 + 4000  # the later position of the copy
    inner[28:36] = offset.to_bytes(8, "big")
    put(store, "Orders", 0, b"y" * 4000 + bytes(inner) + b"y" * 4000)
    store.close()
    assert len(bodies(directory)) == 2
    with pytest.raises(StoreError, match="are inside another") as caught:
        bodies(directory, **_cut_at(directory, offset))
    assert "minPartitions" in caught.value.remedy


def _cut_at(directory: Path, offset: int) -> dict[str, object]:
    """A number of partitions with a boundary just before an offset."""
    for count in range(1, 200):
        if any(partition.span.start == offset for partition in plan(directory, minPartitions=count)):
            return {"minPartitions": count}
    raise AssertionError("no number of partitions cuts there")


def test_an_unreadable_log_file_is_not_skipped(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root can read everything, so the system calls are replaced."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != log_files(full)[0] and access(path, mode))
    with pytest.raises(StoreError, match=r"it cannot be read: Permission denied \(on the driver\)"):
        plan(full, failOnDataLoss="false")


def test_a_repaired_store_serves_the_same_messages(full: Path) -> None:
    garble(log_files(full)[0], positions(full)[3] + 100)
    with pytest.raises(DataLossError, match="CRC") as caught:
        read(full)
    assert "failOnDataLoss=false" in caught.value.remedy
    assert "rocket store rebuild --skip-damage" in caught.value.remedy
    whole = places(read(full, failOnDataLoss="false"))
    rebuild_store(full, small(full), skip_damage=True)
    assert places(read(full, failOnDataLoss="false")) == whole


def test_executors_without_the_directory_report_it(full: Path) -> None:
    (partition,) = plan(full)
    options = parse_read_options({"storePath": str(full)}, Scope.READ)
    shutil.rmtree(full / "commitlog")
    with pytest.raises(StoreError, match="cannot be read on an executor") as caught:
        list(read_span_task(partition, options, project(MESSAGE_SCHEMA)))
    assert "visible to all executors" in caught.value.remedy
