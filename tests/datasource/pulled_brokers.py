"""Fake brokers for tests of a reading task: a list of messages, and random valid behavior."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa

from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.read.fetch import read_range
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
from spark_rocket.errors import (
    BrokerError,
    RemotingConnectError,
    RocketError,
)
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.record import encode_record

QUEUE = MessageQueue("orders", "broker-a", 3)
HOST = pack_host(("127.0.0.1", 10911))


def record(
    offset: int,
    body: bytes | None = None,
    sys_flag: int = 0,
    queue_id: int = QUEUE.queue_id,
    place: int | None = None,
    properties: bytes = b"TAGS\x01T\x02",
) -> bytes:
    return encode_record(
        b"orders",
        queue_id,
        str(offset).encode() if body is None else body,
        properties,
        queue_offset=offset,
        physical_offset=1000 * (offset if place is None else place),
        born_timestamp=offset,
        born_host=HOST,
        store_timestamp=offset,
        store_host=HOST,
        sys_flag=sys_flag,
    )


class AnsweredPull:
    """A pull that is already answered, or that could not be sent."""

    def __init__(self, answer: PullResult | RocketError) -> None:
        self.answer = answer

    def done(self) -> bool:
        return isinstance(self.answer, RemotingConnectError)

    def exception(self) -> object:
        return self.answer

    def result(self) -> PullResult:
        if isinstance(self.answer, RocketError):
            raise self.answer
        return self.answer


class ListBroker:
    """Messages ``low`` to ``high`` of one queue, at most ``most`` in a response. Responses can be replaced."""

    queue = QUEUE

    def __init__(self, low: int, high: int, *, most: int = 1000) -> None:
        self.low, self.high, self.most = low, high, most
        self.asked: list[tuple[int, int]] = []
        self.instead: dict[int, list[RocketError | PullResult]] = {}
        self.chosen: dict[str, str | None] = {}

    def pull_async(
        self, queue: MessageQueue, offset: int, *, max_msgs: int, max_bytes: int, timeout: float, **chosen: str | None
    ) -> AnsweredPull:
        assert queue == self.queue
        self.asked.append((offset, max_msgs))
        self.chosen = chosen
        special = self.instead.get(offset)
        try:
            answer = special.pop(0) if special else self.answer(offset, max_msgs)
            if isinstance(answer, RocketError):
                raise answer
            return AnsweredPull(answer)
        except RocketError as error:
            return AnsweredPull(error)

    def min_offset(self, queue: MessageQueue) -> int:
        assert queue == self.queue
        return self.low

    def pull(self, queue: MessageQueue, offset: int, *, max_msgs: int) -> PullResult:
        """Without a filter."""
        assert queue == self.queue
        return ListBroker.answer(self, offset, max_msgs)

    name_server = "ns:9876"
    lacked: RocketError | None = None

    def lacks(self, queue: MessageQueue) -> RocketError | None:
        """The queue's range at the master."""
        assert queue == self.queue
        return self.lacked

    def answer(self, offset: int, max_msgs: int) -> PullResult:
        if offset < self.low:
            return self.result(PullStatus.OFFSET_ILLEGAL, self.low)
        if offset > self.high:
            return self.result(PullStatus.OFFSET_ILLEGAL, self.high)
        if offset == self.high:
            return self.result(PullStatus.NO_NEW_MSG, offset)
        until = min(self.high, offset + min(self.most, max_msgs))
        return self.result(PullStatus.FOUND, until, self.records(offset, until))

    def records(self, start: int, end: int) -> bytes:
        return b"".join(record(offset, queue_id=self.queue.queue_id) for offset in range(start, end))

    def result(self, status: PullStatus, following: int, records: bytes = b"") -> PullResult:
        return PullResult(status, following, self.low, self.high, memoryview(records))


def options(**given: str) -> ReadOptions:
    return parse_read_options({"subscribe": "orders", "nameServer": "x:1"} | given, Scope.READ)


def read(broker: ListBroker, start: int, end: int, **given: str) -> list[pa.RecordBatch]:
    projection = project(MESSAGE_SCHEMA)
    batches = list(read_range(OffsetRange(QUEUE, start, end), options(**given), projection, broker))  # type: ignore[arg-type]
    assert all(batch.schema.equals(projection.target, check_metadata=True) for batch in batches)
    return batches


def offsets(batches: list[pa.RecordBatch]) -> list[int]:
    found = [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]
    assert [body for batch in batches for body in batch.column("body").to_pylist()] == [str(o).encode() for o in found]
    return found


class DelayedPull:
    """Completes when its result is awaited, like the response of a slow broker."""

    def __init__(self, answer: Callable[[], PullResult]) -> None:
        self.result = answer

    def done(self) -> bool:
        return False


class AnyBroker(ListBroker):
    """A broker with random valid behavior that responds at once or when a result is awaited."""

    def __init__(self, chance: Random, high: int, *, deletes: bool) -> None:
        super().__init__(0, high)
        self.chance = chance
        self.deletes = deletes
        self.calm = 0

    def pull_async(self, queue: MessageQueue, offset: int, **asked: Any) -> Any:
        if self.chance.random() < 0.5:
            return super().pull_async(queue, offset, **asked)
        return DelayedPull(lambda: ListBroker.pull_async(self, queue, offset, **asked).result())

    def answer(self, offset: int, max_msgs: int) -> PullResult:
        self.most = self.chance.choice((1, 5, 31, 32, 32, 32, 33, 200))
        if self.deletes and self.chance.random() < 0.02:
            self.low = min(self.high, self.low + self.chance.randrange(100))
        what = self.chance.random()
        if what < 0.05:
            raise self.chance.choice((RemotingConnectError("away"), BrokerError("busy", response_code=2)))
        if what < 0.08:  # a slave that lags behind
            status = self.chance.choice((PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL, PullStatus.NO_MATCHED_MSG))
            return PullResult(status, self.chance.randrange(self.high), 0, offset, memoryview(b""), from_master=False)
        if what < 0.1:  # contradicts itself
            return self.result(PullStatus.FOUND, offset)
        if what < 0.15 and self.low <= offset < self.high:  # more than requested
            return super().answer(offset, max_msgs + 10)
        return super().answer(offset, max_msgs)
