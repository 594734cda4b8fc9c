"""What clients and servers send each other: frames, headers, bodies, handles and ids."""

from __future__ import annotations

import zlib
from functools import cache

from spark_rocket.broker.pop.acks import check_receipt
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.protocol import auth as acl
from spark_rocket.protocol.ids import (
    RecallMessageHandle,
    decode_offset_msg_id,
    encode_offset_msg_id,
    parse_extra_info,
)
from spark_rocket.protocol.record import properties
from spark_rocket.protocol.wire.bodies.config import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from spark_rocket.protocol.wire.bodies.register import RegisterBrokerBody
from spark_rocket.protocol.wire.bodies.route import TopicRouteData
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH, FrameSplitter
from spark_rocket.protocol.wire.json import dumps_fastjson, dumps_standard, loads_tolerant
from tests.fuzz.targets.base import target, text_of
from tests.golden import frames
from tests.protocol.wire_classes import BODIES, EVERY_REQUEST, decode_request_header


@cache
def some_frames() -> list[bytes]:
    """The first recorded frame of each code, kind and spelling."""
    found = {
        (one.request_code, one.is_request, one.raw[4]): one.raw for one in reversed(frames()) if len(one.raw) <= 2048
    }
    return list(found.values())


def _use(command: RemotingCommand) -> None:
    """What a server does with a command before it looks at any table."""
    repr(command)
    try:
        again = RemotingCommand.decode(command.encode()[4:])
        again.language = command.language  # the number of an unknown language becomes OTHER in JSON
        assert again == command
        header = decode_request_header(command)
        if header is not None:
            header.to_ext()
    except ProtocolError:  # a code, language or text that the other spelling has no room for
        pass
    acl.is_signed_by(command, acl.SecretKey("a secret"))


@target(lambda: some_frames()[::4])
def frame(raw: bytes) -> None:
    """A stream of frames, cut at a place that the first byte selects."""
    splitter = FrameSplitter()
    cut = raw[0] + 1 if raw else 1
    for start in range(0, len(raw), cut):
        for whole in splitter.feed(raw[start : start + cut]):
            _use(RemotingCommand.decode(whole))
        assert splitter.pending <= MAX_FRAME_LENGTH


@target(lambda: [raw[8 : 8 + int.from_bytes(raw[5:8], "big")] for raw in some_frames() if raw[4] == 0])
def json_header(raw: bytes) -> None:
    _use(RemotingCommand.decode(len(raw).to_bytes(4, "big") + raw))


@target(lambda: [raw[8 : 8 + int.from_bytes(raw[5:8], "big")] for raw in some_frames() if raw[4] == 1])
def binary_header(raw: bytes) -> None:
    _use(RemotingCommand.decode((1 << 24 | len(raw)).to_bytes(4, "big") + raw))


_CODES = [code for code, row in EVERY_REQUEST.items() if row.header is not None]


def _header_seeds() -> list[bytes]:
    commands = [RemotingCommand.decode(raw[4:]) for raw in some_frames()]
    return [
        bytes([_CODES.index(command.code)])
        + "\x02".join(f"{name}\x01{value}" for name, value in command.ext_fields.items()).encode()
        for command in commands
        if not command.is_response and command.code in _CODES
    ]


@target(_header_seeds)
def request_header(raw: bytes) -> None:
    """Typed headers of every request: the first byte is the code, the rest fields."""
    ext = properties.decode_properties(raw[1:].decode("utf-8", "surrogateescape"))
    header = decode_request_header(RemotingCommand(_CODES[raw[0] % len(_CODES)] if raw else 310, ext_fields=ext))
    assert header is not None
    assert type(header).from_ext(header.to_ext()) == header


@cache
def _json_bodies() -> list[bytes]:
    commands = [RemotingCommand.decode(raw[4:]) for raw in some_frames()]
    return list(
        {bytes(one.body[:1]) + bytes(one.body[1:]) for one in commands if one.body and one.body[:1] in (b"{", b"[")}
    )


_BODY_SEEDS = [bytes([index]) + cls().to_json() for index, cls in enumerate(BODIES)]


@target(lambda: _BODY_SEEDS + [bytes([at]) + raw for raw in _json_bodies() for at in range(0, len(BODIES), 7)])
def body(raw: bytes) -> None:
    """Typed bodies: the first byte is which."""
    cls = BODIES[raw[0] % len(BODIES)] if raw else TopicRouteData
    value = cls.from_request(raw[1:])
    cls.from_json(value.to_json())
    cls.from_json(value.to_json(standard=True))
    value.to_json(pretty=True)


@target(_json_bodies, b'{0:"a",{"b":1,"c":2}:[1.5e3,null,NaN],x:"\\x41\\v\\u00e9"}', longest=2048)
def fastjson(raw: bytes) -> None:
    value = loads_tolerant(raw)
    dumps_standard(value)
    loads_tolerant(dumps_fastjson(value, pretty=True))


def _registrations() -> list[bytes]:
    topics = {name: TopicConfig(name, 4, 4) for name in ("T", "%RETRY%g")}
    wrapper = TopicConfigSerializeWrapper(topics, DataVersion(1, 2))
    return [zlib.decompress(RegisterBrokerBody(wrapper, ["f"]).encode(compressed=True))]


@target(_registrations)
def registration(raw: bytes) -> None:
    RegisterBrokerBody.decode(zlib.compress(raw, 0), compressed=True)


@target(
    b"v1 t b 1 m", b"dj0x", lambda: [RecallMessageHandle("t", "broker-a", "1700000000001", "7F00").encode().encode()]
)
def recall_handle(raw: bytes) -> None:
    handle = RecallMessageHandle.decode(text_of(raw))
    assert RecallMessageHandle.decode(handle.encode()) == handle


@target(
    b"0 1700000000000 60000 0 0 broker-a 3 17",
    b"5 1700000000000 60000 1 1 broker-a 3",
    errors=(ProtocolError, RefusedError),
)
def receipt_handle(raw: bytes) -> None:
    receipt = parse_extra_info(text_of(raw))
    parse_extra_info(receipt.text())
    check_receipt(receipt, receipt.offset, "broker-a", 8, 1_700_000_000_000, 7_200_000)


@target(b"7F00000100002A9F0000000000000064")
def message_id(raw: bytes) -> None:
    text = text_of(raw)
    assert encode_offset_msg_id(*decode_offset_msg_id(text)) == text.upper()
