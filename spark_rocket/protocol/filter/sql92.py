"""SQL92 filters: an expression over a message's properties, parsed once and evaluated for every message.

=====================================  ==============================================================================
syntax                                 meaning
=====================================  ==============================================================================
``a = 1``, ``<>``, ``>``, ``>=`` …     comparison; ``<>`` is the only operator for *unequal*
``a BETWEEN 1 AND 5``, ``NOT BETWEEN``  both ends included; constants must be in order
``a IN ('x', 'y')``, ``NOT IN``        strings only, of a property only
``a IS NULL``, ``IS NOT NULL``         whether the message has the property
``a CONTAINS 'x'``, ``STARTSWITH``,    text within, at the start, at the end (5.x); ``NOT`` may precede each; a missing
``ENDSWITH``                           property matches neither form
``AND``, ``OR``, ``NOT``, ``( )``      three-valued: the result for a missing property is *unknown*, not false
``1``, ``1.5``, ``'it''s'``,           constants; ``-- …`` to the line's end and ``/* … */`` are comments
``TRUE``, ``FALSE``, ``NULL``
=====================================  ==============================================================================

Properties are text. Next to a number they are parsed as a number of its kind, as Java does: ``a > 5`` cannot parse
``5.5`` or ``3000000000`` (not an Integer), ``a > 5.0`` can. A property that cannot be parsed, or an order comparison
with text that is not a number, makes the entire expression false for that message. Unlike in the original, text after
a complete expression is an error; there it is silently ignored.

Thread-safety: pure; expressions are immutable. Any text is either parsed or rejected with ProtocolError.
Corresponds to org.apache.rocketmq.filter (SelectorParser and the expressions).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.filter.tags import MAX_EXPRESSION_CHARACTERS

MAX_DEPTH = 50
"""The maximum nesting depth of parentheses, signs and NOTs."""

MAX_CHAIN = 4
"""The maximum number of chained comparisons: ``a = 1 = TRUE``."""

Value: TypeAlias = bool | int | float | str | None
Evaluate: TypeAlias = Callable[[Mapping[str, str]], Value]

_TOKEN = re.compile(
    r"""
      (?P<skip>    [\ \t\n\r\f]+ | --[^\n\r]*(?:\r\n|\n|\r|\Z) | /\*(?:[^*]|\*+[^*/])*\*+/ )
    | (?P<float>   [0-9]+\.[0-9]*(?:E[+-]?[0-9]+)? | \.[0-9]+(?:E[+-]?[0-9]+)? | [0-9]+E[+-]?[0-9]+ )
    | (?P<int>     0(?![0-9]) | [1-9][0-9]*L? )
    | (?P<string>  '(?:''|[^'])*' )
    | (?P<name>    [A-Z_$][A-Z0-9_$]* )
    | (?P<symbol>  <> | <= | >= | [=<>(),+-] )
    """,
    re.VERBOSE | re.IGNORECASE,
)
_RESERVED = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
# Possessive quantifiers: no backtracking over the digits of a text that is not a number.
_DOUBLE = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[fFdD]?)\Z")
_INT_RANGE = range(-(1 << 31), 1 << 31)
_LONG_RANGE = range(-(1 << 63), 1 << 63)
_SMALLEST_DOUBLE = 5e-324
_BLANKS = "".join(map(chr, range(33)))


class _NotComparable(Exception):  # noqa: N818 - what makes one message not match, never seen outside
    """Two values that cannot be compared, as in Java."""


class Sql92Expression:
    """A parsed expression."""

    __slots__ = ("_evaluate", "text")

    def __init__(self, text: str, evaluate: Evaluate) -> None:
        self.text = text
        self._evaluate = evaluate

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties matches: only true matches, unknown does not."""
        try:
            return self._evaluate(properties) is True
        except _NotComparable:
            return False

    def __repr__(self) -> str:
        return f"Sql92Expression({self.text!r})"


@lru_cache(maxsize=128)
def parse_sql92(text: str) -> Sql92Expression:
    """Parse an expression; ProtocolError has the position and the reason."""
    if len(text) > MAX_EXPRESSION_CHARACTERS:
        raise ProtocolError(
            f"The SQL92 expression is too long: {len(text):,} characters, at most {MAX_EXPRESSION_CHARACTERS:,}.",
            remedy="Use a shorter expression, and filter the rest in the consumer.",
        )
    return Sql92Expression(text, _Sql92Parser(text).parse())


# --- values and their comparison ------------------------------------------------------------------------------------


class _Node:
    """A parsed part: its evaluation, and the properties that the checks of the grammar need."""

    __slots__ = ("boolean", "constant", "evaluate", "kind", "value")

    def __init__(
        self, evaluate: Evaluate, *, kind: str = "", boolean: bool = False, value: Value = None, constant: bool = False
    ) -> None:
        self.evaluate = evaluate
        self.kind = kind
        self.boolean = boolean
        self.value = value
        self.constant = constant


def _constant(value: Value) -> _Node:
    return _Node(lambda _: value, value=value, constant=True, boolean=value is None or isinstance(value, bool))


def _to_number(text: str, beside: float) -> float:
    """Parse text as the kind of number that it is compared with: Integer, Long or Double."""
    if isinstance(beside, float):
        trimmed = text.strip(_BLANKS)
        if not _DOUBLE.match(trimmed):
            raise _NotComparable
        return float(trimmed.rstrip("fFdD") if trimmed[-1] in "fFdD" and "N" not in trimmed else trimmed)
    if not _INTEGER.match(text) or len(text) > 40:
        raise _NotComparable
    number = int(text)
    if number not in (_INT_RANGE if beside in _INT_RANGE else _LONG_RANGE):
        raise _NotComparable
    return number


def _compare(left: Value, right: Value) -> int:
    """Compare like Java's ``compareTo`` after its conversions; −1 for kinds without an order."""
    if isinstance(left, bool) or isinstance(right, bool):
        if isinstance(left, str):
            left = left.lower() == "true"
        elif isinstance(right, str):
            # The original converts the left side, which already is a Boolean, and fails in the cast.
            raise _NotComparable
        if not (isinstance(left, bool) and isinstance(right, bool)):
            return -1
        return left - right
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    if isinstance(left, str):
        assert isinstance(right, (int, float))
        left = _to_number(left, right)
    elif isinstance(right, str):
        assert isinstance(left, (int, float))
        right = _to_number(right, left)
    assert isinstance(left, (int, float))
    assert isinstance(right, (int, float))
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
        if math.isnan(left) or math.isnan(right):  # Java: equal to itself, above all else
            return math.isnan(left) - math.isnan(right)
    return (left > right) - (left < right)


def _equal(left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        a, b = left(properties), right(properties)
        if a is None or b is None:
            if a is b:
                return True
            return None if a is None else False
        if type(a) is type(b):
            return a == b or _compare(a, b) == 0
        return _compare(a, b) == 0

    return evaluate


_ORDERS: dict[str, Callable[[int], bool]] = {
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
}


def _ordered(left: Evaluate, symbol: str, right: Evaluate) -> Evaluate:
    holds = _ORDERS[symbol]

    def evaluate(properties: Mapping[str, str]) -> Value:
        a = left(properties)
        if a is None:
            return None
        b = right(properties)
        if b is None:
            return None
        if isinstance(a, str) and isinstance(b, str):
            return holds(_compare(_to_number(a, 0.0), _to_number(b, 0.0)))
        return holds(_compare(a, b))

    return evaluate


def _negated(part: Evaluate) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        value = part(properties)
        if value is None:
            return None
        if not isinstance(value, bool):
            raise _NotComparable
        return not value

    return evaluate


def _joined(parts: list[Evaluate], settles: bool) -> Evaluate:
    """AND (decided by False) or OR (decided by True) of any number of parts, unknown if none decides it."""

    def evaluate(properties: Mapping[str, str]) -> Value:
        unknown = False
        for part in parts:
            value = part(properties)
            if value is settles:
                return settles
            unknown = unknown or value is None
        return None if unknown else not settles

    return evaluate


def _as_boolean(part: Evaluate) -> Evaluate:
    """A property alone as a condition: it is text, so false; unknown if missing."""
    return lambda properties: None if part(properties) is None else False


def _found_in(part: Evaluate, test: Callable[[str, str], bool], wanted: str, inverted: bool) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        value = part(properties)
        return bool(wanted) and isinstance(value, str) and test(value, wanted) is not inverted

    return evaluate


_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda value, wanted: wanted in value,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


# --- the grammar ----------------------------------------------------------------------------------------------------


class _Sql92Parser:
    """Recursive descent; a method for each rule of the original's grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        self._at = 0
        self._depth = 0
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                what = "a string without its closing quote" if text[position] == "'" else f"{text[position]!r}"
                raise self._refused(f"{what} cannot stand there", position)
            kind, token = str(match.lastgroup), match.group()
            if kind == "name" and token.upper() in _RESERVED:
                kind, token = "word", token.upper()
            if kind != "skip":
                self._tokens.append((kind, token, position))
            position = match.end()
        self._tokens.append(("end", "", len(text)))

    def parse(self) -> Evaluate:
        node = self._or()
        if self._tokens[self._at][0] != "end":
            raise self._refused(f"{self._tokens[self._at][1]!r} follows a whole expression")
        return self._boolean(node)

    def _refused(self, why: str, position: int | None = None) -> ProtocolError:
        if position is None:
            position = self._tokens[self._at][2]
        shown = self._text if len(self._text) <= 200 else f"{self._text[:200]}…"
        return ProtocolError(
            f"Invalid SQL92 expression {shown!r}: {why} (character {position + 1}).",
            remedy="Example: price BETWEEN 10 AND 20 AND region IN ('eu', 'us') AND TAGS IS NOT NULL",
        )

    def _take(self, *tokens: str) -> str:
        """Return the next token if it is one of these words or symbols, otherwise nothing."""
        kind, token, _ = self._tokens[self._at]
        if kind in ("word", "symbol") and token in tokens:
            self._at += 1
            return token
        return ""

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise self._refused(f"{token!r} is missing")

    def _boolean(self, node: _Node) -> Evaluate:
        if node.boolean:
            return node.evaluate
        if node.kind == "property":
            return _as_boolean(node.evaluate)
        raise self._refused("true or false was expected, not a value")

    def _or(self) -> _Node:
        return self._chain("OR", self._and, settles=True)

    def _and(self) -> _Node:
        return self._chain("AND", self._equality, settles=False)

    def _chain(self, word: str, rule: Callable[[], _Node], *, settles: bool) -> _Node:
        first = rule()
        if not self._take(word):
            return first
        parts = [self._boolean(first), self._boolean(rule())]
        while self._take(word):
            parts.append(self._boolean(rule()))
        return _Node(_joined(parts, settles), boolean=True)

    def _equality(self) -> _Node:
        left = self._comparison()
        count = 0
        while True:
            symbol = self._take("=", "<>", "IS")
            if not symbol:
                return left
            if symbol == "IS":
                inverted = bool(self._take("NOT"))
                self._expect("NULL")
                test = _equal(left.evaluate, lambda _: None)
            else:
                inverted = symbol == "<>"
                right = self._comparison()
                for side in (left, right):
                    if side.constant and side.value is None:
                        raise self._refused("NULL cannot be compared; write IS NULL")
                if left.constant and right.constant and left.boolean and not right.boolean:
                    raise self._refused("TRUE and FALSE cannot be compared with other constants")
                test = _equal(left.evaluate, right.evaluate)
            left = _Node(_negated(test) if inverted else test, boolean=True)
            self._check_chain(count := count + 1)

    def _comparison(self) -> _Node:
        left = self._unary()
        count = 0
        while True:
            self._check_chain(count)
            count += 1
            symbol = self._take(*_ORDERS)
            if symbol:
                left = self._order(left, symbol, self._unary())
                continue
            at = self._at
            inverted = bool(self._take("NOT"))
            word = self._take("BETWEEN", "IN", *_TEXT_TESTS)
            if not word:
                self._at = at
                return left
            if word == "BETWEEN":
                left = self._between(left, inverted)
            elif word == "IN":
                left = self._in(left, inverted)
            else:
                test = _found_in(left.evaluate, _TEXT_TESTS[word], self._string(), inverted)
                left = _Node(test, boolean=True)

    def _order(self, left: _Node, symbol: str, right: _Node) -> _Node:
        for side in (left, right):
            if side.boolean or (side.constant and isinstance(side.value, str)):
                raise self._refused(f"only numbers and properties can be compared by {symbol}")
        return _Node(_ordered(left.evaluate, symbol, right.evaluate), boolean=True)

    def _between(self, value: _Node, inverted: bool) -> _Node:
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        if low.constant and high.constant:
            if low.value is None or high.value is None:
                raise self._refused("NULL cannot be an end of BETWEEN")
            try:
                in_order = _compare(high.value, low.value) >= 0
            except _NotComparable:
                in_order = False
            if not in_order:
                raise self._refused("the first end of BETWEEN must not be above the second")
        first, second = ("<", ">") if inverted else (">=", "<=")
        parts = [self._order(value, first, low).evaluate, self._order(value, second, high).evaluate]
        return _Node(_joined(parts, settles=inverted), boolean=True)

    def _in(self, left: _Node, inverted: bool) -> _Node:
        if left.kind != "property":
            raise self._refused("only a property can be asked for with IN")
        self._expect("(")
        wanted = {self._string()}
        while self._take(","):
            wanted.add(self._string())
        self._expect(")")
        part = left.evaluate

        def evaluate(properties: Mapping[str, str]) -> Value:
            value = part(properties)
            return None if value is None else (value in wanted) is not inverted

        return _Node(evaluate, boolean=True)

    def _unary(self) -> _Node:
        symbol = self._take("+", "-", "NOT")
        if not symbol:
            return self._primary()
        with_operand = self._nested(self._unary)
        if symbol == "+":
            return with_operand
        if symbol == "NOT":
            return _Node(_negated(self._boolean(with_operand)), boolean=True)
        part = with_operand.evaluate

        def evaluate(properties: Mapping[str, str]) -> Value:
            value = part(properties)
            return -value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

        return _Node(evaluate)

    def _primary(self) -> _Node:
        kind, token, _ = self._tokens[self._at]
        if self._take("("):
            node = self._nested(self._or)
            self._expect(")")
            return node
        if kind == "word" and token in ("TRUE", "FALSE", "NULL"):
            self._at += 1
            return _constant({"TRUE": True, "FALSE": False}.get(token))
        if kind == "string":
            return _constant(self._string())
        if kind == "name":
            self._at += 1
            return _Node(lambda properties: properties.get(token), kind="property")
        if kind in ("int", "float"):
            return self._number(kind, token)
        raise self._refused(f"{token!r} cannot stand there" if token else "it ends too early")

    def _number(self, kind: str, token: str) -> _Node:
        number: float
        if kind == "int":
            digits = token.rstrip("lL")
            number = int(digits) if len(digits) < 20 else 1 << 64
            if number not in _LONG_RANGE:
                raise self._refused(f"{token} exceeds 64 bits")
        else:
            number = float(token)
            if not _SMALLEST_DOUBLE <= number < math.inf:  # the check of the original, which also rejects 0.0
                raise self._refused(f"{token} is out of the range of decimal numbers (write 0 for 0.0)")
        self._at += 1
        return _constant(number)

    def _string(self) -> str:
        kind, token, _ = self._tokens[self._at]
        if kind != "string":
            raise self._refused("a string in single quotes is missing")
        self._at += 1
        return token[1:-1].replace("''", "'")

    def _nested(self, rule: Callable[[], _Node]) -> _Node:
        """Parse a nested rule, limited to a safe recursion depth."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refused(f"it is nested more than {MAX_DEPTH} deep")
        node = rule()
        self._depth -= 1
        return node

    def _check_chain(self, count: int) -> None:
        if count > MAX_CHAIN:
            raise self._refused(f"a test is tested again more than {MAX_CHAIN} times")
