"""One notation has one parser: every place that takes a value gives the same verdict and the same value.

The places are found, not listed: options of commands, settings of servers, options of the data source, arguments of
clients. A place with a parser of its own, or without one, fails here.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

import spark_rocket
from spark_rocket import client
from spark_rocket.acl.rules import AclRules
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.config_files import ConfigFile, change_properties
from spark_rocket.cli.main import rocket
from spark_rocket.client import aio
from spark_rocket.client.core.client_config import ClientConfig, read_credentials
from spark_rocket.console.settings import read_users
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import OPTIONS, Scope
from spark_rocket.errors import ClientError, ConfigError, OptionError
from spark_rocket.namesrv.kv_config import KVConfigManager
from spark_rocket.proxy.proxy_config import ProxyConfig
from spark_rocket.remoting.tls.settings import TlsSettings

PACKAGE = Path(spark_rocket.__file__).parent

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


def _name_server_places() -> Iterator[tuple[str, bool, Callable[[str], str]]]:
    """Yield each place: its name, whether it takes an address server, and its parser."""
    for option in OPTIONS:
        if option.type == "addresses":
            yield f"option {option.name}", True, lambda text, option=option: option.parse(option.name, text)
    for config, attribute, with_url in ((BrokerConfig, "namesrv_addr", False), (ProxyConfig, "name_server", True)):

        def of_setting(text: str, config=config, attribute=attribute) -> str:
            made = config.from_text(f"\n\nnamesrvAddr={text}", "x.conf")
            return ";".join(made.name_servers) if isinstance(made, BrokerConfig) else _client(made.name_server)

        yield f"namesrvAddr of {config.__name__}", with_url, of_setting
    for path, command in _commands(rocket):
        for parameter in command.params:
            if _takes_name_servers(parameter):
                yield (
                    path,
                    True,
                    lambda text, parameter=parameter, command=command: parameter.type_cast_value(
                        click.Context(command), text
                    ),
                )
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
    """Of messages and of transactions."""

    def __call__(self, *_: object) -> None:
        raise NotImplementedError

    execute_local_transaction = check_local_transaction = __call__


def test_every_client_takes_name_servers_by_this_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the constructor, before anything is connected."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    kinds = [
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
        f"{file.relative_to(PACKAGE)}: {ast.unparse(node)}"
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("split", "partition", "rpartition", "replace")
        and any(word in ast.unparse(node.func.value) for word in ("namesrv_addr", "nameserver", "name_server"))
    ]
    assert found == []
