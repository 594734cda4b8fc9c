"""Columnar decoding and encoding: golden stores first, then against the single-record codec, then odd bytes."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import struct
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError, RowProtocolError, RunTooLargeError
from spark_rocket.model import MessageExt
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record import unwrap as columnar_unwrap
from spark_rocket.protocol.record.batch import decode_batch_body, encode_batch_body
from spark_rocket.protocol.record.column_properties import PropertyColumns
from spark_rocket.protocol.record.columns import ARROW_SCHEMA, COLUMNS, STORED_SCHEMA, decode_records
from spark_rocket.protocol.record.encoder import encode_batch, encode_properties_columns, hex_strings
from spark_rocket.protocol.record.layout import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZSTD, INNER_BATCH, NEED_UNWRAP
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.record.properties import decode_properties, encode_properties
from spark_rocket.protocol.record.record import ScanKind, encode_record, scan_record
from spark_rocket.protocol.record.run import Scratch

GOLDEN = Path(__file__).parent.parent / "golden"
MAP = pa.map_(pa.string(), pa.string())


def golden_runs(name: str) -> Iterator[bytes]:
    """The records of each commit-log file, without the blank at its end."""
    with tarfile.open(GOLDEN / f"store-4.9.8-{name}.tar.gz") as archive:
        for member in archive:
            if "/commitlog/" not in member.name or not member.isfile():
                continue
            source = archive.extractfile(member)
            assert source is not None
            data = source.read()
            end = 0
            while (found := scan_record(data, end)).kind is ScanKind.GOOD:
                end += found.size
            yield data[:end]


def row_of(message: MessageExt) -> dict[str, Any]:
    """What decode_records should say of a message that the single-record codec has decoded."""

    def host(pair: tuple[str, int]) -> str:
        return f"[{pair[0]}]:{pair[1]}" if ":" in pair[0] else f"{pair[0]}:{pair[1]}"

    return {
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "body": message.body,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "msgId": message.msg_id,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": host(message.born_host),
        "storeHost": host(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
    }


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    for name in ("bornTimestamp", "storeTimestamp"):
        at = batch.schema.get_field_index(name)
        if at >= 0:
            micros = batch.column(at).cast(pa.int64())
            millis = pa.array([None if v is None else v // 1000 for v in micros.to_pylist()], pa.int64())
            batch = batch.set_column(at, name, millis)
    rows: list[dict[str, Any]] = batch.to_pylist()
    for row in rows:
        if "properties" in row:
            pairs = row["properties"]
            row["properties"] = dict(pairs)
            assert len(row["properties"]) == len(pairs), "a name occurs twice"
    return rows


def record(offset: int = 0, body: bytes = b"body", properties: bytes = b"TAGS\x01A", **other: Any) -> bytes:
    values: dict[str, Any] = {
        "queue_offset": offset,
        "physical_offset": offset * 1000,
        "born_timestamp": 1_700_000_000_000,
        "born_host": pack_host(("10.0.0.1", 5000)),
        "store_timestamp": 1_700_000_000_001,
        "store_host": pack_host(("127.0.0.1", 10911)),
    }
    topic = other.pop("topic", b"TopicTest")
    return encode_record(topic, other.pop("queue_id", 0), body, properties, **(values | other))


# --- golden -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_golden_store_is_read_as_the_original_client_read_it(name: str) -> None:
    rows: dict[tuple[str, int, int], dict[str, Any]] = {}
    for run in golden_runs(name):
        for row in rows_of(decode_records(run, broker_name="broker-a", check_crc=True)):
            rows[row["topic"], row["queueId"], row["queueOffset"]] = row
    count = 0
    with gzip.open(GOLDEN / f"expected-{name}.jsonl.gz", "rt") as lines:
        for line in lines:
            want = json.loads(line)
            have = rows[want["topic"], want["queueId"], want["queueOffset"]]
            count += 1
            assert have["body"] == base64.b64decode(want["body"] or "")
            assert have["msgId"] == (want.get("uniqKey") or want["msgId"])
            assert have["tags"] == want.get("tags")
            assert have["keys"] == want.get("keys")
            assert have["brokerName"] == "broker-a"
            properties = {k: v for k, v in want["properties"].items() if k not in ("MIN_OFFSET", "MAX_OFFSET")}
            assert have["properties"] == properties
            for host in ("bornHost", "storeHost"):
                assert have[host] == want[host].removeprefix("/")
            for same in ("bornTimestamp", "storeTimestamp", "reconsumeTimes", "flag", "sysFlag"):
                assert have[same] == want[same], same
    assert count == {"clean": 1239, "killed": 1299}[name]


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_golden_records_equal_the_single_record_codec(name: str) -> None:
    for run in golden_runs(name):
        assert rows_of(decode_records(run, broker_name="b")) == [row_of(m) for m in decode_messages(run, "b")]


# --- against the single-record codec ----------------------------------------------------------------------------

text = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), max_size=12)
names = st.one_of(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "attribute_number_1", "attribute_number_2"]), text
)
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
    """What all of them have alike is made once, whatever else differs; one column, or all."""
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


@given(st.lists(raw_properties, min_size=1, max_size=8))
@settings(max_examples=150, deadline=None)
def test_any_property_strings_equal_the_single_codec(strings: list[bytes]) -> None:
    data = b"".join(record(i, properties=raw) for i, raw in enumerate(strings))
    rows = rows_of(decode_records(data, ["tags", "keys", "msgId", "properties"], broker_name="b"))
    for row, raw in zip(rows, strings, strict=True):
        properties = decode_properties(raw)
        assert row["properties"] == properties
        assert (row["tags"], row["keys"]) == (properties.get("TAGS"), properties.get("KEYS"))
        if properties.get("UNIQ_KEY"):
            assert row["msgId"] == properties["UNIQ_KEY"]


@given(st.lists(records, min_size=1, max_size=4), st.data())
@settings(max_examples=300, deadline=None)
def test_mutated_bytes_give_a_batch_or_a_protocol_error(run: list[bytes], data: st.DataObject) -> None:
    raw = bytearray(b"".join(run))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for changed in (raw, raw[:cut], raw[cut:], raw + raw[:cut]):
        try:
            batch = decode_records(changed, broker_name="b")
        except ProtocolError:
            continue
        batch.validate(full=True)


@given(st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
def test_random_bytes_give_a_protocol_error(raw: bytes) -> None:
    if raw:
        with pytest.raises(ProtocolError):
            decode_records(raw, broker_name="b")


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


def test_bytes_that_look_like_records_inside_bodies() -> None:
    run = [record(i, body=record(i + 50) * 2) for i in range(5)]
    rows = rows_of(decode_records(b"".join(run), broker_name="b"))
    assert [row["queueOffset"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[3]["body"] == record(53) * 2


# --- choices ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 10, 700])
def test_records_of_one_size(size: int) -> None:
    """Also where the sizes of bodies and properties make up for each other, and where only some are asked for."""
    same = [record(offset, bytes([65 + offset]) * size) for offset in range(9)]
    traded = [record(n, b"b" * (size + n % 2), b"TAGS\x01" + b"A" * (2 - n % 2)) for n in range(9)]
    uneven = [*same[:4], record(4, b"other" * size), *same[5:]]
    for run in (same, traded, uneven):
        raw = b"".join(run)
        expected = [row_of(message) for message in decode_messages(raw, "broker-a")]
        assert rows_of(decode_records(raw, broker_name="broker-a")) == expected
        middle = decode_records(raw, broker_name="broker-a", start_offset=2, end_offset=7)
        assert rows_of(middle) == expected[2:7]
    broken = bytearray(b"".join(same))
    broken[len(same[0]) + 4] = 0
    with pytest.raises(ProtocolError, match="unknown magic number"):
        decode_records(broken, broker_name="broker-a")


def test_schema_is_what_spark_wants() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    from pyspark.sql.pandas.types import to_arrow_schema

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
    wanted = to_arrow_schema(types.StructType(fields), timezone="UTC")
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
    for kwargs, wanted in (
        ({"start_offset": 13}, range(13, 20)),
        ({"end_offset": 12}, range(10, 12)),
        ({"start_offset": 12, "end_offset": 15}, range(12, 15)),
        ({"start_offset": 30}, range(0)),
    ):
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


# --- compressed and wrapped -------------------------------------------------------------------------------------


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
    monkeypatch.setattr(columnar_unwrap, "MAX_RUN", 10_000)
    bomb = record(0, body=zlib.compress(bytes(9_000)), sys_flag=COMPRESSED)
    assert decode_records(bomb, ["body"], broker_name="b").num_rows == 1
    inner = record(0, body=encode_batch_body([(0, bytes(4_000), b"")] * 3), sys_flag=INNER_BATCH | NEED_UNWRAP)
    with pytest.raises(ProtocolError, match="alone inflates") as hopeless:
        decode_records(inner, broker_name="b")
    assert not isinstance(hopeless.value, RunTooLargeError)


def test_a_run_that_inflates_to_too_much_says_where_to_cut_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar_unwrap, "MAX_RUN", 10_000)
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


# --- the usual path is taken ------------------------------------------------------------------------------------


def columns_of(strings: list[bytes]) -> PropertyColumns:
    raw = b"".join(b"--" + string for string in strings)
    lengths = np.array([len(string) for string in strings])
    ends = np.cumsum(lengths + 2)
    return PropertyColumns(np.frombuffer(raw, np.uint8), ends - lengths, ends, Scratch())


def test_plain_strings_do_not_go_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the slow path was taken")

    monkeypatch.setattr(PropertyColumns, "_split_slowly", refuse)
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


def test_records_of_one_size_with_one_damaged() -> None:
    parts = [record(number, body=b"body", topic=b"topic") for number in range(100)]
    damaged = bytearray(parts[50])
    damaged[84:88] = b"\x7f\0\0\0"
    for place in (0, 50):
        data = b"".join([*parts[:place], bytes(damaged), *parts[place + 1 :]])
        with pytest.raises(ProtocolError, match="has a body that does not fit"):
            decode_records(data, broker_name="b")


def test_a_name_given_twice_keeps_the_last() -> None:
    many = b"\x02".join(b"n%d\x01v" % i for i in range(100)) + b"\x02TAGS\x01first\x02n5\x01w\x02TAGS\x01last"
    for strings in ([b"TAGS\x01a\x02TAGS\x01b"] * 2, [b"TAGS\x01a\x02k\x01c\x02TAGS\x01b", b""], [many, b"TAGS\x01b"]):
        columns = columns_of(strings)
        assert columns.value_of("TAGS").to_pylist() == [decode_properties(string).get("TAGS") for string in strings]
        assert [dict(row) for row in columns.map_array(MAP).to_pylist()] == [decode_properties(s) for s in strings]


def test_names_that_become_equal_as_text_are_one() -> None:
    strings = [b"\xff\x01a\x02\xfe\x01b", b"TAGS\x01c", b"\xc3\x01d\x02TAGS\x01e\x02\xef\xbf\xbd\x01f"]
    columns = columns_of(strings)
    assert columns.map_array(MAP).to_pylist() == [list(decode_properties(string).items()) for string in strings]
    assert columns.map_array(MAP).to_pylist()[0] == [("\ufffd", "b")]
    assert columns.value_of("TAGS").to_pylist() == [None, "c", "e"]


# --- encoding ---------------------------------------------------------------------------------------------------


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


def test_rows_through_batch_and_records_and_back() -> None:
    bodies = pa.array([b"b%d" % i for i in range(50)])
    properties = encode_properties_columns(50, {"KEYS": pa.array([f"k{i}" for i in range(50)])})
    data, _ = encode_batch(bodies, properties)
    stored = b"".join(
        record(i, bytes(body), raw, flag=flag) for i, (flag, body, raw) in enumerate(decode_batch_body(data))
    )
    batch = decode_records(stored, ["body", "keys"], broker_name="b")
    assert batch.column("body").equals(bodies)
    assert batch.column("keys").to_pylist() == [f"k{i}" for i in range(50)]


def test_hex_strings() -> None:
    rows = np.frombuffer(bytes(range(256)), np.uint8).reshape(16, 16)
    assert hex_strings(rows).to_pylist() == [rows[i].tobytes().hex().upper() for i in range(16)]
    assert hex_strings(np.empty((0, 16), np.uint8)).to_pylist() == []
