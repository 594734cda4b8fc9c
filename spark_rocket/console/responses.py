"""JSON requests and responses, and errors for the pages: a code, a message and a remedy, without stack traces.

The bounds of requests are in request_limits.py. Pure functions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_rocket.common.attributes import pick
from spark_rocket.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    ProtocolError,
    RemotingError,
    RocketError,
    TopicNotFoundError,
)
from spark_rocket.protocol.wire import json as json_codec

if TYPE_CHECKING:  # `rocket up` uses the console's settings, and their errors, without the packages of the console
    from starlette.requests import Request
    from starlette.responses import Response

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestProblem:
    """An error of a request."""

    code: str
    text: str
    remedy: str
    status: int = 500
    response: int | None = None
    """The response code of a RocketMQ server."""

    def to_json(self) -> dict[str, object]:
        return pick(self, "code text remedy response")


_STATUSES = {
    401: ("LOGIN_FAILED", "LOGIN_REQUIRED"),
    403: ("READ_ONLY", "SECRET_SETTING", "UNSAFE_SETTING", "WRONG_ORIGIN", "WRONG_TOKEN"),
    404: ("NOT_FOUND", "NO_SUCH_BROKER", "NO_SUCH_SETTING"),
    409: ("ACCOUNTS_CHANGED", "ACCOUNT_EXISTS", "NOT_APPLIED", "NO_SUCH_ACCOUNT", "OWN_ACCOUNT", "SETTING_CHANGED"),
    413: ("TOO_LARGE",),
    415: ("WRONG_CONTENT_TYPE",),
    421: ("WRONG_HOST",),
    429: ("TOO_MANY_ATTEMPTS",),
    503: ("CONSOLE_BUSY",),
}
_STATUS_OF = {code: status for status, codes in _STATUSES.items() for code in codes}


class Refused(RocketError):  # noqa: N818 - it is a response
    """A request that the console refuses. Its code determines the HTTP status, 400 by default."""

    code = "BAD_REQUEST"

    @property
    def status(self) -> int:
        return _STATUS_OF.get(self.code, 400)


def describe(error: BaseException) -> RequestProblem:
    if isinstance(error, Refused):
        return RequestProblem(error.code, error.message, error.remedy, error.status)
    if isinstance(error, RocketError):
        remedy = error.remedy or "See the logs of the brokers."
        return RequestProblem(error.code, error.message, remedy, _status(error), error.response_code)
    _log.error("internal error of the console", exc_info=error)
    return RequestProblem(
        "CONSOLE_FAULT",
        f"Internal error of the console ({type(error).__name__}).",
        "Please report it with the traceback from its log.",
    )


def failures_json(failed: Mapping[str, RocketError | RequestProblem]) -> dict[str, Any]:
    return {
        name: (error if isinstance(error, RequestProblem) else describe(error)).to_json()
        for name, error in failed.items()
    }


def _status(error: RocketError) -> int:
    if isinstance(error, TopicNotFoundError):
        return 404
    if isinstance(error, RemotingError):
        return 502
    if isinstance(error, BrokerError):
        return 409
    return 400 if isinstance(error, ClientError | ConfigError) else 500


def json_response(value: Any, status: int = 200) -> Response:
    from starlette.responses import Response

    return Response(json_codec.dumps(value), status, media_type="application/json")


def failure(trouble: RequestProblem) -> Response:
    return json_response({"error": trouble.to_json()}, trouble.status)


async def read_json(request: Request, most: int, max_values: int) -> dict[str, Any]:
    """Read the JSON object of a request, of at most ``most`` bytes and ``max_values`` values."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise Refused(
                f"The request has more than {most:,} bytes.", remedy="Send a smaller request.", code="TOO_LARGE"
            )
    try:
        json_codec.check_values(body, max_values)
        value = json_codec.loads(bytes(body) or b"{}")
    except ProtocolError as error:
        raise Refused(error.message, remedy=error.remedy, code="TOO_LARGE") from None
    except (ValueError, RecursionError):
        raise Refused("The request is not JSON.", remedy="Send a JSON object.", code="NOT_JSON") from None
    if not isinstance(value, dict):
        raise Refused("The request is not a JSON object.", remedy="Send a JSON object.", code="NOT_JSON")
    return value
