"""Access control over HTTP: accounts of ACL 1.0 on a live broker, users of ACL 2.0 on brokers like Apache's."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from spark_rocket.client import Admin
from spark_rocket.errors import BrokerError
from spark_rocket.protocol.wire.bodies.config import ClusterAclConfig, PlainAccessConfig
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.console.auth_brokers import AuthCluster
from tests.console.conftest import Page, page_of
from tests.kit.accounts import ACCOUNTS, KEYS
from tests.kit.scripted import says

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def guarded_page(guarded: LocalCluster) -> Iterator[Page]:
    with page_of(guarded.name_server, connecting=KEYS) as page:
        yield page


@pytest.fixture
def plain(guarded: LocalCluster, guarded_page: Page, caplog: pytest.LogCaptureFixture) -> Iterator[Page]:
    """The page of a cluster with ``ACCOUNTS``. No response and no log line has a secret."""
    guarded.acl_file.write_text(ACCOUNTS)
    with caplog.at_level(logging.DEBUG, "spark_rocket"):
        yield guarded_page
    assert "s3cr3t" not in caplog.text
    assert "s3cr3t" not in guarded_page.http.get("/api/accounts").text


def account(page: Page, name: str) -> Any:
    (file,) = page.get("/api/accounts")["files"]
    return next((one for one in file["accounts"] if one["name"] == name), None)


# --- without access control -----------------------------------------------------------------------------------------


def test_brokers_without_access_control(page: Page) -> None:
    data = page.get("/api/accounts")
    assert (data["off"], data["files"], data["users"], data["failed"]) == (["broker-a"], [], [], {})


def test_a_broker_that_does_not_respond(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Admin, *, failed: dict[str, Exception]) -> list[object]:
        failed["broker-a"] = BrokerError("It does not respond.")
        return []

    monkeypatch.setattr(Admin, "access_modes", fail)
    data = page.get("/api/accounts")
    assert data["failed"]["broker-a"]["text"] == "It does not respond."
    assert (data["off"], data["files"]) == ([], [])


# --- ACL 1.0 --------------------------------------------------------------------------------------------------------


def test_accounts_are_shown_without_secrets(plain: Page, guarded: LocalCluster) -> None:
    data = plain.get("/api/accounts")
    assert (data["own"], data["off"], data["users"], data["failed"]) == ("root-key", [], [], {})
    (file,) = data["files"]
    assert [(one["name"], one["address"]) for one in file["brokers"]] == [("broker-a", guarded.broker_address)]
    assert file["white"] == []
    assert file["accounts"] == [
        {
            "name": "root-key",
            "admin": True,
            "topics": [],
            "groups": [],
            "otherTopics": "all",
            "otherGroups": "all",
            "white": "",
        },
        {
            "name": "alice-key",
            "admin": False,
            "topics": ["orders=PUB"],
            "groups": [],
            "otherTopics": "DENY",
            "otherGroups": "DENY",
            "white": "",
        },
    ]


def test_an_account_is_created_changed_and_deleted(
    plain: Page, guarded: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = [guarded.broker_address]
    body = {"brokers": brokers, "account": "bobby-key", "create": True, "secret": "b0b-s3cr3t", "groups": ["bob=SUB"]}
    assert plain.post("/api/account", body)["done"] == f"Created account bobby-key on {guarded.broker_address}."
    assert "b0b-s3cr3t" in guarded.acl_file.read_text()
    assert plain.post("/api/account", body, 409)["code"] == "ACCOUNT_EXISTS"
    body = {"brokers": brokers, "account": "bobby-key", "topics": ["orders=PUB|SUB"], "otherGroups": "SUB"}
    assert plain.post("/api/account", body)["failed"] == {}
    found = account(plain, "bobby-key")
    assert (found["topics"], found["groups"], found["otherGroups"]) == (["orders=PUB|SUB"], ["bob=SUB"], "SUB")
    body = {"brokers": brokers, "account": "bobby-key", "confirm": "bob"}
    assert plain.delete("/api/account", body, 400)["code"] == "NOT_CONFIRMED"
    assert plain.delete("/api/account", {**body, "confirm": "bobby-key"})["failed"] == {}
    assert account(plain, "bobby-key") is None
    for what in ("create or change account", "delete account", "bobby-key"):
        assert what in caplog.text


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/api/account", {"account": "x-long-key", "create": True}, 400, "needs a secret key"),
        ("/api/account", {"account": " "}, 400, "Missing account."),
        ("/api/account", {"account": "alice-key", "topics": ["orders"]}, 400, "Invalid permission 'orders'"),
        ("/api/account", {"account": "alice-key", "topics": "orders=PUB"}, 400, "Invalid topics."),
        ("/api/account", {"account": "alice-key", "otherTopics": "all"}, 400, "Invalid otherTopics 'all'."),
        ("/api/account", {"account": "short", "create": True, "secret": "l0ng-s3cr3t"}, 409, "accessKey is shorter"),
        ("/api/account", {"account": "alice-key", "brokers": []}, 400, "No brokers given."),
        ("/api/account", {"account": "alice-key", "brokers": ["127.0.0.1:1"]}, 404, "No broker of this cluster"),
        ("/api/account/white-list", {"addresses": ["10.0.0.900"]}, 409, "'900' is not 0 to 255"),
    ],
)
def test_invalid_changes(
    plain: Page, guarded: LocalCluster, path: str, body: dict[str, object], status: int, text: str
) -> None:
    error = plain.post(path, {"brokers": [guarded.broker_address], **body}, status)
    assert text in error["text"]
    assert guarded.acl_file.read_text() == ACCOUNTS


@pytest.mark.parametrize("text", ["evil\nadmin: true", "x: {y}", "- a # b", "'q\"\\n", "a=PUB,b=SUB", "\u2028line"])
def test_no_value_adds_anything_to_the_file(plain: Page, guarded: LocalCluster, text: str) -> None:
    name = f"{text} key"
    body = {"brokers": [guarded.broker_address], "account": name, "create": True, "secret": f"{text} s3cr3t"}
    if plain.http.post("/api/account", json=body, headers={"X-CSRF-Token": plain.csrf}).is_success:
        (file,) = plain.get("/api/accounts")["files"]
        assert [(one["name"], one["admin"]) for one in file["accounts"]] == [
            ("root-key", True),
            ("alice-key", False),
            (name, False),
        ]
        assert yaml.safe_load(guarded.acl_file.read_text())["accounts"][2]["secretKey"] == f"{text} s3cr3t"
    else:
        assert guarded.acl_file.read_text() == ACCOUNTS


def test_the_console_does_not_silently_remove_its_own_access(plain: Page, guarded: LocalCluster) -> None:
    own = {"brokers": [guarded.broker_address], "account": "root-key"}
    for error in (
        plain.post("/api/account", {**own, "admin": False}, 409),
        plain.delete("/api/account", {**own, "confirm": "root-key"}, 409),
    ):
        assert error["code"] == "OWN_ACCOUNT"
    assert guarded.acl_file.read_text() == ACCOUNTS
    assert plain.post("/api/account", {**own, "admin": True, "otherTopics": "SUB", "own": True})["failed"] == {}
    assert account(plain, "root-key")["otherTopics"] == "SUB"


def test_missing_fields_stay_unchanged_also_the_administrator(plain: Page, guarded: LocalCluster) -> None:
    own = {"brokers": [guarded.broker_address], "account": "root-key", "own": True}
    assert plain.post("/api/account", {**own, "otherTopics": "SUB"})["failed"] == {}
    assert (account(plain, "root-key")["admin"], account(plain, "root-key")["otherTopics"]) == (True, "SUB")


def test_what_has_changed_since_it_was_shown_is_not_overwritten(plain: Page, guarded: LocalCluster) -> None:
    brokers = [guarded.broker_address]
    shown = account(plain, "alice-key")
    body = {"brokers": brokers, "account": "alice-key", "from": shown, "topics": ["orders=PUB", "bills=SUB"]}
    plain.post("/api/account", body)
    error = plain.post("/api/account", {**body, "topics": ["orders=SUB"]}, 409)
    assert (error["code"], error["text"]) == ("ACCOUNTS_CHANGED", "Account alice-key has changed in the meantime.")
    assert account(plain, "alice-key")["topics"] == ["orders=PUB", "bills=SUB"]
    plain.delete("/api/account", {"brokers": brokers, "account": "alice-key", "confirm": "alice-key"})
    error = plain.post("/api/account", {**body, "secret": "al1ce-s3cr3t"}, 409)
    assert error["code"] == "NO_SUCH_ACCOUNT"
    white = {"brokers": brokers, "from": []}
    plain.post("/api/account/white-list", {**white, "addresses": ["10.0.0.7"]})
    error = plain.post("/api/account/white-list", {**white, "addresses": ["10.0.0.8"]}, 409)
    assert error["code"] == "ACCOUNTS_CHANGED"
    assert plain.get("/api/accounts")["files"][0]["white"] == ["10.0.0.7"]


def test_brokers_that_share_a_file_are_checked_before_the_first_change() -> None:
    with LocalCluster(brokers=2, **KEYS) as cluster, page_of(cluster.name_server, connecting=KEYS) as page:
        (file,) = page.get("/api/accounts")["files"]
        brokers = [one["address"] for one in file["brokers"]]
        assert len(brokers) == 2
        body = {"brokers": brokers, "account": "bobby-key", "create": True, "secret": "b0b-s3cr3t"}
        assert page.post("/api/account", body)["failed"] == {}
        assert account(page, "bobby-key") is not None


def test_an_account_that_one_broker_has_is_created_on_the_others(apache: AuthCluster) -> None:
    applied: list[str] = []

    def put(request: RemotingCommand) -> RemotingCommand:
        applied.append(request.ext_fields["accessKey"])
        return RemotingCommand.response(request)

    for number, broker in enumerate(apache.fakes.brokers):
        accounts = [PlainAccessConfig("bobby-key")] if number == 1 else []
        broker.responses[RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG] = says(
            0, body=ClusterAclConfig([], accounts).to_json()
        )
        broker.responses[RequestCode.UPDATE_AND_CREATE_ACL_CONFIG] = put
    with page_of(apache.name_server) as page:
        body = {"brokers": apache.addresses, "account": "bobby-key", "create": True, "secret": "b0b-s3cr3t"}
        done = page.post("/api/account", body)
        assert done["done"] == f"Created account bobby-key on {apache.addresses[0]}."
        assert done["failed"][apache.addresses[1]]["code"] == "ACCOUNT_EXISTS"
        assert applied == ["bobby-key"]
        apache.fakes.brokers[0].responses[RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG] = says(1, "broken")
        page.post(
            "/api/account", {**body, "brokers": apache.addresses[:1]}, 409
        )  # whether it has the account is unknown
        assert applied == ["bobby-key"]


def test_a_secret_that_a_broker_repeats_in_its_error_is_hidden(auth: Page, apache: AuthCluster) -> None:
    """As Apache's brokers: the fixture checks the log and the responses."""
    text = "The secretKey=s3cr3t value length should longer than 6"
    for broker in apache.fakes.brokers:
        broker.responses[RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG] = says(0, body=ClusterAclConfig().to_json())
        broker.responses[RequestCode.UPDATE_AND_CREATE_ACL_CONFIG] = says(209, text)
        broker.responses[RequestCode.AUTH_CREATE_USER] = says(1, text)
    body = {"brokers": apache.addresses, "account": "bobby-key", "create": True, "secret": "s3cr3t"}
    error = auth.post("/api/account", body, 409)
    assert "The secretKey=****** value length should longer than 6" in error["text"]
    body = {"brokers": apache.addresses, "user": "bob", "create": True, "password": "s3cr3t"}
    assert "The secretKey=****** value length should longer than 6" in auth.post("/api/user", body, 409)["text"]


def test_a_broker_that_does_not_report_its_settings_is_not_asked_for_its_accounts(apache: AuthCluster) -> None:
    first, second = apache.fakes.brokers
    first.responses[RequestCode.GET_BROKER_CONFIG] = says(0, body=b"aclEnable=true\n")
    second.responses[RequestCode.GET_BROKER_CONFIG] = says(1, "broken")
    with page_of(apache.name_server) as page:
        assert set(page.get("/api/accounts")["failed"]) == {"b0", "b1"}
        assert RequestCode.GET_BROKER_CLUSTER_ACL_INFO in first.codes()
        assert RequestCode.GET_BROKER_CLUSTER_ACL_INFO not in second.codes()


def test_the_white_list(plain: Page, guarded: LocalCluster) -> None:
    body = {"brokers": [guarded.broker_address], "addresses": ["10.0.0.{7,9}", " ", "10.1.*.*"]}
    plain.post("/api/account/white-list", body)
    assert plain.get("/api/accounts")["files"][0]["white"] == ["10.0.0.7", "10.0.0.9", "10.1.*.*"]


def test_a_console_without_an_account(plain: Page, guarded: LocalCluster) -> None:
    with page_of(guarded.name_server) as page:
        data = page.get("/api/accounts")
        assert (data["own"], data["files"]) == (None, [])
        assert data["failed"]["broker-a"]["remedy"]
        body = {"brokers": [guarded.broker_address], "addresses": []}
        assert page.post("/api/account/white-list", body, 409)["code"] == "OWN_ACCOUNT"


def test_read_only(plain: Page, guarded: LocalCluster) -> None:
    with page_of(guarded.name_server, connecting=KEYS, read_only=True) as page:
        assert page.get("/api/accounts")["files"]
        changes = [
            (verb, path) for path in ("/api/account", "/api/user", "/api/permission") for verb in ("POST", "DELETE")
        ]
        for verb, path in [*changes, ("POST", "/api/account/white-list")]:
            assert page.change(verb, path, {}, 403)["code"] == "READ_ONLY"


# --- ACL 2.0 --------------------------------------------------------------------------------------------------------


@pytest.fixture
def auth(apache: AuthCluster, caplog: pytest.LogCaptureFixture) -> Iterator[Page]:
    """The page of a cluster with ACL 2.0. No response and no log line has a secret."""
    with page_of(apache.name_server, connecting={"access_key": "root", "secret_key": "r00t-s3cr3t"}) as page:
        with caplog.at_level(logging.DEBUG, "spark_rocket"):
            yield page
        assert "s3cr3t" not in caplog.text
        assert "s3cr3t" not in page.http.get("/api/accounts").text


def test_users_and_permissions(auth: Page, apache: AuthCluster) -> None:
    root = {"name": "root", "type": "Super", "status": "enable", "permissions": []}
    data = auth.get("/api/accounts")
    assert (data["own"], data["off"], data["files"], data["failed"]) == ("root", [], [], {})
    (found,) = data["users"]
    assert [one["address"] for one in found["brokers"]] == apache.addresses
    assert found["users"] == [root]

    ada = {"brokers": apache.addresses, "user": "ada"}
    auth.post("/api/user", {**ada, "create": True, "password": "ada-s3cr3t", "type": "Normal"})
    assert [broker.users["ada"].password for broker in apache.brokers] == ["ada-s3cr3t"] * 2
    auth.post("/api/user", {**ada, "status": "disable"})
    permission = {"resource": "Topic:orders*", "actions": ["Pub", "Sub"], "sourceIps": ["10.0.0.0/8"]}
    auth.post("/api/permission", {**ada, **permission})
    auth.post("/api/permission", {**ada, **permission, "actions": ["Sub"], "decision": "Deny"})
    (found,) = auth.get("/api/accounts")["users"]
    assert found["users"][0] == {
        "name": "ada",
        "type": "Normal",
        "status": "disable",
        "permissions": [{**permission, "actions": ["Sub"], "decision": "Deny", "policyType": "Custom"}],
    }
    assert apache.brokers[0].users["ada"].password == "ada-s3cr3t"
    auth.delete("/api/permission", {**ada, "resource": "Topic:orders*"})
    assert auth.get("/api/accounts")["users"][0]["users"][0]["permissions"] == []
    assert auth.delete("/api/user", {**ada, "confirm": "adam"}, 400)["code"] == "NOT_CONFIRMED"
    auth.delete("/api/user", {**ada, "confirm": "ada"})
    assert auth.get("/api/accounts")["users"][0]["users"] == [root]


def test_a_user_who_has_changed_since_it_was_shown_is_not_overwritten(auth: Page, apache: AuthCluster) -> None:
    ada = {"brokers": apache.addresses, "user": "ada"}
    auth.post("/api/user", {**ada, "create": True, "password": "ada-s3cr3t"})
    shown = auth.get("/api/accounts")["users"][0]["users"][0]
    permission = {"resource": "Topic:orders", "actions": ["Pub"]}
    assert auth.post("/api/permission", {**ada, **permission, "from": shown})["failed"] == {}
    for verb, path, more in (
        ("POST", "/api/permission", {**permission, "actions": ["Sub"]}),
        ("DELETE", "/api/permission", permission),
        ("POST", "/api/user", {"status": "disable"}),
    ):
        error = auth.change(verb, path, {**ada, **more, "from": shown}, 409)
        assert (error["code"], error["text"]) == ("ACCOUNTS_CHANGED", "User ada has changed in the meantime.")
    now = auth.get("/api/accounts")["users"][0]["users"][0]
    assert (now["status"], now["permissions"][0]["actions"]) == ("enable", ["Pub"])
    assert auth.delete("/api/permission", {**ada, **permission, "from": now})["failed"] == {}


def test_brokers_with_different_users_are_shown_apart(auth: Page, apache: AuthCluster) -> None:
    body = {"brokers": apache.addresses[:1], "user": "ada", "create": True, "password": "ada-s3cr3t"}
    auth.post("/api/user", body)
    names = [[user["name"] for user in found["users"]] for found in auth.get("/api/accounts")["users"]]
    assert names == [["ada", "root"], ["root"]]
    body["brokers"] = apache.addresses
    done = auth.post("/api/user", body)  # on the other broker only
    assert done["done"] == f"Created user ada on {apache.addresses[1]}."
    assert "The user is existed" in done["failed"][apache.addresses[0]]["text"]
    assert "The user is existed" in auth.post("/api/user", body, 409)["text"]


def test_own_users_and_invalid_changes(auth: Page, apache: AuthCluster) -> None:
    own = {"brokers": apache.addresses, "user": "root"}
    for verb, path, more in (
        ("POST", "/api/user", {"status": "disable"}),
        ("DELETE", "/api/user", {"confirm": "root"}),
        ("POST", "/api/permission", {"resource": "*", "actions": ["All"], "decision": "Deny"}),
        ("DELETE", "/api/permission", {"resource": "*"}),
    ):
        assert auth.change(verb, path, {**own, **more}, 409)["code"] == "OWN_ACCOUNT"
    ada = {"brokers": apache.addresses, "user": "ada"}
    for path, wrong, text in (
        ("/api/user", {"create": True}, "needs a password"),
        ("/api/user", {"type": "Admin"}, "Invalid type 'Admin'."),
        ("/api/permission", {"resource": "orders", "actions": ["Pub"]}, "Invalid resource 'orders'."),
        ("/api/permission", {"resource": "Topic:t", "actions": ["Any"]}, "Invalid actions."),
        ("/api/permission", {"resource": "Topic:t", "actions": []}, "Invalid actions."),
    ):
        assert text in auth.post(path, {**ada, **wrong}, 400)["text"]
    assert list(apache.brokers[0].users) == ["root"]
    assert not apache.brokers[0].acls


def test_a_broker_that_refuses_its_users(auth: Page, apache: AuthCluster) -> None:
    apache.fakes.brokers[1].responses[3005] = says(16, "no permission to access")
    data = auth.get("/api/accounts")
    assert [one["name"] for found in data["users"] for one in found["brokers"]] == ["b0"]
    assert "mqadmin createAcl" in json.dumps(data["failed"]["b1"])
