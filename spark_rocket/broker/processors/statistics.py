"""Statistics and state of a broker.

=====  ===============================================================================================================
code   response or effect
=====  ===============================================================================================================
315    counters of messages and bytes for topics, groups and the broker
328    connected producers
305    system topics
28     the broker's state, as ``mqadmin brokerStatus`` and consoles show it
316    deletes the queues of topics that do not exist
907    state of replication
61     pending timed messages for each topic
=====  ===============================================================================================================

Apache's broker keeps the timer's counts in a file. Here they are counted in the timer log on request, without the
messages of the current second that are already delivered. A recall counts -1, as in Apache's broker.

The keys of 28 and the formats of their values are those of a broker of 5.3.3; a few keys are our own. Where Apache's
broker has a thread pool with a queue, the values are those of the queued requests of that type
(remoting/server/request_queue.py). Lite pulls share the queue of pulls, so their own queue is always empty.

Corresponds to AdminBrokerProcessor.{viewBrokerStatsData, getAllProducerInfo, getSystemTopicListFromBroker,
cleanUnusedTopic, getBrokerHaStatus, getTimerMetrics, prepareRuntimeInfo} and DefaultHAService.getRuntimeInfo.
"""

from __future__ import annotations

import asyncio
import logging
import time

from spark_rocket.broker.overload import ACK, PULL, QUERY, SEND, TRANSACTION
from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.broker.state.stats import BROKER, BYTES, DAY, HOUR, MESSAGES, MINUTE, SEND_BACKS, Key
from spark_rocket.broker.steps import in_steps
from spark_rocket.errors import RefusedError
from spark_rocket.model import SYSTEM_TOPICS
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.wire.bodies.config import DataVersion
from spark_rocket.protocol.wire.bodies.route import KVTable, TopicList
from spark_rocket.protocol.wire.bodies.stats import (
    BrokerStatsDataBody,
    BrokerStatsItem,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
    ProducerInfo,
    ProducerTableInfo,
    TimerMetric,
    TimerMetricsSerializeWrapper,
)
from spark_rocket.protocol.wire.codes import CURRENT_VERSION, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import ViewBrokerStatsDataRequestHeader
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.delay.timer_store import TimerMessageStore

VERSION_TEXT = "V5_3_3"

_log = logging.getLogger(__name__)
_QUEUES = {"send": SEND, "pull": PULL, "query": QUERY, "ack": ACK}
_OF_TOPICS = {"TOPIC_PUT_NUMS": MESSAGES, "TOPIC_PUT_SIZE": BYTES}
_OF_GROUPS = {"GROUP_GET_NUMS": MESSAGES, "GROUP_GET_SIZE": BYTES, "SNDBCK_PUT_NUMS": SEND_BACKS}
_OF_BROKER = {"BROKER_PUT_NUMS": MESSAGES, "BROKER_GET_NUMS": SEND_BACKS}


class StatisticsProcessor(Processor):
    """Counters, lists and states of the broker."""

    @answers(RequestCode.VIEW_BROKER_STATS_DATA)
    def stats_data(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = ViewBrokerStatsDataRequestHeader.from_ext(request.ext_fields)
        found = self._counted(header.stats_name, header.stats_key)
        windows = self._service.stats.windows
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
        if name in _OF_BROKER and key == self._service.config.broker_cluster_name:
            return BROKER, _OF_BROKER[name]
        topic, at, group = key.partition("@")
        return ((topic, group), _OF_GROUPS[name]) if name in _OF_GROUPS and at else None

    @answers(RequestCode.GET_ALL_PRODUCER_INFO)
    def all_producers(self, channel: Channel, request: RemotingCommand) -> None:
        self.answer_in_steps(channel, request, self._all_producers(request))

    async def _all_producers(self, request: RemotingCommand) -> RemotingCommand:
        table: dict[str, list[ProducerInfo]] = {}
        every = [(group, one) for group, members in self._service.clients.producers.items() for one in members]
        async for group, one in in_steps(every):
            info = ProducerInfo(one.client_id, one.channel.remote_addr, one.language, one.version, one.last_update)
            table.setdefault(group, []).append(info)
        return RemotingCommand.response(request, body=await asyncio.to_thread(ProducerTableInfo(table).to_json))

    @answers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, body=TopicList(sorted(self._service.topics.system)).to_json())

    @answers(RequestCode.CLEAN_UNUSED_TOPIC)
    def clean_unused_topics(self, channel: Channel, request: RemotingCommand) -> None:
        self.answer_in_steps(channel, request, self._clean_unused_topics(request))

    async def _clean_unused_topics(self, request: RemotingCommand) -> RemotingCommand:
        service = self._service
        unused = []
        async for topic in in_steps(sorted(service.store.topics() - SYSTEM_TOPICS)):
            if topic not in service.topics.table:
                service.store.delete_topic(topic)
                unused.append(topic)
        if unused:
            _log.warning("deleted the queues of unknown topics: %s", ", ".join(unused))
        return RemotingCommand.response(request)

    @answers(RequestCode.GET_BROKER_HA_STATUS)
    def ha_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        service = self._service
        info = HARuntimeInfo(master=service.slave is None)
        if service.slave is not None:
            info.ha_client_runtime_info = self._as_slave()
        else:
            end = info.master_commit_log_max_offset = service.store.max_physical_offset
            gap = service.config.ha_max_gap_not_in_sync
            for slave in service.replication.slaves:
                acked = max(slave.acked, 0)
                info.ha_connection_info.append(
                    HAConnectionRuntimeInfo(
                        addr=slave.address,
                        slave_ack_offset=acked,
                        diff=end - acked,
                        in_sync=end - acked < gap,
                        transferred_byte_in_second=slave.bytes_in_second,
                        transfer_from_where=slave.next_offset,
                    )
                )
            info.in_sync_slave_nums = sum(slave.in_sync for slave in info.ha_connection_info)
        return RemotingCommand.response(request, body=info.to_json())

    def _as_slave(self) -> HAClientRuntimeInfo:
        service, slave = self._service, self._service.slave
        assert slave is not None
        read, written = slave.last_heard()
        return HAClientRuntimeInfo(
            master_addr=slave.master_address or None,
            transferred_byte_in_second=slave.bytes_in_second,
            max_offset=service.store.max_physical_offset,
            last_read_timestamp=0 if read is None else service.clock() - int(read * 1000),
            last_write_timestamp=0 if written is None else service.clock() - int(written * 1000),
            activated=slave.is_following,
        )

    @answers(RequestCode.GET_TIMER_METRICS)
    def timer_metrics(self, channel: Channel, request: RemotingCommand) -> None:
        service = self._service
        if service.timer is None:
            raise RefusedError(
                "this broker has no timer",
                ResponseCode.SYSTEM_ERROR,
                remedy="Send the request to a master with timerWheelEnable=true.",
            )
        self.answer_in_steps(channel, request, self._timer_metrics(request, service.timer))

    async def _timer_metrics(self, request: RemotingCommand, timer: TimerMessageStore) -> RemotingCommand:
        service = self._service
        counts: dict[int, int] = {}
        async for part in in_steps(timer.counts_by_topic()):
            for code, count in part.items():
                counts[code] = counts.get(code, 0) + count
        now = service.clock()
        names = {java_hash(topic): topic for topic in service.topics.table} if counts else {}
        found = {names[code]: TimerMetric(count, now) for code, count in counts.items() if code in names}
        version = DataVersion(timestamp=now, counter=timer.slots_done)
        return RemotingCommand.response(request, body=TimerMetricsSerializeWrapper(found, version).to_json())

    # --- GET_BROKER_RUNTIME_INFO ----------------------------------------------------------------------------------

    @answers(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        service = self._service
        seconds = max(service.clock() - service.boot_time, 0) // 1000
        table = {
            "brokerVersionDesc": VERSION_TEXT,
            "brokerVersion": str(CURRENT_VERSION),
            "brokerActive": str(not service.config.is_slave).lower(),
            "startTime": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(service.boot_time / 1000)),
            "runtime": f"[ {seconds // 86400} days, {seconds // 3600 % 24} hours, {seconds // 60 % 60} minutes, "
            f"{seconds % 60} seconds ]",
            "startAcceptSendRequestTimeStamp": str(service.config.start_accept_send_request_time_stamp),
            "pageCacheLockTimeMills": "0",  # there are no concurrent appends
            "earliestMessageTimeStamp": str(service.store.first_store_time()),
            "heldPulls": str(service.held.count),
            "heldPops": str(service.waiting.count),
            **self._counts(),
            **self._queue_sizes(),
            **self._timer(),
            **service.schedule.runtime_info(),
            **service.store.runtime_info(),
        }
        return RemotingCommand.response(request, body=KVTable(table=table).to_json())

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
        enqueued, delivered = service.stats.timer_rates()
        return {
            **timer.runtime_info(service.clock()),
            "timerEnqueueTps": str(enqueued),
            "timerDequeueTps": str(delivered),
        }
