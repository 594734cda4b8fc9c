"""CONSUMER_SEND_MSG_BACK (36): a message that a consumer could not consume, to be delivered to its group again.

The record is looked up by its offset in the log and stored anew, body and origin as they were:

==========================  ==========================================================================================
of the new record
==========================  ==========================================================================================
reconsume times             one more
RETRY_TOPIC                 the topic that it was sent to first; set once
ORIGIN_MESSAGE_ID           the offset id that it had first; set once
DELAY                       the level asked for; 0 asks for 3 + the reconsume times so far (10 s, 30 s, 1 min …)
WAIT                        false, as in Apache's broker
==========================  ==========================================================================================

It goes to ``%RETRY%group``, by way of the delay levels (delayed.py); or to ``%DLQ%group`` at once, where nobody is sent
it again: when the level is negative, or after as many times as the request says (clients from 3.4.9 on) or the group
(``retryMaxTimes``, 16). A group without retry queues wants nothing again: success, and nothing is stored.

Unlike Apache's, the answer comes when the new record would survive: with SYNC_FLUSH when it is on disk. And a record of
another topic than the request names is not taken for the consumer's: the offset may be that of a store that is gone.
Corresponds to AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from __future__ import annotations

import random
from functools import partial

from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.model import DLQ_PREFIX, RETRY_PREFIX
from spark_rocket.protocol.ids import encode_offset_msg_id
from spark_rocket.protocol.record.properties import decode_properties, join_properties
from spark_rocket.protocol.record.record import RecordView, view_record
from spark_rocket.protocol.wire.bodies import SubscriptionGroupConfig
from spark_rocket.protocol.wire.codes import PERM_WRITE, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import ConsumerSendMsgBackRequestHeader
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.delay.redelivery import put_record
from spark_rocket.store.results import PutStatus

_V3_4_9 = 121
_FIRST_LEVEL = 3


class SendBackProcessor(Processor):
    """Takes messages back."""

    @answers(RequestCode.CONSUMER_SEND_MSG_BACK)
    def send_back(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = ConsumerSendMsgBackRequestHeader.from_ext(request.ext_fields)
        service, group = self._service, header.group
        settings = self._settings(group)
        if settings.retry_queue_nums <= 0:
            return RemotingCommand.response(request)
        retry = service.topics.ensure(RETRY_PREFIX + group, settings.retry_queue_nums)
        if not retry.perm & PERM_WRITE:
            raise RefusedError(
                f"the topic[{retry.topic_name}] sending message is forbidden", ResponseCode.NO_PERMISSION
            )
        record = self._record(header)
        properties = decode_properties(record.properties)
        properties.pop("__CRC32#", None)  # of the old record, if RocketMQ 5 wrote it
        properties.setdefault("RETRY_TOPIC", str(record.topic, "utf-8"))
        properties["WAIT"] = "false"
        if not properties.get("ORIGIN_MESSAGE_ID"):
            properties["ORIGIN_MESSAGE_ID"] = encode_offset_msg_id(record.store_host, record.physical_offset)
        waiting = None
        if header.delay_level < 0 or record.reconsume_times >= _most_times(request, header, settings):
            topic, queue_id = service.topics.ensure(DLQ_PREFIX + group).topic_name, 0
            properties["DELAY"] = "0"
        else:
            topic, queue_id = retry.topic_name, random.randrange(max(retry.write_queue_nums, 1))
            properties["DELAY"] = str(header.delay_level or _FIRST_LEVEL + record.reconsume_times)
            waiting = service.delays.apply(properties, topic, queue_id)
        service.refuse_unsaved(topic)
        place = (topic, queue_id) if waiting is None else (waiting.topic, waiting.queue_id)
        times = record.reconsume_times + 1
        result = put_record(service.store, *place, record, join_properties(properties), reconsume_times=times)
        if result.status is not PutStatus.PUT_OK:
            raise RefusedError(result.reason or result.status.value, ResponseCode.SYSTEM_ERROR)
        counts = service.stats.group(group, str(record.topic, "utf-8", "replace"))
        counts.send_backs += 1
        if waiting is not None:
            service.message_waits(waiting)
        else:
            counts.dead_letters += 1
        if service.stored.waits:
            service.stored.when_stored(result.end_physical_offset, partial(self._answer, channel, request, topic))
            return None
        return service.when_settled(channel, RemotingCommand.response(request), (topic,))

    def _settings(self, group: str) -> SubscriptionGroupConfig:
        """The settings of a group that may send back."""
        service = self._service
        settings = service.group_that_retries(group)
        if not service.config.broker_permission & PERM_WRITE:
            raise RefusedError(
                f"the broker[{service.store_host[0]}] sending message is forbidden", ResponseCode.NO_PERMISSION
            )
        return settings

    def _record(self, header: ConsumerSendMsgBackRequestHeader) -> RecordView:
        raw = self._service.store.look_message_by_offset(header.offset)
        try:
            record = view_record(raw or b"")
        except ProtocolError:
            raise RefusedError(f"look message by offset failed, {header.offset}", ResponseCode.SYSTEM_ERROR) from None
        topics = (str(record.topic, "utf-8"), decode_properties(record.properties).get("RETRY_TOPIC"))
        if header.origin_topic and header.origin_topic not in topics:
            raise RefusedError(
                f"look message by offset failed to check the topic name {header.origin_topic}, it is {topics[0]}",
                ResponseCode.SYSTEM_ERROR,
            )
        return record

    def _answer(self, channel: Channel, request: RemotingCommand, topic: str, code: ResponseCode) -> None:
        """Of what no slave has yet a client would only send a copy, which none would have either."""
        answer = RemotingCommand.response(request)
        if code is ResponseCode.FLUSH_DISK_TIMEOUT:  # stored all the same: who tries again has it twice
            answer = RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, PutStatus.FLUSH_DISK_TIMEOUT.value)
        if not request.is_oneway and self._service.when_settled(channel, answer, (topic,)) is not None:
            channel.write(answer)


def _most_times(
    request: RemotingCommand, header: ConsumerSendMsgBackRequestHeader, settings: SubscriptionGroupConfig
) -> int:
    if request.version >= _V3_4_9 and header.max_reconsume_times is not None:
        return header.max_reconsume_times
    return settings.retry_max_times
