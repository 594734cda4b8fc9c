"""Attempts of a user with an account to access data of others."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from spark_rocket.broker.transactions.half_messages import HalfMessage
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.broker.acl.conftest import Connect
from tests.broker.acl.test_control import control_of, pull, refused, rules
from tests.broker.wire import Wire
from tests.kit.brokers import parts_of
from tests.kit.waiting import until

pytestmark = pytest.mark.live

ROOT = Credentials("root-key", "r00t-s3cr3t")
MALLORY = Credentials("mallory-key", "mall0ry-s3cr3t")
TRUSTED = Credentials("trusted-key", "trust3d-s3cr3t")
ACCOUNTS = """
accounts:
- {accessKey: root-key, secretKey: r00t-s3cr3t, admin: true}
- accessKey: mallory-key
  secretKey: mall0ry-s3cr3t
  topicPerms: [own=PUB|SUB]
  groupPerms: [readers=SUB]
- accessKey: trusted-key
  secretKey: trust3d-s3cr3t
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms: [secret=DENY]
  groupPerms: [victims=DENY]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(
        in_process=True,
        access_key=ROOT.access_key,
        secret_key=ROOT.secret_key,
        config={"grpcServerPort": -1},
        data_dir=tmp_path_factory.mktemp("acl"),
    ) as running:
        control_of(running).take(rules(ACCOUNTS))
        for topic in ("own", "secret"):
            running.create_topic(topic, 1)
        running.create_group("readers")
        yield running


def place(wire: Wire, topic: str, body: bytes) -> int:
    answer = wire.send(topic, body)
    assert answer.code == 0
    return int(answer.ext_fields["msgId"][-16:], 16)


def forged(mallory: Wire, topic: str, properties: bytes, stretch: int = 0) -> int:
    """Send a body with a record; return its offset. ``stretch``: later bytes count as its properties."""
    before = place(mallory, "own", bytes(200))
    first = place(mallory, "own", bytes(200))
    at = 2 * first - before + 88  # where the next message's body will begin
    record = bytearray(
        encode_record(
            topic.encode(),
            0,
            b"x",
            properties,
            queue_offset=0,
            physical_offset=at,
            born_timestamp=1,
            born_host=pack_host(("127.0.0.1", 1)),
            store_timestamp=1,
            store_host=pack_host(("127.0.0.1", 1)),
        )
    )
    size = len(record)
    record[size - len(properties) - 2 : size - len(properties)] = (len(properties) + stretch).to_bytes(2, "big")
    record[:4] = (size + stretch).to_bytes(4, "big")
    assert place(mallory, "own", bytes(record)) == at - 88
    return at


def test_a_record_within_a_body_is_ignored(as_: Connect) -> None:
    """It could include later messages of others, or name another topic."""
    mallory, root = as_(MALLORY), as_(ROOT)
    at = forged(mallory, "own", b"K\x01V", stretch=400)
    root.send("secret", b"nobody else's" * 20)
    refused(mallory.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=at), "no message begins at offset")
    refused(
        mallory.ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=at, group="readers", delayLevel=1, originTopic="own"),
        "no message begins at offset",
    )


def test_a_half_message_within_a_body_is_ignored(as_: Connect) -> None:
    mallory, root = as_(MALLORY), as_(ROOT)
    properties = b"REAL_TOPIC\x01secret\x02REAL_QID\x010\x02PGROUP\x01p\x02UNIQ_KEY\x01k\x02REAL_TOPIC\x01own"
    at = forged(mallory, "RMQ_SYS_TRANS_HALF_TOPIC", properties)
    before = len(root.messages("secret"))
    refused(
        mallory.ask(
            RequestCode.END_TRANSACTION,
            producerGroup="p",
            tranStateTableOffset=0,
            commitLogOffset=at,
            commitOrRollback=8,
            msgId="k",
            fromTransactionCheck=True,
        ),
        "no message begins at offset",
    )
    assert len(root.messages("secret")) == before


def test_a_check_is_not_sent_to_a_producer_without_permission(as_: Connect, cluster: LocalCluster) -> None:
    """A client that registers as a producer of its group would get the complete message in a check."""
    mallory, root = as_(MALLORY), as_(ROOT)
    parts = parts_of(cluster)
    body = json.dumps({"clientID": "c", "producerDataSet": [{"groupName": "payers"}]}).encode()
    for wire in (mallory, root):
        assert wire.ask(RequestCode.HEART_BEAT, body).code == 0
    members = parts.clients.producers["payers"]
    assert len(members) == 2

    def asked(topic: str) -> list[str]:
        sent = root.send(topic, b"half", {"TRAN_MSG": "true", "PGROUP": "payers", "UNIQ_KEY": "k"})
        half = HalfMessage.view(parts.store.look_message_by_offset(int(sent.ext_fields["msgId"][-16:], 16)))
        assert half is not None
        found = [parts.transactions._channel(half) for _ in range(4)]
        return sorted({channel.attributes["acl_account"] for channel in found if channel is not None})

    assert asked("secret") == ["root-key"]
    assert asked("own") == ["mallory-key", "root-key"]


def test_a_recall_needs_the_permission_to_send(as_: Connect) -> None:
    mallory = as_(MALLORY)
    due = str(int(time.time() * 1000) + 600_000)

    def recall(key: str) -> RemotingCommand:
        return mallory.send("own", properties={"TIMER_DELIVER_MS": due, "TIMER_DEL_UNIQKEY": key})

    for key in ("secret+KEY", "KEY", "own", "secret+own+KEY"):
        refused(recall(key), "cannot recall a message of another topic")
    assert recall("own+KEY").code == 0


def test_default_permissions_do_not_apply_to_system_topics(as_: Connect) -> None:
    """It also has messages to denied topics, and a message in it could be delivered to one."""
    trusted, root = as_(TRUSTED), as_(ROOT)
    assert root.send("secret", properties={"DELAY": "10"}).code == 0
    assert pull(trusted, "own", "anybody").code != ResponseCode.NO_PERMISSION
    for topic in (
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "rmq_sys_wheel_timer",
        "rmq_sys_REVIVE_LOG_DefaultCluster",
    ):
        refused(pull(trusted, topic, "anybody"), f"SUB for the topic {topic}")
    refused(trusted.send("rmq_sys_REVIVE_LOG_DefaultCluster"), "PUB for the topic")
    assert pull(trusted, "RMQ_SYS_TRACE_TOPIC", "anybody").code != ResponseCode.NO_PERMISSION


def test_a_denied_groups_messages_are_not_read_from_its_retry_topics(as_: Connect) -> None:
    trusted = as_(TRUSTED)
    for name in ("victims", "victims_secret", "victims+secret"):
        refused(pull(trusted, f"%RETRY%{name}", "anybody"), f"SUB for the group {name}")
    assert pull(trusted, "%RETRY%others_secret", "anybody").code != ResponseCode.NO_PERMISSION


ELSEWHERE = {"REAL_TOPIC": "secret", "REAL_QID": "0", "RETRY_TOPIC": "secret", "ORIGIN_GROUP": "victims"}
"""Properties that the broker itself sets for messages that it delivers later."""


@pytest.mark.parametrize("more", [{}, {"POP_CK": "secret 0 0 0 0 0 0 0 0"}, {"PROPERTY_TIMER_ENQUEUE_MS": "1"}])
def test_properties_do_not_redirect_a_message(more: dict[str, str], as_: Connect) -> None:
    """Sent at once, delayed by level and by time, and committed: it stays in the topic that the account may use."""
    mallory, root = as_(MALLORY), as_(ROOT)
    before = {topic: root.end(topic) for topic in ("own", "secret")}
    forged = ELSEWHERE | more
    ways: tuple[dict[str, str], ...] = ({}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "1"}, {"TIMER_DELIVER_MS": "1"})
    for properties in ways:
        assert mallory.send("own", b"moved", forged | properties).code == 0
    half = mallory.send("own", b"moved", forged | {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "k"})
    decision = {"producerGroup": "p", "msgId": "k", "commitOrRollback": 8, "topic": "own"}
    place = int(half.ext_fields["msgId"][-16:], 16)
    offset = half.ext_fields["queueOffset"]
    ended = mallory.ask(RequestCode.END_TRANSACTION, **decision, tranStateTableOffset=offset, commitLogOffset=place)
    assert ended.code == 0, ended.remark
    assert until(lambda: root.end("own") == before["own"] + len(ways) + 1)
    assert root.end("secret") == before["secret"]


def test_names_differ_by_case_and_prefix(as_: Connect) -> None:
    mallory = as_(MALLORY)
    for topic in ("Own", "OWN", "own2", "ow", "own*", "*", "%RETRY%own", "%DLQ%readers"):
        refused(mallory.send(topic), "has no permission PUB for" if topic[0] != "%" else "has no permission")
    for group in ("Readers", "readers2", "*", "readers*"):
        refused(pull(mallory, "own", group), "has no permission SUB for the group")
    refused(as_(Credentials("Mallory-key", MALLORY.secret_key)).send("own"), "no account with the accessKey")
