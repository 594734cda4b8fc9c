"""Accounts of both kinds with exactly what a request needs, and with everything but one of its needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from spark_rocket.acl.rules import PUB, SUB, Account
from spark_rocket.acl.user_table import User, UserTable
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.requests.needs import ANY_NAME, Action, Pair, Permission, Resource
from spark_rocket.protocol.wire.bodies.config import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

CLUSTER = "DefaultCluster"
ROOT = Credentials("root-key", "r00t-s3cr3t")
ALICE = Credentials("alice-key", "al1ce-s3cr3t")
FORGED = Credentials("alice-key", "wr0ng-s3cr3t")
UNKNOWN = Credentials("mallory-key", "mall0ry-s3cr3t")

Grants = dict[str, set[str]]
"""Resource -> what is allowed on it: actions of ACL 2.0, or permissions of ACL 1.0."""


class Kind(Protocol):
    """A kind of access control."""

    def exact(self, pairs: Sequence[Pair]) -> Iterator[Grants]:
        """What is just enough, with each of the alternatives."""

    def too_little(self, pairs: Sequence[Pair]) -> Iterator[Grants]:
        """All that is needed and more, but for one need."""


def _merged(parts: Iterator[tuple[str, str]]) -> Grants:
    found: Grants = {}
    for resource, action in parts:
        found.setdefault(resource, set()).add(action)
    return found


# --- ACL 2.0 ----------------------------------------------------------------------------------------------------------


def _resource(pair: Pair) -> str:
    return f"{pair.resource.value}:{CLUSTER if pair.resource is Resource.CLUSTER else pair.name}"


class Users:
    """Users with policies."""

    def exact(self, pairs: Sequence[Pair]) -> Iterator[Grants]:
        for choice in range(max((len(pair.actions) for pair in pairs), default=1)):
            yield _merged((_resource(pair), pair.actions[choice % len(pair.actions)].value) for pair in pairs)

    def too_little(self, pairs: Sequence[Pair]) -> Iterator[Grants]:
        (everything, *_) = self.exact(pairs)
        for pair in pairs:
            resource, name = _resource(pair), pair.name
            others = {key: value for key, value in everything.items() if key != resource}
            yield others
            yield others | {resource: {action.value for action in Action if action not in pair.actions}}
            if name not in ("", ANY_NAME):
                yield others | {resource + "x": {"All"}, f"{pair.resource.value}:x{name}": {"All"}}
            other_kinds = {f"{kind.value}:{name or CLUSTER}": {"All"} for kind in Resource if kind is not pair.resource}
            yield {key: value for key, value in other_kinds.items() if key not in everything} | others

    @staticmethod
    def table(grants: Grants) -> UserTable:
        entries = [PolicyEntryInfo(resource, sorted(actions)) for resource, actions in grants.items() if actions]
        subject = f"User:{ALICE.access_key}"
        return UserTable.of(
            [UserInfo(ROOT.access_key, ROOT.secret_key, "Super"), UserInfo(ALICE.access_key, ALICE.secret_key)],
            [AclInfo(subject, [PolicyInfo("Custom", entries)])] if entries else [],
        )

    def user(self, grants: Grants, name: str) -> User | None:
        return self.table(grants).users.get(name)


# --- ACL 1.0 ----------------------------------------------------------------------------------------------------------


class Accounts:
    """Accounts of ``plain_acl.yml``."""

    def exact(self, pairs: Sequence[Pair]) -> Iterator[Grants]:
        needed = [pair for pair in pairs if pair.permission is not None]
        for either in ("PUB", "SUB"):
            yield _merged(
                (_resource(pair), either if pair.permission is Permission.ANY else pair.permission.value)
                for pair in needed
                if pair.permission is not None
            )

    def too_little(self, pairs: Sequence[Pair]) -> Iterator[Grants]:
        (everything, *_) = self.exact(pairs)
        for pair in pairs:
            if pair.permission is None:
                continue
            resource = _resource(pair)
            others = {key: value for key, value in everything.items() if key != resource}
            yield others
            yield others | {resource + "x": {"PUB", "SUB"}}
            if pair.permission is not Permission.ANY:
                yield others | {resource: {"PUB", "SUB"} - {pair.permission.value}}

    @staticmethod
    def accounts(grants: Grants) -> list[Account]:
        bits = {"PUB": PUB, "SUB": SUB}
        owned: dict[str, dict[str, int]] = {"Topic": {}, "Group": {}}
        for resource, permissions in grants.items():
            kind, _, name = resource.partition(":")
            owned[kind][name] = sum(bits[permission] for permission in permissions)
        return [
            Account(ROOT.access_key, ROOT.secret_key, admin=True),
            Account(ALICE.access_key, ALICE.secret_key, topics=owned["Topic"], groups=owned["Group"]),
        ]
