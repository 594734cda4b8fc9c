"""The broker: its parts put together, started and stopped.

Start: listen (so that a port in use is found before anything is touched), open and recover the store, load
``config/*.json``, take requests, register with the name servers. Nothing is answered before all of that is
done, because no step gives the event loop away. Stop: unregister, close connections, write ``config/*.json``, flush
the store.

Thread-safety: everything runs on the event loop that ``start`` was awaited on; the store's flush threads, the
registration threads and the config writer come back to it by ``call_soon_threadsafe``.
After a crash: the store recovers by itself, offsets may be a few seconds old, topics are as acknowledged.
Corresponds to org.apache.rocketmq.broker.{BrokerStartup, BrokerController}.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from spark_rocket.broker.advertised import advertised_ip, queue_data, registration_body
from spark_rocket.broker.delivery.long_polling import PullRequestHoldService
from spark_rocket.broker.metrics.stats import BrokerStats
from spark_rocket.broker.metrics.stats_windows import SAMPLE_SECONDS
from spark_rocket.broker.overload import BrokerOverload
from spark_rocket.broker.pop.order import ConsumerOrderInfoManager
from spark_rocket.broker.pop.service import PopService
from spark_rocket.broker.pop.waiting import PopLongPollingService
from spark_rocket.broker.ports import bind_port_for_slaves, bind_vip_port
from spark_rocket.broker.processors.accounts import AccountProcessor
from spark_rocket.broker.processors.ack import AckMessageProcessor
from spark_rocket.broker.processors.admin import AdminProcessor
from spark_rocket.broker.processors.assignment import QueryAssignmentProcessor
from spark_rocket.broker.processors.client_manage import ClientManageProcessor, notify_consumer_ids_changed
from spark_rocket.broker.processors.consumer_requests import ConsumerRequestProcessor
from spark_rocket.broker.processors.end_transaction import EndTransactionProcessor
from spark_rocket.broker.processors.notification import NotificationProcessor
from spark_rocket.broker.processors.offsets import OffsetProcessor
from spark_rocket.broker.processors.peek import PeekMessageProcessor
from spark_rocket.broker.processors.pop import PopMessageProcessor
from spark_rocket.broker.processors.progress import ProgressProcessor
from spark_rocket.broker.processors.pull import PullMessageProcessor
from spark_rocket.broker.processors.query import QueryMessageProcessor
from spark_rocket.broker.processors.recall import RecallMessageProcessor
from spark_rocket.broker.processors.replication import ReplicationProcessor
from spark_rocket.broker.processors.reply import ReplyMessageProcessor
from spark_rocket.broker.processors.send import SendMessageProcessor
from spark_rocket.broker.processors.send_back import SendBackProcessor
from spark_rocket.broker.processors.statistics import StatisticsProcessor
from spark_rocket.broker.registration import NameServerRegistration
from spark_rocket.broker.replication import ReplicationMaster, ReplicationSlave
from spark_rocket.broker.replication.refusals import refusals
from spark_rocket.broker.replication.sync import SlaveSynchronize
from spark_rocket.broker.service import BrokerService
from spark_rocket.broker.state.clients import ClientManager, monotonic_ms
from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.broker.state.config_files import ConfigSaver
from spark_rocket.broker.state.groups import SubscriptionGroupManager
from spark_rocket.broker.state.locks import RebalanceLockManager
from spark_rocket.broker.state.offsets import ConsumerOffsetManager
from spark_rocket.broker.state.request_modes import MessageRequestModeManager
from spark_rocket.broker.state.saving import StateSaver, load_files
from spark_rocket.broker.state.topics import TopicConfigManager
from spark_rocket.broker.transactions.service import TransactionalMessageService
from spark_rocket.errors import ConfigError, RefusedError, StateError
from spark_rocket.protocol.message_id import UniqKeyGenerator
from spark_rocket.protocol.names import HALF_TOPIC
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.record import view_record
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.remoting.address import format_address
from spark_rocket.remoting.server.overload import OverloadStats
from spark_rocket.remoting.server.server import Channel, Handler, RemotingServer
from spark_rocket.store.config import delay_levels
from spark_rocket.store.delay.delay_levels import ScheduleMessageService
from spark_rocket.store.delay.timer_store import TimerMessageStore
from spark_rocket.store.message_store import MessageStore, now_ms

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from spark_rocket.broker.acl.control import AccessControl

_log = logging.getLogger(__name__)

_CLIENT_SCAN_SECONDS = 10.0
_ACL_LOOK_SECONDS = 1.0
_TIMER_FLUSH_SECONDS = 1.0  # Apache's timerFlushIntervalMs
_ORDER_SAVE_SECONDS = 0.2
_ASK_AGAIN_SECONDS = 1.0
_TRIM_PAUSE_SECONDS = 0.05


class Broker:
    """One broker on one store directory."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Callable[[], int] = now_ms,
        monotonic: Callable[[], int] = monotonic_ms,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        """``clock``: the wall clock, ``monotonic``: one for time-outs; both in milliseconds.

        ``tracer_provider``: where spans go, if not where the process has it, with ``openTelemetryEnable``.
        """
        self.config = config
        self._tracer_provider = tracer_provider
        self._clock = clock
        self._monotonic = monotonic
        self._server: RemotingServer | None = None
        self._service: BrokerService | None = None
        self._handlers: Mapping[int, Handler] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._address = ""
        self.slave: ReplicationSlave | None = None
        """What follows the master, if this broker is a slave."""
        self.synchronize: SlaveSynchronize | None = None
        """What takes over the master's topics, groups and offsets, if this broker is a slave."""
        self.saving: StateSaver | None = None
        """What puts its state on disk; None before the start."""

    @property
    def address(self) -> str:
        """What clients are told to connect to, ``host:port``."""
        if not self._address:
            raise StateError("The broker is not started.", remedy="Await start() first.")
        return self._address

    @property
    def port(self) -> int:
        """The real port, also when 0 was asked for."""
        if self._server is None:
            raise StateError("The broker is not started.", remedy="Await start() first.")
        return self._server.port

    @property
    def service(self) -> BrokerService:
        """The operations, for what runs in the same process."""
        if self._service is None:
            raise StateError("The broker is not started.", remedy="Await start() first.")
        return self._service

    @property
    def running(self) -> BrokerService | None:
        """The operations while it serves; None before and after that."""
        return self._service if self._server is not None else None

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._server.channels) if self._server is not None else 0

    @property
    def overload(self) -> OverloadStats | None:
        """What became too much for it; None while it does not run."""
        return self._server.overload if self._server is not None else None

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """What answers each request code, for what asks in the same process and has checked who asks."""
        if self._server is None:
            raise StateError("The broker is not started.", remedy="Await start() first.")
        return self._handlers

    async def start(self) -> None:
        """Serve. ConfigError, StoreLockedError or StoreCorruptError, with nothing left open, when that cannot be."""
        if self._server is not None:
            raise StateError("The broker is already started.")
        config = self.config
        config.check_role()
        if config.without_effect:
            _log.info("settings without effect in this broker: %s", ", ".join(config.without_effect))
        access_control = self._access_control() if config.acl_enable else None
        store_ip = advertised_ip(config)
        server = RemotingServer(
            config.bind_address,
            config.listen_port,
            {},
            on_close=self.channel_closed,
            idle_timeout=config.server_channel_max_idle_time_seconds,
            name="broker",
            port_options=": rocket up --broker-port, rocket broker --port, listenPort",
            tls=config.server_tls(),
        )
        overload = BrokerOverload(config, server, self._clock)
        self._server = server
        ha = None
        try:
            await server.bind()
            await bind_vip_port(config, server)
            await server.start()
            ha = bind_port_for_slaves(config, server.port)
            ha_port = ha.getsockname()[1] if ha is not None else server.port + 1
            service = self._open(server, (store_ip, server.port), ha_port, overload)
            self._handlers = dict(server.handlers)
            if access_control is not None:  # before anything is answered: nothing has been awaited since
                service.access_control = access_control
                service.transactions.may_ask = access_control.may_ask
                server.handlers = access_control.guarded(server.handlers)
                self._every("acl", _ACL_LOOK_SECONDS, self._look_at_accounts)
            if ha is not None:
                await service.replication.start(ha)
            await server.serve_second()
        except BaseException:
            if ha is not None:
                ha.close()
            await server.close()
            self._server = None
            raise
        if store_ip not in ("127.0.0.1", "::1") and config.bind_address in ("127.0.0.1", "localhost", "::1"):
            _log.warning(
                "Clients are told to connect to %s, but the broker listens on %s only. Set bindAddress (or --host).",
                self._address,
                config.bind_address,
            )

    def _access_control(self) -> AccessControl:
        """ConfigError for a file that cannot be used."""
        from spark_rocket.broker.acl.control import AccessControl  # only then: it loads YAML

        def topic_at(physical_offset: int) -> str | None:
            record = self.service.store.look_message_by_offset(physical_offset)
            if record is None:
                return None
            view = view_record(record)
            topic = str(view.topic, "utf-8", "replace")
            if not self.service.store.is_message(topic, view.queue_id, view.queue_offset, physical_offset):
                raise RefusedError(
                    f"no message begins at offset {physical_offset} of the log",
                    response_code=ResponseCode.NO_PERMISSION,
                )
            if topic != HALF_TOPIC:
                return topic
            return str(find_property(bytes(view.properties), b"REAL_TOPIC") or view.topic, "utf-8", "replace")

        return AccessControl(self.config.acl_path, topic_at=topic_at, clock=self._clock)

    def _trace(self, service: BrokerService, server: RemotingServer) -> None:
        try:
            from spark_rocket.broker.metrics.tracing import BrokerTracing, make_provider  # not for those who have none
        except ImportError as error:
            raise ConfigError(
                "openTelemetryEnable=true, and opentelemetry-api is not installed.",
                remedy="Install it (pip install 'spark-rocket[otel]'), or set it to false.",
            ) from error
        tracing = BrokerTracing(self.config, self._tracer_provider or make_provider(self.config))
        tracing.wrap(server.handlers)
        service.tracing = tracing
        if service.pop is not None:
            service.pop.tracing = tracing

    def _look_at_accounts(self) -> None:
        async def look(control: AccessControl) -> None:
            await control.look()

        if self.service.access_control is not None:
            self.service.spawn(look(self.service.access_control))

    def _open(
        self, server: RemotingServer, store_host: tuple[str, int], ha_port: int, overload: BrokerOverload
    ) -> BrokerService:
        config, clock = self.config, self._clock
        loop = asyncio.get_running_loop()
        waiting = PopLongPollingService(loop, config, clock)
        held = PullRequestHoldService(loop, waiting)
        on_arrive = partial(self._arrived, held) if config.is_slave else held.notify_arriving
        store = MessageStore(config.store_config(), store_host=store_host, clock=clock, on_arrive=on_arrive)
        store.start()
        try:
            store.retention.check_disk()
            topics = TopicConfigManager(config, clock)
            offsets = ConsumerOffsetManager()
            groups = SubscriptionGroupManager(config, clock)
            schedule = ScheduleMessageService(store, delay_levels(config.message_delay_level))
            order = ConsumerOrderInfoManager(loop, clock, offsets, topics, groups, waiting.more)
            request_modes = MessageRequestModeManager()
            files = load_files(config, clock, topics, offsets, groups, schedule, order, request_modes)
            if not config.is_slave:  # whose log may be behind what the master said of its delays
                schedule.correct_offsets()
                offsets.correct(lambda topic, queue_id: store.get_max_offset(topic, queue_id), topics.table.keys())
            has_timer = config.timer_wheel_enable and not config.is_slave
            timer = TimerMessageStore(store, config.timer_precision) if has_timer else None
            if timer is not None:
                timer.start(clock())
            clients = ClientManager(clock, notify_consumer_ids_changed, self._monotonic)
            transactions = TransactionalMessageService(config, store, topics, offsets, clients, store_host, clock())
            stats = BrokerStats()
            pop = None
            if timer is not None:
                pop = PopService(config, store, timer, topics, offsets, groups, order, stats, clock, store_host)
        except BaseException:
            store.close()
            raise
        self._address = format_address(*store_host)
        registration = NameServerRegistration(
            loop,
            config.name_servers,
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            broker_addr=self._address,
            ha_server_addr=format_address(store_host[0], ha_port),
            body=lambda: registration_body(topics, config),
            queue_data=lambda topic: queue_data(topics, config, topic),
            period=config.register_name_server_period / 1000,
            timeout=config.register_broker_timeout_mills / 1000,
            tls=config.client_tls(),
            on_master=self._master_told,
            credentials=config.own_credentials,
        )
        name = f"{config.broker_name}[{config.broker_id}] at {self._address}"
        service = self._service = BrokerService(
            config,
            store=store,
            store_host=store_host,
            topics=topics,
            offsets=offsets,
            groups=groups,
            clients=clients,
            held=held,
            waiting=waiting,
            order=order,
            request_modes=request_modes,
            locks=RebalanceLockManager(self._monotonic, config.rebalance_lock_max_live_time),
            stats=stats,
            saver=ConfigSaver(loop),
            files=files,
            registration=registration,
            clock=clock,
            monotonic=self._monotonic,
            loop=loop,
            schedule=schedule,
            timer=timer,
            pop=pop,
            transactions=transactions,
            replication=ReplicationMaster(loop, store, config, name),
            overload=overload,
        )
        unique_keys = UniqKeyGenerator(store_host[0], os.getpid(), clock, seed=store_host[1])
        for processor in (
            SendMessageProcessor(service, unique_keys),
            PullMessageProcessor(service),
            OffsetProcessor(service),
            ClientManageProcessor(service),
            AdminProcessor(service),
            ProgressProcessor(service),
            StatisticsProcessor(service),
            QueryMessageProcessor(service),
            RecallMessageProcessor(service),
            SendBackProcessor(service),
            ConsumerRequestProcessor(service),
            EndTransactionProcessor(service),
            ReplyMessageProcessor(service),
            NotificationProcessor(service),
            PeekMessageProcessor(service),
            QueryAssignmentProcessor(service),
            PopMessageProcessor(service),
            AckMessageProcessor(service),
            ReplicationProcessor(service),
            AccountProcessor(service),
        ):
            server.handlers.update({int(code): handler for code, handler in processor.handlers().items()})
        if config.is_slave:
            server.handlers.update(refusals(name))
        if config.open_telemetry_enable:
            self._trace(service, server)
        loop.call_soon(registration.start)  # first let whoever awaits this start its name server, as `rocket up` does
        saving = self.saving = service.saving
        self._every("offsets", config.flush_consumer_offset_interval / 1000, saving.save_offsets)
        if not offsets.saved_at:  # after a kill, its time says which check points groups go on behind
            offsets.dirty = True
            saving.save_offsets()
        self._every("order", _ORDER_SAVE_SECONDS, saving.save_order)
        self._every("timer", _TIMER_FLUSH_SECONDS, saving.flush_timer)
        self._every("delays", config.flush_delay_offset_interval / 1000, saving.save_delay_offsets)
        if store.recovery is not None and not store.recovery.clean and store.max_physical_offset:
            order.recover(store.get_max_offset)
        order.start()
        if config.is_slave:
            self.slave = service.slave = ReplicationSlave(loop, store, config, name, service.replication.log_cut)
            if config.ha_master_address and not config.name_servers:
                _log.warning(
                    "%s copies the log of %s, but has no name server (namesrvAddr) that says where to ask that broker "
                    "for its topics, groups and offsets: made a master, it knows of topics what the log says, and of "
                    "groups nothing.",
                    name,
                    config.ha_master_address,
                )
            self.slave.start()
            self.synchronize = SlaveSynchronize(service, self.slave)
            self.synchronize.start()
        else:
            for driver in service.drivers.values():
                driver.wake()
        self._every("clients", _CLIENT_SCAN_SECONDS, self._expire_clients)
        self._every("stats", SAMPLE_SECONDS, service.runtime.sample)
        self._every("resources", config.clean_resource_interval / 1000, self._clean_resources)
        return service

    def _master_told(self, ha_address: str | None, address: str | None) -> None:
        """A name server says where this slave's master is. One that knows of none may have been restarted."""
        if self.slave is not None and ha_address and not self.config.ha_master_address:
            self.slave.set_master(ha_address)
        if self.synchronize is not None and address:
            if address != self.synchronize.master_address and ha_address not in (None, "", self.slave_of):
                _log.warning(
                    "%s copies the log of %s, as haMasterAddress says, and takes topics, groups and offsets from the "
                    "master that name servers know, at %s (HA %s). If these are two brokers, remove haMasterAddress.",
                    self._address,
                    self.slave_of,
                    address,
                    ha_address,
                )
            self.synchronize.set_master(address)
        elif self.synchronize is not None and self.synchronize.master_address is None and "master" not in self._timers:
            # It registers any moment now, or has done so meanwhile.
            self._timers["master"] = self.service.loop.call_later(_ASK_AGAIN_SECONDS, self._ask_for_master)

    @property
    def slave_of(self) -> str:
        """The HA address that this broker copies the log of; empty for nobody's."""
        return "" if self.slave is None else self.slave.master_address

    def _ask_for_master(self) -> None:
        del self._timers["master"]
        self.service.registration.register()

    def _arrived(self, held: PullRequestHoldService, topic: str, *where: int) -> None:
        """The log of a slave has grown."""
        if self._service is not None and self.synchronize is not None:
            known = self._service.topics.table.get(topic)
            if known is None or where[0] >= known.read_queue_nums:
                self.synchronize.arrived(topic, where[0])
        held.notify_arriving(topic, *where)

    async def close(self) -> None:
        """Stop cleanly: everything acknowledged is on disk afterwards."""
        server, service, saving = self._server, self._service, self.saving
        if server is None or service is None or saving is None:
            return
        self._server = None
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for driver in (*service.drivers.values(), service.order.timer):
            driver.close()
        try:
            if self.slave is not None and self.synchronize is not None:
                await self.synchronize.close()
                await self.slave.close()
            await service.registration.close()
            service.held.close()
            service.waiting.close()
            await service.replication.settle()
            await server.close()
            await service.settle_all()
            if service.pop is not None:
                service.pop.close()  # whose last acks the slaves get, too
            await service.replication.close()
            saving.save_all()
        finally:
            self._service = None
            saving.close()
            try:
                if service.timer is not None:
                    service.timer.close()
            finally:
                service.store.close()

    # --- from time to time --------------------------------------------------------------------------------------

    def _every(self, name: str, seconds: float, action: Callable[[], object]) -> None:
        def run() -> None:
            self._timers[name] = loop.call_later(seconds, run)
            action()

        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(seconds, run)

    def _expire_clients(self) -> None:
        self.service.clients.expire(self.config.channel_expired_timeout)

    def _clean_resources(self) -> None:
        if self.service.store.retention.run(self._clock()).unfinished:
            self._trim_queues()

    def _trim_queues(self) -> None:
        """Some queues at a time: others have their turns between, and ten thousand queues take a while."""
        service = self._service
        if service is not None and service.store.retention.trim_queues():
            self._timers["trim"] = service.loop.call_later(_TRIM_PAUSE_SECONDS, self._trim_queues)

    def channel_closed(self, channel: Channel) -> None:
        """A client is gone, and what was kept for it goes too."""
        service = self._service
        if service is not None:
            service.held.channel_closed(channel)
            service.waiting.channel_closed(channel)
            service.clients.channel_closed(channel)
