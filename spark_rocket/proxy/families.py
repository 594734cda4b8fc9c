"""The messaging service as a whole: its families of methods, and the clients that they share.

This module and what it imports need protobuf; the server (server.py) imports it when the first client calls.

Thread-safety: on the event loop, but for the import.
Corresponds to org.apache.rocketmq.proxy.grpc.v2.DefaultGrpcMessingActivity.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_rocket.broker.server import Broker
from spark_rocket.proxy import definitions, health, reflection
from spark_rocket.proxy.access import check_access
from spark_rocket.proxy.clients import ClientRegistry
from spark_rocket.proxy.context import Rpc
from spark_rocket.proxy.dead_letters import DeadLetterFamily
from spark_rocket.proxy.local_broker import LocalBroker
from spark_rocket.proxy.messaging import Family, rpcs
from spark_rocket.proxy.pulling import PullFamily
from spark_rocket.proxy.receiving import ReceiveFamily
from spark_rocket.proxy.relay import Relay
from spark_rocket.proxy.routes import RouteFamily
from spark_rocket.proxy.sending import SendFamily
from spark_rocket.proxy.telemetry import ClientFamily
from spark_rocket.proxy.transactions import TransactionFamily

definitions.messaging()  # read where it is imported, beside the event loop


class Families:
    """Every method for one broker. ``listening`` gives the endpoint's own address."""

    def __init__(self, broker: Broker, listening: Callable[[], tuple[str, int]]) -> None:
        self._broker = broker
        local = LocalBroker(broker)
        clients = self.clients = ClientRegistry(local)
        Relay(local, clients)
        receiving = ReceiveFamily(local)
        clients.on_gone.append(receiving.receipts.client_left)
        self._made: list[Family] = [
            receiving,  # closed before its clients are forgotten
            RouteFamily(local, listening),
            ClientFamily(clients),
            SendFamily(local, clients),
            TransactionFamily(local, clients),
            PullFamily(local),
            DeadLetterFamily(receiving.receipts),
        ]

    def rpcs(self) -> dict[str, Rpc]:
        """What a server is to serve: the service, and what gRPC's tools ask of any server."""
        asked = {
            **health.rpcs([definitions.SERVICE]),
            **reflection.rpcs([definitions.messaging(), health.definitions()]),
        }
        return {**rpcs(self._made, check_access(self._broker.service.access_control, self.clients.owner)), **asked}

    def close(self) -> None:
        """The server has stopped: end what goes on by itself."""
        for family in self._made:
            family.close()
