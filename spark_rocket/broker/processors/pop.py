"""POP_MESSAGE (200050): messages that are invisible to the group's other members for a while; may be held.

=======================================================  ==========================================
case                                                     code
=======================================================  ==========================================
messages found                                           0; the body is their records
no messages, and the request's timeout expired           210, after it was held; see pop/requests.py
no messages, and too many requests are held              209
the request is already too old                           210
maxMsgNums not 1 to 32; invalid invisibleTime, queueId   29
timerWheelEnable=false: POP requires the timer           1
unknown topic; unknown group                             17; 26
no read permission on the broker, topic or group         16
malformed filter expression                              23
=======================================================  ==========================================

The order of the checks and their codes are Apache's, except for invalid invisible times (below 1 ms, or above
``timerMaxDelaySec``): Apache's broker accepts them and then returns no messages. As in Apache's broker, SQL92 filters
do not require ``enablePropertyFilter``.

Corresponds to org.apache.rocketmq.broker.processor.PopMessageProcessor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from spark_rocket.broker.broker_overload import BrokerOverload
from spark_rocket.broker.delivery.filters import ALL, PullFilter, parse_filter
from spark_rocket.broker.delivery.held_requests import HeldKind, HeldPlace, HeldRequest, HeldRequests, HoldResult
from spark_rocket.broker.pop.acks import MAX_POPPED
from spark_rocket.broker.pop.pop_service import PopService
from spark_rocket.broker.pop.requests import PopRequest, PopResult, time_left
from spark_rocket.broker.processors.processor import Processor, handles
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager, illegal_queue
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.codes import PERM_READ, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.consumer import PopMessageRequestHeader
from spark_rocket.remoting.server.channel import Channel

_MAX_LATENESS_MS = 500
_MAX_ATTEMPT_CHARACTERS = 255


@dataclass(eq=False, kw_only=True)
class PopMessageProcessor(Processor):
    """POP_MESSAGE: responds with messages, or holds the request until there are some."""

    config: BrokerConfig
    clock: Callable[[], int]
    host: str
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    stats: BrokerStats
    pop_service: PopService
    held_requests: HeldRequests
    overload: BrokerOverload

    @handles(RequestCode.POP_MESSAGE)
    def pop(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        now, host = self.clock(), self.host
        if self.overload.pulls is not None:
            self.overload.check_pull()
        header = PopMessageRequestHeader.from_ext(request.ext_fields)
        born = header.born_time or now
        if now - born - header.poll_time > _MAX_LATENESS_MS:
            raise RefusedError(f"the broker[{host}] pop message is timeout too much", ResponseCode.POLLING_TIMEOUT)
        if not self.config.broker_permission & PERM_READ:
            raise RefusedError(f"the broker[{host}] pop message is forbidden", ResponseCode.NO_PERMISSION)
        if header.max_msg_nums > MAX_POPPED:
            raise RefusedError(
                f"the broker[{host}] pop message's num is greater than {MAX_POPPED}", ResponseCode.INVALID_PARAMETER
            )
        if header.max_msg_nums < 1:
            raise RefusedError(
                f"the broker[{host}] pop message's num is {header.max_msg_nums}", ResponseCode.INVALID_PARAMETER
            )
        if len(header.attempt_id or "") > _MAX_ATTEMPT_CHARACTERS:  # it is stored with the state of the queue
            raise RefusedError(
                f"attemptId has more than {_MAX_ATTEMPT_CHARACTERS} characters",
                ResponseCode.INVALID_PARAMETER,
            )
        check_invisible_time(self.pop_service, header.invisible_time)
        check_queue(self.topics, header.topic, header.queue_id, header.consumer_group)
        settings = self.groups.to_consume(header.consumer_group)
        wanted = pop_filter(header.exp_type, header.exp)
        pop = PopRequest(
            header.consumer_group,
            header.topic,
            max(header.queue_id, -1),
            header.max_msg_nums,
            header.invisible_time,
            header.poll_time,
            born,
            header.init_mode,
            wanted,
            header.order or settings.consume_message_orderly,
            header.attempt_id,
        )
        return self._run(channel, request, pop)

    def _run(self, channel: Channel, request: RemotingCommand, pop: PopRequest) -> RemotingCommand | None:
        """Respond, or hold the request if there are no messages."""
        result = self.pop_service.pop(pop)
        if result.count:
            if result.rest_num > 0 or result.is_cut:
                self.held_requests.more(pop.group, pop.topic, pop.queue_id)
            return _response(request, ResponseCode.SUCCESS, "FOUND", result, pop)
        self.stats.get_misses += 1
        held = self._hold(channel, request, pop)
        if held is HoldResult.HELD:
            if (
                result.passed and result.rest_num > 0
            ) or result.is_cut:  # continue after the messages that did not match
                self.held_requests.more(pop.group, pop.topic, pop.queue_id)
            return None
        code = ResponseCode.POLLING_FULL if held is HoldResult.FULL else ResponseCode.POLLING_TIMEOUT
        return _response(request, code, "NO_MESSAGE_IN_QUEUE", result, pop)

    def _hold(self, channel: Channel, request: RemotingCommand, pop: PopRequest) -> HoldResult:
        kind = HeldKind.ORDER if pop.order else HeldKind.POP
        place = HeldPlace(pop.topic, pop.group, pop.queue_id, kind, pop.wanted.tag_codes)
        again = partial(self._again, channel, request, pop)
        held = HeldRequest(channel, request, place, again, partial(self._nothing, request, pop))
        return self.held_requests.hold(held, time_left(pop.born_time, pop.poll_time, self.clock()))

    def _again(self, channel: Channel, request: RemotingCommand, pop: PopRequest) -> RemotingCommand | None:
        check_queue(self.topics, pop.topic, pop.queue_id, pop.group)
        return self._run(channel, request, pop)

    def _nothing(self, request: RemotingCommand, pop: PopRequest) -> RemotingCommand:
        nothing = PopResult(self.clock(), pop.invisible_time, 0)
        return _response(request, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE", nothing, pop)


def check_queue(
    topics: TopicConfigManager,
    topic: str,
    queue_id: int,
    group: str,
    bad_queue: ResponseCode = ResponseCode.INVALID_PARAMETER,
) -> TopicConfig:
    """The topic, if it is readable and has this queue (negative: any); otherwise RefusedError, as Apache's broker."""
    config = topics.known(topic)
    if not config.perm & PERM_READ:
        raise RefusedError(f"the topic[{topic}] peeking message is forbidden", ResponseCode.NO_PERMISSION)
    if queue_id >= config.read_queue_nums:
        raise illegal_queue(config, queue_id, group, bad_queue)
    return config


def pop_filter(kind: str | None, expression: str | None) -> PullFilter:
    """Parse the filter of a pop; RefusedError 23 if it is malformed. SQL92 works without ``enablePropertyFilter``."""
    if not expression:
        return ALL
    try:
        return parse_filter(kind, expression, sql92=True)
    except RefusedError as error:
        raise RefusedError(error.message, ResponseCode.SUBSCRIPTION_PARSE_FAILED, remedy=error.remedy) from None


def check_invisible_time(pops: PopService, invisible_time: int) -> None:
    """Raise RefusedError for an invisible time that the timer does not support."""
    if not 0 < invisible_time <= pops.longest_invisible:
        raise RefusedError(
            f"Invalid invisibleTime {invisible_time}: use 1 to {pops.longest_invisible} ms",
            ResponseCode.INVALID_PARAMETER,
            remedy="The unit is milliseconds; the maximum is the broker's timerMaxDelaySec.",
        )


def _response(request: RemotingCommand, code: int, remark: str, result: PopResult, pop: PopRequest) -> RemotingCommand:
    ext = {
        "popTime": str(result.pop_time),
        "invisibleTime": str(result.invisible_time),
        "reviveQid": str(result.revive_queue_id),
        "restNum": str(result.rest_num),
        "startOffsetInfo": ";".join(result.start_offset_infos),
        "msgOffsetInfo": ";".join(result.msg_offset_infos),
    }
    if pop.order and result.order_count_infos:
        ext["orderCountInfo"] = ";".join(result.order_count_infos)
    records = result.records
    return RemotingCommand.response(request, code, remark, ext, records[0] if len(records) == 1 else b"".join(records))
