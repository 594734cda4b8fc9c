"""The reading task against a broker in a list: what it does with every kind of answer."""

from __future__ import annotations

import logging
from concurrent.futures import Future

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.client.reader import PullResult, PullStatus
from spark_rocket.datasource.fetch import read_range
from spark_rocket.datasource.options import ReadOptions, Scope, parse_read_options
from spark_rocket.datasource.patience import Patience
from spark_rocket.datasource.ranges import OffsetRange
from spark_rocket.datasource.schema import SOURCE_SCHEMA, project
from spark_rocket.errors import (
    BrokerError,
    DataLossError,
    OffsetsError,
    RemotingConnectError,
    RocketError,
    TopicNotFoundError,
)
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.host import pack_host
from spark_rocket.protocol.record import encode_record

QUEUE = MessageQueue("orders", "broker-a", 3)
HOST = pack_host(("127.0.0.1", 10911))


def record(offset: int) -> bytes:
    return encode_record(
        b"orders",
        3,
        str(offset).encode(),
        b"TAGS\x01T\x02",
        queue_offset=offset,
        physical_offset=1000 * offset,
        born_timestamp=offset,
        born_host=HOST,
        store_timestamp=offset,
        store_host=HOST,
    )


class ListBroker:
    """Messages ``low`` to ``high`` of one queue, at most ``most`` in an answer; answers may be replaced."""

    def __init__(self, low: int, high: int, *, most: int = 1000) -> None:
        self.low, self.high, self.most = low, high, most
        self.asked: list[tuple[int, int]] = []
        self.instead: dict[int, list[RocketError | PullResult]] = {}

    def pull_async(
        self, queue: MessageQueue, offset: int, *, max_msgs: int, max_bytes: int, timeout: float
    ) -> Future[PullResult]:
        assert queue == QUEUE
        self.asked.append((offset, max_msgs))
        future: Future[PullResult] = Future()
        special = self.instead.get(offset)
        answer = special.pop(0) if special else self.answer(offset, max_msgs)
        if isinstance(answer, RocketError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    def answer(self, offset: int, max_msgs: int) -> PullResult:
        if offset < self.low:
            return self.result(PullStatus.OFFSET_ILLEGAL, self.low)
        if offset > self.high:
            return self.result(PullStatus.OFFSET_ILLEGAL, self.high)
        if offset == self.high:
            return self.result(PullStatus.NO_NEW_MSG, offset)
        until = min(self.high, offset + min(self.most, max_msgs))
        return self.result(PullStatus.FOUND, until, b"".join(map(record, range(offset, until))))

    def result(self, status: PullStatus, following: int, records: bytes = b"") -> PullResult:
        return PullResult(status, following, self.low, self.high, memoryview(records))


def options(**given: str) -> ReadOptions:
    return parse_read_options({"subscribe": "orders", "nameServer": "x:1"} | given, Scope.READ)


def read(broker: ListBroker, start: int, end: int, **given: str) -> list[pa.RecordBatch]:
    projection = project(SOURCE_SCHEMA)
    batches = list(read_range(OffsetRange(QUEUE, start, end), options(**given), projection, broker))  # type: ignore[arg-type]
    assert all(batch.schema.equals(projection.target, check_metadata=True) for batch in batches)
    return batches


def offsets(batches: list[pa.RecordBatch]) -> list[int]:
    found = [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]
    assert [body for batch in batches for body in batch.column("body").to_pylist()] == [str(o).encode() for o in found]
    return found


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(Patience.__init__, "__kwdefaults__", {"clock": lambda: sum(pauses), "sleep": pauses.append})
    return pauses


def test_exactly_the_range_is_read() -> None:
    broker = ListBroker(0, 100, most=32)
    assert offsets(read(broker, 10, 90)) == list(range(10, 90))
    assert broker.asked == [(10, 80), (42, 48), (74, 16)], "nothing is asked for twice or past the end"


def test_records_past_the_end_are_dropped() -> None:
    broker = ListBroker(0, 100)
    broker.instead[10] = [broker.result(PullStatus.FOUND, 60, b"".join(map(record, range(10, 60))))]
    assert offsets(read(broker, 10, 20)) == list(range(10, 20))
    assert len(broker.asked) == 1


def test_small_answers_are_put_together_and_large_ones_stay_apart() -> None:
    small = ListBroker(0, 1000, most=32)
    assert [batch.num_rows for batch in read(small, 0, 1000, arrowBatchRows="300")] == [288, 288, 288, 136]
    size = len(record(100))
    by_bytes = read(ListBroker(100, 1000, most=32), 100, 1000, arrowBatchBytes=str(size * 100))
    assert {batch.num_rows for batch in by_bytes[:-1]} == {96}
    large = ListBroker(0, 1000, most=400)
    assert [batch.num_rows for batch in read(large, 0, 1000, arrowBatchRows="100")] == [400, 400, 200]


@given(st.integers(0, 50), st.integers(1, 120), st.integers(1, 40), st.integers(1, 50), st.integers(1024, 5000))
def test_any_range_and_any_sizes(start: int, length: int, most: int, rows: int, size: int) -> None:
    broker = ListBroker(0, 200, most=most)
    found = read(broker, start, start + length, arrowBatchRows=str(rows), arrowBatchBytes=str(size))
    assert offsets(found) == list(range(start, start + length))


def test_the_next_pull_is_under_way_before_a_batch_is_used() -> None:
    broker = ListBroker(0, 100, most=10)
    batches = read_range(
        OffsetRange(QUEUE, 0, 100),
        options(arrowBatchRows="10"),
        project(SOURCE_SCHEMA),
        broker,  # type: ignore[arg-type]
    )
    next(batches)
    assert [offset for offset, _ in broker.asked] == [0, 10, 20]


def test_filtered_stretches_are_passed_over() -> None:
    broker = ListBroker(0, 100, most=10)
    broker.instead[10] = [broker.result(PullStatus.NO_MATCHED_MSG, 50)]
    broker.instead[60] = [broker.result(PullStatus.NO_NEW_MSG, 70)]  # a consume queue file that was deleted
    assert offsets(read(broker, 0, 100)) == [*range(10), *range(50, 60), *range(70, 100)]


@pytest.mark.parametrize("status", [PullStatus.FOUND, PullStatus.NO_MATCHED_MSG])
def test_an_answer_that_leads_nowhere_is_an_error(status: PullStatus) -> None:
    broker = ListBroker(0, 100)
    broker.instead[5] = [broker.result(status, 5)]
    with pytest.raises(OffsetsError, match="pull of orders/broker-a/3 at 5 with the next offset 5"):
        read(broker, 5, 10)


def test_messages_deleted_between_planning_and_reading(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError, match="orders/broker-a/3: messages 10 to 39 were deleted"):
        read(ListBroker(40, 100), 10, 90)
    with pytest.raises(DataLossError, match=r"messages 10 to 19 were deleted.*begins at 40"):
        read(ListBroker(40, 100), 10, 20)
    with caplog.at_level(logging.WARNING):
        assert offsets(read(ListBroker(40, 100), 10, 90, failOnDataLoss="false")) == list(range(40, 90))
        assert read(ListBroker(40, 100), 10, 20, failOnDataLoss="false") == []
    assert caplog.text.count("messages 10 to 39 were deleted") == 1


@pytest.mark.parametrize("start", [10, 50])
def test_a_queue_that_ends_before_the_range_does(start: int) -> None:
    broker = ListBroker(0, 20)
    with pytest.raises(DataLossError, match="offset 90 was expected, but the queue now ends at 20"):
        read(broker, start, 90)
    assert offsets(read(broker, start, 90, failOnDataLoss="false")) == list(range(start, 20))


def test_failures_that_pass_are_waited_for(no_waiting: list[float]) -> None:
    broker = ListBroker(0, 100, most=30)
    broker.instead[30] = [RemotingConnectError("away"), BrokerError("busy", response_code=2), RemotingConnectError("a")]
    assert offsets(read(broker, 0, 100)) == list(range(100))
    assert no_waiting == [0.1, 0.2, 0.4]


def test_failures_that_do_not_pass_are_not(no_waiting: list[float]) -> None:
    broker = ListBroker(0, 100)
    broker.instead[0] = [RemotingConnectError("away") for _ in range(100)]
    with pytest.raises(RemotingConnectError, match="Tried to pull orders/broker-a/3 for"):
        read(broker, 0, 100, retryTimeout="5000")
    assert 3 < sum(no_waiting) <= 5
    broker.instead[0] = [TopicNotFoundError("gone")]
    with pytest.raises(TopicNotFoundError):
        read(broker, 0, 100)
