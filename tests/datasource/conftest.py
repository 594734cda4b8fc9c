"""Stores to read with ``storePath``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_rocket.store import MessageStore
from tests.store.helpers import opened, small


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(directory: Path) -> Iterator[MessageStore]:
    """A store with files of 32 KiB; the test closes it before it reads."""
    made = opened(small(directory))
    yield made
    made.close()
