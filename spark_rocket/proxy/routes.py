"""Where a topic is (QueryRoute), and what of it a push consumer is to receive from (QueryAssignment).

The one broker of a route is this one, and its endpoints are those that the client called, as it says: so routes are
right behind a port mapping too. A client that has several endpoints calls them in turn, though they may be other
brokers', which know nothing of what is received here: of those only the one with this port is told, if one has it.

What a client learns of queues is their number and what may be done with them: the broker chooses the queue of a
message by itself, and whoever receives gets messages of all of them. Clients that know only queue 0 of each broker
(Node.js) lack nothing.

=====================================  ===============================================================================
topic's attribute ``message.type``     what may be sent to it
=====================================  ===============================================================================
none, UNSPECIFIED, MIXED               NORMAL, FIFO, DELAY, TRANSACTION; Apache's proxy takes none for NORMAL
NORMAL, FIFO, DELAY, TRANSACTION       that
=====================================  ===============================================================================

Thread-safety: used on the event loop only. Corresponds to org.apache.rocketmq.proxy.grpc.v2.route.RouteActivity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from spark_rocket.protocol.bodies import TopicConfig
from spark_rocket.protocol.codes import PERM_READ, PERM_WRITE
from spark_rocket.proxy import definitions
from spark_rocket.proxy.context import Context
from spark_rocket.proxy.local_broker import LocalBroker
from spark_rocket.proxy.messaging import Family
from spark_rocket.proxy.names import group_of, topic_of
from spark_rocket.proxy.statuses import StatusError, status

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
MAX_ADDRESSES = 64
MAX_HOST = 255


def accepted_types(config: TopicConfig) -> tuple[int, ...]:
    """The ``MessageType`` values that may be sent to a topic."""
    return _ACCEPTED.get(config.attributes.get("message.type", "UNSPECIFIED"), _UNKNOWN)


def existing_topic(broker: LocalBroker, name: str) -> TopicConfig:
    """The topic's settings. StatusError with TOPIC_NOT_FOUND, and what to do, when there is none."""
    config = broker.service.topics.get(name)
    if config is None:
        raise StatusError(
            _Code.TOPIC_NOT_FOUND,
            f"topic {name} does not exist, and RocketMQ's gRPC endpoint never creates one: create it first, for "
            f"example with: rocket topic create {name}",
        )
    return config


class RouteFamily(Family):
    """QueryRoute and QueryAssignment. ``listening`` gives this endpoint's own address."""

    def __init__(self, broker: LocalBroker, listening: Callable[[], tuple[str, int]]) -> None:
        self._broker = broker
        self._listening = listening

    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {"QueryRoute": self.query_route, "QueryAssignment": self.query_assignment}

    async def query_route(self, context: Context, request: Any) -> Any:
        config = existing_topic(self._broker, topic_of(request.topic))
        answer = definitions.QueryRouteResponse(status=status(_Code.OK))
        broker = self._broker_called(request.endpoints)
        accepted = accepted_types(config)
        topic = _named_as(request.topic)
        for queue_id, permission in enumerate(_queue_permissions(config)):
            answer.message_queues.add(
                topic=topic,
                id=queue_id,
                permission=permission,
                broker=broker,
                accept_message_types=accepted,
            )
        return answer

    async def query_assignment(self, context: Context, request: Any) -> Any:
        """Everything to everyone: POP shares out messages, not queues. An ordered group's queues are told apart."""
        name, group = topic_of(request.topic), group_of(request.group)
        config = existing_topic(self._broker, name)
        if not config.perm & PERM_READ or config.read_queue_nums < 1:
            raise StatusError(_Code.FORBIDDEN, f"topic {name} has no queue to read from: its perm is {config.perm}")
        settings = self._broker.service.groups.get(group)
        fifo = settings is not None and settings.consume_message_orderly
        answer = definitions.QueryAssignmentResponse(status=status(_Code.OK))
        broker = self._broker_called(request.endpoints)
        topic = _named_as(request.topic)
        for queue_id in range(config.read_queue_nums) if fifo else (ALL_QUEUES,):
            answer.assignments.add().message_queue.MergeFrom(
                definitions.MessageQueue(
                    topic=topic,
                    id=queue_id,
                    permission=_PERMISSIONS[config.perm & (PERM_READ | PERM_WRITE)],
                    broker=broker,
                )
            )
        return answer

    def _broker_called(self, endpoints: Any) -> Any:
        broker = definitions.Broker(name=self._broker.service.config.broker_name, id=0)
        if not endpoints.addresses:
            host, port = self._listening()
            broker.endpoints.scheme = _scheme(host)
            broker.endpoints.addresses.add(host=host, port=port)
            return broker
        if len(endpoints.addresses) > MAX_ADDRESSES:  # they come back with every queue
            raise StatusError(
                _Code.ILLEGAL_ACCESS_POINT,
                f"{len(endpoints.addresses)} endpoints in one request, at most {MAX_ADDRESSES} are taken",
            )
        for address in endpoints.addresses:
            if not 0 < len(address.host) <= MAX_HOST or not 0 < address.port <= 65_535:
                raise StatusError(
                    _Code.ILLEGAL_ACCESS_POINT,
                    f"the endpoint {address.host[:100]}:{address.port} is none: give the host and port that clients "
                    "call",
                )
        port = self._listening()[1]
        own = [address for address in endpoints.addresses if address.port == port]
        for address in own if len(own) == 1 else endpoints.addresses:
            broker.endpoints.addresses.add(host=address.host, port=address.port)
        broker.endpoints.scheme = endpoints.scheme
        return broker


def _named_as(resource: Any) -> Any:
    """What a request names, and nothing else of it: it comes back with every queue."""
    return definitions.Resource(name=resource.name, resource_namespace=resource.resource_namespace)


def _queue_permissions(config: TopicConfig) -> Iterator[int]:
    """What may be done with each queue, from 0 on; a topic without queues has one that nothing may be done with."""
    perm = config.perm
    for queue_id in range(max(config.read_queue_nums, config.write_queue_nums, 1)):
        readable = PERM_READ if queue_id < config.read_queue_nums else 0
        writable = PERM_WRITE if queue_id < config.write_queue_nums else 0
        yield _PERMISSIONS[perm & (readable | writable)]


def _scheme(host: str) -> int:
    scheme: int = definitions.AddressScheme.IPv6 if ":" in host else definitions.AddressScheme.IPv4
    return scheme
