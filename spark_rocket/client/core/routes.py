"""Where topics are: routes asked from the name servers, remembered, and kept fresh while somebody uses them.

A route is fetched when a topic is first used. From then on one daemon thread asks again every 30 s for topics used in
the last two minutes; the others are asked for when they are next used, and the thread ends when none is left. After a
lost connection the thread asks at once, though not twice within a second: a broker may be back at another address. So
does who wants to send to a topic that has no writable queue.
A route is never thrown away for want of an answer: while a broker restarts, its name server says that the topic does
not exist, and the last known route, with the connection error that it leads to, is the better answer. Only a broker
that says so makes a known topic unknown.

Messages that are ordered (by a selector or a sharding key) choose among queues that stay when their master is away:
they fail rather than overtake what was sent before. So queues of a broker that has vanished from the route are kept for
them while this process lives; those that were taken away with the broker still there, or whose write permission was
wiped (``rocket broker drain``), are gone. A topic's ORDER_TOPIC_CONFIG at the name server says once and for all.

Reads go to the master; to a slave while the master cannot be reached, or when the master suggested it for the queue,
which it does for what is no longer in its memory.

Name servers are tried in turn, beginning with the one that answered last.

Thread-safety: all methods. After a fork the child keeps the routes and starts a thread of its own when it needs one.
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
from spark_rocket.protocol.wire.bodies import MASTER_ID, TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import GetRouteInfoRequestHeader
from spark_rocket.remoting.client.client import RemotingClient
from spark_rocket.remoting.tls.problems import told

logger = logging.getLogger(__name__)

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
DEFAULT_TOPIC_QUEUES = 4
MOST_QUEUES = 1 << 16  # of a topic on a broker
HURRY_SECONDS = 1.0  # between refreshes that lost connections ask for
AWAY_SECONDS = 30.0  # for how long reads go to a slave after their master could not be reached


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The queues of a topic and the addresses of its brokers, by id; 0 is the master."""

    topic: str
    readable: tuple[MessageQueue, ...]
    writable: tuple[MessageQueue, ...]
    brokers: dict[str, dict[int, str]]
    masters: dict[str, str]
    data: TopicRouteData
    ordered: tuple[MessageQueue, ...] = ()  # those that ordered messages choose among

    @classmethod
    def of(cls, topic: str, data: TopicRouteData, known: TopicRoute | None = None) -> TopicRoute:
        """``known``: what was known before."""
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
            ordered += (queue for queue in (known.ordered if known else ()) if queue.broker_name not in there)
        return cls(topic, tuple(readable), tuple(writable), brokers, masters, data, tuple(sorted(ordered)))

    @property
    def unreadable(self) -> frozenset[str]:
        """The brokers that have the topic but no readable queue of it: its permission or its numbers say so."""
        there = {queues.broker_name for queues in self.data.queue_datas if self.brokers.get(queues.broker_name)}
        return frozenset(there - {queue.broker_name for queue in self.readable})


def order_queues(topic: str, text: str) -> list[MessageQueue]:
    """The queues that ORDER_TOPIC_CONFIG has: ``broker-a:4;broker-b:4``."""
    queues: list[MessageQueue] = []
    for part in text.split(";"):
        broker, _, count = part.strip().rpartition(":")
        if broker and count.isascii() and count.isdecimal():
            queues += (MessageQueue(topic, broker, i) for i in range(min(int(count), MOST_QUEUES)))
        elif part.strip():
            logger.warning("the order of topic %s has a part that is not broker:queues: %r", topic, part)
    return queues


class NameServers:
    """Asks one name server after the other until one answers."""

    def __init__(self, remoting: RemotingClient, config: ClientConfig) -> None:
        self.addresses = config.name_servers
        self._remoting = remoting
        self._timeout = config.request_timeout
        self._best = 0

    def ask(
        self, request: RemotingCommand, allowed: frozenset[int], what: str, timeout: float | None = None
    ) -> RemotingCommand:
        """The first answer whose code is among ``allowed``. Other answers count as a failure of that server.

        ``timeout`` is for all servers together; without it each gets the usual time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        refused: RocketError | None = None
        failures: list[str] = []
        first = self._best
        for step in range(len(self.addresses)):
            index = (first + step) % len(self.addresses)
            address = self.addresses[index]
            allowance = self._timeout
            if deadline is not None:
                # The servers not asked yet must have their share, or one that is silent would use up all of it.
                left = deadline - time.monotonic()
                allowance = min(allowance, max(0.001, left / (len(self.addresses) - step)))
            try:
                answer = self._remoting.invoke(address, request, allowance)
            except RemotingError as error:
                failures.append(told(error))
                continue
            if answer.code in allowed:
                self._best = index
                return answer
            refused = error_of(answer, f"Name server {address}", what)
        if refused is not None:
            raise refused
        raise self._unreachable(failures)

    def ask_each(self, request: Callable[[], RemotingCommand], what: str) -> list[RemotingCommand]:
        """Every name server's answer, for changes that each of them must hear; one that is away is an error."""
        answers = []
        for address in self.addresses:
            try:
                answer = self._remoting.invoke(address, request(), self._timeout)
            except RemotingError as error:
                raise self._unreachable([told(error)]) from error
            if answer.code != ResponseCode.SUCCESS:
                raise error_of(answer, f"Name server {address}", what)
            answers.append(answer)
        return answers

    def _unreachable(self, failures: list[str]) -> NameServerUnreachableError:
        names = ", ".join(self.addresses)
        more = ""
        if self.addresses == (DEFAULT_NAME_SERVER,):
            more = (
                " This address counts where neither nameServer nor NAMESRV_ADDR is given; Spark sees the variable only"
                " if it was set before the session began."
            )
        if any("was lost" in failure for failure in failures):
            more += " A server that asks for TLS closes connections without it: tls=true, --tls."
        return NameServerUnreachableError(
            f"No name server answered at {names}: {' '.join(failures)}",
            remedy="Check the address (the data source's option nameServer, the argument name_server, -n on the command"
            f" line, the variable NAMESRV_ADDR), or start one here with rocket up.{more}",
        )


class RouteTable:
    """See the module."""

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
        self._used: dict[str, float] = {}  # when; topics that are not in here are not kept fresh
        self._away: dict[str, float] = {}  # addresses that could not be reached, and until when to believe it
        self._hopeless: dict[str, float] = {}  # topics without writable queues, and until when not to ask again
        self._suggested: dict[MessageQueue, int] = {}  # the broker's id to pull from, where that is not the master's
        self.after_fork()

    def after_fork(self) -> None:
        """Threads and locks of the parent are not there any more."""
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
        self._wake.set()  # the thread finds nothing to do and ends

    # --- routes -----------------------------------------------------------------------------------------------

    def route(self, topic: str, timeout: float | None = None) -> TopicRoute:
        """The route, asked for if it is not known yet. Raises TopicNotFoundError or NameServerUnreachableError."""
        route = self._routes.get(topic)
        if route is None or topic not in self._used:
            return self.refresh(topic, timeout)
        self._used[topic] = self._clock()
        if self._refresher is None:  # in a forked child, or it ended in this moment
            with self._lock:
                self._start_refresher()
        return route

    def refresh(self, topic: str, timeout: float | None = None) -> TopicRoute:
        """Ask now. What was known stays when nobody knows better."""
        known = self._routes.get(topic)
        try:
            route = TopicRoute.of(topic, self.fetch(topic, timeout), known)
        except RocketError as error:  # no such topic, nobody answers, a name server that is not ready yet
            if known is None:
                raise
            logger.info("the route of %s stays as it was: %s", topic, error)
            self._used[topic] = self._clock()
            return known
        with self._lock:
            self._routes[topic] = route
            self._used[topic] = self._clock()
            self._start_refresher()
        return route

    def known(self, topic: str) -> TopicRoute | None:
        """The route if it is known, in use and has queues to write to: what most sends find. Else ``publish_route``."""
        route = self._routes.get(topic)
        if route is None or topic not in self._used or self._refresher is None or not route.writable:
            return None
        self._used[topic] = self._clock()
        return route

    def publish_route(self, topic: str, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        """Queues that take messages; for a topic that does not exist those that its creation would give."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            route = self.route(topic, timeout)
        except TopicNotFoundError as error:
            left = None if deadline is None else max(0.001, deadline - time.monotonic())
            return self._queues_to_be(topic, error, left)
        if not route.writable and self._clock() >= self._hopeless.get(topic, 0.0):
            # Its master may be back, or a slave in its place; who sends all the time does not ask all the time.
            self._hopeless[topic] = self._clock() + HURRY_SECONDS
            route = self.refresh(topic, None if deadline is None else max(0.001, deadline - time.monotonic()))
        if not route.writable:
            raise QueueNotFoundError(
                f"Topic {topic!r} has no queue that takes messages.",
                remedy="Give the topic or its brokers write permission (perm 6), or wait until a master is back.",
                retriable=True,
            )
        return route.writable

    def order_route(self, topic: str, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        """The queues that ordered messages choose among, whether their brokers are there or not."""
        try:
            ordered = self.route(topic, timeout).ordered
        except TopicNotFoundError:
            ordered = ()
        return ordered or self.publish_route(topic, timeout)

    def fetch(self, topic: str, timeout: float | None = None) -> TopicRouteData:
        """The name servers' answer as it is, not remembered."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.to_ext())
        answer = self.name_servers.ask(request, _ROUTE_ANSWERS, f"the question for the route of {topic}", timeout)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST or not answer.body:
            raise topic_not_found(topic, f"the name server {', '.join(self.name_servers.addresses)}")
        return TopicRouteData.from_json(answer.body)

    def forget(self, topic: str) -> None:
        """A broker says that the topic is gone, or an admin has changed it."""
        with self._lock:
            self._routes.pop(topic, None)
            self._used.pop(topic, None)

    def _queues_to_be(self, topic: str, error: TopicNotFoundError, timeout: float | None) -> tuple[MessageQueue, ...]:
        try:
            default = self.route(AUTO_CREATE_TOPIC_KEY, timeout)
        except TopicNotFoundError:
            raise error from None
        # Each broker will make min(4, its default topic's queues) queues.
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
        """The address that takes messages and offsets of the queue's broker."""
        address = self._addresses(queue, timeout).get(MASTER_ID)
        if address is None:
            raise QueueNotFoundError(
                f"Broker {queue.broker_name!r} has no master now.",
                remedy="Wait until it is back; only reads can be served by its slaves.",
                retriable=True,
            )
        return address

    def reader(self, queue: MessageQueue) -> tuple[str, bool]:
        """The address to pull from, and whether it is the master's.

        If none can be reached, the one that could not be for the longest time.
        """
        addresses = self._addresses(queue)
        if len(addresses) > 1:
            wanted = self._suggested.get(queue, MASTER_ID)
            now = self._clock()

            def rank(id_: int) -> tuple[float, bool, int]:
                until = self._away.get(addresses[id_], 0.0)
                return until if until > now else 0.0, id_ != wanted, id_

            id_ = min(addresses, key=rank)
            return addresses[id_], id_ == MASTER_ID
        ((id_, address),) = addresses.items()
        return address, id_ == MASTER_ID

    def suggested(self, queue: MessageQueue, broker_id: int) -> None:
        """A pull's answer says from which of the queue's brokers the next should be."""
        if broker_id != MASTER_ID:
            self._suggested[queue] = broker_id
        elif self._suggested:
            self._suggested.pop(queue, None)

    def slave(self, queue: MessageQueue) -> str | None:
        """The address of the first of the slaves of the queue's broker that can be reached, if there is one."""
        route, now = self._routes.get(queue.topic), self._clock()
        addresses = route.brokers.get(queue.broker_name, {}) if route is not None else {}
        slaves = (address for id_, address in sorted(addresses.items()) if id_ != MASTER_ID)
        return next((address for address in slaves if self._away.get(address, 0.0) <= now), None)

    def broker_addresses(self, *, slaves: bool = True) -> list[str]:
        """Addresses of the brokers of every topic that is in use; without ``slaves`` the masters' only."""
        found: dict[str, None] = {}
        for topic in list(self._used):
            route = self._routes.get(topic)
            for addresses in route.brokers.values() if route is not None else ():
                found.update((address, None) for id_, address in addresses.items() if slaves or id_ == MASTER_ID)
        return list(found)

    def try_master(self, queue: MessageQueue) -> None:
        """A slave could not serve the queue: the next read asks the master first, which may be back."""
        self._suggested.pop(queue, None)
        route = self._routes.get(queue.topic)
        if route is not None:
            self._away.pop(route.brokers.get(queue.broker_name, {}).get(MASTER_ID, ""), None)

    def went_away(self, address: str) -> None:
        """No connection to a broker, or no answer: reads try its slaves for a while; the name server may know more.

        Does not block: it is also called on threads that read connections.
        """
        self._away[address] = self._clock() + AWAY_SECONDS
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
            # A topic that the first message is about to create: its queues were made up from the default topic's.
            try:
                addresses = self.route(AUTO_CREATE_TOPIC_KEY, timeout).brokers.get(queue.broker_name)
            except TopicNotFoundError:
                raise error from None
            if not addresses:
                raise error from None
        if not addresses:
            raise QueueNotFoundError(
                f"Topic {topic!r} is not on a broker named {queue.broker_name!r}.",
                remedy="Ask for the topic's queues again; the broker may be down or have left the cluster.",
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
            wake.clear()  # before asking: a connection lost from now on is another reason to ask
            if not self.refresh_used():
                return
            if hurried:
                closed.wait(HURRY_SECONDS)

    def refresh_used(self) -> bool:
        """One round of the thread; False when there is nothing left to refresh, and so no thread needed."""
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
                logger.info("the route of %s stays as it was: %s", topic, error)
                continue
            with self._lock:
                if topic in self._routes:
                    self._routes[topic] = route
        return True


_ROUTE_ANSWERS = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.TOPIC_NOT_EXIST)})
