"""What Spark's functions write, typed rows read; what typed rows write, Spark's functions read: random rows.

For each schema, one query makes the rows and has ``to_json`` (``to_csv``) write them, and another has ``from_json``
(``from_csv``) read what typed rows wrote, and bodies with awkward values. Every body that typed rows write is strict
JSON. A difference is a row of the guide's tables (``ROWS_OF_GUIDE``, and ``test_spark_functions.py``).

``make test`` runs two schemas. The long form takes ``DIFFERENCES_SEED`` (random) and ``DIFFERENCES_SCHEMAS`` (20).
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from decimal import Context, Decimal
from struct import pack, unpack
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import from_csv, from_json, struct, to_csv, to_json

from spark_rocket.datasource.bodies.csv_reader import CsvDecoder
from spark_rocket.datasource.bodies.decoding import Decoded
from spark_rocket.datasource.bodies.json_reader import JsonDecoder
from spark_rocket.datasource.bodies.rendering import csv_lines, json_objects, plain_texts
from spark_rocket.datasource.capabilities import HAS_READ_LIMITS
from spark_rocket.datasource.column_types import is_variant, list_of, type_name
from spark_rocket.datasource.spark_schema import spark_schema
from tests.datasource.body_formats.odd_values import NAMES, SCALARS, plain, scalar, strict, value
from tests.spark.test_spark_functions import DOCUMENTED, GUIDE, INVALID, TEXTS, Case

pytestmark = [
    pytest.mark.skipif(not HAS_READ_LIMITS, reason="the functions of Spark before 4.2 differ in other values"),
    pytest.mark.classic("a difference to Spark's functions has nothing to do with Connect"),
]
DIGITS = Context(prec=80)


def kind_of(rng: random.Random, depth: int) -> pa.DataType:
    """A random type whose map keys are strings."""
    form = rng.randrange(7 if depth else 4)
    if form == 4:
        names = rng.sample(NAMES, rng.randrange(1, 4))
        return pa.struct([(name, kind_of(rng, depth - 1)) for name in names])
    if form == 5:
        return list_of(kind_of(rng, depth - 1))
    if form == 6:
        return pa.map_(pa.string(), kind_of(rng, depth - 1))
    return pa.binary() if form == 3 and rng.random() < 0.3 else rng.choice(SCALARS)


def json_value(rng: random.Random, depth: int = 3) -> str:
    """JSON for a variant."""
    form = rng.randrange(7 if depth else 5)
    if form == 5:
        items = ",".join(json_value(rng, depth - 1) for _ in range(rng.randrange(4)))
        return f"[{items}]"
    if form == 6:
        names = rng.sample(NAMES, rng.randrange(3))
        members = ",".join(f"{json.dumps(name)}:{json_value(rng, depth - 1)}" for name in names)
        return f"{{{members}}}"
    number = value(rng.choice([pa.decimal128(38, rng.choice([0, 2, 18, 38])), pa.int64()]), rng, 0)
    text = json.dumps(scalar(pa.string(), rng), ensure_ascii=rng.random() < 0.5)
    return rng.choice(["null", "true", f"{number:f}" if isinstance(number, Decimal) else str(number), text, "1.5e300"])


def table_of(fields: pa.Schema, rows: int, rng: random.Random) -> pa.Table:
    columns = [pa.array([value(item.type, rng) for _ in range(rows)], item.type) for item in fields]
    return pa.table(columns, schema=fields)


def is_same(one: Any, other: Any) -> bool:
    """Compare values; numbers are equal if they are the same double or float, to which Java before 19 gives more digits
    than necessary. Decimals with more digits than these must be equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(some, other[name]) for name, some in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, Decimal) and isinstance(other, Decimal) and one != other:
        digits = max(len(number.normalize(DIGITS).as_tuple().digits) for number in (one, other))
        if digits <= 9 and abs(one) < 10**38 and unpack("<f", pack("<f", one)) == unpack("<f", pack("<f", other)):
            return True
        return digits <= 18 and float(one) == float(other)
    return bool(one == other)


def number_of(text: str) -> Any:
    """A number in a string, NaN and infinities as they are."""
    return text if text.lstrip("-") in ("NaN", "Infinity") else Decimal(text)


def in_millis(found: Any, kind: pa.DataType) -> Any:
    """A value of ``plain`` without microseconds, which to_json and to_csv do not write."""
    types = pa.types
    if found is None:
        return None
    if types.is_timestamp(kind):
        return found // 1000 * 1000
    if types.is_struct(kind) and not is_variant(kind):
        return {item.name: in_millis(found[item.name], item.type) for item in kind}
    if types.is_list(kind):
        return [in_millis(one, kind.value_type) for one in found]
    return [(key, in_millis(one, kind.item_type)) for key, one in found] if types.is_map(kind) else found


class Differences:
    """The rows of one seed: how many values were compared, and which differ."""

    def __init__(self, spark: SparkSession, seed: int, rows: int) -> None:
        self.spark, self.rng, self.rows = spark, random.Random(seed), rows
        self.compared = 0
        self.found: dict[str, list[Any]] = {}

    def compare(self, what: str, ours: list[Any], theirs: list[Any], bodies: list[Any]) -> None:
        self.compared += len(ours)
        for one, other, body in zip(ours, theirs, bodies, strict=True):
            if not is_same(one, other):
                self.found.setdefault(what, []).append((one, other, body))

    def frame(self, table: pa.Table) -> DataFrame:
        return self.spark.createDataFrame(table, spark_schema(table.schema)).coalesce(1)

    def json(self) -> None:
        """Rows in JSON, in both directions."""
        fields = pa.schema([(f"c{at}", kind_of(self.rng, 2)) for at in range(9)])
        texts = pa.array([json_value(self.rng) for _ in range(self.rows)])
        given = self.frame(table_of(fields, self.rows, self.rng).append_column("text", texts))
        names = [*fields.names, "v", "w"]
        scalars = ", ".join(f"'{item.name}', {item.name}" for item in fields if not pa.types.is_nested(item.type))
        given = given.selectExpr(
            *fields.names, "parse_json(text) AS v", f"to_variant_object(named_struct('text', text, {scalars})) AS w"
        ).selectExpr("*", "named_struct('in', v, 'l', array(w)) AS n")
        names.append("n")
        table = given.withColumn("theirs", to_json(struct(*names))).toArrow()
        theirs = table.column("theirs").combine_chunks()
        table = table.drop_columns(["theirs"])
        columns = [column.combine_chunks() for column in table.columns]
        ours = json_objects(columns, names)
        written, wanted = ([without_micros(strict(text)) for text in texts.to_pylist()] for texts in (ours, theirs))
        self.compare("text", written, wanted, ours.to_pylist())
        read = self.frame(pa.table({"body": ours.cast(pa.string())}))
        back = read.select(from_json("body", spark_schema(table.schema)).alias("r")).select("r.*").toArrow()
        decoded = JsonDecoder(table.schema).decode(theirs.cast(pa.binary()))
        assert not decoded.bad, decoded.bad
        self._both_ways(columns, back, decoded, ours, theirs)

    def keys(self) -> None:
        """Maps with keys of every scalar type. Keys of dates and times are the guide's difference."""
        fields = pa.schema([(f"c{at}", pa.map_(kind, pa.int32())) for at, kind in enumerate(SCALARS)])
        rows = [[[(scalar(item.type.key_type, self.rng), 1)] for item in fields] for _ in range(self.rows)]
        table = pa.table(
            [pa.array(some, item.type) for some, item in zip(zip(*rows, strict=True), fields, strict=True)],
            schema=fields,
        )
        texts = self.frame(table).select(to_json(struct(*fields.names)).alias("theirs")).toArrow().column(0).to_pylist()
        ours = json_objects([column.combine_chunks() for column in table.columns], fields.names).to_pylist()
        for item in fields:
            kind = item.type.key_type
            found, others = ([next(iter(strict(text)[item.name])) for text in some] for some in (ours, texts))
            if pa.types.is_temporal(kind):
                (numbers,) = [plain(table.column(item.name).combine_chunks())]
                assert others == [str(pairs[0][0]) for pairs in numbers]
                keys = pc.list_flatten(pa.array([[pairs[0][0]] for pairs in numbers])).cast(
                    pa.int32() if pa.types.is_date(kind) else pa.int64()
                )
                others = plain_texts(keys.cast(kind)).to_pylist()
            elif not pa.types.is_string(kind) and not pa.types.is_boolean(kind):
                found, others = ([number_of(key) for key in some] for some in (found, others))
            self.compare(f"keys: {type_name(kind)}", found, others, ours)

    def csv(self, escape: str) -> None:
        """Rows in CSV, in both directions."""
        fields = pa.schema([(f"c{at}", self.rng.choice([*SCALARS, pa.string()])) for at in range(8)])
        options = {"escape": escape}
        table = (
            self.frame(table_of(fields, self.rows, self.rng))
            .withColumn("theirs", to_csv(struct(*fields.names), options))
            .toArrow()
        )
        theirs = table.column("theirs").combine_chunks()
        columns = [column.combine_chunks() for column in table.drop_columns(["theirs"]).columns]
        ours = csv_lines(columns, ",", escape)
        read = self.frame(pa.table({"body": ours.cast(pa.string())}))
        ddl = ", ".join(f"{item.name} {type_name(item.type)}" for item in fields)
        back = read.select(from_csv("body", ddl, options).alias("r")).select("r.*").toArrow()
        decoded = CsvDecoder(fields, ",", escape).decode(theirs.cast(pa.binary()))
        assert not decoded.bad, decoded.bad
        self._both_ways(columns, back, decoded, ours, theirs, escape=escape)

    def _both_ways(
        self,
        columns: list[pa.Array],
        back: pa.Table,
        decoded: Decoded,
        ours: pa.Array,
        theirs: pa.Array,
        *,
        escape: str = "",
    ) -> None:
        for at, column in enumerate(columns):
            kind, wanted = column.type, plain(column)
            found = plain(back.column(at).combine_chunks())
            is_text = bool(escape) and pa.types.is_string(kind)
            texts = [found, wanted]
            if is_text:  # from_csv has no empty strings, and no NUL between quotes if quotes are doubled
                ignored = {0: None} if escape == '"' else {}
                texts = [[(one or "").translate(ignored) or None for one in some] for some in texts]
            self.compare(f"Spark reads ours: {type_name(kind)}", texts[0], texts[1], ours.to_pylist())
            # to_csv has no blanks at the ends.
            wanted = (
                [one and one.strip(BLANKS) for one in wanted] if is_text else [in_millis(one, kind) for one in wanted]
            )
            self.compare(f"we read Spark's: {type_name(kind)}", plain(decoded.columns[at]), wanted, theirs.to_pylist())

    def odd_json(self) -> None:
        """Awkward values in columns, arrays, maps and structs."""
        shapes = [(kind, shape) for kind in SCALARS for shape in SHAPES]
        fields = pa.schema([(f"c{at}", SHAPES[shape][0](kind)) for at, (kind, shape) in enumerate(shapes)])
        cases = []
        for _ in range(self.rows * 4):
            at, text, form = self.rng.randrange(len(shapes)), self.rng.choice(TEXTS), self.rng.choice(["{}", '"{}"'])
            cases.append((at, text, form, f'{{"c{at}":{SHAPES[shapes[at][1]][1].format(form.format(text))}}}'))
        bodies = pa.array([body for *_, body in cases])
        read = self.frame(pa.table({"body": bodies}))
        back = read.select(from_json("body", spark_schema(fields)).alias("r")).select("r.*").toArrow()
        decoded = JsonDecoder(fields).decode(bodies.cast(pa.binary()))
        ours, theirs = (
            [plain(column) for column in columns]
            for columns in (decoded.columns, [c.combine_chunks() for c in back.columns])
        )
        for row, (at, text, form, body) in enumerate(cases):
            kind, shape = shapes[at]
            leaf = SHAPES[shape][2]
            one, other = (None if some[at][row] is None else leaf(some[at][row]) for some in (ours, theirs))
            one = INVALID if one is None or row in decoded.bad else one
            other = INVALID if other is None else other
            self.compared += 1
            case = Case("json" if form == "{}" else "json strings", type_name(kind), text, other, one)
            is_minus_zero = (text, one, other) == ("-0", "-0.0", "0.0")
            if (
                one == other
                or text == "null"
                or is_minus_zero
                or any(explains(case) for explains in DOCUMENTED.values())
            ):
                continue
            self.found.setdefault("odd JSON", []).append((case, body))

    def odd_csv(self, escape: str) -> None:
        """Lines with quotes and escapes at any place: what typed rows accept is what from_csv reads."""
        lines = [
            "".join(self.rng.choices(['"', "\\", ",", "a", " ", '""', '\\"', '",', ',"'], k=self.rng.randrange(1, 12)))
            for _ in range(self.rows * 4)
        ]
        options = {"escape": escape}
        read = self.frame(pa.table({"body": pa.array(lines)}))
        back = read.select(from_csv("body", "a string, b string", options).alias("r")).select("r.*").toArrow()
        decoded = CsvDecoder(pa.schema([("a", pa.string()), ("b", pa.string())]), ",", escape).decode(
            pa.array(lines, pa.binary())
        )
        good = [row for row in range(len(lines)) if row not in decoded.bad]
        assert len(good) > len(lines) // 20
        for column, theirs in zip(decoded.columns, back.columns, strict=True):
            ours, others = column.to_pylist(), theirs.to_pylist()
            self.compare(
                f"odd CSV, escape {escape}",
                [ours[row] or None for row in good],
                [others[row] for row in good],
                [lines[row] for row in good],
            )


BLANKS = "".join(map(chr, range(33)))
# How a value is a member of a column: the column's type, its JSON, and the value in it.
SHAPES: dict[str, tuple[Callable[[pa.DataType], pa.DataType], str, Callable[[Any], Any]]] = {
    "column": (lambda kind: kind, "{}", lambda found: found),
    "array": (list_of, "[{}]", lambda found: found[0] if found else None),
    "map": (lambda kind: pa.map_(pa.string(), kind), '{{"k":{}}}', lambda found: found[0][1] if found else None),
    "struct": (lambda kind: pa.struct([("x", kind)]), '{{"x":{}}}', lambda found: found["x"]),
}


def without_micros(found: Any) -> Any:
    """A parsed value whose times have milliseconds, as in to_json."""
    if isinstance(found, dict):
        return {name: without_micros(one) for name, one in found.items()}
    if isinstance(found, list):
        return [without_micros(one) for one in found]
    return re.sub(r"(T\d\d:\d\d:\d\d\.\d{3})\d{3}(Z?)$", r"\1\2", found) if isinstance(found, str) else found


# The guide's rows about differences that this test takes into account.
ROWS_OF_GUIDE = (
    "The number `-0` in a column of type `float` or `double`",
    "A time",
    "A key of a map of type date or timestamp",
    "A `float` or `double`",
    "A string with blanks at its ends in CSV",
    'A NUL character in a quoted CSV value, with `csvEscape` `"`',
    '`""` in a string column',
)


def check(spark: SparkSession, seed: int, schemas: int, rows: int) -> int:
    """Compare, and return the number of compared values."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    compared = 0
    try:
        for number in range(schemas):
            made = Differences(spark, seed * 1000 + number, rows)
            made.json()
            made.keys()
            made.csv("\\"), made.csv('"')
            made.odd_json()
            made.odd_csv("\\"), made.odd_csv('"')
            compared += made.compared
            assert not made.found, f"seed {seed}, schema {number}: " + "; ".join(
                f"{what}: {len(some)}, such as {some[0]}" for what, some in made.found.items()
            )
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    return compared


def test_spark_reads_what_typed_rows_write_and_the_reverse(spark: SparkSession) -> None:
    assert check(spark, 1, 1, 60) > 1000
    page = GUIDE.read_text(encoding="utf-8")
    assert [row for row in ROWS_OF_GUIDE if f"| {row} |" not in page] == []


@pytest.mark.long
def test_spark_reads_what_typed_rows_write_and_the_reverse_in_many_rows(
    spark: SparkSession, figure: Callable[[str], None]
) -> None:
    seed = int(os.environ.get("DIFFERENCES_SEED", random.SystemRandom().randrange(1 << 32)))
    schemas = int(os.environ.get("DIFFERENCES_SCHEMAS", 20))
    figure(f"DIFFERENCES_SEED={seed}, {schemas} schemas")
    figure(f"{check(spark, seed, schemas, 250)} values were the same for Spark's functions and typed rows")
