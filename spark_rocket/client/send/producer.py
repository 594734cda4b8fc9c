"""Sends messages: one or a batch; synchronously, with a future, or one-way.

=========================  ==============================================================================
queue                      ``queue=``, or the choice of ``selector``, or of the message's sharding key;
                           otherwise the next one in turn
retries                    only sends whose queue the producer chooses: on another broker, after lost
                           connections, timeouts and ``retry_response_codes``
deadline                   ``send_timeout`` covers all attempts, including routes and connecting
duplicates                 a retried send may have been stored: at least once, with the same UNIQ_KEY
heartbeats                 a producer with its own group is registered at brokers from its start, or its
                           first send, on; one without (``DEFAULT_GROUP``) is not
=========================  ==============================================================================

A message for a missing topic goes to brokers with automatic topic creation (TBW102), as in Java's client. With
``auto_batch`` single sends are combined (``accumulator``).

``close`` sends accumulated messages and waits for sends in flight, up to ``send_timeout``; then every future is done.
It does not wait for replies to requests: those fail with StateError.

Thread-safety: all methods; one producer can serve all threads of a process. It has no persistent state. A forked child
can use its copy, which joins the group again; sends in flight and their futures stay with the parent.
Corresponds to org.apache.rocketmq.client.producer.DefaultMQProducer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from spark_rocket.client.core.client_config import MAX_MESSAGE_SIZE, ClientConfig, Connecting
from spark_rocket.client.core.hooks import ForbiddingHook, Hooks, SendHook
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.client.core.lifecycle import Client
from spark_rocket.client.core.trace import GROUP, SendTraceHook, TraceDispatcher, recalled
from spark_rocket.client.core.validators import check_group
from spark_rocket.client.send.accumulator import BATCH_MAX_BYTES, BATCH_MAX_DELAY_S, TOTAL_BATCH_MAX_BYTES, Accumulator
from spark_rocket.client.send.outgoing import Outgoing, Packer, split_batch
from spark_rocket.client.send.pipeline import InFlight, Pipeline, RetryPolicy, Send, late_error
from spark_rocket.client.send.request_reply import RequestFuture, register_and_wait
from spark_rocket.client.send.router import (
    FaultStrategy,
    QueueChoice,
    Router,
    Selector,
    select_by_random,
    select_by_sharding_key,
)
from spark_rocket.client.send.stats import SendStats, add_send_stats
from spark_rocket.common.extras import requires
from spark_rocket.common.system import time_left
from spark_rocket.errors import ClientError, StateError
from spark_rocket.model import WAIT, Message, MessageExt, MessageQueue, SendResult
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.ids import RecallMessageHandle
from spark_rocket.protocol.record.compression import DEFAULT_ZLIB_LEVEL
from spark_rocket.protocol.wire.codes import BROKER_NAME, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import RecallMessageRequestHeader, RecallMessageResponseHeader
from spark_rocket.remoting.client.promise import Promise
from spark_rocket.remoting.client.request import Submitted
from spark_rocket.remoting.event_loop import has_loop_ended
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
TIMER_GRACE_S = 0.1  # time after the deadline for the timer to fail a send

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
"""Response codes after which another broker is tried, as in DefaultMQProducer, and for flow control and shutdown."""


T = TypeVar("T")


def _send_tracing(provider: TracerProvider | bool, group: str) -> SendTracing:
    with requires("open_telemetry"):
        from spark_rocket.client.core.otel import SendTracing

    return SendTracing(provider, group)


def trace_producer(name_server: str | None, instance_name: str, connecting: Connecting) -> Producer:
    """Create the producer of a client's message trace."""
    return Producer(GROUP, name_server=name_server, instance_name=instance_name, member=False, **connecting)


class Attempt(Promise[SendResult], Submitted):
    """The promise of one attempt to send to one queue, for a caller that limits, orders and repeats attempts itself.

    An attempt is the request of its connection's session and has that request's deadline: no other table has it, no
    hook sees it, and a producer that is closed does not wait for it. It fails with the errors of a send, and is counted
    as one. ``timeout`` includes the look-up of the broker and connecting to it.
    """

    def __init__(self, pipeline: Pipeline, out: Outgoing, queue: MessageQueue, timeout: float) -> None:
        super().__init__()
        self.code = out.code
        self._pipeline = pipeline
        self._out = out
        self._queue = queue
        self._address = ""
        self._begun = time.monotonic()
        self.begin(timeout, self._begun)
        try:
            self._address = pipeline.router.address(queue, self.deadline)
            pipeline.instance.remoting.submit(self._address, out.request(pipeline.group, queue), self)
        except Exception as error:
            self.fail(error)

    def respond(self, response: RemotingCommand) -> None:
        seconds = time.monotonic() - self._begun
        try:
            result = self._pipeline.answered(self._out, self._queue, self._address, seconds, response)
        except Exception as error:
            self.fail(error)
        else:
            self.resolve(result)

    def fail(self, error: BaseException) -> None:
        self._pipeline.failed(self._out, self._queue, self._address, time.monotonic() - self._begun, error)
        super().fail(error)


class Producer(Client):
    """``with Producer("group") as producer: producer.send(Message.of("topic", "body"))``

    Settings have the names, meanings and defaults of DefaultMQProducer's; times are in seconds. Additional ones:
    ``max_in_flight`` limits the messages of ``send_async`` in flight; ``block_when_full``: whether it then waits for
    a free slot (up to the send timeout) or raises RemotingTooMuchRequestError immediately. ``member=False`` excludes a
    producer with a named group from heartbeats. ``enable_msg_trace`` writes the results of sends to Apache's trace
    topic, or to ``customized_trace_topic`` (core/trace.py). ``open_telemetry`` creates a span for each send, with the
    global tracer provider or the given one (core/otel.py).
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
        batch_max_delay: float = BATCH_MAX_DELAY_S,
        total_batch_max_bytes: int = TOTAL_BATCH_MAX_BYTES,
        send_hooks: Sequence[SendHook] = (),
        forbidding_hooks: Sequence[ForbiddingHook] = (),
        enable_msg_trace: bool = False,
        customized_trace_topic: str | None = None,
        open_telemetry: TracerProvider | bool = False,
        member: bool = True,
        **connecting: Unpack[Connecting],
    ) -> None:
        config = ClientConfig.of(name_server, instance_name=instance_name, **connecting)
        self.group = check_group(config.namespace.unwrap(group))
        self.member = member and group != DEFAULT_GROUP
        self._new_tracer: Callable[[], TraceDispatcher] | None = None
        if enable_msg_trace:
            new_sender = partial(trace_producer, name_server, instance_name, connecting)
            self._new_tracer = partial(TraceDispatcher, customized_trace_topic, new_sender)
            send_hooks = [*send_hooks, SendTraceHook(lambda: self.tracer)]
        self._tracing = None if open_telemetry is False else _send_tracing(open_telemetry, self.group)
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
        # From here on a fork resets it.
        super().__init__(config)
        self._begin()

    def _begin(self) -> None:
        self.stats = SendStats()
        self.tracer = self._new_tracer() if self._new_tracer is not None else None
        self.in_flight = self._new_in_flight()
        self._packer.next_key = self._next_key
        self._starting = threading.RLock()  # a signal handler may send while the interrupted code starts
        self._pipeline: Pipeline | None = None
        self._accumulator: Accumulator | None = None
        self._requests: set[RequestFuture] = set()  # pending replies

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
        """Join the group. Optional: the first send does it. GroupInUseError makes the producer unusable."""
        self._start(wait=True)

    def _start(self, *, wait: bool, deadline: float | None = None) -> Pipeline:
        """``wait`` for the registration at brokers; a send passes its ``deadline``."""
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
            router = Router(instance, self.faults, member=self.member)
            parts = self.faults, self.in_flight, self._policy, self._hooks, self.stats
            pipeline = Pipeline(self.group, instance, router, *parts)
            if self._batch_limits is not None:
                self._accumulator = Accumulator(pipeline, *self._batch_limits)
            self._packer.next_key = instance.keys().next
            self._pipeline = pipeline
            return pipeline

    def _join(self, instance: ClientInstance, wait: bool, deadline: float) -> None:
        if self.member:
            instance.members.join_producer(self, wait=wait)

    def _running(self) -> Pipeline:
        """Return the pipeline of sends; start the producer if needed."""
        if self._closing:
            raise StateError(f"This {type(self).__name__} is closed.", remedy="Create a new one.")
        if has_loop_ended():
            raise StateError(
                "The interpreter is exiting: no message can be sent.",
                remedy="Send before, or register the exit handler after the import of spark_rocket.client.",
            )
        return self._pipeline or self._start(wait=False)

    def _next_key(self) -> str:
        """Return a key for a message that is packed before the producer has started."""
        return self._running().instance.next_key()

    def running(self) -> ClientInstance:
        """Return the instance; start the producer if needed."""
        return self._running().instance

    def close(self) -> None:
        """Send accumulated messages, wait for sends in flight, leave the group. May be called more than once.

        A hook on a thread of the producer, for which these sends wait, ends them instead: messages that are stored by
        then succeed, others fail with StateError.
        """
        self._closing = True
        shared, pipeline = self._shared, self._pipeline
        may_wait = pipeline is None or not pipeline.needs_this_thread()
        if shared is not None:
            if self._accumulator is not None:
                self._accumulator.close()
            if may_wait:
                self.in_flight.wait(lambda: not self.in_flight.count, time.monotonic() + self._send_timeout)
            shared.members.leave_producer(self)
        super().close()
        if self.tracer is not None:
            self.tracer.close(wait=may_wait)
        if pipeline is not None:
            pipeline.close()
        for waiting in list(self._requests):
            waiting.fail(StateError("The producer was closed before the reply arrived."))

    def add_metrics(self, exposition: Exposition) -> None:
        shared = self._shared
        if shared is not None:
            add_send_stats(exposition, self.stats, shared.client_id, self.group)
            if self.tracer is not None:
                labels = label_text({"client_id": shared.client_id, "group": self.group})
                exposition.add("rocket_client_trace_dropped_total", labels, self.tracer.dropped)

    # --- sending ----------------------------------------------------------------------------------------------

    def send(
        self, message: Message | Sequence[Message], *, timeout: float | None = None, **where: Unpack[QueueChoice]
    ) -> SendResult:
        """Send and wait until the broker has stored the message. Messages of one topic in a sequence form a batch.

        ``where``: ``queue=``, or ``selector=`` and ``selector_arg=``, which chooses among the queues of the topic.
        """
        return self._traced(self._send, message, timeout, where)

    def send_async(
        self, message: Message | Sequence[Message], *, timeout: float | None = None, **where: Unpack[QueueChoice]
    ) -> Future[SendResult]:
        """Send and return a future; use ``add_done_callback`` for a callback.

        Callbacks run on a thread of their own, in order for each connection: they may send, wait and close.
        The future cannot be cancelled. The call may block up to ``timeout``: for the route, and while
        ``max_in_flight`` messages are in flight.
        """
        return self._traced(self._send_async, message, timeout, where)

    def send_oneway(self, message: Message, *, timeout: float | None = None, **where: Unpack[QueueChoice]) -> None:
        """Send without waiting for a response."""
        self._traced(self._send_oneway, message, timeout, where)

    def may_block(self, message: Message | Sequence[Message], where: QueueChoice) -> bool:
        """Whether ``send_async`` may wait: for the start, a route, a free slot, or a broker that does not read."""
        pipeline = self._pipeline
        first = message[0] if isinstance(message, Sequence) and message else message
        return pipeline is None or (isinstance(first, Message) and pipeline.may_block(first, where))

    def _traced(
        self,
        send: Callable[[Message | Sequence[Message], float, QueueChoice], T],
        message: Message | Sequence[Message],
        timeout: float | None,
        where: QueueChoice,
    ) -> T:
        """Call ``send``, within a span if the producer has tracing."""
        timeout = self._send_timeout if timeout is None else timeout
        if self._tracing is None:
            return send(message, timeout, where)
        return self._tracing.send(send, message, timeout, where)

    def _send(self, message: Message | Sequence[Message], timeout: float, where: QueueChoice) -> SendResult:
        if self._batch_limits is None or not isinstance(message, Message):
            return self._new(message, timeout, where).send()
        try:
            return self._send_async(message, timeout, where).result(timeout + TIMER_GRACE_S)
        except TimeoutError:
            raise late_error(message.topic, timeout, None) from None

    def _send_async(
        self, message: Message | Sequence[Message], timeout: float, where: QueueChoice
    ) -> Future[SendResult]:
        if self._batch_limits is not None and isinstance(message, Message):
            promise = self._accumulate(message, timeout, where)
            if promise is not None:
                return promise
        return self._new(message, timeout, where).send_async()

    def _send_oneway(self, message: Message | Sequence[Message], timeout: float, where: QueueChoice) -> None:
        deadline = time.monotonic() + timeout
        out = self._packer.pack(message)
        pipeline = self._running()
        pipeline.send_oneway(out, message, pipeline.router.fixed(message, where, deadline), deadline)

    def _new(self, message: Message | Sequence[Message], timeout: float, where: QueueChoice) -> Send:
        deadline = time.monotonic() + timeout
        out = self._packer.pack(message)
        pipeline = self._running()
        return Send(pipeline, out, message, pipeline.router.fixed(message, where, deadline), timeout, deadline)

    def _accumulate(self, message: Message, timeout: float, where: QueueChoice) -> Promise[SendResult] | None:
        """Add a message to a batch; None if it must be sent alone."""
        deadline = time.monotonic() + timeout
        pipeline, accumulator = self._running(), self._accumulator
        assert accumulator is not None
        piece = self._packer.accumulable(message)
        if piece is None:
            return None
        fixed, properties = None, message.properties
        if where or properties:
            fixed = pipeline.router.fixed(message, where, deadline)
        key = (message.topic, fixed, properties.get(WAIT) if properties else None)
        if not accumulator.holds(key):
            pipeline.router.find(message.topic, deadline)
        return accumulator.add(key, message, piece, timeout, deadline)

    def send_batch_body(
        self, queue: MessageQueue, body: Buffer, count: int, *, timeout: float | None = None
    ) -> SendResult:
        """Send ``count`` encoded messages (``protocol.record.encoder.encode_batch``) without copying them.

        One queue, one attempt: the caller decides about retries. ``msg_id`` of the result is empty.
        """
        timeout = self._send_timeout if timeout is None else timeout
        out = self._packer.encoded(queue.topic, body, count)
        return Send(self._running(), out, (), queue, timeout, time.monotonic() + timeout).send()

    def send_batch_body_async(
        self, queue: MessageQueue, body: Buffer, count: int, *, sys_flag: int = 0, timeout: float | None = None
    ) -> Future[SendResult]:
        """Like ``send_batch_body``, with a future. ``body`` must not change until it is done.

        ``sys_flag`` is stored with every message; it marks compressed bodies.
        """
        timeout = self._send_timeout if timeout is None else timeout
        out = self._packer.encoded(queue.topic, body, count, sys_flag)
        return Send(self._running(), out, (), queue, timeout, time.monotonic() + timeout).send_async()

    def attempt(self, message: Message, queue: MessageQueue) -> Promise[SendResult]:
        """Send once to a queue, for a caller that limits and repeats its attempts itself (``Attempt``)."""
        return Attempt(self._running(), self._packer.pack(message), queue, self._send_timeout)

    def attempt_batch_body(
        self, queue: MessageQueue, body: Buffer, count: int, *, sys_flag: int = 0
    ) -> Promise[SendResult]:
        """Like ``attempt``, of ``count`` encoded messages (``send_batch_body_async``)."""
        out = self._packer.encoded(queue.topic, body, count, sys_flag)
        return Attempt(self._running(), out, queue, self._send_timeout)

    def recall_message(self, topic: str, handle: str, *, timeout: float | None = None) -> str:
        """Recall a message with a delivery time, by ``SendResult.recall_handle``; return its id.

        BrokerError if it is already due, or if the broker does not allow recalls (``recallMessageEnable``).
        """
        where = MessageQueue(topic, RecallMessageHandle.decode(handle).broker_name, 0)
        header = RecallMessageRequestHeader(topic=topic, recall_handle=handle, producer_group=self.group)
        ext = header.to_ext() | {BROKER_NAME: where.broker_name}
        deadline = time.monotonic() + (self._send_timeout if timeout is None else timeout)
        instance = self.running()
        done = False
        try:
            response = instance.invoke(
                instance.routes.master(where, time_left(deadline)),
                RemotingCommand.request(RequestCode.RECALL_MESSAGE, ext),
                f"the recall from {topic}",
                topic=topic,
                timeout=time_left(deadline),
            )
            done = True
        finally:
            if self.tracer is not None:
                msg_id = RecallMessageHandle.decode(handle).message_id
                self.tracer.append(recalled(self.group, topic, msg_id, success=done))
        return RecallMessageResponseHeader.from_ext(response.ext_fields).msg_id

    def queues(self, topic: str, *, ordered: bool = False) -> list[MessageQueue]:
        """Return the queues of a topic for sends, sorted.

        ``ordered``: the queues that selectors choose among, including those of unavailable brokers.
        """
        routes = self.running().routes
        return list((routes.order_route if ordered else routes.publish_route)(topic))

    # --- request and reply ------------------------------------------------------------------------------------

    def request(self, message: Message, *, timeout: float | None = None, **where: Unpack[QueueChoice]) -> MessageExt:
        """Send a message and wait for the reply of its consumer (``create_reply_message``).

        RequestTimeoutError if there is none before the timeout.
        """
        timeout = self._send_timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        future = self.request_async(message, timeout=timeout, **where)
        try:
            return future.result(time_left(deadline) + TIMER_GRACE_S)
        except TimeoutError:  # the timer is late
            future.expire()
            return future.result()

    def request_async(
        self, message: Message, *, timeout: float | None = None, **where: Unpack[QueueChoice]
    ) -> RequestFuture:
        """Like ``request``, with a future of the reply. If it is cancelled, the reply is dropped."""
        timeout = self._send_timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        instance = self.running()
        if not self.member:
            raise ClientError(
                "Requests need a producer with a group in heartbeats, because replies arrive over its connection.",
                remedy="Create the producer with its own group, without member=False.",
            )
        waiting = RequestFuture(instance, message, timeout)
        self._requests.add(waiting)
        waiting.add_done_callback(lambda _: self._requests.discard(waiting))
        try:
            instance.routes.publish_route(message.topic, time_left(deadline))
            register_and_wait(instance, deadline)
            sent = self.send_async(waiting.message, timeout=time_left(deadline), **where)
        except BaseException as error:
            waiting.fail(error)
            raise
        sent.add_done_callback(waiting.sent)
        return waiting
