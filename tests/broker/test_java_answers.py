"""Responses to every call of Java's clients and of mqadmin, decoded like Java (java_types.py).

Each request has the fields of Java's header class. A topic with messages, a group with a member, offsets and a
producer are there, so that tables are not empty.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.codes import LanguageCode, RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker import java_types as java
from tests.broker.wire import Wire

pytestmark = pytest.mark.live

TOPIC, GROUP, PRODUCERS, CLIENT = "JavaTopic", "GID-java", "PID-java", "192.168.1.7@4711#8"
QUEUE = {"topic": TOPIC, "brokerName": "broker-a", "queueId": 0}
_JAVA_5_3_3 = 479


class JavaClient:
    """A connection with heartbeats of a producer and a consumer, as a Java client of 5.3 sends them."""

    def __init__(self, address: str) -> None:
        self.asked: queue.Queue[RemotingCommand] = queue.Queue()
        self.answers: dict[int, bytes] = {}
        self.client = RemotingClient(request_handler=self._take)
        self.wire = Wire(self.client, address)
        subscription = {
            "classFilterMode": False,
            "codeSet": [],
            "expressionType": "TAG",
            "subString": "*",
            "subVersion": 1,
            "tagsSet": [],
            "topic": TOPIC,
        }
        consumer = {
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": GROUP,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [subscription],
            "unitMode": False,
        }
        self.heartbeat = {
            "clientID": CLIENT,
            "consumerDataSet": [consumer],
            "heartbeatFingerprint": 0,
            "producerDataSet": [{"groupName": PRODUCERS}],
            "withoutSub": False,
        }
        assert self.beat(self.heartbeat).code == 0

    def beat(self, data: dict[str, Any]) -> RemotingCommand:
        request = RemotingCommand.request(RequestCode.HEART_BEAT, {}, json.dumps(data).encode())
        request.language, request.version = LanguageCode.JAVA, _JAVA_5_3_3
        return self.client.invoke(self.wire.address, request, timeout=10.0)

    def _take(self, address: str, request: RemotingCommand) -> RemotingCommand | None:
        request.body = bytes(request.body)
        self.asked.put(request)
        return None if request.is_oneway else RemotingCommand.response(request, body=self.answers[request.code])

    def expect(self, code: int) -> RemotingCommand:
        while True:
            asked = self.asked.get(timeout=30)
            if asked.code == code:
                return asked


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True) as running:
        running.create_topic(TOPIC, 2)
        with RemotingClient() as client:
            wire = Wire(client, running.broker_address)
            for number in range(5):
                wire.send(TOPIC, b"%d" % number, {"KEYS": f"key{number}", "TAGS": "A", "UNIQ_KEY": f"ID{number}"})
            wire.send(TOPIC, b"later", {"TIMER_DELIVER_MS": "9999999999999"})
        yield running


@pytest.fixture(scope="module")
def member(cluster: LocalCluster) -> Iterator[JavaClient]:
    made = JavaClient(cluster.broker_address)
    with closing(made.client):
        made.wire.create_group("GID-other")
        made.wire.ask(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup=GROUP, commitOffset=3, **_queue())
        mode = {"topic": TOPIC, "consumerGroup": "GID-other", "mode": "POP", "popShareQueueNum": 0}
        made.wire.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, json.dumps(mode).encode())
        yield made


@pytest.fixture(scope="module")
def namesrv(cluster: LocalCluster) -> Iterator[Wire]:
    with RemotingClient() as client:
        yield Wire(client, cluster.name_server)


def _queue() -> dict[str, object]:
    return {"topic": TOPIC, "queueId": 0}


def _lock() -> bytes:
    return json.dumps({"clientId": CLIENT, "consumerGroup": GROUP, "mqSet": [QUEUE], "onlyThisBroker": False}).encode()


def _assignment() -> bytes:
    asked = {"topic": TOPIC, "consumerGroup": GROUP, "clientId": CLIENT, "strategyName": "AVG"}
    return json.dumps({**asked, "messageModel": "CLUSTERING"}).encode()


# Code: fields of the request, header of the answer, class of its body.
BROKER: list[tuple[int, dict[str, object], dict[str, str], Any]] = [
    (RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": GROUP, **_queue()}, java.OFFSET, None),
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**_queue(), "timestamp": 0, "boundaryType": "LOWER"}, java.OFFSET, None),
    (RequestCode.GET_MAX_OFFSET, {**_queue(), "committed": True}, java.OFFSET, None),
    (RequestCode.GET_MIN_OFFSET, _queue(), java.OFFSET, None),
    (RequestCode.GET_EARLIEST_MSG_STORETIME, _queue(), java.TIMESTAMP, None),
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}, {}, java.CONSUMER_LIST),
    (RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP}, {}, java.CONSUMER_CONNECTION),
    (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": PRODUCERS}, {}, java.PRODUCER_CONNECTION),
    (RequestCode.GET_ALL_PRODUCER_INFO, {}, {}, java.PRODUCER_TABLE_INFO),
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC}, {}, java.TOPIC_STATS_TABLE),
    (RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP, "topic": ""}, {}, java.CONSUME_STATS),
    (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False}, {}, java.CONSUME_STATS_LIST),
    (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": TOPIC}, {}, java.GROUP_LIST),
    (RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": GROUP}, {}, java.TOPIC_LIST),
    (RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": GROUP, "topic": TOPIC}, {}, java.QUERY_SUBSCRIPTION),
    (RequestCode.QUERY_CONSUME_TIME_SPAN, {"group": GROUP, "topic": TOPIC}, {}, java.TIME_SPAN),
    (
        RequestCode.QUERY_CONSUME_QUEUE,
        {**_queue(), "index": 0, "count": 10, "consumerGroup": GROUP},
        {},
        java.CONSUME_QUEUE,
    ),
    (RequestCode.GET_ALL_TOPIC_CONFIG, {}, {"totalTopicNum": java.INT}, java.TOPIC_CONFIGS),
    (RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC, "lo": True}, {}, java.TOPIC_CONFIG),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, {"totalGroupNum": java.INT}, java.GROUP_CONFIGS),
    (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP}, {}, java.GROUP_CONFIG),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, {}, {}, java.OFFSETS),
    (RequestCode.GET_ALL_DELAY_OFFSET, {}, {}, java.DELAY_OFFSETS),
    (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, {}, {}, java.REQUEST_MODES),
    (RequestCode.GET_BROKER_RUNTIME_INFO, {}, {}, java.KV_TABLE),
    (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {}, {}, java.TOPIC_LIST),
    (RequestCode.GET_BROKER_HA_STATUS, {}, {}, java.HA_STATUS),
    (RequestCode.GET_TIMER_METRICS, {}, {}, java.TIMER_METRICS),
    (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"group": "GID-other", "topic": TOPIC, "timestamp": -1, "isForce": True, "offset": -1, "queueId": -1},
        {},
        java.RESET_OFFSET,
    ),
    (
        RequestCode.QUERY_MESSAGE,
        {"topic": TOPIC, "key": "key2", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": (1 << 63) - 1},
        java.QUERY_MESSAGE,
        bytes,
    ),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"topic": TOPIC, "offset": 0}, {}, bytes),
    (
        RequestCode.NOTIFICATION,
        {"consumerGroup": GROUP, **_queue(), "pollTime": 0, "bornTime": 0},
        java.NOTIFICATION,
        None,
    ),
    (RequestCode.POLLING_INFO, {"consumerGroup": GROUP, **_queue()}, {"pollingNum": java.INT}, None),
    (RequestCode.PEEK_MESSAGE, {"consumerGroup": GROUP, **_queue(), "maxMsgNums": 2}, java.PEEK, bytes),
]


@pytest.mark.parametrize("case", BROKER, ids=[RequestCode(case[0]).name for case in BROKER])
def test_a_broker_answers(member: JavaClient, case: tuple[int, dict[str, object], dict[str, str], Any]) -> None:
    code, fields, header, body = case
    answer = member.wire.ask(code, **{**fields, "ns": "", "nsd": False, "bname": "broker-a"})
    assert answer.code == 0
    java.read_header(answer.ext_fields, header)
    if body is None:
        assert not answer.body
    elif body is bytes:
        assert decode_messages(bytes(answer.body))
    else:
        assert java.read_body(answer.body, body)


def test_sends_and_pulls(member: JavaClient) -> None:
    sent = member.wire.send(TOPIC, b"x", {"UNIQ_KEY": "U1"}, queue_id=1)
    values = java.read_header(sent.ext_fields, java.SEND, java.SEND_BESIDE)
    assert values["transactionId"] == "U1"
    assert decode_offset_msg_id(values["msgId"])
    for offset, code in ((0, 0), (1, 19), (99, 21)):
        pulled = member.wire.pull(TOPIC, offset, queue_id=1)
        assert pulled.code == code
        java.read_header(pulled.ext_fields, java.PULL)


def test_locks_and_assignments(member: JavaClient) -> None:
    locked = java.read_body(member.wire.ask(RequestCode.LOCK_BATCH_MQ, _lock()).body, java.LOCK_BATCH)
    assert locked == {"lockOKMQSet": [QUEUE]}
    assert member.wire.ask(RequestCode.UNLOCK_BATCH_MQ, _lock()).code == 0
    answer = member.wire.ask(RequestCode.QUERY_ASSIGNMENT, _assignment())
    assert len(java.read_body(answer.body, java.ASSIGNMENTS)["messageQueueAssignments"]) == 2


def test_statistics(member: JavaClient) -> None:
    answer = member.wire.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName="BROKER_PUT_NUMS", statsKey="DefaultCluster")
    java.read_body(answer.body, java.STATS_DATA)


def test_pops_acks_and_changes(member: JavaClient) -> None:
    fields: dict[str, object] = {
        "consumerGroup": "GID-pop",
        **_queue(),
        "maxMsgNums": 2,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": False,
    }
    popped = member.wire.ask(RequestCode.POP_MESSAGE, **fields)
    values = java.read_header(popped.ext_fields, java.POP)
    assert (values["startOffsetInfo"], values["msgOffsetInfo"]) == ("0 0 0", "0 0 0,1")
    receipt = f"0 {values['popTime']} {values['invisibleTime']} {values['reviveQid']} 0 broker-a 0 1"
    held: dict[str, object] = {"consumerGroup": "GID-pop", **_queue(), "extraInfo": receipt, "offset": 1}
    changed = member.wire.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **held, invisibleTime=30_000)
    java.read_header(changed.ext_fields, java.CHANGED)
    held |= {"extraInfo": receipt[:-1] + "0", "offset": 0}
    assert member.wire.ask(RequestCode.ACK_MESSAGE, **held).code == 0
    nothing = member.wire.ask(
        RequestCode.POP_MESSAGE, **{**fields, "queueId": 1, "consumerGroup": "GID-none", "initMode": 1}
    )
    while nothing.code == 0:  # what another test sent there
        nothing = member.wire.ask(RequestCode.POP_MESSAGE, **{**fields, "queueId": 1, "consumerGroup": "GID-none"})
    assert nothing.code == 210
    java.read_header(nothing.ext_fields, java.POP)


def test_requests_to_a_consumer(member: JavaClient) -> None:
    """Received fields are forwarded, and the response is the consumer's own."""
    member.answers[RequestCode.GET_CONSUMER_RUNNING_INFO] = b'{"jstack":"x"}'
    member.answers[RequestCode.CONSUME_MESSAGE_DIRECTLY] = b'{"consumeResult":"CR_SUCCESS"}'
    member.answers[RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT] = (
        b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"JavaTopic"}:7}}'
    )
    named: dict[str, object] = {"consumerGroup": GROUP, "clientId": CLIENT}
    answer = member.wire.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **named, jstackEnable=True)
    assert bytes(answer.body) == b'{"jstack":"x"}'
    asked = member.expect(RequestCode.GET_CONSUMER_RUNNING_INFO)
    java.read_header(asked.ext_fields, {"consumerGroup": java.STR, "clientId": java.STR, "jstackEnable": java.BOOL})
    message_id = member.wire.send(TOPIC, b"again", queue_id=1).ext_fields["msgId"]
    answer = member.wire.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **named, topic=TOPIC, msgId=message_id)
    assert bytes(answer.body) == b'{"consumeResult":"CR_SUCCESS"}'
    asked = member.expect(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    header = {"consumerGroup": java.STR, "clientId": java.STR, "topic": java.STR, "msgId": java.STR}
    header |= {"brokerName": java.STR, "topicSysFlag": java.INT, "groupSysFlag": java.INT}
    assert java.read_header(asked.ext_fields, header)["brokerName"] == "broker-a"
    assert [message.body for message in decode_messages(bytes(asked.body))] == [b"again"]
    answer = member.wire.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic=TOPIC, group=GROUP, clientAddr="")
    found = java.read_body(answer.body, java.CONSUMER_STATUS)
    assert list(found["consumerTable"]) == [CLIENT]


def test_notifications_to_a_consumer(member: JavaClient) -> None:
    """Of a reset by a broker as those of 4.9, and of a reply."""
    reset: dict[str, object] = {"group": GROUP, "topic": TOPIC, "timestamp": -1, "isForce": True}
    member.wire.ask(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup=GROUP, commitOffset=0, topic=TOPIC, queueId=1)
    member.wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"useServerSideResetOffset=false")
    try:
        answer = member.wire.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
        assert len(java.read_body(answer.body, java.RESET_OFFSET)["offsetTable"]) == 2
    finally:
        member.wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"useServerSideResetOffset=true")
    told = member.expect(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    assert told.is_oneway
    java.read_header(told.ext_fields, java.RESET_IN_CONSUMER)
    assert len(java.read_body(told.body, java.RESET_OFFSET)["offsetTable"]) == 2
    member.answers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = b""
    letters: dict[str, object] = {"a": "P", "b": "DefaultCluster_REPLY_TOPIC", "c": "TBW102", "d": 4, "e": 0, "f": 0}
    letters |= {"g": 1, "h": 0, "i": f"REPLY_TO_CLIENT\x01{CLIENT}\x02", "j": 0, "k": False, "m": False}
    answer = member.wire.ask(RequestCode.SEND_REPLY_MESSAGE_V2, b"reply", **letters)
    sent = {name: kind for name, kind in java.SEND.items() if name != "transactionId"}
    assert java.read_header(answer.ext_fields, sent, java.SEND_BESIDE)["queueOffset"] >= 0
    pushed = member.expect(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    assert java.read_header(pushed.ext_fields, java.PUSH_REPLY)["bornHost"].startswith("/127.0.0.1:")


def test_heartbeats_and_unregistrations(member: JavaClient) -> None:
    """Without IS_SUPPORT_HEART_BEAT_V2 a client continues to send complete heartbeats, which are always valid."""
    beside = {"IS_SUB_CHANGE": java.BOOL}
    again = member.beat(member.heartbeat)
    assert java.read_header(again.ext_fields, beside) == {"IS_SUB_CHANGE": False}
    without = {**member.heartbeat, "heartbeatFingerprint": 77, "withoutSub": True}
    without["consumerDataSet"] = [{**member.heartbeat["consumerDataSet"][0], "subscriptionDataSet": []}]
    assert java.read_header(member.beat(without).ext_fields, beside) == {"IS_SUB_CHANGE": False}
    answer = member.wire.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=GROUP)
    found = java.read_body(answer.body, java.CONSUMER_CONNECTION)
    assert list(found["subscriptionTable"]) == [TOPIC]
    assert [(one["language"], one["version"]) for one in found["connectionSet"]] == [("JAVA", _JAVA_5_3_3)]
    gone = member.wire.ask(RequestCode.UNREGISTER_CLIENT, clientID="other", producerGroup=None, consumerGroup="none")
    assert (gone.code, gone.ext_fields) == (0, {})


NAMESRV: list[tuple[int, dict[str, object], dict[str, str], Any]] = [
    (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC, "acceptStandardJsonOnly": True}, {}, java.ROUTE),
    (RequestCode.GET_BROKER_CLUSTER_INFO, {}, {}, java.CLUSTER_INFO),
    (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, {}, java.TOPIC_LIST),
    (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}, {}, java.TOPIC_LIST),
    (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, {}, java.TOPIC_LIST),
    (RequestCode.GET_UNIT_TOPIC_LIST, {}, {}, java.TOPIC_LIST),
    (RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": "x", "brokerName": "broker-a"}, {}, java.MEMBER_GROUP),
    (RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": "v"}, {}, None),
    (RequestCode.GET_KV_CONFIG, {"namespace": "N", "key": "k"}, {"value": java.STR}, None),
    (RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}, {}, java.KV_TABLE),
    (RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}, {"addTopicCount": java.INT}, None),
    (RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "unknown"}, {"wipeTopicCount": java.INT}, None),
]


@pytest.mark.parametrize("case", NAMESRV, ids=[RequestCode(case[0]).name for case in NAMESRV])
def test_a_name_server_answers(namesrv: Wire, case: tuple[int, dict[str, object], dict[str, str], Any]) -> None:
    code, fields, header, body = case
    answer = namesrv.ask(code, **fields)
    assert answer.code == 0
    java.read_header(answer.ext_fields, header)
    if body is None:
        assert not answer.body
    else:
        assert java.read_body(answer.body, body)
