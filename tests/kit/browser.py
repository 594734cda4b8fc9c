"""A real Chromium without a window, for tests of the console and of the site."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
_FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,900",
]

needed = pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="no Chromium: apt-get install chromium chromium-driver")


def opened(profile: Path) -> Chrome:
    """Start a browser with an empty profile folder. The caller quits it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(str(DRIVER)))


def renew(driver: Chrome) -> None:
    """Replace the tab, with what was set for it and its history, by an empty one, and remove all cookies."""
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    former = driver.current_window_handle
    driver.switch_to.new_window("tab")
    opened = driver.current_window_handle
    driver.switch_to.window(former)
    driver.close()
    driver.switch_to.window(opened)


def size(driver: Chrome, width: int, height: int) -> None:
    """Give the page this size; below 500 pixels it is a phone's."""
    given = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", given)


def language(driver: Chrome, languages: str) -> None:
    """Give pages opened from now on these languages, such as ``zh-CN,zh``."""
    agent = driver.execute_script("return navigator.userAgent")
    driver.execute_cdp_cmd("Emulation.setUserAgentOverride", {"userAgent": agent, "acceptLanguage": languages})
