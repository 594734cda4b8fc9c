"""Base classes of dataclasses that do not get methods of their own for equality, hash and text.

``dataclass`` compiles these methods for each class when its module is imported: half of what a class costs, and a
Python process of Spark declares some 80 of them before its first row. Declare a class as ``@dataclass(eq=False,
repr=False)`` over one of these bases: the result is the same, the comparison takes longer.

Pure.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class Value:
    """A dataclass that is compared by its fields."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return _compared(self) == _compared(other)

    def __repr__(self) -> str:
        shown = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in _fields(self) if field.repr)
        return f"{type(self).__qualname__}({shown})"


class FrozenValue(Value):
    """A frozen dataclass that is compared and hashed by its fields."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(_compared(self))


def _fields(value: Any) -> tuple[Any, ...]:
    return fields(value)


def _compared(value: object) -> tuple[object, ...]:
    return tuple([getattr(value, field.name) for field in _fields(value) if field.compare])
