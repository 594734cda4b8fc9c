"""The broker: start and stop of all its parts.

Start: listen (so that a port in use is detected before any file is touched), open and recover the store, load
``config/*.json``, accept requests, register with the name servers. No request is handled before the handlers are
complete, because no step before that awaits. Stop: unregister, close connections, write ``config/*.json``, flush the
store.

Thread-safety: everything runs on the event loop that ``start`` was awaited on; the store's flush threads, the
registration threads and the config writer return to it by ``call_soon_threadsafe``.
After a crash: the store recovers by itself, offsets may be a few seconds old, acknowledged changes of topics are there.
Corresponds to org.apache.rocketmq.broker.{BrokerStartup, BrokerController}.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from spark_rocket.broker.addresses import advertised_ip, bind_port_for_slaves, bind_vip_port
from spark_rocket.broker.overload import BrokerOverload
from spark_rocket.broker.parts import BrokerContext
from spark_rocket.broker.processors.accounts import AccountProcessor
from spark_rocket.broker.processors.ack import AckMessageProcessor
from spark_rocket.broker.processors.admin import AdminProcessor
from spark_rocket.broker.processors.assignment import QueryAssignmentProcessor
from spark_rocket.broker.processors.base import Processor
from spark_rocket.broker.processors.clients import ClientManageProcessor, ConsumerRequestProcessor
from spark_rocket.broker.processors.offsets import OffsetProcessor
from spark_rocket.broker.processors.pending import PendingMessageProcessor
from spark_rocket.broker.processors.pop import PeekProcessor, PopMessageProcessor
from spark_rocket.broker.processors.pull import PullMessageProcessor
from spark_rocket.broker.processors.query import QueryMessageProcessor
from spark_rocket.broker.processors.reply import ReplyMessageProcessor
from spark_rocket.broker.processors.send import SendMessageProcessor
from spark_rocket.broker.processors.send_back import SendBackProcessor
from spark_rocket.broker.processors.statistics import StatisticsProcessor
from spark_rocket.broker.replication import ReplicationSlave
from spark_rocket.broker.replication.refusals import refusals
from spark_rocket.broker.service import BrokerService
from spark_rocket.broker.state.clients import monotonic_ms
from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.broker.state.stats import SAMPLE_SECONDS
from spark_rocket.broker.synchronize import SlaveSynchronize
from spark_rocket.errors import ProtocolError, StateError
from spark_rocket.extras import requires
from spark_rocket.protocol.wire.request_limits import BROKER_LIMITS
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.overload import OverloadStats
from spark_rocket.remoting.server.server import Handler, RemotingServer
from spark_rocket.store.message_store import now_ms

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from spark_rocket.broker.acl.control import AccessControl

_log = logging.getLogger(__name__)

_CLIENT_SCAN_SECONDS = 10.0
_ACL_CHECK_SECONDS = 1.0
_TIMER_FLUSH_SECONDS = 1.0  # Apache's timerFlushIntervalMs
_ORDER_SAVE_SECONDS = 0.2
_MASTER_RETRY_SECONDS = 1.0
_TRIM_PAUSE_SECONDS = 0.05


_PROCESSORS: tuple[type[Processor], ...] = (
    SendMessageProcessor,
    PullMessageProcessor,
    OffsetProcessor,
    ClientManageProcessor,
    AdminProcessor,
    StatisticsProcessor,
    QueryMessageProcessor,
    PendingMessageProcessor,
    SendBackProcessor,
    ConsumerRequestProcessor,
    ReplyMessageProcessor,
    PeekProcessor,
    QueryAssignmentProcessor,
    PopMessageProcessor,
    AckMessageProcessor,
    AccountProcessor,
)


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
        """``clock``: the wall clock, ``monotonic``: a clock for timeouts; both in milliseconds.

        ``tracer_provider``: overrides the process's provider of spans; used with ``openTelemetryEnable``.
        """
        self.config = config
        self._tracer_provider = tracer_provider
        self._clock = clock
        self._monotonic = monotonic
        self._server: RemotingServer | None = None
        self._service: BrokerService | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._address = ""
        self.slave: ReplicationSlave | None = None
        """Copies the master's log, if this broker is a slave."""
        self.synchronize: SlaveSynchronize | None = None
        """Copies the master's topics, groups and offsets, if this broker is a slave."""

    @property
    def address(self) -> str:
        """The address for clients, ``host:port``."""
        if not self._address:
            raise StateError("The broker is not started.", remedy="Await start() first.")
        return self._address

    @property
    def port(self) -> int:
        """The port in use; with ``listenPort`` 0, the port selected by the system."""
        if self._server is None:
            raise StateError("The broker is not started.", remedy="Await start() first.")
        return self._server.port

    @property
    def service(self) -> BrokerService:
        """The broker's operations, for code in the same process."""
        if self._service is None:
            raise StateError("The broker is not started.", remedy="Await start() first.")
        return self._service

    @property
    def running(self) -> BrokerService | None:
        """The operations while the broker serves; None before the start and after the stop."""
        return self._service if self._server is not None else None

    @property
    def connections(self) -> int:
        """The number of connections."""
        return len(self._server.channels) if self._server is not None else 0

    @property
    def overload(self) -> OverloadStats | None:
        """Counters of refused requests; None if the broker does not run."""
        return self._server.overload if self._server is not None else None

    async def start(self) -> None:
        """Start to serve. On ConfigError, StoreLockedError or StoreCorruptError, everything is closed again."""
        if self._server is not None:
            raise StateError("The broker is already started.")
        config = self.config
        config.check_role()
        if config.without_effect:
            _log.info("settings without effect in this broker: %s", ", ".join(config.without_effect))
        access_control = self._access_control() if config.acl_enable else None
        store_ip = advertised_ip(config)
        server = self._server = self._make_server()
        overload = BrokerOverload(config, server, self._clock)
        ha = None
        try:
            await server.bind()
            await bind_vip_port(config, server)
            await server.start()
            ha = bind_port_for_slaves(config, server.port)
            context = BrokerContext(
                config,
                overload,
                store_host=(store_ip, server.port),
                ha_port=ha.getsockname()[1] if ha is not None else server.port + 1,
                clock=self._clock,
                monotonic=self._monotonic,
                on_master=self._master_found,
            )
            # Nothing is awaited from here until the handlers are complete: no request is handled before.
            service = self._service = BrokerService(context)
            self._address = service.address
            server.handlers = self._make_handlers(service, access_control)
            self._run(service)
            if ha is not None:
                await service.replication.start(ha)
            await server.serve_second()
        except BaseException:
            if ha is not None:
                ha.close()
            await self.close()
            raise
        self._warn_of_unreachable_address(store_ip)

    # --- stages of the start ------------------------------------------------------------------------------------

    def _make_server(self) -> RemotingServer:
        config = self.config
        return RemotingServer(
            config.bind_address,
            config.listen_port,
            {},
            on_close=self.channel_closed,
            idle_timeout=config.server_channel_max_idle_time_seconds,
            name="broker",
            request_limits=BROKER_LIMITS,
            port_options=": rocket up --broker-port, rocket broker --port, listenPort",
            tls=config.server_tls(),
        )

    def _make_handlers(self, service: BrokerService, access_control: AccessControl | None) -> dict[int, Handler]:
        """The handler of each request code: the processors, with refusals, tracing and access control around them."""
        handlers = {code: handler for each in _PROCESSORS for code, handler in each(service).handlers().items()}
        if self.config.is_slave:
            handlers.update(refusals(service.name))
        if self.config.open_telemetry_enable:
            self._trace(service, handlers)
        if access_control is None:
            return handlers
        service.access_control = access_control
        service.transactions.may_ask = access_control.may_ask
        self._every("acl", _ACL_CHECK_SECONDS, self._check_accounts_file)
        return access_control.guarded(handlers)

    def _run(self, service: BrokerService) -> None:
        """Start the periodic work."""
        config, store, saving = self.config, service.store, service.saving
        # Deferred, so that the caller can start its name server first, as `rocket up` does.
        service.loop.call_soon(service.registration.start)
        if not service.offsets.saved_at:  # after a kill, this time shows which check points the offsets include
            service.offsets.dirty = True
            saving.save_offsets()
        if store.recovery is not None and not store.recovery.clean and store.max_physical_offset:
            service.order.recover(store.get_max_offset)
        service.order.start()
        service.spawn(_encode_tables(service))
        if config.is_slave:
            self._follow(service)
        else:
            for driver in service.drivers.values():
                driver.wake()
        for name, seconds, action in (
            ("offsets", config.flush_consumer_offset_interval / 1000, saving.save_offsets),
            ("order", _ORDER_SAVE_SECONDS, saving.save_order),
            ("timer", _TIMER_FLUSH_SECONDS, saving.flush_timer),
            ("delays", config.flush_delay_offset_interval / 1000, saving.save_delay_offsets),
            ("clients", _CLIENT_SCAN_SECONDS, self._expire_clients),
            ("stats", SAMPLE_SECONDS, service.sample),
            ("resources", config.clean_resource_interval / 1000, self._clean_resources),
        ):
            self._every(name, seconds, action)

    def _follow(self, service: BrokerService) -> None:
        """Start copying the master's log and tables to this slave."""
        config = self.config
        self.slave = service.slave = ReplicationSlave(
            service.loop, service.store, config, service.name, service.replication.log_cut
        )
        if config.ha_master_address and not config.name_servers:
            _log.warning(
                "%s copies the log of %s, but not its topics, groups and offsets: namesrvAddr is not set, which "
                "provides the address to request them from. After a promotion it would have only the topics found "
                "in the log, and no groups.",
                service.name,
                config.ha_master_address,
            )
        self.slave.start()
        self.synchronize = SlaveSynchronize(service, self.slave)
        self.synchronize.start()
        service.on_new_queue = self.synchronize.arrived

    def _warn_of_unreachable_address(self, store_ip: str) -> None:
        if store_ip not in ("127.0.0.1", "::1") and self.config.bind_address in ("127.0.0.1", "localhost", "::1"):
            _log.warning(
                "Clients get the address %s, but the broker listens on %s only. Set bindAddress (or --host).",
                self.address,
                self.config.bind_address,
            )

    def _access_control(self) -> AccessControl:
        """Load the accounts; ConfigError for an invalid file."""
        from spark_rocket.broker.acl.control import AccessControl  # imported only if needed: it loads YAML

        return AccessControl(
            self.config.acl_path, topic_at=lambda offset: self.service.topic_at(offset), clock=self._clock
        )

    def _trace(self, service: BrokerService, handlers: dict[int, Handler]) -> None:
        with requires("openTelemetryEnable=true"):
            from spark_rocket.broker.tracing import BrokerTracing, make_provider
        tracing = service.tracing = BrokerTracing(self.config, self._tracer_provider or make_provider(self.config))
        tracing.wrap(handlers)
        if service.pop is not None:
            service.pop.tracing = tracing

    # --- periodic work ------------------------------------------------------------------------------------------

    def _every(self, name: str, seconds: float, action: Callable[[], object]) -> None:
        def run() -> None:
            self._timers[name] = loop.call_later(seconds, run)
            action()

        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(seconds, run)

    def _expire_clients(self) -> None:
        self.service.clients.expire(self.config.channel_expired_timeout)
        self.service.locks.expire()

    def _check_accounts_file(self) -> None:
        async def reload_if_changed(control: AccessControl) -> None:
            await control.reload_if_changed()

        if self.service.access_control is not None:
            self.service.spawn(reload_if_changed(self.service.access_control))

    def _clean_resources(self) -> None:
        if self.service.store.retention.run(self._clock()).unfinished:
            self._trim_queues()

    def _trim_queues(self) -> None:
        """Trim some queues, then pause: ten thousand queues at once would block the event loop."""
        service = self._service
        if service is not None and service.store.retention.trim_queues():
            self._timers["trim"] = service.loop.call_later(_TRIM_PAUSE_SECONDS, self._trim_queues)

    # --- a slave's master ---------------------------------------------------------------------------------------

    def _master_found(self, ha_address: str | None, address: str | None) -> None:
        """Handle the master's addresses in a name server's response. A restarted name server may not know them yet."""
        if self.slave is not None and ha_address and not self.config.ha_master_address:
            self.slave.set_master(ha_address)
        if self.synchronize is not None and address:
            if address != self.synchronize.master_address and ha_address not in (None, "", self.slave_of):
                _log.warning(
                    "%s copies the log of %s, set as haMasterAddress, but topics, groups and offsets of the master "
                    "registered with the name servers, %s (HA %s). If these are two brokers, remove haMasterAddress.",
                    self._address,
                    self.slave_of,
                    address,
                    ha_address,
                )
            self.synchronize.set_master(address)
        elif self.synchronize is not None and self.synchronize.master_address is None and "master" not in self._timers:
            # The master has probably just registered, or is about to.
            self._timers["master"] = self.service.loop.call_later(_MASTER_RETRY_SECONDS, self._query_master)

    @property
    def slave_of(self) -> str:
        """The HA address of the broker whose log this broker copies; empty if there is none."""
        return "" if self.slave is None else self.slave.master_address

    def _query_master(self) -> None:
        del self._timers["master"]
        self.service.registration.register()

    async def close(self) -> None:
        """Stop cleanly; afterwards everything acknowledged is on disk."""
        server, service = self._server, self._service
        if server is None:
            return
        self._server = None
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if service is None:  # the start failed
            await server.close()
            return
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
                service.pop.close()  # before replication stops: slaves get the last acks, too
            await service.replication.close()
            service.saving.save_all()
        finally:
            self._service = None
            try:
                if service.timer is not None:
                    service.timer.close()
            finally:
                service.store.close()

    def channel_closed(self, channel: Channel) -> None:
        """Drop the state of a closed connection."""
        service = self._service
        if service is not None:
            service.held.channel_closed(channel)
            service.waiting.channel_closed(channel)
            service.clients.channel_closed(channel)


async def _encode_tables(service: BrokerService) -> None:
    """Encode topics and groups after a start: otherwise the first change of one encodes all of them at once."""
    with suppress(ProtocolError):  # also the problem of each write of the file, which is reported
        await service.topics.encode_in_steps()
        await service.groups.encode_in_steps()
