"""Schemas as Spark SQL writes them: ``id bigint, tags array<string>, price decimal(10,2) NOT NULL``.

``StructType.fromDDL`` needs a running Spark, which reads without Spark do not have. The grammar is that of Spark's
``.schema("…")``: names as they are or in back quotes, an optional colon, comments (ignored), nested types. Types
that Arrow batches cannot hold (CHAR, year-month intervals) are not known here.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from spark_rocket.datasource.column_types import TIMESTAMP, TIMESTAMP_NTZ, VARIANT, list_of
from spark_rocket.datasource.conditions import error
from spark_rocket.errors import RocketError

_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
    "variant": VARIANT,
    "void": pa.null(),
}
_DECIMALS = ("decimal", "dec", "numeric")
_TOKEN = re.compile(r"""\s*(`(?:[^`]|``)+`|\w+|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[<>(),:]|\S|$)""")
_MAX_DEPTH = 100


def parse_ddl(text: str) -> pa.Schema:
    """Return the columns of a schema. SchemaError names the place of a mistake."""
    return pa.schema(_Parser(text).columns())


class _Parser:
    """Reads one text from its start to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: Iterator[re.Match[str]] = _TOKEN.finditer(text)
        self._depth = 0
        self._advance()

    def columns(self) -> list[pa.Field]:
        fields = self._fields()
        if self._token:
            raise self._wrong("a comma or the end")
        return fields

    def _advance(self) -> str:
        """Return the current token, and go to the next; the last is empty."""
        token = getattr(self, "_token", "")
        found = next(self._tokens)
        self._token, self._at = found[1], found.start(1)
        return token

    def _take(self, token: str) -> bool:
        """Go on if this is the current token, in any case."""
        is_next = self._token.lower() == token
        if is_next:
            self._advance()
        return is_next

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise self._wrong(f"{token!r}")

    def _fields(self) -> list[pa.Field]:
        fields = [self._field()]
        while self._take(","):
            fields.append(self._field())
        return fields

    def _field(self) -> pa.Field:
        if not re.match(r"\w|`.", self._token):
            raise self._wrong("a name")
        name = self._advance()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        self._take(":")
        kind = self._type()
        nullable = True
        if self._take("not"):
            self._expect("null")
            nullable = False
        if self._take("comment"):
            if self._token[:1] not in ("'", '"'):
                raise self._wrong("a comment in quotes")
            self._advance()
        return pa.field(name, kind, nullable)

    def _type(self) -> pa.DataType:
        name = self._token.lower()
        if name in _TYPES:
            self._advance()
            return _TYPES[name]
        if name in _DECIMALS:
            self._advance()
            return self._decimal()
        if name not in ("array", "map", "struct") or self._depth >= _MAX_DEPTH:
            raise self._wrong("a type")
        self._advance()
        self._depth += 1
        self._expect("<")
        if name == "struct":
            kind = pa.struct([] if self._token == ">" else self._fields())
        elif name == "array":
            kind = list_of(self._type())
        else:
            key = self._type()
            self._expect(",")
            kind = pa.map_(key, self._type())
        self._expect(">")
        self._depth -= 1
        return kind

    def _decimal(self) -> pa.DataType:
        digits, scale = 10, 0
        if self._take("("):
            digits = self._number()
            scale = self._number() if self._take(",") else 0
            self._expect(")")
        if not scale <= digits or not 1 <= digits <= 38:
            raise self._wrong("at most 38 digits, and not more of them after the point", before=True)
        return pa.decimal128(digits, scale)

    def _number(self) -> int:
        if not re.fullmatch("[0-9]{1,3}", self._token):
            raise self._wrong("a number")
        return int(self._advance())

    def _wrong(self, wanted: str, *, before: bool = False) -> RocketError:
        where = "before" if before else "at"
        found = repr(self._token) if self._token else "the end"
        return error(
            "BAD_SCHEMA.DDL", text=self._text, where=f"{where} {found} (character {self._at + 1})", wanted=wanted
        )
