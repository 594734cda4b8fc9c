"""Typed bodies of requests, decoded once, within the bounds of their code.

Thread-safety: a request belongs to one thread at a time. Corresponds to RemotingSerializable.decode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.json import REQUEST_LIMITS, loads_tolerant
from spark_rocket.protocol.wire.request_limits.body_collections import collections_of
from spark_rocket.protocol.wire.request_limits.broker import BROKER_LIMITS
from spark_rocket.protocol.wire.request_limits.limit import RequestLimit, exceeded
from spark_rocket.protocol.wire.request_limits.namesrv import NAMESRV_LIMITS

_BodyT = TypeVar("_BodyT", bound=Body)

LIMITS: Mapping[int, RequestLimit] = {**BROKER_LIMITS, **NAMESRV_LIMITS}
"""The bounds of every request code that a server handles."""


def body_of(request: RemotingCommand, cls: type[_BodyT]) -> _BodyT:
    """Decode the body of a request; the second call returns the same object.

    ProtocolError if it is not valid JSON, has an invalid type, or a collection exceeds its bound.
    """
    known = getattr(request, "typed_body", None)
    if type(known) is cls:
        return known
    bounds = LIMITS[request.code].max_entries
    value = loads_tolerant(request.body, REQUEST_LIMITS)
    for collection in collections_of(cls):
        count, most = collection.count(value), bounds[collection.path]
        if count > most:
            raise exceeded(request, f"{count:,} entries in {collection.path}", f"{most:,}")
    body = cls.from_value(value)
    request.typed_body = body
    return body
