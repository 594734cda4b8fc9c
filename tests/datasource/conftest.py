"""Stores to read with ``storePath``, and Hypothesis without its deadline.

The duration of one example is not significant on a shared machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from spark_rocket.store import MessageStore
from tests.store.helpers import opened, small

settings.register_profile("steady", deadline=None)
settings.load_profile("steady")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(directory: Path) -> Iterator[MessageStore]:
    """A store with files of 32 KiB; the test closes it before it reads."""
    made = opened(small(directory))
    yield made
    made.close()
