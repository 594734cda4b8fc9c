"""Heartbeats of clients, members of groups, and checks of filters.

Corresponds to remoting.protocol.heartbeat and the client side of remoting.protocol.body.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.protocol.filter.tags import TYPE_TAG, parse_tags
from spark_rocket.protocol.wire.bodies.base import Body

CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
CONSUME_POP = "CONSUME_POP"
CLUSTERING = "CLUSTERING"
BROADCASTING = "BROADCASTING"
CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(slots=True, eq=False, repr=False)
class SubscriptionData(Body):
    """A consumer's subscription to a topic. A larger ``sub_version`` (ms) replaces a stored one."""

    topic: str = ""
    sub_string: str = "*"
    tags_set: list[str] = field(default_factory=list)
    code_set: list[int] = field(default_factory=list)
    sub_version: int = 0
    expression_type: str = TYPE_TAG
    class_filter_mode: bool = False
    filter_class_source: str | None = None

    @classmethod
    def build(
        cls, topic: str, expression: str | None, version: int, expression_type: str = TYPE_TAG
    ) -> SubscriptionData:
        """Build from the user's expression: tags and their hashes for TAG, the expression alone for SQL92."""
        if expression_type != TYPE_TAG:
            return cls(topic, expression or "", sub_version=version, expression_type=expression_type)
        tags = parse_tags(expression)
        text = "*" if tags.matches_all else expression or "*"
        return cls(topic, text, sorted(tags.tags), sorted(tags.codes), version)


@dataclass(slots=True, eq=False, repr=False)
class ProducerData(Body):
    """A producer group of a client."""

    group_name: str = ""


@dataclass(slots=True, eq=False, repr=False)
class ConsumerData(Body):
    """A consumer group of a client, and its subscriptions."""

    group_name: str = ""
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


@dataclass(slots=True, eq=False, repr=False)
class HeartbeatData(Body):
    """Body of HEART_BEAT."""

    client_id: str = field(default="", metadata={"wire": "clientID"})
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


@dataclass(slots=True, eq=False, repr=False)
class GetConsumerListByGroupResponseBody(Body):
    """Response to GET_CONSUMER_LIST_BY_GROUP: client ids."""

    consumer_id_list: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class CheckClientRequestBody(Body):
    """Body of CHECK_CLIENT_CONFIG: whether the broker supports a filter."""

    client_id: str = ""
    group: str = ""
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None
