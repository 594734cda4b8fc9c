"""Brokers and name servers on a thread of the test's process: single ones, and a master with its slave."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from spark_rocket.broker.broker import Broker
from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.client_manager import monotonic_ms
from spark_rocket.client import Admin, Producer
from spark_rocket.common.system import now_ms
from spark_rocket.model import Message, MessageQueue
from spark_rocket.namesrv.name_server import NameServer
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store.tools.check import check_store
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.threads import ServerThread
from tests.broker.wire import Wire
from tests.kit.clock import Clock
from tests.kit.loop_thread import LoopThread
from tests.kit.waiting import until


def thread_of(cluster: LocalCluster) -> ServerThread:
    """The servers of a cluster that runs in this process."""
    server = cluster._server
    assert isinstance(server, ServerThread)
    return server


def parts_of(cluster: LocalCluster) -> BrokerParts:
    """The insides of its broker, which runs on another thread: look, or replace one attribute."""
    parts = thread_of(cluster).parts
    assert parts is not None
    return parts


@contextmanager
def running(config: BrokerConfig) -> Iterator[Wire]:
    """A broker by its configuration, and a wire to it."""
    loop = LoopThread()
    broker = loop.run(lambda: Broker(config))
    try:
        loop.do(broker.start())
        try:
            with RemotingClient() as client:
                yield Wire(client, broker.address)
        finally:
            loop.do(broker.close())
    finally:
        loop.stop_loop()


class Served(LoopThread):
    """A broker on a thread whose clock is the test's."""

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        settings: dict[str, object],
        monotonic: Callable[[], int] = monotonic_ms,
    ) -> None:
        super().__init__()
        self.config = BrokerConfig.from_properties({"storePathRootDir": directory, "listenPort": 0, **settings})
        self.clock = clock
        self.broker = Broker(self.config, clock=clock, monotonic=monotonic)

    def pass_time(self, milliseconds: int) -> None:
        """Move the clock on, and let the drivers see it."""
        self.clock.now += milliseconds
        self.wake()

    def wake(self) -> None:
        """Let the drivers see that the clock was moved, until they have nothing left to do."""
        drivers = self.broker.parts.delivery_timers.by_topic.values()
        for driver in drivers:
            self.run(driver.wake)
        while self.run(lambda: any(driver.due is not None and driver.due <= self.clock() for driver in drivers)):
            pass


@contextmanager
def served(
    directory: Path,
    clock: Clock,
    *,
    monotonic: Callable[[], int] = monotonic_ms,
    check: bool = True,
    **settings: object,
) -> Iterator[tuple[Served, Wire]]:
    """A broker on a store directory and a wire to it; stopped cleanly, and with ``check`` its store checked."""
    server = Served(directory, clock, settings, monotonic)
    try:
        server.do(server.broker.start())
        try:
            with RemotingClient() as client:
                yield server, Wire(client, server.broker.address)
        finally:
            server.do(server.broker.close())
    finally:
        server.stop_loop()
    if check:
        assert check_store(directory, server.config.store_config()) == []


class Servers(LoopThread):
    """Name servers and brokers on one loop, each started and stopped by itself."""

    synchronize_seconds = 0.05

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.late = 0.0  # seconds that the name servers' clocks are ahead
        self._directory = directory
        self.name_servers: list[NameServer | None] = []
        self.ports: list[int] = []
        self.brokers: list[Broker] = []

    def add_name_server(self) -> str:
        server = NameServer(port=0, clock=lambda: time.monotonic() + self.late)
        self.do(server.start())
        self.name_servers.append(server)
        self.ports.append(server.port)
        return server.address

    def stop_name_server(self, index: int) -> None:
        server = self.name_servers[index]
        assert server is not None
        self.do(server.close())
        self.name_servers[index] = None

    def restart_name_server(self, index: int) -> None:
        server = NameServer(port=self.ports[index])
        self.do(server.start())
        self.name_servers[index] = server

    def add_broker(
        self, name: str = "a", *, store: str | None = None, clock: Callable[[], int] = now_ms, **settings: object
    ) -> Broker:
        config = BrokerConfig.from_properties(
            {
                "brokerName": name,
                "listenPort": 0,
                "storePathRootDir": self._directory / (store or f"{name}{len(self.brokers)}"),
                "namesrvAddr": self.addresses,
                "mappedFileSizeCommitLog": 1 << 20,
                "diskSpaceWarningLevelRatio": 100,
                **settings,
            }
        )
        broker = Broker(config, clock=clock, synchronize_seconds=self.synchronize_seconds)
        self.do(self._start(broker))
        self.brokers.append(broker)
        return broker

    @staticmethod
    async def _start(broker: Broker) -> None:
        await broker.start()
        await broker.parts.registration.register()

    def stop(self, broker: Broker) -> None:
        self.do(broker.close())
        self.brokers.remove(broker)

    @property
    def addresses(self) -> str:
        return ";".join(f"127.0.0.1:{port}" for port in self.ports)

    def close(self) -> None:
        for broker in self.brokers:
            self.do(broker.close())
        for index, server in enumerate(self.name_servers):
            if server is not None:
                self.stop_name_server(index)
        self.stop_loop()


class Pair(Servers):
    """A master and its slave under one name server. ``skew``: how far each clock is ahead in ms, by its store."""

    def __init__(
        self, directory: Path, skew: dict[str, int] | None = None, *, start: bool = True, **settings: object
    ) -> None:
        super().__init__(directory)
        self.skew = skew or {}
        self.ahead = 0  # all clocks, in ms
        self.settings = settings
        self.add_name_server()
        if not start:
            return
        self.master = self.add("a", 0)
        self.slave = self.add("a", 1)
        until(lambda: self.slave.parts.synchronize is not None and self.slave.parts.synchronize.rounds)

    def add(self, name: str, broker_id: int, port: int = 0, store: str | None = None, **settings: object) -> Broker:
        store = store or f"{name}{broker_id}"
        own = {
            "brokerId": broker_id,
            "brokerRole": "SLAVE" if broker_id else "ASYNC_MASTER",
            "listenPort": port,
            "vipChannelEnable": False,
            "registerNameServerPeriod": 1000,
        }
        return self.add_broker(
            name, store=store, clock=partial(self.clock_of, store), **{**own, **self.settings, **settings}
        )

    def clock_of(self, store: str) -> int:
        return time.time_ns() // 1_000_000 + self.ahead + self.skew.get(store, 0)

    def filled(self, topic: str, *bodies: bytes) -> MessageQueue:
        """The queue of a new topic with messages, which the slave has as well."""
        with Admin(self.addresses) as admin, Producer("p", name_server=self.addresses) as producer:
            admin.create_topic(topic, 1)
            for body in bodies:
                producer.send(Message(topic, body))
        self.caught_up()
        until(lambda: topic in self.slave.parts.topics.table)
        return MessageQueue(topic, "a", 0)

    def caught_up(self) -> None:
        assert self.slave.parts.slave is not None
        self.do(self.slave.parts.slave.reached(self.master.parts.store.max_physical_offset))
