"""POP over the wire: codes 200050, 200051, 200151, 200053 and their answers."""

from __future__ import annotations

import base64

import pytest

from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.json import dumps_fastjson
from tests.broker.popping import INVISIBLE, Popper, now
from tests.broker.wire import Wire, bodies_of

pytestmark = pytest.mark.live


@pytest.fixture
def popper(wire: Wire, group: str, topic: str) -> Popper:
    return Popper(wire, group, topic)


def test_a_pop_delivers_each_message_once(popper: Popper) -> None:
    popper.send(b"0", b"1", b"2", queue_id=1)
    answer = popper.pop(maxMsgNums=2)
    assert (answer.code, bodies_of(answer)) == (ResponseCode.SUCCESS, [b"0", b"1"])
    ext = answer.ext_fields
    assert (ext["startOffsetInfo"], ext["msgOffsetInfo"], ext["restNum"]) == ("0 1 0", "0 1 0,1", "1")
    assert ext["invisibleTime"] == str(INVISIBLE)
    assert 0 <= int(ext["reviveQid"]) < 8
    assert popper.take_bodies() == [b"2"]
    answer = popper.pop()
    assert (answer.code, answer.ext_fields["restNum"]) == (ResponseCode.POLLING_TIMEOUT, "0")


def test_filtered_messages_are_skipped_by_pops(popper: Popper) -> None:
    for number in range(6):
        popper.send(b"%d" % number, properties={"TAGS": "ab"[number % 2], "n": str(number)})
    answer = popper.pop(exp="b", expType="TAG", maxMsgNums=2)
    assert bodies_of(answer) == [b"1", b"3"]
    assert (answer.ext_fields["startOffsetInfo"], answer.ext_fields["msgOffsetInfo"]) == ("0 0 0", "0 0 1,3")
    # This needs no enablePropertyFilter; 4 was passed.
    assert popper.take_bodies(exp="n > 3", expType="SQL92") == [b"5"]
    popper.send(b"6", properties={"TAGS": "a"})
    assert popper.take(exp="c") == []
    assert popper.take() == []
    assert popper.pop(exp="n >", expType="SQL92").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_the_next_pop_continues_behind(popper: Popper, wire: Wire) -> None:
    every = [b"%d" % number for number in range(40)]
    popper.send(*every)
    other = Popper(wire, popper.group, popper.topic)
    taken = [each.take_bodies(maxMsgNums=16) for each in (popper, other, popper, other)]
    assert [len(bodies) for bodies in taken] == [16, 16, 8, 0]
    assert {body for bodies in taken for body in bodies} == set(every)
    assert len(Popper(wire, popper.group + "-other", popper.topic).take()) == 32


def test_one_queue_or_all(popper: Popper) -> None:
    for queue_id in range(4):
        popper.send(b"%d" % queue_id, queue_id=queue_id)
    assert popper.take_bodies(queueId=2) == [b"2"]
    assert set(popper.take_bodies()) == {b"0", b"1", b"3"}
    assert popper.pop(queueId=4).code == ResponseCode.INVALID_PARAMETER


def test_where_a_new_group_begins_and_continues_after_a_reset(popper: Popper, wire: Wire) -> None:
    popper.send(b"0", b"1", b"2")
    # From the end means the beginning, too, while the whole topic is in memory; as Apache's broker has it.
    assert popper.take_bodies(initMode=1) == [b"0", b"1", b"2"]
    assert wire.committed(popper.group, popper.topic) == 3
    assert wire.reset(popper.group, popper.topic, timestamp=0, queueId=0, offset=1).code == ResponseCode.SUCCESS
    assert popper.take_bodies() == [b"1", b"2"]


def test_a_reset_reaches_held_pops(popper: Popper, wire: Wire) -> None:
    popper.send(b"a")
    popper.ack_all(popper.take())
    later = popper.pop_later()
    assert popper.polling_num() == "1"
    wire.reset(popper.group, popper.topic, timestamp=0)
    assert bodies_of(later.result(30)) == [b"a"]


def test_acks_are_accepted_once_twice_and_in_batches(popper: Popper, wire: Wire) -> None:
    popper.send(*[b"x"] * 12)
    message, receipt = popper.take()[0]
    for _ in range(2):
        assert popper.ack(message, receipt).code == ResponseCode.SUCCESS
    assert popper.ack(message, receipt + " 4711").code == ResponseCode.SUCCESS  # as the proxy makes them longer
    start, pop_time, invisible, revive = map(int, receipt.split(" ")[:4])
    entry = {"c": popper.group, "t": popper.topic, "r": "0", "so": start, "q": 0, "rq": revive}
    for bits in (base64.b64encode(b"\xfe\x0f").decode(), [-2, 15], "", []):
        known = {**entry, "pt": pop_time, "it": invisible, "b": bits}
        body = dumps_fastjson({"brokerName": "broker-a", "acks": [known, {**known, "t": "NoSuchTopic"}]})
        assert wire.ask(RequestCode.BATCH_ACK_MESSAGE, body).code == ResponseCode.SUCCESS
    for body in (b'{"acks":[]}', b""):
        assert wire.ask(RequestCode.BATCH_ACK_MESSAGE, body).code == ResponseCode.NO_MESSAGE


def test_a_change_gives_a_new_receipt_and_ends_the_old_one(popper: Popper) -> None:
    popper.send(b"a")
    ((message, receipt),) = popper.take()
    answer = popper.change(message, receipt, 30_000)
    assert (answer.code, answer.ext_fields["invisibleTime"]) == (ResponseCode.SUCCESS, "30000")
    old = receipt.split(" ")
    new = f"0 {answer.ext_fields['popTime']} 30000 {answer.ext_fields['reviveQid']} 0 broker-a 0 0"
    assert int(answer.ext_fields["popTime"]) > int(old[1])
    assert answer.ext_fields["reviveQid"] == old[3]
    again = popper.change(message, receipt, 30_000)
    assert again.code == ResponseCode.NO_MESSAGE
    assert "its receipt was replaced" in str(again.remark)
    assert popper.ack(message, new).code == ResponseCode.SUCCESS
    assert popper.change(message, new, 30_000).code == ResponseCode.NO_MESSAGE


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 259_200_001}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 2**63}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "one"}, ResponseCode.SYSTEM_ERROR),
        ({"exp": "a", "expType": "XPATH"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"topic": "NoSuchTopic"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "no group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"bornTime": 1}, ResponseCode.POLLING_TIMEOUT),
        ({}, ResponseCode.POLLING_TIMEOUT),
    ],
)
def test_pops_without_messages(popper: Popper, fields: dict[str, object], code: int) -> None:
    assert popper.pop(**fields).code == code


@pytest.mark.parametrize(
    ("receipt", "code"),
    [
        ("", 29),
        ("0 1 2 3", 29),
        ("a b c d e f g h", 29),
        ("0 {now} 60000 0 7 broker-a 0 0", 29),  # a flag that there is not
        ("0 {now} 60000 8 0 broker-a 0 0", 29),  # a revive queue that there is not
        ("0 {now} 60000 0 0 another 0 0", 29),
        ("0 99999999999999 60000 0 0 broker-a 0 0", 29),  # of a time to come
        ("0 {now} 999999999999 0 0 broker-a 0 0", 29),
        ("1 {now} 60000 0 0 broker-a 0 0", 29),  # the offset is before it
        ("-1 {now} 60000 0 0 broker-a 0 0", 29),
        ("0 {now} 60000 0 0 broker-a 0 0", 0),  # never delivered to any client
        ("0 1 60000 0 0 broker-a 0 0", 0),  # over long ago
        ("0 {now} 60000 999 0 broker-a 0 0", 13),  # the forged receipt claims an ordered pop
    ],
)
def test_forged_receipts_do_no_harm(popper: Popper, receipt: str, code: int) -> None:
    popper.send(b"a")
    ((message, good),) = popper.take()
    popper.send(b"b")
    text = receipt.replace("{now}", str(now()))
    if code != 13:
        assert popper.ack(message, text).code == code
    if "99999999" in receipt or not code:
        assert popper.change(message, text, 1_000).code in (0, 29, 208)
    assert popper.ack(message, good).code == ResponseCode.SUCCESS
    assert popper.take_bodies() == [b"b"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"offset": 2}, ResponseCode.NO_MESSAGE),
        ({"offset": -1}, ResponseCode.NO_MESSAGE),
        ({"queueId": 4}, ResponseCode.MESSAGE_ILLEGAL),
        ({"queueId": -1}, ResponseCode.MESSAGE_ILLEGAL),
        ({"topic": "NoSuchTopic"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"offset": "x"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_acks_of_missing_messages(popper: Popper, fields: dict[str, object], code: int) -> None:
    popper.send(b"a")
    ((message, receipt),) = popper.take()
    assert popper.ack(message, receipt, **fields).code == code


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", 1),
        (b'{"acks":[{"c":1,"b":"%%%"}]}', 0),
        (b'{"acks":[{"c":"g","t":"TOPIC","so":-1,"b":""}]}', 29),
        (b'{"acks":[{"c":"g","t":"TOPIC","b":"%%%"}]}', 29),
        (b'{"acks":[{"c":"g","t":"TOPIC","b":{"a":1}}]}', 29),
        (b'{"acks":[{"c":"g","t":"TOPIC","b":[1000]}]}', 29),
        (b'{"acks":[{"c":"g","t":"TOPIC","q":-1,"b":[1]}]}', 0),
        (b'{"acks":[{"c":"g","t":"TOPIC","rq":77,"b":[1]}]}', 29),
        (b'{"acks":[{"c":"g","t":"TOPIC","so":"x"}]}', 1),
    ],
)
def test_bad_batches_of_acks(popper: Popper, body: bytes, code: int) -> None:
    popper.send(b"a")
    assert popper.wire.ask(RequestCode.BATCH_ACK_MESSAGE, body.replace(b"TOPIC", popper.topic.encode())).code == code


@pytest.mark.parametrize("revive_queue", [0, 999], ids=["usual", "in order"])
def test_acks_of_more_messages_than_a_pop_has(popper: Popper, revive_queue: int) -> None:
    popper.send(*[b"a"] * 33)
    ack = {"c": popper.group, "t": popper.topic, "so": 0, "q": 0, "rq": revive_queue, "pt": 1, "it": 1_000}
    for last, code in ((0, 0), (1, ResponseCode.INVALID_PARAMETER)):
        body = dumps_fastjson({"acks": [{**ack, "b": [-1, -1, -1, -1, last]}]})
        assert popper.wire.ask(RequestCode.BATCH_ACK_MESSAGE, body).code == code


def test_topics_without_read_permission(popper: Popper) -> None:
    with popper.wire.settings(brokerPermission=2):
        assert popper.pop().code == ResponseCode.NO_PERMISSION
