"""JSON and CSV bodies are converted as Spark's own ``from_json`` and ``from_csv`` do: a differential test.

Awkward strings of every type are converted by both. Each difference must be one that the guide documents, and each
documented difference must exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_rocket.datasource.bodies.decoding import Decoder
from spark_rocket.datasource.bodies.json_reader import JsonDecoder
from spark_rocket.datasource.capabilities import HAS_READ_LIMITS, arrow_schema
from spark_rocket.datasource.column_types import type_name
from spark_rocket.datasource.ddl import parse_ddl
from spark_rocket.errors import SchemaError
from tests.datasource.body_formats.formats import csv_decoder
from tests.datasource.test_ddl import SCHEMAS

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "typed-rows.md"

WHOLE = """0 5 -5 +5 --5 +-5 - + 007 -0 +0 -007 0xFF 0xFFFFFFFF 0x10 0X1F 0b1 0o7 010 1_000 5. .5 5.0 1e2 1E2 1e 1L 5l ٥
５ 127 128 -128 -129 255 32767 32768 2147483647 2147483648 -2147483648 -2147483649 4294967295 9223372036854775807
9223372036854775808 -9223372036854775808 99999999999999999999 00000000000000000000005"""
FLOATS = """1.5 -1.5 +1.5 1. -.5 +.5 . 1E+2 1e-2 1e400 -1e400 1e-400 1e39 1e1000000000000 1.5f 1.5F 1.5d 5f 1.5x 0x1p3
0x1.8p1 NaN nan NAN -NaN +NaN Inf inf INF -Inf +Inf -inf +inf -INF +INF Infinity infinity INFINITY -Infinity +Infinity
-infinity 1e5_0 3.4028236e38 0.1 16777217 1.17549435e-38 4.9e-324 123456789012345678901234567890 NaNd null NULL None"""
DECIMALS = """99999999.99 99999999.994 99999999.995 100000000 1.555 1.554 -1.555 1.545 0.005 0.0049 1e7 1e8 1e-3 00001.5
+1.5e+1 1.2.3 12345678901234567890123456789012345678901234567890 0.00000000000000000000000000000000000000000000000001
1e2147483647 1e2147483648 1e99999"""
BOOLEANS = "true false True False TRUE FALSE tRuE FaLSe t f T F yes no Y N on off 1 true1"
BLANKS = [" 5", "5 ", " 5 ", " true", "true ", " 1.5", "1.5 ", " 2026-01-31", "2026-01-31 ", " 2026-01-31 12:00:00",
    "2026-01-31 12:00:00 ", " ", "\u00a05", "5\u00a0", " NaN", "NaN ", " Infinity "]  # fmt: skip
DAYS = """2026-01-31 2026-1-31 2026-01-3 26-01-31 202-01-31 02026-01-31 +2026-01-31 -2026-01-31 +12026-01-31
12026-01-31 0000-01-01 -0001-01-01 2026-02-29 2024-02-29 2026-02-30 2026-13-01 2026-00-01 2026-01-00
2026-01 2026 20260131 2026/01/31 31-01-2026 2026-01-31T 2026-01-31Tx 2026-01-31x 2026-01-31Z
2026-01-31+02:00 epoch now 2026-001-31 2026-01-031 1500-02-29 1582-10-10 9999-12-31 10000-01-01
294247-01-10 294248-01-01 999999-12-31 5881580-07-11 5881580-07-12 -290308-12-22"""
TIMES = [
    *(f"2026-01-31{rest}" for rest in (
        "T12:00:00", "t12:00:00", "T12:00:00Z", "T12:00:00z", "T120000Z", "T12", "T12Z", "T1:2:3Z", " x", " UTC",
        "  12:00")),
    *(f"2026-01-31 12{rest}" for rest in (
        "", ":", ":00", ":00:", "00", "0000", ":00Z", ".00.00", ":00:00", ":00:00 AM", ":00:00.", ":00:00.1",
        ":00:00.123456", ":00:00.1234569", ":00:00.1234567890123", ":00:00.12Z", ":00:00 Z")),
    *(f"2026-01-31 12:00:00{zone}" for zone in (
        " UTC", "UTC", " GMT", " GMT+2", " UTC+02:00", " UT", "+02", "+2", "+0200", "+02:00", " +02:00", "  +02:00",
        "+02:00:30", "-18:00", "+18:01", "+24:00", " Europe/Berlin", " CET", " PST", " -0200", "+00:00", ".5 +1:30")),
    *(f"2026-01-31 {clock}" for clock in ("1:2:3", "24:00:00", "25:00:00", "23:60:00", "23:59:60", "-1:00:00")),
    "12:00", "12:00:00", "T12:00:00", "2026-02-30 12:00:00", "2026-1-3 12:00:00", "+10000-01-01T00:00:00Z",
    "10000-01-01 00:00:00", "-0001-01-01 00:00:00", "0000-01-01 00:00:00", "1969-12-31 23:59:59.999999",
    "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808", "-290308-12-21 19:59:05.224192", "1769860800.5",
]  # fmt: skip
TEXTS = list(dict.fromkeys([*f"{WHOLE} {FLOATS} {DECIMALS} {BOOLEANS} {DAYS}".split(), *BLANKS, *TIMES]))
TYPES = {  # and how to compare values of any year
    **dict.fromkeys(("tinyint", "int", "bigint", "float", "double", "boolean", "string"), "{}"),
    **dict.fromkeys(("decimal(10,2)", "decimal(38,18)"), "{}"),
    "date": "unix_date({})",
    "timestamp": "unix_micros({})",
    "timestamp_ntz": "unix_micros(CAST({} AS timestamp))",
}
# How a string becomes a body with the columns c and s, Spark's function, and our decoder.
FORMATS: dict[str, tuple[str, str, Callable[[pa.Schema], Decoder]]] = {
    "csv": ("{},x", "from_csv", csv_decoder),
    "json": ('{{"c":{}}}', "from_json", JsonDecoder),
    "json strings": ('{{"c":"{}"}}', "from_json", JsonDecoder),
}
INVALID = "invalid"
NAMED = r"-?(Inf|NaN)|[+-]INF|\+Infinity"
CLOCK = r"\d+-\d+-\d+[T ]\d+:\d+:[\d.]+"
ZONE = r" ?(Z|UTC|[+-]\d\d(:?\d\d)?)?"  # that the guide accepts


class Case(NamedTuple):
    """A string that both convert differently."""

    form: str
    kind: str
    text: str
    theirs: Any
    ours: Any


def is_other_date(case: Case) -> bool:
    """A date or time that only Spark accepts."""
    if case.ours != INVALID or case.kind not in ("date", "timestamp", "timestamp_ntz"):
        return False
    return not re.fullmatch(rf"{CLOCK}{ZONE}|\d+-\d+-\d+", case.text)


def is_other_time(case: Case) -> bool:
    """A time that only the guide accepts."""
    has_far_zone = re.search(r":.*[+-](18:01|19|2\d)", case.text) is not None
    return case.theirs == INVALID and "stamp" in case.kind and (
        has_far_zone or not re.fullmatch(rf"{CLOCK}{ZONE}", case.text)
    )  # fmt: skip


# The guide's rows about differences that the strings show.
DOCUMENTED: dict[str, Callable[[Case], bool]] = {
    "A date without year, month or day (`2026-01`); a time without a date (`12:00`); the name of a region": (
        is_other_date
    ),
    "A time without colons (`2026-01-31T1200Z`); a time zone without seconds (`2026-01-31 12:00Z`); an offset of more "
    "than 18 hours": is_other_time,
    "A number in a `timestamp` column that is outside of the years 0 to 9999 as seconds since 1970": lambda case: (
        case.form == "json"
        and case.kind == "timestamp"
        and case.ours == INVALID
        and bool(re.fullmatch(r"-?\d+", case.text))
        and not -62_167_219_200 <= int(case.text) < 253_402_300_800
    ),
    "A number in a string column": lambda case: (
        case.form == "json" and case.kind == "string" and case.ours == case.text.strip()
    ),
    "A number that its column cannot hold": lambda case: (
        case.form == "json" and case.ours == INVALID and bool(re.fullmatch(r"-?\d+", case.text))
    ),
    "Digits other than 0 to 9": lambda case: case.ours == INVALID and not case.text.isascii(),
    "`1.5f`, `1.5d` or `0x1p3` in a CSV column of type `float` or `double`": lambda case: (
        case.form == "csv" and case.ours == INVALID and bool(re.fullmatch(r"[\d.]+[fd]|0x.*", case.text, re.I))
    ),
    "`Inf`, `-Inf` or `-NaN` as a JSON number": lambda case: (
        case.form == "json" and case.theirs == INVALID and bool(re.fullmatch(NAMED, case.text))
    ),
    "`-INF`, `+INF` or `+Infinity` as a JSON number": lambda case: (
        case.form == "json" and case.ours == INVALID and bool(re.fullmatch(NAMED, case.text))
    ),
}  # fmt: skip


def theirs_of(spark: SparkSession) -> dict[tuple[str, str], list[Any]]:
    """What Spark makes of each string, by format and type."""
    columns = []
    for body, function, _ in FORMATS.values():
        before, after = body.format("\0").split("\0")
        made = f"concat('{before}', text, '{after}')"
        columns += [how.format(f"{function}({made}, 'c {kind}, s string').c") for kind, how in TYPES.items()]
    frame = spark.createDataFrame(list(enumerate(TEXTS)), "number int, text string").coalesce(1)
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        named = [f"{column} AS c{number}" for number, column in enumerate(columns)]
        rows = sorted(tuple(row) for row in frame.selectExpr("number", *named).collect())
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    places = [(form, kind) for form in FORMATS for kind in TYPES]
    return {place: [INVALID if row[at] is None else row[at] for row in rows] for at, place in enumerate(places, 1)}


def ours_of(form: str, kind: str) -> list[Any]:
    """What we make of each string."""
    body, _, decoder_of = FORMATS[form]
    schema = StructType.fromDDL(f"c {kind}, s string")
    assert isinstance(schema, StructType)
    decoder = decoder_of(arrow_schema(schema))
    bodies = pa.array([body.format(text).encode() for text in TEXTS], pa.binary())

    def values(part: pa.Array) -> list[Any]:
        found = decoder.decode(part)
        column = found.columns[0]
        if pa.types.is_temporal(column.type):
            column = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
        return [INVALID if row in found.bad else value for row, value in enumerate(column.to_pylist())]

    together = values(bodies)
    alone = [value for at in range(len(TEXTS)) for value in values(bodies.slice(at, 1))]
    assert str(together) == str(alone), "a value depends on its neighbours"
    return together


@pytest.mark.parametrize("text", [text for text in SCHEMAS if "struct<>" not in text])
def test_schemas_as_text_are_those_of_spark(text: str, spark: SparkSession) -> None:
    schema = StructType.fromDDL(text)
    assert isinstance(schema, StructType)
    ours, theirs = parse_ddl(text), arrow_schema(schema)
    assert ours == theirs
    assert [type_name(kind) for kind in ours.types] == [type_name(kind) for kind in theirs.types]


@pytest.mark.parametrize(
    "text", ["a array<int", "a map<string>", "a int not", "a decimal(39)", "a decimal(3,4)", "a utf8", "a int b int"]
)
def test_schemas_that_spark_refuses(text: str, spark: SparkSession) -> None:
    with pytest.raises(PySparkException):
        StructType.fromDDL(text)
    with pytest.raises(SchemaError):
        parse_ddl(text)


@pytest.mark.skipif(not HAS_READ_LIMITS, reason="the functions of Spark before 4.2 differ in other strings")
@pytest.mark.classic("a difference to Spark's functions has nothing to do with Connect")
@pytest.mark.long
def test_differences_to_the_functions_of_spark_are_documented(spark: SparkSession) -> None:
    seen: set[str] = set()
    unknown: list[Case] = []
    for (form, kind), values in theirs_of(spark).items():
        for text, theirs, ours in zip(TEXTS, values, ours_of(form, kind), strict=True):
            if theirs == ours or str(theirs) == str(ours) or (form == "json" and text == "null"):
                continue
            case = Case(form, kind, text, theirs, ours)
            explained = [row for row, explains in DOCUMENTED.items() if explains(case)]
            seen.update(explained)
            if not explained:
                unknown.append(case)
    assert not unknown
    assert seen == DOCUMENTED.keys()
    page = GUIDE.read_text(encoding="utf-8")
    assert [row for row in DOCUMENTED if f"| {row} |" not in page] == []
