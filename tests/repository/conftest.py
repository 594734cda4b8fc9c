"""Fixtures for tests about the repository itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.repository.package_code import trees


@pytest.fixture(scope="module", autouse=True)
def forget_trees() -> Iterator[None]:
    """Release the syntax trees: a million objects, which the garbage collector would visit during all later tests."""
    yield
    trees.cache_clear()
