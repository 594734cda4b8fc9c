"""Statistics of a store: the same from the consume queues and from the log."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.store import StoreConfig
from spark_rocket.store.read_only import open_read_only
from spark_rocket.store.tools.store_stats import StoreStats, store_stats
from tests.golden import expected, extract_store
from tests.kit.clock import Clock
from tests.store.helpers import golden, opened, put, small


def stats_of(config: StoreConfig, topics: frozenset[str] | None = None, *, scan: bool = False) -> StoreStats:
    with open_read_only(config.store_path, config) as view:
        return store_stats(view, topics, scan=scan)


@pytest.mark.parametrize("name", ["clean", "killed"])
@pytest.mark.parametrize("scan", [False, True])
def test_a_real_brokers_store(name: Any, scan: bool, tmp_path: Path) -> None:
    config = golden(extract_store(name, tmp_path))
    stats = stats_of(config, scan=scan)
    sizes: dict[tuple[str, int], list[int]] = defaultdict(list)
    times: dict[tuple[str, int], list[int]] = defaultdict(list)
    for message in expected(name):
        sizes[message["topic"], message["queueId"]].append(message["storeSize"])
        times[message["topic"], message["queueId"]].append(message["storeTimestamp"])
    found = {(queue.topic, queue.queue_id): queue for queue in stats.queues}
    for key, mine in sizes.items():
        queue = found[key]
        assert (queue.messages, queue.bytes) == (len(mine), sum(mine))
        assert (queue.min_offset, queue.max_offset) == (0, len(mine))
        assert (queue.first_store_time, queue.last_store_time) == (min(times[key]), max(times[key]))
    assert (stats.log.count, stats.log.size) == (3, 3 << 20)
    assert stats.index_entries == (2669 if name == "clean" else 2789)
    assert sum(queue.bytes for queue in stats.queues) <= stats.log_max_offset
    assert stats.damage == []


def test_both_ways_agree_and_a_topic_can_be_chosen(tmp_path: Path) -> None:
    config = small(tmp_path / "store")
    clock = Clock()
    store = opened(config, clock)
    for i in range(100):
        clock.now += 10
        put(store, f"T{i % 3}", i % 2, b"x" * 50 * i)
    store.close()
    quick, exact = stats_of(config), stats_of(config, scan=True)
    assert quick == exact
    assert (quick.first_store_time, quick.last_store_time) == (clock.now - 990, clock.now)
    chosen = stats_of(config, frozenset({"T1"}))
    assert chosen.queues == [queue for queue in quick.queues if queue.topic == "T1"]
    assert chosen.log_max_offset == quick.log_max_offset
    assert 0 < quick.everything.on_disk < 2 * quick.everything.size


def test_a_scan_needs_no_queues_and_names_damage(tmp_path: Path) -> None:
    config = small(tmp_path / "store")
    store = opened(config)
    for _ in range(10):
        put(store, "T", 0, b"x" * 100)
    store.close()
    before = stats_of(config, scan=True)
    shutil.rmtree(config.consume_queue_path)
    assert stats_of(config, scan=True).queues == before.queues
    assert stats_of(config).queues == []
    path = next(config.commit_log_path.iterdir())
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    stats = stats_of(config, scan=True)
    assert [queue.messages for queue in stats.queues] == [9]
    assert [damage.offset for damage in stats.damage] == [0]


def test_empty_and_trimmed(tmp_path: Path) -> None:
    config = small(tmp_path / "store")
    store = opened(config)
    store.close()
    stats = stats_of(config)
    assert (stats.queues, stats.log.count, stats.index_entries) == ([], 0, 0)
    assert (stats.first_store_time, stats.log_max_offset) == (-1, 0)
    store = opened(config)
    for _ in range(100):
        put(store, "T", 0, b"x" * 1000)
    store.close()
    sorted(config.commit_log_path.iterdir())[0].unlink()
    for scan in (False, True):
        (queue,) = stats_of(config, scan=scan).queues
        assert 0 < queue.min_offset < queue.max_offset == 100
        assert queue.messages == 100 - queue.min_offset
