"""Single sends that go out together: batches made up on the way.

Messages for one topic, queue and WAIT are held until they take ``batch_max_bytes``, or the first of them has waited for
``batch_max_delay``; then they are sent as one batch, and each sender's future gets its own message's result. A batch
that fails fails each. What all batches hold and have under way is bounded by ``total_batch_max_bytes``: above it a
message is sent alone.

The order of messages for a given queue is kept: whoever takes a batch out sends it before anybody takes out the next.

Thread-safety: all methods. One daemon thread, started with the first message. After a crash: what was held is lost, as
its futures say by never being done.
Corresponds to org.apache.rocketmq.client.producer.ProduceAccumulator.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeAlias

from spark_rocket.client.async_send import AsyncSend, SendFuture, settle
from spark_rocket.client.outgoing import Outgoing, batch_properties
from spark_rocket.model import Message, MessageQueue, SendResult

if TYPE_CHECKING:
    from spark_rocket.client.producer import Producer

BATCH_MAX_BYTES = 32 * 1024
BATCH_MAX_DELAY = 0.010
TOTAL_BATCH_MAX_BYTES = 32 * 1024 * 1024

Key: TypeAlias = tuple[str, MessageQueue | None, str | None]


class Batch:
    """Messages on their way into one request: their keys, their pieces of its body, and who waits for them."""

    __slots__ = ("deadline", "due", "futures", "keys", "messages", "pieces", "size", "timeout")

    def __init__(self, due: float, timeout: float, deadline: float) -> None:
        self.due = due
        self.timeout = timeout
        self.deadline = deadline
        self.size = 0
        self.messages: list[Message] = []
        self.keys: list[str] = []
        self.pieces: list[bytes] = []
        self.futures: list[SendFuture] = []


class BatchResult:
    """For the futures of a batch. Corresponds to ProduceAccumulator's splitSendResults."""

    __slots__ = ("_ids", "_keys", "_result")

    def __init__(self, result: SendResult, keys: Sequence[str]) -> None:
        self._result = result
        self._keys = keys
        self._ids = result.offset_msg_id.split(",")

    def of(self, index: int) -> SendResult:
        whole, ids = self._result, self._ids
        id_ = ids[index] if len(ids) == len(self._keys) else whole.offset_msg_id
        return SendResult(whole.status, self._keys[index], id_, whole.queue, whole.queue_offset + index)


class BatchSend(AsyncSend):
    """A batch under way. It has the places in flight of all its messages."""

    __slots__ = ("_accumulator", "_futures", "_keys", "_size", "count")

    def __init__(self, accumulator: Accumulator, producer: Producer, key: Key, batch: Batch) -> None:
        topic, queue, wait = key
        self._keys = batch.keys
        body = b"".join(batch.pieces)
        out = Outgoing(topic, body, properties=batch_properties(wait), msg_id=",".join(batch.keys))
        super().__init__(producer, out, batch.messages, queue, batch.timeout, batch.deadline)
        self.count = len(batch.keys)
        self._futures = batch.futures
        self._accumulator = accumulator
        self._size = batch.size

    def _succeeded(self, result: SendResult) -> None:
        self._accumulator.answered(self._size)
        settle(self._futures, BatchResult(result, self._keys))

    def _failed(self, error: Exception) -> None:
        self._accumulator.answered(self._size)
        for future in self._futures:
            future.set_exception(error)


class Accumulator:
    """See the module."""

    def __init__(self, producer: Producer, *, max_bytes: int, max_delay: float, total_max_bytes: int) -> None:
        self._producer = producer
        self._max_bytes = max_bytes
        self._max_delay = max_delay
        self._total_max_bytes = total_max_bytes
        self._total = 0
        self._batches: dict[Key, Batch] = {}  # oldest first, since all wait equally long
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._idle = False
        self._closed = False

    def add(
        self, key: Key, message: Message, piece: tuple[str, bytes], timeout: float, deadline: float
    ) -> Future[SendResult] | None:
        """Have a message sent with others; None if it has to go alone. Its place in flight is taken already."""
        size = len(piece[1])
        with self._lock:
            if size > self._max_bytes or self._total + size > self._total_max_bytes or self._closed:
                return None
            self._total += size
            batch = self._batches.get(key)
            if batch is None:
                batch = self._batches[key] = Batch(time.monotonic() + self._max_delay, timeout, deadline)
                self._wake()
            elif deadline < batch.deadline:
                batch.timeout, batch.deadline = timeout, deadline
            future = SendFuture()
            batch.messages.append(message)
            batch.keys.append(piece[0])
            batch.pieces.append(piece[1])
            batch.futures.append(future)
            batch.size += size
            full = batch.size >= self._max_bytes
        if full:
            self._send(key, batch)
        return future

    def answered(self, size: int) -> None:
        """A batch is over."""
        with self._lock:
            self._total -= size

    def close(self) -> None:
        """Send what is held, and take no more."""
        with self._lock:
            self._closed = True
            held = list(self._batches.items())
            self._changed.notify()
        for key, batch in held:
            self._send(key, batch)

    def _send(self, key: Key, batch: Batch) -> None:
        with self._sending:
            with self._lock:
                if self._batches.get(key) is not batch:
                    return  # somebody else has sent it
                del self._batches[key]
            BatchSend(self, self._producer, key, batch).start()

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="rocket-accumulator", daemon=True)
            self._thread.start()
        elif self._idle:
            self._idle = False
            self._changed.notify()

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
            self._send(key, batch)
