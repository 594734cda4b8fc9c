"""Hosts, message ids and recall handles."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.ids import (
    RecallMessageHandle,
    UniqKeyGenerator,
    decode_offset_msg_id,
    encode_offset_msg_id,
    pack_host,
    unpack_host,
)

HOSTS = [
    (("127.0.0.1", 19876), "7F00000100004DA4"),
    (("0.0.0.0", 0), "0000000000000000"),
    (("255.255.255.255", 65_535), "FFFFFFFF0000FFFF"),
    (("::1", 10_911), "00000000000000000000000000000001" + "00002A9F"),
    (("2001:db8::ff00:42:8329", 1), "20010DB8000000000000FF0000428329" + "00000001"),
]


@pytest.mark.parametrize(("host", "packed"), HOSTS)
def test_hosts(host: tuple[str, int], packed: str) -> None:
    raw = bytes.fromhex(packed)
    assert pack_host(host) == raw
    assert unpack_host(raw) == host
    for size in range(len(raw)):
        if size != 8:  # a truncated IPv6 host with the length of an IPv4 one is not detectable
            with pytest.raises(ProtocolError):
                unpack_host(raw[:size])
    with pytest.raises(ProtocolError):
        unpack_host(raw + b"\0")


def test_scope_of_a_link_local_address_is_dropped() -> None:
    assert pack_host(("fe80::1%eth0", 1)) == pack_host(("fe80::1", 1))


@pytest.mark.parametrize(
    "host", [("localhost", 1), ("", 1), ("1.2.3", 1), ("1.2.3.4", 1 << 31), ("1.2.3.4", "x"), (5, 1)]
)
def test_no_hosts(host: tuple[str, int]) -> None:
    with pytest.raises(ProtocolError):
        pack_host(host)


@pytest.mark.parametrize(("host", "packed"), HOSTS)
@pytest.mark.parametrize("offset", [0, 117, (1 << 63) - 1])
def test_offset_ids(host: tuple[str, int], packed: str, offset: int) -> None:
    msg_id = packed + f"{offset:016X}"
    assert encode_offset_msg_id(host, offset) == encode_offset_msg_id(bytes.fromhex(packed), offset) == msg_id
    assert decode_offset_msg_id(msg_id) == decode_offset_msg_id(msg_id.lower()) == (host, offset)
    for size in {*range(len(msg_id))} - {32}:
        with pytest.raises(ProtocolError):
            decode_offset_msg_id(msg_id[:size])


@pytest.mark.parametrize(
    "msg_id", ["", "x" * 32, "7F 00 00 01 00004DA40000000000007", "7F00000100004DA4F000000000000075"]
)
def test_no_offset_id(msg_id: str) -> None:
    with pytest.raises(ProtocolError, match="Invalid offset message id"):
        decode_offset_msg_id(msg_id)


@pytest.mark.parametrize("offset", [-1, 1 << 63])
def test_no_offset(offset: int) -> None:
    with pytest.raises(ProtocolError):
        encode_offset_msg_id(("127.0.0.1", 1), offset)


def ms(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]


def test_uniq_keys_say_what_their_layout_says() -> None:
    now = [ms(2026, 1, 31, 23, 59, 59)]
    generator = UniqKeyGenerator("10.0.0.1", 0x1_ABCD, lambda: now[0], seed=0xCAFE)
    assert generator.next() == "0A000001" + "ABCD" + "0000CAFE" + f"{31 * 86_400_000 - 1000:08X}" + "0000"
    now[0] += 1000  # the next month begins
    assert generator.next() == "0A000001" + "ABCD" + "0000CAFE" + "00000000" + "0001"
    now[0] = ms(2026, 12, 1, 0, 0, 1)
    assert generator.next().endswith("000003E8" + "0002")
    now[0] -= 5000  # the clock was set back, across a month
    assert generator.next().endswith(f"{30 * 86_400_000 - 4000:08X}" + "0003")


def test_uniq_keys_of_ipv6_clients() -> None:
    assert len(UniqKeyGenerator("::1", 1, lambda: 0).next()) == 56


def test_uniq_keys_differ() -> None:
    generator = UniqKeyGenerator("10.0.0.1", 1, lambda: ms(2026, 5, 5))
    assert len({generator.next() for _ in range(65_536)}) == 65_536


# --- recall handles: Apache's text, and nothing but ProtocolError for everything else -------------------------------

HANDLE = RecallMessageHandle("TopicA", "broker-a", "1795230000001", "7F000001")
# What Java's Base64.getUrlEncoder makes of "v1 TopicA broker-a 1795230000001 7F000001".
TEXT = "djEgVG9waWNBIGJyb2tlci1hIDE3OTUyMzAwMDAwMDEgN0YwMDAwMDE="


def test_the_text_is_apaches() -> None:
    assert HANDLE.encode() == TEXT
    assert RecallMessageHandle.decode(TEXT) == HANDLE
    assert RecallMessageHandle.decode(TEXT.rstrip("=")) == HANDLE


def test_further_words_are_ignored() -> None:
    text = urlsafe_b64encode(b"v1 t b 1 id more words").decode()
    assert RecallMessageHandle.decode(text) == RecallMessageHandle("t", "b", "1", "id")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "====",
        "djE",
        "not base 64!",
        "djEg\n",
        "A",
        urlsafe_b64encode(b"v2 t b 1 id").decode(),
        urlsafe_b64encode(b"v1 t b 1").decode(),
        urlsafe_b64encode(b"v1  b 1 id").decode(),
        urlsafe_b64encode(b"v1 t b 1 \xff").decode(),
    ],
)
def test_what_is_no_handle(text: str) -> None:
    with pytest.raises(ProtocolError):
        RecallMessageHandle.decode(text)


def test_a_message_without_a_handle() -> None:
    with pytest.raises(ProtocolError, match=r"The recall handle is None\. Only a message with a future delivery time"):
        RecallMessageHandle.decode(None)


words = st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"]), min_size=1)


@given(st.builds(RecallMessageHandle, words, words, words, words))
def test_round_trip(handle: RecallMessageHandle) -> None:
    assert RecallMessageHandle.decode(handle.encode()) == handle


@pytest.mark.parametrize("part", ["", "two words", "\ud800"])
def test_a_part_that_is_not_one_word(part: str) -> None:
    with pytest.raises(ProtocolError):
        RecallMessageHandle("t", "b", "1", part).encode()
