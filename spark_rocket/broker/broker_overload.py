"""Overload protection: limits by kind of request, and flow control of sends and pulls with SYSTEM_BUSY.

=======================================  =============================================================================
condition                                requests refused with SYSTEM_BUSY
=======================================  =============================================================================
two appends within half a minute each    sends (``[PCBUSY_CLEAN_QUEUE]``), for the duration of the last append, at
took ``osPageCacheBusyTimeOutMills``     most 5 s; the next append shows the state of the disk. A single slow append
                                         is ignored: the process may have been suspended, and the delay is over
memory above ``maxMemoryBytes``          sends and pulls (``[REJECTREQUEST]``), until it is below 90 % of the limit
more than ``maxUnreadAnswerBytes``       pulls (``[REJECTREQUEST]``), until it is below 75 % of the limit
``putThreadPoolQueueCapacity`` sends     sends (``[OVERLOAD]``), until one of them is completed
are pending on the disk or on slaves
=======================================  =============================================================================

Heartbeats, commands, acks and commits are served in all these cases. Requests that were queued for too long, or exceed
the capacity of their queue, have already been rejected (remoting/server/overload.py).
``brokerFastFailureEnable=false`` disables the timeout of queued requests.

The gRPC proxy returns TOO_MANY_REQUESTS for SYSTEM_BUSY.

Not stored on disk. Corresponds to org.apache.rocketmq.broker.latency.BrokerFastFailure and
SendMessageProcessor.rejectRequest.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.common.system import give_memory_back
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.remoting.server.overload import OTHER, OVERLOAD, REJECTED, Limits, QueueCapacity
from spark_rocket.remoting.server.remoting_server import RemotingServer
from spark_rocket.remoting.server.sockets import connections_possible

_log = logging.getLogger(__name__)

_PAGE_CACHE = (
    "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: %dms, size of queue: %d"
)
_MAX_PAUSE_MS = 5_000
_SLOW_APPENDS_WINDOW_MS = 30_000
_CLOCK_CHANGE_MS = 10_000_000  # longer appends are changes of the clock
_MAX_MEMORY_SHARE = 0.75  # of the memory available to this process, if maxMemoryBytes is 0
_RESUME_MEMORY_SHARE = 0.9
_FEW_CONNECTIONS = 5_000
_PAGE = os.sysconf("SC_PAGE_SIZE")

SEND, PULL, ACK, HEARTBEAT, TRANSACTION, QUERY = "send", "pull", "ack", "heartbeat", "transaction", "query"

_CODES: dict[str, tuple[RequestCode, ...]] = {
    SEND: (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.RECALL_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    ),
    PULL: (
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    ),
    ACK: (RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME),
    HEARTBEAT: (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG),
    TRANSACTION: (RequestCode.END_TRANSACTION,),
    QUERY: (RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID),
}
KINDS: dict[int, str] = {int(code): kind for kind, codes in _CODES.items() for code in codes}


def set_limits(limits: Limits, config: BrokerConfig) -> Limits:
    """Copy the limits of a broker's settings to ``limits``."""
    limits.max_connections = config.max_connections
    limits.max_connections_per_address = config.max_connections_per_address
    limits.first_request = config.first_request_timeout_millis / 1000
    limits.slow_writer = config.slow_writer_timeout_millis / 1000
    limits.slow_reader = config.slow_reader_timeout_millis / 1000
    limits.max_request_bytes = config.max_waiting_request_bytes
    limits.max_answer_bytes = config.max_unread_answer_bytes
    limits.max_oneway = config.server_oneway_semaphore_value
    limits.max_async = config.server_async_semaphore_value
    limits.kinds = KINDS
    fast = config.broker_fast_failure_enable
    limits.queues = {
        kind: QueueCapacity(capacity, wait / 1000 if fast else 0.0)
        for kind, capacity, wait in (
            (HEARTBEAT, config.heartbeat_thread_pool_queue_capacity, config.wait_time_mills_in_heartbeat_queue),
            (OTHER, config.admin_broker_thread_pool_queue_capacity, config.wait_time_mills_in_admin_broker_queue),
            (ACK, config.ack_thread_pool_queue_capacity, config.wait_time_mills_in_ack_queue),
            (
                TRANSACTION,
                config.end_transaction_pool_queue_capacity,
                config.wait_time_mills_in_transaction_queue,
            ),
            (PULL, config.pull_thread_pool_queue_capacity, config.wait_time_mills_in_pull_queue),
            (QUERY, config.query_thread_pool_queue_capacity, config.wait_time_mills_in_admin_broker_queue),
            (SEND, config.send_thread_pool_queue_capacity, config.wait_time_mills_in_send_queue),
        )
    }
    return limits


class BrokerOverload:
    """Flow control of one broker. ``sends`` and ``pulls``: the remark of refusals, None while requests are accepted."""

    def __init__(self, config: BrokerConfig, server: RemotingServer, clock: Callable[[], int]) -> None:
        self.stats = server.overload
        self.limits = server.limits
        self._server = server
        self.sends: str | None = None
        self.pulls: str | None = None
        self._config = config
        self._clock = clock
        self._memory = anonymous_memory
        self._page_cache: str | None = None  # the remark
        self._until = 0
        self._slow_append = -_SLOW_APPENDS_WINDOW_MS  # time of the last one
        self._memory_is_high = False
        self._unread = False
        set_limits(server.limits, config)
        server.watch.on_tick = self.check_memory
        server.watch.on_unread = self.unread
        possible = connections_possible()
        if possible < min(config.max_connections, _FEW_CONNECTIONS):
            _log.warning(
                "The limit of open files allows at most %d connections; maxConnections is %d. Raise the hard limit"
                " (ulimit -Hn, or LimitNOFILE of the service).",
                possible,
                config.max_connections,
            )

    def settings_changed(self) -> None:
        set_limits(self._server.limits, self._config)
        self._server.request_queue.changed()

    def queue(self, kind: str) -> tuple[int, int, int]:
        """Queued requests of a kind, capacity of the queue, and milliseconds since the first was queued."""
        waited = int(self._server.request_queue.head_waited(kind) * 1000)
        return self.stats.waiting[kind], self.limits.queues[kind].capacity, waited

    # --- called by processors, if ``sends`` or ``pulls`` is not None ------------------------------------------------

    def check_send(self) -> None:
        if self._page_cache is not None and not 0 < self._until - self._clock() <= _MAX_PAUSE_MS:
            self._page_cache = None
            self._decide()
        if self.sends is not None:
            self.stats.refused[SEND, "memory" if self._memory_is_high else "page_cache"] += 1
            raise RefusedError(self.sends, ResponseCode.SYSTEM_BUSY)

    def check_pull(self) -> None:
        if self.pulls is not None:
            self.stats.refused[PULL, "memory" if self._memory_is_high else "unread"] += 1
            raise RefusedError(self.pulls, ResponseCode.SYSTEM_BUSY)

    def check_put(self, waiting: int) -> None:
        """Raise RefusedError if too many sends are pending on the disk or on slaves; ``waiting``: their number."""
        if waiting >= self._config.put_thread_pool_queue_capacity:
            self.stats.refused[SEND, "put"] += 1
            raise RefusedError(OVERLOAD, ResponseCode.SYSTEM_BUSY)

    # --- events ---------------------------------------------------------------------------------------------------

    def append_took(self, milliseconds: int) -> None:
        if not self._config.broker_fast_failure_enable or milliseconds > _CLOCK_CHANGE_MS:
            return
        self.stats.page_cache_busy += 1
        now, last = self._clock(), self._slow_append
        self._slow_append = now
        if not 0 <= now - last <= _SLOW_APPENDS_WINDOW_MS:
            return
        self._page_cache = _PAGE_CACHE % (milliseconds, self.stats.waiting[SEND])
        pause = min(milliseconds, _MAX_PAUSE_MS)
        self._until = now + pause
        _log.warning("An append took %d ms: the disk is overloaded. Sends are refused for %d ms.", milliseconds, pause)
        self._decide()

    def unread(self, too_much: bool) -> None:
        """Handle a change of whether responses not yet read by clients exceed their limit."""
        self._unread = too_much
        self._decide()

    def check_memory(self) -> None:
        """Check the memory in use; called every second."""
        limit = self._config.max_memory_bytes or default_limit()
        used = self._memory()
        if not self._memory_is_high and used > limit:
            give_memory_back()
            used = self._memory()
            if used > limit:
                self._memory_is_high = True
                self.stats.memory_high += 1
                _log.error(
                    "%d MiB of memory are in use, more than maxMemoryBytes (%d MiB): sends and pulls are refused until"
                    " it is less. Raise the limit, or find out what uses the memory: rocket broker runtime.",
                    used >> 20,
                    limit >> 20,
                )
        elif self._memory_is_high:
            give_memory_back()
            if self._memory() <= limit * _RESUME_MEMORY_SHARE:
                self._memory_is_high = False
                _log.warning("Memory is below its limit again: sends and pulls are accepted.")
        self._decide()

    def _decide(self) -> None:
        self.pulls = REJECTED if self._memory_is_high or self._unread else None
        self.sends = REJECTED if self._memory_is_high else self._page_cache


def anonymous_memory() -> int:
    """Bytes of memory used by this process, without mapped files; 0 if unknown."""
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE


@cache
def default_limit() -> int:
    """Three quarters of the memory available to this process."""
    limits = [os.sysconf("SC_PHYS_PAGES") * _PAGE]
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(name).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return int(min(limits) * _MAX_MEMORY_SHARE)
