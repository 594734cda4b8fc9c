"""Columnar encoding of batches and properties, against the single codec."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError, RowProtocolError
from spark_rocket.protocol.record.batch_body import decode_batch_body, encode_batch_body
from spark_rocket.protocol.record.encoder import encode_batch, encode_properties_columns, hex_strings, plan_rows
from spark_rocket.protocol.record.properties import decode_properties, encode_properties
from tests.protocol.columnar import MAP, names, text


@given(
    st.lists(
        st.tuples(st.just(0), st.binary(max_size=60), st.dictionaries(names, text, max_size=4).map(encode_properties))
    ),
    st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_encode_batch_equals_the_single_codec(rows: list[tuple[int, bytes, bytes]], skip: int) -> None:
    bodies = pa.array([body for _, body, _ in rows], pa.binary()).slice(skip)
    properties = pa.array([raw for *_, raw in rows], pa.binary()).slice(skip)
    rows = rows[skip:]
    data, positions = encode_batch(bodies, properties)
    assert bytes(data) == encode_batch_body(rows)
    assert len(positions) == len(rows) + 1
    for i, row in enumerate(rows):
        assert decode_batch_body(data[positions[i] : positions[i + 1]]) == [(row[0], memoryview(row[1]), row[2])]


def test_encode_batch_takes_text_and_large_types() -> None:
    properties = pa.array([b"", b"a\x01b"])
    wanted = encode_batch_body([(0, b"one", b""), (0, "zwölf".encode(), b"a\x01b")])
    for kind in (pa.string(), pa.large_string()):
        data, _ = encode_batch(pa.array(["one", "zwölf"], kind), properties)
        assert bytes(data) == wanted


def test_encode_batch_names_the_row() -> None:
    with pytest.raises(RowProtocolError, match="row 2") as caught:
        encode_batch(pa.array([b"a", b"b", None]), pa.array([b"", b"", b""]))
    assert caught.value.row == 2
    assert pickle.loads(pickle.dumps(caught.value)).row == 2
    with pytest.raises(RowProtocolError, match="32767") as caught:
        encode_batch(pa.array([b"a", b"b"]), pa.array([b"", b"k\x01" + b"v" * 40_000]))
    assert caught.value.row == 1
    with pytest.raises(ProtocolError, match="1 bodies but 2"):
        encode_batch(pa.array([b"a"]), pa.array([b"", b""]))


def test_property_columns() -> None:
    columns = {
        "UNIQ_KEY": pa.array(["U0", "U1", "U2"]),
        "WAIT": "true",
        "TAGS": pa.array(["A", None, "C"]),
        "KEYS": None,
        "__SHARDINGKEY": pa.array(["", "s", "é"]),
    }
    user = pa.array([[("k", "v"), ("TAGS", "mine")], [("TAGS", "kept"), ("x", None)], None], MAP)
    strings = encode_properties_columns(3, columns, user).to_pylist()
    assert [decode_properties(string) for string in strings] == [
        {"k": "v", "UNIQ_KEY": "U0", "WAIT": "true", "TAGS": "A", "__SHARDINGKEY": ""},
        {"TAGS": "kept", "UNIQ_KEY": "U1", "WAIT": "true", "__SHARDINGKEY": "s"},
        {"UNIQ_KEY": "U2", "WAIT": "true", "TAGS": "C", "__SHARDINGKEY": "é"},
    ]
    assert all(string.endswith(b"\x02") and string.count(b"TAGS") == 1 for string in strings)
    assert encode_properties_columns(2, {"WAIT": "true"}).to_pylist() == [b"WAIT\x01true\x02"] * 2
    assert encode_properties_columns(2, {}).to_pylist() == [b"", b""]
    with pytest.raises(ProtocolError, match="3 rows, not 2"):
        encode_properties_columns(2, {"TAGS": pa.array(["a", "b", "c"])})
    assert encode_properties_columns(0, {"TAGS": pa.array([], pa.string())}).to_pylist() == []
    assert encode_properties_columns(1, {}, pa.array([[("a", "b")]], MAP)).to_pylist() == [b"a\x01b\x02"]


@given(
    st.lists(
        st.one_of(st.none(), st.dictionaries(text.filter(bool), st.one_of(st.none(), text), max_size=4)), max_size=6
    )
)
@settings(max_examples=60, deadline=None)
def test_any_map_column(maps: list[dict[str, str | None] | None]) -> None:
    column = pa.array([None if m is None else list(m.items()) for m in [{"z": "z"}, *maps]], MAP).slice(1)
    strings = encode_properties_columns(len(maps), {}, column)
    strings.validate(full=True)
    wanted = [{k: v for k, v in (m or {}).items() if v is not None} for m in maps]
    assert [decode_properties(string) for string in strings.to_pylist()] == wanted


@pytest.mark.parametrize("bad", ["\x01", "a\x02b"])
def test_separators_are_refused_with_the_row(bad: str) -> None:
    good = pa.array(["", None, "x"])
    with pytest.raises(RowProtocolError, match=r"row 1.*TAGS") as caught:
        encode_properties_columns(3, {"TAGS": pa.array([None, bad, "x"]), "KEYS": good})
    assert caught.value.row == 1
    for pair in (("k", bad), (bad, "v")):
        with pytest.raises(RowProtocolError, match="row 2"):
            encode_properties_columns(3, {"KEYS": good}, pa.array([None, [("a", "b"), ("c", "d")], [pair]], MAP))
    with pytest.raises(RowProtocolError, match="without a name"):
        encode_properties_columns(1, {}, pa.array([[("", "v")]], MAP))
    with pytest.raises(ProtocolError):
        encode_properties_columns(1, {"WAIT": bad})
    sliced = pa.array([bad, "fine"]).slice(1)
    assert encode_properties_columns(1, {"TAGS": sliced}).to_pylist() == [b"TAGS\x01fine\x02"]


def test_hex_strings() -> None:
    rows = np.frombuffer(bytes(range(256)), np.uint8).reshape(16, 16)
    assert hex_strings(rows).to_pylist() == [rows[i].tobytes().hex().upper() for i in range(16)]
    assert hex_strings(np.empty((0, 16), np.uint8)).to_pylist() == []


# --- rows planned and encoded by pieces ------------------------------------------------------------------------------

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
