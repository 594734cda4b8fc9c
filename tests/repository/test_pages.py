"""Each page says at its top whom it is for, and a guide takes at most ten minutes."""

from __future__ import annotations

import re

import pytest

from tests.kit.pages import ROOT

PAGES = sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))
GUIDES = [page for page in PAGES if page.startswith(("guides/", "recipes/")) and not page.endswith(".zh.md")]
#: Readers take 240 words in a minute.
MAX_WORDS = 2_400


@pytest.mark.parametrize("page", PAGES)
def test_the_first_sentence_says_whom_a_page_is_for(page: str) -> None:
    """After the title and the link to the other language: "For operators: …", or in Chinese the same."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    first = re.sub(r"\A# .+\n+(?:\[(?:中文|English)\]\(\S+\)\n+)?", "", text)
    assert first.startswith("本页面向" if page.endswith(".zh.md") else "For "), first[:80]


@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_is_not_too_long(page: str) -> None:
    prose = re.sub(r"(?ms)^ *```.*?^ *```", "", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert len(prose.split()) <= MAX_WORDS
