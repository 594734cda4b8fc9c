"""The permissions that a request needs: which resource it names where, and the actions on it.

A row declares its needs (:class:`Need`) once, for both kinds of access control:

* ACL 2.0: each need requires **one of** its actions on the resource that the request names; all needs must be allowed.
* ACL 1.0 (``plain_acl.yml``): a need requires ``permission`` on the topic or group. It follows from the actions: PUB if
  Pub is one of them, SUB if Sub is, either if both are, and nothing without them.

Rows of Remoting requests and of gRPC methods (``proxy.method_types``) declare their needs alike. They differ in how a
request names its resources.

A topic ``%RETRY%group`` belongs to its group: it becomes a need of the group, with Sub in place of Pub.

Corresponds to DefaultAuthorizationContextBuilder and the annotations of headers (2.0), PlainAccessResource.parse (1.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias, TypeVar

from spark_rocket.model import RETRY_PREFIX
from spark_rocket.protocol.ids import normal_topic
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.base import Header

ANY_NAME = "*"
"""The name of all topics or groups together."""


class Resource(Enum):
    """The kind of a resource. The values are ACL 2.0's names."""

    CLUSTER = "Cluster"
    GROUP = "Group"
    TOPIC = "Topic"


class Action(Enum):
    """An action on a resource. The values are ACL 2.0's names."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Permission(Enum):
    """A permission of ACL 1.0."""

    PUB = "PUB"
    SUB = "SUB"
    ANY = "PUB or SUB"


class PlainAccess(Enum):
    """What ACL 1.0 requires for a request code."""

    PERMISSIONS = "the permissions of its needs"
    ANY_ACCOUNT = "any account"
    ADMIN = "an administrator"


TopicAt: TypeAlias = Callable[[int], str | None]
"""Returns the topic of the message at a physical offset; None if there is no message."""
Names: TypeAlias = Callable[..., Iterable[str]]
"""Returns the names of a resource in a request: of a RemotingCommand whose body has been decoded, and a ``TopicAt``; or
of a message of gRPC."""


class Pair(NamedTuple):
    """A resource that a request names, and the actions on it of which the request needs one."""

    resource: Resource
    name: str
    """"" for the cluster of the server."""
    actions: tuple[Action, ...]
    permission: Permission | None


@dataclass(frozen=True, slots=True)
class Need:
    """One of ``actions`` on each resource that the request names."""

    resource: Resource
    actions: tuple[Action, ...]
    names: Names
    permission: Permission | None

    @property
    def header_fields(self) -> tuple[str, ...] | None:
        """The header fields that alone decide the names; None if they depend on something else."""
        return getattr(self.names, "header_fields", None)

    def pairs(self, *request: object) -> Iterator[Pair]:
        """``request``: the arguments of ``names``."""
        for name in self.names(*request):
            if self.resource is Resource.TOPIC and name.startswith(RETRY_PREFIX):
                yield Pair(Resource.GROUP, name[len(RETRY_PREFIX) :], *_of_group(self.actions, self.permission))
            else:
                yield Pair(self.resource, name, self.actions, self.permission)


def _of_group(
    actions: tuple[Action, ...], permission: Permission | None
) -> tuple[tuple[Action, ...], Permission | None]:
    """The actions and the permission on a group for those on its retry topic."""
    of_group = tuple(Action.SUB if action is Action.PUB else action for action in actions)
    return of_group, None if permission is None else Permission.SUB


# --- where a request names a resource ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fields:
    header_fields: tuple[str, ...]
    separator: str

    def __call__(self, request: RemotingCommand, topic_at: TopicAt) -> list[str]:
        ext, separator = request.ext_fields, self.separator
        values = [value for name in self.header_fields if (value := ext.get(name))]
        return [part for value in values for part in value.split(separator) if part] if separator else values


def fields(*names: str, separator: str = "") -> Names:
    """The values of these header fields, without missing ones; with a separator each is a list."""
    return _Fields(names, separator)


@dataclass(frozen=True, slots=True)
class _Popped:
    header_fields: tuple[str, ...] = ("topic", "consumerGroup")

    def __call__(self, request: RemotingCommand, topic_at: TopicAt) -> list[str]:
        name, consumer_group = map(request.ext_fields.get, self.header_fields)
        if not name:
            return []
        return [(consumer_group and normal_topic(name, consumer_group)) or name]


POPPED: Names = _Popped()
"""The topic in the header from which the group in the header popped a message: for a retry topic of POP
(``%RETRY%group_topic``) the topic itself."""


_BodyT = TypeVar("_BodyT", bound=Body)


def in_body(cls: type[_BodyT], names: Callable[[_BodyT], Iterable[str]]) -> Names:
    """The names that ``names`` finds in the decoded body, each once; nothing in a request without a body."""

    def found(request: RemotingCommand, topic_at: TopicAt) -> Iterable[str]:
        body = getattr(request, "typed_body", None)
        return dict.fromkeys(names(body)) if isinstance(body, cls) else ()

    return found


_HeaderT = TypeVar("_HeaderT", bound=Header)


def stored_at(cls: type[_HeaderT], offset: Callable[[_HeaderT], int]) -> Names:
    """The topic of the stored message at the offset in this header, whose own topic may be wrong or missing."""

    def found(request: RemotingCommand, topic_at: TopicAt) -> tuple[str, ...]:
        topic = topic_at(offset(cls.from_ext(request.ext_fields)))
        return () if topic is None else (topic,)

    return found


# --- needs ------------------------------------------------------------------------------------------------------------

_PUB, _SUB = Action.PUB, Action.SUB


def _permission(actions: tuple[Action, ...]) -> Permission | None:
    if _PUB in actions:
        return Permission.ANY if _SUB in actions else Permission.PUB
    return Permission.SUB if _SUB in actions else None


def topic(*actions: Action, where: Names | None = None) -> Need:
    """One of these actions on the topic: of the header field ``topic``, unless ``where`` finds it."""
    return Need(Resource.TOPIC, actions, where or fields("topic"), _permission(actions))


def group(*actions: Action, where: Names | None = None) -> Need:
    """One of these actions on the group: of the header field ``consumerGroup``, unless ``where`` finds it."""
    return Need(Resource.GROUP, actions, where or fields("consumerGroup"), _permission(actions))


@dataclass(frozen=True, slots=True)
class _FixedName:
    name: str
    header_fields: tuple[str, ...] = ()

    def __call__(self, request: RemotingCommand, topic_at: TopicAt) -> tuple[str]:
        return (self.name,)


def every(resource: Resource, *actions: Action) -> Need:
    """One of these actions on all topics or groups."""
    return Need(resource, actions, _FixedName(ANY_NAME), None)


def cluster(*actions: Action) -> Need:
    """One of these actions on the cluster of the server."""
    return Need(Resource.CLUSTER, actions, _FixedName(""), None)
