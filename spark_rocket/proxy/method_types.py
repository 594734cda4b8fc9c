"""The row of a method: everything that the proxy, access control, tests and pages know about it.

* What a request may cost: its bytes, its fields and the entries of its collections. They are checked before a method
  runs: bytes when the request is read (transport/calls.py), fields before it is parsed, entries after (messaging.py).
* The state that it may leave behind, and where that is limited.
* The permissions that it needs (acl/), for both kinds of access control, as for Remoting requests
  (``protocol.requests.needs``).

A method without a row is not served.

=================================================  ==================================================================
SendMessage, EndTransaction, RecallMessage         Topic: Pub
ReceiveMessage, PullMessage, QueryAssignment       Topic: Sub, and Group: Sub
acks, invisible time, dead letters, subscriptions  the same
Heartbeat, NotifyClientTermination                 Group: Sub, if there is a group
Telemetry's settings                               Topic: Pub of what is published; Group: Sub and Topic: Sub
QueryRoute                                         Topic: Pub or Sub
GetOffset, UpdateOffset, QueryOffset               as the Remoting requests 14, 15 and 30
=================================================  ==================================================================

Apache's proxy checks the topic of the first message of SendMessage only, and only the group of
ChangeInvisibleDuration. It refuses the end of a producer, which has no group.

Corresponds to the limits in org.apache.rocketmq.proxy.config.ProxyConfig, and to DefaultAuthorizationContextBuilder for
gRPC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from spark_rocket.protocol.requests.needs import Action, Need, Pair, group, topic
from spark_rocket.proxy.definitions import Code
from spark_rocket.proxy.messages.names import group_of, topic_of
from spark_rocket.proxy.messages.statuses import StatusError
from spark_rocket.proxy.transport.limits import MAX_FIELDS

KIB = 1024
MIB = 1024 * 1024

# State and its limits. All of it is released when its client ends its stream, or after 120 s without a heartbeat.
CLIENTS = "clients: MAX_CLIENTS, MAX_ALL_SETTINGS_BYTES (methods/client_registry.py)"
STREAMS = "Telemetry streams: one for each client; max_streams of a connection (transport/limits.py)"
COMMANDS = "commands to a client: MAX_WAITING (methods/grpc_client.py)"
RECEIPTS = "receipts that are renewed: MAX_RENEWED (methods/renewals.py)"
HELD_CALLS = "held receives and pulls: max_calls, and the client's deadline (transport/limits.py)"
CACHED = "cached routes and settings: MAX_ENTRIES (client/core/cache.py)"


@dataclass(frozen=True, slots=True)
class EntryLimit:
    """The most entries of a collection, and the code of the error for more."""

    most: int
    code: int = Code.BAD_REQUEST


@dataclass(frozen=True, slots=True)
class MethodType:
    """A method with its bounds, state and needs."""

    needs: tuple[Need, ...]
    """The permissions that it needs, all of them."""
    max_bytes: int = 256 * KIB
    max_fields: int = 1_024
    """Fields of a request, at all levels together."""
    max_entries: Mapping[str, EntryLimit] = field(default_factory=dict)
    """By the dotted path of a repeated field."""
    state: tuple[str, ...] = ()

    def check(self, request: Any) -> None:
        """Raise StatusError if a collection of a parsed request has too many entries."""
        for path, entries in self.max_entries.items():
            value = request
            for name in path.split("."):
                value = getattr(value, name)
            if len(value) > entries.most:
                raise StatusError(
                    entries.code, f"{len(value)} entries of {path} in one request, at most {entries.most} are allowed"
                )

    def pairs(self, request: Any) -> list[Pair]:
        """Return what this request needs; all pairs must be allowed. StatusError for an invalid name."""
        return [pair for need in self.needs for pair in need.pairs(request)]


# --- where a request names a resource ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResourceNames:
    """The names of the resources at a dotted path, each once. ``if_given``: a missing resource is not an error."""

    path: str
    name_of: Callable[[Any], str]
    if_given: bool = False

    def __call__(self, request: Any) -> Iterator[str]:
        values = [request]
        for name in self.path.split("."):
            values = [found for value in values for found in self._field(value, name)]
        return iter(dict.fromkeys(self.name_of(value) for value in values if value.name or not self.if_given))

    def _field(self, value: Any, name: str) -> list[Any]:
        found = getattr(value, name)
        if not isinstance(found, Message):
            return list(found)
        return [found] if value.HasField(name) or not self.if_given else []


def _topic(*actions: Action, at: str = "topic") -> Need:
    return topic(*actions, where=ResourceNames(at, topic_of))


def _group(*actions: Action, at: str = "group", if_given: bool = False) -> Need:
    return group(*actions, where=ResourceNames(at, group_of, if_given))


_QUEUE_TOPIC = "message_queue.topic"
_SEND = (_topic(Action.PUB),)
_READ = (_topic(Action.SUB), _group(Action.SUB))
_READ_QUEUE = (_topic(Action.SUB, at=_QUEUE_TOPIC), _group(Action.SUB))
_OF_GROUP = (_group(Action.SUB, if_given=True),)


# --- the table --------------------------------------------------------------------------------------------------------


MAX_MESSAGES = 1_024
"""The limit of one SendMessage, because others wait meanwhile. RocketMQ's clients send one message in a request."""
MAX_ACKS = 1_024
"""The limit of one AckMessage, and the most that the Java client sends."""
MAX_TOPICS = 2_000
"""The limit of a client's topics or subscriptions."""
MAX_ADDRESSES = 64
"""The limit of a client's endpoints, which a route repeats for every queue."""
MAX_TYPES = 64
"""The limit of a queue's message types, of which the protocol has seven."""

_ENDPOINTS = {"endpoints.addresses": EntryLimit(MAX_ADDRESSES, Code.ILLEGAL_ACCESS_POINT)}
# Enumerations are packed: all entries are one field.
_QUEUE = {"message_queue.accept_message_types": EntryLimit(MAX_TYPES)}

METHODS: Mapping[str, MethodType] = {
    "QueryRoute": MethodType((_topic(Action.PUB, Action.SUB),), max_entries=_ENDPOINTS, state=(CACHED,)),
    "QueryAssignment": MethodType(_READ, max_entries=_ENDPOINTS, state=(CACHED,)),
    "Heartbeat": MethodType(_OF_GROUP, state=(CLIENTS,)),
    # Commands without settings respond to requests of the proxy, and need nothing.
    "Telemetry": MethodType(
        (
            _topic(Action.PUB, at="settings.publishing.topics"),
            _topic(Action.SUB, at="settings.subscription.subscriptions.topic"),
            _group(Action.SUB, at="settings.subscription.group", if_given=True),
        ),
        4 * MIB + 64 * KIB,  # the settings have a limit of their own, with a better error
        MAX_FIELDS,
        {
            "settings.publishing.topics": EntryLimit(MAX_TOPICS),
            "settings.subscription.subscriptions": EntryLimit(MAX_TOPICS),
            "settings.backoff_policy.customized_backoff.next": EntryLimit(1_024),
            "settings.access_point.addresses": EntryLimit(MAX_ADDRESSES),
            "settings.metric.endpoints.addresses": EntryLimit(MAX_ADDRESSES),
        },
        (CLIENTS, STREAMS, COMMANDS),
    ),
    "NotifyClientTermination": MethodType(_OF_GROUP),
    # The bytes depend on maxMessageSize (transport/limits.py).
    "SendMessage": MethodType(
        (_topic(Action.PUB, at="messages.topic"),),
        0,
        MAX_FIELDS,
        {"messages": EntryLimit(MAX_MESSAGES, Code.MESSAGE_CORRUPTED)},
        (CACHED, CLIENTS),
    ),
    "ReceiveMessage": MethodType(_READ_QUEUE, max_entries=_QUEUE, state=(HELD_CALLS, RECEIPTS)),
    "PullMessage": MethodType(_READ_QUEUE, max_entries=_QUEUE, state=(HELD_CALLS,)),
    "AckMessage": MethodType(_READ, 4 * MIB, 10 * MAX_ACKS, {"entries": EntryLimit(MAX_ACKS)}),
    "ChangeInvisibleDuration": MethodType(_READ, state=(RECEIPTS,)),
    "ForwardMessageToDeadLetterQueue": MethodType(_READ),
    "EndTransaction": MethodType(_SEND),
    "RecallMessage": MethodType(_SEND),
    "UpdateOffset": MethodType(
        (_topic(Action.SUB, Action.UPDATE, at=_QUEUE_TOPIC), _group(Action.SUB, Action.UPDATE)), max_entries=_QUEUE
    ),
    "GetOffset": MethodType(
        (_topic(Action.SUB, Action.GET, at=_QUEUE_TOPIC), _group(Action.SUB, Action.GET)), max_entries=_QUEUE
    ),
    "QueryOffset": MethodType((_topic(Action.GET, at=_QUEUE_TOPIC),), max_entries=_QUEUE),
    "SyncLiteSubscription": MethodType(_READ, max_entries={"lite_topic_set": EntryLimit(1_000)}),
}
"""The row of every method of the messaging service."""
