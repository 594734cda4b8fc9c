"""A finding of ``rocket doctor``, and what several of its checks need."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass

from spark_rocket.errors import RocketError

_CONNECT_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Finding:
    """The subject of a check, its result, and the remedy of a problem. ``grade`` is ok, warning or wrong."""

    about: str
    grade: str
    text: str
    remedy: str = ""


def guarded(about: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings; an error ends them, as the last one."""
    try:
        yield from findings
    except RocketError as error:
        yield Finding(about, "wrong", error.message, error.remedy)


def reach(address: str) -> str:
    """Connect to an address; return the error, empty for success."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as problem:
        return str(problem)
    return ""
