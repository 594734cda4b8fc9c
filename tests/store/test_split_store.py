"""A store with commit log, consume queues and index in separate directories."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.cli import main
from spark_rocket.errors import ConfigError, StoreError, StoreLockedError
from spark_rocket.store import StoreConfig
from spark_rocket.store.paths import StorePaths
from spark_rocket.store.read_only import open_read_only
from spark_rocket.store.tools.check import check_store
from spark_rocket.store.tools.dump import dump_log
from spark_rocket.store.tools.rebuild import rebuild_store
from spark_rocket.store.tools.store_stats import store_stats
from tests.store.helpers import bodies, opened, put, small

COUNT = 30
BODIES = [b"%d" % number * 100 for number in range(COUNT)]


@pytest.fixture
def config(tmp_path: Path) -> StoreConfig:
    return small(tmp_path / "store").at(split(tmp_path))


def split(place: Path) -> StorePaths:
    return StorePaths(place / "store", place / "log" / "commitlog", place / "queues" / "cq", place / "keys" / "i")


def filled(config: StoreConfig) -> None:
    store = opened(config)
    for number, body in enumerate(BODIES):
        put(store, "T", 0, body, b"KEYS\x01k%d" % number)
    store.close()


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_each_part_is_in_its_directory_after_a_restart(config: StoreConfig) -> None:
    filled(config)
    paths = config.paths
    assert files(paths.commit_log) == ["00000000000000000000"]
    assert files(paths.consume_queue)[0] == "T/0/00000000000000000000"
    assert len(files(paths.index)) == 1
    assert not {"commitlog", "consumequeue", "index"} & {path.name for path in paths.root.iterdir()}
    store = opened(config)
    assert bodies(store, "T", 0) == BODIES
    assert len(store.query_message("T", "k7", 10, 0, 1 << 62).records) == 1
    store.close()
    assert check_store(paths.root, config) == []


def test_tools_find_the_directories_without_a_configuration(
    config: StoreConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(config)
    root = config.store_path
    assert main(["store", "check", str(root)]) == 0
    with open_read_only(root) as view:
        assert len(list(dump_log(view))) == COUNT
        stats = store_stats(view)
    assert [queue.messages for queue in stats.queues] == [COUNT]
    assert (stats.log.count, stats.index.count) == (1, 1)
    assert stats.everything.count > stats.log.count + stats.consume_queues.count + stats.index.count
    (config.commit_log_path / f"{0:020d}").unlink()
    assert main(["store", "check", str(root)]) == 1
    assert "`rocket store rebuild" in capsys.readouterr().out


def test_an_apache_store_with_a_separate_log_is_read_with_its_configuration(
    config: StoreConfig, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No file then names the directory of the log."""
    filled(replace(config, store_path_consume_queue="", store_path_index=""))
    (config.store_path / "config" / "storePaths.json").unlink()
    assert main(["store", "check", str(config.store_path)]) == 1
    assert "if broker.conf sets storePathCommitLog, give it with -c" in capsys.readouterr().out
    conf = tmp_path / "broker.conf"
    settings = {
        "storePathRootDir": config.store_path,
        "storePathCommitLog": config.commit_log_path,
        "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
        "maxHashSlotNum": config.max_hash_slot_num,
        "maxIndexNum": config.max_index_num,
    }
    conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    assert main(["store", "check", str(config.store_path), "-c", str(conf)]) == 0
    with conf.open("a", encoding="utf-8") as more:  # which Apache's broker ignored
        more.write(f"storePathConsumeQueue={tmp_path / 'nowhere'}\nstorePathIndex={tmp_path / 'nowhere-either'}\n")
    assert main(["store", "check", str(config.store_path), "-c", str(conf)]) == 0
    with pytest.raises(StoreError, match=r"consumequeue has files of this store"):
        opened(replace(config, store_path_consume_queue=str(tmp_path / "nowhere"), store_path_index=""))


def test_queues_and_index_are_rebuilt_where_they_are(config: StoreConfig) -> None:
    filled(config)
    before = {path: path.read_bytes() for path in config.consume_queue_path.rglob("*") if path.is_file()}
    shutil.rmtree(config.consume_queue_path)
    shutil.rmtree(config.index_path)
    report = rebuild_store(config.store_path, config)
    assert report.entries == COUNT
    assert {path: path.read_bytes() for path in config.consume_queue_path.rglob("*") if path.is_file()} == before
    assert check_store(config.store_path, config) == []
    assert rebuild_store(config.store_path, config).entries == COUNT  # exchanged with those that are there
    around = {path.name for part in config.paths.directories for path in part.parent.iterdir()}
    assert around == {"commitlog", "cq", "i"}


def test_a_copy_of_the_root_is_refused_as_the_store(config: StoreConfig, tmp_path: Path) -> None:
    """A tool, or a rebuild, would read and change the original's directories."""
    filled(config)
    copy = tmp_path / "copy"
    shutil.copytree(config.store_path, copy)
    for look in (check_store, rebuild_store):
        with pytest.raises(StoreError, match="is a copy of"):
            look(copy)
        with pytest.raises(StoreError, match="is another directory"):
            look(copy, config)
    shutil.copytree(config.commit_log_path, copy / "commitlog")
    sizes = small(copy)
    rebuild_store(copy, sizes)
    assert check_store(copy, sizes) == []


def test_no_two_stores_share_a_directory(config: StoreConfig, tmp_path: Path) -> None:
    store = opened(config)
    other = small(tmp_path / "other")
    for shares in (
        replace(other, store_path_commit_log=str(config.commit_log_path)),
        replace(other, store_path_consume_queue=str(config.consume_queue_path)),
        replace(other, store_path_index=str(config.index_path)),
    ):
        with pytest.raises(StoreLockedError, match="is in use by another store"):
            opened(shares)
    store.close()
    store = opened(small(tmp_path / "plain"))
    with pytest.raises(StoreLockedError, match="is in use by another store"):
        opened(replace(small(tmp_path / "other"), store_path_commit_log=str(store.config.commit_log_path)))
    with pytest.raises(StoreLockedError):
        check_store(tmp_path / "plain")
    store.close()


@pytest.mark.parametrize("part", ["commit_log", "consume_queue", "index"])
def test_a_changed_directory_setting_does_not_start_an_empty_store(tmp_path: Path, part: str) -> None:
    usual = small(tmp_path / "store")
    filled(usual)
    change: dict[str, Any] = {f"store_path_{part}": tmp_path / "elsewhere"}
    moved = replace(usual, **change)
    at_first, later = usual.paths, moved.paths
    with pytest.raises(StoreError, match="the broker would start empty there") as caught:
        opened(moved)
    assert str(tmp_path / "elsewhere") in caught.value.remedy
    old, new = getattr(at_first, part), getattr(later, part)
    shutil.move(old, new)
    store = opened(moved)
    assert bodies(store, "T", 0) == BODIES
    store.close()
    with pytest.raises(StoreError, match="the broker would start empty there"):
        opened(usual)
    shutil.move(new, old)
    store = opened(usual)
    assert bodies(store, "T", 0) == BODIES
    store.close()
    assert not (usual.store_path / "config" / "storePaths.json").exists()


def test_directories_are_recorded_on_disk_before_they_are_used(config: StoreConfig) -> None:
    store = opened(config)
    table = json.loads((config.store_path / "config" / "storePaths.json").read_bytes())
    assert table == {
        "storePathRootDir": str(config.store_path),
        "storePathCommitLog": str(config.commit_log_path),
        "storePathConsumeQueue": str(config.consume_queue_path),
        "storePathIndex": str(config.index_path),
    }
    store.close()


@pytest.mark.parametrize(
    "places",
    [
        {"store_path_commit_log": "store"},
        {"store_path_commit_log": "."},
        {"store_path_commit_log": "x", "store_path_consume_queue": "x"},
        {"store_path_commit_log": "x", "store_path_index": "x/index"},
        {"store_path_consume_queue": "store/commitlog/queues"},
    ],
    ids=str,
)
def test_directories_that_overlap_are_refused(tmp_path: Path, places: dict[str, str]) -> None:
    changes: dict[str, Any] = {name: tmp_path / place for name, place in places.items()}
    with pytest.raises(ConfigError, match=r"storePath\w+=.* (overlap|contains storePathRootDir)"):
        replace(small(tmp_path / "store"), **changes)
