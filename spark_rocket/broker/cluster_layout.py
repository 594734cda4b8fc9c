"""The brokers of a cluster on one machine: what each is called, and which settings are its own.

=================  =============  =========================================  ==========================================
broker             id, role       ports (of the first two, with 10911)       directory
=================  =============  =========================================  ==========================================
broker-a …         0, master      10911, 10921 …; HA 10912, 10922 …          the first has ``store`` as a broker alone
                                                                             has, then ``broker-b/store`` …
broker-a-slave …   1, SLAVE       10916, 10926 …; HA 10917, 10927 …          ``broker-a-slave/store`` …
=================  =============  =========================================  ==========================================

Each also has the port two below its first (10909, 10914 …). A slave has its master's brokerName: ``label`` tells them
apart.

Pure values. Corresponds to the conf/2m-2s-async examples of Apache's distribution.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path

_MASTER_STEP = 10
_SLAVE_STEP = 5
#: What each broker of a cluster has of its own, so that no file for all of them can set it.
OWN_SETTINGS = (
    "brokerName",
    "brokerId",
    "listenPort",
    "haListenPort",
    "storePathRootDir",
    "storePathCommitLog",
    "storePathConsumeQueue",
    "storePathIndex",
)

#: What Apache keeps off for old clusters' sake and a broker to try things with has on, unless a file says otherwise.
UP_DEFAULTS = {"recallMessageEnable": True, "enablePropertyFilter": True, "enableMixedMessageType": True}


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """One broker. Ports: 0 takes a free one; ``metrics_port`` -1 for none."""

    broker_name: str
    broker_id: int = 0
    listen_port: int = 0
    ha_listen_port: int = 0
    metrics_port: int = -1

    @property
    def is_slave(self) -> bool:
        return self.broker_id > 0

    @property
    def label(self) -> str:
        """What people call it, and its directory."""
        return f"{self.broker_name}-slave" if self.is_slave else self.broker_name

    def settings(self, store: Path) -> dict[str, object]:
        """Its own settings, under Apache's names; of roles a slave's only, since masters may be of either kind."""
        own: dict[str, object] = {
            "brokerName": self.broker_name,
            "brokerId": self.broker_id,
            "listenPort": self.listen_port,
            "haListenPort": self.ha_listen_port,
            "storePathRootDir": store,
        }
        if self.metrics_port < 0:
            own["metricsExporterType"] = "DISABLE"
        else:
            own |= {"metricsExporterType": "PROM", "metricsPromExporterPort": self.metrics_port}
        return own | ({"brokerRole": "SLAVE"} if self.is_slave else {})


def cluster_members(brokers: int, *, slaves: bool, port: int = 10911, metrics_port: int = -1) -> list[ClusterMember]:
    """The masters, then the slaves. Ports 0 are 0 for all; a metrics port of -1 is none for all.

    ``metrics_port`` is the name server's; brokers have those behind it.
    """
    members: list[ClusterMember] = []
    for number, letter in enumerate(string.ascii_lowercase[:brokers]):
        listen = port + number * _MASTER_STEP if port else 0
        metrics = metrics_port + 1 + number if metrics_port > 0 else metrics_port
        members.append(ClusterMember(f"broker-{letter}", 0, listen, listen + 1 if listen else 0, metrics))
    if slaves:
        for master in members[:brokers]:
            listen = master.listen_port + _SLAVE_STEP if port else 0
            metrics = metrics_port + 1 + len(members) if metrics_port > 0 else metrics_port
            members.append(
                ClusterMember(master.broker_name, 1, listen, listen + 1 if listen else 0, metrics_port=metrics)
            )
    return members
