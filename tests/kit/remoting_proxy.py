"""A stand-in for the Remoting port of Apache's proxy (5.3.3): it is name server and each broker of a cluster.

It accepts exactly the requests that Apache's proxy accepts; all others are refused as it does. A request to a broker
must have its name in ``bname`` (``n`` in 310 and 320), locks the name of their first queue in the body. Requests about
members of groups need none: Apache's proxy keeps the members itself (its ClientManagerActivity and
ConsumerManagerActivity); here all brokers keep them, and the first one's response is returned. The route that it
returns names itself as each broker. Each client has connections of its own to the brokers, as brokers know members by
their connections.

A decision about a transaction names no broker either (TransactionActivity): the proxy remembers the broker of each half
message that it sent or whose check it forwarded, by producer group and transaction id, and drops other decisions
(AbstractTransactionService). A check has only the four fields of RemotingChannel.processCheckTransaction.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Self

from spark_rocket.client import Admin
from spark_rocket.model import PRODUCER_GROUP, TRAN_MSG
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody
from spark_rocket.protocol.wire.bodies.route import MASTER_ID, TopicRouteData
from spark_rocket.protocol.wire.codes import BROKER_NAME, ONE_LETTER_CODES, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.async_client import AsyncRemotingClient
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.remoting_server import RemotingServer
from spark_rocket.testing import LocalCluster
from tests.kit.loop_thread import LoopThread

CODES = (
    310, 10, 320, 36, 37, 370, 34, 35, 46, 11, 361, 200050, 15, 200051, 200053, 203, 38, 30, 31, 14, 29, 41, 42, 105
)  # fmt: skip
_MEMBERS = {
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
}
_CHECK = ("commitLogOffset", "tranStateTableOffset", "transactionId", "msgId")
_LOCKS = {RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ}
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
        self._clients: dict[Channel, AsyncRemotingClient] = {}
        self._transactions: dict[tuple[str, str], str] = {}
        self.refused: list[RemotingCommand] = []
        handlers = dict.fromkeys(CODES, self._forward)
        self._server = RemotingServer("127.0.0.1", 0, handlers, default_handler=self._unsupported)

    def __enter__(self) -> Self:
        self._thread.do(self._server.start())
        self.address = self._server.address
        return self

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            for task in self._tasks:
                task.cancel()
            await self._server.close()
            for client in self._clients.values():
                await client.close()

        self._thread.do(stop())
        self._thread.stop_loop()

    def _unsupported(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self.refused.append(request)
        remark = f" request type {request.code} not supported"
        return RemotingCommand.response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def _forward(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        if request.code == RequestCode.END_TRANSACTION:
            name = self._transactions.pop(_transaction_of(request), "")
            if not name:
                return RemotingCommand.response(request, ResponseCode.SUCCESS)
            brokers = [self._brokers[name]]
        else:
            brokers = self._brokers_of(request)
        if not brokers:
            self.refused.append(request)
            remark = "Request doesn't have field bname"
            return RemotingCommand.response(request, ResponseCode.VERSION_NOT_SUPPORTED, remark)
        task = asyncio.get_running_loop().create_task(self._respond(channel, request, brokers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    def _brokers_of(self, request: RemotingCommand) -> list[str]:
        """Return the addresses to ask; none if the request does not name its broker."""
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return [self._name_server]
        if request.code in _MEMBERS:
            return list(self._brokers.values())
        if request.code in _LOCKS:
            name = LockBatchRequestBody.from_json(request.body).mq_set[0].broker_name
        else:
            name = request.ext_fields.get("n" if request.code in ONE_LETTER_CODES else BROKER_NAME, "")
        return [self._brokers[name]] if name else []

    async def _respond(self, channel: Channel, request: RemotingCommand, servers: list[str]) -> None:
        if channel not in self._clients:
            self._clients[channel] = AsyncRemotingClient(on_push=partial(self._pass_on, channel))
        client = self._clients[channel]
        asked = (RemotingCommand.request(request.code, dict(request.ext_fields), bytes(request.body)) for _ in servers)
        response, *_ = await asyncio.gather(
            *(client.invoke(*each, _SECONDS) for each in zip(servers, asked, strict=True))
        )
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and response.code == ResponseCode.SUCCESS:
            route = TopicRouteData.from_json(response.body)
            for data in route.broker_datas:
                data.broker_addrs = {MASTER_ID: self.address}
            response.body = route.to_json(standard=True)
        if TRAN_MSG in request.ext_fields.get("i", "") and response.code == ResponseCode.SUCCESS:
            group, transaction = request.ext_fields["a"], response.ext_fields["transactionId"]
            self._transactions[group, transaction] = request.ext_fields["n"]
        if not request.is_oneway:
            channel.write(
                RemotingCommand.response(request, response.code, response.remark, response.ext_fields, response.body)
            )

    def _pass_on(self, channel: Channel, address: str, request: RemotingCommand) -> None:
        """Forward a broker's request to the client."""
        fields = request.ext_fields
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            (message,) = decode_messages(bytes(request.body))
            name = next(name for name, each in self._brokers.items() if each == address)
            self._transactions[message.properties[PRODUCER_GROUP], fields["transactionId"]] = name
            fields = {name: fields[name] for name in _CHECK}
        channel.write(RemotingCommand.request(request.code, fields, bytes(request.body), oneway=True))


def _transaction_of(request: RemotingCommand) -> tuple[str, str]:
    return request.ext_fields["producerGroup"], request.ext_fields["transactionId"]
