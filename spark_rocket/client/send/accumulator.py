"""Single sends that go out together: batches of messages for one topic, queue and WAIT.

Messages are held until they take ``batch_max_bytes``, or the first of them has waited for ``batch_max_delay``; then
they are sent as one batch, and each sender's promise gets its own message's result. A batch that fails fails each. What
all batches hold and have in flight is bounded by ``total_batch_max_bytes``: above it a message is sent alone.

The order of messages for a given queue is kept: a key's batches that are to go stand in a *lane*, and one thread at a
time sends a lane's: a caller that filled a batch, or the accumulator's own thread. Their route is known, because the
first caller has asked for it, and connecting does not block, so no topic is held up by another's broker.

Thread-safety: all methods. One daemon thread, started with the first message. An interrupt (Ctrl-C) fails the batch
that its thread was sending and leaves the lane to another thread. After a crash: what was held is lost, as its promises
say by never being settled.
Corresponds to org.apache.rocketmq.client.producer.ProduceAccumulator.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from spark_rocket.client.send.outgoing import Outgoing, batch_properties
from spark_rocket.client.send.pipeline import Pipeline, Send, interrupted
from spark_rocket.model import Message, MessageQueue, SendResult
from spark_rocket.remoting.client.promise import Promise, resolve_each

logger = logging.getLogger(__name__)

BATCH_MAX_BYTES = 32 * 1024
BATCH_MAX_DELAY = 0.010
TOTAL_BATCH_MAX_BYTES = 32 * 1024 * 1024

Key: TypeAlias = tuple[str, MessageQueue | None, str | None]


class Batch:
    """Messages on their way into one request. ``entered``: it is in flight."""

    __slots__ = ("deadline", "due", "entered", "entries", "size", "timeout")

    def __init__(self, due: float, timeout: float, deadline: float) -> None:
        self.due = due
        self.timeout = timeout
        self.deadline = deadline
        self.size = 0
        self.entries: list[tuple[Message, str, bytes, Promise[SendResult]]] = []  # with key and piece of the body
        self.entered = False


class BatchSend(Send):
    """A batch in flight. It has the places of all its messages."""

    def __init__(self, accumulator: Accumulator, pipeline: Pipeline, key: Key, batch: Batch) -> None:
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
        """Each message has a result of its own. Corresponds to ProduceAccumulator's splitSendResults."""
        self._accumulator.answered(self._size)
        ids, keys = result.offset_msg_id.split(","), self._keys
        if len(ids) != len(keys):
            ids = [result.offset_msg_id] * len(keys)
        status, queue, offset = result.status, result.queue, result.queue_offset
        results = [SendResult(status, keys[at], ids[at], queue, offset + at) for at in range(len(keys))]
        resolve_each(self._promises, results)

    def _failed(self, error: Exception) -> None:
        self._accumulator.answered(self._size)
        fail_each(self._promises, error)


def fail_each(promises: Sequence[Promise[SendResult]], error: Exception) -> None:
    """Fail promises with an error of its own each: tracebacks are not shared."""
    for promise in promises:
        promise.fail(error)
        error = copy.copy(error)


class Accumulator:
    """See the module."""

    def __init__(self, pipeline: Pipeline, max_bytes: int, max_delay: float, total_max_bytes: int) -> None:
        self._pipeline = pipeline
        self._max_bytes = max_bytes
        self._max_delay = max_delay
        self._total_max_bytes = total_max_bytes
        self._total = 0
        self._batches: dict[Key, Batch] = {}  # oldest first, since all wait equally long
        self._in_flight = pipeline.in_flight
        self._lock = pipeline.in_flight.lock
        self._changed = threading.Condition(self._lock)
        self._lanes: dict[Key, deque[Batch]] = {}  # of keys whose batches a thread sends
        self._thread: threading.Thread | None = None
        self._idle = False
        self._closed = False

    def holds(self, key: Key) -> bool:
        """Whether there are messages with a key."""
        return key in self._batches

    def add(
        self, key: Key, message: Message, piece: tuple[str, bytes], timeout: float, deadline: float
    ) -> Promise[SendResult] | None:
        """Have a message sent with others, when there is a place in flight for it; None if it has to go alone."""
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
                batch = self._batches[key] = Batch(time.monotonic() + self._max_delay, timeout, deadline)
            elif deadline < batch.deadline:
                batch.timeout, batch.deadline = timeout, deadline
            # An interrupt comes after a call, so between these only when all of it is done.
            in_flight.count += 1
            self._total += size
            batch.size += size
            batch.entries.append(entry)
            full = batch.size >= self._max_bytes
        if full:
            self._send(key, batch)
        return promise

    def answered(self, size: int) -> None:
        """A batch has ended."""
        with self._lock:
            self._total -= size

    def close(self) -> None:
        """Send what is held, and take no more."""
        with self._lock:
            self._closed = True
            held = list(self._batches.items())
            self._changed.notify_all()
        for key, batch in held:
            self._send(key, batch)

    def _send(self, key: Key, batch: Batch) -> None:
        """Take a batch out and send it, or leave it to the thread that sends the lane's."""
        with self._lock:
            if self._batches.get(key) is not batch:
                return  # another thread has
            del self._batches[key]
            lane = self._lanes.get(key)
            if lane is not None:
                lane.append(batch)
                return
            lane = self._lanes[key] = deque((batch,))
        self._drain(key, lane)

    def _drain(self, key: Key, lane: deque[Batch]) -> None:
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

    def _start(self, key: Key, batch: Batch) -> None:
        try:
            send = BatchSend(self, self._pipeline, key, batch)
            batch.entered = True
            send.start()
        except BaseException as error:
            if not batch.entered:
                self.answered(batch.size)
                self._in_flight.release(len(batch.entries))
                fail_each([entry[3] for entry in batch.entries], interrupted(key[0], error))
            raise

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="rocket-accumulator", daemon=True)
            self._thread.start()
        elif self._idle:
            # All: an interrupted wait may have left a waiter that is not there.
            self._changed.notify_all()
            self._idle = False

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._batches:
                    if self._closed:
                        return
                    self._idle = True  # else it looks again in time for any batch that is begun meanwhile
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
                logger.exception("messages for %s could not be sent", key[0])
