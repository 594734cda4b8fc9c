"""The HA port: how a slave follows its master's commit log.

Slave to master, after connecting, after each growth of its log, and at intervals: a report.

====== ==== ===========================================================================================
offset size content
====== ==== ===========================================================================================
0      8    int64 physical offset up to which the slave has the log; the first report requests the start:
            0 is the start of the master's last file
====== ==== ===========================================================================================

Master to slave: transfers. One of size 0 is a heartbeat. A transfer never crosses a file boundary of the log.

====== ==== ===========================================================================================
offset size content
====== ==== ===========================================================================================
0      8    int64 physical offset of the first byte
8      4    int32 size of the data
12     …    bytes of the log, as in the file
====== ==== ===========================================================================================

A transfer need not be whole to be of use, so its bytes are handed on as they come, without copying them; what is a
record and what is not is for the store to say. Numbers that cannot be are a ProtocolError, and nothing behind them can
be trusted: close the connection.

Thread-safety: one decoder per connection, one thread at a time.
Corresponds to org.apache.rocketmq.store.ha.{DefaultHAClient, DefaultHAConnection}.
"""

from __future__ import annotations

from struct import Struct

from spark_rocket.errors import ProtocolError

REPORT_SIZE = 8
HEADER_SIZE = 12
TRANSFER_SIZE = 32 << 10
"""Bytes of data in one transfer that a master sends (haTransferBatchSize)."""

MAX_TRANSFER_SIZE = (4 << 20) - HEADER_SIZE
"""The largest transfer that a slave accepts: the buffer size of Apache's slaves."""

_REPORT = Struct(">q")
_HEADER = Struct(">qi")
_MAX_OFFSET = (1 << 63) - 1


def encode_report(offset: int) -> bytes:
    """Encode a slave's report. ProtocolError for an invalid offset."""
    if not 0 <= offset <= _MAX_OFFSET:
        raise ProtocolError(f"Invalid offset of a slave: {offset}.")
    return _REPORT.pack(offset)


def encode_header(offset: int, size: int) -> bytes:
    """The header of a transfer; a heartbeat has nothing else. ProtocolError for invalid values."""
    _check(offset, size)
    return _HEADER.pack(offset, size)


class ReportDecoder:
    """Cuts what a slave sends into reports."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    @property
    def pending(self) -> int:
        """Bytes of a report that is not whole yet."""
        return len(self._pending)

    def feed(self, data: bytes) -> list[int]:
        """Take more bytes; the reports that they complete."""
        data = self._pending + data
        whole = len(data) - len(data) % REPORT_SIZE
        self._pending = data[whole:]
        offsets = [offset for (offset,) in _REPORT.iter_unpack(data[:whole])]
        for offset in offsets:
            if offset < 0:
                raise ProtocolError(
                    f"Invalid offset {offset} of a slave ({_REPORT.pack(offset)!r}).",
                    remedy="Only slaves may connect to the HA port: check the client.",
                )
        return offsets


class TransferDecoder:
    """Takes what a master sends apart into pieces of its log."""

    __slots__ = ("_header", "_left", "_offset")

    def __init__(self) -> None:
        self._header = b""  # the beginning of one that is not whole yet
        self._offset = 0  # of the next byte of a transfer that is not whole yet,
        self._left = 0  # and how many are to come

    @property
    def pending(self) -> int:
        """How many bytes are known to be missing; 0 between two transfers."""
        return self._left or (HEADER_SIZE - len(self._header) if self._header else 0)

    def feed(self, data: bytes) -> list[tuple[int, memoryview]]:
        """Take more bytes; pieces of the log in them, each with its physical offset. An empty piece is a heartbeat.

        Pieces are views of ``data``.
        """
        pieces: list[tuple[int, memoryview]] = []
        view = memoryview(data)
        at = 0
        while at < len(data):
            if self._left:
                piece = view[at : at + self._left]
                pieces.append((self._offset, piece))
                at += len(piece)
                self._offset += len(piece)
                self._left -= len(piece)
                continue
            part = view[at : at + HEADER_SIZE - len(self._header)]
            self._header += part
            at += len(part)
            if len(self._header) == HEADER_SIZE:
                self._offset, self._left = _HEADER.unpack(self._header)
                _check(self._offset, self._left)
                self._header = b""
                if not self._left:
                    pieces.append((self._offset, view[at:at]))
        return pieces


def _check(offset: int, size: int) -> None:
    if not (0 <= size <= MAX_TRANSFER_SIZE and 0 <= offset <= _MAX_OFFSET - size):
        raise ProtocolError(
            f"Invalid transfer of {size} bytes from offset {offset}.",
            remedy="The peer does not speak RocketMQ's HA protocol: set the HA address of a master (haMasterAddress).",
        )
