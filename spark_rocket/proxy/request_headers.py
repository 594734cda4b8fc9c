"""The rules for a request's header fields in HTTP/2: RFC 9113, section 8.2 and 8.3.

Names are lower-case tokens; the pseudo headers :method, :scheme, :path and :authority come first, each once, and all
but the last are there; nothing that HTTP/1.1 says about a connection is; values have no line breaks.

Clients send the same names again and again, so that names that were found good are remembered, as one string.

Thread-safety: all of it.
"""

from __future__ import annotations

import re

from spark_rocket.errors import ProtocolError
from spark_rocket.proxy.hpack import ENTRY_OVERHEAD, Field

MAX_HEADER_LIST = 32 * 1024
MAX_FIELDS = 128

# Joined by line feeds.
_NAMES = re.compile(
    rb"(?::(?:method|scheme|path|authority)(?:\n|\Z))*"
    rb"(?:(?!(?:connection|proxy-connection|keep-alive|transfer-encoding|upgrade)(?:\n|\Z))"
    rb"[a-z0-9!#$%&'*+.^_`|~-]+(?:\n|\Z))*"
)
_NO_VALUE = re.compile(rb"[\0\r\n]")
_MAX_GOOD_NAMES = 1024
_MAX_GOOD_LENGTH = 1024
_good_names: set[bytes] = set()


class MalformedError(ProtocolError):
    """A request that is none."""

    code = "MALFORMED_REQUEST"


class OversizeError(ProtocolError):
    """More than the limits."""

    code = "OVERSIZE_REQUEST"


def read(fields: list[Field]) -> dict[bytes, bytes]:
    """The fields by their names; of a name that came more than once, the last value."""
    if len(fields) > MAX_FIELDS:
        raise OversizeError(f"A request has {len(fields)} header fields.")
    headers = dict(fields)
    names = b"\n".join(headers)
    values = b"".join(headers.values())
    if len(names) + len(values) + ENTRY_OVERHEAD * len(fields) > MAX_HEADER_LIST:
        raise OversizeError(f"A request has {len(names) + len(values)} bytes of header fields.")
    if (
        (names not in _good_names and not _are_good(names))
        or names.count(b"\n") >= len(headers)  # a name has one itself
        or (len(headers) < len(fields) and _repeats_pseudo(fields))
        or not headers.get(b":path")
        or b":method" not in headers
        or b":scheme" not in headers
        or headers.get(b"te", b"trailers") != b"trailers"
        or _NO_VALUE.search(values)
    ):
        raise MalformedError("The header fields are not those of a request.")
    return headers


def _are_good(names: bytes) -> bool:
    if names.endswith(b"\n") or _NAMES.fullmatch(names) is None:
        return False
    if len(_good_names) >= _MAX_GOOD_NAMES:
        _good_names.clear()
    if len(names) <= _MAX_GOOD_LENGTH:
        _good_names.add(names)
    return True


def _repeats_pseudo(fields: list[Field]) -> bool:
    names = [name for name, _ in fields if name.startswith(b":")]
    return len(names) > len(set(names))
