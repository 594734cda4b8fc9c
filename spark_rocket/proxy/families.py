"""The messaging service as a whole: its families of methods, and the clients that they share.

Thread-safety: used on one event loop. Corresponds to org.apache.rocketmq.proxy.grpc.v2.DefaultGrpcMessingActivity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from spark_rocket.client.core.config import MAX_MESSAGE_SIZE
from spark_rocket.proxy import definitions
from spark_rocket.proxy.access import GrpcAccessControl, check_owner
from spark_rocket.proxy.cluster.cluster import Cluster
from spark_rocket.proxy.messaging import CLIENT_ID, Family, check_client, rpcs
from spark_rocket.proxy.methods.clients import EXPIRE_SECONDS, ClientRegistry
from spark_rocket.proxy.methods.dead_letters import DeadLetterFamily
from spark_rocket.proxy.methods.pulling import PullFamily
from spark_rocket.proxy.methods.receiving import MIN_POLLING_MS, ReceiveFamily
from spark_rocket.proxy.methods.relay import Relay
from spark_rocket.proxy.methods.routes import RouteFamily
from spark_rocket.proxy.methods.sending import SendFamily
from spark_rocket.proxy.methods.telemetry import ClientFamily
from spark_rocket.proxy.methods.transactions import TransactionFamily
from spark_rocket.proxy.transport.context import Context, Rpc

definitions.messaging()  # read where it is imported, beside the event loop


class Families:
    """Every method, for a cluster that is started. Made on the event loop."""

    def __init__(
        self,
        cluster: Cluster,
        listening: Callable[[], tuple[str, int]],
        *,
        access_control: GrpcAccessControl | None = None,
        max_message_size: int = MAX_MESSAGE_SIZE,
        expire_seconds: float = EXPIRE_SECONDS,
        min_polling_ms: int = MIN_POLLING_MS,
    ) -> None:
        """``listening`` gives the endpoint's own address, for clients that do not say what they called.

        ``access_control``: whose rules every call is checked by; None lets all pass. ``max_message_size``: bytes of a
        body. ``expire_seconds``: a client that is silent for so long is forgotten. ``min_polling_ms``: the shortest
        long polling of a receive.
        """
        self.cluster = cluster
        self.access_control = access_control
        self.clients = ClientRegistry(cluster, max_body_size=max_message_size, expire_seconds=expire_seconds)
        Relay(cluster, self.clients)
        self.receiving = ReceiveFamily(
            cluster, self.clients.is_member, max_message_size=max_message_size, min_polling_ms=min_polling_ms
        )
        self.clients.on_gone.append(self.receiving.receipts.client_left)
        self._made: list[Family] = [
            self.receiving,  # closed before its clients are forgotten
            RouteFamily(cluster, listening),
            ClientFamily(self.clients),
            SendFamily(cluster, self.clients, max_message_size=max_message_size),
            TransactionFamily(cluster, self.clients),
            PullFamily(cluster, max_message_size=max_message_size),
            DeadLetterFamily(self.receiving.receipts),
        ]
        self._watch: asyncio.Task[None] | None = None
        if access_control is not None:
            self._watch = asyncio.get_running_loop().create_task(access_control.watch())

    def rpcs(self) -> dict[str, Rpc]:
        """The messaging service's methods by their paths, for a server that calls :meth:`authenticate` first."""
        return rpcs(self._made, None if self.access_control is None else self._authorize)

    def authenticate(self, context: Context, method: str) -> None:
        """Check a call's metadata, before its message is read. StatusError without an id or a valid signature."""
        check_client(context)
        if self.access_control is not None:
            self.access_control.authenticate(context)

    def _authorize(self, context: Context, request: Any) -> None:
        assert self.access_control is not None
        self.access_control.authorize(context, request)
        check_owner(context, self.clients.owner(context.metadata[CLIENT_ID]))

    async def close(self) -> None:
        """The server has stopped: end what goes on by itself, and give back what clients had.

        The cluster, closed next, waits until the brokers have heard of it.
        """
        if self._watch is not None:
            self._watch.cancel()
        for family in self._made:
            family.close()
