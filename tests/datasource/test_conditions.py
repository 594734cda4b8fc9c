"""Every place that raises a named condition names one that exists, with the values of its message and remedy."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

from spark_rocket.datasource.conditions import CONDITIONS

PACKAGE = Path(__file__).parents[2] / "spark_rocket"
VALUES = {
    condition.name: {field for _, field, _, _ in Formatter().parse(condition.text + condition.remedy) if field}
    for condition in CONDITIONS
}


def calls() -> Iterator[tuple[str, str, set[str | None]]]:
    """The place of each call of ``error`` with a literal name, the name, and its keywords (None: any)."""
    for path in sorted((*PACKAGE.glob("datasource/**/*.py"), PACKAGE / "arrow.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0].value
            if called == "error" and isinstance(name, str) and name.isupper():
                place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                yield place, name, {keyword.arg for keyword in node.keywords}


CALLS = list(calls())


def test_calls_are_found() -> None:
    assert len(CALLS) > 50


@pytest.mark.parametrize(("name", "given"), [call[1:] for call in CALLS], ids=[call[0] for call in CALLS])
def test_a_condition_gets_all_its_values(name: str, given: set[str | None]) -> None:
    assert name in VALUES
    assert None in given or VALUES[name] <= given
