"""The proxy: the messaging service on a gRPC server, for all brokers of a name server.

The proxy is stateless: it stores nothing on disk, and clients register again with another proxy. So a proxy can fail
and another one serve its clients. TLS and plaintext share a port, depending on the TLS settings.

Thread-safety: create, start and close it on one event loop.
Corresponds to org.apache.rocketmq.proxy.ProxyStartup in CLUSTER mode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from spark_rocket.client.core.client_config import MAX_MESSAGE_SIZE
from spark_rocket.protocol.auth_settings import check_access
from spark_rocket.proxy import definitions
from spark_rocket.proxy.acl.access_control import GrpcAccessControl, check_owner
from spark_rocket.proxy.cluster.proxy_cluster import ProxyCluster
from spark_rocket.proxy.messaging import CLIENT_ID, Family, check_client, rpcs
from spark_rocket.proxy.method_types import MAX_MESSAGES, METHODS, MethodType
from spark_rocket.proxy.methods.acknowledging import AckFamily
from spark_rocket.proxy.methods.client_registry import EXPIRE_SECONDS, ClientRegistry
from spark_rocket.proxy.methods.pulling import PullFamily
from spark_rocket.proxy.methods.receipts import Receipts
from spark_rocket.proxy.methods.receiving import MIN_POLLING_MS, ReceiveFamily
from spark_rocket.proxy.methods.relay import Relay
from spark_rocket.proxy.methods.renewals import Renewals
from spark_rocket.proxy.methods.routing import RouteFamily
from spark_rocket.proxy.methods.sending import SendFamily
from spark_rocket.proxy.methods.telemetry import ClientFamily
from spark_rocket.proxy.methods.transactions import TransactionFamily
from spark_rocket.proxy.proxy_config import ProxyConfig
from spark_rocket.proxy.transport.grpc_server import GrpcServer
from spark_rocket.proxy.transport.limits import GrpcLimits, send_request_bytes
from spark_rocket.proxy.transport.proxy_context import ProxyContext, Rpc
from spark_rocket.proxy.transport.tool_services import ToolServices
from spark_rocket.remoting.address import format_address
from spark_rocket.remoting.tls.contexts import server_tls

_SERVICE = definitions.messaging().descriptor.services_by_name["MessagingService"]  # load it not on the event loop
_RPCS = {f"/{definitions.SERVICE}/{method.name}": method.input_type.full_name for method in _SERVICE.methods}
"""The full name of the request's message by the path of its method."""


class MessagingMethods:
    """All methods, for a cluster. Create it on the event loop."""

    def __init__(
        self,
        cluster: ProxyCluster,
        listening: Callable[[], tuple[str, int]],
        *,
        access_control: GrpcAccessControl[Any] | None = None,
        max_message_size: int = MAX_MESSAGE_SIZE,
        expire_seconds: float = EXPIRE_SECONDS,
        min_polling_ms: int = MIN_POLLING_MS,
    ) -> None:
        """``listening`` returns the endpoint's address, for clients that do not send the called address.

        ``access_control``: checks every call; None for no checks. ``max_message_size``: bytes of a body.
        ``expire_seconds``: the timeout after which an inactive client is removed. ``min_polling_ms``: the shortest long
        polling of a receive.
        """
        self.cluster = cluster
        self.access_control = access_control
        self.clients = ClientRegistry(cluster, max_body_size=max_message_size, expire_seconds=expire_seconds)
        cluster.on_push |= Relay(cluster, self.clients).handlers()
        receipts = Receipts(cluster)
        self.renewals = Renewals(cluster, receipts, self.clients.is_member)
        self.clients.on_gone.append(self.renewals.client_left)
        self.receiving = ReceiveFamily(
            cluster, receipts, self.renewals, max_message_size=max_message_size, min_polling_ms=min_polling_ms
        )
        self._made: list[Family] = [
            self.receiving,
            AckFamily(receipts, self.renewals),
            RouteFamily(cluster, listening),
            ClientFamily(self.clients),
            SendFamily(cluster, self.clients, max_message_size=max_message_size),
            TransactionFamily(cluster, self.clients),
            PullFamily(cluster, max_message_size=max_message_size),
        ]
        self._watch: asyncio.Task[None] | None = None
        if access_control is not None:
            self._watch = asyncio.get_running_loop().create_task(access_control.watch())

    def rpcs(self) -> dict[str, Rpc]:
        """Return the methods by path, for a server that calls :meth:`authenticate` first."""
        return rpcs(self._made, None if self.access_control is None else self._authorize)

    async def authenticate(self, context: ProxyContext, path: str) -> None:
        """Check the metadata of a call before its message is read. StatusError without client id or valid signature."""
        check_client(context)
        if self.access_control is not None:
            await self.access_control.authenticate(context, _RPCS[path])

    async def _authorize(self, context: ProxyContext, rpc: str, method: MethodType, request: Any) -> None:
        assert self.access_control is not None
        await self.access_control.authorize(context, rpc, method, request)
        check_owner(context, self.clients.owner(context.metadata[CLIENT_ID]))

    async def close(self) -> None:
        """Stop timers and tasks, and release the messages of clients, after the server has stopped.

        Close the cluster next: it waits for these requests to brokers.
        """
        if self._watch is not None:
            self._watch.cancel()
        if self.access_control is not None:
            await self.access_control.close()
        self.renewals.close()  # before its clients are removed
        for family in self._made:
            family.close()


class ProxyServer:
    """A gRPC endpoint for a cluster."""

    def __init__(self, config: ProxyConfig) -> None:
        """``config.name_server`` must be set."""
        self.config = config
        self.methods: MessagingMethods | None = None
        """The methods; None while it is not started."""
        self.transport: GrpcServer | None = None
        self._parts = AsyncExitStack()

    @property
    def port(self) -> int:
        """The bound port, also if 0 was configured."""
        return self.config.port if self.transport is None else self.transport.port

    @property
    def address(self) -> str:
        """The bound ``host:port``."""
        return format_address(self.config.host, self.port)

    async def start(self) -> None:
        """Listen. ConfigError for an address in use, and for invalid certificates or accounts."""
        async with AsyncExitStack() as parts:
            cluster = ProxyCluster(
                self.config.name_server, credentials=self.config.credentials, tls=self.config.client_tls()
            )
            parts.push_async_callback(cluster.close)
            methods = self.methods = self._make_methods(cluster)
            parts.push_async_callback(methods.close)
            server = self.transport = self._make_server(methods)
            await server.start()
            parts.push_async_callback(server.close)
            parts.callback(methods.clients.end_streams)
            await cluster.start()
            self._parts = parts.pop_all()

    def _make_methods(self, cluster: ProxyCluster) -> MessagingMethods:
        config = self.config
        return MessagingMethods(
            cluster,
            lambda: (config.called_hosts[0], self.port),
            access_control=_access_control(config, cluster),
            max_message_size=config.max_message_size,
            expire_seconds=config.grpc_client_idle_time_mills / 1000,
        )

    def _make_server(self, methods: MessagingMethods) -> GrpcServer:
        config = self.config
        tls = server_tls(config.server_tls_settings(), config.called_hosts)
        send = f"/{definitions.SERVICE}/SendMessage"
        limits = GrpcLimits(
            max_connections=config.max_connections,
            max_streams=config.grpc_max_concurrent_calls_per_connection,
            method_request_bytes={
                **{f"/{definitions.SERVICE}/{name}": method.max_bytes for name, method in METHODS.items()},
                send: send_request_bytes(config.max_message_size, MAX_MESSAGES),
            },
            max_unread_bytes=config.max_unread_answer_bytes,
            idle_timeout=config.grpc_client_idle_time_mills / 1000,
            max_age=config.max_connection_age_millis / 1000,
        )
        return GrpcServer(
            methods.rpcs(),
            config.host,
            config.port,
            tls=tls,
            limits=limits,
            authenticate=methods.authenticate,
            tools=ToolServices(definitions.messaging().descriptor),
            reuse_port=config.reuse_port,
        )

    async def close(self) -> None:
        """Refuse new calls, end those in progress, and release the messages of clients. Idempotent."""
        parts, self._parts = self._parts, AsyncExitStack()
        await parts.aclose()
        self.methods = self.transport = None


def _access_control(config: ProxyConfig, cluster: ProxyCluster) -> GrpcAccessControl[Any] | None:
    """The checks of calls; None for no checks. ConfigError for invalid settings."""
    check_access(config.acl_enable, config.authentication_enabled, config.authorization_enabled)
    if config.authentication_enabled:
        from spark_rocket.proxy.acl.user_access_control import GrpcUserAccessControl

        return GrpcUserAccessControl(config, cluster)
    if config.acl_enable:
        from spark_rocket.proxy.acl.plain_access_control import GrpcPlainAccessControl

        return GrpcPlainAccessControl(config.acl_path, clock=cluster.clock, clock_skew_ms=config.acl_max_clock_skew)
    return None
