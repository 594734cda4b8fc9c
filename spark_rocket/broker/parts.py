"""The parts of one broker, built in stages; each stage uses those before it.

=================  =================================================================================================
stage              parts
=================  =================================================================================================
clients            held pulls and pops, client tables, locks, statistics
store              the message store, opened and recovered
state              topics, groups, offsets etc., loaded from ``config/*.json``; StateSaver writes them
delivery           delay levels, timer, transactions, pops, and the timers that drive them
network            name servers, slaves, the durability gate of sends
=================  =================================================================================================

Nothing is awaited between the stages, so requests never see an incomplete broker.

Thread-safety: used on the event loop only. Corresponds to the constructor and ``initialize`` of
org.apache.rocketmq.broker.BrokerController.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from spark_rocket.broker.delivery.delayed import DelayRules
from spark_rocket.broker.delivery.durability_gate import DurabilityGate
from spark_rocket.broker.delivery.long_polling import PullRequestHoldService
from spark_rocket.broker.overload import BrokerOverload
from spark_rocket.broker.pop.order import ConsumerOrderInfoManager
from spark_rocket.broker.pop.service import PopService
from spark_rocket.broker.pop.waiting import PopLongPollingService
from spark_rocket.broker.registration import NameServerRegistration
from spark_rocket.broker.replication.master import ReplicationMaster
from spark_rocket.broker.state.clients import ClientManager, notify_consumer_ids_changed
from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.broker.state.config_files import ConfigFile
from spark_rocket.broker.state.groups import MessageRequestModeManager, SubscriptionGroupManager
from spark_rocket.broker.state.missing_files import MissingFiles
from spark_rocket.broker.state.offsets import ConsumerOffsetManager
from spark_rocket.broker.state.queue_locks import RebalanceLockManager
from spark_rocket.broker.state.shared import SharedState
from spark_rocket.broker.state.stats import BrokerStats
from spark_rocket.broker.state.topics import TopicConfigManager
from spark_rocket.broker.transactions.service import TransactionalMessageService
from spark_rocket.model import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from spark_rocket.protocol.ids import UniqKeyGenerator
from spark_rocket.protocol.wire.request_limits.state import LARGE_RESPONSES, RELAYED_REQUESTS
from spark_rocket.remoting.address import format_address
from spark_rocket.remoting.server.state_quota import StateQuota
from spark_rocket.remoting.wall_clock_timer import WallClockTimer
from spark_rocket.store.config import delay_levels
from spark_rocket.store.delay.delay_levels import ScheduleMessageService
from spark_rocket.store.delay.timer_store import TimerMessageStore
from spark_rocket.store.message_store import MessageStore

#: Maximum delay of sends and pulls by one slice of deliveries; a large message may exceed it.
_SLICE_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """Arguments for building the parts."""

    config: BrokerConfig
    overload: BrokerOverload
    store_host: tuple[str, int]
    """The address for clients, which is also stored with messages."""
    ha_port: int
    clock: Callable[[], int]
    """The wall clock, in milliseconds."""
    monotonic: Callable[[], int]
    """Milliseconds for timeouts; not affected by changes of the wall clock."""
    on_master: Callable[[str | None, str | None], None]
    """Called with the master's HA address and address from a name server's response to a slave."""


class BrokerParts:
    """Builds the parts. On ConfigError, StoreLockedError or StoreCorruptError, the store is closed."""

    def __init__(self, context: BrokerContext) -> None:
        config = self.config = context.config
        self.overload = context.overload
        self.store_host = context.store_host
        self.clock = context.clock
        self.monotonic = context.monotonic
        self.loop = asyncio.get_running_loop()
        self.boot_time = context.clock()
        self.address = format_address(*self.store_host)
        self.name = f"{config.broker_name}[{config.broker_id}] at {self.address}"
        self.on_new_queue: Callable[[str, int], None] | None = None
        """On a slave: called when its log has a message of an unknown queue."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._prepare_clients()
        self._open_store()
        try:
            self._load_state()
            self._prepare_delivery()
            self._prepare_network(context)
        except BaseException:
            self.store.close()
            raise

    # --- stages ---------------------------------------------------------------------------------------------------

    def _prepare_clients(self) -> None:
        self.waiting = PopLongPollingService(self.loop, self.config, self.clock, self.read_queues)
        self.held = PullRequestHoldService(self.loop, self.waiting.watched, self.waiting.notify_arriving)
        self.clients = ClientManager(self.clock, notify_consumer_ids_changed, self.monotonic)
        self.locks = RebalanceLockManager(self.monotonic, self.config.rebalance_lock_max_live_time)
        #: Requests and replies that wait for a client's response, by the connection of their sender.
        self.relays = StateQuota(RELAYED_REQUESTS)
        #: Requests whose work is divided into steps, and the lock of the one that runs.
        self.large_responses = StateQuota(LARGE_RESPONSES)
        self.one_large_response = asyncio.Lock()
        self.stats = BrokerStats()
        self.unique_keys = UniqKeyGenerator(self.store_host[0], os.getpid(), self.clock, seed=self.store_host[1])

    def read_queues(self, topic: str) -> int:
        """The number of a topic's read queues; 0 if it does not exist."""
        config = self.topics.get(topic)
        return 0 if config is None else config.read_queue_nums

    def _open_store(self) -> None:
        on_arrive = self._arrived if self.config.is_slave else self.held.notify_arriving
        self.store = MessageStore(
            self.config.store_config(), store_host=self.store_host, clock=self.clock, on_arrive=on_arrive
        )
        self.store.start()

    def _load_state(self) -> None:
        """Load the state; ConfigError for a corrupt file."""
        config, clock, store = self.config, self.clock, self.store
        store.retention.check_disk()
        self.topics = TopicConfigManager(config, clock)
        self.offsets = ConsumerOffsetManager()
        self.groups = SubscriptionGroupManager(config, clock)
        self.schedule = ScheduleMessageService(store, delay_levels(config.message_delay_level))
        self.order = ConsumerOrderInfoManager(
            self.loop, clock, self.offsets, self.topics, self.groups, self.waiting.more
        )
        self.request_modes = MessageRequestModeManager()
        directory = config.store_path / "config"
        #: The files by their content.
        self.files = {
            "topics": ConfigFile(directory / "topics.json", self.topics.text, self.topics.load),
            "offsets": ConfigFile(directory / "consumerOffset.json", self.offsets_snapshot, self.offsets.load),
            "groups": ConfigFile(directory / "subscriptionGroup.json", self.groups.text, self.groups.load),
            "delays": ConfigFile(directory / "delayOffset.json", self.schedule.snapshot, self.schedule.load),
            "order": ConfigFile(directory / "consumerOrderInfo.json", self.order.snapshot, self.order.load),
            "modes": ConfigFile(
                directory / "messageRequestMode.json", self.request_modes.snapshot, self.request_modes.load
            ),
        }
        missing = {name for name, file in self.files.items() if not file.load()}
        if not config.is_slave:  # a slave's log may be behind its master's offsets, and its files come later
            MissingFiles(store, self.files, self.topics, self.groups, self.offsets).handle(missing)
            self.schedule.correct_offsets()
            topics = self.topics.table.values()
            queues_of = {each.topic_name: max(each.read_queue_nums, each.write_queue_nums) for each in topics}
            self.offsets.correct(store.get_max_offset, queues_of)

    def _prepare_delivery(self) -> None:
        config, clock, store = self.config, self.clock, self.store
        self.delays = DelayRules(config, clock)
        shared = SharedState(config, store, self.topics, self.offsets, self.groups, clock, self.store_host, self.stats)
        self.transactions = TransactionalMessageService(shared, self.clients)
        self.timer: TimerMessageStore | None = None
        self.pop: PopService | None = None
        #: Timers that deliver delayed and half messages, by the topic that stores these messages.
        self.drivers = {
            SCHEDULE_TOPIC: self._driver(self.schedule.deliver),
            HALF_TOPIC: self._driver(self.transactions.check),
        }
        if not config.timer_wheel_enable or config.is_slave:
            return
        self.timer = TimerMessageStore(store, config.timer_precision)
        self.timer.start(clock())
        self.pop = PopService(shared, self.timer, self.order)
        timed = self.drivers[TIMER_TOPIC] = self._driver(self._deliver_timed)
        popped = self.drivers[self.pop.log.topic] = self._driver(self.pop.deliver)
        self.pop.on_due = popped.expect
        self.pop.log.on_timed = timed.expect

    def _prepare_network(self, context: BrokerContext) -> None:
        config, store = self.config, self.store
        self.registration = NameServerRegistration(
            config,
            self.topics,
            broker_addr=self.address,
            ha_server_addr=format_address(self.store_host[0], context.ha_port),
            on_master=context.on_master,
        )
        self.replication = ReplicationMaster(self.loop, store, config, self.name)
        self.stored = DurabilityGate(self.loop, store, self.replication, config)

    # --- connections between the parts ----------------------------------------------------------------------------

    def _driver(self, deliver: Callable[[int, float], int | None]) -> WallClockTimer:
        return WallClockTimer(self.loop, self.clock, deliver, _SLICE_SECONDS)

    def _deliver_timed(self, now_ms: int, budget: float) -> int | None:
        assert self.timer is not None
        due = self.timer.deliver(now_ms, budget)
        if self.pop is not None:
            self.pop.schedule_unread()
        return due

    def _arrived(self, topic: str, queue_id: int, *rest: int) -> None:
        """Handle a new message in the log of a slave."""
        if self.on_new_queue is not None:
            known = self.topics.table.get(topic)
            if known is None or queue_id >= known.read_queue_nums:
                self.on_new_queue(topic, queue_id)
        self.held.notify_arriving(topic, queue_id, *rest)

    def offsets_snapshot(self) -> dict[str, object]:
        """Content of ``consumerOffset.json``: the offsets, and the time up to which they include all pops."""
        return self.offsets.file_snapshot(self.saved_time())

    def saved_time(self) -> int:
        """The time of a snapshot of the offsets, taken before it.

        0 on a slave: its offsets are as old as its master's last response, by the master's clock.
        """
        return 0 if self.config.is_slave else self.clock()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine as a task; holds a reference to prevent its garbage collection."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle_all(self) -> None:
        """Wait for all spawned tasks."""
        while self._tasks:
            await asyncio.wait(self._tasks)
