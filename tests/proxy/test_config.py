"""The proxy's settings: names and values of Apache's proxy, and errors for others."""

from __future__ import annotations

import json
import logging
from dataclasses import fields
from pathlib import Path

import pytest

from spark_rocket.broker.state.known_settings import PROXY_SETTINGS
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.java_properties import render_properties
from spark_rocket.protocol.setting import text_of
from spark_rocket.proxy.proxy_config import _SPECS, KNOWN_UNUSED, ProxyConfig
from spark_rocket.remoting.tls.settings import TlsMode

OWN = '{"accessKey": "proxy-key", "secretKey": "pr0xy-s3cr3t"}'
SETTINGS: dict[str, object] = {
    "namesrvAddr": "a:9876;b:9876",
    "bindAddress": "0.0.0.0",
    "grpcServerPort": 8082,
    "innerClientAuthenticationCredentials": OWN,
    "tls.enable": True,
    "tlsTestModeEnable": False,
}


def as_properties(settings: dict[str, object]) -> str:
    return render_properties((name, text_of(value)) for name, value in settings.items())


def test_a_file_in_either_form_and_settings_are_the_same(tmp_path: Path) -> None:
    properties, json_file = tmp_path / "proxy.conf", tmp_path / "rmq-proxy.json"
    properties.write_text(as_properties(SETTINGS))
    json_file.write_text(json.dumps(SETTINGS, indent=2))
    given = ProxyConfig.from_properties(SETTINGS, source="x")
    for path in (properties, json_file):
        assert ProxyConfig.from_file(path, source=None) == given
    assert (given.name_server, given.host, given.port) == ("a:9876;b:9876", "0.0.0.0", 8082)
    assert given.credentials == Credentials("proxy-key", "pr0xy-s3cr3t")
    assert given.client_tls() is not None
    assert not given.server_tls_settings().test_mode


def test_another_process_gets_all_settings() -> None:
    config = ProxyConfig.from_properties({**SETTINGS, "aclFile": "/etc/plain_acl.yml"})
    assert ProxyConfig.from_text(config.to_text(), "the same") == config


def test_secrets_are_not_shown() -> None:
    config = ProxyConfig.from_properties({**SETTINGS, "tlsKeyPassword": "k3y-s3cr3t"})
    for text in (repr(config), str(config.to_properties())):
        assert "s3cr3t" not in text


@pytest.mark.parametrize(
    ("settings", "remark"),
    [
        ({"grpcServerPort": -1}, "grpcServerPort must be between 0 and 65535"),
        ({"namesrvAddr": "nowhere"}, "'nowhere'"),
        ({"tlsCertPath": "c.pem"}, "tlsKeyPath is not"),
        ({"tlsKeyPath": "k.pem"}, "tlsCertPath is not"),
        ({"proxyProtocolTrustedAddresses": "10.0.0.1"}, "proxyProtocolTrustedAddresses=10.0.0.1 is not supported"),
        ({"maxConnectionsPerAddress": "9"}, "maxConnectionsPerAddress=9 is not supported"),
        ({"proxyMode": "LOCAL"}, "proxyMode=LOCAL is not supported"),
        ({"tls.server.mod": "enforcing"}, "tls.server.mod"),
        ({"innerClientAuthenticationCredentials": "s3cr3t"}, "Invalid innerClientAuthenticationCredentials"),
    ],
)
def test_what_is_wrong(settings: dict[str, object], remark: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProxyConfig.from_properties(settings)
    assert remark in caught.value.message
    assert "s3cr3t" not in caught.value.message
    assert caught.value.remedy


def test_tls_can_be_enforced_with_the_certificate_of_tls_cert_path() -> None:
    config = ProxyConfig.from_properties(
        {"tlsCertPath": "c.pem", "tlsKeyPath": "k.pem", "tlsKeyPassword": "p", "tls.server.mode": "enforcing"}
    )
    found = config.server_tls_settings()
    assert found.server_mode is TlsMode.ENFORCING
    assert (found.server_cert_path, found.server_key_path, found.server_key_password) == ("c.pem", "k.pem", "p")
    assert config.client_tls() is not None
    assert "'p'" not in str(config.to_properties())


def test_unknown_settings_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ProxyConfig.from_properties({"grpcServerPorts": 1, "rocketmqMQClientNum": 6})
    (record,) = caplog.records
    assert "ignored unknown setting 'grpcServerPorts'. Did you mean 'grpcServerPort'?" in record.getMessage()


def test_names_in_broker_requests_are_converted() -> None:
    assert _SPECS.keys() >= PROXY_SETTINGS
    assert not KNOWN_UNUSED & _SPECS.keys()
    assert len(_SPECS) == len([entry for entry in fields(ProxyConfig) if "low" in entry.metadata])


def test_removed_settings_with_their_old_defaults() -> None:
    ProxyConfig.from_properties({"proxyProtocolTrustedAddresses": "", "maxConnectionsPerAddress": 0})
