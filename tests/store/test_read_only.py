"""The read-only open and a start find files by the same code: they agree on faults, and only a start writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.errors import StoreCorruptError, StoreLockedError
from spark_rocket.store import StoreConfig
from spark_rocket.store.read_only import open_read_only
from spark_rocket.store.tools.check import check_store
from spark_rocket.store.tools.dump import dump_log
from spark_rocket.store.tools.store_stats import store_stats
from tests.store.damage import Image, make_image
from tests.store.helpers import opened
from tests.store.timer_rig import Rig, small_timer

_opened: list[tuple[str, int]] | None = None  # while a test watches: the files that are opened, with flags


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append((str(args[0]), args[2]))


@pytest.fixture
def files_opened() -> Iterator[list[tuple[str, int]]]:
    global _opened
    sys.addaudithook(_watch)  # not at import: a hook stays until the process ends
    _opened = []
    yield _opened
    _opened = None


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    directory = tmp_path_factory.mktemp("images")
    return {name: make_image(directory / name, clean=name == "stopped") for name in ("stopped", "killed")}


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def _extend(path: Path) -> None:
    os.truncate(path, path.stat().st_size + 100)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _rename(path: Path) -> None:
    path.rename(path.with_name(path.name[:-1] + "x"))


def _shift(path: Path) -> None:
    path.rename(path.with_name(str(int(path.name) + 1).zfill(len(path.name))))


def _replace(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _add_beside(path: Path) -> None:
    (path.parent / "notes.txt").write_text("?")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": _truncate,
    "extended": _extend,
    "empty": _empty,
    "renamed": _rename,
    "shifted": _shift,
    "a directory": _replace,
    "missing": Path.unlink,
    "a foreign file beside": _add_beside,
    "a foreign file beside its directory": lambda path: _add_beside(path.parent),
}
PLACES = ("commitlog", "consumequeue/A/0", "consumequeue/SCHEDULE_TOPIC_XXXX/1", "index")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_the_check_reports_what_a_start_refuses(
    damage: str, which: str, place: str, images: dict[str, Image], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a start refuses is a problem of the same file or directory."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    config = images["stopped"].write(tmp_path / "store")
    DAMAGES[damage](sorted((config.store_path / place).iterdir())[0 if which == "first" else -1])
    problems = check_store(config.store_path, config)
    refused = ""
    try:
        opened(config).close()
    except StoreCorruptError as error:
        refused = error.message
    assert not refused or any(str(problem.path) in refused for problem in problems), (refused, problems)


def read_everything(config: StoreConfig) -> None:
    assert check_store(config.store_path, config) == []
    with open_read_only(config.store_path, config) as store:
        list(dump_log(store))
        store_stats(store)


def test_nothing_is_opened_for_writing(
    images: dict[str, Image], tmp_path: Path, files_opened: list[tuple[str, int]]
) -> None:
    """So a read-only mount is read, too. Each kind of file is read, also of the timer."""
    stopped = images["stopped"].write(tmp_path / "stopped")
    rig = Rig(small_timer(tmp_path / "timer"))
    for number in range(30):
        rig.send(rig.clock.now + 5000, f"key{number}")
    rig.work()
    rig.close()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    files_opened.clear()
    read_everything(stopped)
    read_everything(rig.config)
    here = [
        (path.removeprefix(f"{tmp_path}/"), flags) for path, flags in files_opened if path.startswith(str(tmp_path))
    ]
    kinds = {path.split("/")[1] for path, _ in here}
    assert kinds >= {"lock", "checkpoint", "commitlog", "consumequeue", "index", "config", "timerlog", "timerwheel"}
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    assert not [path for path, flags in here if flags & writing]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_store_that_is_read_cannot_be_started(images: dict[str, Image], tmp_path: Path) -> None:
    config = images["stopped"].write(tmp_path / "store")
    with (
        open_read_only(config.store_path, config),
        open_read_only(config.store_path, config),
        pytest.raises(StoreLockedError),
    ):
        opened(config)
    opened(config).close()
