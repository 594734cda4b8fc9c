"""HPACK, the compression of header fields in HTTP/2: RFC 7541.

A block is a row of representations, told apart by their first bits:

=============  =====================================================  =====================
first byte     meaning                                                in the dynamic table
=============  =====================================================  =====================
``1xxxxxxx``   the field with index x                                 is there
``01xxxxxx``   a value, with the name of index x or (0) its own       enters
``001xxxxx``   the table's size becomes x; only before all fields     leaves what is too much
``0000xxxx``   as 01, for once                                        no
``0001xxxx``   as 0000, and no intermediary may index it              no
=============  =====================================================  =====================

x is an integer with that many bits of prefix; when they are all ones, the rest follows in groups of 7 bits, the lowest
first, each byte but the last with its high bit set. A string is its length (7 bits of prefix, the eighth says Huffman)
and its bytes. Indices 1 to 61 are the static table, 62 is the newest of the dynamic one, where a field takes
``len(name) + len(value) + 32``.

Clients differ: those on gRPC's C core (Python, C++, C#, Ruby) index what stays the same and write our clients' own
metadata out each time; Go, Java and Node put every field through table and Huffman. The decoder is a plain loop, quick
for both: one list has both tables, so an index is one look-up, and a run of indexed fields that came before, with the
table as it is, is one look-up in all.

We write few different fields, so :func:`literal` makes blocks once for all connections, without a table of ours.

Thread-safety: a decoder belongs to one connection.
"""

from __future__ import annotations

import re

from spark_rocket.errors import ProtocolError
from spark_rocket.proxy import huffman

Field = tuple[bytes, bytes]

DEFAULT_TABLE_SIZE = 4096
ENTRY_OVERHEAD = 32
#: Begins a block of ours after the peer has lowered its table's size: a size update to 0.
EMPTY_TABLE = b"\x20"

_STATIC_NAMES = (
    b":authority :method :method :path :path :scheme :scheme :status :status :status :status :status :status :status "
    b"accept-charset accept-encoding accept-language accept-ranges accept access-control-allow-origin age allow "
    b"authorization cache-control content-disposition content-encoding content-language content-length "
    b"content-location content-range content-type cookie date etag expect expires from host if-match "
    b"if-modified-since if-none-match if-range if-unmodified-since last-modified link location max-forwards "
    b"proxy-authenticate proxy-authorization range referer refresh retry-after server set-cookie "
    b"strict-transport-security transfer-encoding user-agent vary via www-authenticate"
).split()
_STATIC_VALUES = {
    2: b"GET", 3: b"POST", 4: b"/", 5: b"/index.html", 6: b"http", 7: b"https", 8: b"200", 9: b"204", 10: b"206",
    11: b"304", 12: b"400", 13: b"404", 14: b"500", 16: b"gzip, deflate",
}  # fmt: skip
STATIC: tuple[Field, ...] = tuple(
    (name, _STATIC_VALUES.get(index, b"")) for index, name in enumerate(_STATIC_NAMES, start=1)
)
_FIRST_DYNAMIC = len(STATIC) + 1
_STATIC_INDEX = {name: index for index, (name, _) in reversed(list(enumerate(STATIC, start=1)))}
_STATIC_FIELD = {field: index for index, field in enumerate(STATIC, start=1)}

_MAX_INTEGER = 1 << 28
# Two or more fields of one byte each.
_RUN = re.compile(rb"[\x81-\xfe]{2,}")
_MAX_RUNS = 64


class HpackError(ProtocolError):
    """No block of header fields. The connection cannot go on, since the tables of both ends may differ now."""

    code = "HPACK_ERROR"


class Decoder:
    """One direction of a connection."""

    __slots__ = ("_entries", "_runs", "_size", "max_size", "size_limit")

    def __init__(self, size_limit: int = DEFAULT_TABLE_SIZE) -> None:
        self.size_limit = size_limit  # what we have announced
        self.max_size = size_limit  # what the peer uses of it
        self._size = 0
        self._entries: list[Field] = [(b"", b""), *STATIC]  # the dynamic table, newest first, follows the static one
        self._runs: dict[bytes, list[Field]] = {}  # as long as the table stays as it is

    @property
    def table(self) -> list[Field]:
        """The dynamic table, newest first."""
        return self._entries[_FIRST_DYNAMIC:]

    @property
    def size(self) -> int:
        """The dynamic table's, as the RFC counts it."""
        return self._size

    def decode(self, block: bytes) -> list[Field]:
        """A block's fields. HpackError for anything else; then the decoder is of no more use.

        There are at most as many fields as bytes, and none is copied: it is for the caller to refuse very many.
        """
        fields: list[Field] = []
        append = fields.append
        entries = self._entries
        end = len(block)
        at = 0
        try:
            while at < end:
                byte = block[at]
                if byte > 0x80:
                    if byte == 0xFF:
                        index, at = _integer(block, at, 0x7F)
                        append(entries[index])
                        continue
                    at += 1
                    if at == end or block[at] <= 0x80:
                        append(entries[byte & 0x7F])
                        continue
                    run = _RUN.match(block, at - 1)
                    if run is None:
                        append(entries[byte & 0x7F])
                        continue
                    key = run.group()
                    found = self._runs.get(key)
                    if found is None:
                        found = [entries[byte & 0x7F] for byte in key]
                        if len(key) <= 32 and len(self._runs) < _MAX_RUNS:
                            self._runs[key] = found
                    fields += found
                    at = run.end()
                elif byte >= 0x40:
                    index, at = _integer(block, at, 0x3F)
                    if index:
                        name = entries[index][0]
                    else:
                        name, at = _string(block, at)
                    value, at = _string(block, at)
                    field = name, value
                    append(field)
                    self._add(field)
                elif byte < 0x20:
                    if not byte and block[at + 1] < 0x7F:
                        # The C core's own way: two short strings as they are. A good part of all fields.
                        middle = at + 2 + block[at + 1]
                        length = block[middle]
                        if length < 0x7F:
                            name = block[at + 2 : middle]
                            at = middle + 1 + length
                            if at > end:
                                raise HpackError(f"A string of {length} bytes exceeds its header block.")
                            append((name, block[middle + 1 : at]))
                            continue
                    index, at = _integer(block, at, 0x0F)
                    if index:
                        name = entries[index][0]
                    else:
                        name, at = _string(block, at)
                    value, at = _string(block, at)
                    append((name, value))
                elif byte == 0x80:
                    raise HpackError("A header field has index 0.")
                else:
                    if fields:
                        raise HpackError("The table's size changes behind a header field.")
                    size, at = _integer(block, at, 0x1F)
                    self._resize(size)
        except IndexError:
            raise HpackError(f"A block of {end} bytes ends early, or has an index beyond the table.") from None
        except huffman.HuffmanError as error:
            raise HpackError(error.message) from None
        return fields

    def _add(self, field: Field) -> None:
        entries = self._entries
        self._size += len(field[0]) + len(field[1]) + ENTRY_OVERHEAD
        entries.insert(_FIRST_DYNAMIC, field)
        if self._size > self.max_size:
            self._evict()
        if self._runs:
            self._runs = {}

    def _resize(self, size: int) -> None:
        if size > self.size_limit:
            raise HpackError(f"The table was to have {size} bytes, where {self.size_limit} are allowed.")
        self.max_size = size
        self._evict()
        self._runs = {}

    def _evict(self) -> None:
        entries = self._entries
        while self._size > self.max_size:
            name, value = entries.pop()
            self._size -= len(name) + len(value) + ENTRY_OVERHEAD


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """The integer at ``at`` and what is behind it. IndexError where the block ends too early."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if value > _MAX_INTEGER or shift > 28:
            raise HpackError("An integer of a header block is out of all bounds.")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    first = block[at]
    length = first & 0x7F
    if length == 0x7F:
        length, at = _integer(block, at, 0x7F)
    else:
        at += 1
    end = at + length
    if end > len(block):
        raise HpackError(f"A string of {length} bytes exceeds its header block.")
    text = block[at:end]
    return (huffman.decode(text) if first & 0x80 else text), end


def integer(value: int, bits: int, flags: int = 0) -> bytes:
    """An integer with a prefix of ``bits`` bits behind ``flags``."""
    mask = (1 << bits) - 1
    if value < mask:
        return bytes((flags | value,))
    out = bytearray((flags | mask,))
    value -= mask
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def literal(*fields: Field) -> bytes:
    """A block of these fields that needs and leaves no dynamic table: the same for every connection."""
    out: list[bytes] = []
    for field in fields:
        index = _STATIC_FIELD.get(field)
        if index is not None:
            out.append(integer(index, 7, 0x80))
            continue
        name, value = field
        index = _STATIC_INDEX.get(name)
        out.append(integer(index or 0, 4))
        if index is None:
            out += integer(len(name), 7), name
        out += integer(len(value), 7), value
    return b"".join(out)
