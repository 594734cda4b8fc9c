"""The route of a topic (QueryRoute) and the assignments of a push consumer (QueryAssignment).

A route contains the queues of all brokers of the topic with a master. Each queue has its broker's name and the
endpoints that the client reports to have called: so routes are valid behind a port mapping too, and each of several
endpoints serves all brokers.

A client chooses a broker to receive from, not a queue: the proxy receives from all queues of that broker. Clients that
know only queue 0 of each broker (Node.js) receive all messages.

=====================================  ===============================================================================
topic's attribute ``message.type``     accepted message types
=====================================  ===============================================================================
missing, UNSPECIFIED, MIXED            NORMAL, FIFO, DELAY, TRANSACTION; Apache's proxy treats missing as NORMAL
NORMAL, FIFO, DELAY, TRANSACTION       only this type
=====================================  ===============================================================================

Corresponds to org.apache.rocketmq.proxy.grpc.v2.route.RouteActivity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from spark_rocket.protocol.wire.bodies.route import QueueData
from spark_rocket.protocol.wire.codes import PERM_READ, PERM_WRITE
from spark_rocket.proxy import definitions
from spark_rocket.proxy.cluster.proxy_cluster import ProxyCluster, Topic
from spark_rocket.proxy.messages.names import group_of, topic_of
from spark_rocket.proxy.messages.statuses import StatusError, status
from spark_rocket.proxy.messaging import Family
from spark_rocket.proxy.transport.proxy_context import ProxyContext

_Code = definitions.Code
_Type = definitions.MessageType
_Permission = definitions.Permission

_MIXED: tuple[int, ...] = (_Type.NORMAL, _Type.FIFO, _Type.DELAY, _Type.TRANSACTION)
_ACCEPTED: dict[str, tuple[int, ...]] = {
    "UNSPECIFIED": _MIXED,
    "MIXED": _MIXED,
    "NORMAL": (_Type.NORMAL,),
    "FIFO": (_Type.FIFO,),
    "DELAY": (_Type.DELAY,),
    "TRANSACTION": (_Type.TRANSACTION,),
}
_UNKNOWN: tuple[int, ...] = (_Type.MESSAGE_TYPE_UNSPECIFIED,)
_PERMISSIONS: dict[int, int] = {
    PERM_READ | PERM_WRITE: _Permission.READ_WRITE,
    PERM_READ: _Permission.READ,
    PERM_WRITE: _Permission.WRITE,
    0: _Permission.NONE,
}
ALL_QUEUES = -1
MAX_LISTED_QUEUES = 16_384  # of one response
_MAX_LISTED_BYTES = 8 << 20
MAX_HOST_CHARACTERS = 255


def accepted_types(topic: Topic) -> tuple[int, ...]:
    """Return the ``MessageType`` values that a topic accepts."""
    return _ACCEPTED.get(topic.attributes.get("message.type", "UNSPECIFIED"), _UNKNOWN)


async def existing_topic(cluster: ProxyCluster, name: str) -> Topic:
    """Return a topic. StatusError with TOPIC_NOT_FOUND and a remedy if it does not exist."""
    topic = await cluster.topics.get(name)
    if topic is None:
        raise StatusError(
            _Code.TOPIC_NOT_FOUND,
            f"topic {name} does not exist, and gRPC clients cannot create topics: create it first, for "
            f"example with: rocket topic create {name}",
        )
    return topic


class RouteFamily(Family):
    """QueryRoute and QueryAssignment. ``listening`` returns this endpoint's address."""

    def __init__(self, cluster: ProxyCluster, listening: Callable[[], tuple[str, int]]) -> None:
        self._cluster = cluster
        self._listening = listening

    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {"QueryRoute": self.query_route, "QueryAssignment": self.query_assignment}

    async def query_route(self, context: ProxyContext, request: Any) -> Any:
        topic = await existing_topic(self._cluster, topic_of(request.topic))
        response = definitions.QueryRouteResponse(status=status(_Code.OK))
        endpoints = self._endpoints_called(request.endpoints)
        accepted = accepted_types(topic)
        named = _named_as(request.topic)
        _check_listed(topic, topic.brokers, endpoints)
        for queues in topic.brokers:
            broker = _broker(queues.broker_name, endpoints)
            for queue_id, permission in enumerate(_queue_permissions(queues)):
                response.message_queues.add(
                    topic=named, id=queue_id, permission=permission, broker=broker, accept_message_types=accepted
                )
        return response

    async def query_assignment(self, context: ProxyContext, request: Any) -> Any:
        """Assign all brokers to each client: POP distributes messages, not queues. Ordered groups get single queues."""
        name, group = topic_of(request.topic), group_of(request.group)
        topic = await existing_topic(self._cluster, name)
        if not topic.readable:
            perms = ", ".join(str(queues.perm) for queues in topic.brokers)
            raise StatusError(_Code.FORBIDDEN, f"topic {name} has no readable queue: its perm is {perms}")
        settings = await self._cluster.groups.get(group)
        fifo = settings is not None and settings.consume_message_orderly
        response = definitions.QueryAssignmentResponse(status=status(_Code.OK))
        endpoints = self._endpoints_called(request.endpoints)
        named = _named_as(request.topic)
        readable = [queues for queues in topic.brokers if queues.broker_name in topic.readable]
        if fifo:
            _check_listed(topic, readable, endpoints)
        for queues in readable:
            broker = _broker(queues.broker_name, endpoints)
            for queue_id in range(queues.read_queue_nums) if fifo else (ALL_QUEUES,):
                response.assignments.add().message_queue.MergeFrom(
                    definitions.MessageQueue(
                        topic=named,
                        id=queue_id,
                        permission=_PERMISSIONS[queues.perm & (PERM_READ | PERM_WRITE)],
                        broker=broker,
                    )
                )
        return response

    def _endpoints_called(self, endpoints: Any) -> Any:
        if not endpoints.addresses:
            host, port = self._listening()
            called = definitions.Endpoints(scheme=_scheme(host))
            called.addresses.add(host=host, port=port)
            return called
        called = definitions.Endpoints(scheme=endpoints.scheme)
        for address in endpoints.addresses:
            if not 0 < len(address.host) <= MAX_HOST_CHARACTERS or not 0 < address.port <= 65_535:
                raise StatusError(
                    _Code.ILLEGAL_ACCESS_POINT,
                    f"invalid endpoint {address.host[:100]}:{address.port}: use the host and port that clients call",
                )
            called.addresses.add(host=address.host, port=address.port)
        return called


def _check_listed(topic: Topic, brokers: Iterable[QueueData], endpoints: Any) -> None:
    """StatusError for a response that is too large; the endpoints are repeated for every queue."""
    count = sum(max(queues.read_queue_nums, queues.write_queue_nums, 1) for queues in brokers)
    if count > MAX_LISTED_QUEUES:
        raise StatusError(
            _Code.FORBIDDEN,
            f"topic {topic.name} has {count:,} queues, and a response to a gRPC client lists at most "
            f"{MAX_LISTED_QUEUES:,}: use a topic with fewer queues",
        )
    if count * endpoints.ByteSize() > _MAX_LISTED_BYTES:
        raise StatusError(
            _Code.ILLEGAL_ACCESS_POINT,
            f"the request's endpoints have {endpoints.ByteSize():,} bytes, which is too much for each of "
            f"the {count:,} queues of topic {topic.name}: connect to fewer endpoints",
        )


def _broker(name: str, endpoints: Any) -> Any:
    return definitions.Broker(name=name, id=0, endpoints=endpoints)


def _named_as(resource: Any) -> Any:
    """Copy only the name of a request's resource, because it is repeated for every queue."""
    return definitions.Resource(name=resource.name, resource_namespace=resource.resource_namespace)


def _queue_permissions(queues: QueueData) -> Iterator[int]:
    """Yield the permission of each queue from 0; a topic without queues has one without permission."""
    for queue_id in range(max(queues.read_queue_nums, queues.write_queue_nums, 1)):
        readable = PERM_READ if queue_id < queues.read_queue_nums else 0
        writable = PERM_WRITE if queue_id < queues.write_queue_nums else 0
        yield _PERMISSIONS[queues.perm & (readable | writable)]


def _scheme(host: str) -> int:
    scheme: int = definitions.AddressScheme.IPv6 if ":" in host else definitions.AddressScheme.IPv4
    return scheme
