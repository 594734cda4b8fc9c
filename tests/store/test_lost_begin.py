"""Files lost from the beginning of the log are reported, and not taken for retention."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace

import pytest

from spark_rocket.store import MessageStore
from spark_rocket.store.recovery.recovery import RecoveryReport
from spark_rocket.store.tools.check import check_store, remedy_of
from tests.golden import extract_store
from tests.kit.clock import START
from tests.store.conftest import MakeStore
from tests.store.helpers import golden, opened, put, recovery_of, trim

SIZE = 32 << 10


def fill(store: MessageStore, count: int = 120) -> None:
    for number in range(count):
        put(store, "A", number % 2, b"%d" % number + bytes(1000))


def lose_first(store: MessageStore, number: int = 1) -> None:
    for path in sorted(store.config.commit_log_path.iterdir())[:number]:
        path.unlink()


def reports(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if "retention has not deleted" in record.message]


def test_the_range_and_the_messages_are_named(make_store: MakeStore, caplog: pytest.LogCaptureFixture) -> None:
    store = make_store()
    fill(store)
    store.close()
    image = store.config.store_path.with_name("image")
    shutil.copytree(store.config.store_path, image)
    config = replace(store.config, store_path_root_dir=image)
    for path in sorted(config.commit_log_path.iterdir())[:2]:
        path.unlink()
    (problem,) = [one for one in check_store(image, config) if one.kind == "begin"]
    for _ in range(2):  # the loss stays on record
        caplog.clear()
        broken = opened(config)
        first = [broken.get_min_offset("A", queue_id) for queue_id in (0, 1)]
        lost = recovery_of(broken).lost
        assert lost is not None
        assert (lost.start, lost.end) == (0, 2 * SIZE)
        assert lost.queues == {("A", 0): first[0], ("A", 1): first[1]}
        (record,) = reports(caplog)
        assert record.levelno == logging.ERROR
        assert f"the log begins at offset {2 * SIZE}, but began at 0: {2 * SIZE} bytes are lost" in record.message
        assert f"with {sum(first)} messages of A queue 0 ({first[0]}), A queue 1 ({first[1]})" in record.message
        broken.close()
    assert problem.text in record.message
    assert "queueEnd.json" in remedy_of(problem, config.paths)
    (image / "config" / "queueEnd.json").unlink()
    caplog.clear()
    opened(config).close()
    assert reports(caplog) == []
    assert check_store(image, config) == []


@pytest.mark.parametrize("clean", [True, False])
def test_retention_is_no_loss(make_store: MakeStore, caplog: pytest.LogCaptureFixture, clean: bool) -> None:
    store = make_store()
    put(store, "A", 0, b"first")
    store.close()
    store = make_store(store.config)
    fill(store)
    trim(store, files=2)
    assert store.min_physical_offset > 0
    if clean:
        store.close()
        again = make_store(store.config)
    else:
        image = store.config.store_path.with_name("image")
        shutil.copytree(store.config.store_path, image)
        again = make_store(replace(store.config, store_path_root_dir=image))
    assert reports(caplog) == []
    assert recovery_of(again).lost is None


def test_a_deletion_that_a_kill_interrupts_is_no_loss(make_store: MakeStore, caplog: pytest.LogCaptureFixture) -> None:
    """The beginning is written first: the log then begins before it."""
    store = make_store()
    fill(store)
    store.close()
    path = store.config.store_path / "config" / "queueEnd.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "logBegin": SIZE}))
    again = make_store(store.config)
    assert again.min_physical_offset == 0
    again.close()
    assert reports(caplog) == []
    assert json.loads(path.read_text())["logBegin"] == 0


def test_a_beginning_that_cannot_be_written_is_written_later(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the broker is killed in between, the deletion is no loss."""
    store = make_store()
    fill(store)
    store.close()
    store = make_store(store.config)
    path = store.config.store_path / "config" / "queueEnd.json"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("spark_rocket.store.queues.side_files.replace_file", full)
        trim(store)
    image = store.config.store_path.with_name("image")
    shutil.copytree(store.config.store_path, image)
    killed = make_store(replace(store.config, store_path_root_dir=image))
    assert killed.min_physical_offset > 0
    assert reports(caplog) == []
    store.retention.run(START)
    assert json.loads(path.read_text())["logBegin"] == store.min_physical_offset > 0


def test_an_apache_store_that_its_retention_has_trimmed_has_lost_nothing(
    tmp_path: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    directory = extract_store("clean", tmp_path)  # type: ignore[arg-type]
    config = golden(directory)
    assert len(list(config.commit_log_path.iterdir())) > 1
    min(config.commit_log_path.iterdir()).unlink()
    store = opened(config)
    report: RecoveryReport = recovery_of(store)
    assert report.lost is None
    store.close()
    assert reports(caplog) == []
