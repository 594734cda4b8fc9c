"""Pulls: the four responses with their next offsets, filters, limits, and long polling."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Any, cast

import pytest

from spark_rocket.broker.assembly import BrokerParts
from spark_rocket.model import Message
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.bodies.client import ConsumerData, HeartbeatData, SubscriptionData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.store.results import GetMessageResult
from spark_rocket.testing import LocalCluster
from tests.broker.wire import SUBSCRIPTION, SUSPEND, Wire, held_by, held_pulls, time_is_up

pytestmark = pytest.mark.live

KIB = 1024


def offsets(next_begin: int, minimum: int, maximum: int) -> dict[str, str]:
    return {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_begin),
        "minOffset": str(minimum),
        "maxOffset": str(maximum),
    }


def fill(wire: Wire, topic: str, count: int = 10, *, size: int = 10) -> None:
    wire.send_batch(topic, [Message.of(topic, b"x" * size, tags=f"t{number % 2}") for number in range(count)])


@pytest.mark.parametrize(
    ("offset", "code", "remark", "expected"),
    [
        (0, ResponseCode.SUCCESS, "FOUND", offsets(10, 0, 10)),
        (7, ResponseCode.SUCCESS, "FOUND", offsets(10, 0, 10)),
        (10, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offsets(10, 0, 10)),
        (11, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", offsets(10, 0, 10)),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", offsets(0, 0, 10)),
    ],
)
def test_the_answers_of_a_queue_with_messages(
    wire: Wire, topic: str, offset: int, code: int, remark: str, expected: dict[str, str]
) -> None:
    fill(wire, topic)
    answer = wire.pull(topic, offset)
    assert (answer.code, answer.remark, answer.ext_fields) == (code, remark, expected)
    assert len(decode_messages(bytes(answer.body))) == (10 - offset if code == ResponseCode.SUCCESS else 0)


@pytest.mark.parametrize(("offset", "code"), [(0, ResponseCode.PULL_NOT_FOUND), (5, ResponseCode.PULL_OFFSET_MOVED)])
def test_the_answers_of_an_empty_queue(wire: Wire, topic: str, offset: int, code: int) -> None:
    answer = wire.pull(topic, offset)
    assert (answer.code, answer.ext_fields) == (code, offsets(0, 0, 0))


def test_tags_select_messages(wire: Wire, topic: str) -> None:
    fill(wire, topic)
    assert [message.queue_offset for message in wire.messages(topic, 1, tags="t1")] == [1, 3, 5, 7, 9]
    assert len(wire.messages(topic, tags="t0 || t1 || other")) == 10
    assert len(wire.messages(topic, subscription=None)) == 10
    nothing = wire.pull(topic, 2, tags="other")
    assert (nothing.code, nothing.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert nothing.ext_fields == offsets(10, 0, 10)


REFUSED = [
    ({"topic": "NoSuchTopic"}, ResponseCode.TOPIC_NOT_EXIST, "topic[NoSuchTopic] not exist"),
    ({"queueId": 4}, ResponseCode.INVALID_PARAMETER, "queueId[4] is illegal"),
    ({"queueId": -1}, ResponseCode.INVALID_PARAMETER, "queueId[-1] is illegal"),
    ({"sysFlag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST, "group info not exist"),
    ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"),
    ({"expressionType": "XPATH"}, ResponseCode.SYSTEM_ERROR, "does not support consumer to filter message by XPATH"),
    ({"queueOffset": "x"}, ResponseCode.SYSTEM_ERROR, "invalid number"),
    ({"maxMsgNums": None}, ResponseCode.SYSTEM_ERROR, "<maxMsgNums> of the pull request is missing"),
    ({"consumerGroup": "bad name"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "does not exist"),
]


@pytest.mark.parametrize(("fields", "code", "remark"), REFUSED)
def test_what_is_refused(wire: Wire, topic: str, fields: dict[str, object], code: int, remark: str) -> None:
    answer = wire.pull(**{"topic": topic, "offset": 0, **fields})  # type: ignore[arg-type]
    assert answer.code == code
    assert remark in (answer.remark or "")


def test_a_topic_without_read_permission(wire: Wire, cluster: LocalCluster) -> None:
    cluster.create_topic("WriteOnly", perm=2)
    answer = wire.pull("WriteOnly", 0)
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the topic[WriteOnly] pulling message is forbidden",
    )


def test_a_disabled_group(wire: Wire, topic: str) -> None:
    wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"Barred","consumeEnable":false}')
    answer = wire.pull(topic, 0, consumerGroup="Barred")
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "subscription group no permission, Barred")


# --- how much ---------------------------------------------------------------------------------------------------


def pulled(wire: Wire, topic: str, **fields: object) -> int:
    return len(decode_messages(bytes(wire.pull(topic, 0, **fields).body)))


def test_a_pull_is_small_unless_it_asks_for_bulk(wire: Wire, topic: str) -> None:
    fill(wire, topic, 2_000, size=1_000)
    assert pulled(wire, topic, maxMsgNums=1) == 1
    assert pulled(wire, topic, maxMsgNums=1_000) == 32
    assert pulled(wire, topic, maxMsgNums=1_000, maxMsgBytes=256 * KIB) == 32
    assert pulled(wire, topic, maxMsgNums=32, maxMsgBytes=5_000) == 4
    assert pulled(wire, topic, maxMsgNums=1_000, maxMsgBytes=256 * KIB + 1) > 200
    assert pulled(wire, topic, maxMsgNums=1_500, maxMsgBytes=8 * KIB * KIB) == 1_500
    assert pulled(wire, topic, maxMsgNums=10**6, maxMsgBytes=2**31 - 1) == 2_000


def test_a_bulk_pull_is_bounded_by_the_broker(wire: Wire, topic: str) -> None:
    fill(wire, topic, 2_000, size=1_000)
    try:
        assert wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxPullBytes=500000\nmaxPullMsgNums=300").code == 0
        answer = wire.pull(topic, 0, maxMsgNums=10**6, maxMsgBytes=2**31 - 1)
        assert answer.ext_fields["nextBeginOffset"] == "300"
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxPullMsgNums=100000")
        answer = wire.pull(topic, 0, maxMsgNums=10**6, maxMsgBytes=2**31 - 1)
        assert 400_000 < len(answer.body) <= 500_000
    finally:
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxPullBytes=8388608\nmaxPullMsgNums=100000")


# --- long polling -----------------------------------------------------------------------------------------------

HELD = {"sysFlag": SUBSCRIPTION | SUSPEND, "suspendTimeoutMillis": 20_000}


def test_a_held_pull_is_answered_when_its_message_comes(wire: Wire, topic: str, parts: BrokerParts) -> None:
    fill(wire, topic, 4)
    later = wire.pull_later(topic, 4, tags="t1", **HELD)
    assert held_pulls(wire, parts, topic) == 1
    wire.send(topic, b"other queue", {"TAGS": "t1"}, queue_id=1)
    wire.send(topic, b"other tag", {"TAGS": "t0"})
    assert not later.done()
    wire.send(topic, b"this", {"TAGS": "t1"})
    answer = later.result(60)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert [message.body for message in decode_messages(bytes(answer.body))] == [b"this"]
    assert answer.ext_fields == offsets(6, 0, 6)
    assert held_pulls(wire, parts, topic) == 0


def test_a_pull_of_a_queue_that_never_had_a_message_is_held_too(wire: Wire, topic: str) -> None:
    later = wire.pull_later(topic, 0, queue_id=3, **HELD)
    wire.send_batch(topic, [Message.of(topic, b"a"), Message.of(topic, b"b")], queue_id=3)
    assert len(decode_messages(bytes(later.result(60).body))) == 2


def test_a_held_pull_is_answered_at_its_timeout(wire: Wire, topic: str, parts: BrokerParts) -> None:
    fill(wire, topic, 4)
    answer = wire.pull(topic, 4, **{**HELD, "suspendTimeoutMillis": 200})
    assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")
    assert held_pulls(wire, parts, topic) == 0


def test_a_held_pull_at_its_timeout_gets_the_offset_after_other_tags(
    wire: Wire, topic: str, parts: BrokerParts
) -> None:
    later = wire.pull_later(topic, 0, tags="wanted", **HELD)
    fill(wire, topic, 4)
    time_is_up(parts, topic)
    answer = later.result(60)
    assert (answer.code, answer.ext_fields) == (ResponseCode.PULL_RETRY_IMMEDIATELY, offsets(4, 0, 4))


def test_a_pull_past_the_end_is_never_held(wire: Wire, topic: str) -> None:
    fill(wire, topic, 4)
    assert wire.pull(topic, 5, **HELD).code == ResponseCode.PULL_OFFSET_MOVED


def test_without_long_polling_a_pull_is_held_briefly(wire: Wire, topic: str) -> None:
    try:
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"longPollingEnable=false\nshortPollingTimeMills=50")
        assert wire.pull(topic, 0, **HELD).code == ResponseCode.PULL_NOT_FOUND
    finally:
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"longPollingEnable=true\nshortPollingTimeMills=1000")


def test_above_the_limit_nothing_is_held(wire: Wire, topic: str) -> None:
    try:
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxHeldPulls=0")
        assert wire.pull(topic, 0, **HELD).code == ResponseCode.PULL_NOT_FOUND
    finally:
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxHeldPulls=100000")


def test_a_held_pull_of_a_deleted_topic_is_answered(wire: Wire, topic: str) -> None:
    later = wire.pull_later(topic, 0, **HELD)
    assert wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic).code == ResponseCode.SUCCESS
    assert later.result(60).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_pull_commits_the_offset_it_carries(wire: Wire, topic: str, group: str) -> None:
    fill(wire, topic, 4)
    wire.pull(topic, 0, consumerGroup=group, sysFlag=SUBSCRIPTION | 1, commitOffset=3)
    found = wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=0)
    assert found.ext_fields == {"offset": "3"}


def test_a_broker_that_serves_no_lite_pulls(wire: Wire, topic: str) -> None:
    fill(wire, topic, 4)
    try:
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"litePullMessageEnable=false")
        answer = wire.ask(RequestCode.LITE_PULL_MESSAGE, **wire.pull_fields(topic, 0))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert (answer.remark or "").endswith("for lite pull consumer is forbidden")
        assert pulled(wire, topic) == 4
    finally:
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"litePullMessageEnable=true")
    assert wire.ask(RequestCode.LITE_PULL_MESSAGE, **wire.pull_fields(topic, 0)).code == ResponseCode.SUCCESS


# --- with a subscription from heartbeats ------------------------------------------------------------------------


def heartbeat(wire: Wire, group: str, topic: str, expression: str = "*", version: int = 10, **more: str) -> None:
    consumer = ConsumerData(group, subscription_data_set=[SubscriptionData.build(topic, expression, version)], **more)  # type: ignore[arg-type]
    body = HeartbeatData(client_id="client", consumer_data_set=[consumer]).to_json()
    assert wire.ask(RequestCode.HEART_BEAT, body).code == ResponseCode.SUCCESS


def test_a_group_pulls_with_the_filter_of_its_heartbeats(wire: Wire, topic: str, group: str) -> None:
    fill(wire, topic, 10)
    heartbeat(wire, group, topic, "t1")
    registered = {"consumerGroup": group, "sysFlag": 0, "subscription": None}
    assert pulled(wire, topic, **registered, subVersion=10) == 5
    assert wire.pull(topic, 0, **registered, subVersion=11).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    heartbeat(wire, group, topic, "*", version=11)
    assert pulled(wire, topic, **registered, subVersion=11) == 10
    heartbeat(wire, group, "Other", version=12)
    assert wire.pull(topic, 0, **registered).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


def test_a_group_without_broadcasting(wire: Wire, topic: str, group: str) -> None:
    body = f'{{"groupName":"{group}","consumeBroadcastEnable":false}}'.encode()
    wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
    heartbeat(wire, group, topic, message_model="BROADCASTING")
    answer = wire.pull(topic, 0, consumerGroup=group, sysFlag=0)
    assert answer.code == ResponseCode.NO_PERMISSION


def hold(wire: Wire, topic: str, parts: BrokerParts, count: int, **more: object) -> list[Future[RemotingCommand]]:
    pulls = [
        wire.pull_later(topic, 0, sysFlag=SUBSCRIPTION | SUSPEND, **{"suspendTimeoutMillis": 25_000, **more})
        for _ in range(count)
    ]
    assert held_pulls(wire, parts, topic) == count
    return pulls


def test_a_held_pull_that_fails_is_answered_and_the_others_too(
    wire: Wire, topic: str, parts: BrokerParts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = parts.store.get_message
    failures = [OSError(24, "Too many open files")]

    def fail_once(*arguments: Any) -> GetMessageResult:
        if failures:
            raise failures.pop()
        return read(*arguments)

    pulls = hold(wire, topic, parts, 3)
    monkeypatch.setattr(parts.store, "get_message", fail_once)
    wire.send(topic)
    answers = [pull.result(10) for pull in pulls]
    assert sorted(answer.code for answer in answers) == [0, 0, ResponseCode.SYSTEM_ERROR]
    assert "Too many open files" in next(answer.remark or "" for answer in answers if answer.code)
    assert "failed" in caplog.text


def test_a_held_pull_releases_its_request(wire: Wire, topic: str, parts: BrokerParts) -> None:
    ext = wire.pull_fields(topic, 0, sysFlag=SUBSCRIPTION | SUSPEND, suspendTimeoutMillis=25_000)
    pull = wire.client.invoke_async(
        wire.address, RemotingCommand.request(RequestCode.PULL_MESSAGE, ext, bytes(4_096)), timeout=30.0
    )
    assert held_pulls(wire, parts, topic) == 1
    (waiting,) = held_by(parts, topic)
    request = cast("partial[None]", waiting.respond).args[1]
    assert (request.code, bytes(request.body)) == (RequestCode.PULL_MESSAGE, b"")
    wire.send(topic)
    assert pull.result(10).code == 0


@pytest.mark.parametrize("name", ["queueOffset", "commitOffset"])
@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 10**25])
def test_invalid_offsets(wire: Wire, topic: str, group: str, name: str, value: int) -> None:
    answer = wire.pull(topic, 0, consumerGroup=group, sysFlag=SUBSCRIPTION | 1, **{name: value})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "invalid number in the pull request")
    found = wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=0)
    assert found.ext_fields["offset"] == "0"  # nothing was committed


@pytest.mark.parametrize("milliseconds", [10**9, 10**25])
def test_nothing_is_held_forever(wire: Wire, topic: str, parts: BrokerParts, milliseconds: int) -> None:
    (pull,) = hold(wire, topic, parts, 1, suspendTimeoutMillis=milliseconds)
    (waiting,) = held_by(parts, topic)
    assert waiting.timer is not None
    assert waiting.timer.when() - parts.loop.time() < 301
    wire.send(topic)
    assert pull.result(10).code == 0


def test_very_many_tags(wire: Wire, topic: str) -> None:
    answer = wire.pull(topic, 0, tags="||".join(f"t{number}" for number in range(20_000)))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "at most 65,536" in (answer.remark or "")
