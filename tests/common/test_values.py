"""Dataclasses that share their methods behave like those that have their own."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, make_dataclass, replace
from itertools import product
from typing import Any

import pytest

from spark_rocket.common.values import FrozenValue, Value
from tests.protocol.wire_classes import BODIES, HEADERS

FIELDS: list[Any] = [
    ("number", float),
    ("text", str, field(default="x", kw_only=True)),
    ("secret", str, field(default="s", repr=False)),
    ("note", str, field(default="n", compare=False)),
]
NAN = float("nan")
SETTINGS: list[dict[str, Any]] = [
    {"frozen": is_frozen, "slots": has_slots} for is_frozen, has_slots in product((False, True), (False, True))
]


def values_of(kind: Any) -> list[Any]:
    first = kind(1.0)
    return [first, kind(1.0), kind(2.0), kind(NAN), replace(first, text="y"), replace(first, secret="t"),
            replace(first, note="m"), kind(number=kind(1.0))]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS)
def test_methods_are_those_of_a_dataclass(settings: dict[str, Any]) -> None:
    base = FrozenValue if settings["frozen"] else Value
    own = make_dataclass("Kind", FIELDS, **settings)
    shared = make_dataclass("Kind", FIELDS, bases=(base,), eq=False, repr=False, **settings)
    theirs, ours = values_of(own), values_of(shared)
    assert [repr(value) for value in ours] == [repr(value) for value in theirs]
    assert [one == other for one, other in product(ours, ours)] == [
        one == other for one, other in product(theirs, theirs)
    ]
    assert shared(NAN) == shared(NAN), "as tuples of the same object; dataclasses differ since Python 3.13"
    assert ours[0] != theirs[0]
    assert ours[0] != 1.0
    if settings["frozen"]:
        assert [hash(value) for value in ours] == [hash(value) for value in theirs]
    else:
        with pytest.raises(TypeError, match="unhashable"):
            hash(ours[0])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Place(FrozenValue):
    """A value at module level, for pickle."""

    name: str


def test_values_are_pickled() -> None:
    place = pickle.loads(pickle.dumps(Place("a")))
    assert place == Place("a")
    assert {place: 1}[Place("a")] == 1


def test_classes_of_the_wire_share_their_methods() -> None:
    assert [kind.__name__ for kind in (*HEADERS, *BODIES) if {"__eq__", "__repr__"} & vars(kind).keys()] == []
