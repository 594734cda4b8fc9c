"""The tasks of a read: small ranges share one, each other range has its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.ranges import OffsetRange, split
from spark_rocket.datasource.plan.tasks import (
    MAX_BYTES,
    MAX_MESSAGES,
    MAX_RANGES,
    MAX_SAMPLES,
    Task,
    combine,
    plan_tasks,
)
from spark_rocket.model import MessageQueue
from tests.datasource.fakes import q

Sizes = dict[MessageQueue, list[int]]


def spans(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange(q(index), 1000 * index, 1000 * index + size) for index, size in enumerate(sizes)]


def options(**given: object) -> ReadOptions:
    text = {name: str(value) for name, value in given.items() if value is not None}
    return parse_read_options({"subscribe": "orders", "nameServer": "x:1", **text}, Scope.READ)


def of_size(size: int) -> Callable[[Mapping[MessageQueue, int], int], Sizes]:
    return lambda starts, count: {queue: [size] * count for queue in starts}


def messages(task: Task) -> int:
    return sum(span.size for span in task)


@given(
    st.lists(st.integers(1, 12_000) | st.integers(1, 50), max_size=20),
    st.lists(st.none() | st.integers(1, 100_000), min_size=20, max_size=20),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(100, 15_000),
)
def test_each_range_is_in_one_task_within_the_limits(
    counts: list[int], sizes: list[int | None], min_partitions: int | None, max_records: int | None
) -> None:
    ranges = spans(*counts)

    def sizes_of(starts: Mapping[MessageQueue, int], count: int) -> Sizes:
        known = {queue: sizes[queue.queue_id] for queue in starts}
        return {queue: [size] * count for queue, size in known.items() if size is not None}

    given = {"minPartitions": min_partitions, "maxRecordsPerPartition": max_records}
    pieces = split(ranges, min_partitions=min_partitions, max_records=max_records)
    tasks = plan_tasks(ranges, options(**given), sizes_of)
    place = {piece: number for number, piece in enumerate(pieces)}
    assert sorted(chain(*tasks), key=lambda piece: place[piece]) == pieces, "each once"
    for task in tasks:
        places = [place[piece] for piece in task]
        assert places == sorted(places), "in the order of the queues"
        if len(task) > 1:
            assert messages(task) <= min(MAX_MESSAGES, max_records or MAX_MESSAGES)
            assert len(task) <= MAX_RANGES
            assert sum(span.size * (sizes[span.queue.queue_id] or 0) for span in task) <= MAX_BYTES
    firsts = [place[task[0]] for task in tasks]
    assert firsts == sorted(firsts)
    assert len(tasks) >= min(min_partitions or 0, len(pieces))
    off = plan_tasks(ranges, options(combineSmallRanges=False, **given), sizes_of)
    assert off == [(piece,) for piece in pieces]


@given(st.lists(st.integers(1, 12_000), max_size=60), st.integers(1, 5_000))
def test_there_are_at_most_about_twice_as_many_tasks_as_necessary(counts: list[int], size: int) -> None:
    tasks = combine(spans(*counts), of_size(size))
    parts = [max(count / MAX_MESSAGES, count * size / MAX_BYTES, 1 / MAX_RANGES) for count in counts]
    assert len(tasks) <= sum(part > 0.5 for part in parts) + 2 * sum(part for part in parts if part <= 0.5) + 2


@pytest.mark.parametrize("queues", [1, 4, 16, 64, 256])
def test_a_small_batch_is_one_task(queues: int) -> None:
    ranges = spans(*[1000 // queues] * queues)
    assert combine(ranges, of_size(300)) == [tuple(ranges)]


def test_thousands_of_queues_need_few_tasks() -> None:
    assert [len(task) for task in combine(spans(*[3] * 5000), of_size(300))] == [250] * 20


def test_large_ranges_have_their_own_tasks() -> None:
    ranges = spans(5, 20_000, 5, 5001, 5)
    small = (ranges[0], ranges[2], ranges[4])
    assert combine(ranges, of_size(300)) == [small, (ranges[1],), (ranges[3],)]


def test_ranges_of_large_messages_have_their_own_tasks() -> None:
    ranges = spans(5, 5, 5, 5)

    def sizes_of(starts: Mapping[MessageQueue, int], count: int) -> Sizes:
        return {queue: [1_000_000 if queue.queue_id == 2 else 100] * 5 for queue in starts}

    assert combine(ranges, sizes_of) == [(ranges[0], ranges[1], ranges[3]), (ranges[2],)]
    assert [len(task) for task in combine(spans(*[1000] * 8), of_size(1024))] == [4, 4]
    assert [len(task) for task in combine(spans(*[1000] * 8), lambda starts, count: {})] == [4, 4], "1 KiB is assumed"


def test_tasks_have_about_the_same_messages() -> None:
    assert [messages(task) for task in combine(spans(*[160] * 64), of_size(100))] == [5120, 5120]


def test_a_minimum_of_partitions_is_kept() -> None:
    assert [len(task) for task in plan_tasks(spans(*[10] * 64), options(minPartitions=8), of_size(100))] == [8] * 8
    assert len(plan_tasks(spans(5000, *[1] * 50), options(minPartitions=4), of_size(100))) == 4
    assert len(plan_tasks(spans(10, 10), options(minPartitions=4), of_size(100))) == 4


def test_messages_read_for_duplicates_count() -> None:
    ranges = [OffsetRange(q(number), 100_000, 100_010) for number in range(4)]
    assert plan_tasks(ranges, options(dedupeWindow=100_000), of_size(100)) == [(span,) for span in ranges]
    assert plan_tasks(ranges, options(dedupeWindow=1_000), of_size(100)) == [tuple(ranges)]


def test_few_queues_are_sampled_and_the_others_are_like_the_median() -> None:
    asked: list[Mapping[MessageQueue, int]] = []

    def sizes_of(starts: Mapping[MessageQueue, int], count: int) -> Sizes:
        asked.append(starts)
        return {queue: [4_000_000 if not queue.queue_id else 4096] * count for queue in starts}

    tasks = combine(spans(*[8] * 640), sizes_of)
    assert len(asked) == 1
    assert len(asked[0]) == MAX_SAMPLES
    assert all(starts == 1000 * queue.queue_id for queue, starts in asked[0].items())
    assert tasks[0] == tuple(spans(8)), "of large messages"
    assert {len(task) for task in tasks[1:]} <= {127, 128}


def test_sizes_are_requested_only_for_small_ranges() -> None:
    def refuse(starts: Mapping[MessageQueue, int], count: int) -> Sizes:
        raise AssertionError("not needed")

    assert len(combine(spans(6000, 7000, 10), refuse)) == 3
    assert combine([], refuse) == []
    assert len(plan_tasks(spans(1, 1), options(combineSmallRanges=False), refuse)) == 2


def test_a_range_is_sampled_up_to_its_end() -> None:
    ranges = spans(2, 2)
    assert combine(ranges, lambda starts, count: {queue: [100, 100, 9_000_000] for queue in starts}) == [tuple(ranges)]
