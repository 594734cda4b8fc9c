"""CONSUMER_SEND_MSG_BACK (36): redeliver a message to the group of a consumer that failed to process it.

The record is looked up by its offset in the log and stored again, with the same body and origin:

==========================  ==========================================================================================
new record                  value
==========================  ==========================================================================================
reconsume times             incremented
RETRY_TOPIC                 the original topic; set once
ORIGIN_MESSAGE_ID           the original offset id; set once
DELAY                       the requested level; 0 means 3 + the reconsume times so far (10 s, 30 s, 1 min …)
WAIT                        false, as in Apache's broker
==========================  ==========================================================================================

The record goes to ``%RETRY%group`` after the delay (delivery/delay_rules.py). It goes to the dead-letter topic
``%DLQ%group`` at once if the level is negative, or after the maximum number of attempts in the request (clients since
3.4.9) or in the group's settings (``retryMaxTimes``, 16). For a group without retry queues the response is success, and
nothing is stored.

Unlike in Apache's broker, the response is sent when the new record is durable: with SYNC_FLUSH, when it is on disk. A
record of another topic than that of the request is refused: the offset may come from a deleted store.
Corresponds to AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from spark_rocket.broker.delivery.delay_rules import DelayRules
from spark_rocket.broker.delivery.delivery_timers import DeliveryTimers
from spark_rocket.broker.processors.processor import Processor, handles
from spark_rocket.broker.responses import Responses
from spark_rocket.broker.settling_topics import SettlingTopics
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.model import DLQ_PREFIX, RETRY_PREFIX
from spark_rocket.protocol.ids import encode_offset_msg_id
from spark_rocket.protocol.record.properties import decode_properties, join_properties
from spark_rocket.protocol.record.record import RecordView, view_record
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.protocol.wire.codes import PERM_WRITE, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.consumer import ConsumerSendMsgBackRequestHeader
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.delay.redelivery import put_record
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutStatus

_V3_4_9 = 121
_FIRST_LEVEL = 3


@dataclass(eq=False, kw_only=True)
class SendBackProcessor(Processor):
    """Redelivery of messages that consumers send back."""

    config: BrokerConfig
    host: str
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    stats: BrokerStats
    responses: Responses
    delay_rules: DelayRules
    delivery_timers: DeliveryTimers
    settling_topics: SettlingTopics

    @handles(RequestCode.CONSUMER_SEND_MSG_BACK)
    def send_back(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = ConsumerSendMsgBackRequestHeader.from_ext(request.ext_fields)
        group = header.group
        settings = self._settings(group)
        if settings.retry_queue_nums <= 0:
            return RemotingCommand.response(request)
        retry = self.topics.ensure(RETRY_PREFIX + group, settings.retry_queue_nums)
        if not retry.perm & PERM_WRITE:
            raise RefusedError(
                f"the topic[{retry.topic_name}] sending message is forbidden", ResponseCode.NO_PERMISSION
            )
        record = self._record(header)
        properties = decode_properties(record.properties)
        properties.pop("__CRC32#", None)  # the checksum of the old record, if RocketMQ 5 wrote it
        properties.setdefault("RETRY_TOPIC", str(record.topic, "utf-8"))
        properties["WAIT"] = "false"
        if not properties.get("ORIGIN_MESSAGE_ID"):
            properties["ORIGIN_MESSAGE_ID"] = encode_offset_msg_id(record.store_host, record.physical_offset)
        waiting = None
        if header.delay_level < 0 or record.reconsume_times >= _max_attempts(request, header, settings):
            topic, queue_id = self.topics.ensure(DLQ_PREFIX + group).topic_name, 0
            properties["DELAY"] = "0"
        else:
            topic, queue_id = retry.topic_name, random.randrange(max(retry.write_queue_nums, 1))
            properties["DELAY"] = str(header.delay_level or _FIRST_LEVEL + record.reconsume_times)
            waiting = self.delay_rules.apply(properties, topic, queue_id)
        self.settling_topics.refuse_unsaved(topic)
        place = (topic, queue_id) if waiting is None else (waiting.topic, waiting.queue_id)
        times = record.reconsume_times + 1
        result = put_record(self.store, *place, record, join_properties(properties), reconsume_times=times)
        if result.status is not PutStatus.PUT_OK:
            raise RefusedError(result.reason or result.status.value, ResponseCode.SYSTEM_ERROR)
        counts = self.stats.group(group, str(record.topic, "utf-8", "replace"))
        counts.send_backs += 1
        if waiting is not None:
            self.delivery_timers.expect(waiting.topic, waiting.due)
        else:
            counts.dead_letters += 1
        end = result.end_physical_offset
        return self.responses.when_stored(channel, request, end, (topic,), on_timeout=_report_unflushed)

    def _settings(self, group: str) -> SubscriptionGroupConfig:
        settings = self.groups.to_retry(group)
        if not self.config.broker_permission & PERM_WRITE:
            raise RefusedError(f"the broker[{self.host}] sending message is forbidden", ResponseCode.NO_PERMISSION)
        return settings

    def _record(self, header: ConsumerSendMsgBackRequestHeader) -> RecordView:
        raw = self.store.look_message_by_offset(header.offset)
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


def _report_unflushed(response: RemotingCommand, code: ResponseCode) -> None:
    """Success even if no slave has the record: a retry would only add a copy."""
    if code is ResponseCode.FLUSH_DISK_TIMEOUT:  # the record is stored: a retry makes a duplicate
        response.code, response.remark = ResponseCode.SYSTEM_ERROR, PutStatus.FLUSH_DISK_TIMEOUT.value


def _max_attempts(
    request: RemotingCommand, header: ConsumerSendMsgBackRequestHeader, settings: SubscriptionGroupConfig
) -> int:
    if request.version >= _V3_4_9 and header.max_reconsume_times is not None:
        return header.max_reconsume_times
    return settings.retry_max_times
