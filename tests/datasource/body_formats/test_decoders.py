"""Decoders: results of each format, and independence of the rows of a batch."""

from __future__ import annotations

import io
import json
import random
import re
from datetime import UTC as ZONE
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as steady
from hypothesis import strategies as st
from pyspark.sql.variant_utils import VariantUtils

from spark_rocket.datasource.bodies.arrow_bodies import ArrowDecoder, write_stream
from spark_rocket.datasource.bodies.avro import AvroSchema
from spark_rocket.datasource.bodies.csv_reader import CsvDecoder
from spark_rocket.datasource.bodies.decoding import BAD, Decoder, OneByOneDecoder, columns_of
from spark_rocket.datasource.bodies.json_reader import JsonDecoder
from spark_rocket.datasource.bodies.json_values import converter, parse_object
from spark_rocket.datasource.capabilities import arrow_schema
from spark_rocket.datasource.options.bodies import AvroEncoding, BodyFormat, BodySettings
from spark_rocket.datasource.spark_schema import spark_schema
from spark_rocket.errors import OptionError, SchemaError
from tests.datasource.body_formats.formats import (
    UTC,
    avro,
    bodies,
    check_alone,
    columns,
    decoder,
    known_columns,
    list_of,
    map_to,
    protobuf,
    rows_of,
)

ELEMENT = pa.field("element", pa.int32())
FIELDS = pa.schema(
    [
        ("i", pa.int32()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("t", UTC),
        ("n", pa.timestamp("us")),
        ("de", pa.decimal128(10, 2)),
        ("l", pa.list_(ELEMENT)),
        ("st", pa.struct([("x", pa.date32())])),
    ]
)
JSON = JsonDecoder(FIELDS)
INF = float("inf")


def one(body: str | bytes, fields: pa.Schema = FIELDS) -> Any:
    """The values that a JSON body has, or the reason why it is bad."""
    decoded = JsonDecoder(fields).decode(bodies(body if isinstance(body, bytes) else body.encode()))
    (row,) = rows_of(decoded, fields)
    return decoded.bad.get(0) or {name: value for name, value in row.items() if value is not None}


def noon(**more: int) -> datetime:
    return datetime(2026, 1, 31, 12, tzinfo=ZONE).replace(**more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "row"),
    [
        ('{"i": 1, "s": "ö", "b": true, "more": [{}], "f": 1}', {"i": 1, "s": "ö", "b": True, "f": 1.0}),
        ("{}", {}),
        (' {"i":5}\r\n', {"i": 5}),
        ('{\n  "i": 5,\n  "s": "a"\n}', {"i": 5, "s": "a"}),
        ('{"i": 1, "i": 2}', {"i": 2}),
        ('{"I": 1}', {}),
        ('{"s": 1.50}', {"s": "1.50"}),
        ('{"s": {"x": 1.0, "y": [1, null, "z"]}}', {"s": '{"x":1.0,"y":[1,null,"z"]}'}),
        ('{"s": true}', {"s": "true"}),
        ('{"s": {"x": 1, "x": 2.50, "y": [{"z": 1, "z": null}]}}', {"s": '{"x":1,"x":2.50,"y":[{"z":1,"z":null}]}'}),
        ('{"s": [1, {"a": 1, "a": 1}]}', {"s": '[1,{"a":1,"a":1}]'}),
        ('{"s": "a", "s": {"x": 1, "x": 1}}', {"s": '{"x":1,"x":1}'}),
        ('{"f": "NaN", "g": "-Infinity"}', {"f": float("nan"), "g": float("-inf")}),
        ('{"f": -Infinity}', {"f": float("-inf")}),
        ('{"f": -Inf}', {"f": float("-inf")}),
        ('{"f": 1e400}', {"f": float("inf")}),
        ('{"t": "2026-01-31T14:00:00+02:00"}', {"t": noon()}),
        ('{"t": "2026-01-31 12:00:00"}', {"t": noon()}),
        ('{"t": "2026-01-31T12:00:00.1234567Z"}', {"t": noon(microsecond=123456)}),
        ('{"t": "2026-1-31 12:0:5"}', {"t": noon(second=5)}),
        ('{"t": "2026-01-31T120005.5Z"}', {"t": noon(second=5, microsecond=500_000)}),
        ('{"t": "2026-01-31 1200"}', {"t": noon()}),
        ('{"t": 12}', {"t": datetime(1970, 1, 1, 0, 0, 12, tzinfo=ZONE)}),
        ('{"n": "2026-01-31 12:00"}', {"n": noon().replace(tzinfo=None)}),
        ('{"d": "2026-1-3"}', {"d": date(2026, 1, 3)}),
        ('{"d": "2026-01-31T23:00:00Z"}', {"d": date(2026, 1, 31)}),
        ('{"d": "2026-01-31 00:30:00 +02:00"}', {"d": date(2026, 1, 31)}),
        ('{"d": "2026-01-31 23:30:00-02:00"}', {"d": date(2026, 1, 31)}),
        ('{"d": "2026-01-31 UTC"}', {"d": date(2026, 1, 31)}),
        ('{"t": "2026-01-31 14:00:00 +02:00"}', {"t": noon()}),
        ('{"t": "2026-01-31 12:00:00 UTC"}', {"t": noon()}),
        ('{"st": {"x": "1969-12-31"}}', {"st": {"x": date(1969, 12, 31)}}),
        ('{"de": 1.555}', {"de": Decimal("1.56")}),
        ('{"de": "1.5"}', {"de": Decimal("1.50")}),
        ('{"de": 99999999.99}', {"de": Decimal("99999999.99")}),
        ('{"l": [1, null]}', {"l": [1, None]}),
        ('{"st": {}, "l": []}', {"st": {"x": None}, "l": []}),
        ("", "the body is empty"),
        ("null", "the body is null, not an object"),
        ("[{}]", "the body is an array, not an object"),
        ('{"i": 1}{"i": 2}', "unexpected characters after the JSON value"),
        ('{"i": 1} x', "unexpected characters after the JSON value"),
        (b'{"i": 1}\x00', "unexpected characters after the JSON value"),
        ('{"i": 1}}', "unexpected characters after the JSON value"),
        ('{"i": 1},"i": 2', "unexpected characters after the JSON value"),
        ('{"i": ', "Expecting value"),
        ("{'i': 1}", "Expecting property name"),
        (b'{"s": "\xff"}', "can't decode byte 0xff"),
        (b'\xef\xbb\xbf{"i": 1}', "Unexpected UTF-8 BOM|Expecting value"),
        ('{"s": "\\ud800"}', "surrogates not allowed"),
        ('{"s": "a\tb"}', "Invalid control character"),
        ('{"s": "a\nb"}', "Invalid control character"),
        ('{"i": 1.0}', "1.0 is not an integer"),
        ('{"i": "1"}', '"1" is not an integer'),
        ('{"i": 3000000000}', "3000000000 is not within int32"),
        ('{"b": "true"}', '"true" is not true or false'),
        ('{"t": "yesterday"}', '"yesterday" is not a timestamp'),
        ('{"t": "2026-01-31 12:00:00 Europe/Berlin"}', "is not a timestamp"),
        ('{"t": "2026-01-31 12:0."}', "is not a timestamp"),
        ('{"t": "2026-01-31 12:000"}', "is not a timestamp"),
        ('{"t": "2026-01-31 122"}', "is not a timestamp"),
        ('{"t": "2026-01-31 012:00"}', "is not a timestamp"),
        ('{"t": "2026-01-31 124:00"}', "is not a timestamp"),
        ('{"n": "2026-01-31 12200"}', "is not a timestamp without a zone"),
        ('{"t": "300000-01-01"}', "not within the years of timestamps"),
        ('{"n": "2026-01-31T12:00:00Z"}', "is not a timestamp without a zone"),
        ('{"n": "2026-01-31T12:00:00+02:00"}', "is not a timestamp without a zone"),
        ('{"n": "2026-01-31 12:00:00 UTC"}', "is not a timestamp without a zone"),
        ('{"n": 12}', "12 is not a timestamp without a zone"),
        ('{"d": "2026-01-31Z"}', "is not a date"),
        ('{"d": "9999999-01-01"}', "not within the years of dates"),
        ('{"d": "2026-02-30"}', "day is out of range|must be in range"),
        ('{"de": 100000000}', "100000000 is not within decimal"),
        ('{"l": 1}', "1 is not an array"),
        ('{"st": []}', r"\[\] is not an object"),
        ("[" * 5000, "recursion|Expecting"),
    ],
)  # fmt: skip
def test_json(body: str | bytes, row: dict[str, Any] | str) -> None:
    found = one(body)
    if isinstance(row, str):
        assert isinstance(found, str), found
        assert re.search(row, found), found
    else:
        assert not isinstance(found, str), found
        assert found.keys() == row.keys()
        assert all(value == row[name] or str(value) == str(row[name]) == "nan" for name, value in found.items())


def test_json_of_types_that_arrow_does_not_parse() -> None:
    schema = columns(b="binary", m=map_to("int"), v="variant", s="string", e=columns(v="variant"))
    fields = arrow_schema(schema)
    assert one('{"b": "AQI=", "m": {"k": 1, "l": null}, "s": "x"}', fields) == {
        "b": b"\x01\x02", "m": [("k", 1), ("l", None)], "s": "x"}  # fmt: skip
    assert "Incorrect padding" in one('{"b": "AQI"}', fields)
    assert "is not an integer" in one('{"m": {"k": "x"}}', fields)
    assert one('{"m": {"k": 1, "k": 2}}', fields) == {"m": [("k", 2)]}
    assert 'the member "a" more than once' in one('{"v": {"b": [{"a": 1, "c": 1, "a": 2}]}}', fields)
    found = one('{"v": {"a": [1.50]}, "e": {"v": 1}}', fields)
    assert VariantUtils.to_json(found["v"]["value"], found["v"]["metadata"]) == '{"a":[1.50]}'


def test_good_records_among_bad_ones_are_parsed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    good = [json.dumps({"i": number, "s": f"name-{number}"}).encode() for number in range(20_000)]
    bad = {7: b"{", 8: b'{"i": "x"}', 9_999: b"", 15_000: b'{"i": 5000000000}', 19_999: b'{"t": "no"}'}
    mixed = [bad.get(index, body) for index, body in enumerate(good)]
    alone: list[int] = []
    original = JsonDecoder._one_by_one
    monkeypatch.setattr(JsonDecoder, "_one_by_one", lambda self, part: alone.append(len(part)) or original(self, part))
    decoded = JSON.decode(bodies(*mixed))
    assert set(decoded.bad) == set(bad)
    assert decoded.columns[0].to_pylist() == [None if index in bad else index for index in range(20_000)]
    assert sum(alone) < 200


LATIN = '{"i": 7, "zz": "café", "café": 1}'.encode("latin-1")
DEEP = b'{"i": 8, "zz": ' + b"[" * 1500 + b"]" * 1500 + b"}"


@pytest.mark.parametrize("neighbours", [[], [b"{oops"], [b"oops {", b""], [b'{"s":1}'] * 9, [b'{"f": Inf}', b"{"]])
def test_fields_without_a_column_are_ignored(neighbours: list[bytes]) -> None:
    """Arrow's parser ignores it. The other parser must not reject the record, nor accept an invalid column."""
    spoilt = '{"i": 9, "s": "café"}'.encode("latin-1")
    for values in ([LATIN, DEEP, *neighbours, spoilt], [*neighbours, spoilt, LATIN, b'{"i": 1}', DEEP]):
        found = check_alone(JSON, FIELDS, values)
        rows = found.columns[0].to_pylist()
        assert (rows[values.index(LATIN)], rows[values.index(DEEP)]) == (7, 8)
        assert values.index(spoilt) in found.bad


KEYS = [*FIELDS.names, "zz"]
VALUES = """1|-0|1.0|1e3|99999999999|true|null|NaN|Inf|-Infinity|"x"|"2026-01-31"|
"2026-01-31T12:00:00Z"|"2026-01-31 12"|
"2026-01-31T1200Z"|"2026-01-31T12:00:00.5+0230"|"2026-1-3"|"2026-01-31T12:00:00."|"2026-01-31Z"|
"2026-01-31T12:00+25:00"|"1.5"|1.555|1e400|1e39|"NaN"|[]|[1,2]|[1.5]|[null]|{}|{"x":"2026-01-31"}|{"x":5}|"\\ud800"|
"\\u0000"|"é"|01|-|+1|"|0.1|1E5|""|"1e2"|"9999-12-31T23:59:59.999999Z"|"2026-02-30"|"a,b"|1,2|"",|",|"a""b\"""".replace(
    "\n", ""
).split("|")  # fmt: skip
NOISE = ["{", "}", ",", '"', " ", "\n", "\r", "\0", "[", "]", ":", "{}", '{"i":1}', "\ufeff", "\t"]


@st.composite
def jsonish(draw: st.DrawFn) -> bytes:
    pairs = draw(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=3))
    text = "{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}"
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(NOISE)) + text[at + draw(st.integers(0, 2)) :]
    return text.encode(draw(st.sampled_from(["utf-8", "latin-1"])), "replace")


# Arrow's parsers scale these past the last bit of a decimal128, or by a power of ten that their table lacks.
DECIMAL_TEXTS = [
    "0", "-0.00", "1.005", "-1.555", "99999999.994", "99999999.995", "123456789.12", "1234567890", "1" * 38, "1" * 39,
    "9" * 38 + ".5", "340282366920938463463374607431768211457", "-340282366920938463463374607431768211457.5", "1E+2",
    "1e30", "1e40", "1e-50", "0e500", "443517836968132.59779509136723094976053e-90", "1" * 70, "0." + "0" * 120 + "1",
    "1" * 76 + "e-77", "1.5e-100", "1e99999999",
]  # fmt: skip


def exact(text: str, kind: pa.DataType) -> Decimal | None:
    """As Spark makes decimals: rounded half up; None if the number does not fit."""
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
        (CsvDecoder(fields, ","), fields, f"{text},a".encode(), b",b"),
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
    found = CsvDecoder(fields, ";").decode(bodies(f"{text};a".encode()))
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
        (CsvDecoder(fields, ","), [text.encode() for text in texts]),
    ):
        found = check_alone(decoder_, fields, values)
        assert found.columns[0].to_pylist() == [exact(text, kind) for text in texts]


@steady(max_examples=40)
@given(st.lists(st.one_of(jsonish(), jsonish(), st.binary(max_size=8)), max_size=12))
def test_any_json_does_not_affect_other_rows(values: list[bytes]) -> None:
    check_alone(JSON, FIELDS, values)


@steady(max_examples=200)
@given(st.lists(jsonish(), min_size=1, max_size=4))
def test_the_json_parser_and_the_general_path_agree(values: list[bytes]) -> None:
    """Bodies accepted by Arrow's parser and ``json_values`` have the same values."""
    decoded = JSON.decode(bodies(*values))
    found = pa.table(decoded.columns, FIELDS.names)
    for index, body in enumerate(values):
        bad: dict[int, str] = {}
        try:
            row = parse_object(body)
            expected = columns_of(
                [{item.name: converter(item.type, item.name)(row.get(item.name)) for item in FIELDS}], FIELDS, bad
            )
        except BAD:
            continue  # the parser ignores more: see above
        if not bad:
            assert index not in decoded.bad
            assert str(found.slice(index, 1).to_pydict()) == str(pa.table(expected, FIELDS.names).to_pydict())


CSV_FIELDS = pa.schema([item for item in FIELDS if not pa.types.is_nested(item.type)])
CSV = CsvDecoder(CSV_FIELDS.remove(1).remove(1), ",")


@st.composite
def csvish(draw: st.DrawFn) -> bytes:
    values = draw(st.lists(st.sampled_from(["", "1", *VALUES]), min_size=6, max_size=8))
    text = ",".join(values)
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(NOISE)) + text[at:]
    return text.encode()


PAIR_FIELDS = pa.schema([("i", pa.int32()), ("s", pa.string())])
PAIR = CsvDecoder(PAIR_FIELDS, ",")
PIECES = st.sampled_from(["1", "2", ",", '"', "a", "\n", "\r\n", "", "7,x", '3,"y"', " ", "\ufeff", "\0", "é"])


LINES = st.lists(PIECES, max_size=6).map(lambda parts: "".join(parts).encode())


@steady(max_examples=40)
@given(st.lists(st.one_of(LINES, st.binary(max_size=6)), max_size=10))
def test_any_csv_does_not_affect_other_rows(values: list[bytes]) -> None:
    check_alone(PAIR, PAIR_FIELDS, values)


@steady(max_examples=40)
@given(st.lists(csvish(), max_size=6))
def test_any_csv_value_does_not_affect_other_rows(values: list[bytes]) -> None:
    check_alone(CSV, CSV_FIELDS.remove(1).remove(1), values)


@steady(max_examples=100)
@given(st.lists(csvish(), min_size=1, max_size=4))
def test_casts_of_csv_columns_and_the_general_path_agree(values: list[bytes]) -> None:
    """A line with an invalid value in every column causes conversion of all values one by one."""
    cast, alone = CSV.decode(bodies(*values)), CSV.decode(bodies(*values, b"?,?,?,?,?,?,?"))
    assert [*cast.bad] == [*alone.bad][: len(cast.bad)]
    assert cast.columns == [column.slice(0, len(values)) for column in alone.columns]


def test_csv() -> None:
    fields = pa.schema(
        [("i", pa.int64()), ("s", pa.string()), ("t", UTC), ("b", pa.bool_()), ("de", pa.decimal128(5, 2))]
    )
    found = CsvDecoder(fields, ";").decode(
        bodies(
            b"1;a;2026-01-31T12:00:00Z;true;1.5",
            b'2;"b;""c""\nd";2026-01-31 12:00:00;FALSE;',
            b';"";2026-01-31T14:00:00+02:00;;',
            b"4;x;;;\r\n",
            b"1;2",
            b"x;;;;",
            b'5;"open;;;',
            b"6;a;;;\n7;b;;;",
            b"",
        )
    )
    rows = rows_of(found, fields)
    assert rows[:4] == [
        {"i": 1, "s": "a", "t": noon(), "b": True, "de": Decimal("1.50")},
        {"i": 2, "s": 'b;"c"\nd', "t": noon(), "b": False, "de": None},
        {"i": None, "s": "", "t": noon(), "b": None, "de": None},
        {"i": 4, "s": "x", "t": None, "b": None, "de": None},
    ]
    assert sorted(found.bad) == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("delimiter", [",", "|", "\t", "^", "-", "]", "\\", "a", ":"])
def test_csv_quotes(delimiter: str) -> None:
    fields = pa.schema([("s", pa.string()), ("t", pa.string())])
    values = {
        '"x""y"': 'x"y', '"x,y"': "x,y", '""': "", '""""': '"', 'x"y': 'x"y', 'x"y"': 'x"y"', " x": " x", "": None,
        ' "x"': ' "x"', '"x\ny"': "x\ny", '"é"': "é", f'"{delimiter}"': delimiter,
    }  # fmt: skip
    wrong = ['"x"y', '"x" y', '"x" ', ' "x"y"'[1:], '""x', '"x', '"x""y', f'"x"{delimiter}', '"x\ny"z']
    csv = CsvDecoder(fields, delimiter)
    good = [f"{text}{delimiter}{other}".encode() for text in values for other in ("", '"z"')]
    bad = [line.encode() for text in wrong for line in (f"{text}{delimiter}z", f"z{delimiter}{text}")]
    found = check_alone(csv, fields, [*good, *bad])
    assert [row["s"] for row in rows_of(found, fields)[: len(good) : 2]] == [*values.values()]
    assert [row["t"] for row in rows_of(found, fields)[: len(good)]] == [None, "z"] * len(values)
    assert [*found.bad] == [*range(len(good), len(good) + len(bad))]
    assert "there is text behind one that closes a value" in found.bad[len(good)]


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), UTC, pa.decimal128(10, 2)], ids=str)
def test_an_empty_csv_body_is_the_null_of_a_single_column(kind: pa.DataType) -> None:
    fields = pa.schema([("c", kind)])
    value = b"" if pa.types.is_timestamp(kind) else b"7"
    found = check_alone(CsvDecoder(fields, ","), fields, [b"", value, b"\n", b"\r\n", b","])
    assert [*found.bad] == [4]
    assert [found.columns[0][at].is_valid for at in range(4)] == [False, value != b"", False, False]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.int8(), {"+5": 5, "-128": -128, "007": 7, "-0": 0}, "0xFF|0X1F|128|5.|1e2|+|1_0|５| 5|5 "),
        (pa.int32(), {"+5": 5, "2147483647": 2**31 - 1}, "0xFFFFFFFF|0x10|2147483648|1L"),
        (
            pa.float64(),
            {"+1.5": 1.5, ".5": 0.5, "5.": 5.0, "1e400": INF, "Inf": INF, "-Inf": -INF, "+Infinity": INF, " 5 ": 5.0},
            "inf|INF|+Inf|nan|NAN|infinity|INFINITY|1.5f|0x1p3|1e5_0|e5",
        ),
        (pa.float32(), {"0.1": 0.10000000149011612, "-Infinity": -INF}, "nan|-inf|1.5d"),
        (pa.bool_(), {"tRuE": True, "FALSE": False}, "1|0|t|yes| true"),
    ],
)  # fmt: skip
def test_csv_numbers(kind: pa.DataType, good: dict[str, Any], bad: str) -> None:
    """As in Spark's from_csv: ``tests/spark/test_spark_functions.py`` compares all values."""
    fields = pa.schema([("c", kind), ("s", pa.string())])
    lines = [f"{text},x".encode() for text in [*good, *bad.split("|")]]
    found = check_alone(CsvDecoder(fields, ","), fields, lines)
    assert found.columns[0].to_pylist() == [*good.values(), *[None] * len(found.bad)]
    assert [*found.bad] == [*range(len(good), len(lines))]
    assert all(found.bad[at].startswith("the column c: '") for at in found.bad)
    nan = CsvDecoder(fields, ",").decode(bodies(b"NaN,x", b"-NaN,x")) if pa.types.is_floating(kind) else None
    assert nan is None or (not nan.bad and all(value != value for value in nan.columns[0].to_pylist()))


def test_reasons_name_the_column() -> None:
    inner = columns(x="int", y=list_of(columns(z="price")), m=map_to("timestamp"), b="binary")
    fields = arrow_schema(columns(id="int", s=inner))
    for body, reason in {
        '{"id": "7"}': 'the column id: "7" is not an integer',
        '{"s": {"x": 3000000000}}': "the column s.x: 3000000000 is not within int32",
        '{"s": {"y": [{"z": 1}, {"z": "no"}]}}': 'the column s.y.element.z: "no" is not a decimal number',
        '{"s": {"m": {"k": "soon"}}}': 'the column s.m.value: "soon" is not a timestamp',
        '{"s": {"m": []}}': "the column s.m: [] is not an object",
        '{"s": [1]}': "the column s: [1] is not an object",
        '{"s": {"b": "!"}}': "the column s.b: Only base64 data is allowed",
    }.items():
        assert JsonDecoder(fields).decode(bodies(body.encode())).bad == {0: reason}
    lines = CsvDecoder(pa.schema([("a", pa.int32()), ("b", pa.date32()), ("c", pa.bool_())]), ",")
    assert lines.decode(bodies(b"1,x,true", b"1.5,x,maybe", b"1,,maybe")).bad == {
        0: 'the column b: "x" is not a date',
        1: "the column a: '1.5' is not an integer",
        2: "the column c: 'maybe' is not true or false",
    }
    stream = write_stream(pa.record_batch({"id": [1], "s": pa.array([{"x": 1.5}])}))
    (reason,) = decoder(BodySettings(BodyFormat.ARROW), columns(s=columns(x="int"))).decode(bodies(stream)).bad.values()
    assert reason.startswith("the column s.x: it is double: Float value 1.5")
    bad: dict[int, str] = {}
    columns_of([{"a": 1, "b": 2**40}], pa.schema([("a", pa.int32()), ("b", pa.int32())]), bad)
    assert bad[0].startswith("the column b: Value 1099511627776 too large")


@pytest.mark.parametrize("batch", [b'{"f": 1}', b'{"f": "x"}', b"{"])
def test_names_of_json_numbers_do_not_depend_on_neighbours(batch: bytes) -> None:
    texts = [b'{"f": -NaN}', b'{"f": -Inf}', b'{"f": NaN}', b'{"f": "+INF"}', b'{"f": "INF"}', b'{"f": "Inf"}']
    assert [*JSON.decode(bodies(*texts, batch)).bad][:2] == [4, 5]


def test_a_byte_order_mark_is_a_part_of_its_value() -> None:
    """At any position in its batch: Arrow removes a byte order mark at the start of its input."""
    marked = "\ufeff1,\ufeffx".encode()
    for values in ([marked, b"2,y"], [b"2,y", marked], [marked, marked, b"bad"]):
        found = check_alone(PAIR, PAIR_FIELDS, values)
        assert values.index(marked) in found.bad
        texts = pa.schema([("a", pa.string()), ("b", pa.string())])
        rows = rows_of(check_alone(CsvDecoder(texts, ","), texts, values), texts)
        assert rows[values.index(marked)] == {"a": "\ufeff1", "b": "\ufeffx"}


def test_csv_times() -> None:
    """As in Spark's from_csv: a malformed line does not affect other lines."""
    fields = pa.schema([("t", UTC), ("n", pa.timestamp("us")), ("d", pa.date32())])
    good = {
        b"2026-01-31 14:00:00 +02:00,2026-01-31 12:00:00,2026-01-31 00:30:00 +02:00": (noon(), noon(), 31),
        b"2026-01-31 12:00:00 UTC,2026-1-31 12,2026-1-30": (noon(), noon(), 30),
        b"2026-01-31T12:00:00Z,2026-01-31T12:00:00,2026-01-31": (noon(), noon(), 31),
    }
    bad = {
        b",2026-01-31T12:00:00Z,": "is not a timestamp without a zone",
        b",2026-01-31 12:00:00+02:00,": "is not a timestamp without a zone",
        b",,2026-01-31+02:00": "is not a date",
        b"2026-01-31 12:00:00 Europe/Berlin,,": "is not a timestamp",
    }
    found = check_alone(CsvDecoder(fields, ","), fields, [*good, *bad])
    assert rows_of(found, fields)[: len(good)] == [
        {"t": t, "n": n.replace(tzinfo=None), "d": date(2026, 1, day)} for t, n, day in good.values()
    ]
    assert [*found.bad] == [*range(len(good), len(good) + len(bad))]
    assert all(text in found.bad[at] for at, text in enumerate(bad.values(), len(good)))


def test_only_malformed_lines_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line read alone costs as much as some hundred read together, so only malformed lines are read again."""
    fields = pa.schema([("i", pa.int64()), ("s", pa.string()), ("de", pa.decimal128(5, 2))])
    reads: list[int] = []
    original = CsvDecoder._read
    monkeypatch.setattr(
        CsvDecoder, "_read", lambda self, buffer, count: reads.append(count) or original(self, buffer, count)
    )
    good = [b"%d,name,1.555" % number for number in range(1000)]
    for bad, most in ((b"x", 1), (b"1,2,3,4", 1), (b"x,name,", 1), (b"1,name,x", 1), (b'"x",1,2,3', 1_000)):
        reads.clear()
        values = [bad if index % 10 == 3 else line for index, line in enumerate(good)]
        found = CsvDecoder(fields, ",").decode(bodies(*values))
        assert [*found.bad] == [*range(3, 1000, 10)]
        assert found.columns[0].to_pylist() == [None if index % 10 == 3 else index for index in range(1000)]
        assert found.columns[2].to_pylist() == [None if i % 10 == 3 else Decimal("1.56") for i in range(1000)]
        assert len(reads) <= most
    assert CsvDecoder(fields, ",").decode(bodies(b"x")).bad == {0: "it has 1 values, but the schema has 3"}


def test_text_and_variants() -> None:
    text = decoder(BodySettings(BodyFormat.TEXT), columns(line="string"))
    fields = pa.schema([("line", pa.string())])
    found = check_alone(text, fields, [b"a", "ö".encode(), b"\xff", b""])
    assert (found.columns[0].to_pylist(), list(found.bad)) == (["a", "ö", None, ""], [2])
    assert not text.decode(bodies(b"a", b"b")).bad
    settings = BodySettings(BodyFormat.VARIANT)
    variant = decoder(settings, known_columns(settings))
    found = variant.decode(bodies(b'{"a": [1, "x"]}', b"nope", b"null", b"12"))
    values = found.columns[0].to_pylist()
    texts = [value and VariantUtils.to_json(value["value"], value["metadata"]) for value in values]
    assert (texts, list(found.bad)) == (['{"a":[1,"x"]}', None, "null", "12"], [1])
    with pytest.raises(SchemaError, match="one column of type string, but the schema has"):
        decoder(BodySettings(BodyFormat.TEXT), columns(a="string", b="string"))


def test_arrow() -> None:
    fields = pa.schema([("i", pa.int64()), ("s", pa.string()), ("t", UTC)])
    arrow = ArrowDecoder(fields)
    plain = pa.record_batch(
        {"s": pa.array(["a", "b"]).dictionary_encode(), "i": pa.array([1, 2], pa.int16()), "x": [1, 2]}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, plain.schema) as file:
        file.write_batch(plain)
    wrong = pa.record_batch({"i": ["x"]})
    values = [
        write_stream(plain),
        b"",
        sink.getvalue().to_pybytes(),
        b"junk",
        write_stream(plain.slice(0, 0)),
        write_stream(wrong),
    ]
    found = check_alone(arrow, fields, values)
    assert found.rows is not None
    assert found.rows.tolist() == [0, 0, 1, 2, 2, 3, 5]
    assert found.columns[0].to_pylist() == [1, 2, None, 1, 2, None, None]
    assert found.columns[1].to_pylist() == ["a", "b", None, "a", "b", None, None]
    assert "the column i: it is string" in found.bad[5]
    assert sorted(found.bad) == [1, 3, 5]
    assert arrow.decode(bodies()).columns[0].type == pa.int64()


def test_truncated_and_altered_arrow_streams() -> None:
    fields = pa.schema([("s", pa.string()), ("l", pa.list_(ELEMENT))])
    arrow = ArrowDecoder(fields)
    stream = write_stream(
        pa.record_batch([pa.array(["abc", None]), pa.array([[1], [2, 3]], fields.field("l").type)], schema=fields)
    )
    dice = random.Random(5)
    for _ in range(400):
        twisted = bytearray(stream)
        for _ in range(dice.randrange(1, 4)):
            twisted[dice.randrange(len(twisted))] = dice.choice((0, 1, 127, 255, dice.randrange(256)))
        value = bytes(twisted[: dice.choice((len(twisted), dice.randrange(len(twisted))))])
        found = arrow.decode(bodies(value, stream))
        assert found.columns[0].to_pylist()[-2:] == ["abc", None]
        rows_of(found, fields)


ORDER = {
    "id": 1, "item": "x", "at": noon(), "price": Decimal("1.50"), "marks": {"k": 1}, "kind": "B",
    "lines": [{"n": 1}, {"n": None}], "later": {"n": 2}, "uid": "12345678-1234-5678-1234-567812345678", "clock": 5,
}  # fmt: skip


def test_avro() -> None:
    schema = AvroSchema(avro())
    assert spark_schema(schema.columns) == columns(
        id="bigint", item="string", at="timestamp", price="price", marks=map_to("int"), kind="string",
        lines=list_of(columns(n="int")), later=columns(n="int"), uid="string", clock="int",
    )  # fmt: skip
    fields = schema.columns
    avro_decoder = OneByOneDecoder(fields, schema.read)
    single = schema.write(ORDER)
    assert single[:10] == schema.header
    datum = single[10:]
    values = [single, datum, datum + b"\0", datum[:-1], b"", b"\xc3\x01" + single[2:9] + b"?" + datum, b"\xff" * 30]
    found = check_alone(avro_decoder, fields, values)
    rows = rows_of(found, fields)
    assert rows[0] == rows[1] == {**ORDER, "marks": [("k", 1)]}
    assert sorted(found.bad) == [2, 3, 4, 5, 6]
    assert "the datum ends at byte" in found.bad[2]
    assert "raw datums need avroEncoding=raw" in found.bad[5]
    raw = AvroSchema(avro(avro_encoding=AvroEncoding.RAW))
    assert raw.write(ORDER) == datum
    lonely = BodySettings(
        BodyFormat.AVRO, avro_schema='{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'
    )
    minus_98 = b"\xc3\x01"  # the long -98, which looks like a header
    assert (
        "raw datums need"
        in OneByOneDecoder(pa.schema([("id", pa.int64())]), AvroSchema(lonely).read).decode(bodies(minus_98)).bad[0]
    )
    assert len(single) == len(datum) + 10
    for literal, wrong in (
        ("{", "not an Avro schema"),
        ('"string"', "not a record"),
        ('{"type":"record"}', "not an Avro schema"),
    ):
        with pytest.raises(OptionError, match=wrong):
            AvroSchema(BodySettings(BodyFormat.AVRO, avro_schema=literal))
    union = '{"type":"record","name":"T","fields":[{"name":"u","type":["int","string"]}]}'
    with pytest.raises(SchemaError, match="a union of int, string"):
        AvroSchema(BodySettings(BodyFormat.AVRO, avro_schema=union))
    assert fastavro.__version__


def avro_record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def each_uses(depth: int, *names: str) -> dict[str, Any]:
    """The schema looks flat: each type refers to the previous one, once for each name."""
    types = {
        f"f{level}": avro_record(f"T{level}", **dict.fromkeys(names, f"T{level - 1}" if level else "long"))
        for level in range(depth)
    }
    return avro_record("Top", **types)


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (avro_record("T", next=["null", "T"]), "T contains itself"),
        (avro_record("T", next="T"), "T contains itself"),
        (avro_record("n.T", next={"type": "array", "items": "T"}), "n.T contains itself"),
        (avro_record("T", next={"type": "map", "values": ["null", "T"]}), "T contains itself"),
        (avro_record("A", b=avro_record("B", c=["null", avro_record("C", a="A")])), "A contains itself"),
        (each_uses(120, "a"), "nested deeper than 100 levels"),
        (each_uses(5_000, "a"), "nested deeper than 100 levels"),
        (json.loads("[" * 800 + "]" * 800), "nested deeper than 100 levels"),
        (each_uses(40, "a", "b"), "columns and fields, above the limit of 20,000"),
    ],
)
def test_avro_schemas_of_exponential_size(schema: Any, wanted: str) -> None:
    """fastavro would crash the worker's process, or the columns would exhaust its memory."""
    with pytest.raises(SchemaError, match=wanted):
        AvroSchema(BodySettings(BodyFormat.AVRO, avro_schema=json.dumps(schema)))


def raw_avro(kind: Any, *longs: int) -> Any:
    """The value of a record's only field, decoded from these numbers, or the reason why it is invalid."""
    record = {"type": "record", "name": "R", "fields": [{"name": "c", "type": kind}]}
    settings = BodySettings(BodyFormat.AVRO, avro_schema=json.dumps(record), avro_encoding=AvroEncoding.RAW)
    datum = io.BytesIO()
    for number in longs:
        fastavro.schemaless_writer(datum, "long", number)
    found = decoder(settings, known_columns(settings)).decode(bodies(datum.getvalue()))
    (column,) = found.columns
    for number, width in ((pa.int64(), pa.types.is_timestamp), (pa.int32(), pa.types.is_date)):
        column = column.cast(number) if width(column.type) else column
    return found.bad.get(0) or column.to_pylist()[0]


@pytest.mark.parametrize(
    ("logical", "number", "value"),
    [
        ("timestamp-micros", 253402300800_000000, 253402300800_000000),
        ("timestamp-micros", -62135596800_000001, -62135596800_000001),
        ("timestamp-millis", 253402300800_001, 253402300800_001000),
        ("timestamp-millis", -1, -1000),
        ("local-timestamp-micros", -(1 << 62), -(1 << 62)),
        ("local-timestamp-millis", 5, 5000),
        ("timestamp-millis", 1 << 62, "too big|too large|overflow|out of bounds"),
    ],
)
def test_avro_times_of_any_year(logical: str, number: int, value: int | str) -> None:
    for kind in ({"type": "long", "logicalType": logical}, ["null", {"type": "long", "logicalType": logical}]):
        found = raw_avro(kind, *([] if isinstance(kind, dict) else [1]), number)
        assert found == value or re.search(str(value), str(found)), found


@pytest.mark.parametrize("text", ["12345678-1234-5678-1234-56781234ABCD", "123456781234567812345678ABCDEF01", "x"])
def test_avro_uuids_are_the_written_strings(text: str) -> None:
    """As in from_avro, which does not normalize them to lower case or hyphens."""
    record = {"type": "record", "name": "R", "fields": [{"name": "c", "type": ["null", {
        "type": "string", "logicalType": "uuid"}]}]}  # fmt: skip
    schema = AvroSchema(BodySettings(BodyFormat.AVRO, avro_schema=json.dumps(record)))
    fields = pa.schema([("c", pa.string())])
    assert schema.columns == fields
    assert OneByOneDecoder(fields, schema.read).decode(bodies(schema.write({"c": text}))).columns[0].to_pylist() == [
        text
    ]


@pytest.mark.parametrize(
    "more", [{}, {"precision": None}, {"precision": 0}, {"precision": "9"}, {"precision": 2, "scale": 3}]
)
def test_invalid_avro_decimals_are_bytes(more: dict[str, Any]) -> None:
    """As in the specification and in Spark: an invalid logical type is ignored."""
    assert raw_avro({"type": "bytes", "logicalType": "decimal", **more}, 1, 7) == b"\x0e"
    assert raw_avro({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, 1, 6) == Decimal("0.12")
    with pytest.raises(SchemaError, match="a decimal of 39 digits, above Spark's 38"):
        raw_avro({"type": "bytes", "logicalType": "decimal", "precision": 39}, 0)


def test_avro_dates_of_any_year_and_invalid_indexes() -> None:
    day = {"type": "int", "logicalType": "date"}
    assert [raw_avro(day, number) for number in (2932897, -800000, 0)] == [2932897, -800000, 0]
    enum = {"type": "enum", "name": "K", "symbols": ["A", "B"]}
    assert [raw_avro(enum, number) for number in (0, 1)] == ["A", "B"]
    assert all("for an enum of 2 symbols" in raw_avro(enum, number) for number in (-1, 2))
    twice = {"type": "record", "name": "S", "fields": [{"name": "a", "type": enum}, {"name": "b", "type": ["K"]}]}
    assert raw_avro(twice, 1, 0, 0) == {"a": "B", "b": "A"}
    assert "invalid index -1" in raw_avro(twice, 1, 0, -1)


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "record", "name": "E", "fields": []},
        {"type": "record", "name": "E", "fields": [{"name": "n", "type": {"type": "null"}}]},
        {"type": "fixed", "name": "F", "size": 0},
    ],
)
def test_avro_arrays_of_zero_byte_elements(items: Any) -> None:
    """A datum of five bytes can contain a billion of them."""
    with pytest.raises(SchemaError, match="elements without bytes"):
        raw_avro({"type": "array", "items": items}, 0)
    assert raw_avro({"type": "array", "items": ["null", items] if items != "null" else ["null", "int"]}, 1, 0, 0) == [
        None
    ]


@steady(max_examples=40)
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_avro_does_not_affect_other_rows(values: list[bytes]) -> None:
    schema = AvroSchema(avro())
    fields = schema.columns
    check_alone(OneByOneDecoder(fields, schema.read), fields, [*values, schema.write(ORDER)])


def test_protobuf() -> None:
    settings = protobuf()
    known = known_columns(settings)
    assert known == columns(
        id="bigint", item="string", at="timestamp", big="unsigned", kind="string", lines=list_of(columns(n="int")),
        marks=map_to("int"), parts=map_to(columns(n="int")), blob="binary", small="bigint",
    )  # fmt: skip
    from spark_rocket.datasource.bodies.protobuf import ProtobufType

    row = {
        "id": -1, "item": "x", "at": noon(), "big": Decimal(2**64 - 1), "kind": "B", "lines": [{"n": 0}, {"n": None}],
        "marks": [("k", 1)], "parts": [("p", {"n": 3})], "blob": b"\x00\xff", "small": 2**32 - 1,
    }  # fmt: skip
    body = ProtobufType(settings).write(row)
    fields = arrow_schema(known)
    found = check_alone(decoder(settings, known), fields, [body, b"", body[:-1], b"\xff" * 5])
    rows = rows_of(found, fields)
    assert rows[0] == row
    assert (rows[1]["id"], rows[1]["item"], rows[1]["at"], rows[1]["lines"]) == (0, "", None, [])
    assert sorted(found.bad) == [2, 3]
    some = decoder(settings, columns(item="string"))
    assert some.decode(bodies(body)).columns[0].to_pylist() == ["x"]
    with pytest.raises(SchemaError, match="item is string, not int"):
        decoder(settings, columns(item="int"))
    with pytest.raises(SchemaError, match="a column itme, which is missing in protobufMessage"):
        decoder(settings, columns(itme="string"))
    with pytest.raises(
        OptionError, match=r"is missing in the descriptor\. Its messages: shop.Line, shop.Node, shop.Order"
    ):
        known_columns(protobuf("shop.Nope"))
    with pytest.raises(SchemaError, match=r"shop\.Node is recursive"):
        known_columns(protobuf("shop.Node"))
    with pytest.raises(OptionError, match="not a complete FileDescriptorSet"):
        known_columns(BodySettings(BodyFormat.PROTOBUF, protobuf_descriptor=b"\xff", protobuf_message="x"))


@steady(max_examples=40)
@given(st.lists(st.binary(max_size=24), max_size=6))
def test_any_protobuf_does_not_affect_other_rows(values: list[bytes]) -> None:
    settings = protobuf()
    known = known_columns(settings)
    check_alone(decoder(settings, known), arrow_schema(known), values)
