"""What the three consume services share: threads, calls of the listener, decoding, and flow control.

A service takes what pulls found (``receive``), decodes it, and calls the listener on threads of its own.

Flow-control limits are per queue. A limit per topic takes their place, divided by the number of queues that this member
has of the topic, so that it holds for them together. Each limit can be exceeded by one pull, which is taken whole.

``SendBack`` gives back messages that were not consumed, to the group's retry topic or its dead-letter topic. The broker
that has the message is asked to copy it (36). If that fails, the client sends a copy to the retry topic itself. Both
count up the message's reconsume times; from ``max_reconsume_times`` on it goes to ``%DLQ%group``.

Thread-safety: ``receive`` on reading threads, listeners on the service's own; ``start`` and ``close`` once each.
``close`` may be called by a listener, which does not wait for itself. Corresponds to the consumeExecutor of
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

from spark_rocket.client.consume.group_consumer import Subscriptions
from spark_rocket.client.consume.listeners import ConsumeConcurrentlyContext, ConsumeOrderlyContext, Hooks
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import BROKER_NAME, RETRY_TOPIC, PullResult, batches_of, messages_of, show_origin
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import RocketError
from spark_rocket.model import AUTO_CREATE_TOPIC_KEY, DELAY, RETRY_PREFIX, MessageExt, MessageQueue
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeader
from spark_rocket.remoting.address import format_address

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
DEFAULT_MAX_RECONSUME_TIMES = 16
_FIRST_LEVEL = 3
_SECONDS = 5.0
_LEFT_BEHIND = ("TRAN_MSG", "CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET")


class SendBack:
    """Gives back messages of one group."""

    def __init__(self, instance: ClientInstance, group: str, max_reconsume_times: int) -> None:
        self._instance = instance
        self._group = group
        self._retry_topic = RETRY_PREFIX + group
        self._most = max_reconsume_times

    def send(self, message: MessageExt, delay_level: int = 0) -> bool:
        """Have it delivered again later: whether that is certain. ``delay_level``: −1 dead letters, 0 as usual."""
        try:
            self._ask_broker(message, delay_level)
        except RocketError as error:
            logger.warning("broker %s did not take back %s: %s", message.broker_name, message.msg_id, error)
            return self.send_copy(message)
        return True

    def _ask_broker(self, message: MessageExt, delay_level: int) -> None:
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self._most,
        )
        address = self._master(message) or format_address(*message.store_host)
        ext = header.to_ext() | {BROKER_NAME: message.broker_name}
        request = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        self._instance.invoke(address, request, f"the return of {message.msg_id}", timeout=_SECONDS)

    def _master(self, message: MessageExt) -> str | None:
        """Where routes say that its broker is: what the message says may be an address that only brokers can reach."""
        for topic in (self._retry_topic, message.topic):
            try:
                masters = self._instance.routes.route(topic).masters
            except RocketError:
                continue
            if message.broker_name in masters:
                return masters[message.broker_name]
        return None

    def send_copy(self, message: MessageExt) -> bool:
        """Send a copy to the retry topic: whether a broker has it."""
        properties = {name: value for name, value in message.properties.items() if name not in _LEFT_BEHIND}
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
                born_timestamp=time.time_ns() // 1_000_000,
                flag=message.flag,
                properties=encode_properties(properties).decode(),
                reconsume_times=message.reconsume_times + 1,
                max_reconsume_times=self._most,
                broker_name=queue.broker_name,
            )
            request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), message.body)
            address = self._instance.routes.master(queue)
            self._instance.invoke(address, request, f"the copy of {message.msg_id}", timeout=_SECONDS)
        except RocketError as error:
            logger.warning("%s could not be sent to %s: %s", message.msg_id, self._retry_topic, error)
            return False
        return True


Work = TypeVar("Work")
Context = TypeVar("Context", ConsumeConcurrentlyContext, ConsumeOrderlyContext)


@dataclass(frozen=True, slots=True)
class FlowControl:
    """``span``: from a queue's first cached message to its last; None: any. ``queues_of``: how many of a topic."""

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


class Decoder:
    """Decodes pulls of a push consumer: applies filter hooks, and gives retried messages their original topic."""

    def __init__(self, subscriptions: Subscriptions, hooks: Hooks) -> None:
        self._subscriptions = subscriptions
        self._hooks = hooks

    def messages(self, process_queue: ProcessQueue, found: PullResult) -> list[MessageExt]:
        """The subscribed messages of a pull."""
        queue = process_queue.queue
        messages = messages_of(found, queue, process_queue.end, self._subscriptions.tags_of(queue.topic))
        self._hooks.stats.pulled(queue.topic, len(messages), process_queue.pull_seconds)
        if queue.topic.startswith(RETRY_PREFIX):
            show_origin(messages)
        return self._hooks.choose(queue, messages) if self._hooks.filter else messages

    def batches(self, process_queue: ProcessQueue, found: PullResult) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches; filter hooks are not applied."""
        queue = process_queue.queue
        for batch in batches_of(found, queue, process_queue.end, self._subscriptions.tags_of(queue.topic)):
            self._hooks.stats.pulled(queue.topic, len(batch), process_queue.pull_seconds)
            yield batch


class QueueOwner(Protocol):
    """What a service asks of the consumer's queues; ``Rebalance``."""

    def has_room(self, process_queue: ProcessQueue) -> None:
        """Some messages were consumed: pulls may continue."""

    def lock(self, process_queue: ProcessQueue) -> bool:
        """Lock a queue again whose lock has expired."""

    def released(self, process_queue: ProcessQueue) -> None:
        """The last call of a queue that was given up has ended."""


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """The parts of a consumer that its service uses. Broadcasting has no ``send_back``."""

    decoder: Decoder
    hooks: Hooks
    queues: QueueOwner
    send_back: SendBack | None
    call_later: Callable[[float, Callable[[], None]], None]


class ConsumeService(ABC, Generic[Work, Context]):
    """Base of the services. ``statuses`` are the valid answers of the listener, ``successes`` the good ones."""

    statuses: ClassVar[tuple[type[Enum], ...]]
    successes: ClassVar[tuple[Enum, ...]]

    def __init__(self, listener: Callable[..., object], parts: ServiceParts, threads: int) -> None:
        self._listener = listener
        self._decoder = parts.decoder
        self._hooks = parts.hooks
        self._queues = parts.queues
        self._send_back = parts.send_back
        self._call_later = parts.call_later
        self._complained: set[str] = set()
        self._work: SimpleQueue[Work | None] = SimpleQueue()  # None: there is no more
        self._closing = False
        self._threads = [
            threading.Thread(target=self._consume_forever, name=f"rocket-consume-{number}", daemon=True)
            for number in range(threads)
        ]

    # --- what pulls found -------------------------------------------------------------------------------------------

    @abstractmethod
    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        """Take over the result of a pull, which may be empty; quick, on a reading thread."""

    @abstractmethod
    def is_full(self, process_queue: ProcessQueue) -> bool:
        """Whether the queue should not be pulled now."""

    # --- threads ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def _consume(self, work: Work) -> None:
        """Do some work on one of the threads; must not raise."""

    def _consume_forever(self) -> None:
        while (work := self._work.get()) is not None and not self._closing:
            self._consume(work)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Start no more calls."""
        self._closing = True

    def is_own_thread(self, thread: threading.Thread) -> bool:
        return thread in self._threads

    def close(self, timeout: float) -> None:
        """Start no more calls, and wait up to so many seconds for those in progress."""
        self.stop()
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    # --- the listener -----------------------------------------------------------------------------------------------

    def consume_directly(self, messages: object, queue: MessageQueue) -> object:
        """One call of the listener without effect on the queue: its answer, or what it raises."""
        return self._listener(messages, self._context(queue))

    @abstractmethod
    def _context(self, queue: MessageQueue) -> Context:
        """A new context for a call."""

    def _is_valid(self, context: Context) -> bool:
        """Whether the listener left a valid context behind."""
        return True

    def _call(self, argument: Sized, messages: list[MessageExt], context: Context) -> bool:
        """Call the listener with ``argument``, hooks before and after it: whether it succeeded.

        ``messages`` are for the hooks; batches have none.
        """
        count = len(argument)
        around = self._hooks.before(messages, context.message_queue) if self._hooks.consume else None
        status: object = None
        success = False
        try:
            status = self._listener(argument, context)
        except BaseException as error:  # SystemExit too: the thread is the consumer's
            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            text = "the listener failed on %d messages of %s"
            self._complain(kind, logging.ERROR, text, count, context.message_queue, error=error)
        else:
            if isinstance(status, self.statuses):
                success = status in self.successes and self._is_valid(context)
            else:
                self._reject_answer(status, self.statuses[0].__name__, context.message_queue)
        if around is not None:
            self._hooks.after(around, success=success, status=getattr(status, "value", str(status)))
        return success

    def _call_counted(self, argument: Sized, messages: list[MessageExt], context: Context) -> bool:
        """As ``_call``, of a queue in order: counted in the statistics."""
        called, count = time.monotonic(), len(argument)
        success = self._call(argument, messages, context)
        consumed, failed = (count, 0) if success else (0, count)
        self._hooks.stats.consumed(context.message_queue.topic, 1, consumed, failed, time.monotonic() - called)
        return success

    def _reject_answer(self, answer: object, expected: str, queue: MessageQueue) -> None:
        text = "the listener answered %r for %s, which is not a valid %s: the messages are retried"
        self._complain(f"answer of {type(answer).__qualname__}", logging.WARNING, text, answer, queue, expected)

    def _complain(
        self, kind: str, level: int, text: str, *arguments: object, error: BaseException | None = None
    ) -> None:
        """Log a fault of the listener, at DEBUG after the first of its kind: every message may have it."""
        first = kind not in self._complained
        self._complained.add(kind)
        logger.log(level if first else logging.DEBUG, text, *arguments, exc_info=error)
