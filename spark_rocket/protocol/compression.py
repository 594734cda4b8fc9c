"""Undoing what a client did to a message's body before it sent it. Brokers never look inside.

The system flag says which: bit 0 compressed, bits 8 to 10 how (0x100 LZ4 frame, 0x200 Zstandard, else zlib).
A small body can claim to be a huge one, so the result is bounded.

Thread-safety: pure functions. Corresponds to common.compression.{ZlibCompressor, Lz4Compressor, ZstdCompressor}.
"""

from __future__ import annotations

import zlib
from typing import Literal, TypeAlias

from spark_rocket.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_BODY_LENGTH = 256 << 20  # far above any broker's limit on a message (4 MiB), far below what hurts a reader
DEFAULT_ZLIB_LEVEL = 5

_CHUNK = 1 << 16
_CODECS: dict[int, Literal["lz4", "zstd"]] = {0x100: "lz4", 0x200: "zstd"}
_REMEDY = "The producer wrote a damaged body, or the system flag is wrong: read it without decompressing."


def decompress_body(body: Buffer, sys_flag: int, max_length: int = MAX_BODY_LENGTH) -> bytes:
    """The body as its producer had it; for a record whose system flag has bit 0."""
    if not len(body):
        return b""
    codec = _CODECS.get(sys_flag & 0x700)
    content = _inflate(body, max_length) if codec is None else _decompress(body, codec, max_length)
    if len(content) > max_length:
        raise ProtocolError(f"A compressed body holds more than {max_length:,} bytes.", remedy=_REMEDY)
    return content


def _inflate(body: Buffer, max_length: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(body, max_length + 1)
    except zlib.error as error:
        raise ProtocolError(f"A compressed body is not zlib: {error}.", remedy=_REMEDY) from None
    if not inflater.eof and len(content) <= max_length:
        raise ProtocolError("A zlib body ends too early.", remedy=_REMEDY)
    return content


def _decompress(body: Buffer, codec: Literal["lz4", "zstd"], max_length: int) -> bytes:
    import pyarrow as pa  # only these two codecs need it, and brokers must start without it

    content = bytearray()
    try:
        with pa.input_stream(pa.py_buffer(body), compression=codec) as stream:
            while len(content) <= max_length and (chunk := stream.read(_CHUNK)):
                content += chunk
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ProtocolError(f"A compressed body is not {codec}: {error}.", remedy=_REMEDY) from None
    return bytes(content)


def compress_body(body: Buffer, level: int = DEFAULT_ZLIB_LEVEL) -> bytes:
    """``body`` as Java clients compress it by default; send it with system flag 0x301."""
    return zlib.compress(body, level)
