"""The row of a request code: everything that servers, access control, tests and pages know about it.

A server checks every request against the bounds of its row before a handler runs (remoting/server/dispatcher.py): the
bytes of header and body, and the entries of lists that are one field of the header. Entries of a JSON body are counted
where it is decoded, once, by :meth:`RequestType.body_of`.

Two strings in headers have no bound of entries, only of bytes, so that sends and pulls pay for two comparisons and
nothing else: message properties (32,767 bytes, protocol/record/properties.py) and filter expressions
(protocol/filter).

A request belongs to one thread at a time. Apache's servers have no such bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.requests.body_collections import collections_of
from spark_rocket.protocol.requests.needs import Action, Need, Pair, PlainAccess, TopicAt
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.base import Header
from spark_rocket.protocol.wire.headers.producer import SendMessageRequestHeader
from spark_rocket.protocol.wire.json import REQUEST_LIMITS, loads_tolerant

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestType:
    """A request code with its header, body, bounds, state and needs."""

    code: int
    needs: tuple[Need, ...]
    """The permissions that it needs, all of them. Empty: any account is sufficient."""
    header: type[Header] | None = None
    """The declared header; None if the request has none."""
    one_letter: bool = False
    """Whether a SendMessageRequestHeader has the field names a to n."""
    body: type[Body] | RawBody = RawBody.NONE
    max_header_bytes: int = 64 * KIB
    max_body_bytes: int = 4 * KIB
    max_entries: Mapping[str, int] = field(default_factory=dict)
    """Dotted wire path of each collection in header or body -> the most entries in all. The entries of a bit set are
    its bits; the elements of a field without a declared type are its values at any depth."""
    state: tuple[str, ...] = ()
    """What the request may leave behind: names in ``STATE_LIMITS``."""
    plain_exception: PlainAccess | None = None
    """What ACL 1.0 requires, where it does not follow from the needs."""
    plain_access: PlainAccess = field(init=False)
    """What ACL 1.0 requires."""
    decided_by: tuple[str, ...] | None = field(init=False, repr=False)
    """The header fields that alone decide its pairs; None if a body or a stored message does, too."""
    header_lists: tuple[tuple[str, str, int], ...] = field(init=False, repr=False)
    """The collections in the header: name, separator, most entries."""

    def __post_init__(self) -> None:
        found = tuple(
            (name, HEADER_SEPARATORS[name], most)
            for name, most in self.max_entries.items()
            if self.header is not None and name in HEADER_SEPARATORS
        )
        object.__setattr__(self, "header_lists", found)
        decided_by = [need.header_fields for need in self.needs]
        names = None if None in decided_by else tuple(dict.fromkeys(name for one in decided_by for name in one or ()))
        object.__setattr__(self, "decided_by", names)
        object.__setattr__(self, "plain_access", self.plain_exception or _plain_access(self.needs))

    @property
    def name(self) -> str:
        """RocketMQ's name of the code, or its number."""
        try:
            return RequestCode(self.code).name
        except ValueError:
            return str(self.code)

    def check(self, request: RemotingCommand, frame_size: int) -> None:
        """Raise ProtocolError if header or body exceed their bounds; ``frame_size``: bytes of both."""
        size = len(request.body)
        if size > self.max_body_bytes:
            raise self._exceeded(f"a body of {size:,} bytes", self.max_body_bytes)
        size = frame_size - size
        if size > self.max_header_bytes:
            raise self._exceeded(f"a header of {size:,} bytes", self.max_header_bytes)
        for name, separator, most in self.header_lists:
            text = request.ext_fields.get(name)
            if text:
                count = text.count(separator) + 1
                if count > most:
                    raise self._exceeded(f"{count:,} entries in {name}", most)

    def header_of(self, request: RemotingCommand) -> Header | None:
        """Decode the header; ProtocolError if a required field is missing or has an invalid type."""
        if self.header is None:
            return None
        if self.one_letter:
            return SendMessageRequestHeader.from_ext_v2(request.ext_fields)
        return self.header.from_ext(request.ext_fields)

    def body_of(self, request: RemotingCommand) -> Body:
        """Decode the JSON body; the second call returns the same object.

        ProtocolError if it is not valid JSON, has an invalid type, or a collection exceeds its bound.
        """
        known = getattr(request, "typed_body", None)
        if isinstance(known, Body):
            return known
        assert isinstance(self.body, type), f"{self.name} has no typed body"
        value = loads_tolerant(request.body, REQUEST_LIMITS)
        for collection in collections_of(self.body):
            count, most = collection.count(value), self.max_entries[collection.path]
            if count > most:
                raise self._exceeded(f"{count:,} entries in {collection.path}", most)
        body = self.body.from_value(value)
        request.typed_body = body
        return body

    def pairs(self, request: RemotingCommand, topic_at: TopicAt) -> list[Pair]:
        """Return what this request needs; all pairs must be allowed. ProtocolError as from :meth:`body_of`."""
        if isinstance(self.body, type) and len(request.body):
            self.body_of(request)
        return [pair for need in self.needs for pair in need.pairs(request, topic_at)]

    def _exceeded(self, what: str, most: int) -> ProtocolError:
        return ProtocolError(
            f"The request {self.name} ({self.code}) has {what}, at most {most:,} are allowed.",
            remedy="Send less in one request, or spread it over several clients.",
            response_code=ResponseCode.SYSTEM_ERROR,
            code="REQUEST_TOO_LARGE",
        )


def _plain_access(needs: tuple[Need, ...]) -> PlainAccess:
    if any(need.permission is not None for need in needs):
        return PlainAccess.PERMISSIONS
    is_read = all(action in (Action.GET, Action.LIST) for need in needs for action in need.actions)
    return PlainAccess.ANY_ACCOUNT if is_read else PlainAccess.ADMIN


def table(*rows: RequestType) -> dict[int, RequestType]:
    """The table of a family; ValueError if two rows have one code."""
    found = {int(row.code): row for row in rows}
    if len(found) < len(rows):
        raise ValueError("two rows have one request code")
    return found
