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
    (condition.name, condition.case): {
        field for _, field, _, _ in Formatter().parse(condition.text + condition.remedy) if field
    }
    for condition in CONDITIONS
}


def calls() -> Iterator[tuple[str, str, str, set[str | None]]]:
    """Each call with a literal name: its place, condition and case, and its keywords (None: any)."""
    for path in sorted((*PACKAGE.glob("datasource/**/*.py"), PACKAGE / "arrow.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0].value
            if called in ("error", "condition") and isinstance(name, str) and name.isupper():
                place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                case = given.pop("case", ast.Constant(""))
                if isinstance(case, ast.Constant):
                    yield place, name, str(case.value), {*given}


CALLS = list(calls())


def test_calls_are_found() -> None:
    assert len(CALLS) > 80


@pytest.mark.parametrize(("name", "case", "given"), [call[1:] for call in CALLS], ids=[call[0] for call in CALLS])
def test_a_condition_gets_all_its_values(name: str, case: str, given: set[str | None]) -> None:
    assert (name, case) in VALUES
    assert None in given or VALUES[name, case] <= given
