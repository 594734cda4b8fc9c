"""Topics, groups and filters of requests, with the names that brokers use.

The namespace of a resource is part of its name at the broker (protocol/namespace.py).

Thread-safety: pure functions behind small caches. Corresponds to FilterAPI.build and
org.apache.rocketmq.proxy.grpc.v2.common.GrpcValidator.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from spark_rocket.errors import ProtocolError
from spark_rocket.model import (
    SYSTEM_GROUP_PREFIX,
    group_problem,
    is_system_topic,
    topic_problem,
)
from spark_rocket.protocol.filter.tags import SUB_ALL, TYPE_SQL92, TYPE_TAG, TagExpression, parse_tags
from spark_rocket.protocol.namespace import split_name, wrapped
from spark_rocket.proxy.definitions import Code, FilterType, Resource
from spark_rocket.proxy.messages.statuses import StatusError


def topic_of(resource: Any) -> str:
    """Return the topic of a ``Resource``. StatusError for an invalid name or a system topic."""
    return _topic(resource.resource_namespace, resource.name)


def group_of(resource: Any) -> str:
    """Return the consumer group of a ``Resource``. StatusError for an invalid name or a system group."""
    return _group(resource.resource_namespace, resource.name)


@lru_cache(1024)
def _topic(namespace: str, name: str) -> str:
    topic = wrapped(namespace, name)
    problem = topic_problem(topic)
    if problem is None and is_system_topic(topic):
        problem = f"The topic[{topic}] is a system topic."
    if problem is not None:
        raise StatusError(Code.ILLEGAL_TOPIC, problem)
    return topic


@lru_cache(1024)
def _group(namespace: str, name: str) -> str:
    group = wrapped(namespace, name)
    problem = group_problem(group)
    if problem is None and group.startswith(SYSTEM_GROUP_PREFIX):
        problem = f"The group[{group}] is a system group."
    if problem is not None:
        raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, problem)
    return group


def resource_of(full_name: str) -> Any:
    """Return the ``Resource`` of a broker's name."""
    namespace, name = split_name(full_name)
    return Resource(resource_namespace=namespace, name=name)


class ParsedFilter(NamedTuple):
    """A parsed filter expression."""

    kind: str
    expression: str
    tags: TagExpression | None
    """For comparing tags, because brokers compare hashes; None if the broker's filter is exact."""


def read_filter(expression: Any) -> ParsedFilter:
    """Parse the filter of a request. StatusError with ILLEGAL_FILTER_EXPRESSION. Brokers check SQL expressions."""
    text = expression.expression or SUB_ALL
    if expression.type == FilterType.SQL:
        return ParsedFilter(TYPE_SQL92, text, None)
    try:
        tags = parse_tags(text)
    except ProtocolError as error:
        raise StatusError(Code.ILLEGAL_FILTER_EXPRESSION, error.message) from None
    return ParsedFilter(TYPE_TAG, text, None if tags.matches_all else tags)
