"""``storePath`` without Spark: stores of Apache's and this package's broker: intact, killed, damaged, truncated."""

from __future__ import annotations

import fcntl
import json
import shutil
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.arrow import read_arrow
from spark_rocket.datasource.batch_reader import RocketBatchReader
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.read.store_directory import plan_directory
from spark_rocket.datasource.spark_schema import SOURCE_SCHEMA
from spark_rocket.errors import (
    OffsetsError,
    OptionError,
    ProtocolError,
    StoreError,
    StoreLockedError,
    TopicNotFoundError,
)
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.store import MessageStore
from spark_rocket.store.paths import StorePaths
from spark_rocket.store.tools.check import check_store
from tests.datasource.store_directories import (
    bodies,
    log_files,
    places,
    plan,
    read,
    touch,
    tree,
)
from tests.golden import expected, extract_store
from tests.kit.clock import Clock
from tests.store.helpers import opened, put, put_batch, small

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
    touch(directory / "config" / "rocksdb" / "CURRENT")
    assert places(read(directory)) == whole
    (directory / "dledger-n0").mkdir()
    touch(directory / "dledger-n0" / "data")
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


def test_messages_before_an_undecodable_one_are_read(directory: Path) -> None:
    store = opened(small(directory))
    for body, sys_flag in ((b"0", 0), (b"1", 0), (b"not compressed", 0x1), (b"3", 0)):
        put(store, "Orders", 0, body, sys_flag=sys_flag)
    store.close()
    batches = read_arrow(store_path=directory, columns="body")
    assert batches.read_next_batch().column("body").to_pylist() == [b"0", b"1"]
    with pytest.raises(ProtocolError, match=r"The record with queue offset 2, .*: Invalid zlib body"):
        batches.read_next_batch()
    assert len(read(directory, "queueOffset")) == 4
    after = json.dumps({"Orders": {"broker-a": {"0": 3}}})
    assert bodies(directory, subscribe="Orders", startingOffsets=after) == [b"3"]


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


# --- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nameServer": "h:1"}, "nameServer cannot be combined with storePath"),
        ({"consumerGroup": "g"}, "consumerGroup cannot be combined with storePath"),
        ({"maxrecordsperpartition": "1"}, "maxRecordsPerPartition cannot be combined with storePath"),
        (
            {"bodyFormat": "text", "badRecords": "deadLetter", "deadLetterTopic": "d"},
            "deadLetterTopic cannot be combined with storePath",
        ),
        ({"startingOffsets": "group"}, "startingOffsets=group cannot be combined with storePath"),
        ({"startingOffsets": '{"a": {"b": {"0": 1}}}'}, "which requires subscribe"),
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
