"""The order in which the timer's progress reaches the disk, and its conditions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_rocket.store.delay.timer_checkpoint import Mark, TimerProgress


class Disk:
    """The store and the timer's files, with a record of their calls."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.flushed_where = 0
        self.failing = ""
        self.checkpoint = SimpleNamespace(timestamp=0, counter=0, save=lambda: self.do("checkpoint"))
        log: Any = SimpleNamespace(flush=lambda begin, end: self.do(f"log {begin}-{end}"), expire=lambda time: 0)
        wheel: Any = SimpleNamespace(flush=lambda: self.do("wheel"))
        self.progress = TimerProgress(self, log, wheel, self.checkpoint)  # type: ignore[arg-type]

    def do(self, what: str) -> None:
        if what == self.failing:
            raise OSError(28, "No space left on device")
        self.done.append(what)

    def flush(self) -> None:
        self.do("store")
        self.flushed_where = 1 << 40


def mark(number: int, physical_offset: int = 0) -> Mark:
    return Mark(number * 1000, number, number * 52, number, number, physical_offset)


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_no_file_is_ahead_of_the_earlier_ones(disk: Disk) -> None:
    disk.progress.set(mark(1))
    disk.progress.flush()
    disk.progress.set(mark(2))
    disk.progress.flush()
    assert disk.done == ["log 0-52", "wheel", "checkpoint", "log 52-104", "wheel", "checkpoint"]
    assert (disk.checkpoint.last_timer_queue_offset, disk.checkpoint.counter) == (2, 2)
    assert not disk.progress.dirty
    disk.progress.flush()
    assert len(disk.done) == 6


def test_a_mark_waits_until_its_messages_are_on_disk(disk: Disk) -> None:
    disk.progress.set(mark(1, physical_offset=100))
    disk.progress.flush()
    disk.progress.set(mark(2, physical_offset=200))
    disk.flushed_where = 100
    disk.progress.flush()
    assert disk.checkpoint.last_timer_queue_offset == 1
    assert disk.progress.dirty
    disk.progress.flush()  # the second waits now
    disk.progress.flush_all()
    assert disk.done[-4:] == ["store", "log 52-104", "wheel", "checkpoint"]
    assert disk.checkpoint.last_timer_queue_offset == 2


def test_failed_writes_are_retried(disk: Disk) -> None:
    disk.progress.set(mark(1))
    disk.failing = "wheel"
    with pytest.raises(OSError, match="No space left"):
        disk.progress.flush()
    assert disk.progress.dirty
    disk.failing = ""
    disk.progress.flush()
    assert disk.done == ["log 0-52", "log 0-52", "wheel", "checkpoint"]


def test_rebuilt_files_have_no_mark(disk: Disk) -> None:
    disk.progress.set(mark(5, physical_offset=100))
    disk.progress.flush()
    disk.progress.forget()
    disk.progress.flush_all()
    assert disk.done == ["store"]
    assert not disk.progress.dirty
