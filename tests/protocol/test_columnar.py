"""Columnar decoding: golden stores first, then against the single-record codec, then which rows and columns."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.record.columns import ARROW_SCHEMA, COLUMNS, STORED_SCHEMA, decode_records
from spark_rocket.protocol.record.layout import COMPRESSED, INNER_BATCH, NEED_UNWRAP
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.record.record import ScanKind, encode_record, scan_record
from tests.golden import StoreName, store_files
from tests.protocol.columnar import MAP, names, record, row_of, rows_of, text


def golden_runs(name: StoreName) -> Iterator[bytes]:
    """The records of each commit-log file, without the blank at its end."""
    for path, data in store_files(name).items():
        if path.startswith("commitlog/"):
            end = 0
            while (found := scan_record(data, end)).kind is ScanKind.GOOD:
                end += found.size
            yield data[:end]


# --- golden ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_golden_records_equal_the_single_record_codec(name: StoreName) -> None:
    """Which ``test_golden_store.py`` compares with what the original client read."""
    runs = list(golden_runs(name))
    for run in runs:
        assert rows_of(decode_records(run, broker_name="b")) == [row_of(m) for m in decode_messages(run, "b")]
    assert len(b"".join(runs)) > 2 << 20


# --- against the single-record codec ---------------------------------------------------------------------------------


int32 = st.integers(-(2**31), 2**31 - 1)
times = st.integers(-(2**43), 2**43)
hosts = st.one_of(
    st.builds(lambda ip, port: struct.pack(">Ii", ip, port), st.integers(0, 2**32 - 1), st.integers(0, 65535)),
    st.builds(
        lambda ip, port: ip + struct.pack(">i", port), st.binary(min_size=16, max_size=16), st.integers(0, 65535)
    ),
)
raw_properties = st.one_of(
    st.dictionaries(names, text, max_size=5).map(encode_properties),
    st.dictionaries(names, text, max_size=5).map(lambda p: encode_properties(p) + b"\x02" if p else b""),
    st.lists(st.sampled_from([b"TAGS", b"KEYS", b"\x01", b"\x02", b"x", b"\xff\xfe", "é€".encode()]), max_size=12).map(
        b"".join
    ),
    st.binary(max_size=30),
)
records = st.builds(
    lambda topic, queue, body, properties, at, phys, born, born_host, store, store_host, flag, again: encode_record(
        topic,
        queue,
        body,
        properties,
        queue_offset=at,
        physical_offset=phys,
        born_timestamp=born,
        born_host=born_host,
        store_timestamp=store,
        store_host=store_host,
        flag=flag,
        reconsume_times=again,
    ),
    st.one_of(st.just(b"TopicTest"), st.binary(max_size=200)),
    int32,
    st.one_of(st.binary(max_size=200), st.just(b"\xda\xa3\x20\xa7" * 3)),
    raw_properties,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**62),
    times,
    hosts,
    times,
    hosts,
    int32,
    int32,
)


@given(st.lists(records, max_size=8))
@settings(max_examples=150, deadline=None)
def test_any_records_equal_the_single_record_codec(run: list[bytes]) -> None:
    data = b"".join(run)
    expected = [row_of(message) for message in decode_messages(data, "b")]
    assert rows_of(decode_records(data, broker_name="b", check_crc=True)) == expected


V4, OTHER_V4 = struct.pack(">Ii", 0x7F000001, 10911), struct.pack(">Ii", 0xFFFFFFFF, 1)
of_one_size = st.fixed_dictionaries(
    {
        "topic": st.sampled_from([b"TopicTest", b"Topic\xff\xfe!!"]),
        "queue": st.sampled_from([0, -1]),
        "body": st.sampled_from([b"aaaa", b"\0\xff\0\1"]),
        "properties": st.sampled_from([b"TAGS\1a\2KEYS\1b", b"TAGS\1b\2KEYS\1b", b"KEYS\1a\2TAGS\1b", b"\2" * 13]),
        "queue_offset": st.sampled_from([0, -1, 2**63 - 1]),
        "physical_offset": st.sampled_from([0, 2**62]),
        "born_timestamp": st.sampled_from([0, -1]),
        "store_timestamp": st.sampled_from([0, 2**43]),
        "born_host": st.sampled_from([V4, OTHER_V4]),
        "store_host": st.sampled_from([V4, OTHER_V4]),
        "flag": st.sampled_from([0, -(2**31)]),
        "reconsume_times": st.sampled_from([0, 2**31 - 1]),
    }
)


@given(st.lists(of_one_size, min_size=1, max_size=4), st.sampled_from([[name] for name in COLUMNS] + [list(COLUMNS)]))
@settings(max_examples=200, deadline=None)
def test_records_of_one_size_equal_the_single_record_codec(run: list[dict[str, Any]], columns: list[str]) -> None:
    """Parts that are equal in all records are made once, whatever else differs; one column, or all."""
    head = ("topic", "queue", "body", "properties")
    data = b"".join(
        encode_record(*(one[name] for name in head), **{name: one[name] for name in one if name not in head})
        for one in run
    )
    expected = [row_of(message) for message in decode_messages(data, "b")]
    batch = decode_records(data, list(COLUMNS), broker_name="b", check_crc=True)
    batch.validate(full=True)
    assert rows_of(batch) == expected
    some = decode_records(data, columns, broker_name="b", start_offset=0)
    kept = pa.array([one["queue_offset"] >= 0 for one in run])
    assert some.equals(batch.filter(kept).select(columns))


def test_every_truncation_gives_a_protocol_error() -> None:
    data = record(1) + record(2, body=b"", properties=b"")
    whole = {0, len(record(1)), len(data)}
    for end in range(len(data) + 1):
        if end in whole:
            decode_records(data[:end], broker_name="b")
        else:
            with pytest.raises(ProtocolError):
                decode_records(data[:end], broker_name="b")


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, b"\x7f\xff"),  # total size above the buffer
        (0, b"\xff\xff"),  # negative
        (0, b"\x00\x00\x00\x05"),  # below a record's least
        (4, b"\xcb\xd4\x31\x94"),  # a blank's magic
        (84, b"\x7f\xff\xff\xff"),  # body length above the record
        (84, b"\xff\xff\xff\xff"),  # negative
        (84, b"\x00\x00\x00\x03"),  # one less: the parts no longer fit
        (92, b"\xff"),  # topic length
        (102, b"\x7f\xff"),  # properties length
        (102, b"\xff\xff"),  # negative
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_bad_lengths_and_magic(position: int, value: bytes, place: int) -> None:
    raw = bytearray(record(1) * 3)
    position += place * len(record(1))
    raw[position : position + len(value)] = value
    with pytest.raises(ProtocolError, match="byte"):
        decode_records(raw, broker_name="b")


# --- choices ---------------------------------------------------------------------------------------------------------


def test_schema_is_what_spark_wants() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    from spark_rocket.datasource.capabilities import arrow_schema

    string, integer = types.StringType(), types.IntegerType()
    kinds = {
        "queueId": integer,
        "queueOffset": types.LongType(),
        "body": types.BinaryType(),
        "properties": types.MapType(string, string, False),
        "bornTimestamp": types.TimestampType(),
        "storeTimestamp": types.TimestampType(),
        "reconsumeTimes": integer,
        "flag": integer,
        "sysFlag": integer,
    }
    fields = [types.StructField(n, kinds.get(n, string), n in ("tags", "keys")) for n in COLUMNS]
    wanted = arrow_schema(types.StructType(fields))
    assert wanted.equals(ARROW_SCHEMA)
    assert decode_records(record(1), broker_name="b").schema.equals(wanted)
    assert decode_records(b"", broker_name="b").schema.equals(wanted)


def test_another_schema_changes_nullability() -> None:
    nullable = pa.schema([pa.field("body", pa.binary()), pa.field("properties", MAP)])
    batch = decode_records(record(1), ["properties", "body"], broker_name="b", schema=nullable)
    assert batch.schema.equals(pa.schema([nullable.field("properties"), nullable.field("body")]))
    assert batch.to_pylist() == [{"properties": [("TAGS", "A")], "body": b"body"}]


@pytest.mark.parametrize("columns", [["queueOffset"], ["tags", "body"], ["storeHost", "msgId", "topic"], []])
def test_only_the_columns_asked_for_in_their_order(columns: list[str]) -> None:
    batch = decode_records(record(7) + record(8), columns, broker_name="b")
    assert batch.schema.names == columns
    whole = decode_records(record(7) + record(8), broker_name="b")
    for name in columns:
        assert batch.column(name).equals(whole.column(name))


@pytest.mark.parametrize("columns", [[], ["body"]])
def test_what_is_stored_is_the_same_whether_bodies_are_asked_for_or_not(columns: list[str]) -> None:
    packed, a, b = zlib.compress(b"x" * 500), b"a", b"bb"
    inner = encode_batch_body([(0, a, b"p\x01q"), (0, b, b"")])
    data = b"".join(
        (
            record(0, body=b"plain"),
            record(1, body=packed, sys_flag=COMPRESSED, properties=b"\xffodd\x02"),
            record(2, body=inner, sys_flag=INNER_BATCH | NEED_UNWRAP),
            record(4, body=b"", store_host=pack_host(("::1", 7)), properties=b""),
        )
    )
    batch = decode_records(data, [*columns, *STORED_SCHEMA.names], broker_name="b")
    bodies = [(b"plain", 5), (packed, 0), (a, 1), (b, 2), (b"", 0)]
    assert batch.column("storedBody").to_pylist() == [
        zlib.crc32(body) & 0x7FFFFFFF | length << 32 for body, length in bodies
    ]
    assert batch.column("storedProperties").to_pylist() == [b"TAGS\x01A", b"\xffodd\x02", b"p\x01q", b"", b""]
    assert decode_records(b"", STORED_SCHEMA.names, broker_name="b").num_rows == 0


def test_unknown_column() -> None:
    with pytest.raises(ProtocolError, match="bodies"):
        decode_records(b"", ["bodies"], broker_name="b")


def test_offsets_outside_the_range_are_dropped() -> None:
    data = b"".join(record(i) for i in range(10, 20))
    cases: list[tuple[dict[str, Any], range]] = [
        ({"start_offset": 13}, range(13, 20)),
        ({"end_offset": 12}, range(10, 12)),
        ({"start_offset": 12, "end_offset": 15}, range(12, 15)),
        ({"start_offset": 30}, range(0)),
    ]
    for kwargs, wanted in cases:
        batch = decode_records(data, broker_name="b", **kwargs)
        batch.validate(full=True)
        assert batch.column("queueOffset").to_pylist() == list(wanted)
        assert batch.num_rows == len(batch.column("properties"))


def test_tags_are_compared_as_text() -> None:
    data = (
        record(0, properties=b"TAGS\x01A") + record(1, properties=b"TAGS\x01B\x02") + record(2, properties=b"KEYS\x01A")
    )
    batch = decode_records(data, ["queueOffset"], broker_name="b", tags=frozenset({"B", "C"}))
    assert batch.column("queueOffset").to_pylist() == [1]


def test_crc_is_checked_over_the_stored_body() -> None:
    compressed = record(0, body=zlib.compress(b"x" * 100), sys_flag=COMPRESSED)
    assert decode_records(compressed, ["body"], broker_name="b", check_crc=True).to_pylist() == [{"body": b"x" * 100}]
    broken = bytearray(record(0) + record(1))
    broken[-20] ^= 1  # in the second one's body
    with pytest.raises(ProtocolError, match=r"record with queue offset 1, at byte \d+, has .* CRC"):
        decode_records(broken, broker_name="b", check_crc=True)
    assert decode_records(broken, broker_name="b", check_crc=True, end_offset=1).num_rows == 1


def test_several_topics_and_text_that_is_not_utf8() -> None:
    data = record(0, topic=b"A\xff") + record(1, topic=b"Bee", properties=b"TAGS\x01\xff\x02k\x01" + "é".encode())
    rows = rows_of(decode_records(data, broker_name="b"))
    assert [row["topic"] for row in rows] == ["A�", "Bee"]
    assert rows[1]["properties"] == {"TAGS": "�", "k": "é"}


def test_the_input_may_be_any_buffer_and_is_not_kept() -> None:
    data = bytearray(record(1) + record(2))
    batch = decode_records(memoryview(data), broker_name="b")
    before = batch.to_pylist()
    del data[:]  # would raise BufferError if something still looked into it
    decode_records(record(9, body=b"other", properties=b"zz\x01zz"), broker_name="b")
    assert batch.to_pylist() == before


def test_times_beyond_arrow_are_clipped() -> None:
    rows = decode_records(record(0, born_timestamp=2**63 - 1), ["bornTimestamp"], broker_name="b")
    assert rows.column(0).cast(pa.int64()).to_pylist() == [(2**63 - 1) // 1000 * 1000]
