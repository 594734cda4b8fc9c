"""When a broker acknowledges a message, by two of its settings, and whether the message is durable then.

=================================  ===================================================================================
setting                            a message is acknowledged when
=================================  ===================================================================================
``flushDiskType=SYNC_FLUSH``       it is on the broker's disk; otherwise a failure of the machine may lose it
``brokerRole=SYNC_MASTER``         a slave has it, too; otherwise the failure of the broker's disk may lose it
=================================  ===================================================================================

Broker, store, ``rocket doctor`` and the exactly-once sink decide it here. Pure values.
Corresponds to CommitLog.handleDiskFlushAndHA.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class FlushDiskType(Enum):
    """When a send is acknowledged: with the bytes in the page cache, or with the bytes on disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(Enum):
    """A SYNC_MASTER acknowledges messages once a slave has them; a SLAVE copies its master's log."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class Durability(NamedTuple):
    """What an acknowledgement guarantees."""

    on_disk: bool
    on_slave: bool

    @property
    def is_durable(self) -> bool:
        """Whether an acknowledged message survives the failure of the broker's machine."""
        return self.on_disk or self.on_slave


def durability(flush_disk_type: str, broker_role: str = "") -> Durability:
    """The guarantee of a broker with these settings; unknown values guarantee nothing."""
    return Durability(flush_disk_type == FlushDiskType.SYNC_FLUSH.value, broker_role == BrokerRole.SYNC_MASTER.value)
