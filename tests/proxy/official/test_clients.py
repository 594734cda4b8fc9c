"""RocketMQ's own Python and Node.js clients against this broker: every kind of message, both kinds of consumers."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from spark_rocket.client import Producer, Reader
from spark_rocket.model import Message
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.testing import LocalCluster
from tests.broker.wire import SUBSCRIPTION, SUSPEND, Wire
from tests.proxy.brokers import change_topic
from tests.proxy.official.clients import Official, OfficialClientError

ALL = ["*", "TAG"]


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["body"] for message in messages]


@pytest.fixture
def producer(official: Official, topic: str) -> str:
    official.do("producer", f"producer-{topic}", topics=[topic])
    return f"producer-{topic}"


@pytest.fixture
def consumer(official: Official, topic: str, group: str) -> str:
    official.do("simple", f"consumer-{topic}", group=group, topics={topic: ALL})
    return f"consumer-{topic}"


def send(official: Official, producer: str, topic: str, body: str, **more: object) -> dict[str, Any]:
    transaction = more.pop("transaction", None)
    message = {"topic": topic, "body": body, **more}
    receipt: dict[str, Any] = official.do("send", producer, message=message, transaction=transaction)
    return receipt


def set_orderly(wire: Wire, group: str) -> None:
    body = json.dumps({"groupName": group, "consumeMessageOrderly": True}).encode()
    assert wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code == 0


def test_a_message_is_sent_and_received(official: Official, producer: str, consumer: str, topic: str) -> None:
    begun = int(time.time()) * 1000
    given = {"tag": "t", "keys": ["k1", "k2"], "properties": {"a": "1", "ä": "ö"}}
    receipt = send(official, producer, topic, "tea ☕", **given)
    (found,) = official.receive(consumer, 1)
    assert found["messageId"] == receipt["messageId"]
    assert {name: found[name] for name in given} == given
    assert (found["body"], found["attempt"], found["corrupted"], found["group"]) == ("tea ☕", 1, False, None)
    assert begun <= found["bornTimestamp"] <= time.time() * 1000
    assert found["bornHost"]
    for name in (producer, consumer):
        official.do("stop", name)


def test_unacknowledged_messages_are_redelivered(official: Official, producer: str, consumer: str, topic: str) -> None:
    for body in ("kept", "given back"):
        send(official, producer, topic, body)
    first = {message["body"]: message for message in official.receive(consumer, 2, ack=False)}
    official.do("change", consumer, message=first["given back"]["messageId"], invisible=1)
    official.do("ack", consumer, message=first["kept"]["messageId"])
    (again,) = official.receive(consumer, 1)
    assert (again["body"], again["attempt"]) == ("given back", 2)
    assert again["messageId"] == first["given back"]["messageId"]
    with pytest.raises(OfficialClientError):
        official.do("change", consumer, message=first["kept"]["messageId"], invisible=1000_000)


def test_a_delayed_message_and_one_that_is_recalled(
    official: Official, producer: str, consumer: str, topic: str
) -> None:
    recalled = send(official, producer, topic, "recalled", deliverAt=int(time.time() * 1000) + 60_000)
    due = int(time.time() * 1000) + 1_500
    late = send(official, producer, topic, "late", deliverAt=due)
    assert official.do("recall", producer, topic=topic, handle=recalled["recallHandle"]) == recalled["messageId"]
    (found,) = official.receive(consumer, 1)
    assert time.time() * 1000 >= due
    assert (found["body"], found["messageId"]) == ("late", late["messageId"])
    with pytest.raises(OfficialClientError):
        official.do("recall", producer, topic=topic, handle="invalid")


def test_transactions(official: Official, producer: str, consumer: str, topic: str) -> None:
    """Decided by the producer, and by its response to a check."""
    for body, transaction in (("a", "commit"), ("b", "rollback"), ("commit later", "leave"), ("forget", "leave")):
        assert send(official, producer, topic, body, transaction=transaction)["transactionId"]
    asked: set[tuple[str, str]] = set()
    while len(asked) < 2:  # it may ask again before an answer has come
        event = official.event(producer)
        asked.add((event["event"], event["message"]["body"]))
    assert asked == {("check", "commit later"), ("check", "forget")}
    assert sorted(bodies(official.receive(consumer, 2))) == ["a", "commit later"]


@pytest.mark.parametrize(("expression", "wanted"), [(["red || blue", "TAG"], "024"), (["n > 2", "SQL"], "345")])
def test_filters(official: Official, producer: str, topic: str, group: str, expression: list[str], wanted: str) -> None:
    official.do("simple", f"filter-{topic}", group=group, topics={topic: expression})
    for number in range(6):
        tag = ["red", "green", "blue", "green", "red", "green"][number]
        send(official, producer, topic, str(number), tag=tag, properties={"n": str(number)})
    assert sorted(bodies(official.receive(f"filter-{topic}", 3))) == list(wanted)


def test_a_push_consumer(official: Official, producer: str, topic: str, group: str) -> None:
    """Failed messages are redelivered."""
    name = f"push-{topic}"
    official.do("push", name, group=group, topics={topic: ALL}, failures={"2": 1})
    for number in range(4):
        send(official, producer, topic, str(number))
    events = [official.event(name) for _ in range(5)]
    assert sorted(event["message"]["body"] for event in events if event["event"] == "success") == list("0123")
    again = [(event["event"], event["message"]["attempt"]) for event in events if event["message"]["body"] == "2"]
    assert again == [("fail", 1), ("success", 2)]


def test_groups_keep_their_order(official: Official, producer: str, topic: str, group: str, wire: Wire) -> None:
    """The messages of one group in order although one fails; other groups do not wait.

    Node.js's client knows no back-off by a list, which is what proxies tell consumers, and gives a failed message up.
    """
    change_topic(wire, topic, "+message.type=FIFO")
    set_orderly(wire, group)
    name = f"push-{topic}"
    for number in range(4):
        for key in ("x", "y"):
            send(official, producer, topic, f"{key}{number}", group=key)
    official.do("push", name, group=group, topics={topic: ALL}, failures={"x1": 1})
    again = ["x1"] if official.kind == "python" else []
    events = [official.event(name) for _ in range(8 + len(again))]
    for key, wanted in (("x", ["x0", "x1", *again, "x2", "x3"]), ("y", ["y0", "y1", "y2", "y3"])):
        messages = [event["message"] for event in events if event["message"]["group"] == key]
        assert bodies(messages) == wanted
    assert [event["message"]["body"] for event in events if event["event"] == "fail"] == ["x1"]
    if not again:
        given_up = wire.pull_later(f"%DLQ%{group}", 0, sysFlag=SUBSCRIPTION | SUSPEND, suspendTimeoutMillis=25_000)
        assert [message.body for message in decode_messages(bytes(given_up.result(30).body))] == [b"x1"]


def test_what_is_refused(official: Official, producer: str, topic: str, shared: LocalCluster) -> None:
    with pytest.raises(OfficialClientError, match=r"(?i)topic"):
        send(official, producer, "no-such-topic", "lost")
    orderly = shared.create_topic(f"{topic}-fifo", message_type="FIFO")
    official.do("producer", f"orderly-{topic}", topics=[orderly])
    with pytest.raises(OfficialClientError, match=r"(?i)type"):
        send(official, f"orderly-{topic}", orderly, "of no group")


def test_messages_to_and_from_classic_clients(
    official: Official, producer: str, consumer: str, topic: str, shared: LocalCluster
) -> None:
    """To the classic protocol and from it: the same ids, keys, tags, properties and times."""
    given = {"tag": "t", "keys": ["k1", "k2"], "properties": {"a": "1"}}
    receipt = send(official, producer, topic, "from 5", **given)
    ordered = [send(official, producer, topic, f"x{number}", group="x") for number in range(3)]
    with Reader(shared.name_server) as reader:
        found = [message for queue in reader.queues(topic) for message in reader.messages(queue, 0)]
        (one,) = (message for message in found if message.body == b"from 5")
        assert (one.msg_id, one.tags) == (receipt["messageId"], "t")
        assert sorted((one.keys or "").split()) == given["keys"]  # the Python client has a set of them
        assert one.properties["a"] == "1"
        of_group = [message for message in found if message.properties.get("__SHARDINGKEY") == "x"]
        assert [message.body for message in of_group] == [b"x0", b"x1", b"x2"]
        assert [message.msg_id for message in of_group] == [receipt["messageId"] for receipt in ordered]
        assert len({message.queue_id for message in of_group}) == 1
    mine = {message["body"]: message for message in official.receive(consumer, 4)}
    assert mine["from 5"]["bornTimestamp"] == one.born_timestamp
    with Producer("classic", name_server=shared.name_server) as classic:
        sent = classic.send(Message.of(topic, "from 4", tags="t", keys=["k1", "k2"], properties={"a": "1"}))
    (theirs,) = official.receive(consumer, 1)
    assert theirs["messageId"] == sent.msg_id
    assert (theirs["body"], {name: theirs[name] for name in given}) == ("from 4", given)
    with Reader(shared.name_server) as reader:
        (stored,) = (m for queue in reader.queues(topic) for m in reader.messages(queue, 0) if m.body == b"from 4")
    assert theirs["bornTimestamp"] == stored.born_timestamp
