"""Helpers for tests of consumption."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_rocket.client.consume.listeners import ConsumeHooks
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import PullResult, PullStatus, batches_of
from spark_rocket.client.consume.services import ServiceParts
from spark_rocket.errors import ProtocolError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.filter.tags import SUB_ALL, parse_tags
from spark_rocket.protocol.record.messages import decode_messages
from tests.kit.scripted import record, undecodable

QUEUE = MessageQueue("t", "b", 0)
SECONDS = 30.0


class ManualTimer:
    """``call_later`` that calls on a test's request."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []
        self._any = threading.Condition()

    def __call__(self, seconds: float, chore: Callable[[], None]) -> None:
        with self._any:
            self.waiting.append((seconds, chore))
            self._any.notify_all()

    def wait(self) -> None:
        """Wait until a call is scheduled."""
        with self._any:
            assert self._any.wait_for(lambda: self.waiting, SECONDS)

    def run(self) -> float:
        """Wait for a scheduled call, run it, and return its delay in seconds."""
        self.wait()
        with self._any:
            seconds, chore = self.waiting.pop(0)
        chore()
        return seconds


class SendBackFake:
    """Accepts the messages that a test configures as returned."""

    def __init__(self) -> None:
        self.refuses: bool | Callable[[], bool] = False
        self.asked: list[int] = []
        self.given: list[tuple[int, int]] = []
        self.copies: list[int] = []

    def send(self, message: MessageExt, delay_level: int = 0) -> bool:
        self.asked.append(message.queue_offset)
        refused = self.refuses() if callable(self.refuses) else self.refuses
        if not refused:
            self.given.append((message.queue_offset, delay_level))
        return not refused

    def send_copy(self, message: MessageExt) -> bool:
        if not self.refuses:
            self.copies.append(message.queue_offset)
        return not self.refuses


def message(offset: int, body: bytes = b"x", **properties: str) -> MessageExt:
    return MessageExt("t", body, dict(properties), 0, "b", 0, offset, physical_offset=offset * 1000)


def found(offsets: Iterable[int], next_offset: int | None = None, **properties: Any) -> PullResult:
    """A pull that found messages with these offsets."""
    every = list(offsets)
    raw = b"".join(record(offset, b"m%d" % offset, **properties) for offset in every)
    end = every[-1] + 1 if next_offset is None else next_offset
    return PullResult(PullStatus.FOUND, end, 0, end, memoryview(raw))


def nothing(next_offset: int) -> PullResult:
    return PullResult(PullStatus.NO_MATCHED_MSG, next_offset, 0, next_offset, memoryview(b""))


def queue_at(offset: int = 0) -> ProcessQueue:
    return ProcessQueue(QUEUE, offset)


class Rig:
    """A consume service with its collaborators and its recorded calls. It decodes, and owns queues."""

    def __init__(self, make: Callable[..., Any], *, clustering: bool = True, **settings: Any) -> None:
        self.later, self.back, self.hooks = ManualTimer(), SendBackFake(), ConsumeHooks("g")
        self.listener: Callable[..., Any] = lambda *_: None
        self.choose: Callable[[list[MessageExt]], list[MessageExt]] = lambda every: every
        self.calls: list[list[int]] = []
        self.locks: list[bool] = []  # whether brokers refuse returned messages
        self.given_up: list[ProcessQueue] = []
        self.changed = threading.Condition()
        this: Any = self
        parts = ServiceParts(this, self.hooks, this, this.back if clustering else None, self.later)
        self.service = make(self.listen, parts, **settings)
        self.service.start()

    def listen(self, given: Any, context: Any) -> Any:
        is_batch = isinstance(given, pa.RecordBatch)
        self.calls.append(given.column("queueOffset").to_pylist() if is_batch else [one.queue_offset for one in given])
        return self.listener(given, context)

    def messages(self, _: ProcessQueue, pulled: PullResult) -> list[MessageExt]:
        return self.choose(decode_messages(pulled.records, "b"))

    def batches(self, queue: ProcessQueue, pulled: PullResult) -> Iterator[pa.RecordBatch]:
        return batches_of(pulled, QUEUE, queue.end, parse_tags(SUB_ALL))

    def has_room(self, _: ProcessQueue) -> None:
        with self.changed:
            self.changed.notify_all()

    def lock(self, queue: ProcessQueue) -> bool:
        queue.locked = self.locks.pop(0)
        if queue.locked:
            queue.last_lock = time.monotonic()
        return queue.locked

    def released(self, queue: ProcessQueue) -> None:
        with self.changed:
            self.given_up.append(queue)
            self.changed.notify_all()

    def until(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, SECONDS)


def rig_of(make: Callable[..., Any], result: object, **usual: Any) -> Any:
    """Fixture that builds rigs and closes them at the end."""

    @pytest.fixture
    def rig() -> Iterator[Callable[..., Rig]]:
        rigs: list[Rig] = []

        def build(**settings: Any) -> Rig:
            rigs.append(Rig(make, **usual | settings))
            rigs[-1].listener = lambda *_: result
            return rigs[-1]

        yield build
        for one in rigs:
            one.service.close(SECONDS)

    return rig


def check_messages_before_an_undecodable_one(one: Rig, queue: ProcessQueue) -> None:
    """The messages before it are consumed, and each pull begins with it."""
    records = record(0) + record(1) + undecodable(2) + record(3)
    for _ in range(2):
        with pytest.raises(ProtocolError, match="The message at offset 2"):
            one.service.receive(queue, PullResult(PullStatus.FOUND, 4, 0, 4, memoryview(records)))
        one.until(lambda: queue.commit_offset == 2)
        assert queue.end == 2  # where the next pull begins
        records = undecodable(2) + record(3)
    assert sorted(one.calls) == [[0], [1]]


class BlockedListener:
    """A listener whose calls wait for ``go``. With ``once``, only the first call waits."""

    def __init__(self, result: object, *, once: bool = False) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        self._result, self._once = result, once

    def __call__(self, *_: object) -> Any:
        if not (self._once and self.began.is_set()):
            self.began.set()
            assert self.go.wait(SECONDS)
        return self._result


def raising(error: BaseException) -> Callable[..., Any]:
    def listen(*_: object) -> Any:
        raise error

    return listen


FAILURES = [
    lambda *_: None,
    lambda *_: 1 / 0,
    lambda *_: 7,
    lambda *_: np.ones(2),
    lambda given, *_: given,
    raising(SystemExit(1)),
    raising(KeyboardInterrupt()),
]
"""Listeners that fail or return something else than a status."""
