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
from spark_rocket.broker.broker_environment import BackgroundTasks, BrokerEnvironment
from spark_rocket.broker.broker_overload import BrokerOverload
from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.slave_synchronize import SYNC_SECONDS
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import SAMPLE_SECONDS
from spark_rocket.broker.state.client_manager import monotonic_ms
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.common.extras import requires
from spark_rocket.common.system import now_ms
from spark_rocket.errors import ProtocolError, StateError
from spark_rocket.protocol.requests import BROKER_REQUESTS
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.overload import OverloadStats
from spark_rocket.remoting.server.remoting_server import RemotingServer

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from spark_rocket.broker.acl.access_control import AccessControl
    from spark_rocket.broker.tracing import BrokerTracing

_log = logging.getLogger(__name__)

_CLIENT_SCAN_SECONDS = 10.0
_ACL_CHECK_SECONDS = 1.0
_TIMER_FLUSH_SECONDS = 1.0  # Apache's timerFlushIntervalMs
_ORDER_SAVE_SECONDS = 0.2
_MASTER_RETRY_SECONDS = 1.0
_TRIM_PAUSE_SECONDS = 0.05


class Broker:
    """One broker on one store directory."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Callable[[], int] = now_ms,
        monotonic: Callable[[], int] = monotonic_ms,
        synchronize_seconds: float = SYNC_SECONDS,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        """``clock``: the wall clock, ``monotonic``: a clock for timeouts; both in milliseconds.

        ``synchronize_seconds``: how often a slave copies its master's tables.
        ``tracer_provider``: overrides the process's provider of spans; used with ``openTelemetryEnable``.
        """
        self.config = config
        self._tracer_provider = tracer_provider
        self._clock = clock
        self._monotonic = monotonic
        self._synchronize_seconds = synchronize_seconds
        self._server: RemotingServer | None = None
        self._parts: BrokerParts | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._address = ""

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
    def parts(self) -> BrokerParts:
        """The broker's parts, for code in the same process."""
        if self._parts is None:
            raise StateError("The broker is not started.", remedy="Await start() first.")
        return self._parts

    @property
    def running(self) -> BrokerParts | None:
        """The parts while the broker serves; None before the start and after the stop."""
        return self._parts if self._server is not None else None

    @property
    def connections(self) -> int:
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
        config.check_access()
        if config.without_effect:
            _log.info("settings without effect in this broker: %s", ", ".join(config.without_effect))
        access_control = self._access_control()
        tracing = self._tracing() if config.open_telemetry_enable else None
        store_ip = advertised_ip(config)
        server = self._server = self._make_server()
        overload = BrokerOverload(config, server, self._clock)
        ha = None
        try:
            await server.bind()
            await bind_vip_port(config, server)
            await server.start()
            ha = bind_port_for_slaves(config, server.port)
            # Nothing is awaited from here until the handlers are complete: no request is handled before.
            environment = BrokerEnvironment(
                config,
                self._clock,
                self._monotonic,
                store_host=(store_ip, server.port),
                loop=asyncio.get_running_loop(),
                tasks=BackgroundTasks(),
                rules=lambda: None if access_control is None else access_control.rules,
            )
            parts = self._parts = BrokerParts(
                environment,
                overload,
                ha_port=ha.getsockname()[1] if ha is not None else server.port + 1,
                synchronize_seconds=self._synchronize_seconds,
                on_master=self._master_found,
                access_control=access_control,
                tracing=tracing,
            )
            self._address = environment.address
            server.handlers = parts.handlers()
            self._run(parts)
            if ha is not None:
                await parts.replication.start(ha)
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
            request_types=BROKER_REQUESTS,
            port_options=": rocket up --broker-port, rocket broker --port, listenPort",
            tls=config.server_tls(),
        )

    def _run(self, parts: BrokerParts) -> None:
        config, store, saver = self.config, parts.store, parts.saver
        # Deferred, so that the caller can start its name server first, as `rocket up` does.
        parts.loop.call_soon(parts.registration.start)
        if not parts.offsets.saved_at:  # after a kill, this time shows which check points the offsets include
            parts.offsets.dirty = True
            saver.save_offsets()
        if store.recovery is not None and not store.recovery.clean and store.max_physical_offset:
            parts.order_info.recover(store.get_max_offset)
        parts.order_info.start()
        parts.tasks.spawn(_encode_tables(parts.topics, parts.groups))
        if parts.slave is not None and parts.synchronize is not None:
            self._warn_of_missing_name_servers(parts.environment.name)
            parts.slave.start()
            parts.synchronize.start()
        else:
            parts.delivery_timers.start()
        if parts.access_control is not None:
            self._every("acl", _ACL_CHECK_SECONDS, self._check_accounts_file)
        for name, seconds, action in (
            ("offsets", config.flush_consumer_offset_interval / 1000, saver.save_offsets),
            ("order", _ORDER_SAVE_SECONDS, saver.save_order),
            ("timer", _TIMER_FLUSH_SECONDS, saver.flush_timer),
            ("delays", config.flush_delay_offset_interval / 1000, saver.save_delay_offsets),
            ("clients", _CLIENT_SCAN_SECONDS, self._expire_clients),
            ("stats", SAMPLE_SECONDS, parts.sample),
            ("resources", config.clean_resource_interval / 1000, self._clean_resources),
        ):
            self._every(name, seconds, action)

    def _warn_of_missing_name_servers(self, name: str) -> None:
        if self.config.ha_master_address and not self.config.name_servers:
            _log.warning(
                "%s copies the log of %s, but not its topics, groups and offsets: namesrvAddr is not set, which "
                "provides the address to request them from. After a promotion it would have only the topics found "
                "in the log, and no groups.",
                name,
                self.config.ha_master_address,
            )

    def _warn_of_unreachable_address(self, store_ip: str) -> None:
        if store_ip not in ("127.0.0.1", "::1") and self.config.bind_address in ("127.0.0.1", "localhost", "::1"):
            _log.warning(
                "Clients get the address %s, but the broker listens on %s only. Set bindAddress (or --host).",
                self.address,
                self.config.bind_address,
            )

    def _access_control(self) -> AccessControl | None:
        """The access control of the settings; its modules are imported only if needed: they load YAML."""
        config = self.config
        if not config.is_guarded:
            return None
        from spark_rocket.broker.acl.access_control import topic_at

        def find(offset: int) -> str | None:
            return topic_at(self.parts.store, offset)

        if config.authentication_enabled:
            from spark_rocket.broker.acl.user_access_control import UserAccessControl

            return UserAccessControl(config, topic_at=find)
        from spark_rocket.broker.acl.plain_access_control import PlainAccessControl

        return PlainAccessControl(config.acl_path, topic_at=find, clock=self._clock)

    def _tracing(self) -> BrokerTracing:
        with requires("openTelemetryEnable=true"):
            from spark_rocket.broker.tracing import BrokerTracing, make_provider
        return BrokerTracing(self.config, self._tracer_provider or make_provider(self.config))

    # --- periodic work ------------------------------------------------------------------------------------------

    def _every(self, name: str, seconds: float, action: Callable[[], object]) -> None:
        def run() -> None:
            self._timers[name] = loop.call_later(seconds, run)
            action()

        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(seconds, run)

    def _expire_clients(self) -> None:
        self.parts.clients.expire(self.config.channel_expired_timeout)
        self.parts.rebalance_locks.expire()

    def _check_accounts_file(self) -> None:
        async def reload_if_changed(control: AccessControl) -> None:
            await control.reload_if_changed()

        if self.parts.access_control is not None:
            self.parts.tasks.spawn(reload_if_changed(self.parts.access_control))

    def _clean_resources(self) -> None:
        if self.parts.store.retention.run(self._clock()).unfinished:
            self._trim_queues()

    def _trim_queues(self) -> None:
        """Trim some queues, then pause: ten thousand queues at once would block the event loop."""
        parts = self._parts
        if parts is not None and parts.store.retention.trim_queues():
            self._timers["trim"] = parts.loop.call_later(_TRIM_PAUSE_SECONDS, self._trim_queues)

    # --- a slave's master ---------------------------------------------------------------------------------------

    def _master_found(self, ha_address: str | None, address: str | None) -> None:
        """Handle the master's addresses in a name server's response. A restarted name server may not know them yet."""
        slave, synchronize = self.parts.slave, self.parts.synchronize
        if slave is None or synchronize is None:
            return
        if ha_address and not self.config.ha_master_address:
            slave.set_master(ha_address)
        if address:
            if address != synchronize.master_address and ha_address not in (None, "", slave.master_address):
                _log.warning(
                    "%s copies the log of %s, set as haMasterAddress, but topics, groups and offsets of the master "
                    "registered with the name servers, %s (HA %s). If these are two brokers, remove haMasterAddress.",
                    self._address,
                    slave.master_address,
                    address,
                    ha_address,
                )
            synchronize.set_master(address)
        elif synchronize.master_address is None and "master" not in self._timers:
            # The master has probably just registered, or is about to.
            self._timers["master"] = self.parts.loop.call_later(_MASTER_RETRY_SECONDS, self._query_master)

    def _query_master(self) -> None:
        del self._timers["master"]
        self.parts.registration.register()

    async def close(self) -> None:
        """Stop cleanly; afterwards everything acknowledged is on disk."""
        server, parts = self._server, self._parts
        if server is None:
            return
        self._server = None
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if parts is None:  # the start failed
            await server.close()
            return
        parts.delivery_timers.close()
        parts.order_info.close()
        try:
            if parts.slave is not None and parts.synchronize is not None:
                await parts.synchronize.close()
                await parts.slave.close()
            await parts.registration.close()
            parts.held_requests.close()
            await parts.replication.settle()
            await server.close()
            await parts.tasks.settle()
            if parts.pop_service is not None:
                parts.pop_service.close()  # before replication stops: slaves get the last acks, too
            await parts.replication.close()
            parts.saver.save_all()
        finally:
            self._parts = None
            try:
                if parts.timer_store is not None:
                    parts.timer_store.close()
            finally:
                parts.store.close()

    def channel_closed(self, channel: Channel) -> None:
        parts = self._parts
        if parts is not None:
            parts.held_requests.channel_closed(channel)
            parts.clients.channel_closed(channel)


async def _encode_tables(topics: TopicConfigManager, groups: SubscriptionGroupManager) -> None:
    """Encode topics and groups after a start: otherwise the first change of one encodes all of them at once."""
    with suppress(ProtocolError):  # also the problem of each write of the file, which is reported
        await topics.encode_in_steps()
        await groups.encode_in_steps()
