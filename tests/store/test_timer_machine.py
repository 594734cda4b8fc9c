"""Timed messages that are sent, recalled and delivered through restarts, kills and power failures, against a model."""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_rocket.store.delay.timer_log import TimerLog
from spark_rocket.store.tools.check import check_store
from tests.kit.clock import Clock
from tests.store.timer_rig import Rig, small_timer

TURNS = 256  # looks at the clock in a second

# Up to a minute: rolled twice at a window of 20 seconds.
delays = st.one_of(st.integers(1, 3000), st.integers(1, 60_000), st.sampled_from([1000, 2000, 20_000, 21_000]))


@dataclass
class Sent:
    """The model of a message."""

    due: int
    rolled: bool
    by_delay: bool
    recalled: bool = False


class TimerMachine(RuleBasedStateMachine):
    """The model: when each message is due, and whether it was recalled."""

    @initialize(precision=st.sampled_from([100, 1000]), window=st.sampled_from([20, 20, 100, 130]))
    def begin(self, precision: int, window: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="timer-machine-"))
        turns = count()
        self.precision = precision
        self.window = window
        config = small_timer(self.directory / "store0", timer_roll_window_slot=window)
        self.rig = Rig(config, Clock(), precision=precision, timer=lambda: next(turns) / TURNS)
        self.stalled = False
        self.sent: dict[str, Sent] = {}
        self.falls = 0
        self.seen = 0
        self.counts: dict[str, int] = {}

    @rule(delay=delays, number=st.integers(1, 12), by_delay=st.booleans())
    def send(self, delay: int, number: int, by_delay: bool) -> None:
        now = self.rig.clock.now
        for _ in range(number):
            key = f"m{len(self.sent)}"
            more = {"TIMER_DELAY_MS": str(delay)} if by_delay else {}
            self.rig.send(now + delay, key, **more)
            # By delay the millisecond of a rolled one is known to its first record only.
            self.sent[key] = Sent(now + delay, delay > (min(self.window, 100) - 2) * self.precision, by_delay)

    @rule(data=st.data(), bare=st.booleans())
    def recall(self, data: st.DataObject, bare: bool) -> None:
        now = self.rig.clock.now
        pending = [key for key, message in self.sent.items() if message.due > now]
        if pending:
            key = data.draw(st.sampled_from(pending))
            self.rig.recall(self.sent[key].due, key, bare=bare)
            self.sent[key].recalled = True

    @rule(pause=st.one_of(st.integers(1, 2500), st.integers(1, 40_000)))
    def advance(self, pause: int) -> None:
        self.rig.advance(self.rig.clock.now + pause)

    @rule(turns=st.integers(1, 30))
    def a_slice(self, turns: int) -> None:
        self.rig.timer.deliver(self.rig.clock.now, turns / TURNS)

    @rule(slots=st.one_of(st.integers(1, 250), st.integers(180, 199)))
    def stall(self, slots: int) -> None:
        """Time advances without the timer, possibly by more than the wheel's length."""
        self.stalled = True
        self.rig.clock.now += slots * self.precision

    @rule(pause=st.integers(0, 3000))
    def full_disk(self, pause: int) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        self.rig.clock.now += pause
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TimerLog, "write", full)
            self.rig.work()

    @rule(pause=st.integers(0, 500))
    def stop_in_the_same_second(self, pause: int) -> None:
        self.rig.restart()
        self.rig.clock.now += pause

    @rule(pause=st.integers(0, 300_000))
    def restart(self, pause: int) -> None:
        self.rig.close()
        assert check_store(self.rig.config.store_path, self.rig.config) == []
        self.rig.clock.now += pause
        self.rig.open()
        self.rig.work()

    @rule(log=st.booleans())
    def flush(self, log: bool) -> None:
        if log:
            self.rig.store.flush()
        self.rig.timer.flush()

    @precondition(lambda self: self.falls < 3)
    @rule(power=st.booleans(), seed=st.integers(0, 1 << 16))
    def fall(self, power: bool, seed: int) -> None:
        """A killed process leaves all written bytes; a power failure leaves only the timer's flushed bytes."""
        self.falls += 1
        image = self.directory / f"store{self.falls}"
        shutil.copytree(self.rig.config.store_path, image)
        self.rig.close()
        shutil.rmtree(self.rig.config.store_path)
        if power:
            lose_unflushed(image, random.Random(seed))
        self.rig.config = replace(self.rig.config, store_path_root_dir=image)
        self.rig.open()
        self.rig.work()

    @invariant()
    def what_is_due_is_there(self) -> None:
        if not hasattr(self, "rig"):
            return
        arrived = self.rig.arrived()
        for key, time in arrived[self.seen :]:
            self.seen += 1
            self.counts[key] = self.counts.get(key, 0) + 1
            message = self.sent[key]
            assert time >= message.due, key
            assert not message.recalled, key
            assert self.counts[key] == 1, key

    @rule()
    def nothing_is_missing(self) -> None:
        self.rig.work()
        self.what_is_due_is_there()
        now = self.rig.clock.now
        for key, message in self.sent.items():
            late = message.by_delay and (message.rolled or self.stalled)
            latest = -(-message.due // self.precision) * self.precision if late else message.due
            if latest <= now and not message.recalled:
                assert key in self.counts, key

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.advance(self.rig.clock.now + 130_000)
            self.nothing_is_missing()
            self.rig.close()
            assert check_store(self.rig.config.store_path, self.rig.config) == []
            shutil.rmtree(self.directory)


def lose_unflushed(store: Path, chance: random.Random) -> None:
    check = store / "config" / "timercheck"
    flushed = int.from_bytes(check.read_bytes()[8:16], "big") if check.exists() else 0
    for path in (store / "timerlog").glob("*"):
        size = path.stat().st_size
        start = max(flushed - int(path.name), 0)
        if start < size:
            with path.open("r+b") as file:
                for at in range(start, size, 64):  # some are written, some are not, some are invalid
                    length = min(64, size - at)
                    what = chance.randrange(3)
                    if what:
                        file.seek(at)
                        file.write(bytes(length) if what == 1 else chance.randbytes(length))
    wheel = store / "timerwheel"
    if wheel.exists():
        wheel.write_bytes(chance.choice([b"", bytes(wheel.stat().st_size), chance.randbytes(wheel.stat().st_size)]))


TestTimerMachine = TimerMachine.TestCase
TestTimerMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
