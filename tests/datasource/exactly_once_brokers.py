"""Brokers in memory for the exactly-once sink, in which any request can fail, get lost, or precede a crash."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.exactly_once.commit import Commit
from spark_rocket.datasource.exactly_once.ledger import Ledger
from spark_rocket.datasource.exactly_once.manifest import Epoch, Manifest, StagedBlock
from spark_rocket.datasource.exactly_once.sink_brokers import Brokers, Timing
from spark_rocket.datasource.exactly_once.staging import stage_rows
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parse import parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.write.row_encoder import Block
from spark_rocket.errors import RocketError, TopicNotFoundError
from spark_rocket.model import (
    DELAY,
    SCHEDULE_TOPIC,
    TIMER_DELIVER_MS,
    TIMER_TOPIC,
    UNIQ_KEY,
    MessageExt,
    MessageQueue,
    SendResult,
    SendStatus,
)
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.remoting.client.promise import Promise, failed, resolved

STAGING, LEDGER, TARGET = "staging", "ledger", "orders"
LEDGER_QUEUE = MessageQueue(LEDGER, "a", 0)
EPOCH = Epoch("query", 0, "run")
ROWS = [f"row{number}" for number in range(20)]
DELAYS: dict[str, Any] = {"delayLevel": [3 if number % 7 == 0 else None for number in range(20)]}


class KilledError(BaseException):
    """The requesting process was killed."""


@dataclass
class Stored:
    """A message."""

    body: bytes
    key: str = ""
    tags: str = ""


@dataclass
class FakeBrokers:
    """``before`` and ``after`` are called around each request with its kind and queue; they may raise."""

    before: Callable[[str, MessageQueue], None] = lambda kind, queue: None
    after: Callable[[str, MessageQueue], None] = lambda kind, queue: None
    log: dict[MessageQueue, list[Stored]] = field(default_factory=dict)
    first: dict[MessageQueue, int] = field(default_factory=dict)
    offsets: dict[tuple[str, MessageQueue], int] = field(default_factory=dict)
    status: Callable[[str, MessageQueue], SendStatus] = lambda kind, queue: SendStatus.SEND_OK
    now: float = 1000.0
    slept: list[float] = field(default_factory=list)
    at_sleep: list[Callable[[], None]] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    target_queues: int = 2
    gone: set[MessageQueue] = field(default_factory=set)
    group: str = "ROCKET_SINK_LEDGER"

    # --- methods for the sink -----------------------------------------------------------------------------------

    def queues(self, topic: str, *, ordered: bool = False) -> list[MessageQueue]:
        if topic == STAGING:
            return [MessageQueue(topic, broker, 0) for broker in "ab"]
        return [MessageQueue(topic, "a", number) for number in range(self.target_queues)]

    def _store(self, kind: str, queue: MessageQueue, messages: Sequence[Stored]) -> SendResult:
        self.before(kind, queue)
        if queue in self.gone:
            raise TopicNotFoundError("gone", response_code=17)
        log = self.log.setdefault(queue, [])
        log += messages
        self.after(kind, queue)
        return SendResult(self.status(kind, queue), "", "", queue, len(log) - len(messages))

    def append(
        self, queue: MessageQueue, body: bytes, *, tags: str | None = None, keys: str | None = None
    ) -> SendResult:
        return self._store("append", queue, [Stored(body, "", tags or "")])

    def stage_async(self, queue: MessageQueue, body: memoryview) -> Promise[SendResult]:
        try:
            return resolved(self._store("stage", queue, [Stored(bytes(body))]))
        except RocketError as error:
            return failed(error)

    def publish(self, block: Block, queue: MessageQueue) -> SendResult:
        rows, target = [], queue
        for _, body, raw in decode_batch_body(block.body):
            properties = decode_properties(raw)
            if block.is_delayed:
                level = int(properties.get(DELAY, 0))
                target = MessageQueue(SCHEDULE_TOPIC, queue.broker_name, level - 1)
                if TIMER_DELIVER_MS in properties:
                    target = MessageQueue(TIMER_TOPIC, queue.broker_name, 0)
                if queue in self.gone:
                    target = queue
            rows.append(Stored(bytes(body), properties[UNIQ_KEY]))
        return self._store("publish", target, rows)

    def start(self, queue: MessageQueue) -> int:
        self.before("start", queue)
        return self.first.get(queue, 0)

    def end(self, queue: MessageQueue) -> int:
        self.before("end", queue)
        if queue in self.gone:
            raise TopicNotFoundError("no such topic")
        return len(self.log.get(queue, ()))

    def ends(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        self.before("ends", LEDGER_QUEUE)
        return {queue: len(self.log.get(queue, ())) for queue in queues}

    def messages(
        self, queue: MessageQueue, offset: int, *, tags: str = "*", wait_ms: int = 0
    ) -> tuple[list[MessageExt], int]:
        self.before("messages", queue)
        found = self.log.get(queue, [])[offset : offset + 2]
        messages = [
            MessageExt(queue.topic, stored.body, {UNIQ_KEY: f"id{offset + at}"}, queue_offset=offset + at)
            for at, stored in enumerate(found)
            if tags in ("*", stored.tags)
        ]
        return messages, offset + len(found)

    def staged_later(self, queue: MessageQueue, offset: int) -> Callable[[], memoryview]:
        def body() -> memoryview:
            self.before("staged", queue)
            log = self.log.get(queue, [])
            if not self.first.get(queue, 0) <= offset < len(log):
                gone = condition("DATA_LOSS.STAGED_BLOCK", queue=queue.name, offset=offset)
                gone.retriable = offset >= len(log)
                raise gone
            return memoryview(log[offset].body)

        return body

    def ids(self, queue: MessageQueue, start: int, end: int) -> Iterator[pa.Array]:
        self.before("ids", queue)
        for low in range(start, end, 3):
            yield pa.array([each.key for each in self.log[queue][low : min(end, low + 3)]], pa.string())

    def confirm(self, broker: str, staging: str, timing: Timing) -> None:
        self.before("confirm", MessageQueue(staging, broker, 0))
        self.confirmed.append(broker)

    def check_target(self, queue: MessageQueue) -> None:
        self.before("check", queue)

    def lacks(self, queue: MessageQueue) -> bool:
        return queue in self.gone

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        self.before("query", queue)
        return self.offsets.get((group, queue))

    def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        self.before("commit", queue)
        self.offsets[group, queue] = offset
        self.after("commit", queue)

    def remove_group(self, group: str) -> bool:
        self.before("remove", LEDGER_QUEUE)
        for place in [each for each in self.offsets if each[0] == group]:
            del self.offsets[place]
        self.after("remove", LEDGER_QUEUE)
        return True

    # --- methods for tests --------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        while self.at_sleep:
            self.at_sleep.pop()()

    def timing(self) -> Timing:
        return Timing(5.0, 60_000, lambda: self.now, self.sleep)

    def alive(self) -> None:
        """Stop failing requests."""
        self.before = self.after = lambda kind, queue: None

    def rows(self) -> list[str]:
        """The bodies of all rows that are visible now or later."""
        return [
            stored.body.decode()
            for queue, log in self.log.items()
            if queue.topic in (TARGET, SCHEDULE_TOPIC, TIMER_TOPIC)
            for stored in log
        ]

    def staged(self, epoch: Epoch, bodies: Sequence[str], **more: object) -> list[StagedBlock]:
        """Stage the rows of a task."""
        columns = {"body": list(bodies), **{name: column for name, column in more.items() if name != "size"}}
        batch = pa.record_batch(columns)
        return stage_rows(iter([batch]), self.real(), options(sendBatchSize=str(more.get("size", 4))), epoch).blocks

    def real(self) -> Brokers:
        """For the type checker."""
        return self  # type: ignore[return-value]

    def ledger(self, query: str, *, is_stream: bool = True) -> Ledger:
        return Ledger(self.real(), LEDGER_QUEUE, STAGING, query, self.timing(), is_stream=is_stream)

    def commit_epoch(self, epoch: Epoch, blocks: Sequence[StagedBlock], *, is_stream: bool = True) -> Manifest | None:
        """Call ``commit`` as a new process."""
        ledger = self.ledger(epoch.query, is_stream=is_stream)
        return Commit(self.real(), ledger, epoch, STAGING, self.timing()).run(blocks)


def options(**more: str) -> WriteOptions:
    given = {"nameServer": "x:1", "topic": TARGET, "deliveryGuarantee": "exactlyOnce", "stagingTopic": STAGING}
    return parse_write_options(given | more, Scope.WRITE_STREAM)


class FailAtRequest:
    """Kill or fail at the n-th request, of those that change something or of all."""

    def __init__(self, number: int, failure: type[BaseException] | RocketError, kinds: Collection[str] = ()) -> None:
        self.left = number
        self._failure = failure
        self._kinds = kinds
        self.hit: str | None = None

    def __call__(self, kind: str, queue: MessageQueue) -> None:
        if self._kinds and kind not in self._kinds:
            return
        self.left -= 1
        if self.left == -1:
            self.hit = f"{kind} {queue.name}"
            raise self._failure


def once(rows: Sequence[str], wanted: Sequence[str]) -> None:
    """Check that each expected row exists once, and no others."""
    assert Counter(rows) == Counter(wanted)


def kill_at_publish(brokers: FakeBrokers, number: int, when: str = "after", **columns: object) -> None:
    """Commit an epoch whose driver is killed at its n-th request to publish."""
    setattr(brokers, when, FailAtRequest(number, KilledError, {"publish"}))
    with pytest.raises(KilledError):
        brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS, **columns))
    brokers.alive()


def kinds(brokers: FakeBrokers, query: str = "query") -> list[str]:
    records = [json.loads(stored.body) for stored in brokers.log.get(LEDGER_QUEUE, [])]
    return [record["kind"] for record in records if record["query"] == query]
