"""What tools want of consumers: to be elsewhere (222), where they are (223), what they do (307), to consume one message
(309). The broker passes it on to the client and the client's answer back.

====  =======================================  ======================================================================
code  the client is sent                       when it does not answer
====  =======================================  ======================================================================
222   RESET_CONSUMER_CLIENT_OFFSET (220),      nobody waits for an answer
      one way, every member; only without
      ``useServerSideResetOffset``
223   GET_CONSUMER_STATUS_FROM_CLIENT (221),   it is left out of the answer, after 5 s
      every member, or the one named
307   the request as it came                   207 after 10 s, 1 if it has gone meanwhile
309   the request, with the message's record   207 after 10 s, 1 if it has gone meanwhile
      as body, the broker's name and the flags
      of topic and group
====  =======================================  ======================================================================

With ``useServerSideResetOffset`` (the default, as from Apache's 5.0 on) a reset works for groups that are offline too:
the group's next pull of a queue is told where to go on, and what its members commit until then is ignored.

Thread-safety: event loop only. Corresponds to org.apache.rocketmq.broker.client.net.Broker2Client and to
AdminBrokerProcessor.{resetOffset, getConsumerStatus, getConsumerRunningInfo, consumeMessageDirectly}.
"""

from __future__ import annotations

import asyncio
import logging

from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.broker.state.clients import ClientInfo
from spark_rocket.errors import ProtocolError, RefusedError, RemotingError, RemotingTimeoutError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.wire.bodies import (
    GetConsumerStatusBody,
    MessageQueueForC,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    TopicConfig,
)
from spark_rocket.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from spark_rocket.remoting.server.channel import Channel

_log = logging.getLogger(__name__)

_RELAY_SECONDS = 10.0
_STATUS_SECONDS = 5.0
_CPP = ("CPP", LanguageCode.CPP)


class ConsumerRequestProcessor(Processor):
    """Asks consumers."""

    # --- 222 ----------------------------------------------------------------------------------------------------

    @answers(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    def reset_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Move a group to a time or an offset; answered once that is on disk."""
        header = ResetOffsetRequestHeader.from_ext(request.ext_fields)
        config = self._service.known_topic(header.topic, f"Topic {header.topic} does not exist")
        if self._service.config.use_server_side_reset_offset:
            moved = self._reset_here(header, config)
        else:
            moved = self._reset_members(header, config, for_c=request.language in _CPP)
        answer = RemotingCommand.response(request, body=ResetOffsetBody(offset_table=moved).to_json())
        return None if request.is_oneway else self._service.when_settled(channel, answer, files=["offsets"])

    def _reset_here(self, header: ResetOffsetRequestHeader, config: TopicConfig) -> dict[MessageQueue, int]:
        service, topic, group = self._service, header.topic, header.group
        if service.groups.get(group) is None:
            raise RefusedError(
                f"Group {group} does not exist",
                response_code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        wanted = header.queue_id if header.queue_id is not None else -1
        if wanted >= config.read_queue_nums:
            raise RefusedError(
                f"Queue {wanted} of topic {topic} does not exist, it has {config.read_queue_nums}",
                response_code=ResponseCode.INVALID_PARAMETER,
            )
        moved: dict[int, int] = {}
        if wanted >= 0 and header.offset is not None and header.offset >= 0:
            low = service.store.get_min_offset(topic, wanted)
            high = service.store.get_max_offset(topic, wanted)
            if not low <= header.offset <= high:
                raise RefusedError(
                    f"Target offset {header.offset} not in consume queue range [{low}-{high}]",
                    response_code=ResponseCode.SYSTEM_ERROR,
                )
            moved[wanted] = header.offset
        else:
            for queue_id in [wanted] if wanted >= 0 else range(config.read_queue_nums):
                moved[queue_id] = service.offset_at(topic, queue_id, header.timestamp)
        for queue_id, offset in moved.items():
            service.offsets.reset(group, topic, queue_id, offset)
        service.held.wake_topic(topic)  # so that a waiting consumer hears of it now
        return {self._queue(topic, queue_id): offset for queue_id, offset in moved.items()}

    def _reset_members(
        self, header: ResetOffsetRequestHeader, config: TopicConfig, *, for_c: bool
    ) -> dict[MessageQueue, int]:
        """As Apache's 4.x: the members that are online are told, and commit where they are then."""
        service, topic, group = self._service, header.topic, header.group
        table: dict[MessageQueue, int] = {}
        for queue_id in range(config.write_queue_nums):
            committed = service.offsets.query(group, topic, queue_id)
            if committed < 0:
                raise RefusedError(f"THe consumer group <{group}> not exist", response_code=ResponseCode.SYSTEM_ERROR)
            offset = max(service.offset_at(topic, queue_id, header.timestamp), 0)
            table[self._queue(topic, queue_id)] = offset if header.is_force else min(offset, committed)
        live = service.clients.consumers.get(group)
        if live is None:
            raise RefusedError(
                f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} "
                f"Timestamp: {header.timestamp}",
                response_code=ResponseCode.CONSUMER_NOT_ONLINE,
            )
        ext = ResetOffsetRequestHeader(group=group, topic=topic, timestamp=header.timestamp, is_force=False).to_ext()
        if for_c:
            rows = [
                MessageQueueForC(queue.topic, queue.broker_name, queue.queue_id, offset)
                for queue, offset in table.items()
            ]
            body = ResetOffsetBodyForC(offset_table=rows).to_json()
        else:
            body = ResetOffsetBody(offset_table=table).to_json()
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
                f"No Any Consumer online in the consumer group: [{header.group}]",
                response_code=ResponseCode.SYSTEM_ERROR,
            )
        members = [
            member for member in live.members if not header.client_addr or header.client_addr == member.client_id
        ]
        self.answer_later(channel, request, self._statuses(request, header, members))
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
        question = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext)
        try:
            answer = await member.channel.invoke(question, _STATUS_SECONDS)
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                return None
            return GetConsumerStatusBody.from_request(answer.body).message_queue_table
        except (RemotingError, ProtocolError) as error:
            _log.warning("Consumer %s did not say where it is: %s", member.client_id, error)
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
            raise RefusedError(
                f"can not find message by the id {header.msg_id}", response_code=ResponseCode.SYSTEM_ERROR
            )
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
            raise RefusedError(
                f"The Consumer <{group}> <{client_id}> not online", response_code=ResponseCode.SYSTEM_ERROR
            )
        self.answer_later(channel, request, self._relayed(request, target, f"<{group}> <{client_id}>"))
        return None

    async def _relayed(self, request: RemotingCommand, target: Channel, who: str) -> RemotingCommand:
        passed_on = RemotingCommand.request(request.code, request.ext_fields, request.body)
        try:
            answer = await target.invoke(passed_on, _RELAY_SECONDS)
        except RemotingTimeoutError as error:
            return _failed(request, ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer {who} Timeout: {error.message}")
        except RemotingError as error:
            return _failed(request, ResponseCode.SYSTEM_ERROR, f"invoke consumer {who} Exception: {error.message}")
        return RemotingCommand.response(request, answer.code, answer.remark, answer.ext_fields, answer.body)


def _failed(request: RemotingCommand, code: ResponseCode, remark: str) -> RemotingCommand:
    return RemotingCommand.response(request, code, remark)
