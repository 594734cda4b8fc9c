from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.datasource.plan.ranges import OffsetRange, limit_ends, ranges_between, split
from spark_rocket.errors import OffsetsError
from spark_rocket.model import MessageQueue


def q(queue_id: int) -> MessageQueue:
    return MessageQueue("orders", "broker-a", queue_id)


def spans(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange(q(index), 1000 * index, 1000 * index + size) for index, size in enumerate(sizes)]


SIZES = st.lists(st.integers(0, 10_000), min_size=1, max_size=12)


def test_empty_ranges_are_omitted_and_the_order_of_queues_is_kept() -> None:
    assert ranges_between({q(2): 5, q(1): 7, q(0): 3}, {q(2): 6, q(1): 7, q(0): 9}) == [
        OffsetRange(q(0), 3, 9),
        OffsetRange(q(2), 5, 6),
    ]


def test_a_reversed_range_is_an_error_with_its_queue() -> None:
    with pytest.raises(OffsetsError, match=r"orders/broker-a/1.* start 261 of a micro-batch is after its end 257"):
        ranges_between({q(0): 0, q(1): 261}, {q(0): 5, q(1): 257})


def test_without_options_ranges_are_not_split() -> None:
    assert split(spans(10, 1, 7)) == spans(10, 1, 7)


def test_no_partition_exceeds_the_limit() -> None:
    assert [piece.size for piece in split(spans(10, 3), max_records=4)] == [3, 3, 4, 3]


def test_the_largest_range_is_split() -> None:
    pieces = split(spans(900, 50, 50), min_partitions=6)
    assert [piece.queue.queue_id for piece in pieces] == [0, 0, 0, 0, 1, 2]


def test_there_are_never_more_partitions_than_messages() -> None:
    assert [piece.size for piece in split(spans(2, 1), min_partitions=100)] == [1, 1, 1]
    assert split([], min_partitions=4) == []


@given(SIZES, st.none() | st.integers(1, 60), st.none() | st.integers(1, 5000))
def test_pieces_cover_their_ranges_exactly_once(
    sizes: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    whole = [span for span in spans(*sizes) if span.size]
    pieces = split(whole, min_partitions=min_partitions, max_records=max_records)
    for span in whole:
        mine = [piece for piece in pieces if piece.queue == span.queue]
        assert [mine[0].start, mine[-1].end] == [span.start, span.end]
        assert all(left.end == right.start for left, right in pairwise(mine))
        assert max(piece.size for piece in mine) - min(piece.size for piece in mine) <= 1
    assert all(0 < piece.size <= (max_records or piece.size) for piece in pieces)
    assert len(pieces) >= min(min_partitions or 0, sum(sizes))


@given(SIZES, st.integers(1, 20_000))
def test_a_limit_is_met_exactly_and_no_queue_starves(lags: list[int], limit: int) -> None:
    starts = {q(index): 17 * index for index in range(len(lags))}
    latest = {q(index): 17 * index + lag for index, lag in enumerate(lags)}
    ends = limit_ends(starts, latest, limit)
    taken = {queue: ends[queue] - starts[queue] for queue in starts}
    assert sum(taken.values()) == min(limit, sum(lags))
    assert all(0 <= taken[queue] <= latest[queue] - starts[queue] for queue in starts)
    if limit >= len(lags):
        assert all(taken[q(index)] >= 1 for index, lag in enumerate(lags) if lag)


def test_shares_are_in_proportion_to_lag() -> None:
    ends = limit_ends({q(0): 0, q(1): 0, q(2): 50}, {q(0): 9000, q(1): 1000, q(2): 50}, 1000)
    assert ends == {q(0): 900, q(1): 100, q(2): 50}
    ends = limit_ends({q(0): 0, q(1): 0}, {q(0): 999_999, q(1): 1}, 10)
    assert ends == {q(0): 9, q(1): 1}, "a queue with a small lag is not skipped"


def test_with_fewer_messages_than_queues_the_queues_take_turns() -> None:
    starts = {q(index): 0 for index in range(5)}
    latest = {q(index): 100 for index in range(5)}
    for _ in range(5):
        starts = limit_ends(starts, latest, 2)
    assert list(starts.values()) == [2, 2, 2, 2, 2]


def test_limits_do_not_depend_on_the_order_of_the_queues() -> None:
    starts = {q(index): index for index in range(7)}
    latest = {q(index): 100 * index + 13 for index in range(7)}
    turned = dict(reversed(latest.items()))
    assert limit_ends(starts, latest, 321) == limit_ends(starts, turned, 321)
