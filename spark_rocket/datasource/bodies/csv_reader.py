"""CSV bodies to columns, a batch at once by Arrow's parser: each body is one line without a header.

Bodies that hold a line end (in a quoted value, or by mistake) are decoded alone. So none of the others can become two
rows, only two of them one, through a quote that is not closed: when there are as many rows as bodies, each is its own
body's. An empty value that is not quoted is null, and so an empty body is the null of a schema of one column.

Lines without a quote have as many values as delimiters and one more: those that have too few or too many are found
before Arrow sees them. So are those with text behind a closing quote, which Arrow would make a part of the value. Each
line is given to Arrow with its end: without one an empty last value, behind a quoted one, would be quoted too.

Belongs to one task. Corresponds to Spark's UnivocityParser.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from spark_rocket.datasource.bodies.decoding import BAD, I64, Decoded, decode_together, raw, reason
from spark_rocket.datasource.bodies.text_values import is_read_as_text, values_of
from spark_rocket.errors import SchemaError

_MARK = b"\xef\xbb\xbf"
_QUOTE = b'"'
# A line read alone costs as much as some hundred read together.
_STEPS = 256


class CsvDecoder:
    """Decodes lines to the columns of ``fields``, in their order."""

    def __init__(self, fields: pa.Schema, delimiter: str) -> None:
        for item in fields:
            if pa.types.is_nested(item.type) or not _fits(item.type):
                raise SchemaError(
                    f"the column {item.name} is {item.type}, which CSV has no values for.",
                    remedy="Declare it as string, and take it apart in the query.",
                )
        self._fields = fields
        self._as_read = pa.schema(
            [(item.name, pa.string() if is_read_as_text(item.type) else item.type) for item in fields]
        )
        self._delimiter = delimiter.encode()
        self._line = _line_pattern(delimiter)
        self._parse = {"delimiter": delimiter, "ignore_empty_lines": False}
        self._convert = pyarrow.csv.ConvertOptions(
            column_types=self._as_read,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["true", "True", "TRUE"],
            false_values=["false", "False", "FALSE"],
        )

    def decode(self, bodies: pa.Array) -> Decoded:
        data, edges = raw(bodies)
        used = data[edges[0] : edges[-1]]
        ends = np.flatnonzero((used == 10) | (used == 13)) + edges[0]
        if len(ends):
            bodies = pa.array([body.rstrip(b"\r\n") for body in bodies.to_pylist()], pa.binary())
            data, edges = raw(bodies)
            ends = np.flatnonzero((data == 10) | (data == 13))
        doubtful = np.zeros(len(bodies), np.bool_)
        doubtful[np.searchsorted(edges, ends, side="right") - 1] = True
        doubtful[edges[1:] == edges[:-1]] = True
        delimiters, quotes = (_count(data, edges, character) for character in (self._delimiter, _QUOTE))
        doubtful |= (delimiters + 1 != len(self._fields)) & (quotes == 0)
        if quotes.any():
            doubtful |= ~self._is_well_quoted(bodies)
        return self._typed(
            decode_together(bodies, self._as_read, doubtful, self._prepare, self._one_by_one, _STEPS), len(bodies)
        )

    def _typed(self, decoded: Decoded, count: int) -> Decoded:
        """With the values of those columns that are read as text; a record with a text that is none of them is bad."""
        bad = dict(decoded.bad)
        columns = [
            values_of(column, item.type, bad) if is_read_as_text(item.type) else column
            for column, item in zip(decoded.columns, self._fields, strict=True)
        ]
        if len(bad) > len(decoded.bad):
            mask = np.zeros(count, np.bool_)
            mask[list(bad)] = True
            columns = [pc.if_else(mask, pa.scalar(None, column.type), column) for column in columns]
        return Decoded(columns, dict(sorted(bad.items())))

    def _is_well_quoted(self, bodies: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.asarray(pc.match_substring_regex(bodies, self._line).to_numpy(zero_copy_only=False))

    def _prepare(self, bodies: pa.Array) -> Any:
        data, edges = raw(pc.binary_join_element_wise(bodies, b"", b"\n"))
        buffer = pa.py_buffer(data)

        def decode(low: int, high: int) -> list[pa.Array]:
            begin, end = int(edges[low]), int(edges[high])
            return self._read(buffer.slice(begin, end - begin), high - low)

        return decode

    def _read(self, buffer: pa.Buffer, count: int) -> list[pa.Array]:
        if memoryview(buffer)[:3] == _MARK:
            raise ValueError("a byte order mark in row 0")  # it would be left out where a batch begins, only there
        table = pyarrow.csv.read_csv(
            pa.BufferReader(buffer),
            read_options=pyarrow.csv.ReadOptions(
                use_threads=False, block_size=buffer.size + 1, column_names=self._fields.names
            ),
            parse_options=pyarrow.csv.ParseOptions(**self._parse, newlines_in_values=count == 1),
            convert_options=self._convert,
        )
        if table.num_rows != count:
            raise ValueError(f"{table.num_rows} lines instead of {count}")
        columns = []
        for item in self._as_read:
            column = table.column(item.name)
            array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            columns.append(array)
        return columns

    def _one_by_one(self, bodies: pa.Array) -> Decoded:
        rows: list[list[pa.Array]] = []
        bad: dict[int, str] = {}
        nothing = [pa.nulls(1, item.type) for item in self._as_read]
        well_quoted = self._is_well_quoted(bodies)
        for index, body in enumerate(bodies.to_pylist()):
            if not body and len(self._fields) == 1:
                rows.append(nothing)
                continue
            try:
                if not body:
                    raise ValueError("the body is empty")
                if not well_quoted[index]:
                    raise ValueError("a quotation mark is not closed, or there is text behind one that closes a value")
                values = body.count(self._delimiter) + 1
                if values != len(self._fields) and _QUOTE not in body:
                    raise ValueError(f"it has {values} values, and the schema {len(self._fields)}")
                rows.append(self._read(pa.py_buffer(body + b"\n"), 1))
            except BAD as error:
                rows.append(nothing)
                bad[index] = reason(error)
        return Decoded([pa.concat_arrays(list(column)) for column in zip(*rows, strict=True)], bad)


def _line_pattern(delimiter: str) -> str:
    """What matches a line whose quoted values end where their quotes close."""
    mark = rf"\x{ord(delimiter):02x}"
    value = rf'(?:"(?:[^"]|"")*"|[^"{mark}][^{mark}]*|)'
    return rf"\A{value}(?:{mark}{value})*\z"


def _count(data: np.ndarray[Any, np.dtype[np.uint8]], edges: I64, character: bytes) -> I64:
    """How often each body has a character."""
    places = np.flatnonzero(data[: edges[-1]] == ord(character))
    found: I64 = np.diff(np.searchsorted(places, edges))
    return found


def _fits(kind: pa.DataType) -> bool:
    types = pa.types
    checks = (types.is_boolean, types.is_integer, types.is_float32, types.is_float64, types.is_decimal)
    return any(check(kind) for check in (*checks, types.is_string, types.is_date32, types.is_timestamp))
