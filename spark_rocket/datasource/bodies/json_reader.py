"""JSON bodies to columns, a batch at once by Arrow's parser.

The bodies of a batch are joined, each with an inserted first member: ``{"3f…": 1, `` and the rest of the body. The
member's name is random, so no body contains it, and every object that the parser finds must have it once. There are as
many such members as bodies, in order. So when there are as many objects, each one begins at its own body's first byte
and ends before the next: a body that is half an object, two objects, or an object with text behind it cannot move the
rows of others. (NUL ends Arrow's parser and is never JSON, so it is replaced by another illegal byte.)

``json_values`` is the general path, for bodies that the parser refuses. It accepts everything that the parser accepts,
and more (numbers as strings, repeated names, Spark's date formats). Bodies with decimals that the parser might misread
(``csv_reader``) go there directly.

Belongs to one task. Corresponds to Spark's JacksonParser.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from spark_rocket.datasource.bodies.decoding import (
    BAD,
    I64,
    Decoded,
    DecodeSpan,
    bytes_and_edges,
    columns_of,
    decode_together,
    reason,
    spans_of,
)
from spark_rocket.datasource.bodies.epoch_units import times, unit_of
from spark_rocket.datasource.bodies.json_values import ABSENT, AS_SPARK, Rules, converter, parse_object

_BRACE = ord("{")
# A number that may have an exponent of two digits, and an escape that may hide one.
_EXPONENT = r"""[\s":,\[][+-]?[0-9.]+[eE][+-]?[0-9][0-9]+[\s",}\]]|\\u00"""


class JsonDecoder:
    """Decodes JSON objects to the columns of ``fields``."""

    def __init__(self, fields: pa.Schema, rules: Rules = AS_SPARK) -> None:
        self._fields = fields
        self._rules = rules
        self._convert = {item.name: converter(item.type, item.name, rules) for item in fields}
        self._mark = secrets.token_hex(8)
        readable = [_readable(item.type, item.name, rules) for item in fields]
        self._by_arrow = all(kind is not None for kind in readable)
        self._has_decimals = any(_holds_decimals(item.type) for item in fields)
        if self._by_arrow:
            named = zip(fields.names, readable, strict=True)
            explicit = pa.schema([pa.field(self._mark, pa.int8()), *(pa.field(name, kind) for name, kind in named)])
            self._options = pyarrow.json.ParseOptions(
                explicit_schema=explicit, newlines_in_values=False, unexpected_field_behavior="ignore"
            )

    def decode(self, bodies: pa.Array) -> Decoded:
        data, edges = bytes_and_edges(bodies)
        doubtful = np.ones(len(bodies), np.bool_)
        if self._by_arrow:
            filled = np.flatnonzero(edges[1:] > edges[:-1])
            doubtful[filled] = data[edges[:-1][filled]] != _BRACE
            doubtful |= self._may_be_misread(bodies)
        return decode_together(bodies, self._fields, doubtful, self._prepare, self._one_by_one)

    def _may_be_misread(self, bodies: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Bodies that may hold a decimal with a large exponent: Arrow's table may lack its power of ten."""
        if not self._has_decimals:
            return np.zeros(len(bodies), np.bool_)
        return np.asarray(pc.match_substring_regex(bodies, _EXPONENT).to_numpy(zero_copy_only=False))

    def _prepare(self, bodies: pa.Array) -> DecodeSpan:
        return spans_of(pc.binary_replace_slice(bodies, 0, 1, f'{{"{self._mark}":1,'.encode()), self._read)

    def _read(self, buffer: pa.Buffer, count: int) -> list[pa.Array]:
        data = np.frombuffer(buffer, np.uint8)
        if (data <= 13).any():
            # Line ends are white space or, in a string, illegal; so is a tab, which does not separate lines.
            data = data.copy()
            data[(data == 10) | (data == 13)] = 9
            data[data == 0] = 1
            buffer = pa.py_buffer(data)
        options = pyarrow.json.ReadOptions(use_threads=False, block_size=buffer.size + 1)
        table = pyarrow.json.read_json(pa.BufferReader(buffer), read_options=options, parse_options=self._options)
        marks = table.column(self._mark)
        if table.num_rows != count or marks.null_count:
            raise ValueError("some body is not one JSON object")
        columns = []
        for item in self._fields:
            column = table.column(item.name)
            array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            array.validate(full=True)  # the parser does not check that strings are UTF-8
            columns.append(_as(array, item.type, item.name, self._rules))
        return columns

    def _one_by_one(self, bodies: pa.Array) -> Decoded:
        rows: list[dict[str, Any] | None] = []
        bad: dict[int, str] = {}
        doubtful_rows: set[int] = set()
        for index, body in enumerate(bodies.to_pylist()):
            try:
                found = parse_object(body)
                rows.append({name: convert(found.get(name, ABSENT)) for name, convert in self._convert.items()})
            except BAD as error:
                rows.append(None)
                bad[index] = reason(error)
                if isinstance(error, (UnicodeDecodeError, RecursionError)) or b"Inf" in body or b"NaN" in body:
                    doubtful_rows.add(index)
        columns = columns_of(rows, self._fields, bad)
        return Decoded(self._recheck(bodies, columns, bad, doubtful_rows) if self._by_arrow else columns, bad)

    def _recheck(
        self, bodies: pa.Array, columns: list[pa.Array], bad: dict[int, str], doubtful_rows: set[int]
    ) -> list[pa.Array]:
        """Decide doubtful records independently of their batch. Only Arrow's parser accepts ``Inf`` and ``-NaN``
        as numbers, and ignores invalid UTF-8 and nesting depth in members that are not columns."""
        places: I64 = np.arange(len(bodies))
        parts: list[list[pa.Array]] = [[column] for column in columns]
        for index in sorted(doubtful_rows):
            body = bodies.slice(index, 1)
            if body[0].as_py()[:1] != b"{" or self._may_be_misread(body)[0]:
                continue
            try:
                values = self._prepare(body)(0, 1)
            except BAD:
                continue
            del bad[index]
            places[index] = len(bodies) + len(parts[0]) - 1
            for part, value in zip(parts, values, strict=True):
                part.append(value)
        if not parts or len(parts[0]) == 1:
            return columns
        return [pa.concat_arrays(part).take(pa.array(places)) for part in parts]


def _readable(kind: pa.DataType, path: str, rules: Rules) -> pa.DataType | None:
    """Return the type as which Arrow's JSON parser reads a column for ``_as``; None if it cannot."""
    types = pa.types
    if types.is_struct(kind):
        inner = [_readable(item.type, f"{path}.{item.name}", rules) for item in kind]
        if not inner or any(one is None for one in inner):
            return None
        return pa.struct([kind.field(index).with_type(one) for index, one in enumerate(inner)])
    if types.is_list(kind):
        item = _readable(kind.value_type, f"{path}.element", rules)
        return None if item is None else pa.list_(kind.value_field.with_type(item))
    if _is_quoted(kind, path, rules):
        return pa.string()
    if types.is_date32(kind) or types.is_timestamp(kind):
        if unit_of(rules.units, path, kind) is not None:
            return pa.int64()
        # The parser drops zones from times that should have none; the cast rejects them.
        return kind if types.is_timestamp(kind) and kind.tz is not None and rules.zone.is_utc else pa.string()
    if types.is_decimal(kind):
        return pa.decimal256(38, kind.scale)  # scaling one cannot overflow; it is cast to ``kind`` afterwards
    plain = (types.is_boolean, types.is_integer, types.is_float32, types.is_float64, types.is_string)
    return kind if any(check(kind) for check in plain) else None


def _is_quoted(kind: pa.DataType, path: str, rules: Rules) -> bool:
    """Return whether the values of a column are expected as strings, which ``converter`` reads."""
    types = pa.types
    is_number = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    return rules.quoted and (is_number or unit_of(rules.units, path, kind) is not None)


def _as(array: pa.Array, kind: pa.DataType, path: str, rules: Rules) -> pa.Array:
    """Convert a column from the type of ``_readable``. Raises if ``converter`` might read a value differently."""
    types = pa.types
    if array.type.equals(kind, check_metadata=True):
        return array
    if types.is_struct(kind):
        members = [_as(array.field(at), item.type, f"{path}.{item.name}", rules) for at, item in enumerate(kind)]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=array.is_null())
    if types.is_list(kind):
        edges = array.offsets
        items = _as(array.values, kind.value_type, f"{path}.element", rules)
        return pa.ListArray.from_arrays(edges, items, type=kind, mask=array.is_null())
    if _is_quoted(kind, path, rules):
        read = converter(kind, path, rules)
        return pa.array([read(text) for text in array.to_pylist()], kind)
    if types.is_string(array.type) and types.is_timestamp(kind) and kind.tz is not None:
        return rules.zone.parse(array, kind)
    unit = unit_of(rules.units, path, kind)
    return array.cast(kind) if unit is None else times(array, unit, kind)


def _holds_decimals(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return True
    return any(_holds_decimals(kind.field(index).type) for index in range(kind.num_fields))
