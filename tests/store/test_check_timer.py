"""The check of the timer's files: no problems in valid ones, and the names of invalid parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest

from spark_rocket.store.tools.check import check_store
from tests.kit.clock import START
from tests.store.timer_rig import Rig, small_timer


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rig = Rig(small_timer(tmp_path / "store"))
    for n in range(14):
        rig.send(START + 5000 + 500 * n, str(n))
    rig.advance(START + 5600)
    rig.close()
    assert check_store(rig.config.store_path, rig.config) == []
    return rig


def overwrite(name: str, at: int, data: bytes) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        with (store / name).open("r+b") as file:
            file.seek(at)
            file.write(data)

    return change


SECOND = f"timerlog/{536:020d}"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "short checkpoint": (lambda store: (store / "config" / "timercheck").write_bytes(b"x"), "timercheck: "),
    "checkpoint ahead": (overwrite("config/timercheck", 8, pack(">q", 9999)), "flushed up to 9999"),
    "unit": (overwrite(SECOND, 0, bytes(8)), "no valid unit at 536"),
    "link": (overwrite(SECOND, 56, pack(">q", 52)), "invalid link"),
    "short wheel": (lambda store: (store / "timerwheel").write_bytes(b"x"), "not 6400"),
    "wheel": (overwrite("timerwheel", 0, bytes(6400)), "do not lead"),
    "foreign file": (lambda store: (store / "timerlog" / "x").touch(), "timerlog/x"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_invalid_entries_are_named(rig: Rig, kind: str) -> None:
    change, said = DAMAGE[kind]
    change(rig.config.store_path)
    problems = check_store(rig.config.store_path, rig.config)
    assert {problem.kind for problem in problems} == {"timer"}
    assert said in str(problems[0])
