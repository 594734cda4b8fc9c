"""Queries of messages by key (12) and by offset id (33), and of consume queue entries (321).

The index is built asynchronously, so a query by key waits for it, up to a second, without blocking other requests. It
returns at most ``maxMsgsNumBatch`` (64) messages, or ``defaultQueryMaxNum`` (32) for a unique key, as Apache's broker.

Each entry of a consume queue has a flag: whether it matches the subscription of the given group, by its tag or by an
SQL92 expression, for which the record is read. Apache's broker sets the flag only for extended consume queues
(``enableConsumeQueueExt``). They do not exist here, so there are no bit maps.

Corresponds to org.apache.rocketmq.broker.processor.QueryMessageProcessor and AdminBrokerProcessor.queryConsumeQueue.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from spark_rocket.broker.delivery.filters import Matches, parse_filter
from spark_rocket.broker.processors.processor import Processor, Steps, handles, handles_in_steps
from spark_rocket.broker.responses import Responses
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.client_manager import ClientManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.steps import in_steps
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.protocol.filter.tags import TYPE_TAG
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.record.record import view_record
from spark_rocket.protocol.wire.bodies.client import SubscriptionData
from spark_rocket.protocol.wire.bodies.consume_queue import ConsumeQueueData, QueryConsumeQueueResponseBody
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.messages import (
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.message_store import MessageStore

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_MAX_ENTRIES = 1_000
_INDEX_TIMEOUT_S = 1.0


@dataclass(eq=False, kw_only=True)
class QueryMessageProcessor(Processor):
    """Lookups of messages and consume queue entries."""

    config: BrokerConfig
    loop: asyncio.AbstractEventLoop
    store: MessageStore
    topics: TopicConfigManager
    clients: ClientManager
    responses: Responses

    @handles(RequestCode.QUERY_MESSAGE)
    def query_message(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = QueryMessageRequestHeader.from_ext(request.ext_fields)
        if self.store.is_indexed or request.is_oneway:
            return self._find(request, header)
        self.responses.after(channel, request, self._find_when_indexed(request, header))
        return None

    async def _find_when_indexed(self, request: RemotingCommand, header: QueryMessageRequestHeader) -> RemotingCommand:
        """Query when the index has all messages that were stored before the request, or on timeout."""
        indexed = asyncio.Event()

        def set_indexed() -> None:
            self.loop.call_soon_threadsafe(indexed.set)

        self.store.when_indexed(set_indexed, _INDEX_TIMEOUT_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(_INDEX_TIMEOUT_S):
                await indexed.wait()
        return self._find(request, header)

    def _find(self, request: RemotingCommand, header: QueryMessageRequestHeader) -> RemotingCommand:
        unique = request.ext_fields.get(UNIQUE_KEY_QUERY) == "true"
        config = self.config
        most = config.default_query_max_num if unique else config.max_msgs_num_batch
        wanted = most if unique else min(max(header.max_num, 1), most)
        found = self.store.query_message(
            header.topic,
            header.key,
            wanted,
            header.begin_timestamp,
            header.end_timestamp,
            unique=unique,
            catch_up=False,
        )
        ext = {
            "indexLastUpdateTimestamp": str(found.index_last_update_timestamp),
            "indexLastUpdatePhyoffset": str(found.index_last_update_physical_offset),
        }
        if not found.records:
            return RemotingCommand.response(
                request, ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", ext
            )
        return RemotingCommand.response(request, 0, None, ext, b"".join(found.records))

    @handles(RequestCode.VIEW_MESSAGE_BY_ID)
    def view_message(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = ViewMessageRequestHeader.from_ext(request.ext_fields)
        record = self.store.look_message_by_offset(header.offset)
        if record is None:
            raise RefusedError(f"can not find message by the offset, {header.offset}", ResponseCode.SYSTEM_ERROR)
        return RemotingCommand.response(request, body=record)

    @handles_in_steps(RequestCode.QUERY_CONSUME_QUEUE)
    def query_consume_queue(self, channel: Channel, request: RemotingCommand) -> Steps:
        header = QueryConsumeQueueRequestHeader.from_ext(request.ext_fields)
        self.topics.known(header.topic or "", f"{header.queue_id or 0}@{header.topic or ''} is not exist!")
        return self._query_consume_queue(request, header)

    async def _query_consume_queue(
        self, request: RemotingCommand, header: QueryConsumeQueueRequestHeader
    ) -> RemotingCommand:
        topic, queue_id, group = header.topic or "", header.queue_id or 0, header.consumer_group
        store = self.store
        low, high = store.get_min_offset(topic, queue_id), store.get_max_offset(topic, queue_id)
        index = header.index or 0
        first = max(index, low)
        count = min(max(header.count or 0, 0), _MAX_ENTRIES)
        entries = store.get_entries(topic, queue_id, first, count) if first < high else []
        subscription = self.clients.subscription(group, topic) if group else None
        wanted = await self._wanted(entries, subscription)
        body = QueryConsumeQueueResponseBody(
            subscription_data=subscription,
            filter_data=_filter_data(group, topic, subscription) if group else None,
            queue_data=[
                ConsumeQueueData(physic_offset=physical, physic_size=size, tags_code=code, eval=is_wanted)
                for (physical, size, code), is_wanted in zip(entries, wanted, strict=True)
            ],
            max_queue_index=high,
            min_queue_index=low,
        )
        remark = None if entries or not count else f"Index {index} of {queue_id}@{topic} is not exist!"
        return RemotingCommand.response(request, 0, remark, body=body.to_json())

    async def _wanted(
        self, entries: Sequence[tuple[int, int, int]], subscription: SubscriptionData | None
    ) -> list[bool]:
        """For each entry, whether it matches the group's subscription; False for all if the group is offline."""
        if subscription is None:
            return [False] * len(entries)
        try:
            sql92 = self.config.enable_property_filter
            wanted = parse_filter(subscription.expression_type, subscription.sub_string, sql92=sql92)
        except RefusedError:  # a pull with this subscription would be refused too
            return [False] * len(entries)
        if wanted.matches is not None:
            return [self._matches(physical, wanted.matches) async for physical, _, _ in in_steps(entries)]
        return [wanted.tag_codes is None or code in wanted.tag_codes for _, _, code in entries]

    def _matches(self, physical_offset: int, matches: Matches) -> bool:
        try:
            record = view_record(self.store.look_message_by_offset(physical_offset) or b"")
        except ProtocolError:
            return False
        return matches(decode_properties(record.properties))


def _filter_data(group: str, topic: str, subscription: SubscriptionData | None) -> str:
    """A group's filter data as Apache's JSON library writes it; "null" for a tag filter."""
    if subscription is None:
        return f"{group}@{topic} is not online!"
    if subscription.expression_type == TYPE_TAG:
        return "null"
    values = {
        "bornTime": subscription.sub_version,
        "clientVersion": subscription.sub_version,
        "consumerGroup": group,
        "dead": False,
        "deadTime": 0,
        "expression": subscription.sub_string,
        "expressionType": subscription.expression_type,
        "topic": topic,
    }
    return json.dumps(values, ensure_ascii=False, indent="\t", separators=(",", ":"))
