"""Requests of tools, which brokers send to consumers.

====  ================================  ============================================================================
code  request                           action of the consumer
====  ================================  ============================================================================
220   RESET_CONSUMER_CLIENT_OFFSET      continues at the given offsets in its assigned queues; no response
221   GET_CONSUMER_STATUS_FROM_CLIENT   returns its offsets in its queues of a topic
307   GET_CONSUMER_RUNNING_INFO         returns settings, subscriptions, queues and optionally thread stacks
309   CONSUME_MESSAGE_DIRECTLY          has its listener consume the message in the request, and returns the result
====  ================================  ============================================================================

If this instance has no such consumer, the response has code 1. Handlers run on the pool of ``Membership``, so they may
block.

Corresponds to ClientRemotingProcessor.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Protocol

from spark_rocket.client.consume.listeners import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.consumer import (
    CR_LATER,
    CR_RETURN_NULL,
    CR_SUCCESS,
    CR_THROW_EXCEPTION,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)

logger = logging.getLogger(__name__)

_RESULTS = {
    ConsumeConcurrentlyStatus.CONSUME_SUCCESS: CR_SUCCESS,
    ConsumeConcurrentlyStatus.RECONSUME_LATER: CR_LATER,
    ConsumeOrderlyStatus.SUCCESS: CR_SUCCESS,
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: CR_LATER,
}


class ToolConsumer(Protocol):
    """A consumer as tools see it; implemented by ``GroupConsumer``."""

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None: ...

    def offsets(self, topic: str) -> dict[MessageQueue, int]: ...

    def running_info(self) -> ConsumerRunningInfo: ...

    def consume_directly(self, records: bytes, broker_name: str) -> object: ...


def handle_tool_requests(instance: ClientInstance, consumer: Callable[[str], ToolConsumer | None]) -> None:
    """Register the handlers; ``consumer`` returns this instance's consumer of a group."""

    def reset(_: str, request: RemotingCommand) -> RemotingCommand | None:
        header = ResetOffsetRequestHeader.from_ext(request.ext_fields)
        found = consumer(header.group)
        logger.warning("offsets of group %s in topic %s reset by a broker", header.group, header.topic)
        if found is not None:
            offsets = ResetOffsetBody.from_json(bytes(request.body)).offset_table
            found.reset_offsets({queue: offset for queue, offset in offsets.items() if queue.topic == header.topic})
        return None

    def status(_: str, request: RemotingCommand) -> RemotingCommand | None:
        header = GetConsumerStatusRequestHeader.from_ext(request.ext_fields)
        found = consumer(header.group)
        offsets = {} if found is None else found.offsets(header.topic)
        return _response(request, GetConsumerStatusBody(message_queue_table=offsets).to_json())

    def running_info(_: str, request: RemotingCommand) -> RemotingCommand | None:
        header = GetConsumerRunningInfoRequestHeader.from_ext(request.ext_fields)
        found = consumer(header.consumer_group)
        if found is None:
            return _unknown_group(request, header.consumer_group)
        info = found.running_info()
        if header.jstack_enable:
            info.jstack = stacks()
        return _response(request, info.to_json())

    def consume(_: str, request: RemotingCommand) -> RemotingCommand | None:
        header = ConsumeMessageDirectlyResultRequestHeader.from_ext(request.ext_fields)
        found = consumer(header.consumer_group)
        if found is None:
            return _unknown_group(request, header.consumer_group)
        return _response(request, _consume(found, bytes(request.body), header.broker_name or "").to_json())

    handlers: dict[int, Callable[[str, RemotingCommand], RemotingCommand | None]] = {
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: reset,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: status,
        RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: consume,
    }
    instance.members.handlers.update(handlers)


def _consume(consumer: ToolConsumer, records: bytes, broker_name: str) -> ConsumeMessageDirectlyResult:
    started = time.monotonic()
    result = ConsumeMessageDirectlyResult()
    try:
        status = consumer.consume_directly(records, broker_name)
    except RocketError:
        raise  # an invalid message or a stopped consumer: not an error of the listener
    except BaseException as error:
        result.consume_result, result.remark = CR_THROW_EXCEPTION, f"{type(error).__name__}: {error}"
    else:
        result.order = isinstance(status, ConsumeOrderlyStatus)
        if isinstance(status, ConsumeOrderlyStatus | ConsumeConcurrentlyStatus):
            result.consume_result = _RESULTS[status]
        else:
            result.consume_result = CR_RETURN_NULL
            result.remark = None if status is None else f"the listener returned {status!r}"
    result.spent_time_mills = int((time.monotonic() - started) * 1000)
    return result


def stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def _response(request: RemotingCommand, body: bytes) -> RemotingCommand:
    return RemotingCommand.response(request, ResponseCode.SUCCESS, None, None, body)


def _unknown_group(request: RemotingCommand, group: str) -> RemotingCommand:
    remark = f"The Consumer Group <{group}> not exist in this consumer"
    return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, remark)
