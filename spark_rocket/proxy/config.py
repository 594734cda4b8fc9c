"""The proxy's settings: the property names of Apache's proxy where it has them, checked values, one source for each.

A file is Java properties text (``grpcServerPort=8081``) or JSON as in Apache's ``rmq-proxy.json``. It may hold:

* settings of this proxy (the fields of :class:`ProxyConfig`) and of TLS (``tls.…``): a ConfigError names file and line;
* other settings of Apache's proxy (``KNOWN_UNUSED``): they change nothing;
* anything else: ignored with a warning that names the nearest known setting.

Not Apache's: ``bindAddress``, ``aclEnable``, ``aclFile``, ``aclMaxClockSkew`` and the limits of connections, which are
named as the broker's, and ``proxyProtocolTrustedAddresses``. ``innerClientAuthenticationCredentials`` is the account
that the proxy signs its own requests to brokers with; it is in no ``repr``.

Immutable. Corresponds to org.apache.rocketmq.proxy.config.ProxyConfig.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from spark_rocket.client.core.config import address_server_of, parse_name_servers
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.auth import Credentials, inner_credentials
from spark_rocket.protocol.java_properties import expand_variables, parse_properties, render_properties
from spark_rocket.protocol.setting import read_settings, setting, settings_of, text_of
from spark_rocket.protocol.wire import json as json_codec
from spark_rocket.remoting.http.monitor import MetricsExporterType
from spark_rocket.remoting.server.sockets import own_ip
from spark_rocket.remoting.tls.settings import TlsSettings, parse_setting

_log = logging.getLogger(__name__)

DEFAULT_PORT = 8081
_MIB = 1 << 20
_WILDCARDS = ("0.0.0.0", "::", "")


def _trusted(text: str) -> tuple[str, ...]:
    """Addresses and networks (``10.0.0.0/8``) with commas between. ConfigError for anything else."""
    parts = [part for part in (part.strip() for part in text.split(",")) if part]
    for part in parts:
        try:
            ip_network(part)
        except ValueError as error:
            raise ConfigError(
                f"proxyProtocolTrustedAddresses: '{part}' is not an address or a network: {error}.",
                remedy="Write addresses and networks with commas between, for example 10.0.0.5,192.168.0.0/16.",
            ) from None
    return tuple(parts)


@dataclass(frozen=True, kw_only=True)
class ProxyConfig:
    """Every setting that the proxy reads. Times are milliseconds, sizes bytes."""

    name_server: str = setting("", name="namesrvAddr")
    """``host:port``, several with ``;`` between, or the URL of an address server."""
    host: str = setting("127.0.0.1", name="bindAddress")
    port: int = setting(DEFAULT_PORT, name="grpcServerPort", low=0, high=65535)
    """0 takes a free one."""
    local_serve_addr: str = setting("")
    """The host for clients that do not say what they called; empty: ``host``, or this machine's own address."""

    tls_cert_path: str = setting("")
    tls_key_path: str = setting("")
    tls_key_password: str = setting("", secret=True)
    tls_test_mode_enable: bool = setting(True)

    acl_enable: bool = setting(False)
    acl_file: str = setting("")
    acl_max_clock_skew: int = setting(86_400_000, low=0)
    inner_client_authentication_credentials: str = setting("", secret=True, check=inner_credentials)
    proxy_protocol_trusted_addresses: str = setting("", check=_trusted)

    proxy_cluster_name: str = setting("DefaultCluster")
    proxy_name: str = setting("")
    """What metrics call this proxy; empty: its address."""
    metrics_exporter_type: MetricsExporterType = setting(MetricsExporterType.DISABLE)  # noqa: RUF009 - a field
    metrics_prom_exporter_host: str = setting("")
    metrics_prom_exporter_port: int = setting(5557, low=0, high=65535)

    max_message_size: int = setting(4 * _MIB, low=1, high=15 * _MIB)
    max_connections: int = setting(10_000, low=1)
    max_connections_per_address: int = setting(0, low=0)
    """0: as many as there may be in total."""
    grpc_max_concurrent_calls_per_connection: int = setting(1_024, low=1, high=2**31 - 1)
    grpc_client_idle_time_mills: int = setting(120_000, low=1_000)
    max_connection_age_millis: int = setting(0, low=0)
    """0: no limit."""
    max_unread_answer_bytes: int = setting(64 * _MIB, low=_MIB)
    """Over all connections together."""

    #: The settings of TLS (``tls.…``): what this proxy serves with and how it calls brokers and name servers.
    tls: Mapping[str, str] = field(default_factory=dict, repr=False)  # with passwords
    #: Where the settings were read from, if that was a file.
    source: Path | None = None
    #: Listen beside other processes on the same port, which share the connections (``rocket proxy --workers``).
    reuse_port: bool = False

    # --- where they come from -----------------------------------------------------------------------------------------

    @classmethod
    def from_file(cls, path: Path | str, **overrides: Any) -> ProxyConfig:
        """Read a file; ConfigError names it, the line and the setting. ``overrides`` are fields and take precedence."""
        path = Path(path)
        return cls._from_entries(
            _entries(read_settings(path, "proxy"), str(path)), str(path), {"source": path, **overrides}
        )

    @classmethod
    def from_text(cls, text: str, source: str, **overrides: Any) -> ProxyConfig:
        """Read properties text that is in memory, as :meth:`from_file`."""
        return cls._from_entries(parse_properties(text, source), source, overrides)

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, object], source: str = "the settings given", **overrides: Any
    ) -> ProxyConfig:
        """Settings by their Apache names; Python values are taken as their properties text."""
        entries = [(name, text_of(value), 0) for name, value in properties.items()]
        return cls._from_entries(entries, source, overrides)

    @classmethod
    def _from_entries(
        cls, entries: Iterable[tuple[str, str, int]], source: str, overrides: Mapping[str, Any]
    ) -> ProxyConfig:
        values: dict[str, Any] = {}
        tls: dict[str, str] = {}
        for name, raw, line in entries:
            where = f"{source}, line {line}" if line else source
            text = expand_variables(raw, os.environ)
            spec = _SPECS.get(name)
            if spec is not None:
                values[spec.attribute] = spec.parse(text, where)
            elif name.startswith("tls."):  # a misspelt one must not leave a port open
                parse_setting(name, text, where)
                tls[name] = text
            elif name in _MODES:
                _check_mode(name, text, where)
            elif name not in KNOWN_UNUSED:
                near = get_close_matches(name, [*_SPECS, *KNOWN_UNUSED], 1)
                meant = f" Did you mean '{near[0]}'?" if near else ""
                _log.warning("%s: unknown setting '%s' is ignored.%s", where, name, meant)
        return cls(**{**values, **overrides, "tls": tls | overrides.get("tls", {})})

    def __post_init__(self) -> None:
        """ConfigError for settings that do not go together and for malformed addresses."""
        if bool(self.tls_cert_path) != bool(self.tls_key_path):
            there, missing = ("tlsCertPath", "tlsKeyPath") if self.tls_cert_path else ("tlsKeyPath", "tlsCertPath")
            raise ConfigError(
                f"{there} is set, and {missing} is not.",
                remedy="Set both, or neither for the certificate of tls.server.certPath or a generated one.",
            )
        if self.name_server and not address_server_of(self.name_server):
            parse_name_servers(self.name_server)

    # --- what they come to --------------------------------------------------------------------------------------------

    @property
    def credentials(self) -> Credentials | None:
        """The proxy's own account, which signs what it sends to brokers."""
        return inner_credentials(self.inner_client_authentication_credentials)

    @property
    def acl_path(self) -> Path:
        """``aclFile``, else ``plain_acl.yml`` beside the configuration file, else in the working directory."""
        beside = self.source.absolute().parent if self.source is not None else Path.cwd()
        return beside / Path(self.acl_file or "plain_acl.yml").expanduser()

    @property
    def trusted_addresses(self) -> tuple[str, ...]:
        """Peers whose PROXY protocol header is used."""
        return _trusted(self.proxy_protocol_trusted_addresses)

    @property
    def called_hosts(self) -> tuple[str, ...]:
        """What a generated certificate is for; the first is told to clients that do not say what they called."""
        own = self.local_serve_addr or (own_ip() if self.host in _WILDCARDS else self.host)
        return tuple(dict.fromkeys((own, self.host, "localhost", "127.0.0.1", "::1")))

    def server_tls_settings(self) -> TlsSettings:
        """What the port serves with: ``tlsCertPath`` before ``tls.server.certPath``; a generated one for want of both.

        ConfigError when they clash.
        """
        settings = self._tls_settings()
        if not settings.server_cert_path:
            return replace(settings, test_mode=settings.test_mode or self.tls_test_mode_enable)
        return settings

    def client_tls(self) -> TlsSettings | None:
        """What brokers and name servers are called with; None: without TLS."""
        settings = self._tls_settings()
        return settings if settings.is_client else None

    def _tls_settings(self) -> TlsSettings:
        given = dict(self.tls)
        if self.tls_cert_path:
            own = {"certPath": self.tls_cert_path, "keyPath": self.tls_key_path, "keyPassword": self.tls_key_password}
            given |= {f"tls.server.{name}": text for name, text in own.items()}
        return TlsSettings.of(given, source=str(self.source or ""))

    def to_properties(self) -> list[tuple[str, str]]:
        """Every setting by its Apache name, secrets hidden: for the log."""
        own = []
        for spec in _SPECS.values():
            value = text_of(getattr(self, spec.attribute))
            own.append((spec.name, "******" if spec.secret and value else value))
        return own + sorted(self._tls_settings().properties().items())

    def to_text(self) -> str:
        """Properties text with all settings and secrets: for another process that is to be the same proxy."""
        own = {spec.name: text_of(getattr(self, spec.attribute)) for spec in _SPECS.values()}
        return render_properties(({**own, "aclFile": str(self.acl_path)} | dict(self.tls)).items())


_SPECS = settings_of(ProxyConfig)

#: Settings whose only served value this is.
_MODES = {"proxyMode": ("CLUSTER", "the proxy runs apart from brokers and serves a whole cluster")}


def _check_mode(name: str, text: str, where: str) -> None:
    served, why = _MODES[name]
    if text.strip().upper() != served:
        raise ConfigError(f"{where}: {name}={text} is not supported: {why}.", remedy=f"Set {name}={served}.")


def _entries(text: str, source: str) -> list[tuple[str, str, int]]:
    """Of properties text, or of one JSON object."""
    if not text.lstrip().startswith("{"):
        return parse_properties(text, source)
    try:
        values = json_codec.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not JSON: {error}.", remedy="Correct it, or write name=value lines.") from None
    return [(name, text_of(value), 0) for name, value in values.items()]


_UNUSED = """
    rocketMQClusterName heartbeatSyncerTopicClusterName heartbeatSyncerThreadPoolNums
    heartbeatSyncerThreadPoolQueueCapacity heartbeatSyncerTopicName enablePrintJstack printJstackInMillis
    printThreadPoolStatusInMillis namesrvDomain namesrvDomainSubgroup tlsCertWatchIntervalMs grpcShutdownTimeSeconds
    grpcBossLoopNum grpcWorkerLoopNum enableGrpcEpoll grpcThreadPoolNums grpcThreadPoolQueueCapacity brokerConfigPath
    grpcMaxInboundMessageSize enableMessageBodyEmptyCheck maxUserPropertySize userPropertyMaxNum maxMessageGroupSize
    defaultInvisibleTimeMills minInvisibleTimeMillsForRecv maxInvisibleTimeMills maxDelayTimeMills
    maxTransactionRecoverySecond enableTopicMessageTypeCheck grpcClientProducerMaxAttempts
    grpcClientProducerBackoffInitialMillis grpcClientProducerBackoffMaxMillis grpcClientProducerBackoffMultiplier
    grpcClientConsumerMinLongPollingTimeoutMillis grpcClientConsumerMaxLongPollingTimeoutMillis
    grpcClientConsumerLongPollingBatchSize channelExpiredInSeconds contextExpiredInSeconds rocketmqMQClientNum
    grpcProxyRelayRequestTimeoutInSeconds grpcProducerThreadPoolNums grpcProducerThreadQueueCapacity
    grpcConsumerThreadPoolNums grpcConsumerThreadQueueCapacity grpcRouteThreadPoolNums grpcRouteThreadQueueCapacity
    grpcClientManagerThreadPoolNums grpcClientManagerThreadQueueCapacity grpcTransactionThreadPoolNums
    grpcTransactionThreadQueueCapacity producerProcessorThreadPoolNums producerProcessorThreadPoolQueueCapacity
    consumerProcessorThreadPoolNums consumerProcessorThreadPoolQueueCapacity useEndpointPortFromRequest
    topicRouteServiceCacheExpiredSeconds topicRouteServiceCacheRefreshSeconds topicRouteServiceCacheMaxNum
    topicRouteServiceThreadPoolNums topicRouteServiceThreadPoolQueueCapacity topicConfigCacheExpiredSeconds
    topicConfigCacheRefreshSeconds topicConfigCacheMaxNum subscriptionGroupConfigCacheExpiredSeconds
    subscriptionGroupConfigCacheRefreshSeconds subscriptionGroupConfigCacheMaxNum metadataThreadPoolNums
    metadataThreadPoolQueueCapacity transactionHeartbeatThreadPoolNums transactionHeartbeatThreadPoolQueueCapacity
    transactionHeartbeatPeriodSecond transactionHeartbeatBatchNum transactionDataExpireScanPeriodMillis
    transactionDataMaxWaitClearMillis transactionDataExpireMillis transactionDataMaxNum longPollingReserveTimeInMillis
    invisibleTimeMillisWhenClear enableProxyAutoRenew maxRenewRetryTimes renewThreadPoolNums renewMaxThreadPoolNums
    renewThreadPoolQueueCapacity lockTimeoutMsInHandleGroup renewAheadTimeMillis renewMaxTimeMillis
    renewSchedulePeriodMillis returnHandleGroupThreadPoolNums enableAclRpcHookForClusterMode useDelayLevel
    messageDelayLevel metricCollectorMode metricCollectorAddress regionId traceOn
    metricsGrpcExporterTarget metricsGrpcExporterHeader metricGrpcExporterTimeOutInMills
    metricGrpcExporterIntervalInMills metricLoggingExporterIntervalInMills
    metricsLabel metricsInDelta channelExpiredTimeout enableRemotingLocalProxyGrpc
    localProxyConnectTimeoutMs remotingAccessAddr remotingListenPort sendLatencyEnable startDetectorEnable detectTimeout
    detectInterval enableBatchAck
"""
#: Of Apache's ProxyConfig: threads, caches and features that this proxy does not have or does not let you set.
KNOWN_UNUSED = frozenset(_UNUSED.split())
