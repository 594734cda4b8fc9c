"""TLS of the connector: options, their effects, and a query over TLS."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from spark_rocket.datasource.options.parse import parse_read_options, parse_view_options, parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.errors import OptionError
from spark_rocket.remoting.tls.settings import TlsSettings, Verify


def read(**options: str) -> TlsSettings | None:
    return parse_read_options({"subscribe": "orders", **options}, Scope.READ).connection.tls


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENABLE", "CONFIG_FILE", "CLIENT_TRUST_CERT_PATH", "CLIENT_KEY_PASSWORD"):
        monkeypatch.delenv(f"ROCKETMQ_TLS_{name}", raising=False)


def test_effects_of_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read() is None
    assert read(tls="false") is None
    assert read(tls="true") == TlsSettings(enable=True)
    found = read(tls="true", tlsCaFile="ca.pem", tlsCertFile="/c.pem", tlsKeyFile="/k.pem", tlsverify="CA")
    assert found == TlsSettings(
        enable=True,
        client_trust_cert_path=str(tmp_path / "ca.pem"),
        client_cert_path="/c.pem",
        client_key_path="/k.pem",
        verify=Verify.CA,
    )
    assert pickle.loads(pickle.dumps(found)) == found
    written = parse_write_options({"topic": "orders", "tls": "true"}, Scope.WRITE)
    assert written.connection.tls == TlsSettings(enable=True)
    assert parse_view_options({"view": "topics", "tls": "true"}).connection.tls == TlsSettings(enable=True)


def test_the_environment_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_TLS_ENABLE", "true")
    monkeypatch.setenv("ROCKETMQ_TLS_CLIENT_TRUST_CERT_PATH", "/env/ca.pem")
    monkeypatch.setenv("ROCKETMQ_TLS_CLIENT_KEY_PASSWORD", "hunter2")
    found = read()
    assert found == TlsSettings(enable=True, client_trust_cert_path="/env/ca.pem", client_key_password="hunter2")
    assert "hunter2" not in repr(parse_read_options({"subscribe": "orders"}, Scope.READ))
    assert read(tls="false") is None
    options = read(tls="true", tlsCaFile="/own/ca.pem")
    assert options is not None
    assert options.client_trust_cert_path == "/own/ca.pem"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tlsCaFile": "/ca.pem"}, "tlsCaFile .*tls=true"),
        ({"tls": "false", "tlsVerify": "none"}, "tlsVerify .*tls=true"),
        ({"tls": "true", "tlsCertFile": "/c.pem"}, "tlsCertFile .*tlsKeyFile"),
        ({"tls": "true", "tlsKeyFile": "/k.pem"}, "tlsKeyFile .*tlsCertFile"),
        ({"tls": "true", "storePath": "/store"}, "tls .*storePath"),
    ],
)
def test_conflicting_options(options: dict[str, str], text: str) -> None:
    subscribed = {} if "storePath" in options else {"subscribe": "orders"}
    with pytest.raises(OptionError, match=text):
        parse_read_options({**subscribed, **options}, Scope.READ)
