"""What a request names: topics and groups, as the broker calls them, and filters.

A resource of a namespace is ``namespace%name`` at the broker; a retry or dead-letter topic keeps its prefix in front of
that: ``%RETRY%namespace%group``. System topics have no namespace.

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
    """The topic that a ``Resource`` names. StatusError when it is no legal name, or a system topic's."""
    return _topic(resource.resource_namespace, resource.name)


def group_of(resource: Any) -> str:
    """The consumer group that a ``Resource`` names. StatusError when it is no legal name, or a system group's."""
    return _group(resource.resource_namespace, resource.name)


@lru_cache(1024)
def _topic(namespace: str, name: str) -> str:
    topic = join_namespace(namespace, name)
    problem = topic_problem(topic)
    if problem is None and is_system_topic(topic):
        problem = f"The topic[{topic}] is the system's own."
    if problem is not None:
        raise StatusError(Code.ILLEGAL_TOPIC, problem)
    return topic


@lru_cache(1024)
def _group(namespace: str, name: str) -> str:
    group = join_namespace(namespace, name)
    problem = group_problem(group)
    if problem is None and group.startswith(SYSTEM_GROUP_PREFIX):
        problem = f"The group[{group}] is the system's own."
    if problem is not None:
        raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, problem)
    return group


def join_namespace(namespace: str, name: str) -> str:
    """What the broker calls a resource of a namespace."""
    if not namespace or not name or _is_systems(name):
        return name
    prefix, rest = _split_prefix(name)
    return name if rest.startswith(f"{namespace}%") else f"{prefix}{namespace}%{rest}"


def split_namespace(full_name: str) -> tuple[str, str]:
    """Namespace and name of what the broker calls so; the namespace is empty when it has none."""
    if _is_systems(full_name):
        return "", full_name
    prefix, rest = _split_prefix(full_name)
    namespace, percent, name = rest.partition("%")
    return (namespace, prefix + name) if namespace and percent else ("", full_name)


def resource_of(full_name: str) -> Any:
    """The ``Resource`` of what the broker calls so."""
    namespace, name = split_namespace(full_name)
    return Resource(resource_namespace=namespace, name=name)


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _is_systems(name: str) -> bool:
    return is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX)


class Filter(NamedTuple):
    """What a filter expression says."""

    kind: str
    expression: str
    tags: TagExpression | None
    """To compare tags with, for brokers compare hashes; None when the broker's answer is exact."""


def read_filter(expression: Any) -> Filter:
    """The filter of a request; StatusError with ILLEGAL_FILTER_EXPRESSION. What SQL says is left to the broker."""
    text = expression.expression or SUB_ALL
    if expression.type == FilterType.SQL:
        return Filter(TYPE_SQL92, text, None)
    try:
        tags = parse_tags(text)
    except ProtocolError as error:
        raise StatusError(Code.ILLEGAL_FILTER_EXPRESSION, error.message) from None
    return Filter(TYPE_TAG, text, None if tags.matches_all else tags)
