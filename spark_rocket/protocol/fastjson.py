"""JSON as RocketMQ's Java side writes it, which is not always JSON.

Two spellings occur. *Standard*: keys quoted, maps sorted, non-ASCII escaped; name servers answer routes so to clients
of version 401 and above. *fastjson*: everything else, and everything in configuration files. There, integer map keys
stand unquoted, ``{0:"ip:port"}``, and objects may be keys, ``{{"queueId":0,…}:{…}}``.

In Python, an object that is a key becomes a tuple of its (name, value) pairs sorted by name; keys that are unquoted
integers or words become their text, so that both spellings of a map come out equal. When writing, ``int`` keys stand
unquoted and tuples of pairs as objects. Strings are accepted with raw control characters and fastjson's own escapes.

Time is linear in the size of the text, depth is bounded. Thread-safety: pure functions.
Corresponds to com.alibaba.fastjson as remoting.protocol.RemotingSerializable and common.ConfigManager use it.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeAlias

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol import json_codec

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_DEPTH = 100
#: How long a request body may be that is not standard JSON: one peer must not keep a server from the others.
REQUEST_ODD_LIMIT = 256 * 1024

# One token, with the blanks before it. Possessive quantifiers: nothing is ever tried twice.
_TOKEN = re.compile(
    r"""[ \t\r\n]*+(?:
        (?P<mark>[{}\[\]:,])
      | (?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+")
      | (?P<number>-?\d++(?:\.\d++)?+(?:[eE][+-]?\d++)?+)
      | (?P<word>[A-Za-z_$][\w$]*+)
    )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_BLANKS = re.compile(r"[ \t\r\n]*+")
_WORDS = {"true": True, "false": False, "null": None, "NaN": None}
_ODD_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(v)|(')|([0-7])|(.))", re.DOTALL)


def loads_tolerant(data: Buffer | str, *, odd_limit: int | None = None) -> Any:
    """The value of a text in either spelling; ``ProtocolError`` for anything else.

    What is not standard JSON is read in Python, about 1 MB a second; above ``odd_limit`` it is refused.
    """
    try:
        return json_codec.loads(data)
    except ValueError:  # not standard; the error is of no use, since this parser takes more
        pass
    if odd_limit is not None and len(data) > odd_limit:
        raise ProtocolError(
            f"A text of {len(data):,} bytes is not standard JSON; other spellings are read up to {odd_limit:,}.",
            remedy="Quote every key and send UTF-8, or send less at once.",
        )
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"A JSON text is not UTF-8 at byte {error.start}.", remedy=_REMEDY) from None
    return _Parser(text).parse()


_WRITE_REMEDY = "Only plain maps, lists, Unicode text, 64-bit numbers, booleans and None can be written."
_REMEDY = "The text is damaged, cut short, or not what RocketMQ writes."


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> Any:
        kind, token = self._next()
        value = self._value(kind, token)
        blanks = _BLANKS.match(self._text, self._at)
        if blanks is None or blanks.end() != len(self._text):
            raise self._bad("there is more after its end")
        return value

    def _next(self) -> tuple[str, str]:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._bad("it is not JSON there" if self._text[self._at :].strip() else "it ends too early")
        self._at = match.end()
        kind = match.lastgroup or ""
        return kind, match[kind]

    def _value(self, kind: str, token: str) -> Any:
        if kind == "text":
            return self._string(token)
        if kind == "number":
            return self._number(token)
        if kind == "word" and token in _WORDS:
            return _WORDS[token]
        if token not in ("{", "["):
            raise self._bad(f"{token[:40]!r} stands where a value should")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._bad(f"it is nested deeper than {MAX_DEPTH}")
        value: Any = self._object() if token == "{" else self._array()
        self._depth -= 1
        return value

    def _object(self) -> dict[Any, Any]:
        fields: dict[Any, Any] = {}
        kind, token = self._next()
        while token != "}":
            key = self._key(kind, token)
            if self._next() != ("mark", ":"):
                raise self._bad("a colon is missing")
            fields[key] = self._value(*self._next())
            kind, token = self._next()
            if token == ",":
                kind, token = self._next()
            elif token != "}":
                raise self._bad("a comma is missing")
        return fields

    def _key(self, kind: str, token: str) -> Any:
        if kind == "text":
            return self._string(token)
        if kind in ("number", "word"):
            return token
        key = self._value(kind, token)
        try:
            pairs = tuple(sorted(key.items())) if type(key) is dict else ([],)
            hash(pairs)
        except TypeError:
            raise self._bad("what stands as a key is not an object of plain fields") from None
        return pairs

    def _array(self) -> list[Any]:
        items: list[Any] = []
        kind, token = self._next()
        while token != "]":
            items.append(self._value(kind, token))
            kind, token = self._next()
            if token == ",":
                kind, token = self._next()
            elif token != "]":
                raise self._bad("a comma is missing")
        return items

    def _string(self, token: str) -> str:
        try:
            text: str = json.loads(token, strict=False)
        except ValueError:
            try:
                text = json.loads(_ODD_ESCAPE.sub(_usual_escape, token), strict=False)
            except ValueError:
                raise self._bad("a string holds an escape that nobody knows") from None
        if not text.isascii():  # a lone surrogate would be no text: Java prints it as a question mark too
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
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
