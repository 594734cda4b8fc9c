"""A stand-in for the Remoting port of Apache's proxy (5.3.3): it is name server and each broker of a cluster.

It forwards exactly the requests that Apache's proxy forwards; all others are refused as it does. A request to a broker
must have its name in ``bname`` (``n`` in 310 and 320). The route that it returns names itself as each broker.
"""

from __future__ import annotations

import asyncio
from typing import Self

from spark_rocket.client import Admin
from spark_rocket.protocol.wire.bodies.route import MASTER_ID, TopicRouteData
from spark_rocket.protocol.wire.codes import BROKER_NAME, ONE_LETTER_CODES, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.async_client import AsyncRemotingClient
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.remoting_server import RemotingServer
from spark_rocket.testing import LocalCluster
from tests.kit.brokers import LoopThread

CODES = (
    310, 10, 320, 36, 37, 370, 34, 35, 46, 11, 361, 200050, 15, 200051, 200053, 203, 38, 30, 31, 14, 29, 41, 42, 105
)  # fmt: skip
_SECONDS = 40.0  # longer than a long poll


class RemotingProxy:
    """``with RemotingProxy(cluster) as proxy: … proxy.address …``. ``refused`` has the requests that it refused."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._name_server = cluster.name_server
        with Admin(cluster.name_server) as admin:
            brokers = admin.cluster_info().broker_addr_table
        self._brokers = {name: data.broker_addrs[MASTER_ID] for name, data in brokers.items()}
        self._thread = LoopThread()
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused: list[RemotingCommand] = []
        handlers = dict.fromkeys(CODES, self._forward)
        self._server = RemotingServer("127.0.0.1", 0, handlers, default_handler=self._unsupported)

    def __enter__(self) -> Self:
        async def start() -> None:
            self._client = AsyncRemotingClient()
            await self._server.start()

        self._thread.do(start())
        self.address = self._server.address
        return self

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            for task in self._tasks:
                task.cancel()
            await self._server.close()
            await self._client.close()

        self._thread.do(stop())
        self._thread.stop_loop()

    def _unsupported(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self.refused.append(request)
        remark = f" request type {request.code} not supported"
        return RemotingCommand.response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def _forward(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        field = "n" if request.code in ONE_LETTER_CODES else BROKER_NAME
        broker = request.ext_fields.get(field)
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC and not broker:
            self.refused.append(request)
            remark = f"Request doesn't have field {field}"
            return RemotingCommand.response(request, ResponseCode.VERSION_NOT_SUPPORTED, remark)
        task = asyncio.get_running_loop().create_task(self._respond(channel, request, broker or ""))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _respond(self, channel: Channel, request: RemotingCommand, broker: str) -> None:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            response = await self._ask(self._name_server, request)
            if response.code == ResponseCode.SUCCESS:
                route = TopicRouteData.from_json(response.body)
                for data in route.broker_datas:
                    data.broker_addrs = {MASTER_ID: self.address}
                response.body = route.to_json(standard=True)
        else:
            response = await self._ask(self._brokers[broker], request)
        if not request.is_oneway:
            channel.write(
                RemotingCommand.response(request, response.code, response.remark, response.ext_fields, response.body)
            )

    async def _ask(self, address: str, request: RemotingCommand) -> RemotingCommand:
        again = RemotingCommand.request(request.code, dict(request.ext_fields), bytes(request.body))
        return await self._client.invoke(address, again, _SECONDS)
