"""``make test`` tries some of what ``make long`` tries all of: others in each run. ``SAMPLE_SEED`` repeats a choice."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

ALL = bool(os.environ.get("LONG"))
#: The processes of a run inherit it; pytest's header shows it.
SEED = os.environ.setdefault("SAMPLE_SEED", str(secrets.randbelow(1_000_000)))

Item = TypeVar("Item")
Test = TypeVar("Test", bound=Callable[..., object])


def sample(items: Iterable[Item], count: int) -> list[Item]:
    """That many of the items, in their order; all of them in ``make long``."""
    among = list(items)
    if ALL or count >= len(among):
        return among
    return [among[index] for index in sorted(random.Random(SEED).sample(range(len(among)), count))]


def sampled(test: Test) -> Test:
    """Mark a test that takes a sample, so that ``make long`` runs it too."""
    return pytest.mark.long(test) if ALL else test
