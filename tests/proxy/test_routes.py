"""QueryRoute and QueryAssignment: queues, permissions, types, namespaces, and invalid names."""

from __future__ import annotations

from typing import Any

import pytest

from spark_rocket.proxy import definitions
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.proxy.brokers import change_topic
from tests.proxy.caller import Caller, resource

pytestmark = pytest.mark.live

Code, Permission, Type = definitions.Code, definitions.Permission, definitions.MessageType
ALL = [Type.NORMAL, Type.FIFO, Type.DELAY, Type.TRANSACTION]


def endpoints(host: str = "called.example", port: int = 18081, scheme: int = 3) -> Any:
    found = definitions.Endpoints(scheme=scheme)
    found.addresses.add(host=host, port=port)
    return found


def test_a_route_has_the_host_that_the_client_called(client: Caller, topic: str) -> None:
    answer = client.call("QueryRoute", topic=resource(topic), endpoints=endpoints())
    assert answer.status.code == Code.OK
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2, 3]
    for queue in answer.message_queues:
        assert queue.topic == resource(topic)
        assert queue.permission == Permission.READ_WRITE
        assert (queue.broker.name, queue.broker.id) == ("broker-a", 0)
        assert queue.broker.endpoints == endpoints()
        assert queue.accept_message_types == ALL


def test_a_client_that_does_not_send_the_called_host(cluster: LocalCluster, client: Caller, topic: str) -> None:
    answer = client.call("QueryRoute", topic=resource(topic))
    (address,) = answer.message_queues[0].broker.endpoints.addresses
    assert f"{address.host}:{address.port}" == cluster.grpc_endpoint
    assert answer.message_queues[0].broker.endpoints.scheme == definitions.AddressScheme.IPv4


@pytest.mark.parametrize("method", ["QueryRoute", "QueryAssignment"])
def test_a_client_gets_all_endpoints(
    cluster: LocalCluster, client: Caller, topic: str, group: str, method: str
) -> None:
    """RocketMQ's clients take ``host:port;host:port``; each endpoint serves all brokers."""
    more = {"group": resource(group)} if method == "QueryAssignment" else {}
    several = endpoints(port=18081)
    several.addresses.add(host="other.example", port=18082)
    answer = client.call(method, topic=resource(topic), endpoints=several, **more)
    queue = answer.assignments[0].message_queue if more else answer.message_queues[0]
    assert queue.broker.endpoints == several


@pytest.mark.parametrize(
    ("reads", "writes", "perm", "expected"),
    [
        (2, 2, 6, ["READ_WRITE"] * 2),
        (3, 1, 6, ["READ_WRITE", "READ", "READ"]),
        (1, 2, 6, ["READ_WRITE", "WRITE"]),
        (2, 2, 4, ["READ"] * 2),
        (2, 2, 2, ["WRITE"] * 2),
        (2, 2, 0, ["NONE"] * 2),
        (0, 0, 6, ["NONE"]),
    ],
)
def test_permissions_of_the_queues(
    client: Caller, wire: Wire, topic: str, reads: int, writes: int, perm: int, expected: list[str]
) -> None:
    change_topic(wire, topic, reads=reads, writes=writes, perm=perm)
    answer = client.call("QueryRoute", topic=resource(topic), endpoints=endpoints())
    assert [Permission.Name(queue.permission) for queue in answer.message_queues] == expected
    assert [queue.id for queue in answer.message_queues] == list(range(len(expected)))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (None, ALL),
        ("UNSPECIFIED", ALL),
        ("MIXED", ALL),
        ("NORMAL", [Type.NORMAL]),
        ("FIFO", [Type.FIFO]),
        ("DELAY", [Type.DELAY]),
        ("TRANSACTION", [Type.TRANSACTION]),
    ],
)
def test_accepted_message_types(client: Caller, wire: Wire, topic: str, kind: str | None, expected: list[int]) -> None:
    change_topic(wire, topic, f"+message.type={kind}" if kind else "", reads=1, writes=1)
    (queue,) = client.call("QueryRoute", topic=resource(topic)).message_queues
    assert queue.accept_message_types == expected


def test_a_topic_of_a_namespace(cluster: LocalCluster, client: Caller, topic: str) -> None:
    cluster.create_topic(f"shop%{topic}", 1)
    for named in (resource(topic, "shop"), resource(f"shop%{topic}", "shop"), resource(f"shop%{topic}")):
        (queue,) = client.call("QueryRoute", topic=named).message_queues
        assert queue.topic == named
    assert client.call("QueryRoute", topic=resource(topic, "other")).status.code == Code.TOPIC_NOT_FOUND


@pytest.mark.parametrize("method", ["QueryRoute", "QueryAssignment"])
@pytest.mark.parametrize(
    ("name", "code", "remark"),
    [
        ("nowhere", Code.TOPIC_NOT_FOUND, "create it first"),
        ("", Code.ILLEGAL_TOPIC, "blank"),
        ("no name", Code.ILLEGAL_TOPIC, "illegal characters"),
        ("x" * 128, Code.ILLEGAL_TOPIC, "longer than"),
        ("SCHEDULE_TOPIC_XXXX", Code.ILLEGAL_TOPIC, "system topic"),
        ("rmq_sys_anything", Code.ILLEGAL_TOPIC, "system topic"),
    ],
)
def test_unusable_topics(client: Caller, method: str, name: str, code: int, remark: str) -> None:
    more = {"group": resource("readers")} if method == "QueryAssignment" else {}
    answer = client.call(method, topic=resource(name), **more)
    assert (answer.status.code, remark in answer.status.message) == (code, True), answer


def test_impossible_called_hosts(client: Caller, topic: str) -> None:
    for host, port in (("", 8081), ("host", 0), ("host", 70_000), ("host", -1)):
        answer = client.call("QueryRoute", topic=resource(topic), endpoints=endpoints(host, port))
        assert answer.status.code == Code.ILLEGAL_ACCESS_POINT


def test_a_topic_with_too_many_queues_for_a_response(client: Caller, wire: Wire, topic: str) -> None:
    change_topic(wire, topic, reads=16_385, writes=4)
    answer = client.call("QueryRoute", topic=resource(topic), endpoints=endpoints())
    assert (answer.status.code, "has 16,385 queues" in answer.status.message) == (Code.FORBIDDEN, True)
    change_topic(wire, f"{topic}-many", reads=16_384, writes=4)
    answer = client.call("QueryRoute", topic=resource(f"{topic}-many"), endpoints=endpoints())
    assert (answer.status.code, len(answer.message_queues)) == (Code.OK, 16_384)
    several = endpoints("h" * 255)
    several.addresses.add(host="i" * 255, port=18082)
    several.addresses.add(host="j" * 255, port=18082)
    answer = client.call("QueryRoute", topic=resource(f"{topic}-many"), endpoints=several)
    assert answer.status.code == Code.ILLEGAL_ACCESS_POINT


@pytest.mark.parametrize("method", ["QueryRoute", "QueryAssignment"])
def test_the_response_for_every_queue_is_bounded(client: Caller, topic: str, method: str) -> None:
    called = endpoints()
    more = {"group": resource("readers")} if method == "QueryAssignment" else {}
    for _ in range(64):
        called.addresses.add(host="a", port=1)
    answer = client.call(method, topic=resource(topic), endpoints=called, **more)
    assert answer.status.code == Code.ILLEGAL_ACCESS_POINT
    answer = client.call(method, topic=resource(topic), endpoints=endpoints("h" * 256), **more)
    assert answer.status.code == Code.ILLEGAL_ACCESS_POINT
    unknown = b"\xfa\x7f" + b"\x80\x10" + b"x" * 2048  # field 2047, which is unknown
    named, called = resource(topic), endpoints()
    named.MergeFromString(unknown)
    called.MergeFromString(unknown)
    answer = client.call(method, topic=named, endpoints=called, **more)
    assert answer.status.code == Code.OK
    assert answer.ByteSize() < 2048


def test_an_assignment_is_the_whole_topic(client: Caller, topic: str, group: str) -> None:
    answer = client.call("QueryAssignment", topic=resource(topic), group=resource(group), endpoints=endpoints())
    assert answer.status.code == Code.OK
    (assignment,) = answer.assignments
    assert assignment.message_queue.id == -1
    assert assignment.message_queue.permission == Permission.READ_WRITE
    assert assignment.message_queue.broker.endpoints == endpoints()


def test_an_ordered_group_is_assigned_each_queue(client: Caller, wire: Wire, topic: str, group: str) -> None:
    settings = b'{"groupName":"%s","consumeMessageOrderly":true}' % group.encode()
    assert wire.ask(200, settings).code == 0
    answer = client.call("QueryAssignment", topic=resource(topic), group=resource(group))
    assert [assignment.message_queue.id for assignment in answer.assignments] == [0, 1, 2, 3]


def test_groups_and_topics_without_an_assignment(client: Caller, wire: Wire, topic: str, group: str) -> None:
    answer = client.call("QueryAssignment", topic=resource(topic), group=resource("no name"))
    assert answer.status.code == Code.ILLEGAL_CONSUMER_GROUP
    answer = client.call("QueryAssignment", topic=resource(topic), group=resource("CID_RMQ_SYS_x"))
    assert answer.status.code == Code.ILLEGAL_CONSUMER_GROUP
    change_topic(wire, topic, perm=2)
    answer = client.call("QueryAssignment", topic=resource(topic), group=resource(group))
    assert answer.status.code == Code.FORBIDDEN
    assert "no readable queue" in answer.status.message
