"""Messages that are delivered only if a local transaction commits.

::

    class Orders(TransactionListener):
        def execute_local_transaction(self, message, arg):
            save(arg, message.properties["UNIQ_KEY"])
            return LocalTransactionState.COMMIT_MESSAGE

        def check_local_transaction(self, message):
            saved = was_saved(message.properties["UNIQ_KEY"])
            return LocalTransactionState.COMMIT_MESSAGE if saved else LocalTransactionState.ROLLBACK_MESSAGE

    with TransactionProducer("orders", Orders()) as producer:
        producer.send_in_transaction(Message.of("paid", "…"), order)

The broker stores the message invisibly; then the local transaction is executed; then its result is sent to the broker
one-way. If the result is missing (the listener returned UNKNOW, the process crashed, a connection was lost), the broker
queries a member of the producer group: after 6 s, then every 30 s, up to 15 times. So a listener must know the results
of transactions of other members and of earlier processes; the UNIQ_KEY of a message is the id of its transaction. A
commit may be executed twice, but never partially.

If a listener raises an exception or returns anything but a LocalTransactionState, the result is UNKNOW.

Thread-safety: all methods; checks run one after another on a thread of the producer.
Corresponds to org.apache.rocketmq.client.producer.{TransactionMQProducer, TransactionListener, LocalTransactionState,
TransactionSendResult}.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from enum import Enum
from functools import partial
from typing import Any, Protocol

from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.client.core.membership import Membership
from spark_rocket.client.core.trace import decided
from spark_rocket.client.core.validators import check_group, check_topic
from spark_rocket.client.send.producer import Producer
from spark_rocket.client.send.request_reply import register_and_wait
from spark_rocket.common.logs import RateLimited
from spark_rocket.common.system import time_left
from spark_rocket.errors import ClientError, RocketError
from spark_rocket.model import (
    AUTO_CREATE_TOPIC_KEY,
    DELAY,
    PRODUCER_GROUP,
    TRAN_MSG,
    UNIQ_KEY,
    Message,
    MessageExt,
    SendResult,
    SendStatus,
)
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.namespace import Namespace
from spark_rocket.protocol.record.layout import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from spark_rocket.remoting.client.remoting_client import RequestHandler

logger = logging.getLogger(__name__)
_often = RateLimited(logger)

MAX_PENDING_CHECKS = 2_000
"""Further checks are dropped: the broker repeats them."""
_TIMES = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")


class LocalTransactionState(Enum):
    """The result of a local transaction. UNKNOW (RocketMQ's spelling): not known yet; the broker queries it later."""

    COMMIT_MESSAGE = "COMMIT_MESSAGE"
    ROLLBACK_MESSAGE = "ROLLBACK_MESSAGE"
    UNKNOW = "UNKNOW"


_ON_THE_WIRE = {
    LocalTransactionState.COMMIT_MESSAGE: TRANSACTION_COMMIT,
    LocalTransactionState.ROLLBACK_MESSAGE: TRANSACTION_ROLLBACK,
    LocalTransactionState.UNKNOW: TRANSACTION_NONE,
}


class TransactionListener(Protocol):
    """The local transactions of a producer group."""

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        """Execute the transaction; called when the broker has stored the message, before it is visible to consumers."""

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Return the result of an earlier transaction, on request of the broker."""


@dataclass(slots=True, unsafe_hash=True)
class TransactionSendResult(SendResult):
    """A stored half message, and the result of its local transaction."""

    local_transaction_state: LocalTransactionState = LocalTransactionState.UNKNOW
    local_exception: Exception | None = None
    """The exception of the listener."""


class TransactionProducer(Producer):
    """Sends messages in transactions. ``settings`` are those of a Producer, whose send methods are available too.

    Checks are received from the brokers of ``topics``, from those with automatic topic creation, and from those of
    every topic sent to.
    """

    def __init__(
        self, group: str, listener: TransactionListener, *, topics: Iterable[str] = (), **settings: Any
    ) -> None:
        for name in ("execute_local_transaction", "check_local_transaction"):
            if not callable(getattr(listener, name, None)):
                raise ClientError(
                    f"The transaction listener of group {group!r} has no {name}.",
                    remedy="Pass a TransactionListener: an object with both methods.",
                )
        super().__init__(check_group(group), **settings)
        self._listener = listener
        self._topics = {AUTO_CREATE_TOPIC_KEY, *(check_topic(topic) for topic in topics)}

    def _begin(self) -> None:
        super()._begin()
        self._checks: ThreadPoolExecutor | None = None
        self._pending_checks = threading.Semaphore(MAX_PENDING_CHECKS + 1)  # and the running one

    def _join(self, instance: ClientInstance, wait: bool, deadline: float) -> None:
        """Register at the brokers known by the deadline; without ``wait`` in the background."""
        self._checks = ThreadPoolExecutor(1, thread_name_prefix="rocket-transaction-check")
        instance.members.handlers[RequestCode.CHECK_TRANSACTION_STATE] = _check_handler(
            instance.members, instance.config.namespace
        )
        instance.members.join_producer(self, wait=False)
        self._find_routes(deadline)
        if wait:
            register_and_wait(instance, deadline)
        else:
            instance.later(instance.members.register_at_new_brokers)
        instance.call_later(instance.config.heartbeat_interval, self._keep_routes)

    def close(self) -> None:
        """Leave the group. Its other members handle checks of undecided transactions."""
        shared = self._shared
        if shared is not None and self._checks is not None:
            shared.members.leave_producer(self)
            self._checks.shutdown(wait=False, cancel_futures=True)
        super().close()

    def send_in_transaction(
        self, message: Message, arg: Any = None, *, timeout: float | None = None
    ) -> TransactionSendResult:
        """Store a half message, execute the local transaction, and send its result to the broker.

        The listener gets ``arg`` and the message as sent, with its UNIQ_KEY and without any delay, which transactional
        messages cannot have. If the message cannot be stored, the error is raised and nothing is executed. With a
        status other than SEND_OK, nothing is executed and the transaction is rolled back. ``timeout`` covers everything
        before the local transaction.
        """
        seconds = self._send_timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        instance = self._start(wait=False, deadline=deadline).instance
        half = self._half(instance, message)
        sent = self.send(half, timeout=time_left(deadline))
        self._topics.add(message.topic)
        state, error = LocalTransactionState.ROLLBACK_MESSAGE, None
        if sent.status is SendStatus.SEND_OK:
            what = f"local transaction of {half.properties[UNIQ_KEY]}"
            state, error = _state_of(lambda: self._listener.execute_local_transaction(half, arg), what)
        else:
            text = "rolled back transaction %s: broker %s stores messages with status %s"
            broker = sent.queue.broker_name
            _often.warning(("status", broker, sent.status), text, sent.msg_id, broker, sent.status.name)
        header = EndTransactionRequestHeader(
            producer_group=self.group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=decode_offset_msg_id(sent.offset_msg_id)[1],
            commit_or_rollback=_ON_THE_WIRE[state],
            msg_id=sent.msg_id,
            topic=sent.queue.topic,
            transaction_id=sent.transaction_id,
            broker_name=sent.queue.broker_name,
        )
        self._end(partial(instance.routes.master, sent.queue), half, header, state, error, seconds)
        stored = {field.name: getattr(sent, field.name) for field in fields(sent)}
        return TransactionSendResult(**stored, local_transaction_state=state, local_exception=error)

    def _half(self, instance: ClientInstance, message: Message) -> Message:
        properties = {name: value for name, value in message.properties.items() if name != DELAY and name not in _TIMES}
        properties.setdefault(UNIQ_KEY, instance.next_key())
        properties[TRAN_MSG] = "true"
        properties[PRODUCER_GROUP] = self.group
        return Message(message.topic, message.body, properties, message.flag)

    def _end(
        self,
        find_broker: Callable[[float], str],
        message: Message,
        header: EndTransactionRequestHeader,
        state: LocalTransactionState,
        error: Exception | None,
        seconds: float,
    ) -> None:
        """Send the result of a transaction to the broker, one-way. A failure is logged: the broker checks later."""
        deadline = time.monotonic() + seconds
        request = RemotingCommand.request(RequestCode.END_TRANSACTION, header.to_ext(), oneway=True)
        if error is not None:
            request.remark = f"the listener raised {type(error).__name__}: {error}"
        try:
            address = find_broker(time_left(deadline))
            if self.tracer is not None:
                event = decided(
                    self.group,
                    message,
                    msg_id=header.msg_id,
                    transaction_id=header.transaction_id,
                    state=state.value,
                    store_host=address,
                    check=header.from_transaction_check,
                )
                self.tracer.append(event)
            self.instance().remoting.invoke_oneway(address, request, time_left(deadline))
        except RocketError as failure:
            text = "result of transaction %s not sent, it will be checked: %s"
            _often.warning(("result", header.broker_name), text, header.msg_id, failure)

    # --- checks of brokers ------------------------------------------------------------------------------------

    def check(self, address: str, header: CheckTransactionStateRequestHeader, message: MessageExt) -> None:
        """Handle a check: the listener is called and the result sent on another thread."""
        checks = self._checks
        if checks is None or not self._pending_checks.acquire(blocking=False):
            text = "dropped check of broker %s for transaction %s: too many pending"
            _often.warning(("check", address), text, address, message.msg_id)
            return
        try:
            job = checks.submit(self._check, address, header, message)
            job.add_done_callback(lambda _: self._pending_checks.release())
        except RuntimeError:  # just closed
            logger.info("dropped check of broker %s for transaction %s: closed", address, message.msg_id)

    def _check(self, address: str, header: CheckTransactionStateRequestHeader, message: MessageExt) -> None:
        what = f"check of transaction {message.msg_id}"
        state, error = _state_of(lambda: self._listener.check_local_transaction(message), what)
        result = EndTransactionRequestHeader(
            producer_group=self.group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=_ON_THE_WIRE[state],
            msg_id=message.msg_id,
            topic=message.topic,
            from_transaction_check=True,
            transaction_id=header.transaction_id,
            broker_name=header.broker_name,
        )
        self._end(lambda _: address, message, result, state, error, self._send_timeout)

    def _find_routes(self, deadline: float | None = None) -> None:
        routes = self.instance().routes
        for topic in sorted(self._topics):
            try:
                routes.route(topic, None if deadline is None else time_left(deadline))
            except RocketError as error:
                logger.info("no route of topic %s yet: %s", topic, error)

    def _keep_routes(self) -> None:
        """Keep the routes in use, so that heartbeats go to these brokers even without sends."""
        shared = self._shared
        if shared is not None:
            self._find_routes()
            shared.call_later(shared.config.heartbeat_interval, self._keep_routes)


def _state_of(call: Callable[[], object], what: str) -> tuple[LocalTransactionState, Exception | None]:
    """Call the listener; an exception or an invalid result counts as UNKNOW."""
    try:
        returned = call()
    except Exception as error:
        logger.exception("%s failed", what)
        return LocalTransactionState.UNKNOW, error
    if isinstance(returned, LocalTransactionState):
        return returned, None
    logger.error("listener returned %r, not a LocalTransactionState: handled as UNKNOW", returned)
    return LocalTransactionState.UNKNOW, None


def _check_handler(members: Membership, namespace: Namespace) -> RequestHandler:
    """Return the handler of CHECK_TRANSACTION_STATE (39) for all producers of an instance."""

    def handle(address: str, request: RemotingCommand) -> None:
        header = CheckTransactionStateRequestHeader.from_ext(request.ext_fields)
        (message,) = decode_messages(bytes(request.body), namespace=namespace)
        group = message.properties.get(PRODUCER_GROUP, "")
        producer = members.producers.get(group)
        if isinstance(producer, TransactionProducer):
            producer.check(address, header, message)
        else:
            text = "ignored check of broker %s: no transaction producer of group %r"
            _often.warning(("group", address, group), text, address, group)

    return handle
