"""Put and get: statuses, offsets, tags, time, roll-over, and refusals."""

from __future__ import annotations

import os
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.errors import StateError
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.record.record import decode_record, encode_record, iter_records
from spark_rocket.store import FlushDiskType, GetMessageStatus, MessageStore, PutStatus, StoreConfig
from tests.kit.clock import START, Clock
from tests.store.conftest import MakeStore
from tests.store.helpers import BORN, HOST, bodies, close_right, opened, put, put_batch, small


def test_a_record_is_byte_for_byte_the_protocols(store: MessageStore) -> None:
    properties = b"TAGS\x01TagA\x02UNIQ_KEY\x010001"
    result = store.put_message(
        "Topic", 3, b"body", properties, flag=7, sys_flag=1, born_timestamp=99, born_host=BORN, reconsume_times=2
    )
    assert (result.status, result.queue_offset, result.physical_offset) == (PutStatus.PUT_OK, 0, 0)
    assert store.look_message_by_offset(0) == encode_record(
        b"Topic",
        3,
        b"body",
        properties,
        queue_offset=0,
        physical_offset=0,
        born_timestamp=99,
        born_host=bytes([127, 0, 0, 1]) + BORN[1].to_bytes(4, "big"),
        store_timestamp=START,
        store_host=bytes([127, 0, 0, 1]) + HOST[1].to_bytes(4, "big"),
        flag=7,
        sys_flag=1,
        reconsume_times=2,
    )
    assert result.end_physical_offset == store.max_physical_offset


@pytest.mark.parametrize("store_host", [("127.0.0.1", 1), ("::1", 1)])
@pytest.mark.parametrize("born_host", [("10.0.0.1", 2), ("2001:db8::1", 2)])
@pytest.mark.parametrize("topic", ["T", "L" * 200])
def test_host_kinds_and_long_topics(
    tmp_path: Path, clock: Clock, store_host: tuple[str, int], born_host: tuple[str, int], topic: str
) -> None:
    store = MessageStore(small(tmp_path / "store"), store_host=store_host, clock=clock)
    store.start()
    store.put_message(topic, 0, b"one", b"", born_timestamp=5, born_host=born_host)
    body = encode_batch_body([(0, b"two", b""), (0, b"threes", b"")])
    store.put_batch(topic, 0, body, born_timestamp=5, born_host=born_host)
    offsets = [offset for offset, _, _ in store.get_entries(topic, 0, 0, 100)]
    records = [decode_record(bytes(store.look_message_by_offset(offset) or b"")) for offset in offsets]
    assert [record.body for record in records] == [b"one", b"two", b"threes"]
    assert {(record.topic, record.born_host, record.store_host) for record in records} == {
        (topic, born_host, store_host)
    }
    assert store.get_store_time(topic, 0, 2) == START
    close_right(store)


def test_a_record_exactly_fills_its_file(make_store: MakeStore) -> None:
    """8 bytes must stay free after a record: with one byte more it goes to the next file."""
    store = make_store()
    size = store.config.mapped_file_size_commit_log
    overhead = 91 + 1
    put(store, "T", 0, b"x" * (size - 8 - overhead))
    assert store.max_physical_offset == size - 8
    put(store, "T", 0, b"next")
    assert store.look_message_by_offset(size) is not None
    store.close()
    store = make_store()
    put(store, "T", 0, b"y" * (size - 2 * overhead - 4 - 8 + 1))  # would leave 7 bytes: not allowed
    assert store.max_physical_offset > 2 * size
    blank = (store.config.commit_log_path / f"{size:020d}").read_bytes()[overhead + 4 :]
    assert blank[:8] == len(blank).to_bytes(4, "big") + bytes.fromhex("CBD43194")


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ({"properties": b"x" * 32768}, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        ({"properties": b"KEYS\x01a\0b"}, PutStatus.MESSAGE_ILLEGAL),
        ({"body": b"x" * ((4 << 20) + 1)}, PutStatus.MESSAGE_ILLEGAL),
        ({"body": b"x" * (32 << 10)}, PutStatus.MESSAGE_ILLEGAL),  # a file of the log
        ({"queue_id": -1}, PutStatus.MESSAGE_ILLEGAL),
        *(({"topic": topic}, PutStatus.MESSAGE_ILLEGAL) for topic in ("", "..", "a/b", "a\0", "t" * 256)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_invalid_messages_are_refused_and_leave_nothing(
    store: MessageStore, message: dict[str, Any], status: PutStatus
) -> None:
    put = partial(store.put_message, topic="T", queue_id=0, body=b"", properties=b"", born_timestamp=1, born_host=BORN)
    assert put(**message).status is status
    assert store.max_physical_offset == 0
    assert store.get_max_offset("T", 0) == 0
    assert not list(store.config.store_path.rglob("0" * 20))


def test_get_statuses(store: MessageStore) -> None:
    def get(offset: int, queue_id: int = 0) -> tuple[GetMessageStatus, int, int]:
        result = store.get_message("T", queue_id, offset, 32, 1 << 20)
        return result.status, result.next_begin_offset, result.count

    assert get(0) == (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0)
    for i in range(5):
        put(store, "T", 0, b"%d" % i)
    assert get(0) == (GetMessageStatus.FOUND, 5, 5)
    assert get(3) == (GetMessageStatus.FOUND, 5, 2)
    assert get(5) == (GetMessageStatus.OFFSET_OVERFLOW_ONE, 5, 0)
    assert get(6) == (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 5, 0)
    assert get(-1) == (GetMessageStatus.OFFSET_TOO_SMALL, 0, 0)
    assert get(0, queue_id=9) == (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0)


@pytest.mark.parametrize("count", [20, 300])
def test_tags_choose_by_hash(store: MessageStore, count: int) -> None:
    for i in range(count):
        put(store, "T", 0, b"%d" % i, b"TAGS\x01T%d" % (i % 4) if i % 5 else b"")
    codes = frozenset({java_hash("T1"), java_hash("T3")})
    found, offset = [], 0
    while offset < count:
        result = store.get_message("T", 0, offset, 7, 1 << 20, codes)
        found += [int(bytes(record.body)) for record in iter_records(result.records)]
        assert result.count <= 7
        offset = result.next_begin_offset
    assert found == [i for i in range(count) if i % 5 and i % 4 in (1, 3)]
    nothing = store.get_message("T", 0, 0, 7, 1 << 20, frozenset({java_hash("other")}))
    assert (nothing.status, nothing.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, count)


def test_a_sparse_tag_is_searched_in_steps(make_store: MakeStore) -> None:
    store = make_store(max_filter_message_size=16_000, mapped_file_size_consume_queue=6000)
    put_batch(store, "T", 0, [(0, b"x", b"")] * 100)
    for _ in range(9):
        put_batch(store, "T", 0, [(0, b"x", b"")] * 100)
    put(store, "T", 0, b"this", b"TAGS\x01rare")
    codes = frozenset({java_hash("rare")})
    result = store.get_message("T", 0, 0, 32, 1 << 20, codes)
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 800)
    assert store.get_message("T", 0, 800, 32, 1 << 20, codes).count == 1


def test_times(store: MessageStore, clock: Clock) -> None:
    times = [START, START, START + 10, START + 5000]
    for clock.now in times:
        put(store, "T", 0, b"")
    assert store.get_earliest_store_time("T", 0) == START
    assert [store.get_store_time("T", 0, i) for i in range(5)] == [*times, -1]
    assert store.get_offset_by_time("None", 0, START) == 0
    assert store.get_earliest_store_time("None", 0) == -1


def test_a_clock_set_back_a_little_keeps_the_order_of_times(store: MessageStore, clock: Clock) -> None:
    put(store, "T", 0, b"")
    clock.now -= 500
    assert put(store, "T", 0, b"").store_timestamp == START
    clock.now = START - 3_600_000  # an hour: that clock was wrong before
    assert put(store, "T", 0, b"").store_timestamp == clock.now


def test_prepared_and_rolled_back_messages_have_no_entry(store: MessageStore) -> None:
    for sys_flag in (4, 12):
        result = put(store, "T", 0, b"half", b"UNIQ_KEY\x01h%d" % sys_flag, sys_flag=sys_flag)
        assert result.queue_offset == 0
    assert store.get_max_offset("T", 0) == 0
    assert put(store, "T", 0, b"committed", sys_flag=8).queue_offset == 0
    assert bodies(store, "T", 0) == [b"committed"]
    assert len(store.query_message("T", "h4", 10, 0, 1 << 62).records) == 1
    assert store.query_message("T", "h12", 10, 0, 1 << 62).records == []


@pytest.mark.parametrize(
    "number",
    [{"flag": 1 << 31}, {"reconsume_times": 1 << 40}, {"born_timestamp": 1 << 63}, {"tags_code": -(1 << 64)}],
    ids=str,
)
def test_numbers_out_of_range_leave_no_trace(store: MessageStore, number: dict[str, int]) -> None:
    """Afterwards there is nothing after the log's end: no bytes of the body, and no record without an entry."""
    put(store, "T", 0, b"before")
    end = store.max_physical_offset
    values: dict[str, Any] = {"born_timestamp": 1, **number}
    result = store.put_message("T", 0, b"x" * 5000, b"", born_host=BORN, **values)
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    if "tags_code" not in values and "flag" not in values:  # a batch has none, and its messages have their own flags
        result = store.put_batch("T", 0, encode_batch_body([(0, b"x" * 5000, b"")]), born_host=BORN, **values)
        assert result.status is PutStatus.MESSAGE_ILLEGAL
        assert "range" in result.reason
    assert store.max_physical_offset == end
    assert not any((store.config.commit_log_path / ("0" * 20)).read_bytes()[end:])
    put(store, "T", 0, b"after")
    assert bodies(store, "T", 0) == [b"before", b"after"]


def test_names_of_new_directories_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[Path] = set()
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.add(Path(f"/proc/self/fd/{fd}").readlink())
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    config = small(tmp_path / "new" / "store")
    store = opened(config)
    put(store, "T", 0, b"x")
    store.flush()
    assert synced >= {tmp_path, tmp_path / "new", config.store_path, config.commit_log_path}
    store.close()


def test_delay_topic_entries_carry_the_time_of_delivery(store: MessageStore) -> None:
    for level in (b"1", b"18", b"99", b"9" * 10_000):
        put(store, "SCHEDULE_TOPIC_XXXX", 0, b"", b"TAGS\x01a\x02DELAY\x01" + level, tags_code=1)
    put(store, "SCHEDULE_TOPIC_XXXX", 0, b"", b"TAGS\x01a")
    codes = [code for _, _, code in store.get_entries("SCHEDULE_TOPIC_XXXX", 0, 0, 10)]
    assert codes == [START + 1_000, *[START + 7_200_000] * 3, java_hash("a")]


def test_arrivals_are_reported_when_they_are_readable(make_store: MakeStore) -> None:
    arrived: list[tuple[str, int, int, int, int]] = []

    def on_arrive(topic: str, queue_id: int, next_offset: int, code: int, timestamp: int) -> None:
        assert store.get_message(topic, queue_id, next_offset - 1, 1, 1).count == 1
        arrived.append((topic, queue_id, next_offset, code, timestamp))

    store = make_store(on_arrive=on_arrive)
    put(store, "T", 2, b"", b"TAGS\x01A")
    put_batch(store, "T", 2, [(0, b"", b"TAGS\x01A"), (0, b"", b"TAGS\x01B")])
    assert arrived[0] == ("T", 2, 1, java_hash("A"), START)
    assert sorted(arrived[1:]) == sorted(("T", 2, 3, java_hash(tag), START) for tag in "AB")


def test_deleted_topics_can_be_recreated(make_store: MakeStore) -> None:
    store = make_store()
    for i in range(30):
        put(store, "T", i % 3, b"old")
    assert (store.topics(), store.queues("T")) == ({"T"}, [0, 1, 2])
    assert store.delete_topic("Unknown") == 0
    assert store.delete_topic("T") == 3
    assert (store.topics(), store.queues("T"), store.get_max_offset("T", 0)) == (set(), [], 0)
    for queue_id in range(3):
        assert put(store, "T", queue_id, b"new").queue_offset == 0
    store.close()
    store = make_store()
    assert bodies(store, "T", 0) == [b"new"]


def test_start_twice_and_use_when_closed(tmp_path: Path) -> None:
    config = small(tmp_path / "store")
    store = opened(config)
    with pytest.raises(StateError):
        store.start()
    store.close()
    store.close()
    result = store.put_message("T", 0, b"", b"", born_timestamp=1, born_host=BORN)
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "closed" in result.reason


def test_defaults_are_apaches(tmp_path: Path) -> None:
    config = StoreConfig(tmp_path)
    assert config.mapped_file_size_commit_log == 1 << 30
    assert config.mapped_file_size_consume_queue == 6_000_000
    assert config.index_file_size == 420_000_040
    assert (config.mapped_file_size_timer_log, config.timer_wheel_slots * 64) == (104_857_600, 38_707_200)
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert len(config.delay_levels()) == 18


@pytest.mark.parametrize("first", [1, 300])
def test_as_many_records_as_bytes_allow(store: MessageStore, first: int) -> None:
    """Independent of the size of the first messages, which is used to estimate the number of entries to read."""
    rest = 301 - first
    for size in [first] * 64 + [rest] * 500:
        put(store, "T", 0, b"x" * size)
    everything = store.get_message("T", 0, 0, 564, 1 << 20)
    assert everything.count == 564
    for max_bytes in (1, 10_000, 20_000, 60_000, 100_000, 1 << 20):
        for max_msgs in (1, 64, 65, 400, 10_000):
            found = store.get_message("T", 0, 0, max_msgs, max_bytes)
            ends = accumulate(record.size for record in iter_records(everything.records))
            fitting = sum(end <= max_bytes for end in ends)
            assert found.count == found.next_begin_offset == max(min(fitting, max_msgs), 1)
            assert found.records == everything.records[: len(found.records)]
