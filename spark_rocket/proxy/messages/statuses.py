"""Response statuses: the codes of the messaging service for the response codes of brokers.

Corresponds to org.apache.rocketmq.proxy.grpc.v2.common.ResponseBuilder.
"""

from __future__ import annotations

from typing import Any

from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.proxy import definitions


class StatusError(Exception):
    """Ends a request with a status; ``code`` is one of ``definitions.Code``."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def status(code: int, message: str = "OK") -> Any:
    """Create a ``definitions.Status``."""
    return definitions.Status(code=code, message=message)


_Code = definitions.Code
#: All other codes become INTERNAL_SERVER_ERROR, as do most of these in Apache's proxy.
_OF_RESPONSE: dict[int, int] = {
    ResponseCode.SUCCESS: _Code.OK,
    ResponseCode.SYSTEM_BUSY: _Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: _Code.NOT_IMPLEMENTED,
    ResponseCode.FLUSH_DISK_TIMEOUT: _Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: _Code.HA_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: _Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.MESSAGE_ILLEGAL: _Code.BAD_REQUEST,
    ResponseCode.VERSION_NOT_SUPPORTED: _Code.VERSION_UNSUPPORTED,
    ResponseCode.NO_PERMISSION: _Code.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: _Code.TOPIC_NOT_FOUND,
    ResponseCode.PULL_NOT_FOUND: _Code.MESSAGE_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY: _Code.MESSAGE_NOT_FOUND,
    ResponseCode.PULL_OFFSET_MOVED: _Code.ILLEGAL_OFFSET,
    ResponseCode.QUERY_NOT_FOUND: _Code.NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: _Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: _Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.INVALID_PARAMETER: _Code.BAD_REQUEST,
    ResponseCode.CONSUME_MSG_TIMEOUT: _Code.REQUEST_TIMEOUT,
    ResponseCode.NO_MESSAGE: _Code.MESSAGE_NOT_FOUND,
    ResponseCode.POLLING_FULL: _Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_TIMEOUT: _Code.MESSAGE_NOT_FOUND,
    ResponseCode.FLOW_CONTROL: _Code.TOO_MANY_REQUESTS,
    ResponseCode.ILLEGAL_OPERATION: _Code.BAD_REQUEST,
}


def refusal_of(response: RemotingCommand, code: int | None = None) -> StatusError:
    """Convert a broker's error response; ``code`` overrides the response's code."""
    message = response.remark or f"the broker responded with code {response.code}"
    return StatusError(status_code_of(response.code) if code is None else code, message)


def status_code_of(response_code: int) -> int:
    """Return the messaging service's code for a broker's response code."""
    code: int = _OF_RESPONSE.get(response_code, _Code.INTERNAL_SERVER_ERROR)
    return code
