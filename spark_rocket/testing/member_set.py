"""All members of a test's cluster: started and stopped in parallel; brokers can be added.

Directories: ``namesrv-1`` …, ``broker-a`` …, ``broker-a-slave`` … in the cluster's directory, each with ``server.log``;
the directories of brokers have ``broker.conf`` and ``store``. Thread-safety: one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from spark_rocket.broker.cluster_layout import ClusterMember, cluster_members
from spark_rocket.broker.state.known_settings import PROXY_SETTINGS
from spark_rocket.errors import StateError
from spark_rocket.protocol.setting import text_of
from spark_rocket.testing.members import BrokerMember, NameServerMember, ServerMember
from spark_rocket.testing.network import Network

#: In order: the VIP port two below listenPort, an unused one, listenPort, the HA port.
_BROKER_PORTS = 4


class MemberSet:
    """Name servers, masters and slaves, each in its own process."""

    def __init__(
        self,
        data_dir: Path,
        config: Mapping[str, object],
        *,
        brokers: int,
        slaves: bool,
        name_servers: int,
        timeout: float,
    ) -> None:
        self._data_dir = data_dir
        self._timeout = timeout
        self._has_slaves = slaves
        self._network = Network()
        self._config = {name: value for name, value in config.items() if name not in PROXY_SETTINGS}
        tls = {name: text_of(value) for name, value in config.items() if name.startswith("tls.")}
        self.name_servers: list[NameServerMember] = []
        self.brokers: list[BrokerMember] = []
        self.slaves: list[BrokerMember] = []
        try:
            for number in range(1, name_servers + 1):
                name = f"namesrv-{number}"
                port = self._network.reserve(1)
                member = NameServerMember(name, data_dir / name, self._network, port, timeout, tls)
                self.name_servers.append(self._known(member))
            self._addresses = ";".join(member.address for member in self.name_servers)
            members = [self._broker(member) for member in cluster_members(brokers, slaves=slaves)]
            self.brokers, self.slaves = members[:brokers], members[brokers:]
        except BaseException:
            self._network.close()
            raise

    @property
    def all(self) -> list[ServerMember]:
        return [*self.brokers, *self.slaves, *self.name_servers]

    @property
    def addresses(self) -> str:
        """The addresses of the name servers, separated by ``;``."""
        return self._addresses

    def _known(self, member: NameServerMember) -> NameServerMember:
        member.others = self._names
        return member

    def _names(self) -> list[str]:
        return [member.name for member in self.all]

    def _broker(self, member: ClusterMember) -> BrokerMember:
        port = self._network.reserve(_BROKER_PORTS)
        placed = replace(member, listen_port=port + 2, ha_listen_port=port + 3)
        home = self._data_dir / member.label
        broker = BrokerMember(placed, home, self._network, self._timeout, self._config, self._addresses)
        broker.others = self._names
        return broker.with_checked_settings()

    def start(self) -> None:
        try:
            _run_parallel([member.start for member in self.name_servers])
            _run_parallel([member.start for member in self.brokers])
            _run_parallel([member.start for member in self.slaves])  # last: name servers know their masters by then
        except BaseException:
            self.stop()
            raise

    def add_broker(self) -> list[BrokerMember]:
        """Start one more master, and a slave if the others have one. It has no topics yet."""
        members = cluster_members(len(self.brokers) + 1, slaves=self._has_slaves)
        new = [
            self._broker(member) for member in members if member.broker_name == members[len(self.brokers)].broker_name
        ]
        self.brokers.append(new[0])
        self.slaves += new[1:]
        for member in new:
            member.start()
        return new

    def stop(self) -> None:
        """Restore the network and stop all members, brokers first; StateError if a member does not stop cleanly."""
        errors: list[str] = []
        for member in self.all:
            member.heal()
        for group in ((*self.brokers, *self.slaves), self.name_servers):
            for member in group:
                member.ask_to_stop()
            for member in group:
                if member.is_running:
                    try:
                        member.stop()
                    except StateError as error:
                        errors.append(f"{member.name}: {error.message}")
        self._network.close()
        if errors:
            raise StateError(" ".join(errors))


def _run_parallel(actions: Sequence[Callable[[], None]]) -> None:
    """Run all actions in parallel; raises the first error after all have ended."""
    with ThreadPoolExecutor(max(1, len(actions))) as pool:
        for future in [pool.submit(action) for action in actions]:
            future.result()
