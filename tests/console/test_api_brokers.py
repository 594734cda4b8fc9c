"""A broker's settings and their changes, over HTTP against a live cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.client import Admin
from spark_rocket.client.admin import BrokerSettings
from spark_rocket.console.secrets import HIDDEN
from spark_rocket.protocol.java_properties import parse_properties
from spark_rocket.testing import LocalCluster
from tests.console.conftest import Page, page_of

pytestmark = pytest.mark.live


@pytest.fixture
def change(page: Page, cluster: LocalCluster) -> Iterator[Any]:
    """Change one setting; all are restored."""
    address = cluster.broker_address
    before = page.get("/api/broker", address=address)["config"]
    changed = set()

    def post(name: str, old: str, new: str, status: int = 200) -> Any:
        changed.add(name)
        return page.post("/api/broker/settings", {"address": address, "name": name, "from": old, "value": new}, status)

    yield post
    with Admin(cluster.name_server) as admin:
        admin.update_broker_config(address, {name: before[name] for name in changed if name in before})


def test_the_settings_that_can_be_changed(page: Page, cluster: LocalCluster) -> None:
    data = page.get("/api/broker", address=cluster.broker_address)
    assert {"fileReservedTime", "maxPullBytes", "traceOn"} <= set(data["changeable"])
    assert not {"brokerName", "listenPort", "storePathRootDir", "brokerRole"} & set(data["changeable"])
    assert data["decides"] is False


def test_a_setting_is_changed_and_the_change_logged(
    page: Page, cluster: LocalCluster, change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "spark_rocket.console"):
        done = change("maxPullMsgNums", "100000", "777")
    assert done["done"] == f"Changed maxPullMsgNums of {cluster.broker_address} from 100000 to 777."
    assert page.get("/api/broker", address=cluster.broker_address)["config"]["maxPullMsgNums"] == "777"
    assert "change setting of broker" in caplog.text
    assert cluster.broker_address in caplog.text
    assert "maxPullMsgNums" in caplog.text


def test_changes_that_the_broker_refuses(change: Any, page: Page, cluster: LocalCluster) -> None:
    error = change("maxPullMsgNums", "100000", "many", 409)
    assert "needs a whole number" in error["text"]
    error = change("brokerName", "broker-a", "broker-z", 409)
    assert "cannot be changed while the broker runs" in error["text"]
    assert page.get("/api/broker", address=cluster.broker_address)["config"]["brokerName"] == "broker-a"


def test_a_value_that_changed_after_it_was_shown_is_not_overwritten(change: Any) -> None:
    error = change("maxPullMsgNums", "99", "100", 409)
    assert error["code"] == "SETTING_CHANGED"
    assert "has changed to 100000" in error["text"]


@pytest.mark.parametrize("value", ["a\nmaxPullBytes=1", "a\x00b"])
def test_a_value_has_one_line(change: Any, page: Page, cluster: LocalCluster, value: str) -> None:
    region = page.get("/api/broker", address=cluster.broker_address)["config"]["regionId"]
    assert "printable" in change("regionId", region, value, 400)["remedy"]


def test_unknown_settings_and_brokers(change: Any, page: Page) -> None:
    assert change("noSuchSetting", "", "1", 404)["code"] == "NO_SUCH_SETTING"
    body = {"address": "127.0.0.1:1", "name": "traceOn", "from": "true", "value": "false"}
    assert page.post("/api/broker/settings", body, 404)["code"] == "NO_SUCH_BROKER"


def test_secrets_are_neither_shown_nor_changed(
    change: Any, page: Page, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As Apache's brokers send them: with their values, and without the names of dynamic settings."""
    credentials = '{"accessKey": "a", "secretKey": "of-many-letters"}'
    values = {"innerClientAuthenticationCredentials": credentials, "brokerName": "b", "listenPort": "10911"}
    monkeypatch.setattr(Admin, "broker_settings", lambda *_: BrokerSettings(values, None))
    data = page.get("/api/broker", address=cluster.broker_address)
    assert data["config"] == {**values, "innerClientAuthenticationCredentials": HIDDEN}
    assert (data["changeable"], data["decides"]) == (["brokerName", "listenPort"], True)
    with caplog.at_level(logging.DEBUG):
        error = change("innerClientAuthenticationCredentials", HIDDEN, '{"secretKey": "another-one"}', 403)
        assert error["code"] == "SECRET_SETTING"
        assert change("brokerName", "b", '{"secretKey": "another-one"}', 403)["code"] == "SECRET_SETTING"
    assert "another-one" not in caplog.text
    assert "of-many-letters" not in caplog.text


def test_settings_that_let_old_brokers_run_programs_are_not_changed(
    change: Any, page: Page, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, str]] = []
    values = {"brokerName": "b", "rocketmqHome": "/opt/rocketmq", "filterServerNums": "0"}
    monkeypatch.setattr(Admin, "broker_settings", lambda *_: BrokerSettings(values, None))
    monkeypatch.setattr(Admin, "update_broker_config", lambda _, address, settings: sent.append(settings))
    assert page.get("/api/broker", address=cluster.broker_address)["changeable"] == ["brokerName"]
    assert change("rocketmqHome", "/opt/rocketmq", "-c $@|sh .", 403)["code"] == "UNSAFE_SETTING"
    assert change("filterServerNums", "0", "1", 403)["code"] == "UNSAFE_SETTING"
    monkeypatch.undo()  # the fixture restores the settings
    assert sent == []


def test_a_change_without_effect_is_reported(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apache's brokers accept settings that they read only at their start."""
    monkeypatch.setattr(Admin, "update_broker_config", lambda *_: "")
    assert change("traceOn", "true", "false", 409)["code"] == "NOT_APPLIED"


def test_read_only(cluster: LocalCluster) -> None:
    with page_of(cluster.name_server, read_only=True) as page:
        body = {"address": cluster.broker_address, "name": "traceOn", "from": "true", "value": "false"}
        assert page.post("/api/broker/settings", body, 403)["code"] == "READ_ONLY"
        assert page.get("/api/broker", address=cluster.broker_address)["config"]["traceOn"] == "true"


def test_changes_are_written_to_the_file_as_they_were_entered(tmp_path: Path) -> None:
    with LocalCluster(data_dir=tmp_path) as cluster:
        with page_of(cluster.name_server) as page:
            for name, before, value in (("fileReservedTime", "72", "24"), ("regionId", "DefaultRegion", "a\\b")):
                body = {"address": cluster.broker_address, "name": name, "from": before, "value": value}
                assert page.post("/api/broker/settings", body)["remark"] == ""
        text = (tmp_path / "broker.conf").read_text(encoding="utf-8")
        found = {name: value for name, value, _ in parse_properties(text)}
        assert (found["fileReservedTime"], found["regionId"]) == ("24", "a\\b")
