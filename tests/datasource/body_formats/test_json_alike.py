"""JSON bodies that are written alike: what is made of them without a parser is what the parser makes of them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_rocket.datasource.bodies.decoding import BAD
from spark_rocket.datasource.bodies.json_alike import AlikeDecoder
from spark_rocket.datasource.bodies.json_reader import JsonDecoder

FIELDS = pa.schema(
    [
        ("id", pa.int64()),
        ("qty", pa.int32()),
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
USUAL: dict[str, str] = {
    "id": "17",
    "qty": "-3",
    "small": "0",
    "price": "0.25",
    "ratio": "-1e3",
    "ok": "true",
    "name": '"Köln"',
    "at": '"2026-01-31T20:00:00.123Z"',
    "local": '"2026-01-31 20:00:00"',
    "day": '"2026-01-31"',
    "other": "1.5",
    "more": '"?"',
}


def body(values: dict[str, str], comma: str = ",", colon: str = ":") -> bytes:
    return ("{" + comma.join(f'"{name}"{colon}{value}' for name, value in values.items()) + "}").encode()


def otherwise(bodies: list[bytes], fields: pa.Schema) -> list[pa.Array]:
    """What is made of them by the parser, or by what decodes those that it refuses."""
    decoder, array = JsonDecoder(fields), pa.array(bodies, pa.binary())
    try:
        columns: list[pa.Array] = decoder._parser(array)(0, len(bodies))
    except BAD:
        decoded = decoder._one_by_one(array)
        assert not decoded.bad
        return decoded.columns
    return columns


def shown(column: pa.Array) -> list[str]:
    """To compare: NaN is not equal to itself, and -0.0 is to 0.0; not all times are Python's."""
    plain = column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column
    return list(map(repr, plain.to_pylist()))


def check(bodies: list[bytes], fields: pa.Schema = FIELDS) -> int:
    """How many were decoded; all as they are otherwise."""
    found = AlikeDecoder(fields).decode(pa.array([b"?", *bodies, b"?"], pa.binary()).slice(1, len(bodies)))
    if found is None:
        return 0
    rows, columns = found
    chosen = bodies if rows is None else [bodies[row] for row in rows]
    for column, other, item in zip(columns, otherwise(chosen, fields), fields, strict=True):
        column.validate(full=True)
        assert column.type == item.type
        assert shown(column) == shown(other), item
    return len(chosen)


@pytest.mark.parametrize("count", [1, 2, 9])
@pytest.mark.parametrize(("comma", "colon"), [(",", ":"), (", ", ": "), ("   ,  ", "   :   ")])
def test_bodies_that_are_alike(count: int, comma: str, colon: str) -> None:
    bodies = [body(USUAL | {"id": str(10**n), "name": f'"{"n" * n}"'}, comma, colon) for n in range(count)]
    assert check(bodies) == count


VALUES: dict[str, str] = {
    "id": "12345678 -100000000 9999999999999999 12345678901234567 "
    "0 -0 -1 9223372036854775807 -9223372036854775808 9223372036854775808 01 -01 0x10 1.0 1e3 +1 null nul true "
    '"1" [1] {} --1 1- 1_0 ٣ -',
    "small": "127 -128 128 -129",
    "price": "-12.50 0.1234567 0.12345678 9007199254740993 12345678.1234567 1234567890.12345 123456789012345.5 "
    "1 -0 -0.0 0.1e-7 1E5 1e+5 1e400 1.5e-400 .5 5. -.5 1.e5 1e.5 00.5 0e1 0E1 0. - NaN Infinity Inf "
    "-Infinity 0e400 -1e400 nan 1e5.3 0x1p3 1f 1d null",
    "ratio": "0.1 3.4e39 16777217 1e-50 null",
    "ok": 'false null True truer 1 "true" fals',
    "name": '"" "a\\u00e9" "a\\"b" "\\\\" null 12 "\x7f" "\t" "," ":" "{}" \'\' "a","name":"b" "\u2028" '
    f'"{"x" * 100}"',
    "at": '"2026-01-31T20:00:00Z" "2026-01-31T20:00Z" "2026-01-31" "2026-01-31T20:00:00+02:00" "" 7 "Z" "9999-01-01Z" '
    '"2026-01-31T20:00:00.1234567Z" "2026-13-31T20:00:00Z" "0000-01-01T00:00:00Z" "1600-02-29T00:00:00.5Z"',
    "local": '"2026-01-31T20:00:00" "2026-01-31T20:00:00Z" "2026-01-31T20:00:00+02" null "" "2026-01-31"',
    "day": '"2026-02-30" "1969-12-31" "2026-1-1" "" 5',
    "other": 'null [1,2] {} true 1x 1 "?"',
    "more": '"" 1 null "\0"',
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in VALUES.items() for value in ["", " ", *values.split(" ")]]
)
def test_an_odd_value(name: str, value: str) -> None:
    """Of one body, or of all."""
    bodies = [body(USUAL | {"id": str(number)}) for number in range(8)]
    odd = body(USUAL | {name: value})
    check([odd] * 3)
    check([*bodies, odd])
    check([odd, *bodies])


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"{}",
        b"[]",
        body(USUAL) + b" ",
        body(USUAL) + body(USUAL),
        body(USUAL)[:-1],
        body(USUAL)[1:],
        body(USUAL, ", "),
        body(dict(reversed(USUAL.items()))),
        body({**USUAL, "extra": '"x"'}),
        body({name: value for name, value in USUAL.items() if name != "more"}),
        body(USUAL).replace(b"id", b"it"),
        body(USUAL).replace(b'"other"', b'"price"'),
        body(USUAL).replace("Köln".encode(), b"K\xf6ln"),
        body(USUAL).replace(b"?", b"\xff"),
        body(USUAL).replace(b'"id":', b'"id":\n'),
        body(USUAL).replace(b"{", b"{ "),
        body(USUAL).replace(b'"name"', b'"na"me'),
        b'"' * 34,
    ],
)
@pytest.mark.parametrize("place", [0, 4, -1])
def test_a_body_that_is_not_alike(odd: bytes, place: int) -> None:
    bodies = [body(USUAL | {"id": str(number)}) for number in range(9)]
    bodies[place] = odd
    check(bodies)
    check([odd] * 9)


def test_a_few_that_differ_are_left_out() -> None:
    bodies = [body(USUAL | {"id": str(number)}) for number in range(100)]
    for place in (0, 50, 99):
        bodies[place] = body(USUAL | {"name": "null"})
    assert check(bodies) == 97
    assert check([body(USUAL | {"name": '"\\n"'}), *bodies]) == 97


def test_much_white_space_and_long_names_are_left_to_the_parser() -> None:
    for bodies in ([body(USUAL, ",", ":" + " " * 20)], [body(USUAL, "," + " " * 300)], [body({"n" * 300: "1"})]):
        assert check(bodies * 3) == 0
    assert check([body({"n" * 230: "1"} | USUAL)] * 3) == 3


def test_none_of_the_members_is_a_column() -> None:
    assert check([b'{"a":"1"}'] * 5, pa.schema([("id", pa.int64())])) == 5
    assert check([b'{"id":1}'] * 5, pa.schema([("id", pa.int64())])) == 5
    assert check([b'{"a":%s,"id":1}' % value for value in (b"true", b"false", b"null")]) == 3
    for odd in (b"tru", b"True", b"5", b"truefalse", b'"t"'):
        assert check([b'{"a":true,"id":1}', b'{"a":%s,"id":1}' % odd, b'{"a":true,"id":1}']) < 3
    assert AlikeDecoder(pa.schema([("id", pa.list_(pa.int64()))])).decode(pa.array([b'{"id":1}'])) is None


def test_a_task_whose_bodies_are_not_alike_gives_up() -> None:
    decoder = AlikeDecoder(FIELDS)
    usual = pa.array([body(USUAL)] * 5, pa.binary())
    other = pa.array([b"{" + body(USUAL)] * 5, pa.binary())
    assert [decoder.decode(bodies) is None for bodies in (other, other, usual)] == [True, True, False]
    assert [decoder.decode(bodies) is None for bodies in (other, other, other, usual)] == [True] * 4


@pytest.mark.parametrize("place", [0, 700, 1299])
@pytest.mark.parametrize("odd", [{"name": "null"}, {"id": "x"}, {"id": '"7"'}, {"small": "1000"}, {"price": "null"}])
def test_decoded_rows_keep_their_places(place: int, odd: dict[str, str]) -> None:
    values = [USUAL | {"id": str(number), "name": f'"n{number}"'} for number in range(1300)]
    values[place] = values[place] | odd
    decoded = JsonDecoder(FIELDS).decode(pa.array([body(one) for one in values], pa.binary()))
    ids, names = (decoded.columns[FIELDS.get_field_index(name)].to_pylist() for name in ("id", "name"))
    expected = list(range(1300))
    fine = [number for number in expected if number != place]
    assert [ids[number] for number in fine] == fine
    assert [names[number] for number in fine] == [f"n{number}" for number in fine]
    assert list(decoded.bad) == ([place] if "id" in odd or "small" in odd else [])


texts = st.text(st.characters(codec="utf-8"), max_size=8)
cells: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(-(2**63), 2**63 - 1),
    "price": st.floats(allow_nan=False, allow_infinity=False),
    "ok": st.booleans(),
    "name": texts,
}


@given(st.lists(st.fixed_dictionaries(cells), min_size=1, max_size=8), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_python_writes(rows: list[dict[str, Any]], ascii_only: bool, is_dense: bool) -> None:
    separators = (",", ":") if is_dense else None
    bodies = [json.dumps(row, ensure_ascii=ascii_only, separators=separators).encode() for row in rows]
    check(bodies, pa.schema([item for item in FIELDS if item.name in cells]))
    both = JsonDecoder(FIELDS).decode(pa.array(bodies * 300, pa.binary()))
    assert both.columns[0].to_pylist() == [row["id"] for row in rows] * 300
    assert both.columns[6].to_pylist() == [row["name"] for row in rows] * 300
    assert not both.bad


@given(st.binary(max_size=40), st.integers(0, 200), st.integers(0, 40))
@settings(max_examples=300, deadline=None)
def test_a_body_with_bytes_changed(junk: bytes, at: int, length: int) -> None:
    usual = body(USUAL)
    odd = usual[:at] + junk + usual[at + length :]
    check([usual, odd, usual, usual])
    check([odd] * 3)


@pytest.mark.parametrize(
    "values",
    [
        ['"a"', '"b:"', '"c:d"'],
        ['":"', '""', '"::"'],
        ['"a":"b"', '"x"', "1"],
        ['"a""', '"', '"b"'],
        ['"","name":""', '"x"', '""'],
        ['1,"name":"x"', '"', '""'],
        ['"x" ', '"x"', ' "x"'],
    ],
)
def test_marks_and_colons_that_add_up(values: list[str]) -> None:
    """As many marks, and as many before colons, as if all were alike."""
    for bodies in ([body(USUAL | {"name": value}) for value in values], [body({"name": value}) for value in values]):
        for some in (bodies, bodies[::-1], bodies[1:] + bodies[:1]):
            found = AlikeDecoder(FIELDS).decode(pa.array(some, pa.binary()))
            if found is None:
                continue
            rows, columns = found
            for row, name in enumerate(columns[FIELDS.get_field_index("name")].to_pylist()):
                assert name == json.loads(some[row if rows is None else rows[row]])["name"]
