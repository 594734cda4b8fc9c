"""Repeats are told by the queue alone: against the definition, wherever the queue is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from spark_rocket.datasource import dedupe
from spark_rocket.datasource.dedupe import Repeats, read_without_repeats
from spark_rocket.datasource.options import ReadOptions, Scope, parse_read_options
from spark_rocket.datasource.ranges import OffsetRange
from spark_rocket.datasource.schema import SOURCE_SCHEMA, project
from spark_rocket.errors import OptionError, RemotingTimeoutError
from tests.datasource.fakes import q

Log = list[tuple[int, str]]


def options(**given: str) -> ReadOptions:
    return parse_read_options({"nameServer": "x:1", "subscribe": "orders"} | given, Scope.READ)


def kept(log: Log, window: int) -> Log:
    """The definition."""
    return [
        (offset, key)
        for offset, key in log
        if not any(key == other and offset - window <= at < offset for at, other in log)
    ]


def rows(batch: pa.RecordBatch) -> Log:
    return list(zip(batch.column("queueOffset").to_pylist(), batch.column("msgId").to_pylist(), strict=True))


@settings(max_examples=200)
@given(
    keys=st.lists(st.none() | st.sampled_from("abcdefgh"), max_size=60),  # None: deleted
    window=st.integers(1, 12),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    step=st.integers(1, 9),
    wide=st.sampled_from(["", "a", "abcdefgh"]),  # which ids are 32 digits, as nearly all are
)
def test_any_queue_in_any_ranges_gives_what_the_definition_says(
    keys: list[str | None], window: int, cuts: list[int], step: int, wide: str
) -> None:
    log = [(offset, key * 32 if key in wide else key) for offset, key in enumerate(keys) if key is not None]
    edges = sorted({0, len(keys), *(cut for cut in cuts if cut < len(keys))})
    found: Log = []
    for start, end in pairwise(edges):
        repeats = Repeats(window)
        for low in range(max(0, start - window), end, step):
            for first, last in ((low, min(start, low + step, end)), (max(low, start), min(low + step, end))):
                part = [(offset, key) for offset, key in log if first <= offset < last]
                batch = pa.record_batch(
                    {"queueOffset": pa.array([p[0] for p in part], pa.int64()), "msgId": pa.array([p[1] for p in part])}
                    if part
                    else {"queueOffset": pa.array([], pa.int64()), "msgId": pa.array([], pa.string())}
                )
                rest = repeats.drop(batch)
                if first >= start:
                    found += rows(rest)
    assert found == kept(log, window)


def test_a_task_reads_the_ids_before_its_range_and_what_is_deleted_there_is_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int, bool, tuple[str, ...]]] = []

    def read_range(
        span: OffsetRange, options: ReadOptions, projection: Any, reader: Any, repeats: Repeats
    ) -> Iterator[pa.RecordBatch]:
        asked.append((span.start, span.end, options.fail_on_data_loss, repeats.columns(projection.columns)))
        count = span.end - span.start
        ids = ["same" if span.start + i in (99, 105) else str(span.start + i) for i in range(count)]
        yield repeats.drop(
            pa.record_batch({"queueOffset": pa.array(range(span.start, span.end)), "msgId": ids, "body": ids})
        )

    answers: list[int | Exception] = [RemotingTimeoutError("late"), 95]

    class Reader:
        def min_offset(self, queue: object) -> int:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    monkeypatch.setattr(dedupe, "read_range", read_range)
    reader: Any = Reader()
    body = project(StructType([SOURCE_SCHEMA["body"]]))
    span = OffsetRange(q(0), 100, 110)
    (batch,) = read_without_repeats(span, replace(options(), retry_timeout_ms=60_000), body, reader, 50)
    assert asked == [
        (95, 100, False, ("queueOffset", "msgId")),
        (100, 110, True, ("body", "queueOffset", "msgId")),
    ]
    assert 105 not in batch.column("queueOffset").to_pylist()
    assert batch.num_rows == 9


def test_the_option_and_what_it_does_not_go_with() -> None:
    assert options(dedupeWindow="1000").dedupe_window == 1000
    assert options().dedupe_window is None
    for wrong in ({"dedupeWindow": "0"}, {"dedupeWindow": "5", "filterPushdown": "index"}):
        with pytest.raises(OptionError, match="dedupeWindow"):
            options(**wrong)
    with pytest.raises(OptionError, match="dedupeWindow is given together with storePath"):
        parse_read_options({"storePath": "/x", "dedupeWindow": "5"}, Scope.READ)
