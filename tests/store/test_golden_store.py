"""Store directories of Apache RocketMQ 4.9.8: read, rebuilt and written again byte for byte, and extended."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from spark_rocket.protocol.record.record import decode_record, iter_records
from spark_rocket.store import MessageStore, PutStatus, StoreConfig
from tests.golden import StoreName, expected, extract_store, store_files
from tests.kit.clock import Clock
from tests.store.helpers import (
    bodies,
    close_right,
    golden,
    log_records,
    opened,
    put,
    put_batch,
    recovery_of,
)


@pytest.fixture(params=["clean", "killed"])
def name(request: pytest.FixtureRequest) -> StoreName:
    found: StoreName = request.param
    return found


@pytest.fixture
def directory(name: StoreName, tmp_path: Path) -> Path:
    return extract_store(name, tmp_path)


def assert_serves_all(store: MessageStore, name: StoreName) -> None:
    """Every expected message, by queue and offset, by physical offset, by unique key and by key."""
    counts: dict[tuple[str, int], int] = {}
    for number, message in enumerate(expected(name)):
        topic, queue_id, offset = message["topic"], message["queueId"], message["queueOffset"]
        counts[topic, queue_id] = counts.get((topic, queue_id), 0) + 1
        result = store.get_message(topic, queue_id, offset, 1, 1 << 20)
        assert result.count == 1
        assert store.look_message_by_offset(message["commitLogOffset"]) == result.records
        assert store.get_store_time(topic, queue_id, offset) == message["storeTimestamp"]
        stored = decode_record(result.records)
        assert stored.body == message["body"]
        assert stored.properties == message["properties"]
        assert (stored.offset_msg_id, stored.queue_offset) == (message["msgId"], offset)
        assert len(result.records) == message["storeSize"]
        if number % 5:  # a query takes as long as all the rest
            continue
        if message["uniqKey"]:
            found = store.query_message(topic, message["uniqKey"], 32, 0, 1 << 62, unique=True)
            assert result.records in found.records
        for key in (message["keys"] or "").split():
            at = message["storeTimestamp"]
            assert result.records in store.query_message(topic, key, 64, at, at).records
    assert counts
    for (topic, queue_id), count in counts.items():
        assert store.get_max_offset(topic, queue_id) == count
        assert len(bodies(store, topic, queue_id, max_msgs=32)) == count


def test_every_message_is_served(name: StoreName, directory: Path) -> None:
    store = opened(golden(directory))
    assert recovery_of(store).clean is (name == "clean")
    assert recovery_of(store).fixed_entries == 0
    assert_serves_all(store, name)
    close_right(store)


def test_opening_and_closing_changes_no_message_file(name: StoreName, directory: Path) -> None:
    files = [*directory.glob("commitlog/*"), *directory.glob("consumequeue/*/*/*")]
    if name == "clean":  # after a kill the last index file is rebuilt under a new name
        files += directory.glob("index/*")
    before = {path: path.read_bytes() for path in files}
    index = [path.read_bytes() for path in sorted(directory.glob("index/*"))]
    opened(golden(directory)).close()
    assert {path: path.read_bytes() for path in files} == before
    assert [path.read_bytes() for path in sorted(directory.glob("index/*"))] == index


def test_consume_queues_and_index_are_rebuilt_identically(name: StoreName, directory: Path) -> None:
    queues = {path: path.read_bytes() for path in directory.glob("consumequeue/*/*/*")}
    index = [path.read_bytes() for path in sorted(directory.glob("index/*"))]
    shutil.rmtree(directory / "consumequeue")
    shutil.rmtree(directory / "index")
    opened(golden(directory)).close()
    assert {path: path.read_bytes() for path in directory.glob("consumequeue/*/*/*")} == queues
    assert [path.read_bytes() for path in sorted(directory.glob("index/*"))] == index


def test_one_lost_queue_of_a_topic_is_rebuilt(directory: Path) -> None:
    """Its end is not known, as Apache's broker does not record it: the whole log is compared."""
    lost = directory / "consumequeue" / "GoldenA" / "2"
    before = {path: path.read_bytes() for path in lost.iterdir()}
    shutil.rmtree(lost)
    opened(golden(directory)).close()
    assert {path: path.read_bytes() for path in lost.iterdir()} == before


def test_goes_on_appending(name: StoreName, directory: Path) -> None:
    config = golden(directory)
    store = opened(config)
    start = store.get_max_offset("GoldenA", 1)
    for i in range(400):
        assert (
            put(store, "GoldenA", 1, b"%d" % i * 900, b"KEYS\x01new-%d\x02TAGS\x01TagB" % i).queue_offset == start + i
        )
    first = put_batch(store, "GoldenBatch", 2, [(i, b"more", b"") for i in range(50)]).queue_offset
    assert first == 100
    put(store, "NewTopic", 3, b"first")
    close_right(store)
    store = opened(config)
    assert bodies(store, "GoldenA", 1)[start:] == [b"%d" % i * 900 for i in range(400)]
    assert len(store.query_message("GoldenA", "new-7", 10, 0, 1 << 62).records) == 1
    store.close()
    sizes = {path.stat().st_size for path in directory.glob("commitlog/*")}
    assert sizes == {1 << 20}
    assert {path.stat().st_size for path in directory.glob("consumequeue/*/*/*")} == {2000}
    assert {path.stat().st_size for path in directory.glob("index/*")} == {40 + 500 * 4 + 1000 * 20}
    assert (directory / "lock").read_bytes() == b"lock"
    assert not (directory / "abort").exists()
    assert (directory / "checkpoint").stat().st_size == 4096


# --- the messages of Apache's broker, put into our store at the same times, make the same files ---------------------


def written_again(name: StoreName, directory: Path, config: StoreConfig) -> None:
    """Put every message of Apache's log into our store, in the same order and at the same time."""
    apache = extract_store(name, directory / "apache")
    clock = Clock(0)
    store: MessageStore | None = None
    for record in iter_records(log_records(apache, golden(apache))):
        clock.now = record.store_timestamp
        if store is None:
            store = opened(config, clock)
        result = store.put_message(
            str(record.topic, "utf-8"),
            record.queue_id,
            bytes(record.body),
            bytes(record.properties),
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_timestamp=record.born_timestamp,
            born_host=bytes(record.born_host),
            reconsume_times=record.reconsume_times,
            prepared_transaction_offset=record.prepared_transaction_offset,
        )
        assert result.status is PutStatus.PUT_OK
        assert (result.queue_offset, result.physical_offset) == (record.queue_offset, record.physical_offset)
    assert store is not None
    close_right(store)


def files_of(config: StoreConfig, folder: str) -> dict[str, bytes]:
    root = config.store_path
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.glob(f"{folder}/**/*")) if path.is_file()
    }


def apaches(name: StoreName, folder: str) -> dict[str, bytes]:
    return {path: data for path, data in store_files(name).items() if path.startswith(folder + "/")}


def test_the_same_files_to_the_last_byte(name: StoreName, tmp_path: Path) -> None:
    config = golden(tmp_path / "ours")
    written_again(name, tmp_path, config)
    assert files_of(config, "commitlog") == apaches(name, "commitlog")
    assert files_of(config, "consumequeue") == apaches(name, "consumequeue")
    # An index file is called after the moment of its making; headers, slots, chains and entries are the records'.
    ours = [data for _, data in sorted(files_of(config, "index").items())]
    theirs = [data for _, data in sorted(apaches(name, "index").items())]
    if name == "killed":  # Apache's index was behind its log
        assert len(ours) == len(theirs)
        ours, theirs = ours[:-1], theirs[:-1]
    assert ours == theirs
    assert (config.store_path / "lock").read_bytes() == store_files(name)["lock"] == b"lock"
    if name == "clean":
        assert (config.store_path / "checkpoint").read_bytes() == store_files(name)["checkpoint"]


def test_abort_is_there_while_a_store_runs(tmp_path: Path) -> None:
    """Empty in 4.9.8, the process id in 5.x; both only check that it exists."""
    store = opened(golden(tmp_path))
    assert (tmp_path / "abort").read_text() == str(os.getpid())
    store.close()
    assert not (tmp_path / "abort").exists()
    assert store_files("killed")["abort"] == b""
    assert "abort" not in store_files("clean")
