"""The broker's ``config/*.json``: each damaged in every way, each write cut off at every step, on a full disk as well.

A broker starts with the complete contents of a file or its ``.bak``, or refuses with a ConfigError that names the file.
A second start has the same result. Readable state is never ignored for a fresh start.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.broker import Broker
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from tests.broker.state_box import Box
from tests.store.damage import DAMAGES

SIZES = {
    "mappedFileSizeCommitLog": 65_536,
    "mappedFileSizeConsumeQueue": 2_000,
    "maxHashSlotNum": 50,
    "maxIndexNum": 99,
}
FILES = ("topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json")


def with_broker(path: Path, act: Callable[[Broker], Any]) -> Any:
    """Start a broker on a directory, do something, stop it."""

    async def main() -> Any:
        settings = {"storePathRootDir": str(path), "listenPort": 0, "bindAddress": "127.0.0.1", **SIZES}
        broker = Broker(BrokerConfig.from_properties(settings))
        await broker.start()
        try:
            return act(broker)
        finally:
            await broker.close()

    return asyncio.run(main())


def state(broker: Broker) -> dict[str, Any]:
    """The contents of the files, by file."""
    parts = broker.parts
    return {
        "topics.json": {name for name in parts.topics.table if name.startswith("Mine")},
        "consumerOffset.json": {key: dict(queues) for key, queues in parts.offsets.table.items()},
        "subscriptionGroup.json": {name for name in parts.groups.table if name.startswith("gid")},
    }


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose files differ from their ``.bak``, as after two stops."""
    path = tmp_path_factory.mktemp("base") / "store"

    def run(number: int) -> Callable[[Broker], None]:
        def act(broker: Broker) -> None:
            parts = broker.parts
            for name in range(number + 1):
                parts.topics.put(TopicConfig(f"Mine-{name}", 2, 2))
                parts.offsets.commit(f"gid-{name}", "Mine-0", 0, number)
                parts.groups.put(SubscriptionGroupConfig(f"gid-{name}"))
            parts.store.put_message("Mine-0", 0, b"body", b"", born_timestamp=1, born_host=("127.0.0.1", 1))

        return act

    for number in range(2):
        with_broker(path, run(number))
    assert {f"{name}{end}" for name in FILES for end in ("", ".bak")} <= {p.name for p in (path / "config").iterdir()}
    return path


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


@pytest.mark.live
@pytest.mark.crash
@pytest.mark.parametrize(
    "damage", ["empty", "half", "zeros", "random", "deleted", "directory", "dangling-link", "link"]
)
@pytest.mark.parametrize("ending", ["", ".bak"])
@pytest.mark.parametrize("name", FILES)
def test_a_broker_with_a_damaged_file(base: Path, name: str, ending: str, damage: str, tmp_path: Path) -> None:
    new = {"topics.json": {"Mine-0", "Mine-1"}, "subscriptionGroup.json": {"gid-0", "gid-1"}}
    new["consumerOffset.json"] = {"Mine-0@gid-0": {0: 1}, "Mine-0@gid-1": {0: 1}}  # type: ignore[assignment]
    old = {"topics.json": {"Mine-0"}, "subscriptionGroup.json": {"gid-0"}}
    old["consumerOffset.json"] = {"Mine-0@gid-0": {0: 0}}  # type: ignore[assignment]
    path = tmp_path / "store"
    shutil.copytree(base, path)
    damaged = path / "config" / (name + ending)
    DAMAGES[damage](damaged, random.Random(f"{name} {damage}"))
    is_lost = not ending and damage != "link"
    for attempt in range(2):
        found = with_broker(path, state)
        for file, expected in new.items():
            assert found[file] in ((old[file], expected) if is_lost and file == name else (expected,)), (file, attempt)
        assert with_broker(path, lambda broker: broker.parts.store.get_max_offset("Mine-0", 0)) == 2


@pytest.mark.crash
@pytest.mark.parametrize("second", ["none", "deleted", "empty", "random", "directory"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("writes", [1, 2])
def test_a_file_and_its_copy(tmp_path: Path, writes: int, damage: str, second: str) -> None:
    """A valid one is used unchanged. Without a valid one there is an error, and never a fresh start."""
    path = tmp_path / "store" / "config" / "s.json"
    box = Box(path)
    for number in range(writes):
        box.save(number + 1, filling=["x" * 50] * 20)
    rng = random.Random(f"{damage} {second} {writes}")
    if damage != "swapped":
        DAMAGES[damage](path, rng)
    backup = path.with_name("s.json.bak")
    if second != "none":
        DAMAGES[second](backup, rng)
    outcomes = []
    for _ in range(2):
        fresh = Box(path)
        refused = None
        try:
            assert fresh.file.load() or (damage in ("deleted", "dangling-link") and second == "deleted")
        except ConfigError as error:
            refused = error
        if refused is not None:
            assert str(path) in refused.message
            assert "s.json" in refused.remedy
            assert second != "none"
            outcomes.append(str(refused))
        else:
            assert fresh.state["n"] in (range(1, writes + 1) if second == "none" else range(writes + 1))
            outcomes.append(str(fresh.state))
    assert outcomes[0] == outcomes[1]


class Stop(BaseException):
    """The process ends here."""


def counted(real: Callable[..., Any], left: list[int], failure: BaseException) -> Callable[..., Any]:
    """``real`` for a limited number of calls."""

    def call(*arguments: Any, **more: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():  # a broker that other tests share
            return real(*arguments, **more)
        if not left[0]:
            raise failure
        left[0] -= 1
        return real(*arguments, **more)

    return call


@pytest.mark.crash
@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_write_cut_off_at_any_step(tmp_path: Path, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, or out of disk space, before the n-th system call: the complete old or new state."""
    for failure in (Stop(), OSError(errno.ENOSPC, "No space left on device")):
        for steps in range(30):
            path = tmp_path / f"{type(failure).__name__}{steps}" / "config" / "s.json"
            for number in range(writes):
                Box(path).save(number + 1)
            with monkeypatch.context() as patched:
                left = [steps]

                for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "open"), (os, "open")):
                    patched.setattr(owner, name, counted(getattr(owner, name), left, failure))
                try:
                    Box(path).save(99)
                    done = True
                except (Stop, OSError):
                    done = False
            box = Box(path)
            assert box.file.load() or not (writes or done)
            assert box.state["n"] in ((99,) if done else (writes, 99) if writes else (0, 99))
            Box(path).save(100)  # and it goes on
            after = Box(path)
            assert after.file.load()
            assert after.state["n"] == 100
            if done:
                break
        assert done


def test_a_broken_file_that_cannot_be_set_aside_is_named(tmp_path: Path) -> None:
    """Otherwise the next write would replace its valid copy with it."""
    path = tmp_path / "s.json"
    Box(path).save(1)
    path.write_bytes(b"{")
    (tmp_path / "s.json.broken").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be renamed to s\.json\.broken") as refused:
        Box(path).file.load()
    assert str(path) in refused.value.message
