"""The pages in headless Chromium, used by mouse and keyboard.

One browser for all of these; where no Chromium is installed they are skipped (tools/setup.sh installs it where it can).
"""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pytest

from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.common.units import moment, moment_text
from spark_rocket.console.passwords import hashed
from spark_rocket.errors import RemotingConnectError, RocketError
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster
from tests.console.conftest import SCRIPT, Console, Page, eventually, spark_dead_letters
from tests.kit import browser

pytest.importorskip("selenium")

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from tests.console.window import Window

pytestmark = [browser.needed, pytest.mark.live]


def test_the_overview_shows_live_data(window: Window, cluster: LocalCluster) -> None:
    window.open("/")
    window.says("broker-a", cluster.broker_address, "billing", "etl", "Name servers")
    assert window.driver.title == "Overview · rocket console"
    window.until(lambda: window.all("svg.chart path.line"))
    assert window.one(".chart").get_attribute("aria-label").startswith("Messages in and out from")
    window.says("live", css="#live")


def test_a_topic_is_searched_and_opened_by_keyboard(window: Window) -> None:
    window.open("/topics")
    window.says("orders", "payments", "empty")
    window.one("input[type=search]").send_keys("ord")
    window.until(lambda: "payments" not in window.text() and "orders" in window.text())
    assert window.driver.current_url.endswith("?search=ord")
    link = window.one("tbody a")
    link.send_keys(Keys.ENTER)
    window.says("Messages over time", "Consumer groups", "billing", "Route")
    window.until(lambda: len(window.all("svg.chart path.line")) == 2)
    assert window.one(".chart").get_attribute("aria-label").startswith("Messages in and out from")
    window.says("out, all groups", css=".legend")
    paths = ["svg.chart path.area", "svg.chart path.line"]
    area, line = window.js("return arguments[0].map((css) => document.querySelector(css).getAttribute('d'))", paths)
    assert area.split(",")[0] == line.split(",")[0]  # both start with the first known rate
    assert window.js("return document.activeElement.tagName + document.activeElement.innerText") == "H1orders"
    window.driver.back()
    window.until(lambda: window.one("input[type=search]").get_attribute("value") == "ord")


def test_a_cell_becomes_a_link_when_it_gets_a_target(window: Window, cluster: LocalCluster) -> None:
    """The last message of a queue that was empty when the page was opened."""
    cluster.create_topic("late", 1)
    window.open("/topics/late")
    window.says("broker-a · 0")
    assert not window.all("td[data-label='Last message'] a[href]")
    with Producer("late", name_server=cluster.name_server) as producer:
        producer.send(Message.of("late", "at last"))
    window.until(lambda: window.all("td[data-label='Last message'] a[href]"))
    window.one("td[data-label='Last message'] a").click()
    window.says("at last", "Consumer groups")


def test_the_first_tab_skips_to_the_content(window: Window) -> None:
    window.open("/groups")
    window.says("billing")
    window.one("body").send_keys(Keys.TAB)
    assert window.js("return document.activeElement.className") == "skip"
    window.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert window.js("return document.activeElement.id") == "main"


def test_columns_are_sorted(window: Window) -> None:
    window.open("/groups")
    window.says("billing", "etl")
    window.press("Lag", "th button")
    window.until(lambda: [e.text for e in window.all("tbody th a")][:1] == ["etl"])
    assert window.one("th[aria-sort]").get_attribute("aria-sort") == "descending"


def test_a_topic_is_created_and_deleted(window: Window) -> None:
    window.open("/topics")
    window.press("New topic")
    window.fill("Name", "from-the-page")
    window.fill("Read queues per broker", "3")
    window.press("Create")
    window.says("from-the-page", "broker-a · 2")
    window.press("Delete")
    window.fill("Enter from-the-page to confirm", "something else")
    window.press("Delete")
    window.says("The entered name does not match.", "NOT_CONFIRMED", css="dialog")
    window.fill("Enter from-the-page to confirm", "from-the-page")
    window.press("Delete")
    window.until(lambda: window.driver.current_url.endswith("/topics"))
    window.says("Deleted topic from-the-page", css="#notes")


def test_a_message_is_sent_found_and_resent(window: Window, page: Page) -> None:
    window.open("/send?topic=payments")
    window.fill("Body", '{"paid": 12.50}')
    window.fill("Keys", "browser-key")
    window.fill("Properties", "note=from the page")
    window.press("Send", "main button")
    window.says("SEND_OK")
    window.press("Show it")
    window.says("Consumer groups", '"paid": 12.50', "from the page", "browser-key")
    window.press("Hex")
    window.says("7b 22 70 61 69 64 22")
    window.press("Resend")
    window.press("Resend", "dialog button")
    window.says("Resent to topic payments", css="#notes")
    eventually(
        lambda: page.get("/api/messages", topic="payments", by="key", key="browser-key")["rows"],
        lambda rows: len(rows) == 2,
    )
    window.open("/messages?topic=payments")
    window.press("Key")
    window.fill("Key", "browser-key")
    window.press("Search")
    window.says("2 found.")


def test_messages_by_time_page_by_page(window: Window, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.create_topic("paged", 2)
    with Producer("pages", name_server=cluster.name_server) as producer:
        for i in range(120):
            producer.send(Message.of("paged", f"number {i}.", tags="even" if i % 2 == 0 else "odd"))
    window.open("/messages?topic=paged")
    window.says("Page 1: 50 messages, newest first. 70 older.", "number 119.")
    window.press("Next ›")
    window.says("Page 2: 50 messages, newest first. 20 older.", "number 60.")
    shown = window.text("tbody")
    window.one("tbody th a").click()
    window.says("Consumer groups", "number ", css="main")
    window.driver.back()  # to the previous page
    window.says("Page 2: 50 messages")
    assert window.text("tbody") == shown
    window.press("Next ›")
    window.says("Page 3, the last one: 20 found.", "number 0.")
    assert not [e for e in window.all("main button") if e.text == "Next ›" and e.is_displayed()]
    window.press("‹ Previous")
    window.says("Page 2: 50 messages")
    assert window.text("tbody") == shown
    window.fill("Tags", "odd || none")
    window.fill("Text in the body", "number 1")
    window.press("Search")
    window.says("16 found.")  # 1, 11 to 19, 101 to 119
    assert "tags=odd+%7C%7C+none&text=number+1" in window.driver.current_url
    monkeypatch.setattr("spark_rocket.console.search.MAX_SCANNED_MESSAGES", 20)
    window.press("Search")
    window.says("found so far. Searched ", " of 120 messages, newest first.")
    status = "return [...document.querySelectorAll('main p[aria-live]')].map((e) => e.innerText).find(Boolean)"
    while (before := window.js(status)) != "16 found.":
        window.press("Continue")
        window.until(lambda before=before: window.js(status) not in (before, "Searching …"))
    window.says("16 found.", "number 119.", "number 1.")


def test_no_message_is_skipped_after_new_ones_have_moved_the_first_page(window: Window, cluster: LocalCluster) -> None:
    cluster.create_topic("moving", 1)

    def send(first: int, end: int) -> None:
        with Producer("moving", name_server=cluster.name_server) as producer:
            for i in range(first, end):
                producer.send(Message.of("moving", f"number {i}."))

    send(0, 120)
    window.open("/messages?topic=moving")
    window.says("Page 1: 50 messages, newest first. 70 older.", "number 119.", "number 70.")
    window.press("Next ›")
    window.says("Page 2: 50 messages, newest first. 20 older.", "number 69.")
    send(120, 180)
    window.press("‹ Previous")
    window.says("Page 1: 50 messages, newest first. 130 older.", "number 179.", "number 130.")
    window.press("Next ›")
    window.says("Page 2: 50 messages, newest first. 80 older.", "number 129.", "number 80.")


def test_pages_without_a_broker_are_marked(
    window: Window, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every page of the search, also those after the first: the positions do not have that broker."""
    cluster.create_topic("parts", 1)
    with Producer("parts", name_server=cluster.name_server) as producer:
        for i in range(60):
            producer.send(Message.of("parts", f"number {i}."))
    real = Admin.offsets

    def offsets(self: Admin, topic: str, *, failed: dict[str, RocketError]) -> object:
        failed["broker-z"] = RemotingConnectError("No connection to broker-z.", remedy="Start it.")
        return real(self, topic, failed=failed)

    monkeypatch.setattr(Admin, "offsets", offsets)
    window.open("/messages?topic=parts")
    missing = "Messages of broker-z are missing, or are those of a slave."
    window.says(f"Page 1: 50 messages, newest first. 10 older. {missing}", "No connection to broker-z.")
    window.press("Next ›")
    window.says(f"Page 2, the last one: 10 found. {missing}", "No connection to broker-z.")
    place = "return document.querySelector(arguments[0]).getBoundingClientRect()"
    top = window.until(lambda: 0 < (found := window.js(place, ".pages")["top"]) < 300 and found)
    assert top >= window.js(place, ".bar")["bottom"]  # not covered by it
    monkeypatch.undo()
    window.field("Topic").send_keys(Keys.ENTER)
    window.says("Page 1: 50 messages, newest first. 10 older.")
    assert "broker-z" not in window.text()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/New_York"])
def test_a_time_that_the_page_shows_can_be_entered(window: Window, page: Page, zone: str) -> None:
    """It has its zone. Without it, it is a time of the browser's zone."""
    rows = page.find("orders")["rows"]
    stored = sorted({row["stored"] for row in rows})
    begin, end = stored[len(stored) // 3], stored[len(stored) // 2]
    expected = sum(begin <= row["stored"] <= end for row in rows)
    try:
        window.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": zone})
        window.open("/messages?topic=orders&past=from")
        window.says("40 found.")
        shown = window.js("return [...document.querySelectorAll('tbody th a')].map((a) => a.innerText)")
        assert [moment(text, 0, zone=None).ms for text in shown] == [row["stored"] for row in rows]
        assert shown == [moment_text(row["stored"], zone=ZoneInfo(zone)) for row in rows]
        texts = [shown[[row["stored"] for row in rows].index(time)] for time in (begin, end)]
        window.fill("From", texts[0])
        window.fill("To", texts[1][: len("2026-01-31T12:00:00.000")])
        window.press("Search", "main button")
        window.says(f"{expected} found.")
        window.fill("From", "yesterday")
        window.press("Search", "main button")
        window.says("Invalid time 'yesterday'.", "milliseconds since 1970")
    finally:
        window.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})


def test_offsets_are_reset_to_a_time(window: Window) -> None:
    window.open("/groups/billing")
    window.press("Reset offsets")
    window.press("Time", "dialog label[for]:not(.field label)")
    window.fill("Time", "-1d")
    window.press("Preview")
    window.says("messages of orders will be repeated, 0 will be skipped.", css="dialog")
    window.press("Cancel", "dialog button")


def test_offsets_are_reset_after_a_preview(window: Window, page: Page) -> None:
    window.open("/groups/billing")
    window.says("Lag over time", "orders")
    window.until(lambda: window.all("svg.chart path.line"))
    window.press("Reset offsets")
    window.press("Preview")
    window.says("16 messages of orders will be repeated, 0 will be skipped.", css="dialog")
    window.press("Reset")
    window.says("Reset group billing in 4 queues", css="#notes")
    eventually(lambda: page.get("/api/groups/billing")["group"]["lag"], lambda lag: lag == 40)
    window.until(lambda: "40" in window.text(".tiles"))


def test_selected_dead_letters_are_resent(window: Window) -> None:
    window.open("/dead-letters")
    window.press("billing")
    window.says("3 found.", "bad order 0", "0123456789ABCDEF0")
    assert not window.one("button.primary").is_enabled()
    window.field("Select all on this page").click()
    window.press("Resend 3")
    window.says("3 messages are sent to group billing only", css="dialog")
    window.press("Resend", "dialog button")
    window.says("Resent 3 of 3 to group billing.", css="#notes")
    window.until(lambda: len(window.all("td[data-key=resent] .pill")) == 3)
    window.one("tbody input[type=checkbox]").send_keys(Keys.SPACE)
    window.press("Resend")
    window.says("Of these, 1 were already resent: consumers receive them twice.", css="dialog")
    window.press("Cancel", "dialog button")
    window.one("tbody th a").click()
    window.says("Consumer groups", "\nResent\n2")
    window.press("Resend", "main button")
    window.says("It was already resent at 2", css="dialog")
    window.press("Cancel", "dialog button")


def test_dead_letters_of_spark_are_resent_to_their_origin(window: Window, cluster: LocalCluster, page: Page) -> None:
    spark_dead_letters(cluster, "meters", "meters-bad", ["celsius=20", "celsius=21"])
    window.open("/dead-letters")
    window.says("Of Spark queries", "meters-bad", "it is not JSON")
    window.press("meters-bad")
    window.says("2 found.", "it is not JSON", "meters", "broker-a · 0 · 1")
    window.one("tbody input[type=checkbox]").send_keys(Keys.SPACE)
    window.press("Resend")
    window.says("1 message is sent to meters, for all of its readers.", css="dialog")
    window.press("Resend", "dialog button")
    window.says("Resent 1 of 1 to the origin.", css="#notes")
    assert [row["preview"] for row in page.find("meters")["rows"]] == ["celsius=21", "celsius=21", "celsius=20"]
    window.one("tbody th a").click()
    window.says("Origin", "Reason", "it is not JSON", "Consumer groups")
    window.press("broker-a · 0 · 1")  # the original message
    window.says("meters · broker-a · queue 0 · offset 1", "celsius=21")
    assert "Reason\nit is" not in window.text()
    window.size(320, 640)
    window.open("/dead-letters/topic/meters-bad")
    window.says("2 found.")
    assert window.js("return document.documentElement.scrollWidth") <= 320


def test_script_in_bodies_properties_and_names_is_only_text(window: Window, page: Page) -> None:
    (row,) = page.get("/api/messages", topic="payments", by="key", key="harm")["rows"]
    window.open("/messages?topic=payments&by=key&key=harm")
    window.says("1 found.", SCRIPT)
    window.press(window.one("tbody th a").text)
    window.says("Consumer groups", SCRIPT, css="main")
    assert SCRIPT in window.text("pre")
    assert SCRIPT in window.text(".facts + *, .halves")
    assert row["preview"] == SCRIPT
    for path in ("/topics/", "/groups/"):
        window.open(path + "%3Cimg%20src%3Dx%20onerror%3Dharm%3E")
        window.says("<img src=x onerror=harm>", "see the list")
    window.open(f"/messages?topic={'%22%3E%3Cscript%3Eharm%3C%2Fscript%3E'}")
    window.until(lambda: window.all("main .trouble"))
    assert window.js("return window.harm ?? null") is None
    assert window.js("return document.querySelectorAll('main script, main img').length") == 0
    blocked = "try { document.body.innerHTML = '<b>x</b>'; return 'written' } catch (error) { return error.name }"
    assert window.js(blocked) == "TypeError"
    window.complaints()  # of that one


def test_an_error_is_shown_with_code_and_remedy(window: Window) -> None:
    window.open("/topics/nothing-like-it")
    window.says("Unknown topic 'nothing-like-it'.", "TOPIC_NOT_FOUND", "It may have been deleted")
    window.says("stale", css="#live")
    window.open("/no/such/page")
    window.says("This page does not exist.")


def test_a_narrow_screen_shows_everything(window: Window, page: Page) -> None:
    (row,) = page.get("/api/messages", topic="orders", by="key", key="order-1")["rows"]
    place = "&".join(f"{name}={row[name]}" for name in ("topic", "broker", "queue", "offset"))
    window.size(320, 640)
    for path, text in (
        ("/", "broker-a"),
        ("/topics", "orders"),
        ("/topics/orders", "billing"),
        ("/groups/billing", "Lag over time"),
        (f"/message?{place}", "order-1"),
        ("/dead-letters", "billing"),
        ("/dead-letters/billing", "bad order 0"),
        ("/send", "Properties"),
        ("/messages?topic=orders&text=order", "40 found."),
    ):
        window.open(path)
        window.says(text)
        assert window.js("return document.documentElement.scrollWidth") <= 320, path
        assert window.beyond_the_edge() == [], path


def test_a_long_name_leaves_room_for_its_value(window: Window, cluster: LocalCluster) -> None:
    """A broker reports its disk usage under a name that ends in the path of the store."""
    window.size(1280, 900)
    window.open(f"/broker?address={cluster.broker_address}")
    window.says("commitLogDiskRatio", "bootTimestamp")
    window.js("document.querySelector('.facts dt').textContent = '/a-long-path'.repeat(20)")
    shares = window.js(
        "return [...document.querySelectorAll('.facts')]"
        ".map((list) => list.querySelector('dd').clientWidth / list.clientWidth)"
    )
    assert len(shares) == 2
    assert min(shares) > 0.3, shares


def test_a_stopped_stream_is_not_an_alarm(
    window: Window, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_rocket.client.admin.group_kind.STOPPED_SECONDS", 0.5)
    cluster.create_topic("%RETRY%left", 1)  # as created by the first member of a group
    with Reader(cluster.name_server) as reader:
        for group in ("halted", "left"):
            cluster.create_group(group)
            for queue in reader.queues("orders"):
                reader.commit_offset(group, queue, 3)

    def state_of(group: str) -> Any:
        row = window.one(f"a[href='/groups/{group}']").find_element(By.XPATH, "./ancestor::tr")
        return row.find_element(By.CSS_SELECTOR, ".pill")

    window.open("/groups")
    window.says("halted", "left")
    window.until(lambda: state_of("halted").text == "Spark stream, stopped")
    assert "warn" not in state_of("halted").get_attribute("class")
    window.until(lambda: state_of("left").text == "no consumers")
    assert "warn" in state_of("left").get_attribute("class")
    window.press("halted")
    window.says(
        "The Spark stream of this group has stopped", "The last committed offsets are below.", "Spark stream, stopped"
    )
    assert "warn" not in window.one(".tile .words").get_attribute("class")
    window.open("/")
    window.says("halted", "Spark stream, stopped")


def test_light_and_dark(window: Window) -> None:
    window.open("/console")
    window.says("Last sampling")
    colour = "return getComputedStyle(document.body).backgroundColor"
    for scheme in ("dark", "light"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        window.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        first = window.js(colour)
        window.one("#theme").click()
        assert window.js(colour) != first
        window.driver.refresh()
        window.says("Last sampling")
        assert window.js(colour) != first  # the value is kept
        window.js("localStorage.clear()")
        window.driver.refresh()
        assert window.js(colour) == first


def test_login_and_logout(driver: webdriver.Chrome, cluster: LocalCluster) -> None:
    console = Console(cluster.name_server, users={"ada": hashed("correct horse")})
    try:
        window = Window(driver, console)
        window.open("/groups")
        window.says("Log in", "Password")
        window.fill("User", "ada")
        window.fill("Password", "wrong")
        window.press("Log in", "main button")
        window.says("Invalid user or password.", "LOGIN_FAILED")
        window.fill("Password", "correct horse")
        window.driver.switch_to.active_element.send_keys(Keys.ENTER)
        window.says("billing")
        assert window.js("return document.cookie") == ""
        window.press("Log out")
        window.says("Password")
        driver.get("about:blank")
    finally:
        console.close()


def test_a_select_keeps_its_value(window: Window) -> None:
    window.open("/topics")
    window.press("New topic")
    Select(window.field("Messages")).select_by_value("FIFO")
    window.one("dialog input").send_keys(Keys.ESCAPE)
    window.until(lambda: not window.all("dialog"))
