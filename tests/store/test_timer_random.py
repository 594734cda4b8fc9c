"""Random days of a timer with a short wheel: every message is delivered once, not early, and no recalled one."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from spark_rocket.store.tools.check import check_store
from tests.kit.clock import Clock
from tests.store.timer_rig import Rig, small_timer


@pytest.mark.parametrize("seed", [*range(50), 1134])
def test_a_random_day(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    precision = chance.choice([100, 1000])
    window = chance.choice([20, 100, 130])
    turns = count()
    config = small_timer(tmp_path / "store", timer_roll_window_slot=window)
    rig = Rig(config, Clock(), precision=precision, timer=lambda: next(turns) / 256)
    due: dict[str, int] = {}
    recalled: set[str] = set()
    kills = 0
    for _ in range(chance.randrange(20, 80)):
        what, now = chance.random(), rig.clock.now
        if what < 0.4:
            key = f"m{len(due)}"
            due[key] = now + chance.randrange(1, chance.choice([3, 30, 190]) * precision)
            rig.send(due[key], key)
            if chance.random() < 0.3:
                rig.recall(due[key], key)
                recalled.add(key)
        elif what < 0.6:
            rig.clock.now += chance.choice([1, precision // 2, precision, 5 * precision, 150 * precision])
        elif what < 0.85:
            rig.timer.deliver(now, chance.choice([2, 5, 1000]) / 256)
        elif what < 0.92:
            rig.store.flush()
            rig.timer.flush()
        elif what < 0.96:
            rig.restart()
        else:
            kills += 1
            image = tmp_path / f"image{kills}"
            shutil.copytree(rig.config.store_path, image)
            rig.close()
            rig.config = replace(config, store_path_root_dir=image)
            rig.open()
    rig.advance(rig.clock.now + 400 * precision)
    arrived = rig.arrived()
    assert all(time >= due[key] for key, time in arrived)
    assert sorted(key for key, _ in arrived) == sorted(set(due) - recalled)
    rig.close()
    assert check_store(rig.config.store_path, rig.config) == []
