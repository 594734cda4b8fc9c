"""The proxy: the messaging service on a gRPC server, beside a started broker in the same process and loop.

Thread-safety: made, started and closed on the broker's event loop. Nothing is kept on disk.
Corresponds to org.apache.rocketmq.proxy.ProxyStartup in LOCAL mode.
"""

from __future__ import annotations

from spark_rocket.broker.server import Broker
from spark_rocket.proxy.clients import ClientRegistry
from spark_rocket.proxy.context import GrpcServer
from spark_rocket.proxy.dead_letters import DeadLetterFamily
from spark_rocket.proxy.grpcio_server import GrpcioServer
from spark_rocket.proxy.local_broker import LocalBroker
from spark_rocket.proxy.messaging import Family, rpcs
from spark_rocket.proxy.pulling import PullFamily
from spark_rocket.proxy.receiving import ReceiveFamily
from spark_rocket.proxy.relay import Relay
from spark_rocket.proxy.routes import RouteFamily
from spark_rocket.proxy.sending import SendFamily
from spark_rocket.proxy.telemetry import ClientFamily
from spark_rocket.proxy.transactions import TransactionFamily
from spark_rocket.remoting.address import format_address

_WILDCARDS = ("0.0.0.0", "::", "")


class ProxyServer:
    """One endpoint for one broker."""

    def __init__(self, broker: Broker, host: str, port: int) -> None:
        self._broker = broker
        self._host = host
        self._port = port
        self._server: GrpcServer | None = None
        self._made: list[Family] = []
        self.clients: ClientRegistry | None = None

    @property
    def port(self) -> int:
        """The real port, also when 0 was asked for."""
        return self._port

    @property
    def address(self) -> str:
        """``host:port`` that it listens on."""
        return format_address(self._host, self._port)

    async def start(self) -> None:
        """Serve. ConfigError when the address cannot be had."""
        self._made = self._families(LocalBroker(self._broker))
        server = GrpcioServer(self._host, self._port, rpcs(self._made))
        try:
            await server.start()
        except BaseException:
            self._end_families()
            raise
        self._server = server
        self._port = server.port

    def _families(self, broker: LocalBroker) -> list[Family]:
        clients = self.clients = ClientRegistry(broker)
        Relay(broker, clients)
        receiving = ReceiveFamily(broker)
        clients.on_gone.append(receiving.receipts.client_left)
        return [
            RouteFamily(broker, self._advertised),
            ClientFamily(clients),
            SendFamily(broker),
            TransactionFamily(broker, clients),
            receiving,
            PullFamily(broker),
            DeadLetterFamily(receiving.receipts),
        ]

    def _advertised(self) -> tuple[str, int]:
        """The address for clients that do not say what they called."""
        return self._broker.service.store_host[0] if self._host in _WILDCARDS else self._host, self._port

    async def close(self) -> None:
        """Take no more calls and end those under way."""
        if self._server is not None:
            await self._server.close()
            self._server = None
        self._end_families()

    def _end_families(self) -> None:
        made, self._made = self._made, []
        for family in made:
            family.close()
