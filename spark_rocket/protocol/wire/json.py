"""JSON as RocketMQ's Java side writes it, which is not always JSON.

There are two forms. *Standard*: keys quoted, maps sorted, non-ASCII escaped; name servers send routes in this form to
clients of version 401 and above. *fastjson*: everything else, including configuration files. There, integer map keys
are unquoted, ``{0:"ip:port"}``, and objects can be keys, ``{{"queueId":0,…}:{…}}``.

In Python, an object that is a key becomes a tuple of its (name, value) pairs sorted by name; unquoted integer and word
keys become strings, so that both forms of a map are equal. When writing, ``int`` keys are unquoted, and tuples of pairs
become objects. Strings can contain raw control characters and fastjson's own escapes.

Standard JSON is read and written by orjson if it is installed, else by the standard library: Spark's workers can run
the connector from a zip file with only pyspark, pyarrow and numpy. Both read and write the same RocketMQ data; they
differ on input that no peer sends, such as lone surrogates.

Time and memory are linear in the size of the input. Its depth is limited, and for input from a peer also the number of
its values (:class:`TextLimits`), because two bytes can become an object of a hundred. Corresponds to
com.alibaba.fastjson as remoting.protocol.RemotingSerializable and common.ConfigManager use it.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from spark_rocket.common.values import FrozenValue
from spark_rocket.errors import ProtocolError
from spark_rocket.protocol import Buffer

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]


MAX_DEPTH = 100


def plain_loads(data: Buffer | str) -> Any:
    """``loads`` of the standard library."""
    try:
        return json.loads(data if isinstance(data, str) else str(data, "utf-8"), parse_constant=_reject)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _reject(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def plain_dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """``dumps`` of the standard library."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys).encode()
    except (ValueError, RecursionError) as error:
        raise TypeError(f"not JSON: {error}") from None


#: Decode JSON; ValueError if it is not standard JSON in UTF-8.
loads = plain_loads if orjson is None else orjson.loads
#: Encode as UTF-8 without blanks, in the order of the dicts (string keys); TypeError if JSON cannot express it.
dumps = plain_dumps if orjson is None else orjson.dumps


def dumps_sorted(value: Any) -> bytes:
    """``dumps`` with sorted keys, which may be numbers."""
    if orjson is None:
        return plain_dumps(value, sort_keys=True)
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TextLimits(FrozenValue):
    """Limits of JSON from a peer, which bound the cost of decoding it."""

    max_values: int
    """Values at any depth, and escapes: the largest number of objects created."""
    max_odd_values: int
    """The same for JSON that is not standard, which is decoded in Python."""
    max_odd_bytes: int
    """Length of JSON that is not standard."""


#: For a request body that a server decodes on its event loop: at most some tens of milliseconds.
REQUEST_LIMITS = TextLimits(max_values=100_000, max_odd_values=20_000, max_odd_bytes=256 * 1024)

# Possessive quantifiers: no backtracking.
_TOKEN = re.compile(
    r'[ \t\r\n]*+([{}\[\]:,]|"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?\d++(?:\.\d++)?+(?:[eE][+-]?\d++)?+|[A-Za-z_$][\w$]*+)',
    re.DOTALL | re.ASCII,
)
_MARKS = frozenset("{}[]:,")
_WORDS = {"true": True, "false": False, "null": None, "NaN": None}
_ODD_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(v)|(')|([0-7])|(.))", re.DOTALL)


def loads_tolerant(data: Buffer | str, limits: TextLimits | None = None) -> Any:
    """Decode JSON in either form; ``ProtocolError`` for anything else.

    With ``limits``, larger input is rejected before it is decoded.
    """
    if limits is not None:
        check_values(data, limits.max_values)
    try:
        return loads(data)
    except ValueError:  # not standard; this parser accepts more
        pass
    if limits is not None:
        _check_odd(data, limits)
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"Invalid UTF-8 in JSON at byte {error.start}.", remedy=_REMEDY) from None
    return _JsonParser(text).parse()


def check_values(data: Buffer | str, most: int) -> None:
    """``ProtocolError`` if JSON could have more than ``most`` values and escapes.

    Each value follows the start, a bracket or a comma; these are counted, also within strings. This takes a fraction
    of any parser's time, and creates no objects.
    """
    values = _values(data) if len(data) > most else 0
    if values > most:
        raise ProtocolError(
            f"JSON of {len(data):,} bytes has up to {values:,} values, at most {most:,} are allowed.",
            remedy="Send less in one request.",
        )


def _check_odd(data: Buffer | str, limits: TextLimits) -> None:
    size = len(data)
    values = _values(data) if size > limits.max_odd_values else 0
    if size > limits.max_odd_bytes or values > limits.max_odd_values:
        raise ProtocolError(
            f"Input of {size:,} bytes with up to {values:,} values is not standard JSON; non-standard JSON is limited "
            f"to {limits.max_odd_bytes:,} bytes and {limits.max_odd_values:,} values.",
            remedy="Quote every key and send UTF-8, or send less in one request.",
        )


def _values(data: Buffer | str) -> int:
    if isinstance(data, str):
        return 1 + sum(data.count(mark) for mark in ",[{\\")
    raw = bytes(data) if isinstance(data, memoryview) else data
    return 1 + sum(raw.count(mark) for mark in b",[{\\")


_WRITE_REMEDY = "Only plain maps, lists, Unicode text, 64-bit numbers, booleans and None can be written."
_REMEDY = "The text is damaged, cut short, or not what RocketMQ writes."


class _JsonParser:
    """Recursive descent over one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> Any:
        value = self._value(self._token())
        if self._text[self._at :].strip(" \t\r\n"):
            raise self._bad("there is more after its end")
        return value

    def _token(self) -> str:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._bad("invalid text or end")
        self._at = match.end()
        token: str = match[1]
        return token

    def _value(self, token: str) -> Any:
        first = token[0]
        if first == '"':
            return self._string(token)
        if first in "-0123456789":
            return self._number(token)
        if first in "{[":
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise self._bad(f"it is nested deeper than {MAX_DEPTH}")
            value: Any = self._object() if first == "{" else self._array()
            self._depth -= 1
            return value
        if token in _WORDS:
            return _WORDS[token]
        raise self._bad(f"{token[:40]!r} is not a value")

    def _object(self) -> dict[Any, Any]:
        fields: dict[Any, Any] = {}
        token = self._token()
        while token != "}":
            key = self._key(token)
            if self._token() != ":":
                raise self._bad("a colon is missing")
            fields[key] = self._value(self._token())
            token = self._after_item("}")
        return fields

    def _key(self, token: str) -> Any:
        if token[0] == '"':
            return self._string(token)
        if token not in _MARKS:
            return token
        if token != "{":
            raise self._bad(f"{token!r} is not a name")
        # Its fields are plain: a key that holds keys would be hashed once for each level.
        key = self._value(token)
        if not all(type(name) is str and type(value) not in (dict, list) for name, value in key.items()):
            raise self._bad("the key is not an object of plain fields")
        return tuple(sorted(key.items()))

    def _array(self) -> list[Any]:
        items: list[Any] = []
        token = self._token()
        while token != "]":
            items.append(self._value(token))
            token = self._after_item("]")
        return items

    def _after_item(self, end: str) -> str:
        """The first token of the next field or item, or the end; the last one may be followed by a comma."""
        token = self._token()
        if token == ",":
            return self._token()
        if token != end:
            raise self._bad("a comma is missing")
        return token

    def _string(self, token: str) -> str:
        text = token[1:-1]
        if "\\" in text:
            try:
                text = json.loads(token, strict=False)
            except ValueError:
                try:
                    text = json.loads(_ODD_ESCAPE.sub(_usual_escape, token), strict=False)
                except ValueError:
                    raise self._bad("a string holds an unknown escape") from None
        if not text.isascii():  # Java prints a lone surrogate as a question mark
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text

    def _number(self, token: str) -> int | float:
        if len(token) <= 20 and token.lstrip("-").isdigit():
            return int(token)
        number = float(token)
        if math.isinf(number):
            raise self._bad(f"{token[:40]} does not fit a float")
        return number

    def _bad(self, what: str) -> ProtocolError:
        near = self._text[max(0, self._at - 20) : self._at + 20]
        return ProtocolError(
            f"A JSON text of {len(self._text):,} characters is invalid near {self._at:,} ({near!r}): {what}.",
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
    """Encode as standard JSON: sorted, ASCII only, integer keys quoted."""
    try:
        raw = dumps_sorted(value)
    except TypeError as error:
        raise ProtocolError(f"Cannot encode a value as JSON: {error}.", remedy=_WRITE_REMEDY) from None
    return raw if raw.isascii() else json.dumps(loads(raw), separators=(",", ":")).encode()


def dumps_fastjson(value: Any, *, pretty: bool = False) -> bytes:
    """Encode as fastjson does; ``pretty`` as in configuration files: one field a line, indented with tabs."""
    pieces: list[str] = []
    try:
        _write(value, pieces, "\n" if pretty else "", 0)
    except TypeError as error:
        raise ProtocolError(f"Cannot encode a value as JSON: {error}.", remedy=_WRITE_REMEDY) from None
    return "".join(pieces).encode()


def _write(value: Any, pieces: list[str], line: str, depth: int) -> None:
    """Append the text of ``value``; ``line`` is what starts a line at its depth, or nothing."""
    if depth > MAX_DEPTH:
        raise TypeError(f"it is nested deeper than {MAX_DEPTH}")
    if type(value) is dict:
        if not value:
            pieces.append("{}")
            return
        # fastjson breaks lines before quoted keys only; the pairs of a map with other keys follow one another.
        inner = line and line + "\t"
        between = inner if type(next(iter(value))) is str else ""
        start = "{" + between
        for key, item in value.items():
            pieces.append(start)
            _write_key(key, pieces, depth)
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
        pieces.append(dumps(value).decode())


def _write_key(key: Any, pieces: list[str], depth: int) -> None:
    if type(key) is tuple:
        _write(dict(key), pieces, "", depth + 1)
    elif isinstance(key, (str, int)):
        pieces.append(dumps(key).decode())
    else:
        raise TypeError(f"{type(key).__name__} is not a key")
