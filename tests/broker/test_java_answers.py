"""Responses to every call of Java's clients and of mqadmin, decoded like Java (java_types.py).

Each request has the fields of Java's header class. A topic with messages, a group with a member, offsets and a
producer are there, so that tables are not empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.wire.codes import LanguageCode, RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker import java_types as java
from tests.broker.popping import Popper, taken
from tests.broker.wire import Peer, Wire, bodies_of, messages_of, request_of, send_fields

pytestmark = pytest.mark.live

TOPIC, GROUP, PRODUCERS, CLIENT = "JavaTopic", "GID-java", "PID-java", "192.168.1.7@4711#8"
QUEUE = {"topic": TOPIC, "brokerName": "broker-a", "queueId": 0}
_JAVA_5_3_3 = 479


class JavaClient(Peer):
    """A connection with heartbeats of a producer and a consumer, as a Java client of 5.3 sends them."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.answers: dict[int, bytes] = {}
        self.answer = self._respond
        subscription: dict[str, Any] = {
            "classFilterMode": False,
            "codeSet": [],
            "expressionType": "TAG",
            "subString": "*",
        }
        subscription |= {"subVersion": 1, "tagsSet": [], "topic": TOPIC}
        consumer: dict[str, Any] = {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY"}
        consumer |= {"groupName": GROUP, "messageModel": "CLUSTERING", "unitMode": False}
        self.consumer: dict[str, Any] = {**consumer, "subscriptionDataSet": [subscription]}
        assert self.beats().code == 0

    def beats(self, **changed: object) -> RemotingCommand:
        data = {"clientID": CLIENT, "consumerDataSet": [self.consumer], "heartbeatFingerprint": 0}
        data |= {"producerDataSet": [{"groupName": PRODUCERS}], "withoutSub": False, **changed}
        request = request_of(RequestCode.HEART_BEAT, json.dumps(data).encode())
        request.language, request.version = LanguageCode.JAVA, _JAVA_5_3_3
        return self.client.invoke(self.address, request, timeout=10.0)

    def _respond(self, request: RemotingCommand) -> RemotingCommand | None:
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
    with closing(JavaClient(cluster.broker_address)) as made:
        made.create_group("GID-other")
        made.commit(GROUP, TOPIC, 3)
        mode = {"topic": TOPIC, "consumerGroup": "GID-other", "mode": "POP", "popShareQueueNum": 0}
        assert made.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, json.dumps(mode).encode()).code == 0
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
BROKER: list[tuple[int, dict[str, object], str, Any]] = [
    (RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": GROUP, **_queue()}, "OffsetResponseHeader", None),
    (
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        {**_queue(), "timestamp": 0, "boundaryType": "LOWER"},
        "OffsetResponseHeader",
        None,
    ),
    (RequestCode.GET_MAX_OFFSET, {**_queue(), "committed": True}, "OffsetResponseHeader", None),
    (RequestCode.GET_MIN_OFFSET, _queue(), "OffsetResponseHeader", None),
    (RequestCode.GET_EARLIEST_MSG_STORETIME, _queue(), "GetEarliestMsgStoretimeResponseHeader", None),
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}, "", "GetConsumerListByGroupResponseBody"),
    (RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP}, "", "ConsumerConnection"),
    (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": PRODUCERS}, "", "ProducerConnection"),
    (RequestCode.GET_ALL_PRODUCER_INFO, {}, "", "ProducerTableInfo"),
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC}, "", "TopicStatsTable"),
    (RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP, "topic": ""}, "", "ConsumeStats"),
    (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False}, "", "ConsumeStatsList"),
    (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": TOPIC}, "", "GroupList"),
    (RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": GROUP}, "", "TopicList"),
    (RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": GROUP, "topic": TOPIC}, "", "QuerySubscriptionResponseBody"),
    (RequestCode.QUERY_CONSUME_TIME_SPAN, {"group": GROUP, "topic": TOPIC}, "", "QueryConsumeTimeSpanBody"),
    (
        RequestCode.QUERY_CONSUME_QUEUE,
        {**_queue(), "index": 0, "count": 10, "consumerGroup": GROUP},
        "",
        "QueryConsumeQueueResponseBody",
    ),
    (RequestCode.GET_ALL_TOPIC_CONFIG, {}, "GetAllTopicConfigResponseHeader", "TopicConfigSerializeWrapper"),
    (RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC, "lo": True}, "", "TopicConfig"),
    (
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        {},
        "GetAllSubscriptionGroupResponseHeader",
        "SubscriptionGroupWrapper",
    ),
    (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP}, "", "SubscriptionGroupConfig"),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, {}, "", "ConsumerOffsetSerializeWrapper"),
    (RequestCode.GET_ALL_DELAY_OFFSET, {}, "", "DelayOffsetSerializeWrapper"),
    (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, {}, "", "MessageRequestModeSerializeWrapper"),
    (RequestCode.GET_BROKER_RUNTIME_INFO, {}, "", "KVTable"),
    (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {}, "", "TopicList"),
    (RequestCode.GET_BROKER_HA_STATUS, {}, "", "HARuntimeInfo"),
    (RequestCode.GET_TIMER_METRICS, {}, "", "TimerMetricsSerializeWrapper"),
    (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"group": "GID-other", "topic": TOPIC, "timestamp": -1, "isForce": True, "offset": -1, "queueId": -1},
        "",
        "ResetOffsetBody",
    ),
    (
        RequestCode.QUERY_MESSAGE,
        {"topic": TOPIC, "key": "key2", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": (1 << 63) - 1},
        "QueryMessageResponseHeader",
        bytes,
    ),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"topic": TOPIC, "offset": 0}, "", bytes),
    (
        RequestCode.NOTIFICATION,
        {"consumerGroup": GROUP, **_queue(), "pollTime": 0, "bornTime": 0},
        "NotificationResponseHeader",
        None,
    ),
    (RequestCode.POLLING_INFO, {"consumerGroup": GROUP, **_queue()}, "PollingInfoResponseHeader", None),
    (
        RequestCode.PEEK_MESSAGE,
        {"consumerGroup": GROUP, **_queue(), "maxMsgNums": 2},
        "PeekMessageResponseHeader",
        bytes,
    ),
]


@pytest.mark.parametrize("case", BROKER, ids=[RequestCode(case[0]).name for case in BROKER])
def test_a_broker_answers(member: JavaClient, case: tuple[int, dict[str, object], str, Any]) -> None:
    code, fields, header, body = case
    answer = member.ask(code, **{**fields, "ns": "", "nsd": False, "bname": "broker-a"})
    assert answer.code == 0
    java.read_header(answer.ext_fields, header)
    if body is None:
        assert not answer.body
    elif body is bytes:
        assert messages_of(answer)
    else:
        assert java.read_body(answer.body, body)


def test_sends_and_pulls(member: JavaClient) -> None:
    sent = member.send(TOPIC, b"x", {"UNIQ_KEY": "U1"}, queue_id=1)
    values = java.read_header(sent.ext_fields, "SendMessageResponseHeader", java.SEND_BESIDE)
    assert values["transactionId"] == "U1"
    assert decode_offset_msg_id(values["msgId"])
    for offset, code in ((0, 0), (1, 19), (99, 21)):
        pulled = member.pull(TOPIC, offset, queue_id=1)
        assert pulled.code == code
        java.read_header(pulled.ext_fields, "PullMessageResponseHeader")


def test_locks_and_assignments(member: JavaClient) -> None:
    locked = java.read_body(member.ask(RequestCode.LOCK_BATCH_MQ, _lock()).body, "LockBatchResponseBody")
    assert locked == {"lockOKMQSet": [QUEUE]}
    assert member.ask(RequestCode.UNLOCK_BATCH_MQ, _lock()).code == 0
    answer = member.ask(RequestCode.QUERY_ASSIGNMENT, _assignment())
    assert len(java.read_body(answer.body, "QueryAssignmentResponseBody")["messageQueueAssignments"]) == 2


def test_statistics(member: JavaClient) -> None:
    answer = member.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName="BROKER_PUT_NUMS", statsKey="DefaultCluster")
    java.read_body(answer.body, "BrokerStatsData")


def test_pops_acks_and_changes(member: JavaClient) -> None:
    popper = Popper(member, "GID-pop", TOPIC, queueId=0, expType="TAG", exp="*", order=False)
    popped = popper.pop(maxMsgNums=2)
    values = java.read_header(popped.ext_fields, "PopMessageResponseHeader")
    assert (values["startOffsetInfo"], values["msgOffsetInfo"]) == ("0 0 0", "0 0 0,1")
    first, second = taken(popped)
    changed = popper.change(*second, 30_000)
    java.read_header(changed.ext_fields, "ChangeInvisibleTimeResponseHeader")
    assert popper.ack(*first).code == 0
    other = Popper(member, "GID-none", TOPIC, queueId=1, initMode=1)
    while (nothing := other.pop()).code == 0:  # what another test sent there
        pass
    assert nothing.code == 210
    java.read_header(nothing.ext_fields, "PopMessageResponseHeader")


def test_requests_to_a_consumer(member: JavaClient) -> None:
    """Received fields are forwarded, and the response is the consumer's own."""
    member.answers[RequestCode.GET_CONSUMER_RUNNING_INFO] = b'{"jstack":"x"}'
    member.answers[RequestCode.CONSUME_MESSAGE_DIRECTLY] = b'{"consumeResult":"CR_SUCCESS"}'
    member.answers[RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT] = (
        b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"JavaTopic"}:7}}'
    )
    named: dict[str, object] = {"consumerGroup": GROUP, "clientId": CLIENT}
    answer = member.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **named, jstackEnable=True)
    assert bytes(answer.body) == b'{"jstack":"x"}'
    asked = member.expect(RequestCode.GET_CONSUMER_RUNNING_INFO)
    java.read_header(asked.ext_fields, "GetConsumerRunningInfoRequestHeader")
    message_id = member.send(TOPIC, b"again", queue_id=1).ext_fields["msgId"]
    answer = member.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **named, topic=TOPIC, msgId=message_id)
    assert bytes(answer.body) == b'{"consumeResult":"CR_SUCCESS"}'
    asked = member.expect(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    header = java.read_header(asked.ext_fields, "ConsumeMessageDirectlyResultRequestHeader")
    assert (header["brokerName"], bodies_of(asked)) == ("broker-a", [b"again"])
    answer = member.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic=TOPIC, group=GROUP, clientAddr="")
    found = java.read_body(answer.body, "GetConsumerStatusBody")
    assert list(found["consumerTable"]) == [CLIENT]


def test_notifications_to_a_consumer(member: JavaClient) -> None:
    """Of a reset by a broker as those of 4.9, and of a reply."""
    member.commit(GROUP, TOPIC, 0, 1)
    with member.settings(useServerSideResetOffset=False):
        answer = member.reset(GROUP, TOPIC, timestamp=-1)
    assert len(java.read_body(answer.body, "ResetOffsetBody")["offsetTable"]) == 2
    told = member.expect(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    assert told.is_oneway
    java.read_header(told.ext_fields, "ResetOffsetRequestHeader")
    assert len(java.read_body(told.body, "ResetOffsetBody")["offsetTable"]) == 2
    member.answers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = b""
    fields = send_fields("DefaultCluster_REPLY_TOPIC", {"REPLY_TO_CLIENT": CLIENT})
    answer = member.ask(RequestCode.SEND_REPLY_MESSAGE_V2, b"reply", **fields)
    values = java.read_header(answer.ext_fields, "ReplyMessageResponseHeader", java.SEND_BESIDE)
    assert values["queueOffset"] >= 0
    pushed = member.expect(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    header = java.read_header(pushed.ext_fields, "ReplyMessageRequestHeader")
    assert header["bornHost"].startswith("/127.0.0.1:")


def test_heartbeats_and_unregistrations(member: JavaClient) -> None:
    """Without IS_SUPPORT_HEART_BEAT_V2 a client continues to send complete heartbeats, which are always valid."""
    consumer = {**member.consumer, "subscriptionDataSet": []}
    for changed in ({}, {"heartbeatFingerprint": 77, "withoutSub": True, "consumerDataSet": [consumer]}):
        again = member.beats(**changed)
        assert java.read_header(again.ext_fields, "HeartbeatResponse") == {"IS_SUB_CHANGE": False}
    answer = member.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=GROUP)
    found = java.read_body(answer.body, "ConsumerConnection")
    assert list(found["subscriptionTable"]) == [TOPIC]
    assert [(one["language"], one["version"]) for one in found["connectionSet"]] == [("JAVA", _JAVA_5_3_3)]
    gone = member.ask(RequestCode.UNREGISTER_CLIENT, clientID="other", producerGroup=None, consumerGroup="none")
    assert (gone.code, gone.ext_fields) == (0, {})


NAMESRV: list[tuple[int, dict[str, object], str, Any]] = [
    (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC, "acceptStandardJsonOnly": True}, "", "TopicRouteData"),
    (RequestCode.GET_BROKER_CLUSTER_INFO, {}, "", "ClusterInfo"),
    (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, "", "TopicList"),
    (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}, "", "TopicList"),
    (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, "", "TopicList"),
    (RequestCode.GET_UNIT_TOPIC_LIST, {}, "", "TopicList"),
    (
        RequestCode.GET_BROKER_MEMBER_GROUP,
        {"clusterName": "x", "brokerName": "broker-a"},
        "",
        "GetBrokerMemberGroupResponseBody",
    ),
    (RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": "v"}, "", None),
    (RequestCode.GET_KV_CONFIG, {"namespace": "N", "key": "k"}, "GetKVConfigResponseHeader", None),
    (RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}, "", "KVTable"),
    (RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}, "AddWritePermOfBrokerResponseHeader", None),
    (RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "unknown"}, "WipeWritePermOfBrokerResponseHeader", None),
]


@pytest.mark.parametrize("case", NAMESRV, ids=[RequestCode(case[0]).name for case in NAMESRV])
def test_a_name_server_answers(namesrv: Wire, case: tuple[int, dict[str, object], str, Any]) -> None:
    code, fields, header, body = case
    answer = namesrv.ask(code, **fields)
    assert answer.code == 0
    java.read_header(answer.ext_fields, header)
    if body is None:
        assert not answer.body
    else:
        assert java.read_body(answer.body, body)
