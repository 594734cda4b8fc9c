"""The Chinese pages, and the English pages that they translate.

``x.zh.md`` translates ``x.md`` in the same folder; ``README.zh-CN.md`` translates the README. The last line of a
translation has the hash of the English text that was translated, and the test ``test_translations`` names translations
whose English page has changed since. ``make translated PAGES="docs/guides/faq.zh.md"`` stores the new hash after you
have updated the translation; without PAGES it lists the outdated ones.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_HASH = re.compile(r"\n<!-- Translation of (\S+), SHA-256 (\w*) -->\n\Z")


def translations() -> list[Path]:
    return [ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").rglob("*.zh.md"))]


def source(translation: Path) -> Path:
    return translation.with_name(re.sub(r"\.zh(-CN)?\.md$", ".md", translation.name))


def digest(page: Path) -> str:
    """Return the hash of a page; the number and kind of blanks do not count."""
    return hashlib.sha256(" ".join(page.read_text(encoding="utf-8").split()).encode()).hexdigest()[:16]


def is_current(translation: Path) -> bool:
    found = _HASH.search(translation.read_text(encoding="utf-8"))
    return found is not None and found.groups() == (source(translation).name, digest(source(translation)))


def mark_as_current(translation: Path) -> None:
    if source(translation) == translation:
        raise ValueError(f"{translation.name} is not a translation. Give the Chinese page: x.zh.md or README.zh-CN.md.")
    text = _HASH.sub("\n", translation.read_text(encoding="utf-8")).rstrip("\n")
    english = source(translation)
    line = f"<!-- Translation of {english.name}, SHA-256 {digest(english)} -->"
    translation.write_text(f"{text}\n\n{line}\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        mark_as_current(ROOT / name)
    for page in translations():
        if not is_current(page):
            print(f"{page.relative_to(ROOT)}: {source(page).name} has changed since it was translated")
