"""Sends messages: one or a batch; waiting, with a future, or without an answer.

=========================  ==============================================================================
which queue                ``queue=`` given; chosen by ``selector``; by the message's sharding key if it has
                           one; else the next in turn
what is tried again        only sends whose queue is ours to choose: on another broker, after lost
                           connections, time-outs and ``retry_response_codes``
how long                   ``send_timeout`` is for all attempts, routes and connecting included
what is stored twice       a send that is tried again may have been carried out: at least once, same UNIQ_KEY
who knows of it            a producer with a group of its own is named in heartbeats from its start, or its
                           first send, on; one without (``DEFAULT_GROUP``) is not
=========================  ==============================================================================

A topic that does not exist is sent to the brokers that create topics by themselves (TBW102), as Java's client does.
With ``auto_batch`` single sends go out together (``accumulator``).

``close`` sends what is accumulated and waits for what is under way, up to ``send_timeout``; then every future is done.
It does not wait for replies to requests: those fail with StateError.

Thread-safety: all methods; one producer can serve every thread of a process. No state outlives it. A forked child can
use its copy: it joins the group by itself, and what the parent has under way stays the parent's, futures included.
Corresponds to org.apache.rocketmq.client.producer.DefaultMQProducer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, cast

from spark_rocket.client.core.config import MAX_MESSAGE_SIZE, ClientConfig, Connecting
from spark_rocket.client.core.hooks import ForbiddingHook, Hooks, SendHook, no_open_telemetry
from spark_rocket.client.core.instance import Client, ClientInstance
from spark_rocket.client.core.trace import GROUP, SendTraceHook, TraceDispatcher, recalled
from spark_rocket.client.core.validators import check_group
from spark_rocket.client.send.accumulator import BATCH_MAX_BYTES, BATCH_MAX_DELAY, TOTAL_BATCH_MAX_BYTES, Accumulator
from spark_rocket.client.send.outgoing import Packer, split_batch
from spark_rocket.client.send.pipeline import InFlight, Pipeline, RetryPolicy, SyncSend, late
from spark_rocket.client.send.request_reply import RequestFuture, greet_and_wait
from spark_rocket.client.send.router import FaultStrategy, Selector, left, select_by_random, select_by_sharding_key
from spark_rocket.client.send.stats import SendStats, add_send_stats
from spark_rocket.errors import ClientError, StateError
from spark_rocket.model import WAIT, Message, MessageExt, MessageQueue, SendResult
from spark_rocket.protocol.ids import RecallMessageHandle
from spark_rocket.protocol.record.compression import DEFAULT_ZLIB_LEVEL
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import Buffer, RemotingCommand
from spark_rocket.protocol.wire.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from spark_rocket.remoting.client.promise import Promise
from spark_rocket.remoting.exposition import Exposition, label_text

__all__ = [
    "DEFAULT_GROUP",
    "RETRY_RESPONSE_CODES",
    "Producer",
    "Selector",
    "select_by_random",
    "select_by_sharding_key",
    "split_batch",
]

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from spark_rocket.client.core.otel import SendTracing

DEFAULT_GROUP = "spark_rocket_producer"
MAX_IN_FLIGHT = 10_000
TIMER_GRACE_S = 0.1  # after its deadline, in which the timer fails a send with others, or a request

RETRY_RESPONSE_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)
"""Answers after which another broker is tried: those of DefaultMQProducer, flow control, and of who is stopping."""


class Where(TypedDict, total=False):
    """How a message's queue is chosen; see ``Producer.send``."""

    queue: MessageQueue | None
    selector: Selector | None
    selector_arg: Any


def _send_tracing(provider: TracerProvider | bool, group: str) -> SendTracing:
    try:
        from spark_rocket.client.core.otel import SendTracing
    except ImportError as error:
        raise no_open_telemetry() from error
    return SendTracing(provider, group)


def trace_producer(name_server: str | None, instance_name: str, connecting: Connecting) -> Producer:
    """The producer of a client's message trace."""
    return Producer(GROUP, name_server=name_server, instance_name=instance_name, member=False, **connecting)


class Producer(Client):
    """``with Producer("group") as producer: producer.send(Message.of("topic", "body"))``

    The settings have the names, the meaning and the defaults of DefaultMQProducer's; times are seconds. Our own:
    ``max_in_flight`` bounds the messages that ``send_async`` has under way, and ``block_when_full`` says whether it
    waits for a free place then (as long as the send may take) or raises RemotingTooMuchRequestError at once;
    ``member=False`` keeps a producer with a named group out of heartbeats. ``enable_msg_trace`` writes to Apache's
    trace topic, or to ``customized_trace_topic``, what became of each message (client/trace.py). ``open_telemetry``
    makes a span of each send, with the global provider of tracers or the given one (client/otel.py).
    """

    def __init__(
        self,
        group: str = DEFAULT_GROUP,
        *,
        name_server: str | None = None,
        instance_name: str = "",
        send_timeout: float = 3.0,
        send_msg_max_timeout_per_request: float | None = None,
        retry_times_when_send_failed: int = 2,
        retry_times_when_send_async_failed: int = 2,
        retry_another_broker_when_not_store_ok: bool = False,
        retry_response_codes: Iterable[int] = RETRY_RESPONSE_CODES,
        send_latency_fault_enable: bool = False,
        compress_msg_body_over_howmuch: int = 4096,
        compress_type: str = "zlib",
        compress_level: int = DEFAULT_ZLIB_LEVEL,
        max_message_size: int = MAX_MESSAGE_SIZE,
        max_in_flight: int = MAX_IN_FLIGHT,
        block_when_full: bool = True,
        auto_batch: bool = False,
        batch_max_bytes: int = BATCH_MAX_BYTES,
        batch_max_delay: float = BATCH_MAX_DELAY,
        total_batch_max_bytes: int = TOTAL_BATCH_MAX_BYTES,
        send_hooks: Sequence[SendHook] = (),
        forbidding_hooks: Sequence[ForbiddingHook] = (),
        enable_msg_trace: bool = False,
        customized_trace_topic: str | None = None,
        open_telemetry: TracerProvider | bool = False,
        member: bool = True,
        **connecting: Unpack[Connecting],
    ) -> None:
        self.group = check_group(group)
        self.member = member and group != DEFAULT_GROUP
        self._new_tracer: Callable[[], TraceDispatcher] | None = None
        if enable_msg_trace:
            new_sender = partial(trace_producer, name_server, instance_name, connecting)
            self._new_tracer = partial(TraceDispatcher, customized_trace_topic, new_sender)
            send_hooks = [*send_hooks, SendTraceHook(lambda: self.tracer)]
        self._tracing = None if open_telemetry is False else _send_tracing(open_telemetry, group)
        self._hooks = Hooks(send_hooks, forbidding_hooks) if send_hooks or forbidding_hooks else None
        self.faults = FaultStrategy(time.monotonic, enabled=send_latency_fault_enable)
        self._send_timeout = send_timeout
        self._policy = RetryPolicy(
            retry_times_when_send_failed,
            retry_times_when_send_async_failed,
            retry_another_broker_when_not_store_ok,
            frozenset(map(int, retry_response_codes)),
            send_msg_max_timeout_per_request,
        )
        how = (max_message_size, compress_msg_body_over_howmuch, compress_type, compress_level)
        self._packer = Packer(self._next_key, *how)
        self._new_in_flight = partial(InFlight, max_in_flight, block=block_when_full)
        limits = (batch_max_bytes, batch_max_delay, total_batch_max_bytes)
        self._batch_limits = limits if auto_batch else None
        self._closing = False
        # From here on a fork finds it.
        super().__init__(ClientConfig.of(name_server, instance_name=instance_name, **connecting))
        self._begin()

    def _begin(self) -> None:
        self.stats = SendStats()
        self.tracer = self._new_tracer() if self._new_tracer is not None else None
        self.in_flight = self._new_in_flight()
        self._packer.next_key = self._next_key
        self._starting = threading.Lock()
        self._pipeline: Pipeline | None = None
        self._accumulator: Accumulator | None = None
        self._requests: set[RequestFuture] = set()  # those that wait for their replies

    def after_fork(self) -> None:
        super().after_fork()
        self._begin()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group. The first send does it by itself. GroupInUseError, for good."""
        self._start(wait=True)

    def _start(self, *, wait: bool, deadline: float | None = None) -> Pipeline:
        """``wait`` until brokers have heard of it; a send has its own time (``deadline``) to keep."""
        with self._starting:
            if self._pipeline is not None:
                return self._pipeline
            instance = self.instance()
            try:
                self._join(instance, wait, deadline or time.monotonic() + self._send_timeout)
            except BaseException:
                instance.members.leave_producer(self)
                self._start_failed()
                raise
            pipeline = Pipeline(
                self.group,
                instance,
                self.faults,
                self.in_flight,
                self._policy,
                self._hooks,
                self.stats,
                member=self.member,
            )
            if self._batch_limits is not None:
                self._accumulator = Accumulator(pipeline, *self._batch_limits)
            self._packer.next_key = instance.keys().next
            self._pipeline = pipeline
            return pipeline

    def _join(self, instance: ClientInstance, wait: bool, deadline: float) -> None:
        if self.member:
            instance.members.join_producer(self, wait=wait)

    def _running(self) -> Pipeline:
        """What sends go through; starts the producer if need be."""
        if self._closing:
            raise StateError(f"This {type(self).__name__} was closed.", remedy="Make a new one.")
        return self._pipeline or self._start(wait=False)

    def _next_key(self) -> str:
        """Only for a message that is packed before the producer has started."""
        return self._running().instance.next_key()

    def running(self) -> ClientInstance:
        """The instance; starts the producer if need be."""
        return self._running().instance

    def close(self) -> None:
        """Send what is accumulated, wait for what is under way, leave the group. Closing twice is closing once."""
        self._closing = True
        shared, pipeline = self._shared, self._pipeline
        # A thread that reads a connection would wait for itself.
        may_wait = shared is None or not shared.remoting.is_reading_thread()
        if shared is not None:
            if self._accumulator is not None:
                self._accumulator.close()
            if may_wait:
                self.in_flight.wait_until_empty(time.monotonic() + self._send_timeout)
            shared.members.leave_producer(self)
        super().close()
        if self.tracer is not None:
            self.tracer.close(wait=may_wait)
        if pipeline is not None:
            pipeline.close()
        for waiting in list(self._requests):
            waiting.fail(StateError("The producer was closed before the reply came."))

    def add_metrics(self, exposition: Exposition) -> None:
        shared = self._shared
        if shared is not None:
            add_send_stats(exposition, self.stats, shared.client_id, self.group)
            if self.tracer is not None:
                labels = label_text({"client_id": shared.client_id, "group": self.group})
                exposition.add("rocket_client_trace_dropped_total", labels, self.tracer.dropped)

    # --- sending ----------------------------------------------------------------------------------------------

    def send(
        self,
        message: Message | Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: Any = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send and wait until the broker has it. A sequence of messages of one topic goes out as one batch."""
        if self._tracing is not None and self._tracing.wraps(message):
            how = {"queue": queue, "selector": selector, "selector_arg": selector_arg, "timeout": timeout}
            return cast(SendResult, self._tracing.send(self.send, message, how))
        timeout = self._send_timeout if timeout is None else timeout
        if self._batch_limits is not None and isinstance(message, Message):
            future = self.send_async(
                message, queue=queue, selector=selector, selector_arg=selector_arg, timeout=timeout
            )
            try:
                return future.result(timeout + TIMER_GRACE_S)
            except TimeoutError:
                raise late(message.topic, timeout, None) from None
        deadline = time.monotonic() + timeout
        out = self._packer.pack(message)
        pipeline = self._running()
        fixed = pipeline.router.fixed(message, queue, selector, selector_arg, deadline)
        return SyncSend(pipeline, out, message, fixed, timeout, deadline).send()

    def send_async(
        self,
        message: Message | Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: Any = None,
        timeout: float | None = None,
    ) -> Future[SendResult]:
        """Send and give a future; ``add_done_callback`` makes it a call-back.

        Call-backs run on the thread that reads the connection: they must be short, and must not wait for another send.
        The future cannot be cancelled. It may block, no longer than ``timeout``: for the route, and while
        ``max_in_flight`` messages are under way.
        """
        if self._tracing is not None and self._tracing.wraps(message):
            how = {"queue": queue, "selector": selector, "selector_arg": selector_arg, "timeout": timeout}
            return self._tracing.send_async(self.send_async, message, how)
        timeout = self._send_timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        if self._batch_limits is not None and isinstance(message, Message):
            promise = self._accumulate(message, queue, selector, selector_arg, timeout, deadline)
            if promise is not None:
                return promise
        out = self._packer.pack(message)
        pipeline = self._running()
        fixed = pipeline.router.fixed(message, queue, selector, selector_arg, deadline)
        return pipeline.send_async(out, message, fixed, timeout, deadline)

    def _accumulate(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        selector_arg: Any,
        timeout: float,
        deadline: float,
    ) -> Promise[SendResult] | None:
        """Have a message sent with others; None if it has to go alone."""
        pipeline, accumulator = self._running(), self._accumulator
        assert accumulator is not None
        piece = self._packer.accumulable(message)
        if piece is None:
            return None
        fixed, properties = None, message.properties
        if queue is not None or selector is not None or properties:
            fixed = pipeline.router.fixed(message, queue, selector, selector_arg, deadline)
        key = (message.topic, fixed, properties.get(WAIT) if properties else None)
        if not accumulator.holds(key):
            pipeline.router.find(message.topic, deadline)
        return accumulator.add(key, message, piece, timeout, deadline)

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: Any = None,
        timeout: float | None = None,
    ) -> None:
        """Send and do not ask whether it arrived."""
        if self._tracing is not None and self._tracing.wraps(message):
            how = {"queue": queue, "selector": selector, "selector_arg": selector_arg, "timeout": timeout}
            self._tracing.send(self.send_oneway, message, how)
            return
        deadline = time.monotonic() + (self._send_timeout if timeout is None else timeout)
        out = self._packer.pack(message)
        pipeline = self._running()
        fixed = pipeline.router.fixed(message, queue, selector, selector_arg, deadline)
        pipeline.send_oneway(out, message, fixed, deadline)

    def send_batch_body(
        self, queue: MessageQueue, body: Buffer, count: int, *, timeout: float | None = None
    ) -> SendResult:
        """Send ``count`` messages that are encoded already (``protocol.record.encoder.encode_batch``), without a copy.

        One queue, one attempt: the caller knows what may be sent again. ``msg_id`` of the result is empty.
        """
        timeout = self._send_timeout if timeout is None else timeout
        out = self._packer.encoded(queue.topic, body, count)
        return SyncSend(self._running(), out, (), queue, timeout, time.monotonic() + timeout).send()

    def send_batch_body_async(
        self, queue: MessageQueue, body: Buffer, count: int, *, sys_flag: int = 0, timeout: float | None = None
    ) -> Future[SendResult]:
        """As ``send_batch_body``, with a future. ``body`` must not change until it is done.

        ``sys_flag`` is stored with every message: that its body is compressed, and how.
        """
        timeout = self._send_timeout if timeout is None else timeout
        out = self._packer.encoded(queue.topic, body, count, sys_flag)
        return self._running().send_async(out, (), queue, timeout, time.monotonic() + timeout)

    def recall_message(self, topic: str, handle: str, *, timeout: float | None = None) -> str:
        """Take back a message that waits for its time, by ``SendResult.recall_handle``; returns its id.

        BrokerError if it is due already, or if the broker allows no recalls (``recallMessageEnable``).
        """
        where = MessageQueue(topic, RecallMessageHandle.decode(handle).broker_name, 0)
        header = RecallMessageRequestHeader(topic=topic, recall_handle=handle, producer_group=self.group)
        deadline = time.monotonic() + (self._send_timeout if timeout is None else timeout)
        instance = self.running()
        done = False
        try:
            answer = instance.invoke(
                instance.routes.master(where, left(deadline)),
                RemotingCommand.request(RequestCode.RECALL_MESSAGE, header.to_ext()),
                f"the recall from {topic}",
                topic=topic,
                timeout=left(deadline),
            )
            done = True
        finally:
            if self.tracer is not None:
                msg_id = RecallMessageHandle.decode(handle).message_id
                self.tracer.append(recalled(self.group, topic, msg_id, success=done))
        return RecallMessageResponseHeader.from_ext(answer.ext_fields).msg_id

    def queues(self, topic: str, *, ordered: bool = False) -> list[MessageQueue]:
        """The queues that take the topic's messages, sorted.

        ``ordered``: those that selectors choose among, of which some may be away just now.
        """
        routes = self.running().routes
        return list((routes.order_route if ordered else routes.publish_route)(topic))

    # --- request and reply ------------------------------------------------------------------------------------

    def request(self, message: Message, *, timeout: float | None = None, **where: Unpack[Where]) -> MessageExt:
        """Send a message and wait for the reply of whoever consumes it (``create_reply_message``).

        RequestTimeoutError if none comes in time.
        """
        timeout = self._send_timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        future = self.request_async(message, timeout=timeout, **where)
        try:
            return future.result(left(deadline) + TIMER_GRACE_S)
        except TimeoutError:  # the timer is late
            future.expire()
            return future.result()

    def request_async(self, message: Message, *, timeout: float | None = None, **where: Unpack[Where]) -> RequestFuture:
        """As ``request``, with a future of the reply. It may be cancelled: the reply is dropped then."""
        timeout = self._send_timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        instance = self.running()
        if not self.member:
            raise ClientError(
                "A request needs a producer whose group brokers know: replies come over its connection.",
                remedy="Give the producer a group of its own.",
            )
        waiting = RequestFuture(instance, message, timeout)
        self._requests.add(waiting)
        waiting.add_done_callback(lambda _: self._requests.discard(waiting))
        try:
            instance.routes.publish_route(message.topic, left(deadline))
            greet_and_wait(instance, deadline)
            sent = self.send_async(waiting.message, timeout=left(deadline), **where)
        except BaseException as error:
            waiting.fail(error)
            raise
        sent.add_done_callback(waiting.sent)
        return waiting
