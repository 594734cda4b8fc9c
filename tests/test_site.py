"""The built site: every link has a target, and the addresses of earlier versions of the site still work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.kit import browser

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[1]
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "-f", ROOT / "mkdocs.yml", "-d", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stdout + done.stderr
    return folder


def headings(site: Path, page: str) -> set[str]:
    built = site / page.replace(".md", ".html")
    return set(re.findall(r' id="([^"]+)"', built.read_text(encoding="utf-8"))) if built.exists() else set()


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


@browser.needed
def test_a_browser_arrives_at_the_new_address(site: Path, tmp_path: Path) -> None:
    pytest.importorskip("selenium")
    from selenium.webdriver.support.ui import WebDriverWait

    driver = browser.opened(tmp_path)
    try:
        for old, new in arrivals():
            start, end = (
                (site / address.replace(".md", ".html")).as_uri().replace("%23", "#") for address in (old, new)
            )
            driver.get(start)
            WebDriverWait(driver, WAIT_S, poll_frequency=0.05).until(lambda at, end=end: at.current_url == end)
        driver.get((site / "storage.html").as_uri() + "#no-such-heading")
        end = (site / "internals" / "storage.html").as_uri() + "#no-such-heading"
        WebDriverWait(driver, WAIT_S, poll_frequency=0.05).until(lambda at: at.current_url == end)
    finally:
        driver.quit()
