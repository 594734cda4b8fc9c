"""Pulls: the four responses with their next offsets, filters, limits, and long polling."""

from __future__ import annotations

from typing import Any

import pytest

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.model import Message
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store.results import GetMessageResult
from spark_rocket.testing import LocalCluster
from tests.broker.wire import (
    HELD,
    SUBSCRIPTION,
    Wire,
    bodies_of,
    held_by,
    held_pulls,
    messages_of,
    subscribed,
    time_is_up,
)

pytestmark = pytest.mark.live

KIB = 1024


def offsets(next_begin: int, minimum: int, maximum: int) -> dict[str, str]:
    bounds = {"minOffset": str(minimum), "maxOffset": str(maximum)}
    return {"suggestWhichBrokerId": "0", "nextBeginOffset": str(next_begin), **bounds}


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
    assert len(messages_of(answer)) == (10 - offset if code == ResponseCode.SUCCESS else 0)


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
    remark = "the topic[WriteOnly] pulling message is forbidden"
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, remark)


def test_a_disabled_group(wire: Wire, topic: str) -> None:
    wire.create_group("Barred", consumeEnable=False)
    answer = wire.pull(topic, 0, consumerGroup="Barred")
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "subscription group no permission, Barred")


@pytest.fixture(scope="module")
def bulk(cluster: LocalCluster) -> str:
    """A queue of 2,000 messages with 1,000 bytes each."""
    with RemotingClient() as client:
        fill(Wire(client, cluster.broker_address), topic := cluster.create_topic("Bulk"), 2_000, size=1_000)
    return topic


# --- how much ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"maxMsgNums": 1}, 1),
        ({"maxMsgNums": 1_000}, 32),
        ({"maxMsgNums": 1_000, "maxMsgBytes": 256 * KIB}, 32),
        ({"maxMsgNums": 32, "maxMsgBytes": 5_000}, 4),
        ({"maxMsgNums": 1_000, "maxMsgBytes": 256 * KIB + 1}, 223),
        ({"maxMsgNums": 1_500, "maxMsgBytes": 8 * KIB * KIB}, 1_500),
        ({"maxMsgNums": 10**6, "maxMsgBytes": 2**31 - 1}, 2_000),
    ],
)
def test_a_pull_is_small_unless_it_asks_for_bulk(wire: Wire, bulk: str, fields: dict[str, int], count: int) -> None:
    assert len(wire.messages(bulk, **fields)) == count


def test_a_bulk_pull_is_bounded_by_the_broker(wire: Wire, bulk: str) -> None:
    everything = {"maxMsgNums": 10**6, "maxMsgBytes": 2**31 - 1}
    with wire.settings(maxPullBytes=500_000, maxPullMsgNums=300):
        assert wire.pull(bulk, 0, **everything).ext_fields["nextBeginOffset"] == "300"
    with wire.settings(maxPullBytes=500_000):
        assert 400_000 < len(wire.pull(bulk, 0, **everything).body) <= 500_000


# --- long polling -----------------------------------------------------------------------------------------------


def test_a_held_pull_is_answered_when_its_message_comes(wire: Wire, topic: str, parts: BrokerParts) -> None:
    fill(wire, topic, 4)
    later = wire.hold(topic, 4, tags="t1")
    assert held_pulls(wire, parts, topic) == 1
    wire.send(topic, b"other queue", {"TAGS": "t1"}, queue_id=1)
    wire.send(topic, b"other tag", {"TAGS": "t0"})
    assert not later.done()
    wire.send(topic, b"this", {"TAGS": "t1"})
    answer = later.result(60)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert bodies_of(answer) == [b"this"]
    assert answer.ext_fields == offsets(6, 0, 6)
    assert held_pulls(wire, parts, topic) == 0


def test_a_pull_of_a_queue_that_never_had_a_message_is_held_too(wire: Wire, topic: str) -> None:
    later = wire.hold(topic, 0, queue_id=3)
    wire.send_batch(topic, [Message.of(topic, b"a"), Message.of(topic, b"b")], queue_id=3)
    assert bodies_of(later.result(60)) == [b"a", b"b"]


def test_a_held_pull_is_answered_at_its_timeout(wire: Wire, topic: str, parts: BrokerParts) -> None:
    fill(wire, topic, 4)
    answer = wire.pull(topic, 4, **{**HELD, "suspendTimeoutMillis": 200})
    assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")
    assert held_pulls(wire, parts, topic) == 0


def test_a_held_pull_at_its_timeout_gets_the_offset_after_other_tags(
    wire: Wire, topic: str, parts: BrokerParts
) -> None:
    later = wire.hold(topic, 0, tags="wanted")
    fill(wire, topic, 4)
    time_is_up(parts, topic)
    answer = later.result(60)
    assert (answer.code, answer.ext_fields) == (ResponseCode.PULL_RETRY_IMMEDIATELY, offsets(4, 0, 4))


def test_a_pull_past_the_end_is_never_held(wire: Wire, topic: str) -> None:
    fill(wire, topic, 4)
    assert wire.pull(topic, 5, **HELD).code == ResponseCode.PULL_OFFSET_MOVED


@pytest.mark.parametrize(
    "settings", [{"longPollingEnable": False, "shortPollingTimeMills": 50}, {"maxHeldPulls": 0}], ids=str
)
def test_pulls_are_held_briefly_or_not_at_all(wire: Wire, topic: str, settings: dict[str, object]) -> None:
    with wire.settings(**settings):
        assert wire.pull(topic, 0, **HELD).code == ResponseCode.PULL_NOT_FOUND


def test_a_held_pull_of_a_deleted_topic_is_answered(wire: Wire, topic: str) -> None:
    later = wire.hold(topic, 0)
    assert wire.delete_topic(topic).code == ResponseCode.SUCCESS
    assert later.result(60).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_pull_commits_the_offset_it_carries(wire: Wire, topic: str, group: str) -> None:
    fill(wire, topic, 4)
    wire.pull(topic, 0, consumerGroup=group, sysFlag=SUBSCRIPTION | 1, commitOffset=3)
    assert wire.committed(group, topic) == 3


def test_a_broker_that_serves_no_lite_pulls(wire: Wire, topic: str) -> None:
    fill(wire, topic, 4)
    fields = wire.pull_fields(topic, 0)
    with wire.settings(litePullMessageEnable=False):
        answer = wire.ask(RequestCode.LITE_PULL_MESSAGE, **fields)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert (answer.remark or "").endswith("for lite pull consumer is forbidden")
        assert len(wire.messages(topic)) == 4
    assert wire.ask(RequestCode.LITE_PULL_MESSAGE, **fields).code == ResponseCode.SUCCESS


# --- with a subscription from heartbeats ------------------------------------------------------------------------


def test_a_group_pulls_with_the_filter_of_its_heartbeats(wire: Wire, topic: str, group: str) -> None:
    fill(wire, topic, 10)
    wire.beat(subscribed(group, topic, "t1", 10))
    registered: dict[str, Any] = {"consumerGroup": group, "sysFlag": 0, "subscription": None}
    assert len(wire.messages(topic, **registered, subVersion=10)) == 5
    assert wire.pull(topic, 0, **registered, subVersion=11).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    wire.beat(subscribed(group, topic, "*", 11))
    assert len(wire.messages(topic, **registered, subVersion=11)) == 10
    wire.beat(subscribed(group, "Other", "*", 12))
    assert wire.pull(topic, 0, **registered).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


def test_a_group_without_broadcasting(wire: Wire, topic: str, group: str) -> None:
    wire.create_group(group, consumeBroadcastEnable=False)
    wire.beat(subscribed(group, topic, message_model="BROADCASTING"))
    assert wire.pull(topic, 0, consumerGroup=group, sysFlag=0).code == ResponseCode.NO_PERMISSION


def test_a_held_pull_that_fails_is_answered_and_the_others_too(
    wire: Wire, topic: str, parts: BrokerParts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = parts.store.get_message
    failures = [OSError(24, "Too many open files")]

    def fail_once(*arguments: Any) -> GetMessageResult:
        if failures:
            raise failures.pop()
        return read(*arguments)

    pulls = [wire.hold(topic, 0) for _ in range(3)]
    assert held_pulls(wire, parts, topic) == 3
    monkeypatch.setattr(parts.store, "get_message", fail_once)
    wire.send(topic)
    answers = [pull.result(10) for pull in pulls]
    assert sorted(answer.code for answer in answers) == [0, 0, ResponseCode.SYSTEM_ERROR]
    assert "Too many open files" in next(answer.remark or "" for answer in answers if answer.code)
    assert "failed" in caplog.text


def test_a_held_pull_releases_its_request(wire: Wire, topic: str, parts: BrokerParts) -> None:
    pull = wire.ask_later(RequestCode.PULL_MESSAGE, bytes(4_096), **wire.pull_fields(topic, 0, **HELD))
    assert held_pulls(wire, parts, topic) == 1
    (waiting,) = held_by(parts, topic)
    request = waiting.request
    assert (request.code, bytes(request.body)) == (RequestCode.PULL_MESSAGE, b"")
    wire.send(topic)
    assert pull.result(10).code == 0


@pytest.mark.parametrize("name", ["queueOffset", "commitOffset"])
@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 10**25])
def test_invalid_offsets(wire: Wire, topic: str, group: str, name: str, value: int) -> None:
    answer = wire.pull(topic, 0, consumerGroup=group, sysFlag=SUBSCRIPTION | 1, **{name: value})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "invalid number in the pull request")
    assert wire.committed(group, topic) == 0  # nothing was committed


@pytest.mark.parametrize("milliseconds", [10**9, 10**25])
def test_nothing_is_held_forever(wire: Wire, topic: str, parts: BrokerParts, milliseconds: int) -> None:
    pull = wire.hold(topic, 0, suspendTimeoutMillis=milliseconds)
    assert held_pulls(wire, parts, topic) == 1
    (waiting,) = held_by(parts, topic)
    assert waiting.timer is not None
    assert waiting.timer.when() - parts.loop.time() < 301
    wire.send(topic)
    assert pull.result(10).code == 0


def test_very_many_tags(wire: Wire, topic: str) -> None:
    answer = wire.pull(topic, 0, tags="||".join(f"t{number}" for number in range(20_000)))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "at most 65,536" in (answer.remark or "")
