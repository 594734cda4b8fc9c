"""Resets of a group to a time or an offset (222).

With ``useServerSideResetOffset`` (the default, as in Apache's since 5.0) offline groups can be reset too: the response
to the group's next pull of a queue has the new offset, and commits of its members are ignored until then. Without it,
all members get RESET_CONSUMER_CLIENT_OFFSET (220), one-way.

Corresponds to broker.client.net.Broker2Client and AdminBrokerProcessor.resetOffset.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from spark_rocket.broker.delivery.held_requests import HeldRequests
from spark_rocket.broker.processors.processor import Processor, Steps, handles_in_steps
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.client_manager import ClientManager
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.steps import in_steps
from spark_rocket.errors import RefusedError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.bodies.consumer import MessageQueueForC, ResetOffsetBody, ResetOffsetBodyForC
from spark_rocket.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import ResetOffsetRequestHeader
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.message_store import MessageStore

_CPP = ("CPP", LanguageCode.CPP)


@dataclass(eq=False, kw_only=True)
class OffsetResetProcessor(Processor):
    """Resets of a group to a time or an offset."""

    config: BrokerConfig
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    clients: ClientManager
    held_requests: HeldRequests

    @handles_in_steps(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, saves="offsets")
    def reset_offset(self, channel: Channel, request: RemotingCommand) -> Steps:
        """Reset a group to a time or an offset; respond when that is on disk."""
        header = ResetOffsetRequestHeader.from_ext(request.ext_fields)
        config = self.topics.known(header.topic, f"Topic {header.topic} does not exist")
        return self._reset(request, header, config)

    async def _reset(
        self, request: RemotingCommand, header: ResetOffsetRequestHeader, config: TopicConfig
    ) -> RemotingCommand:
        if self.config.use_server_side_reset_offset:
            moved = await self._reset_here(header, config)
        else:
            moved = await self._reset_members(header, config, for_c=request.language in _CPP)
        body = await asyncio.to_thread(ResetOffsetBody(offset_table=moved).to_json)
        return RemotingCommand.response(request, body=body)

    async def _reset_here(self, header: ResetOffsetRequestHeader, config: TopicConfig) -> dict[MessageQueue, int]:
        topic, group = header.topic, header.group
        if self.groups.get(group) is None:
            raise RefusedError(f"Group {group} does not exist", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        wanted = header.queue_id if header.queue_id is not None else -1
        if wanted >= config.read_queue_nums:
            raise RefusedError(
                f"Queue {wanted} of topic {topic} does not exist, it has {config.read_queue_nums}",
                ResponseCode.INVALID_PARAMETER,
            )
        moved: dict[int, int] = {}
        if wanted >= 0 and header.offset is not None and header.offset >= 0:
            low = self.store.get_min_offset(topic, wanted)
            high = self.store.get_max_offset(topic, wanted)
            if not low <= header.offset <= high:
                raise RefusedError(
                    f"Target offset {header.offset} not in consume queue range [{low}-{high}]",
                    ResponseCode.SYSTEM_ERROR,
                )
            moved[wanted] = header.offset
        else:
            async for queue_id in in_steps([wanted] if wanted >= 0 else range(config.read_queue_nums)):
                moved[queue_id] = self._offset_at(topic, queue_id, header.timestamp)
        if self.topics.get(topic) is not config:  # the offsets would be those of another topic
            raise RefusedError(f"Topic {topic} was changed meanwhile: retry", ResponseCode.SYSTEM_ERROR)
        for queue_id, offset in moved.items():
            self.offsets.reset(group, topic, queue_id, offset)
        self.held_requests.offsets_reset(group, topic)
        return {
            MessageQueue(topic, self.config.broker_name, queue_id): offset
            async for queue_id, offset in in_steps(moved.items())
        }

    async def _reset_members(
        self, header: ResetOffsetRequestHeader, config: TopicConfig, *, for_c: bool
    ) -> dict[MessageQueue, int]:
        """Reset as Apache's 4.x: send the offsets to the online members, which then commit them."""
        topic, group = header.topic, header.group
        table: dict[MessageQueue, int] = {}
        async for queue_id in in_steps(range(config.write_queue_nums)):
            committed = self.offsets.query(group, topic, queue_id)
            if committed < 0:
                raise RefusedError(f"THe consumer group <{group}> not exist", ResponseCode.SYSTEM_ERROR)
            offset = max(self._offset_at(topic, queue_id, header.timestamp), 0)
            table[MessageQueue(topic, self.config.broker_name, queue_id)] = (
                offset if header.is_force else min(offset, committed)
            )
        live = self.clients.consumers.get(group)
        if live is None:
            raise RefusedError(
                f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} "
                f"Timestamp: {header.timestamp}",
                ResponseCode.CONSUMER_NOT_ONLINE,
            )
        ext = ResetOffsetRequestHeader(group=group, topic=topic, timestamp=header.timestamp, is_force=False).to_ext()
        if for_c:
            rows = [
                MessageQueueForC(queue.topic, queue.broker_name, queue.queue_id, offset)
                for queue, offset in table.items()
            ]
            body = await asyncio.to_thread(ResetOffsetBodyForC(offset_table=rows).to_json)
        else:
            body = await asyncio.to_thread(ResetOffsetBody(offset_table=table).to_json)
        for member in live.members.channels():
            member.write(RemotingCommand.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body, oneway=True))
        return table

    def _offset_at(self, topic: str, queue_id: int, timestamp: int) -> int:
        """The offset for a reset to a time; the end of the queue for negative times."""
        if timestamp < 0:
            return self.store.get_max_offset(topic, queue_id)
        return self.store.get_offset_by_time(topic, queue_id, timestamp)
