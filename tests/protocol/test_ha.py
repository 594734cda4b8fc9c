"""The HA port's bytes: one table of streams, cut in every way, and anything else."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire import ha

MOST = (1 << 63) - 1
Run = tuple[int, bytes]


def transfer(offset: int, data: bytes) -> bytes:
    return struct.pack(">qi", offset, len(data)) + data


# name, stream, what of the log is in it (runs that follow each other joined), heartbeats, bytes known to be missing
TRANSFERS = [
    ("nothing", b"", [], [], 0),
    ("heartbeat", transfer(77, b""), [], [77], 0),
    ("one", transfer(0, b"abc"), [(0, b"abc")], [], 0),
    ("two", transfer(8, b"abc") + transfer(11, b"de"), [(8, b"abcde")], [], 0),
    ("a heartbeat between", transfer(8, b"abc") + transfer(11, b"") + transfer(11, b"d"), [(8, b"abcd")], [11], 0),
    ("a gap", transfer(8, b"abc") + transfer(20, b"de"), [(8, b"abc"), (20, b"de")], [], 0),
    ("torn header", transfer(8, b"abc") + bytes(5), [(8, b"abc")], [], 7),
    ("torn data", transfer(8, b"abcdef")[:-2], [(8, b"abcd")], [], 2),
    ("the last offset", transfer(MOST, b""), [], [MOST], 0),
]
CASES = pytest.mark.parametrize(
    ("stream", "log", "beats", "missing"), [pytest.param(*row[1:], id=row[0]) for row in TRANSFERS]
)
BAD_TRANSFERS = [
    struct.pack(">qi", -1, 4),
    struct.pack(">qi", 0, -1),
    struct.pack(">qi", 0, ha.MAX_TRANSFER_SIZE + 1),
    struct.pack(">qi", MOST, 1),
    b"GET / HTTP/1.1\r\n",
]


def decoded(pieces: Iterable[bytes]) -> tuple[list[Run], list[int], int]:
    decoder = ha.TransferDecoder()
    log: list[Run] = []
    beats: list[int] = []
    end = -1
    for piece in pieces:
        for offset, data in decoder.feed(piece):
            if not data:
                beats.append(offset)
                continue
            start, run = log.pop() if offset == end else (offset, b"")
            log.append((start, run + data))
            end = offset + len(data)
    return log, beats, decoder.pending


@CASES
def test_transfers_at_once_and_byte_by_byte(stream: bytes, log: list[Run], beats: list[int], missing: int) -> None:
    assert decoded([stream]) == (log, beats, missing)
    assert decoded(stream[at : at + 1] for at in range(len(stream))) == (log, beats, missing)


@CASES
def test_transfers_cut_anywhere(stream: bytes, log: list[Run], beats: list[int], missing: int) -> None:
    for cut in range(len(stream) + 1):
        assert decoded([stream[:cut], stream[cut:]]) == (log, beats, missing)


@pytest.mark.parametrize("stream", BAD_TRANSFERS)
def test_what_is_no_transfer(stream: bytes) -> None:
    good = transfer(5, b"xyz")
    for cut in range(len(good + stream) + 1):
        with pytest.raises(ProtocolError):
            decoded([(good + stream)[:cut], (good + stream)[cut:]])


def test_pieces_are_not_copied() -> None:
    stream = transfer(8, bytes(100))
    ((_, piece),) = ha.TransferDecoder().feed(stream)
    assert piece.obj is stream


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.binary(max_size=60)), max_size=6), st.data())
def test_what_is_encoded_is_decoded(transfers: list[tuple[int, bytes]], cuts: st.DataObject) -> None:
    stream = b"".join(ha.encode_header(offset, len(data)) + data for offset, data in transfers)
    at = sorted(cuts.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *at], [*at, len(stream)], strict=True)]
    assert decoded(pieces) == decoded([stream])
    log, beats, missing = decoded(pieces)
    assert missing == 0
    assert sum(len(run) for _, run in log) == sum(len(data) for _, data in transfers)
    assert beats == [offset for offset, data in transfers if not data]


REPORTS = [
    ("nothing", b"", [], 0),
    ("zero", bytes(8), [0], 0),
    ("two", struct.pack(">qq", 5, MOST), [5, MOST], 0),
    ("torn", struct.pack(">q", 5) + b"\0\0\0", [5], 3),
]


@pytest.mark.parametrize(("stream", "wanted", "pending"), [pytest.param(*row[1:], id=row[0]) for row in REPORTS])
def test_reports(stream: bytes, wanted: list[int], pending: int) -> None:
    for cut in range(len(stream) + 1):
        decoder = ha.ReportDecoder()
        assert decoder.feed(stream[:cut]) + decoder.feed(stream[cut:]) == wanted
        assert decoder.pending == pending
    decoder = ha.ReportDecoder()
    assert [offset for at in range(len(stream)) for offset in decoder.feed(stream[at : at + 1])] == wanted
    assert b"".join(map(ha.encode_report, wanted)) == stream[: len(wanted) * ha.REPORT_SIZE]


def test_what_is_no_report() -> None:
    with pytest.raises(ProtocolError, match="-1"):
        ha.ReportDecoder().feed(b"\xff" * 8)


@pytest.mark.parametrize("number", [-1, MOST + 1])
def test_what_cannot_be_encoded(number: int) -> None:
    with pytest.raises(ProtocolError):
        ha.encode_report(number)
    with pytest.raises(ProtocolError):
        ha.encode_header(number, 0)
    with pytest.raises(ProtocolError):
        ha.encode_header(0, number)
