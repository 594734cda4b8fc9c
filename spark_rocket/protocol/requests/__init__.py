"""Every request in one row: a :class:`RequestType` with everything that servers and tests know about a request code.

``BROKER_REQUESTS``, ``NAMESRV_REQUESTS`` and ``SENT_TO_CLIENTS`` have the rows; each module of a family has a table.
Servers, access control, the cost test and pages read them. Clients do not import this package.

One request to a broker of 1 MiB may cost 100 ms of CPU time and 32 MiB of memory. The bounds allow what Apache's
clients and tools send to a broker with 10,000 topics, and heartbeats with 500 consumer groups.
"""

from collections.abc import Mapping
from typing import TypeVar

from spark_rocket.protocol.requests.accounts import ACCOUNTS
from spark_rocket.protocol.requests.admin import ADMIN
from spark_rocket.protocol.requests.body_collections import BodyCollection, collections_of
from spark_rocket.protocol.requests.clients import CLIENTS, SENT_TO_CLIENTS
from spark_rocket.protocol.requests.messages import MESSAGES
from spark_rocket.protocol.requests.namesrv import NAMESRV_REQUESTS
from spark_rocket.protocol.requests.offsets import OFFSETS
from spark_rocket.protocol.requests.pop import POP
from spark_rocket.protocol.requests.request_type import HEADER_SEPARATORS, RawBody, RequestType, table
from spark_rocket.protocol.requests.state import STATE_LIMITS, StateLimit
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.command import RemotingCommand

__all__ = [
    "BROKER_REQUESTS",
    "HEADER_SEPARATORS",
    "NAMESRV_REQUESTS",
    "REQUESTS",
    "SENT_TO_CLIENTS",
    "STATE_LIMITS",
    "BodyCollection",
    "RawBody",
    "RequestType",
    "StateLimit",
    "body_of",
    "collections_of",
]

BROKER_REQUESTS: Mapping[int, RequestType] = table(
    *(row for family in (MESSAGES, POP, CLIENTS, OFFSETS, ADMIN, ACCOUNTS) for row in family.values())
)
"""The row of every request code that a broker handles."""

REQUESTS: dict[int, RequestType] = {**BROKER_REQUESTS, **NAMESRV_REQUESTS}
"""The row of every request code that a server handles."""

_BodyT = TypeVar("_BodyT", bound=Body)


def body_of(request: RemotingCommand, cls: type[_BodyT]) -> _BodyT:
    """Decode the body of a request to a server, see :meth:`RequestType.body_of`. ``cls``: the row's type of body."""
    body = REQUESTS[request.code].body_of(request)
    assert isinstance(body, cls)
    return body
