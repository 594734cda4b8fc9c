"""A console's pages in Chromium, used by mouse and keyboard. Needs selenium."""

from __future__ import annotations

from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.console.conftest import WAIT, Console
from tests.kit import browser


class Window:
    """The browser and its console."""

    def __init__(self, driver: webdriver.Chrome, console: Console) -> None:
        self.driver = driver
        self.url = console.url

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    def until(self, is_so: Any) -> Any:
        return WebDriverWait(self.driver, WAIT, poll_frequency=0.05).until(lambda _: is_so())

    def js(self, script: str, *given: Any) -> Any:
        return self.driver.execute_script(script, *given)

    def all(self, css: str) -> list[Any]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, css))

    def one(self, css: str) -> Any:
        """The first visible element."""
        return self.until(lambda: next((element for element in self.all(css) if element.is_displayed()), None))

    def text(self, css: str = "main") -> str:
        """The current text, or an empty one while the page is built."""
        return str(self.js("return document.querySelector(arguments[0])?.innerText ?? ''", css))

    def says(self, *texts: str, css: str = "main") -> None:
        self.until(lambda: all(text in self.text(css) for text in texts))

    def press(self, text: str, css: str = "button, a, label") -> None:
        def found() -> Any:
            script = (
                "const [css, text] = arguments;"
                "const within = document.querySelector('dialog[open]') ?? document;"
                "return [...within.querySelectorAll(css)].find((e) => e.innerText.trim() === text && !e.disabled)"
            )
            return self.js(script, css, text)

        self.until(found).click()

    def field(self, label: str) -> Any:
        script = (
            "const within = document.querySelector('dialog[open]') ?? document;"
            "const fields = [...within.querySelectorAll('label')].filter((e) => e.innerText.trim() === arguments[0])"
            ".map((e) => document.getElementById(e.htmlFor));"
            "return fields.find((e) => e.type !== 'radio')"
        )
        return self.until(lambda: self.js(script, label))

    def fill(self, label: str, text: str) -> None:
        element = self.field(label)
        element.clear()
        element.send_keys(text)

    def size(self, width: int, height: int) -> None:
        browser.size(self.driver, width, height)

    def beyond_the_edge(self) -> list[str]:
        """Visible elements that are not completely between the left and the right edge, scrolled or not."""
        script = (
            "const width = document.documentElement.clientWidth;"
            "const hides = (e) => e.closest('.hidden, .skip') || !e.checkVisibility({ visibilityProperty: true });"
            "const isBeyond = ({ left, right }) => left < -0.5 || right > width + 0.5;"
            "return [...document.body.querySelectorAll('*')].filter((e) => !hides(e) && e.getClientRects().length"
            " && isBeyond(e.getBoundingClientRect())).map((e) => `${e.tagName} ${e.textContent.slice(0, 40)}`)"
        )
        return list(self.js(script))

    def complaints(self) -> list[str]:
        """What the browser logged: blocked scripts, faults."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]
