"""Base classes of dataclasses that do not get methods of their own for equality, hash and text.

``dataclass`` compiles these methods for each class when its module is imported: half of what a class costs, and a
Python process of Spark declares some 80 of them before its first row. Declare a class as ``@dataclass(eq=False,
repr=False)`` over one of these bases: the result is the same, the comparison takes longer.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any


class Value:
    """A dataclass that is compared by its fields."""

    __slots__ = ()

    def __eq__(self: Any, other: object) -> bool:
        compared = _compared(self.__class__)
        if other.__class__ is not self.__class__:
            return NotImplemented
        return bool(compared(self) == compared(other))

    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
        return f"{type(self).__qualname__}({shown})"


class FrozenValue(Value):
    """A frozen dataclass that is compared and hashed by its fields."""

    __slots__ = ()

    def __hash__(self: Any) -> int:
        return hash(_compared(self.__class__)(self))


@cache
def _compared(kind: Any) -> Callable[[object], object]:
    """Return a function that returns a value's compared fields, as a tuple."""
    names = [field.name for field in fields(kind) if field.compare]
    return attrgetter(*names) if len(names) > 1 else lambda value: tuple([getattr(value, name) for name in names])
