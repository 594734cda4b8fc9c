"""Timed messages: delivered at their millisecond, recalled, rolled; and the bytes of the files."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest

from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.record import decode_record
from tests.kit.clock import START, Clock
from tests.store.conftest import MakeRig
from tests.store.helpers import put
from tests.store.timer_rig import Rig, killed, small_timer

# --- delivery --------------------------------------------------------------------------------------------------------


def test_each_is_delivered_at_its_millisecond(rig: Rig) -> None:
    times = [START + 5000, START + 1, START + 1234, START + 1000, START + 1001, START + 4999, START + 5001]
    for time in times:
        rig.send(time, str(time))
    rig.advance(START + 10_000)
    assert rig.arrived() == [(str(time), time) for time in sorted(times)]


def test_equal_times_keep_the_order_of_arrival(rig: Rig) -> None:
    keys = [f"k{n}" for n in range(30)]
    for key in keys:
        rig.send(START + 2500, key)
    rig.advance(START + 2499)
    assert rig.arrived() == []
    rig.advance(START + 2500)
    assert rig.arrived() == [(key, START + 2500) for key in keys]


def test_it_records_the_time_of_the_last_delivery(rig: Rig) -> None:
    assert rig.timer.is_done_to(START)
    rig.send(START + 2500, "k")
    assert not rig.timer.is_done_to(START)  # it has not been looked at yet
    rig.timer.deliver(START + 2400, 1.0)
    assert rig.timer.is_done_to(START + 2499)
    assert not rig.timer.is_done_to(START + 2500)
    assert not rig.timer.is_done_to(START + 60_000)  # what is due then has not been loaded
    rig.timer.deliver(START + 2500, 1.0)
    assert rig.timer.is_done_to(START + 2500)


def test_delays_count_from_the_store_time(rig: Rig) -> None:
    rig.clock.now += 300
    rig.send(START + 2300, "seconds", TIMER_DELAY_SEC="2")
    rig.send(START + 1050, "milliseconds", TIMER_DELAY_MS="750")
    rig.advance(START + 9000)
    assert rig.arrived() == [("milliseconds", START + 1050), ("seconds", START + 2300)]


def test_delivered_messages_have_the_properties_of_a_delivery(rig: Rig) -> None:
    rig.send(START + 1500, "k")
    rig.advance(START + 2000)
    record = decode_record(rig.store.get_message("T", 0, 0, 1, 1 << 20).records)
    assert record.properties["TIMER_OUT_MS"] == str(START + 1000)
    assert record.properties["TIMER_ENQUEUE_MS"] == str(START)
    assert record.properties["TIMER_DEQUEUE_MS"] == str(START + 1500)


def test_a_slot_in_delivery_accepts_more(rig: Rig) -> None:
    rig.send(START + 1700, "late")
    rig.advance(START + 1300)
    rig.send(START + 1600, "early")
    rig.send(START + 1301, "at once")
    rig.advance(START + 2000)
    assert rig.arrived() == [("at once", START + 1301), ("early", START + 1600), ("late", START + 1700)]


def test_slices_are_short_and_lose_nothing(tmp_path: Path, make_rig: MakeRig) -> None:
    turns = iter(range(1 << 30))
    rig = Rig(small_timer(tmp_path / "slices"), timer=lambda: float(next(turns)))
    for n in range(300):
        rig.send(START + 1500, str(n))
    rig.clock.now = START + 1500
    slices = 0
    while (due := rig.timer.deliver(rig.clock.now, 3.0)) == rig.clock.now:
        slices += 1
    assert due is None or due > rig.clock.now
    assert slices > 20
    assert rig.keys() == [str(n) for n in range(300)]
    rig.close()


def test_distant_messages_are_rolled(rig: Rig) -> None:
    rig.send(START + 21_000, "near the end of the window")
    rig.send(START + 75_500, "far")
    rig.advance(START + 75_499)
    assert rig.arrived() == [("near the end of the window", START + 21_000)]
    rig.advance(START + 77_000)
    (_, (key, time)) = rig.arrived()
    assert key == "far"
    assert START + 75_500 <= time <= START + 76_000  # its second is sure, the millisecond was in its first record only
    record = decode_record(rig.store.get_message("T", 0, 1, 1, 1 << 20).records)
    assert int(record.properties["TIMER_ROLL_TIMES"]) >= 3


@pytest.mark.parametrize("bare", [False, True])
def test_recalled_ones_are_not_delivered(rig: Rig, bare: bool) -> None:
    for key in ("a", "b", "c"):
        rig.send(START + 3500, key)
    rig.send(START + 55_500, "far")
    rig.work()
    rig.recall(START + 3500, "b", bare=bare)
    rig.recall(START + 55_500, "far", bare=bare)
    rig.recall(START + 3500, "a", topic="another")
    rig.advance(START + 60_000)
    assert rig.keys() == (["a", "c"])
    assert rig.store.get_max_offset("another", 0) == 0


def test_a_recall_in_the_last_second_counts(rig: Rig) -> None:
    rig.send(START + 1900, "k")
    rig.advance(START + 1500)
    rig.recall(START + 1900, "k")
    rig.advance(START + 3000)
    assert rig.arrived() == []


def test_without_timed_messages_there_are_no_files(rig: Rig) -> None:
    put(rig.store, "T", 0, b"ordinary", b"")
    assert rig.timer.deliver(START, 1.0) is None
    assert not rig.timer.dirty
    rig.timer.flush()
    rig.timer.close()
    assert not (rig.config.store_path / "timerwheel").exists()
    assert not (rig.config.store_path / "timerlog").exists()
    assert not (rig.config.store_path / "config" / "timercheck").exists()


def test_a_clock_set_back_is_waited_for(rig: Rig) -> None:
    rig.send(START + 60_000, "first")
    rig.advance(START + 61_000)
    rig.clock.now = START + 30_000
    rig.send(START + 31_500, "second")
    rig.work()
    assert len(rig.arrived()) == 1
    rig.restart()
    rig.advance(START + 31_499)
    assert len(rig.arrived()) == 1
    rig.advance(START + 31_500)
    assert rig.arrived()[1][0] == "second"
    rig.send(START + 35_500, "recalled")
    rig.work()
    rig.recall(START + 35_500, "recalled")
    rig.advance(START + 65_000)
    assert len(rig.arrived()) == 2


def test_time_alone_is_nothing_to_flush(rig: Rig, make_rig: MakeRig) -> None:
    rig.send(START + 1500, "k")
    rig.advance(START + 2000)
    rig.store.flush()
    assert rig.timer.dirty
    rig.timer.flush()
    assert not rig.timer.dirty
    rig.advance(START + 100_000)
    assert not rig.timer.dirty
    again = make_rig(killed(rig), Clock(rig.clock.now))
    again.work()
    assert len(again.arrived()) == 1


# --- bytes -----------------------------------------------------------------------------------------------------------


def test_the_files_bytes_are_apaches(rig: Rig) -> None:
    """Computed by hand from Apache's TimerMessageStore.doEnqueue, TimerWheel.putSlot and TimerCheckpoint.flush."""
    first = rig.send(START + 7500, "a", topic="Topic")
    size = len(rig.store.look_message_by_offset(first) or b"")
    second = rig.send(START + 7000 + 1, "b")
    third = rig.send(START + 90_000, "far")
    rig.recall(START + 7500, "a", topic="Topic")
    rig.advance(START + 100)
    rig.flush()
    path = rig.config.store_path
    raw = (path / "timerlog" / f"{0:020d}").read_bytes()
    assert len(raw) == 536
    assert raw[:52] == bytes.fromhex(
        "00000034ffffffffffffffff00000001" + f"{START:016x}00001b58" + f"{first:016x}{size:08x}"
    ) + pack(">iq", java_hash("Topic"), 0)
    assert raw[52:64] == bytes.fromhex("000000340000000000000000")
    assert raw[80:88] == pack(">q", second)
    assert raw[104:132] == pack(">iqiqi", 52, -1, 1 | 2, START, 20_000)  # rolled: a whole window
    assert raw[132:140] == pack(">q", third)
    assert raw[156:184] == pack(">iqiqi", 52, 52, 1 | 4, START, 7000)
    assert not any(raw[208:])
    wheel = (path / "timerwheel").read_bytes()
    assert len(wheel) == 200 * 32
    number = START // 1000 + 7
    assert wheel[number % 200 * 32 :][:32] == pack(">qqqii", number, 0, 156, 1, 0)
    rolled = START // 1000 + 20
    assert wheel[rolled % 200 * 32 :][:32] == pack(">qqqii", rolled, 104, 104, 1, 0)
    check = (path / "config" / "timercheck").read_bytes()
    assert len(check) == 4096
    assert check[:40] == pack(">5q", START, 208, 4, 4, 0)
    assert check[48:56] == pack(">q", 1)
    assert not any(check[56:])


def test_a_full_file_ends_with_a_blank(rig: Rig) -> None:
    for n in range(11):
        rig.send(START + 7500, str(n))
    rig.work()
    raw = (rig.config.store_path / "timerlog" / f"{0:020d}").read_bytes()
    assert raw[520:536] == bytes.fromhex("000000100000000000000000cbd43194")
    raw = (rig.config.store_path / "timerlog" / f"{536:020d}").read_bytes()
    assert raw[4:12] == pack(">q", 52 * 9)
