"""Scans of the log: many records at once, with the same result as one by one."""

from __future__ import annotations

import random

import pytest

from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.store.log.record_scan import Stop, walk

HOST = pack_host(("127.0.0.1", 1))
MAGIC = MAGIC_V1.to_bytes(4, "big")


def run_of(rng: random.Random, size: int, *, odd: bool, bodies: tuple[int, ...] = (0, 10, 200)) -> bytes:
    """Records one after another, at least ``size`` bytes; ``odd``: v2 topics and magics in bodies among them."""
    parts: list[bytes] = []
    at = 0
    while at < size:
        body = rng.randbytes(rng.choice(bodies))
        if odd and rng.random() < 0.02:
            body = MAGIC + body + MAGIC
        topic = b"t" * (200 if odd and rng.random() < 0.02 else 5)
        record = encode_record(
            topic,
            0,
            body,
            b"TAGS\1a",
            queue_offset=len(parts),
            physical_offset=at,
            born_timestamp=1,
            born_host=HOST,
            store_timestamp=2,
            store_host=HOST,
        )
        parts.append(record)
        at += len(record)
    return b"".join(parts)


def one_by_one(data: bytes, room: int) -> tuple[list[int], int, Stop]:
    starts: list[int] = []
    at = 0
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        magic = int.from_bytes(data[at + 4 : at + 8], "big")
        if magic == MAGIC_BLANK:
            return starts, at, Stop.BLANK if size == room - at else Stop.BAD
        if magic == 0 and size == 0:
            return starts, at, Stop.END
        if magic not in (MAGIC_V1, MAGIC_V2) or not 91 <= size <= room - at:
            return starts, at, Stop.BAD
        if at + size > len(data):
            break
        starts.append(at)
        at += size
    return starts, at, Stop.LIMIT


@pytest.mark.parametrize("seed", [*range(20), *range(40, 46), *range(50, 56)])
def test_all_kinds_of_scans_find_the_same(seed: int) -> None:
    rng = random.Random(seed)
    bodies = (0, 10, 200) if seed < 40 else (200,) if seed < 50 else (600,)  # of one size: rows of a matrix
    data = bytearray(run_of(rng, 80_000, odd=seed % 4 != 0, bodies=bodies))
    for _ in range(rng.choice((0, 0, 1, 3))):
        at = rng.randrange(len(data))
        kind = rng.randrange(3)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + 50] = bytes(len(data[at : at + 50]))
        else:
            data[at : at + 4] = MAGIC[: len(data[at : at + 4])]
    if rng.random() < 0.3:
        del data[rng.randrange(len(data)) :]
    if rng.random() < 0.3:
        data += bytes(100)
    raw = bytes(data)
    starts, at, stop, _ = walk(raw, len(raw) + 1_000)
    assert (starts.tolist(), at, stop) == one_by_one(raw, len(raw) + 1_000), f"seed {seed}"
