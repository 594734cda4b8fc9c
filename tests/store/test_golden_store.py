"""Store directories of Apache RocketMQ 4.9.8: read to the last message, rebuilt byte for byte, and extended."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_rocket.protocol.record.record import decode_record
from spark_rocket.store import MessageStore
from spark_rocket.store.tools.check import check_store
from tests.golden import expected, extract_store
from tests.store.helpers import bodies, golden, opened, put, put_batch, recovery_of

NAMES = ("clean", "killed")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def directory(name: str, tmp_path: Path) -> Path:
    return extract_store(name, tmp_path)  # type: ignore[arg-type]


def assert_serves_all(store: MessageStore, name: str) -> None:
    """Every expected message, by queue and offset, by physical offset, by unique key and by key."""
    counts: dict[tuple[str, int], int] = {}
    for message in expected(name):  # type: ignore[arg-type]
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


def test_every_message_is_served(name: str, directory: Path) -> None:
    store = opened(golden(directory))
    assert recovery_of(store).clean is (name == "clean")
    assert recovery_of(store).fixed_entries == 0
    assert_serves_all(store, name)
    store.close()
    assert check_store(directory, golden(directory)) == []


def test_opening_and_closing_changes_no_message_file(name: str, directory: Path) -> None:
    files = [*directory.glob("commitlog/*"), *directory.glob("consumequeue/*/*/*")]
    if name == "clean":  # after a kill the last index file is rebuilt under a new name
        files += directory.glob("index/*")
    before = {path: path.read_bytes() for path in files}
    index = [path.read_bytes() for path in sorted(directory.glob("index/*"))]
    opened(golden(directory)).close()
    assert {path: path.read_bytes() for path in files} == before
    assert [path.read_bytes() for path in sorted(directory.glob("index/*"))] == index


def test_consume_queues_and_index_are_rebuilt_identically(name: str, directory: Path) -> None:
    queues = {path: path.read_bytes() for path in directory.glob("consumequeue/*/*/*")}
    index = [path.read_bytes() for path in sorted(directory.glob("index/*"))]
    shutil.rmtree(directory / "consumequeue")
    shutil.rmtree(directory / "index")
    opened(golden(directory)).close()
    assert {path: path.read_bytes() for path in directory.glob("consumequeue/*/*/*")} == queues
    assert [path.read_bytes() for path in sorted(directory.glob("index/*"))] == index


def test_one_lost_queue_of_a_topic_is_rebuilt(directory: Path) -> None:
    lost = directory / "consumequeue" / "GoldenA" / "2"
    before = {path: path.read_bytes() for path in lost.iterdir()}
    shutil.rmtree(lost)
    opened(golden(directory)).close()
    assert {path: path.read_bytes() for path in lost.iterdir()} == before


def test_goes_on_appending(name: str, directory: Path) -> None:
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
    store.close()
    assert check_store(directory, config) == []
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


def test_delayed_messages_carry_their_delivery_time(directory: Path) -> None:
    store = opened(golden(directory))
    assert [code for _, _, code in store.get_entries("SCHEDULE_TOPIC_XXXX", 1, 0, 2)] == [1795229576210, 1795229576211]
    store.close()
