"""A store with its timer and a manual clock, shared by the timer's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_rocket.protocol.record.record import decode_record
from spark_rocket.store import MessageStore, StoreConfig
from spark_rocket.store.delay.timer_store import TimerMessageStore
from tests.kit.clock import Clock
from tests.store.helpers import image_of, opened, put, small

TIMER_TOPIC = "rmq_sys_wheel_timer"
PRECISION = 1000


def small_timer(path: Path, **settings: Any) -> StoreConfig:
    """Ten units in a file of the timer log, 200 seconds on the wheel, rolled from 20 s on."""
    sizes = {"mapped_file_size_timer_log": 16 + 52 * 10, "timer_wheel_slots": 100, "timer_roll_window_slot": 20}
    return small(path, **{**sizes, **settings})


def killed(rig: Rig, number: int = 1) -> StoreConfig:
    """The files of a killed process: a copy of the current ones."""
    return image_of(rig.config, f"image{number}")


class Rig:
    """Opens a store's timer, puts messages as a broker would, and drives it."""

    def __init__(
        self, config: StoreConfig, clock: Clock | None = None, *, precision: int = PRECISION, **timer: Any
    ) -> None:
        self.config = config
        self.clock = clock or Clock()
        self.options = timer
        self.precision = precision
        self.open()

    def open(self) -> None:
        self.store: MessageStore = opened(self.config, self.clock)
        self.timer = TimerMessageStore(self.store, self.precision, **self.options)
        self.timer.start(self.clock.now)

    def close(self) -> None:
        self.timer.close()
        self.store.close()

    def restart(self) -> None:
        self.close()
        self.open()

    def send(self, deliver_ms: int, key: str, topic: str = "T", **properties: str) -> int:
        """A message due at a time; returns its physical offset."""
        out = (deliver_ms - 1) // self.precision * self.precision
        asked = {"TIMER_DELIVER_MS": str(deliver_ms)} if not properties else {}
        all_of_it = {**asked, **properties, "UNIQ_KEY": key, "TIMER_OUT_MS": str(out)}
        all_of_it |= {"REAL_TOPIC": topic, "REAL_QID": "0"}
        raw = "\x02".join(f"{name}\x01{value}" for name, value in all_of_it.items()).encode()
        return put(self.store, TIMER_TOPIC, 0, key.encode(), raw).physical_offset

    def recall(self, deliver_ms: int, key: str, topic: str = "T", *, bare: bool = False) -> None:
        handle_time = (deliver_ms - 1) // self.precision * self.precision + 1
        name = key if bare else f"{topic}+{key}"
        self.send(handle_time, "recall", topic, TIMER_DELIVER_MS=str(handle_time), TIMER_DEL_UNIQKEY=name)

    def work(self) -> int | None:
        """Run until there is no more work at this time."""
        while True:
            due = self.timer.deliver(self.clock.now, 1.0)
            if due is None or due > self.clock.now:
                return due

    def advance(self, to_ms: int) -> None:
        """Advance to a time, with all wake-ups that the timer requests."""
        due = self.work()
        while due is not None and due <= to_ms:
            self.clock.now = due
            due = self.work()
        self.clock.now = max(self.clock.now, to_ms)
        self.work()

    def flush(self) -> None:
        self.store.flush()
        self.timer.flush()

    def keys(self) -> list[str]:
        """Keys of everything that was delivered."""
        return [key for key, _ in self.arrived()]

    def arrived(self, topic: str = "T") -> list[tuple[str, int]]:
        """Key and store time of everything that was delivered."""
        found: list[tuple[str, int]] = []
        for offset in range(self.store.get_min_offset(topic, 0), self.store.get_max_offset(topic, 0)):
            record = decode_record(self.store.get_message(topic, 0, offset, 1, 1 << 20).records)
            found.append((record.properties["UNIQ_KEY"], record.store_timestamp))
        return found
