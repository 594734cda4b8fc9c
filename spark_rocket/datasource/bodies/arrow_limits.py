"""How large an Arrow IPC stream says that it will become, read from its messages before any of it is built.

Row counts and the lengths of compressed buffers are claims of whoever wrote a body: 300 bytes can claim a billion rows
of nulls, or zeros without end. What is looked at, in the flatbuffers that Arrow has verified:

===================  ==============================================================================================
table                fields
===================  ==============================================================================================
Message              0 version, 1 header's type, 2 header, 3 length of the body
DictionaryBatch      0 id, 1 data (a RecordBatch), 2 whether it is added to the one before
RecordBatch          0 rows (int64), 1 nodes, 2 buffers (pairs of int64: offset in the body, length), 3 compression
a compressed buffer  int64: its length when it is not compressed, -1 if it is not; then the bytes
===================  ==============================================================================================

Pure.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa

# A body may become so much at most, and grow by so much; small ones may always become what is free.
MOST_ROWS, FREE_ROWS, ROWS_PER_BYTE = 1 << 24, 1 << 16, 64
MOST_BYTES, FREE_BYTES, BYTES_PER_BYTE = 128 << 20, 16 << 20, 64
_OLD_COMPRESSION = b"ARROW:experimental_compression"


class Allowance:
    """What is left of the rows and bytes that a body may become."""

    def __init__(self, size: int) -> None:
        self._rows = min(MOST_ROWS, FREE_ROWS + ROWS_PER_BYTE * size)
        self._bytes = min(MOST_BYTES, FREE_BYTES + BYTES_PER_BYTE * size)
        self.spent = 0

    def rows(self, count: int) -> None:
        """Take rows; ValueError if there are too many."""
        self._rows -= count
        if count < 0 or self._rows < 0:
            raise ValueError("it says that it has more rows than a body of its size may have")

    def bytes(self, count: int) -> None:
        """Take bytes; ValueError if there are too many."""
        self._bytes -= count
        self.spent += count
        if count < 0 or self._bytes < 0:
            raise ValueError("it would become larger than a body of its size may")


def check_stream(buffer: pa.Buffer) -> None:
    """Refuse a stream that claims too much."""
    left = Allowance(buffer.size)
    for message in pa.ipc.MessageReader.open_stream(buffer):
        if message.type not in ("record batch", "dictionary"):
            continue
        metadata = message.metadata.to_pybytes()
        if _OLD_COMPRESSION in metadata:
            raise ValueError("it is compressed as Arrow did before its format was settled")
        try:
            rows, inflated = _claims(metadata, message.body, message.type == "dictionary")
        except struct.error:
            raise ValueError("its metadata is cut off") from None
        left.rows(rows)
        left.bytes(inflated)


def _claims(metadata: bytes, body: pa.Buffer | None, dictionary: bool) -> tuple[int, int]:
    """A batch's rows, and the bytes that its compressed buffers say they have."""
    batch = _table(metadata, _field(metadata, _table(metadata, 0), 2))
    if dictionary:
        batch = _table(metadata, _field(metadata, batch, 1))
    at = _field(metadata, batch, 0)
    rows: int = struct.unpack_from("<q", metadata, at)[0] if at else 0
    buffers = _field(metadata, batch, 2)
    if not _field(metadata, batch, 3) or not buffers or body is None:
        return rows, 0
    start = _table(metadata, buffers)
    (count,) = struct.unpack_from("<I", metadata, start)
    data, inflated = memoryview(body), 0
    for offset, length in np.frombuffer(metadata, "<i8", 2 * count, start + 4).reshape(-1, 2).tolist():
        if length:
            if offset < 0:
                raise ValueError("a buffer lies outside of it")
            (claim,) = struct.unpack_from("<q", data, offset)
            inflated += 0 if claim == -1 else claim
            if claim < -1:
                raise ValueError("a buffer says that it is less than nothing")
    return rows, inflated


def _table(data: bytes, at: int) -> int:
    """Where the offset at a place leads."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, slot: int) -> int:
    """Where a table's field is; 0 if it has none."""
    names = table - struct.unpack_from("<i", data, table)[0]
    if names < 0 or 4 + 2 * slot >= struct.unpack_from("<H", data, names)[0]:
        return 0
    (offset,) = struct.unpack_from("<H", data, names + 4 + 2 * slot)
    return table + offset if offset else 0
