"""Variants as JSON: every digit, and never anything that is not JSON."""

from __future__ import annotations

import json
import math
import struct
from decimal import Decimal
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.variant_utils import VariantUtils

from spark_rocket.datasource.bodies.rendering import variant_text

PLACEHOLDER = 1e300
SPECIAL = {math.nan: "NaN", math.inf: "Infinity", -math.inf: "-Infinity"}


def variant(text: str, double: float = PLACEHOLDER) -> dict[str, bytes]:
    """Parse JSON, with ``double`` in place of 1e300: JSON has no NaN."""
    value, metadata = VariantUtils.parse_json(text)
    return {
        "value": bytes(value).replace(struct.pack("<d", PLACEHOLDER), struct.pack("<d", double)),
        "metadata": bytes(metadata),
    }


def strict(text: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse, parse_float=Decimal, parse_int=Decimal)


@pytest.mark.parametrize("double", SPECIAL)
@pytest.mark.parametrize("shape", ['{"v":1e300}', "[1e300]", "1e300", r'{"nan":"inf -inf \" nan","v":[{"inf":1e300}]}'])
def test_special_doubles_are_strings(double: float, shape: str) -> None:
    found = strict(variant_text(variant(shape, double)))
    assert found == strict(shape.replace("1e300", f'"{SPECIAL[double]}"'))


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38))
def test_decimals_keep_all_digits(unscaled: int, scale: int) -> None:
    text = f"{Decimal((int(unscaled < 0), Decimal(abs(unscaled)).as_tuple().digits, -scale)):f}"
    assert strict(variant_text(variant(f'{{"price":{text}}}')))["price"] == Decimal(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(-(2**63), 2**63 - 1),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_comes_back(value: Any) -> None:
    assert strict(variant_text(variant(json.dumps(value)))) == strict(json.dumps(value))


def test_scalars_have_the_text_of_to_json() -> None:
    """Each value as Spark's ``to_json`` writes it, apart from the exponents of doubles."""
    table = {
        struct.pack("<Bf", 14 << 2, 1.1): "1.1",
        struct.pack("<Bf", 14 << 2, -math.inf): '"-Infinity"',
        struct.pack("<Bd", 7 << 2, -0.0): "-0.0",
        struct.pack("<Bd", 7 << 2, 100): "100.0",
        struct.pack("<BBi", 8 << 2, 2, 150): "1.5",
        struct.pack("<BBi", 8 << 2, 0, 100): "100",
        struct.pack("<BBi", 8 << 2, 3, 0): "0",
        struct.pack("<Bi", 11 << 2, 20484): '"2026-01-31"',
        struct.pack("<Bi", 11 << 2, 3672909): '"+12026-01-31"',
        struct.pack("<Bib", 15 << 2, 2, 0) + b"\xff": '"AP8="',
    }
    for kind, zone in {12: "+00:00", 13: ""}.items():
        table[struct.pack("<Bq", kind << 2, 1769860800_000000)] = f'"2026-01-31 12:00:00{zone}"'
        table[struct.pack("<Bq", kind << 2, 1769860800_120000)] = f'"2026-01-31 12:00:00.12{zone}"'
    empty = bytes(VariantUtils.parse_json("1")[1])
    assert {value: variant_text({"value": value, "metadata": empty}) for value in table} == table


@given(st.binary(max_size=40), st.binary(max_size=20))
def test_any_bytes_are_json_or_malformed(value: bytes, metadata: bytes) -> None:
    try:
        text = variant_text({"value": value, "metadata": metadata})
    except (ValueError, RecursionError):
        return
    strict(text)
