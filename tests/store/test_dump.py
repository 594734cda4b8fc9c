"""Dump of a stopped store: all messages, selected ones, and all intact ones around damage."""

from __future__ import annotations

import base64
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.errors import StoreError, StoreLockedError
from spark_rocket.protocol.record.record import RecordView, view_record
from spark_rocket.store import StoreConfig
from spark_rocket.store.read_only import open_read_only
from spark_rocket.store.tools.check import check_store
from spark_rocket.store.tools.dump import BadEntries, DumpFilter, dump_log, dump_queues, host_text, to_json
from spark_rocket.store.tools.rebuild import rebuild_store
from spark_rocket.store.tools.salvage import Damage
from spark_rocket.store.tools.store_stats import store_stats
from tests.golden import expected, extract_store
from tests.kit.clock import START, Clock
from tests.store.helpers import golden, opened, overwrite, put, small

Found = RecordView | Damage | BadEntries


def dumped(config: StoreConfig, wanted: DumpFilter | None = None, *, by_queue: bool = False) -> list[Found]:
    with open_read_only(config.store_path, config) as view:
        return list((dump_queues if by_queue else dump_log)(view, wanted))


def views(found: list[Found]) -> list[RecordView]:
    return [one for one in found if isinstance(one, RecordView)]


def places(found: list[Found]) -> list[tuple[str, int, int]]:
    return [(bytes(one.topic).decode(), one.queue_id, one.queue_offset) for one in views(found)]


def damages(found: list[Found]) -> list[Damage]:
    return [one for one in found if isinstance(one, Damage)]


def log(config: StoreConfig, index: int) -> Path:
    return sorted(config.commit_log_path.iterdir())[index]


def hurt(config: StoreConfig, record: RecordView, at: int, data: bytes) -> None:
    """Overwrite bytes of a record."""
    place = record.physical_offset
    overwrite(config.commit_log_path / f"{place >> 15 << 15:020d}", place % (32 << 10) + at, data)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small(tmp_path_factory.mktemp("template") / "store")
    clock = Clock()
    store = opened(config, clock)
    for i in range(200):
        clock.now += 100
        put(store, "T" if i % 4 else "U", i % 3, b"%d-" % i * 300, b"KEYS\x01k%d all\x02UNIQ_KEY\x01u%d" % (i, i))
    store.close()
    return config.store_path


# --- everything -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean", "killed"])
@pytest.mark.parametrize("by_queue", [False, True])
def test_every_message_of_a_real_brokers_store(name: Any, by_queue: bool, tmp_path: Path) -> None:
    directory = extract_store(name, tmp_path)
    found = dumped(golden(directory), by_queue=by_queue)
    assert damages(found) == []
    every = [to_json(one) for one in views(found)]
    lines = {(line["topic"], line["queueId"], line["queueOffset"]): line for line in every}
    assert len(lines) == len(found)
    order = [line["physicalOffset"] for line in every]
    assert by_queue or order == sorted(order)
    for message in expected(name):
        line = lines[message["topic"], message["queueId"], message["queueOffset"]]
        assert (line["msgId"], line["physicalOffset"]) == (message["msgId"], message["commitLogOffset"])
        for field in ("storeSize", "storeTimestamp", "properties"):
            assert line[field] == message[field]
        if not line["sysFlag"] & 1:
            body = line["body"].encode() if "body" in line else base64.b64decode(line["bodyBase64"])
            assert body == message["body"]


def test_nothing_is_written_and_nothing_is_opened_for_writing(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (config.commit_log_path / "09999999999999999999").touch()  # a broker's start would remove these two
    (config.consume_queue_path / "T" / "0" / "00000000000000001200").write_bytes(bytes(400))
    files = [path for path in config.store_path.rglob("*") if path.is_file()]
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
    flags: list[int] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flag, *more: (flags.append(flag), real(path, flag, *more))[1])
    assert dumped(config)
    assert dumped(config, by_queue=True)
    assert check_store(config.store_path, config) == []
    with open_read_only(config.store_path, config) as view:
        assert store_stats(view).queues
    assert rebuild_store(config.store_path, config, dry_run=True).records == 200
    assert flags
    assert not any(flag & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) for flag in flags)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files} == before
    assert {path for path in config.store_path.rglob("*") if path.is_file()} == {*files}


def test_an_empty_store_and_a_running_one(tmp_path: Path) -> None:
    config = small(tmp_path / "store")
    store = opened(config)
    with pytest.raises(StoreLockedError):
        dumped(config)
    store.close()
    assert dumped(config) == []
    with pytest.raises(StoreError, match="has no queues"):
        dumped(config, by_queue=True)


# --- some -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_queue", [False, True])
@pytest.mark.parametrize(
    ("wanted", "which"),
    [
        (DumpFilter(topics=frozenset({"U"})), lambda i: i % 4 == 0),
        (DumpFilter(queue_id=2), lambda i: i % 3 == 2),
        (DumpFilter(begin_ms=START + 5_000, end_ms=START + 6_000), lambda i: 49 <= i <= 59),
        (DumpFilter(key="k17"), lambda i: i == 17),
        (DumpFilter(key="u17"), lambda i: i == 17),
        (DumpFilter(key="all", topics=frozenset({"T"}), queue_id=0), lambda i: i % 4 and i % 3 == 0),
        (DumpFilter(key="k1"), lambda i: i == 1),
        (DumpFilter(topics=frozenset({"U"}), queue_id=0, min_offset=2, max_offset=3), lambda i: i in (24, 36)),
    ],
)
def test_filters(config: StoreConfig, wanted: DumpFilter, which: Any, by_queue: bool) -> None:
    found = dumped(config, wanted, by_queue=by_queue)
    numbers = sorted(int(bytes(one.body).split(b"-")[0]) for one in views(found))
    assert numbers == [i for i in range(200) if which(i)]


def test_the_record_at_a_place(config: StoreConfig) -> None:
    record = views(dumped(config))[77]
    assert places(dumped(config, DumpFilter(physical_offset=record.physical_offset))) == places([record])
    assert dumped(config, DumpFilter(physical_offset=record.physical_offset + 1)) == []


# --- around damage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [30, -1], ids=["", "the last"])
@pytest.mark.parametrize(
    ("at", "data"),
    [(0, b"\xff" * 4), (4, b"\xff"), (32, b"\xff"), (84, b"\x7f"), (200, b"\xff"), (0, bytes(300)), (-1, b"\x7f\xff")],
    ids=["size", "magic", "place", "body length", "body", "zeros", "properties length"],
)
def test_one_bad_record_hides_no_other(config: StoreConfig, number: int, at: int, data: bytes) -> None:
    before = views(dumped(config))
    victim = before.pop(number)
    hurt(config, victim, victim.size - len(victim.properties) - 2 if at < 0 else at, data)
    after = dumped(config)
    assert places(after) == places([*before])
    (damage,) = damages(after)
    assert damage.offset == victim.physical_offset
    assert damage.length == victim.size or number < 0
    assert (damage.path, damage.position) == (log(config, damage.offset >> 15), damage.offset % (32 << 10))
    assert damage.reason
    assert str(damage.offset) in str(damage)


def test_a_lost_a_short_and_a_zeroed_file(config: StoreConfig) -> None:
    before = places(dumped(config))
    lost = places([one for one in views(dumped(config)) if one.physical_offset >> 15 == 0])
    log(config, 0).unlink()
    assert places(dumped(config)) == before[len(lost) :]
    second = log(config, 0)
    raw = second.read_bytes()
    second.write_bytes(raw[:20_000])
    with open_read_only(config.store_path, config) as view:
        assert [problem.kind for problem in view.problems] == ["files"]
        found: list[RecordView | Damage | BadEntries] = list(dump_log(view))
    (damage,) = damages(found)
    assert damage.offset + damage.length == 2 << 15
    assert 1 << 15 < damage.offset <= (1 << 15) + 20_000
    assert places(found) == [place for place in before[len(lost) :] if place in places(found)]
    second.write_bytes(bytes(len(raw)))
    found = dumped(config)
    assert [(damage.offset, damage.length) for damage in damages(found)] == [(1 << 15, 1 << 15)]
    second.unlink()
    assert damages(dumped(config)) == []  # it was the first: the log begins behind it
    log(config, 1).unlink()
    assert [damage.reason for damage in damages(dumped(config))] == ["files are missing or too short"]


def test_random_damage_never_hides_what_is_whole(config: StoreConfig) -> None:
    before = {one.physical_offset: one for one in views(dumped(config))}
    picks = random.Random(4)
    for _ in range(20):
        path = log(config, picks.randrange(len(list(config.commit_log_path.iterdir()))))
        raw = path.read_bytes()
        at, size = picks.randrange(len(raw) - 2000), picks.randrange(1, 2000)
        overwrite(path, at, picks.randbytes(size))
        start, end = int(path.name) + at, int(path.name) + at + size
        found = dumped(config)
        whole = {offset for offset, one in before.items() if offset >= end or offset + one.size <= start}
        assert whole <= {one.physical_offset for one in views(found)}
        # The heads of records are checked; topics and properties not all.
        if any(start < offset + 91 for offset in before.keys() - whole):
            assert all(one.offset < end and one.offset + one.length > start for one in damages(found))
        path.write_bytes(raw)


def test_a_body_that_looks_like_a_record_does_not_hide_damage(tmp_path: Path) -> None:
    """A sender has put a record into a body, with the correct physical offset."""
    config = small(tmp_path / "store")
    store = opened(config)
    put(store, "T", 0, b"a record")
    forged = bytearray(store.look_message_by_offset(0) or b"")
    size = len(forged)
    forged[28:36] = (size + 88).to_bytes(8, "big")
    put(store, "T", 0, bytes(forged))
    put(store, "T", 0, b"behind")
    store.close()
    overwrite(log(config, 0), size + 8, b"\xff\xff")  # the CRC
    assert [bytes(one.body) for one in views(dumped(config))] == [b"a record", b"behind"]


def test_by_queue_an_entry_without_its_record_is_reported(config: StoreConfig) -> None:
    every = views(dumped(config))
    hurt(config, next(one for one in every if places([one]) == [("T", 1, 4)]), 150, b"\xff")
    queue = config.consume_queue_path / "T" / "1" / "00000000000000000000"
    overwrite(queue, 20 * 6, every[0].physical_offset.to_bytes(8, "big"))
    overwrite(queue, 20 * 8, (1 << 40).to_bytes(8, "big"))
    found = dumped(config, DumpFilter(topics=frozenset({"T"}), queue_id=1), by_queue=True)
    reasons = [damage.reason for damage in damages(found)]
    assert [reason.split(":")[0] for reason in reasons] == [f"message {i} of T, queue 1" for i in (4, 6)]
    assert "CRC" in reasons[0]
    (bad,) = (one for one in found if isinstance(one, BadEntries))
    assert (bad.first, bad.last, bad.position) == (8, 8, 160)
    assert "the log's file is missing" in bad.reason
    assert [place[2] for place in places(found)][:6] == [0, 1, 2, 3, 5, 7]


def test_by_queue_invalid_entries_are_one_line_per_run(config: StoreConfig) -> None:
    before = places(dumped(config, DumpFilter(queue_id=1), by_queue=True))
    log(config, 1).unlink()
    overwrite(config.consume_queue_path / "T" / "1" / f"{0:020d}", 20, struct.pack(">qi", -47061, -395))
    found = dumped(config, DumpFilter(queue_id=1), by_queue=True)
    bad = [one for one in found if isinstance(one, BadEntries)]
    assert damages(found) == []
    assert str(bad[0]).endswith("at byte 20: message 1 of T, queue 1: the entry is invalid")
    assert [one.topic for one in bad] == ["T", "T", "U"]
    gone = {(one.topic, one.queue_id, number) for one in bad for number in range(one.first, one.last + 1)}
    assert gone | set(places(found)) == set(before)
    assert len(gone) > 10


# --- JSON -------------------------------------------------------------------------------------------------------


def test_json_of_bodies_and_hosts(tmp_path: Path) -> None:
    config = small(tmp_path / "store")
    store = opened(config)
    put(store, "T", 0, "žluť".encode(), b"a\x01b")
    put(store, "T", 0, b"\xff\xfe")
    raw = store.look_message_by_offset(0)
    store.close()
    assert raw is not None
    first, second = map(to_json, views(dumped(config)))
    assert (first["body"], first["properties"]) == ("žluť", {"a": "b"})
    assert base64.b64decode(second["bodyBase64"]) == b"\xff\xfe"
    assert "body" not in second
    assert first["bornHost"] == "127.0.0.1:50000"
    assert first["msgId"] == f"7F00000100002A9F{0:016X}"
    assert first["bodyCRC"] == view_record(raw).body_crc
    assert host_text(bytes(15) + b"\1" + (80).to_bytes(4, "big")) == "[::1]:80"
