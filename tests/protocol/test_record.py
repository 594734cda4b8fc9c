"""Records and batch bodies: one table of cases, cut and damaged everywhere."""

from __future__ import annotations

import copy
import dataclasses
import mmap
import pickle
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.model import Message, MessageExt
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.batch_body import decode_batch_body, encode_batch_body
from spark_rocket.protocol.record.layout import (
    COMPRESSED,
    COMPRESSION_ZLIB,
    INNER_BATCH,
    NEED_UNWRAP,
    TRANSACTION_COMMIT,
    record_size,
)
from spark_rocket.protocol.record.messages import UndecodableError, decode_messages
from spark_rocket.protocol.record.properties import decode_properties, encode_properties
from spark_rocket.protocol.record.record import (
    ScanKind,
    decode_record,
    encode_blank,
    encode_record,
    iter_records,
    scan_record,
    view_record,
)

IPV4, IPV6 = pack_host(("10.1.2.3", 4567)), pack_host(("2001:db8::1", 10911))

DEFAULTS: dict[str, Any] = {
    "topic": b"Topic",
    "queue_id": 3,
    "body": b"hello",
    "properties": b"TAGS\x01TagA\x02KEYS\x01k",
    "queue_offset": 7,
    "physical_offset": 1_000_000,
    "born_timestamp": 1_700_000_000_000,
    "born_host": IPV4,
    "store_timestamp": 1_700_000_000_001,
    "store_host": IPV4,
}
TABLE: dict[str, dict[str, Any]] = {
    "plain": {},
    "empty": {"topic": b"", "body": b"", "properties": b""},
    "born IPv6": {"born_host": IPV6},
    "store IPv6": {"store_host": IPV6},
    "both IPv6": {"born_host": IPV6, "store_host": IPV6},
    "longest v1 topic": {"topic": b"t" * 127},
    "shortest v2 topic": {"topic": b"t" * 128},
    "v2 and IPv6": {"topic": b"t" * 300, "born_host": IPV6, "store_host": IPV6},
    "edges": {
        "queue_id": (1 << 31) - 1,
        "flag": -(1 << 31),
        "sys_flag": TRANSACTION_COMMIT,
        "queue_offset": (1 << 63) - 1,
        "reconsume_times": -1,
        "prepared_transaction_offset": -(1 << 63),
        "body": bytes(range(256)),
        "properties": b"p\x01" + b"x" * 32_765,
    },
}
CASES = pytest.mark.parametrize("fields", [pytest.param({**DEFAULTS, **row}, id=name) for name, row in TABLE.items()])


def by_hand(fields: dict[str, Any]) -> bytes:
    """The record field by field, as in the byte table."""

    def number(size: int, name: str) -> bytes:
        return int(fields.get(name, 0)).to_bytes(size, "big", signed=True)

    v2 = len(fields["topic"]) > 127
    hosts = 0x10 * (fields["born_host"] == IPV6) | 0x20 * (fields["store_host"] == IPV6)
    rest = [
        (0xDAA320AB if v2 else 0xDAA320A7).to_bytes(4, "big"),
        (zlib.crc32(fields["body"]) & 0x7FFFFFFF).to_bytes(4, "big"),
        number(4, "queue_id"),
        number(4, "flag"),
        number(8, "queue_offset"),
        number(8, "physical_offset"),
        (fields.get("sys_flag", 0) | hosts).to_bytes(4, "big", signed=True),
        number(8, "born_timestamp"),
        fields["born_host"],
        number(8, "store_timestamp"),
        fields["store_host"],
        number(4, "reconsume_times"),
        number(8, "prepared_transaction_offset"),
        len(fields["body"]).to_bytes(4, "big") + fields["body"],
        len(fields["topic"]).to_bytes(2 if v2 else 1, "big") + fields["topic"],
        len(fields["properties"]).to_bytes(2, "big") + fields["properties"],
    ]
    size = 4 + sum(map(len, rest))
    return size.to_bytes(4, "big") + b"".join(rest)


@CASES
def test_encode(fields: dict[str, Any]) -> None:
    raw = encode_record(**fields)
    assert raw == by_hand(fields)
    assert encode_record(**{**fields, "body": memoryview(fields["body"])}) == raw
    v6 = {"born_v6": fields["born_host"] == IPV6, "store_v6": fields["store_host"] == IPV6}
    assert record_size(len(fields["body"]), len(fields["topic"]), len(fields["properties"]), **v6) == len(raw)


@CASES
def test_decode(fields: dict[str, Any]) -> None:
    raw = by_hand(fields)
    view = view_record(raw)
    plain = {name: value for name, value in fields.items() if name != "sys_flag"}
    assert {name: getattr(view, name) for name in plain} == plain
    message = decode_record(b"??" + raw + b"??", 2, broker_name="b")
    assert (message.topic, message.body) == (fields["topic"].decode(), fields["body"])
    assert encode_properties(message.properties) == fields["properties"]
    assert (message.broker_name, message.store_size) == ("b", len(raw))
    assert (message.queue_id, message.queue_offset) == (fields["queue_id"], fields["queue_offset"])
    assert message.born_host == (("2001:db8::1", 10911) if fields["born_host"] == IPV6 else ("10.1.2.3", 4567))
    assert message.offset_msg_id == fields["store_host"].hex().upper() + f"{fields['physical_offset']:016X}"


@CASES
def test_every_truncation(fields: dict[str, Any]) -> None:
    raw = by_hand(fields)
    sizes = [*range(min(len(raw), 600)), *range(max(len(raw) - 20, 0), len(raw))]
    for size in sizes:
        with pytest.raises(ProtocolError):
            view_record(raw[:size])
        found = scan_record(raw, 0, size)
        assert found.kind is (ScanKind.END if size < 8 else ScanKind.BAD)


@CASES
def test_trailing_bytes(fields: dict[str, Any]) -> None:
    raw = by_hand(fields)
    run = raw + by_hand(DEFAULTS) + raw
    assert [view.size for view in iter_records(run, check_crc=True)] == [len(raw), len(by_hand(DEFAULTS)), len(raw)]
    with pytest.raises(ProtocolError, match=f"at byte {len(raw)}"):
        list(iter_records(raw + b"\0"))


@CASES
def test_any_damaged_length_or_body_is_noticed(fields: dict[str, Any]) -> None:
    raw = bytearray(by_hand(fields))
    head = 84 + 12 * (fields["born_host"] == IPV6) + 12 * (fields["store_host"] == IPV6)
    end = head + 4 + len(fields["body"])
    # Size, magic, CRC, the byte of the system flag with the length of hosts, body with its length.
    for at in (*range(12), *range(head, end)):
        raw[at] ^= 0x55
        assert scan_record(raw).kind is ScanKind.BAD, at
        with pytest.raises(ProtocolError):
            view_record(raw)
        raw[at] ^= 0x55
    assert scan_record(raw).kind is ScanKind.GOOD


def test_crc_can_be_left_out() -> None:
    raw = bytearray(by_hand(DEFAULTS))
    raw[88] ^= 1
    assert decode_record(raw, check_crc=False).body == b"iello"
    assert scan_record(raw, check_crc=False).kind is ScanKind.GOOD
    with pytest.raises(ProtocolError, match="CRC"):
        decode_record(raw)


@pytest.mark.parametrize("position", [-1, 200, 1 << 70])
def test_positions_outside(position: int) -> None:
    with pytest.raises(ProtocolError, match="outside"):
        view_record(by_hand(DEFAULTS), position)


@pytest.mark.parametrize(
    "change",
    [
        {"topic": b"t" * 32_768},
        {"properties": b"p" * 32_768},
        {"queue_id": 1 << 31},
        {"queue_offset": 1 << 63},
        {"born_timestamp": -(1 << 63) - 1},
        {"reconsume_times": 1.5},
        {"born_host": b"\1\2\3"},
        {"store_host": IPV6 + b"x"},
    ],
)
def test_what_fits_no_record(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        encode_record(**{**DEFAULTS, **change})


def test_a_topic_of_v2_may_not_be_negative() -> None:
    raw = bytearray(by_hand({**DEFAULTS, "topic": b"t" * 128}))
    struct.pack_into(">h", raw, 84 + 4 + 5, -1)
    with pytest.raises(ProtocolError, match="topic of -1"):
        view_record(raw)


# --- scanning -----------------------------------------------------------------------------------------------------


def test_scan_of_a_file() -> None:
    first, second = by_hand(DEFAULTS), by_hand({**DEFAULTS, "topic": b"t" * 200})
    room = 100
    file = first + second + encode_blank(room) + b"\xee" * (room - 8)
    found = scan_record(file)
    assert (found.kind, found.size) == (ScanKind.GOOD, len(first))
    found = scan_record(file, len(first))
    assert (found.kind, found.size) == (ScanKind.GOOD, len(second))
    assert found.record is not None
    assert bytes(found.record.topic) == b"t" * 200
    assert scan_record(file, len(first) + len(second)) == (ScanKind.BLANK, room, "", None)
    assert scan_record(file, len(file)).kind is ScanKind.END


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"", ScanKind.END),
        (b"\0" * 7, ScanKind.END),
        (b"\0" * 500, ScanKind.END),
        (b"\xff" * 500, ScanKind.BAD),
        (encode_blank(8), ScanKind.BLANK),
        (encode_blank(7), ScanKind.BAD),
        (encode_blank(9), ScanKind.BAD),
        (b"\0\0\0\x60" + b"\0" * 200, ScanKind.BAD),
        (b"\0\0\0\0\xda\xa3\x20\xa7" + b"\0" * 200, ScanKind.BAD),
    ],
)
def test_scan_of_what_is_no_record(raw: bytes, kind: ScanKind) -> None:
    assert scan_record(raw).kind is kind


def test_scan_of_a_mapping() -> None:
    with mmap.mmap(-1, 4096) as mapping:
        mapping[: len(by_hand(DEFAULTS))] = by_hand(DEFAULTS)
        assert scan_record(mapping, 0, 4096).size == len(by_hand(DEFAULTS))
        assert scan_record(mapping, 1024).kind is ScanKind.END


@pytest.mark.parametrize("size", [-1, 1 << 32])
def test_no_blank(size: int) -> None:
    with pytest.raises(ProtocolError):
        encode_blank(size)


# --- any record, any bytes ----------------------------------------------------------------------------------------

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
any_fields = st.fixed_dictionaries(
    {
        "topic": st.binary(max_size=300),
        "queue_id": int32,
        "body": st.binary(max_size=100),
        "properties": st.binary(max_size=100),
        "queue_offset": int64,
        "physical_offset": int64,
        "born_timestamp": int64,
        "born_host": st.sampled_from([IPV4, IPV6]),
        "store_timestamp": int64,
        "store_host": st.sampled_from([IPV4, IPV6]),
        "flag": int32,
        "sys_flag": int32.map(lambda flag: flag & ~0x31),
        "reconsume_times": int32,
        "prepared_transaction_offset": int64,
    }
)


@given(any_fields)
def test_any_record_survives(fields: dict[str, Any]) -> None:
    raw = encode_record(**fields)
    assert raw == by_hand(fields)
    view = view_record(raw)
    assert {name: getattr(view, name) for name in fields if name != "sys_flag"} == {
        name: value for name, value in fields.items() if name != "sys_flag"
    }
    assert view.sys_flag & ~0x30 == fields["sys_flag"]
    assert isinstance(view.to_message(), MessageExt)


RUN = b"".join(by_hand({**DEFAULTS, **row}) for row in TABLE.values() if "properties" not in row)


def found_by(decode: Callable[[], Iterable[MessageExt]]) -> list[MessageExt] | str:
    try:
        return list(decode())
    except UndecodableError as error:
        return error.reason
    except ProtocolError as error:
        return error.message


@given(st.lists(st.tuples(st.integers(0, len(RUN) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(RUN)))
def test_damage_of_a_run_is_found_as_in_single_records(changes: list[tuple[int, int]], length: int) -> None:
    """The fast path for usual records returns exactly what the general path returns."""
    raw = bytearray(RUN)
    for at, value in changes:
        raw[at] = value
    damaged = bytes(raw[: max(length, len(RUN) - length)])
    flags: list[int] = []

    def one_by_one() -> Iterator[MessageExt]:
        for view in iter_records(damaged, check_crc=True):
            flags.append(view.sys_flag)
            yield view.to_message("b")

    wanted = found_by(one_by_one)
    if not any(flag & (COMPRESSED | INNER_BATCH | NEED_UNWRAP) for flag in flags):
        assert found_by(lambda: decode_messages(damaged, "b")) == wanted


# --- bodies that are more than bytes ------------------------------------------------------------------------------


def test_compressed_bodies_are_undone_unless_told_otherwise() -> None:
    packed = zlib.compress(b"x" * 500)
    raw = encode_record(**{**DEFAULTS, "body": packed, "sys_flag": COMPRESSED | COMPRESSION_ZLIB})
    assert decode_record(raw).body == b"x" * 500
    assert decode_record(raw, decompress=False).body == packed
    with pytest.raises(ProtocolError, match="Invalid zlib body"):
        decode_record(encode_record(**{**DEFAULTS, "sys_flag": COMPRESSED}))


BATCHES = [
    ([], b""),
    ([(0, b"", b"")], bytes.fromhex("00000016 00000000 00000000 00000000 00000000 0000")),
    (
        [(5, b"abc", b"k\x01v"), (-1, b"", b"")],
        bytes.fromhex("0000001c 00000000 00000000 00000005 00000003 616263 0003 6b0176")
        + bytes.fromhex("00000016 00000000 00000000 ffffffff 00000000 0000"),
    ),
]


@pytest.mark.parametrize(("messages", "raw"), BATCHES)
def test_batch_bodies(messages: list[tuple[int, bytes, bytes]], raw: bytes) -> None:
    assert encode_batch_body(messages) == raw
    assert decode_batch_body(raw) == messages
    ends = {len(encode_batch_body(messages[:count])) for count in range(len(messages) + 1)}
    for size in set(range(len(raw))) - ends:
        with pytest.raises(ProtocolError, match="no complete message"):
            decode_batch_body(raw[:size])
    with pytest.raises(ProtocolError):
        decode_batch_body(raw + b"\0")


def test_batch_bodies_of_messages() -> None:
    messages = [Message.of("T", "a", tags="x", flag=2), Message.of("T", b"")]
    assert decode_batch_body(encode_batch_body(messages)) == [(2, b"a", b"TAGS\x01x"), (0, b"", b"")]


@pytest.mark.parametrize("message", [(0, b"", b"x" * 32_768), (1 << 31, b"", b"")])
def test_what_fits_no_batch(message: tuple[int, bytes, bytes]) -> None:
    with pytest.raises(ProtocolError, match="does not fit into a batch"):
        encode_batch_body([message])


@pytest.mark.parametrize(("at", "value"), [(0, -1), (0, 0), (0, 23), (0, 1 << 30), (16, -1), (16, 1), (16, 1 << 30)])
def test_damaged_batch_bodies(at: int, value: int) -> None:
    raw = bytearray(BATCHES[1][1])
    struct.pack_into(">i", raw, at, value)
    with pytest.raises(ProtocolError):
        decode_batch_body(raw)


@given(st.lists(st.tuples(int32, st.binary(max_size=20), st.binary(max_size=20)), max_size=5))
def test_any_batch_survives(messages: list[tuple[int, bytes, bytes]]) -> None:
    assert decode_batch_body(encode_batch_body(messages)) == messages


@pytest.mark.parametrize("base", ["40", "x", "", "99999999999999999999999"])
def test_inner_batches_are_unwrapped(base: str) -> None:
    inner = zlib.compress(encode_batch_body([(1, b"a", b"TAGS\x01x"), (0, b"b", b"")]))
    fields = {
        **DEFAULTS,
        "body": inner,
        "properties": encode_properties({"INNER_NUM": "2", "INNER_BASE": base}),
        "queue_offset": 40,
        "sys_flag": INNER_BATCH | NEED_UNWRAP | COMPRESSED,
    }
    run = encode_record(**fields) + encode_record(**DEFAULTS)
    messages = decode_messages(run, "b")
    assert [(m.queue_offset, m.body, m.tags, m.flag) for m in messages] == [
        (40, b"a", "x", 1),
        (41, b"b", None, 0),
        (7, b"hello", "TagA", 0),
    ]
    assert {message.broker_name for message in messages} == {"b"}
    assert messages[0].sys_flag == 0
    assert decode_record(run).body == zlib.decompress(inner)


def test_message_ids() -> None:
    plain = decode_record(encode_record(**DEFAULTS))
    assert plain.msg_id == plain.offset_msg_id
    keyed = decode_record(encode_record(**{**DEFAULTS, "properties": b"UNIQ_KEY\x01ABC"}))
    assert keyed.msg_id == "ABC"


@given(
    st.lists(
        st.lists(
            st.sampled_from(
                ["UNIQ_KEY\x01", "UNIQ_KEY\x01A", "UNIQ_KEY\x01B\x01", "XUNIQ_KEY\x01C", "TAGS\x01é", "", "x"]
            )
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_properties_of_many_records_are_those_of_each(runs: list[list[str]], terminated: bool) -> None:
    raws = [("\x02".join(pieces) + "\x02" * terminated).encode() for pieces in runs]
    data = b"".join(encode_record(**DEFAULTS | {"properties": raw}) for raw in raws)
    messages = decode_messages(data)
    for name in ("UNIQ_KEY", "TAGS", "x", "XUNIQ_KEY"):
        assert [one.get_property(name) for one in messages] == [decode_properties(raw).get(name) for raw in raws]
    assert [message.properties for message in messages] == [decode_properties(raw) for raw in raws]


@CASES
def test_what_is_read_when_it_is_asked_for_is_what_the_record_says(fields: dict[str, Any]) -> None:
    data = encode_record(**fields)
    plain = decode_record(data, broker_name="b")
    for name in (field.name for field in dataclasses.fields(MessageExt)):
        (message,) = decode_messages(data, "b")
        assert getattr(message, name) == getattr(plain, name)
        setattr(message, name, "another")  # what is assigned stays, whatever is read before or after
        assert message != plain
        assert getattr(message, name) == "another"
    for convert in (copy.copy, copy.deepcopy, dataclasses.replace, lambda one: pickle.loads(pickle.dumps(one))):
        (message,) = decode_messages(data, "b")
        converted = convert(message)
        assert converted == message == plain == converted
        assert converted.msg_id == plain.msg_id
    assert dataclasses.asdict(message) == dataclasses.asdict(plain)
    assert repr(message).partition("(")[2] == repr(plain).partition("(")[2]
    assert message != "a message"
    with pytest.raises(TypeError):
        hash(message)
    with pytest.raises(AttributeError, match="nothing_there"):
        _ = message.nothing_there  # type: ignore[attr-defined]


def test_properties_are_set_before_and_after_they_are_read() -> None:
    (message,) = decode_messages(encode_record(**DEFAULTS))
    message.set_property("n", "1")
    assert (message.get_property("n"), message.tags, message.keys) == ("1", "TagA", "k")
    assert message.properties == {"TAGS": "TagA", "KEYS": "k", "n": "1"}
    message.set_property("TAGS", "other")
    assert (message.get_property("n"), message.tags) == ("1", "other")
    (message,) = decode_messages(encode_record(**DEFAULTS))
    message.set_property("TAGS", "first")
    message.set_property("n", "2")
    assert message.properties == {"TAGS": "first", "KEYS": "k", "n": "2"}
    message.properties = {"KEYS": "mine"}
    message.set_property("n", "3")
    assert (message.properties, message.tags) == ({"KEYS": "mine", "n": "3"}, None)
    plain = decode_record(encode_record(**DEFAULTS))
    plain.set_property("TAGS", "mine")
    assert plain.tags == "mine"
