"""Searches by time and by id, compared with a full scan: equal times, gaps, trimmed and empty queues, both bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.protocol.record.record import decode_record
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.tools.check import check_store
from tests.kit.clock import START, Clock
from tests.store.conftest import MakeStore
from tests.store.helpers import opened, put, put_batch, small


def lower(times: list[int], first: int, time: int) -> int:
    """The first message stored at or after a time, else the end."""
    return next((first + at for at, stored in enumerate(times) if stored >= time), first + len(times))


def upper(times: list[int], first: int, time: int) -> int:
    """The last message stored at or before a time, else the first one."""
    return max((first + at for at, stored in enumerate(times) if stored <= time), default=first)


@settings(max_examples=25, deadline=None)
@given(
    gaps=st.lists(
        st.tuples(st.sampled_from([0, 0, 0, 1, 2, 50, 4000]), st.integers(0, 2), st.booleans()), max_size=120
    ),
    trimmed=st.integers(0, 3),
)
def test_both_bounds_equal_a_full_scan(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[tuple[int, int, bool]], trimmed: int
) -> None:
    config = small(tmp_path_factory.mktemp("time") / "store", mapped_file_size_commit_log=4096)
    clock = Clock()
    store = opened(config, clock)
    times: dict[int, list[int]] = {0: [], 1: [], 2: []}
    physical: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for gap, queue_id, batch in gaps:
        clock.now += gap
        if batch:
            result = put_batch(store, "T", queue_id, [(0, b"x", b"")] * 3)
            times[queue_id] += [clock.now] * 3
            physical[queue_id] += map(int, result.physical_offsets)
        else:
            times[queue_id].append(clock.now)
            physical[queue_id].append(put(store, "T", queue_id, b"x" * 50).physical_offset)
    if trimmed:
        store.close()
        for file in sorted(config.commit_log_path.glob("*"))[:-1][:trimmed]:
            file.unlink()
        store = opened(config, clock)
    for queue_id, all_times in times.items():
        first = sum(offset < store.min_physical_offset for offset in physical[queue_id])
        kept = all_times[first:]
        assert store.get_min_offset("T", queue_id) == first
        for time in {0, START - 1, START, clock.now + 1, 1 << 60, *(at + by for at in kept for by in (-1, 0, 1))}:
            assert store.get_offset_by_time("T", queue_id, time) == lower(kept, first, time)
            assert store.get_offset_by_time("T", queue_id, time, upper=True) == upper(kept, first, time)
    store.close()
    lost = {"begin"} if trimmed else set()  # files that retention has not deleted
    assert {problem.kind for problem in check_store(config.store_path, config)} <= lost


@pytest.mark.parametrize("count", [1_000, 8_000])
def test_the_cost_does_not_grow_with_the_queue(
    make_store: MakeStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """At most twice the logarithm of the queue's length in reads of the log."""
    store = make_store(mapped_file_size_commit_log=8 << 20, mapped_file_size_consume_queue=20_000)
    for _ in range(count // 100):
        clock.now += 7
        put_batch(store, "T", 0, [(0, b"x", b"")] * 100)
    reads = 0
    real = CommitLog.read

    def read(log: CommitLog, offset: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        return real(log, offset, size)

    monkeypatch.setattr(CommitLog, "read", read)
    assert store.get_offset_by_time("T", 0, START + 7 * 3) == 200
    assert store.get_offset_by_time("T", 0, START + 7 * 3, upper=True) == 299
    assert reads <= 2 * count.bit_length()


def test_an_id_finds_a_record_exactly_where_one_starts(make_store: MakeStore) -> None:
    """Every offset in and around a log with a blank record; bodies look like record headers."""
    store = make_store(mapped_file_size_commit_log=4096)
    starts: dict[int, int] = {}
    for number in range(30):
        record = store.look_message_by_offset(max(starts, default=0)) or b""
        starts[put(store, "T", number % 2, record[:90] + b"%d" % number, b"KEYS\x01k").physical_offset] = number
    for offset in range(-10, store.max_physical_offset + 5000):
        found = store.look_message_by_offset(offset)
        if offset in starts:
            assert found is not None
            assert decode_record(found).body.endswith(b"%d" % starts[offset])
        else:
            assert found is None
    assert store.look_message_by_offset(1 << 62) is None
