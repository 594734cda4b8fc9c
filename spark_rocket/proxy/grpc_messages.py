"""gRPC's part of a request and an answer: messages in data, times, texts. Pure: values, or :class:`RpcError`.

A message in the data of a stream, where frames mean nothing:

=======  ==========================================================
bytes    meaning
=======  ==========================================================
1        1: compressed, as the header grpc-encoding says; 0: not
4        length
n        the message
=======  ==========================================================

grpc-timeout is up to 8 digits and a unit (H, M, S, m, u, n). grpc-message is UTF-8 with what is not printable ASCII,
and the per cent sign, written as %XX.

Thread-safety: a :class:`MessageReader` belongs to one stream.
"""

from __future__ import annotations

import re
import zlib

from spark_rocket.proxy.context import GrpcCode, RpcError

#: As Apache's proxy has it.
MAX_MESSAGE = 130 * 1024 * 1024
PREFIX_SIZE = 5

_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_MAX_TEXT = 3072  # as written: clients take 8 KiB of metadata, nginx 4 KiB before it asks for a setting
_PLAIN = re.compile(r"[ -$&-~]*")
# The window's bits that zlib wants for gzip's and for zlib's own header.
_WINDOW_BITS = {b"gzip": 31, b"deflate": 15}
ENCODINGS = (b"identity", *_WINDOW_BITS)


def timeout_of(value: bytes) -> float:
    """The seconds of a grpc-timeout."""
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise RpcError(GrpcCode.INTERNAL, f"the grpc-timeout {value[:32].decode('latin-1')!r} is none")
    return int(found[1]) * _UNITS[found[2]]


def message_text(text: str) -> bytes:
    """The value of grpc-message for a text, which is cut when it is very long."""
    if len(text) <= _MAX_TEXT and _PLAIN.fullmatch(text):
        return text.encode()
    out = bytearray()
    for character in text[:_MAX_TEXT]:
        raw = character.encode(errors="replace")
        written = raw if _PLAIN.fullmatch(character) else b"".join(b"%%%02X" % byte for byte in raw)
        if len(out) + len(written) > _MAX_TEXT:
            break
        out += written
    return bytes(out)


def frame_prefix(message: bytes) -> bytes:
    """What stands before a message that is not compressed."""
    return len(message).to_bytes(PREFIX_SIZE, "big")


def frame_message(message: bytes) -> bytes:
    """A message as it is in data, not compressed."""
    return len(message).to_bytes(PREFIX_SIZE, "big") + message


class MessageReader:
    """The messages of one stream's data, cut anywhere."""

    __slots__ = ("_buffer", "_limit", "_needed", "_window_bits")

    def __init__(self, encoding: bytes | None = None, limit: int = MAX_MESSAGE) -> None:
        self._buffer = bytearray()
        self._needed = PREFIX_SIZE
        self._limit = limit
        self._window_bits = _WINDOW_BITS.get(encoding) if encoding is not None else None

    @property
    def held(self) -> int:
        """Bytes of a message that is not whole."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that these bytes complete."""
        if not self._buffer:
            # The usual case: the data is one message.
            if len(data) >= PREFIX_SIZE and not data[0] and int.from_bytes(data[1:5], "big") == len(data) - PREFIX_SIZE:
                if len(data) - PREFIX_SIZE > self._limit:
                    raise self._too_large(len(data) - PREFIX_SIZE)
                return [data[PREFIX_SIZE:]]
        else:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return []
        whole = memoryview(self._buffer or data)
        found: list[bytes] = []
        at = 0
        end = len(whole)
        while True:
            needed = PREFIX_SIZE
            if end - at >= PREFIX_SIZE:
                length = int.from_bytes(whole[at + 1 : at + 5], "big")
                if length > self._limit:
                    raise self._too_large(length)
                needed += length
            if end - at < needed:
                break
            message = bytes(whole[at + PREFIX_SIZE : at + needed])
            found.append(self._decompress(message) if whole[at] else message)
            at += needed
        self._needed = needed
        if at or not self._buffer:
            self._buffer = bytearray(whole[at:])
        return found

    def _too_large(self, length: int) -> RpcError:
        return RpcError(
            GrpcCode.RESOURCE_EXHAUSTED, f"a message of {length} bytes is larger than the limit of {self._limit}"
        )

    def _decompress(self, message: bytes) -> bytes:
        if self._window_bits is None:
            raise RpcError(GrpcCode.INTERNAL, "a message is compressed, but grpc-encoding does not say how")
        stream = zlib.decompressobj(self._window_bits)
        try:
            plain = stream.decompress(message, self._limit + 1)
        except zlib.error as error:
            raise RpcError(GrpcCode.INTERNAL, f"a compressed message cannot be read: {error}") from None
        if len(plain) > self._limit:
            raise self._too_large(len(plain))
        if not stream.eof:
            raise RpcError(GrpcCode.INTERNAL, "a compressed message cannot be read: it ends early")
        return plain
