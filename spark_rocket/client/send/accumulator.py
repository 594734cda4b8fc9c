"""Automatic batches of single sends with the same topic, queue and WAIT.

Messages are collected until they reach ``batch_max_bytes``, or the first of them has waited for ``batch_max_delay``.
Then they are sent as one batch, and each promise gets the result of its own message. If a batch fails, each of its
messages fails. ``total_batch_max_bytes`` limits all collected and sent batches: above it a message is sent alone.

Batches are collected and sent on the loop thread, so the order of messages of a given queue is preserved. A batch whose
request may block (its route is unknown, there are hooks, a broker does not read) is prepared on a thread of its own;
those behind it follow there.

Thread-safety: all methods; a caller's only step is to hand its message over. After a crash: collected messages are
lost; their promises were not settled.
Corresponds to org.apache.rocketmq.client.producer.ProduceAccumulator.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from spark_rocket.client.send.outgoing import Outgoing, batch_properties
from spark_rocket.client.send.pipeline import Pipeline, Send, closed
from spark_rocket.client.send.router import QueueChoice
from spark_rocket.model import Message, MessageQueue, SendResult
from spark_rocket.remoting.client.promise import Promise, resolve_each
from spark_rocket.remoting.event_loop import CallbackThread, is_loop_thread, loop_thread

BATCH_MAX_BYTES = 32 * 1024
BATCH_MAX_DELAY_S = 0.010
TOTAL_BATCH_MAX_BYTES = 32 * 1024 * 1024

Key: TypeAlias = tuple[str, MessageQueue | None, str | None]


class HeldMessage(NamedTuple):
    """A message that a caller has handed over. One tuple, for the sake of the garbage collector."""

    accumulator: Accumulator
    key: Key
    message: Message
    unique_key: str
    piece: bytes  # of the body of a batch
    promise: Promise[SendResult]
    timeout: float
    deadline: float

    def taken(self) -> None:
        self.accumulator._collect(self)


@dataclass(slots=True, eq=False)
class MessageBatch:
    """Messages collected for one request. ``timer`` sends it."""

    timeout: float
    deadline: float
    timer: asyncio.TimerHandle
    size: int = 0
    messages: list[HeldMessage] = field(default_factory=list)


class BatchSend(Send):
    """A batch in flight. It has the slots of all its messages."""

    def __init__(self, accumulator: Accumulator, pipeline: Pipeline, key: Key, batch: MessageBatch) -> None:
        topic, queue, wait = key
        _, _, messages, keys, pieces, self._promises, _, _ = zip(*batch.messages, strict=True)
        out = Outgoing(
            topic, b"".join(pieces), properties=batch_properties(wait), msg_id=",".join(keys), count=len(keys)
        )
        super().__init__(pipeline, out, messages, queue, batch.timeout, batch.deadline)
        self.places = len(keys)
        self._keys = keys
        self._accumulator = accumulator
        self._size = batch.size

    def _succeeded(self, result: SendResult) -> None:
        """Resolve each message with its own result. Corresponds to ProduceAccumulator's splitSendResults."""
        self._accumulator.completed(self._size)
        ids, keys = result.offset_msg_id.split(","), self._keys
        if len(ids) != len(keys):
            ids = [result.offset_msg_id] * len(keys)
        status, queue, offset = result.status, result.queue, result.queue_offset
        results = [SendResult(status, keys[at], ids[at], queue, offset + at) for at in range(len(keys))]
        resolve_each(self._promises, results)

    def _failed(self, error: Exception) -> None:
        self._accumulator.completed(self._size)
        fail_each(self._promises, error)


def fail_each(promises: Sequence[Promise[SendResult]], error: Exception) -> None:
    """Fail promises with a separate error each: tracebacks are not shared."""
    for promise in promises:
        promise.fail(error)
        error = copy.copy(error)


class Accumulator:
    """Collects messages and sends them in batches. Underscored methods run on the loop."""

    def __init__(self, pipeline: Pipeline, max_bytes: int, max_delay: float, total_max_bytes: int) -> None:
        self._pipeline = pipeline
        self._in_flight = pipeline.in_flight
        self._max_bytes = max_bytes
        self._max_delay = max_delay
        self._total_max_bytes = total_max_bytes
        self._total = 0
        self._batches: dict[Key, MessageBatch] = {}
        self._closed = False
        self._preparing = 0  # batches on the thread
        self._thread = CallbackThread("rocket-accumulator")

    def holds(self, key: Key) -> bool:
        return key in self._batches

    def add(
        self, key: Key, message: Message, piece: tuple[str, bytes], timeout: float, deadline: float
    ) -> Promise[SendResult] | None:
        """Collect a message when there is a free slot in flight; None if it must be sent alone."""
        unique_key, encoded = piece
        in_flight = self._in_flight
        handed = len(in_flight.handed)
        if handed + in_flight.taken >= in_flight.limit:
            in_flight.await_place(deadline, self._pipeline.may_wait)
        if len(encoded) > self._max_bytes:
            return None
        if self._total + (handed + 1) * self._max_bytes > self._total_max_bytes:  # if all are large
            in_flight.wait(lambda: self._fits(len(in_flight.handed)), deadline)
            if self._total + len(encoded) > self._total_max_bytes:
                return None
        promise: Promise[SendResult] = Promise()
        in_flight.hand_over(HeldMessage(self, key, message, unique_key, encoded, promise, timeout, deadline))
        return promise

    def _fits(self, handed: int) -> bool:
        """Whether another message may be handed over, or the loop has taken all."""
        return not handed or self._total + (handed + 1) * self._max_bytes <= self._total_max_bytes

    def completed(self, size: int) -> None:
        """Release the bytes of a batch that has ended."""
        self._total -= size

    def close(self) -> None:
        """Send the collected messages, and each further one immediately."""
        if is_loop_thread():
            self._flush()
        else:
            loop_thread().post(self._flush)

    def _flush(self) -> None:
        self._in_flight.take()
        self._closed = True
        for key in list(self._batches):
            self._send(key)

    def _collect(self, held: HeldMessage) -> None:
        if self._pipeline.closed:
            held.promise.fail(closed())
            return
        key = held.key
        batch = self._batches.get(key)
        if batch is None:
            timer = loop_thread().loop.call_later(self._max_delay, self._send, key)
            batch = self._batches[key] = MessageBatch(held.timeout, held.deadline, timer)
        elif held.deadline < batch.deadline:
            batch.timeout, batch.deadline = held.timeout, held.deadline
        size = len(held.piece)
        self._in_flight.taken += 1
        self._total += size
        batch.size += size
        batch.messages.append(held)
        if batch.size >= self._max_bytes or self._closed:
            self._send(key)

    def _send(self, key: Key) -> None:
        batch = self._batches.pop(key)
        batch.timer.cancel()
        send = BatchSend(self, self._pipeline, key, batch)
        self._in_flight.add(send)
        pipeline, where = self._pipeline, QueueChoice(queue=key[1])
        if self._preparing or pipeline.hooks is not None or pipeline.may_wait_for(batch.messages[0].message, where):
            self._preparing += 1
            self._thread.submit(lambda: loop_thread().post(partial(self._prepared, send.attempt())))
        else:
            send.attempt()()

    def _prepared(self, begin: Callable[[], object]) -> None:
        self._preparing -= 1
        begin()
