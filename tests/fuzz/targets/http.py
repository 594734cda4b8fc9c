"""gRPC and HTTP, and what the console shows."""

from __future__ import annotations

import json

from google.protobuf.message import DecodeError

from spark_rocket.console import bodies as console_bodies
from spark_rocket.console.avro import avro_text
from spark_rocket.proxy import definitions
from spark_rocket.proxy.transport.limits import has_more_fields
from spark_rocket.remoting.address import is_loopback
from spark_rocket.remoting.http import http_server as http
from tests.fuzz.targets.base import target, text_of


@target(
    lambda: [
        definitions.SendMessageRequest(
            messages=[definitions.Message(topic={"name": "T"}, user_properties={"a": "b"}, body=b"x" * 9)] * 3
        ).SerializeToString()
    ],
    b"\x0a\0\x0a\0\x0a\xff\xff\xff\xff\xff\x7f\x0b\x0c\x0d",
    errors=(),
)
def wire_fields(raw: bytes) -> None:
    """The bound on a request's fields: what it lets pass has no more of them once it is parsed."""
    request = definitions.SendMessageRequest
    has_more_fields(raw, request, 0)
    if not has_more_fields(raw, request, 4):
        try:
            found = request.FromString(raw)
        except DecodeError:
            return
        assert len(raw) <= 8 or len(found.messages) <= 4


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
    is_loopback(headers.get("host", ""))


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
