"""Commands: one table of values in both spellings of the header, cut everywhere; then what else peers send."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire.codes import CURRENT_VERSION, LanguageCode, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import MAX_FIELDS, MAX_HEADER_LENGTH, MAX_MARKS, RemotingCommand, SerializeType
from spark_rocket.protocol.wire.frame import FrameSplitter

JSON, ROCKETMQ = SerializeType.JSON, SerializeType.ROCKETMQ


def cases() -> list[Any]:
    """A command of each kind in each spelling, and the matching header."""
    table: list[tuple[str, dict[str, Any], bytes, bytes]] = [
        (
            "request",
            {"code": 10, "language": LanguageCode.JAVA, "version": 409, "opaque": 7, "ext_fields": {"topic": "T"}},
            b'{"code":10,"language":"JAVA","version":409,"opaque":7,"flag":0,"extFields":{"topic":"T"},'
            b'"serializeTypeCurrentRPC":"JSON"}',
            bytes.fromhex("000a 00 0199 00000007 00000000 00000000 0000000c 0005") + b"topic" + b"\0\0\0\1T",
        ),
        (
            "response with a remark",
            {"code": 17, "language": LanguageCode.PYTHON, "version": 479, "opaque": -1, "flag": 1, "remark": "né"},
            '{"code":17,"language":"PYTHON","version":479,"opaque":-1,"flag":1,"remark":"né",'
            '"serializeTypeCurrentRPC":"JSON"}'.encode(),
            bytes.fromhex("0011 03 01df ffffffff 00000001 00000003") + "né".encode() + b"\0\0\0\0",
        ),
        (
            "empty names and values",
            {"code": -1, "language": LanguageCode.GO, "version": 0, "flag": 2, "ext_fields": {"a": "", "": "b"}},
            b'{"code":-1,"language":"GO","version":0,"opaque":0,"flag":2,"extFields":{"a":"","":"b"},'
            b'"serializeTypeCurrentRPC":"JSON"}',
            bytes.fromhex("ffff 09 0000 00000000 00000002 00000000 0000000e 0001") + b"a\0\0\0\0\0\0\0\0\0\1b",
        ),
    ]
    return [
        pytest.param(RemotingCommand(**fields, body=body, serialize_type=kind), header, id=f"{name}-{kind.name}")
        for (name, fields, text, binary), body in zip(table, (b"hello", b"", b"\0"), strict=True)
        for kind, header in ((JSON, text), (ROCKETMQ, binary))
    ]


BOTH = pytest.mark.parametrize(("command", "header"), cases())


def frame_of(header: bytes, kind: int = JSON, body: bytes = b"") -> bytes:
    """A frame without its length field."""
    return struct.pack(">I", kind << 24 | len(header)) + header + body


def decode_json(**fields: Any) -> RemotingCommand:
    return RemotingCommand.decode(frame_of(json.dumps({"code": 1, **fields}).encode()))


@BOTH
def test_encode(command: RemotingCommand, header: bytes) -> None:
    frame = frame_of(header, command.serialize_type, bytes(command.body))
    assert command.encode() == struct.pack(">I", len(frame)) + frame
    assert command.encode_head() + bytes(command.body) == command.encode()


@BOTH
def test_decode(command: RemotingCommand, header: bytes) -> None:
    frame = frame_of(header, command.serialize_type, bytes(command.body))
    for kind in (bytes, bytearray, memoryview):
        assert RemotingCommand.decode(kind(frame)) == command


@BOTH
def test_trailing_bytes_are_the_body(command: RemotingCommand, header: bytes) -> None:
    frame = frame_of(header, command.serialize_type, bytes(command.body) + b"more")
    decoded = RemotingCommand.decode(frame)
    assert bytes(decoded.body) == bytes(command.body) + b"more"
    assert decoded.body.obj is frame  # type: ignore[union-attr]  # a view, not a copy


@BOTH
def test_every_truncation(command: RemotingCommand, header: bytes) -> None:
    frame = frame_of(header, command.serialize_type)
    for size in range(len(frame)):
        with pytest.raises(ProtocolError):
            RemotingCommand.decode(frame[:size])
        if size >= 4:  # the header claims a shorter length, too
            with pytest.raises(ProtocolError):
                RemotingCommand.decode(frame_of(header[: size - 4], command.serialize_type))


def test_binary_header_with_trailing_bytes_is_tolerated() -> None:
    header = bytes.fromhex("000a 00 0199 00000007 00000000 00000000 00000000 ff")
    assert RemotingCommand.decode(frame_of(header, ROCKETMQ)).ext_fields == {}


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
commands = st.builds(
    RemotingCommand,
    st.integers(-(1 << 15), (1 << 15) - 1),
    language=st.sampled_from(LanguageCode),
    version=st.integers(0, (1 << 15) - 1),
    opaque=int32,
    flag=int32,
    remark=st.none() | texts.filter(bool),
    ext_fields=st.dictionaries(texts, texts, max_size=6),
    body=st.binary(max_size=30),
    serialize_type=st.sampled_from(SerializeType),
)


@given(commands)
def test_any_command_survives(command: RemotingCommand) -> None:
    (frame,) = FrameSplitter().feed(command.encode())
    assert RemotingCommand.decode(frame) == command


# --- what other peers send ----------------------------------------------------------------------------------------


def test_numbers_and_booleans_become_their_text() -> None:
    command = decode_json(extFields={"q": 0, "k": False, "m": True, "f": 1.5, "n": None, "s": "x", "o": {"a": [1]}})
    assert command.ext_fields == {"q": "0", "k": "false", "m": "true", "f": "1.5", "s": "x", "o": '{"a":[1]}'}


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"code": "105"}, "code", 105),
        ({"version": None}, "version", 0),
        ({"opaque": "12"}, "opaque", 12),
        ({"language": "KLINGON"}, "language", "KLINGON"),
        ({"language": "RUST"}, "language", LanguageCode.RUST),
        ({"language": 9}, "language", LanguageCode.GO),
        ({"language": None}, "language", LanguageCode.OTHER),
        ({"language": [1]}, "language", LanguageCode.OTHER),
        ({"remark": None}, "remark", None),
        ({"remark": 5}, "remark", "5"),
        ({"extFields": None}, "ext_fields", {}),
        ({"unknown": [1, {"x": 2}]}, "ext_fields", {}),
        ({"serializeTypeCurrentRPC": "ROCKETMQ"}, "serialize_type", JSON),
    ],
)
def test_odd_json_is_tolerated(fields: dict[str, Any], name: str, value: object) -> None:
    assert getattr(decode_json(**fields), name) == value


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{}",
        b'{"code":null}',
        b'{"code":1.0}',
        b'{"code":"x"}',
        b'{"code":"123456789012"}',
        b'{"code":2147483648}',
        b'{"code":1,"opaque":-2147483649}',
        b'{"code":1,"opaque":99999999999999999999999}',
        b'{"code":1,"flag":[0]}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"extFields":"x"}',
        b'{"code":1',
        b'{"code":1}x',
        b'{"code":1,"remark":"\xff"}',
        b'{"code":1,"remark":"\\ud800"}',
        b'{"code":' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"code":1,"extFields":{"a":' + b"[" * 900 + b"]" * 900 + b"}}",
        b'{"code":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda header: header[:40].decode("latin-1"),
)
def test_json_that_is_no_header(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        RemotingCommand.decode(frame_of(header))


@pytest.mark.parametrize(
    "header",
    [
        "000a 00 0199 00000007 00000000 ffffffff 00000000",  # remark of 4 GiB
        "000a 00 0199 00000007 00000000 00000001 ff 00000000",  # remark that is not UTF-8
        "000a 00 0199 00000007 00000000 00000000 ffffffff",  # ext fields of -1 bytes
        "000a 00 0199 00000007 00000000 00000000 00000001",  # … of more than there is
        "000a 00 0199 00000007 00000000 00000000 00000006 ffff 00000000",  # key of -1 bytes
        "000a 00 0199 00000007 00000000 00000000 00000006 0000 ffffffff",  # value of -1 bytes
        "000a 00 0199 00000007 00000000 00000000 00000006 0000 00000001 41",  # value past the fields' end
        "000a 00 0199 00000007 00000000 00000000 00000007 0001 ff 00000000",  # key that is not UTF-8
    ],
)
def test_binary_that_is_no_header(header: str) -> None:
    with pytest.raises(ProtocolError):
        RemotingCommand.decode(frame_of(bytes.fromhex(header), ROCKETMQ))


@pytest.mark.parametrize("piece", [b"[],", b"{},", b'"",'])
def test_a_json_header_of_many_objects_is_refused_before_it_is_read(piece: bytes) -> None:
    header = b'{"code":10,"remark":[' + piece * (MAX_HEADER_LENGTH // 4) + b"0]}"
    with pytest.raises(ProtocolError, match="quotation marks and brackets; at most 65,536"):
        RemotingCommand.decode(frame_of(header))


def test_a_json_header_of_many_numbers_is_refused_before_it_is_read() -> None:
    header = b'{"code":10,"remark":[' + b"1," * (MAX_HEADER_LENGTH // 3) + b"0]}"
    with pytest.raises(ProtocolError, match="commas; at most 1,048,576"):
        RemotingCommand.decode(frame_of(header))


def test_a_long_json_header_of_few_fields_is_read() -> None:
    ids = ",".join(["0A0000010000A1B2"] * MAX_MARKS)
    header = b'{"code":0,"extFields":{"msgId":"' + ids.encode() + b'","properties":"' + b'\\"' * 16_000 + b'"}}'
    assert RemotingCommand.decode(frame_of(header)).ext_fields == {"msgId": ids, "properties": '"' * 16_000}


@pytest.mark.parametrize("name", [b"", b"k"])
def test_ext_fields_of_a_binary_header_are_bounded(name: bytes) -> None:
    def frame(count: int) -> bytes:
        fields = (struct.pack(">h", len(name)) + name + bytes(4)) * count
        head = bytes.fromhex("000a 00 0199 00000007 00000000 00000000")
        return frame_of(head + struct.pack(">i", len(fields)) + fields, ROCKETMQ)

    assert RemotingCommand.decode(frame(MAX_FIELDS)).ext_fields == {name.decode(): ""}
    with pytest.raises(ProtocolError, match="more than 4,096 ext fields"):
        RemotingCommand.decode(frame(MAX_FIELDS + 1))


@pytest.mark.parametrize("kind", [2, 3, 127, 255])
def test_unknown_serialize_type(kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"type {kind}"):
        RemotingCommand.decode(frame_of(b"{}", kind))


def test_unknown_language_in_binary() -> None:
    command = RemotingCommand(1, language=77, serialize_type=ROCKETMQ)
    assert RemotingCommand.decode(command.encode()[4:]).language == 77
    command.serialize_type = JSON
    assert RemotingCommand.decode(command.encode()[4:]).language == LanguageCode.OTHER
    command.language = "KLINGON"
    assert RemotingCommand.decode(command.encode()[4:]).language == "KLINGON"
    command.serialize_type = ROCKETMQ
    assert RemotingCommand.decode(command.encode()[4:]).language == LanguageCode.OTHER


@pytest.mark.parametrize(
    "fields",
    [
        {"code": 1 << 31},
        {"code": 1, "opaque": 1 << 31},
        {"code": 1, "flag": 1.5},
        {"code": 1, "version": None},
        {"code": 1, "remark": "\ud800"},
        {"code": 1, "ext_fields": {"a": "\udfff"}},
        {"code": 1, "ext_fields": {"\udfff": "a"}},
        {"code": 200_050, "serialize_type": ROCKETMQ},
        {"code": 1, "language": 256, "serialize_type": ROCKETMQ},
        {"code": 1, "opaque": 1 << 40, "serialize_type": ROCKETMQ},
        {"code": 1, "remark": "\ud800", "serialize_type": ROCKETMQ},
        {"code": 1, "ext_fields": {"a": 1}, "serialize_type": ROCKETMQ},
        {"code": 1, "ext_fields": {"k" * 40_000: "v"}, "serialize_type": ROCKETMQ},
        {"code": 1, "ext_fields": {"a": "x" * (MAX_HEADER_LENGTH + 1)}},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_what_cannot_be_encoded(fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        RemotingCommand(**fields).encode()


# --- building -----------------------------------------------------------------------------------------------------


def test_request_and_response() -> None:
    request = RemotingCommand.request(RequestCode.HEART_BEAT, body=b"{}", serialize_type=ROCKETMQ)
    assert (request.opaque, request.flag, request.version) == (0, 0, CURRENT_VERSION)
    request.opaque = 9
    response = RemotingCommand.response(request, ResponseCode.SYSTEM_BUSY, "later", {"a": "b"}, b"x")
    assert response.is_response
    assert not request.is_response
    assert (response.opaque, response.serialize_type, response.code) == (9, ROCKETMQ, 2)
    assert (response.remark, response.ext_fields, response.body) == ("later", {"a": "b"}, b"x")
    assert RemotingCommand.request(1, oneway=True).is_oneway
    assert not response.is_oneway


def test_repr_and_equality() -> None:
    request = RemotingCommand.request(11, {"topic": "T"}, b"abc")
    assert repr(request) == "<RemotingCommand request code=11 opaque=0 ext_fields={'topic': 'T'} body=3 bytes>"
    response = RemotingCommand.response(request, 17, "no topic")
    assert "response code=17 opaque=0 remark='no topic'" in repr(response)
    assert "one-way request" in repr(RemotingCommand.request(1, oneway=True))
    assert request != "x"
    assert request != response
