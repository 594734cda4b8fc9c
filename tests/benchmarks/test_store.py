"""The store's benchmarks with next to nothing to do: they measure what they say, and clean up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import store_disk, store_search
from benchmarks.lab import Lab
from benchmarks.registry import REGISTRY, run
from benchmarks.store import open_store


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


def test_every_search_finds_what_was_put(lab: Lab) -> None:
    store, samples = store_search.fill(lab, 10_000)
    assert len(samples) == store_search.SAMPLES
    sample = samples[0]
    (record,) = store.query_message(store_search.TOPIC, sample.key, 32, 0, 1 << 62).records
    assert record == store.look_message_by_offset(sample.physical_offset)
    first = store.get_offset_by_time(store_search.TOPIC, 0, sample.store_timestamp)
    assert first <= sample.queue_offset < first + store_search.BATCH
    assert store.get_max_offset(store_search.TOPIC, 0) == 10_000


def test_every_search_has_a_row_for_one_and_for_ten_million(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> None:
    small = store_search.fill(lab, 10_000)
    monkeypatch.setattr(store_search, "fill", lambda lab, messages: small)
    for name in ("search.key.1m", "search.time.10m", "search.id.1m"):
        assert run(REGISTRY[name], lab, 1).value > 0


def test_a_store_of_ten_gibibytes_takes_no_disk_and_is_whole(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> None:
    monkeypatch.setattr(store_disk, "LARGE_FILES", 1)
    store_disk._large_log(lab.scratch / "store" / "commitlog")
    with open_store(lab.scratch / "store", message_index_enable=False) as store:
        assert store.recovery is not None
        assert store.recovery.cut_reason == ""
        assert store.get_max_offset("large", 0) == store.recovery.records > 200
    (file,) = (lab.scratch / "store" / "commitlog").iterdir()
    assert file.stat().st_size == 1 << 30
    assert file.stat().st_blocks * 512 < 16 << 20


def test_senders_wait_for_the_disk_and_appends_for_their_roll(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> None:
    monkeypatch.setattr(store_disk, "SYNC_SECONDS", 0.05)
    monkeypatch.setattr(store_disk, "ROLLS", 2)
    monkeypatch.setattr(store_disk, "ROLL_FILE", 1 << 20)
    for name in ("store.sync.1", "store.sync.16", "store.sync.gain", "store.roll.p999"):
        result = run(REGISTRY[name], lab, 1)
        assert result.value > 0 < result.ceiling
