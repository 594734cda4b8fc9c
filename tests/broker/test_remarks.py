"""The remarks of refusals, which clients and mqadmin show, equal those of a broker of 5.3.3."""

from __future__ import annotations

import time

import pytest

from spark_rocket.protocol.wire.codes import SEE_FAQ
from spark_rocket.protocol.wire.codes import RequestCode as Code
from tests.broker.wire import Wire

pytestmark = pytest.mark.live

_SEND = {"a": "g", "b": "Nowhere", "c": "NoDefault", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
_PULL = {
    "consumerGroup": "readers", "topic": "Nowhere", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4,
    "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
}  # fmt: skip
_POP = {
    "consumerGroup": "readers", "topic": "Nowhere", "queueId": 0, "maxMsgNums": 1, "invisibleTime": 10_000,
    "pollTime": 0, "bornTime": 2**53, "initMode": 0,
}  # fmt: skip
_BACK = {"offset": 0, "group": "bad group", "delayLevel": 0}
_APPLY = "topic[Nowhere] not exist, apply first please!"
_BAD_GROUP = f"subscription group [bad group] does not exist, {SEE_FAQ}"
_OFFSET = {"queueId": 0, "commitOffset": 1}

REMARKS = [
    (Code.SEND_MESSAGE_V2, _SEND, 17, f"{_APPLY}{SEE_FAQ}"),
    (Code.SEND_MESSAGE_V2, {**_SEND, "b": "SCHEDULE_TOPIC_XXXX"}, 16,
     "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."),
    (Code.SEND_BATCH_MESSAGE, {**_SEND, "b": "%RETRY%g"}, 13, "batch request does not support retry group %RETRY%g"),
    (Code.CONSUMER_SEND_MSG_BACK, _BACK, 26, f"subscription group not exist, bad group {SEE_FAQ}"),
    (Code.CONSUMER_SEND_MSG_BACK, {**_BACK, "group": "g", "offset": 1 << 50}, 1,
     f"look message by offset failed, {1 << 50}"),
    (Code.PULL_MESSAGE, _PULL, 17, f"{_APPLY} {SEE_FAQ}"),
    (Code.PULL_MESSAGE, {**_PULL, "consumerGroup": "bad group"}, 26, _BAD_GROUP),
    (Code.PULL_MESSAGE, {**_PULL, "topic": "TBW102", "sysFlag": 0}, 24,
     f"the consumer's group info not exist{SEE_FAQ}"),
    (Code.POP_MESSAGE, _POP, 17, f"{_APPLY} {SEE_FAQ}"),
    (Code.UPDATE_CONSUMER_OFFSET, {**_OFFSET, "consumerGroup": "Missing", "topic": "TBW102"}, 26,
     "Group Missing not exist!"),
    (Code.UPDATE_CONSUMER_OFFSET, {**_OFFSET, "consumerGroup": "readers", "topic": "Nowhere"}, 17,
     "Topic Nowhere not exist!"),
    (Code.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "Nowhere", "group": "g", "timestamp": 0, "isForce": True}, 17,
     "Topic Nowhere does not exist"),
    (Code.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "TBW102", "group": "Missing", "timestamp": 0, "isForce": True}, 26,
     "Group Missing does not exist"),
    (Code.GET_TOPIC_STATS_INFO, {"topic": "Nowhere"}, 17, "topic[Nowhere] not exist"),
    (Code.QUERY_CONSUME_TIME_SPAN, {"topic": "Nowhere", "group": "g"}, 17, "topic[Nowhere] not exist"),
    (Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "Missing"}, 206, "the consumer group[Missing] not online"),
    (Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "Missing"}, 1, "the producer group[Missing] not exist"),
    (Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "Missing"}, 1, "no consumer for this group, Missing"),
    (Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "Missing", "clientId": "c"}, 1,
     "The Consumer <Missing> <c> not online"),
    (Code.VIEW_BROKER_STATS_DATA, {"statsName": "N", "statsKey": "k"}, 1, "The stats <N> <k> not exist"),
    (Code.VIEW_MESSAGE_BY_ID, {"offset": 1 << 50}, 1, f"can not find message by the offset, {1 << 50}"),
    (Code.QUERY_MESSAGE, {"topic": "TBW102", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1}, 22,
     "can not find message, maybe time range not correct"),
    (Code.GET_TOPIC_CONFIG, {"topic": "Nowhere"}, 17, "No topic in this broker. topic: Nowhere"),
    (Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "Missing"}, 26, "No group in this broker. group: Missing"),
    (29_999, {}, 3, " request type 29999 not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "fields", "answer", "remark"), REMARKS)
def test_a_refusal_has_apaches_remark(
    wire: Wire, code: int, fields: dict[str, object], answer: int, remark: str
) -> None:
    wire.create_group("readers")
    found = wire.ask(code, **fields)
    assert (found.code, found.remark) == (answer, remark)


def test_a_broker_accepts_sends_from_its_start_time(wire: Wire, topic: str) -> None:
    with wire.settings(startAcceptSendRequestTimeStamp=4_102_444_800_123):
        remark = wire.send(topic).remark
    there = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(4_102_444_800))
    assert remark == f"broker unable to service, until {there},123"


def test_a_long_error_is_cut(wire: Wire) -> None:
    """An error repeats parts of the request; more than 65,536 quotation marks in a header are refused by clients."""
    answer = wire.ask(Code.UPDATE_BROKER_CONFIG, b"maxMessageSize=" + b'"' * 30_000)
    assert answer.code == 1
    assert 4_096 < len(answer.remark or "") < 4_200
