"""The Chinese pages: each is as new as its English page, and has the same headings, code and tables."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.kit.pages import ROOT, examples
from tools.translations import is_current, mark_as_current, source, translations

PAGES = [str(page.relative_to(ROOT)) for page in translations()]
TRANSLATED = {
    "README.zh-CN.md",
    *(
        f"docs/guides/{name}.zh.md"
        for name in (
            "accounts",
            "apache-cluster",
            "backlog",
            "connect",
            "exactly-once",
            "faq",
            "getting-started",
            "lag",
            "managed-instances",
            "monitoring",
            "permissions",
            "pipelines",
            "read",
            "typed-rows",
            "write",
        )
    ),
    "docs/known-issues.zh.md",
    "docs/recipes/change-data.zh.md",
    "docs/recipes/dead-letters.zh.md",
    "docs/recipes/enrich.zh.md",
    "docs/recipes/exactly-once.zh.md",
    "docs/recipes/lakes.zh.md",
    "docs/recipes/parquet-delta.zh.md",
    "docs/recipes/replay.zh.md",
    "docs/recipes/scheduled.zh.md",
    "docs/recipes/state.zh.md",
    "docs/recipes/stream-join.zh.md",
    "docs/reference/conditions.zh.md",
    "docs/reference/options.zh.md",
}


def _prose(page: Path) -> str:
    return re.sub(r"(?ms)^ *```.*?^ *```", "", page.read_text(encoding="utf-8"))


def test_the_translated_pages() -> None:
    assert set(PAGES) == TRANSLATED


def test_the_navigation_of_the_site_lists_every_translation() -> None:
    section = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\n  - 中文:\n")[2]
    pages = [page.removeprefix("docs/").replace("README.zh-CN.md", "index.zh.md") for page in PAGES]
    assert sorted(re.findall(r": (\S+\.zh\.md)$", section, re.M)) == sorted(pages)


def test_every_translation_is_as_new_as_its_english_page() -> None:
    """Update the pages named here, then run ``make translated PAGES="..."``."""
    assert [page for page in PAGES if not is_current(ROOT / page)] == []


def test_an_english_page_is_not_marked(tmp_path: Path) -> None:
    english = tmp_path / "page.md"
    english.write_text("# Page\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"page\.md is not a translation"):
        mark_as_current(english)
    assert english.read_text(encoding="utf-8") == "# Page\n"


def test_a_changed_english_page_is_noticed(tmp_path: Path) -> None:
    english, chinese = tmp_path / "page.md", tmp_path / "page.zh.md"
    english.write_text("# Page\n\nOne\ntwo.\n", encoding="utf-8")
    chinese.write_text("# 页面\n", encoding="utf-8")
    assert not is_current(chinese)
    for _ in range(2):
        mark_as_current(chinese)
        assert is_current(chinese)
    assert chinese.read_text(encoding="utf-8").count("SHA-256") == 1
    english.write_text("# Page\n\nOne two.\n", encoding="utf-8")
    assert is_current(chinese)
    english.write_text("# Page\n\nOne three.\n", encoding="utf-8")
    assert not is_current(chinese)


@pytest.mark.parametrize("page", [*PAGES, "spark_rocket/console/static/chinese.js"])
def test_chinese_terms(page: str) -> None:
    """The last column of the table of terms in docs/internals/writing.md has the words that are not used."""
    terms = (ROOT / "docs/internals/writing.md").read_text(encoding="utf-8").partition("| English | Chinese | not |")[2]
    words = [word for line in terms.splitlines() for word in re.findall(r"[\u4e00-\u9fff]+", line.split("|")[-2:][0])]
    assert len(words) > 5
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if any(word in line for word in words)] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_chinese_paragraph_is_one_line(page: str) -> None:
    """A line break between Chinese characters is shown as a blank."""
    lines = _prose(ROOT / page).splitlines()
    begins = re.compile(r"\s*(?:[*-] |\d+\. |\||#|<!--|\[English\]|!\[|$)")
    broken = [
        line
        for above, line in pairwise(lines)
        if above.strip() and not above.startswith("<!--") and not begins.match(line)
    ]
    assert broken == []


@pytest.mark.parametrize("page", PAGES)
def test_a_translation_has_the_code_of_its_english_page(page: str) -> None:
    def blocks(name: str) -> list[tuple[str, str, str | None, str | None]]:
        return [(found.language, found.code, found.title, found.not_run) for found in examples(name)]

    assert blocks(page) == blocks(str(source(ROOT / page).relative_to(ROOT)))
    both = [path.read_text(encoding="utf-8") for path in (ROOT / page, source(ROOT / page))]
    chinese, english = (re.findall(r"(?ms)^ *```.*?^ *```", text) for text in both)  # with those within lists
    assert chinese == english


@pytest.mark.parametrize("page", PAGES)
def test_a_translation_has_the_structure_of_its_english_page(page: str) -> None:
    """The same levels of headings, rows of tables, items of lists, and the same options, conditions and addresses."""

    def structure(path: Path) -> dict[str, list[str]]:
        text = _prose(path)
        return {
            "headings": re.findall(r"^#+(?= )", text, re.M),
            "tables": re.findall(r"^ *\|(?=.*\|$)", text, re.M),
            "items": re.findall(r"^(?:[*-]|\d\.)(?= )", text, re.M),
            "code": sorted(set(re.findall(r"`([^`]+)`", text))),
            "links": sorted(
                re.sub(r"(\.zh(-CN)?)?\.md(#.*)?$", "", link) for link in re.findall(r"\]\(([^)#]+)", text)
            ),
        }

    chinese, english = structure(ROOT / page), structure(source(ROOT / page))
    if page == "README.zh-CN.md":  # it links to the pages that exist in Chinese
        del english["links"]
    for part, found in english.items():
        assert chinese[part] == found, part


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_of_both_languages_link_to_each_other(page: str) -> None:
    english = source(ROOT / page)
    assert english.read_text(encoding="utf-8").splitlines()[2] == f"[中文]({Path(page).name})"
    assert (ROOT / page).read_text(encoding="utf-8").splitlines()[2] == f"[English]({english.name})"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_chinese_pages_where_they_exist(page: str) -> None:
    text = _prose(ROOT / page)
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", text):
        target = ((ROOT / page).parent / link).resolve() if link else ROOT / page
        assert link == source(ROOT / page).name or not target.with_suffix(".zh.md").exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)", _prose(target), re.M)
            assert anchor in {re.sub(r"[^\w\- ]", "", found.lower()).replace(" ", "-") for found in headings}, anchor
