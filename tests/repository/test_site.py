"""The built site: every link has a target, and the addresses of earlier versions of the site still work."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit import browser
from tests.kit.sampling import sample, sampled

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
REDIRECTS: dict[str, dict[str, str]] = yaml.safe_load((ROOT / "docs" / "redirects.yml").read_text(encoding="utf-8"))
OLD_PAGES = {
    "architecture",
    "cli",
    "client",
    "compatibility",
    "console",
    "datasource",
    "first-ten-minutes",
    "from-kafka",
    "from-rocketmq-spark",
    "grpc",
    "index",
    "metrics",
    "mqadmin",
    "notebook/flights",
    "open-points",
    "operations",
    "recipes/dead-letters",
    "recipes/enrich",
    "recipes/exactly-once",
    "recipes/parquet-delta",
    "recipes/pytest",
    "recipes/replay",
    "recipes/scheduled",
    "security",
    "storage",
}
#: Headings of these pages below the title. The verbs of cli.md come from the program.
OLD_HEADINGS = 194
WAIT_S = 30
#: Chromium takes half a second of CPU for a page.
OPENED = 6
#: What does not fit: the page as a whole, a table without a scroll bar of its own, cells, and tables shown as cards.
MISFITS = """
    const width = document.documentElement.clientWidth;
    const misfits = document.documentElement.scrollWidth > width ? ["the page"] : [];
    for (const table of document.querySelectorAll(".md-content table[data-columns]")) {
        const scroller = table.closest(".md-typeset__scrollwrap");
        const right = table.dataset.columns > 2 ? table.getBoundingClientRect().right : 0;
        const cells = [...table.querySelectorAll("td")].filter(cell => cell.scrollWidth > cell.clientWidth + 1);
        if (!scroller || scroller.getBoundingClientRect().right > width || right > width || cells.length)
            misfits.push(table.innerText.slice(0, 80));
    }
    return misfits;
"""
#: On a phone, the names of a table with two columns may take half of the window.
BROKEN_NAMES = """
    const table = window.innerWidth < 500 ? 'table[data-columns]:not([data-columns="2"])' : "table[data-columns]";
    const names = document.querySelectorAll(`.md-content ${table} td:first-child code`);
    return [names.length, [...names].filter(name => name.getClientRects().length > 1).map(name => name.innerText)];
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "-f", str(ROOT / "mkdocs.yml"), "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stdout + done.stderr
    return folder


def headings(site: Path, page: str) -> set[str]:
    built = site / page.replace(".md", ".html")
    return set(re.findall(r' id="([^"]+)"', built.read_text(encoding="utf-8"))) if built.exists() else set()


def search_index(site: Path) -> Any:
    return json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))


def test_generated_pages(site: Path) -> None:
    notebook = (site / "notebook" / "flights.html").read_text(encoding="utf-8")
    assert notebook.count("data:image/png;base64,") == 3
    verbs = (site / "cli.html").read_text(encoding="utf-8")
    assert "rocket message tail" in verbs
    assert "--sharding-key" in verbs
    home = (site / "index.html").read_text(encoding="utf-8")
    assert "guides/getting-started.html" in home


def test_every_old_page_and_heading_has_an_entry() -> None:
    assert set(REDIRECTS) == {f"{page}.md" for page in OLD_PAGES}
    named = re.findall(r"^(\S+):$", (ROOT / "docs" / "redirects.yml").read_text(encoding="utf-8"), re.M)
    assert sorted(named) == sorted(set(named))
    assert all("" in moved for moved in REDIRECTS.values())
    assert sum(len(moved) - 1 for moved in REDIRECTS.values()) >= OLD_HEADINGS


@pytest.mark.parametrize("old", REDIRECTS)
def test_the_targets_of_an_old_page_exist(site: Path, old: str) -> None:
    missing = []
    for heading, target in REDIRECTS[old].items():
        page, _, anchor = target.partition("#")
        found = headings(site, page)
        if not found or (anchor and anchor not in found):
            missing.append(f"{old}#{heading}: {target}")
    assert not missing
    built = (site / old.replace(".md", ".html")).read_text(encoding="utf-8")
    for link in re.findall(r'<li><a href="([^"#]+)', built.partition("<h1>This page has moved</h1>")[2]):
        assert (site / old).parent.joinpath(link).is_file(), link


def arrivals() -> Iterator[tuple[str, str]]:
    """Each old page, and one moved heading of each."""
    for old, moved in REDIRECTS.items():
        yield old, moved[""]
        yield from [(f"{old}#{heading}", to) for heading, to in moved.items() if to != f"{old}#{heading}" and heading][
            :1
        ]


def test_the_search_ranks_guides_before_the_generated_pages(site: Path) -> None:
    index = search_index(site)
    boosts = {entry["location"]: entry.get("boost", 1.0) for entry in index["docs"]}
    assert (
        boosts["guides/read.html"] > boosts["reference/options.html"] > boosts["architecture.html"] > boosts["api.html"]
    )
    assert index["config"]["fields"]["title"]["boost"] == 10


def test_pages_for_contributors_are_not_found_by_the_search(site: Path) -> None:
    locations = {entry["location"].partition("#")[0] for entry in search_index(site)["docs"]}
    for page in ("decisions", "releasing", "writing"):
        assert (site / "internals" / f"{page}.html").is_file()
        assert f"internals/{page}.html" not in locations


@pytest.mark.parametrize(
    ("page", "language", "other"),
    [
        ("index.html", "en", "index.zh.html"),
        ("index.zh.html", "zh", "index.html"),
        ("guides/faq.html", "en", "guides/faq.zh.html"),
        ("guides/faq.zh.html", "zh", "guides/faq.html"),
        ("guides/sql.html", "en", "index.zh.html"),
    ],
)
def test_the_language_switch(site: Path, page: str, language: str, other: str) -> None:
    text = (site / page).read_text(encoding="utf-8")
    assert f'<html lang="{language}"' in text
    links = re.findall(r'<a href="([^"]+)" hreflang="(\w+)" class="md-select__link">', text)
    targets = {to: str((site / page).parent.joinpath(link).resolve().relative_to(site)) for link, to in links}
    assert targets == {language: page, ("en" if language == "zh" else "zh"): other}
    navigation = text.partition('class="md-nav md-nav--primary"')[2].partition("<article")[0]
    assert ("快速入门" in navigation) == (language == "zh")
    assert ("Getting started" in navigation) == (language == "en")
    assert "SQL, cluster views" in navigation, "it has no translation"
    assert ("使用（英文）" in navigation) == (language == "zh")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("selenium")
    opened = browser.opened(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.quit()


@browser.needed
@sampled
def test_pages_and_their_tables_fit_a_phone(site: Path, driver: Any) -> None:
    browser.size(driver, 390, 900)
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(OLD_PAGES)
    misfits = {}
    for page in sample(pages, OPENED):
        driver.get(page.as_uri())
        misfits[str(page.relative_to(site))] = driver.execute_script(MISFITS)
    assert {page: found for page, found in misfits.items() if found} == {}


@browser.needed
@sampled
@pytest.mark.parametrize("page", sample(["options", "settings"], 1))
def test_names_are_not_broken_in_two_lines(site: Path, driver: Any, page: str) -> None:
    driver.get((site / "reference" / f"{page}.html").as_uri())
    for width in (390, 1280):
        browser.size(driver, width, 900)
        count, broken = driver.execute_script(BROKEN_NAMES)
        assert count > 50
        assert (width, broken) == (width, [])


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The site as a server has it: the search does not work with files."""
    handler = functools.partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


#: What people ask at work, and a page with the answer: it is among the first two that the search finds.
QUESTIONS = {
    "写入数据湖": "recipes/lakes.zh.html",
    "数据湖 精确一次": "recipes/lakes.zh.html",
    "Iceberg": "recipes/lakes.zh.html",
    "变更数据": "recipes/change-data.zh.html",
    "CDC": "recipes/change-data.zh.html",
    "Canal 写入表": "recipes/change-data.zh.html",
    "消费堆积": "guides/backlog.zh.html",
    "堆积多久能追上": "guides/backlog.zh.html",
    "消息在读取之前过期": "guides/backlog.zh.html#",
    "保留时间": "guides/faq.zh.html#",
    "限流": "guides/faq.zh.html#",
    "Spark 4.0 限流": "recipes/parquet-delta.zh.html",  # it links to the options
    "命令行 时间": "guides/faq.zh.html#",
    "时间格式": "guides/faq.zh.html#",
    "告警": "guides/monitoring.zh.html#",
    "报警": "guides/faq.zh.html#",  # it links to the alerts
    "报错": "reference/conditions.zh.html",
    "已知问题": "known-issues.zh.html",
    "精确一次": "guides/exactly-once.zh.html",
    "从某个时间重放": "recipes/replay.zh.html",
    "死信": "recipes/dead-letters.zh.html",
    "死信发送两次": "recipes/dead-letters.zh.html#",
    "按 Key 查找消息": "guides/read.zh.html#",
    "重置消费组": "guides/faq.zh.html#",
    "重置位点": "guides/lag.zh.html#",
    "write to a lake": "recipes/lakes.html",
    "delta lake once": "recipes/lakes.html",
    "change data capture": "recipes/change-data.html",
    "Debezium": "recipes/change-data.html",
    "canal into a table": "recipes/change-data.html",
    "backlog": "guides/backlog.html",
    "how long until a backlog is caught up": "guides/faq.html#",
    "retention overtakes the query": "guides/backlog.html#",
    "messages deleted before read": "guides/faq.html#",
    "rate limit": "guides/faq.html#",
    "limits Spark 4.0": "recipes/parquet-delta.html",  # it links to the options
    "rate limits on Spark 4.1": "guides/faq.html#",
    "time zone": "guides/faq.html#",
    "paste time": "guides/faq.html#",
    "dead letter sent twice": "recipes/dead-letters.html#",
    "how do I find a message by key": "guides/faq.html#",
    "reset a group": "guides/faq.html#",
    "reset group offsets": "guides/lag.html#",
    "alerts": "guides/monitoring.html#",
    "errors": "reference/conditions.html",
    "TOPIC_DELETED": "reference/conditions.html",
    "known issues": "known-issues.html",
}


@browser.needed
def test_the_search_answers_questions_in_both_languages(address: str, driver: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.size(driver, 1280, 900)
    driver.get(f"{address}/index.zh.html")
    driver.execute_script("document.getElementById('__search').click()")
    found = (  # a result is a page, with the sections that match
        "return [...document.querySelectorAll('.md-search-result__item')].slice(0, 2)"
        ".flatMap(item => [...item.querySelectorAll('.md-search-result__link')].map(link => link.href))"
    )
    for words, expected in QUESTIONS.items():
        driver.execute_script(
            "document.querySelectorAll('.md-search-result__link').forEach(link => link.remove());"
            "const input = document.querySelector('.md-search__input'); input.value = arguments[0];"
            "input.dispatchEvent(new Event('keyup')); input.focus()",
            words,
        )
        links = WebDriverWait(driver, WAIT_S, poll_frequency=0.05).until(lambda at: at.execute_script(found))
        assert any(f"/{expected}" in link for link in links), (words, links)


@browser.needed
@sampled
def test_a_browser_arrives_at_the_new_address(site: Path, driver: Any) -> None:
    from selenium.webdriver.support.expected_conditions import url_to_be
    from selenium.webdriver.support.ui import WebDriverWait

    for old, new in sample(arrivals(), OPENED):
        start, end = ((site / address.replace(".md", ".html")).as_uri().replace("%23", "#") for address in (old, new))
        driver.get(start)
        WebDriverWait(driver, WAIT_S, poll_frequency=0.05).until(url_to_be(end))
    driver.get((site / "storage.html").as_uri() + "#no-such-heading")
    end = (site / "internals" / "storage.html").as_uri() + "#no-such-heading"
    WebDriverWait(driver, WAIT_S, poll_frequency=0.05).until(url_to_be(end))
