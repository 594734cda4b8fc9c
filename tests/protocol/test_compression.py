"""Compressed bodies."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.record.compression import compress_body, decompress_body

BODY = b"hello rocket " * 400


def arrow(codec: str, body: bytes = BODY) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    return sink.getvalue().to_pybytes()


CODECS = pytest.mark.parametrize(
    ("flag", "packed"),
    [(0x1, zlib.compress(BODY)), (0x301, compress_body(BODY)), (0x101, arrow("lz4")), (0x201, arrow("zstd"))],
    ids=["zlib by default", "zlib", "lz4", "zstd"],
)


@CODECS
def test_decompress(flag: int, packed: bytes) -> None:
    for kind in (bytes, bytearray, memoryview):
        assert decompress_body(kind(packed), flag) == BODY


@CODECS
def test_every_truncation(flag: int, packed: bytes) -> None:
    for size in range(1, len(packed)):
        with pytest.raises(ProtocolError):
            decompress_body(packed[:size], flag)


@CODECS
def test_a_body_that_claims_too_much(flag: int, packed: bytes) -> None:
    assert decompress_body(packed, flag, max_length=len(BODY)) == BODY
    with pytest.raises(ProtocolError, match="exceeds"):
        decompress_body(packed, flag, max_length=len(BODY) - 1)


@CODECS
def test_garbage(flag: int, packed: bytes) -> None:
    with pytest.raises(ProtocolError, match="Invalid"):
        decompress_body(b"garbage" + packed, flag)


@pytest.mark.parametrize("flag", [0x1, 0x101, 0x201, 0x301])
def test_nothing_stays_nothing(flag: int) -> None:
    assert decompress_body(b"", flag) == b""


@given(st.binary(max_size=300))
def test_compress(body: bytes) -> None:
    assert decompress_body(compress_body(body), 0x301) == body
