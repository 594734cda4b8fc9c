"""SEND_REPLY_MESSAGE (324) and SEND_REPLY_MESSAGE_V2 (325): deliver the reply to a request message to the requester.

The reply is pushed (326) over the connection of the client in REPLY_TO_CLIENT, which must be registered as a producer
by a heartbeat. The response is sent when that client has the reply. With ``storeReplyMessageEnable`` the reply is also
stored, whether it was delivered or not, and the response has its place. Pushed and stored replies have the properties
MSG_REGION and TRACE_ON of this broker.

Corresponds to org.apache.rocketmq.broker.processor.ReplyMessageProcessor, with the same remarks. As in Apache's broker,
the response is success if the reply was delivered but could not be stored; that is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from spark_rocket.broker.processors.processor import Processor, handles
from spark_rocket.broker.responses import Responses
from spark_rocket.broker.send_targets import SendTargets, check_size
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.state.client_manager import ClientManager
from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import ProtocolError, RefusedError, RemotingError
from spark_rocket.protocol.ids import encode_offset_msg_id
from spark_rocket.protocol.record.properties import decode_properties, encode_properties
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import ReplyMessageRequestHeader, SendMessageRequestHeader
from spark_rocket.remoting.address import format_address, parse_address
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutStatus

_often = RateLimited(logging.getLogger(__name__))

_PUSH_TIMEOUT_S = 10.0
_COMPRESSION_AND_HOSTS = 0x733  # allowed bits of a reply's sysFlag: types of compression and of addresses


@dataclass(eq=False, kw_only=True)
class ReplyMessageProcessor(Processor):
    """Delivery of replies to requesters."""

    config: BrokerConfig
    clock: Callable[[], int]
    store_host: tuple[str, int]
    store: MessageStore
    clients: ClientManager
    stats: BrokerStats
    responses: Responses
    targets: SendTargets

    @handles(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
    def reply(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        if request.code == RequestCode.SEND_REPLY_MESSAGE_V2:
            header = SendMessageRequestHeader.from_ext_v2(request.ext_fields)
        else:
            header = SendMessageRequestHeader.from_ext(request.ext_fields)
        target = self.targets.find(header.topic, header.default_topic, header.default_topic_queue_nums)
        header.queue_id = target.choose_queue(header.queue_id)
        check_size(self.config, request.body)
        if header.sys_flag & ~_COMPRESSION_AND_HOSTS:
            raise RefusedError(
                f"invalid sysFlag {header.sys_flag} of a reply: replies cannot be transactional or in a batch",
                ResponseCode.MESSAGE_ILLEGAL,
            )
        header.properties = encode_properties(decode_properties(header.properties) | self._trace_fields()).decode()
        request.body = bytes(request.body)  # the frame's buffer is reused
        self.responses.relay(channel, request, self._pass_on(channel, request, header), 1 + len(request.body) // 1024)
        return None

    def _trace_fields(self) -> dict[str, str]:
        """Fields of the response and properties of the reply."""
        config = self.config
        return {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}

    async def _pass_on(
        self, channel: Channel, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> RemotingCommand:
        config = self.config
        ext = self._trace_fields()
        problem = await self._push(channel, request, header)
        if problem is None:
            ext |= {"msgId": "0", "queueId": str(header.queue_id), "queueOffset": "0"}
        if config.store_reply_message_enable:
            ext |= self._put(channel, request, header)
        code = ResponseCode.SUCCESS if problem is None else ResponseCode.SYSTEM_ERROR
        return RemotingCommand.response(request, code, problem, ext)

    async def _push(self, channel: Channel, request: RemotingCommand, header: SendMessageRequestHeader) -> str | None:
        """Push the reply to the requester; return the error, or None on success."""
        properties = decode_properties(header.properties)
        client_id = properties.get("REPLY_TO_CLIENT")
        if client_id is None:
            return "reply message properties[REPLY_TO_CLIENT] is null"
        target = self.clients.producer_channel(client_id)
        if target is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now = self.clock()
        properties["PUSH_REPLY_TIME"] = str(now)
        push = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            # With the slash that Java writes before an address: Java clients remove it.
            born_host=f"/{channel.remote_addr}",
            store_host=f"/{format_address(*self.store_host)}",
            store_timestamp=now,
            properties=encode_properties(properties).decode(),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
        )
        pushed = RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push.to_ext(), request.body)
        try:
            response = await target.invoke(pushed, _PUSH_TIMEOUT_S)
        except RemotingError as error:
            _often.warning("push", "push reply message to <%s> fail: %s", client_id, error.message)
            return f"push reply message to {client_id}fail."
        if response.code != ResponseCode.SUCCESS:
            _often.warning(
                "push", "push reply message to <%s> return fail, response remark: %s", client_id, response.remark
            )
            return f"push reply message to {client_id}fail."
        return None

    def _put(self, channel: Channel, request: RemotingCommand, header: SendMessageRequestHeader) -> dict[str, str]:
        """Store the reply; return the fields of the response with its place."""
        try:
            result = self.store.put_message(
                header.topic,
                header.queue_id,
                request.body,
                header.properties.encode(),
                flag=header.flag,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                born_host=parse_address(channel.remote_addr),
                reconsume_times=header.reconsume_times,
            )
        except ProtocolError as error:
            _often.warning("store", "failed to store a reply to %s: %s", header.topic, error)
            return {}
        if result.status not in (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT):
            _often.warning(
                "store", "failed to store a reply to %s: %s", header.topic, result.reason or result.status.value
            )
            return {}
        self.stats.puts += 1
        return {
            "msgId": encode_offset_msg_id(self.store_host, result.physical_offset),
            "queueId": str(header.queue_id),
            "queueOffset": str(result.queue_offset),
        }
