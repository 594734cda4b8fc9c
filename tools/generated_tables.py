"""The tables of the pages that repeat what the code declares.

A page has a table between ``<!-- NAME ARGUMENT -->`` and ``<!-- end of NAME -->``, where ``TABLES`` has the name: the
code declares the texts, and what is between the comments is built from them. The rest of the page is written by hand.
``make tables`` writes the tables of all pages, and the fields of parsed options.
``tests/repository/test_generated_tables.py`` tells whether they are current, and whether a page has each of them.

A page ``x.zh.md`` has the tables in Chinese, if their texts exist in Chinese.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools import option_fields, permission_tables, reference_tables, setting_tables

ROOT = Path(__file__).resolve().parents[1]
ENGLISH, CHINESE = range(2)


@dataclass(frozen=True)
class Table:
    """A kind of table."""

    text: Callable[[str, int], str]
    """The table of an argument in a language."""
    arguments: Iterable[str] = ("",)
    """All arguments: each has its table in a page."""
    languages: int = 1
    """The number of languages of its texts: English, then Chinese."""


TABLES: Mapping[str, Table] = {
    "permissions": Table(permission_tables.table, permission_tables.KINDS, languages=2),
    "options": Table(reference_tables.options, reference_tables.OPTION_SECTIONS, languages=2),
    "dependencies of options": Table(reference_tables.dependencies, languages=2),
    "conditions": Table(reference_tables.conditions, languages=2),
    "former names": Table(reference_tables.former_names, languages=2),
    "errors": Table(reference_tables.errors),
    "settings": Table(setting_tables.settings, setting_tables.SETTINGS),
    "metrics": Table(reference_tables.metrics, reference_tables.METRICS),
    "limits": Table(reference_tables.limits, reference_tables.LIMITS),
}
_TABLE = re.compile(
    rf"(<!-- (?P<name>{'|'.join(TABLES)})(?: (?P<argument>\S[^>]*?))? -->\n)"
    r"(?:(?!<!-- ).)*(?P<end><!-- end of (?P=name) -->)",
    re.DOTALL,
)


def pages() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))


def language(page: Path) -> int:
    return CHINESE if page.name.endswith(".zh.md") else ENGLISH


def written(text: str, language: int) -> str:
    """Return the text of a page with current tables."""

    def table(found: re.Match[str]) -> str:
        known = TABLES[found["name"]]
        body = known.text(found["argument"] or "", min(language, known.languages - 1))
        return f"{found[1]}\n{body}\n\n{found['end']}"

    return _TABLE.sub(table, text)


def current() -> Iterator[tuple[Path, str]]:
    """Return the module with the fields of options, then all pages, each with its current text."""
    module = ROOT / option_fields.MODULE
    yield module, option_fields.written(module.read_text(encoding="utf-8"))
    for page in pages():
        yield page, written(page.read_text(encoding="utf-8"), language(page))


def outdated() -> dict[Path, str]:
    """Return the files that differ from what the code declares, with their current text."""
    return {path: text for path, text in current() if path.read_text(encoding="utf-8") != text}


def missing() -> list[str]:
    """Return the tables that no page has, as ``NAME ARGUMENT`` with the language of the page."""
    shown = {
        (found["name"], found["argument"] or "", language(page))
        for page in pages()
        for found in _TABLE.finditer(page.read_text(encoding="utf-8"))
    }
    return [
        f"{name} {argument} in {('English', 'Chinese')[tongue]}"
        for name, table in TABLES.items()
        for argument in table.arguments
        for tongue in range(table.languages)
        if (name, argument, tongue) not in shown
    ]


if __name__ == "__main__":
    for path, text in outdated().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
