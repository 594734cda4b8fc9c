"""The path of a send: the router chooses a queue, ``InFlight`` limits sends, the connection transports requests.

A :class:`Send` makes attempts until one succeeds, no retry is left, or its deadline has passed. The deadline covers
routes, connecting, responses and retries.

======================  ===============================================================================================
the calling thread      chooses the queue, calls the hooks *before*, encodes the request, and hands it over in one step:
                        the append to a queue of the loop. An interrupt (Ctrl-C) comes before or after that step
the loop thread         has all sends in flight and settles each exactly once, whether there are hooks or not
the thread of hooks     calls the hooks *after*, which may block; then the loop settles the send
the thread of batches   prepares attempts of automatic batches that may block (``accumulator``)
the instance's thread   prepares further attempts, because fetching a route blocks
======================  ===============================================================================================

A synchronous send takes the same way. Only what may block, the hooks *after* and further attempts, is executed by the
thread that waits for it.

Thread-safety: all of it, without locks: a signal handler may send or close, whatever it has interrupted.
Corresponds to DefaultMQProducerImpl.{sendDefaultImpl, sendKernelImpl},
MQClientAPIImpl.{sendMessageAsync, onExceptionImpl} and the semaphores of DefaultMQProducerImpl's back pressure.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from spark_rocket.client.core.hooks import Hooks, SendContext
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.client.send.outgoing import STORED_CODES, Outgoing
from spark_rocket.client.send.router import FaultStrategy, QueueChoice, Router
from spark_rocket.client.send.stats import SendStats
from spark_rocket.common.logs import RateLimited
from spark_rocket.common.system import time_left
from spark_rocket.errors import (
    ClientError,
    MessageTooLargeError,
    QueueNotFoundError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    RocketError,
    StateError,
)
from spark_rocket.model import Message, MessageQueue, SendResult, SendStatus
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.promise import Promise
from spark_rocket.remoting.client.request import LOOP_MARGIN_S, Submitted
from spark_rocket.remoting.event_loop import CallbackThread, Inbox, is_loop_thread, loop_thread, with_callbacks_on
from spark_rocket.remoting.session import Pieces

logger = logging.getLogger(__name__)

RECHECK_S = 0.01  # how often a send that waits for a slot checks for one


class HandedOver(Protocol):
    """What a caller hands over to the loop."""

    def taken(self) -> None: ...


class InFlight:
    """The sends in flight, counted in messages. At the limit the next one waits or is rejected.

    Several threads at the limit may exceed it by one message each.
    """

    def __init__(self, limit: int, *, block: bool) -> None:
        self.limit = limit
        self._wake_at = limit - limit // 8  # waiting threads are woken for many free slots, not for each
        self._block = block
        self._inbox: Inbox[HandedOver] = Inbox(lambda: loop_thread().post(self.take))
        self.hand_over = self._inbox.put
        """Pass a message to the loop, which calls its ``taken``, in order."""
        self.handed = self._inbox.items
        """What callers have handed over, and the loop has not taken yet. Each counts as one message."""
        self.taken = 0
        """The messages that the loop has taken. Only the loop changes it."""
        self._waiting: deque[Callable[[None], object]] = deque()
        self.sends: dict[Send, None] = {}

    @property
    def count(self) -> int:
        return len(self.handed) + self.taken

    # --- callers ----------------------------------------------------------------------------------------------

    def await_place(self, deadline: float, may_wait: Callable[[], bool]) -> None:
        """Wait for a free slot. RemotingTooMuchRequestError if none is free in time."""
        if len(self.handed) + self.taken < self.limit:
            return
        if not (self._block and may_wait() and self.wait(lambda: self.count < self.limit, deadline)):
            raise RemotingTooMuchRequestError(
                f"Too many messages in flight ({self.limit:,}): the message was not sent.",
                remedy="Send slower, or raise the producer's max_in_flight.",
            )

    def wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait for a condition of the counts; False if it is not true in time. Slots may be freed one by one."""
        if is_loop_thread():
            self.take()
            return condition()
        loop_thread().post(self.take)
        woken: SimpleQueue[None] = SimpleQueue()
        self._waiting.append(woken.put)
        while not condition():
            rest = deadline - time.monotonic()
            if rest <= 0:
                return False
            try:
                woken.get(True, min(rest, RECHECK_S))
            except Empty:
                continue
            self._waiting.append(woken.put)
        return True

    # --- the loop ---------------------------------------------------------------------------------------------

    def take(self) -> None:
        """Take what callers have handed over. A message counts as handed over until it counts as taken."""
        handed = self._inbox.look()
        while handed:
            try:
                handed[0].taken()
            except BaseException:  # including SystemExit of a callback
                logger.exception("message not taken")
            handed.popleft()
        if self._waiting:
            self._wake()

    def release(self, messages: int) -> None:
        self.taken -= messages
        if self._waiting and self.count <= self._wake_at:
            self._wake()

    def _wake(self) -> None:
        for _ in range(len(self._waiting)):
            self._waiting.popleft()(None)

    # --- sends, on the loop -------------------------------------------------------------------------------------

    def add(self, send: Send) -> None:
        self.sends[send] = None

    def remove(self, send: Send) -> bool:
        """Remove a send that has ended; False if it was removed before."""
        return self.sends.pop(send, send) is None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which sends are retried, and the timeout of a request."""

    sync_retries: int
    async_retries: int
    when_not_stored_safely: bool
    response_codes: frozenset[int]
    max_timeout_per_request: float | None

    def should_retry(self, error: RocketError) -> bool:
        """Whether to retry the send on another broker or queue."""
        if isinstance(error, MessageTooLargeError):
            return False
        return may_be_stale(error) or error.response_code in self.response_codes

    def request_timeout(self, seconds: float) -> float:
        """Return the timeout of a request; ``seconds`` remain for all attempts."""
        most = self.max_timeout_per_request
        return seconds if most is None or seconds < most else most


@dataclass(slots=True, eq=False)
class Pipeline:
    """The shared state of a running producer's sends."""

    group: str
    instance: ClientInstance
    router: Router
    faults: FaultStrategy
    in_flight: InFlight
    policy: RetryPolicy
    hooks: Hooks | None
    stats: SendStats
    closed: bool = False
    statuses: dict[str, SendStatus] = field(default_factory=dict)  # of the last message that each broker stored
    often: RateLimited = field(default_factory=partial(RateLimited, logger, 60.0))
    post: Callable[[Callable[[], object]], object] = lambda call: loop_thread().post(call)  # after a fork a new one
    hook_thread: CallbackThread = field(default_factory=partial(CallbackThread, "rocket-hooks"))
    batch_thread: CallbackThread = field(default_factory=partial(CallbackThread, "rocket-accumulator"))

    def send_oneway(
        self, out: Outgoing, message: Message | Sequence[Message], fixed: MessageQueue | None, deadline: float
    ) -> None:
        queue, address = (fixed, "") if fixed else self.router.choose(out.topic, None, deadline)
        if self.hooks is not None:
            self.hooks.before(SendContext(self.group, message, queue, "oneway"))
        address = address or self.router.address(queue, deadline)
        request = out.request(self.group, queue)
        self.instance.remoting.invoke_oneway(address, request, self.policy.request_timeout(time_left(deadline)))

    def close(self) -> None:
        """End all sends in flight."""
        self.closed = True
        ended: Promise[None] = Promise()

        def end_all() -> None:
            self.in_flight.take()
            for send in list(self.in_flight.sends):
                send.close(closed_error())
            ended.resolve(None)

        if is_loop_thread() or not loop_thread().is_alive():
            end_all()
            return
        loop_thread().post(end_all)
        with contextlib.suppress(TimeoutError):  # the loop ends with the interpreter
            ended.result(LOOP_MARGIN_S)

    def needs_this_thread(self) -> bool:
        """Whether sends in flight depend on the current thread: they would wait for a hook that waits for them."""
        threads = self.hook_thread, self.batch_thread, self.instance.tasks
        return is_loop_thread() or any(thread.is_current() for thread in threads)

    def may_block(self, message: Message, where: QueueChoice) -> bool:
        """Whether ``send_async`` may wait for the route, a free slot, or a broker that does not read."""
        return self.in_flight.count >= self.in_flight.limit or self.may_wait_for(message, where)

    def may_wait_for(self, message: Message, where: QueueChoice) -> bool:
        """Whether an attempt may wait for the route, or a broker that does not read."""
        return self.instance.remoting.is_paused or not self.router.knows(message, where)

    def may_wait(self) -> bool:
        return not self.instance.remoting.is_loop_thread()

    # --- attempts ---------------------------------------------------------------------------------------------

    def answered(
        self, out: Outgoing, queue: MessageQueue, address: str, seconds: float, response: RemotingCommand
    ) -> SendResult:
        """Return the result of an attempt, or raise the error that its response tells."""
        broker = queue.broker_name
        if self.faults.enabled:
            self.faults.update(broker, seconds)
        if response.code not in STORED_CODES:
            raise self.refused(response, address, out.code, queue.topic)
        result = out.result(queue, response)
        if self.statuses.get(broker, SendStatus.SEND_OK) is not result.status:
            self._note_status(broker, result.status)
        self.stats.sent(out.topic, out.count, len(out.body), seconds)
        return result

    def failed(self, out: Outgoing, queue: MessageQueue, address: str, seconds: float, error: BaseException) -> None:
        """Note an attempt that failed."""
        if isinstance(error, RemotingError):
            self.faults.update(queue.broker_name, seconds, isolated=True)
            if isinstance(error, RemotingConnectError) and address:
                self.instance.routes.mark_unavailable(address)
        self.stats.failed(out.topic, seconds)

    def _note_status(self, broker: str, status: SendStatus) -> None:
        """Log a broker's first message with another status than the one before, not on the loop: handlers may send."""
        self.statuses[broker] = status
        self.hook_thread.submit(partial(self._log_status, broker, status))

    def _log_status(self, broker: str, status: SendStatus) -> None:
        if status is SendStatus.SEND_OK:
            logger.info("broker %s stores messages with SEND_OK again", broker)
        else:
            self.often.warning((broker, status), "broker %s stores messages with status %s", broker, status.name)

    def refused(self, response: RemotingCommand, address: str, code: int, topic: str) -> ClientError:
        request = RemotingCommand.request(code, {"b": topic})
        return self.instance.refusal(request, response, address, f"the send to {topic}", topic)


class Send(Submitted):
    """One send, and the request of its current attempt. ``places`` is its number of slots in flight.

    ``fixed`` is the queue if it must not change.
    """

    promise: Promise[SendResult]
    _first: Callable[[], object]  # the call that makes the first attempt
    _pieces: Pieces = ()  # the encoded request of an attempt that was not sent yet
    _waiting: Callable[[object], object] | None = None
    """Passes a call, or the outcome, to the thread that waits, if one does."""
    _due_hooks: Callable[[], object] | None = None
    """The call of the hooks after an attempt, until it begins."""
    _stored: SendResult | None = None
    """The result of the last attempt that stored the message: the outcome, whatever fails or ends the send later."""
    places = 1
    mode = "async"

    def __init__(
        self,
        pipeline: Pipeline,
        out: Outgoing,
        messages: Message | Sequence[Message],
        fixed: MessageQueue | None,
        timeout: float,
        deadline: float,
    ) -> None:
        self.code = out.code
        self._pipeline = pipeline
        self._out = out
        self._messages = messages
        self._fixed = fixed
        self._time = timeout  # of all attempts
        self._until = deadline
        self._retries = 0 if fixed is not None else pipeline.policy.async_retries
        self._last_broker: str | None = None
        self._queue: MessageQueue | None = fixed
        self._address = ""
        self._begun = 0.0
        self._context: SendContext | None = None

    def send_async(self) -> Promise[SendResult]:
        """Start the send and return a promise. Waits for a slot, the route, and the kernel's socket buffer."""
        self.promise = Promise()
        in_flight = self._pipeline.in_flight
        in_flight.await_place(self._until, self._pipeline.may_wait)
        self._first = self.attempt()
        in_flight.hand_over(self)
        return self.promise

    def send(self) -> SendResult:
        """Return the result, or raise the error. Uses no slot in flight."""
        self.mode, self.places = "sync", 0
        if self._fixed is None:
            self._retries = self._pipeline.policy.sync_retries
        calls: SimpleQueue[Any] = SimpleQueue()  # and finally the outcome
        self._waiting = calls.put
        try:
            self._first = self.attempt()
            self._pipeline.post(self.taken)
            while callable(next_ := calls.get(True, max(0.0, self._until - time.monotonic()) + LOOP_MARGIN_S)):
                next_()
        except BaseException as cause:
            error = self._late(None) if isinstance(cause, Empty) else interrupted_error(self._out.topic, cause)
            self._pipeline.post(partial(self._left, error))
            if isinstance(cause, Empty):  # the loop, which reports the deadline, has ended with the interpreter
                raise error from None
            raise
        if isinstance(next_, SendResult):
            return next_
        raise next_

    def _left(self, error: RemotingError) -> None:
        """End a send whose caller does not wait any more."""
        if self.connection is not None:
            self.connection.forget(self)
        self.close(error)
        if self._due_hooks is not None:
            self._pipeline.hook_thread.submit(self._call_due_hooks)

    def taken(self) -> None:
        in_flight, first = self._pipeline.in_flight, self._first
        del self._first  # a reference to itself: only the garbage collector would free it
        in_flight.taken += self.places
        in_flight.add(self)
        if self._pipeline.closed:
            self.close(closed_error())
        else:
            first()

    def attempt_on_own_thread(self) -> Callable[[], object]:
        """Prepare an attempt on a thread of the producer, where any error of a hook, even SystemExit, ends the send."""
        try:
            return self.attempt()
        except BaseException as cause:
            return partial(self.end, None, interrupted_error(self._out.topic, cause))

    def attempt(self) -> Callable[[], object]:
        """Prepare an attempt, and return the call that makes it. May block."""
        pipeline, out, deadline = self._pipeline, self._out, self._until
        self._begun = time.monotonic()
        try:
            if self._begun >= deadline:
                raise self._late(None)
            queue, address = self._fixed, ""
            if queue is None:
                queue, address = pipeline.router.choose(out.topic, self._last_broker, deadline)
            self._queue = queue
            if pipeline.hooks is not None:
                self._context = SendContext(pipeline.group, self._messages, queue, self.mode)
                pipeline.hooks.before(self._context)
        except Exception as error:
            return partial(self.end, None, error)
        try:
            now = self._begun
            if not address:
                address, now = pipeline.router.address(queue, deadline), time.monotonic()
            self._address = address
            request = out.request(pipeline.group, queue)
            self.begin(pipeline.policy.request_timeout(max(0.001, deadline - now)), now)
            if self._retries > 0:  # use at most half of the time for connecting
                self.connect_by = min(self.deadline, (self._begun + deadline) / 2)
            self._pieces = pipeline.instance.remoting.prepare(address, request, self)
            return self._launch
        except RocketError as error:
            return partial(self.respond, None, error)
        except Exception as error:
            return partial(self.end, None, error)

    def _launch(self) -> None:
        pieces, self._pieces = self._pieces, ()
        if self.connection is not None and self in self._pipeline.in_flight.sends:
            self.connection.send(self, pieces)

    def fail(self, error: BaseException) -> None:
        assert isinstance(error, RocketError)
        self.respond(None, error)

    def respond(self, response: RemotingCommand | None, error: RocketError | None = None) -> None:
        pipeline, queue, out = self._pipeline, self._queue, self._out
        if queue is None or self not in pipeline.in_flight.sends:
            return  # it has ended in the meantime
        spent = time.monotonic() - self._begun
        result: SendResult | None = None
        if response is not None:
            try:
                self._stored = result = pipeline.answered(out, queue, self._address, spent, response)
            except RocketError as failure:
                error = failure
            except Exception as failure:
                self.end(None, failure)
                return
        if error is not None:
            pipeline.failed(out, queue, self._address, spent, error)
        self._hooked(self._conclude, result, error)

    def _conclude(self, result: SendResult | None, error: RocketError | None) -> None:
        if self in self._pipeline.in_flight.sends:
            self._retry_or_end(result, error)

    def _retry_or_end(self, result: SendResult | None, error: RocketError | None) -> None:
        """End the send, or make another attempt."""
        policy, in_time = self._pipeline.policy, time.monotonic() < self._until
        if result is not None:
            unsafe = result.status is not SendStatus.SEND_OK and policy.when_not_stored_safely
            again = unsafe and self._retries > 0 and in_time
        else:
            assert error is not None
            again = self._retries > 0 and policy.should_retry(error)
            if again and not in_time:
                error, again = self._late(error), False
        if not again:
            self.end(result, error)
        elif self._pipeline.closed:
            self.end(None, closed_error())
        else:
            assert self._queue is not None
            self._retries -= 1
            self._pipeline.stats.of(self._out.topic).retries += 1
            self._last_broker = self._queue.broker_name
            self._retry(error is not None and may_be_stale(error))

    def _retry(self, refresh: bool) -> None:
        instance = self._pipeline.instance
        if self._waiting is None:
            instance.remoting.call_at(self._until, lambda: self.end(None, self._late(None)))
        (self._waiting or instance.later)(partial(self._next, refresh))

    def _next(self, refresh: bool) -> None:
        if self in self._pipeline.in_flight.sends:
            if refresh:
                self._pipeline.router.refresh(self._out.topic, self._until)
            self._pipeline.post(self.attempt() if self._waiting is not None else self.attempt_on_own_thread())

    def _hooked(
        self, then: Callable[[SendResult | None, Any], object], result: SendResult | None, error: Exception | None
    ) -> None:
        """Call the hooks after an attempt, if there are any, then ``then(result, error)``."""
        context, self._context = self._context, None
        if context is None:
            then(result, error)
        else:
            context.result, context.error, context.broker_address = result, error, self._address
            self._due_hooks = partial(self._run_hooks, context, partial(then, result, error))
            (self._waiting or self._pipeline.hook_thread.submit)(self._call_due_hooks)

    def _call_due_hooks(self) -> None:
        call, self._due_hooks = self._due_hooks, None
        if call is not None:
            call()

    def _run_hooks(self, context: SendContext, then: Callable[[], object]) -> None:
        assert self._pipeline.hooks is not None
        try:
            self._pipeline.hooks.after(context)
        finally:
            self._pipeline.post(then)

    def _late(self, error: RocketError | None) -> RemotingTimeoutError:
        return late_error(self._out.topic, self._time, error)

    def end(self, result: SendResult | None, error: Exception | None) -> None:
        """End the send, after its hooks."""
        if self in self._pipeline.in_flight.sends:
            self._hooked(self._settle, result, error)

    def close(self, error: RocketError) -> None:
        """End the send now, without waiting for its hooks."""
        self._hooked(lambda *_: None, None, error)
        self._settle(None, error)

    def _settle(self, result: SendResult | None, error: Exception | None) -> None:
        """Settle the promise, once."""
        in_flight = self._pipeline.in_flight
        if not in_flight.remove(self):
            return
        if self._stored is not None:
            result, error = self._stored, None
        in_flight.release(self.places)
        pass_on: Callable[[Any], object] = self._succeeded if error is None else self._failed
        if self._waiting is not None:
            self._waiting(error or result)
        elif self.connection is not None:
            with_callbacks_on(self.connection.callbacks, pass_on, error or result)
        else:
            pass_on(error or result)

    def _succeeded(self, result: SendResult) -> None:
        self.promise.resolve(result)

    def _failed(self, error: Exception) -> None:
        self.promise.fail(error)


def may_be_stale(error: RocketError) -> bool:
    """Whether a refreshed route may help: the broker is unavailable, or the topic has fewer queues than cached."""
    return isinstance(error, RemotingError | QueueNotFoundError)


def late_error(topic: str, timeout: float, error: RocketError | None) -> RemotingTimeoutError:
    """Return the error for an exceeded deadline; ``error`` is that of the last attempt."""
    why = "" if error is None else f" {error.message}"
    return RemotingTimeoutError(
        f"The send to {topic} did not complete within {timeout:g} s.{why}",
        remedy="The message may have been stored. A longer timeout leaves time for more attempts.",
    )


def interrupted_error(topic: str, cause: BaseException) -> RemotingError:
    return RemotingError(
        f"The send to {topic} was interrupted: {type(cause).__name__}.", remedy="The message may have been stored."
    )


def closed_error() -> StateError:
    return StateError("The producer was closed before the send completed.", remedy="The message may have been stored.")
