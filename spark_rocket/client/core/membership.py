"""Groups of a client instance: heartbeats, unregistration, periodic work, and requests of brokers to members.

===================  ==============================================================================================
every 30 s           a heartbeat with all groups to every broker of every topic in use (slaves: only for consumers), and
                     immediately when a group joins; connections to brokers without a route are closed
every 5 s            ``persist_offsets`` of each consumer
every 20 s           ``rebalance`` of each consumer, and immediately on NOTIFY_CONSUMER_IDS_CHANGED (40) or on request
===================  ==============================================================================================

Each task has its own thread: the last two wait for brokers and listeners, which must not delay a heartbeat. Requests of
brokers run on the callback thread of their connection, so that they may block and call brokers themselves. An exception
of a member's method is logged and stops nothing else. All threads start with the first member and end with the last;
they are daemon threads.

Thread-safety: all methods. After a fork the child has no members: they belong to the parent.
Corresponds to the tables and scheduled tasks of MQClientInstance, RebalanceService and ClientRemotingProcessor.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from spark_rocket.client.core.config import ClientConfig
from spark_rocket.client.core.responses import RETRIABLE_CODES, sentence
from spark_rocket.client.core.routes import RouteTable
from spark_rocket.errors import GroupInUseError, RemotingError, RocketError, SubscriptionRefusedError
from spark_rocket.protocol.filter.tags import TYPE_TAG
from spark_rocket.protocol.wire.bodies.client import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.membership import (
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from spark_rocket.remoting.client.client import RemotingClient

logger = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_S = 1.0

RequestHandler = Callable[[str, RemotingCommand], RemotingCommand | None]
Member = TypeVar("Member")


class ProducerMember(Protocol):
    """A registered producer."""

    @property
    def group(self) -> str: ...


class ConsumerMember(Protocol):
    """A registered consumer, as used by its instance."""

    @property
    def group(self) -> str: ...

    def consumer_data(self) -> ConsumerData:
        """Return the description of the consumer for the heartbeat."""

    def rebalance(self) -> None:
        """Determine the assigned queues, and start or stop consuming them. May block."""

    def persist_offsets(self) -> None:
        """Send the offsets to the brokers, or write them to disk. May block."""


class Membership:
    """The members of one client instance. ``later`` runs tasks that may block on a thread of the instance."""

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
        """Handlers of brokers' requests, by request code; None means no response. Member modules add theirs."""

    def _begin(self) -> None:
        self.producers: dict[str, ProducerMember] = {}
        self.consumers: dict[str, ConsumerMember] = {}
        self._stop = threading.Event()
        self._rebalance_now = threading.Event()
        self._threads: list[threading.Thread] = []

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._heartbeat_lock = threading.Lock()
        self._known_addresses = set()
        self._begin()

    # --- joining and leaving ----------------------------------------------------------------------------------

    def join_producer(self, producer: ProducerMember, *, wait: bool = True) -> None:
        """Register a producer's group at the brokers; without ``wait`` in the background, as a broker may hang.

        GroupInUseError if another producer of this instance has the group.
        """
        self._join(self.producers, producer.group, producer, "producer")
        if wait:
            self.send_heartbeats()
        else:
            self._later(self.send_heartbeats)

    def join_consumer(self, consumer: ConsumerMember) -> None:
        """Register a consumer's group at the brokers.

        GroupInUseError if another consumer of this instance has the group, SubscriptionRefusedError if a broker does
        not support the filter.
        """
        self.check_filters(consumer.group, consumer.consumer_data().subscription_data_set)
        self._join(self.consumers, consumer.group, consumer, "consumer")
        self.send_heartbeats()

    def _join(self, table: dict[str, Member], group: str, member: Member, kind: str) -> None:
        with self._lock:
            if table.get(group, member) is not member:
                raise GroupInUseError(
                    f"This process already has a {kind} of group {group!r} with the same connections.",
                    remedy=f"Use that {kind}, close it first, or set another instance_name for this one.",
                )
            table[group] = member
            self._start_threads()

    def check_filters(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Check that brokers support expressions other than tags (46). SubscriptionRefusedError if not.

        As in the original, the brokers of a topic are expected to have the same settings: the first response counts.
        While no broker is available, nothing is rejected; the pulls report the error.
        """
        for data in subscriptions:
            if data.expression_type != TYPE_TAG:
                self._check_filter(group, data)

    def _check_filter(self, group: str, data: SubscriptionData) -> None:
        """Check one subscription at the first broker of the topic that responds."""
        what = f"the subscription of {group} to {data.topic} by {data.expression_type} {data.sub_string!r}"
        try:
            brokers = self._routes.route(data.topic).brokers.values()
        except RocketError as error:  # the topic does not exist yet, or no name server is available
            logger.info("%s not checked: %s", what, error)
            return
        body = CheckClientRequestBody(self._client_id(), group, subscription_data=data).to_json()
        for addresses in brokers:
            address = addresses[min(addresses)]
            request = RemotingCommand.request(RequestCode.CHECK_CLIENT_CONFIG, {}, body)
            try:
                answer = self._remoting.invoke(address, request, self._config.request_timeout)
            except RemotingError as error:
                logger.info("%s not checked: %s", what, error)
                continue
            if answer.code == ResponseCode.SUCCESS:
                return
            if answer.code not in RETRIABLE_CODES:
                raise SubscriptionRefusedError(
                    f"Broker {address} rejected {what}: {sentence(answer.remark or 'no remark')}",
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
        self._unregister(producer_group=producer.group)
        self._stop_if_alone()

    def leave_consumer(self, consumer: ConsumerMember) -> None:
        with self._lock:
            if self.consumers.get(consumer.group) is not consumer:
                return
            del self.consumers[consumer.group]
        self._unregister(consumer_group=consumer.group)
        self._stop_if_alone()

    def _unregister(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        header = UnregisterClientRequestHeader(
            client_id=self._client_id(), producer_group=producer_group, consumer_group=consumer_group
        )
        pending = []
        for address in self._routes.broker_addresses(slaves=consumer_group is not None):
            if self._remoting.is_connected(address):
                request = RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header.to_ext())
                pending.append(self._remoting.invoke_async(address, request, UNREGISTER_TIMEOUT_S))
        for answer in pending:
            error = answer.exception()
            if error is not None:  # the broker unregisters the client when the connection closes
                logger.info("client not unregistered at a broker: %s", error)

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
        """Send a heartbeat to every broker in use. Unavailable brokers are skipped until the next round."""
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
                    response = answer.result()
                    if response.code != ResponseCode.SUCCESS:
                        logger.warning(
                            "broker %s rejected a heartbeat: %d, %s", address, response.code, response.remark
                        )
                except RemotingError as error:
                    logger.info("heartbeat to broker %s failed: %s", address, error)

    def register_at_new_brokers(self) -> None:
        """Send heartbeats if routes contain new brokers: a broker must know a group before its first pull."""
        with self._lock:
            slaves = bool(self.consumers)
        if not self._known_addresses.issuperset(self._routes.broker_addresses(slaves=slaves)):
            self.send_heartbeats()

    def _send_heartbeat(self, address: str, body: bytes) -> Future[RemotingCommand]:
        request = RemotingCommand.request(RequestCode.HEART_BEAT, {}, body)
        return self._remoting.invoke_async(address, request, self._config.request_timeout)

    # --- timed work -------------------------------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Trigger a rebalance of every consumer."""
        self._rebalance_now.set()

    def rebalance(self) -> None:
        """Rebalance all consumers once."""
        self._for_each(lambda consumer: consumer.rebalance(), "rebalance")

    def persist_offsets(self) -> None:
        """Persist the offsets of all consumers once."""
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
                ("rocket-heartbeat", self._heartbeat_loop),
                ("rocket-offsets", self._offsets_loop),
                ("rocket-rebalance", self._rebalance_loop),
            ):
                thread = threading.Thread(target=work, args=(self._stop,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _heartbeat_loop(self, stop: threading.Event) -> None:
        while not stop.wait(self._config.heartbeat_interval):
            try:
                self.send_heartbeats()
            except Exception:
                logger.exception("heartbeats failed")

    def _offsets_loop(self, stop: threading.Event) -> None:
        while not stop.wait(self._config.persist_interval):
            self.persist_offsets()

    def _rebalance_loop(self, stop: threading.Event) -> None:
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

    def close(self) -> None:
        with self._lock:
            self._stop_threads()

    # --- requests of brokers ----------------------------------------------------------------------------------

    def handle(self, address: str, request: RemotingCommand) -> RemotingCommand | None:
        """Called on the callback thread of a connection, so a handler may block."""
        handler = self.handlers.get(request.code)
        if handler is None:
            return RemotingCommand.response(
                request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request code {request.code} is not supported"
            )
        return handler(address, request)

    def _ids_changed(self, address: str, request: RemotingCommand) -> None:
        group = NotifyConsumerIdsChangedRequestHeader.from_ext(request.ext_fields).consumer_group
        logger.info("members of group %s changed, reported by broker %s", group, address)
        if group in self.consumers:
            self.rebalance_soon()
