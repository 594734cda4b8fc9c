"""The proxy's settings, with the property names of Apache's proxy and validation.

A file is Java properties text (``grpcServerPort=8081``) or JSON as in Apache's ``rmq-proxy.json``. It can contain:

* settings of this proxy (the fields of :class:`ProxyConfig`) and of TLS (``tls.…``): errors name file and line;
* other settings of Apache's proxy (``KNOWN_UNUSED``): accepted without effect;
* anything else: ignored with a warning that suggests the nearest known setting.

Settings that Apache's proxy does not have are marked with *Own*. ``make tables`` writes all settings into
``docs/reference/settings.md``, to which links are relative.
``innerClientAuthenticationCredentials`` is the account that signs the proxy's requests to brokers; it is not in
``repr``.

Immutable. Corresponds to org.apache.rocketmq.proxy.config.ProxyConfig.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from spark_rocket.errors import ConfigError
from spark_rocket.protocol.auth import Credentials, inner_credentials
from spark_rocket.protocol.auth_settings import (
    AUTHENTICATION_PROVIDER,
    AUTHENTICATION_STRATEGIES,
    AUTHORIZATION_PROVIDER,
    AUTHORIZATION_STRATEGIES,
    PROXY_AUTHENTICATION,
    PROXY_AUTHORIZATION,
    codes,
    one_class,
)
from spark_rocket.protocol.java_properties import expand_variables, parse_properties, render_properties
from spark_rocket.protocol.setting import read_settings, setting, settings_of, text_of
from spark_rocket.protocol.wire import json as json_codec
from spark_rocket.remoting.address import own_ip
from spark_rocket.remoting.http.monitor import MetricsExporterType
from spark_rocket.remoting.name_server_list import parse_name_servers
from spark_rocket.remoting.tls.settings import TlsSettings, parse_setting

_log = logging.getLogger(__name__)

DEFAULT_PORT = 8081
_MIB = 1 << 20
_WILDCARDS = ("0.0.0.0", "::", "")


def _check_name_servers(text: str) -> None:
    if text:
        parse_name_servers(text)


@dataclass(frozen=True, kw_only=True)
class ProxyConfig:
    """All settings of the proxy. Times are in milliseconds, sizes in bytes."""

    name_server: str = setting(
        "",
        "the name servers, separated by `;`, or the URL of an address server (`http://host:8080/rocketmq/nsaddr`),"
        " which is requested again every two minutes. Option `-n`. Default: `NAMESRV_ADDR`, else 127.0.0.1:9876",
        name="namesrvAddr",
        check=_check_name_servers,
    )
    host: str = setting(
        "127.0.0.1", "the address to listen on; `0.0.0.0` for all addresses. Option `--host`. *Own*", name="bindAddress"
    )
    port: int = setting(
        DEFAULT_PORT,
        "the port for clients; 0 for a free port. Option `--grpc-port`",
        name="grpcServerPort",
        low=0,
        high=65535,
    )
    local_serve_addr: str = setting(
        "",
        "the host in routes for clients that do not send the host that they used. Default: `bindAddress`, or with "
        "`0.0.0.0` the machine's own address",
    )

    tls_cert_path: str = setting("", "the certificate of the port, PEM. Default: `tls.server.certPath`")
    tls_key_path: str = setting("", "the key of this certificate")
    tls_key_password: str = setting("", "the password of this key", secret=True)
    tls_test_mode_enable: bool = setting(True, "generate a certificate if there is none")

    acl_enable: bool = setting(
        False,
        "check signatures and permissions ([security](../guides/security.md#the-grpc-proxy)). Option `--acl-file`."
        " *Own*",
    )
    acl_file: str = setting(
        "",
        "the file with the accounts, relative to the directory of the configuration file. Default: "
        "`plain_acl.yml`. Option `--acl-file`. *Own*",
    )
    acl_max_clock_skew: int = setting(
        86_400_000,
        "milliseconds by which the time of a signature can differ from the proxy's (a day); 0: any. *Own*",
        low=0,
    )
    authentication_enabled: bool = setting(
        False,
        "require signatures of the brokers' users ([ACL 2.0](../guides/accounts.md#users-with-acl-20)); not "
        "together with `aclEnable`",
    )
    authentication_provider: str = setting(
        "",
        "Apache's `DefaultAuthenticationProvider`, with its package, or nothing; other classes are refused",
        check=one_class("authenticationProvider", AUTHENTICATION_PROVIDER),
    )
    authentication_metadata_provider: str = setting(
        "",
        "Apache's `ProxyAuthenticationMetadataProvider` or `LocalAuthenticationMetadataProvider`, or nothing. The "
        "brokers are asked for users with both",
        check=PROXY_AUTHENTICATION,
    )
    authentication_strategy: str = setting(
        "",
        "Apache's `StatelessAuthenticationStrategy` or `StatefulAuthenticationStrategy`. Signatures of all calls "
        "are verified with both",
        check=one_class("authenticationStrategy", *AUTHENTICATION_STRATEGIES),
    )
    authentication_whitelist: str = setting(
        "",
        "messages that need no signature, separated by commas: `apache.rocketmq.v2.QueryRouteRequest`. With "
        "`authorizationEnabled` they must be in `authorizationWhitelist`, too",
        check=codes("authenticationWhitelist"),
    )
    authorization_enabled: bool = setting(False, "require policies, too. Without it, every user may do everything")
    authorization_provider: str = setting(
        "",
        "Apache's `DefaultAuthorizationProvider`, or nothing",
        check=one_class("authorizationProvider", AUTHORIZATION_PROVIDER),
    )
    authorization_metadata_provider: str = setting(
        "",
        "Apache's `ProxyAuthorizationMetadataProvider` or `LocalAuthorizationMetadataProvider`, or nothing",
        check=PROXY_AUTHORIZATION,
    )
    authorization_strategy: str = setting(
        "",
        "Apache's `StatelessAuthorizationStrategy` or `StatefulAuthorizationStrategy`. They do not differ here",
        check=one_class("authorizationStrategy", *AUTHORIZATION_STRATEGIES),
    )
    authorization_whitelist: str = setting("", "messages that need no policy", check=codes("authorizationWhitelist"))
    user_cache_refresh_seconds: int = setting(
        20,
        "seconds until a cached user is requested again. What was granted is effective at once; what was taken "
        "away, after this time",
        low=1,
    )
    acl_cache_refresh_seconds: int = setting(
        20, "the same for policies. Users and policies are requested together, after the shorter of both times", low=1
    )
    inner_client_authentication_credentials: str = setting(
        "",
        'the proxy\'s own account, which signs its requests to brokers: `{"accessKey": "…", "secretKey": "…"}`. '
        "Options `--access-key`, `--secret-key`, `--credentials`",
        secret=True,
        check=inner_credentials,
    )

    proxy_cluster_name: str = setting("DefaultCluster", "the label `cluster` of metrics")
    proxy_name: str = setting("", "the label `node_id` of metrics. Default: the address")
    metrics_exporter_type: MetricsExporterType = setting(
        MetricsExporterType.DISABLE,
        "`PROM` opens the port for [metrics and health](metrics.md). `OTLP_GRPC` and `LOG` are not supported: a "
        "warning. Options `--metrics-port`, `--no-metrics`. `rocket up`: as its broker",
    )
    metrics_prom_exporter_host: str = setting(
        "", "the address of the metrics port. Default: 127.0.0.1. Option `--metrics-host`"
    )
    metrics_prom_exporter_port: int = setting(
        5557,
        "the metrics port; 0 for a free port. Option `--metrics-port`. `rocket up`: the one after its broker's (5558)",
        low=0,
        high=65535,
    )

    max_message_size: int = setting(
        4 * _MIB, "the limit of a body in bytes (4 MiB); use the brokers' value", low=1, high=15 * _MIB
    )
    max_connections: int = setting(
        10_000, "connections; fewer if the [limit of open files](grpc.md#limits-and-timeouts) is lower. *Own*", low=1
    )
    grpc_max_concurrent_calls_per_connection: int = setting(
        1_024, "concurrent calls of a connection", low=1, high=2**31 - 1
    )
    grpc_client_idle_time_mills: int = setting(
        120_000, "milliseconds without calls until a connection is closed", low=1_000
    )
    max_connection_age_millis: int = setting(0, "milliseconds until a connection is closed; 0: no limit. *Own*", low=0)
    max_unread_answer_bytes: int = setting(
        64 * _MIB,
        "bytes of received messages that clients have not read, with their copies, of all clients (64 MiB). *Own*",
        low=_MIB,
    )

    #: The TLS settings (``tls.…``), of the port and of the connections to brokers and name servers.
    tls: Mapping[str, str] = field(default_factory=dict, repr=False)  # with passwords
    #: The file of the settings, if any.
    source: Path | None = None
    #: Share the port with other processes (``rocket proxy --workers``).
    reuse_port: bool = False

    # --- where they come from -----------------------------------------------------------------------------------------

    @classmethod
    def from_file(cls, path: Path | str, **overrides: Any) -> ProxyConfig:
        """Read a file. ConfigError names file, line and setting. ``overrides`` are fields and take precedence."""
        path = Path(path)
        return cls._from_entries(
            _entries(read_settings(path, "proxy"), str(path)), str(path), {"source": path, **overrides}
        )

    @classmethod
    def from_text(cls, text: str, source: str, **overrides: Any) -> ProxyConfig:
        """Parse properties text, like :meth:`from_file`."""
        return cls._from_entries(parse_properties(text, source), source, overrides)

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, object], source: str = "the settings given", **overrides: Any
    ) -> ProxyConfig:
        """Read settings by their Apache names; Python values are converted to properties text."""
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
            elif name in REFUSED:
                _check_refused(name, text, where)
            elif name not in KNOWN_UNUSED:
                near = get_close_matches(name, [*_SPECS, *KNOWN_UNUSED], 1)
                suggestion = f" Did you mean '{near[0]}'?" if near else ""
                _log.warning("%s: ignored unknown setting '%s'.%s", where, name, suggestion)
        return cls(**{**values, **overrides, "tls": tls | overrides.get("tls", {})})

    def __post_init__(self) -> None:
        """ConfigError for incompatible settings and malformed addresses."""
        if bool(self.tls_cert_path) != bool(self.tls_key_path):
            given, missing = ("tlsCertPath", "tlsKeyPath") if self.tls_cert_path else ("tlsKeyPath", "tlsCertPath")
            raise ConfigError(
                f"{given} is set, but {missing} is not.",
                remedy="Set both, or neither to use tls.server.certPath or a generated certificate.",
            )
        _check_name_servers(self.name_server)

    # --- what they come to --------------------------------------------------------------------------------------------

    @property
    def credentials(self) -> Credentials | None:
        """The proxy's own account, which signs its requests to brokers."""
        return inner_credentials(self.inner_client_authentication_credentials)

    @property
    def is_guarded(self) -> bool:
        """Whether calls are checked, by either kind of access control."""
        return self.acl_enable or self.authentication_enabled

    @property
    def user_refresh_seconds(self) -> int:
        """How long users are cached. Their policies are cached with them."""
        return min(self.user_cache_refresh_seconds, self.acl_cache_refresh_seconds)

    @property
    def acl_path(self) -> Path:
        """``aclFile``, else ``plain_acl.yml`` in the configuration file's directory, else in the working directory."""
        directory = self.source.absolute().parent if self.source is not None else Path.cwd()
        return directory / Path(self.acl_file or "plain_acl.yml").expanduser()

    @property
    def called_hosts(self) -> tuple[str, ...]:
        """The hosts of a generated certificate. The first is for clients that do not send the called host."""
        own = self.local_serve_addr or (own_ip() if self.host in _WILDCARDS else self.host)
        return tuple(dict.fromkeys((own, self.host, "localhost", "127.0.0.1", "::1")))

    def server_tls_settings(self) -> TlsSettings:
        """Return the TLS settings of the port: ``tlsCertPath``, else ``tls.server.certPath``, else generated.

        ConfigError if they conflict.
        """
        settings = self._tls_settings()
        if not settings.server_cert_path:
            return replace(settings, test_mode=settings.test_mode or self.tls_test_mode_enable)
        return settings

    def client_tls(self) -> TlsSettings | None:
        """Return the TLS settings for brokers and name servers; None without TLS."""
        settings = self._tls_settings()
        return settings if settings.is_client else None

    def _tls_settings(self) -> TlsSettings:
        given = dict(self.tls)
        if self.tls_cert_path:
            own = {"certPath": self.tls_cert_path, "keyPath": self.tls_key_path, "keyPassword": self.tls_key_password}
            given |= {f"tls.server.{name}": text for name, text in own.items()}
        return TlsSettings.of(given, source=str(self.source or ""))

    def to_properties(self) -> list[tuple[str, str]]:
        """Return all settings by their Apache names for the log, with secrets hidden."""
        own = []
        for spec in _SPECS.values():
            value = text_of(getattr(self, spec.attribute))
            own.append((spec.name, "******" if spec.secret and value else value))
        return own + sorted(self._tls_settings().properties().items())

    def to_text(self) -> str:
        """Return properties text with all settings and secrets, for another process with the same settings."""
        own = {spec.name: text_of(getattr(self, spec.attribute)) for spec in _SPECS.values()}
        return render_properties(({**own, "aclFile": str(self.acl_path)} | dict(self.tls)).items())


_SPECS = settings_of(ProxyConfig)

#: Settings with only one supported value, and the remedy for others.
REFUSED = {
    "enableACL": (
        "FALSE",
        "Remove it. Set aclEnable=true and aclFile for plain_acl.yml, or authenticationEnabled=true for users.",
    ),
    "proxyMode": (
        "CLUSTER",
        "Set proxyMode=CLUSTER: the proxy runs separately from brokers.",
    ),
    "proxyProtocolTrustedAddresses": (
        "",
        "Remove it: PROXY protocol headers are no longer read. Behind a load balancer, clients have its address.",
    ),
    "maxConnectionsPerAddress": ("0", "Remove it, and limit connections by address in a load balancer."),
}


def _check_refused(name: str, text: str, where: str) -> None:
    supported, remedy = REFUSED[name]
    if text.strip().upper() != supported:
        raise ConfigError(f"{where}: {name}={text} is not supported.", remedy=remedy)


def _entries(text: str, source: str) -> list[tuple[str, str, int]]:
    """Parse properties text or a JSON object."""
    if not text.lstrip().startswith("{"):
        return parse_properties(text, source)
    try:
        values = json_codec.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source}: invalid JSON: {error}.", remedy="Correct it, or use name=value lines.") from None
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
    metricsLabel metricsInDelta initAuthenticationUser authConfigPath migrateAuthFromV1Enabled userCacheExpiredSeconds
    userCacheMaxNum aclCacheExpiredSeconds aclCacheMaxNum statefulAuthenticationCacheMaxNum
    statefulAuthenticationCacheExpiredSecond statefulAuthorizationCacheMaxNum statefulAuthorizationCacheExpiredSecond
    channelExpiredTimeout enableRemotingLocalProxyGrpc
    localProxyConnectTimeoutMs remotingAccessAddr remotingListenPort sendLatencyEnable startDetectorEnable detectTimeout
    detectInterval enableBatchAck
"""
#: Settings of Apache's ProxyConfig for threads, caches and features that this proxy does not have or cannot configure.
KNOWN_UNUSED = frozenset(_UNUSED.split())
