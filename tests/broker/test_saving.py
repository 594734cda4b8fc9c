"""State files while the broker runs and when it stops."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.broker import Broker
from spark_rocket.broker.state.config_files import ConfigFile
from tests.broker.test_lifecycle import config
from tests.kit.brokers import served
from tests.kit.clock import Clock

pytestmark = pytest.mark.live


def test_offsets_are_written_while_the_broker_runs(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock, flushConsumerOffsetInterval=100) as (server, wire):
        written = threading.Event()
        file = server.broker.parts.files["offsets"]
        write = file.write

        def note(snapshot: dict[str, Any] | bytes) -> None:
            write(snapshot)
            if '"T@g":{0:1' in file.path.read_text():
                written.set()

        file.write = note  # type: ignore[method-assign]
        wire.send("T")
        wire.create_group("g")
        wire.commit("g", "T", 1)
        assert written.wait(60)


async def test_a_new_broker_notes_the_time_that_groups_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before its offsets are first saved, it still distinguishes pops after the file."""
    written: asyncio.Queue[str] = asyncio.Queue()
    write, loop = ConfigFile.write, asyncio.get_running_loop()

    def note(file: ConfigFile, snapshot: dict[str, Any] | bytes) -> None:
        write(file, snapshot)
        loop.call_soon_threadsafe(written.put_nowait, file.path.name)

    monkeypatch.setattr(ConfigFile, "write", note)
    broker = Broker(config(tmp_path, flushConsumerOffsetInterval=3_600_000))
    await broker.start()
    try:
        while await written.get() != "consumerOffset.json":
            pass
        assert "savedAt" in broker.parts.files["offsets"].path.read_text()
    finally:
        await broker.close()


async def test_a_failed_state_file_does_not_prevent_the_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(config(tmp_path))
    await broker.start()

    def fail(snapshot: dict[str, Any] | bytes) -> None:
        raise OSError(28, "No space left on device")

    broker.parts.files["offsets"].write = fail  # type: ignore[method-assign]
    await broker.close()
    assert "consumerOffset.json could not be written at stop" in caplog.text
    assert (tmp_path / "config" / "topics.json").exists()
    assert not (tmp_path / "abort").exists()
