from __future__ import annotations

import pytest

from spark_rocket.client.config import ClientConfig
from spark_rocket.errors import ConfigError


def test_name_server_comes_from_argument_then_variable_then_default() -> None:
    variable = {"NAMESRV_ADDR": "ns:1"}
    assert ClientConfig.of("a:2", variable).name_servers == ("a:2",)
    assert ClientConfig.of(None, variable).name_servers == ("ns:1",)
    assert ClientConfig.of(None, {}).name_servers == ("127.0.0.1:9876",)


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a:9876;b:9876", ("a:9876", "b:9876")),
        (" a:9876 ; b:9876; ", ("a:9876", "b:9876")),
        ("a:9876,b:9876;a:9876", ("a:9876", "b:9876")),
        ("http://a:9876/", ("a:9876",)),
        ("[::1]:9876", ("[::1]:9876",)),
    ],
)
def test_several_name_servers(text: str, servers: tuple[str, ...]) -> None:
    assert ClientConfig.of(text, {}).name_servers == servers


@pytest.mark.parametrize("text", ["localhost", "a:9876;b", "a:port", ";", "a:0"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9876"):
        ClientConfig.of(text, {})
