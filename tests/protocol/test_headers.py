"""Typed headers: every class by its dataclass fields, and the rules that hold for all."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import pytest

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import CreateTopicRequestHeader
from spark_rocket.protocol.wire.headers.membership import UnregisterClientRequestHeader
from spark_rocket.protocol.wire.headers.producer import SendMessageRequestHeader, SendMessageResponseHeader
from spark_rocket.protocol.wire.headers.pull import GetMaxOffsetRequestHeader, PullMessageRequestHeader
from tests.protocol.wire_classes import HEADERS, decode_request_header

VALUES: dict[str, tuple[Any, str]] = {
    "str": ("text", "text"),
    "Int": (-(1 << 31), "-2147483648"),
    "Long": ((1 << 63) - 1, "9223372036854775807"),
    "bool": (True, "true"),
}


def kind_of(field: Any) -> str:
    return str(field.type).partition(" ")[0]


@pytest.mark.parametrize("header", HEADERS)
def test_every_header_travels(header: type[Any]) -> None:
    full = header(**{field.name: VALUES[kind_of(field)][0] for field in fields(header)})
    ext = full.to_ext()
    assert sorted(ext.values()) == sorted(VALUES[kind_of(field)][1] for field in fields(header))
    assert header.from_ext(ext) == full
    assert header.from_ext({**ext, "unknown": "x"}) == full

    required = [field for field in fields(header) if field.default is MISSING]
    least = header(**{field.name: VALUES[kind_of(field)][0] for field in required})
    assert header.from_ext(least.to_ext()) == least
    names = dict(zip([field.name for field in fields(header)], ext, strict=True))
    for field in required:
        wire = names[field.name]
        with pytest.raises(ProtocolError, match=f"{header.__name__} is missing the required field '{wire}'"):
            header.from_ext({name: value for name, value in ext.items() if name != wire})
    for field in fields(header):
        if kind_of(field) in ("Int", "Long"):
            for bad in ("", "x", "1.5", "9223372036854775808", "9" * 5000, "0x10"):
                with pytest.raises(ProtocolError):
                    header.from_ext({**ext, names[field.name]: bad})


def test_names_on_the_wire() -> None:
    assert set(PullMessageRequestHeader("g", "t", 0, 0, 32, 4, 0, 0, 0).to_ext()) == {
        "consumerGroup",
        "topic",
        "queueId",
        "queueOffset",
        "maxMsgNums",
        "sysFlag",
        "commitOffset",
        "suspendTimeoutMillis",
        "subVersion",
    }
    assert UnregisterClientRequestHeader("id").to_ext() == {"clientID": "id"}


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("1", False), ("", False)]
)
def test_booleans_are_read_as_java_does(text: str, value: bool) -> None:
    assert GetMaxOffsetRequestHeader.from_ext({"topic": "t", "queueId": "0", "committed": text}).committed is value


def test_32_bits_are_not_64() -> None:
    with pytest.raises(ProtocolError):
        GetMaxOffsetRequestHeader.from_ext({"topic": "t", "queueId": "2147483648"})


V1 = {
    "producerGroup": "g",
    "topic": "t",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "-1",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "9",
    "properties": "TAGS\x01x",
    "reconsumeTimes": "2",
    "unitMode": "false",
    "maxReconsumeTimes": "16",
    "batch": "true",
    "bname": "broker-a",
}
V2 = dict(zip("abcdefghijklmn", V1.values(), strict=True))
SEND = SendMessageRequestHeader("g", "t", "TBW102", 4, -1, 0, 1_700_000_000_000, 9, "TAGS\x01x", 2, False, 16, True)
SEND.broker_name = "broker-a"


def test_send_in_both_spellings() -> None:
    assert SendMessageRequestHeader.from_ext(V1) == SendMessageRequestHeader.from_ext_v2(V2) == SEND
    assert (SEND.to_ext(), SEND.to_ext_v2()) == (V1, V2)


@pytest.mark.parametrize("letter", "abcdefgh")
def test_what_a_send_requires(letter: str) -> None:
    with pytest.raises(ProtocolError, match=f"'{letter}'"):
        SendMessageRequestHeader.from_ext_v2({name: value for name, value in V2.items() if name != letter})


def test_the_rest_of_a_send_has_defaults() -> None:
    least = SendMessageRequestHeader.from_ext_v2({name: V2[name] for name in "abcdefgh"})
    assert (least.properties, least.reconsume_times, least.unit_mode, least.batch) == ("", 0, False, False)
    assert (least.max_reconsume_times, least.broker_name) == (None, None)


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.SEND_MESSAGE, V1),
        (RequestCode.SEND_MESSAGE_V2, V2),
        (RequestCode.SEND_BATCH_MESSAGE, V2),
        (RequestCode.SEND_REPLY_MESSAGE, V1),
        (RequestCode.SEND_REPLY_MESSAGE_V2, V2),
    ],
)
def test_send_by_its_code(code: int, ext: dict[str, str]) -> None:
    assert decode_request_header(RemotingCommand.request(code, ext)) == SEND


def test_header_by_code() -> None:
    ext = {"topic": "t", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    ext |= {"topicFilterType": "SINGLE_TAG"}
    header = decode_request_header(RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))
    assert isinstance(header, CreateTopicRequestHeader)
    assert decode_request_header(RemotingCommand.request(RequestCode.HEART_BEAT)) is None
    assert decode_request_header(RemotingCommand.request(999_999)) is None


def test_enumerations_are_written_as_numbers() -> None:
    assert SendMessageResponseHeader("id", RequestCode.SEND_MESSAGE, 1).to_ext()["queueId"] == "10"
