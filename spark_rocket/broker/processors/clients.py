"""Clients: heartbeats (34), unregistering (35), members of a group (38, 203, 204), locks for ordered consumption
(41, 42), checks of a subscription (46), and requests of tools that the broker forwards to consumers.

A consumer's heartbeat also creates its group and the group's ``%RETRY%`` topic, which its client subscribes to next.

====  =======================================  ======================================================================
code  request sent to the client               if the client does not respond
====  =======================================  ======================================================================
222   RESET_CONSUMER_CLIENT_OFFSET (220),      one-way: no response is expected
      one-way, to all members; only without
      ``useServerSideResetOffset``
223   GET_CONSUMER_STATUS_FROM_CLIENT (221),   the response omits it, after 5 s
      to all members or to the given one
307   the request unchanged                    207 after 10 s, 1 if it has disconnected
309   the request, with the message's record   207 after 10 s, 1 if it has disconnected
      as body, the broker's name and the flags
      of topic and group
====  =======================================  ======================================================================

With ``useServerSideResetOffset`` (the default, as in Apache's since 5.0) offline groups can be reset too: the response
to the group's next pull of a queue has the new offset, and commits of its members are ignored until then.

Thread-safety: event loop only. Corresponds to broker.processor.{ClientManageProcessor, ConsumerManageProcessor},
broker.client.net.Broker2Client and AdminBrokerProcessor.{resetOffset, getConsumerStatus, getConsumerRunningInfo,
consumeMessageDirectly}.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from spark_rocket.broker.delivery.filters import parse_filter
from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.broker.state.clients import ClientInfo
from spark_rocket.broker.steps import in_steps
from spark_rocket.errors import ProtocolError, RefusedError, RemotingError, RemotingTimeoutError
from spark_rocket.logs import RateLimited
from spark_rocket.model import RETRY_PREFIX, MessageQueue
from spark_rocket.protocol.filter.tags import TYPE_TAG
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody, LockBatchResponseBody
from spark_rocket.protocol.wire.bodies.client import (
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
)
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.bodies.consumer import (
    GetConsumerStatusBody,
    MessageQueueForC,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from spark_rocket.protocol.wire.bodies.stats import Connection, ConsumerConnection, ProducerConnection
from spark_rocket.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetProducerConnectionListRequestHeader,
    ResetOffsetRequestHeader,
)
from spark_rocket.protocol.wire.headers.membership import (
    GetConsumerListByGroupRequestHeader,
    UnregisterClientRequestHeader,
)
from spark_rocket.protocol.wire.request_limits import body_of
from spark_rocket.remoting.server.channel import Channel

_often = RateLimited(logging.getLogger(__name__))
_RELAY_TIMEOUT_S = 10.0
_STATUS_TIMEOUT_S = 5.0
_CPP = ("CPP", LanguageCode.CPP)


class ClientManageProcessor(Processor):
    """Members of groups, and their locks."""

    @answers(RequestCode.HEART_BEAT)
    def heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        data = body_of(request, HeartbeatData)
        service = self._service
        language = _language(request.language)
        for producer in data.producer_data_set:
            service.clients.register_producer(producer.group_name, channel, data.client_id, language, request.version)
        changed = False
        retry_topics: list[str] = []
        for consumer in data.consumer_data_set:
            settings = service.groups.find(consumer.group_name)
            if settings is None:
                continue  # Apache's broker ignores it too; the group's pulls are refused with 26
            retry_topics.append(RETRY_PREFIX + consumer.group_name)
            service.topics.ensure(retry_topics[-1], settings.retry_queue_nums)
            changed |= service.clients.register_consumer(
                consumer,
                channel,
                data.client_id,
                language,
                request.version,
                notify=settings.notify_consumer_ids_changed_enable,
                with_subscriptions=not data.without_sub,
            )
        answer = RemotingCommand.response(request, 0, None, {"IS_SUB_CHANGE": "true" if changed else "false"})
        if request.is_oneway:
            return None
        # The consumer requests the route of its retry topic next, so the topic is registered first.
        # If the file cannot be written, the first heartbeat after a restart creates the topic again.
        return service.when_settled(channel, answer, retry_topics, must_be_saved=False)

    @answers(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = UnregisterClientRequestHeader.from_ext(request.ext_fields)
        service = self._service
        group = header.consumer_group or ""
        settings = service.groups.get(group)
        was_live = group in service.clients.consumers
        service.clients.unregister(
            channel,
            header.client_id,
            header.producer_group,
            header.consumer_group,
            notify=settings is None or settings.notify_consumer_ids_changed_enable,
        )
        if was_live and group not in service.clients.consumers:
            service.locks.release_group(group)
        return RemotingCommand.response(request)

    @answers(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def consumer_list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetConsumerListByGroupRequestHeader.from_ext(request.ext_fields)
        group = self._service.clients.consumers.get(header.consumer_group)
        if group is None:
            raise RefusedError(f"no consumer for this group, {header.consumer_group}", ResponseCode.SYSTEM_ERROR)
        body = GetConsumerListByGroupResponseBody(consumer_id_list=group.client_ids())
        return RemotingCommand.response(request, body=body.to_json())

    @answers(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumer_connections(self, channel: Channel, request: RemotingCommand) -> None:
        header = GetConsumerConnectionListRequestHeader.from_ext(request.ext_fields)
        group = self._service.clients.consumers.get(header.consumer_group)
        if group is None:
            raise RefusedError(
                f"the consumer group[{header.consumer_group}] not online", ResponseCode.CONSUMER_NOT_ONLINE
            )

        async def answer() -> RemotingCommand:
            body = ConsumerConnection(
                connection_set=await _connections(group.members),
                subscription_table=dict(group.subscriptions),
                consume_type=group.consume_type,
                message_model=group.message_model,
                consume_from_where=group.consume_from_where,
            )
            return RemotingCommand.response(request, body=await asyncio.to_thread(body.to_json))

        self.answer_in_steps(channel, request, answer())

    @answers(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def producer_connections(self, channel: Channel, request: RemotingCommand) -> None:
        header = GetProducerConnectionListRequestHeader.from_ext(request.ext_fields)
        members = self._service.clients.producers.get(header.producer_group)
        if not members:
            raise RefusedError(f"the producer group[{header.producer_group}] not exist", ResponseCode.SYSTEM_ERROR)

        async def answer() -> RemotingCommand:
            body = ProducerConnection(connection_set=await _connections(members))
            return RemotingCommand.response(request, body=await asyncio.to_thread(body.to_json))

        self.answer_in_steps(channel, request, answer())

    @answers(RequestCode.LOCK_BATCH_MQ)
    def lock(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        body = body_of(request, LockBatchRequestBody)
        held = self._service.locks.lock(body.consumer_group, body.mq_set, body.client_id, channel)
        return RemotingCommand.response(request, body=LockBatchResponseBody(lock_ok_mq_set=held).to_json())

    @answers(RequestCode.UNLOCK_BATCH_MQ)
    def unlock(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        body = body_of(request, LockBatchRequestBody)
        self._service.locks.unlock(body.consumer_group, body.mq_set, body.client_id)
        return RemotingCommand.response(request)

    @answers(RequestCode.CHECK_CLIENT_CONFIG)
    def check_client_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Check a subscription. Consumers with an SQL92 expression request this once, before they start."""
        subscription = body_of(request, CheckClientRequestBody).subscription_data if request.body else None
        if subscription is not None and subscription.expression_type != TYPE_TAG:
            sql92 = self._service.config.enable_property_filter
            parse_filter(subscription.expression_type, subscription.sub_string, sql92=sql92)
        return RemotingCommand.response(request)


def _language(code: int | str) -> str:
    try:
        return code if isinstance(code, str) else LanguageCode(code).name
    except ValueError:
        return LanguageCode.OTHER.name


async def _connections(members: Iterable[ClientInfo]) -> list[Connection]:
    return [
        Connection(
            client_id=member.client_id,
            client_addr=member.channel.remote_addr,
            language=member.language,
            version=member.version,
        )
        async for member in in_steps(list(members))
    ]


class ConsumerRequestProcessor(Processor):
    """Forwards requests of tools to consumers: resets (222), offsets (223), state (307), one message (309)."""

    # --- 222 ----------------------------------------------------------------------------------------------------

    @answers(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    def reset_offset(self, channel: Channel, request: RemotingCommand) -> None:
        """Reset a group to a time or an offset; respond when that is on disk."""
        header = ResetOffsetRequestHeader.from_ext(request.ext_fields)
        config = self._service.known_topic(header.topic, f"Topic {header.topic} does not exist")
        self.answer_in_steps(channel, request, self._reset(request, header, config), file="offsets")

    async def _reset(
        self, request: RemotingCommand, header: ResetOffsetRequestHeader, config: TopicConfig
    ) -> RemotingCommand:
        if self._service.config.use_server_side_reset_offset:
            moved = await self._reset_here(header, config)
        else:
            moved = await self._reset_members(header, config, for_c=request.language in _CPP)
        body = await asyncio.to_thread(ResetOffsetBody(offset_table=moved).to_json)
        return RemotingCommand.response(request, body=body)

    async def _reset_here(self, header: ResetOffsetRequestHeader, config: TopicConfig) -> dict[MessageQueue, int]:
        service, topic, group = self._service, header.topic, header.group
        if service.groups.get(group) is None:
            raise RefusedError(f"Group {group} does not exist", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        wanted = header.queue_id if header.queue_id is not None else -1
        if wanted >= config.read_queue_nums:
            raise RefusedError(
                f"Queue {wanted} of topic {topic} does not exist, it has {config.read_queue_nums}",
                ResponseCode.INVALID_PARAMETER,
            )
        moved: dict[int, int] = {}
        if wanted >= 0 and header.offset is not None and header.offset >= 0:
            low = service.store.get_min_offset(topic, wanted)
            high = service.store.get_max_offset(topic, wanted)
            if not low <= header.offset <= high:
                raise RefusedError(
                    f"Target offset {header.offset} not in consume queue range [{low}-{high}]",
                    ResponseCode.SYSTEM_ERROR,
                )
            moved[wanted] = header.offset
        else:
            async for queue_id in in_steps([wanted] if wanted >= 0 else range(config.read_queue_nums)):
                moved[queue_id] = service.offset_at(topic, queue_id, header.timestamp)
        if service.topics.get(topic) is not config:  # the offsets would be those of another topic
            raise RefusedError(f"Topic {topic} was changed meanwhile: retry", ResponseCode.SYSTEM_ERROR)
        for queue_id, offset in moved.items():
            service.offsets.reset(group, topic, queue_id, offset)
        service.held.wake_topic(topic)  # held pulls get the reset now
        return {self._queue(topic, queue_id): offset async for queue_id, offset in in_steps(moved.items())}

    async def _reset_members(
        self, header: ResetOffsetRequestHeader, config: TopicConfig, *, for_c: bool
    ) -> dict[MessageQueue, int]:
        """Reset as Apache's 4.x: send the offsets to the online members, which then commit them."""
        service, topic, group = self._service, header.topic, header.group
        table: dict[MessageQueue, int] = {}
        async for queue_id in in_steps(range(config.write_queue_nums)):
            committed = service.offsets.query(group, topic, queue_id)
            if committed < 0:
                raise RefusedError(f"THe consumer group <{group}> not exist", ResponseCode.SYSTEM_ERROR)
            offset = max(service.offset_at(topic, queue_id, header.timestamp), 0)
            table[self._queue(topic, queue_id)] = offset if header.is_force else min(offset, committed)
        live = service.clients.consumers.get(group)
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

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._service.config.broker_name, queue_id)

    # --- 223 ----------------------------------------------------------------------------------------------------

    @answers(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    def consumer_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = GetConsumerStatusRequestHeader.from_ext(request.ext_fields)
        live = self._service.clients.consumers.get(header.group)
        if live is None:
            raise RefusedError(
                f"No Any Consumer online in the consumer group: [{header.group}]", ResponseCode.SYSTEM_ERROR
            )
        members = [
            member for member in live.members if not header.client_addr or header.client_addr == member.client_id
        ]
        self.relay_later(channel, request, self._statuses(request, header, members), 1 + len(members))
        return None

    async def _statuses(
        self, request: RemotingCommand, header: GetConsumerStatusRequestHeader, members: list[ClientInfo]
    ) -> RemotingCommand:
        ext = GetConsumerStatusRequestHeader(topic=header.topic, group=header.group).to_ext()
        found = await asyncio.gather(*(self._status(member, ext) for member in members))
        table = {
            member.client_id: offsets for member, offsets in zip(members, found, strict=True) if offsets is not None
        }
        return RemotingCommand.response(request, body=GetConsumerStatusBody(consumer_table=table).to_json())

    async def _status(self, member: ClientInfo, ext: dict[str, str]) -> dict[MessageQueue, int] | None:
        status_request = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext)
        try:
            answer = await member.channel.invoke(status_request, _STATUS_TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                return None
            return GetConsumerStatusBody.from_request(answer.body).message_queue_table
        except (RemotingError, ProtocolError) as error:
            _often.peer(member.channel.remote_addr, "no offsets from consumer %s: %s", member.client_id, error)
            return None

    # --- 307, 309 -----------------------------------------------------------------------------------------------

    @answers(RequestCode.GET_CONSUMER_RUNNING_INFO)
    def running_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = GetConsumerRunningInfoRequestHeader.from_ext(request.ext_fields)
        return self._relay(channel, request, header.consumer_group, header.client_id)

    @answers(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    def consume_directly(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = ConsumeMessageDirectlyResultRequestHeader.from_ext(request.ext_fields)
        _, offset = decode_offset_msg_id(header.msg_id or "")
        record = self._service.store.look_message_by_offset(offset)
        if record is None:
            raise RefusedError(f"can not find message by the id {header.msg_id}", ResponseCode.SYSTEM_ERROR)
        ext, topic = request.ext_fields, self._service.topics.get(header.topic or "")
        group = self._service.groups.get(header.consumer_group)
        ext["brokerName"] = self._service.config.broker_name
        if topic is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        request.body = record
        return self._relay(channel, request, header.consumer_group, header.client_id or "")

    def _relay(self, channel: Channel, request: RemotingCommand, group: str, client_id: str) -> RemotingCommand | None:
        live = self._service.clients.consumers.get(group)
        target = None if live is None else live.channel_of(client_id)
        if target is None:
            raise RefusedError(f"The Consumer <{group}> <{client_id}> not online", ResponseCode.SYSTEM_ERROR)
        work = self._relayed(request, target, f"<{group}> <{client_id}>")
        self.relay_later(channel, request, work, 1 + len(request.body) // 1024)
        return None

    async def _relayed(self, request: RemotingCommand, target: Channel, consumer: str) -> RemotingCommand:
        forwarded = RemotingCommand.request(request.code, request.ext_fields, request.body)
        try:
            answer = await target.invoke(forwarded, _RELAY_TIMEOUT_S)
        except RemotingTimeoutError as error:
            return _failed(request, ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer {consumer} Timeout: {error.message}")
        except RemotingError as error:
            return _failed(request, ResponseCode.SYSTEM_ERROR, f"invoke consumer {consumer} Exception: {error.message}")
        return RemotingCommand.response(request, answer.code, answer.remark, answer.ext_fields, answer.body)


def _failed(request: RemotingCommand, code: ResponseCode, remark: str) -> RemotingCommand:
    return RemotingCommand.response(request, code, remark)
