"""Automatic batches of single sends with the same topic, queue and WAIT.

Messages are collected until they reach ``batch_max_bytes``, or the first of them has waited for ``batch_max_delay``.
Then they are sent as one batch, and each promise gets the result of its own message. If a batch fails, each of its
messages fails. ``total_batch_max_bytes`` limits all collected and sent batches: above it a message is sent alone.

The order of messages of a given queue is preserved: the batches of a key are queued in a *lane*, and one thread at a
time sends a lane: a caller that filled a batch, or the accumulator's own thread. Their route is known, because the
first caller has fetched it, and connecting does not block, so one topic's broker does not delay another topic.

Thread-safety: all methods. One daemon thread, started with the first message. An interrupt (Ctrl-C) fails the batch
that its thread was sending and leaves the lane to another thread. After a crash: collected messages are lost; their
promises were not settled.
Corresponds to org.apache.rocketmq.client.producer.ProduceAccumulator.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from spark_rocket.client.send.outgoing import Outgoing, batch_properties
from spark_rocket.client.send.pipeline import Pipeline, Send, interrupted
from spark_rocket.model import Message, MessageQueue, SendResult
from spark_rocket.remoting.client.promise import Promise, resolve_each

logger = logging.getLogger(__name__)

BATCH_MAX_BYTES = 32 * 1024
BATCH_MAX_DELAY_S = 0.010
TOTAL_BATCH_MAX_BYTES = 32 * 1024 * 1024

Key: TypeAlias = tuple[str, MessageQueue | None, str | None]


@dataclass(slots=True, eq=False)
class MessageBatch:
    """Messages collected for one request, each with its key and its piece of the body. ``entered``: it is in flight."""

    due: float
    timeout: float
    deadline: float
    size: int = 0
    entries: list[tuple[Message, str, bytes, Promise[SendResult]]] = field(default_factory=list)
    entered: bool = False


class BatchSend(Send):
    """A batch in flight. It has the slots of all its messages."""

    def __init__(self, accumulator: Accumulator, pipeline: Pipeline, key: Key, batch: MessageBatch) -> None:
        topic, queue, wait = key
        messages, keys, pieces, self._promises = zip(*batch.entries, strict=True)
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
    """Collects messages and sends them in batches."""

    def __init__(self, pipeline: Pipeline, max_bytes: int, max_delay: float, total_max_bytes: int) -> None:
        self._pipeline = pipeline
        self._max_bytes = max_bytes
        self._max_delay = max_delay
        self._total_max_bytes = total_max_bytes
        self._total = 0
        self._batches: dict[Key, MessageBatch] = {}  # oldest first, since all have the same delay
        self._in_flight = pipeline.in_flight
        self._lock = pipeline.in_flight.lock
        self._changed = threading.Condition(self._lock)
        self._lanes: dict[Key, deque[MessageBatch]] = {}  # of keys whose batches a thread is sending
        self._thread: threading.Thread | None = None
        self._idle = False
        self._closed = False

    def holds(self, key: Key) -> bool:
        return key in self._batches

    def add(
        self, key: Key, message: Message, piece: tuple[str, bytes], timeout: float, deadline: float
    ) -> Promise[SendResult] | None:
        """Collect a message when there is a free slot in flight; None if it must be sent alone."""
        unique_key, encoded = piece
        size = len(encoded)
        promise: Promise[SendResult] = Promise()
        entry = message, unique_key, encoded, promise
        in_flight = self._in_flight
        with self._lock:
            if in_flight.count >= in_flight.limit:
                in_flight.await_place(deadline, self._pipeline.may_wait)
            if size > self._max_bytes or self._total + size > self._total_max_bytes or self._closed:
                return None
            batch = self._batches.get(key)
            if batch is None:
                self._wake()
                batch = self._batches[key] = MessageBatch(time.monotonic() + self._max_delay, timeout, deadline)
            elif deadline < batch.deadline:
                batch.timeout, batch.deadline = timeout, deadline
            # An interrupt is raised only after a call, so these lines are executed completely or not at all.
            in_flight.count += 1
            self._total += size
            batch.size += size
            batch.entries.append(entry)
            full = batch.size >= self._max_bytes
        if full:
            self._send(key, batch)
        return promise

    def completed(self, size: int) -> None:
        """Release the bytes of a batch that has ended."""
        with self._lock:
            self._total -= size

    def close(self) -> None:
        """Send the collected messages, and accept no more."""
        with self._lock:
            self._closed = True
            held = list(self._batches.items())
            self._changed.notify_all()
        for key, batch in held:
            self._send(key, batch)

    def _send(self, key: Key, batch: MessageBatch) -> None:
        """Take a batch and send it, or leave it to the thread that is sending its lane."""
        with self._lock:
            if self._batches.get(key) is not batch:
                return  # another thread took it
            del self._batches[key]
            lane = self._lanes.get(key)
            if lane is not None:
                lane.append(batch)
                return
            lane = self._lanes[key] = deque((batch,))
        self._drain(key, lane)

    def _drain(self, key: Key, lane: deque[MessageBatch]) -> None:
        try:
            while True:
                with self._lock:
                    if not lane:
                        del self._lanes[key]
                        return
                    batch = lane.popleft()
                self._start(key, batch)
        except BaseException:
            threading.Thread(target=self._drain, args=(key, lane), name="rocket-accumulator-lane", daemon=True).start()
            raise

    def _start(self, key: Key, batch: MessageBatch) -> None:
        try:
            send = BatchSend(self, self._pipeline, key, batch)
            batch.entered = True
            send.start()
        except BaseException as error:
            if not batch.entered:
                self.completed(batch.size)
                self._in_flight.release(len(batch.entries))
                fail_each([entry[3] for entry in batch.entries], interrupted(key[0], error))
            raise

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="rocket-accumulator", daemon=True)
            self._thread.start()
        elif self._idle:
            # All: an interrupted wait may have left a stale waiter.
            self._changed.notify_all()
            self._idle = False

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._batches:
                    if self._closed:
                        return
                    self._idle = True  # otherwise it wakes in time for any new batch
                    self._changed.wait()
                    continue
                key, batch = next(iter(self._batches.items()))
                left = batch.due - time.monotonic()
                if left > 0 and not self._closed:
                    self._changed.wait(left)
                    continue
            try:
                self._send(key, batch)
            except Exception:
                logger.exception("batch for topic %s not sent", key[0])
