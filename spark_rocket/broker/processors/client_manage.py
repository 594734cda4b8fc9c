"""Clients: heartbeats (34), unregistering (35), members of a group (38, 203, 204), all producers (328), locks of queues
(41, 42), and checks of a subscription (46).

A consumer's heartbeat also creates its group and the group's ``%RETRY%`` topic, which its client subscribes to next.

Corresponds to broker.processor.{ClientManageProcessor, ConsumerManageProcessor} and
AdminBrokerProcessor.getAllProducerInfo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from spark_rocket.broker.delivery.filters import parse_filter
from spark_rocket.broker.processors.processor import Processor, Steps, handles, handles_in_steps
from spark_rocket.broker.responses import Responses
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.client_manager import ClientInfo, ClientManager
from spark_rocket.broker.state.rebalance_lock_manager import RebalanceLockManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.steps import in_steps
from spark_rocket.errors import RefusedError
from spark_rocket.model import RETRY_PREFIX
from spark_rocket.protocol.filter.tags import TYPE_TAG
from spark_rocket.protocol.requests import body_of
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody, LockBatchResponseBody
from spark_rocket.protocol.wire.bodies.client import (
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
)
from spark_rocket.protocol.wire.bodies.stats import (
    Connection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from spark_rocket.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
)
from spark_rocket.protocol.wire.headers.membership import (
    GetConsumerListByGroupRequestHeader,
    UnregisterClientRequestHeader,
)
from spark_rocket.remoting.server.channel import Channel


@dataclass(eq=False, kw_only=True)
class ClientManageProcessor(Processor):
    """Members of groups, and their locks."""

    config: BrokerConfig
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    clients: ClientManager
    rebalance_locks: RebalanceLockManager
    responses: Responses

    @handles(RequestCode.HEART_BEAT)
    def heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        data = body_of(request, HeartbeatData)
        language = _language(request.language)
        for producer in data.producer_data_set:
            self.clients.register_producer(producer.group_name, channel, data.client_id, language, request.version)
        changed = False
        retry_topics: list[str] = []
        for consumer in data.consumer_data_set:
            settings = self.groups.find(consumer.group_name)
            if settings is None:
                continue  # Apache's broker ignores it too; the group's pulls are refused with 26
            retry_topics.append(RETRY_PREFIX + consumer.group_name)
            self.topics.ensure(retry_topics[-1], settings.retry_queue_nums)
            changed |= self.clients.register_consumer(
                consumer,
                channel,
                data.client_id,
                language,
                request.version,
                notify=settings.notify_consumer_ids_changed_enable,
                with_subscriptions=not data.without_sub,
            )
        response = RemotingCommand.response(request, 0, None, {"IS_SUB_CHANGE": "true" if changed else "false"})
        # The consumer requests the route of its retry topic next, so the topic is registered first.
        # If the file cannot be written, the first heartbeat after a restart creates the topic again.
        return self.responses.when_settled(channel, request, retry_topics, response=response, must_be_saved=False)

    @handles(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = UnregisterClientRequestHeader.from_ext(request.ext_fields)
        group = header.consumer_group or ""
        settings = self.groups.get(group)
        was_live = group in self.clients.consumers
        self.clients.unregister(
            channel,
            header.client_id,
            header.producer_group,
            header.consumer_group,
            notify=settings is None or settings.notify_consumer_ids_changed_enable,
        )
        if was_live and group not in self.clients.consumers:
            self.rebalance_locks.release_group(group)
        return RemotingCommand.response(request)

    @handles(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def consumer_list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetConsumerListByGroupRequestHeader.from_ext(request.ext_fields)
        group = self.clients.consumers.get(header.consumer_group)
        if group is None:
            raise RefusedError(f"no consumer for this group, {header.consumer_group}", ResponseCode.SYSTEM_ERROR)
        body = GetConsumerListByGroupResponseBody(consumer_id_list=group.client_ids())
        return RemotingCommand.response(request, body=body.to_json())

    @handles_in_steps(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumer_connections(self, channel: Channel, request: RemotingCommand) -> Steps:
        header = GetConsumerConnectionListRequestHeader.from_ext(request.ext_fields)
        group = self.clients.consumers.get(header.consumer_group)
        if group is None:
            raise RefusedError(
                f"the consumer group[{header.consumer_group}] not online", ResponseCode.CONSUMER_NOT_ONLINE
            )

        async def respond() -> RemotingCommand:
            body = ConsumerConnection(
                connection_set=await _connections(group.members),
                subscription_table=dict(group.subscriptions),
                consume_type=group.consume_type,
                message_model=group.message_model,
                consume_from_where=group.consume_from_where,
            )
            return RemotingCommand.response(request, body=await asyncio.to_thread(body.to_json))

        return respond()

    @handles_in_steps(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def producer_connections(self, channel: Channel, request: RemotingCommand) -> Steps:
        header = GetProducerConnectionListRequestHeader.from_ext(request.ext_fields)
        members = self.clients.producers.get(header.producer_group)
        if not members:
            raise RefusedError(f"the producer group[{header.producer_group}] not exist", ResponseCode.SYSTEM_ERROR)

        async def respond() -> RemotingCommand:
            body = ProducerConnection(connection_set=await _connections(members))
            return RemotingCommand.response(request, body=await asyncio.to_thread(body.to_json))

        return respond()

    @handles_in_steps(RequestCode.GET_ALL_PRODUCER_INFO)
    async def all_producers(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        table: dict[str, list[ProducerInfo]] = {}
        every = [(group, one) for group, members in self.clients.producers.items() for one in members]
        async for group, one in in_steps(every):
            info = ProducerInfo(one.client_id, one.channel.remote_addr, one.language, one.version, one.last_update)
            table.setdefault(group, []).append(info)
        return RemotingCommand.response(request, body=await asyncio.to_thread(ProducerTableInfo(table).to_json))

    @handles(RequestCode.LOCK_BATCH_MQ)
    def lock(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        body = body_of(request, LockBatchRequestBody)
        held = self.rebalance_locks.lock(body.consumer_group, body.mq_set, body.client_id, channel)
        return RemotingCommand.response(request, body=LockBatchResponseBody(lock_ok_mq_set=held).to_json())

    @handles(RequestCode.UNLOCK_BATCH_MQ)
    def unlock(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        body = body_of(request, LockBatchRequestBody)
        self.rebalance_locks.unlock(body.consumer_group, body.mq_set, body.client_id)
        return RemotingCommand.response(request)

    @handles(RequestCode.CHECK_CLIENT_CONFIG)
    def check_client_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Check a subscription. Consumers with an SQL92 expression request this once, before they start."""
        subscription = body_of(request, CheckClientRequestBody).subscription_data if request.body else None
        if subscription is not None and subscription.expression_type != TYPE_TAG:
            sql92 = self.config.enable_property_filter
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
