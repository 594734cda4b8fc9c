"""The subscriptions of one consumer: its topics and their filters, by tags or SQL92.

Thread-safety: all methods, without locks: each step is one operation of a dictionary. The event loop reads the
subscriptions for heartbeats, and must not wait for a thread that a signal handler has interrupted here.
Corresponds to subscriptionInner of RebalanceImpl.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from spark_rocket.client.core.validators import check_topic
from spark_rocket.common.arguments import check_filter
from spark_rocket.common.system import now_ms
from spark_rocket.errors import ProtocolError, SubscriptionRefusedError
from spark_rocket.protocol.filter.sql92 import parse_sql92
from spark_rocket.protocol.filter.tags import SUB_ALL, TYPE_SQL92, TYPE_TAG, TagExpression, parse_tags
from spark_rocket.protocol.wire.bodies.client import SubscriptionData
from spark_rocket.protocol.wire.codes import ResponseCode


class Filter(NamedTuple):
    """The filter of the pulls of a topic: by tags, or by an SQL92 expression."""

    tags: str = SUB_ALL
    sql: str | None = None


class Subscription(NamedTuple):
    data: SubscriptionData
    """As sent to brokers."""
    pulled: Filter
    tags: TagExpression
    """The client-side filter."""


class Subscriptions:
    def __init__(self) -> None:
        self._by_topic: dict[str, Subscription] = {}

    def add(
        self,
        topic: str,
        tags: str = SUB_ALL,
        sql: str | None = None,
        check: Callable[[SubscriptionData], None] | None = None,
    ) -> bool:
        """Subscribe, replacing an earlier subscription to the topic; return whether the filter changed.

        SubscriptionRefusedError for an invalid expression. That error, and one of ``check``, leaves the subscriptions
        unchanged.
        """
        check_topic(topic)
        check_filter(tags, sql)
        if sql is not None:
            try:
                parse_sql92(sql)
            except ProtocolError as error:
                code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
                raise SubscriptionRefusedError(error.message, remedy=error.remedy, response_code=code) from None
        wanted = parse_tags(None if sql else tags)
        version = now_ms()
        data = SubscriptionData.build(topic, sql or tags, version, TYPE_SQL92 if sql else TYPE_TAG)
        if check is not None:
            check(data)
        before = self._by_topic.get(topic)
        pulled = Filter(sql=data.sub_string) if sql else Filter(data.sub_string)
        self._by_topic[topic] = Subscription(data, pulled, wanted)
        return before is not None and before.pulled != pulled

    def remove(self, topic: str) -> bool:
        """Unsubscribe; return whether the topic was subscribed."""
        return self._by_topic.pop(topic, None) is not None

    def __contains__(self, topic: object) -> bool:
        return topic in self._by_topic

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def topics(self) -> list[str]:
        return list(self._by_topic)

    def data(self) -> list[SubscriptionData]:
        """Return the subscriptions as sent to brokers."""
        return [subscription.data for subscription in list(self._by_topic.values())]

    def filter_of(self, topic: str) -> Filter | None:
        """Return the filter for pulls of a topic; None if it is not subscribed."""
        found = self._by_topic.get(topic)
        return None if found is None else found.pulled

    def tags_of(self, topic: str) -> TagExpression:
        """Return the client-side tag filter of a topic."""
        found = self._by_topic.get(topic)
        return parse_tags(None) if found is None else found.tags
