"""Requests of an Admin: to one server, to every name server, or to all brokers at once.

A ``Query`` is a request and the decoder of its response. ``_ask`` queries one broker. ``_ask_all`` queries many: it
sends the requests before it waits for responses, so a list of a thousand topics takes one round trip. An unavailable
broker does not hide the others: methods that query several brokers accept a dict ``failed``, record the broker's name
and the error in it and return the rest. Without it they raise the first error.

Corresponds to the internals of org.apache.rocketmq.tools.admin.DefaultMQAdminExtImpl.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, Unpack

from spark_rocket.client.admin.broker_rows import Failures
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.core.client_config import ClientConfig, Connecting
from spark_rocket.client.core.lifecycle import Client
from spark_rocket.client.core.routes import TopicRoute
from spark_rocket.errors import ClientError, RocketError
from spark_rocket.model import READER_GROUP, MessageQueue
from spark_rocket.protocol.java_properties import render_properties
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.config import DataVersion
from spark_rocket.protocol.wire.bodies.route import MASTER_ID, BrokerData, ClusterInfo, TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.base import Header

BROKER_WAIT_S = 1.0
MAX_IN_FLIGHT = 64
"""Brokers refuse more than 128 requests of one connection that take long (``LARGE_RESPONSES``)."""
PAGE = 2_000
"""The number of table entries per request."""
SUCCESS = frozenset({int(ResponseCode.SUCCESS)})
SUCCESS_OR_NOT_FOUND = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})
SUCCESS_OR_NO_TOPIC = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.TOPIC_NOT_EXIST)})
SUCCESS_OR_OFFLINE = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.CONSUMER_NOT_ONLINE)})

K = TypeVar("K")
T = TypeVar("T")
B = TypeVar("B", bound=Body)


@dataclass(frozen=True, slots=True)
class Query(Generic[T]):
    """A request and the decoder of its response; ``what`` names it in error messages.

    Response codes other than ``allowed`` raise errors. ``topic`` is the topic of the request, for its error messages.
    """

    code: RequestCode
    what: str
    value: Callable[[RemotingCommand], T]
    header: Header | None = None
    body: bytes = b""
    topic: str | None = None
    allowed: frozenset[int] = SUCCESS
    timeout: float | None = None

    def request(self) -> RemotingCommand:
        return RemotingCommand.request(self.code, self.header.to_ext() if self.header is not None else None, self.body)


@dataclass(frozen=True, slots=True)
class KeyedQuery(Generic[K, T]):
    """One of many queries; ``key`` is chosen by the caller and identifies the response."""

    key: K
    broker: str
    address: str
    query: Query[T]


def done(_: RemotingCommand) -> None:
    """The decoder of a response without content."""


def decoded(kind: type[B]) -> Callable[[RemotingCommand], B]:
    """The decoder of a response with a JSON body."""
    return lambda response: kind.from_json(response.body)


def if_found(value: Callable[[RemotingCommand], T]) -> Callable[[RemotingCommand], T | None]:
    """``value``, or None if the response code is not SUCCESS."""
    return lambda response: value(response) if response.code == ResponseCode.SUCCESS else None


def parse_settings(response: RemotingCommand) -> dict[str, str]:
    """The decoder of a server's settings."""
    lines = (line.strip() for line in bytes(response.body).decode().splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def settings_body(settings: Mapping[str, str]) -> bytes:
    return render_properties(settings.items()).encode()


@contextmanager
def record_failure(failed: Failures | None, broker: str) -> Iterator[None]:
    """Record an error of a query to one broker in ``failed``; without such a dict, raise it."""
    try:
        yield
    except RocketError as error:
        if failed is None:
            raise
        failed[broker] = error


@dataclass(frozen=True, slots=True)
class PagedTable(Generic[T]):
    """A table that late 5.x brokers return in pages of some thousand entries, with the total count.

    ``entries``: decodes a page and the version of the table. ``header`` is that of the first page; with the fields
    ``position``, ``size`` and ``data_version`` that of the entries from a position on.
    """

    code: RequestCode
    what: str
    entries: Callable[[RemotingCommand], tuple[dict[str, T], DataVersion]]
    header: type[Header]
    position: str
    size: str
    count_field: str

    def query(self, **fields: Any) -> Query[RemotingCommand]:
        return Query(self.code, self.what, lambda response: response, self.header(**fields))


class AdminBase(Client):
    """The exchange of requests with name servers and brokers, and what several families of methods read."""

    def __init__(
        self,
        name_server: str | None = None,
        *,
        request_timeout: float = 5.0,
        instance_name: str = "",
        **connecting: Unpack[Connecting],
    ) -> None:
        """Connect to the name server. Clients with the same ``instance_name`` share their connections."""
        super().__init__(ClientConfig.of(name_server, instance_name=instance_name, **connecting))
        self._timeout = request_timeout
        self._connecting = connecting
        self._reader = Reader(
            name_server, group=READER_GROUP, request_timeout=request_timeout, instance_name=instance_name, **connecting
        )
        self._clients: list[Client] = [self._reader]
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            for client in self._clients:
                client.close()
        super().close()

    def cluster_info(self) -> ClusterInfo:
        """Return the clusters, their brokers and the broker addresses."""
        instance = self.instance()
        return instance.run(instance.name_servers.cluster_info)

    # --- routes and queues ----------------------------------------------------------------------------------------

    def topic_route(self, topic: str) -> TopicRouteData:
        """Return the route as the name server has it. Raises TopicNotFoundError."""
        return self.instance().routes.fetch(topic)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted, as the name server lists them now."""
        return list(TopicRoute.of(topic, self.topic_route(topic)).readable)

    def offsets(self, topic: str, *, failed: Failures | None = None) -> dict[MessageQueue, tuple[int, int]]:
        """Return the first offset and the end of every readable queue."""
        pending = []
        for queue in self.queues(topic):
            with record_failure(failed, queue.broker_name):
                if queue.broker_name not in (failed or {}):
                    low, high = self._reader.min_offset_later(queue), self._reader.max_offset_later(queue)
                    pending.append((queue, low, high))
        found = {}
        for queue, low, high in pending:
            with record_failure(failed, queue.broker_name):
                found[queue] = (low.result(), high.result())
        return found

    # --- addresses ------------------------------------------------------------------------------------------

    def _known_brokers(self) -> ClusterInfo:
        """Return ``cluster_info``; wait a moment while it is empty, because a starting broker registers late."""
        info = self.cluster_info()
        until = time.monotonic() + BROKER_WAIT_S
        while not info.broker_addr_table and time.monotonic() < until:
            time.sleep(0.02)  # a broker that has just started is about to register
            info = self.cluster_info()
        return info

    def _masters(self, broker: str | None, cluster: str | None) -> dict[str, str]:
        if broker is not None and ":" in broker:
            return {broker: broker}
        info = self._known_brokers()
        names: Iterable[str] = info.broker_addr_table
        if broker is not None:
            names = [broker]
        elif cluster is not None:
            names = names_in(info, cluster)
        masters = {}
        for name in names:
            data = info.broker_addr_table.get(name)
            address = data.broker_addrs.get(MASTER_ID) if data is not None else None
            if address is not None:
                masters[name] = address
        if not masters and broker in info.broker_addr_table:
            slaves = ", ".join(info.broker_addr_table[broker].broker_addrs.values())
            raise ClientError(
                f"Broker {broker!r} has no master at the moment.",
                remedy=f"Start the master again, or query its slave by address: {slaves}.",
                retriable=True,
            )
        if not masters:
            which = f" named {broker!r}" if broker else f" in cluster {cluster!r}" if cluster else ""
            raise ClientError(
                f"No master broker{which} is registered at the name server {self.name_server}.",
                remedy=f"Registered: {', '.join(sorted(info.broker_addr_table))}."
                if info.broker_addr_table and broker
                else "Start a broker with this name server (rocket up, rocket broker -n ADDRESS).",
                retriable=True,
            )
        return masters

    def _every_broker(self) -> dict[str, str]:
        """For queries: one address per broker name, a slave's if there is no master."""
        return _one_address_each(self._known_brokers().broker_addr_table.values())

    def _topic_masters(self, topic: str) -> dict[str, str]:
        brokers = self.instance().routes.fetch(topic).broker_datas
        masters = {b.broker_name: b.broker_addrs[MASTER_ID] for b in brokers if MASTER_ID in b.broker_addrs}
        if not masters:
            raise ClientError(
                f"No master of topic {topic!r} is available.", remedy="Start the broker again.", retriable=True
            )
        return masters

    def _topic_brokers(self, topic: str) -> dict[str, str]:
        """For queries: as ``_topic_masters``, with slaves where there is no master."""
        return _one_address_each(self.instance().routes.fetch(topic).broker_datas)

    def _address(self, broker: str) -> str:
        """Return the address of a master, given its name or its address."""
        return next(iter(self._masters(broker, None).values()))

    def _any_address(self, broker: str) -> str:
        """For queries: as ``_address``, but a slave's address if there is no master."""
        data = self._known_brokers().broker_addr_table.get(broker)
        return (data.select_addr() if data is not None else None) or self._address(broker)

    def unavailable_masters(self, cluster: str | None = None) -> list[str]:
        """Return the names of brokers without a master but with slaves: changes cannot reach them.

        Brokers without any registered member are not listed.
        """
        info = self.cluster_info()
        names = info.broker_addr_table if cluster is None else names_in(info, cluster)
        return sorted(
            name
            for name in names
            if name in info.broker_addr_table and MASTER_ID not in info.broker_addr_table[name].broker_addrs
        )

    def masters_away(self, cluster: str | None = None) -> list[str]:
        """Deprecated: use ``unavailable_masters``."""
        warnings.warn(
            "Admin.masters_away is deprecated: use Admin.unavailable_masters.", DeprecationWarning, stacklevel=2
        )
        return self.unavailable_masters(cluster)

    # --- the exchange -----------------------------------------------------------------------------------------

    def _ask(self, address: str, query: Query[T]) -> T:
        return query.value(
            self.instance().invoke(
                address,
                query.request(),
                query.what,
                topic=query.topic,
                timeout=query.timeout or self._timeout,
                allowed=query.allowed,
            )
        )

    def _ask_each(self, brokers: Mapping[str, str], query: Query[T], failed: Failures | None) -> dict[str, T]:
        """Send the same query to several brokers, given as addresses by name; see ``_ask_all``."""
        left = {name: address for name, address in brokers.items() if name not in (failed or {})}
        queries = [KeyedQuery(name, name, address, query) for name, address in left.items()]
        return dict(self._ask_all(queries, failed))

    def _ask_all(self, every: Iterable[KeyedQuery[K, T]], failed: Failures | None) -> list[tuple[K, T]]:
        """Return keys and values in the order of the queries, without values that are None.

        At most ``MAX_IN_FLIGHT`` requests are in flight at once: each has its own timeout, not a shared one.
        """
        instance = self.instance()
        responses: list[tuple[K, T]] = []
        in_flight: deque[tuple[KeyedQuery[K, T], Future[T]]] = deque()

        def take() -> None:
            asked, future = in_flight.popleft()
            try:
                found = future.result()
            except RocketError as error:
                if failed is None:
                    raise
                failed.setdefault(asked.broker, error)
            else:
                if found is not None:
                    responses.append((asked.key, found))

        for asked in every:
            if len(in_flight) >= MAX_IN_FLIGHT:
                take()
            query = asked.query
            future = instance.invoke_async(
                asked.address,
                query.request(),
                query.what,
                query.value,
                topic=query.topic,
                timeout=query.timeout or self._timeout,
                allowed=query.allowed,
            )
            in_flight.append((asked, future))
        while in_flight:
            take()
        return responses

    def _tables(
        self, brokers: Mapping[str, str], table: PagedTable[T], failed: Failures | None
    ) -> dict[str, dict[str, T]]:
        """Return a table of several brokers, by broker name."""
        found = {}
        for name, response in self._ask_each(brokers, table.query(), failed).items():
            with record_failure(failed, name):
                found[name] = self._other_pages(brokers[name], table, response)
        return found

    def _other_pages(self, address: str, table: PagedTable[T], response: RemotingCommand) -> dict[str, T]:
        """Return the complete table; ``response`` is its first page."""
        whole: dict[str, T] = {}
        while True:
            entries, version = table.entries(response)
            before = len(whole)
            whole |= entries
            if len(whole) >= _count(response, table.count_field) or len(whole) == before:
                return whole
            fields = {table.position: len(whole), table.size: PAGE, "data_version": version.to_json().decode()}
            response = self._ask(address, table.query(**fields))

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of all name servers."""
        return tuple(self.instance().name_servers.addresses)

    def _each_name_server(self) -> dict[str, str]:
        return {address: address for address in self.name_servers}

    def _ask_name_server(self, query: Query[T]) -> T:
        """Return the response of the first name server that responds."""
        instance = self.instance()
        return query.value(instance.run(instance.name_servers.ask, query.request(), query.allowed, query.what))

    def _ask_name_servers(self, query: Query[T]) -> list[T]:
        """Query every name server; an unavailable one is an error."""
        instance = self.instance()
        responses = instance.run(instance.name_servers.ask_each, query.request, query.what)
        return [query.value(response) for response in responses]


def names_in(info: ClusterInfo, cluster: str) -> list[str]:
    if cluster not in info.cluster_addr_table:
        known = ", ".join(sorted(info.cluster_addr_table)) or "none"
        raise ClientError(f"No cluster is named {cluster!r}.", remedy=f"Known clusters: {known}.")
    return info.cluster_addr_table[cluster]


def _count(response: RemotingCommand, name: str) -> int:
    """Return the total count of a broker's response, 0 if it has none."""
    text = response.ext_fields.get(name, "")
    return int(text) if text.isdecimal() and text.isascii() else 0


def _one_address_each(brokers: Iterable[BrokerData]) -> dict[str, str]:
    found = ((data.broker_name, data.select_addr()) for data in brokers)
    return {name: address for name, address in sorted(found) if address is not None}
