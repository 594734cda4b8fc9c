"""Attributes of a value under the names that an interface has for them: JSON keys, columns of a view.

Pure functions.
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
    keys, values_of, optional = _parsed(names)
    if value is None:
        return dict.fromkeys(keys)
    found = dict(zip(keys, values_of(value), strict=True))
    for key in optional:
        found[key] = found[key] or None
    return found


@cache
def _parsed(names: str) -> tuple[list[str], Callable[[object], tuple[Any, ...]], list[str]]:
    """Return the keys, a function for their values, and the keys with ``?``."""
    keys, paths, optional = [], [], []
    for name in names.split():
        key, _, attribute = name.rpartition("=")
        path = attribute.rstrip("?")
        keys.append(key or camel_case(path))
        paths.append(path)
        if attribute.endswith("?"):
            optional.append(keys[-1])
    if len(paths) > 1:
        return keys, attrgetter(*paths), optional
    return keys, lambda value: tuple(attrgetter(path)(value) for path in paths), optional  # attrgetter needs two


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
