"""Uniform JSON bodies: the fast path decodes the same values as the parser and the general path."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.datasource.bodies.json_reader import JsonDecoder
from spark_rocket.datasource.bodies.json_uniform import UniformDecoder

FIELDS = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("price", pa.float64()),
        ("ratio", pa.float32()),
        ("ok", pa.bool_()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("absent", pa.string()),
    ]
)
USUAL = {
    "id": "17",
    "small": "0",
    "price": "0.25",
    "ratio": "-1e3",
    "ok": "true",
    "name": '"Köln"',
    "at": '"2026-01-31T20:00:00.123Z"',
    "local": '"2026-01-31 20:00:00"',
    "day": '"2026-01-31"',
}
VALUES = {
    "id": "12345678 -100000000 9999999999999999 0 -0 -1 9223372036854775807 9223372036854775808 -9223372036854775808 "
    '01 -01 0x10 1.0 1e3 +1 null nul true "1" [1] {} --1 1- 1_0 ٣ - 1,2 1:2 "',
    "small": "127 -128 128 -129",
    "price": "-12.50 9007199254740993 1 -0 -0.0 0.1e-7 1E5 1e+5 1e400 1.5e-400 .5 5. -.5 1.e5 1e.5 00.5 0e1 0E1 0. - "
    "NaN Infinity Inf -Infinity 0e400 -1e400 nan 1e5.3 0x1p3 1f 1d 1e 1e+ 1+1 +1 -e5 null",
    "ratio": "0.1 3.4e39 16777217 1e-50 null",
    "ok": 'false null True truer 1 "true" fals',
    "name": '"" "a\\u00e9" "a\\"b" "\\\\" null 12 "\x7f" "\t" "," ":" "{}" \'\' "a","name":"b" "a","b":"c" "\u2028"',
    "at": '"2026-01-31T20:00:00Z" "2026-01-31T20:00Z" "2026-01-31" "2026-01-31T20:00:00+02:00" "" 7 "Z" "9999-01-01Z" '
    '"2026-01-31T20:00:00.1234567Z" "2026-13-31T20:00:00Z" "0000-01-01T00:00:00Z" "1600-02-29T00:00:00.5Z"',
    "local": '"2026-01-31T20:00:00" "2026-01-31T20:00:00Z" "2026-01-31T20:00:00+02" null "" "2026-01-31"',
    "day": '"2026-02-30" "1969-12-31" "2026-1-1" "" 5',
}


def body(values: dict[str, str], comma: str = ",", colon: str = ":") -> bytes:
    return ("{" + comma.join(f'"{name}"{colon}{value}' for name, value in values.items()) + "}").encode()


USUAL_BODY = body(USUAL)


def shown(columns: list[pa.Array]) -> list[Any]:
    """To compare: NaN is not equal to itself, and -0.0 is to 0.0; not all times are Python's."""
    plain = [column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in columns]
    return [[repr(value) for value in column.to_pylist()] for column in plain]


def check(*bodies: bytes, fields: pa.Schema = FIELDS) -> bool:
    """Whether a batch of these bodies, repeated, is decoded as uniform. Then each row equals its row alone."""
    times = -(-512 // len(bodies))
    found = UniformDecoder(fields).decode(pa.array([b"?", *bodies * times, b"?"], pa.binary()).slice(1, 512))
    if found is None:
        return False
    alone = JsonDecoder(fields).decode(pa.array(bodies, pa.binary()))
    assert not alone.bad
    for column, item in zip(found, fields, strict=True):
        column.validate(full=True)
        assert column.type == item.type
    assert shown([column.slice(0, len(bodies)) for column in found]) == shown(alone.columns)
    return True


@pytest.mark.parametrize("colon", [":", ": ", ":   "])
@pytest.mark.parametrize("comma", [",", ", ", ",    "])
def test_uniform_bodies(comma: str, colon: str) -> None:
    bodies = [body(USUAL | {"id": str(10**n), "name": f'"{"n" * n}"'}, comma, colon) for n in range(9)]
    assert check(*bodies)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in VALUES.items() for value in ["", " ", *values.split(" ")]]
)
def test_an_odd_value(name: str, value: str) -> None:
    """In all bodies, the first, or a later one."""
    odd = body(USUAL | {name: value})
    check(odd)
    check(USUAL_BODY, odd)
    check(odd, USUAL_BODY)


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"{}",
        b"[]",
        USUAL_BODY + b" ",
        USUAL_BODY * 2,
        USUAL_BODY[:-1],
        USUAL_BODY[1:],
        body(USUAL, ", "),
        body(USUAL, ",", " :"),
        body(dict(reversed(USUAL.items()))),
        body({**USUAL, "extra": '"x"'}),
        body({name: value for name, value in USUAL.items() if name != "day"}),
        USUAL_BODY.replace(b"id", b"it"),
        USUAL_BODY.replace(b'"ratio"', b'"price"'),
        USUAL_BODY.replace("Köln".encode(), b"K\xf6ln"),
        USUAL_BODY.replace(b'"id":', b'"id":\n'),
        USUAL_BODY.replace(b"{", b"{ "),
        USUAL_BODY.replace(b'"name"', b'"na"me'),
        b'"' * 34,
    ],
)
def test_a_body_with_another_layout(odd: bytes) -> None:
    check(odd)
    for bodies in ((USUAL_BODY, odd), (odd, USUAL_BODY), (USUAL_BODY, odd, USUAL_BODY)):
        assert not check(*bodies)


def test_a_task_with_different_bodies_stops_trying() -> None:
    decoder = UniformDecoder(FIELDS)
    usual, other = (pa.array([one] * 512, pa.binary()) for one in (USUAL_BODY, b"{" + USUAL_BODY))
    assert [decoder.decode(bodies) is None for bodies in (other, other, usual)] == [True, True, False]
    assert [decoder.decode(bodies) is None for bodies in (other, other, other, usual)] == [True] * 4


PIECES = st.sampled_from([*(value for values in VALUES.values() for value in values.split(" ")), '"x"', "1", '"":'])


@settings(max_examples=300)
@given(
    st.lists(st.fixed_dictionaries(dict.fromkeys(("id", "price", "name"), PIECES)), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from(b'",:{}\\1e- n\n\xff')), max_size=3),
)
def test_any_bodies(rows: list[dict[str, str]], changes: list[tuple[int, int]]) -> None:
    """Values of invalid bodies never get into other columns or rows."""
    bodies = [bytearray(body(USUAL | row)) for row in rows]
    for place, character in changes:
        one = bodies[place % len(bodies)]
        one[place % len(one)] = character
    check(*map(bytes, bodies))


def test_a_batch_with_one_bad_body_uses_the_general_path() -> None:
    bodies = [json.dumps({"id": number, "name": f"n{number}"}).encode() for number in range(1300)]
    fields = pa.schema([FIELDS.field("id"), FIELDS.field("name")])
    bodies[700] = b'{"id": "x"}'
    decoded = JsonDecoder(fields).decode(pa.array(bodies, pa.binary()))
    assert list(decoded.bad) == [700]
    assert decoded.columns[0].to_pylist() == [None if number == 700 else number for number in range(1300)]
