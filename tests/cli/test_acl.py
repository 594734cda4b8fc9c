"""``rocket acl`` against a broker with access control."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click
import pytest

from spark_rocket.cli.connect import Link
from spark_rocket.client import Admin
from spark_rocket.client.admin.accounts import AccessMode, AccountAdmin, AclVersion, BrokerAccess
from spark_rocket.client.admin.users import UserAdmin
from spark_rocket.errors import BrokerError
from spark_rocket.protocol.namespace import NO_NAMESPACE
from spark_rocket.protocol.wire.bodies.config import ClusterAclConfig, PlainAccessConfig
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.testing import LocalCluster
from tests.cli.conftest import CommandResult, Run
from tests.kit.accounts import ACCOUNTS, KEYS

pytestmark = pytest.mark.live

CLUSTER = {"in_process": True, "config": {"grpcServerPort": -1}, **KEYS}
ROOT = ("--access-key", "root-key", "--secret-key", "r00t-s3cr3t")


@pytest.fixture
def rocket(cluster: LocalCluster, run: Run) -> Run:
    """``rocket acl …`` as an administrator, on the same accounts each time."""
    cluster.acl_file.write_text(ACCOUNTS)

    def rocket(*arguments: object, answer: str | None = None) -> CommandResult:
        said = run("acl", *arguments, "-n", cluster.name_server, *ROOT, answer=answer)
        assert "--secrets" in arguments or "s3cr3t" not in said.out + said.err
        return said

    return rocket


def test_accounts_are_listed(rocket: Run, cluster: LocalCluster) -> None:
    lines = rocket("list").out.splitlines()
    assert lines[0].endswith(f"{cluster.broker_address}: ACL 1.0, version 0")
    assert [line.split() for line in lines[2:]] == [
        ["root-key", "yes", "-", "-", "all", "all", "-"],
        ["alice-key", "no", "orders=PUB", "-", "DENY", "DENY", "-"],
    ]
    (found,) = rocket("list", "--json").json
    assert (found["address"], found["version"], found["globalWhiteAddrs"]) == (cluster.broker_address, 0, [])
    assert found["accounts"][1]["secretKey"] == "********"
    assert "al1ce-s3cr3t" in rocket("list", "--secrets").out
    assert rocket("show", "alice-key", "--secrets", "--json").json[0]["secretKey"] == "al1ce-s3cr3t"
    shown = rocket("show", "alice-key").out
    assert [line.split() for line in shown.splitlines()[1:3]] == [["administrator", "no"], ["topics", "orders=PUB"]]
    said = rocket("show", "bob-key")
    assert (said.status, said.err) == (
        1,
        "rocket: No broker has an account 'bob-key'. `rocket acl list` shows the accounts.\n",
    )


def test_an_account_is_updated_after_confirmation(rocket: Run, cluster: LocalCluster) -> None:
    arguments = ("update", "alice-key", "--topic", "bills=sub|pub", "--no-topic", "orders", "--group", "alice=SUB")
    said = rocket(*arguments, answer="n")
    assert (said.status, cluster.acl_file.read_text()) == (1, ACCOUNTS)
    assert [line.split() for line in said.out.splitlines()[1:4]] == [
        ["WHAT", "NOW", "THEN"],
        ["topics", "orders=PUB", "bills=PUB|SUB"],
        ["groups", "-", "alice=SUB"],
    ]
    assert rocket(*arguments, "--yes").out.endswith("Updated account alice-key.\n")
    assert rocket(*arguments, "--yes").out == "Already up to date.\n"
    account = rocket("show", "alice-key", "--json").json[0]
    assert (account["topicPerms"], account["groupPerms"], account["admin"]) == (["bills=PUB|SUB"], ["alice=SUB"], False)
    assert rocket("update", "alice-key", "--admin", "--no-topic", "bills", "--no-group", "alice", "--yes").status == 0
    account = rocket("show", "alice-key", "--json").json[0]
    assert (account["topicPerms"], account["groupPerms"], account["admin"]) == ([], [], True)
    assert rocket("update", "alice-key", "--other-topics", "SUB", "--yes").status == 0
    assert rocket("show", "alice-key", "--json").json[0]["admin"] is True  # was not given


def test_an_account_is_created_and_deleted(
    rocket: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster
) -> None:
    assert rocket("update", "bob-key", "--group", "bob=SUB", "--yes").failed(
        "Account bob-key is new: give --secret-file", status=2
    )
    file = tmp_path / "secret"
    file.write_text("b0b-s3cr3t\n")
    assert rocket("update", "bob-key", "--secret-file", file, "--yes").status == 0
    assert rocket("show", "bob-key", "--json", "--secrets").json[0]["secretKey"] == "b0b-s3cr3t"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO("an0ther-s3cr3t\n"))
        assert rocket("update", "bob-key", "--secret-file", "-", "--yes").status == 0
    with monkeypatch.context() as patch:
        patch.setattr(sys.stdin, "isatty", lambda: True)
        patch.setattr(click, "prompt", lambda *_, **__: "typed-s3cr3t")
        assert rocket("update", "carol-key", "--unsigned-from", "10.0.0.7", "--yes").status == 0
    assert rocket("show", "carol-key", "--json", "--secrets").json[0]["secretKey"] == "typed-s3cr3t"
    assert rocket("delete", "bob-key", answer="n").status == 1
    said = rocket("delete", "bob-key", answer="y")
    assert (said.status, said.out.splitlines()[-1]) == (0, "Deleted account bob-key.")
    assert rocket("delete", "bob-key").status == 1
    said = rocket("delete", "root-key", answer="n")
    assert "It is the last administrator" in said.out
    assert cluster.acl_file.exists()


def test_the_white_list(rocket: Run) -> None:
    assert rocket("white-list", "10.0.0.{7,9}", "10.1.*.*", "--yes").out.endswith("Updated the white list.\n")
    assert rocket("white-list").out.splitlines()[1].endswith("10.0.0.7, 10.0.0.9, 10.1.*.*")
    assert "All permissions without a signature: 10.0.0.7, 10.0.0.9, 10.1.*.*." in rocket("list").out
    assert rocket("white-list", "--clear", answer="y").status == 0
    assert rocket("white-list", "--json").json[0]["globalWhiteAddrs"] == []
    assert rocket("white-list", "10.0.0.1", "--clear").status == 2


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("update", "alice-key", "--topic", "orders"), 2, "invalid NAME=PERMISSION 'orders'"),
        (("update", "alice-key", "--other-groups", "PUSH"), 2, "invalid permission 'PUSH': use DENY, PUB, SUB"),
        (("update", "short", "--secret", "long-enough", "--yes"), 1, "accessKey is shorter than 7 characters"),
        (("white-list", "10.0.0.900", "--yes"), 1, "invalid address '10.0.0.900': '900' is not 0 to 255"),
        (("update", "alice-key", "--secret", "a", "--secret-file", "b"), 2, "cannot be given together"),
        (("list", "--broker", "missing"), 1, "No master broker named 'missing'"),
    ],
)
def test_invalid_arguments(rocket: Run, arguments: tuple[str, ...], status: int, text: str) -> None:
    said = rocket(*arguments)
    assert (said.status, text in said.err) == (status, True), said.err


def test_an_account_without_permission(cluster: LocalCluster, rocket: Run, run: Run) -> None:
    rocket("list")
    said = run("acl", "list", "-n", cluster.name_server, "--access-key", "alice-key", "--secret-key", "al1ce-s3cr3t")
    assert (said.status, said.out) == (1, "")
    assert "NO_PERMISSION" in said.err


# --- brokers of other makes and layouts -------------------------------------------------------------------------------


class _Brokers:
    """An Admin's view of brokers: ``one`` reports nothing (5.0 to 5.3), ``two`` and ``three`` share a file."""

    broker_accounts = AccountAdmin.broker_accounts
    broker_users = UserAdmin.broker_users
    delete_account_of = AccountAdmin.delete_account_of
    namespace = NO_NAMESPACE
    prepares_arguments = False

    def __init__(self) -> None:
        self.accounts = [PlainAccessConfig("root-key", admin=True), PlainAccessConfig("alice-key")]
        self.told: list[tuple[str, bool]] = []

    def access_modes(self, **_: object) -> list[BrokerAccess]:
        return [BrokerAccess(name, f"{name}:1", AccessMode.PLAIN) for name in ("one", "two", "three")]

    def acl_versions(self, **_: object) -> list[AclVersion]:
        return [AclVersion("c", name, f"{name}:1", 7, 0) for name in ("one", "two", "three")]

    def acl_config(self, address: str) -> ClusterAclConfig:
        if address == "one:1":
            raise BrokerError("no", response_code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        return ClusterAclConfig([], list(self.accounts))

    def delete_account(self, key: str, *, broker: str, failed: dict[str, BrokerError]) -> list[str]:
        before = len(self.accounts)
        if broker != "one:1":
            self.accounts = [one for one in self.accounts if one.access_key != key]
            if len(self.accounts) == before:
                failed[broker] = BrokerError(f"Broker {broker} refused it.")
                return []
        return [broker]

    def update_account(self, key: str, *, broker: str, admin: bool, **_: object) -> list[str]:
        self.told.append((broker, admin))
        return [broker]

    def __enter__(self) -> _Brokers:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> _Brokers:
    found = _Brokers()
    monkeypatch.setattr(Link, "admin", lambda link: found)
    return found


def test_brokers_that_do_not_report_accounts(run: Run, brokers: _Brokers) -> None:
    said = run("acl", "list")
    assert said.status == 0
    assert said.out.splitlines()[:4] == [
        "one one:1: ACL 1.0, version 7",
        "These brokers do not report their accounts.",
        "",
        "two two:1: ACL 1.0, version 7",
    ]
    assert run("acl", "show", "bob-key").failed("do not report their accounts")
    assert run("acl", "update", "alice-key", "--other-topics", "SUB", "--yes").failed(
        "give --admin or --no-admin", status=2
    )
    assert run("acl", "update", "alice-key", "--other-topics", "SUB", "--no-admin", "--yes").status == 0
    assert brokers.told == [("one:1", False), ("two:1", False), ("three:1", False)]


def test_brokers_that_share_a_file(run: Run, brokers: _Brokers) -> None:
    said = run("acl", "delete", "alice-key", "--yes")
    assert (said.status, said.err) == (0, "")
    assert [one.access_key for one in brokers.accounts] == ["root-key"]


def test_all_brokers_unless_one_is_named(cluster: LocalCluster) -> None:
    with Admin(cluster.name_server, access_key="root-key", secret_key="r00t-s3cr3t") as admin:
        (version,) = admin.acl_versions()
        assert (version.cluster, version.address) == ("DefaultCluster", cluster.broker_address)
        assert admin.acl_versions(broker=version.broker) == admin.acl_versions(cluster="DefaultCluster") == [version]
        failed: dict[str, object] = {}
        assert admin.delete_account("nobody-key", failed=failed) == []  # type: ignore[arg-type]
        assert "there is no account with the accessKey nobody-key" in str(failed[version.broker])
