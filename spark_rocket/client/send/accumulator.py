"""Single sends that go out together: batches made up on the way.

Messages for one topic, queue and WAIT are held until they take ``batch_max_bytes``, or the first of them has waited for
``batch_max_delay``; then they are sent as one batch, and each sender's future gets its own message's result. A batch
that fails fails each. What all batches hold and have under way is bounded by ``total_batch_max_bytes``: above it a
message is sent alone.

The order of messages for a given queue is kept: a key's batches that are to go stand in a *lane*, and one thread at a
time sends a lane's. It is the one that took a batch out, a caller or the accumulator's own, as long as nothing has to
be waited for; where a route is not known or a broker not connected a thread of the lane's own waits, so that no topic
is held up by another's broker.

Thread-safety: all methods. One daemon thread, started with the first message, and one for each lane that waits. Whoever
is interrupted fails the batch that it was sending and leaves the lane to a thread. After a crash: what was held is
lost, as its futures say by never being done.
Corresponds to org.apache.rocketmq.client.producer.ProduceAccumulator.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from spark_rocket.client.send.async_send import AsyncSend, SendFuture, interrupted, settle
from spark_rocket.client.send.outgoing import Outgoing, batch_properties
from spark_rocket.model import Message, MessageQueue, SendResult

if TYPE_CHECKING:
    from spark_rocket.client.send.producer import Producer

logger = logging.getLogger(__name__)

BATCH_MAX_BYTES = 32 * 1024
BATCH_MAX_DELAY = 0.010
TOTAL_BATCH_MAX_BYTES = 32 * 1024 * 1024
AT_ONCE = 16  # batches that one thread sends for others too

Key: TypeAlias = tuple[str, MessageQueue | None, str | None]

new_future = partial(object.__new__, SendFuture)  # without the call of an __init__ that does nothing


class Batch:
    """Messages on their way into one request. ``sent``: somebody has begun to send it; ``entered``: it is in flight."""

    __slots__ = ("deadline", "due", "entered", "entries", "sent", "size", "timeout")

    def __init__(self, due: float, timeout: float, deadline: float) -> None:
        self.due = due
        self.timeout = timeout
        self.deadline = deadline
        self.size = 0
        self.entries: list[tuple[Message, str, bytes, SendFuture]] = []  # with key and piece of the body
        self.sent = False
        self.entered = False


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

    __slots__ = ("_accumulator", "_batch", "_futures", "_keys", "_size", "count")

    def __init__(self, accumulator: Accumulator, producer: Producer, key: Key, batch: Batch) -> None:
        topic, queue, wait = key
        messages, self._keys, pieces, self._futures = zip(*batch.entries, strict=True)
        out = Outgoing(
            topic,
            b"".join(pieces),
            properties=batch_properties(wait),
            msg_id=",".join(self._keys),
            count=len(self._keys),
        )
        super().__init__(producer, out, messages, queue, batch.timeout, batch.deadline)
        self.count = len(self._keys)
        self._accumulator = accumulator
        self._batch = batch
        self._size = batch.size

    def _enter(self) -> None:
        self._producer.in_flight.add(self)
        self._batch.entered = True
        self._batch.entries = []  # the body has it all

    def _succeeded(self, result: SendResult) -> None:
        self._accumulator.answered(self._size)
        settle(self._futures, BatchResult(result, self._keys))

    def _failed(self, error: Exception) -> None:
        self._accumulator.answered(self._size)
        fail_each(self._futures, error)

    def _fail_rest(self, error: Exception) -> None:
        fail_each(self._futures, error)


def fail_each(futures: Sequence[SendFuture], error: Exception) -> None:
    """Those that are not done, with an error of its own each: tracebacks are not shared."""
    for future in futures:
        if not future.is_over():
            future.set_exception(error)
            error = copy.copy(error)


class Accumulator:
    """See the module."""

    def __init__(self, producer: Producer, *, max_bytes: int, max_delay: float, total_max_bytes: int) -> None:
        self._producer = producer
        self._max_bytes = max_bytes
        self._max_delay = max_delay
        self._total_max_bytes = total_max_bytes
        self._total = 0
        self._batches: dict[Key, Batch] = {}  # oldest first, since all wait equally long
        self._in_flight = producer.in_flight
        self._lock = producer.in_flight.lock
        self._changed = threading.Condition(self._lock)
        self._lanes: dict[Key, deque[Batch]] = {}  # of keys whose batches somebody sends
        self._thread: threading.Thread | None = None
        self._idle = False
        self._closed = False

    def add(
        self, key: Key, message: Message, piece: tuple[str, bytes], timeout: float, deadline: float
    ) -> Future[SendResult] | None:
        """Have a message sent with others, when there is a place in flight for it; None if it has to go alone."""
        unique_key, encoded = piece
        size = len(encoded)
        future = new_future()
        entry = message, unique_key, encoded, future
        in_flight = self._in_flight
        with self._lock:
            if in_flight.count >= in_flight.limit:
                in_flight.await_place(deadline, self._producer.may_wait)
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
            self._changed.notify_all()
        for key, batch in held:
            self._send(key, batch)

    def _send(self, key: Key, batch: Batch) -> None:
        """Take a batch out and send it, or leave it to who sends the lane's."""
        mine = False
        lane: deque[Batch] = deque()
        try:
            with self._lock:
                if self._batches.get(key) is not batch:
                    return  # somebody else has
                if key in self._lanes:
                    lane = self._lanes[key]
                else:
                    self._lanes[key] = lane
                    mine = True
                del self._batches[key]
                lane.append(batch)
            if mine:
                self._drain(key, lane)
        except BaseException:
            if mine:
                self._hand_over(key, lane)
            raise

    def _drain(self, key: Key, lane: deque[Batch]) -> None:
        """Send what stands in a lane; what has to wait is left to another thread."""
        for _ in range(AT_ONCE):
            batch = self._first(key, lane)
            if batch is None:
                return
            if not self._goes_at_once(key):
                break
            self._start(key, batch)
        self._hand_over(key, lane)

    def _first(self, key: Key, lane: deque[Batch]) -> Batch | None:
        """What comes next; None at the end of the lane."""
        with self._lock:
            while lane and lane[0].sent:
                lane.popleft()
            if lane:
                return lane[0]
            if self._lanes.get(key) is lane:
                del self._lanes[key]
            return None

    def _goes_at_once(self, key: Key) -> bool:
        """Whether a batch need not wait for a route or a connection."""
        instance = self._producer.shared
        if instance is None:
            return True  # closed, which it is told
        topic, queue, _ = key
        route = instance.routes.known(topic)
        if route is None:
            return False
        masters = route.masters
        wanted = masters.values() if queue is None else (masters.get(queue.broker_name, ""),)
        return all(map(instance.remoting.is_connected, wanted))

    def _start(self, key: Key, batch: Batch) -> None:
        batch.sent = True
        try:
            if batch.entries:
                BatchSend(self, self._producer, key, batch).start()
        except BaseException as error:
            if not batch.entered:
                self.answered(batch.size)
                self._producer.in_flight.release(len(batch.entries))
                fail_each([entry[3] for entry in batch.entries], interrupted(key[0], error))
            raise

    def _hand_over(self, key: Key, lane: deque[Batch]) -> None:
        """Have a thread of its own send what stands in a lane."""
        try:
            threading.Thread(target=self._wait, args=(key, lane), name="rocket-accumulator-lane", daemon=True).start()
        except RuntimeError:  # there are too many threads
            self._wait(key, lane)

    def _wait(self, key: Key, lane: deque[Batch]) -> None:
        while (batch := self._first(key, lane)) is not None:
            try:
                self._start(key, batch)
            except Exception:
                logger.exception("messages for %s could not be sent", key[0])

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="rocket-accumulator", daemon=True)
            self._thread.start()
        elif self._idle:
            # Interrupts: one in between wakes once too often, not never again; one within may leave a waiter in the
            # list that is no more, and a single notification would be spent on it.
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
