"""What a broker says of itself (GET_BROKER_RUNTIME_INFO, 28): ``mqadmin brokerStatus`` and consoles show it.

The keys and the texts of their values are those of a broker of 5.3.3; a few are our own. Where Apache's broker has a
queue in front of a pool of threads, the figures are those of the requests of that kind that wait here
(remoting/server/request_queue.py). Light pulls wait with the others, so their own queue is always empty.

Thread-safety: event loop only. Nothing is kept on disk.
Corresponds to AdminBrokerProcessor.prepareRuntimeInfo.
"""

from __future__ import annotations

import time
from collections import deque

from spark_rocket.broker.metrics.stats import SAMPLE_SECONDS
from spark_rocket.broker.overload import ACK, PULL, QUERY, SEND, TRANSACTION
from spark_rocket.broker.parts import BrokerParts
from spark_rocket.protocol.wire.codes import CURRENT_VERSION

VERSION_TEXT = "V5_3_3"
_QUEUES = {"send": SEND, "pull": PULL, "query": QUERY, "ack": ACK}


class RuntimeInfo:
    """The state of one broker."""

    def __init__(self, service: BrokerParts) -> None:
        self._service = service
        self._boot = service.clock()
        self._timed: deque[tuple[int, int]] = deque([(0, 0)], maxlen=2)

    def sample(self) -> None:
        """Read the counters of which rates are made; every ``SAMPLE_SECONDS``."""
        service = self._service
        service.stats.sample()
        service.store.sample()
        if service.timer is not None:
            self._timed.append((service.timer.enqueued, service.timer.delivered))

    def table(self) -> dict[str, str]:
        """Everything."""
        service = self._service
        seconds = max(service.clock() - self._boot, 0) // 1000
        return {
            "brokerVersionDesc": VERSION_TEXT,
            "brokerVersion": str(CURRENT_VERSION),
            "brokerActive": str(not service.config.is_slave).lower(),
            "startTime": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._boot / 1000)),
            "runtime": f"[ {seconds // 86400} days, {seconds // 3600 % 24} hours, {seconds // 60 % 60} minutes, "
            f"{seconds % 60} seconds ]",
            "startAcceptSendRequestTimeStamp": str(service.config.start_accept_send_request_time_stamp),
            "pageCacheLockTimeMills": "0",  # nobody else appends while this is asked
            "earliestMessageTimeStamp": str(service.store.first_store_time()),
            "heldPulls": str(service.held.count),
            "heldPops": str(service.waiting.count),
            **self._counts(),
            **self._queues(),
            **self._timer(),
            **service.schedule.runtime_info(),
            **service.store.runtime_info(),
        }

    def _counts(self) -> dict[str, str]:
        stats = self._service.stats
        windows = stats.windows
        puts, found, missed, total, transferred = (" ".join(f"{rate:.6f}" for rate in rates) for rates in stats.rates())
        return {
            "putTps": puts,
            "getFoundTps": found,
            "getMissTps": missed,
            "getTotalTps": total,
            "getTransferredTps": transferred,
            "getTransferedTps": transferred,  # as it is spelled before 5.0
            "getMessageTotal": str(stats.gets),
            "msgPutTotalTodayNow": str(stats.puts),
            "msgPutTotalTodayMorning": str(windows.morning[0]),
            "msgPutTotalYesterdayMorning": str(windows.yesterday_morning[0]),
            "msgGetTotalTodayNow": str(stats.gets),
            "msgGetTotalTodayMorning": str(windows.morning[1]),
            "msgGetTotalYesterdayMorning": str(windows.yesterday_morning[1]),
        }

    def _queues(self) -> dict[str, str]:
        overload = self._service.overload
        found = {}
        for name, kind in _QUEUES.items():
            size, capacity, waited = overload.queue(kind)
            found[f"{name}ThreadPoolQueueSize"] = str(size)
            found[f"{name}ThreadPoolQueueCapacity"] = str(capacity)
            found[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = str(waited)
        size, capacity, _ = overload.queue(TRANSACTION)
        return {
            **found,
            "litePullThreadPoolQueueSize": "0",
            "litePullThreadPoolQueueCapacity": found["pullThreadPoolQueueCapacity"],
            "litePullThreadPoolQueueHeadWaitTimeMills": "0",
            "EndTransactionQueueSize": str(size),
            "EndTransactionThreadPoolQueueCapacity": str(capacity),
        }

    def _timer(self) -> dict[str, str]:
        service = self._service
        timer = service.timer
        if timer is None:
            return {
                "timerReadBehind": "0",
                "timerOffsetBehind": "0",
                "timerCongestNum": "0",
                "timerEnqueueTps": "0.0",
                "timerDequeueTps": "0.0",
            }
        (enqueued, delivered), (enqueued_now, delivered_now) = self._timed[0], self._timed[-1]
        return {
            **timer.runtime_info(service.clock()),
            "timerEnqueueTps": str((enqueued_now - enqueued) / SAMPLE_SECONDS),
            "timerDequeueTps": str((delivered_now - delivered) / SAMPLE_SECONDS),
        }
