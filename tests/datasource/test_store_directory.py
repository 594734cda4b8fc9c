"""``storePath`` without Spark: stores of Apache's and this package's broker: intact, killed, damaged, truncated."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pickle
import random
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_rocket.datasource.batch_reader import RocketBatchReader
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.read.store_directory import (
    SpanTask,
    plan_directory,
    read_span_task,
)
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
from spark_rocket.datasource.spark_schema import SOURCE_SCHEMA
from spark_rocket.errors import (
    DataLossError,
    OffsetsError,
    OptionError,
    StoreError,
    StoreLockedError,
    TopicNotFoundError,
)
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.store import MessageStore
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.paths import StorePaths
from spark_rocket.store.tools.check import check_store
from spark_rocket.store.tools.dump import dump_log
from spark_rocket.store.tools.rebuild import rebuild_store
from spark_rocket.store.tools.salvage import Damage
from spark_rocket.store.tools.view import view_store
from tests.golden import expected, extract_store
from tests.kit.clock import Clock
from tests.store.helpers import opened, put, put_batch, small

Row = dict[str, Any]


def plan(path: Path, **options: object) -> list[SpanTask]:
    texts = {name: str(value) for name, value in options.items()}
    return plan_directory(parse_read_options({"storePath": str(path), **texts}, Scope.READ))


def read(path: Path, columns: str | None = None, **options: object) -> list[Row]:
    """All rows as executors read them: from pickled partitions, with the schema that Spark requires."""
    texts = {name: str(value) for name, value in options.items()}
    parsed = parse_read_options({"storePath": str(path), **texts}, Scope.READ)
    fields = [field for field in MESSAGE_SCHEMA if columns is None or field.name in columns.split()]
    projection = project(pa.schema(fields))
    rows: list[Row] = []
    for partition in plan_directory(parsed):
        for batch in read_span_task(pickle.loads(pickle.dumps(partition)), parsed, projection):
            assert isinstance(batch, pa.RecordBatch)
            assert batch.schema.equals(projection.target)
            assert 0 < batch.num_rows <= parsed.arrow_batch_rows
            rows += batch.to_pylist()
    return rows


def bodies(path: Path, **options: object) -> list[bytes]:
    return [row["body"] for row in read(path, "body", **options)]


def places(rows: list[Row]) -> Counter[tuple[str, int, int]]:
    return Counter((row["topic"], row["queueId"], row["queueOffset"]) for row in rows)


def tree(path: Path) -> dict[str, tuple[int, int]]:
    return {str(file): (file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(path.rglob("*"))}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(directory: Path) -> Iterator[MessageStore]:
    """A store with files of 32 KiB; the test closes it before it reads."""
    made = opened(small(directory))
    yield made
    made.close()


def log_files(directory: Path) -> list[Path]:
    return sorted((directory / "commitlog").iterdir())


def positions(directory: Path) -> list[int]:
    """The start positions of the records of a one-file log."""
    return [row[0] for row in _records(log_files(directory)[0].read_bytes())]


def _records(raw: bytes) -> list[tuple[int, int]]:
    found, at = [], 0
    while (size := int.from_bytes(raw[at : at + 4], "big")) and raw[at + 4 : at + 8] == b"\xda\xa3\x20\xa7":
        found.append((at, size))
        at += size
    return found


def garble(file: Path, position: int, data: bytes = b"\xee" * 8) -> None:
    with file.open("r+b") as opened_file:
        opened_file.seek(position)
        opened_file.write(data)


# --- stores of Apache's broker -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean", "killed"])
@pytest.mark.parametrize("partitions", [1, 15])
def test_every_message_of_an_apache_store(name: Any, partitions: int, tmp_path: Path) -> None:
    directory = extract_store(name, tmp_path)
    wanted = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in expected(name)}
    topics = sorted({topic for topic, _, _ in wanted})
    before = tree(directory)
    rows = read(directory, subscribe=",".join(topics), minPartitions=partitions, arrowBatchRows=7)
    assert tree(directory) == before
    assert places(rows) == Counter(wanted.keys())
    for row in rows:
        message = wanted[row["topic"], row["queueId"], row["queueOffset"]]
        assert row["body"] == message["body"]
        assert dict(row["properties"]) == message["properties"]
        assert (row["tags"], row["keys"]) == (message["tags"], message["keys"])
        assert row["msgId"] == (message["uniqKey"] or message["msgId"])
        assert (row["bornHost"], row["storeHost"]) == (message["bornHost"][1:], message["storeHost"][1:])
        assert round(row["storeTimestamp"].timestamp() * 1000) == message["storeTimestamp"]
        assert round(row["bornTimestamp"].timestamp() * 1000) == message["bornTimestamp"]
        flags = ("flag", "sysFlag", "reconsumeTimes")
        assert [row[flag] for flag in flags] == [message[flag] for flag in flags]
    assert len(plan(directory, minPartitions=partitions)) >= partitions


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_without_subscribe_all_user_topics_are_read(name: Any, tmp_path: Path) -> None:
    directory = extract_store(name, tmp_path)
    counts = Counter(row["topic"] for row in expected(name))
    users = {topic: count for topic, count in counts.items() if topic.startswith("Golden")}
    assert len(users) == 7
    assert Counter(row["topic"] for row in read(directory, "topic")) == users


@pytest.mark.parametrize("name", ["clean", "killed"])
@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/GoldenA", "index", "config", "checkpoint", "lock"])
def test_derived_files_may_be_missing(name: Any, lost: str, tmp_path: Path) -> None:
    directory = extract_store(name, tmp_path)
    whole = places(read(directory))
    if (directory / lost).is_dir():
        shutil.rmtree(directory / lost)
    else:
        (directory / lost).unlink()
    assert places(read(directory)) == whole


def test_a_read_only_directory(tmp_path: Path) -> None:
    directory = extract_store("clean", tmp_path)
    for path in directory.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        assert len(read(directory, "topic", subscribe="GoldenA")) == 1000
    finally:
        for path in (directory, *directory.rglob("*")):
            path.chmod(0o700)


# --- paths and owners of a store ---------------------------------------------------------------------------------


def test_the_data_directory_of_rocket_up_relative_paths_and_uris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract_store("clean", tmp_path / "my data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in (
        "my data",
        "my data/store",
        "./my data/../my data/",
        "~/my data",
        f"file:{tmp_path}/my%20data",
        f"file://{tmp_path}/my%20data/store",
        f"file://localhost{tmp_path}/my%20data",
    ):
        (first, *_) = plan_directory(parse_read_options({"storePath": text}, Scope.READ))
        assert first.span.path.is_absolute()
        assert first.span.path.is_file()


def test_metadata_in_rocksdb_is_not_treated_as_deleted(tmp_path: Path) -> None:
    directory = extract_store("clean", tmp_path)
    whole = places(read(directory))
    shutil.rmtree(directory / "consumequeue")
    (directory / "config" / "topics.json").write_text('{"topicConfigTable": {}}')
    assert read(directory) == []
    (directory / "config" / "rocksdb").mkdir()
    _touch(directory / "config" / "rocksdb" / "CURRENT")
    assert places(read(directory)) == whole
    (directory / "dledger-n0").mkdir()
    _touch(directory / "dledger-n0" / "data")
    with pytest.raises(StoreError, match="DLedger"):
        plan(directory)


def test_invalid_store_directories(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a directory on the driver's machine"):
        plan(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="is not a store directory") as caught:
        plan(tmp_path)
    assert "storePathRootDir" in caught.value.remedy
    directory = extract_store("clean", tmp_path)
    with pytest.raises(StoreError) as caught:
        plan(directory / "commitlog")
    assert str(directory) in caught.value.remedy


def test_a_store_with_parts_on_separate_disks(tmp_path: Path, directory: Path) -> None:
    paths = StorePaths(directory, tmp_path / "log", tmp_path / "queues", tmp_path / "keys")
    store = opened(small(directory).at(paths))
    for number in range(3):
        put(store, "Orders", 0, b"%d" % number)
    store.close()
    assert bodies(directory) == [b"0", b"1", b"2"]
    (directory / "config" / "storePaths.json").unlink()  # as with Apache's broker
    with pytest.raises(StoreError, match="has no commit log") as caught:
        plan(directory)
    assert "storePathCommitLog" in caught.value.remedy
    (directory / "commitlog").symlink_to(paths.commit_log)
    assert bodies(directory) == [b"0", b"1", b"2"]


def test_a_store_without_messages_has_no_rows(store: MessageStore, directory: Path) -> None:
    store.close()
    assert plan(directory) == []
    reader = RocketBatchReader(parse_read_options({"storePath": str(directory)}, Scope.READ), SOURCE_SCHEMA)
    assert reader.partitions() == []
    assert list(reader.read(None)) == []  # type: ignore[arg-type]


def test_a_store_in_use_by_a_broker_is_refused(store: MessageStore, directory: Path) -> None:
    put(store, "Orders", 0, b"1")
    with pytest.raises(StoreLockedError, match="in use") as caught:
        plan(directory)
    assert "Stop its broker" in caught.value.remedy
    store.close()
    assert bodies(directory) == [b"1"]


def test_a_lock_of_another_process_is_respected(directory: Path, store: MessageStore) -> None:
    store.close()
    with (directory / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreLockedError):
            plan(directory)


def test_the_brokers_name(tmp_path: Path) -> None:
    directory = extract_store("clean", tmp_path)

    def name(**options: object) -> set[str]:
        return {row["brokerName"] for row in read(directory, "brokerName", subscribe="GoldenB", **options)}

    assert name() == {"broker-a"}
    topics = directory / "config" / "topics.json"  # a broker has a topic with its own name
    topics.write_text(topics.read_text().replace('"broker-a"', '"broker-x"'))
    assert name() == {"broker-x"}
    before = topics.read_text()
    table = json.loads(before)
    table["topicConfigTable"]["twin"] = table["topicConfigTable"]["broker-x"] | {"topicName": "twin"}
    topics.write_text(json.dumps(table))
    assert name() == {"broker-a"}  # unknown
    topics.write_text("{")
    topics.with_name("topics.json.bak").write_text(before)
    assert name() == {"broker-x"}
    (tmp_path / "broker.conf").write_text("#brokerName=no\n brokerName = broker-b\r\nlistenPort=1\n")
    assert name() == {"broker-b"}
    (directory / "config" / "broker.properties").write_text("brokerClusterName=x\nbrokerName=broker-c\n")
    assert name() == {"broker-c"}
    assert name(brokerName="broker-d") == {"broker-d"}


# --- selected messages -------------------------------------------------------------------------------------------


def test_topics_queues_hosts_versions_and_batches_are_mixed(directory: Path) -> None:
    store = opened(small(directory))
    long = "v2-" + "x" * 200
    wanted: Counter[tuple[str, int, int]] = Counter()
    for number in range(300):
        topic, queue = ("Orders", "Payments", long, "größe")[number % 4], number % 3
        body = b"%d" % number * (number % 50)
        host = ("2001:db8::7", 1) if number % 5 == 0 else ("10.0.0.7", 1)
        result = store.put_message(topic, queue, body, b"TAGS\x01T", born_timestamp=1, born_host=host)
        wanted[topic, queue, result.queue_offset] += 1
    first = put_batch(store, "Orders", 7, [(0, b"in a batch %d" % i, b"") for i in range(20)]).queue_offset
    wanted.update({("Orders", 7, first + i): 1 for i in range(20)})
    store.close()
    assert len(log_files(directory)) > 1
    rows = read(directory, minPartitions=9)
    assert places(rows) == wanted
    hosts = Counter(row["bornHost"] for row in rows)
    assert hosts["[2001:db8::7]:1"] == 60
    only = read(directory, subscribe="Payments,Orders")
    assert places(only) == Counter({key: 1 for key in wanted if key[0] in ("Payments", "Orders")})
    assert check_store(directory) == []


def test_selected_columns_in_their_order(tmp_path: Path) -> None:
    directory = extract_store("clean", tmp_path)
    rows = read(directory, "queueOffset body", subscribe="GoldenOrder")
    assert len(rows) == 40
    assert list(rows[0]) == ["queueOffset", "body"]


def test_small_batches_and_records_larger_than_a_batch(directory: Path) -> None:
    store = opened(small(directory, mapped_file_size_commit_log=1 << 20))
    sizes = [10, 200_000, 5, 3, 70_000, 1]
    for size in sizes:
        put(store, "Orders", 0, b"x" * size)
    store.close()
    assert [len(body) for body in bodies(directory, arrowBatchBytes=1024, arrowBatchRows=1)] == sizes
    assert [len(body) for body in bodies(directory, minPartitions=100)] == sizes


def test_prepared_and_rolled_back_messages_are_omitted(directory: Path) -> None:
    store = opened(small(directory))
    for number, flag in enumerate((0, 0x4, 0x8, 0xC, 0)):
        put(store, "Orders", 0, b"%d" % number, sys_flag=flag)
    store.close()
    assert bodies(directory) == [b"0", b"2", b"4"]
    assert bodies(directory, startingOffsets='{"Orders": {"broker-a": {"0": 1}}}', subscribe="Orders") == [b"2", b"4"]


def test_compressed_bodies_and_inner_batches(directory: Path) -> None:
    store = opened(small(directory))
    put(store, "Orders", 0, zlib.compress(b"large" * 100), sys_flag=0x1)
    messages = [(0, b"inner %d" % number, b"TAGS\x01I\x02") for number in range(5)]
    inner = b"INNER_NUM\x015\x02INNER_BASE\x011\x02"
    put(store, "Orders", 0, encode_batch_body(messages), inner, sys_flag=0xC0)
    store.close()
    assert bodies(directory) == [b"large" * 100, *(body for _, body, _ in messages)]
    bounds = {
        "startingOffsets": '{"Orders": {"broker-a": {"0": 2}}}',
        "endingOffsets": '{"Orders": {"broker-a": {"0": 4}}}',
    }
    assert bodies(directory, subscribe="Orders", **bounds) == [b"inner 1", b"inner 2"]


def test_deleted_topics_stay_deleted(directory: Path) -> None:
    store = opened(small(directory))
    for number in range(5):
        put(store, "Orders", 0, b"old %d" % number)
        put(store, "Other", 0, b"other %d" % number)
    store.delete_topic("Orders")
    put(store, "Orders", 0, b"new")
    store.close()
    assert bodies(directory, subscribe="Orders") == [b"new"]
    assert len(bodies(directory)) == 6
    shutil.rmtree(directory / "consumequeue")
    assert len(bodies(directory)) == 6


def test_topics_that_an_apache_broker_deleted(tmp_path: Path) -> None:
    directory = extract_store("clean", tmp_path)
    shutil.rmtree(directory / "consumequeue" / "GoldenA")
    topics = directory / "config" / "topics.json"
    topics.write_text(topics.read_text().replace('"GoldenA"', '"Another"'))
    assert "GoldenA" not in {row["topic"] for row in read(directory, "topic")}
    with pytest.raises(TopicNotFoundError, match="no topic GoldenA") as caught:
        plan(directory, subscribe="GoldenA")
    assert "GoldenB" in caught.value.remedy
    (directory / "abort").touch()  # after a kill, topics.json can be outdated: include more messages, not fewer
    assert len(read(directory, "topic", subscribe="GoldenA")) == 1000


def test_a_recreated_topic_of_an_apache_broker(directory: Path) -> None:
    """The broker does not record deletions; the first entry of the consume queue shows the start of the later topic."""
    store = opened(small(directory))
    for number in range(100):
        put(store, "Orders", number % 2, b"old %d" % number * 20)
    store.delete_topic("Orders")
    for number in range(7):
        put(store, "Orders", 1, b"new %d" % number)
    store.close()
    for note in (directory / "config").glob("deletedTopic.json*"):
        note.unlink()
    found = bodies(directory, minPartitions=5)
    assert [body for body in found if body.startswith(b"new")] == [b"new %d" % number for number in range(7)]
    # Queue 0 is ambiguous: the later topic has no messages in it yet.
    assert sorted(body for body in found if body.startswith(b"old")) == sorted(
        b"old %d" % number * 20 for number in range(0, 100, 2)
    )


def test_a_queue_without_its_first_entries_hides_no_messages(directory: Path) -> None:
    store = opened(small(directory))
    for number in range(100):
        put(store, "Orders", 0, b"%d" % number * 10)
    store.close()
    sorted((directory / "consumequeue" / "Orders" / "0").iterdir())[0].unlink()
    assert len(bodies(directory)) == 100


def test_a_store_without_its_oldest_files(directory: Path) -> None:
    store = opened(small(directory))
    for number in range(200):
        put(store, "Orders", 0, b"%d" % number * 300)
    store.close()
    whole = bodies(directory)
    log_files(directory)[0].unlink()
    left = bodies(directory)
    assert 0 < len(left) < 200
    assert whole[-len(left) :] == left


# --- start and end -----------------------------------------------------------------------------------------------


def test_from_and_to_by_time(directory: Path) -> None:
    clock = Clock()
    store = opened(small(directory), clock)
    times = []
    for number in range(200):
        clock.now += 10_000
        times.append(clock.now)
        put(store, "Orders", number % 2, b"%d" % number + b" " * 500)
    store.close()

    def numbers(**options: object) -> list[int]:
        return [int(body) for body in bodies(directory, **options)]

    assert numbers(startingTimestamp=times[150]) == list(range(150, 200))
    assert numbers(endingTimestamp=times[20]) == list(range(20))
    assert numbers(startingTimestamp=times[60] - 1, endingTimestamp=times[61] + 1) == [60, 61]
    assert len(plan(directory, startingTimestamp=times[190])) < len(plan(directory))
    assert len(plan(directory, endingTimestamp=times[10])) < len(plan(directory))
    with pytest.raises(OptionError, match=r"LESS.*endingTimestamp is "):
        plan(directory, startingTimestamp=5, endingTimestamp=4)


def test_from_and_to_by_offset(directory: Path) -> None:
    store = opened(small(directory))
    for number in range(40):
        put(store, "Orders", number % 2, b"%d" % number)
        put(store, "Other", 0, b"other")
    store.close()

    def numbers(start: str = "", end: str = "") -> list[int]:
        options = {"startingOffsets": start, "endingOffsets": end}
        return sorted(
            int(body)
            for body in bodies(directory, subscribe="Orders", **{name: text for name, text in options.items() if text})
        )

    def offsets(zero: int, one: int, broker: str = "broker-a") -> str:
        return f'{{"Orders": {{"{broker}": {{"0": {zero}, "1": {one}}}}}}}'

    assert numbers(offsets(18, -1), offsets(-1, -1)) == [36, 38]
    assert numbers(offsets(-2, -2), offsets(1, -2)) == [0]
    assert numbers(end=offsets(1, 2)) == [0, 1, 3]
    assert numbers(offsets(19, 100)) == [38]
    with pytest.raises(OffsetsError, match="this is the store of broker-a"):
        numbers(offsets(0, 0, "broker-b"))
    with pytest.raises(OffsetsError, match="from 5 to 4: the end is before the start"):
        numbers(offsets(5, 0), offsets(4, 0))
    with pytest.raises(OffsetsError, match="has no offset for Orders, queue 1"):
        numbers('{"Orders": {"broker-a": {"0": 3}}}')


# --- killed, damaged ---------------------------------------------------------------------------------------------


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
    with view_store(killed, config) as view:
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
        for at, size in _records(file.read_bytes()):
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
    whole = {}  # position and body of each record
    for file in log_files(directory):
        raw = file.read_bytes()
        whole |= {(file.name, at, size): raw[at + 88 : at + 91] for at, size in _records(raw)}
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
    os.truncate(_touch(full / "commitlog" / f"{32 << 10:020d}"), 32 << 10)
    _touch(full / "commitlog" / f"{64 << 10:020d}")
    assert bodies(full) == NUMBERS


def _touch(path: Path) -> Path:
    path.touch()
    return path


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


# --- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nameServer": "h:1"}, "nameServer cannot be combined with storePath"),
        ({"consumerGroup": "g"}, "consumerGroup cannot be combined with storePath"),
        ({"maxrecordsperpartition": "1"}, "maxRecordsPerPartition cannot be combined with storePath"),
        ({"startingOffsets": "group"}, "startingOffsets=group cannot be combined with storePath"),
        ({"startingOffsets": '{"a": {"b": {"0": 1}}}'}, "which requires subscribe"),
        ({"startingOffsets": "latest"}, "reads nothing"),
        ({"storePath": "hdfs://nn/x"}, "storePath is 'hdfs://nn/x'"),
        ({"storePath": "file://elsewhere/x"}, "storePath is 'file://elsewhere/x'"),
        ({"storePath": " "}, "storePath is ' '"),
    ],
)
def test_conflicting_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("(", r"\(")) as caught:
        parse_read_options({"storePath": "/data"} | options, Scope.READ)
    assert caught.value.remedy


def test_latest_is_refused_with_the_alternatives() -> None:
    for options, remedy in (
        ({"storePath": "/data"}, "Use earliest, timestamp or JSON."),
        ({"subscribe": "t"}, "Use earliest, timestamp, group or JSON, or spark.readStream."),
    ):
        with pytest.raises(OptionError, match="reads nothing") as caught:
            parse_read_options(options | {"startingOffsets": "latest"}, Scope.READ)
        assert caught.value.remedy == remedy


def test_broker_names_require_a_store() -> None:
    with pytest.raises(OptionError, match="brokerName has no effect without storePath"):
        parse_read_options({"subscribe": "t", "brokerName": "b"}, Scope.READ)
    with pytest.raises(OptionError, match="storePath is for batch reads, not for streaming reads") as caught:
        parse_read_options({"storePath": "/data"}, Scope.READ_STREAM)
    assert "spark.read" in caught.value.remedy
