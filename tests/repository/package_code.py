"""The package's modules as syntax trees, parsed once for all tests of a file."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import spark_rocket

PACKAGE = Path(spark_rocket.__file__).resolve().parent
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def trees() -> Mapping[Path, ast.Module]:
    """Parse all modules, without the garbage collector: 650,000 new nodes would cost three times the parser."""
    gc.disable()
    try:
        return {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
    finally:
        gc.enable()


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """Yield each module's path within the package with each of its nodes."""
    for path, tree in trees().items():
        name = str(path.relative_to(PACKAGE))
        for node in ast.walk(tree):
            yield name, node
