"""State that peers create in bulk, on two connections that then close: many small requests, and few large ones.

Names and numbers differ in all of them, so that as much as possible is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_rocket.protocol.requests import STATE_LIMITS, RawBody, RequestType
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.command import RemotingCommand
from tests.cost import values
from tests.cost.generator import encoded, registration, request_of
from tests.cost.values import Filling, Variant, body_of, header_fields, header_type, wire_name

SMALL_REQUESTS = 2_000
LARGE_REQUESTS = 24
_KEPT_NAMES = {"topicFilterType", "expType", "expressionType", "boundaryType", "namespace", "defaultTopic"}
_MAX_OTHERS_S = 0.1
"""CPU time for ten connections of others, which open and close beside the state."""
_MAX_CLOSING_S = 0.1
"""CPU time of the close for each MB that created the state."""
_COUNTED = ("queueId", "commitOffset", "offset")


def small_requests(row: RequestType) -> Iterator[RemotingCommand]:
    for number in range(SMALL_REQUESTS):
        body = None
        if isinstance(row.body, type):
            body = encoded(body_of(row.body, Filling(variant=Variant.UNIQUE, start=number)))
        yield request_of(row, _names(row, number), body)


def large_requests(row: RequestType) -> Iterator[RemotingCommand]:
    for number in range(LARGE_REQUESTS):
        if isinstance(row.body, type):
            body = _largest(row.body, row, number)
        elif row.body is RawBody.REGISTRATION:
            body = registration(2_500, start=number * 2_500)
        else:
            return
        changed = _names(row, SMALL_REQUESTS)
        if row.body is RawBody.REGISTRATION:
            changed["heartbeat_timeout_millis"] = None
        yield request_of(row, changed, body)


def is_released(row: RequestType) -> bool:
    return bool(row.state) and all("connection close" in STATE_LIMITS[name].released for name in row.state)


def _names(row: RequestType, number: int) -> dict[str, object]:
    """Other names in each request, of the greatest usual length."""
    changed: dict[str, object] = {}
    if row.header is not None:
        for field in header_fields(row.header):
            wire = wire_name(field)
            if header_type(field) == "str" and wire in values.PLAUSIBLE and wire not in _KEPT_NAMES:
                base = str(values.PLAUSIBLE[wire])
                changed[field.name] = f"127.0.0.1:{number + 1}" if wire.endswith("Addr") else f"{base}-{number}"
            elif wire in _COUNTED:
                changed[field.name] = number % values.QUEUES
    return changed


def _largest(cls: type[Body], row: RequestType, number: int) -> bytes:
    """A body with as many entries of the outermost collection as its bound and the bound of the body allow."""
    outer = [path for path in values.collections_in(cls) if "." not in path and path in row.max_entries]
    best = b""
    for path in outer:
        count = row.max_entries[path]
        while count:
            raw = encoded(body_of(cls, Filling({path: count}, Variant.UNIQUE, start=number * count)))
            if len(raw) <= row.max_body_bytes:
                best = max(best, raw, key=len)
                break
            count = min(count - 1, count * row.max_body_bytes // len(raw))
    return best or encoded(body_of(cls, Filling(variant=Variant.UNIQUE, start=number)))


@dataclass
class BulkCost:
    """What state in bulk costs. Times are seconds of CPU, memory in MB."""

    sent: float = 0.0
    """MB of requests."""
    creating: float = 0.0
    held: float = 0.0
    """Memory before the connections close."""
    others: float = 0.0
    """CPU for ten other connections that open and close meanwhile."""
    closing: float = 0.0
    kept: float = 0.0
    """Memory after the connections closed; of state that is released then, a minute later."""

    def too_much(self, name: str) -> list[str]:
        """What is above its row."""
        found = []
        if self.others > _MAX_OTHERS_S:
            found.append(f"{name}: others pay {self.others * 1000:.0f} ms for its state")
        if self.closing > _MAX_CLOSING_S * max(self.sent, 1.0):
            found.append(f"{name}: the close takes {self.closing * 1000:.0f} ms")
        return found
