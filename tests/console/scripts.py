"""The strings of the console's scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).parents[2] / "spark_rocket" / "console" / "static"
SCRIPTS = sorted([*STATIC.glob("*.js"), *STATIC.glob("pages/*.js")])
_BEFORE_A_PATTERN = re.compile(r"(?:[(=,:\[!&|?{};+]|return)\s*\Z")


@dataclass(frozen=True)
class Literal:
    """A string, or a template with its tag. ``parts``: the text around the values."""

    tag: str
    parts: tuple[str, ...]
    line: int
    before: str

    @property
    def key(self) -> str:
        return self.parts[0] + "".join(f"{{{i}}}{part}" for i, part in enumerate(self.parts[1:]))


def literals(source: str) -> Iterator[Literal]:
    """Yield all strings and templates of a script, with those inside the values of templates."""
    found: list[Literal] = []
    _code(source, 0, found)
    yield from found


def _literal(source: str, start: int, parts: list[str]) -> Literal:
    before = source[max(0, start - 40) : start]
    tag = re.search(r"\w*\Z", before) if source[start] == "`" else None
    return Literal(tag[0] if tag else "", tuple(parts), source.count("\n", 0, start) + 1, before)


def _code(source: str, at: int, found: list[Literal]) -> int:
    """Read code up to the brace that closes it, or to the end. Returns the position behind it."""
    depth = 0
    while at < len(source):
        character = source[at]
        if source.startswith("//", at):
            at = (source + "\n").index("\n", at)
        elif source.startswith("/*", at):
            at = source.index("*/", at) + 2
        elif character in "\"'":
            end = re.compile(rf"(?:\\.|[^\\{character}])*").match(source, at + 1)
            assert end is not None
            found.append(_literal(source, at, [end[0]]))
            at = end.end() + 1
        elif character == "`":
            at = _template(source, at, found)
        elif character == "/" and _BEFORE_A_PATTERN.search(source[max(0, at - 20) : at]):
            pattern = re.compile(r"/(?:\\.|\[(?:\\.|[^\]])*\]|[^/\\\[\n])+/").match(source, at)
            assert pattern is not None, source[at : at + 40]
            at = pattern.end()
        elif character == "}" and depth == 0:
            return at + 1
        else:
            depth += {"{": 1, "}": -1}.get(character, 0)
            at += 1
    return at


def _template(source: str, start: int, found: list[Literal]) -> int:
    parts, at = [""], start + 1
    while source[at] != "`":
        if source.startswith("${", at):
            at = _code(source, at + 2, found)
            parts.append("")
        else:
            length = 2 if source[at] == "\\" else 1
            parts[-1] += source[at : at + length]
            at += length
    found.append(_literal(source, start, parts))
    return at + 1
