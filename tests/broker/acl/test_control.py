"""Access control of a broker, with valid and invalid signatures."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_rocket.acl import refusals as acl_refusals
from spark_rocket.acl.rules import AclRules
from spark_rocket.broker.acl.plain_access_control import PlainAccessControl
from spark_rocket.broker.broker import Broker
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.auth import Credentials, RequestSigner
from spark_rocket.protocol.requests import BROKER_REQUESTS
from spark_rocket.protocol.requests.needs import PlainAccess
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store.config import StoreConfig
from spark_rocket.testing import LocalCluster
from tests.broker.acl.conftest import Connect
from tests.broker.popping import Popper
from tests.broker.wire import Wire, request_of, send_fields
from tests.kit.brokers import parts_of, thread_of
from tests.kit.waiting import until

pytestmark = pytest.mark.live

ROOT = Credentials("root-key", "r00t-s3cr3t")
ALICE = Credentials("alice-key", "al1ce-s3cr3t")
NOBODY = Credentials("nobody-key", "n0body-s3cr3t")
SECRETS = ("s3cr3t",)

ACCOUNTS = """
accounts:
- {accessKey: root-key, secretKey: r00t-s3cr3t, admin: true}
- accessKey: alice-key
  secretKey: al1ce-s3cr3t
  topicPerms: [orders=PUB, bills=SUB, both=PUB|SUB]
  groupPerms: [readers=SUB]
- {accessKey: white-key, secretKey: wh1te-s3cr3t, whiteRemoteAddress: 127.0.0.*}
- {accessKey: other-key, secretKey: 0ther-s3cr3t, whiteRemoteAddress: 10.0.0.*}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(
        in_process=True,
        access_key=ROOT.access_key,
        secret_key=ROOT.secret_key,
        config={"grpcServerPort": -1, "storeReplyMessageEnable": False},
        data_dir=tmp_path_factory.mktemp("acl"),
    ) as running:
        control_of(running).take(rules(ACCOUNTS))
        for topic in ("orders", "bills", "both"):
            running.create_topic(topic, 1)
        running.create_group("readers")
        yield running


def control_of(cluster: LocalCluster) -> PlainAccessControl:
    control = parts_of(cluster).access_control
    assert isinstance(control, PlainAccessControl)
    return control


def rules(text: str) -> AclRules:
    return AclRules.from_bytes(text.encode(), "plain_acl.yml")


def refused(answer: RemotingCommand, remark: str) -> None:
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark is not None
    assert remark in answer.remark
    assert not any(secret in answer.remark for secret in SECRETS)


def pull(wire: Wire, topic: str, group: str) -> RemotingCommand:
    return wire.pull(topic, 0, consumerGroup=group)


# --- who is who -------------------------------------------------------------------------------------------------------


def test_clients_without_a_certificate(as_: Connect) -> None:
    refused(as_(None).send("orders"), "names no accessKey")
    refused(as_(NOBODY).send("orders"), "no account with the accessKey nobody-key")
    refused(
        as_(Credentials("alice-key", "wrong-s3cr3t")).send("orders"), "a signature that its secret key did not make"
    )
    refused(as_(None).send("orders", AccessKey="alice-key"), "the request of accessKey alice-key is not signed")
    assert as_(ALICE).send("orders").code == 0


@pytest.mark.parametrize("key", ["alice-key\0", "älice-key", "", " alice-key", "alice-key" * 1000])
def test_odd_access_keys(as_: Connect, key: str) -> None:
    refused(as_(None).send("orders", AccessKey=key, Signature="\0ä"), "")


def test_altered_requests(cluster: LocalCluster) -> None:
    with RemotingClient() as client:

        def ask(change: Callable[[RemotingCommand], object]) -> RemotingCommand:
            request = request_of(RequestCode.SEND_MESSAGE_V2, b"body", **send_fields("orders"))
            RequestSigner(ALICE).sign(request)
            change(request)
            return client.invoke(cluster.broker_address, request, 10.0)

        assert ask(lambda request: None).code == 0
        refused(ask(lambda request: request.ext_fields.pop("Signature")), "is not signed")
        for change in (
            lambda request: setattr(request, "body", b"Body"),
            lambda request: request.ext_fields.update(b="both"),
            lambda request: request.ext_fields.update(more="1"),
            lambda request: request.ext_fields.pop("e"),
            lambda request: request.ext_fields.update(AccessKey="root-key"),
        ):
            refused(ask(change), "did not make")


def test_permissions_are_checked_every_time(cluster: LocalCluster, as_: Callable[..., Wire]) -> None:
    """Most requests take the fast path, with the same checks."""
    control, wire = control_of(cluster), as_(ALICE)
    before = control.rules
    try:
        for _ in range(2):
            assert wire.send("orders").code == ResponseCode.SUCCESS
        plain = send_fields("orders")
        with RemotingClient(credentials=Credentials("alice-key", "another-s3cr3t")) as client:
            forged = Wire(client, cluster.broker_address).send("orders")
        unsigned = [as_(None).ask(RequestCode.SEND_MESSAGE_V2, b"x", **plain, AccessKey="alice-key", **more)
                    for more in ({}, {"Signature": ""})]  # fmt: skip
        for refusal in (forged, *unsigned):
            assert refusal.code == ResponseCode.NO_PERMISSION
        control.take(rules(ACCOUNTS.replace("orders=PUB", "orders=SUB")))
        assert wire.send("orders").code == ResponseCode.NO_PERMISSION
        control.take(rules(ACCOUNTS.replace("al1ce-s3cr3t", "al1ce-new-s3cr3t")))
        assert wire.send("orders").code == ResponseCode.NO_PERMISSION
        control.take(rules(ACCOUNTS + "globalWhiteRemoteAddresses: [127.0.0.1]\n"))
        allowed = control.allowed_by_white_list
        assert wire.send("orders").code == ResponseCode.SUCCESS
        assert control.allowed_by_white_list > allowed
    finally:
        control.take(before)


def test_a_signed_request_can_be_sent_again_and_as_another_code_of_the_same_fields(cluster: LocalCluster) -> None:
    """As with Apache's: docs/reference/security.md lists it. The permissions of the other code are still required."""
    request = request_of(RequestCode.SEND_MESSAGE_V2, b"body", **send_fields("orders"))
    RequestSigner(ALICE).sign(request)
    with RemotingClient() as client:
        assert [client.invoke(cluster.broker_address, request, 10.0).code for _ in range(2)] == [0, 0]
        request.code = RequestCode.UPDATE_AND_CREATE_TOPIC
        refused(client.invoke(cluster.broker_address, request, 10.0), "for administrators")


def test_white_lists(cluster: LocalCluster, as_: Connect) -> None:
    wire = as_(None)
    assert wire.send("bills", AccessKey="white-key").code == 0  # its address is enough, as with Apache's
    refused(wire.send("bills", AccessKey="other-key"), "is not signed")
    control = control_of(cluster)
    before = control.rules
    try:
        control.take(rules("globalWhiteRemoteAddresses: [10.0.0.*, 127.0.0.1]"))
        assert wire.send("bills").code == 0  # also on the connection that was there
        control.take(rules("globalWhiteRemoteAddresses: [10.0.0.*]"))
        refused(wire.send("bills"), "names no accessKey")
    finally:
        control.take(before)
    refused(wire.send("bills"), "names no accessKey")


# --- who may do what --------------------------------------------------------------------------------------------------


def test_topics_and_groups_each_have_their_permission(as_: Connect) -> None:
    alice, root = as_(ALICE), as_(ROOT)
    refused(alice.send("bills"), "accessKey alice-key has no permission PUB for the topic bills")
    assert root.send("bills").code == 0
    assert pull(alice, "bills", "readers").code == 0
    refused(pull(alice, "orders", "readers"), "has no permission SUB for the topic orders")
    refused(pull(alice, "bills", "others"), "has no permission SUB for the group others")
    refused(pull(alice, "%RETRY%others", "readers"), "has no permission SUB for the group others")
    refused(alice.send("%RETRY%others"), "has no permission SUB for the group others")
    refused(alice.send("never-heard-of"), "has no permission PUB for the topic never-heard-of")
    assert root.send("made-by-sending").code == 0


def test_the_topic_is_the_one_that_the_processor_takes(as_: Connect) -> None:
    """Code 10 has two fields for a topic: a permitted one does not hide the other."""
    fields = {"producerGroup": "p", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": 1}
    fields |= {"queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0}
    alice = as_(ALICE)
    assert alice.ask(RequestCode.SEND_MESSAGE, b"x", **fields).code == 0
    refused(alice.ask(RequestCode.SEND_MESSAGE, b"x", **fields, b="bills"), "for the topic bills")
    refused(
        alice.ask(RequestCode.SEND_MESSAGE, b"x", **{**fields, "topic": "bills"}, b="orders"), "for the topic bills"
    )


def test_a_message_read_by_its_offset_needs_its_topics_permission(as_: Connect) -> None:
    alice, root = as_(ALICE), as_(ROOT)

    def place(topic: str) -> int:
        return int(root.send(topic).ext_fields["msgId"][-16:], 16)

    assert alice.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=place("bills")).code == 0
    refused(alice.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=place("orders")), "SUB for the topic orders")
    refused(alice.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=f"+{place('orders')}"), "SUB for the topic orders")
    assert alice.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset="x").code == ResponseCode.SYSTEM_ERROR


def test_a_returned_message_needs_read_permission(as_: Connect) -> None:
    """Otherwise a group would get any message at an offset, of any topic."""
    alice, root = as_(ALICE), as_(ROOT)

    def send_back(topic: str, group: str) -> RemotingCommand:
        offset = int(root.send(topic).ext_fields["msgId"][-16:], 16)
        return alice.ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=offset, group=group, delayLevel=1)

    assert send_back("bills", "readers").code == 0
    refused(send_back("orders", "readers"), "SUB for the topic orders")
    refused(send_back("bills", "others"), "SUB for the group others")


def test_a_decision_needs_the_permission_to_send(as_: Connect) -> None:
    alice, root = as_(ALICE), as_(ROOT)

    def end(topic: str) -> RemotingCommand:
        half = root.send(topic, properties={"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "k"})
        return alice.ask(
            RequestCode.END_TRANSACTION,
            producerGroup="p",
            tranStateTableOffset=half.ext_fields["queueOffset"],
            commitLogOffset=int(half.ext_fields["msgId"][-16:], 16),
            commitOrRollback=12,
            msgId="k",
        )

    assert end("orders").code == 0
    refused(end("bills"), "PUB for the topic bills")


def test_heartbeats_and_other_bodies(as_: Connect) -> None:
    alice = as_(ALICE)

    def heartbeat(group: str, topic: str) -> RemotingCommand:
        consumer = {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
        body = {"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "any"}]}
        return alice.ask(RequestCode.HEART_BEAT, json.dumps(body).encode())

    assert heartbeat("readers", "bills").code == 0
    refused(heartbeat("others", "bills"), "for the group others")
    refused(heartbeat("readers", "orders"), "for the topic orders")
    body = json.dumps({"consumerGroup": "others", "clientId": "c", "mqSet": []}).encode()
    refused(alice.ask(RequestCode.LOCK_BATCH_MQ, body), "for the group others")
    refused(alice.ask(RequestCode.UNLOCK_BATCH_MQ, body), "for the group others")
    acks = {"brokerName": "b", "acks": [{"c": "readers", "t": "bills"}, {"c": "others", "t": "bills"}]}
    refused(alice.ask(RequestCode.BATCH_ACK_MESSAGE, json.dumps(acks).encode()), "for the group others")
    asked = {"topic": "orders", "consumerGroup": "readers"}
    refused(alice.ask(RequestCode.QUERY_ASSIGNMENT, json.dumps(asked).encode()), "for the topic orders")
    for code in (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.QUERY_ASSIGNMENT):
        assert alice.ask(code, b"\0{").code != 0


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LITE_PULL_MESSAGE,
    ],
)
def test_other_reads(as_: Connect, code: int) -> None:
    alice = as_(ALICE)
    refused(alice.ask(code, topic="orders", consumerGroup="readers"), "for the topic orders")
    refused(alice.ask(code, topic="bills", consumerGroup="others"), "for the group others")
    assert alice.ask(code, topic="bills", consumerGroup="readers").code != ResponseCode.NO_PERMISSION
    assert alice.ask(code).code != 0  # what names nothing gets nothing


def test_a_redelivered_message_is_acked_with_the_permissions_that_popped_it(as_: Connect) -> None:
    """Clients name the retry topic, which has the names of group and topic."""
    as_(ROOT).send("bills", b"again")
    alice = Popper(as_(ALICE), "readers", "bills", maxMsgNums=1)
    alice.change(*alice.take()[0], 1)
    found = until(alice.take)
    retry = "%RETRY%readers_bills"
    assert alice.ack(*found[0], topic=retry).code == ResponseCode.SUCCESS
    change = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    for code in (RequestCode.ACK_MESSAGE, change):
        for topic in (retry, "%RETRY%readers+bills", "%RETRY%readers"):
            assert alice.wire.ask(code, topic=topic, consumerGroup="readers").code != ResponseCode.NO_PERMISSION, topic
        refused(alice.wire.ask(code, topic="%RETRY%readers_orders", consumerGroup="readers"), "for the topic orders")
        refused(alice.wire.ask(code, topic="%RETRY%others_bills", consumerGroup="others"), "for the group others")
        for topic in ("%RETRY%others_bills", "%RETRY%readers_", "%RETRY%_bills"):
            for group in ("readers", ""):
                refused(alice.wire.ask(code, topic=topic, consumerGroup=group), "for the group")
    refused(pull(alice.wire, retry, "readers"), "for the group readers_bills")


def test_traces_and_replies_need_a_signature_only(as_: Connect) -> None:
    assert as_(ALICE).send("RMQ_SYS_TRACE_TOPIC").code != ResponseCode.NO_PERMISSION
    assert as_(ALICE).send("DefaultCluster_REPLY_TOPIC").code == 0
    refused(as_(None).send("RMQ_SYS_TRACE_TOPIC"), "names no accessKey")


def test_every_request_has_a_permission(cluster: LocalCluster, as_: Connect) -> None:
    """Unlisted requests are for administrators; unknown accounts are not served."""
    stranger, alice = as_(None), as_(ALICE)
    every = [code for code in RequestCode if stranger.ask(code).code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED]
    assert len(every) > 50
    for code in every:
        refused(stranger.ask(code), "names no accessKey")
    for_admins = [code for code in every if BROKER_REQUESTS[code].plain_access is PlainAccess.ADMIN]
    assert {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
    } <= set(for_admins)
    for code in for_admins:
        refused(alice.ask(code), "is for administrators; accessKey alice-key is not one")


def test_one_way_requests_are_checked_too(as_: Connect) -> None:
    root = as_(ROOT)
    before = root.send("orders").ext_fields["queueOffset"]
    stranger = as_(None)
    stranger.tell(RequestCode.SEND_MESSAGE_V2, b"x", **send_fields("orders"))
    refused(stranger.send("orders"), "names no accessKey")  # the one before it was looked at
    assert int(root.send("orders").ext_fields["queueOffset"]) == int(before) + 1


def test_nothing_shows_the_brokers_own_secret(
    as_: Connect, cluster: LocalCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    shown = bytes(as_(ALICE).ask(RequestCode.GET_BROKER_CONFIG).body).decode()
    assert "innerClientAuthenticationCredentials=******" in shown
    server = thread_of(cluster)
    assert server.parts is not None
    monkeypatch.setattr(acl_refusals, "_rate_limited", RateLimited(logging.getLogger("spark_rocket.acl.refusals")))
    as_(None).send("orders", AccessKey="no\nbody\x1b")
    assert "refused a request of 127.0.0.1: there is no account with the accessKey no?body?" in caplog.text
    as_(Credentials("alice-key", "wrong-s3cr3t")).send("orders")
    everything = [shown, repr(server.parts.config), repr(control_of(cluster).rules.accounts), caplog.text]
    assert not any(secret in text for secret in SECRETS for text in everything)


# --- the file ---------------------------------------------------------------------------------------------------------


def control_on(path: Path, text: str) -> PlainAccessControl:
    path.write_text(text)
    return PlainAccessControl(path, topic_at=lambda _: None, clock=lambda: 0)


def rewrite(path: Path, text: str) -> None:
    """Replace the file like ``mv new plain_acl.yml``: another file, independent of the clock."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def look_twice(control: PlainAccessControl) -> list[bool]:
    async def look() -> list[bool]:
        return [await control.reload_if_changed(), await control.reload_if_changed()]

    return asyncio.run(look())


@pytest.mark.parametrize(
    ("mode", "can"),
    [(0o600, None), (0o640, None), (0o660, None), (0o644, "read"), (0o602, "change"), (0o666, "read and change")],
)
def test_a_file_that_every_user_can_read_or_change_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, can: str | None
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.touch()
    path.chmod(mode)
    control_on(path, ACCOUNTS)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    if can is None:
        assert not warnings
    else:
        (warning,) = warnings
        assert f"Every user of this machine can {can} the access control file {path} (mode {mode:03o})" in warning
        assert SECRETS[0] not in warning


def test_a_file_that_changes_is_read_when_it_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    control = control_on(path, ACCOUNTS)
    assert look_twice(control) == [False, False]
    rewrite(path, ACCOUNTS.replace("alice-key", "alicia-key"))
    assert look_twice(control) == [False, True]
    assert "alicia-key" in control.rules.accounts
    assert "alice-key" not in control.rules.accounts


@pytest.mark.parametrize("text", ["", "accounts: *x", ACCOUNTS.replace("orders=PUB", "orders=PUBLISH"), "[" * 5000])
def test_a_broken_file_is_logged_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    path = tmp_path / "plain_acl.yml"
    control = control_on(path, ACCOUNTS)
    before = control.rules
    rewrite(path, text)
    for _ in range(3):
        assert look_twice(control) == [False, False]
    assert control.rules is before
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "Accounts and permissions are not reloaded" in record.getMessage()
    assert str(path) in record.getMessage()
    assert "s3cr3t" not in caplog.text
    rewrite(path, ACCOUNTS)
    assert look_twice(control) == [False, True]


def test_a_missing_file_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "plain_acl.yml"
    control = control_on(path, ACCOUNTS)
    path.unlink()
    assert look_twice(control) == [False, False]
    assert "alice-key" in control.rules.accounts
    assert "cannot be read" in caplog.text


def test_a_running_broker_loads_a_changed_file(tmp_path: Path) -> None:
    with (
        LocalCluster(
            in_process=True,
            access_key=ROOT.access_key,
            secret_key=ROOT.secret_key,
            config={"grpcServerPort": -1},
            data_dir=tmp_path,
        ) as cluster,
        RemotingClient(credentials=ALICE) as client,
    ):
        cluster.create_topic("orders", 1)
        alice = Wire(client, cluster.broker_address)
        refused(alice.send("orders"), "no account with the accessKey alice-key")
        changed = threading.Event()
        control = control_of(cluster)
        take = control.take
        control.take = lambda rules: (take(rules), changed.set())[0]  # type: ignore[method-assign]
        rewrite(cluster.acl_file, ACCOUNTS)
        while not changed.wait(0.005):  # under load: each is answered by the one or the other
            assert alice.send("orders").code in (0, ResponseCode.NO_PERMISSION)
        assert alice.send("orders").code == 0
        changed.clear()
        rewrite(cluster.acl_file, ACCOUNTS.replace("al1ce-s3cr3t", "al1ce-n3w-s3cr3t"))
        while not changed.wait(0.005):
            assert alice.send("orders").code in (0, ResponseCode.NO_PERMISSION)
        refused(alice.send("orders"), "did not make")  # on the connection that was there


@pytest.mark.parametrize(
    ("content", "remark"),
    [(None, "cannot be read: No such file"), ("accounts: 7", "line 1: the accounts must be a list")],
)
def test_a_broker_does_not_start_without_rules(tmp_path: Path, content: str | None, remark: str) -> None:
    conf = tmp_path / "conf" / "broker.conf"
    conf.parent.mkdir()
    conf.write_text(f"aclEnable=true\nlistenPort=0\nstorePathRootDir={tmp_path / 'store'}\n")
    if content is not None:
        (conf.parent / "plain_acl.yml").write_text(content)  # beside broker.conf, as in Apache's conf directory
    config = BrokerConfig.from_file(conf)
    with pytest.raises(ConfigError, match=remark):
        asyncio.run(Broker(config).start())
    assert not (tmp_path / "store").exists()


def test_the_place_of_the_file(tmp_path: Path) -> None:
    assert BrokerConfig(store=StoreConfig(tmp_path)).acl_path == tmp_path / "config" / "plain_acl.yml"
    assert BrokerConfig(acl_file="/etc/acl.yml").acl_path == Path("/etc/acl.yml")
    conf = tmp_path / "broker.conf"
    conf.write_text("aclFile=acl/accounts.yml\n")
    assert BrokerConfig.from_file(conf).acl_path == tmp_path / "acl" / "accounts.yml"
