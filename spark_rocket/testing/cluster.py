"""A name server and a broker for tests, on free ports and with a temporary directory.

By default they run in one separate process, as started by ``rocket up``, so that they do not share the test's
interpreter; ``in_process=True`` runs them on a thread instead. The process reports on a pipe when it is ready, so there
is no polling. If the test's process dies, the end of another pipe stops the servers.

``LocalCluster(brokers=2, slaves=True, name_servers=2)`` runs each server in its own process; ``brokers``, ``slaves``
and ``name_servers`` are its members (members.py), which can be killed, stopped, restarted, paused and partitioned.

Thread-safety: one thread at a time. After ``kill_broker`` the data directory is as the kill left it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from spark_rocket.broker.cluster_layout import UP_DEFAULTS
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.known_settings import PROXY_SETTINGS
from spark_rocket.client import Admin
from spark_rocket.client.core.client_config import find_credentials
from spark_rocket.errors import BrokerError, RemotingError, StateError
from spark_rocket.model import AUTO_CREATE_TOPIC_KEY
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.java_properties import render_properties
from spark_rocket.protocol.setting import text_of
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.protocol.wire.bodies.route import TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import CreateTopicRequestHeader, DeleteTopicRequestHeader
from spark_rocket.protocol.wire.headers.routes import GetRouteInfoRequestHeader
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.name_server_list import parse_name_servers
from spark_rocket.remoting.tls.settings import TlsMode, TlsSettings
from spark_rocket.testing.accounts import AclKind
from spark_rocket.testing.member_set import MemberSet
from spark_rocket.testing.members import BrokerMember, NameServerMember
from spark_rocket.testing.processes import ServerProcess
from spark_rocket.testing.threads import ProxyThread, ServerThread

if TYPE_CHECKING:
    from spark_rocket.proxy.proxy_config import ProxyConfig

#: Defaults: no fixed ports, and messages are accepted and retained even if the disk is nearly full.
_OWN_SETTINGS: dict[str, object] = {
    "vipChannelEnable": False,
    "metricsExporterType": "DISABLE",
    "metricsPromExporterPort": 0,
    "diskMaxUsedSpaceRatio": 100,
    "diskSpaceCleanForciblyRatio": 100,
    "diskSpaceWarningLevelRatio": 100,
}
_ROUTE_SECONDS = 10.0
_PAUSE_SECONDS = 0.01
#: Settings shared by brokers and the gRPC proxy.
_SHARED = (
    "aclEnable",
    "aclFile",
    "authenticationEnabled",
    "authenticationWhitelist",
    "authorizationEnabled",
    "authorizationWhitelist",
    "innerClientAuthenticationCredentials",
    "maxMessageSize",
)


class LocalCluster:
    """``with LocalCluster() as cluster: … cluster.name_server …``

    ``config`` has broker settings under Apache's names (``{"flushDiskType": "SYNC_FLUSH"}``). With ``data_dir``,
    messages persist: the next cluster with the same directory has them. With ``brokers``, each server has its own
    process, ``config`` applies to all brokers, and properties of "the broker" are those of the first one.

    With ``access_key`` and ``secret_key``, the brokers require signed requests. This account is an administrator, and
    signs the cluster's own requests. ``set_account`` creates others. ``acl`` is the kind of access control: ``"1.0"``
    has accounts in ``acl_file``, ``"2.0"`` has users with policies.

    ``tls``: the mode of all ports, ``"permissive"`` (same as ``True``) or ``"enforcing"``, with generated certificates.
    The servers call each other with TLS; pass ``tls=cluster.tls`` to clients.
    """

    def __init__(
        self,
        *,
        data_dir: Path | str | None = None,
        config: Mapping[str, object] | None = None,
        in_process: bool = False,
        brokers: int | None = None,
        slaves: bool = False,
        name_servers: int = 1,
        start_timeout: float = 60.0,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
        acl: str = "1.0",
        tls: bool | str = False,
    ) -> None:
        self._credentials = find_credentials(access_key, secret_key, security_token, {})
        self._acl = AclKind.of(acl)
        self._temporary = data_dir is None
        self._given = None if data_dir is None else Path(data_dir)
        self._config: dict[str, object] = {**_OWN_SETTINGS, **(config or {})}
        self._tls_mode = "permissive" if tls is True else tls
        self._tls: TlsSettings | None = None
        self._in_process = in_process
        self._start_timeout = start_timeout
        self._many: dict[str, Any] | None = None
        if brokers is not None or slaves or name_servers != 1:
            if in_process:
                raise StateError("Several servers cannot run in this process.", remedy="Omit in_process.")
            self._many = {"brokers": brokers or 1, "slaves": slaves, "name_servers": name_servers}
        self._ports = (0, 0)
        self._proxy: ProxyThread | None = None
        self._grpc_port = 0
        self._server: _ServerProcess | ServerThread | _FirstMember | None = None
        self._client: RemotingClient | None = None
        self.data_dir = Path()

    def __repr__(self) -> str:
        return f"<LocalCluster {self.name_server if self._server is not None else 'not running'}>"

    # --- life ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the servers and wait until they are ready."""
        if self._server is not None:
            raise StateError("This cluster is already running.")
        self.data_dir = self._given or Path(tempfile.mkdtemp(prefix="rocket-"))
        self.data_dir.mkdir(parents=True, exist_ok=True)
        if self._credentials is not None:
            self._config = {**self._acl.settings(self._credentials, self.acl_file.absolute()), **self._config}
        if self._tls_mode and self._tls is None:
            self._make_certificates(str(self._tls_mode))
        self._start_servers()

    def stop(self) -> None:
        """Stop cleanly; a temporary data directory is removed."""
        if self._client is not None:
            self._client.close()
            self._client = None
        server, self._server = self._server, None
        proxy, self._proxy = self._proxy, None
        try:
            try:
                if proxy is not None:
                    proxy.stop()
            finally:
                if server is not None:
                    server.stop()
        finally:
            self._ports = (0, 0)
            self._grpc_port = 0
            if self._temporary:
                shutil.rmtree(self.data_dir, ignore_errors=True)

    def _make_certificates(self, mode: str) -> None:
        from spark_rocket.testing.certificates import HOSTS, CertificateAuthority, tls_of

        authority = CertificateAuthority(self.data_dir / "tls")
        pair = authority.issue("server", (*HOSTS, "127.0.0.2"))  # the address of members
        self._tls = replace(tls_of(authority, pair), mode=TlsMode(mode))
        self._config = {**self._tls.properties(), **self._config}

    def kill_broker(self) -> None:
        """Kill the servers' process with SIGKILL; its connections end as after a crash."""
        server = self._running()
        if isinstance(server, _FirstMember):
            self.brokers[0].kill()
            return
        if isinstance(server, ServerThread):
            raise StateError("A cluster inside this process cannot be killed.", remedy="Omit in_process.")
        server.kill()
        self._server = None

    def restart_broker(self) -> None:
        """Restart on the same data and ports, also after a kill."""
        if isinstance(self._server, _FirstMember):
            self.brokers[0].restart()
            return
        server, self._server = self._server, None
        if server is not None:
            server.stop()
        self._start_servers()

    def _start_servers(self) -> None:
        if self._many is not None:
            members = MemberSet(
                self.data_dir, {**UP_DEFAULTS, **self._config}, **self._many, timeout=self._start_timeout
            )
            members.start()
            self._server = _FirstMember(members)
            return
        kind = ServerThread if self._in_process else _ServerProcess
        config = {name: value for name, value in self._config.items() if name not in PROXY_SETTINGS}
        self._server = kind(self.data_dir, config, self._ports, self._start_timeout)
        self._ports = (_port(self.name_server), _port(self.broker_address))

    @property
    def acl_file(self) -> Path:
        """The brokers' ``plain_acl.yml``; they reload it within two seconds after a change."""
        return self.data_dir / "plain_acl.yml"

    def _running(self) -> _ServerProcess | ServerThread | _FirstMember:
        if self._server is None:
            raise StateError("This cluster is not running.", remedy="Use it inside a with block, or call start().")
        return self._server

    # --- members ------------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> list[BrokerMember]:
        """The masters."""
        return self._members().brokers

    @property
    def slaves(self) -> list[BrokerMember]:
        """The masters' slaves, in the order of the masters."""
        return self._members().slaves

    @property
    def name_servers(self) -> list[NameServerMember]:
        return self._members().name_servers

    def add_broker(self) -> BrokerMember:
        """Start one more master, with a slave if the others have one. ``create_topic`` also uses it from then on."""
        return self._members().add_broker()[0]

    def _members(self) -> MemberSet:
        server = self._running()
        if not isinstance(server, _FirstMember):
            raise StateError(
                "This cluster's servers share one process.", remedy="Set their number: LocalCluster(brokers=1)."
            )
        return server.members

    # --- addresses and topics -----------------------------------------------------------------------------------

    @property
    def name_server(self) -> str:
        """The name server's address, for the ``nameServer`` option."""
        return self._running().name_server

    @property
    def broker_address(self) -> str:
        return self._running().broker

    @property
    def tls(self) -> TlsSettings:
        """TLS settings for clients of a cluster with TLS."""
        if self._tls is None:
            raise StateError("This cluster has no TLS.", remedy="Start it with LocalCluster(tls=True).")
        return self._tls

    @property
    def metrics_url(self) -> str:
        """``http://host:port`` of /metrics, /health and /ready."""
        url = self._running().metrics
        if url is None:
            raise StateError(
                "This cluster serves no metrics.",
                remedy='Start it with config={"metricsExporterType": "PROM"}, one broker, and not in this process.',
            )
        return url

    @property
    def grpc_endpoint(self) -> str:
        """The ``endpoints`` of RocketMQ 5's own clients, ``host:port``, for all running brokers.

        First use starts the proxy, in this process.
        """
        return self.proxy.address

    @property
    def proxy(self) -> ProxyThread:
        """The gRPC proxy; it continues to run while brokers are killed and restarted."""
        self._running()
        if self._proxy is None:
            self._proxy = ProxyThread(self._proxy_config(), self._start_timeout)
            self._grpc_port = _port(self._proxy.address)
        return self._proxy

    def restart_proxy(self) -> None:
        """Restart the gRPC proxy on the same port, without its previous state."""
        self.proxy.stop()
        self._proxy = None
        _ = self.proxy

    def _proxy_config(self) -> ProxyConfig:
        from spark_rocket.proxy.proxy_config import ProxyConfig

        config = self._config
        if str(config.get("grpcServerPort", "")) == "-1":
            raise StateError("This cluster has no gRPC endpoint.", remedy="Remove grpcServerPort from its settings.")
        settings: dict[str, object] = {"grpcServerPort": self._grpc_port}
        settings |= {
            name: value
            for name, value in config.items()
            if name in PROXY_SETTINGS or name in _SHARED or name.startswith("tls.")
        }
        return ProxyConfig.from_properties(settings | {"namesrvAddr": self.name_server})

    @property
    def store_dir(self) -> Path:
        """The broker's store directory, for ``check_store`` once the broker is stopped."""
        return self.data_dir / "store" if self._many is None else self.data_dir / "broker-a" / "store"

    @property
    def pid(self) -> int:
        """The id of the servers' process."""
        return self._running().pid

    @property
    def log(self) -> str:
        """The servers' output so far; empty if they run in this process."""
        if isinstance(self._server, _FirstMember):
            return "".join(member.log for member in self._server.members.all)
        path = self.data_dir / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def create_topic(self, name: str, queues: int = 4, *, perm: int = 6, message_type: str | None = None) -> str:
        """Create a topic; it is usable on return.

        ``message_type``: the type accepted from RocketMQ 5's own clients, NORMAL, FIFO, DELAY or TRANSACTION; None
        accepts all.
        """
        header = CreateTopicRequestHeader(
            topic=name,
            default_topic=AUTO_CREATE_TOPIC_KEY,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
            attributes=None if message_type is None else f"+message.type={message_type}",
        )
        for address in self._masters():
            self._invoke(RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext()), address)
        self._wait_for_route(name, queues)
        return name

    def _wait_for_route(self, topic: str, queues: int) -> None:
        """Wait until a name server knows the topic, if one is available: brokers wait for name servers only 1 s."""
        header = GetRouteInfoRequestHeader(topic)
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.to_ext())
        deadline = time.monotonic() + _ROUTE_SECONDS
        while time.monotonic() < deadline:
            bodies = []
            for address in parse_name_servers(self.name_server).addresses:
                with suppress(RemotingError):
                    bodies.append(self._remoting().invoke(address, request, timeout=_ROUTE_SECONDS).body)
            routes = [TopicRouteData.from_json(body).queue_datas if body else [] for body in bodies]
            masters = len(self._masters())
            if not routes or any(sum(q.write_queue_nums == queues for q in found) >= masters for found in routes):
                return
            time.sleep(_PAUSE_SECONDS)
        raise StateError(f"No name server knows the topic {topic} of {masters} brokers yet.")

    def create_group(self, name: str, *, ordered: bool = False, retry_max_times: int = 16) -> str:
        """Create a consumer group; ``ordered``: messages are delivered in order, each after the previous one's ack."""
        group = SubscriptionGroupConfig(
            group_name=name, consume_message_orderly=ordered, retry_max_times=retry_max_times
        )
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        for address in self._masters():
            self._invoke(RemotingCommand.request(code, body=group.to_json()), address)
        return name

    def set_account(self, access_key: str, secret_key: str, permissions: Mapping[str, Iterable[str]]) -> Credentials:
        """Create an account with exactly these permissions, or replace it; they are in effect on all brokers on return.

        ``permissions``: ``{"Topic:orders": ["Sub", "Get"], "Group:billing": ["Sub", "Get"]}``, for both kinds of access
        control. ACL 1.0 has the actions Pub and Sub only. Returns the credentials for clients.
        """
        own = self._credentials
        if own is None:
            raise StateError("This cluster has no access control.", remedy="Set access_key and secret_key.")
        account = Credentials(access_key, secret_key)
        with Admin(self.name_server, access_key=own.access_key, secret_key=own.secret_key, tls=self._tls) as admin:
            self._acl.set_account(admin, account, permissions)
        return account

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages, also from the name server."""
        ext = DeleteTopicRequestHeader(topic=name).to_ext()
        for address in self._masters():
            self._invoke(RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_BROKER, ext), address)
        for address in parse_name_servers(self.name_server).addresses:
            self._invoke(RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext), address)

    def _masters(self) -> list[str]:
        """Addresses of the running masters."""
        if not isinstance(self._running(), _FirstMember):
            return [self.broker_address]
        every = (*self.brokers, *self.slaves)
        return [broker.address for broker in every if broker.is_running and not broker.is_slave]

    def _remoting(self) -> RemotingClient:
        if self._client is None:
            self._client = RemotingClient(credentials=self._credentials, tls=self._tls)
        return self._client

    def _invoke(self, request: RemotingCommand, address: str) -> None:
        response = self._remoting().invoke(address, request, timeout=10.0)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(
                f"{address} responded with code {response.code}: {response.remark or 'no remark'}.",
                response_code=response.code,
            )


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


class _ServerProcess:
    """``rocket up`` in a process of its own."""

    def __init__(self, data_dir: Path, config: Mapping[str, object], ports: tuple[int, int], timeout: float) -> None:
        conf = data_dir / "broker.conf"
        BrokerConfig.from_properties(config)  # raises here for an invalid setting, not in the server's process
        conf.write_text(render_properties((name, text_of(value)) for name, value in config.items()), encoding="utf-8")
        (data_dir / "store").mkdir(exist_ok=True)
        arguments = ["up", "--data", str(data_dir), "-c", str(conf), "--no-grpc"]
        arguments += ["--nameserver-port", str(ports[0]), "--broker-port", str(ports[1])]
        process = ServerProcess(arguments, data_dir / "server.log", timeout)
        self.pid = process.pid
        self.name_server = process.facts["nameServer"]
        self.broker = process.facts["broker"]
        self.metrics = process.facts.get("metrics")
        self.stop = process.stop
        self.kill = process.kill


class _FirstMember:
    """Adapter of a cluster with several brokers to the interface of a single broker."""

    def __init__(self, members: MemberSet) -> None:
        self.members = members
        self.name_server = members.addresses
        self.stop = members.stop

    @property
    def broker(self) -> str:
        return self.members.brokers[0].address

    @property
    def metrics(self) -> str | None:
        return None

    @property
    def pid(self) -> int:
        return self.members.brokers[0].pid
