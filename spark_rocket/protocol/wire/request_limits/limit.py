"""The bounds of one request code, and the check of a request against them.

A server checks every request before its handler runs (remoting/server/dispatcher.py): the bytes of header and body, and
the entries of lists that are one field of the header. Entries of a JSON body are counted where it is decoded, once,
by :func:`~spark_rocket.protocol.wire.request_limits.decode.body_of`.

Two strings in headers have no bound of entries, only of bytes, so that sends and pulls pay for two comparisons and
nothing else: message properties (32,767 bytes, protocol/record/properties.py) and filter expressions
(protocol/filter).

Thread-safety: immutable values. Apache's servers have no such bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.base import Header

KIB = 1024
MIB = 1024 * 1024

HEADER_SEPARATORS: Mapping[str, str] = {
    "attributes": ",",
    "globalWhiteAddrs": ",",
    "groupPerms": ",",
    "topicList": ";",
    "topicPerms": ",",
    "whiteRemoteAddress": ",",
}
"""Header fields that hold a list, and what separates its entries."""


class RawBody(Enum):
    """A body that is not a JSON document."""

    NONE = "none"
    """No body. A short one is ignored, as by Apache's servers."""
    MESSAGE = "message"
    """The body of a message."""
    MESSAGE_BATCH = "message batch"
    """One message; for batches consecutive ones (protocol/record/batch_body.py)."""
    PROPERTIES = "properties"
    """Lines ``name=value``."""
    REGISTRATION = "registration"
    """A RegisterBrokerBody as JSON, or compressed (bodies/register.py)."""


@dataclass(frozen=True, slots=True)
class RequestLimit:
    """The bounds of a request code."""

    header: type[Header] | None
    """The declared header; None if the request has none."""
    body: type[Body] | RawBody = RawBody.NONE
    max_header_bytes: int = 64 * KIB
    max_body_bytes: int = 4 * KIB
    max_entries: Mapping[str, int] = field(default_factory=dict)
    """Dotted wire path of each collection in header or body -> the most entries in all. The entries of a bit set are
    its bits; those of a field without a declared type are its values at any depth."""
    state: tuple[str, ...] = ()
    """What the request may leave behind: names in ``STATE_LIMITS``."""
    header_lists: tuple[tuple[str, str, int], ...] = field(init=False, repr=False)
    """The collections in the header: name, separator, most entries."""

    def __post_init__(self) -> None:
        found = tuple(
            (name, HEADER_SEPARATORS[name], most)
            for name, most in self.max_entries.items()
            if self.header is not None and name in HEADER_SEPARATORS
        )
        object.__setattr__(self, "header_lists", found)

    def check(self, request: RemotingCommand, frame_size: int) -> None:
        """Raise ProtocolError if header or body exceed their bounds; ``frame_size``: bytes of both."""
        size = len(request.body)
        if size > self.max_body_bytes:
            raise exceeded(request, f"a body of {size:,} bytes", f"{self.max_body_bytes:,}")
        size = frame_size - size
        if size > self.max_header_bytes:
            raise exceeded(request, f"a header of {size:,} bytes", f"{self.max_header_bytes:,}")
        for name, separator, most in self.header_lists:
            text = request.ext_fields.get(name)
            if text:
                count = text.count(separator) + 1
                if count > most:
                    raise exceeded(request, f"{count:,} entries in {name}", f"{most:,}")


def exceeded(request: RemotingCommand, what: str, most: str) -> ProtocolError:
    """Create the error for a request beyond one of its bounds."""
    return ProtocolError(
        f"The request {_name(request.code)} has {what}, at most {most} are allowed.",
        remedy="Send less in one request, or spread it over several clients.",
        response_code=ResponseCode.SYSTEM_ERROR,
        code="REQUEST_TOO_LARGE",
    )


def _name(code: int) -> str:
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return str(code)
