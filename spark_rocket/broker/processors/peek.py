"""PEEK_MESSAGE (200052): what a group's next pop would find, left where it is.

Answered 0 with records, or 19 when there is none; ``restNum`` is how many more there are in the queues looked at. As in
a pop, the group's retry topics are looked at first in 20 % of the requests, else behind the topic's own queues.
Corresponds to org.apache.rocketmq.broker.processor.PeekMessageProcessor.
"""

from __future__ import annotations

import random

from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.broker.processors.notification import check_reader, next_offset, retry_queues
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import PeekMessageRequestHeader, PopMessageResponseHeader
from spark_rocket.remoting.server.server import Channel
from spark_rocket.store.results import GetMessageStatus

_RETRY_FIRST = 0.2
_MISPLACED = (GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY)


class PeekMessageProcessor(Processor):
    """Shows messages."""

    @answers(RequestCode.PEEK_MESSAGE)
    def peek(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        service, config = self._service, self._service.config
        if service.overload.pulls is not None:
            service.overload.check_pull()
        header = PeekMessageRequestHeader.from_ext(request.ext_fields)
        topic, queue_id, group = header.topic, header.queue_id, header.consumer_group
        found = check_reader(service, topic, queue_id, group, ResponseCode.INVALID_PARAMETER)
        own = [(topic, queue) for queue in (range(found.read_queue_nums) if queue_id < 0 else [queue_id])]
        again = retry_queues(service, topic, group)
        turn = random.randrange(len(own)) if own else 0
        own = own[turn:] + own[:turn]
        left = min(max(header.max_msg_nums, 0), config.max_transfer_count_on_message_in_memory)
        room = config.max_transfer_bytes_on_message_in_memory
        records: list[bytes | memoryview] = []
        rest = 0
        for name, queue in again + own if random.random() < _RETRY_FIRST else own + again:
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
            rest += max(service.store.get_max_offset(name, queue) - offset, 0)
        body = b"".join(records)
        answer = PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=rest)
        code, remark = (0, "FOUND") if body else (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
        return RemotingCommand.response(request, code, remark, answer.to_ext(), body)
