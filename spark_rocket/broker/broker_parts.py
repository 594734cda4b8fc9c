"""The composition root of a broker: builds its parts in stages, and its processors from the parts that each may use.

=================  =================================================================================================
stage              parts
=================  =================================================================================================
tables             topics, groups, offsets, clients, locks, statistics, held requests; all empty
store              the message store, opened and recovered; then the tables are loaded from ``config/*.json``
delivery           delay levels, timer, transactions, pops, and the timers that drive them
network            name servers, slaves, the master of a slave
responses          what a response may have to wait for: files, registration, flush, slaves
=================  =================================================================================================

Only this module, ``broker``, which starts and stops the parts, and ``metrics``, which reads them, know all parts. A
part gets others by its constructor; services take one record, ``BrokerEnvironment`` (settings, clocks, address, loop).
Processors take none: their fields are parts by the names that they have here (``families.wired``).
Three connections are assigned at the end of the stages, because changes made while files are loaded must not be saved
or registered: ``topics.on_change``, ``groups.on_change`` and ``settling_topics.on_topic``. Nothing is awaited between
the stages, so requests never see an incomplete broker.

Corresponds to the constructor and ``initialize`` of org.apache.rocketmq.broker.BrokerController.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_rocket.broker.broker_environment import BrokerEnvironment
from spark_rocket.broker.broker_overload import BrokerOverload
from spark_rocket.broker.delivery.delay_rules import DelayRules
from spark_rocket.broker.delivery.delivery_timers import DeliveryTimers
from spark_rocket.broker.delivery.held_requests import HeldRequests
from spark_rocket.broker.pop.consumer_order_info_manager import ConsumerOrderInfoManager
from spark_rocket.broker.pop.pop_service import PopService
from spark_rocket.broker.pop.turns import parts_of
from spark_rocket.broker.processors.families import FAMILIES, POP_FAMILIES, wired
from spark_rocket.broker.processors.refusals import pop_refusals, slave_refusals
from spark_rocket.broker.registration import NameServerRegistration
from spark_rocket.broker.replication.master import ReplicationMaster
from spark_rocket.broker.replication.slave import ReplicationSlave
from spark_rocket.broker.responses import Responses
from spark_rocket.broker.send_targets import SendTargets
from spark_rocket.broker.settling_topics import SettlingTopics
from spark_rocket.broker.slave_synchronize import SlaveSynchronize
from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.state.client_manager import ClientManager, notify_consumer_ids_changed
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.message_request_mode_manager import MessageRequestModeManager
from spark_rocket.broker.state.missing_files import MissingFiles
from spark_rocket.broker.state.rebalance_lock_manager import RebalanceLockManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.state_saver import StateSaver, state_files
from spark_rocket.broker.transactions.transactional_message_service import TransactionalMessageService
from spark_rocket.model import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from spark_rocket.remoting.address import format_address
from spark_rocket.remoting.server.remoting_server import Handler
from spark_rocket.store.delay.schedule_message_service import ScheduleMessageService
from spark_rocket.store.delay.timer_store import TimerMessageStore
from spark_rocket.store.message_store import MessageStore

if TYPE_CHECKING:
    from spark_rocket.broker.acl.access_control import AccessControl
    from spark_rocket.broker.tracing import BrokerTracing


class BrokerParts:
    """The parts of one broker. On ConfigError, StoreLockedError or StoreCorruptError, the store is closed."""

    def __init__(
        self,
        environment: BrokerEnvironment,
        overload: BrokerOverload,
        *,
        ha_port: int,
        synchronize_seconds: float,
        on_master: Callable[[str | None, str | None], None],
        access_control: AccessControl | None,
        tracing: BrokerTracing | None,
    ) -> None:
        """``on_master`` is called with the master's HA address and address from a name server's response to a slave.

        ``access_control``: None without ``aclEnable``; ``tracing``: None without ``openTelemetryEnable``.
        """
        self.environment = environment
        self.config, self.clock, self.monotonic = environment.config, environment.clock, environment.monotonic
        self.store_host, self.host, self.address = environment.store_host, environment.host, environment.address
        self.loop, self.tasks = environment.loop, environment.tasks
        self.overload = overload
        self.access_control = access_control
        self.tracing = tracing
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
        self.message_request_modes = MessageRequestModeManager()
        self.clients = ClientManager(clock, notify_consumer_ids_changed, self.monotonic)
        self.rebalance_locks = RebalanceLockManager(self.monotonic, config.rebalance_lock_max_live_time)
        self.stats = BrokerStats()
        read_queues = self.topics.read_queues
        held = self.held_requests = HeldRequests(
            self.loop, config, self.environment.rules, lambda topic: parts_of(read_queues(topic))
        )
        self.order_info = ConsumerOrderInfoManager(
            self.loop, clock, self.offsets, self.topics, self.groups, on_free=held.more
        )

    def _open_store(self) -> None:
        config = self.config
        on_arrive = self._arrived if config.is_slave else self.held_requests.notify_arriving
        self.store = MessageStore(
            config.store_config(), store_host=self.environment.store_host, clock=self.clock, on_arrive=on_arrive
        )
        self.store.start()

    def _arrived(self, topic: str, queue_id: int, *rest: int) -> None:
        """Handle a new message in the log of a slave."""
        if self.synchronize is not None:
            self.synchronize.arrived(topic, queue_id)
        self.held_requests.notify_arriving(topic, queue_id, *rest)

    def _load_tables(self) -> None:
        """Load the tables; ConfigError for a corrupt file."""
        config, store, offsets = self.config, self.store, self.offsets
        store.retention.check_disk()
        schedule = self.schedule_message_service = ScheduleMessageService(store, config.store.delay_levels())
        self.files = state_files(
            self.environment,
            topics=self.topics,
            groups=self.groups,
            offsets=offsets,
            modes=self.message_request_modes,
            schedule=schedule,
            order_info=self.order_info,
        )
        missing = {name for name, file in self.files.items() if not file.load()}
        if not config.is_slave:  # a slave's log may be behind its master's offsets, and its files come later
            MissingFiles(store, self.files, self.topics, self.groups, offsets).handle(missing)
            schedule.correct_offsets()
            topics = self.topics.table.values()
            queues_of = {each.topic_name: max(each.read_queue_nums, each.write_queue_nums) for each in topics}
            offsets.correct(store.get_max_offset, queues_of)

    def _make_delivery(self) -> None:
        config, store = self.config, self.store
        self.delay_rules = DelayRules(config, self.clock)
        timers = self.delivery_timers = DeliveryTimers(self.loop, self.clock)
        may_ask = None if self.access_control is None else self.access_control.may_ask
        self.transactions = TransactionalMessageService(
            self.environment, store, self.topics, self.offsets, self.clients, may_ask
        )
        timers.add(SCHEDULE_TOPIC, self.schedule_message_service.deliver)
        timers.add(HALF_TOPIC, self.transactions.check)
        self.timer_store: TimerMessageStore | None = None
        self.pop_service: PopService | None = None
        if not config.timer_wheel_enable or config.is_slave:
            return
        timer_store = self.timer_store = TimerMessageStore(store, config.timer_precision)
        timer_store.start(self.clock())
        pop_service = self.pop_service = PopService(
            self.environment,
            store,
            self.topics,
            self.groups,
            self.offsets,
            self.stats,
            timer_store,
            self.order_info,
            expect=timers.expect,
            tracing=self.tracing,
        )

        def deliver_timed(now_ms: int, budget: float) -> int | None:
            due = timer_store.deliver(now_ms, budget)
            pop_service.schedule_unread()
            return due

        timers.add(TIMER_TOPIC, deliver_timed)
        timers.add(pop_service.log.topic, pop_service.deliver)

    def _make_network(self, ha_port: int, on_master: Callable[[str | None, str | None], None]) -> None:
        self.registration = NameServerRegistration(
            self.config,
            self.topics,
            broker_addr=self.address,
            ha_server_addr=format_address(self.host, ha_port),
            on_master=on_master,
        )
        self.replication = ReplicationMaster(self.environment, self.store)
        self.slave: ReplicationSlave | None = None
        """Copies the master's log, on a slave."""
        if self.config.is_slave:
            self.slave = ReplicationSlave(self.environment, self.store, self.replication.log_cut)

    def _make_responses(self) -> None:
        self.saver = StateSaver(
            self.environment,
            self.store,
            self.files,
            offsets=self.offsets,
            order_info=self.order_info,
            schedule_message_service=self.schedule_message_service,
            transactions=None if self.config.is_slave else self.transactions,
            timer_store=self.timer_store,
            pop_service=self.pop_service,
        )
        loop, tasks, saver = self.loop, self.tasks, self.saver
        settling = self.settling_topics = SettlingTopics(loop, tasks, self.topics, saver, self.registration)
        self.responses = Responses(self.config, loop, tasks, self.store, self.replication, saver, settling)
        self.targets = SendTargets(
            config=self.config,
            clock=self.clock,
            host=self.host,
            topics=self.topics,
            groups=self.groups,
            stats=self.stats,
            settling_topics=settling,
        )
        self.topics.on_change = settling.topic_changed
        self.groups.on_change = self._group_changed
        settling.on_topic = self.targets.forget

    def _group_changed(self, group: str) -> None:
        self.saver.save("groups")

    def _make_synchronize(self, slave: ReplicationSlave, seconds: float) -> None:
        self.synchronize = SlaveSynchronize(
            self.environment,
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            slave=slave,
            files=self.files,
            saver=self.saver,
            registration=self.registration,
            held_requests=self.held_requests,
            targets=self.targets,
            period=seconds,
        )

    def sample(self) -> None:
        """Sample the counters from which rates are computed; called every ``SAMPLE_SECONDS``."""
        if self.timer_store is None:
            self.stats.sample()
        else:
            self.stats.sample(self.timer_store.enqueued, self.timer_store.delivered)
        self.store.sample()

    # --- requests -------------------------------------------------------------------------------------------------

    def handlers(self) -> dict[int, Handler]:
        """The handler of each request code: the processors, with refusals, tracing and access control around them."""
        handlers = {} if self.pop_service is not None else pop_refusals(self.host)
        for family in FAMILIES if self.pop_service is None else FAMILIES + POP_FAMILIES:
            handlers |= wired(family, self).handlers(self.responses)
        if self.config.is_slave:
            handlers |= slave_refusals(self.environment.name)
        if self.tracing is not None:
            self.tracing.wrap(handlers)
        return handlers if self.access_control is None else self.access_control.guarded(handlers)

    def settings_changed(self) -> None:
        """Apply changed settings to everything that has cached them."""
        self.targets.clear()
        self.overload.settings_changed()
        self.store.settings_changed(self.config.store_config())
        self.registration.register()
