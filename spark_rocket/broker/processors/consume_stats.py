"""Progress and lag of groups.

=====================================  ===============================================================================
codes                                  data read
=====================================  ===============================================================================
202, 208, 317                          statistics of a topic, of a group in its topics, of all groups
300, 343, 345                          the groups of a topic, the topics of a group, the subscription of a group
303                                    the time span that a group has consumed
=====================================  ===============================================================================

Corresponds to the same requests in org.apache.rocketmq.broker.processor.AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_rocket.broker.processors.processor import Processor, Steps, handles, handles_in_steps
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.state.client_manager import ClientManager
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.steps import in_steps
from spark_rocket.errors import RefusedError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.bodies.route import TopicList
from spark_rocket.protocol.wire.bodies.stats import (
    ConsumeStats,
    ConsumeStatsList,
    GroupList,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QuerySubscriptionResponseBody,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    GetConsumeStatsInBrokerRequestHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
)
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.message_store import MessageStore

_ALL_QUEUES = 1_024
_MAX_QUEUES = 4_096
_MAX_ROWS = 80_000


@dataclass(eq=False, kw_only=True)
class ConsumeStatsProcessor(Processor):
    """Progress and lag of groups."""

    config: BrokerConfig
    clock: Callable[[], int]
    address: str
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    clients: ClientManager
    stats: BrokerStats

    @handles_in_steps(RequestCode.GET_TOPIC_STATS_INFO)
    def topic_stats(self, channel: Channel, request: RemotingCommand) -> Steps:
        topic = GetTopicStatsInfoRequestHeader.from_ext(request.ext_fields).topic
        return self._topic_stats(request, self.topics.known(topic, f"topic[{topic}] not exist"))

    async def _topic_stats(self, request: RemotingCommand, config: TopicConfig) -> RemotingCommand:
        topic, store, table = config.topic_name, self.store, {}
        async for queue_id in in_steps(self._queue_ids(topic, max(config.write_queue_nums, config.read_queue_nums))):
            end = store.get_max_offset(topic, queue_id)
            last = store.get_store_time(topic, queue_id, end - 1) if end > 0 else 0
            table[MessageQueue(topic, self.config.broker_name, queue_id)] = TopicOffset(
                min_offset=max(store.get_min_offset(topic, queue_id), 0),
                max_offset=max(end, 0),
                last_update_timestamp=max(last, 0),
            )
        put_tps = self.stats.windows.put_tps(topic)
        return RemotingCommand.response(request, body=await asyncio.to_thread(TopicStatsTable(table, put_tps).to_json))

    @handles_in_steps(RequestCode.GET_CONSUME_STATS)
    def consume_stats(self, channel: Channel, request: RemotingCommand) -> Steps:
        return self._consume_stats(request, GetConsumeStatsRequestHeader.from_ext(request.ext_fields))

    async def _consume_stats(self, request: RemotingCommand, header: GetConsumeStatsRequestHeader) -> RemotingCommand:
        """Report the lag of a group, which may have thousands of topics."""
        group = header.consumer_group
        named = dict.fromkeys([header.topic or "", *(header.topic_list or "").split(";")])
        topics = [topic for topic in named if topic] or sorted(self.offsets.topics_of(group))
        whole = ConsumeStats()
        for topic in topics:
            part = self._stats_of(group, topic)
            if part is not None:
                whole.offset_table |= part.offset_table
                whole.consume_tps += part.consume_tps
                _check_rows(len(whole.offset_table), "topics (topicList)")
                await asyncio.sleep(0)
        return RemotingCommand.response(request, body=await asyncio.to_thread(whole.to_json))

    @handles_in_steps(RequestCode.GET_BROKER_CONSUME_STATS)
    def all_consume_stats(self, channel: Channel, request: RemotingCommand) -> Steps:
        ordered = GetConsumeStatsInBrokerRequestHeader.from_ext(request.ext_fields).is_order
        return self._all_consume_stats(request, ordered)

    async def _all_consume_stats(self, request: RemotingCommand, ordered: bool) -> RemotingCommand:
        body = ConsumeStatsList(broker_addr=self.address)
        rows = 0
        async for group in in_steps(sorted(self.groups.table)):
            of_group = []
            for topic in sorted(self.offsets.topics_of(group)):
                config = self.topics.get(topic)
                found = self._stats_of(group, topic) if config is not None and (config.order or not ordered) else None
                if found is not None:
                    of_group.append(found)
                    rows += len(found.offset_table)
                    _check_rows(rows, "groups, each by GET_CONSUME_STATS (208)")
                    body.total_diff += found.total_lag
                    body.total_inflight_diff += sum(
                        (row.pull_offset or row.consumer_offset) - row.consumer_offset
                        for row in found.offset_table.values()
                    )
                    await asyncio.sleep(0)
            body.consume_stats_list.append({group: of_group})
        return RemotingCommand.response(request, body=await asyncio.to_thread(body.to_json))

    def _stats_of(self, group: str, topic: str) -> ConsumeStats | None:
        """The progress of a group in a topic; None if the topic is deleted or the group has unsubscribed from it."""
        config = self.topics.get(topic)
        live = self.clients.consumers.get(group)
        if config is None or (live is not None and live.subscriptions and topic not in live.subscriptions):
            return None  # old offsets of a topic without subscription do not count as lag
        table = {}
        pulled_of = self.stats.pulled_of(group, topic)
        for queue_id in self._queue_ids(topic, config.read_queue_nums):
            committed = max(self.offsets.query(group, topic, queue_id), 0)
            pulled = pulled_of.get(queue_id, -1)
            timestamp = self.store.get_store_time(topic, queue_id, committed - 1) if committed > 0 else 0
            table[MessageQueue(topic, self.config.broker_name, queue_id)] = OffsetWrapper(
                broker_offset=max(self.store.get_max_offset(topic, queue_id), 0),
                consumer_offset=committed,
                pull_offset=max(pulled, committed),
                last_timestamp=max(timestamp, 0),
            )
        return ConsumeStats(table, self.stats.windows.get_tps(group, topic))

    @handles_in_steps(RequestCode.QUERY_CONSUME_TIME_SPAN)
    def time_span(self, channel: Channel, request: RemotingCommand) -> Steps:
        header = QueryConsumeTimeSpanRequestHeader.from_ext(request.ext_fields)
        config = self.topics.known(header.topic, f"topic[{header.topic}] not exist")
        return self._time_span(request, config, header.group)

    async def _time_span(self, request: RemotingCommand, config: TopicConfig, group: str) -> RemotingCommand:
        topic, spans = config.topic_name, []
        async for queue_id in in_steps(self._queue_ids(topic, config.write_queue_nums)):
            end = self.store.get_max_offset(topic, queue_id)
            committed = self.offsets.query(group, topic, queue_id)
            last = self.store.get_store_time(topic, queue_id, end - 1) if end > 0 else -1
            consumed = self.store.get_store_time(topic, queue_id, committed - 1) if committed > 0 else -1
            earliest = self.store.get_earliest_store_time(topic, queue_id)
            following = self.store.get_store_time(topic, queue_id, committed) if 0 <= committed < end else -1
            spans.append(
                QueueTimeSpan(
                    message_queue=MessageQueue(topic, self.config.broker_name, queue_id),
                    min_time_stamp=earliest,
                    max_time_stamp=last,
                    consume_time_stamp=consumed if consumed > 0 else earliest,
                    delay_time=self.clock() - following if following > 0 else 0,
                )
            )
        body = QueryConsumeTimeSpanBody(consume_time_span_set=spans)
        return RemotingCommand.response(request, body=await asyncio.to_thread(body.to_json))

    @handles(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def groups_of_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        topic = QueryTopicConsumeByWhoRequestHeader.from_ext(request.ext_fields).topic
        groups = self.clients.groups_of(topic) | self.offsets.groups_of(topic)
        return RemotingCommand.response(request, body=GroupList(group_list=sorted(groups)).to_json())

    @handles(RequestCode.QUERY_TOPICS_BY_CONSUMER)
    def topics_of_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        group = QueryTopicsByConsumerRequestHeader.from_ext(request.ext_fields).group
        topics = sorted(self.offsets.topics_of(group))
        return RemotingCommand.response(request, body=TopicList(topic_list=topics).to_json())

    @handles(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = QuerySubscriptionByConsumerRequestHeader.from_ext(request.ext_fields)
        found = self.clients.subscription(header.group, header.topic or "")
        body = QuerySubscriptionResponseBody(group=header.group, topic=header.topic or "", subscription_data=found)
        return RemotingCommand.response(request, body=body.to_json())

    def _queue_ids(self, topic: str, count: int) -> Sequence[int]:
        """The queues to report: all, or of more than 1,024 only those that have had a message, at most 4,096."""
        if count <= _ALL_QUEUES:
            return range(count)
        return [queue_id for queue_id in self.store.queues(topic) if queue_id < count][:_MAX_QUEUES]


def _check_rows(rows: int, fewer: str) -> None:
    """Raise RefusedError if a response would have too many queues."""
    if rows > _MAX_ROWS:
        raise RefusedError(
            f"the response would have more than {_MAX_ROWS:,} queues, which do not fit into a frame",
            ResponseCode.SYSTEM_ERROR,
            remedy=f"Request fewer {fewer}.",
        )
