"""The package's modules as syntax trees, each parsed once for all tests of a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import spark_rocket

PACKAGE = Path(spark_rocket.__file__).resolve().parent
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """Yield each module's path within the package with each of its nodes."""
    for path in MODULES:
        name = str(path.relative_to(PACKAGE))
        for node in ast.walk(tree_of(path)):
            yield name, node
