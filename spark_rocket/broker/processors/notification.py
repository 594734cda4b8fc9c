"""NOTIFICATION (200054), whether there is something to pop, now or within ``pollTime``; POLLING_INFO (200055), how many
pops wait.

A notification takes nothing and makes nothing invisible. It looks where a pop would look: in the queue asked for or,
with queue id -1, in every queue of the topic, and in the group's retry topics; in order mode only in queues that are
not blocked. With tags it sees only messages of these tags; of an SQL92 filter only a pop can tell.

=============  =====  ========  =================================
found          hasMsg pollingFull
=============  =====  ========  =================================
something      true   false     at once, or when it comes
nothing        false  false     when ``pollTime`` is over
nothing        false  true      at once: too many wait already
=============  =====  ========  =================================

Corresponds to org.apache.rocketmq.broker.processor.{NotificationProcessor, PollingInfoProcessor}.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from spark_rocket.broker.delivery.filters import PullFilter
from spark_rocket.broker.pop.hooks import Held
from spark_rocket.broker.pop.waiting import Kind, Place
from spark_rocket.broker.processors.base import Processor, answer_held, answers
from spark_rocket.broker.processors.pop import check_queue, pop_filter
from spark_rocket.broker.service import BrokerService
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.ids import retry_topic
from spark_rocket.protocol.wire.bodies import TopicConfig
from spark_rocket.protocol.wire.codes import PERM_READ, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
)
from spark_rocket.remoting.server.server import Channel
from spark_rocket.store.results import GetMessageStatus


def check_reader(service: BrokerService, topic: str, queue_id: int, group: str, bad_queue: ResponseCode) -> TopicConfig:
    """The topic, if the group may look into this queue (negative: into all); refused as Apache's broker does."""
    if not service.config.broker_permission & PERM_READ:
        raise RefusedError(
            f"the broker[{service.store_host[0]}] peeking message is forbidden",
            response_code=ResponseCode.NO_PERMISSION,
        )
    config = check_queue(service, topic, queue_id, group, bad_queue)
    service.group_to_consume(group)
    return config


def retry_queues(service: BrokerService, topic: str, group: str) -> list[tuple[str, int]]:
    """The queues that messages come back in when they were popped and not acked."""
    found = [service.topics.get(retry_topic(topic, group, v2=v2)) for v2 in (False, True)]
    return [(each.topic_name, queue) for each in found if each is not None for queue in range(each.read_queue_nums)]


def next_offset(service: BrokerService, topic: str, group: str, queue_id: int) -> int:
    """Where the group's next pop of a queue begins, but that a group without an offset may begin elsewhere."""
    offset = service.offsets.query(group, topic, queue_id)
    return offset if offset >= 0 else service.store.get_min_offset(topic, queue_id)


class NotificationProcessor(Processor):
    """Tells of messages without giving them."""

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
        """Answer, or hold (again) what finds nothing."""
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
        service = self._service
        topic, group = header.topic, header.consumer_group
        queues: Iterable[int] = (header.queue_id,)
        if header.queue_id < 0:
            queues = range(service.known_topic(topic).read_queue_nums)
        if header.order:
            order, now = service.order, service.clock()
            queues = [each for each in queues if not order.is_blocked(header.attempt_id, topic, group, each, 0, now)]
            return any(self._is_wanted(topic, group, queue, wanted) for queue in queues)
        return any(self._is_wanted(topic, group, queue, wanted) for queue in queues) or any(
            self._is_wanted(each, group, queue, wanted) for each, queue in retry_queues(service, topic, group)
        )

    def _is_wanted(self, topic: str, group: str, queue_id: int, wanted: PullFilter) -> bool:
        """Whether a queue has a message; with tags, none only if all that are left have others."""
        store = self._service.store
        offset = next_offset(self._service, topic, group, queue_id)
        if store.get_max_offset(topic, queue_id) <= offset:
            return False
        if wanted.tag_codes is None:
            return True
        got = store.get_message(topic, queue_id, offset, 1, 1, wanted.tag_codes)
        return got.status is not GetMessageStatus.NO_MATCHED_MESSAGE or got.next_begin_offset < got.max_offset
