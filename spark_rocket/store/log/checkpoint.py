"""The checkpoint file: store timestamps up to which the log, queues and index are on disk.

====  =====  ======================================================================================
at    type   meaning
====  =====  ======================================================================================
0     int64  physicMsgTimestamp: messages of the commit log up to here are on disk
8     int64  logicsMsgTimestamp: their consume-queue entries are on disk
16    int64  indexMsgTimestamp: end of the last index file that is full and on disk
24    int64  masterFlushedOffset (used by replicas; 0 here)
32    int64  confirmPhyOffset (5.x, used by controllers; 0 here)
====  =====  ======================================================================================

4,096 bytes, the rest zero. Recovery after a kill starts 3,000 ms before the smaller of the first two.
Each time is advanced only after the ``fdatasync`` it depends on, and is written with one ``pwrite``. After a crash it
may be old, but is never ahead. Thread-safety: ``save`` is locked.
Corresponds to org.apache.rocketmq.store.StoreCheckpoint.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from struct import Struct

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.log.mapped_file import write_head

_log = logging.getLogger(__name__)
CHECKPOINT_SIZE = 4096
_FIELDS = Struct(">5q")
_TIMES = {
    "physic_msg_timestamp": "physicMsgTimestamp",
    "logics_msg_timestamp": "logicsMsgTimestamp",
    "index_msg_timestamp": "indexMsgTimestamp",
}
_NAMES = (*_TIMES, "master_flushed_offset", "confirm_phy_offset")
_SAFETY_MS = 3_000


class StoreCheckpoint:
    """The five fields, in memory and on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.physic_msg_timestamp = 0
        self.logics_msg_timestamp = 0
        self.index_msg_timestamp = 0
        self.master_flushed_offset = 0
        self.confirm_phy_offset = 0
        self.existed = False
        self._lock = threading.Lock()
        self._saved = b""

    def load(self) -> None:
        """Read the file. If it is missing or empty, nothing is known to be on disk."""
        if not self.path.exists():
            return
        raw = self.path.read_bytes()
        if not raw:
            return
        if len(raw) != CHECKPOINT_SIZE:
            raise StoreCorruptError(
                f"{self.path} has {len(raw)} bytes, not {CHECKPOINT_SIZE}.",
                remedy="Delete it: the store is then recovered from the beginning of its log. `rocket store check` "
                "reports whether the store is intact.",
            )
        self.existed = True
        for name, value in zip(_NAMES, _FIELDS.unpack_from(raw), strict=True):
            setattr(self, name, value)
        self._saved = raw[: _FIELDS.size]

    @property
    def recover_timestamp(self) -> int:
        """Time up to which log and consume queues are known to be on disk."""
        return max(min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _SAFETY_MS, 0)

    @property
    def times(self) -> dict[str, int]:
        """First three fields, by RocketMQ's names."""
        return {wire: getattr(self, name) for name, wire in _TIMES.items()}

    def correct(self, newest: int) -> None:
        """Reset invalid times, below 0 or after the log's last message (``newest``), to 0 (unknown).

        An invalid time would mislead the recovery after a kill.
        """
        wrong = [name for name in _TIMES if not 0 <= getattr(self, name) <= newest]
        if wrong:
            times = ", ".join(f"{_TIMES[name]} {getattr(self, name)}" for name in wrong)
            _log.warning("reset invalid times in %s: %s; last message of the log: %d", self.path, times, newest)
            for name in wrong:
                setattr(self, name, 0)
            self.save()

    def save(self, *, sync: bool = True) -> None:
        """Write the fields. Without ``sync`` they survive a process crash at once, a machine crash a little later."""
        with self._lock:
            raw = _FIELDS.pack(*(getattr(self, name) for name in _NAMES))
            if raw == self._saved and not sync:
                return
            write_head(self.path, CHECKPOINT_SIZE, raw, sync=sync)
            self._saved = raw
