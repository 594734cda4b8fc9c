"""The state that peers may create in a server, how much of it, and when it is released.

Entries are counted by the connection that created them, by its client (all connections of one address together) and in
total. An entry whose strings have more than 1 KiB counts once more for each further KiB.

Apache's servers have no such bounds, except for held pops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PRODUCERS = "producers"
CONSUMERS = "consumers"
SUBSCRIPTIONS = "subscriptions"
QUEUE_LOCKS = "queue locks"
HELD_PULLS = "held pulls"
HELD_POPS = "held pops"
ACKS = "acks"
RELAYED_REQUESTS = "relayed requests"
LARGE_RESPONSES = "large responses"
CONSUMER_OFFSETS = "consumer offsets"
GROUP_TOPICS = "topics of groups"
GROUP_COUNTS = "counts of groups"
ORDERED_POPS = "ordered pops"
REQUEST_MODES = "request modes"
ASSIGNMENT_ROUTES = "routes for assignments"
CONSUMER_GROUPS = "consumer groups"
TOPICS = "topics"
USERS = "users"
POLICY_ENTRIES = "policy entries"
BROKERS = "brokers"
REGISTERED_TOPICS = "registered topics"
KV_ENTRIES = "KV entries"


@dataclass(frozen=True, slots=True)
class StateLimit:
    """The most entries of one kind of state; None where only the other bounds apply."""

    per_connection: int | None
    per_client: int | None
    total: int
    released: str
    """The events that release it, for documentation and errors."""
    setting: str = ""
    """A setting of the broker whose value replaces ``total``, which is its default."""


STATE_LIMITS: Mapping[str, StateLimit] = {
    # --- broker: clients
    PRODUCERS: StateLimit(
        10_000, 50_000, 100_000, "connection close; UNREGISTER_CLIENT; channelExpiredTimeout (120 s)"
    ),
    CONSUMERS: StateLimit(
        10_000, 50_000, 100_000, "connection close; UNREGISTER_CLIENT; channelExpiredTimeout (120 s)"
    ),
    SUBSCRIPTIONS: StateLimit(20_000, 100_000, 200_000, "with their consumer"),
    QUEUE_LOCKS: StateLimit(20_000, 100_000, 200_000, "rebalanceLockMaxLiveTime (60 s) after the last renewal"),
    HELD_PULLS: StateLimit(
        20_000, 50_000, 100_000, "connection close; the timeout of the request (at most 300 s)", "maxHeldPulls"
    ),
    HELD_POPS: StateLimit(
        20_000, 50_000, 100_000, "connection close; the timeout of the request (at most 300 s)", "maxPopPollingSize"
    ),
    RELAYED_REQUESTS: StateLimit(16_384, 32_768, 65_536, "the client's response; 10 s"),
    LARGE_RESPONSES: StateLimit(128, 512, 2_048, "when sent, one after another"),
    # --- broker: messages and groups
    ACKS: StateLimit(None, None, 200_000, "when written (200 ms); cached for the invisible time"),
    CONSUMER_OFFSETS: StateLimit(None, None, 1_000_000, "deletion of the topic or of the group with its offsets"),
    # Of pairs of a group and a topic: products of two numbers of names, each of which has a bound of its own.
    GROUP_TOPICS: StateLimit(None, None, 100_000, "deletion of the topic or of the group with its offsets"),
    GROUP_COUNTS: StateLimit(None, None, 10_000, "when full, those that were not changed for the longest time"),
    ORDERED_POPS: StateLimit(None, None, 10_000, "24 h after the pop; when full, if no message is invisible"),
    REQUEST_MODES: StateLimit(None, None, 10_000, "never: an administrator's setting"),
    ASSIGNMENT_ROUTES: StateLimit(None, None, 10_000, "all together when full"),
    CONSUMER_GROUPS: StateLimit(None, None, 20_000, "DELETE_SUBSCRIPTIONGROUP"),
    TOPICS: StateLimit(None, None, 50_000, "DELETE_TOPIC_IN_BROKER"),
    USERS: StateLimit(None, None, 5_000, "AUTH_DELETE_USER"),
    POLICY_ENTRIES: StateLimit(None, None, 20_000, "AUTH_DELETE_ACL; AUTH_DELETE_USER"),
    # --- name server
    BROKERS: StateLimit(128, None, 4_096, "connection close; UNREGISTER_BROKER; 120 s without a registration"),
    REGISTERED_TOPICS: StateLimit(None, None, 1_000_000, "with their broker; DELETE_TOPIC_IN_NAMESRV"),
    KV_ENTRIES: StateLimit(None, None, 16_384, "DELETE_KV_CONFIG"),
}
