"""Finding messages: by key (12), by offset id (33), and what a consume queue holds (321).

The index is built behind the writer's back, so a query by key waits for it, up to a second, while others are served.

Thread-safety: used on the event loop only.
Corresponds to org.apache.rocketmq.broker.processor.QueryMessageProcessor and AdminBrokerProcessor.queryConsumeQueue.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from spark_rocket.broker.service import BrokerService
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.bodies import ConsumeQueueData, QueryConsumeQueueResponseBody
from spark_rocket.protocol.codes import RequestCode, ResponseCode
from spark_rocket.protocol.command import RemotingCommand
from spark_rocket.protocol.headers import (
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from spark_rocket.protocol.record import decode_messages
from spark_rocket.protocol.subscription import java_hash
from spark_rocket.remoting.server import Channel, Handler, failure_of

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_MAX_ENTRIES = 1_000
_MAX_BYTES = 8 * 1024 * 1024
_PATIENCE = 1.0


class QueryMessageProcessor:
    """Looks messages up."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_MESSAGE: self.query_message,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view_message,
            RequestCode.QUERY_CONSUME_QUEUE: self.query_consume_queue,
        }

    def query_message(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = QueryMessageRequestHeader.from_ext(request.ext_fields)
        if self._service.store.is_indexed or request.is_oneway:
            return self._find(request, header)
        self._service.spawn(self._find_when_indexed(channel, request, header))
        return None

    async def _find_when_indexed(
        self, channel: Channel, request: RemotingCommand, header: QueryMessageRequestHeader
    ) -> None:
        """Beside everything else, once the index has what was stored when the request came."""
        indexed = asyncio.Event()

        def tell() -> None:
            self._service.loop.call_soon_threadsafe(indexed.set)

        self._service.store.when_indexed(tell, _PATIENCE)
        with suppress(TimeoutError):
            await asyncio.wait_for(indexed.wait(), _PATIENCE)
        try:
            answer = self._find(request, header)
        except Exception as error:
            answer = failure_of(channel, request, error)
        channel.write(answer)

    def _find(self, request: RemotingCommand, header: QueryMessageRequestHeader) -> RemotingCommand:
        unique = request.ext_fields.get(UNIQUE_KEY_QUERY) == "true"
        most = self._service.config.default_query_max_num
        wanted = most if unique else min(max(header.max_num, 1), 1_024)
        found = self._service.store.query_message(
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

    def view_message(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = ViewMessageRequestHeader.from_ext(request.ext_fields)
        record = self._service.store.look_message_by_offset(header.offset)
        if record is None:
            raise RefusedError(
                f"can not find message by the offset, {header.offset}", response_code=ResponseCode.SYSTEM_ERROR
            )
        return RemotingCommand.response(request, body=record)

    def query_consume_queue(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = QueryConsumeQueueRequestHeader.from_ext(request.ext_fields)
        topic, queue_id = header.topic or "", header.queue_id or 0
        store = self._service.store
        self._service.known_topic(topic)
        low, high = store.get_min_offset(topic, queue_id), store.get_max_offset(topic, queue_id)
        first = max(header.index or 0, low)
        count = min(max(header.count or 0, 0), _MAX_ENTRIES)
        found = store.get_message(topic, queue_id, first, count, _MAX_BYTES) if count else None
        subscription = self._service.clients.subscription(header.consumer_group or "", topic)
        body = QueryConsumeQueueResponseBody(
            subscription_data=subscription,
            queue_data=[
                ConsumeQueueData(
                    physic_offset=message.physical_offset,
                    physic_size=message.store_size,
                    tags_code=(code := java_hash(message.tags or "")),
                    eval=subscription is None or not subscription.code_set or code in subscription.code_set,
                )
                for message in decode_messages(found.records if found else b"", decompress=False)
            ],
            max_queue_index=high,
            min_queue_index=low,
        )
        return RemotingCommand.response(request, body=body.to_json())
