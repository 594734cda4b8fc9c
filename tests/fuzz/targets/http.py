"""gRPC and HTTP, and what the console shows."""

from __future__ import annotations

import json
import struct
import zlib

from spark_rocket.console import bodies as console_bodies
from spark_rocket.console.avro import avro_text
from spark_rocket.proxy import hpack, http2, huffman
from spark_rocket.proxy.context import RpcError
from spark_rocket.proxy.grpc_messages import MessageReader, message_text, timeout_of
from spark_rocket.remoting import http
from tests.fuzz.targets.base import target, text_of

_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">I", 0)[1:] + b"\x04\x00" + b"\0\0\0\0"
_REQUEST = hpack.literal(
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.B/C"),
    (b":authority", b"x"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


def _h2(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


@target(
    _GREETING + _h2(1, 4, 1, _REQUEST) + _h2(0, 1, 1, b"\0\0\0\0\1x"),
    _GREETING + _h2(1, 0, 1, _REQUEST[:20]) + _h2(9, 4, 1, _REQUEST[20:]) + _h2(3, 0, 1, b"\0\0\0\x08"),
    _GREETING
    + _h2(8, 0, 0, b"\0\0\1\0")
    + _h2(6, 0, 0, b"12345678")
    + _h2(7, 0, 0, b"\0" * 8)
    + _h2(4, 0, 0, b"\0\4\0\0\1\0"),
    _GREETING + _h2(1, 0x2D, 1, b"\1\0\0\0\0\x10" + _REQUEST + b"\0") + _h2(2, 0, 3, b"\0" * 5),
    errors=(),
)
def http2_session(raw: bytes) -> None:
    session = http2.Session(lambda: 0.0)
    cut = raw[-1] + 1 if raw else 1
    for at in range(0, len(raw), cut):
        session.receive(raw[at : at + cut])
    assert len(session._buffer) <= len(raw)


@target(
    _REQUEST,
    b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
    b"\x3f\xe1\x1f\x40\x01a\x01b\xbe\xbe",
)
def hpack_block(raw: bytes) -> None:
    decoder = hpack.Decoder()
    half = len(raw) // 2
    assert len(decoder.decode(raw[:half])) <= half
    decoder.decode(raw[half:])
    assert decoder.size <= 4096


@target(b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff")
def huffman_text(raw: bytes) -> None:
    assert len(huffman.decode(raw)) <= 2 * len(raw)


@target(
    b"\0\0\0\0\1x\0\0\0\0\0",
    lambda: [b"\1" + len(packed := zlib.compress(b"a" * 100)).to_bytes(4, "big") + packed],
    errors=(RpcError,),
)
def grpc_message(raw: bytes) -> None:
    """Length-prefixed messages; compressed ones within the limit."""
    try:
        timeout_of(raw[:9])
    except RpcError:
        pass
    message_text(text_of(raw[:300]))
    for encoding in (None, b"deflate", b"gzip"):
        reader = MessageReader(encoding, limit=1 << 16)
        cut = raw[-1] % 64 + 1 if raw else 1
        for at in range(0, len(raw), cut):
            assert all(len(message) <= 1 << 16 for message in reader.feed(raw[at : at + cut]))


@target(
    b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
    b"HEAD / HTTP/1.0\r\n\r\n",
    errors=(http._BadRequestError,),
)
def http_request(raw: bytes) -> None:
    """The port of metrics and health."""
    _, path, headers = http._parse(raw.removesuffix(b"\r\n\r\n") + b"\r\n\r\n")
    assert path.startswith("/")
    http._is_host(headers.get("host", ""))
    http.is_loopback(headers.get("host", ""))


_AVRO_SCHEMA = (
    b'{"type":"record","name":"R","fields":[{"name":"a","type":"long"},{"name":"b","type":["null","string"]}]}'
)


@target(
    b'{"a":[1,{"b":null}],"c":"\\u00e9"}',
    "täxt".encode(),
    b'Obj\x01\x02\x16avro.schema\x0e"long"\0' + b"s" * 16 + b"\x02\x02\x02" + b"s" * 16,
    b"\x02\x02\x04ab",
)
def console_body(raw: bytes) -> None:
    """A message's body as the console shows it."""
    for schema in (None, _AVRO_SCHEMA.decode(), text_of(raw).encode("utf-8", "replace").decode()):
        shown = console_bodies.show(raw, schema, avro_text=avro_text)
        json.dumps(shown).encode()
    console_bodies.preview(raw)
