"""Arrow bodies: invalid sizes and types in untrusted bytes, and type conversions."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_rocket.datasource.bodies import arrow_bodies
from spark_rocket.datasource.bodies.arrow_bodies import ArrowDecoder
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.read.typed_rows import TypedRows
from spark_rocket.datasource.spark_schema import columns_of
from tests.datasource.body_formats.formats import bodies, columns, map_to, rows_of

IDS = pa.schema([("id", pa.int64()), ("s", pa.string())])


def stream(batch: pa.RecordBatch, codec: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as to:
        to.write_batch(batch)
    return sink.getvalue().to_pybytes()


def one(array: pa.Array, kind: pa.DataType) -> Any:
    """The values as another type, or the reason for a failure."""
    fields = pa.schema([("c", kind)])
    found = ArrowDecoder(fields).decode(bodies(stream(pa.record_batch({"c": array}))))
    rows = [row["c"] for row in rows_of(found, fields)]
    return found.bad[0] if found.bad else rows


def wild_decimals(kind: pa.DataType) -> pa.Array:
    sound = pa.array([1, 2], pa.decimal128(20, 3) if pa.types.is_decimal128(kind) else pa.decimal256(60, 3))
    return pa.Array.from_buffers(kind, 2, sound.buffers())


TARGETS = (pa.decimal128(20, 3), pa.int64(), pa.float64(), pa.float32(), pa.string())


@pytest.mark.parametrize("kind", [pa.decimal128(20, 8388611), pa.decimal128(20, -7), pa.decimal256(60, 400)])
def test_decimals_with_an_invalid_scale_are_rejected(kind: pa.DataType) -> None:
    """Arrow's cast uses the scale as an index beyond its table of powers, which crashed the process."""
    wild = wild_decimals(kind)
    nested = (
        wild,
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), wild),
        pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), wild),
        pa.StructArray.from_arrays([wild], ["d"]),
        pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["a", "b"]), wild),
    )
    for array in nested:
        for target in TARGETS:
            assert "of them after the point" in one(array, target)


def test_few_bytes_cannot_become_many_rows() -> None:
    millions = 100_000_000
    zeros = pa.array(np.zeros(2_000_000, np.int64))
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(60_000, np.int8)), pa.array(["x" * 100_000]))
    _, view, text = pa.array(["y" * 100_000], pa.string_view()).buffers()
    views = pa.Array.from_buffers(pa.string_view(), 60_000, [None, pa.py_buffer(view.to_pybytes()[:16] * 60_000), text])
    in_struct = pa.StructArray.from_arrays([long], ["t"])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([millions], pa.int64()), pa.array([1]))
    nulls = pa.ListArray.from_arrays(pa.array([0, 900_000_000], pa.int32()), pa.nulls(900_000_000))
    for batch, codec, kind in (
        (pa.record_batch({"x": pa.nulls(millions)}), None, pa.int64()),
        (pa.record_batch({"c": pa.nulls(millions)}), None, pa.int64()),
        (pa.record_batch({"c": runs}), None, pa.int64()),
        (pa.record_batch({"c": zeros}), "zstd", pa.int64()),
        (pa.record_batch({"c": pa.array([b"\0" * (24 << 20)])}), "zstd", pa.binary()),
        (pa.record_batch({"c": pa.array([b"\0" * (24 << 20)]).dictionary_encode()}), "zstd", pa.binary()),
        (pa.record_batch({"c": long}), None, pa.string()),
        (pa.record_batch({"c": views}), "zstd", pa.string()),
        (pa.record_batch({"c": nulls}), None, pa.list_(pa.int64())),
        (pa.record_batch({"c": in_struct}), None, pa.struct([("t", pa.string())])),
    ):
        body = stream(batch, codec)
        before = pa.total_allocated_bytes()
        found = ArrowDecoder(pa.schema([("c", kind)])).decode(bodies(body, body))
        assert sorted(found.bad) == [0, 1], batch.schema
        assert all("for a body of its size" in text for text in found.bad.values()), found.bad
        assert pa.total_allocated_bytes() - before < 1 << 20


def test_well_compressed_bodies_are_read() -> None:
    constant = pa.record_batch(
        {"id": pa.array(np.full(60_000, 7)), "s": pa.array(["same"] * 60_000).dictionary_encode()}
    )
    body = stream(constant, "zstd")
    assert len(body) < 20_000
    found = ArrowDecoder(IDS).decode(bodies(body))
    assert not found.bad
    assert len(found.columns[0]) == 60_000
    mixed = stream(pa.record_batch({"id": np.random.default_rng(1).integers(0, 1 << 62, 99), "s": ["a"] * 99}), "lz4")
    assert not ArrowDecoder(IDS).decode(bodies(mixed)).bad


def test_claimed_sizes_are_read_from_the_metadata() -> None:
    body = stream(pa.record_batch({"id": pa.array(np.zeros(100_000, np.int64))}), "zstd")
    (batch,) = (m for m in pa.ipc.MessageReader.open_stream(body) if m.type == "record batch")
    rows, inflated = arrow_bodies._claimed_size(batch.metadata.to_pybytes(), batch.body, False)
    assert (rows, inflated) == (100_000, 800_000)


def test_large_bodies_are_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_bodies, "_MAX_DECODED_BYTES", 1000)
    body = stream(pa.record_batch({"id": pa.array(range(100))}))
    found = ArrowDecoder(IDS).decode(bodies(*[body] * 5))
    assert found.count == 1
    assert found.rows is not None
    assert found.rows.tolist() == [0] * 100
    monkeypatch.undo()
    assert ArrowDecoder(IDS).decode(bodies(*[body] * 5)).count == 5


def test_long_message_columns_are_repeated_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together, the values may exceed the 2 GiB that an array of strings can hold."""
    options = parse_read_options(
        {"nameServer": "x:1", "subscribe": "orders", "bodyFormat": "arrow", "badRecords": "drop"}
        | {"metadataColumns": "keys, properties", "arrowBatchRows": "64", "arrowBatchBytes": "1048576"},
        Scope.READ,
    )
    assert options.body is not None
    schema = columns(id="bigint", keys="string", properties=map_to("string"))
    rows = TypedRows(options, options.body, columns_of(schema, options.body))
    count = 3_100
    body = stream(pa.record_batch({"id": pa.array(range(count))}))
    plain = {"topic": "orders", "brokerName": "broker-a", "queueId": 0, "queueOffset": 7, "properties": []}
    messages = [
        {"body": body, "keys": "k" * 700_000} | plain,
        {"body": b"bad", "keys": "bad"} | plain,
        {"body": body, "keys": "l", "properties": [("p", "v" * 30_000), ("q", None)]} | plain,
        {"body": body, "keys": None} | plain,
    ]
    target = rows.projection.target
    batch = pa.RecordBatch.from_pylist(
        [{name: one.get(name) for name in target.names} for one in messages], schema=target
    )
    monkeypatch.setattr(arrow_bodies, "_MAX_DECODED_BYTES", 50_000)
    found = [(part.num_rows, part.nbytes, part.column("id").to_pylist()) for part in rows.rows(iter([batch]))]
    assert max(size for _, size, _ in found) < 1_200_000
    assert [value for _, _, values in found for value in values] == list(range(count)) * 3
    assert [one for one, _, _ in found[: count - 1]] == [1] * (count - 1)
    assert max(one for one, _, _ in found) == 64


def test_a_file_is_read_by_its_footer() -> None:
    batch = pa.record_batch({"id": [1, 2], "s": pa.array(["a", "b"]).dictionary_encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as file:
        file.write_batch(batch)
        file.write_batch(batch)
    whole = sink.getvalue().to_pybytes()
    found = ArrowDecoder(IDS).decode(bodies(whole, whole[:-20], whole[:8] + stream(batch)))
    assert found.columns[0].to_pylist() == [1, 2, 1, 2, None, None]
    assert sorted(found.bad) == [1, 2]


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
DEC = pa.decimal128(10, 2)


@pytest.mark.parametrize(
    ("array", "kind", "values"),
    [
        (pa.array([1, None], pa.int8()), pa.int64(), [1, None]),
        (pa.array([5], pa.uint64()), pa.int32(), [5]),
        (pa.array([5]), pa.float64(), [5.0]),
        (pa.array([5]), DEC, [Decimal("5.00")]),
        (pa.array([1.5, None, float("inf")], pa.float32()), pa.float64(), [1.5, None, float("inf")]),
        (pa.array([1.5, float("-inf")]), pa.float32(), [1.5, float("-inf")]),
        (pa.array([2.0]), pa.int32(), [2]),
        (pa.array([1.25, None]), DEC, [Decimal("1.25"), None]),
        (pa.array([Decimal("1.5")]), DEC, [Decimal("1.50")]),
        (pa.array([Decimal("1.5")], pa.decimal256(40, 1)), DEC, [Decimal("1.50")]),
        (pa.array([Decimal("0.1")]), pa.float64(), [0.1]),
        (pa.array([Decimal("3.00")]), pa.int64(), [3]),
        (pa.array([True]), pa.string(), ["true"]),
        (pa.array(["a", None], pa.large_string()), pa.string(), ["a", None]),
        (pa.array(["longer than twelve", None], pa.string_view()), pa.string(), ["longer than twelve", None]),
        (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
        (pa.array([b"ab"], pa.binary_view()), pa.string(), ["ab"]),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.string(), ["a", None, "a"]),
        (pa.array([7, 7]).dictionary_encode(), pa.int32(), [7, 7]),
        (pa.nulls(2), pa.map_(pa.string(), pa.int32()), [None, None]),
        (pa.array([1], pa.date32()), pa.timestamp("us", "UTC"), [datetime(1970, 1, 2, tzinfo=UTC)]),
        (pa.array([date(2026, 1, 31)], pa.date64()), pa.date32(), [date(2026, 1, 31)]),
        (pa.array([NOON], pa.timestamp("ns", "Europe/Paris")), pa.timestamp("us", "UTC"), [NOON]),
        (pa.array([NOON.replace(tzinfo=None)], pa.timestamp("s")), pa.timestamp("us", "UTC"), [NOON]),
        (pa.array([[1], None, []], pa.large_list(pa.int8())), pa.list_(pa.int64()), [[1], None, []]),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), pa.list_(pa.int64()), [[1, 2], None]),
        (
            pa.array([{"y": 1, "x": 2, "z": 0}, None]),
            pa.struct([("x", pa.int32()), ("w", pa.string()), ("y", pa.int64())]),
            [{"x": 2, "w": None, "y": 1}, None],
        ),
        (pa.array([{"y": 1}, None]), pa.struct([]), [{}, None]),
        (
            pa.array([[("k", 1)], None], pa.map_(pa.large_string(), pa.int8())),
            pa.map_(pa.string(), pa.int64()),
            [[("k", 1)], None],
        ),
        (pa.array([1, -7]), pa.bool_(), "without loss"),
        (pa.array([True]), pa.int32(), "without loss"),
        (pa.array([1e300]), pa.float32(), "does not fit"),
        (pa.array([0.1]), pa.float32(), "does not fit"),
        (pa.array([0.126]), DEC, "does not fit"),
        (pa.array([float("nan")]), DEC, "nan"),
        (pa.array([1.5]), pa.int64(), "truncated"),
        (pa.array([3_000_000_000]), pa.int32(), "not in range"),
        (pa.array([2**53 + 1]), pa.float64(), "not in range"),
        (pa.array([Decimal("0.126")]), DEC, "data loss"),
        (pa.array([Decimal(10) ** 30]), pa.decimal128(38, 18), "data loss|not all of"),
        (pa.array([Decimal(10) ** 60], pa.decimal256(76, 0)), pa.decimal128(38, 38), "data loss|not all of"),
        (pa.array([Decimal("0.12345678901234567891")]), pa.float64(), "does not fit"),
        (pa.array([10**9]), DEC, "does not fit"),
        (pa.array(["12"]), pa.int64(), "without loss"),
        (pa.array([b"\xff"]), pa.string(), "UTF8"),
        (pa.array([NOON]), pa.date32(), "without loss"),
        (pa.array([12]), pa.timestamp("us", "UTC"), "without loss"),
        (pa.array([1], pa.timestamp("ns")), pa.timestamp("us"), "would lose data"),
        (pa.array([[1]], pa.list_view(pa.int64())), pa.list_(pa.int64()), "without loss"),
        (pa.array([{"x": 1}]), pa.string(), "without loss"),
    ],
)
def test_lossless_type_conversions(array: pa.Array, kind: pa.DataType, values: Any) -> None:
    found = one(array, kind)
    if isinstance(values, str):
        assert isinstance(found, str), found
        assert re.search(values, found), found
    else:
        assert found == values


@pytest.mark.live
def test_altered_bytes_do_not_crash_the_process() -> None:
    """Some thousand bodies with bytes changed, in a separate process, because a crash would end the tests."""
    script = Path(__file__).with_name("twisted_arrow.py")
    done = subprocess.run(
        [sys.executable, str(script), "3000"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("3000 bodies"), done.stdout
