"""Random values of every column type, awkward ones among them, and their comparison."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from struct import calcsize, unpack
from typing import Any

import pyarrow as pa

from spark_rocket.datasource.bodies.rendering import variant_text
from spark_rocket.datasource.column_types import TIMESTAMP, TIMESTAMP_NTZ, is_variant

SCALARS: list[pa.DataType] = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.date32(),
    TIMESTAMP, TIMESTAMP_NTZ, pa.decimal128(10, 2), pa.decimal128(38, 0), pa.decimal128(38, 18), pa.decimal128(38, 38),
]  # fmt: skip
ALPHABET = "aZ09 \t\n\r\\\"',;:/{}[]#\0\x01\x1f\x7fé€😀\u2028\u00a0\ufeff"
TEXTS = ["1e5", "-0", "2026-01-31 12:00:00", "true", "0xFF", "+5", " 5", "Infinity", '{"a":1}', "[]"]
NAMES = ["a", "A b", 'q"', "back\\slash", "é", "n\n", "0", "dot.ted"]


def scalar(kind: pa.DataType, rng: random.Random) -> Any:
    """A value of a type; dates and times as numbers, so that they can be of any year."""
    types = pa.types
    if types.is_boolean(kind):
        return rng.random() < 0.5
    if types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return rng.choice([0, -1, bound - 1, -bound, rng.randrange(-bound, bound), rng.randrange(-100, 100)])
    if types.is_floating(kind):
        form = "<f" if types.is_float32(kind) else "<d"
        odd = rng.choice(
            [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e10, 1e-7, 123456.75, 0.1, 1e7, 5e-324]
        )
        (any_bits,) = unpack(form, rng.randbytes(calcsize(form)))
        return rng.choice([odd, any_bits, float(rng.randrange(-1000, 1000))])
    if types.is_decimal(kind):
        digits = rng.randrange(kind.precision + 1)
        number = rng.choice([rng.randrange(10**digits), 10**kind.precision - 1, 0, 10**digits])
        number = min(number, 10**kind.precision - 1) * rng.choice([1, -1])
        return Decimal((int(number < 0), Decimal(abs(number)).as_tuple().digits, -kind.scale))
    if types.is_date(kind):
        return rng.choice([0, -719_528, 2_932_896, 2_932_897, -719_529, rng.randrange(-60_000_000, 60_000_000), 20_484])
    if types.is_timestamp(kind):
        far = rng.randrange(-(1 << 61), 1 << 61)
        return rng.choice(
            [0, -1, 1769860800_123456, 253402318799_000000, -62167219200_000001, far, far // 10**4 * 1000]
        )
    text = "".join(rng.choice(ALPHABET) for _ in range(rng.randrange(9)))
    return rng.choice([text, text, "", "null", "NaN", " x ", rng.choice(TEXTS)])


def value(kind: pa.DataType, rng: random.Random, nulls: float = 0.15) -> Any:
    """A value of any type, or null."""
    if rng.random() < nulls:
        return None
    if pa.types.is_struct(kind):
        return {item.name: value(item.type, rng) for item in kind}
    if pa.types.is_list(kind):
        return [value(kind.value_type, rng) for _ in range(rng.randrange(4))]
    if pa.types.is_map(kind):
        keys = {repr(key): key for key in (value(kind.key_type, rng, 0) for _ in range(rng.randrange(4)))}
        return [(key, value(kind.item_type, rng)) for key in keys.values()]
    if pa.types.is_binary(kind):
        return rng.randbytes(rng.randrange(6))
    return scalar(kind, rng)


def plain(array: pa.Array) -> list[Any]:
    """Values that compare by what they mean: times of any year as numbers, NaN as equal, variants as JSON."""
    kind, types = array.type, pa.types
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if is_variant(kind):
        return [None if one is None else strict(variant_text(one)) for one in array.to_pylist()]
    if types.is_struct(kind):
        members = {item.name: plain(array.field(at)) for at, item in enumerate(kind)}
        valid = array.is_valid().to_pylist()
        return [{name: some[at] for name, some in members.items()} if valid[at] else None for at in range(len(array))]
    if types.is_list(kind) or types.is_map(kind):
        parts = [plain(array.keys), plain(array.items)] if types.is_map(kind) else [plain(array.values)]
        edges, valid = array.offsets.to_pylist(), array.is_valid().to_pylist()
        whole = [*zip(*parts, strict=True)] if types.is_map(kind) else parts[0]
        return [whole[edges[at] : edges[at + 1]] if valid[at] else None for at in range(len(array))]
    if types.is_date(kind) or types.is_timestamp(kind):
        return array.cast(pa.int32() if types.is_date(kind) else pa.int64()).to_pylist()
    if types.is_floating(kind):
        return [None if one is None else repr(one) for one in array.to_pylist()]
    return array.to_pylist()


def strict(text: str | bytes) -> Any:
    """Parse strict JSON: no NaN, no name twice; numbers keep their digits."""

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), "a name twice"
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, parse_float=Decimal, parse_int=Decimal, object_pairs_hook=members)
