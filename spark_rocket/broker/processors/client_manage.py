"""Clients: heartbeats (34), goodbyes (35), members of a group (38, 203, 204), locks for ordered consuming (41, 42),
whether a subscription could be served (46).

A consumer's heartbeat also creates its group and the group's ``%RETRY%`` topic, which its client subscribes to next.
Corresponds to org.apache.rocketmq.broker.processor.{ClientManageProcessor, ConsumerManageProcessor}.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_rocket.broker.delivery.filters import parse_filter
from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.broker.state.clients import ClientInfo, bounded_body, heartbeat_of
from spark_rocket.errors import RefusedError
from spark_rocket.model import RETRY_PREFIX
from spark_rocket.protocol.filter.tags import TYPE_TAG
from spark_rocket.protocol.wire.bodies import (
    CheckClientRequestBody,
    Connection,
    ConsumerConnection,
    GetConsumerListByGroupResponseBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProducerConnection,
)
from spark_rocket.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import (
    GetConsumerConnectionListRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetProducerConnectionListRequestHeader,
    UnregisterClientRequestHeader,
)
from spark_rocket.remoting.server.channel import Channel


class ClientManageProcessor(Processor):
    """Who is there."""

    @answers(RequestCode.HEART_BEAT)
    def heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        data = heartbeat_of(request)
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
        # A consumer looks up the route of its retry topic next, so the name servers hear of it first.
        # If its file cannot be written, the next heartbeat after a restart creates it again.
        return service.when_settled(channel, answer, retry_topics, must_be_saved=False)

    @answers(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = UnregisterClientRequestHeader.from_ext(request.ext_fields)
        service = self._service
        settings = service.groups.get(header.consumer_group) if header.consumer_group else None
        service.clients.unregister(
            channel,
            header.client_id,
            header.producer_group,
            header.consumer_group,
            notify=settings is None or settings.notify_consumer_ids_changed_enable,
        )
        return RemotingCommand.response(request)

    @answers(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def consumer_list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetConsumerListByGroupRequestHeader.from_ext(request.ext_fields)
        group = self._service.clients.consumers.get(header.consumer_group)
        if group is None:
            raise RefusedError(
                f"no consumer for this group, {header.consumer_group}", response_code=ResponseCode.SYSTEM_ERROR
            )
        body = GetConsumerListByGroupResponseBody(consumer_id_list=group.client_ids())
        return RemotingCommand.response(request, body=body.to_json())

    @answers(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumer_connections(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetConsumerConnectionListRequestHeader.from_ext(request.ext_fields)
        group = self._service.clients.consumers.get(header.consumer_group)
        if group is None:
            raise RefusedError(
                f"the consumer group[{header.consumer_group}] not online",
                response_code=ResponseCode.CONSUMER_NOT_ONLINE,
            )
        body = ConsumerConnection(
            connection_set=_connections(group.members),
            subscription_table=dict(group.subscriptions),
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return RemotingCommand.response(request, body=body.to_json())

    @answers(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def producer_connections(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetProducerConnectionListRequestHeader.from_ext(request.ext_fields)
        members = self._service.clients.producers.get(header.producer_group)
        if not members:
            raise RefusedError(
                f"the producer group[{header.producer_group}] not exist", response_code=ResponseCode.SYSTEM_ERROR
            )
        body = ProducerConnection(connection_set=_connections(members))
        return RemotingCommand.response(request, body=body.to_json())

    @answers(RequestCode.LOCK_BATCH_MQ)
    def lock(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        body = LockBatchRequestBody.from_request(bounded_body(request))
        held = self._service.locks.lock(body.consumer_group, body.mq_set, body.client_id)
        return RemotingCommand.response(request, body=LockBatchResponseBody(lock_ok_mq_set=held).to_json())

    @answers(RequestCode.UNLOCK_BATCH_MQ)
    def unlock(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        body = LockBatchRequestBody.from_request(bounded_body(request))
        self._service.locks.unlock(body.consumer_group, body.mq_set, body.client_id)
        return RemotingCommand.response(request)

    @answers(RequestCode.CHECK_CLIENT_CONFIG)
    def check_client_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Asked once by consumers with an SQL92 subscription, before they start."""
        subscription = (
            CheckClientRequestBody.from_request(bounded_body(request)).subscription_data if request.body else None
        )
        if subscription is not None and subscription.expression_type != TYPE_TAG:
            sql92 = self._service.config.enable_property_filter
            parse_filter(subscription.expression_type, subscription.sub_string, sql92=sql92)
        return RemotingCommand.response(request)


def _language(code: int | str) -> str:
    try:
        return code if isinstance(code, str) else LanguageCode(code).name
    except ValueError:
        return LanguageCode.OTHER.name


def _connections(members: Iterable[ClientInfo]) -> list[Connection]:
    return [
        Connection(
            client_id=member.client_id,
            client_addr=member.channel.remote_addr,
            language=member.language,
            version=member.version,
        )
        for member in members
    ]
