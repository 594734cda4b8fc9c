"""Tag expressions and the hash that brokers compare tags by.

``A || B`` means either tag; ``*`` or an empty expression means all. A broker compares only ``String.hashCode`` of the
tag, which its consume queue stores, so consumers must compare the tags again because hashes collide.

Thread-safety: pure functions, immutable values. Corresponds to remoting.protocol.filter.FilterAPI and
java.lang.String.hashCode.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul

from spark_rocket.common.values import FrozenValue
from spark_rocket.errors import ProtocolError

SUB_ALL = "*"
TYPE_TAG = "TAG"
TYPE_SQL92 = "SQL92"
MAX_EXPRESSION_CHARACTERS = 64 * 1024

UNSELECTABLE_TAG = r"\|\||^[\x00-\x20]|[\x00-\x20]\z|^\*\z"
"""A pattern (RE2) of tags that no tag expression selects alone. Apache's clients send them, too."""

_BLANKS = "".join(map(chr, range(33)))  # what Java's String.trim removes
_STEP = 64
# 31^63 … 31^0 modulo 2^32: a block's hash is one sum of products, which runs in C.
_POWERS = [pow(31, exponent, 1 << 32) for exponent in range(_STEP - 1, -1, -1)]
_STEP_POWER = pow(31, _STEP, 1 << 32)


def java_hash(text: str) -> int:
    """Return Java's ``text.hashCode()``: over UTF-16 units, signed, 32 bits."""
    units: Sequence[int]
    if text.isascii():
        units = text.encode()
    else:
        raw = text.encode("utf-16-le", "surrogatepass")
        units = struct.unpack(f"<{len(raw) // 2}H", raw)
    size = len(units)
    if size <= _STEP:
        value: int = sum(map(mul, units, _POWERS[_STEP - size :]))
    else:
        head = size % _STEP
        value = sum(map(mul, units[:head], _POWERS[_STEP - head :]))
        for start in range(head, size, _STEP):
            value = (value * _STEP_POWER + sum(map(mul, units[start : start + _STEP], _POWERS))) & 0xFFFFFFFF
    value &= 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


tags_code = lru_cache(maxsize=16_384)(java_hash)
"""``java_hash`` of a tag, cached: a topic has few tags and many messages."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TagExpression(FrozenValue):
    """A parsed tag expression."""

    tags: frozenset[str]
    codes: frozenset[int]

    @property
    def matches_all(self) -> bool:
        return not self.tags

    def matches(self, tag: str | None) -> bool:
        """Whether the tag itself matches, as checked by consumers."""
        return not self.tags or tag in self.tags

    def __str__(self) -> str:
        return " || ".join(sorted(self.tags)) or SUB_ALL


def parse_tags(expression: str | None) -> TagExpression:
    """Parse ``"A || B"`` as a set of tags; ``"*"``, None and blanks mean all."""
    if expression and len(expression) > MAX_EXPRESSION_CHARACTERS:
        raise ProtocolError(
            f"The tag expression is too long: {len(expression):,} characters, at most {MAX_EXPRESSION_CHARACTERS:,}.",
            remedy='Subscribe to fewer tags, or to all with "*" and filter in the consumer.',
        )
    text = (expression or SUB_ALL).strip(_BLANKS)
    if text in ("", SUB_ALL):
        return TagExpression(frozenset(), frozenset())
    tags = frozenset(filter(None, (tag.strip(_BLANKS) for tag in text.split("||"))))
    if not tags:
        raise ProtocolError(
            f"{text[:100]!r} contains no tag.", remedy='Use tags like "A || B", or "*" for all messages.'
        )
    return TagExpression(tags, frozenset(map(tags_code, tags)))
