"""Notifications (200054), the number of held pops (200055), and peeks (200052)."""

from __future__ import annotations

from typing import Any

import pytest

from spark_rocket.protocol.wire.codes import SEE_FAQ, RequestCode, ResponseCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from tests.broker.popping import NONE, SOME, Popper, now
from tests.broker.wire import Wire, messages_of
from tests.kit.waiting import until

pytestmark = pytest.mark.live


@pytest.fixture
def popper(wire: Wire, group: str, topic: str) -> Popper:
    return Popper(wire, group, topic)


# --- notifications ------------------------------------------------------------------------------------------------


def test_existing_messages_are_announced_at_once(popper: Popper) -> None:
    assert popper.notification() == NONE
    popper.send(b"x", queue_id=2)
    for fields in ({}, {}, {"queueId": 2}):
        answer = popper.notification_later(**fields).result(30)
        assert (answer.code, answer.ext_fields) == (0, SOME)
    assert popper.notification(queueId=1) == NONE
    assert popper.take_bodies() == [b"x"]
    assert popper.notification() == NONE


def test_later_messages_are_announced(popper: Popper) -> None:
    waiting = [popper.notification_later(), popper.notification_later()]
    of_queue_1 = popper.notification_later(queueId=1)
    assert popper.polling_num() == "0"  # of pops; and all the above wait now
    assert not any(each.done() for each in waiting)
    popper.send(b"x", queue_id=3)
    assert waiting[0].result(30).ext_fields == SOME
    assert not waiting[1].done()
    popper.send(b"x", queue_id=1)
    assert waiting[1].result(30).ext_fields == of_queue_1.result(30).ext_fields == SOME


def test_no_notification_at_the_timeout(popper: Popper) -> None:
    assert popper.notification(pollTime=100) == NONE
    assert popper.notification(pollTime=60_000, bornTime=now() - 60_000) == NONE


def test_only_requested_tags_are_announced(popper: Popper) -> None:
    popper.send(b"x", properties={"TAGS": "A"})
    assert popper.notification(expType="TAG", exp="B") == NONE
    assert popper.notification(expType="TAG", exp="A || B") == SOME
    waiting = popper.notification_later(expType="TAG", exp="B")
    popper.send(b"x", properties={"TAGS": "A"})
    assert popper.polling_num() == "0"
    assert not waiting.done()
    popper.send(b"x", properties={"TAGS": "B"})
    assert waiting.result(30).ext_fields == SOME


def test_redelivered_messages_are_announced_and_shown(popper: Popper) -> None:
    popper.send(b"once")
    assert popper.take_bodies(invisibleTime=1_000) == [b"once"]
    assert popper.notification_later().result(30).ext_fields == SOME
    (message,) = messages_of(popper.peek())
    assert (message.body, message.reconsume_times) == (b"once", 1)
    assert popper.take_bodies() == [b"once"]


def test_too_many_waiters_get_an_error(popper: Popper) -> None:
    with popper.wire.settings(popPollingSize=1):
        told, pop = popper.notification_later(), popper.pop_later()
        assert popper.notification(pollTime=60_000) == {"hasMsg": "false", "pollingFull": "true"}
        assert popper.pop_later().result(30).code == ResponseCode.POLLING_FULL
    popper.send(b"x")
    assert (told.result(30).ext_fields, pop.result(30).code) == (SOME, 0)


def test_a_deleted_topic_ends_held_pops(popper: Popper, cluster: Any) -> None:
    waiting, pop = popper.notification_later(), popper.pop_later()
    assert popper.polling_num() == "1"
    cluster.delete_topic(popper.topic)
    assert waiting.result(30).code == pop.result(30).code == ResponseCode.TOPIC_NOT_EXIST


# --- waiting pops -------------------------------------------------------------------------------------------------


def test_a_waiting_pop_is_answered_by_a_message(popper: Popper) -> None:
    first, second = popper.pop_later(), popper.pop_later()
    of_queue_1 = popper.pop_later(queueId=1)
    assert (popper.polling_num(), popper.polling_num(1), popper.polling_num(2)) == ("2", "1", "0")
    popper.send(b"one", queue_id=3)
    (message,) = messages_of(first.result(30))
    assert message.body == b"one"
    assert (popper.polling_num(), second.done()) == ("1", False)
    popper.send(b"two", queue_id=0)
    assert second.result(30).code == 0
    popper.send(b"three", queue_id=1)
    assert of_queue_1.result(30).code == 0
    assert popper.polling_num() == "0"


def test_a_waiting_pop_ends_with_210(popper: Popper) -> None:
    answer = popper.pop_later(pollTime=100).result(30)
    assert (answer.code, answer.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")


def test_a_held_pop_skips_filtered_messages(popper: Popper) -> None:
    waiting = popper.pop_later(expType="SQL92", exp="n > 5")
    assert popper.polling_num() == "1"
    for number in (1, 2, 7):
        popper.send(b"%d" % number, properties={"n": str(number)}, queue_id=1)
    (message,) = messages_of(waiting.result(30))
    assert message.body == b"7"


def test_the_pops_of_a_closed_connection_take_nothing(popper: Popper) -> None:
    with RemotingClient() as client:
        other = Popper(Wire(client, popper.wire.address), popper.group, popper.topic)
        assert other.polling_num() == "0"  # connected: what is asked from now on arrives in that order
        other.pop_later()
        assert other.polling_num() == "1"
    until(lambda: popper.polling_num() == "0")
    waiting = popper.pop_later()
    popper.send(b"mine")
    assert waiting.result(30).code == 0


# --- peeking ------------------------------------------------------------------------------------------------------


def test_a_peek_takes_nothing(popper: Popper) -> None:
    answer = popper.peek()
    assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
    for number in range(3):
        popper.send(b"%d" % number, queue_id=number)
    for _ in range(2):
        answer = popper.peek()
        assert (answer.code, answer.remark, answer.ext_fields["restNum"]) == (0, "FOUND", "0")
        assert sorted(message.body for message in messages_of(answer)) == [b"0", b"1", b"2"]
    answer = popper.peek(maxMsgNums=2)
    assert (len(messages_of(answer)), answer.ext_fields["restNum"]) == (2, "1")
    (message,) = messages_of(popper.peek(queueId=1))
    assert message.body == b"1"
    assert popper.peek(maxMsgNums=0).ext_fields["restNum"] == "3"


# --- refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [RequestCode.NOTIFICATION, RequestCode.POLLING_INFO, RequestCode.PEEK_MESSAGE])
def test_invalid_entries_are_named(popper: Popper, code: RequestCode) -> None:
    fields: dict[str, object] = {"consumerGroup": popper.group, "topic": popper.topic, "queueId": 0}
    fields |= {"maxMsgNums": 1, "pollTime": 0, "bornTime": 0}

    def refused(**wrong: object) -> tuple[int, str]:
        answer = popper.wire.ask(code, **{**fields, **wrong})
        return answer.code, answer.remark or ""

    assert refused(topic="Nowhere") == (17, f"topic[Nowhere] not exist, apply first please! {SEE_FAQ}")
    bad_queue = ResponseCode.INVALID_PARAMETER if code == RequestCode.PEEK_MESSAGE else ResponseCode.SYSTEM_ERROR
    assert refused(queueId=4)[0] == bad_queue
    assert "queueId[4] is illegal" in refused(queueId=4)[1]
    assert refused(consumerGroup="no group!")[0] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert refused(queueId="x")[0] == ResponseCode.SYSTEM_ERROR
    with popper.wire.settings(brokerPermission=2):
        assert refused()[0] == ResponseCode.NO_PERMISSION
