"""A task that reads several ranges: the same rows, errors and log lines as a task for each range."""

from __future__ import annotations

import logging
import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.datasource import read_tasks
from spark_rocket.datasource.bodies.codecs import known_columns
from spark_rocket.datasource.bodies.columns import default_schema
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.plan.tasks import Task
from spark_rocket.datasource.read.fetch import read_ranges
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
from spark_rocket.errors import (
    DataLossError,
    ProtocolError,
    QueueNotFoundError,
    RecordError,
    RemotingConnectError,
    RocketError,
)
from spark_rocket.model import MessageQueue
from tests.datasource.pulled_brokers import AnyBroker, ListBroker, options, record

Row = tuple[str, int, int, bytes]


class Queues:
    """A ``Reader`` for the queues 0, 1, … of ``orders``. Each has its own fake broker; two have the same name."""

    name_server = "ns:9876"

    def __init__(self, *brokers: ListBroker) -> None:
        self.of: dict[MessageQueue, ListBroker] = {}
        for number, broker in enumerate(brokers):
            broker.queue = MessageQueue("orders", f"broker-{number // 2}", number)
            self.of[broker.queue] = broker
        self.sent: list[tuple[MessageQueue, int]] = []
        """The queue and ``max_bytes`` of each pull."""

    def pull_async(self, queue: MessageQueue, offset: int, **asked: Any) -> Any:
        self.sent.append((queue, asked["max_bytes"]))
        return self.of[queue].pull_async(queue, offset, **asked)

    def pull(self, queue: MessageQueue, offset: int, *, max_msgs: int) -> PullResult:
        return self.of[queue].pull(queue, offset, max_msgs=max_msgs)

    def min_offset(self, queue: MessageQueue) -> int:
        return self.of[queue].low

    def lacks(self, queue: MessageQueue) -> RocketError | None:
        return self.of[queue].lacks(queue)

    def spans(self, start: int, end: int) -> list[OffsetRange]:
        return [OffsetRange(queue, start, end) for queue in self.of]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    settings = {"clock": lambda: sum(pauses), "sleep": pauses.append}
    monkeypatch.setattr(RetryDeadline.__init__, "__kwdefaults__", settings)
    return pauses


def rows(spans: Sequence[OffsetRange], reader: Queues, given: ReadOptions) -> Iterator[Row]:
    for batch in read_ranges(spans, given, project(MESSAGE_SCHEMA), reader):  # type: ignore[arg-type]
        columns = (batch.column(name).to_pylist() for name in ("brokerName", "queueId", "queueOffset", "body"))
        yield from zip(*columns, strict=True)


def expected(spans: Sequence[OffsetRange]) -> list[Row]:
    return [
        (span.queue.broker_name, span.queue.queue_id, offset, str(offset).encode())
        for span in spans
        for offset in range(span.start, span.end)
    ]


def test_ranges_are_read_one_after_the_other() -> None:
    queues = Queues(*(ListBroker(0, 100, most=most) for most in (7, 1000, 33, 1, 1000)))
    spans = queues.spans(10, 60)
    assert list(rows(spans, queues, options())) == expected(spans)
    assert list(rows([], queues, options())) == []


def test_small_ranges_of_a_broker_are_one_batch() -> None:
    queues = Queues(*(ListBroker(0, 100) for _ in range(6)))
    batches = read_ranges(queues.spans(0, 10), options(), project(MESSAGE_SCHEMA), queues)  # type: ignore[arg-type]
    assert [batch.num_rows for batch in batches] == [20, 20, 20]
    few = options(arrowBatchRows="15")
    batches = read_ranges(queues.spans(0, 10), few, project(MESSAGE_SCHEMA), queues)  # type: ignore[arg-type]
    assert [batch.num_rows for batch in batches] == [10] * 6


@settings(max_examples=30)
@given(st.integers(0, 10_000_000), st.integers(1, 300), st.booleans(), st.integers(1, 12), st.integers(1, 600))
def test_any_brokers_return_each_message_once_and_in_order(
    seed: int, length: int, deletes: bool, in_flight: int, batch_rows: int
) -> None:
    def world() -> Queues:
        return Queues(*(AnyBroker(Random(seed + number), 300, deletes=deletes) for number in range(5)))

    given = {"maxPullsInFlight": str(in_flight), "retryTimeout": "600000", "arrowBatchRows": str(batch_rows)}
    queues = world()
    spans = queues.spans(0, length)
    found = list(rows(spans, queues, options(failOnDataLoss="false", **given)))
    wanted = expected(spans)
    assert found == [row for row in wanted if row in {*found}], "in order, each once"
    for span in spans:
        low = queues.of[span.queue].low
        assert {*expected([OffsetRange(span.queue, low, max(low, length))])} <= {*found}, "what was never deleted"
    queues = world()
    try:
        assert list(rows(spans, queues, options(**given))) == wanted
    except DataLossError:
        assert any(broker.low > 0 for broker in queues.of.values())


def deleted(broker: ListBroker) -> None:
    broker.low = 30


def shortened(broker: ListBroker) -> None:
    broker.high = 30


def incomplete(broker: ListBroker) -> None:
    broker.records = lambda start, end: b"".join(  # type: ignore[method-assign]
        record(at, queue_id=broker.queue.queue_id) for at in range(start, end) if at != 25
    )


def removed(broker: ListBroker) -> None:
    broker.lacked = QueueNotFoundError("gone")
    broker.instead[0] = [QueueNotFoundError("gone")] * 2


@pytest.mark.parametrize("lose", [deleted, shortened, incomplete, removed])
def test_data_loss_in_the_middle(lose: Callable[[ListBroker], None], caplog: pytest.LogCaptureFixture) -> None:
    def read(together: bool, fail: str) -> tuple[list[Row], list[str]]:
        queues = Queues(*(ListBroker(0, 100) for _ in range(4)))
        lose([*queues.of.values()][2])
        spans = queues.spans(0, 50)
        caplog.clear()
        found: list[Row] = []
        try:
            for task in [spans] if together else [[span] for span in spans]:
                found += rows(task, queues, options(failOnDataLoss=fail))
        except DataLossError as error:
            return [], [str(error)]
        return found, [each.getMessage() for each in caplog.records]

    caplog.set_level(logging.WARNING)
    found, logged = read(True, "false")
    assert (found, logged) == read(False, "false")
    assert len(logged) == 1
    assert "orders/broker-1/2" in logged[0]
    assert {row[1] for row in found} >= {0, 1, 3}
    assert len(found) < 200
    stopped = read(True, "true")
    assert stopped == read(False, "true")
    assert "orders/broker-1/2" in stopped[1][0]


def test_undecodable_messages_are_named() -> None:
    queues = Queues(*(ListBroker(0, 10) for _ in range(4)))
    broken = [*queues.of.values()][3]
    broken.records = lambda start, end: b"\0" * 200  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="messages 0 to 9 of orders/broker-1/3 cannot be decoded"):
        list(rows(queues.spans(0, 10), queues, options()))


def test_pulls_of_the_next_ranges_are_in_flight() -> None:
    queues = Queues(*(ListBroker(0, 100, most=5) for _ in range(20)))
    given = options(maxPullsInFlight="8", pullBatchBytes="1m")
    found = rows(queues.spans(0, 5), queues, given)
    next(found)
    ahead = [queue.queue_id for queue, _ in queues.sent]
    assert ahead[:5] == [0, 1, 2, 3, 4], "four pulls ahead of the first one"
    assert sum(size for _, size in queues.sent[:5]) <= 1024 * 1024
    one = Queues(*(ListBroker(0, 100) for _ in range(4)))
    next(rows(one.spans(0, 5), one, options(maxPullsInFlight="1", arrowBatchRows="1")))
    assert [queue.queue_id for queue, _ in one.sent] == [0, 1]


def test_an_unreachable_broker_is_not_tried_for_each_range(no_waiting: list[float]) -> None:
    queues = Queues(*(ListBroker(0, 100) for _ in range(20)))
    for broker in queues.of.values():
        broker.instead[0] = [RemotingConnectError("away")] * 1000
    with pytest.raises(RemotingConnectError):
        list(rows(queues.spans(0, 5), queues, options(retryTimeout="1s")))
    assert {queue.queue_id for queue, _ in queues.sent} == {0}
    assert len(queues.sent) == len(no_waiting) + 1


def partition_rows(task: Task, given: ReadOptions, schema: pa.Schema = MESSAGE_SCHEMA) -> list[Any]:
    task = pickle.loads(pickle.dumps(task))
    return [row for batch in read_tasks.read(task, given, schema) for row in batch.to_pylist()]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Queues], None]:
    """Let tasks read from these queues."""
    return lambda queues: monkeypatch.setattr("spark_rocket.datasource.readers.reader_of", lambda _: queues)


def test_a_repeated_task_reads_the_same_rows(use: Callable[[Queues], None], no_waiting: list[float]) -> None:
    queues = Queues(*(ListBroker(0, 100, most=30) for _ in range(4)))
    use(queues)
    task = tuple(queues.spans(0, 50))
    wanted = partition_rows(task, options())
    assert [(row["queueId"], row["queueOffset"]) for row in wanted] == [row[1:3] for row in expected(task)]
    third = [*queues.of.values()][2]
    third.instead[30] = [RemotingConnectError("away")] * 2
    assert partition_rows(task, options()) == wanted, "a retry within the task"
    assert len(no_waiting) == 2
    third.instead[30] = [RemotingConnectError("away")]
    with pytest.raises(RemotingConnectError):
        partition_rows(task, options(retryTimeout="0"))
    assert partition_rows(task, options(retryTimeout="0")) == wanted, "the second attempt of the task"


class RepeatingBroker(ListBroker):
    """Offset 7 repeats the message of offset 6."""

    def records(self, start: int, end: int) -> bytes:
        number = self.queue.queue_id
        return b"".join(
            record(at, queue_id=number, sys_flag=0, body=b"6" if at in (6, 7) else None, place=6 if at == 7 else at)
            for at in range(start, end)
        )


def test_duplicates_are_those_of_a_queue(use: Callable[[Queues], None]) -> None:
    """The messages of both queues have the same ids and contents."""
    queues = Queues(RepeatingBroker(0, 100), RepeatingBroker(0, 100))
    use(queues)
    task = tuple(queues.spans(5, 20))
    found = [(row["queueId"], row["queueOffset"]) for row in partition_rows(task, options(dedupeWindow="5"))]
    assert found == [(number, offset) for number in (0, 1) for offset in range(5, 20) if offset != 7]


@pytest.mark.parametrize("policy", ["null", "drop", "fail"])
def test_a_bad_record_of_one_queue(
    policy: str, use: Callable[[Queues], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Offset 5 of one queue cannot be decompressed, and offset 6 of another is not JSON."""
    queues = Queues(*(ListBroker(0, 10) for _ in range(4)))
    for broker in queues.of.values():
        number = broker.queue.queue_id

        def records(start: int, end: int, number: int = number) -> bytes:
            bad = {(1, 5): (b"7", 1), (1, 6): (zlib.compress(b'{"id":6}'), 1), (2, 6): (b"{", 0)}
            parts = [(at, *bad.get((number, at), (b'{"id":%d}' % at, 0))) for at in range(start, end)]
            return b"".join(record(at, body, flag, number) for at, body, flag in parts)

        broker.records = records  # type: ignore[method-assign]
    use(queues)
    given = options(bodyFormat="json", badRecords=policy, metadataColumns="queueId,queueOffset")
    integers = [MESSAGE_SCHEMA.field(name) for name in ("queueId", "queueOffset")]
    schema = pa.schema([("id", pa.int64()), *integers])
    task = tuple(queues.spans(0, 10))
    if policy == "fail":
        with pytest.raises(RecordError, match="orders/broker-0/1 at 5"):
            partition_rows(task, given, schema)
        return
    found = {(row["queueId"], row["queueOffset"]): row["id"] for row in partition_rows(task, given, schema)}
    bad = {(1, 5), (2, 6)}
    everything = [(number, at) for number in range(4) for at in range(10)]
    assert found == {at: None if at in bad else at[1] for at in everything if policy == "null" or at not in bad}
    (line,) = [each.getMessage() for each in caplog.records if "could not be decoded" in each.getMessage()]
    assert "2 of 40 messages" in line
    assert line.endswith("first orders/broker-0/1 at 5, last orders/broker-1/2 at 6")


# --- tasks of several ranges are tasks of one range each: damaged bodies and options that omit messages ---------------


class Written(NamedTuple):
    """A message of a generated queue."""

    tag: str
    key: str
    number: int
    """Names its id, so equal numbers can be duplicates."""
    body: str
    """damaged: cannot be decompressed."""


_BODIES = {
    "damaged": (b"7", 1),
    "packed": (zlib.compress(b'{"id":1}'), 1),
    "plain": (b'{"id":2}', 0),
    "invalid": (b"{", 0),
}
_FILTERS: tuple[dict[str, str], ...] = (
    {},
    {"lookupKeys": "k"},
    {"dedupeWindow": "3"},
    {"tags": "Aa"},
    {"tags": "Aa || BB"},
    {"sqlFilter": "a > 1"},
)
_POLICIES: tuple[dict[str, str], ...] = (
    {"badRecords": "fail"},
    {"badRecords": "null"},
    {"badRecords": "column"},
    {"badRecords": "drop"},
    {"badRecords": "deadLetter", "deadLetterTopic": "bad"},
)
_MESSAGES = st.builds(
    Written, st.sampled_from(["Aa", "BB"]), st.sampled_from("kl"), st.integers(0, 3), st.sampled_from([*_BODIES])
)


class WrittenBroker(ListBroker):
    """A queue of given messages. ``Aa`` and ``BB`` have one hash, so its filter of tags selects both."""

    def __init__(self, messages: Sequence[Written]) -> None:
        super().__init__(0, len(messages))
        self.messages = messages

    def answer(self, offset: int, max_msgs: int) -> PullResult:
        found = super().answer(offset, max_msgs)
        if self.chosen.get("sql") is None or found.status is not PullStatus.FOUND:
            return found
        wanted = [at for at in range(offset, found.next_offset) if self.messages[at].key == "k"]
        status = PullStatus.FOUND if wanted else PullStatus.NO_MATCHED_MSG
        return self.result(status, found.next_offset, b"".join(self.records(at, at + 1) for at in wanted))

    def records(self, start: int, end: int) -> bytes:
        rows = []
        for at in range(start, end):
            message = self.messages[at]
            body, flag = _BODIES[message.body]
            properties = f"TAGS\x01{message.tag}\x02KEYS\x01{message.key}\x02UNIQ_KEY\x01{message.number}\x02".encode()
            rows.append(record(at, body, flag, self.queue.queue_id, properties=properties))
        return b"".join(rows)


class Outcome(NamedTuple):
    rows: list[Any]
    letters: list[tuple[int, int, str]]
    error: str | None


@settings(max_examples=150)
@given(
    st.lists(st.lists(_MESSAGES, min_size=1, max_size=6), min_size=2, max_size=5),
    st.sampled_from(_FILTERS),
    st.sampled_from(_POLICIES),
    st.sampled_from(["json", "text", "variant"]),
    st.sampled_from(["1", "2", "1000"]),
)
def test_shared_tasks_have_the_rows_of_separate_ones(
    queues: list[list[Written]], chosen: dict[str, str], policy: dict[str, str], form: str, batch_rows: str
) -> None:
    """A message is invalid because of its own bytes only, whatever the task has read before it."""
    given = options(
        bodyFormat=form, metadataColumns="queueId,queueOffset", arrowBatchRows=batch_rows, **chosen, **policy
    )
    assert given.body is not None
    reader = Queues(*map(WrittenBroker, queues))
    integers = [MESSAGE_SCHEMA.field(name) for name in ("queueId", "queueOffset")]
    body = (
        pa.field("id", pa.int64())
        if form == "json"
        else default_schema(given.body, known_columns(given.body)).field("value")
    )
    bad_column = [pa.field("_bad_record", pa.binary())] if policy["badRecords"] == "column" else []
    schema = pa.schema([body, *integers, *bad_column])
    letters: list[tuple[int, int, str]] = []

    def send(batch: pa.RecordBatch, bad: dict[int, str], *_: object) -> None:
        for index, reason in sorted(bad.items()):
            letters.append((batch["queueId"][index].as_py(), batch["queueOffset"][index].as_py(), reason))

    def outcome(tasks: Sequence[Task]) -> Outcome:
        letters.clear()
        found: list[Any] = []
        try:
            for task in tasks:
                found += partition_rows(task, given, schema)
        except RecordError as error:
            return Outcome([], [], str(error))
        return Outcome(found, [*letters], None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_rocket.datasource.readers.reader_of", lambda _: reader)
        patch.setattr("spark_rocket.datasource.read.bad_records.send_dead_letters", send)
        spans = [OffsetRange(queue, 0, broker.high) for queue, broker in reader.of.items()]
        together, separate = outcome([tuple(spans)]), outcome([(span,) for span in spans])
    assert together == separate
    invalid = {"damaged", "invalid"} if form != "text" else {"damaged"}
    named = {(queue, offset) for queue, offset, _ in together.letters}
    value = body.name
    named |= {(row["queueId"], row["queueOffset"]) for row in together.rows if row[value] is None}
    assert all(queues[queue][offset].body in invalid for queue, offset in named)
    if together.error is not None:
        assert any(message.body in invalid for queue in queues for message in queue)
