"""Durations of puts in the response to request 28."""

from __future__ import annotations

from pathlib import Path

from spark_rocket.store.put_times import SAMPLES_PER_MINUTE, PutTimes
from spark_rocket.store.results import PutStatus
from tests.kit.clock import START
from tests.store.helpers import BORN, opened, put, put_batch, small


def classes(info: dict[str, str]) -> dict[str, int]:
    pieces = info["putMessageDistributeTime"].split()
    return {name: int(count) for name, _, count in (piece.rpartition(":") for piece in pieces) if count != "0"}


def test_classes_and_percentiles_are_of_the_last_minute() -> None:
    times = PutTimes()
    times.slow.update({1: 10, 9: 1, 10: 1, 450: 3, 9_999: 4, 10_000: 1})
    assert classes(times.runtime_info()) == {}, "of what was sampled"
    times.sample(1_000)
    assert classes(times.runtime_info()) == {
        "[<=0ms]": 980, "[0~10ms]": 11, "[10~50ms]": 1, "[200~500ms]": 3, "[5~10s]": 4, "[10s~]": 1
    }  # fmt: skip
    info = times.runtime_info()
    assert (info["putLatency99"], info["putLatency999"]) == ("1.00", "9999.00")
    assert info["putMessageEntireTimeMax"] == "10000"
    for _ in range(SAMPLES_PER_MINUTE):
        times.sample(1_000)
    assert classes(times.runtime_info()) == {}
    info = times.runtime_info()
    assert (info["putLatency99"], info["putLatency999"], info["putMessageEntireTimeMax"]) == ("0.00", "0.00", "10000")


def test_a_store_measures_its_puts_and_gets(tmp_path: Path) -> None:
    ticks = iter(range(START, START + 1_000_000, 7))
    store = opened(small(tmp_path), lambda: next(ticks))
    try:
        put(store, "T", 0, b"x")
        put_batch(store, "T", 0, [(0, b"x", b""), (0, b"y", b"")])
        for properties in (b"a\x01\0", b"p" * 40_000):
            refused = store.put_message("T", 0, b"x", properties, born_timestamp=1, born_host=BORN)
            assert refused.status is not PutStatus.PUT_OK
        store.get_message("T", 0, 0, 1, 1 << 20)
        store.sample()
        info = store.runtime_info()
        assert info["putMessageFailedTimes"] == "2"
        assert sum(classes(info).values()) == 2, "a batch is one put"
        assert int(info["putMessageEntireTimeMax"]) >= 7
        assert int(info["getMessageEntireTimeMax"]) == 7
    finally:
        store.close()
