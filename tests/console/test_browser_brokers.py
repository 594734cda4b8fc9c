"""The page of a broker in a real Chromium: its settings and their changes."""

from __future__ import annotations

import pytest

from spark_rocket.testing import LocalCluster
from tests.console.conftest import Console, Page, eventually
from tests.kit import browser

pytest.importorskip("selenium")

from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from tests.console.window import Window

pytestmark = [browser.needed, pytest.mark.live]


def config(page: Page, cluster: LocalCluster, name: str) -> str:
    return str(page.get("/api/broker", address=cluster.broker_address)["config"][name])


def test_a_setting_is_found_and_changed_after_a_confirmation(window: Window, page: Page, cluster: LocalCluster) -> None:
    window.open(f"/broker?address={cluster.broker_address}")
    window.says("maxPullMsgNums", "brokerName")
    window.one("input[type=search]").send_keys("maxPullMsg")
    window.until(lambda: "brokerName" not in window.text())
    window.one("button[aria-label='Change maxPullMsgNums']").send_keys(Keys.ENTER)
    window.fill("New value", "many")
    window.press("Continue")
    window.says(cluster.broker_address, "maxPullMsgNums", "100000", "many", css="dialog")
    window.press("Change", "dialog button")
    window.says("needs a whole number", css="dialog")
    window.press("Cancel", "dialog button")
    assert config(page, cluster, "maxPullMsgNums") == "100000"
    window.one("button[aria-label='Change maxPullMsgNums']").click()
    window.fill("New value", "777")
    window.press("Continue")
    window.press("Change", "dialog button")
    window.says("Changed maxPullMsgNums", "from 100000 to 777.", css="#notes")
    eventually(lambda: config(page, cluster, "maxPullMsgNums"), lambda value: value == "777")
    window.says("777")


def test_a_flag_is_selected(window: Window, page: Page, cluster: LocalCluster) -> None:
    window.open(f"/broker?address={cluster.broker_address}")
    window.one("button[aria-label='Change traceOn']").click()
    Select(window.field("New value")).select_by_value("false")
    window.press("Continue")
    window.press("Change", "dialog button")
    window.says("Changed traceOn", css="#notes")
    eventually(lambda: config(page, cluster, "traceOn"), lambda value: value == "false")


def test_only_settings_that_can_be_changed(window: Window, cluster: LocalCluster) -> None:
    window.open(f"/broker?address={cluster.broker_address}")
    window.says("brokerName", "fileReservedTime")
    assert not window.all("button[aria-label='Change brokerName']")
    window.one("#changeable").click()
    window.until(lambda: "brokerName" not in window.text("section:last-child"))
    window.says("fileReservedTime")


def test_a_read_only_console_has_no_changes(driver: Chrome, cluster: LocalCluster) -> None:
    console = Console(cluster.name_server, read_only=True)
    try:
        window = Window(driver, console)
        window.open(f"/broker?address={cluster.broker_address}")
        window.says("fileReservedTime")
        assert not [button for button in window.all("button.change") if button.is_displayed()]
        window.driver.get("about:blank")
    finally:
        console.close()


def test_a_narrow_screen_shows_everything(window: Window, cluster: LocalCluster) -> None:
    window.size(320, 640)
    window.open(f"/broker?address={cluster.broker_address}")
    window.says("fileReservedTime")
    assert window.js("return document.documentElement.scrollWidth") <= 320
