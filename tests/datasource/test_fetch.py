"""The reading task against a fake broker: handling of every kind of response."""

from __future__ import annotations

import logging
import re
import socket
import zlib
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.read.fetch import read_range
from spark_rocket.datasource.read.pull_ranges import pull_chunks
from spark_rocket.datasource.read_tasks import projection_of, rows_of
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
from spark_rocket.errors import (
    BrokerError,
    DataLossError,
    NameServerUnreachableError,
    OffsetsError,
    ProtocolError,
    QueueNotFoundError,
    RemotingConnectError,
    RocketError,
    TopicNotFoundError,
)
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.record import unwrap as columnar_unwrap
from spark_rocket.protocol.record.layout import COMPRESSED
from tests.datasource.pulled_brokers import (
    QUEUE,
    AnsweredPull,
    AnyBroker,
    ListBroker,
    offsets,
    options,
    read,
    record,
)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    settings = {"clock": lambda: sum(pauses), "sleep": pauses.append}
    monkeypatch.setattr(RetryDeadline.__init__, "__kwdefaults__", settings)
    return pauses


def test_exactly_the_range_is_read() -> None:
    broker = ListBroker(0, 100, most=32)
    assert offsets(read(broker, 10, 90)) == list(range(10, 90))
    assert broker.asked == [(10, 80), (42, 32), (74, 16)], "nothing is asked for twice or past the end"


def test_records_past_the_end_are_dropped() -> None:
    broker = ListBroker(0, 100)
    broker.instead[10] = [broker.result(PullStatus.FOUND, 60, b"".join(map(record, range(10, 60))))]
    assert offsets(read(broker, 10, 20)) == list(range(10, 20))
    assert len(broker.asked) == 1


def test_small_responses_are_combined_and_large_ones_are_not() -> None:
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


def test_the_next_pull_is_sent_before_a_batch_is_used() -> None:
    broker = ListBroker(0, 100, most=10)
    batches = read_range(
        OffsetRange(QUEUE, 0, 100),
        options(arrowBatchRows="10"),
        project(MESSAGE_SCHEMA),
        broker,  # type: ignore[arg-type]
    )
    next(batches)
    assert [offset for offset, _ in broker.asked] == [0, *range(10, 100, 10)]


# --- concurrent pulls -------------------------------------------------------------------------------------------


def test_small_responses_cause_concurrent_pulls() -> None:
    broker = ListBroker(0, 10_000, most=32)
    read(broker, 0, 320, maxPullsInFlight="4")
    assert broker.asked == [(0, 320), *((start, 32) for start in range(32, 320, 32))]
    broker.asked.clear()
    chunks = pull_chunks(OffsetRange(QUEUE, 0, 10_000), options(maxPullsInFlight="4"), broker)  # type: ignore[arg-type]
    for taken in range(1, 6):
        next(chunks)
        assert len(broker.asked) == taken + 4


def test_concurrent_pulls_request_at_most_one_large_pull() -> None:
    size = len(record(100))
    broker = ListBroker(100, 10_000, most=32)
    chunks = pull_chunks(
        OffsetRange(QUEUE, 100, 10_000),
        options(pullBatchBytes=str(size * 100)),
        broker,  # type: ignore[arg-type]
    )
    next(chunks)
    assert len(broker.asked) == 1 + 3
    large = ListBroker(100, 1000)
    assert offsets(read(large, 100, 1000, pullBatchSize="300", pullBatchBytes=str(size * 300))) == [*range(100, 1000)]
    assert large.asked == [(100, 300), (400, 300), (700, 300)]


def test_a_short_response_is_followed_by_its_rest() -> None:
    broker = ListBroker(0, 1000, most=32)
    broker.instead[64] = [broker.result(PullStatus.FOUND, 70, b"".join(map(record, range(64, 70))))]
    assert offsets(read(broker, 0, 256, maxPullsInFlight="4")) == list(range(256))
    assert (70, 26) in broker.asked
    assert len(broker.asked) == len({start for start, _ in broker.asked}), "nothing is asked for twice"


def test_an_unreachable_broker_is_not_tried_for_each_pull() -> None:
    broker = ListBroker(0, 1000, most=10)
    broker.instead = {at: [RemotingConnectError("away")] for at in range(10, 1000, 10)}
    assert offsets(read(broker, 0, 30)) == list(range(30))
    assert broker.asked == [(0, 30), (10, 10), (10, 20), (20, 10), (20, 10)]


def test_a_higher_limit_of_responses_is_detected() -> None:
    broker = ListBroker(0, 100_000, most=10)
    chunks = pull_chunks(OffsetRange(QUEUE, 0, 100_000), options(), broker)  # type: ignore[arg-type]
    for _ in range(1000):
        next(chunks)
    short = sum(count > 10 for _, count in broker.asked[1:])
    assert short < 10, "asking for more becomes rare where there is none"
    broker.most = 32
    for _ in range(3000):
        next(chunks)
    assert {count for _, count in broker.asked[-100:]} <= {20, 24, 32, 40}


@settings(max_examples=100)
@given(st.integers(0, 10_000_000), st.integers(1, 1500), st.booleans(), st.integers(1, 40))
def test_any_broker_behavior_returns_each_message_once_and_in_order(
    seed: int, length: int, deletes: bool, in_flight: int
) -> None:
    broker = AnyBroker(Random(seed), 1500, deletes=deletes)
    given = {"maxPullsInFlight": str(in_flight), "retryTimeout": "600000", "arrowBatchRows": str(length)}
    found = offsets(read(broker, 0, length, failOnDataLoss="false", **given))
    assert found == sorted(set(found))
    assert set(found) >= set(range(broker.low, length)), "what was never deleted is all there"
    if broker.low == 0:
        assert found == list(range(length))
    broker = AnyBroker(Random(seed + 1), 1500, deletes=deletes)
    try:
        assert offsets(read(broker, 0, length, **given)) == list(range(length))
    except DataLossError:
        assert broker.low > 0


# --- messages that brokers skip ---------------------------------------------------------------------------------


class ChoosingBroker(ListBroker):
    """Only every seventh message has the tag (by its hash), and each pull checks 50 messages."""

    def answer(self, offset: int, max_msgs: int) -> PullResult:
        if not self.low <= offset < self.high:
            return super().answer(offset, max_msgs)
        until = min(self.high, offset + 50)
        chosen = [record(at) for at in range(offset, until) if at % 7 == 0]
        if not chosen:
            return self.result(PullStatus.NO_MATCHED_MSG, until)
        return self.result(PullStatus.FOUND, until, b"".join(chosen))


@pytest.mark.parametrize("given", [{"tags": "b || T"}, {"sqlFilter": "a > 5"}])
def test_filtered_messages_are_not_data_loss(given: dict[str, str]) -> None:
    broker = ChoosingBroker(0, 1000)
    broker.instead[50] = [broker.result(PullStatus.NO_MATCHED_MSG, 57)]
    assert offsets(read(broker, 0, 993, **given)) == [at for at in range(993) if at % 7 == 0 and not 50 <= at < 57]
    assert broker.chosen == ({"tags": "*", "sql": "a > 5"} if "sqlFilter" in given else {"tags": "T || b", "sql": None})
    assert max(end for _, end in broker.asked) <= 1000


def test_tags_with_equal_hashes_are_filtered_by_the_task() -> None:
    assert read(ListBroker(0, 100), 0, 100, tags="AaAa || BBBB") == []
    assert offsets(read(ListBroker(0, 100), 0, 100, tags="T")) == list(range(100))


def test_messages_deleted_during_a_filtered_pull_are_data_loss(caplog: pytest.LogCaptureFixture) -> None:
    """The messages may have been skipped because of the deletion, not because of their tag."""

    def broker() -> ChoosingBroker:
        broker = ChoosingBroker(0, 1000)
        broker.pull = lambda queue, offset, max_msgs: ListBroker(300, 1000).answer(offset, max_msgs)  # type: ignore[method-assign, misc]
        return broker

    with pytest.raises(DataLossError, match=r"messages 0 to 899 were deleted before they were read"):
        read(broker(), 0, 900, tags="T")
    with caplog.at_level(logging.WARNING):
        found = offsets(read(broker(), 0, 900, tags="T", failOnDataLoss="false"))
    assert found == list(range(0, 900, 7))
    assert caplog.text.count("were deleted") == 1


def test_a_filter_does_not_hide_deleted_messages() -> None:
    with pytest.raises(DataLossError, match="messages 0 to 99 were deleted"):
        read(ChoosingBroker(100, 200), 0, 200, tags="T")
    with pytest.raises(DataLossError, match="expected offset 300, but the queue ends at 200"):
        read(ChoosingBroker(0, 200), 0, 300, tags="T")


# --- losses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [PullStatus.NO_MATCHED_MSG, PullStatus.NO_NEW_MSG])
def test_a_range_skipped_by_the_broker_is_data_loss(status: PullStatus, caplog: pytest.LogCaptureFixture) -> None:
    """Brokers skip to the start of their next file; the remaining messages before it are still read."""

    def broker(low: int) -> ListBroker:
        broker = ListBroker(low, 100, most=10)
        broker.instead[10] = [broker.result(status, 50)]
        broker.instead[0] = [broker.result(PullStatus.FOUND, 10, b"".join(map(record, range(10))))]
        return broker

    with pytest.raises(
        DataLossError, match=r"orders/broker-a/3: messages 10 to 29 were deleted.*earliest remaining message is 30"
    ):
        read(broker(30), 0, 100)
    with pytest.raises(
        DataLossError, match=r"orders/broker-a/3: messages 10 to 49 were deleted.*earliest remaining message is 50"
    ):
        read(broker(0), 0, 100)
    with pytest.raises(
        DataLossError, match=r"orders/broker-a/3: messages 10 to 19 were deleted.*earliest remaining message is 50"
    ):
        read(broker(0), 0, 20)
    with caplog.at_level(logging.WARNING):
        assert offsets(read(broker(30), 0, 100, failOnDataLoss="false")) == [*range(10), *range(30, 100)]
        assert offsets(read(broker(0), 0, 100, failOnDataLoss="false")) == [*range(10), *range(50, 100)]
    assert caplog.text.count("were deleted") == 2


def test_messages_omitted_by_a_broker_are_data_loss(caplog: pytest.LogCaptureFixture) -> None:
    """As Apache's broker does between deleting a file and correcting the queue's first offset."""

    def broker() -> ListBroker:
        broker = ListBroker(0, 100, most=10)
        broker.instead[10] = [broker.result(PullStatus.FOUND, 20, b"".join(map(record, range(14, 20))))]
        return broker

    for rows in ("10", "1000"):
        with pytest.raises(DataLossError, match=r"orders/broker-a/3: 4 of the messages \d+ to \d+ were deleted"):
            read(broker(), 0, 100, arrowBatchRows=rows)
    with caplog.at_level(logging.WARNING):
        assert offsets(read(broker(), 0, 100, failOnDataLoss="false")) == [*range(10), *range(14, 100)]
    assert caplog.text.count("were deleted") == 1


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_lagging_slave_is_not_data_loss(fail: str, no_waiting: list[float]) -> None:
    broker = ListBroker(0, 100, most=50)
    empty = memoryview(b"")
    broker.instead[50] = [
        PullResult(PullStatus.NO_NEW_MSG, 50, 0, 50, empty, from_master=False),
        PullResult(PullStatus.OFFSET_ILLEGAL, 45, 0, 45, empty, from_master=False),
        PullResult(PullStatus.NO_MATCHED_MSG, 50, 0, 0, empty, from_master=False),
        PullResult(PullStatus.NO_MATCHED_MSG, 60, 0, 60, empty, from_master=False),
        PullResult(PullStatus.FOUND, 50, 0, 60, empty, from_master=False),
    ]
    assert offsets(read(broker, 0, 100, failOnDataLoss=fail)) == list(range(100))
    assert len(no_waiting) == 5
    assert broker.instead[50] == []
    broker.instead[50] = [PullResult(PullStatus.NO_NEW_MSG, 50, 0, 50, empty, from_master=False)] * 100
    with pytest.raises(QueueNotFoundError, match=r"the master of orders/broker-a/3 is unavailable.*retryTimeout"):
        read(broker, 0, 100, failOnDataLoss=fail)


@pytest.mark.parametrize(
    ("status", "following"),
    [(PullStatus.FOUND, 5), (PullStatus.NO_MATCHED_MSG, 5), (PullStatus.NO_NEW_MSG, 5), (PullStatus.OFFSET_ILLEGAL, 3)],
)
def test_contradictory_responses_are_retried(status: PullStatus, following: int, no_waiting: list[float]) -> None:
    broker = ListBroker(0, 100)
    broker.instead[5] = [broker.result(status, following)] * 3
    assert offsets(read(broker, 5, 10, failOnDataLoss="false")) == list(range(5, 10))
    assert no_waiting == [0.1, 0.2, 0.4]
    broker.instead[5] = [broker.result(status, following)] * 1000
    with pytest.raises(OffsetsError, match=f"at 5 with {status.value} and next offset {following}.*retryTimeout"):
        read(broker, 5, 10)
    assert sum(no_waiting) < 62


def test_undecodable_messages_are_named() -> None:
    broker = ListBroker(0, 100)
    broker.instead[12] = [broker.result(PullStatus.FOUND, 14, b"\0" * 200)]
    broker.most = 12
    with pytest.raises(
        ProtocolError, match=r"messages 12 to 13 of orders/broker-a/3 cannot be decoded: .*pullBatchSize=1"
    ):
        read(broker, 0, 14, arrowBatchRows="1")


@pytest.mark.parametrize(
    "broken",
    [
        record(13, b"not compressed", sys_flag=COMPRESSED),
        record(13)[:4] + b"\0\0\0\1" + record(13)[8:],  # no record's magic code
    ],
)
def test_messages_before_an_undecodable_one_are_read(broken: bytes) -> None:
    broker = ListBroker(0, 100)
    broker.instead[11] = [broker.result(PullStatus.FOUND, 15, record(11) + record(12) + broken + record(14))]
    broker.most = 11
    batches = read_range(OffsetRange(QUEUE, 0, 15), options(), project(MESSAGE_SCHEMA), broker)  # type: ignore[arg-type]
    found: list[int] = []
    with pytest.raises(ProtocolError, match=r"message 13 of orders/broker-a/3 cannot be decoded: .* Select columns"):
        found += (offset for batch in batches for offset in batch.column("queueOffset").to_pylist())
    assert found == list(range(13))


def test_messages_deleted_between_planning_and_reading(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError, match="orders/broker-a/3: messages 10 to 39 were deleted"):
        read(ListBroker(40, 100), 10, 90)
    with pytest.raises(DataLossError, match=r"messages 10 to 19 were deleted.*earliest remaining message is 40"):
        read(ListBroker(40, 100), 10, 20)
    with caplog.at_level(logging.WARNING):
        assert offsets(read(ListBroker(40, 100), 10, 90, failOnDataLoss="false")) == list(range(40, 90))
        assert read(ListBroker(40, 100), 10, 20, failOnDataLoss="false") == []
    assert caplog.text.count("messages 10 to 39 were deleted") == 1


@pytest.mark.parametrize("start", [10, 50])
def test_a_queue_that_ends_before_the_range_does(start: int) -> None:
    broker = ListBroker(0, 20)
    with pytest.raises(DataLossError, match="expected offset 90, but the queue ends at 20"):
        read(broker, start, 90)
    assert offsets(read(broker, start, 90, failOnDataLoss="false")) == list(range(start, 20))


def test_transient_failures_are_retried(no_waiting: list[float]) -> None:
    broker = ListBroker(0, 100, most=30)
    broker.instead[30] = [RemotingConnectError("away"), BrokerError("busy", response_code=2), RemotingConnectError("a")]
    assert offsets(read(broker, 0, 100)) == list(range(100))
    assert no_waiting == [0.1, 0.2, 0.4]


def test_permanent_failures_are_not_retried(no_waiting: list[float]) -> None:
    broker = ListBroker(0, 100)
    broker.instead[0] = [RemotingConnectError("away") for _ in range(100)]
    with pytest.raises(RemotingConnectError, match="Tried to pull orders/broker-a/3 for") as refused:
        read(broker, 0, 100, retryTimeout="5000")
    assert f"broker broker-a cannot be reached from {socket.gethostname()}: away" in str(refused.value)
    assert "Name server ns:9876 returned this address" in str(refused.value)
    assert "brokerIP1" in str(refused.value)
    assert "If it accepts TLS connections only, set tls=true." in str(refused.value)
    assert 3 < sum(no_waiting) <= 5
    del no_waiting[:]
    broker.instead[0] = [BrokerError("no permission", response_code=16)]
    with pytest.raises(BrokerError, match="no permission"):
        read(broker, 0, 100)
    assert no_waiting == []


@pytest.mark.parametrize("error", [TopicNotFoundError, QueueNotFoundError, NameServerUnreachableError])
def test_a_route_without_the_queue_means_an_unavailable_broker(
    error: type[RocketError], no_waiting: list[float]
) -> None:
    """The driver has planned with the queue, so it exists. A worker that starts now has no older route."""
    broker = ListBroker(0, 100)
    broker.instead[0] = [error("away"), error("away")]
    assert offsets(read(broker, 0, 100)) == list(range(100))
    assert no_waiting == [0.1, 0.2]
    broker.instead[0] = [error("away")] * 100
    with pytest.raises(error, match="retryTimeout"):
        read(broker, 0, 100, retryTimeout="5000")


@pytest.mark.parametrize(
    ("reported", "wrong"),
    [
        (TopicNotFoundError("gone"), r"DATA_LOSS.TOPIC_DELETED\] topic orders .*orders/broker-a/3 at 30\."),
        (QueueNotFoundError("gone"), r"DATA_LOSS.QUEUE_DELETED\] orders/broker-a/3 .*is at 30\."),
    ],
    ids=["topic", "queue"],
)
@pytest.mark.parametrize("more", [{}, {"tags": "T"}], ids=["all", "filtered"])
def test_a_queue_removed_after_planning_is_data_loss(
    reported: RocketError, wrong: str, more: dict[str, str], no_waiting: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    def broker() -> ListBroker:
        there = ListBroker(0, 100, most=30)
        there.instead[30] = [TopicNotFoundError("no route")] * 100
        there.lacked = reported
        return there

    with pytest.raises(DataLossError, match=wrong):
        read(broker(), 0, 100, **more)
    with caplog.at_level(logging.WARNING):
        assert offsets(read(broker(), 0, 100, failOnDataLoss="false", **more)) == list(range(30))
    assert len(re.findall(wrong, caplog.text)) == 1
    assert no_waiting == []


# --- responses with more records than reported, or larger ones --------------------------------------------------


class SurplusBroker(ListBroker):
    """Returns five records more than it reports, but never those in ``gone``."""

    gone = range(0)

    def answer(self, offset: int, max_msgs: int) -> PullResult:
        until = min(self.high, offset + 32)
        given = [at for at in range(offset, min(self.high, until + 5)) if at not in self.gone]
        return self.result(PullStatus.FOUND, until, b"".join(map(record, given)))


def test_surplus_records_are_not_read_twice() -> None:
    assert offsets(read(SurplusBroker(0, 200), 0, 200)) == list(range(200))


def test_duplicate_records_do_not_hide_missing_ones() -> None:
    broker = SurplusBroker(0, 128)
    broker.gone = range(96, 101)
    with pytest.raises(DataLossError, match="MESSAGES_MISSING"):
        read(broker, 0, 128)


def test_concurrent_pulls_hold_at_most_one_large_pull() -> None:
    """Small messages, then large ones: pulls in flight were sized for small ones."""
    sizes: list[int] = []

    class Measured(ListBroker):
        def pull_async(self, queue: MessageQueue, offset: int, *, max_bytes: int, **rest: Any) -> AnsweredPull:
            sizes.append(max_bytes)
            return super().pull_async(queue, offset, max_bytes=max_bytes, **rest)

    list(pull_chunks(OffsetRange(QUEUE, 0, 2000), options(), Measured(0, 2000, most=32)))  # type: ignore[arg-type]
    assert max(sizes[40:]) <= 4 * 1024 * 1024 // 32


def test_large_decompressed_bodies_are_split_into_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [zlib.compress(bytes([number]) * 300_000) for number in range(40)]
    monkeypatch.setattr(columnar_unwrap, "MAX_RUN_BYTES", 1_000_000)

    class Inflating(ListBroker):
        def answer(self, offset: int, max_msgs: int) -> PullResult:
            until = min(self.high, offset + 8)
            records = b"".join(record(at, bodies[at], 1) for at in range(offset, until))
            return self.result(PullStatus.FOUND, until, records)

    batches = read(Inflating(0, 40), 0, 40)
    assert [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()] == list(range(40))
    assert max(batch.num_rows for batch in batches) <= 3


def test_the_check_of_a_filter_ignores_a_lagging_slave(no_waiting: list[float]) -> None:
    class Lagging(ListBroker):
        checks = 0

        def pull(self, queue: MessageQueue, offset: int, *, max_msgs: int) -> PullResult:
            self.checks += 1
            if self.checks > 2:
                return super().pull(queue, offset, max_msgs=max_msgs)
            return PullResult(PullStatus.OFFSET_ILLEGAL, 50, 0, 50, memoryview(b""), False)

    assert offsets(read(Lagging(0, 200), 100, 200, tags="T")) == list(range(100, 200))
    assert len(no_waiting) == 2


@pytest.mark.parametrize("policy", ["null", "drop"])
def test_a_body_that_cannot_be_decompressed_is_a_bad_record(policy: str) -> None:
    class Damaged(ListBroker):
        def answer(self, offset: int, max_msgs: int) -> PullResult:
            until = min(self.high, offset + max_msgs)
            bodies = {5: (b"7", 1), 6: (zlib.compress(b'{"id":6}'), 1)}  # 5 has the compression flag
            records = [record(at, *bodies.get(at, (f'{{"id":{at}}}'.encode(), 0))) for at in range(offset, until)]
            return self.result(PullStatus.FOUND, until, b"".join(records))

    given = options(bodyFormat="json", badRecords=policy, metadataColumns="queueOffset")
    schema = pa.schema([("id", pa.int64()), pa.field("queueOffset", pa.int64(), nullable=False)])
    projection = projection_of(given, schema)
    batches = read_range(OffsetRange(QUEUE, 0, 10), given, projection, Damaged(0, 10))  # type: ignore[arg-type]
    rows = {row["queueOffset"]: row["id"] for batch in rows_of(batches, given, schema) for row in batch.to_pylist()}
    assert rows == {at: None if at == 5 else at for at in range(10) if policy == "null" or at != 5}
