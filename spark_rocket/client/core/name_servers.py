"""The name servers of a cluster: tried in turn until one responds, starting with the last one that responded.

They are configured as addresses, or as the URL of an address server (``http://host:8080/rocketmq/nsaddr``), which is
requested when they are first needed, and then every two minutes.

Thread-safety: event loop only; ``addresses`` may be read by any thread.
Corresponds to the name server part of MQClientAPIImpl and NettyRemotingClient, and to TopAddressing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from spark_rocket.client.core.cache import Cache
from spark_rocket.client.core.client_config import ADDRESS_SERVER_TIMEOUT_S, DEFAULT_NAME_SERVER, look_up
from spark_rocket.client.core.responses import error_of, proxy_error
from spark_rocket.errors import NameServerUnreachableError, RemotingError, RocketError
from spark_rocket.protocol.wire.bodies.route import BrokerData, ClusterInfo, TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.routes import GetRouteInfoRequestHeader
from spark_rocket.remoting.client.connection import HTTP, HTTP2
from spark_rocket.remoting.tls.problems import error_text

logger = logging.getLogger(__name__)

SUCCESS = frozenset({int(ResponseCode.SUCCESS)})
_ANY_TOPIC = "TBW102"  # which every cluster has
_SUCCESS_OR_MISSING = SUCCESS | {int(ResponseCode.TOPIC_NOT_EXIST)}


class Requests(Protocol):
    """The requests of ``AsyncRemotingClient``."""

    def invoke(
        self, address: str, request: RemotingCommand, seconds: float
    ) -> Coroutine[Any, Any, RemotingCommand]: ...


class NameServers:
    """Sends requests to the name servers, one after the other until one responds."""

    def __init__(
        self,
        requests: Callable[[], Requests],
        addresses: tuple[str, ...],
        url: str = "",
        *,
        timeout: float,
        monotonic: Callable[[], float] = time.monotonic,
        broker_names: dict[str, str] | None = None,
    ) -> None:
        """``requests`` returns the present connections: a forked child has others than its parent.

        ``url``: the address server's; ``addresses`` may then be empty. ``timeout``: of each request, in seconds.
        ``broker_names`` gets the names of the brokers in responses, by address.
        """
        self.addresses = addresses
        self._url = url
        self._looked_up = Cache(self._look_up, fresh=ADDRESS_SERVER_TIMEOUT_S, monotonic=monotonic)
        if url and addresses:
            self._looked_up.put(url, addresses)
        self._requests = requests
        self._timeout = timeout
        self._preferred = 0
        self.proxies: set[str] = set()
        """Addresses that turned out to be addresses of proxies."""
        self._broker_names: dict[str, str] = {} if broker_names is None else broker_names

    def __str__(self) -> str:
        return self._url or ";".join(self.addresses)

    def after_fork(self) -> None:
        """Leave requests in flight to the parent process."""
        self._looked_up.after_fork()

    def close(self) -> None:
        self._looked_up.close()

    async def ask(
        self, request: RemotingCommand, allowed: frozenset[int], what: str, seconds: float | None = None
    ) -> RemotingCommand:
        """Return the first response whose code is in ``allowed``. Other responses count as failures of that server.

        ``seconds`` limits the attempts together; without it each server gets the request timeout. An error response
        takes precedence over an unreachable server.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        if self._url:
            await self._looked_up.get(self._url)
        addresses, first = self.addresses, self._preferred
        refused: RocketError | None = None
        failures: list[str] = []
        for step in range(len(addresses)):
            index = (first + step) % len(addresses)
            allowance = self._timeout
            if deadline is not None:
                # Reserve a share for the remaining servers: an unresponsive one must not use up all the time.
                left = deadline - time.monotonic()
                allowance = min(allowance, max(0.001, left / (len(addresses) - step)))
            try:
                response = await self._requests().invoke(addresses[index], request, allowance)
            except RemotingError as error:
                failures.append(error_text(error))
                continue
            if response.code in allowed:
                self._preferred = index
                return response
            refused = await self._refused(request, response, addresses[index], what)
        raise refused or self._unreachable(failures)

    async def ask_each(self, request: Callable[[], RemotingCommand], what: str) -> list[RemotingCommand]:
        """Return the responses of all name servers, for changes that go to each; an unavailable one is an error."""
        responses = []
        for address in self.addresses:
            asked = request()
            try:
                response = await self._requests().invoke(address, asked, self._timeout)
            except RemotingError as error:
                raise self._unreachable([error_text(error)]) from error
            if response.code != ResponseCode.SUCCESS:
                raise await self._refused(asked, response, address, what)
            responses.append(response)
        return responses

    async def _refused(
        self, request: RemotingCommand, response: RemotingCommand, address: str, what: str
    ) -> RocketError:
        """The error of a response. A server that returns routes, and knows nothing else of name servers, is a proxy."""
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and await self.is_proxy(address):
            return proxy_error(response, address, what)
        return error_of(response, f"Name server {address}", what, request=request)

    async def is_proxy(self, address: str) -> bool:
        """Whether a server that refused a request of name servers is a proxy: it has routes. Asked once."""
        if address not in self.proxies:
            header = GetRouteInfoRequestHeader(topic=_ANY_TOPIC, accept_standard_json_only=True)
            request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.to_ext())
            try:
                response = await self._requests().invoke(address, request, self._timeout)
            except RemotingError:
                return False
            if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return False
            self.proxies.add(address)
        return True

    async def route(self, topic: str, seconds: float | None = None) -> TopicRouteData | None:
        """Return the route of a topic (105); None if the topic does not exist."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.to_ext())
        response = await self.ask(request, _SUCCESS_OR_MISSING, f"the query of the route of topic {topic}", seconds)
        if response.code == ResponseCode.TOPIC_NOT_EXIST or not response.body:
            return None
        route = TopicRouteData.from_json(response.body)
        self._note_names(route.broker_datas)
        return route

    async def cluster_info(self) -> ClusterInfo:
        """Return the clusters, their brokers and the broker addresses (106)."""
        request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        response = await self.ask(request, SUCCESS, "the list of brokers")
        info = ClusterInfo.from_json(response.body) if response.body else ClusterInfo()
        self._note_names(info.broker_addr_table.values())
        return info

    def _note_names(self, brokers: Iterable[BrokerData]) -> None:
        for broker in brokers:
            self._broker_names.update((address, broker.broker_name) for address in broker.broker_addrs.values())

    async def _look_up(self, url: str) -> tuple[str, ...]:
        try:
            found = await asyncio.to_thread(look_up, url, self._timeout)
        except NameServerUnreachableError as error:
            if self.addresses:
                logger.warning("keeping the present name servers: %s", error.message)
            raise
        if found != self.addresses:
            logger.info("name servers from %s: %s", url, ", ".join(found))
            self.addresses = found
        return found

    def _unreachable(self, failures: list[str]) -> NameServerUnreachableError:
        more = ""
        if self.addresses == (DEFAULT_NAME_SERVER,):
            more = (
                " This is the default address without nameServer and NAMESRV_ADDR. Spark only sees a variable that was"
                " set before the session started."
            )
        if any(HTTP2 in failure for failure in failures):
            more += (
                " This is a gRPC port (usually 8081), for RocketMQ 5's own clients: use the address of a name server"
            )
            more += " (9876), or the Remoting port of the proxy (8080)."
        elif any(HTTP in failure for failure in failures):
            more += " This is a web server, such as a console (8080) or a port for metrics: use the address of a name"
            more += " server (9876)."
        elif any("was lost" in failure for failure in failures):
            more += " A server that requires TLS closes connections without it: set tls=true or --tls."
        return NameServerUnreachableError(
            f"No name server responded at {', '.join(self.addresses)}: {' '.join(failures)}",
            remedy="Check the address (the data source's option nameServer, the argument name_server, a proxy's"
            " namesrvAddr, -n on the command line, the variable NAMESRV_ADDR), or start a name server here with"
            f" rocket up.{more}",
        )
