"""Names and own settings of the brokers of a cluster on one machine.

=================  =============  =========================================  ==========================================
broker             id, role       ports (of the first two, with 10911)       directory
=================  =============  =========================================  ==========================================
broker-a …         0, master      10911, 10921 …; HA 10912, 10922 …          ``store`` for the first, as for a single
                                                                             broker, then ``broker-b/store`` …
broker-a-slave …   1, SLAVE       10916, 10926 …; HA 10917, 10927 …          ``broker-a-slave/store`` …
=================  =============  =========================================  ==========================================

Each also has the port two below its first (10909, 10914 …). A slave has its master's brokerName; their ``label``
differs.

Immutable values. Corresponds to the conf/2m-2s-async examples of Apache's distribution.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path

_MASTER_STEP = 10
_SLAVE_STEP = 5
#: Settings that differ between the brokers of a cluster: a file shared by all of them cannot set these.
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

#: Defaults of ``rocket up`` for settings that Apache disables for compatibility with old clusters.
UP_DEFAULTS = {"recallMessageEnable": True, "enablePropertyFilter": True, "enableMixedMessageType": True}


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """One broker. Port 0 selects a free port; ``metrics_port`` -1 disables metrics."""

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
        """Display name and directory name."""
        return f"{self.broker_name}-slave" if self.is_slave else self.broker_name

    def settings(self, store: Path) -> dict[str, object]:
        """The broker's own settings under Apache's names; brokerRole is set for slaves only."""
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
    """Create the masters, then the slaves. ``port`` 0 selects free ports for all; ``metrics_port`` -1 disables metrics.

    ``metrics_port`` is the name server's; the brokers use the ports after it.
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
