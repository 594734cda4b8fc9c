"""JSON as RocketMQ's Java side writes it, which is not always JSON.

Two spellings occur. *Standard*: keys quoted, maps sorted, non-ASCII escaped; name servers answer routes so to clients
of version 401 and above. *fastjson*: everything else, and everything in configuration files. There, integer map keys
stand unquoted, ``{0:"ip:port"}``, and objects may be keys, ``{{"queueId":0,…}:{…}}``.

In Python, an object that is a key becomes a tuple of its (name, value) pairs sorted by name; keys that are unquoted
integers or words become their text, so that both spellings of a map come out equal. When writing, ``int`` keys stand
unquoted and tuples of pairs as objects. Strings are accepted with raw control characters and fastjson's own escapes.

Time and memory are linear in the size of the text. Its depth is bounded, and for a peer's text the number of its values
(:class:`TextLimits`), because two bytes can be an object of a hundred. Thread-safety: pure functions.
Corresponds to com.alibaba.fastjson as remoting.protocol.RemotingSerializable and common.ConfigManager use it.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire import json as json_codec

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class TextLimits:
    """What a peer's text may cost its reader."""

    max_values: int
    """Values at any depth and escapes: at most so many objects are made."""
    max_odd_values: int
    """The same for a text that is not standard JSON, which is read in Python."""
    max_odd_bytes: int
    """Length of a text that is not standard JSON."""


#: A request body that a server reads on its event loop: at most some tens of milliseconds.
REQUEST_LIMITS = TextLimits(max_values=100_000, max_odd_values=20_000, max_odd_bytes=256 * 1024)

_BLANK = r"[ \t\r\n]*+"
_KEY = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?\d++(?:\.\d++)?+(?:[eE][+-]?\d++)?+|[A-Za-z_$][\w$]*+'
_SCALAR = rf"({_KEY}){_BLANK}([,\]}}]?+)"  # and what follows it
# Possessive quantifiers: nothing is ever tried twice. One match is a whole field or item, unless that is a container.
_FIELD = re.compile(
    rf"{_BLANK}(?:([{{}}])|({_KEY}){_BLANK}:{_BLANK}(?:([{{\[])|{_SCALAR}))",  # mark, key, container, scalar, next
    re.DOTALL | re.ASCII,
)
_ITEM = re.compile(rf"{_BLANK}(?:([{{\[\]])|{_SCALAR})", re.DOTALL | re.ASCII)  # mark, scalar, next
_NEXT = re.compile(rf"{_BLANK}([,:\]}}]?+)")
_WORDS = {"true": True, "false": False, "null": None, "NaN": None}
_ODD_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(v)|(')|([0-7])|(.))", re.DOTALL)


def loads_tolerant(data: Buffer | str, limits: TextLimits | None = None) -> Any:
    """The value of a text in either spelling; ``ProtocolError`` for anything else.

    With ``limits``, what would cost more is refused before it is read.
    """
    if limits is not None:
        check_values(data, limits.max_values)
    try:
        return json_codec.loads(data)
    except ValueError:  # not standard; the error is of no use, since this parser takes more
        pass
    if limits is not None:
        _check_odd(data, limits)
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"A JSON text is not UTF-8 at byte {error.start}.", remedy=_REMEDY) from None
    return _Parser(text).parse()


def check_values(data: Buffer | str, most: int) -> None:
    """``ProtocolError`` if a text could have more than ``most`` values and escapes.

    Each value follows the text's start, a bracket or a comma, and those are counted, also within strings. That takes
    a fraction of any parser's time, and makes no objects.
    """
    values = _values(data) if len(data) > most else 0
    if values > most:
        raise ProtocolError(
            f"A JSON text of {len(data):,} bytes has up to {values:,} values; at most {most:,} are read.",
            remedy="Send less at once.",
        )


def _check_odd(data: Buffer | str, limits: TextLimits) -> None:
    size = len(data)
    values = _values(data) if size > limits.max_odd_values else 0
    if size > limits.max_odd_bytes or values > limits.max_odd_values:
        raise ProtocolError(
            f"A text of {size:,} bytes with up to {values:,} values is not standard JSON; other spellings are read up "
            f"to {limits.max_odd_bytes:,} bytes and {limits.max_odd_values:,} values.",
            remedy="Quote every key and send UTF-8, or send less at once.",
        )


def _values(data: Buffer | str) -> int:
    if isinstance(data, str):
        return 1 + sum(data.count(mark) for mark in ",[{\\")
    raw = bytes(data) if isinstance(data, memoryview) else data
    return 1 + sum(raw.count(mark) for mark in b",[{\\")


_WRITE_REMEDY = "Only plain maps, lists, Unicode text, 64-bit numbers, booleans and None can be written."
_REMEDY = "The text is damaged, cut short, or not what RocketMQ writes."


class _Parser:
    """Recursive descent over one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> Any:
        value, after = self._item()
        if after or self._at != len(self._text):
            raise self._bad("there is more after its end")
        return value

    def _container(self, mark: str) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._bad(f"it is nested deeper than {MAX_DEPTH}")
        value: Any = self._object() if mark == "{" else self._array()
        self._depth -= 1
        return value

    def _next(self) -> str:
        """The mark that follows, or nothing."""
        match = _NEXT.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        mark: str = match[1]
        return mark

    def _object(self) -> dict[Any, Any]:
        fields: dict[Any, Any] = {}
        while True:
            match = _FIELD.match(self._text, self._at)
            if match is None:
                raise self._bad("no field can be read there")
            mark, key, container, token, after = match.groups()
            self._at = match.end()
            if mark == "}":  # of an empty object, or after a comma
                return fields
            if mark:
                pairs = self._object_key()
                fields[pairs], after = self._item()
            else:
                name = self._string(key) if key[0] == '"' else key
                if token is None:
                    fields[name] = self._container(container)
                    after = self._next()
                else:
                    fields[name] = self._scalar(token)
            if after == "}":
                return fields
            if after != ",":
                raise self._bad("a comma is missing")

    def _object_key(self) -> tuple[Any, ...]:
        """An object that is a key. Its fields are plain: a key that holds keys is hashed once for each level."""
        key = self._container("{")
        if not all(type(name) is str and type(value) not in (dict, list) for name, value in key.items()):
            raise self._bad("what stands as a key is not an object of plain fields")
        if self._next() != ":":
            raise self._bad("a colon is missing")
        return tuple(sorted(key.items()))

    def _item(self) -> tuple[Any, str]:
        """A value, and the mark that follows it."""
        match = _ITEM.match(self._text, self._at)
        if match is None or match[1] == "]":
            raise self._bad("no value stands there")
        mark, token, after = match.groups()
        self._at = match.end()
        if token is not None:
            return self._scalar(token), after
        value = self._container(mark)
        return value, self._next()

    def _array(self) -> list[Any]:
        items: list[Any] = []
        while True:
            match = _ITEM.match(self._text, self._at)
            if match is None:
                raise self._bad("no value stands there")
            mark, token, after = match.groups()
            self._at = match.end()
            if mark == "]":  # of an empty array, or after a comma
                return items
            if token is None:
                items.append(self._container(mark))
                after = self._next()
            else:
                items.append(self._scalar(token))
            if after == "]":
                return items
            if after != ",":
                raise self._bad("a comma is missing")

    def _scalar(self, token: str) -> Any:
        first = token[0]
        if first == '"':
            return self._string(token)
        if first in "-0123456789":
            return self._number(token)
        if token in _WORDS:
            return _WORDS[token]
        raise self._bad(f"{token[:40]!r} stands where a value should")

    def _string(self, token: str) -> str:
        text = token[1:-1]
        if "\\" in text:
            text = self._unescaped(token)
        if not text.isascii():  # a lone surrogate would be no text: Java prints it as a question mark too
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text

    def _unescaped(self, token: str) -> str:
        try:
            text: str = json.loads(token, strict=False)
        except ValueError:
            try:
                text = json.loads(_ODD_ESCAPE.sub(_usual_escape, token), strict=False)
            except ValueError:
                raise self._bad("a string holds an escape that nobody knows") from None
        return text

    def _number(self, token: str) -> int | float:
        if len(token) <= 20 and token.lstrip("-").isdigit():
            return int(token)
        number = float(token)
        if math.isinf(number):  # of which nothing could be made; standard JSON's parser refuses it too
            raise self._bad(f"{token[:40]} is no number that a float can hold")
        return number

    def _bad(self, what: str) -> ProtocolError:
        near = self._text[max(0, self._at - 20) : self._at + 20]
        return ProtocolError(
            f"A JSON text of {len(self._text):,} characters cannot be read near {self._at:,} ({near!r}): {what}.",
            remedy=_REMEDY,
        )


def _usual_escape(match: re.Match[str]) -> str:
    """An escape of fastjson's own as a standard one; standard ones stay."""
    pair, tab, quote, octal, other = match.groups()
    if pair:
        return f"\\u00{pair}"
    if tab:
        return "\\u000b"
    if quote:
        return "'"
    return f"\\u000{octal}" if octal else f"\\{other}"


def dumps_standard(value: Any) -> bytes:
    """Standard spelling: sorted, ASCII only, integer keys quoted."""
    try:
        raw = json_codec.dumps_sorted(value)
    except TypeError as error:
        raise ProtocolError(f"A value cannot be written as JSON: {error}.", remedy=_WRITE_REMEDY) from None
    return raw if raw.isascii() else json.dumps(json_codec.loads(raw), separators=(",", ":")).encode()


def dumps_fastjson(value: Any, *, pretty: bool = False) -> bytes:
    """fastjson's spelling; ``pretty`` as it writes configuration files: one field a line, indented with tabs."""
    pieces: list[str] = []
    try:
        _write(value, pieces, "\n" if pretty else "", 0)
    except TypeError as error:
        raise ProtocolError(f"A value cannot be written as JSON: {error}.", remedy=_WRITE_REMEDY) from None
    return "".join(pieces).encode()


def _write(value: Any, pieces: list[str], line: str, depth: int) -> None:
    """Append the text of ``value``; ``line`` is what starts a line at its depth, or nothing."""
    if depth > MAX_DEPTH:
        raise TypeError(f"it is nested deeper than {MAX_DEPTH}")
    if type(value) is dict:
        if not value:
            pieces.append("{}")
            return
        # fastjson breaks lines before quoted keys only; those of a map with other keys follow one another.
        inner = line and line + "\t"
        between = inner if type(next(iter(value))) is str else ""
        start = "{" + between
        for key, item in value.items():
            pieces.append(start)
            _write_key(key, pieces, depth)
            if type(item) is int:
                pieces.append(f":{item}")
            else:
                pieces.append(":")
                _write(item, pieces, inner, depth + 1)
            start = "," + between
        pieces.append(line + "}")
    elif type(value) is list:
        inner = line and line + "\t"
        start = "[" + inner if value else "["
        for item in value:
            pieces.append(start)
            _write(item, pieces, inner, depth + 1)
            start = "," + inner
        pieces.append(line + "]" if value else "[]")
    else:
        pieces.append(json_codec.dumps(value).decode())


def _write_key(key: Any, pieces: list[str], depth: int) -> None:
    if type(key) is tuple:
        _write(dict(key), pieces, "", depth + 1)
    elif isinstance(key, (str, int)):
        pieces.append(json_codec.dumps(key).decode())
    else:
        raise TypeError(f"{type(key).__name__} is no key")
