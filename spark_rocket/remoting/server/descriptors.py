"""One budget of descriptors for all connections of this process: Remoting, VIP, HA, gRPC, metrics and its own requests.

The system gives a new connection the lowest number that is free. So its number says how many descriptors are in use at
least, whatever for, and nothing has to be counted. A connection whose number is above :func:`connections_possible` is
refused; what is left of the limit is for files, name servers and accepting.

Thread-safety: any thread. Nothing is kept. Apache's broker has no limit and stops accepting at EMFILE.
"""

from __future__ import annotations

import logging
import resource
import sys
from typing import Protocol

from spark_rocket.logs import RateLimited

_log = logging.getLogger(__name__)
_often = RateLimited(_log)

_LEAST_RESERVE = 32


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def connections_possible() -> int:
    """So many descriptors may be in use before connections are refused: nine tenths of those that there can be."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(soft - max(soft // 10, _LEAST_RESERVE), soft // 2, 1)


def leaves_reserve(connection: HasFileno | None, name: str, peer: str, in_use: int = 0) -> bool:
    """Whether a connection of ``peer`` to the port ``name`` is within the budget; said in the log if it is not.

    ``in_use``: descriptors that the caller knows to be in use or promised, where these are more.
    """
    number, possible = -1 if connection is None else connection.fileno(), connections_possible()
    number = max(number, in_use)
    if number < possible:
        return True
    _often.warning(
        name,
        "The %s refused the connection of %s: more than %d descriptors of this process are in use, and the others are "
        "for its files. Raise the limit of open files (ulimit -Hn).",
        name,
        peer,
        possible,
    )
    return False
