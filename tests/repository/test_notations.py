"""One notation has one parser: every place that takes a value gives the same verdict and the same value.

The places are found, not listed: options of commands, settings of servers, options of the data source, arguments of
clients. A place with a parser of its own, or without one, fails here.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest

from spark_rocket import client
from spark_rocket.acl.rules import AclRules
from spark_rocket.arrow import option_of
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.config_files import ConfigFile, change_properties
from spark_rocket.cli import arguments
from spark_rocket.cli.main import rocket
from spark_rocket.client import aio
from spark_rocket.client.core.client_config import ClientConfig, read_credentials
from spark_rocket.console.settings import read_users
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import OPTIONS, Scope
from spark_rocket.errors import ClientError, ConfigError, OptionError
from spark_rocket.namesrv.kv_config import KVConfigManager
from spark_rocket.protocol.setting import settings_of
from spark_rocket.proxy.proxy_config import ProxyConfig
from spark_rocket.remoting.tls.settings import TlsSettings
from spark_rocket.store.config import parse_delay_levels
from tests.repository.package_code import PACKAGE, nodes

NAME_SERVERS = {
    "a:9876": "a:9876",
    "a:1;b:2": "a:1;b:2",
    " a:1 ; b:2; ": "a:1;b:2",
    "a:1,b:2": "a:1;b:2",
    "a:1 b:2\ta:1": "a:1;b:2",
    "http://a:9876": "a:9876",
    "http://mq_inst_1-x.example.com:80/;b:2": "mq_inst_1-x.example.com:80;b:2",
    "HTTP://a:1": "a:1",
    "10.0.0.1:9876": "10.0.0.1:9876",
    "[::1]:9876": "[::1]:9876",
    "a:09876": "a:9876",
}
ADDRESS_SERVERS = {
    "http://a:8080/rocketmq/nsaddr": "http://a:8080/rocketmq/nsaddr",
    " https://a/nsaddr ": "https://a/nsaddr",
}
NOT_NAME_SERVERS = (
    "localhost", "127.0.0.1", "a:1;b", ";", "a:0", "a:65536", "a:port", "a:-1", "a:\u0661", ":9876", '"a:1"',
    "::1:9876", "[::1]", "[a]:1", "[1.2.3.4]:1", "256.1.1.1:1", "1.2.3:1", "https://a:1", "ftp://a:1",
    "http://a:1/x;b:2", "a/b:1", "a:1:2", "a:1/x", "b\u00fc:1", "user@a:1",
)  # fmt: skip


def _commands(group: click.Group, path: str = "rocket") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")


def _takes_name_servers(parameter: click.Parameter) -> bool:
    return parameter.name in ("nameserver", "name_server", "name_servers")


def _setting_of_a_broker(text: str) -> str:
    return ";".join(BrokerConfig.from_text(f"\n\nnamesrvAddr={text}", "x.conf").name_servers)


def _setting_of_a_proxy(text: str) -> str:
    return _client(ProxyConfig.from_text(f"\n\nnamesrvAddr={text}", "x.conf").name_server)


def _parse_parameter(command: click.Command, parameter: click.Parameter, text: str) -> Any:
    return parameter.type_cast_value(click.Context(command), text)


def _name_server_places() -> Iterator[tuple[str, bool, Parse]]:
    """Yield each place: its name, whether it takes an address server, and its parser."""
    for option in OPTIONS:
        if option.type == "addresses":
            yield f"option {option.name}", True, partial(option.parse, option.name)
    yield "namesrvAddr of BrokerConfig", False, _setting_of_a_broker
    yield "namesrvAddr of ProxyConfig", True, _setting_of_a_proxy
    for path, command in _commands(rocket):
        for parameter in command.params:
            if _takes_name_servers(parameter):
                yield path, True, partial(_parse_parameter, command, parameter)
    yield "client argument", True, _client
    yield "client environment", True, lambda text: _shown(ClientConfig.of(None, {"NAMESRV_ADDR": text}))


def _client(text: str) -> str:
    return _shown(ClientConfig.of(text, {}))


def _shown(config: ClientConfig) -> str:
    return config.address_server or ";".join(config.name_servers)


PLACES = [pytest.param(with_url, parse, id=name) for name, with_url, parse in _name_server_places()]


def test_the_places_are_found() -> None:
    assert len(PLACES) > 60


@pytest.mark.parametrize(("with_url", "parse"), PLACES)
def test_name_servers_have_one_notation(with_url: bool, parse: Callable[[str], str]) -> None:
    for text, value in NAME_SERVERS.items():
        assert parse(text) == value, text
    for text, value in ADDRESS_SERVERS.items():
        if with_url:
            assert parse(text) == value
    refused = (*NOT_NAME_SERVERS, *(() if with_url else ADDRESS_SERVERS))
    for text in refused:
        with pytest.raises((ConfigError, OptionError, click.BadParameter), match="host:port"):
            parse(text)


def test_the_driver_s_environment_has_the_same_notation(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, value in (NAME_SERVERS | ADDRESS_SERVERS).items():
        monkeypatch.setenv("NAMESRV_ADDR", text)
        assert parse_read_options({"subscribe": "orders"}, Scope.READ).name_server == value
    for text in NOT_NAME_SERVERS:
        monkeypatch.setenv("NAMESRV_ADDR", text)
        with pytest.raises(OptionError, match="NAMESRV_ADDR"):
            parse_read_options({"subscribe": "orders"}, Scope.READ)


@pytest.mark.parametrize("config", [BrokerConfig, ProxyConfig])
def test_a_refused_setting_is_named_with_file_and_line(
    config: type[BrokerConfig | ProxyConfig], tmp_path: Path
) -> None:
    file = tmp_path / "x.conf"
    file.write_text("\ufeff# two addresses\n\nnamesrvAddr=a:1;localhost\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"x\.conf, line 3: Invalid name server in 'a:1;localhost': 'localhost' has no port"
    ):
        config.from_file(file)


def test_a_master_is_one_address() -> None:
    assert BrokerConfig.from_text("haMasterAddress=[::1]:10912").ha_master_address == "[::1]:10912"
    for text in ("a", "a:1;b:2", "http://a/x", "a:0"):
        with pytest.raises(ConfigError, match="line 1: Invalid address"):
            BrokerConfig.from_text(f"haMasterAddress={text}")


class Listener:
    """A listener of messages and of transactions."""

    def __call__(self, *_: object) -> None:
        raise NotImplementedError

    execute_local_transaction = check_local_transaction = __call__


def test_every_client_takes_name_servers_by_this_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the constructor, before anything is connected."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    kinds: list[Callable[..., object]] = [
        kind
        for module in (client, aio)
        for kind in (getattr(module, name) for name in module.__all__)
        if inspect.isclass(kind) and hasattr(kind, "close")
    ]
    assert len(kinds) >= 8
    for kind in kinds:
        group = {"group": "orders"} if "Admin" not in kind.__name__ else {}
        more = {"listener": Listener()} if "listener" in inspect.signature(kind).parameters else {}
        for wrong in ("a:1;localhost", ["a:1"], 9876, b"a:1"):
            with pytest.raises((ConfigError, ClientError), match=r"[Nn]ame[ _]server"):
                kind(name_server=wrong, **group, **more)


BOM = b"\xef\xbb\xbf"


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """In every file that a person writes."""

    def written(name: str, text: str) -> Path:
        (tmp_path / name).write_bytes(BOM + text.encode())
        return tmp_path / name

    assert BrokerConfig.from_file(written("broker.conf", "brokerClusterName=x\n")).broker_cluster_name == "x"
    assert ProxyConfig.from_file(written("proxy.conf", "namesrvAddr=a:1\n")).name_server == "a:1"
    tls = written("tls.properties", "tls.test.mode.enable=true\n")
    assert TlsSettings.of({"tls.config.file": str(tls)}).test_mode
    accounts = "accounts:\n- accessKey: rocketmq2\n  secretKey: '12345678'\n"
    assert AclRules.from_bytes(written("plain_acl.yml", accounts).read_bytes(), "plain_acl.yml")
    assert (
        read_credentials(written("tools.yml", "accessKey: rocketmq2\nsecretKey: '12345678'\n")).access_key
        == "rocketmq2"
    )
    loaded: list[dict[str, object]] = []
    assert ConfigFile(written("topics.json", '{"a":1}'), dict, loaded.append).load()
    assert loaded == [{"a": 1}]
    table = KVConfigManager(written("kvConfig.json", json.dumps({"configTable": {"SPACE": {"key": "value"}}})))
    table.load()
    hashed = "scrypt:16384:8:1:" + "A" * 22 + ":" + "A" * 43
    with pytest.raises(ConfigError, match="line 2"):  # the comment in line 1 is one
        read_users(written("users", f"# {hashed}\nwrong\n"), {})
    (tmp_path / "users").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        read_users(tmp_path / "users", {})


def test_a_change_at_run_time_keeps_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(BOM + b"brokerName=a\nbrokerPermission=6\n")
    change_properties(path, {"brokerPermission": "4"})
    assert path.read_bytes() == BOM + b"brokerName=a\nbrokerPermission=4\n"
    change_properties(path, {"brokerName": "b"})
    assert BrokerConfig.from_file(path).broker_name == "b"


def test_no_module_splits_lists_of_servers_itself() -> None:
    """Nothing but the one parser takes the text of ``namesrvAddr`` or ``nameServer`` apart."""
    found = [
        f"{name}: {ast.unparse(node)}"
        for name, node in nodes()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("split", "partition", "rpartition", "replace")
        and any(word in ast.unparse(node.func.value) for word in ("namesrv_addr", "nameserver", "name_server"))
    ]
    assert found == []


# --- durations, sizes, times and numbers ------------------------------------------------------------------------------

Parse = Callable[[str], Any]
DURATIONS = {
    "500ms": 500, "90s": 90_000, "15m": 900_000, "15min": 900_000, "15 min": 900_000, " 2H ": 7_200_000,
    "1d": 86_400_000, "0500ms": 500, "1h30m": 5_400_000, "5 min 12 s": 312_000, "3 d 2 h": 266_400_000,
}  # fmt: skip
NOT_DURATIONS = (
    "", "s", "10x", "-5s", "1.5h", "1e3s", "\u0663s", "5s12m", "1m1m", "five", "1,5h", "1 year", "9" * 19 + "s",
    "1\u017f",
)  # fmt: skip
SIZES = {
    "64k": 65_536, "64KB": 65_536, "64 KiB": 65_536, "1.5m": 3 << 19, "2M": 2 << 20, "0.5g": 1 << 29, "1.5 MiB": 3 << 19
}  # fmt: skip
NOT_SIZES = ("", "k", "1kk", "1bib", "-1k", "1.5", "1.5b", "1ms", "many", "1,5k", "1\u212a", "\u0663k")
NUMBERS = {"7": 7, " 42 ": 42, "007": 7, "1,234": 1234}
NOT_NUMBERS = ("", "-1", "1,23", "1234,567", "1.5", "\u0663", "1e3", "x", "1_000", "0x10", "7s")
TIMES = {
    "1769860800000": 1_769_860_800_000,
    "2026-01-31T12:00:00Z": 1_769_860_800_000,
    "2026-01-31T12:00Z": 1_769_860_800_000,
    "2026-01-31 17:30:00.000+05:30": 1_769_860_800_000,
    "20260131T120000Z": 1_769_860_800_000,
    " 2026-01-31T12:00:00.0001Z": 1_769_860_800_001,
    "99999999d": 0,
    "-99999999d": 0,
}
NOT_TIMES = ("", "yesterday", "2026", "20260131", "1769860800", "12:00", "2026-13-01", "9" * 19, "31.1.2026", "1.5h")
_REFUSED = (ConfigError, OptionError, click.BadParameter)
_METAVARS = {
    "duration": {"DURATION", "SECONDS", "[SECONDS]", "S"},
    "size": {"BYTES", "MIB"},
    "time": {"TIME"},
    "number": {"N", "PORT", "OFFSET", "PHYSICAL"},
}
_FUTURE = ("deliver_at",)


def _parameters() -> Iterator[tuple[str, click.Parameter, Parse]]:
    for path, command in _commands(rocket):
        for parameter in command.params:
            yield f"{path} {parameter.opts[-1]}", parameter, partial(_parse_parameter, command, parameter)


def _options(kind: str) -> Iterator[tuple[str, Parse]]:
    for option in OPTIONS:
        if option.type.startswith(kind) and option.type != "time zone":
            yield f"option {option.name}", partial(option.parse, option.name)


def _places(notation: str) -> list[Any]:
    """Each place that takes the notation: of the command line by its metavar, of the data source by its type."""
    found = [
        (name, parse)
        for name, parameter, parse in _parameters()
        if parameter.metavar in _METAVARS[notation] and parameter.name not in _FUTURE
    ]
    found += _options({"number": "integer"}.get(notation, notation))
    return [pytest.param(parse, id=name) for name, parse in found]


def _outcome(parse: Parse, text: str) -> object:
    """The value; None if it is refused, for example because it is out of the place's range."""
    try:
        return parse(text)
    except _REFUSED:
        return None


def _refuses(parse: Parse, texts: Iterable[str], remedy: str) -> None:
    for text in texts:
        with pytest.raises(_REFUSED, match=remedy):
            parse(text)


def test_all_places_are_found() -> None:
    """A parameter of the command line that takes a number is one of these places: none has click's own types."""
    assert [len(_places(notation)) > least for notation, least in [("duration", 60), ("size", 7), ("time", 9)]]
    own = (click.types.IntParamType, click.types.FloatParamType, click.DateTime)
    assert [name for name, parameter, _ in _parameters() if isinstance(parameter.type, own)] == []
    numeric = {place.id for notation in _METAVARS for place in _places(notation)}
    functions = {vars(arguments)[name] for name in ("seconds", "duration", "moment", "past", "number", "limit", "port")}
    missing = [
        name
        for name, parameter, _ in _parameters()
        if getattr(parameter.type, "func", None) in functions and name not in numeric
    ]
    assert [name for name in missing if not name.endswith(("--queue", "--deliver-at"))] == []


@pytest.mark.parametrize("parse", _places("duration"))
def test_durations_have_one_notation(parse: Parse) -> None:
    for text, ms in DURATIONS.items():
        assert _outcome(parse, text) == _outcome(parse, f"{ms}ms"), text
    assert any(_outcome(parse, text) is not None for text in DURATIONS)
    _refuses(parse, NOT_DURATIONS, "500ms")


@pytest.mark.parametrize("parse", _places("size"))
def test_sizes_have_one_notation(parse: Parse) -> None:
    for text, count in SIZES.items():
        assert _outcome(parse, text) == _outcome(parse, f"{count}b"), text
    assert any(_outcome(parse, text) is not None for text in SIZES)
    _refuses(parse, NOT_SIZES, "64k")


@pytest.mark.parametrize("parse", _places("number"))
def test_numbers_have_one_notation(parse: Parse) -> None:
    for text, number in NUMBERS.items():
        assert _outcome(parse, text) == _outcome(parse, str(number)), text
    _refuses(parse, NOT_NUMBERS, "use|at least|from")


@pytest.mark.parametrize("parse", _places("time"))
def test_times_have_one_notation(parse: Parse) -> None:
    for text, ms in TIMES.items():
        found = parse(text)
        assert getattr(found, "ms", found) == ms, text
    _refuses(parse, NOT_TIMES, "milliseconds since 1970")


def test_times_of_queues_and_of_read_arrow_are_those_of_options() -> None:
    for text, ms in TIMES.items():
        given = {"nameServer": "a:1", "subscribe": "orders"}
        by_queue = json.dumps({"orders": {"broker-a": {"0": text}}})
        parsed = parse_read_options({**given, "startingOffsetsByTimestamp": by_queue}, Scope.READ)
        assert [*(parsed.starting.times or {}).values()] == [ms]
        option = option_of("starting", text)
        assert parse_read_options({**given, option: text}, Scope.READ).starting.timestamp_ms == ms
    for text in NOT_TIMES:
        by_queue = json.dumps({"orders": {"broker-a": {"0": text}}})
        with pytest.raises(OptionError, match="milliseconds since 1970"):
            parse_read_options({**given, "startingOffsetsByTimestamp": by_queue}, Scope.READ)


def test_delay_levels_are_durations() -> None:
    for text, ms in DURATIONS.items():
        if " " not in text.strip():
            assert parse_delay_levels(f"1s {text} 2h") == [1000, ms, 7_200_000]
    for text in NOT_DURATIONS:
        with pytest.raises(ConfigError, match="unit s, m, h or d"):
            parse_delay_levels(text or "x")


SETTINGS = [
    pytest.param(config, name, id=f"{config.__name__} {name}")
    for config in (BrokerConfig, ProxyConfig)
    for name, one in settings_of(config).items()
    if one.kind == "int"
]


def test_settings_with_numbers_are_found() -> None:
    assert len(SETTINGS) > 50


@pytest.mark.parametrize(("config", "name"), SETTINGS)
def test_settings_have_no_units(config: type[BrokerConfig | ProxyConfig], name: str) -> None:
    """As in RocketMQ, whose brokers read the same file."""
    for text in ("5s", "4m", "1.5", "1e3", "\u0663", "many"):
        with pytest.raises(ConfigError, match=rf"line 1: {name}=.* needs a whole number") as refused:
            config.from_text(f"{name}={text}", "x.conf")
        assert "without units" in refused.value.remedy


#: Modules that format or parse times in notations that are not ours.
OTHER_TIMES = {
    "broker/processors/statistics.py": "a value of Apache's response",
    "broker/send_targets.py": "Apache's remark",
    "datasource/bodies/far_times.py": "Spark's rows",
    "datasource/views/view_rows.py": "Spark's rows",
    "common/logs.py": "log lines, in UTC",
    "protocol/ids.py": "the month of a message id",
    "proxy/probe.py": "the date of a signature",
    "store/index/index_file.py": "a file's name",
    "store/index/index_service.py": "a file's name",
    "common/units.py": "the notation",
}
_TIME_CALLS = {"fromisoformat", "isoformat", "strptime", "strftime", "fromtimestamp", "utcfromtimestamp", "ctime"}


def test_no_module_formats_or_parses_times_itself() -> None:
    found = {
        name
        for name, node in nodes()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TIME_CALLS
    }
    assert found - OTHER_TIMES.keys() == set(), "use spark_rocket.common.units"
    assert OTHER_TIMES.keys() - found == set(), "these are gone"


_SCRIPT_TIMES = re.compile(
    r"toISOString|toLocale|toUTCString|Date\.parse|\.get(?:Full|Hours|Month)|datetime-local|new Date\([^)]*value"
)


def test_no_script_of_the_console_formats_or_parses_times_itself() -> None:
    """One script formats them; the console's server parses them."""
    scripts = (PACKAGE / "console" / "static").rglob("*.js")
    assert {file.name for file in scripts if _SCRIPT_TIMES.search(file.read_text("utf-8"))} == {"format.js"}


_UNITS = re.compile(r"\[[^\]]*(?:s[^\]]*m[^\]]*h|k[^\]]*m[^\]]*g)[^\]]*\]|\b(?:ms\|s|s\|m|kb?\|mb?)\b", re.I)


def is_of_re(function: ast.Attribute) -> bool:
    is_re = isinstance(function.value, ast.Name) and function.value.id == "re"
    return is_re and function.attr in {"compile", "fullmatch", "match", "search"}


def test_no_module_has_a_pattern_or_a_table_of_units_of_its_own() -> None:
    """Regular expressions with units, and dictionaries from units to factors."""
    found = set()
    for name, node in nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_of_re(node.func):
            if _UNITS.search(ast.unparse(node.args[0])):
                found.add(name)
        elif isinstance(node, ast.Dict) and all(isinstance(value, ast.Constant) for value in node.values):
            keys = {str(key.value).lower() for key in node.keys if isinstance(key, ast.Constant)}
            if {"s", "m", "h"} <= keys or {"k", "m", "g"} <= keys:
                found.add(name)
    assert found == {"common/units.py"}
