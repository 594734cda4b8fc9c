"""The messaging parts without a network, with a broker that has a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_rocket.broker.state.topic_config_manager import new_topic
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.proxy import definitions
from spark_rocket.proxy.cluster.proxy_cluster import ProxyCluster
from spark_rocket.proxy.messaging import CLIENT_ID
from spark_rocket.proxy.methods.grpc_client import CommandStream
from spark_rocket.proxy.server import MessagingMethods
from spark_rocket.proxy.transport.message_bytes import Batch, MessageBytes
from tests.broker.wire import Wire
from tests.kit.brokers import Served, served
from tests.kit.clock import Clock
from tests.kit.loop_thread import LoopThread
from tests.proxy.brokers import cluster_of
from tests.proxy.caller import Caller, consumer_settings, producer_settings


class DirectContext:
    """A call's context."""

    def __init__(self, client_id: str, *, deadline: float | None = None, **metadata: str) -> None:
        self.metadata: Mapping[str, str] = {CLIENT_ID: client_id, **metadata}
        self.peer = "127.0.0.1:5000"
        self.deadline = deadline
        self.status_code = 0
        self._messages = MessageBytes(1 << 40)

    def batch(self) -> Batch:
        return self._messages.batch()


class DirectCaller(Caller):
    """A client whose calls are function calls on the proxy's loop; its Telemetry is a list of the received commands."""

    def __init__(self, proxy: DirectEndpoint, client_id: str) -> None:
        self.proxy = proxy
        self.client_id = client_id
        self.context = DirectContext(client_id)
        self.told: list[Any] = []

    def call(self, method: str, request: Any = None, *, timeout: float = 30.0, **fields: Any) -> Any:
        made = self._request(method, request, fields)
        rpc = self.proxy.rpcs[f"/{definitions.SERVICE}/{method}"]
        raw = self.proxy.server.do(rpc.handler(self.context, made.SerializeToString()))
        return getattr(definitions, f"{method}Response").FromString(raw)

    def stream(self, method: str, request: Any = None, *, timeout: float = 30.0, **fields: Any) -> list[Any]:
        """All the answers of a method that has many."""
        made = self._request(method, request, fields)
        rpc = self.proxy.rpcs[f"/{definitions.SERVICE}/{method}"]

        async def all_of_them() -> list[bytes]:
            return [raw async for raw in rpc.handler(self.context, made.SerializeToString())]

        answer_class = getattr(definitions, f"{method}Response")
        return [answer_class.FromString(raw) for raw in self.proxy.server.do(all_of_them())]

    def produce(self, *topics: str) -> None:
        """Say a producer's settings on a stream that stays open."""
        self.proxy.server.do(self._open(producer_settings(*topics)))

    def consume(self, group: str, *topics: str) -> None:
        """Say a consumer's settings, likewise."""
        self.proxy.server.do(self._open(consumer_settings(group, *topics)))

    def messages(self, group: str, topic: str, broker: str = "", **fields: Any) -> list[Any]:
        """The available messages; none of an unavailable broker."""
        answers = self.answers(group, topic, broker, seconds=0.1, **fields)
        return [answer.message for answer in answers if answer.WhichOneof("content") == "message"]

    async def _open(self, settings: Any) -> None:
        stream = CommandStream()
        await stream.respond(await self.proxy.clients.take_settings(self.context, settings, stream))
        self.proxy.readers.append(asyncio.get_running_loop().create_task(self._read(stream)))

    async def _read(self, stream: CommandStream) -> None:
        async for command in stream:
            self.told.append(command)

    def settle(self) -> None:
        """Wait until the command is in ``told``."""

        endpoint = self.proxy

        async def turns() -> None:
            await endpoint.cluster.settle()
            for _ in range(5):
                await asyncio.sleep(0)

        assert endpoint.wire is not None
        endpoint.wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO)  # what the broker sent before has been read
        endpoint.server.do(turns())


class DirectEndpoint:
    """The parts of a cluster, on a loop; ``server`` runs it."""

    def __init__(self, server: LoopThread, cluster: ProxyCluster, wire: Wire | None = None, **settings: Any) -> None:
        self.server = server
        self.cluster = cluster
        self.wire = wire
        self.readers: list[asyncio.Task[None]] = []
        self._methods: MessagingMethods = server.run(
            lambda: MessagingMethods(cluster, lambda: ("127.0.0.1", 8081), **settings)
        )
        self.clients = self._methods.clients
        self.rpcs = self._methods.rpcs()

    def client(self, client_id: str = "direct@1") -> DirectCaller:
        return DirectCaller(self, client_id)

    async def close(self) -> None:
        for reader in self.readers:
            reader.cancel()
        await asyncio.gather(*self.readers, return_exceptions=True)
        await self._methods.close()


class ProxyThread(DirectEndpoint):
    """A proxy on a loop of its own, beside brokers that are processes."""

    def __init__(self, name_server: str, **settings: Any) -> None:
        server = LoopThread()
        cluster = ProxyCluster(name_server, **settings)
        server.do(cluster.start())
        super().__init__(server, cluster, min_polling_ms=100)

    def stop(self) -> None:
        """Without a word, as a process that is killed."""
        self.server.do(self._end())
        self.server.stop_loop()

    async def _end(self) -> None:
        await self.cluster.remoting.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def proxy_of(name_server: str, **settings: Any) -> Iterator[ProxyThread]:
    proxy = ProxyThread(name_server, **settings)
    try:
        yield proxy
    finally:
        proxy.server.do(proxy.close())
        proxy.server.do(proxy.cluster.close())
        proxy.stop()


class BrokersEndpoint(DirectEndpoint):
    """On the loop of its cluster's one broker."""

    def __init__(self, served: Served, cluster: ProxyCluster, wire: Wire) -> None:
        super().__init__(served, cluster, wire)
        self.wire: Wire = wire
        self.served = served

    def create_topic(self, name: str, queues: int = 1) -> str:
        self.server.run(lambda: self.served.broker.parts.topics.put(new_topic(name, queues)))
        self.server.do(self.served.broker.parts.tasks.settle())
        return name


@contextmanager
def endpoint(directory: Path, clock: Clock, **settings: Any) -> Iterator[tuple[BrokersEndpoint, Wire]]:
    """Serve a store directory; it is checked at the end."""
    with served(directory, clock, **settings) as (server, wire), cluster_of(server, clock) as cluster:
        made = BrokersEndpoint(server, cluster, wire)
        try:
            yield made, wire
        finally:
            server.do(made.close())
