"""The namespace of a managed instance: a prefix of the names of topics and groups.

=====================================  ==============================================
name for users                         name on the wire, with namespace ``MQ_INST_1_a``
=====================================  ==============================================
``orders``                             ``MQ_INST_1_a%orders``
``%RETRY%spark``                       ``%RETRY%MQ_INST_1_a%spark``
``%DLQ%spark``                         ``%DLQ%MQ_INST_1_a%spark``
``TBW102``, ``rmq_sys_…``, ``CID_RMQ_SYS_…``, ``…_REPLY_TOPIC``  the same: names of the system
``MQ_INST_1_a%orders``                 the same: a full name
``%RETRY%spark+orders``                ``%RETRY%MQ_INST_1_a%spark+MQ_INST_1_a%orders``: retries of POP consumers
=====================================  ==============================================

The connections of a client translate names (``protocol.wire.names``), so everything above them has names for users.

Pure and immutable. Corresponds to org.apache.rocketmq.remoting.protocol.NamespaceUtil.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from spark_rocket.common.values import FrozenValue
from spark_rocket.errors import ConfigError
from spark_rocket.model import (
    BAD_RECORD_TOPIC,
    DLQ_PREFIX,
    PRODUCER_GROUP,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    TOOLS_PRODUCER_GROUP,
    is_legal_name,
    is_system_topic,
)

SEPARATOR = "%"
NAME_PROPERTIES = frozenset({"RETRY_TOPIC", PRODUCER_GROUP, "REAL_TOPIC", "DLQ_ORIGIN_TOPIC", BAD_RECORD_TOPIC})
"""Properties of messages whose values are names of topics and groups."""
_REPLY_TOPIC = "_REPLY_TOPIC"  # CLUSTER_REPLY_TOPIC, which brokers create
_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX)
_NAME_CHARACTERS = r"[%|a-zA-Z0-9_-]"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Namespace(FrozenValue):
    """A namespace; without a name it changes no name, and is false. ``v2``: the value of the field ns of requests."""

    name: str = ""
    v2: str = ""

    def __post_init__(self) -> None:
        if self.name and (not is_legal_name(self.name) or SEPARATOR in self.name):
            raise ConfigError(
                f"Invalid namespace {self.name!r}.",
                remedy="Use the instance ID, like MQ_INST_1234567890_AbCdEf: letters, digits, - and _.",
            )

    def __bool__(self) -> bool:
        return self.name != ""

    @property
    def translates(self) -> bool:
        """Whether commands differ from those without a namespace."""
        return self.name != "" or self.v2 != ""

    @property
    def prefix(self) -> str:
        return self.name + SEPARATOR if self.name else ""

    def wrap(self, name: str) -> str:
        """Return the name on the wire; see :func:`wrapped`."""
        return wrapped(self.name, name)

    def unwrap(self, name: str) -> str:
        """Return the name for users. Other names stay: ``wrap`` would not return this one for a shorter one."""
        if not self.name or self.prefix not in name:
            return name
        kind, rest = _parts(name)
        short = kind + _each_name(rest, lambda one: one.removeprefix(self.prefix))
        return short if self.wrap(short) == name else name

    def has(self, name: str) -> bool:
        """Whether the name on the wire belongs to this namespace, or to the system; to the empty one all belong."""
        _, rest = _parts(name)
        return rest.startswith(self.prefix) or is_system_name(rest)

    def wrap_resource(self, resource: str) -> str:
        """Return a resource of ACL 2.0, like ``Topic:orders`` or ``Group:bill*``, with the name on the wire."""
        kind, colon, name = resource.partition(":")
        is_name = kind.capitalize() in ("Topic", "Group") and name != "*"
        return f"{kind}{colon}{self.wrap(name)}" if is_name else resource

    def wrap_permission(self, permission: str) -> str:
        """Return a permission of ACL 1.0, like ``orders=PUB|SUB``, with the name on the wire."""
        name, equals, actions = permission.partition("=")
        return f"{self.wrap(name.strip())}{equals}{actions}"

    def unwrap_text(self, text: str) -> str:
        """Return text, such as an error of a broker, without the prefixes of the names in it."""
        if self.prefix not in text or not self.name:
            return text
        return re.sub(
            rf"(?P<kind>%RETRY%|%DLQ%|(?<!{_NAME_CHARACTERS})){re.escape(self.prefix)}(?={_NAME_CHARACTERS})",
            r"\g<kind>",
            text,
        )


NO_NAMESPACE = Namespace()


def translated_properties(text: str, translate: Callable[[str], str]) -> str:
    """Translate the names in a property string: name, 0x01, value, 0x02."""
    if not any(f"{name}\x01" in text for name in NAME_PROPERTIES):
        return text
    pairs = [pair.partition("\x01") for pair in text.split("\x02")]
    return "\x02".join(
        name + mark + (translate(value) if name in NAME_PROPERTIES else value) for name, mark, value in pairs
    )


def unwrapped_properties(raw: bytes, namespace: Namespace) -> bytes:
    """Remove the namespace from the names in the property string of a record."""
    if namespace.prefix.encode() not in raw:
        return raw
    text = raw.decode("utf-8", "surrogateescape")
    return translated_properties(text, namespace.unwrap).encode("utf-8", "surrogateescape")


def wrapped(namespace: str, name: str) -> str:
    """Return the name on the wire. Full names, names of the system and empty names stay as they are."""
    if not namespace or not name:
        return name
    kind, rest = _parts(name)
    prefix = namespace + SEPARATOR
    return kind + _each_name(rest, lambda one: one if one.startswith(prefix) or is_system_name(one) else prefix + one)


def _each_name(rest: str, translate: Callable[[str], str]) -> str:
    """Translate what stands after %RETRY%: the group, and for retries of POP consumers the topic behind a ``+``."""
    return "+".join(map(translate, rest.split("+"))) if "+" in rest else translate(rest)


def split_name(name: str) -> tuple[str, str]:
    """Split a name on the wire into namespace, which may be empty, and name for users."""
    kind, rest = _parts(name)
    namespace, separator, bare = rest.partition(SEPARATOR)
    return (namespace, kind + bare) if namespace and separator else ("", name)


def is_system_name(name: str) -> bool:
    """Whether RocketMQ itself uses this name of a topic or group, so that it has no namespace."""
    return (
        is_system_topic(name)
        or name in SYSTEM_GROUPS
        or name.startswith(SYSTEM_GROUP_PREFIX)
        or name.endswith(_REPLY_TOPIC)
        or name == TOOLS_PRODUCER_GROUP
    )


def _parts(name: str) -> tuple[str, str]:
    """Divide a name after %RETRY% or %DLQ%."""
    for kind in _PREFIXES:
        if name.startswith(kind):
            return kind, name[len(kind) :]
    return "", name
