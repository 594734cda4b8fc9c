"""What a consumer subscribes to: topics, and by which tags or SQL92 expression their messages are chosen.

Thread-safety: all methods. Corresponds to the subscriptionInner table of RebalanceImpl.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from spark_rocket.client.core.validators import check_topic
from spark_rocket.errors import ProtocolError, SubscriptionRefusedError
from spark_rocket.protocol.filter.sql92 import parse_sql92
from spark_rocket.protocol.filter.tags import SUB_ALL, TYPE_SQL92, TYPE_TAG, TagExpression, parse_tags
from spark_rocket.protocol.wire.bodies import SubscriptionData
from spark_rocket.protocol.wire.codes import ResponseCode


class Subscriptions:
    """One consumer's; see the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._data: dict[str, SubscriptionData] = {}
        self._tags: dict[str, TagExpression] = {}

    def add(
        self,
        topic: str,
        tags: str = SUB_ALL,
        sql: str | None = None,
        check: Callable[[SubscriptionData], None] | None = None,
    ) -> bool:
        """Subscribe, in place of what was subscribed to of the topic before; whether other messages are wanted now.

        SubscriptionRefusedError for an expression that does not parse. That, and what ``check`` raises, leaves all as
        it was.
        """
        check_topic(topic)
        if sql is not None:
            try:
                parse_sql92(sql)
            except ProtocolError as error:
                code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
                raise SubscriptionRefusedError(error.message, remedy=error.remedy, response_code=code) from None
        wanted = parse_tags(None if sql else tags)
        version = time.time_ns() // 1_000_000
        data = SubscriptionData.build(topic, sql or tags, version, TYPE_SQL92 if sql else TYPE_TAG)
        if check is not None:
            check(data)
        with self._lock:
            before = self._data.get(topic)
            self._data[topic] = data
            self._tags[topic] = wanted
        return before is not None and (before.expression_type, before.sub_string) != (
            data.expression_type,
            data.sub_string,
        )

    def remove(self, topic: str) -> bool:
        """Whether it was there."""
        with self._lock:
            self._tags.pop(topic, None)
            return self._data.pop(topic, None) is not None

    def __contains__(self, topic: object) -> bool:
        return topic in self._data

    def __bool__(self) -> bool:
        return bool(self._data)

    def topics(self) -> list[str]:
        with self._lock:
            return list(self._data)

    def data(self) -> list[SubscriptionData]:
        """As brokers are told."""
        with self._lock:
            return list(self._data.values())

    def expression_of(self, topic: str) -> tuple[str, str | None] | None:
        """The tags and the SQL92 expression that brokers choose its messages by; None if it is not subscribed to."""
        data = self._data.get(topic)
        if data is None:
            return None
        return (SUB_ALL, data.sub_string) if data.expression_type == TYPE_SQL92 else (data.sub_string, None)

    def tags_of(self, topic: str) -> TagExpression:
        """What the topic's messages are compared with again."""
        return self._tags.get(topic) or parse_tags(None)
