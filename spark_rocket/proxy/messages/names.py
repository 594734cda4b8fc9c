"""Topics, groups and filters of requests, with the names that brokers use.

A resource in a namespace is ``namespace%name`` at the broker. A retry or dead-letter topic has its prefix before that:
``%RETRY%namespace%group``. System topics have no namespace.

Thread-safety: pure functions behind small caches. Corresponds to remoting.protocol.NamespaceUtil, FilterAPI.build and
org.apache.rocketmq.proxy.grpc.v2.common.GrpcValidator.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from spark_rocket.errors import ProtocolError
from spark_rocket.model import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    group_problem,
    is_system_topic,
    topic_problem,
)
from spark_rocket.protocol.filter.tags import SUB_ALL, TYPE_SQL92, TYPE_TAG, TagExpression, parse_tags
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
    topic = join_namespace(namespace, name)
    problem = topic_problem(topic)
    if problem is None and is_system_topic(topic):
        problem = f"The topic[{topic}] is a system topic."
    if problem is not None:
        raise StatusError(Code.ILLEGAL_TOPIC, problem)
    return topic


@lru_cache(1024)
def _group(namespace: str, name: str) -> str:
    group = join_namespace(namespace, name)
    problem = group_problem(group)
    if problem is None and group.startswith(SYSTEM_GROUP_PREFIX):
        problem = f"The group[{group}] is a system group."
    if problem is not None:
        raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, problem)
    return group


def join_namespace(namespace: str, name: str) -> str:
    """Return the broker's name of a resource."""
    if not namespace or not name or _is_systems(name):
        return name
    prefix, rest = _split_prefix(name)
    return name if rest.startswith(f"{namespace}%") else f"{prefix}{namespace}%{rest}"


def split_namespace(full_name: str) -> tuple[str, str]:
    """Split a broker's name into namespace (may be empty) and name."""
    if _is_systems(full_name):
        return "", full_name
    prefix, rest = _split_prefix(full_name)
    namespace, percent, name = rest.partition("%")
    return (namespace, prefix + name) if namespace and percent else ("", full_name)


def resource_of(full_name: str) -> Any:
    """Return the ``Resource`` of a broker's name."""
    namespace, name = split_namespace(full_name)
    return Resource(resource_namespace=namespace, name=name)


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _is_systems(name: str) -> bool:
    return is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX)


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
