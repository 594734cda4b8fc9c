"""Records, batches, properties and packed bodies: what a message is made of."""

from __future__ import annotations

import zlib

from spark_rocket.errors import ProtocolError
from spark_rocket.model import Message
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record import properties
from spark_rocket.protocol.record.batch_body import decode_batch_body, encode_batch_body
from spark_rocket.protocol.record.columns import BODY_FAULT, COLUMNS, STORED_SCHEMA, decode_records
from spark_rocket.protocol.record.compression import decompress_body
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.record.record import encode_record, iter_records, scan_record
from spark_rocket.store.batch_columns import plan_many
from spark_rocket.store.batch_plan import plan_few
from spark_rocket.store.log.record_scan import parse, walk
from spark_rocket.store.results import PutError
from tests.fuzz.targets.base import target

MOST_INFLATED = 1 << 20


def _record(
    body: bytes, texts: dict[str, str], *, sys_flag: int = 0, host: str = "10.0.0.1", topic: str = "orders"
) -> bytes:
    return encode_record(
        topic.encode(),
        3,
        body,
        properties.encode_properties(texts),
        queue_offset=7,
        physical_offset=700,
        born_timestamp=1,
        born_host=pack_host((host, 5)),
        store_timestamp=2,
        store_host=pack_host(("127.0.0.1", 10911)),
        sys_flag=sys_flag,
    )


def _records() -> list[bytes]:
    inner = encode_batch_body([Message("orders", b"a", {"TAGS": "x"}), Message("orders", b"bb")])
    plain = _record(b"body", {"TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": "7F"})
    zipped = [_record(zlib.compress(b"z" * 50), {}, sys_flag=1)]
    return [
        plain,
        plain * 3,
        *zipped,
        plain + zipped[0],
        _record(inner, {"INNER_BASE": "5", "INNER_NUM": "2"}, sys_flag=0xC0),
        _record(b"", {}, host="::1"),
        _record(b"long", {}, topic="t" * 130),
    ]


def _late(raw: bytes, check_crc: bool) -> None:
    for message in decode_messages(raw, "b", check_crc=check_crc):
        message.properties, message.tags, message.offset_msg_id, message.born_host, message.store_timestamp  # noqa: B018
        repr(message)


@target(_records)
def records(raw: bytes) -> None:
    """Records as readers decode them: one by one, and a run at once."""
    scan = scan_record(raw, check_crc=False)
    assert scan.size <= len(raw)
    try:
        _late(raw, check_crc=True)
    except ProtocolError:
        pass
    for view in iter_records(raw):
        assert view.size
    _late(raw, check_crc=False)


@target(_records, longest=2048)
def columnar(raw: bytes) -> None:
    decode_records(raw, (*COLUMNS, BODY_FAULT.name), broker_name="b").validate(full=True)
    decode_records(raw, STORED_SCHEMA.names, broker_name="b", start_offset=1, end_offset=9, tags=frozenset({"a"}))
    decode_records(raw, broker_name="b", check_crc=True).validate(full=True)


@target(_records)
def log_scan(raw: bytes) -> None:
    """The commit log at recovery, and what a slave is sent."""
    starts, end, _, _ = walk(raw, len(raw))
    assert end <= len(raw)
    for check_crc in (False, True):
        if len(starts):
            parse(raw, 700, starts, end, check_crc=check_crc)


@target(
    lambda: [
        encode_batch_body([Message("t", b"a" * size, {"TAGS": "x", "n": str(size)}) for size in sizes])
        for sizes in ((1,), (3, 3), (1, 2, 9))
    ],
    errors=(PutError,),
)
def batch(raw: bytes) -> None:
    """What a producer sends as a batch: the broker takes a body whole, or refuses it."""
    try:
        taken = [(bytes(body), texts) for _, body, texts in decode_batch_body(raw)]
    except ProtocolError:
        taken = []
    for plan_of in (plan_few, plan_many):
        plan = plan_of(raw, 91, b"INNER\x01y")
        assert len(plan.sizes) == len(taken) > 0


@target(b"TAGS\x01a\x02KEYS\x01k1 k2\x02UNIQ_KEY\x017F", b"a\x01b\x02a\x01c\x02")
def message_properties(raw: bytes) -> None:
    found = properties.decode_properties(raw)
    for name in list(found)[:4]:
        key = name.encode()
        properties.find_property(raw, key)
        assert (
            name not in properties.decode_properties(properties.remove_property(raw, key))
            or b"\xff" in raw
            or "\ufffd" in name
        )
    assert properties.decode_properties(properties.append_property(raw, "mine", "1")).get("mine") == "1"
    assert properties.decode_properties(properties.encode_properties(found)) == found


@target(lambda: [b"\x00" + zlib.compress(b"body" * 9), b"\x01" + _packed("lz4"), b"\x02" + _packed("zstd")])
def compressed_body(raw: bytes) -> None:
    content = decompress_body(raw[1:], (1, 0x101, 0x201, 0x301)[raw[0] % 4] if raw else 1, MOST_INFLATED)
    assert len(content) <= MOST_INFLATED


def _packed(kind: str) -> bytes:
    from spark_rocket.protocol.record.compression import compress_body

    return compress_body(b"body" * 9, kind=kind)
