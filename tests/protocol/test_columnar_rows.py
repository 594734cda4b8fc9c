"""Rows planned and encoded by pieces, beside the codec of single messages."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.errors import RowProtocolError
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.record.encoder import plan_rows

MAP = pa.map_(pa.string(), pa.string())
KINDS = st.sampled_from([pa.string(), pa.large_string()])
# Few lengths, so that some rows are like the ones before.
texts = st.text("aé\x03\x7f", max_size=2)
rows = st.tuples(texts, st.one_of(st.none(), texts), texts)


def wanted(taken: list[tuple[str, str | None, str]]) -> bytes:
    messages = []
    for body, tags, keys in taken:
        pairs = [("TAGS", tags), ("KEYS", keys)]
        raw = "".join(f"{name}\x01{value}\x02" for name, value in pairs if value is not None).encode()
        messages.append((0, body.encode(), raw))
    return encode_batch_body(messages)


@given(st.lists(st.tuples(rows, st.integers(1, 4)), min_size=1, max_size=8), KINDS, st.integers(0, 2), st.data())
@settings(max_examples=150, deadline=None)
def test_any_part_is_what_the_single_codec_makes(
    runs: list[tuple[tuple[str, str | None, str], int]], kind: pa.DataType, skip: int, data: st.DataObject
) -> None:
    taken = [row for row, count in runs for _ in range(count)]
    skip = min(skip, len(taken) - 1)
    body, tags, keys = (pa.array(column, kind).slice(skip) for column in zip(*taken, strict=True))
    taken = taken[skip:]
    plan = plan_rows(body, {"TAGS": tags, "SHARDING": None, "KEYS": keys})
    low = data.draw(st.integers(0, len(taken) - 1))
    high = data.draw(st.integers(low + 1, len(taken)))
    assert bytes(plan.encode(low, high)) == wanted(taken[low:high])
    assert plan.positions.tolist() == np.cumsum([0, *(len(wanted([row])) for row in taken)]).tolist()
    sizes = [len(wanted([row])) - 22 - len(row[0].encode()) for row in taken]
    assert plan.property_lengths.tolist() == sizes


def test_a_map_beside_columns_and_no_columns_at_all() -> None:
    bodies = pa.array([b"a", b"b"])
    some = plan_rows(bodies, {"KEYS": pa.array(["k", "l"])}, pa.array([[("p", "1")], None], MAP))
    assert bytes(some.encode(0, 2)) == encode_batch_body(
        [(0, b"a", b"p\x011\x02KEYS\x01k\x02"), (0, b"b", b"KEYS\x01l\x02")]
    )
    none = plan_rows(bodies, {"KEYS": pa.array([None, None], pa.string())})
    assert bytes(none.encode(0, 2)) == encode_batch_body([(0, b"a", b""), (0, b"b", b"")])


@pytest.mark.parametrize("count", [2, 3])
def test_bad_rows_are_named(count: int) -> None:
    texts = ["aa", "b\x02", "cc" * count][:count]
    with pytest.raises(RowProtocolError, match=r"row 1 .*KEYS") as caught:
        plan_rows(pa.array([b"x"] * count), {"KEYS": pa.array(texts)})
    assert pickle.loads(pickle.dumps(caught.value)).row == 1
    with pytest.raises(RowProtocolError, match="row 1 has no body"):
        plan_rows(pa.array([b"x", None, b"y"][:count]), {})
