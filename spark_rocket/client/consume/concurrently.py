"""Consuming in any order: many threads, each call some messages of one queue.

A call that ends in success is done; what it did not consume goes back to the broker (clustering), to be delivered
again later, or is left (broadcasting). A message that cannot be given back is tried again here after 5 s. Messages
that a listener has had for longer than ``consume_timeout`` go back as well, so that a lost thread blocks no queue.

What one pull found is a *run* of calls. Waking a thread costs more than a quick listener does, so while calls take
little time one thread makes all of a run's; when they take longer, every thread takes part. Should a call among quick
ones take long, a watching thread hands the rest of its run to others.

Thread-safety: ``receive`` on reading threads, listeners on the service's own.
Corresponds to ConsumeMessageConcurrentlyService and ProcessQueue.cleanExpiredMsg.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable

from spark_rocket.client.consume.listeners import (
    ConcurrentListener,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
)
from spark_rocket.client.consume.process_queue import START_TIME, ProcessQueue
from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.client.consume.services import ConsumeService, FlowControl, ServiceParts
from spark_rocket.model import MessageExt, MessageQueue

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0
EXPIRED_LEVEL = 3
EXPIRED_AT_ONCE = 16  # of one queue

QUICK_NS = 100_000
LONG_NS = 1_000_000
WATCH_SECONDS = 0.1


class _Run:
    """Calls to be made, by one thread or several; ``done`` are offsets consumed that nobody has been told of yet.

    ``offered``: it is in the queue for another thread to take part, and need not be there twice.
    """

    __slots__ = ("calls", "done", "offered", "process_queue", "since")

    def __init__(self, process_queue: ProcessQueue, calls: Iterable[list[MessageExt]]) -> None:
        self.process_queue = process_queue
        self.calls = deque(calls)
        self.done: deque[int] = deque()
        self.offered = False
        self.since = 0  # when the last call began


class ConsumeConcurrently(ConsumeService[_Run, ConsumeConcurrentlyContext]):
    """See the module. Each call has up to ``batch_size`` messages."""

    statuses = (ConsumeConcurrentlyStatus,)
    successes = (ConsumeConcurrentlyStatus.CONSUME_SUCCESS,)

    def __init__(
        self, listener: ConcurrentListener, parts: ServiceParts, *, threads: int, batch_size: int, flow: FlowControl
    ) -> None:
        super().__init__(listener, parts, threads)
        self._batch_size = batch_size
        self._flow = flow
        self._active: dict[int, _Run] = {}  # by thread
        self._mean_ns = float(LONG_NS)  # of a call, roughly; an unknown listener counts as slow
        self._watch = threading.Event()
        self._stop = threading.Event()
        self._threads.append(threading.Thread(target=self._watch_runs, name="rocket-consume-watch", daemon=True))

    def close(self, timeout: float) -> None:
        self._stop.set()
        self._watch.set()
        super().close(timeout)

    # --- taking over --------------------------------------------------------------------------------------------

    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        messages = self._decoder.messages(process_queue, found) if found.status is PullStatus.FOUND else []
        process_queue.put(messages, found.next_offset)
        if messages:
            self.submit(process_queue, messages)

    def is_full(self, process_queue: ProcessQueue) -> bool:
        return self._flow.is_full(process_queue)

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        size = self._batch_size
        run = _Run(process_queue, [messages[start : start + size] for start in range(0, len(messages), size)])
        if self._mean_ns <= QUICK_NS:
            self._work.put(run)
            self._watch.set()
        else:
            for _ in range(min(len(run.calls), len(self._threads))):
                self._work.put(run)

    # --- consuming ----------------------------------------------------------------------------------------------

    def _consume(self, run: _Run) -> None:
        me = threading.get_ident()
        run.offered = False
        self._active[me] = run
        try:
            self._make_calls(run)
        except Exception:
            logger.exception("messages of %s wait until they expire", run.process_queue.queue)
        del self._active[me]

    def _make_calls(self, run: _Run) -> None:
        """Make calls of a run until none is left."""
        process_queue, next_call, done = run.process_queue, run.calls.popleft, run.done
        calls = count = successes = 0
        counted = began = time.time_ns()
        try:
            while run.calls and not process_queue.dropped and not self._closing:
                try:
                    messages = next_call()
                except IndexError:  # another thread was quicker
                    break
                run.since = began
                started = str(began // 1_000_000)
                offsets = []
                for message in messages:
                    message.set_property(START_TIME, started)
                    offsets.append(message.queue_offset)
                context = ConsumeConcurrentlyContext(process_queue.queue)
                consumed = 0
                if self._call(messages[:], messages, context):  # a copy: the listener may empty its list, and fail then
                    index = context.ack_index
                    consumed = len(messages) if index >= len(messages) else max(0, min(index + 1, len(messages)))
                calls += 1
                count += len(messages)
                successes += consumed
                if consumed == len(messages):
                    done += offsets
                else:
                    for message, offset in zip(messages, offsets, strict=True):
                        message.queue_offset = offset  # whatever the listener made of it
                    self._return(process_queue, messages, consumed, context)
                now = time.time_ns()
                spent, began = now - began, now
                self._mean_ns += ((spent if spent < LONG_NS else LONG_NS) - self._mean_ns) / 64
                if spent > LONG_NS:
                    self._settle(run)
                    self._count(run, calls, successes, count - successes, now - counted)
                    calls = count = successes = 0
                    counted = now
        finally:
            self._settle(run)
            self._count(run, calls, successes, count - successes, began - counted)

    def _count(self, run: _Run, calls: int, consumed: int, failed: int, nanoseconds: int) -> None:
        self._hooks.stats.consumed(run.process_queue.queue.topic, calls, consumed, failed, nanoseconds / 1e9)

    def _settle(self, run: _Run) -> None:
        """What a run has consumed so far is done."""
        done: list[int] = []
        try:
            while True:
                done.append(run.done.popleft())
        except IndexError:
            pass
        if not run.process_queue.dropped:  # else the queue's next owner consumes them again
            run.process_queue.remove(done)
            self._queues.has_room(run.process_queue)

    def _watch_runs(self) -> None:
        """Have others go on with runs that a long call holds up."""
        while not self._closing:
            self._watch.wait()
            self._watch.clear()
            while not self._stop.wait(WATCH_SECONDS) and self._active:
                late = time.time_ns() - int(WATCH_SECONDS * 1e9)
                for run in list(self._active.values()):
                    if run.since < late and run.calls and not run.offered:
                        run.offered = True
                        self._work.put(run)
                    if run.done:
                        self._settle(run)

    def _context(self, queue: MessageQueue) -> ConsumeConcurrentlyContext:
        return ConsumeConcurrentlyContext(queue)

    def _is_valid(self, context: ConsumeConcurrentlyContext) -> bool:
        if isinstance(context.ack_index, int):
            return True
        self._reject_answer(context.ack_index, "ack_index", context.message_queue)
        return False

    # --- what was not consumed ----------------------------------------------------------------------------------

    def _return(
        self,
        process_queue: ProcessQueue,
        messages: list[MessageExt],
        consumed: int,
        context: ConsumeConcurrentlyContext,
    ) -> None:
        """Give back the messages after the first ``consumed``."""
        if process_queue.dropped:
            return
        try:
            kept = self._give_back_failed(messages[consumed:], context)
        except Exception:
            logger.exception("the outcome of messages of %s was lost; they are consumed again", process_queue.queue)
            self._again(process_queue, messages)
            return
        if kept:
            for message in kept:
                message.reconsume_times += 1
            self._again(process_queue, kept)
        offsets = {message.queue_offset for message in kept}
        process_queue.remove(message.queue_offset for message in messages if message.queue_offset not in offsets)

    def _give_back_failed(self, failed: list[MessageExt], context: ConsumeConcurrentlyContext) -> list[MessageExt]:
        """Those that could not be given back."""
        level = context.delay_level_when_next_consume
        if not isinstance(level, int):
            self._reject_answer(level, "delay level", context.message_queue)
            level = 0
        if self._send_back is None:
            for message in failed:
                logger.warning("%s of %s was not consumed; broadcasting has no retry", message.msg_id, message.topic)
            return []
        return [message for message in failed if not self._send_back.send(message, level)]

    def _again(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        self._call_later(AGAIN_SECONDS, lambda: self.submit(process_queue, messages))

    # --- what took too long -------------------------------------------------------------------------------------

    def return_expired(self, process_queues: Iterable[ProcessQueue], timeout: float) -> None:
        """Give back the first messages of queues that a listener has had for more than ``timeout`` seconds."""
        if self._send_back is None:
            return
        limit = int((time.time() - timeout) * 1000)
        for process_queue in process_queues:
            try:
                self._return_first(process_queue, limit)
            except Exception:
                logger.exception("what was not consumed of %s in time could not be given back", process_queue.queue)

    def _return_first(self, process_queue: ProcessQueue, limit_ms: int) -> None:
        assert self._send_back is not None
        for _ in range(EXPIRED_AT_ONCE):
            first = process_queue.first_started_before(limit_ms)
            if first is None or process_queue.dropped or not self._send_back.send(first[1], EXPIRED_LEVEL):
                return
            offset = first[0]
            logger.warning("offset %d of %s was not consumed in time: it was given back", offset, process_queue.queue)
            process_queue.remove([offset])
            self._queues.has_room(process_queue)
