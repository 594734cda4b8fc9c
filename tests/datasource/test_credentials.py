"""The connector's credentials, as options."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from spark_rocket.client.core.address_map import NO_ADDRESS_MAP
from spark_rocket.datasource.options.connection import ClusterConnection
from spark_rocket.datasource.options.parse import parse_read_options, parse_view_options, parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.tables import new_table
from spark_rocket.errors import DataSourceError
from spark_rocket.protocol.auth import Credentials

KEYS = {"accesskey": "alice-key", "SECRETKEY": "al1ce-s3cr3t"}
ALICE = Credentials("alice-key", "al1ce-s3cr3t")


def read(**options: str) -> Credentials | None:
    return parse_read_options({"subscribe": "orders", **options}, Scope.READ).connection.credentials


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY", "ROCKETMQ_SECURITY_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_sources_of_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tools.yml"
    path.write_text("accessKey: file-key\nsecretKey: f1le-s3cr3t\n")
    assert read() is None
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "env-key")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "env-s3cr3t")
    assert read() == Credentials("env-key", "env-s3cr3t")
    assert read(credentialsfile=str(path)) == Credentials("file-key", "f1le-s3cr3t")
    assert read(**KEYS) == ALICE
    assert read(**KEYS, SecurityToken="t0k3n") == Credentials("alice-key", "al1ce-s3cr3t", "t0k3n")
    assert parse_write_options({"topic": "orders", **KEYS}, Scope.WRITE).connection.credentials == ALICE
    assert parse_view_options({"view": "topics", **KEYS}).connection.credentials == ALICE
    assert ClusterConnection(ALICE).arguments() == {
        "tls": False,
        "address_map": NO_ADDRESS_MAP,
        "namespace": "",  # names of options have it, and the environment was looked up
        "namespace_v2": "",
        "access_key": "alice-key",
        "secret_key": "al1ce-s3cr3t",
        "security_token": None,
    }
    assert ClusterConnection().arguments().keys() == {"tls", "address_map", "namespace", "namespace_v2"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accessKey": "alice-key"}, "accessKey has no effect without secretKey"),
        ({"secretKey": "s3cr3t"}, "secretKey has no effect without accessKey"),
        ({**KEYS, "credentialsFile": "{file}"}, "accessKey cannot be combined with credentialsFile"),
        ({"securityToken": "s3cr3t"}, "securityToken has no effect without accessKey"),
        ({"credentialsFile": "{away}"}, "credentialsFile is '.*away'. Use a file that the driver can read"),
        ({**KEYS, "secretKeys": "s3cr3t"}, "has no option secretkeys. Did you mean secretKey"),
        ({"accessKey": "alice-key", "secretKey": "s3cr3t\0"}, "secretKey is not a key"),
    ],
)
def test_invalid_combinations_do_not_reveal_the_secret(tmp_path: Path, options: dict[str, str], message: str) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: file-key\nsecretKey: f1le-s3cr3t\n")
    given = {name: text.format(file=file, away=tmp_path / "away") for name, text in options.items()}
    with pytest.raises(DataSourceError, match=message) as refused:
        read(**given)
    assert "s3cr3t" not in str(refused.value)


def test_a_store_directory_needs_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataSourceError, match="accessKey cannot be combined with storePath"):
        parse_read_options({"storePath": str(tmp_path), **KEYS}, Scope.READ)
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "env-key")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "env-s3cr3t")
    assert parse_read_options({"storePath": str(tmp_path)}, Scope.READ).connection.credentials is None


@pytest.mark.parametrize("name", ["secretKey", "securityToken", "SECRETKEY"])
def test_a_table_that_would_reveal_a_secret_is_refused(name: str) -> None:
    with pytest.raises(DataSourceError, match="SECRET_IN_TABLE") as refused:
        new_table({"topic": "orders", "accessKey": "alice-key", name: "s3cr3t"}, lambda _: pytest.fail("too late"))
    assert "s3cr3t" not in str(refused.value)


def test_pickled_options_do_not_reveal_the_secret() -> None:
    for options in (
        parse_read_options({"subscribe": "orders", **KEYS}, Scope.READ),
        parse_write_options({"topic": "orders", **KEYS}, Scope.WRITE),
        parse_view_options({"view": "topics", **KEYS}),
    ):
        assert "s3cr3t" not in repr(options)
        assert "s3cr3t" not in str(options)
        assert pickle.loads(pickle.dumps(options)) == options
        assert hash(options.connection.credentials) == hash(ALICE)
