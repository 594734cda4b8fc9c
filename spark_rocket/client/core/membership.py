"""The groups that a client instance belongs to: heartbeats, goodbyes, timed work, and what brokers ask of members.

===================  ==============================================================================================
every 30 s           a heartbeat with all groups to every broker of every topic in use (slaves: for consumers only),
                     and at once when a group joins; connections to brokers that no route names any more are closed
every 5 s            ``persist_offsets`` of each consumer
every 20 s           ``rebalance`` of each consumer, and at once on NOTIFY_CONSUMER_IDS_CHANGED (40) or when asked
===================  ==============================================================================================

Each has a thread of its own: the last two wait for brokers and listeners, which must not hold a heartbeat up. Requests
of brokers run on a few threads of their own, never on one that reads a connection: they may call brokers themselves.
What a member's method raises is logged and stops nothing else. All threads start with the first member and end with the
last, and none keeps the interpreter from ending.

Thread-safety: all methods. After a fork the child has no members: they live in the parent.
Corresponds to the tables and scheduled tasks of MQClientInstance, RebalanceService and ClientRemotingProcessor.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Protocol, TypeVar

from spark_rocket.client.core.config import ClientConfig
from spark_rocket.client.core.responses import RETRIABLE_CODES, sentence
from spark_rocket.client.core.routes import RouteTable
from spark_rocket.errors import GroupInUseError, RemotingError, RocketError, SubscriptionRefusedError
from spark_rocket.protocol.filter.tags import TYPE_TAG
from spark_rocket.protocol.wire.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import NotifyConsumerIdsChangedRequestHeader, UnregisterClientRequestHeader
from spark_rocket.remoting.client.client import RemotingClient

logger = logging.getLogger(__name__)

GOODBYE_SECONDS = 1.0
CALLBACK_THREADS = 4

RequestHandler = Callable[[str, RemotingCommand], RemotingCommand | None]
Member = TypeVar("Member")


class ProducerMember(Protocol):
    """A producer that brokers can reach."""

    @property
    def group(self) -> str: ...


class ConsumerMember(Protocol):
    """A consumer, as its instance sees it."""

    @property
    def group(self) -> str: ...

    def consumer_data(self) -> ConsumerData:
        """What the heartbeat says of it."""

    def rebalance(self) -> None:
        """Find out which queues are its own now, and act on it. May block."""

    def persist_offsets(self) -> None:
        """Tell brokers, or the disk, how far it is. May block."""


class Membership:
    """Members of one client instance. ``later`` runs work that may block on a thread of the instance's."""

    def __init__(
        self,
        config: ClientConfig,
        remoting: RemotingClient,
        routes: RouteTable,
        client_id: Callable[[], str],
        later: Callable[[Callable[[], object]], None],
    ) -> None:
        self._config = config
        self._remoting = remoting
        self._routes = routes
        self._client_id = client_id
        self._later = later
        self._lock = threading.Lock()
        self._heartbeat_lock = threading.Lock()
        self._known_addresses: set[str] = set()
        self._begin()
        self.handlers: dict[int, RequestHandler] = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ids_changed}
        """What brokers may ask, by request code; an answer of None is none. Modules of members add theirs."""

    def _begin(self) -> None:
        self.producers: dict[str, ProducerMember] = {}
        self.consumers: dict[str, ConsumerMember] = {}
        self._stop = threading.Event()
        self._rebalance_now = threading.Event()
        self._threads: list[threading.Thread] = []
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._answering = 0  # threads

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._heartbeat_lock = threading.Lock()
        self._known_addresses = set()
        self._begin()

    # --- joining and leaving ----------------------------------------------------------------------------------

    def join_producer(self, producer: ProducerMember, *, wait: bool = True) -> None:
        """Register a producer's group and tell the brokers; without ``wait``, soon, for one of them may hang.

        GroupInUseError if another producer here has it.
        """
        self._join(self.producers, producer.group, producer, "producer")
        if wait:
            self.send_heartbeats()
        else:
            self._later(self.send_heartbeats)

    def join_consumer(self, consumer: ConsumerMember) -> None:
        """Register a consumer's group and tell the brokers.

        GroupInUseError if another consumer here has it, SubscriptionRefusedError if a broker cannot filter so.
        """
        self.check_filters(consumer.group, consumer.consumer_data().subscription_data_set)
        self._join(self.consumers, consumer.group, consumer, "consumer")
        self.send_heartbeats()

    def _join(self, table: dict[str, Member], group: str, member: Member, kind: str) -> None:
        with self._lock:
            if table.get(group, member) is not member:
                raise GroupInUseError(
                    f"This process has a {kind} of group {group!r} already, over the same connections.",
                    remedy=f"Use that {kind}, close it first, or give this one an instance_name of its own.",
                )
            table[group] = member
            self._start_threads()

    def check_filters(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Ask brokers whether they can choose by expressions that are no tags (46). SubscriptionRefusedError if not.

        As the original takes it, the brokers of a topic are set alike: the first that answers speaks for all. While
        none can be asked, nothing is refused; the pulls will tell.
        """
        for data in subscriptions:
            if data.expression_type != TYPE_TAG:
                self._check_filter(group, data)

    def _check_filter(self, group: str, data: SubscriptionData) -> None:
        """What the first broker of the topic that answers says of one subscription."""
        what = f"the subscription of {group} to {data.topic} by {data.expression_type} {data.sub_string!r}"
        try:
            brokers = self._routes.route(data.topic).brokers.values()
        except RocketError as error:  # a topic that is waited for, or no name server now
            logger.info("%s could not be checked: %s", what, error)
            return
        body = CheckClientRequestBody(self._client_id(), group, subscription_data=data).to_json()
        for addresses in brokers:
            address = addresses[min(addresses)]
            request = RemotingCommand.request(RequestCode.CHECK_CLIENT_CONFIG, {}, body)
            try:
                answer = self._remoting.invoke(address, request, self._config.request_timeout)
            except RemotingError as error:
                logger.info("%s could not be checked: %s", what, error)
                continue
            if answer.code == ResponseCode.SUCCESS:
                return
            if answer.code not in RETRIABLE_CODES:
                raise SubscriptionRefusedError(
                    f"Broker {address} refused {what}: {sentence(answer.remark or 'no remark')}",
                    remedy="Correct the expression."
                    if answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
                    else "Set enablePropertyFilter=true at the brokers, or subscribe by tags.",
                    response_code=answer.code,
                )

    def leave_producer(self, producer: ProducerMember) -> None:
        with self._lock:
            if self.producers.get(producer.group) is not producer:
                return
            del self.producers[producer.group]
        self._say_goodbye(producer_group=producer.group)
        self._stop_if_alone()

    def leave_consumer(self, consumer: ConsumerMember) -> None:
        with self._lock:
            if self.consumers.get(consumer.group) is not consumer:
                return
            del self.consumers[consumer.group]
        self._say_goodbye(consumer_group=consumer.group)
        self._stop_if_alone()

    def _say_goodbye(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        header = UnregisterClientRequestHeader(
            client_id=self._client_id(), producer_group=producer_group, consumer_group=consumer_group
        )
        pending = []
        for address in self._routes.broker_addresses(slaves=consumer_group is not None):
            if self._remoting.is_connected(address):
                request = RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header.to_ext())
                pending.append(self._remoting.invoke_async(address, request, GOODBYE_SECONDS))
        for answer in pending:
            error = answer.exception()
            if error is not None:  # the broker finds out by itself, when the connection closes
                logger.info("no goodbye to a broker: %s", error)

    # --- heartbeats -------------------------------------------------------------------------------------------

    def heartbeat_data(self) -> HeartbeatData:
        with self._lock:
            producers, consumers = list(self.producers), list(self.consumers.values())
        return HeartbeatData(
            self._client_id(),
            [ProducerData(group) for group in producers],
            [consumer.consumer_data() for consumer in consumers],
        )

    def send_heartbeats(self) -> None:
        """One to every broker in use. Brokers that are away are passed over: they get the next one."""
        with self._heartbeat_lock:
            data = self.heartbeat_data()
            if not data.producer_data_set and not data.consumer_data_set:
                return
            addresses = self._routes.broker_addresses(slaves=bool(data.consumer_data_set))
            for gone in self._known_addresses.difference(addresses):
                self._remoting.disconnect(gone)
            self._known_addresses = set(addresses)
            body = data.to_json()
            pending = [(address, self._send_heartbeat(address, body)) for address in addresses]
            for address, answer in pending:
                try:
                    said = answer.result()
                    if said.code != ResponseCode.SUCCESS:
                        logger.warning("broker %s refused a heartbeat: %d, %s", address, said.code, said.remark)
                except RemotingError as error:
                    logger.info("no heartbeat to broker %s: %s", address, error)

    def greet_new_brokers(self) -> None:
        """Heartbeats at once, if routes name brokers that have had none: they must know a group before it pulls."""
        with self._lock:
            slaves = bool(self.consumers)
        if not self._known_addresses.issuperset(self._routes.broker_addresses(slaves=slaves)):
            self.send_heartbeats()

    def _send_heartbeat(self, address: str, body: bytes) -> Future[RemotingCommand]:
        request = RemotingCommand.request(RequestCode.HEART_BEAT, {}, body)
        return self._remoting.invoke_async(address, request, self._config.request_timeout)

    # --- timed work -------------------------------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Have every consumer look at its share of the queues at once."""
        self._rebalance_now.set()

    def rebalance(self) -> None:
        """One round of the thread."""
        self._for_each(lambda consumer: consumer.rebalance(), "rebalance")

    def persist_offsets(self) -> None:
        """One round of the thread."""
        self._for_each(lambda consumer: consumer.persist_offsets(), "persist_offsets")

    def _for_each(self, action: Callable[[ConsumerMember], None], what: str) -> None:
        with self._lock:
            consumers = list(self.consumers.values())
        for consumer in consumers:
            try:
                action(consumer)
            except RocketError as error:
                logger.warning("%s of consumer group %s: %s", what, consumer.group, error)
            except Exception:
                logger.exception("%s of consumer group %s failed", what, consumer.group)

    def _start_threads(self) -> None:
        if not self._threads:
            self._stop = threading.Event()
            self._rebalance_now = threading.Event()
            for name, work in (
                ("rocket-heartbeat", self._keep_in_touch),
                ("rocket-offsets", self._keep_offsets),
                ("rocket-rebalance", self._keep_balanced),
            ):
                thread = threading.Thread(target=work, args=(self._stop,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _keep_in_touch(self, stop: threading.Event) -> None:
        while not stop.wait(self._config.heartbeat_interval):
            try:
                self.send_heartbeats()
            except Exception:
                logger.exception("a round of heartbeats failed")

    def _keep_offsets(self, stop: threading.Event) -> None:
        while not stop.wait(self._config.persist_interval):
            self.persist_offsets()

    def _keep_balanced(self, stop: threading.Event) -> None:
        wake = self._rebalance_now
        while not stop.is_set():
            wake.wait(self._config.rebalance_interval)
            wake.clear()
            if not stop.is_set():
                self.rebalance()

    def _stop_if_alone(self) -> None:
        with self._lock:
            if not self.producers and not self.consumers:
                self._stop_threads()

    def _stop_threads(self) -> None:
        self._stop.set()
        self._rebalance_now.set()
        self._threads = []
        for _ in range(self._answering):
            self._asked.put(None)
        self._answering = 0

    def close(self) -> None:
        with self._lock:
            self._stop_threads()

    # --- what brokers ask -------------------------------------------------------------------------------------

    def handle(self, address: str, request: RemotingCommand) -> RemotingCommand | None:
        """Called on a connection's reading thread: the work is done elsewhere, the answer sent from there."""
        handler = self.handlers.get(request.code)
        if handler is None:
            return RemotingCommand.response(
                request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request code {request.code} is not supported"
            )
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            return handler(address, request)
        with self._lock:
            self._asked.put(lambda: self._answer(handler, address, request))
            if self._answering < CALLBACK_THREADS:
                self._answering += 1
                name = f"rocket-callback-{self._answering}"
                threading.Thread(target=self._answer_forever, args=(self._asked,), name=name, daemon=True).start()
        return None

    def _answer_forever(self, asked: SimpleQueue[Callable[[], None] | None]) -> None:
        while (work := asked.get()) is not None:
            work()

    def _answer(self, handler: RequestHandler, address: str, request: RemotingCommand) -> None:
        try:
            answer = handler(address, request)
        except Exception as error:
            logger.exception("request code %d of broker %s failed", request.code, address)
            answer = RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        if answer is not None and not request.is_oneway:
            self._remoting.reply(address, answer)

    def _ids_changed(self, address: str, request: RemotingCommand) -> None:
        group = NotifyConsumerIdsChangedRequestHeader.from_ext(request.ext_fields).consumer_group
        logger.info("broker %s says that the members of %s changed", address, group)
        if group in self.consumers:
            self.rebalance_soon()
