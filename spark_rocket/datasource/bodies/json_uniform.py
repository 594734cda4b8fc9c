"""Uniform JSON bodies to columns without a parser: the fast path of ``json_reader``.

One program mostly writes its objects in one way: the same members in the same order with the same white space. Then
the values differ, and the bytes between them are the same in every body::

    {"id":17,"name":"user-17","ok":true}
    ^^^^^^  ^^^^^^^^^       ^^^^^^^    ^     the template, from the first body

The names are found by ``":`` in one scan, and the template's bytes are compared around them. There are as many
quotation marks as the template has, and no backslashes. So no value contains either, and no other mark can hide.

All of a batch is decoded, or nothing: one body that differs, a null, or a value that does not fit leaves the batch to
Arrow's parser. Bodies of 147 bytes with 8 members take half the time that Arrow's parser takes.

Belongs to one task.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spark_rocket.datasource.bodies.decoding import BAD, I64, raw

_MIN_BODIES = 512  # with fewer, a template does not pay off
_MAX_MISSES = 3
_MAX_BYTES = 2**31 - 64
_WORD = 8
_MEMBER = re.compile(rb'[,{] *"([^"]*)":( *)(?:(")[^"]*"|[^" ,:{}\[\]]+)')
_QUOTE, _BACKSLASH, _COLON, _PLUS, _MINUS, _DOT, _ZERO, _Z = b'"\\:+-.0Z'
_WHOLE, _DECIMAL = (np.frombuffer(characters, np.uint8) for characters in (b"-", b"-+.eE"))  # in addition to digits
_U8 = np.ndarray[Any, np.dtype[np.uint8]]


class _DiffersError(Exception):
    """The batch is not uniform, or has values for Arrow's parser."""


@dataclass(frozen=True)
class _Member:
    """A member of the template. ``before``: the bytes between the previous value and its own value."""

    name: str
    before: bytes
    gap: int
    """From the quotation mark that ends the name to the value."""


class UniformDecoder:
    """Decodes batches of uniform bodies to the columns of ``fields``."""

    def __init__(self, fields: pa.Schema) -> None:
        self._kinds = dict(zip(fields.names, fields.types, strict=True))
        self._misses = 0 if all(_is_plain(kind) for kind in fields.types) else _MAX_MISSES

    def decode(self, bodies: pa.Array) -> list[pa.Array] | None:
        """Return the columns; None if the bodies are not uniform, or too few."""
        if self._misses >= _MAX_MISSES or len(bodies) < _MIN_BODIES:
            return None
        try:
            columns = self._decode(bodies)
        except (_DiffersError, *BAD):
            self._misses += 1
            return None
        self._misses = 0
        return columns

    def _decode(self, bodies: pa.Array) -> list[pa.Array]:
        data, edges = raw(bodies)
        data = np.append(data[edges[0] : edges[-1]], np.zeros(_WORD, np.uint8))
        edges = edges - edges[0]
        inside = data[:-_WORD]
        if len(inside) > _MAX_BYTES or not len(inside) or inside.min() < 32 or (inside == _BACKSLASH).any():
            raise _DiffersError
        members, last = _template(inside[: edges[1]].tobytes())
        if {member.name for member in members} - self._kinds.keys():
            raise _DiffersError  # Arrow's parser checks whether other members are valid JSON
        quotes = data == _QUOTE
        names = np.flatnonzero(quotes[:-1] & (data[1:] == _COLON))
        marks = last.count(b'"') + sum(member.before.count(b'"') for member in members)
        count = len(bodies)
        if len(names) != len(members) * count or np.count_nonzero(quotes) != marks * count:
            raise _DiffersError
        texts = _Texts(data)
        starts = [names[at :: len(members)] + member.gap for at, member in enumerate(members)]
        ends = [start - len(member.before) for start, member in zip(starts, members, strict=True)]
        ends = [*ends[1:], edges[1:] - len(last)]
        _check(bool((starts[0] - len(members[0].before) == edges[:-1]).all()))
        for start, end, member in zip(starts, ends, members, strict=True):
            _check(bool((end >= start).all()))
            texts.check(start - len(member.before), member.before)
        texts.check(ends[-1], last)
        found = {
            member.name: _values(texts.between(start, end), member.before.endswith(b'"'), self._kinds[member.name])
            for start, end, member in zip(starts, ends, members, strict=True)
        }
        return [found[name] if name in found else pa.nulls(count, kind) for name, kind in self._kinds.items()]


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    checks = (types.is_signed_integer, types.is_float32, types.is_float64, types.is_boolean, types.is_string)
    return any(check(kind) for check in checks) or types.is_date32(kind) or types.is_timestamp(kind)


def _check(holds: bool) -> None:
    if not holds:
        raise _DiffersError


def _template(body: bytes) -> tuple[list[_Member], bytes]:
    """Return the members of a body, and the bytes after the last value."""
    members: list[_Member] = []
    at = end = 0
    while match := _MEMBER.match(body, end):
        is_string = match[3] is not None
        start = match.end(3) if is_string else match.end(2)
        members.append(_Member(match[1].decode(), body[at:start], start - match.end(1)))
        end = match.end()
        at = end - is_string
    last = body[at:]
    _check(bool(members) and last.removeprefix(b'"').strip(b" ") == b"}")
    _check(len({member.name for member in members}) == len(members))
    return members, last


class _Texts:
    """The bodies' bytes, followed by a word of zeros."""

    def __init__(self, data: _U8) -> None:
        self._data = data
        self._words = np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))

    def check(self, places: I64, text: bytes) -> None:
        """Raise unless ``text`` is at all of these positions."""
        for at in range(0, len(text), _WORD):
            part = text[at : at + _WORD]
            words = self._words[places + at]
            if len(part) < _WORD:
                words &= np.uint64((1 << 8 * len(part)) - 1)
            _check(bool((words == np.uint64(int.from_bytes(part, "little"))).all()))

    def between(self, starts: I64, ends: I64) -> pa.Array:
        """Return the bytes from each start to its end."""
        edges = np.zeros(2 * len(starts) + 1, np.int32)
        edges[1::2], edges[2::2] = starts, ends
        buffers = [None, pa.py_buffer(edges), pa.py_buffer(self._data)]
        every = pa.Array.from_buffers(pa.binary(), 2 * len(starts), buffers)
        return every.take(pa.array(np.arange(1, 2 * len(starts), 2))).cast(pa.string())


def _values(texts: pa.Array, is_string: bool, kind: pa.DataType) -> pa.Array:
    """Convert a column's values like Arrow's parser."""
    types = pa.types
    if is_string:
        if types.is_timestamp(kind):
            _check_zones(texts, kind)
        elif not (types.is_string(kind) or types.is_date32(kind)):
            raise _DiffersError
        return texts.cast(kind)
    if types.is_boolean(kind):
        lengths = np.diff(raw(texts)[1])
        _check(bool(np.isin(texts.dictionary_encode().dictionary.to_pylist(), ("true", "false")).all()))
        return pa.array(lengths == len("true"))
    if not (types.is_integer(kind) or types.is_floating(kind)):
        raise _DiffersError
    _check_numbers(texts, types.is_integer(kind))
    return texts.cast(kind)


def _check_zones(texts: pa.Array, kind: pa.DataType) -> None:
    """Parser and cast agree on times in UTC, and on those without a zone where the column has none."""
    data, edges = raw(texts)
    _check(bool((edges[1:] > edges[:-1]).all()))
    lasts = data[edges[1:] - 1]
    _check(bool((_is_digit(lasts) if kind.tz is None else lasts == _Z).all()))


def _check_numbers(texts: pa.Array, is_whole: bool) -> None:
    """Raise for what the cast accepts and JSON does not: ``0x1F``, ``inf``, ``+1``, ``01``, ``1.``, ``.5``."""
    data, edges = raw(texts)
    begins, ends = edges[:-1], edges[1:]
    _check(bool((ends > begins).all()))
    data = data[: edges[-1]]
    digits = _is_digit(data)
    others = np.flatnonzero(~digits)
    _check(bool(np.isin(data[others], _WHOLE if is_whole else _DECIMAL).all()))
    begins = begins + (data[begins] == _MINUS)
    _check(bool((begins < ends).all() and digits[begins].all() and digits[ends - 1].all()))
    zeros = begins[(data[begins] == _ZERO) & (ends - begins > 1)]
    _check(bool((~digits[zeros + 1]).all()))
    dots = others[data[others] == _DOT]
    _check(bool((digits[dots - 1] & digits[dots + 1]).all()))
    pluses = others[data[others] == _PLUS]
    _check(not digits[pluses - 1].any())


def _is_digit(data: _U8) -> np.ndarray[Any, np.dtype[np.bool_]]:
    digits: np.ndarray[Any, np.dtype[np.bool_]] = data - np.uint8(_ZERO) <= 9
    return digits
