"""The broker's settings: Apache's property names and checked values; errors name file and line.

A ``broker.conf`` has the format of Java properties. Three kinds of names occur in it:

* settings of this broker (the fields of :class:`BrokerConfig`): the value is checked, ConfigError names file and line;
* Apache settings without effect in this broker (``KNOWN_UNUSED``): retained, and returned by code 26;
* all others: also retained, with a warning that names the most similar known setting, since it is probably a typo.

Settings that Apache does not have: ``maxPullBytes``, ``maxPullMsgNums`` (limits of one pull), ``maxHeldPulls`` (long
polls held at once), ``maxMetricsGroupTopics`` (pairs of group and topic in /metrics),
``maxAutoCreateTopics`` and ``maxAutoCreateGroups`` (numbers from which none are created
automatically), ``fileReservedSize`` (bytes of commit log to retain), and those from ``maxConnections`` to
``maxMemoryBytes`` (limits of what clients use). So is ``aclFile`` (Apache: a system property).
``innerClientAuthenticationCredentials`` is Apache's: JSON like ``{"accessKey": "…", "secretKey": "…"}``.
Settings of the gRPC proxy (``PROXY_SETTINGS``) are retained for ``rocket up``, which passes them to its proxy.

Thread-safety: read by every component, changed on the event loop only (code 25, dynamic settings).
Corresponds to org.apache.rocketmq.common.BrokerConfig, store.config.MessageStoreConfig, NettyServerConfig.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

from spark_rocket.broker.state.known_settings import (
    KNOWN_UNUSED,
    PROXY_SETTINGS,
    check_length,
    check_refused,
    check_unknown,
    is_without_effect,
    may_be_secret,
)
from spark_rocket.errors import ConfigError
from spark_rocket.model import TRACE_TOPIC
from spark_rocket.protocol.auth import Credentials, inner_credentials
from spark_rocket.protocol.auth_settings import (
    AUTHENTICATION_PROVIDER,
    AUTHENTICATION_STRATEGIES,
    AUTHORIZATION_PROVIDER,
    AUTHORIZATION_STRATEGIES,
    LOCAL_AUTHENTICATION,
    LOCAL_AUTHORIZATION,
    check_access,
    codes,
    one_class,
)
from spark_rocket.protocol.durability import BrokerRole, Durability, durability
from spark_rocket.protocol.java_properties import expand_variables, has_variable, parse_properties, render_properties
from spark_rocket.protocol.setting import Setting, SettingsUpdate, fixed, read_settings, settings_of, text_of
from spark_rocket.protocol.setting import setting as _setting
from spark_rocket.remoting.http.monitor import MetricsExporterType
from spark_rocket.remoting.name_server_list import check_address, check_addresses, parse_name_servers
from spark_rocket.remoting.tls.contexts import ServerTls, server_tls
from spark_rocket.remoting.tls.settings import TlsSettings, parse_setting
from spark_rocket.store.config import StoreConfig

_log = logging.getLogger(__name__)

MASTER_ID = 0
HIDDEN = "******"


class MessageRequestMode(Enum):
    """How consumers receive messages; code 401 overrides it for a group."""

    PULL = "PULL"
    POP = "POP"


def _property_value(text: str) -> None:
    if len(text) > 255 or not text.isprintable():
        raise ConfigError(
            f"Invalid regionId {text[:255]!r}: it is stored with every message.",
            remedy="Use at most 255 characters, without control characters.",
        )


@dataclass(slots=True)
class BrokerConfig:
    """All settings that this broker reads; their property names are Apache's, in camel case."""

    broker_cluster_name: str = _setting("DefaultCluster")
    broker_name: str = _setting("broker-a")
    broker_id: int = _setting(MASTER_ID, low=0, high=2**31 - 1)
    broker_role: BrokerRole = _setting(BrokerRole.ASYNC_MASTER)

    bind_address: str = _setting("127.0.0.1")
    listen_port: int = _setting(10911, low=0, high=65535)
    vip_channel_enable: bool = _setting(True)
    broker_ip1: str = _setting("", name="brokerIP1")
    namesrv_addr: str = _setting("", check=check_addresses)
    register_name_server_period: int = _setting(30_000, low=1_000, high=60_000)
    register_broker_timeout_mills: int = _setting(3_000, low=1)
    enable_split_registration: bool = _setting(False, dynamic=True)
    split_registration_size: int = _setting(800, low=2, dynamic=True)
    ha_listen_port: int = _setting(0, low=0, high=65535)
    ha_master_address: str = _setting("", check=check_address)
    ha_send_heartbeat_interval: int = _setting(5_000, low=1, dynamic=True)
    ha_housekeeping_interval: int = _setting(20_000, low=1, dynamic=True)
    ha_max_gap_not_in_sync: int = _setting(256 * 1024 * 1024, low=1, dynamic=True)
    slave_timeout: int = _setting(3_000, low=1, dynamic=True)
    slave_read_enable: bool = _setting(False, dynamic=True)
    access_message_in_memory_max_ratio: int = _setting(40, low=0, high=100, dynamic=True)
    offset_check_in_slave: bool = _setting(False, dynamic=True)

    acl_enable: bool = _setting(False)
    acl_file: str = _setting("")
    authentication_enabled: bool = _setting(False)
    authentication_provider: str = _setting("", check=one_class("authenticationProvider", AUTHENTICATION_PROVIDER))
    authentication_metadata_provider: str = _setting("", check=LOCAL_AUTHENTICATION)
    authentication_strategy: str = _setting("", check=one_class("authenticationStrategy", *AUTHENTICATION_STRATEGIES))
    authentication_whitelist: str = _setting("", check=codes("authenticationWhitelist"))
    init_authentication_user: str = _setting("", secret=True)
    authorization_enabled: bool = _setting(False)
    authorization_provider: str = _setting("", check=one_class("authorizationProvider", AUTHORIZATION_PROVIDER))
    authorization_metadata_provider: str = _setting("", check=LOCAL_AUTHORIZATION)
    authorization_strategy: str = _setting("", check=one_class("authorizationStrategy", *AUTHORIZATION_STRATEGIES))
    authorization_whitelist: str = _setting("", check=codes("authorizationWhitelist"))
    auth_config_path: str = _setting("")
    migrate_auth_from_v1_enabled: bool = _setting(False)
    inner_client_authentication_credentials: str = _setting("", secret=True, check=inner_credentials)

    metrics_exporter_type: MetricsExporterType = _setting(MetricsExporterType.DISABLE)
    metrics_prom_exporter_host: str = _setting("")
    metrics_prom_exporter_port: int = _setting(5557, low=0, high=65535)

    broker_permission: int = _setting(6, low=0, high=7, dynamic=True)
    auto_create_topic_enable: bool = _setting(True, dynamic=True)
    auto_create_subscription_group: bool = _setting(True, dynamic=True)
    max_auto_create_topics: int = _setting(10_000, low=0, high=50_000, dynamic=True)
    max_auto_create_groups: int = _setting(5_000, low=0, high=20_000, dynamic=True)
    cluster_topic_enable: bool = _setting(True)
    broker_topic_enable: bool = _setting(True)
    default_topic_queue_nums: int = _setting(8, low=1, high=65_536, dynamic=True)
    trace_topic_enable: bool = _setting(False)
    msg_trace_topic_name: str = _setting(TRACE_TOPIC)
    trace_on: bool = _setting(True, dynamic=True)
    open_telemetry_enable: bool = _setting(False)
    region_id: str = _setting("DefaultRegion", dynamic=True, check=_property_value)
    store_reply_message_enable: bool = _setting(True, dynamic=True)
    start_accept_send_request_time_stamp: int = _setting(0, low=0, dynamic=True)

    flush_delay_offset_interval: int = _setting(10_000, low=100)
    timer_wheel_enable: bool = _setting(True)
    timer_precision_ms: int = _setting(1_000, low=1)
    timer_max_delay_sec: int = _setting(259_200, low=1, high=2**31 - 1)
    recall_message_enable: bool = _setting(False, dynamic=True)
    allow_recall_when_broker_not_writeable: bool = _setting(True, dynamic=True)

    reject_transaction_message: bool = _setting(False, dynamic=True)
    transaction_time_out: int = _setting(6_000, low=0, dynamic=True)
    transaction_check_max: int = _setting(15, low=0, dynamic=True)
    transaction_check_interval: int = _setting(30_000, low=1, dynamic=True)

    long_polling_enable: bool = _setting(True, dynamic=True)
    short_polling_time_mills: int = _setting(1_000, low=0, high=60_000, dynamic=True)
    max_transfer_count_on_message_in_memory: int = _setting(32, low=1, high=65_536, dynamic=True)
    max_transfer_bytes_on_message_in_memory: int = _setting(256 * 1024, low=1, high=15 * 1024 * 1024, dynamic=True)
    max_pull_bytes: int = _setting(8 * 1024 * 1024, low=1, high=15 * 1024 * 1024, dynamic=True)
    max_pull_msg_nums: int = _setting(100_000, low=1, high=1_000_000, dynamic=True)
    max_held_pulls: int = _setting(100_000, low=0, dynamic=True)
    max_metrics_group_topics: int = _setting(2_000, low=0, dynamic=True)
    pop_polling_size: int = _setting(1_024, low=0, dynamic=True)
    pop_polling_map_size: int = _setting(100_000, low=0, dynamic=True)
    max_pop_polling_size: int = _setting(100_000, low=0, dynamic=True)
    server_load_balancer_enable: bool = _setting(True, dynamic=True)
    default_message_request_mode: MessageRequestMode = _setting(MessageRequestMode.PULL, dynamic=True)
    default_pop_share_queue_num: int = _setting(-1, low=-1, high=2**31 - 1, dynamic=True)
    default_query_max_num: int = _setting(32, low=1, high=1_024, dynamic=True)
    max_msgs_num_batch: int = _setting(64, low=1, high=1_024, dynamic=True)
    lite_pull_message_enable: bool = _setting(True, dynamic=True)
    enable_property_filter: bool = _setting(False, dynamic=True)
    enable_mixed_message_type: bool = _setting(False, dynamic=True)
    use_server_side_reset_offset: bool = _setting(True, dynamic=True)

    enable_retry_topic_v2: bool = _setting(False, dynamic=True)
    pop_from_retry_probability: int = _setting(20, low=0, high=100, dynamic=True)

    channel_expired_timeout: int = _setting(120_000, low=1_000, dynamic=True)
    server_channel_max_idle_time_seconds: int = _setting(120, low=1, high=86_400)
    flush_consumer_offset_interval: int = _setting(5_000, low=100)
    rebalance_lock_max_live_time: int = _setting(60_000, low=1_000)

    broker_fast_failure_enable: bool = _setting(True, dynamic=True)
    send_thread_pool_queue_capacity: int = _setting(10_000, low=1, dynamic=True)
    put_thread_pool_queue_capacity: int = _setting(10_000, low=1, dynamic=True)
    pull_thread_pool_queue_capacity: int = _setting(100_000, low=1, dynamic=True)
    ack_thread_pool_queue_capacity: int = _setting(100_000, low=1, dynamic=True)
    query_thread_pool_queue_capacity: int = _setting(20_000, low=1, dynamic=True)
    heartbeat_thread_pool_queue_capacity: int = _setting(50_000, low=1, dynamic=True)
    end_transaction_pool_queue_capacity: int = _setting(100_000, low=1, dynamic=True)
    admin_broker_thread_pool_queue_capacity: int = _setting(10_000, low=1, dynamic=True)
    wait_time_mills_in_send_queue: int = _setting(2_000, low=0, dynamic=True)
    wait_time_mills_in_pull_queue: int = _setting(5_000, low=0, dynamic=True)
    wait_time_mills_in_ack_queue: int = _setting(3_000, low=0, dynamic=True)
    wait_time_mills_in_heartbeat_queue: int = _setting(31_000, low=0, dynamic=True)
    wait_time_mills_in_transaction_queue: int = _setting(3_000, low=0, dynamic=True)
    wait_time_mills_in_admin_broker_queue: int = _setting(5_000, low=0, dynamic=True)
    os_page_cache_busy_time_out_mills: int = _setting(1_000, low=1, dynamic=True)
    server_oneway_semaphore_value: int = _setting(256, low=0, dynamic=True)
    server_async_semaphore_value: int = _setting(64, low=1, dynamic=True)
    max_connections: int = _setting(20_000, low=1, dynamic=True)
    max_connections_per_address: int = _setting(0, low=0, dynamic=True)
    first_request_timeout_millis: int = _setting(30_000, low=1, dynamic=True)
    slow_writer_timeout_millis: int = _setting(30_000, low=1, dynamic=True)
    slow_reader_timeout_millis: int = _setting(30_000, low=1, dynamic=True)
    max_waiting_request_bytes: int = _setting(256 * 1024 * 1024, low=1, dynamic=True)
    max_unread_answer_bytes: int = _setting(256 * 1024 * 1024, low=1, dynamic=True)
    max_memory_bytes: int = _setting(0, low=0, dynamic=True)
    clean_resource_interval: int = _setting(10_000, low=100)

    store: StoreConfig = field(default_factory=StoreConfig)
    """Settings of the store, in ``broker.conf`` beside those above."""
    #: Where the settings were read from, if that was a file.
    source: Path | None = None
    #: The settings of TLS (``tls.…``), shared by servers and clients (remoting/tls).
    tls: dict[str, str] = field(default_factory=dict, repr=False)  # with passwords
    #: Settings of the file that are not among the above, by name; retained for code 26.
    others: dict[str, str] = field(default_factory=dict, repr=False)  # may contain a misspelt secret

    @classmethod
    def from_file(cls, path: Path | str, **defaults: Any) -> BrokerConfig:
        """Read a ``broker.conf``; ConfigError names the file, the line and the setting.

        ``defaults`` are fields of this class, but not of ``store``, for settings that the file does not have.
        """
        path = Path(path)
        return cls._from_entries(
            parse_properties(read_settings(path, "broker"), str(path)), str(path), {**defaults, "source": path}
        )

    @classmethod
    def from_text(cls, text: str, source: str = "<properties>") -> BrokerConfig:
        """Parse the text of a properties file."""
        return cls._from_entries(parse_properties(text, source), source)

    @classmethod
    def from_properties(cls, properties: Mapping[str, object], source: str = "the settings given") -> BrokerConfig:
        """Create from settings by Apache name; Python values are converted to their properties text."""
        return cls._from_entries([(name, text_of(value), 0) for name, value in properties.items()], source)

    @classmethod
    def _from_entries(
        cls, entries: Iterable[tuple[str, str, int]], source: str, defaults: Mapping[str, Any] | None = None
    ) -> BrokerConfig:
        config = cls(**defaults or {})
        values: dict[Setting, object] = {}
        for name, value, line in entries:
            where = f"{source}, line {line}" if line else source
            text = expand_variables(value, os.environ)
            if name in _SPECS:
                values[_SPECS[name]] = _SPECS[name].parse(text, where)
            else:
                for warning in config._set_other(name, text, where):
                    _log.warning("%s", warning)
        config._assign(values)
        for warning in config._order_warnings():
            _log.warning("%s: %s", source, warning)
        return config

    def _order_warnings(self) -> list[str]:
        """Warnings about the three levels of disk usage if they are not in ascending order."""
        names = ("diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio")
        levels = (
            self.store.disk_max_used_space_ratio,
            self.store.disk_space_clean_forcibly_ratio,
            self.store.disk_space_warning_level_ratio,
        )
        return [
            f"{names[at]} {levels[at]} is above {names[at + 1]} {levels[at + 1]}; it should not be."
            for at in range(2)
            if levels[at] > levels[at + 1]
        ]

    def value_of(self, spec: Setting) -> Any:
        return getattr(self.store if spec in _OF_STORE else self, spec.attribute)

    def _assign(self, values: Mapping[Setting, Any]) -> None:
        of_store = {spec.attribute: value for spec, value in values.items() if spec in _OF_STORE}
        self.store = replace(self.store, **of_store)
        for spec, value in values.items():
            if spec not in _OF_STORE:
                setattr(self, spec.attribute, value)

    def _set_other(self, name: str, text: str, where: str) -> list[str]:
        """Retain a setting that this broker does not have; returns warnings."""
        check_refused(name, text, where)
        if name.startswith("tls."):  # unknown ones are an error, not a warning
            parse_setting(name, text, where)
            self.tls[name] = text
            return []
        self.others[name] = text
        if is_without_effect(name) or name in PROXY_SETTINGS:
            return []
        near = nearest_setting(name)
        return [f"{where}: unknown setting '{name}' is ignored." + (f" Did you mean '{near}'?" if near else "")]

    def parse_update(self, properties_text: str) -> SettingsUpdate:
        """Parse an update at run time (code 25); ConfigError if one of its settings is invalid or not dynamic."""
        check_length(properties_text)
        update = SettingsUpdate()
        for name, text, _ in parse_properties(properties_text, "update"):
            spec = _SPECS.get(name)
            if name.startswith("tls."):
                raise fixed(name)
            if has_variable(text):
                raise ConfigError(
                    f"{name} has a variable, ${{…}}: variables are expanded only when the broker starts.",
                    remedy="Give the value itself, or edit broker.conf and restart the broker.",
                )
            if spec is None:
                check_refused(name, text, "update")
                update.others[name] = text
                continue
            value = spec.parse(text, "update")
            if spec.dynamic:
                update.values[spec] = value
            elif value != self.value_of(spec):
                raise fixed(name)
        update.known_others = {name: text for name, text in update.others.items() if name in KNOWN_UNUSED}
        check_unknown(self.others, update.others)
        return update

    def apply(self, update: SettingsUpdate) -> list[str]:
        """Apply a parsed update; returns warnings."""
        warnings = [
            warning for name, text in update.others.items() for warning in self._set_other(name, text, "update")
        ]
        before = self._order_warnings()
        self._assign(update.values)
        return warnings + [warning for warning in self._order_warnings() if warning not in before]

    def update(self, properties_text: str) -> list[str]:
        """Apply properties text at run time; returns warnings. On a ConfigError nothing is changed."""
        return self.apply(self.parse_update(properties_text))

    @staticmethod
    def dynamic_names() -> list[str]:
        """The names of the settings that code 25 may set."""
        return sorted(spec.name for spec in _SPECS.values() if spec.dynamic)

    def to_properties(self) -> list[tuple[str, str]]:
        """All settings by Apache name, then the file's other settings."""
        own = [_shown(spec.name, text_of(self.value_of(spec))) for spec in _SPECS.values()]
        others = sorted(_shown(name, text) for name, text in self.others.items())
        return own + sorted(self.tls_settings().properties().items()) + others

    def to_text(self) -> str:
        return render_properties(self.to_properties())

    def tls_settings(self) -> TlsSettings:
        """TLS settings of this file, of the file it names and of the environment; ConfigError if they conflict."""
        return TlsSettings.of(self.tls)

    def server_tls(self) -> ServerTls | None:
        """TLS of this broker's ports; None if disabled. ConfigError as from ``tls_settings``."""
        return server_tls(self.tls_settings(), (self.broker_ip1, self.bind_address, "localhost", "127.0.0.1", "::1"))

    def client_tls(self) -> TlsSettings | None:
        """TLS settings for requests to name servers and to the master; None without TLS."""
        settings = self.tls_settings()
        return settings if settings.is_client else None

    def store_config(self) -> StoreConfig:
        """Settings of the store in this broker's role."""
        return replace(self.store, is_replica=self.is_slave)

    @property
    def proxy_settings(self) -> dict[str, str]:
        return {name: text for name, text in self.others.items() if name in PROXY_SETTINGS}

    @property
    def without_effect(self) -> list[str]:
        """Apache settings that are set but have no effect."""
        return sorted(name for name in self.others if is_without_effect(name))

    @property
    def durability(self) -> Durability:
        """What an acknowledgement of this broker guarantees."""
        return durability(self.store.flush_disk_type.value, self.broker_role.value)

    @property
    def is_slave(self) -> bool:
        return self.broker_role is BrokerRole.SLAVE

    def check_role(self) -> None:
        """Raise ConfigError if role and id do not match."""
        if self.is_slave == (self.broker_id == MASTER_ID):
            raise ConfigError(
                f"brokerRole={self.broker_role.value} does not match brokerId={self.broker_id}.",
                remedy="Set brokerId to 0 for a master, above 0 for a slave.",
            )

    def check_access(self) -> None:
        """Raise ConfigError for settings of access control that do not fit together."""
        check_access(self.acl_enable, self.authentication_enabled, self.authorization_enabled)

    @property
    def is_guarded(self) -> bool:
        """Whether requests are checked, by either kind of access control."""
        return self.acl_enable or self.authentication_enabled

    @property
    def timer_precision(self) -> int:
        """``timerPrecisionMs`` rounded down to 1000, 500, 200 or 100, and at least 100, as in Apache's broker."""
        return next((step for step in (1_000, 500, 200) if step <= self.timer_precision_ms), 100)

    @property
    def acl_path(self) -> Path:
        """Apache's ``conf/plain_acl.yml``: ``aclFile``, else beside ``broker.conf``, else in the store's ``config``."""
        beside = self.source.absolute().parent if self.source is not None else self.store.store_path / "config"
        return beside / Path(self.acl_file or "plain_acl.yml").expanduser()

    @property
    def users_path(self) -> Path:
        """The file of users and policies: in ``authConfigPath``, else in ``config/auth`` of the store."""
        given = Path(self.auth_config_path).expanduser() if self.auth_config_path else None
        return (given or self.store.store_path / "config" / "auth") / "users.json"

    @property
    def own_credentials(self) -> Credentials | None:
        """Credentials that sign the broker's own requests to name servers and to its master."""
        return inner_credentials(self.inner_client_authentication_credentials)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses in ``namesrvAddr``."""
        return parse_name_servers(self.namesrv_addr).addresses if self.namesrv_addr else ()


def shown_text(properties_text: str) -> str:
    """Properties text on one line, with possible secrets hidden. ConfigError for invalid text."""
    entries = [_shown(name, text) for name, text, _ in parse_properties(properties_text, "update")]
    return " ".join(f"{name}={text}" for name, text in entries)


def _shown(name: str, text: str) -> tuple[str, str]:
    """A setting for display: secrets and possibly misspelt secrets are hidden."""
    spec = _SPECS.get(name) or _SPECS.get(nearest_setting(name) or "")
    is_secret = (spec is not None and spec.secret) or (name not in _SPECS and may_be_secret(name, text))
    return name, HIDDEN if is_secret and text else text


@lru_cache(maxsize=256)  # a search takes a millisecond, and code 26 searches for all unknown settings each time
def nearest_setting(name: str) -> str | None:
    """The known setting most similar to a misspelt one."""
    lowered = {known.lower(): known for known in (*_SPECS, *KNOWN_UNUSED)}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.7)
    return lowered[close[0]] if close else None


_OF_STORE = frozenset(settings_of(StoreConfig).values())
_SPECS = settings_of(BrokerConfig) | settings_of(StoreConfig)
