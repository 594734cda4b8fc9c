"""The collections in a JSON body, from its declared type: lists, maps, bit sets, fields without a declared type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.headers.base import camel_case


class CollectionKind(Enum):
    """How the entries of a field are counted."""

    OBJECT = 0
    LIST = 1
    MAP = 2
    BITS = 3
    ANY = 4


@dataclass(frozen=True, slots=True)
class BodyCollection:
    """A collection in a body. ``steps``: the wire names and kinds of the fields that lead to it."""

    path: str
    steps: tuple[tuple[str, CollectionKind], ...]

    def count(self, value: object) -> int:
        """Return the number of entries in a decoded body, in all collections with this path together."""
        level: list[object] = [value]
        for name, kind in self.steps[:-1]:
            items = [each.get(name) for each in level if isinstance(each, dict)]
            level = items if kind is CollectionKind.OBJECT else [entry for item in items for entry in _entries(item)]
        name, kind = self.steps[-1]
        return sum(_count(each.get(name), kind) for each in level if isinstance(each, dict))


def collections_of(body: type[Body]) -> tuple[BodyCollection, ...]:
    """Return the collections of a body and of the bodies in it."""
    found = _COLLECTIONS.get(body)
    if found is None:
        found = _COLLECTIONS[body] = tuple(_walk(body, ()))  # two threads may both build it: the results are equal
    return found


_COLLECTIONS: dict[type[Body], tuple[BodyCollection, ...]] = {}


def _walk(body: type[Body], steps: tuple[tuple[str, CollectionKind], ...]) -> Iterator[BodyCollection]:
    hints = get_type_hints(body)
    for each in fields(body):  # type: ignore[arg-type]  # every body is a dataclass
        hint = _without_none(hints[each.name])
        wire = each.metadata.get("wire") or camel_case(each.name)
        kind, inner = _kind(hint)
        if kind is CollectionKind.ANY and each.metadata.get("unit") == "bits":
            kind = CollectionKind.BITS
        if kind is None:
            continue
        here = (*steps, (wire, kind))
        if kind is not CollectionKind.OBJECT:
            yield BodyCollection(".".join(name for name, _ in here), here)
        if isinstance(inner, type) and issubclass(inner, Body):
            yield from _walk(inner, here)


def _kind(hint: Any) -> tuple[CollectionKind | None, Any]:
    """The kind of a field of this type, and the type of its entries; None for a plain value."""
    if hint is object:
        return CollectionKind.ANY, None
    if isinstance(hint, type) and issubclass(hint, Body):
        return CollectionKind.OBJECT, hint
    if get_origin(hint) is list:
        return CollectionKind.LIST, get_args(hint)[0]
    if get_origin(hint) is dict:
        return CollectionKind.MAP, get_args(hint)[1]
    return None, None


def _without_none(hint: Any) -> Any:
    choices = [choice for choice in get_args(hint) if choice is not type(None)]
    is_optional = len(choices) < len(get_args(hint))
    return choices[0] if is_optional else hint


def _entries(item: object) -> Iterator[object]:
    if isinstance(item, list):
        yield from item
    elif isinstance(item, dict):
        yield from item.values()


def _count(item: object, kind: CollectionKind) -> int:
    if kind is CollectionKind.ANY:
        return _values(item)
    if kind is CollectionKind.BITS and isinstance(item, str):
        return 6 * len(item)  # base64
    if isinstance(item, (list, dict)):
        return 8 * len(item) if kind is CollectionKind.BITS else len(item)
    return 0


def _values(item: object) -> int:
    """The number of values at any depth."""
    count, left = 0, [item]
    while left:
        following: list[object] = []
        for each in left:
            following += _entries(each)
        count += len(following)
        left = following
    return count
