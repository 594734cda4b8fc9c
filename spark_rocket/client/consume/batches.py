"""Consuming Arrow record batches: what one pull found, as one batch, in its queue's order.

No message becomes a Python object. A queue is pulled ahead of its listener only while all queues together hold little:
what waits takes memory, decoded several times as much. All is decoded on the same few threads, whichever threads the
listener is called on: Arrow's allocator keeps memory for every thread that has ever asked it for some.

A batch that the listener does not consume is given again after a pause; after ``max_reconsume_times`` rounds its
messages go back to the broker one by one, to the retry topic or the dead letters.

Thread-safety: ``receive`` on reading threads, decoding and listeners on the service's own, each on other ones.
Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING

from spark_rocket.client.consume.hooks import Hooks
from spark_rocket.client.consume.listeners import (
    BatchListener,
    Complaints,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
)
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.client.consume.send_back import SendBack
from spark_rocket.client.consume.threads import ConsumeThreads
from spark_rocket.model import MessageExt, MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

PENDING = 2  # pulls of one queue that wait for the listener, or are with it
HELD_BYTES = 16 << 20  # of all queues; while they hold more, each has one pull
DECODERS = 2

DecodeBatches = Callable[[ProcessQueue, PullResult], "Iterator[pa.RecordBatch]"]
DecodeMessages = Callable[[ProcessQueue, PullResult], list[MessageExt]]


class _Queue:
    """What waits of one queue."""

    __slots__ = ("busy", "found", "given_back", "process_queue", "rounds", "size")

    def __init__(self, process_queue: ProcessQueue) -> None:
        self.process_queue = process_queue
        self.found: deque[PullResult] = deque()
        self.size = 0
        self.busy = False
        self.rounds = 0
        self.given_back = 0  # of the first of ``found``


class _Job(Future["pa.RecordBatch | None"]):
    """The next batch of some, None if there is none."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        super().__init__()
        self._batches = batches

    def do(self) -> None:
        try:
            self.set_result(next(self._batches, None))
        except BaseException as error:  # whoever waits for it is told
            self.set_exception(error)


class ConsumeBatches(ConsumeThreads[_Queue]):
    """See the module."""

    def __init__(
        self,
        listener: BatchListener,
        *,
        threads: int,
        max_reconsume_times: int,
        pause_ms: int,
        decode: DecodeBatches,
        decode_messages: DecodeMessages,
        send_back: SendBack | None,
        has_room: Callable[[ProcessQueue], None],
        call_later: Callable[[float, Callable[[], None]], None],
        hooks: Hooks,
    ) -> None:
        super().__init__(threads)
        self._listener = listener
        self._max_reconsume_times = max_reconsume_times
        self._pause_ms = pause_ms
        self._decode = decode
        self._decode_messages = decode_messages
        self._send_back = send_back
        self._has_room = has_room
        self._call_later = call_later
        self._hooks = hooks
        self._complaints = Complaints()
        self._queues: dict[ProcessQueue, _Queue] = {}
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()  # None: there are no more
        self._decoders = [
            threading.Thread(target=self._decode_forever, name=f"rocket-decode-{number}", daemon=True)
            for number in range(DECODERS)
        ]

    def start(self) -> None:
        for thread in self._decoders:
            thread.start()
        super().start()

    def close(self, timeout: float) -> None:
        super().close(timeout)  # first those who wait for decoders
        for _ in self._decoders:
            self._jobs.put(None)

    def is_full(self, process_queue: ProcessQueue) -> bool:
        with self._lock:
            waiting = self._queues.get(process_queue)
            if waiting is None or not waiting.found:
                return False
            held = sum(one.size for other, one in self._queues.items() if not other.dropped)
            return len(waiting.found) >= PENDING or held >= HELD_BYTES

    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        with self._lock:
            for gone in [other for other in self._queues if other.dropped]:
                del self._queues[gone]
            waiting = self._queues.setdefault(process_queue, _Queue(process_queue))
            if not waiting.found and found.status is not PullStatus.FOUND:
                process_queue.put((), found.next_offset)
                return
            waiting.found.append(found)  # nothing found has its turn too: commits must not pass what is before it
            waiting.size += len(found.records)
            if waiting.busy:
                return
            waiting.busy = True
        self._work.put(waiting)

    # --- consuming ----------------------------------------------------------------------------------------------

    def _consume_forever(self) -> None:
        while True:
            waiting = self._work.get()
            if waiting is None or self._closing:
                return
            try:
                again = self._consume(waiting)
            except Exception:
                logger.exception("messages of %s could not be consumed", waiting.process_queue.queue)
                again = self._pause_ms / 1000
            if again is not None:
                self._put_later(waiting, again)

    def _put_later(self, waiting: _Queue, seconds: float) -> None:
        self._call_later(seconds, lambda: self._work.put(waiting))

    def _consume(self, waiting: _Queue) -> float | None:
        """Consume what waits of a queue; after how many seconds to try again what was not consumed."""
        process_queue = waiting.process_queue
        while not process_queue.dropped and not self._closing:
            with self._lock:
                if not waiting.found:
                    waiting.busy = False
                    return None
                found = waiting.found[0]
            context = ConsumeOrderlyContext(process_queue.queue)
            done = all(not len(batch) or self._call(batch, context) for batch in self._batches(process_queue, found))
            if process_queue.dropped:
                return None
            if not done:
                waiting.rounds += 1
                if waiting.rounds <= self._max_reconsume_times or not self._give_back(waiting, found):
                    return context.pause(self._pause_ms)
            waiting.rounds = waiting.given_back = 0
            with self._lock:
                waiting.found.popleft()
                waiting.size -= len(found.records)
            process_queue.put((), found.next_offset)  # what is behind it may be committed
            process_queue.last_consume = time.monotonic()
            self._has_room(process_queue)
        return None

    def _batches(self, process_queue: ProcessQueue, found: PullResult) -> Iterator[pa.RecordBatch]:
        batches = self._decode(process_queue, found) if found.status is PullStatus.FOUND else iter(())
        while True:
            job = _Job(batches)
            self._jobs.put(job)
            batch = job.result()
            if batch is None:
                return
            yield batch

    def _decode_forever(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.do()
            del job  # and its batch, while there is nothing to do

    def consume_directly(self, batch: pa.RecordBatch, queue: MessageQueue) -> object:
        """One call of the listener that counts for nothing: what it answers, or raises."""
        return self._listener(batch, ConsumeOrderlyContext(queue))

    def _call(self, batch: pa.RecordBatch, context: ConsumeOrderlyContext) -> bool:
        around = self._hooks.before((), context.message_queue) if self._hooks.consume else None
        status: object = None
        called = time.monotonic()
        try:
            status = self._listener(batch, context)
        except BaseException as error:  # SystemExit too: the thread is the consumer's
            self._complaints.failed(error, len(batch), context.message_queue)
        else:
            if not isinstance(status, ConsumeOrderlyStatus | ConsumeConcurrentlyStatus):
                self._complaints.nonsense(status, "ConsumeOrderlyStatus", context.message_queue)
        # Not by equality: an answer may be anything, a NumPy array for instance.
        success = status is ConsumeOrderlyStatus.SUCCESS or status is ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        consumed, failed = (len(batch), 0) if success else (0, len(batch))
        self._hooks.stats.consumed(context.message_queue.topic, 1, consumed, failed, time.monotonic() - called)
        if around is not None:
            self._hooks.after(around, success=success, status=getattr(status, "value", str(status)))
        return success

    def _give_back(self, waiting: _Queue, found: PullResult) -> bool:
        """The last resort: each message to the retry topic, or, broadcasting, nowhere."""
        messages = self._decode_messages(waiting.process_queue, found)
        if self._send_back is None:
            queue = waiting.process_queue.queue
            logger.warning("%d messages of %s were not consumed and are left", len(messages), queue)
            return True
        for message in messages[waiting.given_back :]:
            if not self._send_back.send(message):
                return False
            waiting.given_back += 1
        return True
