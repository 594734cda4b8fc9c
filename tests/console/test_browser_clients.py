"""The pages of producers and of a group's members in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_rocket.client import Producer
from spark_rocket.errors import BrokerError
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster
from tests.client.pushing import running_consumer
from tests.kit import browser

pytest.importorskip("selenium")

from selenium.webdriver.common.keys import Keys

from tests.console.window import Window

pytestmark = [browser.needed, pytest.mark.live]


@pytest.fixture(scope="module", autouse=True)
def clients(cluster: LocalCluster) -> Iterator[None]:
    """A producer and a consumer."""
    with (
        Producer("shop", name_server=cluster.name_server) as producer,
        running_consumer(cluster.name_server, "workers", "orders"),
    ):
        producer.send(Message.of("orders", "of a shop"))
        yield


def test_producers_are_searched_and_those_of_a_topic_shown(window: Window) -> None:
    window.open("/topics/orders")
    window.press("Producers", "main a")
    window.says("shop", "PYTHON", "broker-a", "Producers that are connected to a broker of orders.")
    assert window.driver.current_url.endswith("/producers?topic=orders")
    window.one("input[type=search]").send_keys("nothing-like-it")
    window.says("No matching producers.")
    window.one("input[type=search]").clear()
    window.one("input[type=search]").send_keys("sho")
    window.says("shop", "1 producers")
    window.press("Last heartbeat", "th button")
    window.until(lambda: "sort=lastHeartbeat" in window.driver.current_url)


def test_a_member_opens_its_running_information(window: Window) -> None:
    window.open("/groups/workers")
    link = window.one("a[href*='/member?client=']")
    client = link.text
    link.send_keys(Keys.ENTER)
    window.says(client, "Running information that the client reports.", "PROP_CONSUME_TYPE", "assigned")
    window.until(lambda: "push" in window.text(".tiles"))
    assert window.one("nav a[aria-current]").text == "Groups"
    assert not window.all("pre")
    window.press("Show thread stacks")
    window.until(lambda: "Thread" in window.text("pre"))
    window.one(".back").send_keys(Keys.ENTER)
    window.says("Lag over time")


def test_a_member_without_running_information(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BrokerError("The request is not supported.", response_code=3)

    monkeypatch.setattr("spark_rocket.client.Admin.consumer_running_info", refused)
    window.open("/groups/workers/member?client=quiet%401")
    window.says("quiet@1", "does not report its running information", "NO_RUNNING_INFO", "Spark streams")
    assert "Properties" not in window.text()


@pytest.mark.parametrize("width", [700, 820, 1000, 1100, 1280])
def test_the_links_to_pages_do_not_overlap_the_tools(window: Window, width: int) -> None:
    window.size(width, 700)
    window.open("/producers")
    window.says("shop")
    edges = "const box = (css) => document.querySelector(css).getBoundingClientRect();"
    window.js("document.getElementById('logout').hidden = false")
    ends, tools = window.js(edges + "return [box('#nav a:last-child'), box('.tools')].map((b) => b.toJSON())")
    assert ends["right"] <= tools["left"] or ends["top"] >= tools["bottom"]


def test_a_narrow_screen_shows_everything(window: Window) -> None:
    window.open("/groups/workers")
    member = window.one("a[href*='/member?client=']").get_attribute("href")
    window.size(320, 640)
    for path, text in ((member.removeprefix(window.url), "PROP_CONSUME_TYPE"), ("/producers", "shop")):
        window.open(path)
        window.says(text)
        assert window.js("return document.documentElement.scrollWidth") <= 320, path
