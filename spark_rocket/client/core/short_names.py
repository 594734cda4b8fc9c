"""Arguments of clients with a namespace: full names become those without it, before a method sees them.

So a method has one name for a topic or group, whatever the caller wrote: lists, caches and subscriptions compare names.
Names are the topics of queues and messages, also in containers, and the text arguments in ``NAME_ARGUMENTS``.
Constructors translate their groups themselves.

Pure. Corresponds to withoutNamespace in RocketMQ's clients.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from spark_rocket.common.arguments import Arguments
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.namespace import Namespace

NAME_ARGUMENTS = frozenset({"topic", "group", "source", "target", "topics", "groups", "where", "trace_topic"})
"""Parameters of methods whose text, or texts in a container, are names."""
_CONTAINERS = (list, tuple, set, frozenset)


def short_arguments(
    namespace: Namespace, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments:
    """Return the arguments of a method, with names without the namespace."""
    names = _parameters(method)
    named = zip(names, args, strict=False)
    short = tuple(_short(value, name in NAME_ARGUMENTS, namespace) for name, value in named)
    return (
        short + args[len(names) :],  # those too many, for the method's own TypeError
        {name: _short(value, name in NAME_ARGUMENTS, namespace) for name, value in kwargs.items()},
    )


@lru_cache(1024)
def _parameters(method: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(method).parameters)


def _short(value: Any, is_name: bool, namespace: Namespace) -> Any:
    if isinstance(value, str):
        return namespace.unwrap(value) if is_name else value
    if isinstance(value, MessageQueue | Message):
        topic = namespace.unwrap(value.topic)
        return value if topic == value.topic else replace(value, topic=topic)
    if type(value) in _CONTAINERS:
        short = type(value)(_short(one, is_name, namespace) for one in value)
        return value if short == value else short
    if isinstance(value, Mapping):  # methods add the failures of brokers to one of them: it stays the same object
        renamed = {_short(key, False, namespace): one for key, one in value.items()}
        return value if renamed.keys() == value.keys() else renamed
    if isinstance(value, Iterator):
        return (_short(one, is_name, namespace) for one in value)
    return value
