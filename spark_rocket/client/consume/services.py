"""Common parts of the three consume services: threads, listener calls, decoding, flow control.

A service receives the results of pulls (``receive``), decodes them, and calls the listener on its own threads.

Flow-control limits are per queue. A limit per topic replaces them: it is divided by the consumer's number of queues of
the topic, so that it applies to them together. Each limit can be exceeded by one pull, because pulls are not split.

``SendBack`` returns messages that were not consumed, to the group's retry topic or its dead-letter topic. The broker
that stores the message is requested to copy it (36). If that fails, the client sends a copy to the retry topic itself.
Both increment the reconsume times of the message; from ``max_reconsume_times`` on it goes to ``%DLQ%group``.

Thread-safety: ``receive`` on reading threads, listeners on threads of the service; ``start`` and ``close`` once each.
A listener may call ``close``, which then does not wait for its thread. Corresponds to the consumeExecutor of
ConsumeMessageConcurrentlyService and ConsumeMessageOrderlyService, and to the flow control of
DefaultMQPushConsumerImpl.pullMessage and RebalancePushImpl.messageQueueChanged, and to its sendMessageBack.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from enum import Enum
from queue import SimpleQueue
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from spark_rocket.client.consume.listeners import ConsumeConcurrentlyContext, ConsumeHooks, ConsumeOrderlyContext
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import RETRY_TOPIC, PullResult, PullStatus, batches_of, messages_of, show_origin
from spark_rocket.client.consume.subscriptions import Subscriptions
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.common.system import now_ms
from spark_rocket.errors import RocketError
from spark_rocket.model import AUTO_CREATE_TOPIC_KEY, DELAY, RETRY_PREFIX, MessageExt, MessageQueue
from spark_rocket.protocol.record.messages import UndecodableError
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.wire.codes import BROKER_NAME, RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.consumer import ConsumerSendMsgBackRequestHeader
from spark_rocket.protocol.wire.headers.producer import SendMessageRequestHeader
from spark_rocket.remoting.address import format_address

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
DEFAULT_MAX_RECONSUME_TIMES = 16
_FIRST_LEVEL = 3
_TIMEOUT_S = 5.0
_NOT_COPIED = ("TRAN_MSG", "CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET")


class SendBack:
    """Sends messages of one group back to the broker."""

    def __init__(self, instance: ClientInstance, group: str, max_reconsume_times: int) -> None:
        self._instance = instance
        self._group = group
        self._retry_topic = RETRY_PREFIX + group
        self._max_reconsume_times = max_reconsume_times

    def send(self, message: MessageExt, delay_level: int = 0) -> bool:
        """Have a message redelivered later; return whether it worked. ``delay_level``: −1 dead letters, 0 default."""
        try:
            self._ask_broker(message, delay_level)
        except RocketError as error:
            logger.warning(
                "broker %s rejected the return of message %s: %s", message.broker_name, message.msg_id, error
            )
            return self.send_copy(message)
        return True

    def _ask_broker(self, message: MessageExt, delay_level: int) -> None:
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self._max_reconsume_times,
        )
        address = self._master(message) or format_address(*message.store_host)
        ext = header.to_ext() | {BROKER_NAME: message.broker_name}
        request = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        self._instance.invoke(address, request, f"the return of {message.msg_id}", timeout=_TIMEOUT_S)

    def _master(self, message: MessageExt) -> str | None:
        """Return the routed master address; the address in the message may be reachable only between brokers."""
        for topic in (self._retry_topic, message.topic):
            try:
                masters = self._instance.routes.route(topic).masters
            except RocketError:
                continue
            if message.broker_name in masters:
                return masters[message.broker_name]
        return None

    def send_copy(self, message: MessageExt) -> bool:
        """Send a copy to the retry topic; return whether a broker stored it."""
        properties = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
        properties.setdefault(RETRY_TOPIC, message.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.msg_id)
        properties[DELAY] = str(_FIRST_LEVEL + message.reconsume_times)
        try:
            queues = self._instance.routes.publish_route(self._retry_topic)
            queue = queues[message.queue_offset % len(queues)]
            header = SendMessageRequestHeader(
                producer_group=self._group,
                topic=self._retry_topic,
                default_topic=AUTO_CREATE_TOPIC_KEY,
                default_topic_queue_nums=1,
                queue_id=queue.queue_id,
                sys_flag=0,
                born_timestamp=now_ms(),
                flag=message.flag,
                properties=encode_properties(properties).decode(),
                reconsume_times=message.reconsume_times + 1,
                max_reconsume_times=self._max_reconsume_times,
                broker_name=queue.broker_name,
            )
            request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), message.body)
            address = self._instance.routes.master(queue)
            self._instance.invoke(address, request, f"the copy of {message.msg_id}", timeout=_TIMEOUT_S)
        except RocketError as error:
            logger.warning("message %s not sent to %s: %s", message.msg_id, self._retry_topic, error)
            return False
        return True


Work = TypeVar("Work")
Context = TypeVar("Context", ConsumeConcurrentlyContext, ConsumeOrderlyContext)


@dataclass(frozen=True, slots=True)
class FlowControl:
    """Limits of a queue. ``span``: first to last cached offset, None: unlimited. ``queues_of``: queues of a topic."""

    messages: int
    size: int
    span: int | None = None
    topic_messages: int | None = None
    topic_size: int | None = None
    queues_of: Callable[[str], int] = lambda _: 1

    def is_full(self, process_queue: ProcessQueue) -> bool:
        messages, size = self.messages, self.size
        if self.topic_messages is not None or self.topic_size is not None:
            queues = max(1, self.queues_of(process_queue.queue.topic))
            if self.topic_messages is not None:
                messages = max(1, self.topic_messages // queues)
            if self.topic_size is not None:
                size = max(1, self.topic_size // queues)
        return (
            process_queue.count > messages
            or process_queue.size > size
            or (self.span is not None and process_queue.span > self.span)
        )


class PullDecoder:
    """Decodes pulls of a push consumer: applies filter hooks, and restores the original topic of retried messages."""

    def __init__(self, subscriptions: Subscriptions, hooks: ConsumeHooks) -> None:
        self._subscriptions = subscriptions
        self._hooks = hooks

    def messages(self, process_queue: ProcessQueue, found: PullResult) -> list[MessageExt]:
        """Return the subscribed messages of a pull. UndecodableError has those before the one it names."""
        queue = process_queue.queue
        try:
            messages = messages_of(found, queue, process_queue.end, self._subscriptions.tags_of(queue.topic))
        except UndecodableError as error:
            error.messages = self._chosen(process_queue, error.messages)
            raise
        return self._chosen(process_queue, messages)

    def _chosen(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> list[MessageExt]:
        queue = process_queue.queue
        self._hooks.stats.pulled(queue.topic, len(messages), process_queue.pull_seconds)
        if queue.topic.startswith(RETRY_PREFIX):
            show_origin(messages)
        return self._hooks.choose(queue, messages) if self._hooks.filter else messages

    def batches(self, process_queue: ProcessQueue, found: PullResult) -> Iterator[pa.RecordBatch]:
        """Yield the subscribed messages as Arrow record batches; filter hooks are not applied.

        UndecodableError after those before the message that it names.
        """
        queue = process_queue.queue
        for batch in batches_of(found, queue, process_queue.end, self._subscriptions.tags_of(queue.topic)):
            self._hooks.stats.pulled(queue.topic, len(batch), process_queue.pull_seconds)
            yield batch


def put_messages(
    decoder: PullDecoder, process_queue: ProcessQueue, found: PullResult
) -> tuple[list[MessageExt], UndecodableError | None]:
    """Put and return the messages of a pull: those before the first that cannot be decoded."""
    messages: list[MessageExt] = []
    if found.status is PullStatus.FOUND:
        try:
            messages = decoder.messages(process_queue, found)
        except UndecodableError as error:
            process_queue.put(error.messages, error.queue_offset)
            return error.messages, error
    process_queue.put(messages, found.next_offset)
    return messages, None


class QueueOwner(Protocol):
    """The consumer's queues as used by a service; implemented by ``OwnedQueues``."""

    def has_room(self, process_queue: ProcessQueue) -> None:
        """Messages were consumed: pulls may continue."""

    def lock(self, process_queue: ProcessQueue) -> bool:
        """Renew the expired lock of a queue."""

    def released(self, process_queue: ProcessQueue) -> None:
        """The last listener call of a dropped queue has ended."""


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """The parts of a consumer that its service uses. Broadcasting has no ``send_back``."""

    decoder: PullDecoder
    hooks: ConsumeHooks
    queues: QueueOwner
    send_back: SendBack | None
    call_later: Callable[[float, Callable[[], None]], None]


class ConsumeService(ABC, Generic[Work, Context]):
    """Base class of the services. ``statuses``: valid results of the listener; ``successes``: the successful ones."""

    statuses: ClassVar[tuple[type[Enum], ...]]
    successes: ClassVar[tuple[Enum, ...]]

    def __init__(self, listener: Callable[..., object], parts: ServiceParts, threads: int) -> None:
        self._listener = listener
        self._decoder = parts.decoder
        self._hooks = parts.hooks
        self._queues = parts.queues
        self._send_back = parts.send_back
        self._call_later = parts.call_later
        self._reported: set[str] = set()
        self._work: SimpleQueue[Work | None] = SimpleQueue()  # None: end
        self._closing = False
        self._threads = [
            threading.Thread(target=self._consume_forever, name=f"rocket-consume-{number}", daemon=True)
            for number in range(threads)
        ]

    # --- results of pulls -------------------------------------------------------------------------------------------

    @abstractmethod
    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        """Accept the result of a pull, which may be empty; called on a reading thread, so it must not block."""

    @abstractmethod
    def is_full(self, process_queue: ProcessQueue) -> bool:
        """Whether to stop pulling the queue for now."""

    def position(self, process_queue: ProcessQueue) -> int:
        """Return the offset of the first message that is not consumed."""
        return process_queue.commit_offset

    def holds(self, process_queue: ProcessQueue) -> bool:
        """Return False: messages of a dropped queue are not passed to the listener."""
        return False

    def forget(self, process_queue: ProcessQueue) -> None:
        """A dropped queue has its messages until its last call has ended."""

    # --- threads ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def _consume(self, work: Work) -> None:
        """Process a work item on one of the threads; must not raise."""

    def _consume_forever(self) -> None:
        while (work := self._work.get()) is not None and not self._closing:
            self._consume(work)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._closing = True

    def is_own_thread(self, thread: threading.Thread) -> bool:
        return thread in self._threads

    def close(self, timeout: float) -> None:
        """Prevent new listener calls, and wait up to ``timeout`` seconds for those in progress."""
        self.stop()
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.is_alive():  # ``start`` may be at work
                thread.join(max(0.0, deadline - time.monotonic()))

    # --- the listener -----------------------------------------------------------------------------------------------

    def consume_directly(self, messages: object, queue: MessageQueue) -> object:
        """Call the listener once without effect on the queue; return its result, or raise its exception."""
        return self._listener(messages, self._context(queue))

    @abstractmethod
    def _context(self, queue: MessageQueue) -> Context:
        """Return a new context for a call."""

    def _is_valid(self, context: Context) -> bool:
        """Whether the context is valid after the call."""
        return True

    def _call(self, argument: Sized, messages: list[MessageExt], context: Context) -> bool:
        """Call the listener with ``argument``, with hooks before and after it; return whether it succeeded.

        ``messages`` are passed to the hooks; empty for batches.
        """
        count = len(argument)
        around = self._hooks.before(messages, context.message_queue) if self._hooks.consume else None
        status: object = None
        success = False
        try:
            status = self._listener(argument, context)
        except BaseException as error:  # including SystemExit: the thread belongs to the consumer
            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            text = "listener failed on %d messages of %s"
            self._report_fault(kind, logging.ERROR, text, count, context.message_queue, error=error)
        else:
            if isinstance(status, self.statuses):
                success = status in self.successes and self._is_valid(context)
            else:
                self._reject_result(status, self.statuses[0].__name__, context.message_queue)
        if around is not None:
            self._hooks.after(around, success=success, status=getattr(status, "value", str(status)))
        return success

    def _call_counted(self, argument: Sized, messages: list[MessageExt], context: Context) -> bool:
        """Call the listener for an ordered queue and update the statistics."""
        called, count = time.monotonic(), len(argument)
        success = self._call(argument, messages, context)
        consumed, failed = (count, 0) if success else (0, count)
        self._hooks.stats.consumed(context.message_queue.topic, 1, consumed, failed, time.monotonic() - called)
        return success

    def _reject_result(self, result: object, expected: str, queue: MessageQueue) -> None:
        text = "listener returned %r for %s, not a valid %s: the messages are retried"
        self._report_fault(f"result of {type(result).__qualname__}", logging.WARNING, text, result, queue, expected)

    def _report_fault(
        self, kind: str, level: int, text: str, *arguments: object, error: BaseException | None = None
    ) -> None:
        """Log an error of the listener; at DEBUG after the first of its kind, because each message may cause it."""
        first = kind not in self._reported
        self._reported.add(kind)
        logger.log(level if first else logging.DEBUG, text, *arguments, exc_info=error)
