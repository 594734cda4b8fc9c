"""Reads of what a pop would find: PEEK_MESSAGE (200052), NOTIFICATION (200054) and POLLING_INFO (200055).

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

Corresponds to org.apache.rocketmq.broker.processor.{PeekMessageProcessor, NotificationProcessor,
PollingInfoProcessor}.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from spark_rocket.broker.broker_overload import BrokerOverload
from spark_rocket.broker.delivery.filters import PullFilter
from spark_rocket.broker.delivery.held_requests import HeldKind, HeldPlace, HeldRequest, HeldRequests, HoldResult
from spark_rocket.broker.pop.consumer_order_info_manager import ConsumerOrderInfoManager
from spark_rocket.broker.pop.requests import time_left
from spark_rocket.broker.pop.turns import QueueTurns, place_of
from spark_rocket.broker.processors.pop import check_queue, pop_filter
from spark_rocket.broker.processors.processor import Processor, handles
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.ids import retry_topic
from spark_rocket.protocol.wire.codes import PERM_READ, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.consumer import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageResponseHeader,
)
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import GetMessageStatus

_RETRY_FIRST_SHARE = 0.2
_MISPLACED = (GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY)


@dataclass(eq=False, kw_only=True)
class PeekProcessor(Processor):
    """PEEK_MESSAGE, NOTIFICATION and POLLING_INFO: reads that leave messages visible."""

    config: BrokerConfig
    clock: Callable[[], int]
    host: str
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    order_info: ConsumerOrderInfoManager
    held_requests: HeldRequests
    overload: BrokerOverload
    _turns: QueueTurns = field(init=False, default_factory=QueueTurns)

    @handles(RequestCode.POLLING_INFO)
    def polling_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = PollingInfoRequestHeader.from_ext(request.ext_fields)
        topic, queue_id, group = header.topic, header.queue_id, header.consumer_group
        self._check_reader(topic, queue_id, group, ResponseCode.SYSTEM_ERROR)
        waiting = self.held_requests.polling_num(group, topic, max(queue_id, -1))
        return RemotingCommand.response(request, 0, None, PollingInfoResponseHeader(polling_num=waiting).to_ext())

    @handles(RequestCode.NOTIFICATION)
    def notification(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = NotificationRequestHeader.from_ext(request.ext_fields)
        group = header.consumer_group
        self._check_reader(header.topic, header.queue_id, group, ResponseCode.SYSTEM_ERROR)
        wanted = pop_filter(header.exp_type, header.exp)
        settings = self.groups.get(group)
        header.order = header.order or (settings is not None and settings.consume_message_orderly)
        if header.born_time <= 0:
            header.born_time = self.clock()
        return self._look(channel, request, header, wanted)

    def _look(
        self, channel: Channel, request: RemotingCommand, header: NotificationRequestHeader, wanted: PullFilter
    ) -> RemotingCommand | None:
        response = NotificationResponseHeader(has_msg=self._has_message(header, wanted))
        if not response.has_msg:
            queue_id = max(header.queue_id, -1)
            place = HeldPlace(header.topic, header.consumer_group, queue_id, HeldKind.NOTIFICATION, wanted.tag_codes)
            again = partial(self._again, channel, request, header, wanted)
            left = time_left(header.born_time, header.poll_time, self.clock())
            held = self.held_requests.hold(
                HeldRequest(channel, request, place, again, partial(_notified, request, response)), left
            )
            if held is HoldResult.HELD:
                return None
            response.polling_full = held is HoldResult.FULL
        return _notified(request, response)

    def _again(
        self, channel: Channel, request: RemotingCommand, header: NotificationRequestHeader, wanted: PullFilter
    ) -> RemotingCommand | None:
        self.topics.known(header.topic)
        return self._look(channel, request, header, wanted)

    def _has_message(self, header: NotificationRequestHeader, wanted: PullFilter) -> bool:
        topic, group = header.topic, header.consumer_group
        return self._finds(header, topic, header.queue_id, wanted) or (
            not header.order
            and any(self._finds(header, retry_topic(topic, group, v2=v2), -1, wanted) for v2 in (False, True))
        )

    def _finds(self, header: NotificationRequestHeader, topic: str, queue_id: int, wanted: PullFilter) -> bool:
        """Whether a queue has a message: the given one, or if it is negative, one of this part of the topic."""
        order, now, group = self.order_info, self.clock(), header.consumer_group
        if queue_id >= 0:
            part: Sequence[int] = (queue_id,)
        else:
            queues = self.topics.read_queues(topic)
            place = place_of(group, topic, "order" if header.order else "notification", wanted.tag_codes)
            part = self._turns.part(place, queues, 0)
        for each in part:
            if header.order and order.is_blocked(header.attempt_id, group, topic, each, 0, now):
                continue
            if self._is_wanted(topic, group, each, wanted):
                if queue_id < 0:
                    self._turns.continue_at(place, queues, each)  # the message is still there for the next
                return True
        return False

    def _is_wanted(self, topic: str, group: str, queue_id: int, wanted: PullFilter) -> bool:
        """Whether a queue has a message; with a tag filter, whether it may have a matching one."""
        store = self.store
        offset = self._next_offset(topic, group, queue_id)
        if store.get_max_offset(topic, queue_id) <= offset:
            return False
        if wanted.tag_codes is None:
            return True
        got = store.get_message(topic, queue_id, offset, 1, 1, wanted.tag_codes)
        return got.status is not GetMessageStatus.NO_MATCHED_MESSAGE or got.next_begin_offset < got.max_offset

    def _peeked_part(self, topic: str, group: str, *, is_shuffled: bool = False) -> list[tuple[str, int]]:
        """The queues of a topic that a peek examines; ``is_shuffled``: few queues begin with any of them."""
        queues = self.topics.read_queues(topic)
        start = random.randrange(queues) if is_shuffled and queues else 0
        return [(topic, each) for each in self._turns.part(place_of(group, topic, "peek", None), queues, start)]

    @handles(RequestCode.PEEK_MESSAGE)
    def peek(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        store, config = self.store, self.config
        if self.overload.pulls is not None:
            self.overload.check_pull()
        header = PeekMessageRequestHeader.from_ext(request.ext_fields)
        topic, queue_id, group = header.topic, header.queue_id, header.consumer_group
        self._check_reader(topic, queue_id, group, ResponseCode.INVALID_PARAMETER)
        own = [(topic, queue_id)] if queue_id >= 0 else self._peeked_part(topic, group, is_shuffled=True)
        again = [each for v2 in (False, True) for each in self._peeked_part(retry_topic(topic, group, v2=v2), group)]
        left = min(max(header.max_msg_nums, 0), config.max_transfer_count_on_message_in_memory)
        room = config.max_transfer_bytes_on_message_in_memory
        records: list[bytes | memoryview] = []
        rest = 0
        unread: dict[str, int] = {}
        for name, queue in again + own if random.random() < _RETRY_FIRST_SHARE else own + again:
            offset = self._next_offset(name, group, queue)
            if left > 0 and room > 0:
                got = store.get_message(name, queue, offset, left, room)
                if got.status in _MISPLACED:
                    offset = got.next_begin_offset
                    got = store.get_message(name, queue, offset, left, room)
                left -= got.count
                room -= len(got.records)
                offset += got.count
                records.append(got.records)
            else:
                unread.setdefault(name, queue)
            rest += max(store.get_max_offset(name, queue) - offset, 0)
        for name, queue in unread.items():
            self._turns.continue_at(place_of(group, name, "peek", None), self.topics.read_queues(name), queue)
        body = b"".join(records)
        response = PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=rest)
        code, remark = (0, "FOUND") if body else (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
        return RemotingCommand.response(request, code, remark, response.to_ext(), body)

    def _check_reader(self, topic: str, queue_id: int, group: str, bad_queue: ResponseCode) -> None:
        """Raise RefusedError, as Apache's broker, unless the group may read this queue (negative: all)."""
        if not self.config.broker_permission & PERM_READ:
            raise RefusedError(f"the broker[{self.host}] peeking message is forbidden", ResponseCode.NO_PERMISSION)
        check_queue(self.topics, topic, queue_id, group, bad_queue)
        self.groups.to_consume(group)

    def _next_offset(self, topic: str, group: str, queue_id: int) -> int:
        """The start of the group's next pop of a queue; only an estimate if the group has no offset."""
        offset = self.offsets.query(group, topic, queue_id)
        return offset if offset >= 0 else self.store.get_min_offset(topic, queue_id)


def _notified(request: RemotingCommand, response: NotificationResponseHeader) -> RemotingCommand:
    return RemotingCommand.response(request, 0, None, response.to_ext())
