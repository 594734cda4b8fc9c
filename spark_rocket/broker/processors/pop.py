"""POP_MESSAGE (200050): messages for a group, each invisible to its others for a while; or an answer later.

=======================================================  ==========================================
case                                                     code
=======================================================  ==========================================
messages                                                 0; the body is their records
none, and the request's time is up                       210, after it was held; see hooks.py
none, and too many wait                                  209
the request is too old already                           210
maxMsgNums not 1 to 32; a bad invisibleTime; queueId     29
timerWheelEnable is off, on which POP rests              1
no such topic; no such group                             17; 26
the broker, the topic or the group may not be read       16
the expression cannot be understood                      23
=======================================================  ==========================================

The order of the checks and their codes are Apache's, but for invisible times that cannot be kept (below 1 ms, or above
``timerMaxDelaySec``), which it takes and then gives nothing. SQL92 filters need no ``enablePropertyFilter``, as there.
Corresponds to PopMessageProcessor.processRequest.
"""

from __future__ import annotations

from functools import partial

from spark_rocket.broker.delivery.filters import ALL, PullFilter, parse_filter
from spark_rocket.broker.pop.hooks import Held, PopRequest
from spark_rocket.broker.pop.result import PopResult
from spark_rocket.broker.pop.service import PopService
from spark_rocket.broker.processors.base import Processor, answer_held, answers
from spark_rocket.broker.service import BrokerService
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.bodies import TopicConfig
from spark_rocket.protocol.wire.codes import PERM_READ, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import PopMessageRequestHeader
from spark_rocket.remoting.server.server import Channel

MAX_MESSAGES = 32
_TOO_OLD_MS = 500


class PopMessageProcessor(Processor):
    """Answers pops, or has them held until there is something to answer."""

    def __init__(self, service: BrokerService) -> None:
        super().__init__(service)
        self._config = service.config

    @answers(RequestCode.POP_MESSAGE)
    def pop(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        service, now = self._service, self._service.clock()
        if service.overload.pulls is not None:
            service.overload.check_pull()
        header = PopMessageRequestHeader.from_ext(request.ext_fields)
        born = header.born_time or now
        host = service.store_host[0]
        if now - born - header.poll_time > _TOO_OLD_MS:
            raise RefusedError(
                f"the broker[{host}] pop message is timeout too much", response_code=ResponseCode.POLLING_TIMEOUT
            )
        if not self._config.broker_permission & PERM_READ:
            raise RefusedError(f"the broker[{host}] pop message is forbidden", response_code=ResponseCode.NO_PERMISSION)
        if header.max_msg_nums > MAX_MESSAGES:
            raise RefusedError(
                f"the broker[{host}] pop message's num is greater than {MAX_MESSAGES}",
                response_code=ResponseCode.INVALID_PARAMETER,
            )
        if header.max_msg_nums < 1:
            raise RefusedError(
                f"the broker[{host}] pop message's num is {header.max_msg_nums}",
                response_code=ResponseCode.INVALID_PARAMETER,
            )
        pops = pop_service(service)
        check_invisible_time(pops, header.invisible_time)
        check_queue(service, header.topic, header.queue_id, header.consumer_group)
        settings = service.group_to_consume(header.consumer_group)
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
        return self._run(pops, channel, request, pop)

    def _run(
        self, pops: PopService, channel: Channel, request: RemotingCommand, pop: PopRequest
    ) -> RemotingCommand | None:
        """Answer, or hold when nothing is there."""
        result, waiting = pops.pop(pop), self._service.waiting
        if result.count:
            if result.rest_num > 0:
                waiting.more(pop.topic, pop.queue_id, pop.group)
            return _answer(request, ResponseCode.SUCCESS, "FOUND", result, pop)
        self._service.stats.get_misses += 1
        held = waiting.hold(channel, request, pop, partial(self._again, pops, channel, request, pop))
        if held is Held.HELD:
            if result.passed and result.rest_num > 0:  # look on behind what the filter did not want
                waiting.more(pop.topic, pop.queue_id, pop.group)
            return None
        code = ResponseCode.POLLING_FULL if held is Held.FULL else ResponseCode.POLLING_TIMEOUT
        return _answer(request, code, "NO_MESSAGE_IN_QUEUE", result, pop)

    def _again(self, pops: PopService, channel: Channel, request: RemotingCommand, pop: PopRequest) -> None:
        """A held request's next pass."""
        if not channel.is_active:
            return

        def run() -> RemotingCommand | None:
            check_queue(self._service, pop.topic, pop.queue_id, pop.group)
            return self._run(pops, channel, request, pop)

        answer_held(channel, request, run)


def check_queue(
    service: BrokerService,
    topic: str,
    queue_id: int,
    group: str,
    bad_queue: ResponseCode = ResponseCode.INVALID_PARAMETER,
) -> TopicConfig:
    """The topic, if it may be read and has this queue (negative: any); refused as Apache's broker does."""
    config = service.known_topic(topic)
    if not config.perm & PERM_READ:
        raise RefusedError(f"the topic[{topic}] peeking message is forbidden", response_code=ResponseCode.NO_PERMISSION)
    if queue_id >= config.read_queue_nums:
        raise illegal_queue(config, queue_id, group, bad_queue)
    return config


def illegal_queue(config: TopicConfig, queue_id: int, group: str, code: ResponseCode) -> RefusedError:
    """The refusal of a queue that the topic does not have."""
    return RefusedError(
        f"queueId[{queue_id}] is illegal, topic:[{config.topic_name}] topicConfig.readQueueNums:"
        f"[{config.read_queue_nums}] consumer:[{group}]",
        response_code=code,
    )


def pop_service(service: BrokerService) -> PopService:
    """POP; RefusedError when it is off, because what it rests on is."""
    if service.pop is None:
        raise RefusedError(
            f"the broker[{service.store_host[0]}] pop message is forbidden because timerWheelEnable is false",
            response_code=ResponseCode.SYSTEM_ERROR,
            remedy="Set timerWheelEnable=true at the broker.",
        )
    return service.pop


def pop_filter(kind: str | None, expression: str | None) -> PullFilter:
    """What a pop wants. Pulls need ``enablePropertyFilter`` for SQL92, pops do not; what cannot be understood is 23."""
    if not expression:
        return ALL
    try:
        return parse_filter(kind, expression, sql92=True)
    except RefusedError as error:
        raise RefusedError(
            error.message, response_code=ResponseCode.SUBSCRIPTION_PARSE_FAILED, remedy=error.remedy
        ) from None


def check_invisible_time(pops: PopService, invisible_time: int) -> None:
    """RefusedError for a time that cannot be kept."""
    if not 0 < invisible_time <= pops.longest_invisible:
        raise RefusedError(
            f"invisibleTime[{invisible_time}] is not between 1 and {pops.longest_invisible} ms",
            response_code=ResponseCode.INVALID_PARAMETER,
            remedy="It is in milliseconds; the broker's timerMaxDelaySec is the longest.",
        )


def _answer(request: RemotingCommand, code: int, remark: str, result: PopResult, pop: PopRequest) -> RemotingCommand:
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
