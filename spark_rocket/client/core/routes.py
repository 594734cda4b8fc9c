"""Routes of topics: fetched from the name servers, cached, and refreshed while in use.

A route is fetched on first use of its topic. From then on a use of a route older than 30 s refreshes it in the
background; one that is older than 90 s is refreshed first (``cache``). After a lost connection all routes used in the
last two minutes are refreshed immediately, but at most once a second, because the broker may have a new address. A send
to a topic without a writable queue refreshes the route as well.

A cached route is never dropped because a refresh failed. While a broker restarts, its name server reports that the
topic does not exist; the last known route, with the connection error that it causes, is more useful. Only a broker that
reports the topic as missing removes it.

Ordered messages (with a selector or a sharding key) choose among queues that remain when their master is unavailable:
they fail rather than overtake earlier messages. Queues of a broker that disappeared from the route are therefore
retained for them for the life of the process. Removed queues of a broker that is still in the route, and queues without
write permission (``rocket broker drain``), are dropped. A topic's ORDER_TOPIC_CONFIG at the name server overrides this.

Reads go to the master. They go to a slave while the master is unavailable, or when the master suggested it for the
queue, which it does for messages that are no longer in its memory.

Thread-safety: coroutines on the event loop only, other methods from any thread. A method with a coroutine of the same
question (``route``, ``find_route``) waits for it, and therefore not on the loop, unless a cached route has the answer:
that costs no switch of threads. Corresponds to MQClientInstance's topicRouteTable and TopicPublishInfo.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from spark_rocket.client.core.availability import UnavailableBrokers
from spark_rocket.client.core.cache import Cache
from spark_rocket.client.core.client_config import ClientConfig
from spark_rocket.client.core.name_servers import NameServers
from spark_rocket.client.core.responses import topic_not_found
from spark_rocket.common.values import FrozenValue
from spark_rocket.errors import QueueNotFoundError, RocketError, TopicNotFoundError
from spark_rocket.model import AUTO_CREATE_TOPIC_KEY, MessageQueue
from spark_rocket.protocol.wire.bodies.route import MASTER_ID, MAX_QUEUES, MAX_ROUTE_QUEUES, TopicRouteData
from spark_rocket.remoting.event_loop import loop_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
DEFAULT_TOPIC_QUEUES = 4
MIN_REFRESH_INTERVAL_S = 1.0  # the minimum interval of refreshes after lost connections
UNAVAILABLE_SECONDS = 30.0  # how long reads avoid an address after a failed request


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TopicRoute(FrozenValue):
    """The queues of a topic and the addresses of its brokers, by id; 0 is the master."""

    topic: str
    readable: tuple[MessageQueue, ...]
    writable: tuple[MessageQueue, ...]
    brokers: dict[str, dict[int, str]]
    masters: dict[str, str]
    data: TopicRouteData
    ordered: tuple[MessageQueue, ...] = ()  # the queues for ordered messages
    lacks_masters: bool = False  # of some of them
    unreadable: frozenset[str] = frozenset()
    """Brokers that have the topic but no readable queue of it, because of its permission or queue count."""

    @classmethod
    def of(cls, topic: str, data: TopicRouteData, known: TopicRoute | None = None) -> TopicRoute:
        """Build a route. ``known`` is the previously cached route. ProtocolError for a route of too many queues."""
        data.check_queues(topic)
        brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
        masters = {name: addresses[MASTER_ID] for name, addresses in brokers.items() if MASTER_ID in addresses}
        there: set[str] = set()
        readable: list[MessageQueue] = []
        writable: list[MessageQueue] = []
        ordered: list[MessageQueue] = []
        for found in sorted(data.queue_datas, key=lambda queues: queues.broker_name):
            name = found.broker_name
            if name not in brokers:
                continue
            there.add(name)
            queues = [MessageQueue(topic, name, i) for i in range(max(found.read_queue_nums, found.write_queue_nums))]
            if found.readable and brokers[name]:
                readable += queues[: found.read_queue_nums]
            if found.writable:
                ordered += queues[: found.write_queue_nums]
                if name in masters:
                    writable += queues[: found.write_queue_nums]
        if data.order_topic_conf:
            ordered = sorted(order_queues(topic, data.order_topic_conf))
        elif known is not None:
            retained = [queue for queue in known.ordered if queue.broker_name not in there]
            ordered = sorted(ordered + retained[: MAX_ROUTE_QUEUES - len(ordered)]) if retained else ordered
        lacks_masters = any(queue.broker_name not in masters for queue in ordered)
        unreadable = frozenset(name for name in there if brokers[name]) - {queue.broker_name for queue in readable}
        return cls(
            topic, tuple(readable), tuple(writable), brokers, masters, data, tuple(ordered), lacks_masters, unreadable
        )


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


class Routes:
    """Cached routes of topics and the addresses of their brokers.

    ``post`` runs a call on the loop; default: at once.
    """

    def __init__(
        self,
        name_servers: NameServers,
        config: ClientConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        post: Callable[[Callable[[], object]], object] = lambda call: call(),
    ) -> None:
        self.name_servers = name_servers
        self.unavailable = UnavailableBrokers(UNAVAILABLE_SECONDS, clock)
        self._clock = clock
        self._post = post
        self._forget_after = config.route_forget_after
        self._routes = Cache(
            self._load,
            fresh=config.route_refresh_interval,
            missing=0.0,
            max_entries=sys.maxsize,
            monotonic=clock,
            post=post,
        )
        self.cached = self._routes.peek
        """Return the route of a topic if it can be used without a request."""
        self.forget = self._routes.forget
        """Drop the cached route: a broker reported the topic as missing, or an admin changed it."""
        self._not_writable: dict[str, float] = {}  # topics without writable queues, and when to refresh them next
        self._suggested: dict[MessageQueue, int] = {}  # the broker id to pull from, if it is not the master's
        self._next_refresh = 0.0
        self._refreshing: asyncio.TimerHandle | None = None

    def after_fork(self) -> None:
        """Leave what is pending to the parent process."""
        self._routes.after_fork()
        self._refreshing = None

    def close(self) -> None:
        self._routes.close()
        if self._refreshing is not None:
            self._refreshing.cancel()

    # --- for threads that wait --------------------------------------------------------------------------------

    def known(self, topic: str) -> TopicRoute | None:
        """Return a cached and writable route, as needed by most sends; otherwise None: see ``publish_route``."""
        route = self.cached(topic)
        return route if route is not None and route.writable else None

    def route(self, topic: str, timeout: float | None = None) -> TopicRoute:
        return self.cached(topic) or loop_thread().run(self.find_route, topic, timeout)

    def refresh(self, topic: str, timeout: float | None = None) -> TopicRoute:
        return loop_thread().run(self.find_now, topic, timeout)

    def fetch(self, topic: str) -> TopicRouteData:
        return loop_thread().run(self.find_uncached, topic)

    def publish_route(self, topic: str, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        route = self.cached(topic)
        return (route and route.writable) or loop_thread().run(self.find_writable, topic, timeout)

    def order_route(self, topic: str, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        route = self.cached(topic)
        return (route and route.ordered) or loop_thread().run(self.find_ordered, topic, timeout)

    def master(self, queue: MessageQueue, timeout: float | None = None) -> str:
        route = self.cached(queue.topic)
        address = None if route is None else route.masters.get(queue.broker_name)
        return address or loop_thread().run(self.find_master, queue, timeout)

    def reader(self, queue: MessageQueue) -> tuple[str, bool]:
        """Return the address to pull from, and whether it is the master's."""
        route = self.cached(queue.topic)
        addresses = None if route is None else route.brokers.get(queue.broker_name)
        return self.choose(queue, addresses or loop_thread().run(self.find_addresses, queue))

    # --- routes -----------------------------------------------------------------------------------------------

    async def find_route(self, topic: str, seconds: float | None = None) -> TopicRoute:
        """Return the route, fetched if unknown. Raises TopicNotFoundError or NameServerUnreachableError."""
        return self.cached(topic) or await self.find_now(topic, seconds)

    async def find_now(self, topic: str, seconds: float | None = None) -> TopicRoute:
        """Fetch the route now, for a caller that uses it. If that fails, return the cached route."""
        self._routes.used(topic)
        return self._existing(topic, await self._routes.store(topic, partial(self._load, topic, seconds)))

    async def find_uncached(self, topic: str) -> TopicRouteData:
        """Fetch the route from the name servers; the result is not cached."""
        return self._existing(topic, await self.name_servers.route(topic))

    def _existing(self, topic: str, found: T | None) -> T:
        if found is None:
            raise topic_not_found(topic, f"the name server {', '.join(self.name_servers.addresses)}")
        return found

    async def _load(self, topic: str, seconds: float | None = None) -> TopicRoute | None:
        try:
            data = await self.name_servers.route(topic, seconds)
            known = self._routes.last(topic)
            if data is not None:  # an unchanged one is not built again: 65,536 queues take 60 ms of the loop
                return known if known is not None and known.data == data else TopicRoute.of(topic, data, known)
        except RocketError as error:  # no response, or a name server that is not ready
            if self._routes.last(topic) is not None:
                logger.info("route of topic %s not refreshed: %s", topic, error)
            raise
        if known is not None:
            logger.info("route of topic %s not refreshed: the name server does not have it", topic)
        return known

    async def find_writable(self, topic: str, seconds: float | None = None) -> tuple[MessageQueue, ...]:
        """Return the queues to send to; for a missing topic those that its automatic creation would give."""
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            route = await self.find_route(topic, seconds)
        except TopicNotFoundError as error:
            return await self._queues_after_creation(topic, error, _left(deadline))
        if not route.writable and self._clock() >= self._not_writable.get(topic, 0.0):
            # The master may be back, or a slave promoted. The limit protects the name server from frequent sends.
            self._not_writable[topic] = self._clock() + MIN_REFRESH_INTERVAL_S
            route = await self.find_now(topic, _left(deadline))
        if not route.writable:
            raise QueueNotFoundError(
                f"Topic {topic!r} has no writable queue.",
                remedy="Set write permission for the topic or its brokers (perm 6), or wait until a master is back.",
                retriable=True,
            )
        return route.writable

    async def find_ordered(self, topic: str, seconds: float | None = None) -> tuple[MessageQueue, ...]:
        """Return the queues that ordered messages choose among, whether their brokers are available or not."""
        try:
            ordered = (await self.find_route(topic, seconds)).ordered
        except TopicNotFoundError:
            ordered = ()
        return ordered or await self.find_writable(topic, seconds)

    async def _queues_after_creation(
        self, topic: str, error: TopicNotFoundError, seconds: float | None
    ) -> tuple[MessageQueue, ...]:
        try:
            default = await self.find_route(AUTO_CREATE_TOPIC_KEY, seconds)
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

    async def find_master(self, queue: MessageQueue, seconds: float | None = None) -> str:
        """Return the address of the queue's broker for sends and offset commits."""
        address = (await self.find_addresses(queue, seconds)).get(MASTER_ID)
        if address is None:
            raise QueueNotFoundError(
                f"Broker {queue.broker_name!r} has no master at the moment.",
                remedy="Wait until it is back; its slaves can only serve reads.",
                retriable=True,
            )
        return address

    async def find_addresses(self, queue: MessageQueue, seconds: float | None = None) -> dict[int, str]:
        """Return the addresses of the queue's broker by id."""
        topic = queue.topic
        try:
            addresses = (await self.find_route(topic, seconds)).brokers.get(queue.broker_name)
            if not addresses:
                addresses = (await self.find_now(topic, seconds)).brokers.get(queue.broker_name)
        except TopicNotFoundError as error:
            # The first message will create the topic: its queues were derived from the default topic's.
            try:
                addresses = (await self.find_route(AUTO_CREATE_TOPIC_KEY, seconds)).brokers.get(queue.broker_name)
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

    def choose(self, queue: MessageQueue, addresses: dict[int, str]) -> tuple[str, bool]:
        """Return which of the addresses of a queue's broker to pull from, and whether it is the master's.

        If all are unavailable, it is the address whose failure is the oldest.
        """
        if len(addresses) == 1:
            ((id_, address),) = addresses.items()
            return address, id_ == MASTER_ID
        wanted = self._suggested.get(queue, MASTER_ID)

        def rank(id_: int) -> tuple[float, bool, int]:
            return self.unavailable.until(addresses[id_]), id_ != wanted, id_

        id_ = min(addresses, key=rank)
        return addresses[id_], id_ == MASTER_ID

    def suggested(self, queue: MessageQueue, broker_id: int) -> None:
        """Record the broker id that a pull response suggests for the next pull of the queue."""
        if broker_id != MASTER_ID:
            self._suggested[queue] = broker_id
        elif self._suggested:
            self._suggested.pop(queue, None)

    def slave(self, queue: MessageQueue) -> str | None:
        """Return the address of the first available slave of the queue's broker, or None."""
        slaves = (address for id_, address in sorted(self._known(queue).items()) if id_ != MASTER_ID)
        return next((address for address in slaves if address not in self.unavailable), None)

    def broker_addresses(self, *, slaves: bool = True) -> list[str]:
        """Return the broker addresses of all topics in use; without ``slaves`` only the addresses of masters."""
        found: dict[str, None] = {}
        for topic in self._in_use():
            route = self._routes.last(topic)
            for addresses in route.brokers.values() if route is not None else ():
                found.update((address, None) for id_, address in addresses.items() if slaves or id_ == MASTER_ID)
        return list(found)

    def try_master(self, queue: MessageQueue) -> None:
        """Use the master for the next read, because a slave could not serve the queue and the master may be back."""
        self._suggested.pop(queue, None)
        self.unavailable.clear(self._known(queue).get(MASTER_ID, ""))

    def mark_unavailable(self, address: str) -> None:
        """Record a failed request to a broker: reads use its slaves for a while, and routes are refreshed."""
        self.unavailable.mark(address)
        self._post(self._refresh_soon)

    def _known(self, queue: MessageQueue) -> dict[int, str]:
        route = self._routes.last(queue.topic)
        return {} if route is None else route.brokers.get(queue.broker_name, {})

    def _in_use(self) -> list[str]:
        return self._routes.used_since(self._clock() - self._forget_after)

    def _refresh_soon(self) -> None:
        if self._refreshing is None:
            delay = max(0.0, self._next_refresh - self._clock())
            self._refreshing = asyncio.get_running_loop().call_later(delay, self._refresh_used)

    def _refresh_used(self) -> None:
        self._refreshing = None
        self._next_refresh = self._clock() + MIN_REFRESH_INTERVAL_S
        for topic in self._in_use():
            self._routes.refresh(topic)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.001, deadline - time.monotonic())
