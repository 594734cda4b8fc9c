"""The name servers of a cluster: asked in turn until one answers, beginning with the one that answered last.

Thread-safety: used on the event loop only. Corresponds to the name server part of MQClientAPIExt.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_rocket.errors import NameServerUnreachableError, RemotingError
from spark_rocket.protocol.wire.bodies import ClusterInfo, TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import GetRouteInfoRequestHeader
from spark_rocket.remoting.client.async_client import AsyncRemotingClient

ASK_SECONDS = 3.0


class NameServers:
    """See the module."""

    def __init__(self, remoting: AsyncRemotingClient, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self._remoting = remoting
        self._best = 0

    def __str__(self) -> str:
        return ";".join(self.addresses)

    async def route(self, topic: str) -> TopicRouteData | None:
        """Where a topic is (105); None when the name server knows no such topic."""
        ext = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True).to_ext()
        answer = await self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST or not answer.body:
            return None
        return TopicRouteData.from_json(answer.body)

    async def masters(self) -> dict[str, str]:
        """The address of each broker's master, by the broker's name (106)."""
        answer = await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        if not answer.body:
            return {}
        table = ClusterInfo.from_json(answer.body).broker_addr_table
        return {name: address for name, data in table.items() if (address := data.master_addr) is not None}

    async def _ask(self, code: int, ext: dict[str, str]) -> RemotingCommand:
        failures = []
        for step in range(len(self.addresses)):
            index = (self._best + step) % len(self.addresses)
            address = self.addresses[index]
            try:
                answer = await self._remoting.invoke(address, RemotingCommand.request(code, dict(ext)), ASK_SECONDS)
            except RemotingError as error:
                failures.append(error.message)
                continue
            if answer.code in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
                self._best = index
                return answer
            failures.append(f"{address} answered {answer.code}: {answer.remark or 'no remark'}.")
        raise NameServerUnreachableError(
            f"No name server answered at {self}: {' '.join(failures)}",
            remedy="Check the address and that a name server runs there.",
        )
