"""Refusals of access control: counted, logged at a limited rate, without unprintable characters."""

from __future__ import annotations

import logging

from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.codes import ResponseCode

_log = logging.getLogger(__name__)
_rate_limited = RateLimited(_log)


class NotAuthenticatedError(RefusedError):
    """Authentication failed: missing or unknown access key, or missing or wrong signature."""


class Refusals:
    """Creates the errors of one server's access control, and counts them."""

    def __init__(self) -> None:
        self.refused = 0
        self.allowed_by_white_list = 0

    def not_authenticated(self, text: str) -> NotAuthenticatedError:
        self.refused += 1
        return NotAuthenticatedError(_printable(text), response_code=ResponseCode.NO_PERMISSION)

    def refusal(self, text: str) -> RefusedError:
        self.refused += 1
        return RefusedError(_printable(text), response_code=ResponseCode.NO_PERMISSION)

    def log_refusal(self, peer: str, error: RefusedError) -> None:
        """Log a refusal, rate-limited per host."""
        host = peer.rpartition(":")[0]
        _rate_limited.warning(host, "refused a request of %s: %s", host, error.message)


def _printable(text: str) -> str:
    """Replace unprintable characters: names are untrusted input, and are logged."""
    return "".join(character if character.isprintable() else "?" for character in text)
