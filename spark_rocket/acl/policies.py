"""Policies of ACL 2.0: which user may do what on which resource, from which address.

A policy entry allows or denies actions on a resource: ``Topic:orders`` (literal), ``Topic:orders*`` (prefixed),
``Topic:*`` (any topic) or ``*`` (everything). An entry matches a request if the resource, one of the request's actions
and the source address match. Of the matching entries the most specific one decides: literal, then the longest prefix,
then any name, then ``*``; Deny wins over Allow of the same resource. Entries of the default policy count only where no
entry of the custom policy matches.

Unlike Apache's broker, ``Topic:*`` and ``*`` do not include sending to and reading of system topics that hold the
messages of other topics (delayed, half and revived messages): these need an entry of their own. And a Deny of a group
applies to its retry topics of POP, ``%RETRY%group_topic``, unless they have an entry of their own.

Corresponds to org.apache.rocketmq.auth.authorization.model.{Resource, PolicyEntry} and AclAuthorizationHandler.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from spark_rocket.acl.rules import is_store_of_others
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.requests.needs import ANY_NAME, Action, Pair, Resource
from spark_rocket.protocol.wire.bodies.config import AclInfo, PolicyEntryInfo, PolicyInfo
from spark_rocket.protocol.wire.codes import ResponseCode

CUSTOM, DEFAULT = "Custom", "Default"
ALLOW, DENY = "Allow", "Deny"
USER_PREFIX = "User:"

MAX_RESOURCE_CHARACTERS = 512
MAX_SOURCE_IPS = 100

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

ALL = "All"
_ACTIONS = {name.lower(): name for name in (ALL, *(action.value for action in Action))}
_DECISIONS = {name.lower(): name for name in (ALLOW, DENY)}
_POLICY_TYPES = {name.lower(): name for name in (CUSTOM, DEFAULT)}
_NAMESPACE = "Namespace"  # a kind that no request of this broker names
_KINDS = {name.lower(): name for name in (_NAMESPACE, *(resource.value for resource in Resource))}
_CONTENT = frozenset((Action.PUB, Action.SUB))


def invalid(text: str) -> RefusedError:
    """The refusal of an invalid user or policy, with Apache's text."""
    return RefusedError(text, ResponseCode.NO_PERMISSION)


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """An entry of a policy, checked, with Apache's spelling of all names."""

    resource: str
    """As in the request: ``Topic:orders*``."""
    actions: frozenset[str]
    source_ips: tuple[str, ...]
    networks: tuple[_Network, ...]
    denies: bool

    @classmethod
    def of(cls, info: PolicyEntryInfo) -> PolicyEntry:
        """Check an entry; RefusedError, with Apache's text where it has one."""
        kind, name = _parsed(info.resource)
        found = frozenset(_ACTIONS[name.lower()] for name in info.actions if name.lower() in _ACTIONS)
        if "any" in (action.lower() for action in info.actions):
            raise invalid("The actions can not be Any.")
        if not found or len(info.actions) > len(_ACTIONS):
            raise invalid("The actions is empty." if not found else "The actions are too many.")
        decision = _DECISIONS.get(info.decision.lower())
        if decision is None:
            raise invalid("The decision is null or illegal.")
        sources = tuple(info.source_ips or ())
        if len(sources) > MAX_SOURCE_IPS:
            raise invalid(f"The source ips are too many: at most {MAX_SOURCE_IPS} are allowed.")
        return cls(
            f"{kind}:{name}" if kind else ANY_NAME, found, sources, tuple(map(_network, sources)), decision == DENY
        )

    @property
    def info(self) -> PolicyEntryInfo:
        actions = [name for name in _ACTIONS.values() if name in self.actions]
        return PolicyEntryInfo(self.resource, actions, list(self.source_ips), DENY if self.denies else ALLOW)

    def matches(self, actions: Iterable[Action], source: str) -> bool:
        """Whether the entry has one of the actions, and the address is one of its own."""
        if ALL not in self.actions and not any(action.value in self.actions for action in actions):
            return False
        if not self.networks:
            return True
        address = _address(source)
        return address is not None and any(address in network for network in self.networks)


def resource_key(text: str) -> str:
    """Return a resource in the spelling that entries have; RefusedError if it is invalid."""
    kind, name = _parsed(text)
    return f"{kind}:{name}" if kind else ANY_NAME


def policy_type(text: str | None) -> str:
    """Return Custom or Default; Custom if missing. RefusedError for another text."""
    found = _POLICY_TYPES.get((text or CUSTOM).lower())
    if found is None:
        raise invalid("The policy type is illegal.")
    return found


def _parsed(text: str) -> tuple[str, str]:
    """Parse a resource; the kind is empty for ``*``."""
    if text == ANY_NAME:
        return "", ANY_NAME
    kind, colon, name = text.partition(":")
    found = _KINDS.get(kind.lower())
    if found is None or not colon:
        raise invalid("The resource is null.")
    if not name or ANY_NAME in name[:-1] or not name.isprintable() or name != name.strip():
        raise invalid("The resource name is illegal: use NAME, PREFIX* or *.")
    if len(name) > MAX_RESOURCE_CHARACTERS:
        raise invalid(f"The resource name is longer than {MAX_RESOURCE_CHARACTERS} characters.")
    return found, name


def _network(text: str) -> _Network:
    if not text.strip():
        raise invalid("The source ip is empty.")
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise invalid("The source ip is invalid.") from None


@lru_cache(1024)
def _address(text: str) -> _Address | None:
    """The address of a peer; for an IPv4 address mapped to IPv6, the IPv4 address. None if it is none."""
    try:
        found = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


class _Policy:
    """The entries of one policy, by specificity."""

    def __init__(self, entries: Iterable[PolicyEntry]) -> None:
        self.entries = {entry.resource: entry for entry in entries}
        prefixed = {len(key) - 1 for key in self.entries if key.endswith(ANY_NAME) and key != ANY_NAME}
        self._lengths = sorted(prefixed, reverse=True)

    def decides(self, pair: Pair, name: str, source: str) -> bool | None:
        """Whether the most specific matching entry allows the pair; None if no entry matches."""
        for entry in self._found(pair, name):
            if entry.matches(pair.actions, source):
                return not entry.denies
        return None

    def _found(self, pair: Pair, name: str) -> Iterator[PolicyEntry]:
        """The entries of the resource, the most specific one first."""
        entries, kind = self.entries, f"{pair.resource.value}:"
        full = kind + name
        if name != ANY_NAME and not name.endswith(ANY_NAME) and full in entries:
            yield entries[full]
        is_special = (
            pair.resource is Resource.TOPIC and is_store_of_others(name) and not _CONTENT.isdisjoint(pair.actions)
        )
        if pair.resource is Resource.GROUP:
            for at, character in enumerate(name):
                owner = entries.get(kind + name[:at]) if character in "_+" else None
                if owner is not None and owner.denies:
                    yield owner
        for length in self._lengths:
            if length > len(full) or (length == len(kind) and is_special) or (name == ANY_NAME and length > len(kind)):
                continue
            entry = entries.get(full[:length] + ANY_NAME)
            if entry is not None:
                yield entry
        if not is_special and ANY_NAME in entries:
            yield entries[ANY_NAME]


class Policies:
    """The custom and the default policy of a user."""

    __slots__ = ("_policies",)

    def __init__(self, policies: dict[str, dict[str, PolicyEntry]] | None = None) -> None:
        given = policies or {}
        self._policies = {name: _Policy(given[name].values()) for name in (CUSTOM, DEFAULT) if given.get(name)}

    def __len__(self) -> int:
        return sum(len(policy.entries) for policy in self._policies.values())

    def refusal(self, pair: Pair, name: str, source: str) -> str | None:
        """Return why the pair is refused, in Apache's words; None if it is allowed. ``name`` is the resource's."""
        for policy in self._policies.values():
            decision = policy.decides(pair, name, source)
            if decision is not None:
                return None if decision else "the decision is deny."
        return "no matched policies."

    def updated(self, given: AclInfo) -> Policies:
        """Return these policies with the given entries, each in place of the one of the same resource."""
        if not given.policies:
            raise invalid("The policies is empty.")
        found = self._entries()
        for policy in given.policies:
            if not policy.entries:
                raise invalid("The policy entries is empty.")
            of_type = found.setdefault(policy_type(policy.policy_type), {})
            for info in policy.entries:
                entry = PolicyEntry.of(info)
                of_type[entry.resource] = entry
        return Policies(found)

    def without(self, kind: str | None, resource: str) -> Policies:
        """Return these policies without the entry of a resource."""
        found = self._entries()
        found.get(policy_type(kind), {}).pop(resource_key(resource), None)
        return Policies(found)

    def _entries(self) -> dict[str, dict[str, PolicyEntry]]:
        return {name: dict(policy.entries) for name, policy in self._policies.items()}

    def to_info(self, username: str, resource_filter: str = "") -> AclInfo:
        """``resource_filter``: only entries whose resource contains it."""
        policies = []
        for name, policy in self._policies.items():
            entries = [entry.info for entry in policy.entries.values() if resource_filter in entry.resource]
            if entries:
                policies.append(PolicyInfo(name, entries))
        return AclInfo(USER_PREFIX + username, policies)
