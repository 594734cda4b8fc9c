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
from typing import Any, NamedTuple, TypeAlias

from spark_rocket.client.send.outgoing import Outgoing, batch_properties
from spark_rocket.client.send.pipeline import Pipeline, Send, closed_error
from spark_rocket.client.send.router import QueueChoice
from spark_rocket.model import Message, MessageQueue, SendResult
from spark_rocket.remoting.client.promise import Promise
from spark_rocket.remoting.event_loop import is_loop_thread, loop_thread

BATCH_MAX_BYTES = 32 * 1024
BATCH_MAX_DELAY_S = 0.010
TOTAL_BATCH_MAX_BYTES = 32 * 1024 * 1024

Key: TypeAlias = tuple[str, MessageQueue | None, str | None]


class BatchResult(NamedTuple):
    """The result of a batch. The results of its messages are made on request.

    If an application keeps the futures of many sends, the garbage collector looks at one object for each, not at three.
    """

    result: SendResult
    keys: Sequence[str]
    ids: Sequence[str]

    def of(self, at: int) -> SendResult:
        """Return the result of a message by its place in the batch."""
        whole = self.result
        return SendResult(whole.status, self.keys[at], self.ids[at], whole.queue, whole.queue_offset + at)


class HeldMessage(Promise[SendResult]):
    """A message that a caller has handed over, and the promise of its result."""

    message: Message | None
    _at = 0  # the place in the batch

    def __init__(
        self,
        accumulator: Accumulator,
        message: Message,
        queue: MessageQueue | None,
        wait: str | None,
        unique_key: str,
        piece: bytes,  # of the body of a batch
        timeout: float,
        deadline: float,
    ) -> None:
        self.accumulator = accumulator
        self.message = message
        self.queue = queue  # with the topic and ``wait_property`` its key, which the collector would look at
        self.wait_property = wait
        self.unique_key = unique_key
        self.piece = piece
        self.timeout = timeout
        self.deadline = deadline

    def taken(self) -> None:
        self.accumulator._collect(self)

    def succeed(self, batch: Any, at: int) -> None:
        self._at = at
        self.message, self.piece = None, b""  # the future may be kept
        self._settle(batch)

    def fail(self, error: BaseException) -> None:
        self.message, self.piece = None, b""
        super().fail(error)

    def result(self, timeout: float | None = None) -> SendResult:
        batch = self._outcome
        if type(batch) is not BatchResult:  # not settled yet, or failed
            batch = super().result(timeout)
        return batch.of(self._at)  # type: ignore[no-any-return]  # settled with a BatchResult


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
        self._held = held = batch.messages
        self._keys = [one.unique_key for one in held]
        body = b"".join([one.piece for one in held])
        out = Outgoing(topic, body, properties=batch_properties(wait), msg_id=",".join(self._keys), count=len(held))
        messages = [one.message for one in held if one.message is not None]
        super().__init__(pipeline, out, messages, queue, batch.timeout, batch.deadline)
        self.places = len(held)
        self._accumulator = accumulator
        self._size = batch.size

    def _succeeded(self, result: SendResult) -> None:
        """Resolve each message with its own result. Corresponds to ProduceAccumulator's splitSendResults."""
        self._accumulator.completed(self._size)
        ids, keys = result.offset_msg_id.split(","), self._keys
        if len(ids) != len(keys):
            ids = [result.offset_msg_id] * len(keys)
        batch = BatchResult(result, keys, ids)
        for at, one in enumerate(self._held):
            one.succeed(batch, at)

    def _failed(self, error: Exception) -> None:
        """Fail each message with a separate error: tracebacks are not shared."""
        self._accumulator.completed(self._size)
        for one in self._held:
            one.fail(error)
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
        held = HeldMessage(self, message, key[1], key[2], unique_key, encoded, timeout, deadline)
        in_flight.hand_over(held)
        return held

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
            held.fail(closed_error())
            return
        assert held.message is not None
        key = held.message.topic, held.queue, held.wait_property
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
        pipeline, where, first = self._pipeline, QueueChoice(queue=key[1]), batch.messages[0].message
        assert first is not None
        if self._preparing or pipeline.hooks is not None or pipeline.may_wait_for(first, where):
            self._preparing += 1
            pipeline.batch_thread.submit(partial(self._prepare, send))
        else:
            send.attempt()()

    def _prepare(self, send: BatchSend) -> None:
        """Prepare the attempt of a batch on the thread; without hooks if the batch has ended in the meantime."""
        begin = send.attempt_on_own_thread() if send in self._in_flight.sends else None
        loop_thread().post(partial(self._prepared, begin))

    def _prepared(self, begin: Callable[[], object] | None) -> None:
        self._preparing -= 1
        if begin is not None:
            begin()
