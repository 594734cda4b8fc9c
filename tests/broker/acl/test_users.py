"""A broker with ACL 2.0: users and policies by request, and what they allow."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.acl.users_file import read_users
from spark_rocket.broker.acl.user_access_control import UserAccessControl
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.cli.servers.up_children import proxy_config
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.auth import Credentials, RequestSigner
from spark_rocket.protocol.wire.bodies.config import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker.acl.conftest import Connect
from tests.broker.wire import Wire, request_of, send_fields
from tests.kit.brokers import parts_of

pytestmark = pytest.mark.live

ROOT = Credentials("root", "r00t-s3cr3t")
ALICE = Credentials("alice", "al1ce-s3cr3t")
SETTINGS = {"aclEnable": False, "authenticationEnabled": True, "authorizationEnabled": True, "grpcServerPort": -1}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(
        in_process=True,
        access_key=ROOT.access_key,
        secret_key=ROOT.secret_key,
        config={
            **SETTINGS,
            "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
        },
        data_dir=tmp_path_factory.mktemp("acl"),
    ) as running:
        for topic in ("orders", "bills"):
            running.create_topic(topic, 1)
        running.create_group("readers")
        yield running


@pytest.fixture
def root(as_: Connect) -> Iterator[Wire]:
    wire = as_(ROOT)
    yield wire
    for user in ("alice", "bob"):
        wire.ask(RequestCode.AUTH_DELETE_USER, username=user)


def file_of(cluster: LocalCluster) -> Path:
    control = parts_of(cluster).access_control
    assert isinstance(control, UserAccessControl)
    return control.file.path


def put_user(wire: Wire, info: UserInfo, code: int = RequestCode.AUTH_CREATE_USER) -> RemotingCommand:
    return wire.ask(code, info.to_json(standard=True), username=info.username)


def grant(
    wire: Wire, user: str, resource: str, *actions: str, decision: str = "Allow", kind: str | None = None, **more: Any
) -> RemotingCommand:
    entry = PolicyEntryInfo(resource, list(actions), decision=decision, **more)
    body = AclInfo(f"User:{user}", [PolicyInfo(kind, [entry])]).to_json(standard=True)
    return wire.ask(RequestCode.AUTH_UPDATE_ACL, body, subject=f"User:{user}")


def ok(answer: RemotingCommand) -> None:
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def refused(answer: RemotingCommand, remark: str) -> None:
    assert answer.code == ResponseCode.NO_PERMISSION, answer.remark
    assert remark in (answer.remark or "")
    assert "s3cr3t" not in (answer.remark or "")


def with_alice(root: Wire) -> None:
    ok(put_user(root, UserInfo("alice", ALICE.secret_key)))


# --- who is who -------------------------------------------------------------------------------------------------------


def test_requests_need_a_signature_and_a_policy(root: Wire, as_: Connect) -> None:
    with_alice(root)
    refused(as_(None).send("orders"), "username cannot be null.")
    refused(as_(Credentials("eve", "eves-s3cr3t")).send("orders"), "User:eve is not found.")
    refused(as_(Credentials("alice", "wr0ng-s3cr3t")).send("orders"), "check signature failed.")
    alice = as_(ALICE)
    refused(
        alice.send("orders"),
        "User:alice has no permission to access Topic:orders from 127.0.0.1, no matched policies.",
    )
    ok(grant(root, "alice", "Topic:orders", "Pub"))
    ok(alice.send("orders"))
    refused(alice.send("bills"), "Topic:bills from 127.0.0.1, no matched policies.")
    refused(alice.pull("orders", 0, consumerGroup="readers"), "access Topic:orders")
    ok(root.send("bills"))


def test_what_was_granted_ends_with_a_change(root: Wire, as_: Connect) -> None:
    """Grants are remembered per connection: each change of users or policies ends them."""
    with_alice(root)
    alice = as_(ALICE)
    ok(grant(root, "alice", "Topic:orders", "Pub"))
    for _ in range(2):
        ok(alice.send("orders"))
    ok(grant(root, "alice", "Topic:orders", "Pub", decision="Deny"))
    refused(alice.send("orders"), "the decision is deny.")
    ok(grant(root, "alice", "Topic:orders", "Pub"))
    ok(alice.send("orders"))
    ok(put_user(root, UserInfo("alice", user_status="disable"), RequestCode.AUTH_UPDATE_USER))
    refused(alice.send("orders"), "User:alice is disabled.")
    ok(put_user(root, UserInfo("alice", "n3w-s3cr3t", user_status="enable"), RequestCode.AUTH_UPDATE_USER))
    refused(alice.send("orders"), "check signature failed.")
    ok(as_(Credentials("alice", "n3w-s3cr3t")).send("orders"))
    ok(root.ask(RequestCode.AUTH_DELETE_USER, username="alice"))
    refused(alice.send("orders"), "User:alice is not found.")


def test_a_remembered_grant_still_needs_the_signature(root: Wire, cluster: LocalCluster) -> None:
    with_alice(root)
    ok(grant(root, "alice", "Topic:orders", "Pub"))
    with RemotingClient() as client:  # one connection

        def send(change: Callable[[RemotingCommand], object] = lambda request: None) -> RemotingCommand:
            request = request_of(RequestCode.SEND_MESSAGE_V2, b"body", **send_fields("orders"))
            RequestSigner(ALICE).sign(request)
            change(request)
            return client.invoke(cluster.broker_address, request, 10.0)

        for _ in range(2):
            ok(send())
        refused(send(lambda request: setattr(request, "body", b"Body")), "check signature failed.")
        refused(send(lambda request: request.ext_fields.pop("Signature")), "check signature failed.")
        refused(send(lambda request: request.ext_fields.update(AccessKey="root")), "check signature failed.")
        refused(send(lambda request: request.ext_fields.pop("AccessKey")), "username cannot be null.")
        ok(send())


def test_a_stateful_broker_verifies_a_connections_first_signature(tmp_path: Path) -> None:
    """authenticationStrategy: no other account, topic or connection gains by it, and each change ends it."""
    stateful = "org.apache.rocketmq.auth.authentication.strategy.StatefulAuthenticationStrategy"
    config = {**SETTINGS, "authenticationStrategy": stateful}
    with (
        LocalCluster(
            in_process=True,
            access_key=ROOT.access_key,
            secret_key=ROOT.secret_key,
            config=config,
            data_dir=tmp_path,
        ) as cluster,
        RemotingClient(credentials=ROOT) as administrator,
        RemotingClient() as client,
        RemotingClient() as other,
    ):
        root = Wire(administrator, cluster.broker_address)
        for topic in ("orders", "bills"):
            cluster.create_topic(topic, 1)
        with_alice(root)
        ok(grant(root, "alice", "Topic:*", "Pub"))

        def send(topic: str, signer: Credentials | None, connection: RemotingClient = client) -> RemotingCommand:
            request = request_of(RequestCode.SEND_MESSAGE_V2, b"body", **send_fields(topic))
            request.ext_fields["AccessKey"] = "alice"
            if signer is not None:
                RequestSigner(signer).sign(request)
            return connection.invoke(cluster.broker_address, request, 10.0)

        refused(send("orders", None), "check signature failed.")
        ok(send("orders", ALICE))
        ok(send("orders", None))
        refused(send("bills", None), "check signature failed.")
        refused(send("orders", None, other), "check signature failed.")
        refused(send("orders", Credentials("root", "wr0ng-s3cr3t")), "check signature failed.")
        ok(grant(root, "alice", "Topic:*", "Pub"))
        refused(send("orders", None), "check signature failed.")
        ok(send("orders", ALICE))
        ok(put_user(root, UserInfo("alice", user_status="disable"), RequestCode.AUTH_UPDATE_USER))
        refused(send("orders", None), "User:alice is disabled.")


def test_a_pull_needs_topic_and_group(root: Wire, as_: Connect) -> None:
    with_alice(root)
    alice = as_(ALICE)
    ok(grant(root, "alice", "Topic:ord*", "Sub"))
    refused(alice.pull("orders", 0, consumerGroup="readers"), "access Group:readers")
    ok(grant(root, "alice", "Group:readers", "Sub"))
    assert alice.pull("orders", 0, consumerGroup="readers").code != ResponseCode.NO_PERMISSION
    ends = {"topic": "orders", "queueId": 0}
    refused(alice.ask(RequestCode.GET_MAX_OFFSET, **ends), "access Topic:orders")
    ok(grant(root, "alice", "*", "Get", kind="Default"))
    ok(alice.ask(RequestCode.GET_MAX_OFFSET, **ends))


def test_a_redelivered_message_is_acked_with_the_permissions_that_popped_it(root: Wire, as_: Connect) -> None:
    with_alice(root)
    alice = as_(ALICE)
    ok(grant(root, "alice", "Topic:orders", "Sub"))
    refused(ack_of(alice, "orders"), "access Group:readers")
    ok(grant(root, "alice", "Group:readers", "Sub"))
    assert ack_of(alice, "orders").code != ResponseCode.NO_PERMISSION
    refused(ack_of(alice, "bills"), "access Topic:bills")


def ack_of(wire: Wire, topic: str) -> RemotingCommand:
    return wire.ask(RequestCode.ACK_MESSAGE, topic=f"%RETRY%readers_{topic}", consumerGroup="readers")


def test_names_differ_by_case_and_prefix(root: Wire, as_: Connect) -> None:
    with_alice(root)
    alice = as_(ALICE)
    ok(grant(root, "alice", "Topic:ord*", "Pub"))
    ok(grant(root, "alice", "Topic:orders", "Pub", decision="Deny"))
    ok(grant(root, "alice", "Group:readers", "Sub"))
    refused(alice.send("orders"), "the decision is deny.")
    for topic in ("Orders", "ORD", "or", "*", "Ord*", "%RETRY%order", "%DLQ%order", "", " orders"):
        answer = alice.send(topic)
        assert answer.code != ResponseCode.SUCCESS, topic
        assert ("no matched policies" if topic else "topic is blank") in (answer.remark or ""), (topic, answer.remark)
    for group in ("Readers", "readers2", "reader", "*"):
        refused(alice.send(f"%RETRY%{group}"), f"access Group:{group}")
    refused(as_(Credentials("Alice", ALICE.secret_key)).send("ordinary"), "User:Alice is not found.")


def test_a_recall_needs_the_permission_to_send(root: Wire, as_: Connect) -> None:
    with_alice(root)
    ok(grant(root, "alice", "Topic:orders", "Pub"))
    due = str(int(time.time() * 1000) + 600_000)

    def recall(key: str) -> RemotingCommand:
        return as_(ALICE).send("orders", properties={"TIMER_DELIVER_MS": due, "TIMER_DEL_UNIQKEY": key})

    for key in ("bills+KEY", "KEY", "orders", "bills+orders+KEY"):
        refused(recall(key), "cannot recall a message of another topic")
    ok(recall("orders+KEY"))


def test_the_proxy_of_rocket_up_checks_the_same_users(cluster: LocalCluster) -> None:
    """It has the account of a Super user: without checks it would serve everybody with it."""
    own = '{"accessKey": "root", "secretKey": "r00t-s3cr3t"}'
    lists = {"authenticationWhitelist": "105", "authorizationWhitelist": "34,apache.rocketmq.v2.HeartbeatRequest"}
    given = {**SETTINGS, **lists, "grpcServerPort": 0, "innerClientAuthenticationCredentials": own}
    found = dict(proxy_config(BrokerConfig.from_properties(given), cluster.name_server, 0).to_properties())
    for name, text in {"authenticationEnabled": "true", "authorizationEnabled": "true", **lists}.items():
        assert found[name] == text


def test_source_addresses(root: Wire, as_: Connect) -> None:
    with_alice(root)
    ok(grant(root, "alice", "Topic:orders", "Pub", source_ips=["10.0.0.0/8"]))
    refused(as_(ALICE).send("orders"), "from 127.0.0.1, no matched policies.")
    ok(grant(root, "alice", "Topic:orders", "Pub", source_ips=["127.0.0.0/8"]))
    ok(as_(ALICE).send("orders"))


def test_a_heartbeat_needs_each_group(root: Wire, as_: Connect) -> None:
    with_alice(root)
    ok(grant(root, "alice", "Group:readers", "Sub"))
    ok(grant(root, "alice", "Topic:orders", "Sub"))

    def heartbeat(*groups: str, topic: str = "orders") -> RemotingCommand:
        data = [{"groupName": name, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]} for name in groups]
        body = {"clientID": "c", "consumerDataSet": data, "producerDataSet": []}
        return as_(ALICE).ask(RequestCode.HEART_BEAT, json.dumps(body).encode())

    ok(heartbeat("readers"))
    refused(heartbeat("readers", "others"), "access Group:others")
    refused(heartbeat("readers", topic="bills"), "access Topic:bills")


# --- users and policies -----------------------------------------------------------------------------------------------


def test_users_are_created_listed_changed_and_deleted(root: Wire) -> None:
    with_alice(root)
    refused(put_user(root, UserInfo("alice", "x-s3cr3t")), "The user is existed")
    refused(put_user(root, UserInfo("bob")), "password can not be blank")
    refused(put_user(root, UserInfo("bob", "s3cr3t"), RequestCode.AUTH_UPDATE_USER), "The user is not exist")
    found = root.read(UserInfo, RequestCode.AUTH_GET_USER, username="alice")
    assert found == UserInfo("alice", ALICE.secret_key, "Normal", "enable")
    listed = json.loads(bytes(root.ask(RequestCode.AUTH_LIST_USER, filter="lic").body))
    assert [user["username"] for user in listed] == ["alice"]
    assert bytes(root.ask(RequestCode.AUTH_GET_USER, username="bob").body) == b""
    ok(root.ask(RequestCode.AUTH_DELETE_USER, username="bob"))  # as Apache's: it may be missing


def test_policies_are_created_listed_changed_and_deleted(root: Wire) -> None:
    with_alice(root)
    refused(grant(root, "bob", "Topic:a", "Sub"), "The subject of User:bob is not exist.")
    ok(grant(root, "alice", "Topic:a", "Sub"))
    ok(grant(root, "alice", "Group:g*", "Sub", kind="Default"))
    found = root.read(AclInfo, RequestCode.AUTH_GET_ACL, subject="User:alice")
    assert [(policy.policy_type, policy.entries[0].resource) for policy in found.policies] == [
        ("Custom", "Topic:a"),
        ("Default", "Group:g*"),
    ]
    listed = json.loads(bytes(root.ask(RequestCode.AUTH_LIST_ACL, subjectFilter="ali", resourceFilter="Group").body))
    assert [[policy["policyType"] for policy in acl["policies"]] for acl in listed] == [["Default"]]
    ok(root.ask(RequestCode.AUTH_DELETE_ACL, subject="User:alice", policyType="Default", resource="Group:g*"))
    ok(root.ask(RequestCode.AUTH_DELETE_ACL, subject="User:alice"))
    refused(root.ask(RequestCode.AUTH_DELETE_ACL, subject="User:alice"), "The acl is not exist.")
    assert bytes(root.ask(RequestCode.AUTH_LIST_ACL, subjectFilter="ali").body) == b""


def test_administrators_that_are_not_super(root: Wire, as_: Connect) -> None:
    """With Update and Get of the cluster, a user manages Normal users, and gets no password."""
    with_alice(root)
    ok(grant(root, "alice", "Cluster:DefaultCluster", "Update", "Get"))
    alice = as_(ALICE)
    ok(put_user(alice, UserInfo("bob", "b0b-s3cr3t")))
    for answer in (
        put_user(alice, UserInfo("eve", "eve-s3cr3t", "Super")),
        put_user(alice, UserInfo("bob", user_type="super"), RequestCode.AUTH_UPDATE_USER),
        put_user(alice, UserInfo("root", "my-s3cr3t"), RequestCode.AUTH_UPDATE_USER),
        alice.ask(RequestCode.AUTH_DELETE_USER, username="root"),
    ):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "by super user" in (answer.remark or "")
    assert b"s3cr3t" not in bytes(alice.ask(RequestCode.AUTH_LIST_USER).body)
    assert alice.read(UserInfo, RequestCode.AUTH_GET_USER, username="root").password is None


def test_a_change_is_on_disk_before_it_is_acknowledged(root: Wire, cluster: LocalCluster) -> None:
    with_alice(root)
    ok(grant(root, "alice", "Topic:a", "Sub"))
    file = file_of(cluster)
    found = read_users(file).user("alice")
    assert found.password == ALICE.secret_key
    assert len(found.policies) == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ok(root.ask(RequestCode.AUTH_DELETE_USER, username="alice"))
    assert "alice" not in read_users(file).users


def test_a_change_that_cannot_be_written_is_not_made(root: Wire, as_: Connect, cluster: LocalCluster) -> None:
    file = file_of(cluster)
    obstacle = file.with_name(file.name + ".tmp")
    obstacle.mkdir()  # in the place of the new content
    try:
        answer = put_user(root, UserInfo("alice", ALICE.secret_key))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "cannot be written" in (answer.remark or "")
        refused(as_(ALICE).send("orders"), "User:alice is not found.")
    finally:
        obstacle.rmdir()
    with_alice(root)


def test_accounts_of_acl_1_are_refused_by_name(root: Wire) -> None:
    answer = root.ask(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
    assert "users and policies (ACL 2.0)" in (answer.remark or "")


# --- settings ---------------------------------------------------------------------------------------------------------


def control(tmp_path: Path, **settings: object) -> UserAccessControl:
    given = {"storePathRootDir": tmp_path, "authenticationEnabled": True, "authorizationEnabled": True, **settings}
    config = BrokerConfig.from_properties({name: str(value) if isinstance(value, Path) else value
                                           for name, value in given.items()})  # fmt: skip
    config.check_access()
    return UserAccessControl(config, topic_at=lambda offset: None)


def test_the_first_user_is_created_once(tmp_path: Path) -> None:
    first = {"initAuthenticationUser": '{"username": "root", "password": "f1rst-s3cr3t"}'}
    assert control(tmp_path, **first).rules.user("root").is_super
    second = {"initAuthenticationUser": '{"username": "root", "password": "sec0nd-s3cr3t"}'}
    assert control(tmp_path, **second).rules.user("root").password == "f1rst-s3cr3t"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "there are no users"),
        ({"initAuthenticationUser": '{"username": "root"}'}, "Invalid initAuthenticationUser"),
        ({"initAuthenticationUser": '{"username": "a/b", "password": "s3cr3t"}'}, "Invalid initAuthenticationUser"),
        ({"authenticationEnabled": False}, "would trust any name"),
        ({"aclEnable": True}, "exclude each other"),
        ({"authenticationProvider": "com.example.Mine"}, "authenticationProvider"),
        ({"authenticationWhitelist": "10,eleven"}, "authenticationWhitelist"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as raised:
        control(tmp_path, **settings)
    assert "s3cr3t" not in str(raised.value)


def test_accounts_are_migrated(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(
        "accounts:\n"
        "- {accessKey: root-key, secretKey: r00t-s3cr3t, admin: true}\n"
        "- {accessKey: alice-key, secretKey: al1ce-s3cr3t, topicPerms: [orders=PUB|SUB, bills=DENY],\n"
        "   defaultGroupPerm: SUB}\n"
    )
    table = control(tmp_path, aclFile=file, migrateAuthFromV1Enabled=True).rules
    assert table.user("root-key").is_super
    found = table.acl("User:alice-key")
    assert found is not None
    assert [
        (policy.policy_type, entry.resource, entry.actions, entry.decision)
        for policy in found.policies
        for entry in policy.entries
    ] == [
        ("Custom", "Topic:orders", ["Pub", "Sub"], "Allow"),
        ("Custom", "Topic:bills", ["All"], "Deny"),
        ("Default", "Group:*", ["Sub"], "Allow"),
    ]
    again = control(tmp_path, aclFile=file, migrateAuthFromV1Enabled=True).rules
    assert again.entries == table.entries


@pytest.mark.parametrize("content", ["", "[]", '{"users": []}', '{"users": [{"username": "a"}], "acls": []}'])
def test_an_invalid_file_of_users(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config" / "auth" / "users.json"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.raises(ConfigError, match="Invalid file of users"):
        control(tmp_path, initAuthenticationUser='{"username": "root", "password": "s3cr3t-s3cr3t"}')
