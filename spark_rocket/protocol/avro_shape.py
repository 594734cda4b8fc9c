"""Limits on the values of an Avro schema, checked before any is decoded.

fastavro recurses in native code without a limit: a recursive or deeply nested schema can crash the process that reads a
body. An array of values without bytes can have a billion of them in five bytes. Both are rejected here. The number of
values of one datum, without its arrays and maps, is computed, because a type that is used twice in a type that is used
twice doubles it with each level.

RocketMQ has no equivalent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_rocket.errors import ProtocolError

MAX_DEPTH = 100
_JSON_LEVELS = 3 * MAX_DEPTH  # a record in a record is three levels


@dataclass(frozen=True, slots=True)
class AvroShape:
    """The shape of one value of a schema."""

    depth: int
    values: int
    """The number of values in it, with one item for each array and map, and all branches of each union."""
    is_empty: bool
    """Whether its encoding has no bytes."""


def check_nesting(raw: Any) -> None:
    """Raise ProtocolError if fastavro's parser would recurse deeply into this JSON value."""
    level = [raw]
    for _ in range(_JSON_LEVELS):
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise _too_deep()


def measure(schema: Any) -> AvroShape:
    """Return the shape of a schema parsed by fastavro, in linear time. ProtocolError if it is rejected."""
    return _measure(schema, {})


def _measure(schema: Any, named: dict[str, AvroShape | None]) -> AvroShape:
    """``named``: the shape of each named type, or None while it is being visited.

    Only those can be in a cycle: a name is defined before it is used.
    """
    if isinstance(schema, str):
        if schema not in named:
            return AvroShape(1, 1, schema == "null")
        known = named[schema]
        if known is None:
            raise ProtocolError(
                f"The Avro type {schema} contains itself.",
                remedy="Use a type without recursion: values could be nested infinitely.",
            )
        return known
    if isinstance(schema, list):  # a union's value begins with the number of its branch
        return _holder([_measure(branch, named) for branch in schema], is_empty=False)
    kind = schema["type"]
    if kind in ("record", "error"):
        named[schema["name"]] = None
        fields = [_measure(field["type"], named) for field in schema["fields"]]
        shape = named[schema["name"]] = _holder(fields, is_empty=all(field.is_empty for field in fields))
        return shape
    if kind in ("enum", "fixed"):
        shape = named[schema["name"]] = AvroShape(1, 1, kind == "fixed" and schema["size"] == 0)
        return shape
    if kind not in ("array", "map"):
        return _measure(kind, named)
    item = _measure(schema["items" if kind == "array" else "values"], named)
    if kind == "array" and item.is_empty:
        raise ProtocolError(
            "The Avro schema has an array of elements without bytes.",
            remedy="Use another element type: a body of five bytes could have a billion elements.",
        )
    return _holder([item], is_empty=False)


def _holder(inner: list[AvroShape], *, is_empty: bool) -> AvroShape:
    depth = 1 + max((shape.depth for shape in inner), default=0)
    if depth > MAX_DEPTH:
        raise _too_deep()
    return AvroShape(depth, 1 + sum(shape.values for shape in inner), is_empty)


def _too_deep() -> ProtocolError:
    return ProtocolError(f"The Avro schema is nested deeper than {MAX_DEPTH} levels.", remedy="Use a flatter schema.")
