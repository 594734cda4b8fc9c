"""The composition root of a broker: builds its parts in stages, and its processors from the parts that each may use.

=================  =================================================================================================
stage              parts
=================  =================================================================================================
tables             topics, groups, offsets, clients, locks, statistics, held pulls and pops; all empty
store              the message store, opened and recovered; then the tables are loaded from ``config/*.json``
delivery           delay levels, timer, transactions, pops, and the timers that drive them
network            name servers, slaves, the master of a slave
responses          what a response may have to wait for: files, registration, flush, slaves
=================  =================================================================================================

Only this module, ``server``, which starts and stops the parts, and ``metrics``, which reads them, know all parts. No
part gets another one except by its constructor. Nothing is awaited between the stages, so requests never see an
incomplete broker.

Thread-safety: used on the event loop only. Corresponds to the constructor and ``initialize`` of
org.apache.rocketmq.broker.BrokerController.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_rocket.broker.change_gate import ChangeGate
from spark_rocket.broker.delivery.delayed import DelayRules
from spark_rocket.broker.delivery.durability_gate import DurabilityGate
from spark_rocket.broker.delivery.long_polling import PullRequestHoldService
from spark_rocket.broker.delivery.timers import DeliveryTimers
from spark_rocket.broker.overload import BrokerOverload
from spark_rocket.broker.pop.order import ConsumerOrderInfoManager
from spark_rocket.broker.pop.service import PopService
from spark_rocket.broker.pop.waiting import PopLongPollingService
from spark_rocket.broker.processors.accounts import AccountProcessor
from spark_rocket.broker.processors.ack import AckMessageProcessor
from spark_rocket.broker.processors.assignment import QueryAssignmentProcessor
from spark_rocket.broker.processors.base import DeferredResponses, Processor
from spark_rocket.broker.processors.broker_settings import SettingsProcessor
from spark_rocket.broker.processors.client_manage import ClientManageProcessor
from spark_rocket.broker.processors.consume_stats import ConsumeStatsProcessor
from spark_rocket.broker.processors.consumer_offsets import OffsetProcessor
from spark_rocket.broker.processors.consumer_requests import ConsumerRequestProcessor
from spark_rocket.broker.processors.deletions import DeletionProcessor
from spark_rocket.broker.processors.end_transaction import EndTransactionProcessor
from spark_rocket.broker.processors.group_admin import GroupAdminProcessor
from spark_rocket.broker.processors.ha_status import HaStatusProcessor
from spark_rocket.broker.processors.offset_reset import OffsetResetProcessor
from spark_rocket.broker.processors.peek import PeekProcessor
from spark_rocket.broker.processors.pending import PendingMessageProcessor
from spark_rocket.broker.processors.pop import PopMessageProcessor
from spark_rocket.broker.processors.pull import PullMessageProcessor
from spark_rocket.broker.processors.query import QueryMessageProcessor
from spark_rocket.broker.processors.refusals import pop_refusals, slave_refusals
from spark_rocket.broker.processors.reply import ReplyMessageProcessor
from spark_rocket.broker.processors.send import SendMessageProcessor
from spark_rocket.broker.processors.send_back import SendBackProcessor
from spark_rocket.broker.processors.statistics import StatisticsProcessor
from spark_rocket.broker.processors.topic_admin import TopicAdminProcessor
from spark_rocket.broker.registration import NameServerRegistration
from spark_rocket.broker.replication.master import ReplicationMaster
from spark_rocket.broker.replication.slave import ReplicationSlave
from spark_rocket.broker.saving import StateSaver
from spark_rocket.broker.send_targets import SendTargets
from spark_rocket.broker.state.clients import ClientManager, notify_consumer_ids_changed
from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.broker.state.config_files import ConfigFile
from spark_rocket.broker.state.groups import MessageRequestModeManager, SubscriptionGroupManager
from spark_rocket.broker.state.missing_files import MissingFiles
from spark_rocket.broker.state.offsets import ConsumerOffsetManager
from spark_rocket.broker.state.queue_locks import RebalanceLockManager
from spark_rocket.broker.state.stats import BrokerStats
from spark_rocket.broker.state.topics import TopicConfigManager
from spark_rocket.broker.synchronize import SlaveSynchronize
from spark_rocket.broker.tasks import BackgroundTasks
from spark_rocket.broker.transactions.service import TransactionalMessageService
from spark_rocket.model import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from spark_rocket.remoting.address import format_address
from spark_rocket.remoting.server.remoting_server import Handler
from spark_rocket.store.delay.delay_levels import ScheduleMessageService
from spark_rocket.store.delay.timer_store import TimerMessageStore
from spark_rocket.store.message_store import MessageStore

if TYPE_CHECKING:
    from spark_rocket.broker.acl.control import AccessControl
    from spark_rocket.broker.tracing import BrokerTracing


class BrokerParts:
    """The parts of one broker. On ConfigError, StoreLockedError or StoreCorruptError, the store is closed."""

    def __init__(
        self,
        config: BrokerConfig,
        overload: BrokerOverload,
        *,
        store_host: tuple[str, int],
        ha_port: int,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
        synchronize_seconds: float,
        on_master: Callable[[str | None, str | None], None],
        access_control: AccessControl | None,
        tracing: BrokerTracing | None,
    ) -> None:
        """``store_host``: the address for clients, which is also stored with messages.

        ``clock``: the wall clock; ``monotonic``: a clock for timeouts that changes of the wall clock do not affect;
        both in milliseconds. ``on_master`` is called with the master's HA address and address from a name server's
        response to a slave. ``access_control``: None without ``aclEnable``; ``tracing``: None without
        ``openTelemetryEnable``.
        """
        self.config = config
        self.overload = overload
        self.store_host = store_host
        self.clock = clock
        self.monotonic = monotonic
        self.access_control = access_control
        self.tracing = tracing
        self.loop = asyncio.get_running_loop()
        self.tasks = BackgroundTasks(self.loop)
        self.address = format_address(*store_host)
        self.name = f"{config.broker_name}[{config.broker_id}] at {self.address}"
        self.synchronize: SlaveSynchronize | None = None
        """Copies the master's topics, groups and offsets, on a slave."""
        self._make_tables()
        self._open_store()
        try:
            self._load_tables()
            self._make_delivery()
            self._make_network(ha_port, on_master)
            self._make_responses()
            if self.slave is not None:
                self._make_synchronize(self.slave, synchronize_seconds)
        except BaseException:
            self.store.close()
            raise

    # --- stages ---------------------------------------------------------------------------------------------------

    def _make_tables(self) -> None:
        config, clock = self.config, self.clock
        self.topics = TopicConfigManager(config, clock)
        self.groups = SubscriptionGroupManager(config, clock)
        self.offsets = ConsumerOffsetManager()
        self.request_modes = MessageRequestModeManager()
        self.clients = ClientManager(clock, notify_consumer_ids_changed, self.monotonic)
        self.locks = RebalanceLockManager(self.monotonic, config.rebalance_lock_max_live_time)
        self.stats = BrokerStats()
        self.held_pops = PopLongPollingService(self.loop, config, clock, self.topics.read_queues)
        self.held_pulls = PullRequestHoldService(self.loop, self.held_pops.watched, self.held_pops.notify_arriving)
        self.order = ConsumerOrderInfoManager(
            self.loop, clock, self.offsets, self.topics, self.groups, self.held_pops.more
        )

    def _open_store(self) -> None:
        config = self.config
        on_arrive = self._arrived if config.is_slave else self.held_pulls.notify_arriving
        self.store = MessageStore(
            config.store_config(), store_host=self.store_host, clock=self.clock, on_arrive=on_arrive
        )
        self.store.start()

    def _arrived(self, topic: str, queue_id: int, *rest: int) -> None:
        """Handle a new message in the log of a slave."""
        if self.synchronize is not None:
            self.synchronize.arrived(topic, queue_id)
        self.held_pulls.notify_arriving(topic, queue_id, *rest)

    def _load_tables(self) -> None:
        """Load the tables; ConfigError for a corrupt file."""
        config, store, offsets, modes = self.config, self.store, self.offsets, self.request_modes
        store.retention.check_disk()
        schedule = self.schedule = ScheduleMessageService(store, config.store.delay_levels())
        directory = config.store.store_path / "config"
        #: The files by their content.
        self.files = {
            "topics": ConfigFile(directory / "topics.json", self.topics.text, self.topics.load),
            "offsets": ConfigFile(
                directory / "consumerOffset.json", lambda: offsets.file_snapshot(self.saved_time()), offsets.load
            ),
            "groups": ConfigFile(directory / "subscriptionGroup.json", self.groups.text, self.groups.load),
            "delays": ConfigFile(directory / "delayOffset.json", schedule.snapshot, schedule.load),
            "order": ConfigFile(directory / "consumerOrderInfo.json", self.order.snapshot, self.order.load),
            "modes": ConfigFile(directory / "messageRequestMode.json", modes.snapshot, modes.load),
        }
        missing = {name for name, file in self.files.items() if not file.load()}
        if not config.is_slave:  # a slave's log may be behind its master's offsets, and its files come later
            MissingFiles(store, self.files, self.topics, self.groups, offsets).handle(missing)
            schedule.correct_offsets()
            topics = self.topics.table.values()
            queues_of = {each.topic_name: max(each.read_queue_nums, each.write_queue_nums) for each in topics}
            offsets.correct(store.get_max_offset, queues_of)

    def saved_time(self) -> int:
        """The time of a snapshot of the offsets, taken before it.

        0 on a slave: its offsets are as old as its master's last response, by the master's clock.
        """
        return 0 if self.config.is_slave else self.clock()

    def _make_delivery(self) -> None:
        config, clock, host, store = self.config, self.clock, self.store_host, self.store
        topics, groups, offsets = self.topics, self.groups, self.offsets
        self.delays = DelayRules(config, clock)
        self.timers = DeliveryTimers(self.loop, clock)
        self.transactions = TransactionalMessageService(
            config,
            clock,
            host,
            store,
            topics,
            offsets,
            self.clients,
            None if self.access_control is None else self.access_control.may_ask,
        )
        self.timers.add(SCHEDULE_TOPIC, self.schedule.deliver)
        self.timers.add(HALF_TOPIC, self.transactions.check)
        self.timer: TimerMessageStore | None = None
        self.pop: PopService | None = None
        if not config.timer_wheel_enable or config.is_slave:
            return
        timer = self.timer = TimerMessageStore(store, config.timer_precision)
        timer.start(clock())
        pop = self.pop = PopService(
            config, clock, host, store, topics, groups, offsets, timer, self.order, self.stats, self.tracing
        )

        def deliver_timed(now_ms: int, budget: float) -> int | None:
            due = timer.deliver(now_ms, budget)
            pop.schedule_unread()
            return due

        pop.log.on_timed = self.timers.add(TIMER_TOPIC, deliver_timed).expect
        pop.on_due = self.timers.add(pop.log.topic, pop.deliver).expect

    def _make_network(self, ha_port: int, on_master: Callable[[str | None, str | None], None]) -> None:
        config, store = self.config, self.store
        self.registration = NameServerRegistration(
            config,
            self.topics,
            broker_addr=self.address,
            ha_server_addr=format_address(self.store_host[0], ha_port),
            on_master=on_master,
        )
        self.replication = ReplicationMaster(self.loop, store, config, self.name)
        self.slave: ReplicationSlave | None = None
        """Copies the master's log, on a slave."""
        if config.is_slave:
            self.slave = ReplicationSlave(self.loop, store, config, self.name, self.replication.log_cut)

    def _make_responses(self) -> None:
        config, clock, store = self.config, self.clock, self.store
        topics, groups, offsets = self.topics, self.groups, self.offsets
        self.saver = StateSaver(
            self.loop,
            self.tasks,
            self.files,
            clock,
            self.saved_time,
            store,
            offsets,
            self.schedule,
            self.order,
            None if config.is_slave else self.transactions,
            self.timer,
            self.pop,
        )
        groups.on_change = self._group_changed
        self.changes = ChangeGate(self.loop, self.tasks, topics, self.saver, self.registration)
        self.later = DeferredResponses(self.tasks, self.changes)
        self.targets = SendTargets(config, clock, self.store_host[0], topics, groups, self.stats, self.changes)
        self.durability = DurabilityGate(self.loop, store, self.replication, config)

    def _make_synchronize(self, slave: ReplicationSlave, seconds: float) -> None:
        self.synchronize = SlaveSynchronize(
            self.loop,
            self.config,
            self.clock,
            slave,
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            self.request_modes,
            self.schedule,
            self.files,
            self.saver,
            self.registration,
            self.held_pulls,
            self.targets,
            seconds,
        )

    def _group_changed(self, group: str) -> None:
        self.saver.save("groups")

    def sample(self) -> None:
        """Sample the counters from which rates are computed; called every ``SAMPLE_SECONDS``."""
        if self.timer is None:
            self.stats.sample()
        else:
            self.stats.sample(self.timer.enqueued, self.timer.delivered)
        self.store.sample()

    # --- requests -------------------------------------------------------------------------------------------------

    def handlers(self) -> dict[int, Handler]:
        """The handler of each request code: the processors, with refusals, tracing and access control around them."""
        handlers = {} if self.pop is not None else pop_refusals(self.store_host[0])
        for processor in (*self._message_processors(), *self._pop_processors(), *self._administration()):
            handlers |= processor.handlers()
        if self.config.is_slave:
            handlers |= slave_refusals(self.name)
        if self.tracing is not None:
            self.tracing.wrap(handlers)
        return handlers if self.access_control is None else self.access_control.guarded(handlers)

    def _message_processors(self) -> list[Processor]:
        config, clock, host, store = self.config, self.clock, self.store_host, self.store
        topics, groups, offsets, clients = self.topics, self.groups, self.offsets, self.clients
        held_pulls, overload, stats = self.held_pulls, self.overload, self.stats
        timers, durability, changes, later = self.timers, self.durability, self.changes, self.later
        return [
            SendMessageProcessor(
                config,
                clock,
                host,
                store,
                self.targets,
                self.delays,
                self.transactions,
                timers,
                durability,
                changes,
                overload,
                stats,
            ),
            SendBackProcessor(config, host, store, topics, groups, self.delays, timers, durability, changes, stats),
            ReplyMessageProcessor(config, clock, host, store, self.targets, clients, stats, later),
            PullMessageProcessor(
                self.loop,
                config,
                host[0],
                store,
                topics,
                groups,
                offsets,
                clients,
                held_pulls,
                overload,
                stats,
                self.tracing,
            ),
            EndTransactionProcessor(config, clock, store, self.transactions, timers, stats),
            PendingMessageProcessor(
                config, clock, store, topics, self.delays, self.schedule, self.timer, timers, durability, later
            ),
            QueryMessageProcessor(self.loop, config, store, topics, clients, later),
        ]

    def _pop_processors(self) -> list[Processor]:
        config, clock, host, store, overload = self.config, self.clock, self.store_host, self.store, self.overload
        topics, groups, offsets, held_pops, pop = self.topics, self.groups, self.offsets, self.held_pops, self.pop
        peeks = PeekProcessor(config, clock, host[0], store, topics, groups, offsets, self.order, held_pops, overload)
        if pop is None:
            return [peeks]
        return [
            peeks,
            PopMessageProcessor(config, clock, host[0], topics, groups, pop, held_pops, overload, self.stats),
            AckMessageProcessor(config, store, topics, pop),
        ]

    def _administration(self) -> list[Processor]:
        config, clock, store, overload, stats = self.config, self.clock, self.store, self.overload, self.stats
        topics, groups, offsets, clients = self.topics, self.groups, self.offsets, self.clients
        held_pulls, held_pops, changes, later = self.held_pulls, self.held_pops, self.changes, self.later
        return [
            ClientManageProcessor(config, topics, groups, clients, self.locks, changes, later),
            ConsumerRequestProcessor(config, store, topics, groups, clients, later),
            QueryAssignmentProcessor(
                config,
                self.monotonic,
                topics,
                clients,
                self.request_modes,
                self.registration,
                self.saver,
                changes,
                later,
            ),
            OffsetProcessor(config, store, topics, groups, offsets, self.saver, self.slave is not None, later),
            OffsetResetProcessor(config, store, topics, groups, offsets, clients, held_pulls, later),
            ConsumeStatsProcessor(config, clock, self.address, store, topics, groups, offsets, clients, stats, later),
            TopicAdminProcessor(
                config, store, topics, offsets, self.order, held_pulls, held_pops, stats, changes, later
            ),
            GroupAdminProcessor(groups, offsets, self.order, stats, changes, later),
            SettingsProcessor(config, topics, self._settings_changed, later),
            DeletionProcessor(clock, store, topics, later),
            StatisticsProcessor(
                config, clock, store, self.schedule, self.timer, held_pulls, held_pops, overload, stats
            ),
            HaStatusProcessor(config, clock, store, self.replication, self.slave),
            AccountProcessor(config, self.address, self.access_control, later),
        ]

    def _settings_changed(self) -> None:
        """Apply changed settings to everything that has cached them."""
        self.targets.clear()
        self.overload.settings_changed()
        self.store.retention.config = self.config.store_config()
        self.registration.register()
