"""CSV bodies to columns, a batch at once by Arrow's parser: each body is one line without a header.

Bodies that contain a line end (in a quoted value, or by mistake) are decoded alone. So no other body can become two
rows. Two bodies can become one row through a quote that is not closed. When there are as many rows as bodies, each row
is its own body's. An unquoted empty value is null, so an empty body is the null of a schema of one column.

Lines without a quote have as many values as delimiters plus one: lines with too few or too many values are found
before Arrow reads them. Each line is passed to Arrow with its end: without one an empty last value behind a quoted one
would be quoted too.

Lines with quotes are read by the rules of ``from_csv``. Within quotes, the escape character (``csvEscape``) stands
before a quote or itself, and is an ordinary character elsewhere; blanks may follow a closing quote. Arrow's parser
knows only doubled quotes, so other lines are translated to them. A line with a quote that is not closed, or with text
behind a closing one, is malformed: Arrow would make the text a part of the value.

All values are read as strings. A column of strings is then cast at once (the fast path). If Arrow rejects the column,
each of its values is converted by itself. So whether a value is accepted does not depend on its neighbours.

Arrow neither notices an overflow when it scales a decimal, nor checks that its table of powers of ten has the exponent
of a string. Numbers of at most 38 digits without an exponent, read as ``decimal256``, cause neither.

Belongs to one task. Corresponds to Spark's UnivocityParser.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from spark_rocket.datasource.bodies.decoding import (
    BAD,
    I64,
    BodyError,
    ColumnError,
    Decoded,
    DecodeSpan,
    bytes_and_edges,
    decode_together,
    one_line,
    reason,
    spans_of,
)
from spark_rocket.datasource.bodies.json_values import NUMBER, Convert, Rules, converter
from spark_rocket.datasource.time_zones import UTC, Zone

_MARK = b"\xef\xbb\xbf"
_QUOTE = b'"'
_MAX_DIGITS = 38
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_BLANKS = "".join(map(chr, range(33)))  # what Java's String.trim removes
# Values of floating-point numbers that are names, as in from_csv's options and in Java.
_NAMES = ("NaN", "+NaN", "-NaN", "Inf", "-Inf", "Infinity", "+Infinity", "-Infinity")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class CsvDecoder:
    """Decodes lines to the columns of ``fields``, in their order."""

    def __init__(self, fields: pa.Schema, delimiter: str, escape: str, zone: Zone = UTC) -> None:
        self._fields = fields
        self._zone = zone
        self._texts = pa.schema([(item.name, pa.string()) for item in fields])
        self._delimiter = delimiter.encode()
        self._quotes = _Quotes(delimiter, escape)
        self._parse = {"delimiter": delimiter, "ignore_empty_lines": False}
        self._convert = pyarrow.csv.ConvertOptions(
            column_types=self._texts, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        )

    def decode(self, bodies: pa.Array) -> Decoded:
        data, edges = bytes_and_edges(bodies)
        used = data[edges[0] : edges[-1]]
        if ((used == 10) | (used == 13)).any():
            bodies = pa.array([body.rstrip(b"\r\n") for body in bodies.to_pylist()], pa.binary())
        if (used == ord(_QUOTE)).any():
            bodies = self._quotes.as_doubled(bodies)
        data, edges = bytes_and_edges(bodies)
        ends = np.flatnonzero((data == 10) | (data == 13))
        ends = ends[(ends >= edges[0]) & (ends < edges[-1])]
        doubtful = np.zeros(len(bodies), np.bool_)
        doubtful[np.searchsorted(edges, ends, side="right") - 1] = True
        doubtful[edges[1:] == edges[:-1]] = True
        delimiters, quotes = (_count(data, edges, character) for character in (self._delimiter, _QUOTE))
        doubtful |= (delimiters + 1 != len(self._fields)) & (quotes == 0)
        decoded = decode_together(bodies, self._texts, doubtful, self._prepare, self._one_by_one, small=1)
        bad = dict(decoded.bad)
        columns = [
            _values(column, item, self._zone, bad) for column, item in zip(decoded.columns, self._fields, strict=True)
        ]
        if len(bad) > len(decoded.bad):
            mask = np.zeros(len(bodies), np.bool_)
            mask[list(bad)] = True
            columns = [pc.if_else(mask, pa.scalar(None, column.type), column) for column in columns]
        return Decoded(columns, dict(sorted(bad.items())))

    def _prepare(self, bodies: pa.Array) -> DecodeSpan:
        return spans_of(pc.binary_join_element_wise(bodies, b"", b"\n"), self._read)

    def _read(self, buffer: pa.Buffer, count: int) -> list[pa.Array]:
        if buffer.slice(0, min(3, buffer.size)).to_pybytes() == _MARK:
            buffer = pa.py_buffer(_MARK + buffer.to_pybytes())  # Arrow removes a mark only at the start of its input
        table = pyarrow.csv.read_csv(
            pa.BufferReader(buffer),
            read_options=pyarrow.csv.ReadOptions(
                use_threads=False, block_size=buffer.size + 1, column_names=self._fields.names
            ),
            parse_options=pyarrow.csv.ParseOptions(**self._parse, newlines_in_values=count == 1),
            convert_options=self._convert,
        )
        if table.num_rows != count:
            raise BodyError(f"{table.num_rows} lines instead of {count}")
        return [column.combine_chunks() for column in table.columns]

    def _one_by_one(self, bodies: pa.Array) -> Decoded:
        rows: list[list[pa.Array]] = []
        bad: dict[int, str] = {}
        nothing = [pa.nulls(1, pa.string())] * len(self._texts)
        for index, body in enumerate(bodies.to_pylist()):
            if body == b"" and len(self._fields) == 1:
                rows.append(nothing)
                continue
            try:
                if body is None:
                    raise BodyError(self._quotes.rule)
                if not body:
                    raise BodyError("the body is empty")
                values = body.count(self._delimiter) + 1
                if values != len(self._fields) and _QUOTE not in body:
                    raise BodyError(f"it has {values} values, but the schema has {len(self._fields)}")
                rows.append(self._read(pa.py_buffer(body + b"\n"), 1))
            except BAD as error:
                rows.append(nothing)
                bad[index] = reason(error)
        return Decoded([pa.concat_arrays(list(column)) for column in zip(*rows, strict=True)], bad)


class _Quotes:
    """The rules for quoted values with an escape character."""

    def __init__(self, delimiter: str, escape: str) -> None:
        mark, other = (rf"\x{ord(character):02x}" for character in (delimiter, escape))
        simple = rf'"[^"{other}]*"' if escape != '"' else r'"(?:[^"]|"")*"'
        content = rf'[^"{other}]++|{other}[\x00-\xff]' if escape != '"' else r'[^"]++|""'
        blanks = "".join(rf"\x{code:02x}" for code in range(33) if code not in (10, 13, ord(delimiter)))
        value = rf'"((?:{content})*+)"[{blanks}]*+'
        plain = rf'[^"{mark}][^{mark}]*'
        self.rule = (
            "a quotation mark is not closed, or text follows one that closes a value; within quotes, "
            f"{escape} escapes a quotation mark (csvEscape)"
        )
        self._simple = rf"\A(?:{simple}|{plain}|)(?:{mark}(?:{simple}|{plain}|))*\z"
        self._line = re.compile(rf"(?:{value}|{plain}|)(?:{mark}(?:{value}|{plain}|))*+".encode())
        self._value = re.compile(rf"(?:(?<={mark})|\A){value}".encode())
        self._escaped = re.compile(rf'{other}(["{other}])'.encode()) if escape != '"' else None

    def as_doubled(self, bodies: pa.Array) -> pa.Array:
        """Return lines whose quotes are escaped by doubling them; null for a malformed line."""
        simple = pc.match_substring_regex(bodies, self._simple)
        if pc.all(simple).as_py():
            return bodies
        other = pc.invert(simple)
        lines = [self._line_as_doubled(body) for body in bodies.filter(other).to_pylist()]
        return pc.replace_with_mask(bodies, other, pa.array(lines, pa.binary()))

    def _line_as_doubled(self, body: bytes) -> bytes | None:
        return self._value.sub(self._value_as_doubled, body) if self._line.fullmatch(body) else None

    def _value_as_doubled(self, value: re.Match[bytes]) -> bytes:
        content = value[1]
        if self._escaped is not None:
            content = self._escaped.sub(lambda pair: pair[1].replace(_QUOTE, b'""'), content)
        return b'"%s"' % content


def _count(data: np.ndarray[Any, np.dtype[np.uint8]], edges: I64, character: bytes) -> I64:
    """Return how often each body contains a character."""
    places = np.flatnonzero(data[: edges[-1]] == ord(character))
    found: I64 = np.diff(np.searchsorted(places, edges))
    return found


def _values(texts: pa.Array, item: pa.Field, zone: Zone, bad: dict[int, str]) -> pa.Array:
    """Convert a column. An invalid value becomes null, and its row is put into ``bad`` with the reason."""
    try:
        return _cast(texts, item.type, zone)
    except (ValueError, pa.ArrowException):
        pass
    convert = _text_converter(item.type, item.name, zone)
    values = []
    for row, text in enumerate(texts.to_pylist()):
        try:
            values.append(convert(text))
        except BAD as error:
            values.append(None)
            bad.setdefault(row, reason(error))
    return pa.array(values, item.type)


def _text_converter(kind: pa.DataType, name: str, zone: Zone) -> Convert:
    """Return a converter for one value, with the rules of ``_cast`` or Spark."""
    types = pa.types
    if types.is_decimal(kind) or types.is_date32(kind) or types.is_timestamp(kind):
        known = converter(kind, name, Rules(zone=zone))
        return lambda text: known(text or None)

    def wrong(text: str, wanted: str) -> ColumnError:
        return ColumnError(name, f"{one_line(text[:60])!r} is not {wanted}")

    def convert(text: str | None) -> Any:
        if text is None or (not text and not types.is_string(kind)):  # "" is a string, or null
            return None
        if types.is_boolean(kind):
            if text.lower() not in _BOOLEANS:
                raise wrong(text, "true or false")
            return _BOOLEANS[text.lower()]
        if types.is_integer(kind):
            if not _WHOLE.fullmatch(text):
                raise wrong(text, "an integer")
            bound = 1 << (kind.bit_width - 1)
            if not -bound <= int(text) < bound:
                raise wrong(text, f"within {kind}")
            return int(text)
        number = text.strip(_BLANKS)
        if types.is_floating(kind):
            if number not in _NAMES and not NUMBER.fullmatch(number):
                raise wrong(text, "a number")
            return pa.scalar(number).cast(kind).as_py()
        return text

    return convert


def _cast(texts: pa.Array, kind: pa.DataType, zone: Zone) -> pa.Array:
    types = pa.types
    if types.is_decimal(kind):
        return _decimals(texts, kind)
    if types.is_timestamp(kind) and kind.tz is not None:
        return zone.parse(texts, kind)
    if types.is_boolean(kind):
        known = pc.is_in(texts, value_set=pa.array([None, *_BOOLEANS], pa.string()))
        if not pc.all(known).as_py():
            raise ValueError("some value is not true or false")
    elif types.is_integer(kind) or types.is_floating(kind):
        _check_letters(texts, is_whole=types.is_integer(kind))
    return texts.cast(kind)  # the cast to a timestamp without a zone rejects strings with one


def _check_letters(texts: pa.Array, *, is_whole: bool) -> None:
    """Reject what Arrow accepts and from_csv does not: ``0xFF`` as an integer, ``nan`` and ``INF`` as a number."""
    data, edges = bytes_and_edges(texts)
    letters = data[edges[0] : edges[-1]] | 32  # in lower case
    letters = letters[letters >= ord("a")]
    if not len(letters) or (not is_whole and (letters == ord("e")).all()):
        return
    named = pc.drop_null(texts.filter(pc.match_substring_regex(texts, "[^-+.0-9eE]")))
    if is_whole or not pc.all(pc.is_in(named, value_set=pa.array(_NAMES))).as_py():
        raise ValueError("some value is not a number")


def _decimals(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    longest = pc.max(pc.binary_length(texts)).as_py()
    if longest is None:
        return pa.nulls(len(texts), kind)
    if longest > _MAX_DIGITS or any(pc.any(pc.match_substring(texts, letter)).as_py() for letter in "eE"):
        raise ValueError("a decimal number is long, or has an exponent")
    return texts.cast(pa.decimal256(76, kind.scale)).cast(kind)
