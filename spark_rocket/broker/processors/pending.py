"""Delayed and timed messages: RECALL_MESSAGE (370) cancels one; their numbers by topic (61); and their progress, which
slaves copy (GET_ALL_DELAY_OFFSET, 45; GET_TIMER_CHECK_POINT, 60).

A recall is also stored as a message: in the timer's topic, due in the same second as the message that it cancels, with
the topic and unique key of that message. Once the recall is acknowledged, the message is not delivered.

Apache's broker keeps the timer's counts in a file. Here they are counted in the timer log on request, without the
messages of the current second that are already delivered. A recall counts -1, as in Apache's broker.
Corresponds to RecallMessageProcessor, with the same order of checks and the same remarks, and to
AdminBrokerProcessor.{getAllDelayOffset, getTimerCheckPoint, getTimerMetrics}.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_rocket.broker.delivery.delay_rules import DelayRules
from spark_rocket.broker.delivery.delivery_timers import DeliveryTimers
from spark_rocket.broker.processors.processor import Processor, Steps, handles, handles_in_steps
from spark_rocket.broker.responses import Responses
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.steps import in_steps
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.ids import RecallMessageHandle
from spark_rocket.protocol.record.properties import join_properties
from spark_rocket.protocol.wire.bodies.config import DataVersion
from spark_rocket.protocol.wire.bodies.stats import TimerMetric, TimerMetricsSerializeWrapper
from spark_rocket.protocol.wire.codes import PERM_WRITE, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import RecallMessageRequestHeader
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.remoting.address import parse_address
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.delay.schedule_message_service import ScheduleMessageService
from spark_rocket.store.delay.timer_store import TimerMessageStore
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutStatus

_TAG = "_RECALL_TAG_"


@dataclass(eq=False, kw_only=True)
class PendingMessageProcessor(Processor):
    """Recalls, counts and progress of delayed and timed messages."""

    config: BrokerConfig
    clock: Callable[[], int]
    store: MessageStore
    topics: TopicConfigManager
    responses: Responses
    delay_rules: DelayRules
    schedule_message_service: ScheduleMessageService
    timer_store: TimerMessageStore | None
    delivery_timers: DeliveryTimers

    @handles(RequestCode.RECALL_MESSAGE)
    def recall_message(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        config = self.config
        header = RecallMessageRequestHeader.from_ext(request.ext_fields)
        handle = self._recall_handle(header)
        now = self.clock()
        properties = {
            "TAGS": _TAG,
            "TIMER_DEL_UNIQKEY": f"{handle.topic}+{handle.message_id}",
            "UNIQ_KEY": handle.message_id,
            "TIMER_DELIVER_MS": handle.timestamp,
            "BORN_TIMESTAMP": str(now),
            "PGROUP": header.producer_group or "",
        }
        waiting = self.delay_rules.apply(properties, handle.topic, 0)
        if waiting is None:
            raise _recall_refused("timestamp invalid")
        result = self.store.put_message(
            waiting.topic,
            waiting.queue_id,
            b"0",
            join_properties(properties),
            born_timestamp=now,
            born_host=parse_address(channel.remote_addr),
        )
        if result.status is not PutStatus.PUT_OK:
            raise RefusedError(f"recall failed, execute error: {result.reason}", ResponseCode.SYSTEM_ERROR)
        self.delivery_timers.expect(waiting.topic, waiting.due)
        ext = {"msgId": handle.message_id, "MSG_REGION": config.region_id}
        response = RemotingCommand.response(request, ResponseCode.SUCCESS, None, ext)
        end = result.end_physical_offset
        return self.responses.when_stored(channel, request, end, response=response, on_timeout=_still_valid)

    def _recall_handle(self, header: RecallMessageRequestHeader) -> RecallMessageHandle:
        """Decode the handle and check that the recall is permitted and the message still pending."""
        config = self.config
        if not config.recall_message_enable:
            raise RefusedError("recall failed, operation is forbidden", ResponseCode.NO_PERMISSION)
        writable = config.broker_permission & PERM_WRITE or config.allow_recall_when_broker_not_writeable
        if self.clock() < config.start_accept_send_request_time_stamp or not writable:
            raise _recall_refused("broker service not available", ResponseCode.SERVICE_NOT_AVAILABLE)
        if self.topics.get(header.topic) is None:
            raise _recall_refused(f"the topic[{header.topic}] not exist", ResponseCode.TOPIC_NOT_EXIST)
        try:
            handle = RecallMessageHandle.decode(header.recall_handle)
        except ProtocolError:
            raise RefusedError("recall handle is invalid", ResponseCode.ILLEGAL_OPERATION) from None
        if handle.topic != header.topic:
            raise _recall_refused("topic not match")
        if handle.broker_name != config.broker_name:
            raise _recall_refused("broker service not available")
        digits = handle.timestamp.isascii() and handle.timestamp.isdigit() and len(handle.timestamp) < 20
        left = int(handle.timestamp) - self.clock() if digits else 0
        if not 0 < left < config.timer_max_delay_sec * 1000:
            raise _recall_refused("timestamp invalid")
        return handle

    @handles_in_steps(RequestCode.GET_TIMER_METRICS)
    def timer_metrics(self, channel: Channel, request: RemotingCommand) -> Steps:
        return self._timer_metrics(request, self._running_timer())

    async def _timer_metrics(self, request: RemotingCommand, timer: TimerMessageStore) -> RemotingCommand:
        counts: dict[int, int] = {}
        async for part in in_steps(timer.counts_by_topic()):
            for code, count in part.items():
                counts[code] = counts.get(code, 0) + count
        now = self.clock()
        names = {java_hash(topic): topic for topic in self.topics.table} if counts else {}
        found = {names[code]: TimerMetric(count, now) for code, count in counts.items() if code in names}
        version = DataVersion(timestamp=now, counter=timer.slots_done)
        return RemotingCommand.response(request, body=TimerMetricsSerializeWrapper(found, version).to_json())

    @handles(RequestCode.GET_ALL_DELAY_OFFSET)
    def all_delay_offsets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, body=dumps_fastjson(self.schedule_message_service.snapshot()))

    @handles(RequestCode.GET_TIMER_CHECK_POINT)
    def timer_check_point(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, body=self._running_timer().checkpoint())

    def _running_timer(self) -> TimerMessageStore:
        if self.timer_store is None:
            raise RefusedError(
                "this broker has no timer",
                ResponseCode.SYSTEM_ERROR,
                remedy="Send the request to a master with timerWheelEnable=true.",
            )
        return self.timer_store


def _still_valid(response: RemotingCommand, code: ResponseCode) -> None:
    """Leave the response as it is: a stored recall is valid, as in Apache's broker."""


def _recall_refused(why: str, code: ResponseCode = ResponseCode.ILLEGAL_OPERATION) -> RefusedError:
    return RefusedError(f"recall failed, {why}", code)
