"""Attributes of a value under the names that an interface has for them: JSON keys, columns of a view.

Pure functions. RocketMQ has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any


def pick(value: object, names: str) -> dict[str, Any]:
    """Return attributes of a value by their names in an interface.

    ``names``: ``key=attribute``, or ``attribute`` with its name in camel case as the key, separated by spaces. An
    attribute can be one of an attribute (``queue.topic``). ``?`` at its end: None instead of 0, for unknown times.
    All are None if the value is None.
    """
    if value is None:
        return {key: None for key, *_ in _parsed(names)}
    return {key: get(value) or None if is_optional else get(value) for key, get, is_optional in _parsed(names)}


@cache
def _parsed(names: str) -> list[tuple[str, Callable[[object], Any], bool]]:
    found: list[tuple[str, Callable[[object], Any], bool]] = []
    for name in names.split():
        key, _, attribute = name.rpartition("=")
        path = attribute.rstrip("?")
        found.append((key or camel_case(path), attrgetter(path), attribute.endswith("?")))
    return found


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
