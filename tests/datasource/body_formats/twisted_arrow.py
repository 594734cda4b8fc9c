"""Decode Arrow bodies with altered bytes (run by test_arrow.py in a separate process)."""

from __future__ import annotations

import faulthandler
import random
import resource
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa

from spark_rocket.datasource.bodies.arrow_bodies import ArrowDecoder

PAIRS = pa.map_(pa.string(), pa.string())
FIELDS = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("l", pa.list_(pa.int64())),
        ("st", pa.struct([("a", pa.int32()), ("t", pa.string())])),
        ("m", PAIRS),
        ("d", pa.decimal128(20, 3)),
        ("ts", pa.timestamp("us", "UTC")),
        ("bo", pa.bool_()),
        ("x", pa.float64()),
    ]
)
INTEGERS = (0, 1, -1, 7, 127, 255, 2**15, 2**31 - 1, -(2**31), 2**20, 2**16, 6, 8, 64, 2**63 - 1, 2**40, 2**33)


def batches() -> Iterator[pa.RecordBatch]:
    six = range(6)
    plain: dict[str, Any] = {
        "id": pa.array(six),
        "s": pa.array(["a" * index for index in six]),
        "b": pa.array([b"xy"] * 6),
        "l": pa.array([[1, 2]] * 6),
        "st": pa.array([{"a": 1, "t": "q"}] * 6),
        "m": pa.array([[("k", "v")]] * 6, PAIRS),
        "d": pa.array([Decimal("1.234")] * 6, pa.decimal128(20, 3)),
        "ts": pa.array([1] * 6, pa.timestamp("us", "UTC")),
        "bo": pa.array([True, None] * 3),
    }
    yield pa.record_batch(plain)
    words = pa.array(["aa", "bb"] * 3).dictionary_encode()
    yield pa.record_batch({"s": words, "b": pa.array(["longer than twelve characters"] * 6, pa.string_view())})
    yield pa.record_batch(
        {
            "id": pa.array([1] * 6, pa.uint64()),
            "s": pa.array(["a"] * 6, pa.large_string()),
            "b": pa.array([b"ab"] * 6, pa.binary(2)),
            "l": pa.array([[1], [2, 3]] * 3, pa.large_list(pa.int32())),
            "m": pa.array([[("k", "v")]] * 6, pa.map_(pa.string(), pa.large_string())),
            "d": pa.array([Decimal("1.5")] * 6, pa.decimal256(40, 1)),
            "x": pa.array([1] * 6, pa.float32()),
        }
    )
    yield pa.record_batch(
        {
            "l": pa.array([[1, 2]] * 6, pa.list_(pa.int64(), 2)),
            "st": pa.StructArray.from_arrays([pa.array([1] * 6), words], ["a", "t"]),
            "x": pa.array([Decimal("1.5")] * 6),
            "bo": pa.nulls(6),
            "id": pa.RunEndEncodedArray.from_arrays(pa.array([2, 6], pa.int32()), pa.array([1, 2])),
        }
    )


def encode(batch: pa.RecordBatch, codec: str | None, as_file: bool) -> bytes:
    sink = pa.BufferOutputStream()
    new = pa.ipc.new_file if as_file else pa.ipc.new_stream
    with new(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as to:
        to.write_batch(batch)
        to.write_batch(batch.slice(1, 3))
    return sink.getvalue().to_pybytes()


def twist(body: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(body))
    way = dice.random()
    if way < 0.35:
        body[at] = dice.randrange(256)
    elif way < 0.75:
        width = dice.choice((4, 8))
        at -= at % width
        body[at : at + width] = (dice.choice(INTEGERS) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    elif way < 0.85:
        body[at] ^= 1 << dice.randrange(8)
    elif way < 0.93:
        other = dice.randrange(len(body))
        body[at : at + 8] = body[other : other + 8]
    else:
        del body[at : at + dice.randrange(1, 20)]


def main(count: int) -> None:
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    dice = random.Random(17)
    seeds = [
        encode(batch, codec, file) for batch in batches() for codec in (None, "lz4", "zstd") for file in (False, True)
    ]
    decoder, good = ArrowDecoder(FIELDS), 0
    for _ in range(count):
        body = bytearray(dice.choice(seeds))
        for _ in range(dice.choice((1, 1, 1, 2, 3, 6))):
            twist(body, dice)
        found = decoder.decode(pa.array([bytes(body)], pa.binary()))
        for column in found.columns:
            column.validate(full=True)
        good += not found.bad
    print(f"{count} bodies, {good} of them good")


if __name__ == "__main__":
    main(int(sys.argv[1]))
