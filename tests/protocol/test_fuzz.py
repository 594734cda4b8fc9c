"""Any bytes at all, into every decoder: a value or ProtocolError, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.filter.tags import parse_tags
from spark_rocket.protocol.ids import decode_offset_msg_id, parse_host, unpack_host
from spark_rocket.protocol.record.batch import decode_batch_body
from spark_rocket.protocol.record.compression import decompress_body
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.record.record import decode_record, scan_record
from spark_rocket.protocol.wire.bodies import (
    ConsumeStats,
    HeartbeatData,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    TopicRouteData,
    loads_tolerant,
)
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.frame import FrameSplitter
from tests.golden import frames
from tests.protocol.request_headers import decode_request_header


def text_of(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "splitter": lambda raw: FrameSplitter().feed(raw),
    "command": lambda raw: RemotingCommand.decode(raw),
    "json header": lambda raw: RemotingCommand.decode(len(raw).to_bytes(4, "big") + raw),
    "binary header": lambda raw: RemotingCommand.decode((1 << 24 | len(raw)).to_bytes(4, "big") + raw),
    "json": loads_tolerant,
    "route": TopicRouteData.from_json,
    "heartbeat": HeartbeatData.from_json,
    "stats": ConsumeStats.from_json,
    "topics": TopicConfigSerializeWrapper.from_json,
    "registration": lambda raw: RegisterBrokerBody.decode(raw, compressed=True),
    "record": decode_record,
    "messages": lambda raw: decode_messages(raw, check_crc=False),
    "scan": scan_record,
    "batch": decode_batch_body,
    "properties": decode_properties,
    "zlib": lambda raw: decompress_body(raw, 1),
    "lz4": lambda raw: decompress_body(raw, 0x101),
    "zstd": lambda raw: decompress_body(raw, 0x201),
    "host": unpack_host,
    "address": lambda raw: parse_host(text_of(raw)),
    "message id": lambda raw: decode_offset_msg_id(text_of(raw)),
    "tags": lambda raw: parse_tags(text_of(raw)),
}
EACH = pytest.mark.parametrize("decode", [pytest.param(decode, id=name) for name, decode in DECODERS.items()])


@EACH
@given(raw=st.binary(max_size=200))
def test_random_bytes(decode: Callable[[bytes], Any], raw: bytes) -> None:
    with suppress(ProtocolError):
        decode(raw)


def damaged(raw: bytes, dice: random.Random) -> bytes:
    """``raw`` with a few bytes changed, lost, doubled, or its end cut off."""
    data = bytearray(raw)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(4):
            case 0:
                data[at : at + 1] = bytes([dice.randrange(256)])
            case 1:
                del data[at : at + dice.randint(1, 8)]
            case 2:
                data[at:at] = data[at : at + dice.randint(1, 30)]
            case 3:
                data[at : at + 1] = dice.choice([b'"', b"{", b"}", b":", b"[", b"\\", b"0", b"\0", b"\xff"])
    return bytes(data)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_frames(seed: int) -> None:
    """Each recorded frame, damaged, through all that a server does with it before it looks at any table."""
    dice = random.Random(seed)
    decoded = 0
    for golden in frames():
        raw = damaged(golden.raw[4:], dice)
        with suppress(ProtocolError):
            command = RemotingCommand.decode(raw)
            decoded += 1
            with suppress(ProtocolError):
                decode_request_header(command)
            for decode in (loads_tolerant, HeartbeatData.from_json, TopicRouteData.from_json, decode_batch_body):
                with suppress(ProtocolError):
                    decode(command.body)
            with suppress(ProtocolError):
                decode_messages(command.body, check_crc=False)
            RemotingCommand.decode(command.encode()[4:])
    assert 0 < decoded < len(frames())


@EACH
@pytest.mark.parametrize("seed", range(2))
def test_damaged_bodies_and_headers(decode: Callable[[bytes], Any], seed: int) -> None:
    dice = random.Random(seed)
    for golden in frames():
        for part in (golden.raw, golden.raw[4:], golden.raw[8:], golden.raw[-golden.index["bodyLength"] or -1 :]):
            with suppress(ProtocolError):
                decode(damaged(part, dice))
