"""A cluster of brokers over Remoting: addresses, topics, groups, and requests to brokers.

One connection to each broker serves all clients of the proxy. Name servers, routes and caches belong to the client
(``client.core``); what the proxy adds are brokers by name, topics with attributes, and groups. An unreachable broker is
avoided for ``UNAVAILABLE_SECONDS`` if there is a choice.

Nothing is stored on disk. Corresponds to org.apache.rocketmq.proxy.service.ClusterServiceManager and
service.message.ClusterMessageService.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from spark_rocket.client.core.availability import UnavailableBrokers
from spark_rocket.client.core.cache import FRESH_SECONDS, Cache
from spark_rocket.client.core.name_servers import NameServers
from spark_rocket.client.core.routes import TopicRoute
from spark_rocket.common.logs import RateLimited
from spark_rocket.common.system import now_ms
from spark_rocket.errors import ClientError, ProtocolError, RemotingConnectError, RemotingError, RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from spark_rocket.protocol.wire.bodies.route import QueueData, TopicRouteData
from spark_rocket.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.proxy.messages.statuses import refusal_of
from spark_rocket.remoting import failures
from spark_rocket.remoting.client.async_client import AsyncRemotingClient, ResponseFuture
from spark_rocket.remoting.name_server_list import parse_name_servers
from spark_rocket.remoting.tls.settings import TlsSettings

_log = logging.getLogger(__name__)
_often = RateLimited(_log, 60.0)

REQUEST_SECONDS = 10.0
ASK_SECONDS = 3.0
"""The timeout of requests for metadata."""
UNAVAILABLE_SECONDS = 10.0
MAX_UNSENT_BYTES = 32 << 20
"""The limit of unsent requests to one broker; further requests get TOO_MANY_REQUESTS."""
_MASTERS = "masters"

Pushed = Callable[[str, RemotingCommand], "ResponseFuture | RemotingCommand | None"]
"""Handles requests of brokers to clients; the first argument is the broker's name."""


class Topic(NamedTuple):
    """A topic in a cluster: what gRPC clients see of its route. Queues are in a stable order: by broker, then by id."""

    name: str
    brokers: tuple[QueueData, ...]
    """The topic's queues on each broker with a master."""
    writable: tuple[MessageQueue, ...]
    in_turn: tuple[MessageQueue, ...]
    """The writable queues, alternating between brokers."""
    readable: tuple[str, ...]
    """The brokers with readable queues."""
    attributes: Mapping[str, str]

    @classmethod
    def of(cls, route: TopicRoute, attributes: Mapping[str, str]) -> Topic:
        brokers = sorted(
            (queues for queues in route.data.queue_datas if queues.broker_name in route.masters),
            key=lambda queues: queues.broker_name,
        )
        return cls(
            route.topic,
            tuple(brokers),
            route.writable,
            tuple(sorted(route.writable, key=lambda queue: (queue.queue_id, queue.broker_name))),
            tuple(queues.broker_name for queues in brokers if queues.readable and queues.read_queue_nums > 0),
            attributes,
        )

    def on(self, broker_name: str) -> QueueData | None:
        """Return the topic's queues on a broker."""
        return next((queues for queues in self.brokers if queues.broker_name == broker_name), None)


class NoBrokerError(ClientError):
    """No broker is registered at the name servers."""

    code = "NO_BROKER"
    retriable = True


class ProxyCluster:
    """The brokers of a cluster. ``credentials``: the proxy's own account, which signs all requests."""

    def __init__(
        self,
        name_server: str,
        *,
        credentials: Credentials | None = None,
        tls: TlsSettings | None = None,
        fresh_seconds: float = FRESH_SECONDS,
        clock: Callable[[], int] = now_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``name_server``: ``a:9876;b:9876``, or the URL of an address server.

        ``clock``: the wall clock in ms; ``monotonic`` in seconds.
        """
        self.clock = clock
        self.monotonic = monotonic
        self.remoting = AsyncRemotingClient(
            max_unsent=MAX_UNSENT_BYTES,
            credentials=credentials,
            tls=tls,
            on_push=self._push,
            on_connect=self._connected,
        )
        given = parse_name_servers(name_server)
        self.name_servers = NameServers(
            lambda: self.remoting,
            given.addresses,
            given.url,
            timeout=ASK_SECONDS,
            monotonic=monotonic,
            broker_names=self.remoting.broker_names,
        )
        self.topics: Cache[Topic] = Cache(self._topic, fresh=fresh_seconds, monotonic=monotonic)
        self.groups: Cache[SubscriptionGroupConfig] = Cache(self._group, fresh=fresh_seconds, monotonic=monotonic)
        self._tables: Cache[dict[str, str]] = Cache(self._masters, fresh=fresh_seconds, monotonic=monotonic)
        self._known: set[str] = set()
        self.unavailable = UnavailableBrokers(UNAVAILABLE_SECONDS, monotonic)
        """The names of brokers that did not respond."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_closing = False
        self.on_push: dict[int, Pushed] = {}
        self.on_connect: list[Callable[[str], None]] = []
        """Called with the broker's name after a new connection to it."""

    async def start(self) -> None:
        """Try to reach a name server once; it may also become available later."""
        try:
            await self.masters()
        except RocketError as error:
            _often.warning("start", "cluster not reachable yet: %s %s", error.message, error.remedy)

    def refresh_brokers(self) -> None:
        """Refresh ``brokers`` in the background unless they are fresh."""
        if not self.brokers:
            self._tables.suspect(_MASTERS)
        self.spawn(self.start())

    @property
    def brokers(self) -> Mapping[str, str]:
        """The last result of :meth:`masters`."""
        return self._tables.last(_MASTERS) or {}

    async def close(self) -> None:
        """Wait for background tasks, then close all connections."""
        self.is_closing = True
        if self._tasks:
            _, pending = await asyncio.wait(set(self._tasks), timeout=ASK_SECONDS)
            for task in pending:
                task.cancel()
        for one in (self.topics, self.groups, self._tables, self.name_servers):
            one.close()
        await self.remoting.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a background task. Its exceptions are logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)
        return task

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a background task of the proxy failed", exc_info=error)

    async def settle(self) -> None:
        """Wait until there are no background tasks."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    # --- requests -----------------------------------------------------------------------------------------------

    async def begin(
        self,
        broker: str,
        code: int,
        ext: dict[str, str],
        body: Buffer = b"",
        seconds: float = REQUEST_SECONDS,
        language: LanguageCode = LanguageCode.PYTHON,
    ) -> ResponseFuture:
        """Send a request to a broker's master; return the future of the response, which may fail with RemotingError.

        RemotingConnectError if the request was not sent.
        """
        try:
            address = await self._address(broker)
            request = RemotingCommand.request(code, ext, body)
            request.language = language
            response = await self.remoting.ask(address, request, seconds)
        except RemotingConnectError as error:
            self.failed(broker)
            raise RemotingConnectError(f"Broker {broker}: {error.message}", remedy=error.remedy) from None
        self.unavailable.clear(broker)
        return response

    async def ask(
        self,
        broker: str,
        code: int,
        ext: dict[str, str],
        body: Buffer = b"",
        seconds: float = REQUEST_SECONDS,
        language: LanguageCode = LanguageCode.PYTHON,
    ) -> RemotingCommand:
        """Return the response of a broker's master with any code. RemotingError without a response."""
        response = await self.begin(broker, code, ext, body, seconds, language)
        try:
            return await response
        except RemotingError as error:
            if isinstance(error, RemotingConnectError) or seconds >= ASK_SECONDS:  # not a client's short deadline
                self.failed(broker)
            raise type(error)(f"Broker {broker}: {error.message}", remedy=error.remedy) from None

    async def demand(self, broker: str, code: int, ext: dict[str, str]) -> RemotingCommand:
        """Return the response of a successful request. StatusError for other responses."""
        response = await self.ask(broker, code, ext)
        if response.code != ResponseCode.SUCCESS:
            raise refusal_of(response)
        return response

    def failed(self, broker: str) -> None:
        """Record that a broker is unreachable or did not respond."""
        self.unavailable.mark(broker)
        self._tables.suspect(_MASTERS)

    # --- brokers ------------------------------------------------------------------------------------------------

    async def masters(self) -> Mapping[str, str]:
        """Return the addresses of the masters by broker name."""
        return await self._tables.get(_MASTERS) or {}

    async def _masters(self, _: str) -> dict[str, str]:
        found = await self._registered_masters()
        self._known.update(found)
        self.unavailable.retain(found)
        return found

    async def _registered_masters(self) -> dict[str, str]:
        table = (await self.name_servers.cluster_info()).broker_addr_table
        return {name: address for name, data in table.items() if (address := data.master_addr) is not None}

    def knows_broker(self, name: str) -> bool:
        """Whether a broker of this name has been registered."""
        return name in self._known

    async def is_broker(self, name: str) -> bool:
        """Whether a broker of this name is or has been registered, after a refresh if necessary."""
        if name in self._known:
            return True
        if name not in await self.masters():
            self._tables.suspect(_MASTERS)
        return name in await self.masters()

    async def _address(self, broker: str) -> str:
        address = (await self.masters()).get(broker)
        if address is None:
            self._tables.suspect(_MASTERS)
            address = (await self.masters()).get(broker)
        if address is None:
            raise RemotingConnectError(
                f"no master is registered with name server {self.name_servers}.",
                remedy="Restart it, or wait until it is available.",
            )
        return address

    def _connected(self, address: str) -> None:
        name = self.remoting.broker_names.get(address)
        if name is not None:
            for listener in self.on_connect:
                listener(name)

    def _push(self, address: str, request: RemotingCommand) -> ResponseFuture | RemotingCommand | None:
        handler = self.on_push.get(request.code)
        if handler is not None:
            return handler(self.remoting.broker_names.get(address, ""), request)
        if request.is_oneway:
            return None
        return failures.not_supported(request)

    # --- topics and groups --------------------------------------------------------------------------------------

    async def _topic(self, name: str) -> Topic | None:
        data = await self.name_servers.route(name)
        if data is None:
            return await self._missing_topic(name)
        attributes = await self._attributes(name, data)
        return None if attributes is None else Topic.of(TopicRoute.of(name, data), attributes)

    async def _missing_topic(self, name: str) -> Topic | None:
        """Return the cached topic if all of its brokers are unavailable: name servers then drop its route."""
        masters = await self._registered_masters()
        if not masters:
            raise NoBrokerError(
                f"No broker is registered with name server {self.name_servers}.",
                remedy="Start a broker that registers there, or wait until one is registered.",
            )
        known = self.topics.last(name)
        if known is not None and not any(queues.broker_name in masters for queues in known.brokers):
            return known
        return None

    async def _attributes(self, name: str, data: TopicRouteData) -> Mapping[str, str] | None:
        """Return the attributes from the first master that responds; None if the topic does not exist."""
        known = self.topics.last(name)
        gone = False
        for broker in sorted(data.broker_datas, key=lambda broker: broker.broker_name in self.unavailable):
            address = broker.master_addr
            if address is None:
                continue
            try:
                response = await self._look_up(
                    broker.broker_name, address, RequestCode.GET_TOPIC_CONFIG, {"topic": name}
                )
                if response.code == ResponseCode.SUCCESS:
                    return TopicConfig.from_json(response.body).attributes
                gone = gone or response.code == ResponseCode.TOPIC_NOT_EXIST
            except (RemotingError, ProtocolError) as error:
                _log.debug("attributes of topic %s: %s", name, error.message)
        if gone:
            return None
        return {} if known is None else known.attributes

    async def _group(self, name: str) -> SubscriptionGroupConfig | None:
        """Return the first configuration of the masters; None if a master responded and none has the group."""
        failure: RocketError | None = None
        responded = False
        masters = await self.masters()
        for broker, address in sorted(masters.items(), key=lambda master: master[0] in self.unavailable):
            if responded and broker in self.unavailable:
                continue
            try:
                response = await self._look_up(
                    broker, address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name}
                )
                if response.code == ResponseCode.SUCCESS:
                    return SubscriptionGroupConfig.from_json(response.body)
                responded = True
            except (RemotingError, ProtocolError) as error:
                failure = error
        if failure is not None and (not responded or self.groups.last(name) is not None):
            raise failure  # an ordered group must not be treated as unordered
        return None

    async def _look_up(self, broker: str, address: str, code: int, ext: dict[str, str]) -> RemotingCommand:
        try:
            return await self.remoting.invoke(address, RemotingCommand.request(code, ext), ASK_SECONDS)
        except RemotingError:
            self.failed(broker)
            raise
