"""The permissions that a refused request lacks, by its row and the server's remark.

A remark of ACL 2.0 names one resource and no action (``User:alice has no permission to access Topic:orders from …``),
one of ACL 1.0 of Apache's broker names neither account nor permission (``No default permission for topic:orders``). The
row of the request (``needs``) has the rest.

Pure functions.
"""

from __future__ import annotations

import re
from enum import Enum
from shlex import quote
from typing import NamedTuple

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.requests import REQUESTS
from spark_rocket.protocol.requests.needs import Pair, PlainAccess, Resource
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand

_NO_POLICY = re.compile(r"no permission to access (Cluster|Group|Topic):(\S+) from")
_NO_PLAIN_PERMISSION = re.compile(
    r"no permission (pub|sub|pub or sub) for the|no (default )?permission for|is for administrators"
    r"|need admin permission",
    re.IGNORECASE,
)
_ACCOUNT = re.compile(r"(?:User:|accessKey[ =])(\S{1,255}) (?:has no permission|is not)")
_CODES = (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR)  # 4.x has no code of its own


class Grant(NamedTuple):
    """A missing permission: one of ``actions`` on a resource; for ACL 1.0 the first one, PUB or SUB."""

    resource: Resource
    name: str
    actions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{' or '.join(self.actions)} on {self.resource.value}:{self.name}"


class AccessKind(Enum):
    """The kind of access control that refused a request."""

    PLAIN = "ACL 1.0"
    USERS = "ACL 2.0"


class MissingPermissions(NamedTuple):
    """What an account lacks for a request. Without ``grants`` it must be an administrator."""

    kind: AccessKind
    account: str
    """Empty if neither the client nor the remark names it."""
    grants: tuple[Grant, ...]

    def text(self) -> str:
        """Return a sentence that names account, permissions and resources."""
        who = f"{'User' if self.kind is AccessKind.USERS else 'Account'} {self.account}".rstrip()
        if not self.grants:
            return f"{who} is not an administrator."
        return f"{who} needs {' and '.join(map(str, self.grants))}."

    def is_named_by(self, remark: str) -> bool:
        """Whether the server's remark says all of it."""
        word = "needs" if self.kind is AccessKind.USERS else "permission"
        return self.account in remark and all(f"{word} {' or '.join(one.actions)}" in remark for one in self.grants)

    def commands(self) -> list[str]:
        """Return the commands of ``rocket acl`` that grant it."""
        account = self.account or "ACCOUNT"
        if self.kind is AccessKind.USERS:
            return [
                f"rocket acl allow {account} {quote(f'{one.resource.value}:{one.name}')} {one.actions[0]}"
                for one in self.grants
            ]
        if not self.grants:
            return [f"rocket acl update {account} --admin"]
        options = [
            f"--{'topic' if one.resource is Resource.TOPIC else 'group'} {one.name}={one.actions[0]}"
            for one in self.grants
        ]
        return [f"rocket acl update {account} {' '.join(options)}"]


def missing_of(request: RemotingCommand, account: str, code: int, remark: str) -> MissingPermissions | None:
    """Return what a refused request lacks; None if it was not refused for a missing permission.

    ``account`` is the client's; a proxy may name another one.
    """
    if code not in _CODES:
        return None
    named_account = _ACCOUNT.search(remark)
    account = named_account[1] if named_account is not None else account
    refused = _NO_POLICY.search(remark)
    if refused is not None:
        kind, name = Resource(refused[1]), refused[2]
        pairs = [pair for pair in _pairs(request) if pair.resource is kind]
        same = [pair for pair in pairs if pair.name == name] or pairs  # a namespace may stand before the name
        return (
            MissingPermissions(AccessKind.USERS, account, tuple(dict.fromkeys(_policy(pair, name) for pair in same)))
            if same
            else None
        )
    if _NO_PLAIN_PERMISSION.search(remark) is None:
        return None
    row = REQUESTS.get(request.code)
    if row is None or row.plain_access is PlainAccess.ADMIN:
        return MissingPermissions(AccessKind.PLAIN, account, ())
    needed = [pair for pair in _pairs(request) if pair.permission is not None]
    named = [pair for pair in needed if re.search(rf"\b{pair.resource.value}[: ]{re.escape(pair.name)}", remark, re.I)]
    grants = dict.fromkeys(
        Grant(pair.resource, pair.name, (pair.permission.value,))
        for pair in named or needed
        if pair.permission is not None
    )
    return MissingPermissions(AccessKind.PLAIN, account, tuple(grants)) if grants else None


def _policy(pair: Pair, name: str) -> Grant:
    return Grant(pair.resource, name, tuple(action.value for action in pair.actions))


def _pairs(request: RemotingCommand) -> list[Pair]:
    """The needs of the request, as far as the client can tell: only the broker knows the topic of a stored message."""
    row = REQUESTS.get(request.code)
    try:
        return [] if row is None else row.pairs(request, lambda _: request.ext_fields.get("topic"))
    except ProtocolError:
        return []
