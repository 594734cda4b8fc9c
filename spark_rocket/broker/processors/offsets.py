"""Offsets of queues and groups, and consumer lag.

=====================================  ===============================================================================
codes                                  data read or changed
=====================================  ===============================================================================
14, 15                                 the offset of a group in a queue
29, 30, 31, 32                         offsets of a queue: by time, maximum, minimum; time of its first message
202, 208, 317                          statistics of a topic, of a group in its topics, of all groups
300, 343, 345                          the groups of a topic, the topics of a group, the subscription of a group
303                                    the time span that a group has consumed
314                                    copies the offsets of a group to another group
=====================================  ===============================================================================

The response to a commit (15) is immediate, as in Apache's broker: offsets are written to disk every few seconds. While
writing fails, the response is SYSTEM_ERROR.

Corresponds to org.apache.rocketmq.broker.processor.ConsumerManageProcessor and AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.broker.steps import in_steps
from spark_rocket.errors import RefusedError
from spark_rocket.model import RETRY_PREFIX, MessageQueue
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.bodies.route import MAX_QUEUES, TopicList
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
    CloneGroupOffsetRequestHeader,
    GetConsumeStatsInBrokerRequestHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
)
from spark_rocket.protocol.wire.headers.pull import (
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from spark_rocket.remoting.address import format_address
from spark_rocket.remoting.server.channel import Channel

_ALL_QUEUES = 1_024
_MAX_QUEUES = 4_096
_MAX_ROWS = 80_000


class OffsetProcessor(Processor):
    """Reads, commits and copies of offsets, and the lag of groups."""

    @answers(RequestCode.QUERY_CONSUMER_OFFSET)
    def query_consumer_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = QueryConsumerOffsetRequestHeader.from_ext(request.ext_fields)
        service = self._service
        offset = service.offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset < 0:
            # A group that is new to a queue whose first message is still in memory starts at 0, as in Apache's broker;
            # otherwise, code 22 makes the client apply its own consumeFromWhere.
            minimum = service.store.get_min_offset(header.topic, header.queue_id)
            in_memory = minimum <= 0 and service.first_is_in_memory(header.topic, header.queue_id)
            if header.set_zero_if_not_found is False or not in_memory:
                if service.slave is not None and not service.offsets.table:
                    # With 22 the group would start over, and might skip messages that it has not read.
                    raise RefusedError(
                        "this slave has not received any offsets from its master yet: retry, or request it from the "
                        "master",
                        ResponseCode.SYSTEM_ERROR,
                    )
                return RemotingCommand.response(
                    request, ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
                )
            offset = 0
        return _offset(request, offset)

    @answers(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update_consumer_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = UpdateConsumerOffsetRequestHeader.from_ext(request.ext_fields)
        service = self._service
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        # A commit does not create the group: heartbeats and pulls do. A slave may not know its master's groups yet.
        groups = service.groups
        if (groups.find(group) if service.config.is_slave else groups.get(group)) is None:
            raise RefusedError(f"Group {group} not exist!", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        service.known_topic(topic, f"Topic {topic} not exist!")
        if not 0 <= queue_id < MAX_QUEUES:
            problem = "it is negative" if queue_id < 0 else f"at most {MAX_QUEUES - 1}"
            raise RefusedError(f"QueueId is invalid, {problem}", ResponseCode.SYSTEM_ERROR)
        if service.offsets.has_reset(group, topic, queue_id):
            return RemotingCommand.response(request, 0, "Offset has been previously reset")
        service.offsets.commit(group, topic, queue_id, header.commit_offset)
        problem = service.saving.problem("offsets")
        if problem:
            raise RefusedError(
                f"{problem}. The offset is valid until the broker stops; writing it is retried.",
                ResponseCode.SYSTEM_ERROR,
            )
        return RemotingCommand.response(request)

    @answers(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def search_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = SearchOffsetRequestHeader.from_ext(request.ext_fields)
        upper = (header.boundary_type or "").upper() == "UPPER"
        return _offset(
            request,
            self._service.store.get_offset_by_time(header.topic, header.queue_id, header.timestamp, upper),
        )

    @answers(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetMaxOffsetRequestHeader.from_ext(request.ext_fields)
        return _offset(request, self._service.store.get_max_offset(header.topic, header.queue_id))

    @answers(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetMinOffsetRequestHeader.from_ext(request.ext_fields)
        return _offset(request, self._service.store.get_min_offset(header.topic, header.queue_id))

    @answers(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest_store_time(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetEarliestMsgStoretimeRequestHeader.from_ext(request.ext_fields)
        timestamp = self._service.store.get_earliest_store_time(header.topic, header.queue_id)
        return RemotingCommand.response(request, 0, None, {"timestamp": str(timestamp)})

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._service.config.broker_name, queue_id)

    def _queue_ids(self, topic: str, count: int) -> Sequence[int]:
        """The queues to report: all, or of more than 1,024 only those that have had a message, at most 4,096."""
        if count <= _ALL_QUEUES:
            return range(count)
        return [queue_id for queue_id in self._service.store.queues(topic) if queue_id < count][:_MAX_QUEUES]

    @answers(RequestCode.GET_TOPIC_STATS_INFO)
    def topic_stats(self, channel: Channel, request: RemotingCommand) -> None:
        topic = GetTopicStatsInfoRequestHeader.from_ext(request.ext_fields).topic
        config = self._service.known_topic(topic, f"topic[{topic}] not exist")
        self.answer_in_steps(channel, request, self._topic_stats(request, config))

    async def _topic_stats(self, request: RemotingCommand, config: TopicConfig) -> RemotingCommand:
        store, topic = self._service.store, config.topic_name
        table = {}
        async for queue_id in in_steps(self._queue_ids(topic, max(config.write_queue_nums, config.read_queue_nums))):
            end = store.get_max_offset(topic, queue_id)
            last = store.get_store_time(topic, queue_id, end - 1) if end > 0 else 0
            table[self._queue(topic, queue_id)] = TopicOffset(
                min_offset=max(store.get_min_offset(topic, queue_id), 0),
                max_offset=max(end, 0),
                last_update_timestamp=max(last, 0),
            )
        put_tps = self._service.stats.windows.put_tps(topic)
        return RemotingCommand.response(request, body=await asyncio.to_thread(TopicStatsTable(table, put_tps).to_json))

    @answers(RequestCode.GET_CONSUME_STATS)
    def consume_stats(self, channel: Channel, request: RemotingCommand) -> None:
        """Report the lag of a group. It may have thousands of topics, so other requests are processed in between."""
        header = GetConsumeStatsRequestHeader.from_ext(request.ext_fields)
        self.answer_in_steps(channel, request, self._consume_stats(request, header))

    async def _consume_stats(self, request: RemotingCommand, header: GetConsumeStatsRequestHeader) -> RemotingCommand:
        group = header.consumer_group
        named = dict.fromkeys([header.topic or "", *(header.topic_list or "").split(";")])
        topics = [topic for topic in named if topic] or sorted(self._service.offsets.topics_of(group))
        whole = ConsumeStats()
        for topic in topics:
            part = self._stats_of(group, topic)
            if part is not None:
                whole.offset_table |= part.offset_table
                whole.consume_tps += part.consume_tps
                _check_rows(len(whole.offset_table), "topics (topicList)")
                await asyncio.sleep(0)
        return RemotingCommand.response(request, body=await asyncio.to_thread(whole.to_json))

    @answers(RequestCode.GET_BROKER_CONSUME_STATS)
    def all_consume_stats(self, channel: Channel, request: RemotingCommand) -> None:
        """Report the lag of all groups. There may be thousands, so other requests are processed in between."""
        ordered = GetConsumeStatsInBrokerRequestHeader.from_ext(request.ext_fields).is_order
        self.answer_in_steps(channel, request, self._all_consume_stats(request, ordered))

    async def _all_consume_stats(self, request: RemotingCommand, ordered: bool) -> RemotingCommand:
        service = self._service
        body = ConsumeStatsList(broker_addr=format_address(*service.store_host))
        rows = 0
        async for group in in_steps(sorted(service.groups.table)):
            of_group = []
            for topic in sorted(service.offsets.topics_of(group)):
                config = service.topics.get(topic)
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
        service = self._service
        config = service.topics.get(topic)
        live = service.clients.consumers.get(group)
        if config is None or (live is not None and live.subscriptions and topic not in live.subscriptions):
            return None  # old offsets of a topic without subscription do not count as lag
        table = {}
        for queue_id in self._queue_ids(topic, config.read_queue_nums):
            committed = max(service.offsets.query(group, topic, queue_id), 0)
            pulled = service.offsets.query_pulled(group, topic, queue_id)
            timestamp = service.store.get_store_time(topic, queue_id, committed - 1) if committed > 0 else 0
            table[self._queue(topic, queue_id)] = OffsetWrapper(
                broker_offset=max(service.store.get_max_offset(topic, queue_id), 0),
                consumer_offset=committed,
                pull_offset=max(pulled, committed),
                last_timestamp=max(timestamp, 0),
            )
        return ConsumeStats(table, service.stats.windows.get_tps(group, topic))

    @answers(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def groups_of_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        topic = QueryTopicConsumeByWhoRequestHeader.from_ext(request.ext_fields).topic
        groups = self._service.clients.groups_of(topic) | self._service.offsets.groups_of(topic)
        return RemotingCommand.response(request, body=GroupList(group_list=sorted(groups)).to_json())

    @answers(RequestCode.QUERY_TOPICS_BY_CONSUMER)
    def topics_of_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        group = QueryTopicsByConsumerRequestHeader.from_ext(request.ext_fields).group
        topics = sorted(self._service.offsets.topics_of(group))
        return RemotingCommand.response(request, body=TopicList(topic_list=topics).to_json())

    @answers(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = QuerySubscriptionByConsumerRequestHeader.from_ext(request.ext_fields)
        found = self._service.clients.subscription(header.group, header.topic or "")
        body = QuerySubscriptionResponseBody(group=header.group, topic=header.topic or "", subscription_data=found)
        return RemotingCommand.response(request, body=body.to_json())

    @answers(RequestCode.QUERY_CONSUME_TIME_SPAN)
    def time_span(self, channel: Channel, request: RemotingCommand) -> None:
        header = QueryConsumeTimeSpanRequestHeader.from_ext(request.ext_fields)
        config = self._service.known_topic(header.topic, f"topic[{header.topic}] not exist")
        self.answer_in_steps(channel, request, self._time_span(request, config, header.group))

    async def _time_span(self, request: RemotingCommand, config: TopicConfig, group: str) -> RemotingCommand:
        service, topic = self._service, config.topic_name
        spans = []
        async for queue_id in in_steps(self._queue_ids(topic, config.write_queue_nums)):
            end = service.store.get_max_offset(topic, queue_id)
            committed = service.offsets.query(group, topic, queue_id)
            last = service.store.get_store_time(topic, queue_id, end - 1) if end > 0 else -1
            consumed = service.store.get_store_time(topic, queue_id, committed - 1) if committed > 0 else -1
            earliest = service.store.get_earliest_store_time(topic, queue_id)
            following = service.store.get_store_time(topic, queue_id, committed) if 0 <= committed < end else -1
            spans.append(
                QueueTimeSpan(
                    message_queue=self._queue(topic, queue_id),
                    min_time_stamp=earliest,
                    max_time_stamp=last,
                    consume_time_stamp=consumed if consumed > 0 else earliest,
                    delay_time=service.clock() - following if following > 0 else 0,
                )
            )
        body = QueryConsumeTimeSpanBody(consume_time_span_set=spans)
        return RemotingCommand.response(request, body=await asyncio.to_thread(body.to_json))

    @answers(RequestCode.CLONE_GROUP_OFFSET)
    def clone_offset(self, channel: Channel, request: RemotingCommand) -> None:
        header = CloneGroupOffsetRequestHeader.from_ext(request.ext_fields)
        self.answer_in_steps(channel, request, self._clone_offset(request, header), file="offsets")

    async def _clone_offset(self, request: RemotingCommand, header: CloneGroupOffsetRequestHeader) -> RemotingCommand:
        service = self._service
        topics = [header.topic] if header.topic else sorted(service.offsets.topics_of(header.src_group))
        async for topic in in_steps(topics):
            if topic != RETRY_PREFIX + header.src_group and service.topics.get(topic) is not None:
                service.offsets.clone(header.src_group, header.dest_group, topic)
        return RemotingCommand.response(request)


def _check_rows(rows: int, fewer: str) -> None:
    """Raise RefusedError if a response would have too many queues."""
    if rows > _MAX_ROWS:
        raise RefusedError(
            f"the response would have more than {_MAX_ROWS:,} queues, which do not fit into a frame",
            ResponseCode.SYSTEM_ERROR,
            remedy=f"Request fewer {fewer}.",
        )


def _offset(request: RemotingCommand, offset: int) -> RemotingCommand:
    return RemotingCommand.response(request, 0, None, {"offset": str(offset)})
