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

Three requests read what a pop would find, and leave it visible:

* PEEK_MESSAGE (200052) returns the messages: 0 with records, or 19. ``restNum`` is the number of further messages in
  the queues. As in a pop, 20 % of the requests read the group's retry topics first, the others last.
* NOTIFICATION (200054) reports whether there is a message, now or within ``pollTime``. It looks in the given queue or,
  with queue id -1, in every queue of the topic, and in the group's retry topics; in order mode only in queues that are
  not blocked. Tag filters are applied, SQL92 filters are not.
* POLLING_INFO (200055): the number of held pops.

Of a topic with more than 1,024 queues, a request for all queues examines a part, and ``restNum`` counts in that part
(pop/turns.py). Held requests examine all parts; others respond after one, and the next begins where it ended.

=============  ====== =========== ===================================
found          hasMsg pollingFull response is sent
=============  ====== =========== ===================================
a message      true   false       at once, or when a message arrives
no message     false  false       when ``pollTime`` expires
no message     false  true        at once: too many requests are held
=============  ====== =========== ===================================

Corresponds to org.apache.rocketmq.broker.processor.{PopMessageProcessor, PeekMessageProcessor, NotificationProcessor,
PollingInfoProcessor}.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from spark_rocket.broker.delivery.filters import ALL, PullFilter, parse_filter
from spark_rocket.broker.pop.acks import MAX_POPPED
from spark_rocket.broker.pop.requests import PopRequest, PopResult
from spark_rocket.broker.pop.service import PopService
from spark_rocket.broker.pop.turns import QueueTurns, place_of
from spark_rocket.broker.pop.waiting import Held, Kind, Place
from spark_rocket.broker.processors.base import Processor, answer_held, answers
from spark_rocket.broker.service import BrokerService, illegal_queue
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.ids import retry_topic
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.codes import PERM_READ, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.consumer import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.results import GetMessageStatus

_MAX_LATENESS_MS = 500
_MAX_ATTEMPT_CHARACTERS = 255
_RETRY_FIRST_SHARE = 0.2
_MISPLACED = (GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY)


class PopMessageProcessor(Processor):
    """POP_MESSAGE: responds with messages, or holds the request until there are some."""

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
        if now - born - header.poll_time > _MAX_LATENESS_MS:
            raise RefusedError(f"the broker[{host}] pop message is timeout too much", ResponseCode.POLLING_TIMEOUT)
        if not self._config.broker_permission & PERM_READ:
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
        """Respond, or hold the request if there are no messages."""
        result, waiting = pops.pop(pop), self._service.waiting
        if result.count:
            if result.rest_num > 0 or result.is_cut:
                waiting.more(pop.topic, pop.queue_id, pop.group)
            return _answer(request, ResponseCode.SUCCESS, "FOUND", result, pop)
        self._service.stats.get_misses += 1
        held = waiting.hold(channel, request, pop, partial(self._again, pops, channel, request, pop))
        if held is Held.HELD:
            if (
                result.passed and result.rest_num > 0
            ) or result.is_cut:  # continue after the messages that did not match
                waiting.more(pop.topic, pop.queue_id, pop.group)
            return None
        code = ResponseCode.POLLING_FULL if held is Held.FULL else ResponseCode.POLLING_TIMEOUT
        return _answer(request, code, "NO_MESSAGE_IN_QUEUE", result, pop)

    def _again(self, pops: PopService, channel: Channel, request: RemotingCommand, pop: PopRequest) -> None:
        """Run a held request again."""
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
    """The topic, if it is readable and has this queue (negative: any); otherwise RefusedError, as Apache's broker."""
    config = service.known_topic(topic)
    if not config.perm & PERM_READ:
        raise RefusedError(f"the topic[{topic}] peeking message is forbidden", ResponseCode.NO_PERMISSION)
    if queue_id >= config.read_queue_nums:
        raise illegal_queue(config, queue_id, group, bad_queue)
    return config


def pop_service(service: BrokerService) -> PopService:
    """The POP service; RefusedError if it is disabled because the timer is."""
    if service.pop is None:
        raise RefusedError(
            f"the broker[{service.store_host[0]}] pop message is forbidden because timerWheelEnable is false",
            ResponseCode.SYSTEM_ERROR,
            remedy="Set timerWheelEnable=true at the broker.",
        )
    return service.pop


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


def check_reader(service: BrokerService, topic: str, queue_id: int, group: str, bad_queue: ResponseCode) -> TopicConfig:
    """The topic, if the group may read this queue (negative: all); otherwise RefusedError, as Apache's broker."""
    if not service.config.broker_permission & PERM_READ:
        raise RefusedError(
            f"the broker[{service.store_host[0]}] peeking message is forbidden", ResponseCode.NO_PERMISSION
        )
    config = check_queue(service, topic, queue_id, group, bad_queue)
    service.group_to_consume(group)
    return config


def next_offset(service: BrokerService, topic: str, group: str, queue_id: int) -> int:
    """The start of the group's next pop of a queue; only an estimate if the group has no offset."""
    offset = service.offsets.query(group, topic, queue_id)
    return offset if offset >= 0 else service.store.get_min_offset(topic, queue_id)


class PeekProcessor(Processor):
    """PEEK_MESSAGE, NOTIFICATION and POLLING_INFO: reads that leave messages visible."""

    def __init__(self, service: BrokerService) -> None:
        super().__init__(service)
        self._turns = QueueTurns()

    @answers(RequestCode.POLLING_INFO)
    def polling_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = PollingInfoRequestHeader.from_ext(request.ext_fields)
        topic, queue_id, group = header.topic, header.queue_id, header.consumer_group
        check_reader(self._service, topic, queue_id, group, ResponseCode.SYSTEM_ERROR)
        waiting = self._service.waiting.polling_num(topic, group, max(queue_id, -1))
        return RemotingCommand.response(request, 0, None, PollingInfoResponseHeader(polling_num=waiting).to_ext())

    @answers(RequestCode.NOTIFICATION)
    def notification(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = NotificationRequestHeader.from_ext(request.ext_fields)
        group = header.consumer_group
        check_reader(self._service, header.topic, header.queue_id, group, ResponseCode.SYSTEM_ERROR)
        wanted = pop_filter(header.exp_type, header.exp)
        settings = self._service.groups.get(group)
        header.order = header.order or (settings is not None and settings.consume_message_orderly)
        if header.born_time <= 0:
            header.born_time = self._service.clock()
        return self._look(channel, request, header, wanted)

    def _look(
        self, channel: Channel, request: RemotingCommand, header: NotificationRequestHeader, wanted: PullFilter
    ) -> RemotingCommand | None:
        """Respond, or hold the request (again) if there is no message."""
        answer = NotificationResponseHeader(has_msg=self._has_message(header, wanted))
        if not answer.has_msg:
            queue_id = max(header.queue_id, -1)
            place = Place(header.topic, header.consumer_group, queue_id, Kind.NOTIFICATION, wanted.tag_codes)
            again = partial(self._again, channel, request, header, wanted)
            held = self._service.waiting.hold_at(place, channel, request, header.born_time, header.poll_time, again)
            if held is Held.HELD:
                return None
            answer.polling_full = held is Held.FULL
        return RemotingCommand.response(request, 0, None, answer.to_ext())

    def _again(
        self, channel: Channel, request: RemotingCommand, header: NotificationRequestHeader, wanted: PullFilter
    ) -> None:
        def look() -> RemotingCommand | None:
            self._service.known_topic(header.topic)
            return self._look(channel, request, header, wanted)

        answer_held(channel, request, look)

    def _has_message(self, header: NotificationRequestHeader, wanted: PullFilter) -> bool:
        topic, group = header.topic, header.consumer_group
        return self._finds(header, topic, header.queue_id, wanted) or (
            not header.order
            and any(self._finds(header, retry_topic(topic, group, v2=v2), -1, wanted) for v2 in (False, True))
        )

    def _finds(self, header: NotificationRequestHeader, topic: str, queue_id: int, wanted: PullFilter) -> bool:
        """Whether a queue has a message: the given one, or if it is negative, one of this part of the topic."""
        order, now, group = self._service.order, self._service.clock(), header.consumer_group
        if queue_id >= 0:
            part: Sequence[int] = (queue_id,)
        else:
            queues = self._service.read_queues(topic)
            place = place_of(topic, group, "order" if header.order else "notification", wanted.tag_codes)
            part = self._turns.part(place, queues, 0)
        for each in part:
            if header.order and order.is_blocked(header.attempt_id, topic, group, each, 0, now):
                continue
            if self._is_wanted(topic, group, each, wanted):
                if queue_id < 0:
                    self._turns.continue_at(place, queues, each)  # the message is still there for the next
                return True
        return False

    def _is_wanted(self, topic: str, group: str, queue_id: int, wanted: PullFilter) -> bool:
        """Whether a queue has a message; with a tag filter, whether it may have a matching one."""
        store = self._service.store
        offset = next_offset(self._service, topic, group, queue_id)
        if store.get_max_offset(topic, queue_id) <= offset:
            return False
        if wanted.tag_codes is None:
            return True
        got = store.get_message(topic, queue_id, offset, 1, 1, wanted.tag_codes)
        return got.status is not GetMessageStatus.NO_MATCHED_MESSAGE or got.next_begin_offset < got.max_offset

    def _peeked_part(self, topic: str, group: str, *, is_shuffled: bool = False) -> list[tuple[str, int]]:
        """The queues of a topic that a peek examines; ``is_shuffled``: few queues begin with any of them."""
        queues = self._service.read_queues(topic)
        start = random.randrange(queues) if is_shuffled and queues else 0
        return [(topic, each) for each in self._turns.part(place_of(topic, group, "peek", None), queues, start)]

    @answers(RequestCode.PEEK_MESSAGE)
    def peek(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        service, config = self._service, self._service.config
        if service.overload.pulls is not None:
            service.overload.check_pull()
        header = PeekMessageRequestHeader.from_ext(request.ext_fields)
        topic, queue_id, group = header.topic, header.queue_id, header.consumer_group
        check_reader(service, topic, queue_id, group, ResponseCode.INVALID_PARAMETER)
        own = [(topic, queue_id)] if queue_id >= 0 else self._peeked_part(topic, group, is_shuffled=True)
        again = [each for v2 in (False, True) for each in self._peeked_part(retry_topic(topic, group, v2=v2), group)]
        left = min(max(header.max_msg_nums, 0), config.max_transfer_count_on_message_in_memory)
        room = config.max_transfer_bytes_on_message_in_memory
        records: list[bytes | memoryview] = []
        rest = 0
        unread: dict[str, int] = {}
        for name, queue in again + own if random.random() < _RETRY_FIRST_SHARE else own + again:
            offset = next_offset(service, name, group, queue)
            if left > 0 and room > 0:
                got = service.store.get_message(name, queue, offset, left, room)
                if got.status in _MISPLACED:
                    offset = got.next_begin_offset
                    got = service.store.get_message(name, queue, offset, left, room)
                left -= got.count
                room -= len(got.records)
                offset += got.count
                records.append(got.records)
            else:
                unread.setdefault(name, queue)
            rest += max(service.store.get_max_offset(name, queue) - offset, 0)
        for name, queue in unread.items():
            self._turns.continue_at(place_of(name, group, "peek", None), service.read_queues(name), queue)
        body = b"".join(records)
        answer = PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=rest)
        code, remark = (0, "FOUND") if body else (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
        return RemotingCommand.response(request, code, remark, answer.to_ext(), body)
