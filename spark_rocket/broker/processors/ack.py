"""Acknowledge popped messages: ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151), CHANGE_MESSAGE_INVISIBLETIME (200053).

=====================================================  ================================================================
case                                                   code
=====================================================  ================================================================
acked now or before, or the invisible time expired     0
the queue does not have the offset                     208; in a batch it is skipped
a batch without acks                                   208
unknown topic; unknown queue                           17; 13. In a batch both are skipped
the receipt cannot be from this broker                 29; Apache's accepts any valid receipt, and responds 1 otherwise
popped in order, and the message is not in flight      13
=====================================================  ================================================================

The response to a change of the invisible time has popTime, invisibleTime and reviveQid. The client makes the next
receipt of them (with the message's own offset as start offset); the old receipt becomes invalid. The code is 208 if the
time had expired or the message was acked: Apache's broker would deliver it twice.

The bits of a batch are a ``java.util.BitSet`` in base64, or its bytes as numbers (fastjson 2).
Corresponds to AckMessageProcessor and ChangeInvisibleTimeProcessor.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64
from dataclasses import dataclass

from spark_rocket.broker.pop.pop_service import PopService
from spark_rocket.broker.processors.pop import check_invisible_time
from spark_rocket.broker.processors.processor import Processor, handles
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager, illegal_queue
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.protocol.ids import ExtraInfo, parse_extra_info, real_topic
from spark_rocket.protocol.requests import body_of
from spark_rocket.protocol.wire.bodies.consumer import BatchAck, BatchAckMessageRequestBody
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.consumer import AckMessageRequestHeader, ChangeInvisibleTimeRequestHeader
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.message_store import MessageStore

_MAX_BITS = 1 << 16


@dataclass(eq=False, kw_only=True)
class AckMessageProcessor(Processor):
    """Acks, and changes of the invisible time."""

    config: BrokerConfig
    store: MessageStore
    topics: TopicConfigManager
    pop_service: PopService

    @handles(RequestCode.ACK_MESSAGE)
    def ack(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = AckMessageRequestHeader.from_ext(request.ext_fields)
        self._check_queue(header.topic, header.queue_id, header.consumer_group)
        first, end = self._span(header.topic, header.queue_id)
        if not first <= header.offset <= end:
            raise RefusedError(
                f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset}, store:{first}~{end}",
                ResponseCode.NO_MESSAGE,
            )
        receipt = _receipt(header.extra_info)
        self.pop_service.ack(header.consumer_group, header.topic, header.queue_id, receipt, header.offset)
        return RemotingCommand.response(request)

    @handles(RequestCode.BATCH_ACK_MESSAGE)
    def batch_ack(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        body = body_of(request, BatchAckMessageRequestBody) if request.body else BatchAckMessageRequestBody()
        if not body.acks:
            return RemotingCommand.response(request, ResponseCode.NO_MESSAGE)
        broker_name = body.broker_name or self.config.broker_name
        problem: RefusedError | None = None
        for ack in body.acks:
            try:
                self._ack_many(ack, broker_name)
            except RefusedError as error:  # the other acks are still processed
                problem = error
        if problem is not None:
            raise problem
        return RemotingCommand.response(request)

    def _ack_many(self, ack: BatchAck, broker_name: str) -> None:
        topic = real_topic(ack.topic, ack.consumer_group, ack.retry)
        config = self.topics.get(topic)
        if config is None or not 0 <= ack.queue_id < config.read_queue_nums:
            return
        numbers = (ack.start_offset, ack.pop_time, ack.invisible_time, ack.revive_queue_id)
        if any(not 0 <= number < 1 << 62 for number in numbers):
            raise RefusedError(
                "invalid ack: startOffset, popTime, invisibleTime and reviveQueueId must be between 0 and 2^62 - 1",
                ResponseCode.INVALID_PARAMETER,
            )
        first, end = self._span(topic, ack.queue_id)
        bits = _bits(ack.bit_set)
        if end < ack.start_offset:
            return
        bits &= (1 << min(end - ack.start_offset + 1, _MAX_BITS)) - 1
        if first > ack.start_offset:
            gone = min(first - ack.start_offset, _MAX_BITS)
            bits = bits >> gone << gone
        receipt = ExtraInfo(
            ack.start_offset,
            ack.pop_time,
            ack.invisible_time,
            ack.revive_queue_id,
            ack.retry,
            broker_name,
            ack.queue_id,
        )
        self.pop_service.ack_many(ack.consumer_group, topic, ack.queue_id, receipt, bits)

    @handles(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    def change_invisible_time(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = ChangeInvisibleTimeRequestHeader.from_ext(request.ext_fields)
        self._check_queue(header.topic, header.queue_id, header.consumer_group)
        first, end = self._span(header.topic, header.queue_id)
        if not first <= header.offset < end:
            return RemotingCommand.response(request, ResponseCode.NO_MESSAGE)
        check_invisible_time(self.pop_service, header.invisible_time)
        changed = self.pop_service.change_invisible(
            header.consumer_group,
            header.topic,
            header.queue_id,
            _receipt(header.extra_info),
            header.offset,
            header.invisible_time,
            suspend=bool(header.suspend),
        )
        if changed is None:
            return RemotingCommand.response(request)
        return RemotingCommand.response(
            request,
            ext_fields={
                "popTime": str(changed.pop_time),
                "invisibleTime": str(changed.invisible_time),
                "reviveQid": str(changed.revive_queue_id),
            },
        )

    def _check_queue(self, topic: str, queue_id: int, group: str) -> None:
        config = self.topics.known(topic)
        if not 0 <= queue_id < config.read_queue_nums:
            raise illegal_queue(config, queue_id, group, ResponseCode.MESSAGE_ILLEGAL)

    def _span(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self.store.get_min_offset(topic, queue_id), self.store.get_max_offset(topic, queue_id)


def _receipt(text: str) -> ExtraInfo:
    try:
        return parse_extra_info(text)
    except ProtocolError as error:
        raise RefusedError(error.message, ResponseCode.INVALID_PARAMETER, remedy=error.remedy) from None


def _bits(value: object) -> int:
    """Decode a bit set to a number; RefusedError if it is invalid."""
    raw = b""
    try:
        if isinstance(value, str) and len(value) <= 2 * _MAX_BITS:
            raw = a2b_base64(value, strict_mode=True) if value else b""
        elif isinstance(value, list) and len(value) <= _MAX_BITS:
            raw = bytes(each & 0xFF if -128 <= each < 256 else -1 for each in value)
        elif value is not None:
            raise ValueError
        if len(raw) > _MAX_BITS // 8:
            raise ValueError
    except (ValueError, TypeError, Base64Error):
        raise RefusedError(
            "invalid bit set of an ack: encode it as base64 or as a list of bytes", ResponseCode.INVALID_PARAMETER
        ) from None
    return int.from_bytes(raw, "little")
