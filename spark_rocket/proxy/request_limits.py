"""What a request of each method may cost: its bytes, its fields and the entries of its collections, in one table.

They are checked before a method runs: bytes when the request is read (transport/calls.py), fields before it is parsed,
entries after (messaging.py). A method without an entry is not served. The table also names the state that a method may
leave behind, and where that is limited.

Thread-safety: immutable values. Corresponds to the limits in org.apache.rocketmq.proxy.config.ProxyConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_rocket.proxy.definitions import Code
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
class MethodLimit:
    """The bounds of a method."""

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

METHOD_LIMITS: Mapping[str, MethodLimit] = {
    "QueryRoute": MethodLimit(max_entries=_ENDPOINTS, state=(CACHED,)),
    "QueryAssignment": MethodLimit(max_entries=_ENDPOINTS, state=(CACHED,)),
    "Heartbeat": MethodLimit(state=(CLIENTS,)),
    "Telemetry": MethodLimit(
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
    "NotifyClientTermination": MethodLimit(),
    # The bytes depend on maxMessageSize (transport/limits.py).
    "SendMessage": MethodLimit(
        0, MAX_FIELDS, {"messages": EntryLimit(MAX_MESSAGES, Code.MESSAGE_CORRUPTED)}, (CACHED, CLIENTS)
    ),
    "ReceiveMessage": MethodLimit(max_entries=_QUEUE, state=(HELD_CALLS, RECEIPTS)),
    "PullMessage": MethodLimit(max_entries=_QUEUE, state=(HELD_CALLS,)),
    "AckMessage": MethodLimit(4 * MIB, 10 * MAX_ACKS, {"entries": EntryLimit(MAX_ACKS)}),
    "ChangeInvisibleDuration": MethodLimit(state=(RECEIPTS,)),
    "ForwardMessageToDeadLetterQueue": MethodLimit(),
    "EndTransaction": MethodLimit(),
    "RecallMessage": MethodLimit(),
    "UpdateOffset": MethodLimit(max_entries=_QUEUE),
    "GetOffset": MethodLimit(max_entries=_QUEUE),
    "QueryOffset": MethodLimit(max_entries=_QUEUE),
    "SyncLiteSubscription": MethodLimit(max_entries={"lite_topic_set": EntryLimit(1_000)}),
}
"""The bounds of every method of the messaging service."""
