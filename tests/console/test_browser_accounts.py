"""The page of access control in a real Chromium: accounts of ACL 1.0, users of ACL 2.0."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_rocket.client import Admin
from spark_rocket.protocol.wire.bodies.config import UserInfo
from spark_rocket.testing import LocalCluster
from tests.console.conftest import Console
from tests.kit import browser
from tests.kit.accounts import KEYS

pytest.importorskip("selenium")

from selenium.webdriver import Chrome
from selenium.webdriver.support.ui import Select

from tests.console.window import Window

pytestmark = [browser.needed, pytest.mark.live]


def with_page(driver: Chrome, console: Console) -> Iterator[Window]:
    window = Window(driver, console)
    window.size(1280, 900)
    window.open("/accounts")
    yield window
    driver.get("about:blank")
    complaints = [text for text in window.complaints() if "status of 4" not in text]
    console.close()
    assert not complaints


@pytest.fixture
def plain(driver: Chrome, guarded: LocalCluster) -> Iterator[Window]:
    yield from with_page(driver, Console(guarded.name_server, connecting=KEYS))


@pytest.fixture(scope="module")
def users() -> Iterator[LocalCluster]:
    """A broker with ACL 2.0."""
    with LocalCluster(in_process=True, acl="2.0", **KEYS) as running:
        yield running


@pytest.fixture
def auth(driver: Chrome, users: LocalCluster) -> Iterator[Window]:
    yield from with_page(driver, Console(users.name_server, connecting=KEYS))


@pytest.fixture
def admin(users: LocalCluster) -> Iterator[Admin]:
    with Admin(users.name_server, **KEYS) as found:
        yield found


def test_without_access_control_the_page_explains_how_to_enable_it(window: Window) -> None:
    window.open("/accounts")
    window.says(
        "Access control is off", "broker-a", "authenticationEnabled=true", "aclEnable=true", "rocket help security"
    )
    assert not window.all("main .trouble")


def test_an_account_is_created_changed_and_deleted(plain: Window, guarded: LocalCluster) -> None:
    plain.says("root-key", "account of this console", "No address has permissions without a signature.")
    plain.press("New account", "main button")
    plain.fill("Access key", "bobby-key")
    plain.fill("Secret key", "b0b-s3cr3t")
    plain.fill("Topics", "orders=PUB\nbills=SUB")
    plain.press("Continue")
    plain.says("orders=PUB, bills=SUB", "********", css="dialog")
    assert "s3cr3t" not in plain.text("dialog")
    plain.press("Apply", "dialog button")
    plain.says("Created account bobby-key", css="#notes")
    plain.says("bobby-key", "orders=PUB, bills=SUB")
    assert "b0b-s3cr3t" in guarded.acl_file.read_text()
    plain.press("Change", "tr:last-child button")
    Select(plain.field("Other groups")).select_by_value("SUB")
    plain.fill("Unsigned from", "10.0.0.7")
    plain.press("Continue")
    plain.says(guarded.broker_address, "Other groups", "DENY → SUB", "– → 10.0.0.7", css="dialog")
    assert "Topics" not in plain.text("dialog")
    plain.press("Apply", "dialog button")
    plain.says("Changed account bobby-key", css="#notes")
    plain.says("others: SUB")
    plain.press("Delete", "tr:last-child button")
    plain.fill("Enter bobby-key to confirm", "bobby-key")
    plain.press("Delete", "dialog button")
    plain.says("Deleted account bobby-key", css="#notes")
    plain.until(lambda: "bobby-key" not in plain.text())


def test_an_error_of_the_broker_stays_in_the_dialog(plain: Window) -> None:
    plain.press("New account", "main button")
    plain.fill("Access key", "short")
    plain.fill("Secret key", "l0ng-s3cr3t")
    plain.press("Continue")
    plain.press("Apply", "dialog button")
    plain.says("accessKey is shorter than 7 characters", css="dialog")


def test_a_change_of_the_consoles_own_account_warns(plain: Window, guarded: LocalCluster) -> None:
    plain.says("root-key")
    plain.press("Delete", "tr:first-child button")
    plain.says("the console may lose its access", "the last administrator", css="dialog")
    plain.press("Cancel", "dialog button")
    plain.press("Change", "tr:first-child button")
    plain.field("Administrator").click()
    plain.press("Continue")
    plain.says("the console may lose its access", "Administrator", css="dialog")
    plain.press("Apply", "dialog button")
    plain.says("Changed account root-key", css="#notes")
    plain.until(lambda: plain.all("main .trouble"))
    guarded.acl_file.write_text(guarded.acl_file.with_name(guarded.acl_file.name + ".bak").read_text())


def test_the_white_list(plain: Window) -> None:
    plain.press("Change white list")
    plain.fill("Addresses", "10.0.0.{7,9}\n10.1.*.*")
    plain.press("Continue")
    plain.says("10.0.0.{7,9}, 10.1.*.*", css="dialog")
    plain.press("Apply", "dialog button")
    plain.says("All permissions without a signature: 10.0.0.7, 10.0.0.9, 10.1.*.*.")


def test_users_and_permissions_of_acl_2(auth: Window, users: LocalCluster, admin: Admin) -> None:
    broker = users.broker_address
    auth.says("Users of broker-a", "root-key", "Super", "everything")
    auth.press("New user", "main button")
    auth.fill("Name", "ada")
    auth.fill("Password", "ada-s3cr3t")
    auth.press("Continue")
    auth.says("ada", "********", css="dialog")
    auth.press("Apply", "dialog button")
    auth.says("ada", "Normal")
    assert admin.user(broker, "ada") == UserInfo("ada", "ada-s3cr3t", "Normal", "enable")
    auth.press("Add permission", "tr:first-child button")
    auth.fill("Resource", "Topic:orders*")
    auth.field("Pub").click()
    auth.field("Sub").click()
    auth.press("Continue")
    auth.says("Allow Pub, Sub on Topic:orders*", css="dialog")
    auth.press("Apply", "dialog button")
    auth.says("Allow Pub, Sub on Topic:orders*")
    acl = admin.acl(broker, "ada")
    assert acl is not None
    assert [(one.resource, one.actions) for one in acl.policies[0].entries] == [("Topic:orders*", ["Pub", "Sub"])]
    auth.press("Delete", "li button")
    auth.says("Allow Pub, Sub on Topic:orders*.", css="dialog")
    auth.press("Delete", "dialog button")
    auth.until(lambda: "Topic:orders*" not in auth.text())
    assert admin.acl(broker, "ada") is None
    auth.press("Change", "tr:first-child button")
    Select(auth.field("Status")).select_by_value("disable")
    auth.press("Continue")
    auth.says("enabled → disabled", css="dialog")
    auth.press("Apply", "dialog button")
    auth.says("disabled")
    assert admin.user(broker, "ada") == UserInfo("ada", "ada-s3cr3t", "Normal", "disable")
    auth.press("Delete", "tr:last-child button")
    auth.says("the console may lose its access", css="dialog")


def test_permissions_in_chinese(auth: Window) -> None:
    browser.language(auth.driver, "zh-CN,zh")
    try:
        auth.open("/accounts")
        auth.press("添加权限", "tr:first-child button")
        auth.says("允许", "拒绝", "全部", "发布", "订阅", "创建", "修改", "删除", "查询", "列出", css="dialog")
        auth.fill("资源", "Topic:orders")
        auth.field("发布").click()
        auth.press("继续")
        auth.says("允许 发布：Topic:orders", css="dialog")
        auth.press("取消", "dialog button")
    finally:
        browser.language(auth.driver, "en")


def test_an_error_of_a_broker_with_users_stays_in_the_dialog(auth: Window) -> None:
    auth.press("New user", "main button")
    auth.fill("Name", "root-key")
    auth.fill("Password", "an0ther-s3cr3t")
    auth.press("Continue")
    auth.press("Apply", "dialog button")
    auth.says("The user is existed", css="dialog")


def test_a_narrow_screen_shows_everything(plain: Window, auth: Window) -> None:
    for window, text in ((plain, "root-key"), (auth, "Users of broker-a")):
        window.size(320, 640)
        window.open("/accounts")
        window.says(text)
        assert window.js("return document.documentElement.scrollWidth") <= 320
