"""Apache's own store directories behind a real broker: every message served over the wire as its own client read it,
in every way that there is to ask for one, before and after the broker has written more."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.model import Message
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.record.record import iter_records
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.json import loads_tolerant
from spark_rocket.store.tools.check import check_store
from tests.broker.wire import Wire, messages_of
from tests.golden import StoreName, expected, extract_store
from tests.kit import brokers
from tests.kit.clock import Clock

pytestmark = pytest.mark.live

#: The broker.conf that the stores were made with.
BROKER_CONF = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 1000,
}
#: Just behind the last message of either store, so that what is pending there stays so.
THEN = 1_795_229_620_000
FOREVER = 1 << 62
Rows = dict[tuple[str, int], list[dict[str, Any]]]


@contextmanager
def served(directory: Path, clock: Clock, **settings: Any) -> Iterator[Wire]:
    """A broker on a store directory; stopped cleanly at the end."""
    with brokers.served(directory, clock, check=False, **{**BROKER_CONF, **settings}) as (_, wire):
        yield wire


@pytest.fixture(params=["clean", "killed"])
def name(request: pytest.FixtureRequest) -> StoreName:
    found: StoreName = request.param
    return found


@pytest.fixture
def directory(name: StoreName, tmp_path: Path) -> Path:
    return extract_store(name, tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock(THEN)


def queues_of(name: StoreName) -> Rows:
    queues: Rows = defaultdict(list)
    for row in expected(name):
        queues[row["topic"], row["queueId"]].append(row)
    for rows in queues.values():
        rows.sort(key=lambda row: int(row["queueOffset"]))
    return queues


def assert_is(record: bytes, row: dict[str, Any]) -> None:
    """A raw record equals, field by field, the message of the original client."""
    (message,) = decode_messages(record)
    assert len(record) == row["storeSize"]
    assert (message.topic, message.queue_id, message.queue_offset) == (row["topic"], row["queueId"], row["queueOffset"])
    assert (message.physical_offset, message.offset_msg_id) == (row["commitLogOffset"], row["msgId"])
    assert (message.body, message.properties) == (row["body"], row["properties"])
    assert (message.flag, message.sys_flag, message.body_crc) == (row["flag"], row["sysFlag"], row["bodyCRC"])
    assert (message.born_timestamp, message.store_timestamp) == (row["bornTimestamp"], row["storeTimestamp"])
    assert f"/{message.born_host[0]}:{message.born_host[1]}" == row["bornHost"]
    assert f"/{message.store_host[0]}:{message.store_host[1]}" == row["storeHost"]
    assert message.reconsume_times == row["reconsumeTimes"]
    assert message.prepared_transaction_offset == row["preparedTransactionOffset"]
    assert (message.tags, message.keys, message.properties.get("UNIQ_KEY")) == (
        row["tags"],
        row["keys"],
        row["uniqKey"],
    )


def split(body: Buffer) -> list[bytes]:
    """The raw records of a pull's or a query's answer."""
    raw = bytes(body)
    records: list[bytes] = []
    for record in iter_records(raw, check_crc=True):
        start = sum(map(len, records))
        records.append(raw[start : start + record.size])
    return records


def pulled(wire: Wire, topic: str, queue_id: int, **more: object) -> list[bytes]:
    """Read an entire queue with several pulls."""
    records: list[bytes] = []
    offset = 0
    while True:
        answer = wire.pull(topic, offset, queue_id=queue_id, **more)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return records
        assert answer.code in (0, ResponseCode.PULL_RETRY_IMMEDIATELY), answer
        records += split(answer.body)
        offset = int(answer.ext_fields["nextBeginOffset"])


def search(wire: Wire, topic: str, queue_id: int, time: int, bound: str) -> int:
    answer = wire.ask(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic=topic, queueId=queue_id, timestamp=time, boundaryType=bound
    )
    return int(answer.ext_fields["offset"])


def query(wire: Wire, topic: str, key: str, begin: int = 0, end: int = FOREVER, *, unique: bool = False) -> list[bytes]:
    answer = wire.query(topic, key, beginTimestamp=begin, endTimestamp=end, _UNIQUE_KEY_QUERY=unique)
    return split(answer.body) if answer.code == 0 else []


def assert_all_served(wire: Wire, queues: Rows, more: dict[tuple[str, int], int] | None = None) -> None:
    """All expected messages, requested in every way; ``more``: the number of later messages in a queue."""
    for (topic, queue_id), rows in queues.items():
        records = pulled(wire, topic, queue_id)
        assert len(records) == len(rows) + (more or {}).get((topic, queue_id), 0)
        for number, (record, row) in enumerate(zip(records, rows, strict=False)):
            assert row["queueOffset"] == number
            assert_is(record, row)
            offset = decode_offset_msg_id(row["msgId"])[1]
            assert wire.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset).body == record
            if row["uniqKey"]:
                # Retried and half messages share it within a topic only if they were sent twice.
                assert record in query(wire, topic, row["uniqKey"], unique=True)
            at = row["storeTimestamp"]
            for key in (row["keys"] or "").split():
                assert record in query(wire, topic, key, at, at)
        times = [row["storeTimestamp"] for row in rows]
        for time in sorted({times[0] - 1, *times[:: max(len(times) // 8, 1)], times[-1]}):
            assert search(wire, topic, queue_id, time, "LOWER") == sum(stored < time for stored in times)
            if (topic, queue_id) not in (more or {}) or time < times[-1]:
                upper = max(sum(stored <= time for stored in times) - 1, 0)
                assert search(wire, topic, queue_id, time, "UPPER") == upper
        assert wire.end(topic, queue_id) == len(records)


def assert_files_keep_their_rules(directory: Path) -> None:
    """Names and sizes of the broker.conf."""
    for file in directory.glob("commitlog/*"):
        assert (file.stat().st_size, len(file.name), int(file.name) % (1 << 20)) == (1 << 20, 20, 0)
    for file in directory.glob("consumequeue/*/*/*"):
        assert (file.stat().st_size, len(file.name), int(file.name) % 2000) == (2000, 20, 0)
    for file in directory.glob("index/*"):
        assert (file.stat().st_size, len(file.name), file.name.isdecimal()) == (40 + 500 * 4 + 1000 * 20, 17, True)
    assert (directory / "lock").read_bytes() == b"lock"
    assert (directory / "checkpoint").stat().st_size == 4096
    assert not (directory / "abort").exists()


def assert_sound(directory: Path) -> None:
    config = BrokerConfig.from_properties({"storePathRootDir": directory, **BROKER_CONF}).store_config()
    assert check_store(directory, config) == []
    assert_files_keep_their_rules(directory)


def test_every_message_is_served_in_every_way(name: StoreName, directory: Path, clock: Clock) -> None:
    with served(directory, clock) as wire:
        assert_all_served(wire, queues_of(name))
    assert_sound(directory)


def test_a_tag_finds_its_messages(name: StoreName, directory: Path, clock: Clock) -> None:
    with served(directory, clock) as wire:
        for (topic, queue_id), rows in queues_of(name).items():
            for tag in {row["tags"] for row in rows if row["tags"]}:
                wanted = [row for row in rows if row["tags"] == tag]
                if topic == "SCHEDULE_TOPIC_XXXX":  # its entries carry the time of delivery in the code's place
                    wanted = []
                records = pulled(wire, topic, queue_id, tags=tag)
                assert [decode_messages(record)[0].queue_offset for record in records] == [
                    row["queueOffset"] for row in wanted
                ]


def test_writes_on_and_is_opened_again(name: StoreName, directory: Path, clock: Clock) -> None:
    queues = queues_of(name)
    body = b"more of it " * 400
    with served(directory, clock) as wire:
        clock.now += 1000
        start = len(queues["GoldenA", 1])
        for number in range(150):
            answer = wire.send("GoldenA", body, {"KEYS": f"new-{number}", "TAGS": "New"}, queue_id=1)
            assert int(answer.ext_fields["queueOffset"]) == start + number
        batch = [Message.of("GoldenBatch", b"%d" % number, keys=f"batch-{number}") for number in range(120)]
        first = wire.send_batch("GoldenBatch", batch, queue_id=2)
        assert int(first.ext_fields["queueOffset"]) == len(queues["GoldenBatch", 2])
        wire.send("Brand-New", b"first", {"KEYS": "first"})
    assert_sound(directory)

    def both(wire: Wire) -> None:
        more = {("GoldenA", 1): 150, ("GoldenBatch", 2): 120}
        assert_all_served(wire, queues, more)
        sent = pulled(wire, "GoldenA", 1)[start:]
        assert [decode_messages(record)[0].body for record in sent] == [body] * 150
        for number in (0, 77, 149):
            assert query(wire, "GoldenA", f"new-{number}") == [sent[number]]
        assert search(wire, "GoldenA", 1, THEN + 1000, "LOWER") == start
        assert search(wire, "GoldenA", 1, THEN + 1000, "UPPER") == start + 149
        assert len(query(wire, "GoldenBatch", "batch-119")) == 1
        assert len(query(wire, "Brand-New", "first")) == 1

    with served(directory, clock) as wire:
        both(wire)
    assert_sound(directory)
    shutil.rmtree(directory / "consumequeue")
    shutil.rmtree(directory / "index")
    with served(directory, clock) as wire:
        both(wire)
    assert_sound(directory)


def test_config_files_of_apache_are_kept(directory: Path, clock: Clock) -> None:
    """Opened and closed: the same topics, groups and offsets, and unknown files unchanged."""
    before = {path.name: path.read_bytes() for path in (directory / "config").glob("*.json")}
    with served(directory, clock):
        pass
    after = {path.name: path.read_bytes() for path in (directory / "config").glob("*.json")}
    assert after["consumerFilter.json"] == before["consumerFilter.json"]
    for file, table in (
        ("topics.json", "topicConfigTable"),
        ("subscriptionGroup.json", "subscriptionGroupTable"),
    ):
        old, new = json.loads(before[file])[table], json.loads(after[file])[table]
        for key, entry in old.items():
            assert entry.items() <= new[key].items(), key
    for file in ("consumerOffset.json", "delayOffset.json"):
        assert loads_tolerant(after[file])["offsetTable"] == loads_tolerant(before[file])["offsetTable"], file


def test_pending_messages_are_delivered_once_when_due(name: StoreName, directory: Path, clock: Clock) -> None:
    """Levels 17 and 18, one and two hours: two messages each; the others were delivered by Apache's broker."""
    clock.now += 3 * 3_600_000
    for _ in range(2):  # at the second start there is nothing left to deliver
        with served(directory, clock) as wire:
            for queue_id in range(2):
                late = [wire.hold("GoldenDelay", offset, queue_id=queue_id).result(30) for offset in (3, 4)]
                keys = [message.keys for answer in late for message in messages_of(answer)[:1]]
                assert sorted(map(str, keys)) == [f"delay-17-{queue_id}", f"delay-18-{queue_id}"]
                assert len(pulled(wire, "GoldenDelay", queue_id)) == 5
            assert len(pulled(wire, "%RETRY%GID_golden_retry", 0)) == 4
    assert_sound(directory)
    offsets = loads_tolerant((directory / "config" / "delayOffset.json").read_bytes())["offsetTable"]
    assert offsets == {"1": 8, "2": 2, "17": 2, "18": 2}
