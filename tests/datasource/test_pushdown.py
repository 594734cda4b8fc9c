"""Filters: what is left of a read. Whatever they say, no message that they want may be left out."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from spark_rocket.datasource import pushdown
from spark_rocket.datasource.filtered_batch import FilterPushdownReader
from spark_rocket.datasource.option_table import Scope
from spark_rocket.datasource.options import parse_read_options
from spark_rocket.datasource.pushdown import MARGIN_MS, narrow, pieces, tags_for_brokers, understand
from spark_rocket.datasource.ranges import OffsetRange
from tests.datasource.fakes import FakeQueues, q

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARED: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, given: value in given,
}
END = 300  # of both queues; message n is stored at 10 n ms


def micros(value: int) -> datetime:
    return EPOCH + timedelta(microseconds=value)


def _filters() -> st.SearchStrategy[Filter]:
    binary = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]

    def about(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
        several = st.lists(st.one_of(values, st.none()), max_size=4)
        return st.one_of(
            st.builds(lambda kind, value: kind((column,), value), st.sampled_from(binary), values),
            several.map(lambda given: In((column,), tuple(given))),
        )

    return st.one_of(
        about("queueId", st.integers(-1, 3)),
        about("QUEUEOFFSET", st.integers(-5, END + 5)),
        about("storeTimestamp", st.integers(-5_000, END * 10_000 + 5_000).map(micros)),
        st.sampled_from(["orders", "payments"]).map(lambda topic: EqualTo(("topic",), topic)),
    )


def _meets(one: Filter, topic: str, queue_id: int, offset: int) -> bool:
    columns = {
        "topic": topic,
        "queueid": queue_id,
        "queueoffset": offset,
        "storetimestamp": EPOCH + timedelta(milliseconds=10 * offset),
    }
    kind: Any = type(one)
    return COMPARED[kind](columns[one.attribute[0].lower()], one.value)  # type: ignore[attr-defined]


@given(st.lists(_filters(), max_size=4))
def test_what_is_wanted_is_read_and_what_spark_need_not_filter_is_exact(filters: list[Filter]) -> None:
    queues = FakeQueues(q0=(0, END), q1=(0, END))
    wanted, left = understand(filters)
    done = [one for one in filters if not any(one is other for other in left)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pushdown, "MARGIN_MS", 0)  # it would hide what is rounded wrongly
        read = narrow([OffsetRange(queue, 0, END) for queue in queues.spans], wanted, queues)
    got = {(span.queue.queue_id, offset) for span in read for offset in range(span.start, span.end)}
    assert len(got) == sum(span.size for span in read)  # none twice
    for queue_id in (0, 1):
        for offset in range(END):
            if all(_meets(one, "orders", queue_id, offset) for one in filters):
                assert (queue_id, offset) in got
    for queue_id, offset in sorted(got)[:50] + sorted(got)[-50:]:
        assert all(_meets(one, "orders", queue_id, offset) for one in done)


def test_columns_of_a_body_are_not_a_messages() -> None:
    names = {"place": "queueid"}
    wanted, left = understand([EqualTo(("Place",), 1), EqualTo(("queueId",), 2)], names)
    assert left == [EqualTo(("queueId",), 2)]
    assert (1 in wanted.queue_ids, 2 in wanted.queue_ids) == (True, False)


def test_a_typed_read_knows_which_columns_are_a_messages() -> None:
    options = parse_read_options(
        {"subscribe": "t", "filterPushdown": "true", "bodyFormat": "json", "metadataColumns": "queueId as place"},
        Scope.READ,
    )
    reader = FilterPushdownReader(options, StructType().add("queueId", "integer").add("place", "integer", False))
    assert [one.attribute for one in reader.pushFilters([EqualTo(("place",), 1), EqualTo(("queueId",), 1)])] == [
        ("queueId",)
    ]


def test_times_narrow_what_is_read() -> None:
    queues = FakeQueues(q0=(0, 100_000))
    low, high = EPOCH + timedelta(seconds=400), EPOCH + timedelta(seconds=500)
    wanted, left = understand([GreaterThanOrEqual(("storeTimestamp",), low), LessThan(("storeTimestamp",), high)])
    assert len(left) == 2
    margin = MARGIN_MS // 10
    assert narrow([OffsetRange(q(0), 0, 100_000)], wanted, queues) == [
        OffsetRange(q(0), 40_000 - margin, 50_000 + margin)
    ]


@pytest.mark.parametrize(
    "one",
    [
        Not(EqualTo(("queueId",), 1)),
        IsNotNull(("keys",)),
        StringStartsWith(("topic",), "ord"),
        EqualTo(("queueId",), 1.5),
        EqualTo(("queueId",), True),
        EqualTo(("storeTimestamp",), datetime(2026, 1, 1)),
        EqualTo(("storeTimestamp",), 5),
        EqualTo(("properties", "topic"), "x"),
        EqualNullSafe(("tags",), None),
        EqualTo(("body",), b"x"),
        In(("topic",), (1, 2)),
        In(("storeTimestamp",), (EPOCH, 7)),
        GreaterThan(("topic",), "a"),
    ],
)
def test_what_is_not_understood_is_sparks(one: Filter) -> None:
    wanted, left = understand([one])
    assert left == [one]
    assert wanted == understand([])[0]


def test_whole_queues_and_single_messages() -> None:
    queues = [q(0), q(1), q(0, "payments"), q(0, broker="broker-b")]
    spans = [OffsetRange(queue, 10, 100) for queue in queues]
    wanted, left = understand([In(("topic",), ("orders", None)), EqualTo(("brokerName",), "broker-a")])
    assert not left
    assert [span.queue for span in narrow(spans, wanted, FakeQueues())] == [q(0), q(1)]
    wanted, left = understand([In(("queueOffset",), (5, 10, 11, 99, 100)), EqualTo(("queueId",), 1)])
    assert not left
    assert narrow(spans, wanted, FakeQueues()) == [OffsetRange(q(1), 10, 12), OffsetRange(q(1), 99, 100)]
    assert pieces(spans[0], [9, 100]) == []
    assert understand([EqualTo(("keys",), "a"), EqualTo(("keys",), "b")])[0].is_contradiction


def test_tags_for_brokers() -> None:
    def asked(*tags: str, given: tuple[str, ...] | None = None, topic: str = "orders") -> tuple[str, ...] | None:
        wanted, left = understand([In(("tags",), tags)])
        assert left
        return tags_for_brokers(wanted, given, [topic])

    assert asked("A", "B") == ("A", "B")
    assert asked("A", "B", given=("B", "C")) == ("B",)
    assert asked("A", given=("B",)) == ()
    for odd in ("", "*", "A||B", " A", "A\t"):
        assert asked("A", odd) is None
        assert asked(odd, given=("B",)) == ("B",)
    assert asked(*(str(number) for number in range(10_000))) is None
    assert asked("A", topic="SCHEDULE_TOPIC_XXXX") is None
    assert tags_for_brokers(understand([])[0], ("B",), ["orders"]) == ("B",)
