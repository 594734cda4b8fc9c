"""The timer killed, far behind, or with damaged files: no message is lost, and no recalled one is delivered."""

from __future__ import annotations

import errno
import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_rocket.errors import StoreError
from spark_rocket.store.delay.timer_dequeue import TimerDequeue
from spark_rocket.store.delay.timer_wheel import TimerWheel
from spark_rocket.store.tools.check import check_store
from tests.kit.clock import START, Clock
from tests.store.conftest import MakeRig
from tests.store.helpers import failing, mapped_files, put
from tests.store.timer_rig import Rig, killed, small_timer

# --- the wheel's end --------------------------------------------------------------------------------------------


def test_a_kill_after_a_quiet_time_as_long_as_the_wheel(rig: Rig, make_rig: MakeRig) -> None:
    """The remembered read time is from before the quiet time; the new unit had room on the wheel at the later one."""
    rig.send(START + 1500, "first")
    rig.advance(START + 2000)
    rig.flush()
    rig.advance(START + 190_000)
    rig.send(START + 205_000, "second")
    rig.send(START + 205_000, "recalled")
    rig.recall(START + 205_000, "recalled")
    rig.work()
    again = make_rig(killed(rig), Clock(rig.clock.now))
    again.advance(START + 210_000)
    assert again.keys() == ["first", "second"]


def test_a_finer_precision_makes_the_wheel_shorter(tmp_path: Path, make_rig: MakeRig) -> None:
    rig = make_rig(small_timer(tmp_path / "store", timer_roll_window_slot=50))
    rig.send(START + 45_000, "far")
    rig.send(START + 5000, "near")
    rig.send(START + 45_000, "recalled")
    rig.recall(START + 45_000, "recalled")
    rig.work()
    rig.close()
    rig.precision = 100
    rig.open()
    rig.advance(START + 44_999)
    assert rig.keys() == ["near"]
    rig.advance(START + 46_000)
    assert rig.keys() == ["near", "far"]


def test_far_behind_nothing_is_delivered_before_all_is_on_the_wheel(rig: Rig) -> None:
    rig.send(START + 2500, "recalled")
    rig.send(START + 2500, "k")
    rig.work()
    rig.clock.now = START + 190_000  # the timer has not had its turn: the wheel ends at 200 s
    rig.send(START + 205_000, "beyond")
    rig.send(START + 205_000, "beyond and recalled")
    rig.recall(START + 2500, "recalled")
    rig.recall(START + 205_000, "beyond and recalled")
    rig.advance(START + 204_999)
    assert rig.keys() == ["k"]
    rig.advance(START + 206_000)
    assert rig.keys() == ["k", "beyond"]


# --- rebuilt ----------------------------------------------------------------------------------------------------


def test_killed_while_the_timer_log_is_rebuilt(tmp_path: Path, rig: Rig, make_rig: MakeRig) -> None:
    """The bytes of the new log must not be mistaken for those that the checkpoint refers to."""
    for n in range(100):
        rig.send(START + 30_000 + n, str(n))
    rig.advance(START + 100)
    rig.close()
    path = rig.config.store_path
    flushed = (path / "config" / "timercheck").read_bytes()
    (path / "timerlog" / f"{536:020d}").write_bytes(bytes(536))
    turns = iter(range(1 << 30))
    rig.options = {"timer": lambda: float(next(turns))}
    rig.open()
    rig.timer.deliver(rig.clock.now, 2.0)
    assert 0 < int(rig.timer.runtime_info(rig.clock.now)["timerOffsetBehind"]) < 100
    assert min(file.name for file in (path / "timerlog").iterdir()) > f"{52 * 100:020d}"
    again = make_rig(killed(rig), Clock(rig.clock.now))
    assert (again.config.store_path / "config" / "timercheck").read_bytes() == flushed
    again.advance(START + 60_000)
    assert set(again.keys()) == {str(n) for n in range(100)}


def test_a_timer_log_lost_without_pending_messages(rig: Rig) -> None:
    rig.send(START + 1500, "k")
    rig.advance(START + 60_000)
    rig.close()
    shutil.rmtree(rig.config.store_path / "timerlog")
    rig.open()
    rig.work()
    rig.restart()
    rig.send(START + 61_500, "another")
    rig.advance(START + 63_000)
    rig.restart()
    assert rig.keys() == ["k", "another"]


# --- damaged records --------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Rig]:
    """A rig whose commit log may be damaged when the test ends."""
    rig = Rig(small_timer(tmp_path / "store"))
    yield rig
    rig.close()
    problems = check_store(rig.config.store_path, rig.config)
    assert "timer" not in {problem.kind for problem in problems}


def stop_and_damage(rig: Rig, start_of_body: bytes, *, lose_timer_log: bool) -> None:
    """Change bodies in files of the log that a start does not scan."""
    for _ in range(100):
        put(rig.store, "Y", 0, bytes(1000))
    rig.close()
    for path in (rig.config.store_path / "commitlog").iterdir():
        # A body stands behind eight bytes for the prepared transaction's offset and four for its length.
        path.write_bytes(re.sub(rb"(?s)(\0{10}..)" + start_of_body, rb"\1?" + start_of_body[1:], path.read_bytes()))
    if lose_timer_log:
        shutil.rmtree(rig.config.store_path / "timerlog")
    rig.open()


def test_a_timer_log_rebuilt_from_damaged_records_repeats_nothing(damaged: Rig) -> None:
    for n in range(30):
        damaged.send(START + 15_000, f"body-{n:03}")
    damaged.work()
    stop_and_damage(damaged, b"body-010", lose_timer_log=True)
    damaged.advance(START + 20_000)
    assert damaged.keys() == [f"body-{n:03}" for n in range(30) if n != 10]


def test_recalls_behind_many_damaged_records_are_in_time(damaged: Rig) -> None:
    damaged.send(START + 2500, "recalled")
    damaged.send(START + 2500, "k")
    for n in range(70):
        damaged.send(START + 2500, f"body-{n:03}")
    damaged.recall(START + 2500, "recalled")
    damaged.work()
    stop_and_damage(damaged, b"body-0", lose_timer_log=True)
    damaged.clock.now = START + 3000
    damaged.work()
    assert damaged.keys() == ["k"]


def test_a_body_damaged_while_pending_is_not_stored_again(damaged: Rig, caplog: pytest.LogCaptureFixture) -> None:
    damaged.send(START + 2500, "body-1")
    damaged.send(START + 22_500, "body-2")
    damaged.send(START + 2500, "k")
    place = damaged.send(START + 2500, "body-3")
    damaged.work()
    stop_and_damage(damaged, b"body-", lose_timer_log=False)
    damaged.advance(START + 30_000)
    assert damaged.keys() == ["k"]
    assert f"The timed message at offset {place} of the commit log is damaged and is not delivered." in caplog.text


def test_a_damaged_topic_does_not_hold_up_the_others(damaged: Rig) -> None:
    damaged.send(START + 2500, "a")
    damaged.send(START + 2500, "body-1")
    damaged.send(START + 2500, "b")
    damaged.work()
    stop_and_damage(damaged, b"body-1\x13rmq_sys_wheel_", lose_timer_log=False)
    damaged.work()
    for path in (damaged.config.store_path / "commitlog").iterdir():
        path.write_bytes(path.read_bytes().replace(b"?ody-1\x13rmq_sys", b"body-1\x13rmq_s?s"))
    damaged.advance(START + 3000)
    assert damaged.keys() == ["a", "b"]


# --- retention --------------------------------------------------------------------------------------------------


def test_retention_takes_messages_of_a_second_that_is_being_delivered(
    make_rig: MakeRig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = {"file_reserved_size": 1, "delete_commit_log_files_interval": 0}
    turns: Iterator[int] = itertools.repeat(0)
    rig = make_rig(small_timer(tmp_path / "store", **sizes), timer=lambda: float(next(turns)))
    for n in range(100):
        rig.send(START + 5500, str(n), TIMER_DELIVER_MS=str(START + 5500), pad="x" * 1000)
    rig.advance(START + 5000)
    rig.flush()
    rig.clock.now = START + 5500
    turns = itertools.count()
    rig.timer.deliver(rig.clock.now, 3.0)
    turns = itertools.repeat(0)
    delivered = len(rig.keys())
    assert 0 < delivered < 100
    rig.store.flush()
    while rig.store.retention.run(rig.clock.now).removed:
        pass
    rig.send(START + 60_000, "new")
    rig.work()
    rig.flush()
    rig.advance(START + 61_000)
    assert rig.keys()[-1] == "new"
    assert "timed messages were removed from the commit log before they were delivered" in caplog.text


# --- a full disk ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["timer_log", "timer_wheel"])
def test_late_ones_come_once_though_the_timers_files_cannot_grow(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    rig.send(START + 1500, "first")
    rig.advance(START + 50_000)
    rig.send(START + 10_000, "late")
    rig.send(START + 60_000, "waits")
    rig.send(START + 10_000, "late too")
    monkeypatch.setattr(f"spark_rocket.store.delay.{module}.os.pwrite", failing())
    for _ in range(3):
        assert rig.timer.deliver(rig.clock.now, 1.0) == rig.clock.now + 1000
    assert rig.keys() == ["first"]
    monkeypatch.undo()
    rig.advance(START + 61_000)
    assert rig.keys() == ["first", "late", "late too", "waits"]


def test_a_start_without_room_for_the_wheel(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        rig.send(START + 2500, str(n))
    rig.work()
    rig.close()
    monkeypatch.setattr("spark_rocket.store.delay.timer_wheel.sync_directory", failing())
    rig.open()
    assert rig.timer.deliver(rig.clock.now, 1.0) == rig.clock.now + 1000
    rig.restart()
    rig.send(START + 2500, "recalled")
    rig.recall(START + 2500, "recalled")
    assert rig.timer.deliver(START + 3000, 1.0) == START + 4000
    monkeypatch.undo()
    rig.advance(START + 4000)
    assert rig.keys() == ["0", "1", "2"]


def test_a_partly_written_wheel_is_restored(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        rig.send(START + 5000 + 1000 * n, f"a{n}")
    rig.work()
    for n in range(3):
        rig.send(START + 7000 + 1000 * n, f"b{n}")
    real = TimerWheel.put
    calls: Iterator[Callable[..., object]] = iter([real, real, failing(), *[real] * 1000])
    monkeypatch.setattr(TimerWheel, "put", lambda *args: next(calls)(*args))
    before = (rig.config.store_path / "timerwheel").read_bytes()
    assert rig.timer.deliver(rig.clock.now, 1.0) == rig.clock.now + 1000
    assert (rig.config.store_path / "timerwheel").read_bytes() == before
    rig.advance(START + 20_000)
    assert rig.keys() == ["a0", "a1", "a2", "b0", "b1", "b2"]


# --- a stop -----------------------------------------------------------------------------------------------------


def test_a_stop_that_cannot_read_the_store_still_closes_the_timers_files(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig.send(START + 1100, "first")
    rig.send(START + 1800, "k")
    rig.advance(START + 1300)

    def fail(dequeue: TimerDequeue) -> None:
        raise StoreError("cannot be read")

    with monkeypatch.context() as broken:
        broken.setattr(TimerDequeue, "defer_rest", fail)
        rig.timer.close()
    assert mapped_files(rig.config.store_path / "timerwheel") == set()
    assert "The last progress of the timer was not saved" in caplog.text
    rig.restart()
    rig.advance(START + 5000)
    assert set(rig.keys()) == {"first", "k"}


def test_killed_in_the_middle_of_a_stop(rig: Rig, make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages are then in two slots, and a new recall is in the first only."""
    rig.send(START + 1100, "first")
    rig.send(START + 1800, "recalled")
    rig.send(START + 1900, "k")
    rig.work()
    rig.flush()
    rig.advance(START + 1300)

    monkeypatch.setattr(rig.store, "flush", failing(errno.EIO))
    rig.timer.close()
    monkeypatch.undo()
    again = make_rig(killed(rig), Clock(rig.clock.now))
    again.recall(START + 1800, "recalled")
    again.advance(START + 5000)
    assert again.keys() == ["first", "k"]
