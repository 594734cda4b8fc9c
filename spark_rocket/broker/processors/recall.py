"""RECALL_MESSAGE (370): take back a message that waits for its time.

What is stored is a message too: in the timer's topic, due in the same second as the one that it takes away, whose topic
and unique key it names. Once it is acknowledged, the other is not delivered.

Corresponds to org.apache.rocketmq.broker.processor.RecallMessageProcessor, with its order of checks and its remarks.
"""

from __future__ import annotations

from functools import partial

from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.protocol.ids import RecallMessageHandle
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.wire.codes import PERM_WRITE, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import RecallMessageRequestHeader
from spark_rocket.remoting.address import parse_address
from spark_rocket.remoting.server.server import Channel
from spark_rocket.store.results import PutStatus

_TAG = "_RECALL_TAG_"


class RecallMessageProcessor(Processor):
    """Stores recalls."""

    @answers(RequestCode.RECALL_MESSAGE)
    def recall_message(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        service, config = self._service, self._service.config
        header = RecallMessageRequestHeader.from_ext(request.ext_fields)
        handle = self._check(header)
        now = service.clock()
        properties = {
            "TAGS": _TAG,
            "TIMER_DEL_UNIQKEY": f"{handle.topic}+{handle.message_id}",
            "UNIQ_KEY": handle.message_id,
            "TIMER_DELIVER_MS": handle.timestamp,
            "BORN_TIMESTAMP": str(now),
            "PGROUP": header.producer_group or "",
        }
        waiting = service.delays.apply(properties, handle.topic, 0)
        if waiting is None:
            raise _refused("timestamp invalid")
        result = service.store.put_message(
            waiting.topic,
            waiting.queue_id,
            b"0",
            encode_properties(properties),
            born_timestamp=now,
            born_host=parse_address(channel.remote_addr),
        )
        if result.status is not PutStatus.PUT_OK:
            raise RefusedError(
                f"recall failed, execute error: {result.reason}", response_code=ResponseCode.SYSTEM_ERROR
            )
        service.message_waits(waiting)
        ext = {"msgId": handle.message_id, "MSG_REGION": config.region_id}
        answer = RemotingCommand.response(request, ResponseCode.SUCCESS, None, ext)
        if service.stored.waits:
            service.stored.when_stored(result.end_physical_offset, partial(self._write, channel, answer))
            return None
        return answer

    @staticmethod
    def _write(channel: Channel, answer: RemotingCommand, code: ResponseCode) -> None:
        """A recall that is stored and not yet flushed or replicated counts, as in Apache's broker."""
        channel.write(answer)

    def _check(self, header: RecallMessageRequestHeader) -> RecallMessageHandle:
        """The handle of a recall that is allowed and in time."""
        service, config = self._service, self._service.config
        if not config.recall_message_enable:
            raise RefusedError("recall failed, operation is forbidden", response_code=ResponseCode.NO_PERMISSION)
        writable = config.broker_permission & PERM_WRITE or config.allow_recall_when_broker_not_writeable
        if service.clock() < config.start_accept_send_request_time_stamp or not writable:
            raise _refused("broker service not available", ResponseCode.SERVICE_NOT_AVAILABLE)
        if service.topics.get(header.topic) is None:
            raise _refused(f"the topic[{header.topic}] not exist", ResponseCode.TOPIC_NOT_EXIST)
        try:
            handle = RecallMessageHandle.decode(header.recall_handle)
        except ProtocolError:
            raise RefusedError("recall handle is invalid", response_code=ResponseCode.ILLEGAL_OPERATION) from None
        if handle.topic != header.topic:
            raise _refused("topic not match")
        if handle.broker_name != config.broker_name:
            raise _refused("broker service not available")
        digits = handle.timestamp.isascii() and handle.timestamp.isdigit() and len(handle.timestamp) < 20
        left = int(handle.timestamp) - service.clock() if digits else 0
        if not 0 < left < config.timer_max_delay_sec * 1000:
            raise _refused("timestamp invalid")
        return handle


def _refused(why: str, code: ResponseCode = ResponseCode.ILLEGAL_OPERATION) -> RefusedError:
    return RefusedError(f"recall failed, {why}", response_code=code)
