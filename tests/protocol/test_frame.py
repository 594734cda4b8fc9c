"""Frames: one table of streams, cut in every way."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire import frame as frame_module
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH, FrameSplitter

# name, stream, the frames in it, bytes of a torn frame at its end
STREAMS = [
    ("nothing", b"", [], 0),
    ("least", b"\0\0\0\4\0\0\0\0", [b"\0\0\0\0"], 0),
    ("one", b"\0\0\0\6\0\0\0\1xy", [b"\0\0\0\1xy"], 0),
    ("two", b"\0\0\0\5\0\0\0\1x\0\0\0\4\1\0\0\0", [b"\0\0\0\1x", b"\1\0\0\0"], 0),
    ("torn length", b"\0\0\0\5\0\0\0\1x\0\0", [b"\0\0\0\1x"], 2),
    ("torn frame", b"\0\0\0\5\0\0\0\1x\0\0\0\5\0\0\0", [b"\0\0\0\1x"], 7),
]
CASES = pytest.mark.parametrize(("stream", "wanted", "torn"), [pytest.param(*row[1:], id=row[0]) for row in STREAMS])


def feed_all(pieces: list[bytes]) -> tuple[list[bytes], int]:
    splitter = FrameSplitter()
    frames = [bytes(frame) for piece in pieces for frame in splitter.feed(piece)]
    return frames, splitter.pending


@CASES
def test_every_cut(stream: bytes, wanted: list[bytes], torn: int) -> None:
    assert feed_all([stream[at : at + 1] for at in range(len(stream))]) == (wanted, torn)
    for cut in range(len(stream) + 1):
        assert feed_all([stream[:cut], stream[cut:]]) == (wanted, torn)


@CASES
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_frames_outlive_the_callers_buffer(stream: bytes, wanted: list[bytes], torn: int, kind: type) -> None:
    splitter = FrameSplitter()
    buffer = bytearray(stream)
    frames = splitter.feed(kind(buffer))
    buffer[:] = b"\xff" * len(buffer)
    assert [bytes(frame) for frame in frames] == wanted


def test_whole_frames_in_bytes_are_not_copied() -> None:
    stream = b"\0\0\0\5\0\0\0\1x"
    (frame,) = FrameSplitter().feed(stream)
    assert frame.obj is stream


@given(st.lists(st.binary(min_size=4, max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=12))
def test_any_frames_in_any_pieces(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert feed_all(pieces) == (frames, 0)


@given(st.lists(st.binary(min_size=4, max_size=60), max_size=6), st.lists(st.integers(1, 30)), st.randoms())
def test_large_frames_can_be_received_into_their_places(frames: list[bytes], steps: list[int], random: Random) -> None:
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    splitter, found, at = FrameSplitter(), [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_module, "LARGE_FRAME_BYTES", 20)
        for step in (*steps, *[len(stream)] * 7):
            place = splitter.place()
            piece = stream[at : at + step]
            if place is not None and random.random() < 0.7:
                piece = piece[: len(place)]
                place[: len(piece)] = piece
                whole = splitter.filled(len(piece))
                found += [] if whole is None else [bytes(whole)]
            else:
                found += [bytes(frame) for frame in splitter.feed(piece)]
            at += len(piece)
            assert splitter.pending == at - sum(4 + len(frame) for frame in found)
    assert (found, splitter.place()) == (frames, None)


def test_a_large_frame_gets_a_place_when_an_eighth_of_it_has_come() -> None:
    stream = (1_000_000).to_bytes(4, "big") + bytes(1_000_000)
    splitter = FrameSplitter()
    splitter.feed(stream[:100_000])
    assert splitter.place() is None, "memory follows the bytes that have come"
    splitter.feed(stream[100_000:130_000])
    place = splitter.place()
    assert place is not None
    assert (len(place), splitter.pending) == (1_000_004 - 130_000, 130_000)
    assert splitter.begun(5)[1] == len(place)
    splitter.abandon()
    assert (splitter.place(), splitter.pending) == (None, 0)


@pytest.mark.parametrize("length", [0, 1, 3, MAX_FRAME_LENGTH - 3, 0x7FFFFFFF, 0xFFFFFFFF])
def test_impossible_lengths(length: int) -> None:
    with pytest.raises(ProtocolError, match="Invalid frame length"):
        FrameSplitter().feed(length.to_bytes(4, "big"))


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01", b"\xff" * 20])
def test_other_protocols_are_refused_at_once(garbage: bytes) -> None:
    with pytest.raises(ProtocolError, match="does not speak"):
        FrameSplitter().feed(garbage)


def test_longest_frame_fits_and_the_limit_can_be_set() -> None:
    assert FrameSplitter().feed((MAX_FRAME_LENGTH - 4).to_bytes(4, "big")) == []
    small = FrameSplitter(max_frame_length=12)
    assert [bytes(frame) for frame in small.feed(b"\0\0\0\10abcdefgh")] == [b"abcdefgh"]
    with pytest.raises(ProtocolError):
        small.feed(b"\0\0\0\11")
