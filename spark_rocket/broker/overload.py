"""What the broker does not take on: its limits by kind of request, and sends and pulls refused while it is in trouble.

=======================================  =============================================================================
trouble                                  until it is over, SYSTEM_BUSY is answered to
=======================================  =============================================================================
two appends in half a minute each took   sends (``[PCBUSY_CLEAN_QUEUE]``), for as long as the last one took, at most
``osPageCacheBusyTimeOutMills``          5 s; then the next one shows how the disk is. One alone may be a process that
                                         was stopped, and when it is over there is nothing to spare
memory above ``maxMemoryBytes``          sends and pulls (``[REJECTREQUEST]``), until it is below nine tenths of that
more than ``maxUnreadAnswerBytes``       pulls (``[REJECTREQUEST]``), until three quarters of that are left
``putThreadPoolQueueCapacity`` sends     sends (``[OVERLOAD]``), until one of them is answered
wait for the disk or for slaves
=======================================  =============================================================================

Heartbeats, commands, acks and commits are served all the while. What waits too long, or finds no room, was answered
before (remoting/overload.py); ``brokerFastFailureEnable=false`` lets requests wait as long as it takes.

To clients of the gRPC proxy SYSTEM_BUSY is TOO_MANY_REQUESTS.

Thread-safety: event loop only. Nothing is kept on disk.
Corresponds to org.apache.rocketmq.broker.latency.BrokerFastFailure and SendMessageProcessor.rejectRequest.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.remoting.server.overload import OTHER, OVERLOAD, REJECTED, Limits, Queue
from spark_rocket.remoting.server.server import RemotingServer
from spark_rocket.remoting.server.sockets import connections_possible

_log = logging.getLogger(__name__)

_PAGE_CACHE = (
    "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: %dms, size of queue: %d"
)
_LONGEST_PAUSE_MS = 5_000
_TOGETHER_MS = 30_000
_NO_APPEND_MS = 10_000_000  # the clock was set
_SHARE_OF_MEMORY = 0.75  # of what this process may have, where maxMemoryBytes is 0
_ENOUGH_AGAIN = 0.9
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
    """The limits that a broker's settings say, put into ``limits``."""
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
        kind: Queue(capacity, wait / 1000 if fast else 0.0)
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
    """Whether sends and pulls are refused at present: ``sends`` and ``pulls`` say why, or are None."""

    def __init__(
        self,
        config: BrokerConfig,
        server: RemotingServer,
        clock: Callable[[], int],
        memory: Callable[[], int] | None = None,
    ) -> None:
        self.stats = server.overload
        self.limits = server.limits
        self._server = server
        self.sends: str | None = None
        self.pulls: str | None = None
        self._config = config
        self._clock = clock
        self._memory = memory or anonymous_memory
        self._page_cache: str | None = None  # the remark
        self._until = 0
        self._slow_append = -_TOGETHER_MS  # when there was one
        self._memory_is_high = False
        self._unread = False
        set_limits(server.limits, config)
        server.watch.on_tick = self.look
        server.watch.on_unread = self.unread
        possible = connections_possible()
        if possible < min(config.max_connections, _FEW_CONNECTIONS):
            _log.warning(
                "This process may open few files: at most %d connections are let in, and maxConnections is %d. Raise"
                " the hard limit (ulimit -Hn, or LimitNOFILE of its service).",
                possible,
                config.max_connections,
            )

    def settings_changed(self) -> None:
        """Take the settings into account as they are now."""
        set_limits(self._server.limits, self._config)
        self._server.request_queue.changed()

    def queue(self, kind: str) -> tuple[int, int, int]:
        """Of a kind of request: how many wait, for how many there is room, milliseconds that the first has waited."""
        waited = int(self._server.request_queue.head_waited(kind) * 1000)
        return self.stats.waiting[kind], self.limits.queues[kind].capacity, waited

    # --- asked by processors, when ``sends`` or ``pulls`` is not None -----------------------------------------------

    def check_send(self) -> None:
        """RefusedError while sends are refused."""
        if self._page_cache is not None and not 0 < self._until - self._clock() <= _LONGEST_PAUSE_MS:
            self._page_cache = None
            self._decide()
        if self.sends is not None:
            self.stats.refused[SEND, "memory" if self._memory_is_high else "page_cache"] += 1
            raise RefusedError(self.sends, ResponseCode.SYSTEM_BUSY)

    def check_pull(self) -> None:
        """RefusedError while pulls are refused."""
        if self.pulls is not None:
            self.stats.refused[PULL, "memory" if self._memory_is_high else "unread"] += 1
            raise RefusedError(self.pulls, ResponseCode.SYSTEM_BUSY)

    def check_put(self, waiting: int) -> None:
        """RefusedError when so many sends that wait for disk or slaves are enough."""
        if waiting >= self._config.put_thread_pool_queue_capacity:
            self.stats.refused[SEND, "put"] += 1
            raise RefusedError(OVERLOAD, ResponseCode.SYSTEM_BUSY)

    # --- told -----------------------------------------------------------------------------------------------------

    def append_took(self, milliseconds: int) -> None:
        """An append took longer than ``osPageCacheBusyTimeOutMills``."""
        if not self._config.broker_fast_failure_enable or milliseconds > _NO_APPEND_MS:
            return
        self.stats.page_cache_busy += 1
        now, last = self._clock(), self._slow_append
        self._slow_append = now
        if not 0 <= now - last <= _TOGETHER_MS:
            return
        self._page_cache = _PAGE_CACHE % (milliseconds, self.stats.waiting[SEND])
        self._until = now + min(milliseconds, _LONGEST_PAUSE_MS)
        _log.warning("An append took %d ms: the disk does not keep up. Sends are refused for as long.", milliseconds)
        self._decide()

    def unread(self, too_much: bool) -> None:
        """Answers that nobody reads are too many, or are few again."""
        self._unread = too_much
        self._decide()

    def look(self) -> None:
        """At the memory; every second."""
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
                    " it is less. Give the broker more, or look for who holds it: rocket broker runtime.",
                    used >> 20,
                    limit >> 20,
                )
        elif self._memory_is_high:
            give_memory_back()
            if self._memory() <= limit * _ENOUGH_AGAIN:
                self._memory_is_high = False
                _log.warning("Memory is low enough again: sends and pulls are served.")
        self._decide()

    def _decide(self) -> None:
        self.pulls = REJECTED if self._memory_is_high or self._unread else None
        self.sends = REJECTED if self._memory_is_high else self._page_cache


def anonymous_memory() -> int:
    """Bytes that this process has of memory, without the files that it maps; 0 where that is not known."""
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE


@cache
def default_limit() -> int:
    """Three quarters of the memory that this process may have."""
    limits = [os.sysconf("SC_PHYS_PAGES") * _PAGE]
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(name).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return int(min(limits) * _SHARE_OF_MEMORY)


def give_memory_back() -> None:
    """What was freed, to the system; nothing where the C library has no such thing."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):
        return
