"""Concurrent consumption: many threads, each call with some messages of one queue.

A successful call completes its messages. Messages that were not consumed are sent back to the broker (clustering), to
be redelivered later, or skipped (broadcasting). A message that cannot be sent back is retried here after 5 s. Messages
that a listener has held for longer than ``consume_timeout`` are sent back as well, so that a hanging thread does not
block the queue.

The result of one pull is a *run* of calls. Waking a thread costs more than a fast listener call. While calls are fast,
one thread makes all calls of a run; when they are slower, all threads take part. If one call among fast ones is slow, a
watcher thread hands the rest of its run to other threads.

Thread-safety: ``receive`` on reading threads, listeners on threads of the service.
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
from spark_rocket.client.consume.process_queue import START_TIME, ProcessQueue, StartTime
from spark_rocket.client.consume.pull import PullResult
from spark_rocket.client.consume.services import ConsumeService, FlowControl, ServiceParts, put_messages
from spark_rocket.model import MessageExt, MessageQueue

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
EXPIRED_LEVEL = 3
MAX_EXPIRED_MESSAGES = 16  # per queue and check

FAST_NS = 100_000
SLOW_NS = 1_000_000
WATCH_SECONDS = 0.1


class _Run:
    """Calls to be made, by one thread or several; ``done`` are consumed offsets not yet removed from the queue.

    ``offered``: the run is queued for another thread, and must not be queued twice.
    """

    __slots__ = ("calls", "done", "offered", "process_queue", "since")

    def __init__(self, process_queue: ProcessQueue, calls: Iterable[list[MessageExt]]) -> None:
        self.process_queue = process_queue
        self.calls = deque(calls)
        self.done: deque[int] = deque()
        self.offered = False
        self.since = 0  # start of the last call


class ConsumeConcurrently(ConsumeService[_Run, ConsumeConcurrentlyContext]):
    """Concurrent consumption. Each call has up to ``batch_size`` messages."""

    statuses = (ConsumeConcurrentlyStatus,)
    successes = (ConsumeConcurrentlyStatus.CONSUME_SUCCESS,)

    def __init__(
        self, listener: ConcurrentListener, parts: ServiceParts, *, threads: int, batch_size: int, flow: FlowControl
    ) -> None:
        super().__init__(listener, parts, threads)
        self._batch_size = batch_size
        self._flow = flow
        self._active: dict[int, _Run] = {}  # by thread
        self._mean_ns = float(SLOW_NS)  # estimated duration of a call; a new listener counts as slow
        self._watch = threading.Event()
        self._stop = threading.Event()
        self._threads.append(threading.Thread(target=self._watch_runs, name="rocket-consume-watch", daemon=True))

    def close(self, timeout: float) -> None:
        self.stop()  # first: the watching thread must not see the events and wait again
        self._stop.set()
        self._watch.set()
        super().close(timeout)

    # --- receiving ----------------------------------------------------------------------------------------------

    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        messages, damaged = put_messages(self._decoder, process_queue, found)
        if messages:
            self.submit(process_queue, messages)
        if damaged is not None:
            raise damaged

    def is_full(self, process_queue: ProcessQueue) -> bool:
        return self._flow.is_full(process_queue)

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        size = self._batch_size
        run = _Run(process_queue, [messages[start : start + size] for start in range(0, len(messages), size)])
        if self._mean_ns <= FAST_NS:
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
            logger.exception("messages of %s are pending until they expire", run.process_queue.queue)
        del self._active[me]

    def _make_calls(self, run: _Run) -> None:
        """Make the calls of a run until none is left."""
        process_queue, next_call, done = run.process_queue, run.calls.popleft, run.done
        calls = count = successes = 0
        counted = call_start = time.monotonic_ns()
        to_wall_clock = time.time_ns() - call_start
        try:
            while run.calls and not process_queue.dropped and not self._closing:
                try:
                    messages = next_call()
                except IndexError:  # another thread took it
                    break
                run.since = call_start
                started = StartTime((call_start + to_wall_clock) // 1_000_000)
                offsets = []
                for message in messages:
                    message.set_property(START_TIME, started)
                    offsets.append(message.queue_offset)
                context = ConsumeConcurrentlyContext(process_queue.queue)
                consumed = 0
                if self._call(messages[:], messages, context):  # a copy: the listener may modify it and then fail
                    index = context.ack_index
                    consumed = len(messages) if index >= len(messages) else max(0, min(index + 1, len(messages)))
                calls += 1
                count += len(messages)
                successes += consumed
                if consumed == len(messages):
                    done += offsets
                else:
                    for message, offset in zip(messages, offsets, strict=True):
                        message.queue_offset = offset  # the listener may have changed it
                    self._return(process_queue, messages, consumed, context)
                now = time.monotonic_ns()
                spent, call_start = now - call_start, now
                self._mean_ns += ((spent if spent < SLOW_NS else SLOW_NS) - self._mean_ns) / 64
                if spent > SLOW_NS:
                    self._settle(run)
                    self._count(run, calls, successes, count - successes, now - counted)
                    calls = count = successes = 0
                    counted = now
        finally:
            self._settle(run)
            self._count(run, calls, successes, count - successes, call_start - counted)

    def _count(self, run: _Run, calls: int, consumed: int, failed: int, nanoseconds: int) -> None:
        self._hooks.stats.consumed(run.process_queue.queue.topic, calls, consumed, failed, nanoseconds / 1e9)

    def _settle(self, run: _Run) -> None:
        """Remove the consumed messages of a run from the queue."""
        done: list[int] = []
        try:
            while True:
                done.append(run.done.popleft())
        except IndexError:
            pass
        if not run.process_queue.dropped:  # otherwise the next owner of the queue consumes them again
            run.process_queue.remove(done)
            self._queues.has_room(run.process_queue)

    def _watch_runs(self) -> None:
        """Hand runs that a slow call blocks to other threads."""
        while not self._closing:
            self._watch.wait()
            self._watch.clear()
            while not self._stop.wait(WATCH_SECONDS) and self._active:
                late = time.monotonic_ns() - int(WATCH_SECONDS * 1e9)
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
        self._reject_result(context.ack_index, "ack_index", context.message_queue)
        return False

    # --- messages that were not consumed ------------------------------------------------------------------------

    def _return(
        self,
        process_queue: ProcessQueue,
        messages: list[MessageExt],
        consumed: int,
        context: ConsumeConcurrentlyContext,
    ) -> None:
        """Send back the messages after the first ``consumed``."""
        if process_queue.dropped:
            return
        try:
            remaining = self._send_back_failed(messages[consumed:], context)
        except Exception:
            logger.exception("results of messages of %s lost; the messages are consumed again", process_queue.queue)
            self._retry(process_queue, messages)
            return
        if remaining:
            for message in remaining:
                message.reconsume_times += 1
            self._retry(process_queue, remaining)
        offsets = {message.queue_offset for message in remaining}
        process_queue.remove(message.queue_offset for message in messages if message.queue_offset not in offsets)

    def _send_back_failed(self, failed: list[MessageExt], context: ConsumeConcurrentlyContext) -> list[MessageExt]:
        """Send failed messages back; return those that could not be sent."""
        level = context.delay_level_when_next_consume
        if not isinstance(level, int):
            self._reject_result(level, "delay level", context.message_queue)
            level = 0
        if self._send_back is None:
            for message in failed:
                logger.warning("skipped message %s of %s: not consumed, broadcasting", message.msg_id, message.topic)
            return []
        return [message for message in failed if not self._send_back.send(message, level)]

    def _retry(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        self._call_later(RETRY_SECONDS, lambda: self.submit(process_queue, messages))

    # --- expired messages ---------------------------------------------------------------------------------------

    def return_expired(self, process_queues: Iterable[ProcessQueue], timeout: float) -> None:
        """Send back the first messages of queues that a listener has held for more than ``timeout`` seconds."""
        if self._send_back is None:
            return
        limit = int((time.time() - timeout) * 1000)
        for process_queue in process_queues:
            try:
                self._return_first(process_queue, limit)
            except Exception:
                logger.exception("expired messages of %s not sent back", process_queue.queue)

    def _return_first(self, process_queue: ProcessQueue, limit_ms: int) -> None:
        assert self._send_back is not None
        for _ in range(MAX_EXPIRED_MESSAGES):
            first = process_queue.first_started_before(limit_ms)
            if first is None or process_queue.dropped or not self._send_back.send(first[1], EXPIRED_LEVEL):
                return
            offset = first[0]
            logger.warning("sent back offset %d of %s: consume timeout exceeded", offset, process_queue.queue)
            process_queue.remove([offset])
            self._queues.has_room(process_queue)
