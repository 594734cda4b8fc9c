"""The members of a test's cluster: name servers, masters and slaves in processes that can be stopped and partitioned.

==============  ======================================================================================================
``kill``        SIGKILL: connections end, the data directory is as it was left
``stop``        clean stop: it unregisters, and its data is on disk
``restart``     restart on the same data and ports, also after ``kill`` or ``stop``; with changed settings, if given:
                this promotes a slave to a master
``partition``   cuts the network (network.py) to all others, or to the given ones; the process continues to run, and
                gets no responses. ``heal`` reconnects it
``lose_…``      the connections to it that are open now are dead, without an error; new ones work
``move``        restart of a broker at another address, after ``kill``; the old one swallows all bytes
``pause``       SIGSTOP: the process is suspended, its connections stay open. ``resume`` continues it
==============  ======================================================================================================

Thread-safety: one thread at a time for a member; different members may be used by different threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from spark_rocket.broker.cluster_layout import ClusterMember
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import StateError
from spark_rocket.protocol.java_properties import render_properties
from spark_rocket.protocol.setting import text_of
from spark_rocket.testing.network import CLIENTS, LOOPBACK, Network
from spark_rocket.testing.processes import ServerProcess


class ServerMember:
    """One server. ``name``: its name in the cluster; ``address``: its address for clients.

    ``ports``: all ports that it may listen on; ``port``: the one for clients.
    """

    def __init__(self, name: str, home: Path, network: Network, port: int, ports: range, timeout: float) -> None:
        self.name = name
        self.home = home
        self.port = port  # on 127.0.0.1, bypassing the relays
        self.address = f"{network.host}:{port}"
        self._network = network
        self._ports = ports
        self._timeout = timeout
        self._process: ServerProcess | None = None
        self.others: Callable[[], list[str]] = list

    def __repr__(self) -> str:
        return f"<{self.name} at {self.address}, {'running' if self.is_running else 'not running'}>"

    @property
    def is_running(self) -> bool:
        """Whether it is started and not stopped; a member that died by itself counts as running."""
        return self._process is not None

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def log(self) -> str:
        """The member's output so far, of all starts."""
        path = self.home / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start it and wait until it is ready."""
        if self._process is not None:
            raise StateError(f"{self.name} is already running.")
        self.home.mkdir(parents=True, exist_ok=True)
        arguments = self._arguments()
        self._network.open(self.name, self._ports)
        try:
            self._process = ServerProcess(
                arguments,
                self.home / "server.log",
                self._timeout,
                lambda pid: self._network.pids.update({self.name: pid}),
            )
        except BaseException:
            self._network.shut(self.name)
            raise

    def stop(self) -> None:
        process = self._end()
        try:
            process.stop()
        finally:
            self._network.shut(self.name)

    def kill(self) -> None:
        self._end().kill()
        self._network.shut(self.name)

    def restart(self) -> None:
        if self._process is not None:
            self.stop()
        self.start()

    def partition(self, *others: ServerMember) -> None:
        """Cut the network to these members, or to all members and clients."""
        self._network.cut(self.name, [other.name for other in others] or [CLIENTS, *self.others()])

    def heal(self) -> None:
        """Restore the network between this member and all others."""
        self._network.heal(self.name)

    def lose_connections(self, *, half_open: bool = False) -> None:
        """Discard all bytes of the connections to this member that are open now. ``half_open``: its ends are closed."""
        self._network.lose(self.name, half_open=half_open)

    def pause(self) -> None:
        self._running().pause()

    def resume(self) -> None:
        self._running().resume()

    def ask_to_stop(self) -> None:
        """Request a clean stop if it is running; ``stop`` waits for its end."""
        if self._process is not None:
            self._process.ask_to_stop()

    def _arguments(self) -> list[str]:
        raise NotImplementedError

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise StateError(f"{self.name} is not running.")
        return self._process

    def _end(self) -> ServerProcess:
        process = self._running()
        self._process = None
        return process


class NameServerMember(ServerMember):
    """A name server. After a restart its tables are empty until brokers register, which they do at once."""

    def __init__(
        self, name: str, home: Path, network: Network, port: int, timeout: float, tls: Mapping[str, str]
    ) -> None:
        super().__init__(name, home, network, port, range(port, port + 1), timeout)
        self._tls = tls

    def restart(self, tls: Mapping[str, str] | None = None) -> None:
        """Restart. ``tls``: TLS settings to change permanently."""
        self._tls = {**self._tls, **(tls or {})}
        super().restart()

    def _arguments(self) -> list[str]:
        arguments = ["namesrv", "--port", str(self.port), "--data", str(self.home)]
        if self._tls:
            file = self.home / "tls.properties"
            file.write_text(render_properties(self._tls.items()), encoding="utf-8")
            arguments += ["--tls-config", str(file)]
        return arguments


class BrokerMember(ServerMember):
    """A master or a slave."""

    def __init__(
        self,
        member: ClusterMember,
        home: Path,
        network: Network,
        timeout: float,
        config: Mapping[str, object],
        name_servers: str,
    ) -> None:
        port = member.listen_port
        super().__init__(member.label, home, network, port, range(port - 2, port + 2), timeout)
        self.broker_name = member.broker_name
        self.store_dir = home / "store"
        own = member.settings(self.store_dir)
        if network.host != LOOPBACK:
            own["brokerIP1"] = network.host
        self._config = {**config, **own, "namesrvAddr": name_servers}

    @property
    def is_slave(self) -> bool:
        return str(self._config["brokerId"]) != "0"

    def restart(self, config: Mapping[str, object] | None = None) -> None:
        """Restart. ``config``: settings to change permanently, under Apache's names."""
        changed = {**self._config, **(config or {})}
        BrokerConfig.from_properties(changed)
        self._config = changed
        super().restart()

    def move(self) -> None:
        """Kill it, and restart it at another address. Connections to the old one, old and new, are dead."""
        self._end().kill()
        host = self._network.move(self.name, self._ports)
        self.address = f"{host}:{self.port}"
        self._config = {**self._config, "brokerIP1": host}
        self.start()

    def with_checked_settings(self) -> Self:
        """Raise ConfigError for an invalid setting, instead of failing in the process."""
        BrokerConfig.from_properties(self._config)
        return self

    def _arguments(self) -> list[str]:
        conf = self.home / "broker.conf"
        settings = render_properties((name, text_of(value)) for name, value in self._config.items())
        conf.write_text(settings, encoding="utf-8")
        return ["broker", "-c", str(conf)]
