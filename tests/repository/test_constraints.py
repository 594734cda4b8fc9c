"""``constraints.txt`` has a version for each library that ``pyproject.toml`` names, within its bounds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
VERSIONS = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in LINES)}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = {
    text
    for group in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for text in group
    if not text.startswith("spark-rocket[")
}


def test_each_line_is_one_version() -> None:
    assert [line for line in LINES if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


@pytest.mark.parametrize("text", sorted(REQUIREMENTS))
def test_a_requirement_has_a_version_within_its_bounds(text: str) -> None:
    requirement = Requirement(text)
    assert requirement.specifier.contains(VERSIONS[canonicalize_name(requirement.name)], prereleases=True)


def test_only_a_library_that_breaks_something_has_an_upper_bound() -> None:
    """Each bound has a reason in ``pyproject.toml``, the line above."""
    bounded = {text for text in REQUIREMENTS if re.search("<|==|~=", str(Requirement(text).specifier))}
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    for text in bounded:
        (number,) = (number for number, line in enumerate(lines) if f'"{text}"' in line)
        assert lines[number - 1].lstrip().startswith("#"), text
