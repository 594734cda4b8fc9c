"""Retention: restarts and crashes during deletions, and Apache's stores."""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.tools.check import check_store
from tests.kit.clock import Clock
from tests.store.helpers import bodies, golden, opened, put
from tests.store.retention_rig import COUNT, FILES, QUEUES, SIZE, Disk, Trimmable, body, first_number, number_of

GOLDEN = Path(__file__).parents[1] / "golden"


# --- restarts and crashes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["clean", "killed", "no checkpoint"])
@pytest.mark.parametrize("files", [1, 2, 6])
def test_a_trimmed_store_opens_again(it: Trimmable, how: str, files: int) -> None:
    it.trim_to(files)
    left = first_number(it.store)
    for attempt in range(2):
        it.store.close()
        if how != "clean":
            (it.config.store_path / "abort").touch()
        if how == "no checkpoint":
            (it.config.store_path / "checkpoint").unlink()
        it.open()
        assert first_number(it.store) == left
        assert (it.store.get_min_offset("Old", 0), it.store.get_max_offset("Old", 0)) == (1, 1), attempt
        assert it.store.min_physical_offset == (FILES - files) * SIZE
    assert put(it.store, "Old", 0, b"next").queue_offset == 1
    assert bodies(it.store, "Old", 0) == [b"next"]


def test_lost_queues_of_a_trimmed_store_begin_where_the_log_does(it: Trimmable) -> None:
    it.trim_to(2)
    left = first_number(it.store)
    it.store.close()
    shutil.rmtree(it.config.consume_queue_path)
    it.open()
    assert first_number(it.store) == left
    assert [it.store.get_max_offset("T", queue_id) for queue_id in range(QUEUES)] == [COUNT // 3] * QUEUES
    it.store.close()
    (it.config.store_path / "abort").touch()
    shutil.rmtree(it.config.consume_queue_path / "T" / "1")
    it.open()
    assert first_number(it.store) == left


def test_a_crash_at_any_point(it: Trimmable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of the directory before and after each deletion: all of them recover, and lose nothing more."""
    images: list[Path] = []
    real = MappedFile.destroy

    def copy() -> None:
        images.append(tmp_path / f"image-{len(images)}")
        shutil.copytree(it.config.store_path, images[-1])

    def destroy(file: MappedFile) -> None:
        real(file)
        copy()

    monkeypatch.setattr(MappedFile, "destroy", destroy)
    put(it.store, "T", 0, body(COUNT))
    it.store.flush()
    copy()
    it.trim_to(3)
    it.store.settings_changed(replace(it.config, file_reserved_size=1))
    it.run()
    monkeypatch.undo()
    assert len(images) > 2 * FILES
    before = -1
    for image in images:
        config = replace(it.config, store_path_root_dir=image)
        store = opened(config, it.clock, disk_usage=it.disk)
        numbers = sorted(number_of(raw) for queue_id in range(QUEUES) for raw in bodies(store, "T", queue_id))
        assert numbers == list(range(numbers[0], COUNT + 1))
        assert numbers[0] >= before
        before = numbers[0]
        assert [store.get_max_offset("T", queue_id) for queue_id in range(QUEUES)] == [111, 110, 110]
        assert store.get_max_offset("Old", 0) == 1
        subject = Trimmable(config, it.clock, it.disk, store)
        subject.trim_to(1)
        assert len(subject.logs()) == 1
        store.close()
        assert check_store(image, config) == []
        shutil.rmtree(image)


# --- Apache's stores -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_a_store_of_apaches_is_trimmed(tmp_path: Path, name: str) -> None:
    with tarfile.open(GOLDEN / f"store-4.9.8-{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    path = next(tmp_path.glob("**/commitlog")).parent
    config = replace(golden(path), file_reserved_size=1)
    store = opened(config, disk_usage=Disk())
    ends = {
        (topic, queue_id): store.get_max_offset(topic, queue_id)
        for topic in store.topics()
        for queue_id in store.queues(topic)
    }
    subject = Trimmable(config, Clock(), Disk(), store)
    assert subject.run().removed >= 1
    begin = store.min_physical_offset
    assert begin > 0
    store.close()
    assert [problem for problem in check_store(path, config) if problem.kind != "index.behind"] == []
    store = opened(config, disk_usage=Disk())
    assert store.min_physical_offset == begin
    for (topic, queue_id), end in ends.items():
        assert store.get_max_offset(topic, queue_id) == end
        assert len(bodies(store, topic, queue_id)) == end - store.get_min_offset(topic, queue_id)
    store.close()
