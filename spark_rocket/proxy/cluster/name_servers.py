"""The name servers of a cluster: tried in turn until one responds, starting with the last one that responded.

They are configured as addresses, or as the URL of an address server (``http://host:8080/rocketmq/nsaddr``), which is
requested first and then every two minutes.

Thread-safety: used on the event loop only. Corresponds to the name server part of MQClientAPIExt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from spark_rocket.client.core.config import ADDRESS_SERVER_TIMEOUT_S, address_server_of, look_up, parse_name_servers
from spark_rocket.client.core.responses import error_of
from spark_rocket.errors import ClientError, NameServerUnreachableError, RemotingError
from spark_rocket.protocol.wire.bodies.route import ClusterInfo, TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.routes import GetRouteInfoRequestHeader
from spark_rocket.proxy.cluster.cache import Cache
from spark_rocket.remoting.client.async_client import AsyncRemotingClient

_log = logging.getLogger(__name__)

ASK_SECONDS = 3.0


class NameServers:
    """The name servers of a cluster."""

    def __init__(self, remoting: AsyncRemotingClient, text: str, monotonic: Callable[[], float]) -> None:
        """``text``: ``a:9876;b:9876``, or a URL. ConfigError for anything else."""
        self._url = address_server_of(text)
        self.addresses = () if self._url else parse_name_servers(text)
        """Empty until the address server has responded."""
        self._looked_up: Cache[tuple[str, ...]] = Cache(
            self._look_up, fresh=ADDRESS_SERVER_TIMEOUT_S, monotonic=monotonic
        )
        self._remoting = remoting
        self._best = 0

    def __str__(self) -> str:
        return self._url or ";".join(self.addresses)

    def close(self) -> None:
        self._looked_up.close()

    async def _look_up(self, url: str) -> tuple[str, ...]:
        try:
            found = await asyncio.to_thread(look_up, url, ASK_SECONDS)
        except NameServerUnreachableError as error:
            if self.addresses:
                _log.warning("keeping the present name servers: %s", error.message)
            raise
        if found != self.addresses:
            _log.info("name servers from %s: %s", url, ", ".join(found))
            self.addresses = found
        return found

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic (105); None if the topic does not exist."""
        ext = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True).to_ext()
        answer = await self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST or not answer.body:
            return None
        return TopicRouteData.from_json(answer.body)

    async def masters(self) -> dict[str, str]:
        """Return the address of each broker's master by the broker's name (106)."""
        answer = await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        if not answer.body:
            return {}
        table = ClusterInfo.from_json(answer.body).broker_addr_table
        return {name: address for name, data in table.items() if (address := data.master_addr) is not None}

    async def _ask(self, code: RequestCode, ext: dict[str, str]) -> RemotingCommand:
        """Return the first response. An error response takes precedence over an unreachable server."""
        if self._url:
            await self._looked_up.get(self._url)
        addresses, failures = self.addresses, []
        refused: ClientError | None = None
        for step in range(len(addresses)):
            index = (self._best + step) % len(addresses)
            address = addresses[index]
            try:
                answer = await self._remoting.invoke(address, RemotingCommand.request(code, dict(ext)), ASK_SECONDS)
            except RemotingError as error:
                failures.append(error.message)
                continue
            if answer.code in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
                self._best = index
                return answer
            refused = error_of(answer, f"Name server {address}", f"request {code.value} ({code.name})")
        raise refused or NameServerUnreachableError(
            f"No name server responded at {self}: {' '.join(failures)}",
            remedy="Check the address and that a name server runs there.",
        )
