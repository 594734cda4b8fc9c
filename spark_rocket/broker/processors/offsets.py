"""Offsets: of groups (14, 15), of queues (30, 31), by time (29, 32).

A commit (15) is answered at once, as Apache's broker does, since offsets are written every few seconds. While that
fails the answer is SYSTEM_ERROR.

Corresponds to org.apache.rocketmq.broker.processor.ConsumerManageProcessor and AdminBrokerProcessor's offset codes.
"""

from __future__ import annotations

from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from spark_rocket.remoting.server.server import Channel


class OffsetProcessor(Processor):
    """Reads and writes offsets."""

    @answers(RequestCode.QUERY_CONSUMER_OFFSET)
    def query_consumer_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = QueryConsumerOffsetRequestHeader.from_ext(request.ext_fields)
        service = self._service
        offset = service.offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset < 0:
            # A group that is new to a queue whose first message is still in memory starts at 0, as in Apache's broker;
            # elsewhere 22 lets the client apply its own consumeFromWhere.
            minimum = service.store.get_min_offset(header.topic, header.queue_id)
            at_hand = minimum <= 0 and service.first_is_in_memory(header.topic, header.queue_id)
            if header.set_zero_if_not_found is False or not at_hand:
                if service.slave is not None and not service.offsets.table:
                    # 22 would have the group begin anew, perhaps behind what it has not read.
                    raise RefusedError(
                        "this slave has not heard of any group's offsets yet: ask again, or its master",
                        response_code=ResponseCode.SYSTEM_ERROR,
                    )
                return RemotingCommand.response(
                    request, ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
                )
            offset = 0
        return _offset(request, offset)

    @answers(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update_consumer_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = UpdateConsumerOffsetRequestHeader.from_ext(request.ext_fields)
        service = self._service
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        # It creates no group: heartbeats and pulls do. A slave may not have heard of its master's yet.
        groups = service.groups
        if (groups.find(group) if service.config.is_slave else groups.get(group)) is None:
            raise RefusedError(
                f"Group {group} not exist!",
                response_code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        service.known_topic(topic, f"Topic {topic} not exist!")
        if queue_id < 0:
            raise RefusedError("QueueId is invalid, it is negative", response_code=ResponseCode.SYSTEM_ERROR)
        if service.offsets.has_reset(group, topic, queue_id):
            return RemotingCommand.response(request, 0, "Offset has been previously reset")
        service.offsets.commit(group, topic, queue_id, header.commit_offset)
        problem = service.saving.problem("offsets")
        if problem:
            raise RefusedError(
                f"{problem}. The offset counts until the broker stops, and writing it is retried.",
                response_code=ResponseCode.SYSTEM_ERROR,
            )
        return RemotingCommand.response(request)

    @answers(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def search_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = SearchOffsetRequestHeader.from_ext(request.ext_fields)
        upper = (header.boundary_type or "").upper() == "UPPER"
        return _offset(
            request,
            self._service.store.get_offset_by_time(header.topic, header.queue_id, header.timestamp, upper),
        )

    @answers(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetMaxOffsetRequestHeader.from_ext(request.ext_fields)
        return _offset(request, self._service.store.get_max_offset(header.topic, header.queue_id))

    @answers(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetMinOffsetRequestHeader.from_ext(request.ext_fields)
        return _offset(request, self._service.store.get_min_offset(header.topic, header.queue_id))

    @answers(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest_store_time(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetEarliestMsgStoretimeRequestHeader.from_ext(request.ext_fields)
        timestamp = self._service.store.get_earliest_store_time(header.topic, header.queue_id)
        return RemotingCommand.response(request, 0, None, {"timestamp": str(timestamp)})


def _offset(request: RemotingCommand, offset: int) -> RemotingCommand:
    return RemotingCommand.response(request, 0, None, {"offset": str(offset)})
