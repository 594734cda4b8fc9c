"""A cluster in memory for the model of the exactly-once sink: brokers, name servers, and drivers that stop anywhere.

Drivers run the sink's real code (``check_topics``, ``stage_rows``, ``commit_epoch``), each in a thread. A thread runs
only while ``Driver.step`` waits for it, and pauses at its next request, so a history of steps always has the same
result. Between two steps anything can happen: another driver runs, a broker stops, a name server loses its entries,
time passes. A driver that is not stepped is a process that is suspended, at that request.

What is simulated: routes (those of brokers that run), logs, offsets, topics, entries. All queries share their first
slot of registers. Nothing is lost by a broker that
stops. A batch is one append. A send that was suspended for longer than ``requestTimeout`` is not stored: that is the
sink's documented limit (a driver that is suspended between its last check and a send).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Self

import pyarrow as pa

from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.exactly_once.driver import commit_epoch
from spark_rocket.datasource.exactly_once.manifest import Epoch
from spark_rocket.datasource.exactly_once.registers import slots_of as own_slots_of
from spark_rocket.datasource.exactly_once.sink_brokers import Timing
from spark_rocket.datasource.exactly_once.staging import stage_rows
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parse import parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.errors import RemotingConnectError, RemotingTimeoutError, RocketError, TopicNotFoundError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from tests.datasource.exactly_once_brokers import FakeBrokers, KilledError, Stored

LEDGER, STAGING, TARGETS = "ROCKET_SINK_LEDGER", "ROCKET_SINK_STAGING", ("orders", "copies")
SERVERS = ("n1:1", "n2:1")
GRACE, RETRY_S, REQUEST_S = 4, 12, 2
_MAX_STEPS = 3000

local = threading.local()
"""``driver``: the driver of this thread."""


@dataclass
class Node:
    """A broker: whether it runs, and the queues of its topics."""

    is_up: bool = True
    topics: dict[str, int] = field(default_factory=dict)


@dataclass
class Server:
    """A name server."""

    is_up: bool = True
    entries: dict[tuple[str, str], str] = field(default_factory=dict)


class World:
    """The cluster."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.nodes = {"a": Node(topics=dict.fromkeys(TARGETS, 1))}
        self.servers = {address: Server() for address in SERVERS}
        self.log: dict[MessageQueue, list[Stored]] = {}
        self.first: dict[MessageQueue, int] = {}
        self.offsets: dict[tuple[str, MessageQueue], int] = {}

    def route(self, topic: str) -> dict[str, int]:
        if not any(server.is_up for server in self.servers.values()):
            raise RemotingConnectError("no name server runs")
        return {name: node.topics[topic] for name, node in self.nodes.items() if node.is_up and topic in node.topics}

    def queues(self, topic: str) -> list[MessageQueue]:
        queues = [MessageQueue(topic, name, at) for name, count in self.route(topic).items() for at in range(count)]
        if not queues:
            raise TopicNotFoundError(f"topic {topic} has no route", response_code=17)
        return queues

    def visible(self) -> list[str]:
        """The bodies that consumers see."""
        logs = (log for queue, log in self.log.items() if queue.topic in TARGETS)
        return [stored.body.decode() for log in logs for stored in log]


class SimBrokers(FakeBrokers):
    """The requests of one driver to brokers."""

    def __init__(self, world: World, driver: Driver) -> None:
        super().__init__(log=world.log, first=world.first, offsets=world.offsets)
        self.world = world
        self.driver = driver
        self.name_server = ";".join(SERVERS)
        self.reader = self
        self.before, self.after = self._before, self._after
        self._routes: dict[str, list[MessageQueue]] = {}

    def _before(self, kind: str, queue: MessageQueue) -> None:
        asked = self.world.now
        self.driver.pause(kind)
        self._reach(queue)
        if kind == "publish" and self.world.now - asked > REQUEST_S:
            raise RemotingTimeoutError("the driver was suspended")

    def _reach(self, queue: MessageQueue) -> None:
        node = self.world.nodes[queue.broker_name]
        if not node.is_up:
            raise RemotingConnectError(f"broker {queue.broker_name} does not run")
        if queue.topic not in node.topics:
            raise TopicNotFoundError(f"{queue.broker_name} has no {queue.topic}", response_code=17)

    def _after(self, kind: str, queue: MessageQueue) -> None:
        self.driver.answer()

    def refresh(self, topic: str) -> list[MessageQueue]:
        """Like ``Reader.refresh``: a route that this process knows remains."""
        self.driver.pause("route")
        try:
            self._routes[topic] = self.world.queues(topic)
        except RocketError:
            if topic not in self._routes:
                raise
        return self._routes[topic]

    def queues(self, topic: str, *, ordered: bool = False) -> list[MessageQueue]:
        try:
            return self.world.queues(topic)
        except TopicNotFoundError as error:
            error.retriable = True
            raise

    def ends(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        return {queue: self.end(queue) for queue in queues}

    def confirm(self, broker: str, staging: str, timing: Timing) -> None:
        """Like ``Brokers.confirm``, with one attempt."""
        try:
            super().confirm(broker, staging, timing)
        except RocketError as problem:
            raise condition("EXACTLY_ONCE.NOT_DURABLE", broker=broker, problem=problem.message) from problem

    def remove_group(self, group: str) -> bool:
        """A request to each master, one after another."""
        for name, node in self.world.nodes.items():
            self.driver.pause("remove")
            if not node.is_up:
                return False
            for place in [each for each in self.offsets if each[0] == group and each[1].broker_name == name]:
                del self.offsets[place]
            try:
                self.driver.answer()
            except RemotingTimeoutError:
                return False
        return True

    def lacks(self, queue: MessageQueue) -> bool:
        node = self.world.nodes[queue.broker_name]
        return node.is_up and queue.topic not in node.topics


class SimAdmin:
    """``Admin`` for the driver of this thread."""

    def __init__(self, *_: object, **__: object) -> None:
        self._driver: Driver = local.driver
        self._world = self._driver.world

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    name_servers = SERVERS

    def _each(self, kind: str, failed: dict[str, RocketError], value: Callable[[Server], Any]) -> dict[str, Any]:
        self._driver.pause(kind)
        found = {}
        for address, server in self._world.servers.items():
            if not server.is_up:
                failed[address] = RemotingConnectError(f"{address} does not run")
            elif (each := value(server)) is not None:
                found[address] = each
        self._driver.answer()
        return found

    def kv_config_of_each(self, namespace: str, key: str, *, failed: dict[str, RocketError]) -> dict[str, str]:
        return self._each("get entry", failed, lambda server: server.entries.get((namespace, key)))

    def put_kv_config(self, namespace: str, key: str, value: str, *, name_server: str) -> None:
        self._driver.pause("put entry")
        if not self._world.servers[name_server].is_up:
            raise RemotingConnectError(f"{name_server} does not run")
        self._world.servers[name_server].entries[namespace, key] = value
        self._driver.answer()

    def cluster_info(self) -> ClusterInfo:
        brokers = {name: BrokerData("c", name, {0: name}) for name, node in self._world.nodes.items() if node.is_up}
        return ClusterInfo(brokers, {"c": list(brokers)})

    def cluster_info_of_each(self, *, failed: dict[str, RocketError]) -> dict[str, ClusterInfo]:
        return self._each("brokers", failed, lambda _: self.cluster_info())

    def topic_route_of_each(self, topic: str, *, failed: dict[str, RocketError]) -> dict[str, TopicRouteData]:
        def route(_: Server) -> TopicRouteData | None:
            counts = self._world.route(topic)
            queues = [QueueData(name, count, count, 6) for name, count in counts.items()]
            return (
                TopicRouteData(None, queues, [BrokerData("c", name, {0: name}) for name in counts]) if counts else None
            )

        return self._each("route", failed, route)

    def topic_config(self, topic: str, *, broker: str) -> TopicConfig | None:
        self._driver.pause("topic")
        if not self._world.nodes[broker].is_up:
            raise RemotingConnectError(f"broker {broker} does not run")
        count = self._world.nodes[broker].topics.get(topic)
        return None if count is None else TopicConfig(topic, count, count)

    def create_topic(self, topic: str, queues: int, *, broker: str | None = None) -> None:
        self._driver.pause("create")
        for name, node in self._world.nodes.items():
            if broker in (None, name):
                if node.is_up:
                    node.topics[topic] = queues
                elif broker == name:
                    raise RemotingConnectError(f"broker {broker} does not run")
        self._driver.answer()

    def broker_config(self, broker: str) -> dict[str, str]:
        return {"flushDiskType": "SYNC_FLUSH", "fileReservedTime": "72"}


class Driver:
    """A process that runs ``work`` until it ends, fails or is killed."""

    def __init__(self, world: World, work: Callable[[Driver], None]) -> None:
        self.world = world
        self.brokers = SimBrokers(world, self)
        self.error: RocketError | None = None
        self.failure: BaseException | None = None
        self.at = "start"
        self._work = work
        self._is_killed = False
        self._loses = False
        self._wakes = 0.0
        self._go = threading.Semaphore(0)
        self._paused = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._paused.acquire()

    # --- in the driver's thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        local.driver = self
        try:
            self.pause("start")
            self._work(self)
        except KilledError:
            pass
        except RocketError as error:
            self.error = error
        except BaseException as error:
            self.failure = error
        self.at = "over"
        self._paused.release()

    def pause(self, at: str) -> None:
        """Wait for the next step."""
        if not self._is_killed:
            self.at = at
            self._paused.release()
            self._go.acquire()
        if self._is_killed:
            raise KilledError

    def answer(self) -> None:
        """The request is done; its response may be lost."""
        if self._loses:
            self._loses = False
            raise RemotingTimeoutError("the response is lost")

    def sleep(self, seconds: float) -> None:
        self._wakes = self.world.now + seconds
        self.pause("sleep")

    def timing(self) -> Timing:
        return Timing(GRACE, RETRY_S * 1000, lambda: self.world.now, self.sleep)

    # --- for the history --------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self.at == "over"

    def step(self, *, loses: bool = False) -> None:
        """Run to the next request. ``loses``: the response to this one is lost."""
        if self.is_over:
            return
        if self.at == "sleep":
            self.world.now = max(self.world.now, self._wakes)
        self._loses = loses
        self._go.release()
        self._paused.acquire()
        if self.failure is not None:
            raise self.failure

    def run(self, until: str = "over") -> None:
        """Run until it is about to do this."""
        for _ in range(_MAX_STEPS):
            if self.at in (until, "over"):
                return
            self.step()
        raise AssertionError(f"no end: {self.at}")

    def kill(self) -> None:
        if not self.is_over:
            self._is_killed = True
            self._go.release()
            self._paused.acquire()
        self._thread.join()


def sink_options(topic: str, write_id: str | None = None) -> WriteOptions:
    given = {"nameServer": ";".join(SERVERS), "topic": topic, "deliveryGuarantee": "exactlyOnce", "sendBatchSize": "2"}
    given |= {"gracePeriod": f"{GRACE}s", "requestTimeout": f"{REQUEST_S}s", "retryTimeout": f"{RETRY_S}s"}
    if write_id is None:
        return parse_write_options(given, Scope.WRITE_STREAM)
    return parse_write_options(given | {"writeId": write_id}, Scope.WRITE)


def write_rows(driver: Driver, options: WriteOptions, epoch: Epoch, bodies: list[str]) -> None:
    """Stage and commit, as Spark's tasks and its call of ``commit`` do."""
    frame = pa.record_batch({"body": bodies})
    staged = stage_rows(iter([frame]), driver.brokers.real(), options, epoch)
    commit_epoch(options, [staged], is_stream=options.write_id is None)


def patched(monkeypatch: Any) -> None:
    """Let the sink's code use the cluster of its driver."""
    from spark_rocket.datasource.exactly_once import driver, place, publish, registers, sink_topics

    for module in (place, sink_topics):
        monkeypatch.setattr(module, "Admin", SimAdmin)
    monkeypatch.setattr(driver, "brokers_for", lambda options: local.driver.brokers)
    monkeypatch.setattr(Timing, "of", classmethod(lambda cls, options: local.driver.timing()))
    monkeypatch.setattr(publish, "LANES", 1)
    monkeypatch.setattr(registers, "slots_of", slots_of)


def slots_of(query: str) -> Iterator[int]:
    return chain([600], own_slots_of(query))
