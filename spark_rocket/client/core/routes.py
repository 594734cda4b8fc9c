"""Routes of topics: fetched from the name servers, cached, and refreshed while in use.

A route is fetched on first use of its topic. From then on one daemon thread refreshes it every 30 s if the topic was
used in the last two minutes. Routes of other topics are fetched again on their next use, and the thread ends when no
topic is left. After a lost connection the thread refreshes immediately, but at most once a second, because the broker
may have a new address. A send to a topic without a writable queue refreshes the route as well.

A cached route is never dropped because a refresh failed. While a broker restarts, its name server reports that the
topic does not exist; the last known route, with the connection error that it causes, is more useful. Only a broker that
reports the topic as missing removes it.

Ordered messages (with a selector or a sharding key) choose among queues that remain when their master is unavailable:
they fail rather than overtake earlier messages. Queues of a broker that disappeared from the route are therefore
retained for them for the life of the process. Removed queues of a broker that is still in the route, and queues without
write permission (``rocket broker drain``), are dropped. A topic's ORDER_TOPIC_CONFIG at the name server overrides this.

Reads go to the master. They go to a slave while the master is unavailable, or when the master suggested it for the
queue, which it does for messages that are no longer in its memory.

Name servers are tried in turn, starting with the one that responded last.

Thread-safety: all methods. After a fork the child retains the routes and starts its own thread when needed.
Corresponds to MQClientInstance's topicRouteTable and TopicPublishInfo.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from spark_rocket.client.core.config import DEFAULT_NAME_SERVER, ClientConfig
from spark_rocket.client.core.responses import error_of, topic_not_found
from spark_rocket.errors import (
    NameServerUnreachableError,
    QueueNotFoundError,
    RemotingError,
    RocketError,
    TopicNotFoundError,
)
from spark_rocket.model import AUTO_CREATE_TOPIC_KEY, MessageQueue
from spark_rocket.protocol.wire.bodies.route import MASTER_ID, MAX_QUEUES, MAX_ROUTE_QUEUES, TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.routes import GetRouteInfoRequestHeader
from spark_rocket.remoting.client.client import RemotingClient
from spark_rocket.remoting.tls.problems import error_text

logger = logging.getLogger(__name__)

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
DEFAULT_TOPIC_QUEUES = 4
MIN_REFRESH_INTERVAL_S = 1.0  # the minimum interval of refreshes after lost connections
UNAVAILABLE_SECONDS = 30.0  # how long reads avoid an address after a failed request


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The queues of a topic and the addresses of its brokers, by id; 0 is the master."""

    topic: str
    readable: tuple[MessageQueue, ...]
    writable: tuple[MessageQueue, ...]
    brokers: dict[str, dict[int, str]]
    masters: dict[str, str]
    data: TopicRouteData
    ordered: tuple[MessageQueue, ...] = ()  # the queues for ordered messages

    @classmethod
    def of(cls, topic: str, data: TopicRouteData, known: TopicRoute | None = None) -> TopicRoute:
        """Build a route. ``known`` is the previously cached route. ProtocolError for a route of too many queues."""
        data.check_queues(topic)
        brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
        readable: list[MessageQueue] = []
        writable: list[MessageQueue] = []
        for queues in sorted(data.queue_datas, key=lambda queues: queues.broker_name):
            addresses = brokers.get(queues.broker_name)
            if queues.readable and addresses:
                readable += (MessageQueue(topic, queues.broker_name, i) for i in range(queues.read_queue_nums))
            if queues.writable and addresses and MASTER_ID in addresses:
                writable += (MessageQueue(topic, queues.broker_name, i) for i in range(queues.write_queue_nums))
        masters = {name: addresses[MASTER_ID] for name, addresses in brokers.items() if MASTER_ID in addresses}
        if data.order_topic_conf:
            ordered = order_queues(topic, data.order_topic_conf)
        else:
            ordered = [
                MessageQueue(topic, queues.broker_name, i)
                for queues in data.queue_datas
                if queues.writable and queues.broker_name in brokers
                for i in range(queues.write_queue_nums)
            ]
            there = {queues.broker_name for queues in data.queue_datas if queues.broker_name in brokers}
            retained = [queue for queue in (known.ordered if known else ()) if queue.broker_name not in there]
            ordered += retained[: MAX_ROUTE_QUEUES - len(ordered)]
        return cls(topic, tuple(readable), tuple(writable), brokers, masters, data, tuple(sorted(ordered)))

    @property
    def unreadable(self) -> frozenset[str]:
        """Brokers that have the topic but no readable queue of it, because of its permission or queue count."""
        there = {queues.broker_name for queues in self.data.queue_datas if self.brokers.get(queues.broker_name)}
        return frozenset(there - {queue.broker_name for queue in self.readable})


def order_queues(topic: str, text: str) -> list[MessageQueue]:
    """Parse an ORDER_TOPIC_CONFIG: ``broker-a:4;broker-b:4``. At most ``MAX_ROUTE_QUEUES`` are returned."""
    queues: list[MessageQueue] = []
    for part in text.split(";"):
        broker, _, count = part.strip().rpartition(":")
        if broker and count.isascii() and count.isdecimal() and len(count) < 10:
            number = min(int(count), MAX_QUEUES, MAX_ROUTE_QUEUES - len(queues))
            queues += (MessageQueue(topic, broker, i) for i in range(number))
        elif part.strip():
            logger.warning("ORDER_TOPIC_CONFIG of topic %s: ignored %r, expected broker:queues", topic, part)
    return queues


class NameServers:
    """Sends requests to the name servers, one after the other until one responds."""

    def __init__(self, remoting: RemotingClient, config: ClientConfig) -> None:
        self.addresses = config.name_servers
        self._remoting = remoting
        self._timeout = config.request_timeout
        self._preferred = 0

    def ask(
        self, request: RemotingCommand, allowed: frozenset[int], what: str, timeout: float | None = None
    ) -> RemotingCommand:
        """Return the first response whose code is in ``allowed``. Other responses count as failures of that server.

        ``timeout`` limits the attempts together; without it each server gets the request timeout.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        refused: RocketError | None = None
        failures: list[str] = []
        first = self._preferred
        for step in range(len(self.addresses)):
            index = (first + step) % len(self.addresses)
            address = self.addresses[index]
            allowance = self._timeout
            if deadline is not None:
                # Reserve a share for the remaining servers: an unresponsive one must not use up all the time.
                left = deadline - time.monotonic()
                allowance = min(allowance, max(0.001, left / (len(self.addresses) - step)))
            try:
                answer = self._remoting.invoke(address, request, allowance)
            except RemotingError as error:
                failures.append(error_text(error))
                continue
            if answer.code in allowed:
                self._preferred = index
                return answer
            refused = error_of(answer, f"Name server {address}", what)
        if refused is not None:
            raise refused
        raise self._unreachable(failures)

    def ask_each(self, request: Callable[[], RemotingCommand], what: str) -> list[RemotingCommand]:
        """Return the responses of all name servers, for changes that go to each; an unavailable one is an error."""
        answers = []
        for address in self.addresses:
            try:
                answer = self._remoting.invoke(address, request(), self._timeout)
            except RemotingError as error:
                raise self._unreachable([error_text(error)]) from error
            if answer.code != ResponseCode.SUCCESS:
                raise error_of(answer, f"Name server {address}", what)
            answers.append(answer)
        return answers

    def _unreachable(self, failures: list[str]) -> NameServerUnreachableError:
        names = ", ".join(self.addresses)
        more = ""
        if self.addresses == (DEFAULT_NAME_SERVER,):
            more = (
                " This is the default address without nameServer and NAMESRV_ADDR. Spark only sees a variable that was"
                " set before the session started."
            )
        if any("was lost" in failure for failure in failures):
            more += " A server that requires TLS closes connections without it: set tls=true or --tls."
        return NameServerUnreachableError(
            f"No name server responded at {names}: {' '.join(failures)}",
            remedy="Check the address (the data source's option nameServer, the argument name_server, -n on the command"
            f" line, the variable NAMESRV_ADDR), or start a name server here with rocket up.{more}",
        )


class RouteTable:
    """Cached routes of topics and the addresses of their brokers."""

    def __init__(
        self,
        remoting: RemotingClient,
        config: ClientConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name_servers = NameServers(remoting, config)
        self._config = config
        self._clock = clock
        self._routes: dict[str, TopicRoute] = {}
        self._used: dict[str, float] = {}  # time of last use; only these topics are refreshed
        self._unavailable: dict[str, float] = {}  # addresses that failed, and until when to avoid them
        self._not_writable: dict[str, float] = {}  # topics without writable queues, and when to refresh them next
        self._suggested: dict[MessageQueue, int] = {}  # the broker id to pull from, if it is not the master's
        self.after_fork()

    def after_fork(self) -> None:
        """Replace threads and locks of the parent."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._refresher: threading.Thread | None = None

    def close(self) -> None:
        with self._lock:
            self._routes.clear()
            self._used.clear()
            self._suggested.clear()
        self._closed.set()
        self._wake.set()  # the thread finds no used topics and ends

    # --- routes -----------------------------------------------------------------------------------------------

    def route(self, topic: str, timeout: float | None = None) -> TopicRoute:
        """Return the route, fetched if unknown. Raises TopicNotFoundError or NameServerUnreachableError."""
        route = self._routes.get(topic)
        if route is None or topic not in self._used:
            return self.refresh(topic, timeout)
        self._used[topic] = self._clock()
        if self._refresher is None:  # in a forked child, or the thread has just ended
            with self._lock:
                self._start_refresher()
        return route

    def refresh(self, topic: str, timeout: float | None = None) -> TopicRoute:
        """Fetch the route now. If that fails, return the cached route."""
        known = self._routes.get(topic)
        try:
            route = TopicRoute.of(topic, self.fetch(topic, timeout), known)
        except RocketError as error:  # no such topic, no response, or a name server that is not ready
            if known is None:
                raise
            logger.info("route of topic %s not refreshed: %s", topic, error)
            self._used[topic] = self._clock()
            return known
        with self._lock:
            self._routes[topic] = route
            self._used[topic] = self._clock()
            self._start_refresher()
        return route

    def known(self, topic: str) -> TopicRoute | None:
        """Return a cached, used and writable route, as needed by most sends; otherwise None: see ``publish_route``."""
        route = self._routes.get(topic)
        if route is None or topic not in self._used or self._refresher is None or not route.writable:
            return None
        self._used[topic] = self._clock()
        return route

    def publish_route(self, topic: str, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        """Return the queues to send to; for a missing topic those that its automatic creation would give."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            route = self.route(topic, timeout)
        except TopicNotFoundError as error:
            left = None if deadline is None else max(0.001, deadline - time.monotonic())
            return self._queues_after_creation(topic, error, left)
        if not route.writable and self._clock() >= self._not_writable.get(topic, 0.0):
            # The master may be back, or a slave promoted. The limit protects the name server from frequent sends.
            self._not_writable[topic] = self._clock() + MIN_REFRESH_INTERVAL_S
            route = self.refresh(topic, None if deadline is None else max(0.001, deadline - time.monotonic()))
        if not route.writable:
            raise QueueNotFoundError(
                f"Topic {topic!r} has no writable queue.",
                remedy="Set write permission for the topic or its brokers (perm 6), or wait until a master is back.",
                retriable=True,
            )
        return route.writable

    def order_route(self, topic: str, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        """Return the queues that ordered messages choose among, whether their brokers are available or not."""
        try:
            ordered = self.route(topic, timeout).ordered
        except TopicNotFoundError:
            ordered = ()
        return ordered or self.publish_route(topic, timeout)

    def fetch(self, topic: str, timeout: float | None = None) -> TopicRouteData:
        """Fetch the route from the name servers; the result is not cached."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.to_ext())
        answer = self.name_servers.ask(request, _ROUTE_ANSWERS, f"the query of the route of topic {topic}", timeout)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST or not answer.body:
            raise topic_not_found(topic, f"the name server {', '.join(self.name_servers.addresses)}")
        return TopicRouteData.from_json(answer.body)

    def forget(self, topic: str) -> None:
        """Drop the cached route: a broker reported the topic as missing, or an admin changed it."""
        with self._lock:
            self._routes.pop(topic, None)
            self._used.pop(topic, None)

    def _queues_after_creation(
        self, topic: str, error: TopicNotFoundError, timeout: float | None
    ) -> tuple[MessageQueue, ...]:
        try:
            default = self.route(AUTO_CREATE_TOPIC_KEY, timeout)
        except TopicNotFoundError:
            raise error from None
        # Each broker creates min(4, queues of its default topic) queues.
        queues = tuple(
            MessageQueue(topic, queue.broker_name, queue.queue_id)
            for queue in default.writable
            if queue.queue_id < DEFAULT_TOPIC_QUEUES
        )
        if not queues:
            raise error
        return queues

    # --- addresses --------------------------------------------------------------------------------------------

    def master(self, queue: MessageQueue, timeout: float | None = None) -> str:
        """Return the address of the queue's broker for sends and offset commits."""
        address = self._addresses(queue, timeout).get(MASTER_ID)
        if address is None:
            raise QueueNotFoundError(
                f"Broker {queue.broker_name!r} has no master at the moment.",
                remedy="Wait until it is back; its slaves can only serve reads.",
                retriable=True,
            )
        return address

    def reader(self, queue: MessageQueue) -> tuple[str, bool]:
        """Return the address to pull from, and whether it is the master's.

        If all are unavailable, it is the address whose failure is the oldest.
        """
        addresses = self._addresses(queue)
        if len(addresses) > 1:
            wanted = self._suggested.get(queue, MASTER_ID)
            now = self._clock()

            def rank(id_: int) -> tuple[float, bool, int]:
                until = self._unavailable.get(addresses[id_], 0.0)
                return until if until > now else 0.0, id_ != wanted, id_

            id_ = min(addresses, key=rank)
            return addresses[id_], id_ == MASTER_ID
        ((id_, address),) = addresses.items()
        return address, id_ == MASTER_ID

    def suggested(self, queue: MessageQueue, broker_id: int) -> None:
        """Record the broker id that a pull response suggests for the next pull of the queue."""
        if broker_id != MASTER_ID:
            self._suggested[queue] = broker_id
        elif self._suggested:
            self._suggested.pop(queue, None)

    def slave(self, queue: MessageQueue) -> str | None:
        """Return the address of the first available slave of the queue's broker, or None."""
        route, now = self._routes.get(queue.topic), self._clock()
        addresses = route.brokers.get(queue.broker_name, {}) if route is not None else {}
        slaves = (address for id_, address in sorted(addresses.items()) if id_ != MASTER_ID)
        return next((address for address in slaves if self._unavailable.get(address, 0.0) <= now), None)

    def broker_addresses(self, *, slaves: bool = True) -> list[str]:
        """Return the broker addresses of all topics in use; without ``slaves`` only those of masters."""
        found: dict[str, None] = {}
        for topic in list(self._used):
            route = self._routes.get(topic)
            for addresses in route.brokers.values() if route is not None else ():
                found.update((address, None) for id_, address in addresses.items() if slaves or id_ == MASTER_ID)
        return list(found)

    def try_master(self, queue: MessageQueue) -> None:
        """Use the master for the next read, because a slave could not serve the queue and the master may be back."""
        self._suggested.pop(queue, None)
        route = self._routes.get(queue.topic)
        if route is not None:
            self._unavailable.pop(route.brokers.get(queue.broker_name, {}).get(MASTER_ID, ""), None)

    def mark_unavailable(self, address: str) -> None:
        """Record a failed request to a broker: reads use its slaves for a while, and routes are refreshed.

        Does not block: it is also called on threads that read connections.
        """
        self._unavailable[address] = self._clock() + UNAVAILABLE_SECONDS
        with self._lock:
            if self._used:
                self._start_refresher()
        self._wake.set()

    def _addresses(self, queue: MessageQueue, timeout: float | None = None) -> dict[int, str]:
        topic = queue.topic
        try:
            addresses = self.route(topic, timeout).brokers.get(queue.broker_name)
            if not addresses:
                addresses = self.refresh(topic, timeout).brokers.get(queue.broker_name)
        except TopicNotFoundError as error:
            # The first message will create the topic: its queues were derived from the default topic's.
            try:
                addresses = self.route(AUTO_CREATE_TOPIC_KEY, timeout).brokers.get(queue.broker_name)
            except TopicNotFoundError:
                raise error from None
            if not addresses:
                raise error from None
        if not addresses:
            raise QueueNotFoundError(
                f"Topic {topic!r} does not exist on broker {queue.broker_name!r}.",
                remedy="Fetch the queues of the topic again; the broker may be down or removed from the cluster.",
                retriable=True,
            )
        return addresses

    # --- the refresher ----------------------------------------------------------------------------------------

    def _start_refresher(self) -> None:
        if self._refresher is None:
            self._wake.clear()
            self._refresher = threading.Thread(target=self._refresh_forever, name="rocket-routes", daemon=True)
            self._refresher.start()

    def _refresh_forever(self) -> None:
        wake, closed = self._wake, self._closed
        while True:
            hurried = wake.wait(self._config.route_refresh_interval)
            wake.clear()  # cleared first: a connection lost from now on triggers another refresh
            if not self.refresh_used():
                return
            if hurried:
                closed.wait(MIN_REFRESH_INTERVAL_S)

    def refresh_used(self) -> bool:
        """Refresh all used topics; False when none is left, so that the thread can end."""
        oldest = self._clock() - self._config.route_forget_after
        with self._lock:
            for topic in [topic for topic, used in list(self._used.items()) if used < oldest]:
                del self._used[topic]
            topics = list(self._used)
            if not topics:
                self._refresher = None
                return False
        for topic in topics:
            try:
                route = TopicRoute.of(topic, self.fetch(topic), self._routes.get(topic))
            except RocketError as error:
                logger.info("route of topic %s not refreshed: %s", topic, error)
                continue
            with self._lock:
                if topic in self._routes:
                    self._routes[topic] = route
        return True


_ROUTE_ANSWERS = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.TOPIC_NOT_EXIST)})
