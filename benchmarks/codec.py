"""Decode records to Arrow columns and encode rows to batch bodies on one core; the ceiling is a copy of the bytes.

Rows of 128 and 1,024 bytes are equal but for their bytes, the exception in practice. ``lines`` are log lines of 40 to
900 bytes with keys and tags of different lengths.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from benchmarks import frames
from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.protocol.record.encoder import encode_batch, encode_properties_columns
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.record.record import encode_record

ROWS, ROUNDS = 10_000, 20


def _rate(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    for _ in range(ROUNDS):
        work()
    return ROWS * ROUNDS / (time.perf_counter() - begun)


def _copy(data: bytes) -> float:
    source = np.frombuffer(data, np.uint8)
    return _rate(source.copy)


def rows(kind: str) -> list[tuple[bytes, dict[str, str]]]:
    """Return bodies and properties."""
    if kind != "lines":
        return [(frames.payload(int(kind), row), frames.properties_of(row)) for row in range(ROWS)]
    rng = random.Random(7)

    def line() -> tuple[bytes, dict[str, str]]:
        properties = {
            "TAGS": rng.choice(("info", "warning", "error")),
            "KEYS": str(rng.getrandbits(rng.randint(8, 60))),
        }
        return rng.randbytes(rng.randint(40, 900)), properties | {"UNIQ_KEY": f"{rng.getrandbits(128):032X}"}

    return [line() for _ in range(ROWS)]


def records(kind: str) -> bytes:
    """Return the body of a pull response."""
    host = pack_host(("127.0.0.1", 10911))
    return b"".join(
        encode_record(
            b"bench",
            row % 4,
            body,
            encode_properties(properties),
            queue_offset=row,
            physical_offset=row * 400,
            born_timestamp=1_700_000_000_000 + row,
            born_host=host,
            store_timestamp=1_700_000_000_000 + row,
            store_host=host,
        )
        for row, (body, properties) in enumerate(rows(kind))
    )


@benchmark(
    "codec.decode.128", "codec.decode.1024", "codec.decode.lines", unit="records/s", ceiling="a copy of the same bytes"
)
def decode(_: Lab, size: str) -> Pair:
    data = records(size)
    return Pair(lambda: _rate(lambda: decode_records(data, broker_name="b")), lambda: _copy(data))


@benchmark(
    "codec.encode.128", "codec.encode.1024", "codec.encode.lines", unit="records/s", ceiling="a copy of the same bytes"
)
def encode(_: Lab, size: str) -> Pair:
    made = rows(size)
    bodies = pa.array([body for body, _ in made], pa.binary())
    columns: dict[str, pa.Array | str | None] = {
        name: pa.array([properties[name] for _, properties in made], pa.string()) for name in made[0][1]
    }

    def work() -> bytes:
        return bytes(encode_batch(bodies, encode_properties_columns(ROWS, columns))[0])

    data = work()
    return Pair(
        lambda: _rate(lambda: encode_batch(bodies, encode_properties_columns(ROWS, columns))), lambda: _copy(data)
    )
