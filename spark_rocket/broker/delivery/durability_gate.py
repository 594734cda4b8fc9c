"""Delay responses until messages are as durable as ``flushDiskType`` and ``brokerRole`` require.

======================  ======================================================  ===================================
setting                 the response waits until                                code on timeout; the message is stored
======================  ======================================================  ===================================
SYNC_FLUSH              the message is on disk                                  FLUSH_DISK_TIMEOUT (10)
SYNC_MASTER             a slave has it; with both, after it is on disk          SLAVE_NOT_AVAILABLE (11) or
                                                                                FLUSH_SLAVE_TIMEOUT (12)
======================  ======================================================  ===================================

Nothing blocks. Thread-safety: used on the event loop; the store's flush thread schedules callbacks on it in batches.
Corresponds to CommitLog.handleDiskFlushAndHA.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from spark_rocket.broker.broker_environment import BrokerEnvironment
from spark_rocket.broker.replication.master import ReplicationMaster
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.store.message_store import MessageStore

StoredCallback = Callable[[ResponseCode], None]


class DurabilityGate:
    """Runs a callback when a message is durable or its timeout has expired."""

    def __init__(self, environment: BrokerEnvironment, store: MessageStore, replication: ReplicationMaster) -> None:
        config = environment.config
        self._loop = environment.loop
        self._store = store
        self._replication = replication
        self._sync_flush, self._sync_master = config.durability
        self.waits = config.durability.is_durable
        """Whether responses wait for a flush or a slave at all."""
        self.waiting = 0
        """Number of pending callbacks."""
        self._flushed: deque[tuple[int, StoredCallback, bool]] = deque()
        self._scheduled = False

    def when_stored(self, end_offset: int, callback: StoredCallback) -> None:
        """Call back on the loop, perhaps at once, with the result for the message that ends at a physical offset."""
        if not self.waits:
            callback(ResponseCode.SUCCESS)
            return
        self.waiting += 1
        callback = partial(self._respond, callback)
        if self._sync_flush:
            self._store.when_flushed(end_offset, partial(self._was_flushed, end_offset, callback))
        else:
            self._replication.when_replicated(end_offset, callback)

    def _respond(self, callback: StoredCallback, code: ResponseCode) -> None:
        self.waiting -= 1
        callback(code)

    def _was_flushed(self, end_offset: int, callback: StoredCallback, ok: bool) -> None:
        """Called by the flush thread."""
        self._flushed.append((end_offset, callback, ok))
        if not self._scheduled:  # checked after the append and reset before the pops: no callback is missed
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._run_flushed)
            except RuntimeError:  # the loop has closed, and with it every connection
                self._flushed.clear()

    def _run_flushed(self) -> None:
        self._scheduled = False
        while self._flushed:
            end_offset, callback, ok = self._flushed.popleft()
            code = ResponseCode.SUCCESS if ok else ResponseCode.FLUSH_DISK_TIMEOUT
            if self._sync_master:
                self._replication.when_replicated(end_offset, partial(_both, callback, code))
            else:
                callback(code)


def _both(callback: StoredCallback, flushed: ResponseCode, replicated: ResponseCode) -> None:
    callback(flushed if replicated is ResponseCode.SUCCESS else replicated)
