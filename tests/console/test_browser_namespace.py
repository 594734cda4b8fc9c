"""The pages of a console with a namespace in a real Chromium: names without it, in both languages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_rocket.client.core.client_config import NAMESPACE_VARIABLE
from spark_rocket.testing import LocalCluster
from tests.console.conftest import Console
from tests.kit import browser
from tests.namespaces.world import GROUP, INSTANCE, TOPIC, fill

pytest.importorskip("selenium")

from selenium.webdriver import Chrome

from tests.console.window import Window

pytestmark = [browser.needed, pytest.mark.live]

PAGES = {
    "/topics": TOPIC,
    f"/topics/{TOPIC}": "broker-a",
    "/groups": GROUP,
    f"/groups/{GROUP}": TOPIC,
    f"/messages?topic={TOPIC}": "one",
    "/dead-letters": GROUP,
    f"/dead-letters/{GROUP}": "dead",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True) as running:
        fill(running)
        running.create_topic("outside", 1)
        yield running


@pytest.mark.parametrize(
    ("languages", "connecting", "variable"),
    [("en-US", {"namespace": INSTANCE}, ""), ("zh-CN,zh", {}, INSTANCE)],
    ids=["English, --namespace", "Chinese, ROCKETMQ_NAMESPACE"],
)
def test_pages_have_short_names(
    languages: str, connecting: dict[str, Any], variable: str, driver: Chrome, cluster: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(NAMESPACE_VARIABLE, variable)
    console = Console(cluster.name_server, connecting=connecting)
    try:
        window = Window(driver, console)
        window.size(1280, 900)
        browser.language(driver, languages)
        for path, text in PAGES.items():
            window.open(path)
            window.says(text)
            assert INSTANCE not in window.text("main")
            assert "outside" not in window.text("main")
        driver.get("about:blank")
    finally:
        console.close()
