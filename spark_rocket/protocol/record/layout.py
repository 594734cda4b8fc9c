"""The byte layout of stored records and of batch bodies. No other module defines it.

A record, in the commit log and in the body of a pull response, big endian:

======== ======= ============================================================== ================
offset   size    field                                                          (IPv4 hosts)
======== ======= ============================================================== ================
0        4       total size, this field included
4        4       magic: 0xDAA320A7 v1, 0xDAA320AB v2, 0xCBD43194 blank
8        4       CRC-32 of the body as stored, top bit cleared
12       4       queue id
16       4       flag, the user's
20       8       queue offset: the index of the message in its queue
28       8       physical offset: the position in the commit log
36       4       system flag
40       8       born timestamp, ms
48       8 or 20 born host: IP and int32 port; 20 with BORN_HOST_V6
56       8       store timestamp, ms
64       8 or 20 store host; 20 with STORE_HOST_V6
72       4       reconsume times
76       8       prepared transaction offset
84       4 + n   body
…        1 + n   topic (v2: 2 + n)
…        2 + n   properties
======== ======= ============================================================== ================

v2 is written when the topic is longer than 127 bytes. An IPv6 host shifts all later fields by 12 bytes. A *blank*
(total size = the rest of the file, magic, nothing else) ends a commit-log file without room for the next record; zeros
mean that nothing was written yet.

A *batch body* (request 320, and the body of an inner-batch record) is a run of: int32 total size, int32 magic 0, int32
CRC 0, int32 flag, 4 + n body, 2 + n properties.

Constants only. Corresponds to store.CommitLog and common.message.{MessageDecoder, MessageExtEncoder, MessageSysFlag}.
"""

from __future__ import annotations

from itertools import accumulate
from struct import Struct

from spark_rocket.protocol.ids import IPV4_HOST_SIZE, IPV6_HOST_SIZE

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

# Bits of the system flag.
COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300
HOSTS_MASK = BORN_HOST_V6 | STORE_HOST_V6
#: Both bits: the record is an inner batch, its body is a batch body.
UNWRAP_MASK = NEED_UNWRAP | INNER_BATCH

#: The shift of later fields by an IPv6 host.
V6_SHIFT = IPV6_HOST_SIZE - IPV4_HOST_SIZE

_HOST = f"{IPV4_HOST_SIZE}s"
_HEADER: tuple[tuple[str, str], ...] = (
    ("size", "i"),
    ("magic", "I"),
    ("body_crc", "I"),
    ("queue_id", "i"),
    ("flag", "i"),
    ("queue_offset", "q"),
    ("physical_offset", "q"),
    ("sys_flag", "i"),
    ("born_timestamp", "q"),
    ("born_host", _HOST),
    ("store_timestamp", "q"),
    ("store_host", _HOST),
    ("reconsume_times", "i"),
    ("prepared_transaction_offset", "q"),
    ("body_length", "i"),
)
_SIZES = [Struct(f">{code}").size for _, code in _HEADER]

#: The offset of each field in the header of a record with IPv4 hosts.
AT: dict[str, int] = dict(zip([name for name, _ in _HEADER], accumulate(_SIZES, initial=0), strict=False))
#: The number of bytes before the body of a record with IPv4 hosts.
HEADER_SIZE = sum(_SIZES)
#: The minimum size of a record: v1, IPv4 hosts, and empty body, topic and properties.
FIXED_SIZE = HEADER_SIZE + 1 + 2
#: The size of a blank. At least this much must remain free after a record.
BLANK_SIZE = 8
CRC_MASK = 0x7FFFFFFF
MAX_TOPIC_LENGTH_V1 = 127

_NUMPY = {"i": ">i4", "I": ">u4", "q": ">i8", _HOST: ">i8"}
#: For ``numpy.dtype``: the header with IPv4 hosts; hosts are 64-bit numbers.
HEADER_DTYPE: list[tuple[str, str]] = [(name, _NUMPY[code]) for name, code in _HEADER]


def _header(host_bits: int) -> Struct:
    sizes = {"born_host": host_bits & BORN_HOST_V6, "store_host": host_bits & STORE_HOST_V6}
    codes = [f"{IPV6_HOST_SIZE}s" if sizes.get(name) else code for name, code in _HEADER]
    return Struct(">" + "".join(codes))


#: The header up to and including the body's length, by ``sys_flag & HOSTS_MASK``.
HEADERS: dict[int, Struct] = {bits: _header(bits) for bits in (0, BORN_HOST_V6, STORE_HOST_V6, HOSTS_MASK)}


def header_struct(*names: str) -> Struct:
    """Return a ``Struct`` over the IPv4 header that reads only these fields, in the order of the layout."""
    codes = [code if name in names else f"{Struct(f'>{code}').size}x" for name, code in _HEADER]
    return Struct(">" + "".join(codes))


#: The header up to and including the physical offset, for records with any hosts.
HEADER_TO_PLACE = Struct(">" + "".join(code for name, code in _HEADER if AT[name] <= AT["physical_offset"]))
#: Size and physical offset of a record with any hosts.
SIZE_AND_PLACE = header_struct("size", "physical_offset")
#: The head of every record; all that is written of a blank.
SIZE_AND_MAGIC = Struct(">II")
MAGIC = Struct(">I")
INT = Struct(">i")
LONG = Struct(">q")
TOPIC_LENGTH_V1 = Struct(">B")
TOPIC_LENGTH_V2 = Struct(">h")
PROPERTIES_LENGTH = Struct(">h")

#: Total size, magic, CRC, flag and body length of a message in a batch body.
BATCH_HEADER = Struct(">iiiii")
#: The overhead of a message in a batch body.
BATCH_OVERHEAD = BATCH_HEADER.size + PROPERTIES_LENGTH.size


def record_size(body: int, topic: int, properties: int, *, born_v6: bool = False, store_v6: bool = False) -> int:
    """Return the size of a record in bytes, given the lengths of its parts in bytes."""
    v2 = topic > MAX_TOPIC_LENGTH_V1
    return FIXED_SIZE + body + topic + properties + v2 + V6_SHIFT * born_v6 + V6_SHIFT * store_v6
