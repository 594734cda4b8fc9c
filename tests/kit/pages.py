"""The pages of docs/ and the README as tests see them: their snippets, and how these are run.

A block of ``python``, ``shell``, ``console`` or ``sql`` is run by a test, unless the line before it is a comment
``<!-- not run: why -->``. Other blocks are there to be read. In a ``console`` block a line with ``$`` is a command, and
the words that follow it are its output; ``…`` stands for more.
"""

from __future__ import annotations

import re
import shlex
import sys
from code import InteractiveConsole
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
RUN = {"python", "shell", "console", "sql"}

_BLOCK = re.compile(r'^(?:<!-- not run: ([^\n]*) -->\n)?```(\w*)(?: title="([^"\n]*)")?\n(.*?)^```', re.M | re.S)


@dataclass(frozen=True)
class Example:
    language: str
    line: int
    code: str
    title: str | None
    not_run: str | None


def examples(page: str) -> list[Example]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Example(found[2], text.count("\n", 0, found.start(4)), found[4], found[3], found[1])
        for found in _BLOCK.finditer(text)
    ]


class Prompt(InteractiveConsole):
    """Python's prompt, as a paste meets it: every line is taken at once, and an empty line ends what is indented.

    The first error is raised. ``only_read``: what was pasted is compiled and not run.
    """

    def __init__(self, page: str, names: dict[str, object] | None = None, *, only_read: bool = False) -> None:
        super().__init__({"__name__": "__main__"} if names is None else names, page)
        self._only_read = only_read

    def paste(self, code: str) -> None:
        for line in [*code.splitlines(), ""]:  # Enter, after the last one
            is_open = self.push(line)
        assert not is_open, f"{self.filename}: the prompt waits for more after:\n{code}"

    def runcode(self, code: CodeType) -> None:
        if not self._only_read:
            exec(code, self.locals)

    def showsyntaxerror(self, *args: Any, **named: Any) -> None:
        error = sys.exc_info()[1]
        assert error is not None
        raise error


def with_name_server(code: str, name_server: str) -> str:
    """Spark asks processes of its own for the name server, which do not have the environment that a test sets."""
    if "storePath" in code or '"nameServer"' in code:
        return code
    return re.sub(r'(\.format\("rocket"\))', rf'\1.option("nameServer", "{name_server}")', code)


def commands(code: str) -> list[tuple[list[str], list[str]]]:
    """Yield from a ``shell`` or ``console`` block the words of each command, and the lines that it is shown to say."""
    found: list[tuple[list[str], list[str]]] = []
    shown_too = "$ " in code
    for line in code.splitlines():
        if shown_too and not line.startswith("$ "):
            found[-1][1].append(line)
        elif words := shlex.split(line.removeprefix("$ "), comments=True):
            found.append((words, []))
    return found


def run_commands(code: str, run: Callable[[list[str]], str]) -> None:
    """``run`` gets the words after ``rocket``, and returns the output."""
    for (program, *arguments), shown in commands(code):
        assert program == "rocket", program
        said = run(arguments)
        for line in shown:
            missing = [word for word in re.findall(r"\b[A-Za-z]{3,}\b", line) if word not in said]
            assert not missing, f"rocket {shlex.join(arguments)} did not say {missing}, but:\n{said}"
