"""Sizes derived from the files: known if they are certain, and unknown if a file may be truncated."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_rocket.store import StoreConfig
from spark_rocket.store.file_sizes import read_file_sizes
from spark_rocket.store.paths import StorePaths

LOG, QUEUE, INDEX = 1 << 30, 6_000_000, 420_000_040


@pytest.mark.parametrize(
    ("log", "queues", "index", "known", "sizes"),
    [
        ([LOG], [QUEUE], [INDEX], True, (LOG, QUEUE)),
        ([LOG], [], [], True, (LOG, QUEUE)),
        ([], [], [], True, (LOG, QUEUE)),
        ([LOG, LOG], [QUEUE, 5000, 5000], [INDEX], True, (LOG, QUEUE)),  # cut off
        ([LOG, 300_000], [QUEUE], [], True, (LOG, QUEUE)),
        ([LOG], [QUEUE], [5000], True, (LOG, QUEUE)),
        ([LOG], [QUEUE], [INDEX, 5000, 5000], True, (LOG, QUEUE)),
        ([LOG], [QUEUE], [5000, 5000], False, (LOG, QUEUE)),  # a configured size with unknown parts
        ([LOG], [QUEUE], [INDEX + 20], False, (LOG, QUEUE)),
        ([LOG], [5000], [INDEX], False, (LOG, 5000)),  # one file: it may have been cut off
        ([LOG], [2000, 2000], [INDEX], True, (LOG, 2000)),
        ([LOG], [2000, 2000, 500], [INDEX], False, (LOG, 2000)),
        ([LOG], [QUEUE, 2 * QUEUE], [INDEX], False, (LOG, 2 * QUEUE)),
        ([1 << 20] * 3, [2000] * 9, [2000 + 20_040], False, (1 << 20, 2000)),
        ([1 << 20] * 3, [], [INDEX], False, (1 << 20, QUEUE)),
        ([1 << 20], [2000] * 9, [INDEX], False, (1 << 20, 2000)),
        ([LOG], [7, 7], [INDEX], False, (LOG, QUEUE)),
    ],
)
def test_sizes(
    log: list[int], queues: list[int], index: list[int], known: bool, sizes: tuple[int, int], tmp_path: Path
) -> None:
    for number, size in enumerate(log):
        _make(tmp_path / "commitlog" / f"{number * LOG:020d}", size)
    for number, size in enumerate(queues):
        _make(tmp_path / "consumequeue" / "T" / str(number) / f"{0:020d}", size)
    for number, size in enumerate(index):
        _make(tmp_path / "index" / f"2026112100000000{number}", size)
    found = read_file_sizes(StorePaths.of(tmp_path))
    assert found.are_known == known
    assert isinstance(found.config, StoreConfig)
    assert (found.config.mapped_file_size_commit_log, found.config.mapped_file_size_consume_queue) == sizes


def _make(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, size)
