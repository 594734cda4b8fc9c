"""What is written by hand in the settings reference: the name server, and the settings of overload protection."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import click

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.cli.main import rocket
from spark_rocket.namesrv.kv_config import KVConfigManager
from spark_rocket.namesrv.namesrv_processor import NamesrvProcessor
from spark_rocket.namesrv.route_info import RouteInfoManager
from spark_rocket.protocol.java_properties import parse_properties
from spark_rocket.protocol.setting import settings_of
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand

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


def names(title: str) -> list[str]:
    return re.findall(r"`(\w+)`", section(title))


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


def test_overload_protection_names_settings() -> None:
    broker = settings_of(BrokerConfig)
    shown = {name for name in names("## Overload protection") if re.fullmatch("[a-z]+[A-Z].*", name)}
    assert {"maxWaitingRequestBytes", "osPageCacheBusyTimeOutMills"} <= shown <= {*broker, "retryTimeout"}
