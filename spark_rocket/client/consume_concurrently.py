"""Consuming in any order: many threads, each call some messages of one queue.

A call that ends in success is done; what it did not consume goes back to the broker (clustering), to be delivered
again later, or is left (broadcasting). A message that cannot be given back is tried again here after 5 s. Messages
that a listener has had for longer than ``consume_timeout`` go back as well, so that a lost thread blocks no queue.

Thread-safety: ``receive`` on reading threads, listeners on the service's own.
Corresponds to ConsumeMessageConcurrentlyService and ProcessQueue.cleanExpiredMsg.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from spark_rocket.client.listeners import ConcurrentListener, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus
from spark_rocket.client.process_queue import START_TIME, ProcessQueue
from spark_rocket.client.reader import PullResult
from spark_rocket.client.send_back import SendBack
from spark_rocket.model import MessageExt

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0
EXPIRED_LEVEL = 3
EXPIRED_AT_ONCE = 16  # of one queue

_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


class ConsumeConcurrently:
    """See the module. Limits are per queue: messages, bytes, and the span of offsets."""

    def __init__(
        self,
        listener: ConcurrentListener,
        *,
        threads: int,
        batch_size: int,
        max_messages: int,
        max_bytes: int,
        max_span: int,
        decode: Callable[[ProcessQueue, PullResult], list[MessageExt]],
        send_back: SendBack | None,
        has_room: Callable[[ProcessQueue], None],
        call_later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._listener = listener
        self._batch_size = batch_size
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._max_span = max_span
        self._decode = decode
        self._send_back = send_back
        self._has_room = has_room
        self._call_later = call_later
        self._work: SimpleQueue[tuple[ProcessQueue, list[MessageExt]] | None] = SimpleQueue()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._consume_forever, name=f"rocket-consume-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self, timeout: float) -> None:
        self._closing = True
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    # --- taking over --------------------------------------------------------------------------------------------

    def is_full(self, process_queue: ProcessQueue) -> bool:
        return (
            process_queue.count > self._max_messages
            or process_queue.size > self._max_bytes
            or process_queue.span > self._max_span
        )

    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        messages = self._decode(process_queue, found)
        process_queue.put(messages, found.next_offset)
        self.submit(process_queue, messages)

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        size, put = self._batch_size, self._work.put
        for start in range(0, len(messages), size):
            put((process_queue, messages[start : start + size]))

    # --- consuming ----------------------------------------------------------------------------------------------

    def _consume_forever(self) -> None:
        get = self._work.get
        while True:
            item = get()
            if item is None or self._closing:
                return
            try:
                self._consume(*item)
            except Exception:
                logger.exception("the outcome of messages of %s was lost; they are consumed again", item[0].queue)
                self._again(*item)

    def _consume(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        if process_queue.dropped:
            return
        started = str(time.time_ns() // 1_000_000)
        for message in messages:
            message.properties[START_TIME] = started
        context = ConsumeConcurrentlyContext(process_queue.queue)
        consumed = self.call(messages, context)
        if process_queue.dropped:
            return  # the queue's next owner consumes them again
        if consumed == len(messages):
            process_queue.remove(messages)
        else:
            self._return(process_queue, messages, consumed, context)
        self._has_room(process_queue)

    def call(self, messages: list[MessageExt], context: ConsumeConcurrentlyContext) -> int:
        """How many of the messages the listener consumed."""
        try:
            status = self._listener(messages, context)
        except Exception:
            logger.exception("the listener failed on %d messages of %s", len(messages), context.message_queue)
            return 0
        if status is _SUCCESS:
            return max(0, min(context.ack_index + 1, len(messages)))
        if status is not ConsumeConcurrentlyStatus.RECONSUME_LATER:
            logger.warning(
                "the listener answered %r for messages of %s: that is no ConsumeConcurrentlyStatus, they are retried",
                status,
                context.message_queue,
            )
        return 0

    def _return(
        self,
        process_queue: ProcessQueue,
        messages: list[MessageExt],
        consumed: int,
        context: ConsumeConcurrentlyContext,
    ) -> None:
        failed = messages[consumed:]
        if self._send_back is None:
            for message in failed:
                logger.warning("%s of %s was not consumed; broadcasting has no retry", message.msg_id, message.topic)
            process_queue.remove(messages)
            return
        kept = [message for message in failed if not self._give_back(message, context.delay_level_when_next_consume)]
        if kept:
            for message in kept:
                message.reconsume_times += 1
            self._again(process_queue, kept)
        offsets = {message.queue_offset for message in kept}
        process_queue.remove(message for message in messages if message.queue_offset not in offsets)

    def _give_back(self, message: MessageExt, delay_level: int) -> bool:
        assert self._send_back is not None
        return self._send_back.send(message, delay_level)

    def _again(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        self._call_later(AGAIN_SECONDS, lambda: self.submit(process_queue, messages))

    # --- what took too long -------------------------------------------------------------------------------------

    def return_expired(self, process_queues: Iterable[ProcessQueue], timeout: float) -> None:
        """Give back the first messages of queues that a listener has had for more than ``timeout`` seconds."""
        if self._send_back is None:
            return
        limit = int((time.time() - timeout) * 1000)
        for process_queue in process_queues:
            for _ in range(EXPIRED_AT_ONCE):
                message = process_queue.first_started_before(limit)
                if message is None or process_queue.dropped or not self._give_back(message, EXPIRED_LEVEL):
                    break
                logger.warning("%s was not consumed within %g s: it was given back", message.msg_id, timeout)
                if process_queue.holds(message):
                    process_queue.remove([message])
                    self._has_room(process_queue)
