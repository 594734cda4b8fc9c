"""Groups of a client instance: heartbeats, unregistration, periodic work, and requests of brokers to members.

===================  ==============================================================================================
every 30 s           a heartbeat with all groups to every broker of every topic in use (slaves: only for consumers), and
                     immediately when a group joins; connections to brokers without a route are closed
every 5 s            ``persist_offsets`` of each consumer
every 20 s           ``rebalance`` of each consumer, and immediately on NOTIFY_CONSUMER_IDS_CHANGED (40) or on request
===================  ==============================================================================================

Heartbeats are sent on the event loop. The other two wait for brokers and listeners, so each has a daemon thread while
there are consumers. Requests of brokers run on the callback thread of their connection: they may block and call brokers
themselves. An exception of a member's method is logged and stops nothing else.

After a fork the child has no members: they belong to the parent. Corresponds to the tables and scheduled tasks of
MQClientInstance, RebalanceService and ClientRemotingProcessor.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Protocol, TypeVar

from spark_rocket.client.core.client_config import ClientConfig
from spark_rocket.client.core.responses import RETRIABLE_CODES, error_of, sentence
from spark_rocket.client.core.routes import Routes
from spark_rocket.common.logs import errors_logged
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
from spark_rocket.remoting import failures
from spark_rocket.remoting.client.remoting_client import RemotingClient, RequestHandler
from spark_rocket.remoting.event_loop import loop_thread

logger = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_S = 1.0

Member = TypeVar("Member")


async def log_failure(broker: str, what: str, request: Awaitable[RemotingCommand]) -> None:
    """Wait for the response of a broker, given by its name or address, to a heartbeat or an unregistration.

    Failures are only logged: the next heartbeat, or the end of the connection, corrects them.
    """
    try:
        response = await request
        if response.code != ResponseCode.SUCCESS:
            logger.warning("%s", error_of(response, f"broker {broker}", what).text)
    except RocketError as error:
        logger.info("%s at broker %s failed: %s", what, broker, error)


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
    """The members of one client instance."""

    def __init__(
        self, config: ClientConfig, remoting: RemotingClient, routes: Routes, client_id: Callable[[], str]
    ) -> None:
        self._config = config
        self._remoting = remoting
        self._routes = routes
        self._client_id = client_id
        self.after_fork()
        self.handlers: dict[int, RequestHandler] = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ids_changed}
        """Handlers of brokers' requests, by request code; None means no response. Member modules add theirs."""

    def after_fork(self) -> None:
        """Start without members."""
        self._lock = threading.RLock()
        self._heartbeat_lock = asyncio.Lock()  # an earlier heartbeat must not arrive after a later one
        self._known_addresses: set[str] = set()
        self.producers: dict[str, ProducerMember] = {}
        self.consumers: dict[str, ConsumerMember] = {}
        self._rebalance_now = threading.Event()
        self._stop: threading.Event | None = None  # while there are consumers
        self._tasks: set[asyncio.Task[None]] = set()
        self._regular: asyncio.Task[None] | None = None

    # --- joining and leaving ----------------------------------------------------------------------------------

    def join_producer(self, producer: ProducerMember, *, wait: bool = True) -> None:
        """Register a producer's group at the brokers; without ``wait`` in the background, because a broker may hang.

        GroupInUseError if another producer of this instance has the group.
        """
        self._join(self.producers, producer.group, producer, "producer")
        if wait:
            self.send_heartbeats()
        else:
            loop_thread().post(lambda: self._spawn(self._send_heartbeats()))

    def join_consumer(self, consumer: ConsumerMember) -> None:
        """Register a consumer's group at the brokers.

        GroupInUseError if another consumer of this instance has the group, SubscriptionRefusedError if a broker does
        not support the filter.
        """
        self.check_filters(consumer.group, consumer.consumer_data().subscription_data_set)
        self._join(self.consumers, consumer.group, consumer, "consumer")
        self.send_heartbeats()

    def _join(self, table: dict[str, Member], group: str, member: Member, kind: str) -> None:
        self._client_id()  # looks up an address, which must not block the event loop
        with self._lock:
            if table.get(group, member) is not member:
                raise GroupInUseError(
                    f"This process already has a {kind} of group {group!r} with the same connections.",
                    remedy=f"Use that {kind}, close it first, or set another instance_name for this one.",
                )
            table[group] = member
            self._switch()

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
                response = self._remoting.invoke(address, request, self._config.request_timeout)
            except RemotingError as error:
                logger.info("%s not checked: %s", what, error)
                continue
            if response.code == ResponseCode.SUCCESS:
                return
            if response.code not in RETRIABLE_CODES:
                raise SubscriptionRefusedError(
                    f"Broker {address} rejected {what}: {sentence(response.remark or 'no remark')}",
                    remedy="Correct the expression."
                    if response.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
                    else "Set enablePropertyFilter=true at the brokers, or subscribe by tags.",
                    response_code=response.code,
                )

    def leave_producer(self, producer: ProducerMember) -> None:
        if self._leave(self.producers, producer.group, producer):
            self._unregister(producer_group=producer.group)

    def leave_consumer(self, consumer: ConsumerMember) -> None:
        if self._leave(self.consumers, consumer.group, consumer):
            self._unregister(consumer_group=consumer.group)

    def _leave(self, table: dict[str, Member], group: str, member: Member) -> bool:
        with self._lock:
            if table.get(group) is not member:
                return False
            del table[group]
            self._switch()
            return True

    def _unregister(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        header = UnregisterClientRequestHeader(
            client_id=self._client_id(), producer_group=producer_group, consumer_group=consumer_group
        )
        addresses = self._routes.broker_addresses(slaves=consumer_group is not None)
        connected = [address for address in addresses if self._remoting.is_connected(address)]
        what = f"unregistration of {header.client_id}"
        ext, seconds = header.to_ext(), UNREGISTER_TIMEOUT_S
        loop_thread().run(self._ask_each, connected, RequestCode.UNREGISTER_CLIENT, ext, b"", what, seconds)

    async def _ask_each(
        self, addresses: list[str], code: int, ext: dict[str, str], body: bytes, what: str, seconds: float
    ) -> None:
        ask = self._remoting.requests.invoke
        each = ((address, RemotingCommand.request(code, dict(ext), body)) for address in addresses)
        await asyncio.gather(*(log_failure(address, what, ask(address, request, seconds)) for address, request in each))

    # --- heartbeats -------------------------------------------------------------------------------------------

    def heartbeat_data(self) -> HeartbeatData:
        return HeartbeatData(
            self._client_id(),
            [ProducerData(group) for group in list(self.producers)],
            [consumer.consumer_data() for consumer in list(self.consumers.values())],
        )

    def send_heartbeats(self) -> None:
        """Send a heartbeat to every broker in use. Unavailable brokers are skipped until the next round."""
        loop_thread().run(self._send_heartbeats)

    def register_at_new_brokers(self) -> None:
        """Send heartbeats if routes contain new brokers: a broker must know a group before its first pull."""
        if not self._known_addresses.issuperset(self._routes.broker_addresses(slaves=bool(self.consumers))):
            self.send_heartbeats()

    async def _send_heartbeats(self) -> None:
        async with self._heartbeat_lock:
            data = self.heartbeat_data()
            if not data.producer_data_set and not data.consumer_data_set:
                return
            addresses = self._routes.broker_addresses(slaves=bool(data.consumer_data_set))
            for gone in self._known_addresses.difference(addresses):
                self._remoting.disconnect(gone)
            self._known_addresses = set(addresses)
            body, seconds = data.to_json(), self._config.request_timeout
            await self._ask_each(addresses, RequestCode.HEART_BEAT, {}, body, "a heartbeat", seconds)

    async def _send_heartbeats_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat_interval)
            try:
                await self._send_heartbeats()
            except Exception:
                logger.exception("heartbeats failed")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = loop_thread().loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _switch_heartbeats(self, on: bool) -> None:
        if on and self._regular is None:
            self._regular = self._spawn(self._send_heartbeats_regularly())
        elif not on and self._regular is not None:
            self._regular.cancel()
            self._regular = None

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
            with errors_logged(logger, "%s of consumer group %s failed", what, consumer.group):
                try:
                    action(consumer)
                except RocketError as error:
                    logger.warning("%s of consumer group %s: %s", what, consumer.group, error)

    def _switch(self) -> None:
        """Start or stop the periodic tasks after a change of members, with the lock held."""
        loop_thread().post(partial(self._switch_heartbeats, bool(self.producers or self.consumers)))
        if not self.consumers and self._stop is not None:
            self._stop.set()
            self._rebalance_now.set()
            self._stop = None
        elif self.consumers and self._stop is None:
            self._stop = stop = threading.Event()
            wake = self._rebalance_now = threading.Event()
            config = self._config
            for name, interval, event, work in (
                ("rocket-offsets", config.persist_interval, stop, self.persist_offsets),
                ("rocket-rebalance", config.rebalance_interval, wake, self.rebalance),
            ):
                threading.Thread(target=_repeat, args=(work, interval, event, stop), name=name, daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self.producers, self.consumers = {}, {}
            self._switch()

    # --- requests of brokers ----------------------------------------------------------------------------------

    def handle(self, address: str, request: RemotingCommand) -> RemotingCommand | None:
        """Called on the callback thread of a connection, so a handler may block."""
        handler = self.handlers.get(request.code)
        if handler is None:
            return failures.not_supported(request)
        return handler(address, request)

    def _ids_changed(self, address: str, request: RemotingCommand) -> None:
        group = NotifyConsumerIdsChangedRequestHeader.from_ext(request.ext_fields).consumer_group
        logger.info("members of group %s changed, reported by broker %s", group, address)
        if group in self.consumers:
            self.rebalance_soon()


def _repeat(work: Callable[[], None], interval: float, wake: threading.Event, stop: threading.Event) -> None:
    """Call ``work`` every ``interval`` seconds, and when ``wake`` is set, until ``stop`` is."""
    while True:
        wake.wait(interval)
        if stop.is_set():
            return
        wake.clear()
        work()
