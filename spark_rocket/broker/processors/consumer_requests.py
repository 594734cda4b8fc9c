"""Requests of tools that the broker forwards to consumers.

====  =======================================  ======================================================================
code  request sent to the client               if the client does not respond
====  =======================================  ======================================================================
223   GET_CONSUMER_STATUS_FROM_CLIENT (221),   the response omits it, after 5 s
      to all members or to the given one
307   the request unchanged                    207 after 10 s, 1 if it has disconnected
309   the request, with the message's record   207 after 10 s, 1 if it has disconnected
      as body, the broker's name and the flags
      of topic and group
====  =======================================  ======================================================================

Corresponds to broker.client.net.Broker2Client and AdminBrokerProcessor.{getConsumerStatus, getConsumerRunningInfo,
consumeMessageDirectly}.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from spark_rocket.broker.processors.processor import Processor, handles
from spark_rocket.broker.responses import Responses
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.client_manager import ClientInfo, ClientManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import ProtocolError, RefusedError, RemotingError, RemotingTimeoutError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.wire.bodies.consumer import GetConsumerStatusBody
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.message_store import MessageStore

_often = RateLimited(logging.getLogger(__name__))
_RELAY_TIMEOUT_S = 10.0
_STATUS_TIMEOUT_S = 5.0


@dataclass(eq=False, kw_only=True)
class ConsumerRequestProcessor(Processor):
    """Forwards requests of tools to consumers: offsets (223), state (307), one message (309)."""

    config: BrokerConfig
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    clients: ClientManager
    responses: Responses

    @handles(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    def consumer_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = GetConsumerStatusRequestHeader.from_ext(request.ext_fields)
        live = self.clients.consumers.get(header.group)
        if live is None:
            raise RefusedError(
                f"No Any Consumer online in the consumer group: [{header.group}]", ResponseCode.SYSTEM_ERROR
            )
        members = [
            member for member in live.members if not header.client_addr or header.client_addr == member.client_id
        ]
        self.responses.relay(channel, request, self._statuses(request, header, members), 1 + len(members))
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
            response = await member.channel.invoke(status_request, _STATUS_TIMEOUT_S)
            if response.code != ResponseCode.SUCCESS or not response.body:
                return None
            return GetConsumerStatusBody.from_request(response.body).message_queue_table
        except (RemotingError, ProtocolError) as error:
            _often.peer(member.channel.remote_addr, "no offsets from consumer %s: %s", member.client_id, error)
            return None

    @handles(RequestCode.GET_CONSUMER_RUNNING_INFO)
    def running_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = GetConsumerRunningInfoRequestHeader.from_ext(request.ext_fields)
        return self._relay(channel, request, header.consumer_group, header.client_id)

    @handles(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    def consume_directly(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = ConsumeMessageDirectlyResultRequestHeader.from_ext(request.ext_fields)
        _, offset = decode_offset_msg_id(header.msg_id or "")
        record = self.store.look_message_by_offset(offset)
        if record is None:
            raise RefusedError(f"can not find message by the id {header.msg_id}", ResponseCode.SYSTEM_ERROR)
        ext, topic = request.ext_fields, self.topics.get(header.topic or "")
        group = self.groups.get(header.consumer_group)
        ext["brokerName"] = self.config.broker_name
        if topic is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        request.body = record
        return self._relay(channel, request, header.consumer_group, header.client_id or "")

    def _relay(self, channel: Channel, request: RemotingCommand, group: str, client_id: str) -> RemotingCommand | None:
        live = self.clients.consumers.get(group)
        target = None if live is None else live.channel_of(client_id)
        if target is None:
            raise RefusedError(f"The Consumer <{group}> <{client_id}> not online", ResponseCode.SYSTEM_ERROR)
        work = self._relayed(request, target, f"<{group}> <{client_id}>")
        self.responses.relay(channel, request, work, 1 + len(request.body) // 1024)
        return None

    async def _relayed(self, request: RemotingCommand, target: Channel, consumer: str) -> RemotingCommand:
        forwarded = RemotingCommand.request(request.code, request.ext_fields, request.body)
        try:
            response = await target.invoke(forwarded, _RELAY_TIMEOUT_S)
        except RemotingTimeoutError as error:
            return _failed(request, ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer {consumer} Timeout: {error.message}")
        except RemotingError as error:
            return _failed(request, ResponseCode.SYSTEM_ERROR, f"invoke consumer {consumer} Exception: {error.message}")
        return RemotingCommand.response(request, response.code, response.remark, response.ext_fields, response.body)


def _failed(request: RemotingCommand, code: ResponseCode, remark: str) -> RemotingCommand:
    return RemotingCommand.response(request, code, remark)
