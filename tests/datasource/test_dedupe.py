"""Duplicates depend only on the queue: comparison with the definition, for any split into ranges."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.client import Reader
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parse import parse_read_options, parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.read import fetch
from spark_rocket.datasource.read.dedupe import DuplicateFilter
from spark_rocket.datasource.read.fetch import read_deduplicated
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
from spark_rocket.datasource.write import task
from spark_rocket.datasource.write.row_encoder import RowEncoder, TaskQueues, write_key
from spark_rocket.datasource.write.send import Sink
from spark_rocket.datasource.write.writer import write_rows
from spark_rocket.errors import OptionError, RemotingTimeoutError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.testing import LocalCluster
from tests.datasource.fakes import q

HOSTS: dict[str, Any] = {
    "queue_offset": 0,
    "physical_offset": 0,
    "born_timestamp": 1,
    "born_host": pack_host(("10.0.0.1", 5000)),
    "store_timestamp": 1,
    "store_host": pack_host(("127.0.0.1", 10911)),
}
Same = tuple[str, int, bytes]  # id, body, properties
Log = list[tuple[int, Same]]


def options(**given: str) -> ReadOptions:
    return parse_read_options({"nameServer": "x:1", "subscribe": "orders"} | given, Scope.READ)


def kept(log: Log, window: int) -> Log:
    """The definition."""
    return [
        (offset, key)
        for offset, key in log
        if not any(key == other and offset - window <= at < offset for at, other in log)
    ]


def batch_of(log: Log) -> pa.RecordBatch:
    offsets, keys = zip(*log, strict=True) if log else ((), ())
    return pa.record_batch(
        {
            "queueOffset": pa.array(offsets, pa.int64()),
            "msgId": pa.array([key[0] for key in keys], pa.string()),
            "storedBody": pa.array([key[1] for key in keys], pa.int64()),
            "storedProperties": pa.array([key[2] for key in keys], pa.binary()),
        }
    )


def rows(batch: pa.RecordBatch) -> Log:
    offsets, *keys = (batch.column(name).to_pylist() for name in batch.schema.names)
    return list(zip(offsets, zip(*keys, strict=True), strict=True))


@settings(max_examples=200)
@given(
    keys=st.lists(  # None: deleted
        st.none() | st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 1), st.sampled_from([b"", b"p\x01\xff"])),
        max_size=60,
    ),
    window=st.integers(1, 12),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    step=st.integers(1, 9),
    wide=st.sampled_from(["", "a", "abcdefgh"]),  # ids with 32 digits, as usual
)
def test_any_queue_and_ranges_match_the_definition(
    keys: list[Same | None], window: int, cuts: list[int], step: int, wide: str
) -> None:
    log = [
        (offset, (key[0] * 32 if key[0] in wide else key[0], *key[1:]))
        for offset, key in enumerate(keys)
        if key is not None
    ]
    edges = sorted({0, len(keys), *(cut for cut in cuts if cut < len(keys))})
    found: Log = []
    for start, end in pairwise(edges):
        duplicate_filter = DuplicateFilter(window)
        for low in range(max(0, start - window), end, step):
            for first, last in ((low, min(start, low + step, end)), (max(low, start), min(low + step, end))):
                rest = duplicate_filter.drop(batch_of([(offset, key) for offset, key in log if first <= offset < last]))
                if first >= start:
                    found += rows(rest)
    assert found == kept(log, window)


def test_times_added_by_brokers_are_not_compared() -> None:
    def stored(*pairs: str) -> bytes:
        return "".join(pair.replace("=", "\x01") + "\x02" for pair in pairs).encode()

    mine, other = ("a=1", "UNIQ_KEY=K", "REAL_TOPIC=t"), ("a=2", "UNIQ_KEY=K", "REAL_TOPIC=t")
    texts = [
        stored(*mine, "TIMER_ENQUEUE_MS=1", "TIMER_DEQUEUE_MS=2"),
        stored("TIMER_ROLL_TIMES=1", *mine, "TIMER_ENQUEUE_MS=3", "TIMER_DEQUEUE_MS=4", "__CRC32#=0000000017"),
        stored(*mine),
        stored(*mine, "TIMER_DEQUEUE_MS=5")[:-1],
        stored(*other, "TIMER_DEQUEUE_MS=5"),
        stored(*mine, "xTIMER_DEQUEUE_MS=5"),
        stored(*mine, "x=TIMER_DEQUEUE_MS"),
    ]
    batch = batch_of([(at, ("K" * 32, 0, text)) for at, text in enumerate(texts)])
    for step in (1, 3, 7):
        duplicate_filter = DuplicateFilter(100)
        left = [row[0] for low in range(0, 7, step) for row in rows(duplicate_filter.drop(batch.slice(low, step)))]
        assert left == [0, 4, 5, 6]


def test_a_row_with_the_id_of_another_row_is_kept() -> None:
    """A task failed after A and B. Its retry had the rows in another order and gave the ids of A and B to others."""
    key = write_key("query", "7", 0)
    written: dict[MessageQueue | None, list[bytes]] = {}
    for bodies, stored in (("ABCD", 2), ("CADB", 4)):
        queues = TaskQueues(lambda topic, *, ordered=False: [q(0)], key, lambda: RetryDeadline(0))
        encoder = RowEncoder(parse_write_options({"topic": "t"}, Scope.WRITE), queues, key, "")
        for block in encoder.blocks(pa.record_batch({"body": [body.encode() for body in bodies]})):
            parts = list(decode_batch_body(block.body))[:stored]
            written.setdefault(block.queue, []).extend(
                encode_record(b"t", 0, bytes(body), bytes(properties), **HOSTS) for _, body, properties in parts
            )
    ((_, records),) = written.items()
    for offset, record in enumerate(records):
        records[offset] = record[:20] + offset.to_bytes(8, "big") + record[28:]
    columns = DuplicateFilter.columns(("body",))
    for window, left in ((100, b"ABCADB"), (1, b"ABCADB")):
        batch = decode_records(b"".join(records), columns, broker_name="b")
        assert b"".join(DuplicateFilter(window).drop(batch).column("body").to_pylist()) == left
    # In the same order, they are detected.
    again = records[:2] + [
        record[:20] + offset.to_bytes(8, "big") + record[28:] for offset, record in enumerate(records[:2], 2)
    ]
    batch = decode_records(b"".join(again), columns, broker_name="b")
    assert DuplicateFilter(100).drop(batch).column("body").to_pylist() == [b"A", b"B"]


def test_a_task_reads_ids_before_its_range_without_data_loss_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int, bool, tuple[str, ...]]] = []

    def read_range(
        span: OffsetRange, options: ReadOptions, projection: Any, reader: Any, duplicate_filter: DuplicateFilter
    ) -> Iterator[pa.RecordBatch]:
        asked.append((span.start, span.end, options.fail_on_data_loss, duplicate_filter.columns(projection.columns)))
        count = span.end - span.start
        ids = ["same" if span.start + i in (99, 105) else str(span.start + i) for i in range(count)]
        batch = batch_of([(span.start + i, (ids[i], 0, b"")) for i in range(count)])
        yield duplicate_filter.drop(batch.append_column("body", pa.array(ids)))

    answers: list[int | Exception] = [RemotingTimeoutError("late"), 95]

    class Reader:
        def min_offset(self, queue: object) -> int:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    monkeypatch.setattr(fetch, "read_range", read_range)
    reader: Any = Reader()
    body = project(pa.schema([MESSAGE_SCHEMA.field("body")]))
    span = OffsetRange(q(0), 100, 110)
    (batch,) = read_deduplicated(span, replace(options(), retry_timeout_ms=60_000), body, reader, 50)
    assert asked == [
        (95, 100, False, ("queueOffset", "msgId", "storedBody", "storedProperties")),
        (100, 110, True, ("body", "queueOffset", "msgId", "storedBody", "storedProperties")),
    ]
    assert 105 not in batch.column("queueOffset").to_pylist()
    assert batch.num_rows == 9


def test_the_option_and_its_conflicts() -> None:
    assert options(dedupeWindow="1000").dedupe_window == 1000
    assert options().dedupe_window is None
    for wrong in ({"dedupeWindow": "0"}, {"dedupeWindow": "5", "lookupKeys": "a"}):
        with pytest.raises(OptionError, match="dedupeWindow"):
            options(**wrong)
    with pytest.raises(OptionError, match="dedupeWindow cannot be combined with storePath"):
        parse_read_options({"storePath": "/x", "dedupeWindow": "5"}, Scope.READ)


@pytest.mark.live
def test_duplicates_of_repeated_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain, compressed and delayed rows, written twice with different sizes of batches and requests."""
    with LocalCluster(in_process=True, data_dir=tmp_path) as cluster, Reader(cluster.name_server) as reader:
        topic = cluster.create_topic("t", 3)
        bodies = [(b"%d" % number).ljust(number % 20 * 100, b".") for number in range(600)]
        at = datetime.now(UTC) + timedelta(seconds=2)
        frame = pa.record_batch(
            {
                "body": pa.array(bodies, pa.binary()),
                "shardingKey": pa.array([None if number % 3 else "k" for number in range(600)]),
                "deliverAt": pa.array([at if number % 100 == 1 else None for number in range(600)]),
            }
        )
        raw = {"topic": topic, "nameServer": cluster.name_server, "compression": "zlib", "compressAbove": "1000"}

        def write(size: int, **given: str) -> None:
            options = parse_write_options(raw | given, Scope.WRITE)
            sink = Sink(options)
            monkeypatch.setattr(task, "sink_for", lambda _: sink)
            try:
                write_rows((frame.slice(low, size) for low in range(0, 600, size)), options, "query", "7")
            finally:
                sink._producer.close()

        write(600)
        write(70, sendBatchSize="11")
        time.sleep(max(0.0, (at - datetime.now(UTC)).total_seconds()))
        write(200, sendBatchBytes="2000")  # delayed rows are delivered at once
        queues = reader.queues(topic)
        deadline = time.monotonic() + 30
        while sum(map(reader.max_offset, queues)) < 1800:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for columns in (["body", "properties"], ["body"], ["msgId"]):
            found: list[Any] = []
            for queue in queues:
                options_ = options(nameServer=cluster.name_server, subscribe=topic)
                projection = project(pa.schema([MESSAGE_SCHEMA.field(column) for column in columns]))
                for start, end in ((0, 250), (250, reader.max_offset(queue))):
                    span = OffsetRange(queue, start, min(end, reader.max_offset(queue)))
                    for batch in read_deduplicated(span, options_, projection, reader, 1800):
                        found += batch.column(0).to_pylist()
            assert len(found) == len(set(found)) == 600
            assert columns == ["msgId"] or sorted(found) == sorted(bodies)
