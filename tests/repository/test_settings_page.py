"""The settings reference has the settings of the servers as the code has them."""

from __future__ import annotations

import re
import time
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import click

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.known_settings import KNOWN_UNUSED, REFUSED
from spark_rocket.cli.main import rocket
from spark_rocket.namesrv.kv_config import KVConfigManager
from spark_rocket.namesrv.namesrv_processor import NamesrvProcessor
from spark_rocket.namesrv.route_info import RouteInfoManager
from spark_rocket.protocol.java_properties import parse_properties
from spark_rocket.protocol.setting import Setting, settings_of, text_of
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.proxy import proxy_config as proxy_config
from spark_rocket.proxy.proxy_config import ProxyConfig
from spark_rocket.remoting.tls.settings import CONFIG_FILE, TlsSettings
from spark_rocket.store.config import StoreConfig

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")

Cells = tuple[str, ...]
"""Type, default, values."""


def section(title: str) -> str:
    """The section of a heading, to the next one of its level."""
    level = title.partition(" ")[0]
    found = re.search(rf"^{re.escape(title)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", PAGE, re.M | re.S)
    assert found, title
    return found[1]


def rows(title: str) -> dict[str, Cells]:
    """The rows of the tables of settings in a section: all cells but the last, the description."""
    found: dict[str, Cells] = {}
    for line in section(title).splitlines():
        name, *cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]) if line.startswith("| `") else [""]
        if len(cells) == 4:
            assert name not in found, name
            assert cells[-1], name
            found[name.strip("`")] = tuple(cells[:-1])
    return found


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _choices(enum: type[Enum]) -> str:
    return ", ".join(f"`{member.value}`" for member in enum)


def _numbers(setting: Setting) -> str:
    texts = [f"{setting.low}–{setting.high}"] if setting.high is not None else [f"≥ {setting.low}"]
    return ", ".join([*texts, *([f"multiples of {setting.step}"] if setting.step > 1 else [])])


_TYPES = {"int": "integer", "bool": "boolean", "str": "string", "Path": "path"}


def setting_cells(setting: Setting, config: BrokerConfig | StoreConfig | ProxyConfig) -> Cells:
    """The cells of a setting of the broker or the proxy."""
    kind = "choice" if setting.enum is not None else _TYPES[setting.kind]
    values = ""
    if setting.enum is not None:
        values = _choices(setting.enum)
    elif setting.kind == "int":
        values = _numbers(setting)
    return (
        kind + (", secret" if setting.secret else "") + (", dynamic" if setting.dynamic else ""),
        _code(text_of(getattr(config, setting.attribute))),
        values,
    )


def tls_cells() -> dict[str, Cells]:
    """The cells of each TLS setting. The description has a default that depends on other settings."""
    found: dict[str, Cells] = {}
    for entry in fields(TlsSettings):
        name, kind, default = entry.metadata["name"], entry.metadata["kind"], entry.default
        is_path = name.endswith("Path")
        text = "choice" if issubclass(kind, Enum) else "path" if is_path else _TYPES[kind.__name__]
        shown = "" if default is None else _code(text_of(default))
        values = _choices(kind) if issubclass(kind, Enum) else ""
        found[name] = (text + ("" if entry.repr else ", secret"), shown, values)
    return {**found, CONFIG_FILE: ("path", "", "")}


def names(title: str) -> list[str]:
    return re.findall(r"`(\w+)`", section(title))


def test_settings_of_the_broker() -> None:
    assert rows("## Broker") == {
        name: setting_cells(setting, config)
        for config in (BrokerConfig(), StoreConfig())
        for name, setting in settings_of(type(config)).items()
    }


def test_settings_of_the_proxy() -> None:
    assert rows("## Proxy") == {
        name: setting_cells(setting, ProxyConfig()) for name, setting in settings_of(ProxyConfig).items()
    }


def test_settings_of_tls() -> None:
    assert rows("## TLS") == tls_cells()


def test_settings_of_the_name_server() -> None:
    """Its settings are those that it returns, and the options of its command."""
    code = RequestCode.GET_NAMESRV_CONFIG
    get_config = NamesrvProcessor(RouteInfoManager(time.monotonic), KVConfigManager()).handlers()[code]
    answer: Any = get_config(None, RemotingCommand.request(code))  # type: ignore[arg-type]
    settings = {name: value for name, value, _ in parse_properties(answer.body.decode(), "the response")}
    assert rows("## Name server") == {name: ("boolean, dynamic", _code(value), "") for name, value in settings.items()}
    command = rocket.get_command(click.Context(rocket), "namesrv")
    assert command is not None
    options = {parameter.opts[0] for parameter in command.params if not getattr(parameter, "hidden", False)}
    shown = re.findall(r"^\| `(--[\w-]+)` \|", section("## Name server"), re.M)
    assert set(shown) == {option for option in options if not option.startswith("--log")}


def test_settings_without_effect() -> None:
    broker = names("### Broker settings without effect")
    assert sorted(broker) == sorted(KNOWN_UNUSED)
    proxy = names("### Proxy settings without effect")
    assert sorted(proxy) == sorted(proxy_config.KNOWN_UNUSED)


def test_unsupported_settings() -> None:
    shown = re.findall(r"^\| `(\w+)` \| (.*?) \|", section("### Unsupported broker settings"), re.M)
    accepted = {name: ", ".join(_code(value) or "empty" for value in values) for name, (values, _) in REFUSED.items()}
    assert dict(shown) == accepted
    shown = re.findall(r"^\| `(\w+)` \| (.*?) \|", section("### Unsupported proxy settings"), re.M)
    assert dict(shown) == {name: _code(value) or "empty" for name, (value, _) in proxy_config.REFUSED.items()}


def test_overload_protection_names_settings() -> None:
    broker = settings_of(BrokerConfig)
    shown = {name for name in names("## Overload protection") if re.fullmatch("[a-z]+[A-Z].*", name)}
    assert {"maxWaitingRequestBytes", "osPageCacheBusyTimeOutMills"} <= shown <= {*broker, "retryTimeout"}
