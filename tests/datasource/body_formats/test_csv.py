"""The decoder of CSV: results, and independence of the rows of a batch."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as steady
from hypothesis import strategies as st

from spark_rocket.datasource.bodies.csv_reader import CsvDecoder
from spark_rocket.datasource.bodies.rendering import csv_lines
from tests.datasource.body_formats.formats import (
    FIELDS,
    INF,
    NOISE,
    UTC,
    VALUES,
    bodies,
    check_alone,
    csv_decoder,
    noon,
    rows_of,
)

CSV_FIELDS = pa.schema([item for item in FIELDS if not pa.types.is_nested(item.type)])
CSV = csv_decoder(CSV_FIELDS.remove(1).remove(1))


@st.composite
def csvish(draw: st.DrawFn) -> bytes:
    values = draw(st.lists(st.sampled_from(["", "1", *VALUES]), min_size=6, max_size=8))
    text = ",".join(values)
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(NOISE)) + text[at:]
    return text.encode()


PAIR_FIELDS = pa.schema([("i", pa.int32()), ("s", pa.string())])
PAIR = csv_decoder(PAIR_FIELDS)
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
    found = csv_decoder(fields, ";").decode(
        bodies(
            b"1;a;2026-01-31T12:00:00Z;true;1.5",
            b'2;"b;\\"c\\"\nd";2026-01-31 12:00:00;FALSE;',
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


# Values and their text with each escape character: as to_csv writes them and from_csv reads them.
SPARK, RFC = "\\", '"'
QUOTED: dict[str, dict[str, str | None]] = {
    SPARK: {
        r'"x\"y"': 'x"y', r'"inch 5\""': 'inch 5"', r'"\""': '"', r'"\\"': "\\", r'"\\\""': '\\"', r'"x\\\\"': "x\\\\",
        r'"\"\\"': '"\\', r'"C:\new\t"': r"C:\new\t", r'"\u0041"': r"\u0041", '"\\\n"': "\\\n", '"\\é"': "\\é",
        r"x\"y": r"x\"y", r"x\\y": r"x\\y", r"\x": r"\x", "\\": "\\", r'\"x': r'\"x',
    },
    RFC: {
        '"x""y"': 'x"y', '"inch 5"""': 'inch 5"', '""""': '"', r'"\"': "\\", r'"x\\y"': r"x\\y", '"\\"""': '\\"',
        '""""""': '""', 'x""y': 'x""y',
    },
}  # fmt: skip
ANY_ESCAPE: dict[str, str | None] = {
    '""': "", 'x"y': 'x"y', 'x"y"': 'x"y"', " x": " x", "": None, ' "x"': ' "x"', '"x\ny"': "x\ny", '"é"': "é",
    '" x "': " x ", '"x" ': "x", '"x" \0 ': "x",
}  # fmt: skip
MALFORMED = {
    SPARK: ['"x""y"', '""""', '"""', '""x', r'"x\"', r'"x\\\"', r'"x"\"', '"say ""hi"""'],
    RFC: [r'"x\"y"', r'"x\"""y', '"x"""y', '"""', r'"\""'],
}
MALFORMED_ALWAYS = ['"x"y', '"x" y', '"x" "', '"', '"x', '"x\ny"z', '"x"\n"y"']


@pytest.mark.parametrize("escape", [SPARK, RFC])
@pytest.mark.parametrize("delimiter", [",", "|", "\t", "^", "-", "]", "a", ":"])
def test_csv_quotes(delimiter: str, escape: str) -> None:
    fields = pa.schema([("s", pa.string()), ("t", pa.string())])
    values = QUOTED[escape] | ANY_ESCAPE | {f'"x{delimiter}y"': f"x{delimiter}y", f'"{delimiter}"': delimiter}
    wrong = [*MALFORMED[escape], *MALFORMED_ALWAYS]
    csv = csv_decoder(fields, delimiter, escape)
    good = [f"{text}{delimiter}{other}".encode() for text in values for other in ("", '"z"', '"z" ')]
    bad = [line.encode() for text in wrong for line in (f"{text}{delimiter}z", f"z{delimiter}{text}")]
    found = check_alone(csv, fields, [*good, *bad])
    assert [row["s"] for row in rows_of(found, fields)[: len(good) : 3]] == [*values.values()]
    assert [row["t"] for row in rows_of(found, fields)[: len(good)]] == [None, "z", "z"] * len(values)
    assert [*found.bad] == [*range(len(good), len(good) + len(bad))]
    assert "text follows one that closes a value" in found.bad[len(good)]
    assert f"{escape} escapes a quotation mark (csvEscape)" in found.bad[len(good)]


@pytest.mark.parametrize("escape", [SPARK, RFC, "/", "a", " "])
@given(st.lists(st.tuples(*[st.none() | st.text('\\"/a \n,\r\té')] * 2), max_size=6))
def test_any_strings_round_trip(escape: str, rows: list[tuple[str | None, str | None]]) -> None:
    fields = pa.schema([("s", pa.string()), ("t", pa.string())])
    texts = [pa.array([row[at] for row in rows], pa.string()) for at in range(2)]
    found = csv_decoder(fields, ",", escape).decode(csv_lines(texts, ",", escape).cast(pa.binary()))
    assert not found.bad
    assert [*zip(*(column.to_pylist() for column in found.columns), strict=True)] == rows


@pytest.mark.parametrize(
    ("escape", "wanted"),
    [
        (SPARK, r'inch 5"→"inch 5\""|\→\|\,→"\\,"|\"→"\\\""|x\y→x\y|x"\\→"x\"\\\\"|→""| x\→" x\\"'),
        (RFC, r'inch 5"→"inch 5"""|\→\|\,→"\,"|\"→"\"""|x\y→x\y|x"\\→"x""\\"|→""| x\→" x\"'),
    ],
)
def test_the_text_of_csv(escape: str, wanted: str) -> None:
    """As ``to_csv`` writes it, except that it removes blanks at the ends of a value."""
    values, texts = zip(*(pair.split("→") for pair in wanted.split("|")), strict=True)
    assert csv_lines([pa.array([*values, None], pa.string())], ",", escape).to_pylist() == [*texts, ""]


@pytest.mark.parametrize("escape", [SPARK, RFC])
@pytest.mark.parametrize("kind", [item.type for item in CSV_FIELDS if item.type != pa.string()], ids=str)
def test_quoted_empty_values_of_other_types_are_null(kind: pa.DataType, escape: str) -> None:
    fields = pa.schema([("c", kind), ("s", pa.string())])
    found = check_alone(csv_decoder(fields, ",", escape), fields, [b'"",""', b",x", b'"" ,""'])
    assert [row["c"] for row in rows_of(found, fields)] == [None] * 3
    assert not found.bad


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), UTC, pa.decimal128(10, 2)], ids=str)
def test_an_empty_csv_body_is_the_null_of_a_single_column(kind: pa.DataType) -> None:
    fields = pa.schema([("c", kind)])
    value = b"" if pa.types.is_timestamp(kind) else b"7"
    found = check_alone(csv_decoder(fields), fields, [b"", value, b"\n", b"\r\n", b","])
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
    found = check_alone(csv_decoder(fields), fields, lines)
    assert found.columns[0].to_pylist() == [*good.values(), *[None] * len(found.bad)]
    assert [*found.bad] == [*range(len(good), len(lines))]
    assert all(found.bad[at].startswith("the column c: '") for at in found.bad)
    nan = csv_decoder(fields).decode(bodies(b"NaN,x", b"-NaN,x")) if pa.types.is_floating(kind) else None
    assert nan is None or (not nan.bad and all(value != value for value in nan.columns[0].to_pylist()))


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
    found = check_alone(csv_decoder(fields), fields, [*good, *bad])
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
        found = csv_decoder(fields).decode(bodies(*values))
        assert [*found.bad] == [*range(3, 1000, 10)]
        assert found.columns[0].to_pylist() == [None if index % 10 == 3 else index for index in range(1000)]
        assert found.columns[2].to_pylist() == [None if i % 10 == 3 else Decimal("1.56") for i in range(1000)]
        assert len(reads) <= most
    assert csv_decoder(fields).decode(bodies(b"x")).bad == {0: "it has 1 values, but the schema has 3"}


def test_a_byte_order_mark_is_a_part_of_its_value() -> None:
    """At any position in its batch: Arrow removes a byte order mark at the start of its input."""
    marked = "\ufeff1,\ufeffx".encode()
    for values in ([marked, b"2,y"], [b"2,y", marked], [marked, marked, b"bad"]):
        found = check_alone(PAIR, PAIR_FIELDS, values)
        assert values.index(marked) in found.bad
        texts = pa.schema([("a", pa.string()), ("b", pa.string())])
        rows = rows_of(check_alone(csv_decoder(texts), texts, values), texts)
        assert rows[values.index(marked)] == {"a": "\ufeff1", "b": "\ufeffx"}
