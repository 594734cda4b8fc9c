"""A client with a namespace: names with ``resource_namespace`` in every call and answer, full names at the broker."""

from __future__ import annotations

from typing import Any

import pytest

from spark_rocket.client import Reader
from spark_rocket.model import MessageQueue
from spark_rocket.proxy import definitions
from spark_rocket.proxy.definitions import Code
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.proxy.caller import Caller, Telemetry, consumer_settings, producer_settings, resource
from tests.proxy.outgoing import message, sent
from tests.proxy.test_telemetry import members

pytestmark = pytest.mark.live


def opened(client: Caller, topic: Any, group: Any) -> Telemetry:
    """The stream of a simple consumer."""
    settings = consumer_settings("", "", kind="SIMPLE_CONSUMER")
    settings.subscription.group.CopyFrom(group)
    settings.subscription.subscriptions[0].topic.CopyFrom(topic)
    return client.telemetry().say_settings(settings)


def received(client: Caller, topic: Any, group: Any) -> Any:
    request = definitions.ReceiveMessageRequest(group=group, message_queue={"topic": topic}, batch_size=32)
    request.long_polling_timeout.FromMilliseconds(20_000)
    request.invisible_duration.seconds = 60
    return [each.message for each in client.stream("ReceiveMessage", request) if each.HasField("message")]


@pytest.mark.parametrize("is_full", [False, True], ids=["short", "full"])
def test_a_message_from_send_to_dead_letter(
    is_full: bool, cluster: LocalCluster, client: Caller, wire: Wire, topic: str, group: str
) -> None:
    """Beside a topic and a group of the same names without the namespace."""
    prefix = "shop%" if is_full else ""
    named, its_group = resource(prefix + topic, "shop"), resource(prefix + group, "shop")
    short = resource(topic, "shop")
    cluster.create_topic(topic, 1)
    cluster.create_topic(f"shop%{topic}", 1)
    publishing = producer_settings("")
    publishing.publishing.topics[0].CopyFrom(named)
    with client.telemetry().say_settings(publishing), opened(client, named, its_group):
        assert members(wire, f"shop%{group}") == [client.client_id]
        for method, fields in (("QueryRoute", {}), ("QueryAssignment", {"group": its_group})):
            answer = client.call(method, topic=named, **fields)
            assert answer.status.code == Code.OK, answer
            queues = (
                answer.message_queues if method == "QueryRoute" else [each.message_queue for each in answer.assignments]
            )
            assert {queue.topic.resource_namespace for queue in queues} == {"shop"}
        for body in (b"kept", b"done"):
            outgoing = message(topic, body)
            outgoing.topic.CopyFrom(named)
            sent(client, outgoing)
        got: list[Any] = []
        while len(got) < 2:
            got += received(client, named, its_group)
        assert [one.topic for one in got] == [short, short]
        handles = {bytes(one.body): one.system_properties for one in got}
        kept, done = handles[b"kept"], handles[b"done"]
        changed = client.call(
            "ChangeInvisibleDuration", group=its_group, topic=named, receipt_handle=kept.receipt_handle,
            message_id=kept.message_id, invisible_duration={"seconds": 90},
        )  # fmt: skip
        assert changed.status.code == Code.OK, changed
        entries = [{"message_id": done.message_id, "receipt_handle": done.receipt_handle}]
        acked = client.call("AckMessage", group=its_group, topic=named, entries=entries)
        assert acked.status.code == Code.OK, acked
        dead = client.call(
            "ForwardMessageToDeadLetterQueue", group=its_group, topic=named, receipt_handle=changed.receipt_handle,
            message_id=kept.message_id, delivery_attempt=1, max_delivery_attempts=1,
        )  # fmt: skip
        assert dead.status.code == Code.OK, dead
    with Reader(cluster.name_server, namespace="") as plain:
        assert plain.max_offset(MessageQueue(topic, "broker-a", 0)) == 0
        assert plain.max_offset(MessageQueue(f"shop%{topic}", "broker-a", 0)) == 2
        (letters,) = plain.queues(f"%DLQ%shop%{group}")
        (letter,) = plain.messages(letters, 0, max_msgs=2)
        assert letter.body == b"kept"
