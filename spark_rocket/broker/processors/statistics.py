"""Counters of messages and bytes for topics, groups and the broker (315), and the broker's state, as ``mqadmin
brokerStatus`` and consoles show it (28).

The keys of 28 and the formats of their values are those of a broker of 5.3.3; a few keys are our own. Where Apache's
broker has a thread pool with a queue, the values are those of the queued requests of that type
(remoting/server/request_queue.py). Lite pulls share the queue of pulls, so their own queue is always empty.

Corresponds to AdminBrokerProcessor.{viewBrokerStatsData, prepareRuntimeInfo}.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from spark_rocket.broker.broker_overload import ACK, PULL, QUERY, SEND, TRANSACTION, BrokerOverload
from spark_rocket.broker.delivery.held_requests import HeldRequests
from spark_rocket.broker.processors.processor import Processor, handles
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import (
    BROKER,
    BYTES,
    DAY,
    HOUR,
    MESSAGES,
    MINUTE,
    SEND_BACKS,
    BrokerStats,
    Key,
)
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.bodies.route import KVTable
from spark_rocket.protocol.wire.bodies.stats import BrokerStatsDataBody, BrokerStatsItem
from spark_rocket.protocol.wire.codes import CURRENT_VERSION, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import ViewBrokerStatsDataRequestHeader
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.delay.schedule_message_service import ScheduleMessageService
from spark_rocket.store.delay.timer_store import TimerMessageStore
from spark_rocket.store.message_store import MessageStore

VERSION_TEXT = "V5_3_3"
_QUEUES = {"send": SEND, "pull": PULL, "query": QUERY, "ack": ACK}
_OF_TOPICS = {"TOPIC_PUT_NUMS": MESSAGES, "TOPIC_PUT_SIZE": BYTES}
_OF_GROUPS = {"GROUP_GET_NUMS": MESSAGES, "GROUP_GET_SIZE": BYTES, "SNDBCK_PUT_NUMS": SEND_BACKS}
_OF_BROKER = {"BROKER_PUT_NUMS": MESSAGES, "BROKER_GET_NUMS": SEND_BACKS}


@dataclass(eq=False, kw_only=True)
class StatisticsProcessor(Processor):
    """Counters and state of the broker."""

    config: BrokerConfig
    clock: Callable[[], int]
    store: MessageStore
    stats: BrokerStats
    schedule_message_service: ScheduleMessageService
    timer_store: TimerMessageStore | None
    held_requests: HeldRequests
    overload: BrokerOverload

    def __post_init__(self) -> None:
        self._boot_time = self.clock()

    @handles(RequestCode.VIEW_BROKER_STATS_DATA)
    def stats_data(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = ViewBrokerStatsDataRequestHeader.from_ext(request.ext_fields)
        found = self._counted(header.stats_name, header.stats_key)
        windows = self.stats.windows
        if found is None or not windows.knows(found[0]):
            raise RefusedError(
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist", ResponseCode.SYSTEM_ERROR
            )
        items = []
        for which in (MINUTE, HOUR, DAY):
            window = windows.window(*found, which)
            items.append(BrokerStatsItem(window.sum, window.per_second, window.average))
        return RemotingCommand.response(request, body=BrokerStatsDataBody(*items).to_json())

    def _counted(self, name: str, key: str) -> tuple[Key, int] | None:
        if name in _OF_TOPICS:
            return (key, ""), _OF_TOPICS[name]
        if name in _OF_BROKER and key == self.config.broker_cluster_name:
            return BROKER, _OF_BROKER[name]
        topic, at, group = key.partition("@")
        return ((topic, group), _OF_GROUPS[name]) if name in _OF_GROUPS and at else None

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        seconds = max(self.clock() - self._boot_time, 0) // 1000
        table = {
            "brokerVersionDesc": VERSION_TEXT,
            "brokerVersion": str(CURRENT_VERSION),
            "brokerActive": str(not self.config.is_slave).lower(),
            "startTime": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._boot_time / 1000)),
            "runtime": f"[ {seconds // 86400} days, {seconds // 3600 % 24} hours, {seconds // 60 % 60} minutes, "
            f"{seconds % 60} seconds ]",
            "startAcceptSendRequestTimeStamp": str(self.config.start_accept_send_request_time_stamp),
            "pageCacheLockTimeMills": "0",  # there are no concurrent appends
            "earliestMessageTimeStamp": str(self.store.first_store_time()),
            "heldPulls": str(self.held_requests.pulls.count),
            "heldPops": str(self.held_requests.pops.count),
            **self._counts(),
            **self._queue_sizes(),
            **self._timer_info(),
            **self.schedule_message_service.runtime_info(),
            **self.store.runtime_info(),
        }
        return RemotingCommand.response(request, body=KVTable(table=table).to_json())

    def _counts(self) -> dict[str, str]:
        stats = self.stats
        windows = stats.windows
        puts, found, missed, total, transferred = (" ".join(f"{rate:.6f}" for rate in rates) for rates in stats.rates())
        return {
            "putTps": puts,
            "getFoundTps": found,
            "getMissTps": missed,
            "getTotalTps": total,
            "getTransferredTps": transferred,
            "getTransferedTps": transferred,  # the spelling before 5.0
            "getMessageTotal": str(stats.gets),
            "msgPutTotalTodayNow": str(stats.puts),
            "msgPutTotalTodayMorning": str(windows.morning[0]),
            "msgPutTotalYesterdayMorning": str(windows.yesterday_morning[0]),
            "msgGetTotalTodayNow": str(stats.gets),
            "msgGetTotalTodayMorning": str(windows.morning[1]),
            "msgGetTotalYesterdayMorning": str(windows.yesterday_morning[1]),
        }

    def _queue_sizes(self) -> dict[str, str]:
        overload = self.overload
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

    def _timer_info(self) -> dict[str, str]:
        timer = self.timer_store
        if timer is None:
            return {
                "timerReadBehind": "0",
                "timerOffsetBehind": "0",
                "timerCongestNum": "0",
                "timerEnqueueTps": "0.0",
                "timerDequeueTps": "0.0",
            }
        enqueued, delivered = self.stats.timer_rates()
        return {
            **timer.runtime_info(self.clock()),
            "timerEnqueueTps": str(enqueued),
            "timerDequeueTps": str(delivered),
        }
