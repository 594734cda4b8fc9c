"""Records of batches, from the planner alone: any properties, either width of addresses, any kind of buffer."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.protocol.record.batch import encode_batch_body
from spark_rocket.protocol.record.layout import BORN_HOST_V6, MAGIC_V1, STORE_HOST_V6
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.store.batch import build_records, plan_batch
from spark_rocket.store.layout import tags_code

PARTS = [b"TAGS", b"\x01", b"\x02", b"a", b"KEYS", "é".encode(), b"DELAY", b"\x03"]
odd = st.lists(st.sampled_from(PARTS), max_size=8).map(b"".join)


@st.composite
def alike(draw: st.DrawFn) -> list[tuple[int, bytes, bytes]]:
    """Messages of the same lengths, whose properties may differ in a byte."""
    raw, length = draw(odd), draw(st.integers(0, 9))
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        own = bytearray(raw)
        if raw and draw(st.booleans()):
            own[draw(st.integers(0, len(raw) - 1))] = draw(st.sampled_from(b"\x01\x02aTS"))
        rows.append((draw(st.integers(-9, 9)), draw(st.binary(min_size=length, max_size=length)), bytes(own)))
    return rows


@settings(max_examples=150, deadline=None)
@given(
    batch=alike() | st.lists(st.tuples(st.integers(-9, 9), st.binary(max_size=9), odd), min_size=1, max_size=6),
    extra=st.sampled_from([b"", b"CLUSTER\x01C", b"CLUSTER\x01C\x02"]),
    born=st.sampled_from([bytes(range(8)), bytes(range(20))]),
    host=st.sampled_from([bytes(range(8)), bytes(range(20))]),
    buffer=st.sampled_from([bytes, bytearray, memoryview]),
)
def test_records_are_those_that_are_encoded_one_by_one(
    batch: list[tuple[int, bytes, bytes]], extra: bytes, born: bytes, host: bytes, buffer: type
) -> None:
    sys_flag = (BORN_HOST_V6 if len(born) == 20 else 0) | (STORE_HOST_V6 if len(host) == 20 else 0)
    head = struct.pack(">iIiiiqqiq", 0, MAGIC_V1, 0, 3, 0, 0, 0, sys_flag, 77)
    head += born + struct.pack(">q", 88) + host + struct.pack(">iqi", 2, 0, 0)
    plan = plan_batch(buffer(encode_batch_body(batch)), len(head) + 8, extra)
    records, physical = build_records(plan, head, b"\x05Topic", 10, 5000)
    must, offsets, codes = b"", [], []
    for number, (flag, body, raw) in enumerate(batch):
        whole = raw + (b"\2" if raw and extra and not raw.endswith(b"\2") else b"") + extra
        offsets.append(5000 + len(must))
        codes.append(tags_code(whole))
        must += encode_record(
            b"Topic",
            3,
            body,
            whole,
            queue_offset=10 + number,
            physical_offset=offsets[-1],
            born_timestamp=77,
            born_host=born,
            store_timestamp=88,
            store_host=host,
            flag=flag,
            sys_flag=sys_flag,
            reconsume_times=2,
        )
    assert bytes(records) == must
    assert physical.tolist() == offsets
    assert plan.codes.tolist() == codes
