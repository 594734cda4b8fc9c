"""Timed messages through restarts, kills, lost and damaged files, and full disks."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from struct import pack

import pytest

from spark_rocket.errors import StoreCorruptError, StoreNotWritableError
from spark_rocket.store import MessageStore
from spark_rocket.store.results import GetMessageResult
from tests.kit.clock import START
from tests.store.conftest import MakeRig
from tests.store.helpers import close_right, put, refuse_writes
from tests.store.timer_rig import TIMER_TOPIC, Rig, small_timer


def test_a_restart_in_the_middle_of_a_second_repeats_nothing(rig: Rig) -> None:
    for n in range(9):
        rig.send(START + 1100 + 100 * n, str(n))
    rig.recall(START + 1800, "7")
    rig.advance(START + 1450)
    assert len(rig.arrived()) == 4
    rig.restart()
    assert len(rig.arrived()) == 4
    rig.advance(START + 5000)
    times = {str(n): START + 1100 + 100 * n for n in range(9) if n != 7}
    assert rig.arrived() == list(times.items())


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no wheel": lambda path: (path / "timerwheel").unlink(),
    "short wheel": lambda path: (path / "timerwheel").write_bytes(b"short"),
    "garbled wheel": lambda path: (path / "timerwheel").write_bytes(bytes(range(256)) * 25),
    "no timer log": lambda path: shutil.rmtree(path / "timerlog"),
    "no last file": lambda path: sorted((path / "timerlog").iterdir())[-1].unlink(),
    "garbled unit": lambda path: garble(path, 52 * 3),
    "zeros": lambda path: garble(path, 0, bytes(536)),
    "a link to elsewhere": lambda path: garble(path, 52 * 9 + 4, pack(">q", 0)),
    "no checkpoint": lambda path: (path / "config" / "timercheck").unlink(),
}


def garble(path: Path, at: int, data: bytes = b"\xff\xee\xdd") -> None:
    with min((path / "timerlog").iterdir()).open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_files_are_rebuilt(rig: Rig, kind: str) -> None:
    for n in range(25):
        rig.send(START + 1000 + 300 * n, str(n))
    rig.recall(START + 1000 + 300 * 20, "20")
    rig.advance(START + 4100)
    before = rig.keys()
    rig.close()
    DAMAGE[kind](rig.config.store_path)
    rig.open()
    rig.advance(START + 20_000)
    keys = rig.keys()
    assert keys[: len(before)] == before
    assert set(keys) == {str(n) for n in range(25) if n != 20}


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_rebuilt_after_the_clock_was_set_back(rig: Rig, restarts: int) -> None:
    """As on a broker that replaces one with a clock hours ahead, and on its replacement."""
    rig.send(START + 500, "before")
    rig.advance(START + 3_600_000)
    rig.clock.now = START + 1_000
    rig.restart()
    rig.send(START + 5_000, "soon")
    rig.send(START + 60_000, "in a minute")
    rig.advance(START + 10_000)
    for _ in range(restarts):
        rig.restart()
        rig.send(START + 40_000, "again")
        rig.work()
    rig.close()
    shutil.rmtree(rig.config.store_path / "timerlog")
    rig.open()
    rig.advance(START + 120_000)
    keys = rig.keys()
    assert keys[:2] == ["before", "soon"]
    assert {"in a minute", *["again"] * bool(restarts)} <= set(keys)
    assert keys.count("before") == 1, "what was delivered before the clock was set back is so still"


@pytest.mark.parametrize("seed", range(25))
def test_damage_anywhere(tmp_path: Path, seed: int) -> None:
    """Refused by name, or no pending message is lost and no recalled one is delivered.

    Units have no checksum: what is damaged here is more than one of them, as a page of a disk is.
    """
    chance = random.Random(seed)
    rig = Rig(small_timer(tmp_path / "store"))
    for n in range(18):
        rig.send(START + 1000 + 300 * n, str(n))
    rig.send(START + 40_500, "far")
    rig.recall(START + 1000 + 300 * 14, "14")
    rig.advance(START + chance.choice([0, 1900, 2500, 3100]))
    before = set(rig.keys())
    rig.close()
    files = [*sorted((rig.config.store_path / "timerlog").iterdir()), rig.config.store_path / "config" / "timercheck"]
    path = chance.choice(files)
    raw = bytearray(path.read_bytes())
    used = 56 if path.name == "timercheck" else 520
    at, length = chance.randrange(used), chance.choice([60, 200, 536])
    kind = chance.choice(["cut", "zeros", "garbled", "garbled", "garbled"])
    if kind == "cut":
        raw = raw[:at]
    else:
        raw[at : at + length] = (bytes(length) if kind == "zeros" else chance.randbytes(length))[: len(raw) - at]
    path.write_bytes(raw)
    try:
        rig.open()
    except StoreCorruptError as refusal:
        rig.store.close()
        if path.name not in str(refusal):
            raise
        return
    rig.advance(START + 90_000)
    after = set(rig.keys())
    assert "14" not in after
    if path.name != "timercheck":  # a smaller time or offset is valid; a larger one cannot be detected
        assert after == before | {str(n) for n in range(18) if n != 14} | {"far"}
    rig.timer.close()
    close_right(rig.store)


@pytest.mark.parametrize(
    ("name", "content", "report", "remedy"),
    [
        pytest.param("config/timercheck", b"x" * 100, "has 100 bytes", "", id="length"),
        pytest.param("config/timercheck", b"\xff" * 4096, "negative", "", id="negative"),
        pytest.param("config/timercheck", pack(">7q", START * 2, *[0] * 6), "future", "Check the clock", id="future"),
        pytest.param(f"timerlog/{0:020d}", b"x" * 100, "mappedFileSizeTimerLog", "rebuilt", id="timer log"),
    ],
)
def test_an_invalid_file_is_refused_by_name(rig: Rig, name: str, content: bytes, report: str, remedy: str) -> None:
    rig.send(START + 1000, "k")
    rig.work()
    rig.close()
    path = rig.config.store_path / name
    kept = path.read_bytes()
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError, match=report) as refusal:
        rig.open()
    assert str(path) in str(refusal.value)
    assert remedy in refusal.value.remedy
    rig.store.close()
    path.write_bytes(kept)
    rig.open()


def test_full_files_of_the_past_are_removed(rig: Rig) -> None:
    for n in range(35):
        rig.send(START + 1000 + 1000 * (n // 10), str(n))
    rig.advance(START + 2500)
    rig.flush()
    names = sorted(path.name for path in (rig.config.store_path / "timerlog").iterdir())
    assert names == [f"{offset:020d}" for offset in (1072, 1608)]
    rig.restart()
    rig.advance(START + 9000)
    assert rig.keys() == [str(n) for n in range(35)]


def test_a_message_without_a_time_is_skipped(rig: Rig) -> None:
    put(rig.store, TIMER_TOPIC, 0, b"foreign", b"")
    rig.send(START + 1500, "k")
    rig.advance(START + 2000)
    assert rig.keys() == ["k"]


def test_a_stop_like_apaches(rig: Rig) -> None:
    """Its checkpoint and wheel are one flush behind its timer log; units of delivered messages remain."""
    for n in range(12):
        rig.send(START + 3000 + 100 * n, str(n))
    rig.work()
    rig.close()
    path = rig.config.store_path
    with (path / "config" / "timercheck").open("r+b") as file:
        file.seek(8)
        file.write(pack(">qqq", 52 * 4, 12, 12))
    (path / "timerwheel").write_bytes(bytes(6400))
    rig.open()
    rig.advance(START + 9000)
    assert rig.arrived() == [(str(n), START + 3000 + 100 * n) for n in range(12)]


def test_deliveries_wait_for_a_store_that_refuses_writes(rig: Rig) -> None:
    rig.send(START + 1500, "k")
    rig.send(START + 25_000, "rolled")
    rig.work()
    for time in (START + 1500, START + 11_000):
        rig.clock.now = time
        refusal = StoreNotWritableError("The disk is full.")
        refuse_writes(rig.store, refusal)
        assert rig.timer.deliver(time, 1.0) == time + 1000
        refuse_writes(rig.store, None)
        rig.work()
    rig.advance(START + 30_000)
    assert rig.keys() == ["k", "rolled"]


def test_an_unreadable_record_stops_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(5):
        rig.send(START + 1500, str(n))
    get = rig.store.get_message

    def garbled(topic: str, queue_id: int, offset: int, count: int, size: int) -> GetMessageResult:
        result = get(topic, queue_id, offset, count, size)
        if offset <= 2 < offset + result.count:
            result.records = bytes(result.records).replace(b"2TIMER", b"2XTIMER").replace(b"UNIQ_KEY\x012", b"")
        return result

    monkeypatch.setattr(rig.store, "get_message", garbled)
    rig.work()
    monkeypatch.undo()
    rig.advance(START + 3000)
    assert rig.keys() == ["0", "1", "3", "4"]
    assert "Message 2 of rmq_sys_wheel_timer is not delivered" in caplog.text


def test_rolling_needs_no_room_among_the_properties(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig(small_timer(tmp_path / "store", mapped_file_size_commit_log=128 << 10))
    rig.send(START + 30_000, "k", TIMER_DELIVER_MS=str(START + 30_000), pad="x" * 32_640)
    rig.advance(START + 30_000)
    assert rig.keys() == ["k"]


def test_messages_that_cannot_be_stored_are_logged(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.send(START + 30_000, "a long key")
    rig.work()
    rig.close()
    config, rig.config = rig.config, replace(rig.config, max_message_size=5)
    rig.open()
    rig.advance(START + 30_000)
    assert rig.arrived() == []
    assert "is not delivered to rmq_sys_wheel_timer" in caplog.text
    rig.config = config


def test_entries_removed_while_the_broker_was_stopped_are_counted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(4):
        rig.send(START + 5500, str(n))
    rig.work()
    rig.close()
    path = rig.config.store_path / "config" / "timercheck"
    raw = path.read_bytes()
    path.write_bytes(raw[:8] + pack(">q", 52) + pack(">q", 1) + raw[24:])
    shutil.rmtree(rig.config.store_path / "timerlog")
    monkeypatch.setattr(MessageStore, "get_min_offset", lambda *_: 3)
    rig.open()
    monkeypatch.undo()
    rig.advance(START + 9000)
    assert "2 timed messages were removed" in caplog.text
