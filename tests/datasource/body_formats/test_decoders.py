"""Decoders: results of each format, and independence of the rows of a batch."""

from __future__ import annotations

import json
import random
import re
import time
from datetime import UTC as ZONE
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as steady
from hypothesis import strategies as st
from pyspark.sql.types import VariantType
from pyspark.sql.variant_utils import VariantUtils

from spark_rocket.datasource.bodies.arrow_bodies import ArrowDecoder, write_stream
from spark_rocket.datasource.bodies.decoding import BAD, columns_of
from spark_rocket.datasource.bodies.json_reader import JsonDecoder
from spark_rocket.datasource.bodies.json_values import Rules, converter, parse_object
from spark_rocket.datasource.capabilities import arrow_schema
from spark_rocket.datasource.options.bodies import BodyFormat, BodySettings
from spark_rocket.errors import OptionError, SchemaError
from tests.datasource.body_formats.formats import (
    ELEMENT,
    FIELDS,
    NOISE,
    UTC,
    VALUES,
    bodies,
    check_alone,
    columns,
    csv_decoder,
    decoder,
    known_columns,
    list_of,
    map_to,
    noon,
    protobuf,
    rows_of,
)

JSON = JsonDecoder(FIELDS)


def one(body: str | bytes, fields: pa.Schema = FIELDS) -> Any:
    """The values that a JSON body has, or the reason why it is bad."""
    decoded = JsonDecoder(fields).decode(bodies(body if isinstance(body, bytes) else body.encode()))
    (row,) = rows_of(decoded, fields)
    return decoded.bad.get(0) or {name: value for name, value in row.items() if value is not None}


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
        ('{"i": ', "it is not JSON from character 6 on"),
        ("{'i': 1}", "it is not JSON from character 1 on"),
        (b'{"s": "\xff"}', "byte 0xff at position 7 is not UTF-8"),
        (b'\xef\xbb\xbf{"i": 1}', "it is not JSON from character 0 on"),
        ('{"s": "a\tb"}', "it is not JSON from character 8 on"),
        ('{"s": "a\nb"}', "it is not JSON from character 8 on"),
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
        ('{"d": "2026-02-30"}', "2026-02-30\" is not a date"),
        ('{"de": 100000000}', "100000000 is not within decimal"),
        ('{"l": 1}', "1 is not an array"),
        ('{"st": []}', r"\[\] is not an object"),
        ("[" * 5000, "it is nested too deeply|it is not JSON"),
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
    assert '"AQI" is not base64' in one('{"b": "AQI"}', fields)
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


@st.composite
def jsonish(draw: st.DrawFn) -> bytes:
    pairs = draw(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=3))
    text = "{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}"
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(NOISE)) + text[at + draw(st.integers(0, 2)) :]
    return text.encode(draw(st.sampled_from(["utf-8", "latin-1"])), "replace")


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
        '{"s": {"b": "!"}}': 'the column s.b: "!" is not base64',
    }.items():
        assert JsonDecoder(fields).decode(bodies(body.encode())).bad == {0: reason}
    lines = csv_decoder(pa.schema([("a", pa.int32()), ("b", pa.date32()), ("c", pa.bool_())]))
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
    assert bad == {0: "the column b: its value does not fit int"}


@pytest.mark.parametrize("batch", [b'{"f": 1}', b'{"f": "x"}', b"{"])
def test_names_of_json_numbers_do_not_depend_on_neighbours(batch: bytes) -> None:
    texts = [b'{"f": -NaN}', b'{"f": -Inf}', b'{"f": NaN}', b'{"f": "+INF"}', b'{"f": "INF"}', b'{"f": "Inf"}']
    assert [*JSON.decode(bodies(*texts, batch)).bad][:2] == [4, 5]


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


def test_strings_with_half_of_a_surrogate_pair_are_those_of_from_json() -> None:
    fields = arrow_schema(columns(s="string", m=map_to("string")))
    found = JsonDecoder(fields).decode(
        bodies(
            rb'{"s":"cut \ud83d"}', rb'{"s":"\ud83d\ud83d\ude00"}', rb'{"m":{"k\udc00":"v\ud83d"}}',
            rb'{"s":{"a\ud83d":1}}', rb'{"s":"\\ud83d"}', rb'{"x\ud83d":1,"s":"ok"}',
        )
    )  # fmt: skip
    assert found.bad == {}
    rows = rows_of(found, fields)
    assert [row["s"] for row in rows] == ["cut ?", "?\U0001f600", None, r'{"a\uD83D":1}', r"\ud83d", "ok"]
    assert rows[2]["m"] == [("k?", "v?")]


@pytest.mark.parametrize(
    ("text", "value"),
    [("QUJD\\nREVG", b"ABCDEF"), (" QQ==\\n", b"A"), ("QUJD REVG", b"ABCDEF"), ("", b""), (" ", b""), ("QR==", b"A"),
     ("QU JD", None), ("Q QUJD REV", None), ("QQ", None), ("Q-_=", None), ("QUJDQ", None)],
)  # fmt: skip
def test_base64_is_that_of_from_json(text: str, value: bytes | None) -> None:
    found = JsonDecoder(pa.schema([("b", pa.binary())])).decode(bodies(f'{{"b":"{text}"}}'.encode()))
    assert found.columns[0].to_pylist() == [value]
    assert bool(found.bad) == (value is None)
    assert all(reason.endswith("is not base64") for reason in found.bad.values())


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.float64(), "1" * 10_000 + "x"),
        (pa.decimal128(10, 2), "1" * 10_000 + "x"),
        (pa.binary(), " " * 40_000 + "x"),
        (pa.binary(), "QUJD" + " " * 40_000 + "x"),
        (UTC, "2026-01-01T10" + " " * 40_000 + "x"),
    ],
)
def test_a_string_that_is_almost_a_value_takes_linear_time(kind: pa.DataType, text: str) -> None:
    """Anybody who may send could stop a query with it."""
    begun = time.perf_counter()
    for quoted in (False, True):
        read = JsonDecoder(pa.schema([("b", kind)]), Rules(quoted=quoted))
        assert 0 in read.decode(bodies(f'{{"b":"{text}"}}'.encode())).bad
    assert time.perf_counter() - begun < 2


def test_null_and_other_values_of_variants_and_empty_structs() -> None:
    fields = arrow_schema(columns(v="variant", l=list_of(VariantType()), e=columns()))
    found = JsonDecoder(fields).decode(bodies(b'{"v":null,"l":[null],"e":{"a":1}}', b"{}", b'{"e":5}', b'{"e":null}'))
    null = VariantUtils.parse_json("null")[0]
    first, second, _, fourth = rows_of(found, fields)
    assert first["v"]["value"] == null
    assert first["l"][0]["value"] == null
    assert first["e"] == {}
    assert second == fourth == {"v": None, "l": None, "e": None}
    assert found.bad == {2: "the column e: 5 is not an object"}


def test_a_variant_body_is_strict_json() -> None:
    settings = BodySettings(BodyFormat.VARIANT)
    found = decoder(settings, known_columns(settings)).decode(bodies(b"NaN", b"[Infinity]", b"1"))
    assert found.bad == {0: "NaN is not JSON", 1: "Infinity is not JSON"}
