"""Records of batches, from the planner alone: the same as message by message, for any batch and any kind of buffer."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.record.batch_body import decode_batch_body, encode_batch_body
from spark_rocket.protocol.record.layout import BORN_HOST_V6, MAGIC_V1, STORE_HOST_V6
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.store.batch_columns import plan_many
from spark_rocket.store.batch_plan import BatchPlan, plan_batch, plan_few
from spark_rocket.store.layout import tags_code
from spark_rocket.store.results import PutError, PutStatus

PARTS = [b"TAGS", b"\x01", b"\x02", b"a", b"KEYS", "é".encode(), b"DELAY", b"\x03", b"TAGS\x01b\x02"]
EXTRA = st.sampled_from([b"", b"CLUSTER\x01C", b"CLUSTER\x01C\x02", b"WAIT\x01true\x02TAGS\x01c"])
HOSTS = st.sampled_from([bytes(range(8)), bytes(range(20))])
odd = st.lists(st.sampled_from(PARTS), max_size=8).map(b"".join)
contents = (
    st.binary(max_size=9)
    | st.binary(min_size=500, max_size=1100)
    | st.binary(min_size=4000, max_size=5000)
    | st.sampled_from([b"", b"TAGS\x01no\x02", bytes(40)])
)
Batch = list[tuple[int, bytes, bytes]]
Planner = Callable[[Any, int, bytes], BatchPlan]


PLANNERS: tuple[Planner, ...] = (plan_few, plan_many, plan_batch)


@st.composite
def alike(draw: st.DrawFn) -> Batch:
    """Messages of the same lengths, whose properties may differ in a byte."""
    raw, length = draw(odd), draw(st.integers(0, 9))
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        own = bytearray(raw)
        if raw and draw(st.booleans()):
            own[draw(st.integers(0, len(raw) - 1))] = draw(st.sampled_from(b"\x01\x02aTS"))
        rows.append((draw(st.integers(-9, 9)), draw(st.binary(min_size=length, max_size=length)), bytes(own)))
    return rows


def whole(raw: bytes, extra: bytes) -> bytes:
    return raw + (b"\2" if raw and extra and not raw.endswith(b"\2") else b"") + extra


def assert_as_one_by_one(plan_of: Planner, batch: Batch, extra: bytes, born: bytes, host: bytes, buffer: type) -> None:
    sys_flag = (BORN_HOST_V6 if len(born) == 20 else 0) | (STORE_HOST_V6 if len(host) == 20 else 0)
    head = struct.pack(">iIiiiqqiq", 0, MAGIC_V1, 0, 3, 0, 0, 0, sys_flag, 77)
    head += born + struct.pack(">q", 88) + host + struct.pack(">iqi", 2, 0, 0)
    plan = plan_of(buffer(encode_batch_body(batch)), len(head) + 8, extra)
    records = bytearray(int(plan.sizes.sum()))
    physical = plan.write(memoryview(records), head, b"\x05Topic", 10, 5000)
    must, offsets, codes = bytearray(), [], []
    for number, (flag, body, raw) in enumerate(batch):
        properties = whole(raw, extra)
        offsets.append(5000 + len(must))
        codes.append(tags_code(properties))
        must += encode_record(
            b"Topic",
            3,
            body,
            properties,
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
    assert records == bytes(4) + must[4:]  # the log writes the first size, last
    assert physical.tolist() == offsets
    assert plan.codes.tolist() == codes


@settings(max_examples=150, deadline=None)
@given(
    plan_of=st.sampled_from(PLANNERS),
    batch=alike() | st.lists(st.tuples(st.integers(-9, 9), contents, odd), min_size=1, max_size=12),
    extra=EXTRA,
    born=HOSTS,
    host=HOSTS,
    buffer=st.sampled_from([bytes, bytearray, memoryview]),
)
def test_records_are_those_that_are_encoded_one_by_one(
    plan_of: Planner, batch: Batch, extra: bytes, born: bytes, host: bytes, buffer: type
) -> None:
    assert_as_one_by_one(plan_of, batch, extra, born, host, buffer)


@pytest.mark.parametrize("seed", range(3))
def test_thousands_of_messages(seed: int) -> None:
    """Bodies of up to 1 KiB after some of equal lengths, tags and keys of any lengths."""
    rng = random.Random(seed)
    batch = []
    for number in range(3000):
        body = rng.randbytes(100 if number < 500 * (seed % 3) else rng.choice((0, 100, rng.randrange(1100))))
        pairs = [b"TAGS\x01" + b"t" * rng.randrange(40), b"KEYS\x01%d" % (number * rng.randrange(99)), b"x", b""]
        batch.append((rng.randrange(9), body, b"\x02".join(rng.sample(pairs, rng.randrange(5)))))
    assert_as_one_by_one(plan_batch, batch, b"CLUSTER\x01C", bytes(8), bytes(8), bytes)


@pytest.mark.parametrize("plan_of", PLANNERS)
def test_few_large_messages(plan_of: Planner) -> None:
    """More bytes than are copied before they are read."""
    batch = [(number, b"%d" % number * 500_000, b"TAGS\x01t") for number in range(3)]
    assert_as_one_by_one(plan_of, batch, b"CLUSTER\x01C", bytes(8), bytes(8), memoryview)


def error_one_by_one(raw: bytes, extra: bytes) -> str:
    """The error of the first wrong message; empty if there is none."""
    try:
        messages = decode_batch_body(raw)
    except ProtocolError as error:
        return f"the batch body is malformed: {error.message}"
    for _, _, properties in messages:
        if b"\0" in properties:
            return "a message's properties contain a NUL character"
        if (size := len(whole(properties, extra))) > 32767:
            return f"a message's properties have {size} bytes, more than 32767"
    return "" if messages else "the batch body is malformed: It is empty."


@settings(max_examples=200, deadline=None)
@given(
    batch=st.lists(
        st.tuples(st.just(0), st.binary(max_size=9), odd | st.sampled_from([b"a\0b", b"x" * 32767])), max_size=6
    ),
    cut=st.integers(0, 60),
    changes=st.lists(st.tuples(st.integers(0, 150), st.sampled_from([0, 1, 2, 21, 22, 127, 128, 255])), max_size=3),
    extra=EXTRA,
)
def test_errors_are_those_found_one_by_one(
    batch: Batch, cut: int, changes: list[tuple[int, int]], extra: bytes
) -> None:
    raw = bytearray(encode_batch_body(batch))
    for at, value in changes:
        raw[at : at + 1] = bytes([value]) if at < len(raw) else b""
    body = bytes(raw[: len(raw) - cut] if cut < 30 else raw)
    must = error_one_by_one(body, extra)
    for plan_of in PLANNERS:
        if not must:
            plan_of(body, 91, extra)
            continue
        with pytest.raises(PutError) as caught:
            plan_of(body, 91, extra)
        assert caught.value.reason == must
        assert (caught.value.status is PutStatus.PROPERTIES_SIZE_EXCEEDED) == ("more than" in must)
