"""Sends that nobody waits for: one object from the first attempt to the last answer.

An :class:`AsyncSend` is the waiter of its own request. Its time-out covers all attempts: connecting, waiting for an
answer, waiting for the next attempt's turn. The first attempt is made on the caller's thread, the next ones on the
instance's, since connecting blocks. It ends exactly once: whoever takes it out of ``InFlight`` tells the future.

Thread-safety: all of it. Corresponds to MQClientAPIImpl.{sendMessageAsync, onExceptionImpl} and to the semaphores of
DefaultMQProducerImpl's back pressure.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING
from typing import TYPE_CHECKING, Any, Protocol

from spark_rocket.client.core.hooks import SendContext
from spark_rocket.client.send.outgoing import STORED_CODES, Outgoing
from spark_rocket.errors import RemotingConnectError, RemotingError, RemotingTooMuchRequestError, RocketError
from spark_rocket.model import Message, MessageQueue, SendResult, SendStatus
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.connection import Request

if TYPE_CHECKING:
    from spark_rocket.client.send.producer import Producer

logger = logging.getLogger(__name__)


LOOK_AGAIN = 0.01  # seconds after which a send that waits for a place looks whether there is one


class SendFuture(Future[SendResult]):
    """A future that cannot be cancelled: the message is on its way.

    Most are done before anybody waits: the condition, the dearest part of a future, is made for the first who asks.
    """

    _lazy: threading.Condition | None = None
    _state = PENDING
    _result: Any = None  # SendResult, or SharedResult of a batch
    _index = 0  # in a batch
    _exception: BaseException | None = None
    _waiters: list[Any]
    _done_callbacks: list[Any]

    def __init__(self) -> None:
        pass  # the class has what Future's own would set

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # typeshed has an attribute
        condition = self._lazy
        if condition is None:
            with _first:
                condition = self._lazy
                if condition is None:
                    self._waiters, self._done_callbacks = [], []
                    condition = self._lazy = threading.Condition()
        return condition

    def cancel(self) -> bool:
        return False

    def is_over(self) -> bool:
        """``done``, without what a first question costs."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> SendResult:
        result = self._result  # mostly it is there already, and no lock is needed
        if result is None:
            result = super().result(timeout)
        return result if isinstance(result, SendResult) else result.of(self._index)

    def set_result(self, result: SendResult) -> None:
        settle((self,), result)

    def _invoke_callbacks(self) -> None:
        """Who sets one future may have others to set: a call-back's SystemExit is logged like any other error."""
        try:
            super()._invoke_callbacks()  # type: ignore[misc]  # it has no public name
        except KeyboardInterrupt:
            raise
        except BaseException:
            logger.exception("a call-back of a send failed")


_first = threading.Lock()
"""Held by the first who asks a future, and by who settles futures that perhaps nobody has asked."""


def _after_fork_in_child() -> None:
    global _first
    _first = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class SharedResult(Protocol):
    """What became of a batch: each of its messages has a result of its own, made when it is asked for."""

    def of(self, index: int) -> SendResult: ...


def settle(futures: Sequence[SendFuture], result: SendResult | SharedResult) -> None:
    """``set_result`` of the futures of a batch."""
    asked: list[SendFuture] = []
    with _first:
        for index, future in enumerate(futures):
            future._index = index
            if future._lazy is None:
                future._result = result
                future._state = FINISHED
            else:
                asked.append(future)
    for future in asked:
        Future[Any].set_result(future, result)


class InFlight:
    """The sends that are not over, counted in messages. At the limit the next one waits or is refused.

    ``lock`` guards ``count``. The accumulator has its own things under it too: one lock for a message, not two.
    """

    def __init__(self, limit: int, *, block: bool) -> None:
        self.limit = limit
        self._wake_at = limit - limit // 8  # who waits is woken for many places, not for each
        self._block = block
        self.count = 0
        self._waiting = 0
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._sends: dict[AsyncSend, None] = {}

    def reserve(self, deadline: float, may_wait: Callable[[], bool], send: AsyncSend) -> None:
        """Take a place for one message of ``send``. RemotingTooMuchRequestError if none is in time."""
        with self.lock:
            if self.count >= self.limit:
                self.await_place(deadline, may_wait)
            self.count += 1
            self._sends[send] = None

    def await_place(self, deadline: float, may_wait: Callable[[], bool]) -> None:
        """With the lock, given back meanwhile: wait until there is a place. RemotingTooMuchRequestError if none is.

        Also looks by itself: places may come back one by one.
        """
        if self._block and may_wait():
            while not self._wait(lambda: self.count < self.limit, min(deadline, time.monotonic() + LOOK_AGAIN)):
                if time.monotonic() >= deadline:
                    break
            else:
                return
        raise RemotingTooMuchRequestError(
            f"{self.limit:,} messages are in flight already; this one was not sent.",
            remedy="Send more slowly, or raise the producer's max_in_flight.",
        )

    def release(self, count: int) -> None:
        """Give places back."""
        with self.lock:
            self.count -= count
            if self._waiting and self.count <= self._wake_at:
                self._changed.notify_all()

    def add(self, send: AsyncSend) -> None:
        """A send that has places already."""
        self._sends[send] = None

    def remove(self, send: AsyncSend, count: int) -> bool:
        """It is over; False if it was before."""
        try:
            del self._sends[send]
        except KeyError:
            return False
        try:
            with self.lock:
                self.count -= count
                count = 0
                if self._waiting and self.count <= self._wake_at:
                    self._changed.notify_all()
        except BaseException:  # interrupted while it waited for the lock, or just after
            if count:
                self.release(count)
            raise
        return True

    def has(self, send: AsyncSend) -> bool:
        return send in self._sends

    def sends(self) -> list[AsyncSend]:
        return list(self._sends)

    def wait_until_empty(self, deadline: float) -> bool:
        with self.lock:
            return self._wait(lambda: not self.count, deadline)

    def _wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        self._waiting += 1
        try:
            return self._changed.wait_for(condition, max(0.0, deadline - time.monotonic()))
        finally:
            self._waiting -= 1


class AsyncSend:
    """See the module. ``fixed`` is the queue if it may not be changed."""

    __slots__ = (
        "_address",
        "_begun",
        "_context",
        "_deadline",
        "_fixed",
        "_last_broker",
        "_messages",
        "_out",
        "_producer",
        "_queue",
        "_retries",
        "_timeout",
        "future",
    )

    count = 1

    def __init__(
        self,
        producer: Producer,
        out: Outgoing,
        messages: Message | Sequence[Message],
        fixed: MessageQueue | None,
        timeout: float,
        deadline: float,
    ) -> None:
        self.future = SendFuture()
        self._producer = producer
        self._out = out
        self._messages = messages
        self._fixed = fixed
        self._timeout = timeout
        self._deadline = deadline
        self._retries = 0 if fixed is not None else producer.retry_times_when_send_async_failed
        self._last_broker: str | None = None
        self._queue = fixed
        self._address = ""
        self._begun = 0.0
        self._context: SendContext | None = None

    def start(self) -> None:
        """Take a place in flight and make the first attempt. Whoever is interrupted has it end here."""
        try:
            self._enter()
            self._attempt()
        except BaseException as error:
            self._over(None, interrupted(self._out.topic, error))
            raise

    def _enter(self) -> None:
        self._producer.in_flight.reserve(self._deadline, self._producer.may_wait, self)

    def _attempt(self) -> None:
        producer = self._producer
        try:
            instance = producer.running()
            now = self._begun = time.monotonic()
            if now >= self._deadline:
                raise producer.late(self._out.topic, self._timeout, None)
            queue, address = self._fixed, ""
            if queue is None:
                queue, address = producer.destinations.choose(self._out.topic, self._last_broker, self._deadline)
            self._queue = queue
            if producer.hooks is not None:
                self._context = SendContext(producer.group, self._messages, queue, "async")
                producer.hooks.before(self._context)
            self._address = address or producer.destinations.address(queue, self._deadline)
            request = self._out.request(producer.group, queue)
            if self._retries > 0:
                producer.connect(self._address, self._deadline)
            attempt = _Attempt(self, int(request.code), producer.allowance(self._deadline))
            instance.remoting.submit(self._address, request, attempt)
        except RemotingError as error:
            self.fail(error)
        except Exception as error:
            self._over(None, error)

    # --- what came of it --------------------------------------------------------------------------------------

    def complete(self, answer: RemotingCommand) -> None:
        """For the connection."""
        queue = self._queue
        assert queue is not None
        producer = self._producer
        spent, out = time.monotonic() - self._begun, self._out
        if producer.faults.enabled:
            producer.faults.update(queue.broker_name, spent)
        try:
            if answer.code not in STORED_CODES:
                raise producer.refused(answer, self._address, queue.topic)
            result = out.result(queue, answer)
            producer.stats.sent(out.topic, out.count, len(out.body), spent)
        except RocketError as error:
            producer.stats.failed(out.topic, spent)
            self._tell_hooks(None, error)
            self._again_or_over(error)
            return
        except Exception as error:
            self._over(None, error)
            return
        self._tell_hooks(result, None)
        if (
            result.status is not SendStatus.SEND_OK
            and producer.retry_another_broker_when_not_store_ok
            and self._retries > 0
        ):
            self._again()
        else:
            self._over(result, None)

    def fail(self, error: RemotingError) -> None:
        """For the connection."""
        if not self.needed():
            return
        producer = self._producer
        producer.stats.failed(self._out.topic, time.monotonic() - self._begun)
        if self._queue is not None:
            producer.faults.update(self._queue.broker_name, time.monotonic() - self._begun, isolated=True)
        if isinstance(error, RemotingConnectError) and self._address:
            shared = producer.shared
            if shared is not None:
                shared.routes.went_away(self._address)
        self._tell_hooks(None, error)
        self._again_or_over(error)

    def _tell_hooks(self, result: SendResult | None, error: Exception | None) -> None:
        context, hooks = self._context, self._producer.hooks
        if context is not None and hooks is not None:
            self._context = None
            context.result, context.error, context.broker_address = result, error, self._address
            hooks.after(context)

    def _again_or_over(self, error: RocketError) -> None:
        if self._retries > 0 and self._producer.may_go_elsewhere(error):
            if time.monotonic() < self._deadline:
                self._again()
                return
            error = self._producer.late(self._out.topic, self._timeout, error)
        self._over(None, error)

    def _again(self) -> None:
        shared = self._producer.shared
        if shared is None:
            self._over(None, self._producer.closed())
            return
        self._retries -= 1
        self._producer.stats.of(self._out.topic).retries += 1
        self._last_broker = self._queue.broker_name if self._queue is not None else None
        shared.remoting.timer.call_at(self._deadline, self.expire)
        shared.later(self._next)

    def _next(self) -> None:
        if self.needed():
            self._producer.destinations.refresh(self._out.topic, self._deadline)
            self._attempt()

    def needed(self) -> bool:
        """For the timer."""
        return self._producer.in_flight.has(self)

    def expire(self) -> None:
        """For the timer: still waiting for its next attempt, or in it."""
        self._over(None, self._producer.late(self._out.topic, self._timeout, None))

    def abandon(self) -> None:
        """The producer is closed."""
        self._over(None, self._producer.closed())

    def _over(self, result: SendResult | None, error: Exception | None) -> None:
        in_flight = self._producer.in_flight
        try:
            if not in_flight.remove(self, self.count):
                return
            if error is not None:
                self._tell_hooks(None, error)
                self._failed(error)
            else:
                assert result is not None
                self._succeeded(result)
        except BaseException as cause:  # an interrupt: its place was given back, and now everybody is told
            if not in_flight.has(self):
                self._fail_rest(interrupted(self._out.topic, cause))
            raise

    def _succeeded(self, result: SendResult) -> None:
        self.future.set_result(result)

    def _failed(self, error: Exception) -> None:
        self.future.set_exception(error)

    def _fail_rest(self, error: Exception) -> None:
        if not self.future.is_over():
            self.future.set_exception(error)


class _Attempt(Request):
    """The request of one attempt."""

    def __init__(self, send: AsyncSend, code: int, timeout: float) -> None:
        super().__init__(code, timeout, batch=True)
        self._send = send

    def answer(self, command: RemotingCommand) -> None:
        self._send.complete(command)

    def fail(self, error: BaseException) -> bool:
        assert isinstance(error, RemotingError)
        self._send.fail(error)
        return True


def interrupted(topic: str, cause: BaseException) -> RemotingError:
    return RemotingError(
        f"The send to {topic} was interrupted: {type(cause).__name__}.", remedy="It may have been stored or not."
    )
