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
