"""The index: Java's hashes, chains, full files, catching up, and queries."""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_rocket.errors import StoreError
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.layout import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.record import decode_record
from spark_rocket.store import MessageStore
from spark_rocket.store.index import index_file, index_service
from spark_rocket.store.index import keys as index_keys
from spark_rocket.store.index import search as index_search
from spark_rocket.store.index.index_file import DamagedIndexError, IndexFile
from spark_rocket.store.index.index_service import IndexService
from spark_rocket.store.index.keys import key_hash
from spark_rocket.store.log.record_scan import LogScan, RecordBlock
from spark_rocket.store.tools.check import check_store
from tests.kit.clock import START, Clock
from tests.kit.waiting import until
from tests.store.conftest import MakeStore
from tests.store.helpers import index_of, log_of, opened, put, put_batch, small

FOREVER = 1 << 62
PARTS = st.sampled_from(
    [b"UNIQ_KEY\x01", b"KEYS\x01", b"\x01", b"\x02", b" ", b"a", b"bcd", b"x" * 40, "é😀".encode(), b"\xff"]
)


def query(store: MessageStore, topic: str, key: str, *, limit: int = 100, unique: bool = False) -> list[bytes]:
    result = store.query_message(topic, key, limit, 0, FOREVER, unique)
    return [decode_record(record).body for record in result.records]


def fill(store: MessageStore, count: int) -> None:
    for number in range(count):
        put(store, "T", 0, b"%d" % number, b"KEYS\x01k%d" % number)


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of entries that queries look at, in the list's only place."""
    steps, real = [0], IndexFile.find

    def find(file: IndexFile, key_hash: int, begin: int, end: int) -> Iterator[int | None]:
        for offset in real(file, key_hash, begin, end):
            steps[0] += 1
            yield offset

    monkeypatch.setattr(IndexFile, "find", find)
    return steps


class SlowFlush:
    """``IndexFile.flush`` of the builder's thread that waits for ``go_on`` and may fail once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, number: int = 0) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        real = IndexFile.flush

        def flush(file: IndexFile) -> None:
            if threading.current_thread().name == "store-index" and not self.reached.is_set():
                self.reached.set()
                if number:
                    raise OSError(number, os.strerror(number))
                assert self.go_on.wait(60)
            real(file)

        monkeypatch.setattr(IndexFile, "flush", flush)


def test_hash_of_a_key() -> None:
    assert key_hash("GoldenA", "key-0") == abs(java_hash("GoldenA#key-0"))
    # "polygenelubricants" is the well-known word whose hash has no absolute value.
    assert java_hash("polygenelubricants") == -(2**31)
    assert key_hash("", "x") == abs(java_hash("#x"))


class ReferenceIndex:
    """IndexFile.putKey as RocketMQ describes it, one key at a time."""

    def __init__(self, slots: int) -> None:
        self.table = [0] * slots
        self.entries = [(0, 0, 0, 0)]
        self.begin: tuple[int, int] | None = None
        self.end = (0, 0)

    def put(self, hashed: int, offset: int, timestamp: int) -> None:
        if self.begin is None:
            self.begin = (timestamp, offset)
        slot = hashed % len(self.table)
        self.entries.append((hashed, offset, (timestamp - self.begin[0]) // 1000, self.table[slot]))
        self.table[slot] = len(self.entries) - 1
        self.end = (timestamp, offset)

    def bytes(self, capacity: int) -> bytes:
        assert self.begin is not None
        used = sum(1 for head in self.table if head)
        header = struct.pack(">4q2i", self.begin[0], self.end[0], self.begin[1], self.end[1], used, len(self.entries))
        entries = b"".join(struct.pack(">iqii", *entry) for entry in self.entries)
        return header + struct.pack(f">{len(self.table)}i", *self.table) + entries.ljust(capacity * 20, b"\0")


@settings(max_examples=40, deadline=None)
@given(
    rounds=st.lists(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 30), max_size=30), min_size=1, max_size=6),
    step=st.integers(0, 3000),
)
def test_a_file_equals_one_with_keys_inserted_one_at_a_time(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[int]], step: int
) -> None:
    slots, capacity = 7, 100
    path = tmp_path_factory.mktemp("index") / "20260101000000000"
    file, reference = IndexFile(path, slots, capacity, create=True), ReferenceIndex(slots)
    total = 0
    for hashes in rounds:
        numbers = np.arange(total, total + len(hashes))
        taken = file.put(np.array(hashes, np.int32), numbers * 100, START + numbers * step)
        assert taken == min(len(hashes), capacity - 1 - total)
        for i, hashed in enumerate(hashes[:taken]):
            reference.put(hashed, (total + i) * 100, START + (total + i) * step)
        total += taken
        if taken < len(hashes):
            assert file.is_full
            break
    file.close()
    if total:
        assert path.read_bytes() == reference.bytes(capacity)
        again = IndexFile(path, slots, capacity)
        assert (again.count, again.slot_count) == (total + 1, sum(1 for head in reference.table if head))
        again.close()


def test_every_kind_of_key(store: MessageStore) -> None:
    put(store, "T", 0, b"a", b"KEYS\x01one two  three \x02UNIQ_KEY\x01U1\x02TAGS\x01x")
    put(store, "T", 0, b"b", b"UNIQ_KEY\x01one\x02")
    put(store, "Other", 0, b"c", b"KEYS\x01one")
    put(store, "T", 0, b"d", "KEYS\x01ключ 钥匙 \U0001f511\x02UNIQ_KEY\x01ünïq".encode())
    put(store, "T", 0, b"e")
    put(store, "T", 0, b"KEYS\x01body", b"NOKEYS\x01fake\x02a\x01UNIQ_KEY")
    assert query(store, "T", "one") == [b"a", b"b"]
    assert query(store, "T", "one", unique=True) == [b"b"]
    assert query(store, "T", "two") == query(store, "T", "three") == query(store, "T", "U1") == [b"a"]
    assert query(store, "Other", "one") == [b"c"]
    for key in ("ключ", "钥匙", "\U0001f511", "ünïq"):
        assert query(store, "T", key) == [b"d"]
    for key in ("fake", "body", "", "x", "one two"):
        assert query(store, "T", key) == []


def test_files_fill_up_and_keys_stay_findable(make_store: MakeStore, clock: Clock) -> None:
    store = make_store()
    for i in range(500):
        clock.now += 400
        put(store, "T", 0, b"%d" % i, b"KEYS\x01k%d all\x02UNIQ_KEY\x01u%d" % (i, i))
        if i % 97 == 0:
            assert query(store, "T", f"k{i}") == [b"%d" % i]
    assert [query(store, "T", f"k{i}") for i in range(0, 500, 7)] == [[b"%d" % i] for i in range(0, 500, 7)]
    assert query(store, "T", "all", limit=3) == [b"497", b"498", b"499"]
    assert len(query(store, "T", "all", limit=10_000)) == 500
    files = sorted(store.config.index_path.iterdir())
    assert len(files) == 1500 // 199 + 1
    assert all(len(file.name) == 17 and file.name.isdecimal() for file in files)
    store.close()
    checkpoint = (store.config.store_path / "checkpoint").read_bytes()
    assert START < int.from_bytes(checkpoint[16:24], "big") < clock.now
    store = make_store()
    assert query(store, "T", "u250", unique=True) == [b"250"]


def test_an_index_that_was_switched_off_catches_up(make_store: MakeStore, tmp_path: Path) -> None:
    store = make_store(message_index_enable=False)
    put(store, "T", 0, b"1", b"KEYS\x01k")
    assert store.query_message("T", "k", 1, 0, FOREVER).records == []
    store.close()
    assert not store.config.index_path.exists()
    store = make_store()
    assert query(store, "T", "k") == [b"1"]


def test_a_response_is_bounded_in_bytes(make_store: MakeStore) -> None:
    store = make_store(mapped_file_size_commit_log=4 << 20)
    bodies = [b"%d" % i * (3 << 20) for i in range(4)]
    for body in bodies:
        put(store, "T", 0, body, b"KEYS\x01k")
    assert query(store, "T", "k") == bodies[2:]  # the newest
    assert query(store, "T", "k", limit=1) == bodies[3:]


def test_even_one_record_larger_than_the_bound_is_answered(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_search, "_MAX_BYTES", 10)
    for body in (b"first", b"second"):
        put(store, "T", 0, body, b"KEYS\x01k")
    assert query(store, "T", "k") == [b"second"]


@pytest.mark.parametrize("wanted", ["all", "none"])
def test_a_query_does_not_walk_a_whole_chain(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    """The only slot of this index has a chain of 2,000 entries of one key."""
    assert java_hash("T#Aa") == java_hash("T#BB")
    store = make_store(max_hash_slot_num=1, max_index_num=10_000)
    for _ in range(20):
        put_batch(store, "T", 0, [(0, b"x", b"KEYS\x01Aa")] * 100)
    assert len(query(store, "T", "Aa", limit=5000)) == 2000
    steps = count_steps(monkeypatch)
    if wanted == "all":
        assert query(store, "T", "Aa", limit=3) == [b"x"] * 3
        assert steps == [3]
        return
    monkeypatch.setattr(index_search, "_MAX_MISMATCHES", 70)
    assert query(store, "T", "BB") == []  # every record of the chain has to be looked at
    assert steps == [70]
    monkeypatch.setattr(index_search, "_MAX_STEPS", 50)
    assert query(store, "T", "other") == []  # no record of the chain has that hash
    assert steps == [120]


@pytest.mark.parametrize(
    ("count", "body", "more"),
    [(12, b"b", b"\x02x\x01" + b"y" * 31_000), (8, b"b" * 400_000, b"")],
    ids=["properties", "body"],
)
def test_a_query_reads_few_long_records_that_do_not_match(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, count: int, body: bytes, more: bytes
) -> None:
    """All keys have the same hash, so the record of each message has to be read."""
    monkeypatch.setattr(index_search, "_MAX_MISMATCHED_BYTES", 1 << 20)
    store = make_store(mapped_file_size_commit_log=32 << 20, max_hash_slot_num=1, max_index_num=10_000)
    put_batch(store, "T", 0, [(0, b"first", b"KEYS\x01BB")])
    for expected in ([b"first"], [b"first"], []):
        for _ in range(count):
            put_batch(store, "T", 0, [(0, body, b"KEYS\x01Aa" + more)])
        assert query(store, "T", "BB") == expected
    assert len(query(store, "T", "Aa", limit=3)) == 3


# --- exactly what a brute force finds ---------------------------------------------------------------------------

KEYS = ("Aa", "BB", "k", "Aa BB", "k k", " k", "AaAa BBBB", "AaBB k", "")


@settings(max_examples=30, deadline=None)
@given(
    messages=st.lists(st.tuples(st.integers(0, 1500), st.sampled_from(KEYS)), min_size=1, max_size=150),
    windows=st.lists(
        st.tuples(st.integers(-2, 160), st.integers(0, 160), st.integers(-1, 1), st.integers(-1, 1)), min_size=1
    ),
    limit=st.integers(1, 200),
    trimmed=st.booleans(),
)
def test_time_ranges_find_the_same_as_a_full_scan(
    tmp_path_factory: pytest.TempPathFactory,
    messages: list[tuple[int, str]],
    windows: list[tuple[int, int, int, int]],
    limit: int,
    trimmed: bool,
) -> None:
    """Equal times, gaps, hash collisions, keys with spaces, several files, windows to the ms, a trimmed log."""
    config = small(
        tmp_path_factory.mktemp("index") / "store",
        mapped_file_size_commit_log=4096,
        max_hash_slot_num=2,
        max_index_num=50,
    )
    clock = Clock()
    store = opened(config, clock)
    stored: list[tuple[int, int, list[str], bytes]] = []
    for number, (gap, keys) in enumerate(messages):
        clock.now += gap
        result = put(store, "T", 0, b"%d" % number, f"KEYS\x01{keys}\x02UNIQ_KEY\x01u{number % 7}".encode())
        record = store.look_message_by_offset(result.physical_offset)
        assert record is not None
        stored.append((clock.now, result.physical_offset, [*keys.split(), f"u{number % 7}"], record))
    if trimmed and store.max_physical_offset > 2 * 4096:
        store.close()
        sorted(config.commit_log_path.iterdir())[0].unlink()
        store = opened(config, clock)
    times = [time for time, *_ in stored]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_file, "_MAX_CHAIN_MISMATCHES", 3)
        patch.setattr(index_file, "_BLOCK_ENTRIES", 4)
        for at, length, before, after in windows:
            begin = times[min(max(at, 0), len(times) - 1)] + before
            end = times[min(max(at, 0) + length, len(times) - 1)] + after
            for key in ("Aa", "BB", "k", "AaBB", "BBAa", "AaAa", "u3", "none"):
                wanted = [
                    record
                    for time, offset, keys_of_it, record in stored
                    if key in keys_of_it and begin <= time <= end and offset >= store.min_physical_offset
                ]
                assert store.query_message("T", key, limit, begin, end).records == wanted[-limit:]
    store.close()
    assert check_store(config.store_path, config) == []


def test_an_old_window_of_a_busy_key_is_found_in_bounded_time(
    make_store: MakeStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12,000 newer messages of the key, and as many of another key in its slot, are not read."""
    store = make_store(max_hash_slot_num=1, max_index_num=50_000, mapped_file_size_commit_log=64 << 20)
    for body in (b"first", b"second"):
        put(store, "T", 0, body, b"KEYS\x01Aa")
        clock.now += 1
    for key in (b"Aa", b"other"):
        for _ in range(12):
            put_batch(store, "T", 0, [(0, b"x", b"KEYS\x01" + key)] * 1000)
    clock.now += 1
    put(store, "T", 0, b"last", b"KEYS\x01Aa")
    steps = count_steps(monkeypatch)
    for at, body in enumerate((b"first", b"second"), START):
        found = store.query_message("T", "Aa", 100, at, at)
        assert [decode_record(record).body for record in found.records] == [body]
    assert steps[0] < 10_000
    assert query(store, "T", "Aa", limit=2) == [b"x", b"last"]  # over the other key's, in the same slot


def test_an_index_that_is_behind_reports_its_progress(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "T", 0, b"1", b"KEYS\x01k")
    assert query(store, "T", "k") == [b"1"]
    monkeypatch.setattr(IndexService, "_step", lambda *_: False)
    at = put(store, "T", 0, b"2", b"KEYS\x01k").physical_offset
    result = store.query_message("T", "k", 10, 0, FOREVER)
    assert len(result.records) == 1
    assert result.index_last_update_physical_offset < at


# --- beside others ----------------------------------------------------------------------------------------------


def test_waiters_are_notified_and_the_thread_does_not_pause(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_service, "_POLL_S", 1000)  # the builder runs only for a waiter
    store = make_store()
    fill(store, 1000)
    assert not store.is_indexed
    told = threading.Event()
    store.when_indexed(told.set, 60)
    assert told.wait(60)
    assert store.is_indexed
    assert len(store.query_message("T", "k999", 10, 0, FOREVER, catch_up=False).records) == 1
    told.clear()
    store.when_indexed(told.set, 60)
    assert told.is_set(), "there is nothing to wait for"


def test_waiters_are_notified_of_a_failure(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_service, "_POLL_S", 0.01)
    monkeypatch.setattr(IndexService, "_step", lambda *_: False)
    store = make_store()
    put(store, "T", 0, b"1", b"KEYS\x01k")
    calls: list[str] = []
    told = threading.Event()

    def mistaken() -> None:
        calls.append("mistaken")
        raise RuntimeError("mine")

    store.when_indexed(mistaken, 0)
    store.when_indexed(told.set, 0)
    assert told.wait(60)
    assert calls == ["mistaken"]
    told.clear()
    store.when_indexed(told.set, 1000)
    assert not told.is_set()
    monkeypatch.undo()
    store.close()
    assert told.is_set(), "at the latest when the store is closed"


def test_a_full_file_is_flushed_during_queries(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowFlush(monkeypatch)
    store = make_store()
    fill(store, 450)  # two files and a half
    assert disk.reached.wait(60)
    assert query(store, "T", "k0") == [b"0"]
    assert query(store, "T", "k449") == [b"449"]
    assert index_of(store).trim(0) == []
    assert indexed_to(store) == 0, "not before it is on disk"
    disk.go_on.set()
    assert until(lambda: indexed_to(store)) == START


def indexed_to(store: MessageStore) -> int:
    """The store time in the checkpoint up to which the index is on disk."""
    store.flush()
    return int.from_bytes((store.config.store_path / "checkpoint").read_bytes()[16:24], "big")


@pytest.mark.parametrize("damage", ["slot", "hash", "previous"])
def test_a_query_finds_a_broken_chain_and_the_file_is_rebuilt(
    make_store: MakeStore, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    store = make_store()
    fill(store, 150)
    store.close()
    (path,) = store.config.index_path.iterdir()
    before = path.read_bytes()
    data = bytearray(before)
    slot = key_hash("T", "k77") % 50
    place = 40 + 4 * slot
    if damage != "slot":
        place = 40 + 4 * 50 + 20 * int.from_bytes(data[place : place + 4], "big") + (16 if damage == "previous" else 0)
    data[place : place + 4] = (149 if damage == "previous" else 0x01000000 * 50 + (slot + 1) % 50).to_bytes(4, "big")
    path.write_bytes(data)
    store = make_store()
    assert query(store, "T", "k77") == [b"77"]
    at = place - 16 if damage == "previous" else place
    assert f"{path} at byte {at}: " in caplog.text
    assert "Rebuilding the index from that file on." in caplog.text
    store.close()
    assert [path.read_bytes() for path in store.config.index_path.iterdir()] == [before]


def test_a_file_that_is_rebuilt_while_it_is_flushed(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SlowFlush(monkeypatch)
    store = make_store()
    fill(store, 450)
    assert disk.reached.wait(60)
    find = IndexFile.find

    def broken(*_: object) -> Iterator[int]:
        monkeypatch.setattr(IndexFile, "find", find)
        raise DamagedIndexError("A chain is broken.")

    monkeypatch.setattr(IndexFile, "find", broken)
    assert query(store, "T", "k0") == [b"0"]
    assert "Rebuilding the index from that file on." in caplog.text
    disk.go_on.set()
    told = threading.Event()
    store.when_indexed(told.set, 60)
    assert told.wait(60)
    assert store.is_indexed
    assert [query(store, "T", f"k{number}") for number in (0, 200, 449)] == [[b"0"], [b"200"], [b"449"]]


def test_a_full_file_that_cannot_be_flushed_is_never_trusted(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SlowFlush(monkeypatch, number=errno.EIO)
    store = make_store()
    fill(store, 450)
    assert disk.reached.wait(60)
    assert query(store, "T", "k449") == [b"449"], "what is in memory can be found"
    with pytest.raises(StoreError, match=r"The flush of the store in .* failed"):
        store.close()
    assert int.from_bytes((store.config.store_path / "checkpoint").read_bytes()[16:24], "big") == 0
    assert "failed: [Errno 5] Input/output error" in caplog.text
    store = make_store()
    assert query(store, "T", "k0") == [b"0"]


@pytest.mark.parametrize(
    "properties",
    [
        "UNIQ_KEY\x01{n:032X}\x02KEYS\x01key{n:04d}\x02TAGS\x01A",
        "KEYS\x01key{n:04d}\x02UNIQ_KEY\x01{n:032X}\x02",
        "KEYS\x01no\x02TAGS\x01A\x02KEYS\x01key{n:04d}",
        "XKEYS\x01{n:02d}\x02KEYS\x02UNIQ_KEY\x01a\x01b{n:02d}",
        "KEYS\x01key {n:02d}\x02UNIQ_KEY\x01{n:02d}",
        "KEYS\x01größe{n:02d}\x02UNIQ_KEY\x01{n:02d}",
        "KEYS\x01\x02UNIQ_KEY\x01{n:02d}",
        "UNIQ_KEY\x01\x02KEYS\x01{n:02d}",
        "{n:02d}\x01name\x02KEYS\x01{n:02d}",
        "KEYS\x01{n}",  # not all as long
        "TAGS\x01{n:02d}",
        "",
    ],
)
@pytest.mark.parametrize("topics", ["T", "TU", "Größe"])
def test_keys_of_many_records(properties: str, topics: str, store: MessageStore) -> None:
    topic = topics if len(topics) > 2 else ""
    for n in range(40):
        put(
            store, topic or topics[n % len(topics)], 0, b"body", properties.format(n=n).encode(), sys_flag=12 * (n == 7)
        )
    (block,) = LogScan(log_of(store).queue, 0, store.max_physical_offset)
    numbers, hashes = index_keys.keys_of(block)
    assert list(zip(numbers.tolist(), hashes.tolist(), strict=True)) == list(keys_one_by_one(block))


def keys_one_by_one(block: RecordBlock) -> Iterator[tuple[int, int]]:
    """Yield record number and hash of each key, record by record."""
    for record, topic in enumerate(block.topics()):
        raw = block.data[int(block.property_starts[record]) : int(block.property_ends[record])]
        unique = find_property(raw, b"UNIQ_KEY")
        words = [word for word in (find_property(raw, b"KEYS") or b"").split(b" ") if word]
        if int(block.sys_flags[record]) & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
            for key in [unique, *words] if unique is not None else words:
                yield record, key_hash(topic, key.decode("utf-8", "replace"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from("TU"), st.lists(PARTS, max_size=9).map(b"".join)), min_size=1, max_size=9))
def test_keys_of_any_properties(store: MessageStore, messages: list[tuple[str, bytes]]) -> None:
    start = store.max_physical_offset
    for topic, properties in messages:
        put(store, topic, 0, b"body", properties)
    for block in LogScan(log_of(store).queue, start, store.max_physical_offset):
        numbers, hashes = index_keys.keys_of(block)
        assert list(zip(numbers.tolist(), hashes.tolist(), strict=True)) == list(keys_one_by_one(block))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from("TU"),
            st.integers(0, 100),
            st.lists(PARTS, max_size=5).map(b"".join),
            st.sampled_from(
                [b"", b"CLUSTER\x01c", b"WAIT\x01true\x02", b"KEYS\x01of all", b"A\x01b\x02UNIQ_KEY\x01of-all"]
            ),
        ),
        max_size=12,
    ),
    st.integers(1, 70),
    st.integers(0, 3),
)
def test_keys_of_noted_batches_are_those_of_a_scan(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    puts: list[tuple[str, int, bytes, bytes]],
    records: int,
    most: int,
) -> None:
    monkeypatch.setattr(index_service, "_POLL_S", 1000)  # nothing is done behind the writer's back
    monkeypatch.setattr(index_service, "_MAX_NOTED_RUNS", (1, 3, 5, 4096)[most])
    clock = Clock()
    store = opened(small(tmp_path_factory.mktemp("store"), max_index_num=5000), clock)
    index = index_of(store)
    for topic, count, properties, of_batch in puts:
        clock.now += 700
        if count:
            messages = [(0, b"x" * (n % 7), b"UNIQ_KEY\x01%d\x02" % n + properties) for n in range(count)]
            put_batch(store, topic, 0, messages, batch_properties=of_batch)
        else:
            put(store, topic, 0, b"body", properties)
            index._step(records)  # now and then between
    while index.behind and index._step(records):
        pass
    expected: list[tuple[int, int, int]] = []
    for block in LogScan(log_of(store).queue, 0, store.max_physical_offset):
        numbers, hashes = index_keys.keys_of(block)
        times = (block.store_timestamps[numbers] - START) // 1000
        expected += zip(hashes.tolist(), block.physical_offsets[numbers].tolist(), times.tolist(), strict=True)
    found: list[tuple[int, int, int]] = []
    for file in index._files:
        entries = np.frombuffer(
            file.file.read(file.entries_at, index_file.INDEX_ENTRY_SIZE * file.count), index_file.INDEX_ENTRY_TYPE
        )[1:]
        times = (entries["time_difference"].astype(int) * 1000 + file.begin_timestamp - START) // 1000
        found += zip(entries["key_hash"].tolist(), entries["physical_offset"].tolist(), times.tolist(), strict=True)
    store.close()
    assert [entry[:2] for entry in found] == [entry[:2] for entry in expected]
    assert all(abs(one[2] - other[2]) <= 1 for one, other in zip(found, expected, strict=True))


def test_a_stop_does_not_wait_long_for_the_index(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_service, "_POLL_S", 1000)  # nothing is done behind the writer's back
    monkeypatch.setattr(index_service, "_CLOSE_TIMEOUT_S", -1.0)
    store = make_store(mapped_file_size_commit_log=8 << 20, max_index_num=5000)
    for _ in range(3000):
        put(store, "T", 0, b"x" * 1000, b"KEYS\x01late")
    store.close()
    assert index_of(store).behind > 1 << 20
    monkeypatch.undo()
    again = make_store(store.config)
    assert len(again.query_message("T", "late", 5000, 0, 1 << 60).records) == 3000
