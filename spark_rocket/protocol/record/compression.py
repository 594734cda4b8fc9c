"""Compression and decompression of large message bodies by clients. Brokers do not decompress bodies.

The system flag has the method: bit 0 compressed, bits 8 to 10 the codec (0x100 LZ4 frame, 0x200 Zstandard, else zlib).
A small body may decompress to a huge one, so the result is limited.

Corresponds to common.compression.{ZlibCompressor, Lz4Compressor, ZstdCompressor}.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from types import ModuleType
from typing import Literal

from spark_rocket.common.extras import pip_install
from spark_rocket.errors import ProtocolError
from spark_rocket.protocol import Buffer

MAX_BODY_LENGTH = 256 << 20  # far above any broker's message limit (4 MiB), harmless for a reader
MAX_BATCH_LENGTH = 16 << 20  # of an inner batch: the size of a frame; each 22 bytes of it may be a message
MAX_RUN_BYTES = 1 << 30  # the bodies of one run of records together; the result of a pull is one run
DEFAULT_ZLIB_LEVEL = 5

_CHUNK_BYTES = 1 << 16
_CODECS: dict[int, Literal["lz4", "zstd"]] = {0x100: "lz4", 0x200: "zstd"}
_REMEDY = "The producer wrote a damaged body, or the system flag is wrong: read it without decompressing."


def decompress_body(body: Buffer, sys_flag: int, max_length: int = MAX_BODY_LENGTH) -> bytes:
    """Return the original body of a record whose system flag has bit 0."""
    if not len(body):
        return b""
    codec = _CODECS.get(sys_flag & 0x700)
    content = _inflate(body, max_length) if codec is None else _decompress(body, codec, max_length)
    if len(content) > max_length:
        raise ProtocolError(f"A decompressed body exceeds {max_length:,} bytes.", remedy=_REMEDY)
    return content


def _inflate(body: Buffer, max_length: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(body, max_length + 1)
    except zlib.error as error:
        raise ProtocolError(f"Invalid zlib body: {error}.", remedy=_REMEDY) from None
    if not inflater.eof and len(content) <= max_length:
        raise ProtocolError("A zlib body is truncated.", remedy=_REMEDY)
    return content


def inflates_within(body: Buffer, limit: int) -> bool:
    """Whether a zlib body decompresses to at most ``limit`` bytes; stops there. ProtocolError for invalid zlib data."""
    try:
        return len(zlib.decompressobj().decompress(body, limit + 1)) <= limit
    except zlib.error as error:
        raise ProtocolError(f"Invalid zlib body: {error}.", remedy=_REMEDY) from None


def _pyarrow(codec: str) -> ModuleType:
    """Import pyarrow when it is needed: only these two codecs use it, and clients and brokers run without it."""
    try:
        return import_module("pyarrow")
    except ModuleNotFoundError:
        raise ProtocolError(
            f"The codec {codec} requires the package pyarrow, which is not installed.",
            remedy=f"Run {pip_install('arrow')}.",
        ) from None


def _decompress(body: Buffer, codec: Literal["lz4", "zstd"], max_length: int) -> bytes:
    pa = _pyarrow(codec)
    content = bytearray()
    chunk = bytearray(_CHUNK_BYTES)  # read() would leak its buffer if a body is damaged
    try:
        with pa.input_stream(pa.py_buffer(body), compression=codec) as stream:
            while len(content) <= max_length and (count := stream.readinto(chunk)):
                content += memoryview(chunk)[:count]
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ProtocolError(f"Invalid {codec} body: {error}.", remedy=_REMEDY) from None
    return bytes(content)


COMPRESSION_BITS: dict[str, int] = {"lz4": 0x101, "zstd": 0x201, "zlib": 0x301}
"""The system flags of compressed messages, by the lower-case names of Java's CompressionType."""


def compress_body(body: Buffer, level: int = DEFAULT_ZLIB_LEVEL, kind: str = "zlib") -> bytes:
    """Compress a body as Java clients do; send it with the system flag ``COMPRESSION_BITS[kind]``.

    The level is zlib's; the other two have their usual one. LZ4 is the frame format, as in Java.
    """
    if kind == "zlib":
        return zlib.compress(body, level)
    pa = _pyarrow(kind)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, kind) as stream:
        stream.write(body)
    return bytes(sink.getvalue())
