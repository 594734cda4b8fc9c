"""Settings of TLS: sources, effects, and invalid values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_rocket.errors import ConfigError
from spark_rocket.remoting.tls.settings import ClientAuth, TlsMode, TlsSettings, Verify, as_settings, variable_of

PAIR = {"tls.server.certPath": "c.pem", "tls.server.keyPath": "k.pem"}


def test_arguments_override_the_file_and_the_file_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.certPath=of-file.pem\ntls.server.keyPath=of-file.key\ntls.client.verify=ca\n")
    environment = {
        "ROCKETMQ_TLS_CONFIG_FILE": str(file),
        "ROCKETMQ_TLS_SERVER_CERT_PATH": "of-environment.pem",
        "ROCKETMQ_TLS_ENABLE": "true",
        "ROCKETMQ_TLS_SERVER_NEED_CLIENT_AUTH": "Optional",
        "ROCKETMQ_TLS_SERVER_TRUST_CERT_PATH": "ca.pem",
    }
    found = TlsSettings.of({"tls.server.keyPath": "given.key"}, environment)
    assert found == TlsSettings(
        server_cert_path="of-file.pem",
        server_key_path="given.key",
        need_client_auth=ClientAuth.OPTIONAL,
        server_trust_cert_path="ca.pem",
        enable=True,
        verify=Verify.CA,
    )
    assert TlsSettings.of({}, {}) == TlsSettings()


def test_names_of_environment_variables() -> None:
    assert variable_of("tls.server.need.client.auth") == "ROCKETMQ_TLS_SERVER_NEED_CLIENT_AUTH"
    assert variable_of("tls.client.trustCertPath") == "ROCKETMQ_TLS_CLIENT_TRUST_CERT_PATH"


@pytest.mark.parametrize(
    ("given", "mode", "is_client", "checks"),
    [
        ({}, TlsMode.DISABLED, False, Verify.FULL),
        (PAIR, TlsMode.PERMISSIVE, False, Verify.FULL),
        ({**PAIR, "tls.server.mode": "disabled"}, TlsMode.DISABLED, False, Verify.FULL),
        ({**PAIR, "tls.server.mode": "enforcing"}, TlsMode.ENFORCING, True, Verify.FULL),
        ({**PAIR, "tls.server.mode": "ENFORCING", "tls.enable": "false"}, TlsMode.ENFORCING, False, Verify.FULL),
        ({"tls.test.mode.enable": "true"}, TlsMode.PERMISSIVE, False, Verify.NONE),
        ({"tls.client.authServer": "false"}, TlsMode.DISABLED, False, Verify.NONE),
        ({"tls.client.authServer": "true"}, TlsMode.DISABLED, False, Verify.FULL),
        ({"tls.test.mode.enable": "true", "tls.client.verify": "full"}, TlsMode.PERMISSIVE, False, Verify.FULL),
    ],
)
def test_effects_of_settings(given: dict[str, str], mode: TlsMode, is_client: bool, checks: Verify) -> None:
    found = TlsSettings.of(given, {})
    assert (found.server_mode, found.is_client, found.checks) == (mode, is_client, checks)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tls.server.mode": "on"}, "^here: invalid value of tls.server.mode: 'on'"),
        ({"tls.server.mode": "permissive"}, "^here: tls.server.mode=permissive needs a certificate"),
        ({"tls.server.keyPath": "k.pem"}, "tls.server.keyPath is set without tls.server.certPath"),
        ({"tls.client.certPath": "c.pem"}, "tls.client.certPath is set without tls.client.keyPath"),
        ({"tls.server.need.client.auth": "require"}, "needs the CA of the clients' certificates"),
        ({"tls.server.authClient": "true"}, "has no effect"),
        (
            {"tls.server.need.client.auth": "require", "tls.server.authClient": "false"},
            "incompatible with tls.server.authClient=false",
        ),
        ({"tls.client.authServer": "false", "tls.client.verify": "full"}, "is incompatible with"),
        ({"tls.server.certpath": "c.pem"}, "unknown TLS setting 'tls.server.certpath'"),
        ({"tls.config.file": "/nowhere"}, "cannot read tls.config.file=/nowhere"),
    ],
)
def test_invalid_settings(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as found:
        TlsSettings.of(given, {}, source="here")
    assert re.search(text, found.value.message)
    assert found.value.remedy


def test_a_file_with_invalid_settings(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    for line, text in (
        ("tls.server.moed=x", "line 2: unknown TLS setting 'tls.server.moed'"),
        ("tls.enable=1", "line 2: invalid value of tls.enable: '1'"),
    ):
        file.write_text("# a comment\n" + line)
        with pytest.raises(ConfigError, match=text):
            TlsSettings.of({"tls.config.file": str(file)}, {})


def test_settings_of_clients() -> None:
    trusting = TlsSettings(client_trust_cert_path="ca.pem")
    environment = {"ROCKETMQ_TLS_ENABLE": "true", "ROCKETMQ_TLS_CLIENT_TRUST_CERT_PATH": "ca.pem"}
    assert as_settings(None, {}) is None
    assert as_settings(None, {"ROCKETMQ_TLS_CLIENT_TRUST_CERT_PATH": "ca.pem"}) is None
    assert as_settings(None, environment) == TlsSettings(enable=True, client_trust_cert_path="ca.pem")
    assert as_settings(True, {}) == TlsSettings()
    assert as_settings(False, environment) is None
    assert as_settings(trusting, {}) is trusting
    assert as_settings(TlsSettings(enable=False), environment) is None


def test_environment_of_a_child_process() -> None:
    settings = TlsSettings.of({**PAIR, "tls.server.mode": "enforcing", "tls.client.trustCertPath": "ca.pem"}, {})
    told = as_settings(None, settings.client_environment())
    assert told == TlsSettings(enable=True, client_trust_cert_path="ca.pem", verify=Verify.FULL)
    told = as_settings(None, TlsSettings(test_mode=True, enable=True).client_environment())
    assert told is not None
    assert told.checks is Verify.NONE
    assert told.server_mode is TlsMode.DISABLED
    assert as_settings(None, TlsSettings().client_environment()) is None


def test_passwords_are_not_shown() -> None:
    settings = TlsSettings(server_cert_path="c", server_key_path="k", server_key_password="hunter2")
    assert "hunter2" not in f"{settings} {settings!r} {settings.properties()}"
    assert settings.properties()["tls.server.keyPassword"] == "******"


def test_required_client_certificates_disable_plaintext() -> None:
    """Without a mode, a server that requires client certificates does not accept plaintext."""
    settings = TlsSettings(
        server_cert_path="c", server_key_path="k", server_trust_cert_path="t", need_client_auth=ClientAuth.REQUIRE
    )
    assert settings.server_mode is TlsMode.ENFORCING
