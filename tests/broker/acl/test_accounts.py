"""Accounts that administrators see and change by request (50 to 54), as mqadmin of RocketMQ 4.9 does."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_rocket.acl.accounts_file import AccountsFile, _parts, change_file
from spark_rocket.acl.rules import AclRules
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.wire.bodies.config import ClusterAclConfig, PlainAccessConfig
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.headers.admin import CreateAccessConfigRequestHeader
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker.acl.conftest import Connect
from tests.broker.acl.test_control import ALICE, ROOT, SECRETS, control_of, control_on, refused
from tests.broker.wire import Wire

pytestmark = pytest.mark.live

PUT = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
DELETE = RequestCode.DELETE_ACL_CONFIG
VERSION = RequestCode.GET_BROKER_CLUSTER_ACL_INFO
WHITE = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
SHOW = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG

ACCOUNTS = """\
# who may do what
globalWhiteRemoteAddresses: [10.7.0.*]
accounts:
- {accessKey: root-key, secretKey: r00t-s3cr3t, admin: true}
- accessKey: alice-key
  secretKey: al1ce-s3cr3t
  topicPerms: [orders=PUB, bills=SUB]
  groupPerms: [readers=SUB]
- {accessKey: white-key, secretKey: wh1te-s3cr3t, whiteRemoteAddress: 127.0.0.*}
- {accessKey: chief-key, secretKey: ch1ef-s3cr3t, whiteRemoteAddress: 127.0.0.*, admin: true}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(
        in_process=True,
        access_key=ROOT.access_key,
        secret_key=ROOT.secret_key,
        config={"grpcServerPort": -1},
        data_dir=tmp_path_factory.mktemp("accounts"),
    ) as cluster:
        cluster.create_topic("orders", 1)
        yield cluster


@pytest.fixture
def cluster(running: LocalCluster) -> LocalCluster:
    """With the same accounts for each test."""
    running.acl_file.write_text(ACCOUNTS)
    running.acl_file.chmod(0o640)
    control_of(running).take(AclRules.from_bytes(ACCOUNTS.encode(), "plain_acl.yml"))
    return running


def accounts_of(wire: Wire) -> dict[str, PlainAccessConfig]:
    return {one.access_key: one for one in wire.read(ClusterAclConfig, SHOW).plain_access_configs}


# --- changes ----------------------------------------------------------------------------------------------------------


def test_an_account_is_created_and_effective_at_once(cluster: LocalCluster, as_: Connect) -> None:
    root, bob = as_(ROOT), as_(Credentials("bob-key", "b0b-s3cr3t"))
    refused(bob.send("orders"), "no account with the accessKey bob-key")
    # As mqadmin of 4.9 writes it: lists with commas, what is not given not at all.
    answer = root.ask(
        PUT, accessKey="bob-key", secretKey="b0b-s3cr3t", admin=False, topicPerms="orders=PUB|SUB,bills=DENY"
    )
    assert (answer.code, answer.remark) == (0, None)
    assert bob.send("orders").code == 0
    refused(bob.send("bills"), "no permission PUB for the topic bills")
    text = cluster.acl_file.read_text()
    assert AclRules.from_bytes(text.encode(), "plain_acl.yml").accounts.keys() == {
        "root-key", "alice-key", "white-key", "chief-key", "bob-key",
    }  # fmt: skip
    assert cluster.acl_file.stat().st_mode & 0o777 == 0o640
    backup = cluster.acl_file.with_name("plain_acl.yml.bak")
    assert backup.read_text() == ACCOUNTS
    assert backup.stat().st_mode & 0o777 == 0o640


def test_an_account_is_changed_in_part(as_: Connect) -> None:
    root, alice = as_(ROOT), as_(ALICE)
    assert alice.send("orders").code == 0
    assert root.ask(PUT, accessKey="alice-key", admin=False, topicPerms="orders=SUB").code == 0
    refused(alice.send("orders"), "no permission PUB for the topic orders")  # on the connection that was there
    assert accounts_of(root)["alice-key"] == PlainAccessConfig(
        "alice-key", ALICE.secret_key, topic_perms=["orders=SUB"], group_perms=["readers=SUB"]
    )
    more = {"defaultTopicPerm": "SUB|PUB", "defaultGroupPerm": "SUB", "whiteRemoteAddress": "10.0.0.{7,9}"}
    assert root.ask(PUT, accessKey="alice-key", admin=True, topicPerms="", groupPerms="a=SUB,,b=DENY", **more).code == 0
    assert accounts_of(root)["alice-key"] == PlainAccessConfig(
        "alice-key", ALICE.secret_key, "10.0.0.{7,9}", True, "SUB|PUB", "SUB", [], ["a=SUB", "b=DENY"]
    )
    assert root.ask(PUT, accessKey="alice-key", whiteRemoteAddress="").code == 0
    changed = accounts_of(root)["alice-key"]
    assert (changed.white_remote_address, changed.admin) == ("", False)  # admin is never absent in Java


def test_an_account_is_deleted(as_: Connect) -> None:
    root, alice = as_(ROOT), as_(ALICE)
    assert alice.send("orders").code == 0
    assert root.ask(DELETE, accessKey="alice-key").code == 0
    refused(alice.send("orders"), "no account with the accessKey alice-key")
    again = root.ask(DELETE, accessKey="alice-key")
    assert (again.code, again.remark) == (210, "there is no account with the accessKey alice-key")


def test_the_white_list_is_replaced(cluster: LocalCluster, as_: Connect) -> None:
    root, nobody = as_(ROOT), as_(None)
    refused(nobody.send("orders"), "names no accessKey")
    assert root.ask(WHITE, globalWhiteAddrs="127.0.0.*,10.0.0.{7,9}").code == 0
    assert nobody.send("orders").code == 0
    assert root.read(ClusterAclConfig, SHOW).global_white_addrs == ["127.0.0.*", "10.0.0.{7,9}"]
    assert root.ask(WHITE, globalWhiteAddrs="", aclFileFullPath=str(cluster.acl_file)).code == 0
    refused(nobody.send("orders"), "names no accessKey")
    for path in ("/etc/passwd", "../../x.yml"):
        answer = root.ask(WHITE, globalWhiteAddrs="*", aclFileFullPath=path)
        assert (answer.code, answer.remark) == (211, f"this broker has one file of accounts, {cluster.acl_file}")


def test_versions_count_changes(cluster: LocalCluster, as_: Connect) -> None:
    root = as_(ROOT)
    first = root.ask(VERSION).ext_fields
    assert json.loads(first["version"]) == {"counter": 0, "stateVersion": 0, "timestamp": 0}
    root.ask(PUT, accessKey="alice-key")
    root.ask(WHITE, globalWhiteAddrs="")
    found = root.ask(VERSION).ext_fields
    version = json.loads(found["version"])
    assert version["counter"] == 2
    assert version["timestamp"] > 1_700_000_000_000
    assert json.loads(found["allAclFileVersion"]) == {str(cluster.acl_file): version}
    assert (found["brokerAddr"], found["clusterName"]) == (cluster.broker_address, "DefaultCluster")
    assert found["brokerName"]


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"accessKey": "short", "secretKey": "long-enough"}, "accessKey is shorter than 7 characters"),
        ({"accessKey": "carol-key"}, "an account has no secretKey"),
        ({"accessKey": "carol-key", "secretKey": "short"}, "secretKey is shorter than 7 characters"),
        (
            {"accessKey": "alice-key", "topicPerms": "orders=PUSH"},
            "invalid permission 'PUSH': use DENY, PUB, SUB or PUB|SUB",
        ),
        ({"accessKey": "alice-key", "topicPerms": "orders"}, "invalid entry of topicPerms: use 'name=permission'"),
        ({"accessKey": "alice-key", "defaultGroupPerm": "ALL"}, "invalid permission 'ALL'"),
        ({"accessKey": "alice-key", "whiteRemoteAddress": "10.0.0.0/8"}, "write networks with *"),
        ({"accessKey": "alice-key", "secretKey": "s3cr3t\0s3cr3t"}, "secretKey "),
    ],
)
def test_changes_that_are_refused(cluster: LocalCluster, as_: Connect, fields: dict[str, str], remark: str) -> None:
    answer = as_(ROOT).ask(PUT, **fields)
    assert answer.code == 209
    assert answer.remark is not None
    assert remark in answer.remark
    assert "line" not in answer.remark
    assert not any(secret in answer.remark for secret in SECRETS)
    assert cluster.acl_file.read_text() == ACCOUNTS


def test_a_white_list_that_is_refused(cluster: LocalCluster, as_: Connect) -> None:
    answer = as_(ROOT).ask(WHITE, globalWhiteAddrs="10.0.0.300")
    assert (answer.code, "invalid address '10.0.0.300'" in (answer.remark or "")) == (211, True)
    assert cluster.acl_file.read_text() == ACCOUNTS


def test_an_invalid_or_read_only_file_is_not_changed(cluster: LocalCluster, as_: Connect) -> None:
    root = as_(ROOT)
    cluster.acl_file.write_text(ACCOUNTS.replace("admin: true", "admin: maybe"))
    for answer in (root.ask(DELETE, accessKey="alice-key"), root.ask(SHOW), root.ask(VERSION)):
        assert f"{cluster.acl_file}, line 4: invalid admin 'maybe'" in (answer.remark or "")
    assert root.ask(DELETE, accessKey="alice-key").code == 210
    cluster.acl_file.write_text(ACCOUNTS)
    in_the_way = cluster.acl_file.with_name("plain_acl.yml.tmp")
    in_the_way.mkdir()
    answer = root.ask(PUT, accessKey="alice-key")
    in_the_way.rmdir()
    assert (answer.code, "cannot be written" in (answer.remark or "")) == (209, True)
    assert cluster.acl_file.read_text() == ACCOUNTS


# --- who may --------------------------------------------------------------------------------------------------------


def test_accounts_without_administrator_rights_are_refused(cluster: LocalCluster, as_: Connect) -> None:
    white = as_(None)
    for wire, more in ((as_(ALICE), {}), (white, {"AccessKey": "white-key"})):
        # From its own white list an account may do everything else without a signature, but not this.
        for code in (PUT, DELETE, VERSION, WHITE, SHOW):
            answer = wire.ask(code, accessKey="alice-key", globalWhiteAddrs="*", **more)
            refused(answer, f"request code {int(code)} is for administrators")
    assert white.send("orders", AccessKey="white-key").code == 0
    refused(as_(None).ask(SHOW), "names no accessKey")
    assert cluster.acl_file.read_text() == ACCOUNTS


def test_secrets_are_sent_to_signed_administrators_only(cluster: LocalCluster, as_: Connect) -> None:
    assert accounts_of(as_(ROOT))["alice-key"].secret_key == ALICE.secret_key
    unsigned = as_(None).ask(SHOW, AccessKey="chief-key")
    assert unsigned.code == 0
    assert b"alice-key" in bytes(unsigned.body)
    assert b"s3cr3t" not in bytes(unsigned.body)
    control_of(cluster).take(AclRules.from_bytes(b"globalWhiteRemoteAddresses: ['*']", "x"))
    white = as_(None).ask(SHOW)
    assert (white.code, b"s3cr3t" in bytes(white.body)) == (0, False)
    assert as_(None).ask(PUT, accessKey="bob-key", secretKey="b0b-s3cr3t").code == 0  # who may do everything


def test_no_log_has_a_secret(as_: Connect, caplog: pytest.LogCaptureFixture) -> None:
    root = as_(ROOT)
    with caplog.at_level(logging.DEBUG):
        root.ask(PUT, accessKey="bob-key", secretKey="b0b-s3cr3t")
        root.ask(PUT, accessKey="bob-key", secretKey="s3cr3t")
        root.ask(PUT, accessKey="bob\nkey", secretKey="b0b-s3cr3t")
        root.ask(SHOW)
    assert "accounts changed by" in caplog.text
    assert "root-key" in caplog.text
    assert "s3cr3t" not in caplog.text
    assert "s3cr3t" not in repr(CreateAccessConfigRequestHeader("bob-key", "b0b-s3cr3t"))
    assert "s3cr3t" not in repr(PlainAccessConfig("bob-key", "b0b-s3cr3t"))


def test_a_broker_without_access_control_warns(tmp_path: Path) -> None:
    with LocalCluster(in_process=True, data_dir=tmp_path) as cluster, RemotingClient() as client:
        wire = Wire(client, cluster.broker_address)
        for code, failed in ((PUT, 209), (DELETE, 210), (WHITE, 211), (VERSION, 1), (SHOW, 1)):
            answer = wire.ask(code, accessKey="alice-key", globalWhiteAddrs="")
            assert (answer.code, "aclEnable" in (answer.remark or "")) == (failed, True)


# --- the file -------------------------------------------------------------------------------------------------------


def test_strings_are_not_changed(tmp_path: Path) -> None:
    """Strings that YAML would convert, and those that Apache's broker wrote."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(
        "accounts:\n- accessKey: 12345678\n  secretKey: '0123456'\n  admin: True\n  whiteRemoteAddress: null\n"
        "  topicPerms: ['a: b=PUB', yes=SUB]\n  groupPerms:\n"
        "dataVersion:\n- counter: 41\n  timestamp: 1596535834000\n"
    )
    link = tmp_path / "link.yml"
    link.symlink_to(path)
    rules = change_file(link, lambda file: None, 7)
    assert link.is_symlink()
    assert rules.accounts.keys() == {"12345678"}
    changed = AccountsFile.read(path)
    assert (changed.version.counter, changed.version.timestamp) == (42, 7)
    assert changed.accounts == [
        PlainAccessConfig("12345678", "0123456", admin=True, topic_perms=["a: b=PUB", "yes=SUB"])
    ]
    assert changed.white == []


@pytest.mark.parametrize(
    "version", ["", "dataVersion: 7", "dataVersion: []", "dataVersion: [x]", "dataVersion: [{counter: a}]"]
)
def test_an_invalid_version_is_the_first(version: str) -> None:
    assert AccountsFile.of(f"{ACCOUNTS}\n{version}\n".encode(), "x").version.counter == 0


def test_a_string_that_no_file_can_contain(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    given = CreateAccessConfigRequestHeader("alice-\ud800-key", "al1ce-s3cr3t")
    with pytest.raises(ConfigError) as caught:
        change_file(path, lambda file: file.put(given), 1)
    assert "s3cr3t" not in str(caught.value)
    assert path.read_text() == ACCOUNTS


def test_the_last_account_stays(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text("accounts:\n- {accessKey: root-key, secretKey: r00t-s3cr3t, admin: true}\n")
    with pytest.raises(ConfigError, match="the file has no accounts and no addresses"):
        change_file(path, lambda file: file.accounts.clear(), 1)


def _without_chief(file: AccountsFile) -> None:
    assert file.delete("chief-key")


async def test_values_read_before_a_change_are_not_used_after_it(tmp_path: Path) -> None:
    """The file is checked each second and read on a thread; a concurrent change waits."""
    control = control_on(tmp_path / "plain_acl.yml", ACCOUNTS)
    control.path.write_text(ACCOUNTS + "# touched\n")
    await control.reload_if_changed()
    looking = asyncio.create_task(control.reload_if_changed())
    await asyncio.sleep(0)
    await control.change(_without_chief)
    await looking
    assert "chief-key" not in control.rules.accounts


def test_a_list_is_split_in_one_pass() -> None:
    assert _parts(" 10.0.0.{7,9}, 10.1.0.*,,fe80::1 ,") == ["10.0.0.{7,9}", "10.1.0.*", "fe80::1"]
    assert _parts("orders=PUB|SUB,bills=SUB") == ["orders=PUB|SUB", "bills=SUB"]
    assert _parts("") == []
    assert _parts("," * 1_000_000) == []  # looking ahead from each would take many minutes
