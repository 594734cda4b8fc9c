"""Decimals in JSON and CSV have the written value."""

from __future__ import annotations

import json
import re
from decimal import ROUND_HALF_UP, Decimal, localcontext

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as steady
from hypothesis import strategies as st

from spark_rocket.datasource.bodies.decoding import Decoder
from spark_rocket.datasource.bodies.json_reader import JsonDecoder
from tests.datasource.body_formats.formats import (
    bodies,
    check_alone,
    csv_decoder,
)

# Arrow's parsers scale these past the last bit of a decimal128, or by a power of ten that their table lacks.
DECIMAL_TEXTS = [
    "0", "-0.00", "1.005", "-1.555", "99999999.994", "99999999.995", "123456789.12", "1234567890", "1" * 38, "1" * 39,
    "9" * 38 + ".5", "340282366920938463463374607431768211457", "-340282366920938463463374607431768211457.5", "1E+2",
    "1e30", "1e40", "1e-50", "0e500", "443517836968132.59779509136723094976053e-90", "1" * 70, "0." + "0" * 120 + "1",
    "1" * 76 + "e-77", "1.5e-100", "1e99999999",
]  # fmt: skip


def exact(text: str, kind: pa.DataType) -> Decimal | None:
    """Make a decimal like Spark: rounded half up; None if the number does not fit."""
    with localcontext(prec=400, rounding=ROUND_HALF_UP):
        number = Decimal(text)
        if number.adjusted() > 400:
            return None if number else Decimal(0)
        rounded = number.quantize(Decimal(1).scaleb(-kind.scale))
        return rounded if abs(rounded) < Decimal(10) ** (kind.precision - kind.scale) else None


DECIMAL_TYPES = [*(pa.decimal128(38, scale) for scale in (0, 2, 18, 38)), pa.decimal128(10, 2)]


@pytest.mark.parametrize("kind", DECIMAL_TYPES, ids=str)
@pytest.mark.parametrize("text", DECIMAL_TEXTS)
def test_decimals_have_the_written_value(text: str, kind: pa.DataType) -> None:
    """Alone and among others: in JSON as a number, a string, and within lists and structs, and in CSV."""
    wanted = exact(text, kind)
    fields = pa.schema([("de", kind), ("s", pa.string())])
    nested = pa.schema([("de", pa.struct([("x", pa.list_(pa.field("element", kind)))])), ("s", pa.string())])
    # An escaped letter hides the exponent from code that searches the bytes.
    hidden = text.replace("e", r"\u0065")
    made: list[tuple[Decoder, pa.Schema, bytes, bytes]] = [
        (JsonDecoder(fields), fields, f'{{"de":{text},"s":"a"}}'.encode(), b'{"de":0.1,"s":"b"}'),
        (JsonDecoder(fields), fields, f'{{"de": "{hidden}","s":"a"}}'.encode(), b'{"de":0.1,"s":"b"}'),
        (JsonDecoder(nested), nested, f'{{"de":{{"x":[0,{text}]}},"s":"a"}}'.encode(), b'{"de":{"x":[]},"s":"b"}'),
        (csv_decoder(fields), fields, f"{text},a".encode(), b",b"),
    ]
    for decoder_, schema, body, other in made:
        for values in ([body], [other, body, other], [body, b"", other, b"?"]):
            found = check_alone(decoder_, schema, values)
            at = values.index(body)
            value = found.columns[0].to_pylist()[at]
            value = value["x"][1] if isinstance(value, dict) else value
            assert (at in found.bad) == (wanted is None), found.bad
            assert value == wanted
            assert wanted is not None or re.search("within decimal128|is not a decimal number", found.bad[at])


@pytest.mark.parametrize("text", ["1_000", "1,000", "NaN", "Infinity", "0x10", "1.5d", "--1", "1.5.5", "٣", "+", "."])
def test_invalid_decimals(text: str) -> None:
    fields = pa.schema([("de", pa.decimal128(10, 2)), ("s", pa.string())])
    found = JsonDecoder(fields).decode(bodies(json.dumps({"de": text}).encode()))
    assert "is not a decimal number" in found.bad[0]
    found = csv_decoder(fields, ";").decode(bodies(f"{text};a".encode()))
    assert "is not a decimal number" in found.bad[0]


@steady(max_examples=100)
@given(
    st.lists(
        st.tuples(st.decimals(allow_nan=False, allow_infinity=False), st.integers(-90, 90)).map(
            lambda pair: str(pair[0].scaleb(pair[1]))
        ),
        max_size=4,
    )
)
def test_any_decimals(texts: list[str]) -> None:
    kind = pa.decimal128(38, 18)
    fields = pa.schema([("de", kind)])
    for decoder_, values in (
        (JsonDecoder(fields), [f'{{"de":{text}}}'.encode() for text in texts]),
        (csv_decoder(fields), [text.encode() for text in texts]),
    ):
        found = check_alone(decoder_, fields, values)
        assert found.columns[0].to_pylist() == [exact(text, kind) for text in texts]
