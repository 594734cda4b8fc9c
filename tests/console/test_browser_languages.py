"""The pages in the browser's language."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest

from spark_rocket.console.passwords import hashed
from spark_rocket.testing import LocalCluster
from tests.console.conftest import Console, spark_dead_letters
from tests.console.test_messages import TERMS
from tests.kit import browser

pytest.importorskip("selenium")

from tests.console.window import Window

pytestmark = [browser.needed, pytest.mark.live]

PAGES = {
    "/": "消息速率变化",
    "/topics": "orders",
    "/topics/orders": "路由",
    "/groups": "billing",
    "/groups/billing": "允许消费",
    "/producers": "没有已连接的生产者",
    "/messages?topic=orders": "找到 40 条。",
    "/dead-letters": "有死信的消费组",
    "/dead-letters/billing": "找到 3 条。",
    "/send": "每行一个",
    "/accounts": "访问控制未启用",
    "/console": "采样间隔",
    "/no-such-page": "页面不存在",
}
#: Words of the messages that are names: of products, settings, protocols and units.
NAMES = TERMS | {
    *("badRecords", "consumerGroup", "deadLetter"),
    *("Apache", "Driver", "JSON", "RocketMQ", "Spark", "Checkpoint", "Proxy", "gRPC", "Pull", "Push", "UTC"),
    *(
        "schema",
        "sharding",
        "key",
        "name",
        "value",
        "conf",
        "broker",
        "yml",
        "plain",
        "acl",
        "ACL",
        "rocket",
        "B",
        "KiB",
        "MiB",
        "GiB",
        "TiB",
    ),
}
#: All that a user sees or hears, without data: code, names of things in links, bodies and settings.
SHOWN = """
    const data = "code, pre, tbody a, .body, .keys, .tags, .reason, .facts, .sub, h1, h3, input, .legend, option";
    const shown = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const element = walk.currentNode.parentElement;
        if (!element.closest(data) && !element.closest("noscript, script")) shown.push(walk.currentNode.data);
    }
    for (const element of document.querySelectorAll("[aria-label], [title], [placeholder]"))
        for (const name of ["aria-label", "title", "placeholder"])
            if (element.getAttribute(name) && !element.closest("tbody")) shown.push(element.getAttribute(name));
    return shown;
"""


@pytest.mark.parametrize(
    ("languages", "shown"),
    [("zh-CN,zh", "zh"), ("zh-TW", "zh"), ("en-US,zh", "en"), ("fr,zh-CN,en", "zh"), ("fr,de", "en")],
)
def test_the_first_language_that_the_console_has(window: Window, languages: str, shown: str) -> None:
    browser.language(window.driver, languages)
    window.open("/topics")
    window.says("orders", "主题" if shown == "zh" else "Topics")
    assert window.js("return document.documentElement.lang") == shown
    window.says("概览" if shown == "zh" else "Overview", css="nav")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_in_chinese(window: Window, path: str) -> None:
    browser.language(window.driver, "zh-CN,zh")
    window.open(path)
    window.says(PAGES[path])
    assert window.driver.title.endswith("rocket 控制台")
    for width in (1280, 390):
        window.size(width, 900)
        assert (width, window.beyond_the_edge()) == (width, [])
    names = (
        NAMES
        | set(re.findall(r"\w+", window.url))
        | {"orders", "payments", "billing", "etl", "empty", "default", "meters", "bad"}
    )
    words = {
        word for text in window.js(SHOWN) for word in re.findall(r"[A-Za-z]+", re.sub(r"\S*\d\S*|[\w-]*a\b", "", text))
    }
    assert words - names == set()


def test_the_navigation_of_a_phone_has_two_rows_on_every_page(window: Window) -> None:
    """A third row on some pages would move what is below it."""
    browser.language(window.driver, "en-US,en")
    window.size(390, 900)
    rows = "return new Set([...document.querySelectorAll('nav a')].map((a) => a.offsetTop)).size"
    for path in ("/", "/topics", "/groups", "/producers", "/messages", "/dead-letters", "/send", "/accounts"):
        window.open(path)
        window.until(lambda: window.all("nav a[aria-current]"))
        assert (path, window.js(rows)) == (path, 2)


def test_a_dialog_and_an_error_in_chinese(window: Window) -> None:
    browser.language(window.driver, "zh-CN,zh")
    window.open("/topics/orders")
    window.press("删除")
    window.says("该主题及其全部 40 条消息会从所有 Broker 永久删除。", css="dialog")
    window.fill("输入 orders 以确认", "something else")
    window.js("document.querySelector('dialog button.danger').click()")
    window.says("输入的名称不一致。", "The entered name does not match.", "NOT_CONFIRMED", css="dialog")


def test_a_broker_and_a_message_in_chinese(window: Window, cluster: LocalCluster) -> None:
    browser.language(window.driver, "zh-CN,zh")
    window.open("/broker?" + urlencode({"address": cluster.broker_address}))
    window.says("只显示可修改的配置", "flushDiskType")
    window.open("/messages?topic=orders")
    window.until(lambda: window.all("tbody a"))
    window.one("tbody a").click()
    window.says("消息体", "此前投递次数", "没有轨迹。", "已提交位点 4，消息位点 9")


def test_dead_letters_in_chinese(window: Window, cluster: LocalCluster) -> None:
    """Resending and sending a copy have different names; the reason is translated."""
    spark_dead_letters(cluster, "meters", "meters-bad", ["celsius=20"])
    browser.language(window.driver, "zh-CN,zh")
    window.open("/dead-letters/topic/meters-bad")
    window.says("找到 1 条。", "从第 0 个字符起不是 JSON")
    window.one("tbody input[type=checkbox]").click()
    window.press("重新发送")
    window.says("对它的所有读取方可见。仍然无法解码的查询", css="dialog")  # sentences without a blank between them
    window.press("重新发送", "dialog button")
    window.until(lambda: window.all("td[data-key=resent] .pill"))
    window.one("tbody th a").click()
    window.says("从第 0 个字符起不是 JSON", "重新发送时间", css="main")
    window.press("重新发送", "main button")
    window.says("以新 ID 重新发送到原主题 meters", "该消息已于 2", "重新发送过。", css="dialog")
    assert "副本" not in window.text("dialog")
    window.press("取消", "dialog button")
    window.press("发送副本")
    window.says("发送消息")


def test_the_login_in_chinese(driver: Any, cluster: LocalCluster) -> None:
    console = Console(cluster.name_server, users={"ada": hashed("correct horse")})
    try:
        window = Window(driver, console)
        browser.language(driver, "zh-CN,zh")
        window.open("/")
        window.says("登录", "用户", "密码")
        window.fill("用户", "ada")
        window.fill("密码", "wrong")
        window.js("document.querySelector('form button').click()")
        window.says("登录失败。", "LOGIN_FAILED")
    finally:
        console.close()
