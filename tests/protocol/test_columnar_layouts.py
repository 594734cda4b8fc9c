"""Columnar decoding of compressed and wrapped bodies, and of records and properties of one layout."""

from __future__ import annotations

import pickle
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError, RunTooLargeError
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record import unwrap as columnar_unwrap
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.record.column_properties import PropertyColumns, property_columns
from spark_rocket.protocol.record.columns import COLUMNS, decode_records
from spark_rocket.protocol.record.layout import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZSTD, INNER_BATCH, NEED_UNWRAP
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.record.run import Scratch
from tests.protocol.columnar import MAP, record, row_of, rows_of

# --- compressed and wrapped ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "codec"), [(0, None), (0x300, None), (COMPRESSION_LZ4, "lz4"), (COMPRESSION_ZSTD, "zstd")]
)
def test_compressed_bodies(bits: int, codec: str | None) -> None:
    plain = b"compress me " * 50
    if codec is None:
        body = zlib.compress(plain)
    else:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(plain)
        body = sink.getvalue().to_pybytes()
    data = record(0) + record(1, body=body, sys_flag=COMPRESSED | bits) + record(2)
    assert rows_of(decode_records(data, broker_name="b")) == [row_of(m) for m in decode_messages(data, "b")]
    broken = record(40) + record(41, body=body[:-9], sys_flag=COMPRESSED | bits) + record(42)
    with pytest.raises(ProtocolError, match=r"record with queue offset 41, at byte \d+"):
        decode_records(broken, broker_name="b")
    # It spoils only what would show it.
    assert decode_records(broken, ["body"], broker_name="b", end_offset=41).to_pylist() == [{"body": b"body"}]
    assert decode_records(broken, ["queueOffset"], broker_name="b", start_offset=42).to_pylist() == [
        {"queueOffset": 42}
    ]
    rest = [name for name in COLUMNS if name != "body"]
    rows = rows_of(decode_records(broken, rest, broker_name="b"))
    assert [(row["queueOffset"], row["tags"], row["sysFlag"]) for row in rows] == [
        (40, "A", 0),
        (41, "A", COMPRESSED | bits),
        (42, "A", 0),
    ]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("base", [b"", b"INNER_BASE\x0140\x02INNER_NUM\x013"])
def test_inner_batches(compress: bool, base: bytes) -> None:
    inner = encode_batch_body([(i, b"part%d" % i, b"TAGS\x01T%d" % i) for i in range(3)])
    flags = INNER_BATCH | NEED_UNWRAP | (COMPRESSED if compress else 0)
    v6 = pack_host(("::1", 7))
    body = zlib.compress(inner) if compress else inner
    data = record(0) + record(5, body=body, sys_flag=flags, properties=base, store_host=v6) + record(8)
    rows = rows_of(decode_records(data, broker_name="b", check_crc=True))
    assert rows == [row_of(m) for m in decode_messages(data, "b")]
    first = 40 if base else 5
    assert [row["queueOffset"] for row in rows] == [0, first, first + 1, first + 2, 8]
    for start in range(-1, 10):
        for end in range(start, 10):
            part = decode_records(data, ["queueOffset"], broker_name="b", start_offset=start, end_offset=end)
            assert part.column(0).to_pylist() == [at for row in rows if start <= (at := row["queueOffset"]) < end]
    broken = record(5, body=inner[:-3], sys_flag=INNER_BATCH | NEED_UNWRAP, properties=base)
    with pytest.raises(ProtocolError, match="queue offset 5,"):
        decode_records(broken, ["queueOffset"], broker_name="b")
    assert decode_records(broken, broker_name="b", end_offset=first).num_rows == 0


def test_what_decompresses_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar_unwrap, "MAX_RUN_BYTES", 10_000)
    bomb = record(0, body=zlib.compress(bytes(9_000)), sys_flag=COMPRESSED)
    assert decode_records(bomb, ["body"], broker_name="b").num_rows == 1
    inner = record(0, body=encode_batch_body([(0, bytes(4_000), b"")] * 3), sys_flag=INNER_BATCH | NEED_UNWRAP)
    with pytest.raises(ProtocolError, match="decompressed bytes") as hopeless:
        decode_records(inner, broker_name="b")
    assert not isinstance(hopeless.value, RunTooLargeError)


def test_a_run_that_inflates_to_too_much_says_where_to_cut_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar_unwrap, "MAX_RUN_BYTES", 10_000)
    run = b"".join(record(n, body=zlib.compress(b"%d" % n * 4_000), sys_flag=COMPRESSED) for n in range(5))
    run += record(5, body=encode_batch_body([(0, bytes(4_000), b"")] * 2), sys_flag=INNER_BATCH | NEED_UNWRAP)
    start = 0
    for cut in (2, 4, 5):
        with pytest.raises(RunTooLargeError, match=f"queue offset {cut}, ") as caught:
            decode_records(run, broker_name="b", start_offset=start)
        assert pickle.loads(pickle.dumps(caught.value)).queue_offset == cut
        assert decode_records(run, broker_name="b", start_offset=start, end_offset=cut).num_rows == cut - start
        start = cut
    assert decode_records(run, broker_name="b", start_offset=start).num_rows == 2
    assert decode_records(run, ["queueOffset"], broker_name="b", end_offset=5).num_rows == 5, "no bodies, no limit"


def test_ipv6_hosts_outside_the_range_are_dropped() -> None:
    v6 = pack_host(("2001:db8::1", 99))
    data = record(1) + record(2, born_host=v6) + record(3, born_host=v6, store_host=v6) + record(4, topic=b"T" * 130)
    rows = rows_of(decode_records(data, broker_name="b", start_offset=2, end_offset=4))
    assert rows == [row_of(m) for m in decode_messages(data, "b")][1:3]
    assert [row["bornHost"] for row in rows] == ["[2001:db8::1]:99"] * 2


# --- the usual path is taken -----------------------------------------------------------------------------------------


def columns_of(strings: list[bytes]) -> PropertyColumns:
    raw = b"".join(b"--" + string for string in strings)
    lengths = np.array([len(string) for string in strings], np.int64)
    ends = np.cumsum(lengths + 2)
    return property_columns(np.frombuffer(raw, np.uint8), ends - lengths, ends, Scratch())


def test_values_of_single_properties() -> None:
    same = columns_of([b"TAGS\x01A\x02KEYS\x01%d\x02" % i for i in range(20)])
    assert same.value_of("KEYS").to_pylist() == [str(i) for i in range(20)]
    assert same.value_of("UNIQ_KEY").null_count == 20
    mixed = columns_of([b"KEYS\x011", b"", b"TAGS\x01A\x02KEYS\x012", b"\x02", b"e\x01\x02KEYS\x01"])
    assert mixed.value_of("KEYS").to_pylist() == ["1", None, "2", None, ""]
    umlauts = columns_of(["größe\x01ü\x02TAGS\x01ä".encode(), b"k\x01\xff"])
    assert umlauts.map_array(MAP).to_pylist() == [[("größe", "ü"), ("TAGS", "ä")], [("k", "\ufffd")]]
    long_names = columns_of([b"attribute_number_1\x01x\x02attribute_number_2\x01y"] * 3)
    assert long_names.value_of("TAGS").null_count == 3


@pytest.mark.parametrize("count", [2, 63, 64, 65, 200])
@pytest.mark.parametrize(
    "odd",
    [
        b"TAGS\x01A\x02KEYS\x01xyz\x02",
        b"TAGS\x01A\x02KEYS\x01\xc3\xb6z\x02",
        b"TAGZ\x01A\x02KEYS\x01xyz\x02",
        b"TAG\x01AB\x02KEYS\x01xyz\x02",
        b"TAGS\x01A\x02KEYS\x01x\x01z\x02",
        b"TAGS\x01A\x02KEYS\x01x\x02z\x02",
        b"KEYS\x01A\x02KEYS\x01xyz\x02",
        b"TAGS\x01A\x02KEYSxxyzz\x02",
        b"",
    ],
)
@pytest.mark.parametrize("place", [0, 1, -1])
def test_one_layout_but_for_one(count: int, odd: bytes, place: int) -> None:
    """Strings of one length with the same names in the same places are split at once, and nothing else is."""
    strings = [b"TAGS\x01A\x02KEYS\x01%03d\x02" % number for number in range(count)]
    strings[place] = odd
    columns = columns_of(strings)
    expected = [decode_properties(string) for string in strings]
    assert [dict(pairs) for pairs in columns.map_array(MAP).to_pylist()] == expected
    for name in ("TAGS", "KEYS", "TAG", "none"):
        assert columns.value_of(name).to_pylist() == [pairs.get(name) for pairs in expected]


@pytest.mark.parametrize("place", [0, 1, 69, -1])
@pytest.mark.parametrize(
    "odd",
    [
        {"body": b"bodyx", "properties": b"K\x01b"},
        {"body": b"bodyx", "topic": b"topi"},
        {"topic": b"topi", "properties": b"K\x01bcd"},
        {"topic": b"topiz"},
        {"body": b"\x01\x02\xff "},
        {"sys_flag": 0x8},
    ],
)
def test_one_record_of_the_same_size_is_parted_in_another_way(odd: dict[str, Any], place: int) -> None:
    usual = {"body": b"body", "topic": b"topic", "properties": b"K\x01bc"}
    parts = [record(number, **usual) for number in range(100)]
    parts[place] = record(range(100)[place], **(usual | odd))
    assert len({len(part) for part in parts}) == 1
    data = b"".join(parts)
    rows = rows_of(decode_records(data, broker_name="b"))
    assert rows == [row_of(message) for message in decode_messages(data, "b")]
    for column in ("body", "topic", "msgId"):
        alone = decode_records(data, [column], broker_name="b", start_offset=1, end_offset=99).column(0)
        assert alone.to_pylist() == [row[column] for row in rows[1:99]]


def test_a_name_given_twice_keeps_the_last() -> None:
    many = b"\x02".join(b"n%d\x01v" % i for i in range(100)) + b"\x02TAGS\x01first\x02n5\x01w\x02TAGS\x01last"
    for strings in ([b"TAGS\x01a\x02TAGS\x01b"] * 2, [b"TAGS\x01a\x02k\x01c\x02TAGS\x01b", b""], [many, b"TAGS\x01b"]):
        columns = columns_of(strings)
        assert columns.value_of("TAGS").to_pylist() == [decode_properties(string).get("TAGS") for string in strings]
        assert [dict(row) for row in columns.map_array(MAP).to_pylist()] == [decode_properties(s) for s in strings]


PIECES = st.sampled_from([b"TAGS", b"KEYS", b"NAME", b"\x01", b"\x02", b"a", b"\0", "é".encode(), b"\xff", b"\xc3"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(PIECES, max_size=9).map(b"".join), max_size=8), st.integers(1, 3))
def test_any_strings_are_split_as_one_by_one(strings: list[bytes], times: int) -> None:
    columns = columns_of(strings * times)
    expected = [decode_properties(string) for string in strings * times]
    assert columns.map_array(MAP).to_pylist() == [list(pairs.items()) for pairs in expected]
    for name in ("TAGS", "KEYS", "NAME", "TAGSTAGSNAME"):
        assert columns.value_of(name).to_pylist() == [pairs.get(name) for pairs in expected]
