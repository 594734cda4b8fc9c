"""What went wrong, as the pages show it: a code, what happened, and what to do. Never a stack trace.

Pure. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spark_rocket.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    RemotingError,
    RocketError,
    TopicNotFoundError,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One failed question."""

    code: str
    text: str
    remedy: str
    status: int = 500
    response: int | None = None
    """RocketMQ's own code, of a server's answer."""

    def to_json(self) -> dict[str, object]:
        return {"code": self.code, "text": self.text, "remedy": self.remedy, "response": self.response}


class Refused(RocketError):  # noqa: N818 - it is an answer
    """A request to the console that it does not do; ``status`` is HTTP's."""

    code = "BAD_REQUEST"

    def __init__(self, message: str, *, remedy: str = "", status: int = 400, code: str | None = None) -> None:
        super().__init__(message, remedy=remedy, code=code)
        self.status = status


def describe(error: BaseException) -> Trouble:
    """What the page says of an error."""
    if isinstance(error, Refused):
        return Trouble(error.code, error.message, error.remedy, error.status)
    if isinstance(error, RocketError):
        remedy = error.remedy or "The brokers' logs may say more."
        return Trouble(error.code, error.message, remedy, _status(error), error.response_code)
    _log.error("the console has a fault of its own", exc_info=error)
    return Trouble(
        "CONSOLE_FAULT",
        f"The console itself failed ({type(error).__name__}).",
        "Its log says where; please report it with that.",
    )


def _status(error: RocketError) -> int:
    if isinstance(error, TopicNotFoundError):
        return 404
    if isinstance(error, RemotingError):
        return 502
    if isinstance(error, BrokerError):
        return 409
    return 400 if isinstance(error, ClientError | ConfigError) else 500
