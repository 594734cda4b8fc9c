"""Offsets of queues and groups.

=====================================  ===============================================================================
codes                                  data read or changed
=====================================  ===============================================================================
14, 15                                 the offset of a group in a queue
29, 30, 31, 32                         offsets of a queue: by time, maximum, minimum; time of its first message
43                                     all offsets of all groups, for slaves
314                                    copies the offsets of a group to another group
=====================================  ===============================================================================

The response to a commit (15) is immediate, as in Apache's broker: offsets are written to disk every few seconds. While
writing fails, the response is SYSTEM_ERROR.

Corresponds to org.apache.rocketmq.broker.processor.ConsumerManageProcessor and AdminBrokerProcessor.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_rocket.broker.delivery.in_memory import first_is_in_memory
from spark_rocket.broker.processors.processor import Processor, Steps, encoded, handles, handles_in_steps
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.state_saver import StateSaver
from spark_rocket.broker.steps import in_steps
from spark_rocket.errors import RefusedError
from spark_rocket.model import RETRY_PREFIX
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import CloneGroupOffsetRequestHeader
from spark_rocket.protocol.wire.headers.pull import (
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.message_store import MessageStore


@dataclass(eq=False, kw_only=True)
class OffsetProcessor(Processor):
    """Reads, commits and copies of offsets."""

    config: BrokerConfig
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    saver: StateSaver

    @handles(RequestCode.QUERY_CONSUMER_OFFSET)
    def query_consumer_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = QueryConsumerOffsetRequestHeader.from_ext(request.ext_fields)
        offset = self.offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset < 0:
            # A group that is new to a queue whose first message is still in memory starts at 0, as in Apache's broker;
            # otherwise, code 22 makes the client apply its own consumeFromWhere.
            minimum = self.store.get_min_offset(header.topic, header.queue_id)
            in_memory = minimum <= 0 and first_is_in_memory(self.store, self.config, header.topic, header.queue_id)
            if header.set_zero_if_not_found is False or not in_memory:
                if self.config.is_slave and not self.offsets.table:
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

    @handles(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update_consumer_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = UpdateConsumerOffsetRequestHeader.from_ext(request.ext_fields)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        # A commit does not create the group: heartbeats and pulls do. A slave may not know its master's groups yet.
        groups = self.groups
        if (groups.find(group) if self.config.is_slave else groups.get(group)) is None:
            raise RefusedError(f"Group {group} not exist!", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        self.topics.known(topic, f"Topic {topic} not exist!")
        if queue_id < 0:  # beyond the topic's queues applications keep numbers, also with Apache's brokers
            raise RefusedError("QueueId is invalid, it is negative", ResponseCode.SYSTEM_ERROR)
        if self.offsets.has_reset(group, topic, queue_id):
            return RemotingCommand.response(request, 0, "Offset has been previously reset")
        self.offsets.commit(group, topic, queue_id, header.commit_offset)
        problem = self.saver.problem("offsets")
        if problem:
            raise RefusedError(
                f"{problem}. The offset is valid until the broker stops; writing it is retried.",
                ResponseCode.SYSTEM_ERROR,
            )
        return RemotingCommand.response(request)

    @handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def search_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = SearchOffsetRequestHeader.from_ext(request.ext_fields)
        upper = (header.boundary_type or "").upper() == "UPPER"
        return _offset(
            request,
            self.store.get_offset_by_time(header.topic, header.queue_id, header.timestamp, upper),
        )

    @handles(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetMaxOffsetRequestHeader.from_ext(request.ext_fields)
        return _offset(request, self.store.get_max_offset(header.topic, header.queue_id))

    @handles(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetMinOffsetRequestHeader.from_ext(request.ext_fields)
        return _offset(request, self.store.get_min_offset(header.topic, header.queue_id))

    @handles(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest_store_time(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetEarliestMsgStoretimeRequestHeader.from_ext(request.ext_fields)
        timestamp = self.store.get_earliest_store_time(header.topic, header.queue_id)
        return RemotingCommand.response(request, 0, None, {"timestamp": str(timestamp)})

    @handles_in_steps(RequestCode.CLONE_GROUP_OFFSET, saves="offsets")
    def clone_offset(self, channel: Channel, request: RemotingCommand) -> Steps:
        return self._clone_offset(request, CloneGroupOffsetRequestHeader.from_ext(request.ext_fields))

    async def _clone_offset(self, request: RemotingCommand, header: CloneGroupOffsetRequestHeader) -> RemotingCommand:
        topics = [header.topic] if header.topic else sorted(self.offsets.topics_of(header.src_group))
        async for topic in in_steps(topics):
            if topic != RETRY_PREFIX + header.src_group and self.topics.get(topic) is not None:
                self.offsets.clone(header.src_group, header.dest_group, topic)
        return RemotingCommand.response(request)

    @handles_in_steps(RequestCode.GET_ALL_CONSUMER_OFFSET)
    async def all_offsets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        snapshot = await self.offsets.snapshot_in_steps()
        return await encoded(request, None, lambda: snapshot)


def _offset(request: RemotingCommand, offset: int) -> RemotingCommand:
    return RemotingCommand.response(request, 0, None, {"offset": str(offset)})
