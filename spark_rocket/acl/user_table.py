"""The users and policies of ACL 2.0, as one value that a change replaces.

A change returns a new table, or raises RefusedError with Apache's text and leaves everything as it was. So requests are
decided by the state before a change or after it, and a decision is remembered only with the table that made it.

Corresponds to org.apache.rocketmq.auth.authentication.manager.AuthenticationMetadataManagerImpl and
authorization.manager.AuthorizationMetadataManagerImpl.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from spark_rocket.acl.policies import USER_PREFIX, Policies, invalid
from spark_rocket.errors import ConfigError, RefusedError
from spark_rocket.protocol.auth import SecretKey, key_problem
from spark_rocket.protocol.requests.state import POLICY_ENTRIES, STATE_LIMITS, USERS
from spark_rocket.protocol.wire.bodies.config import AclInfo, UserInfo
from spark_rocket.protocol.wire.codes import ResponseCode

SUPER, NORMAL = "Super", "Normal"
ENABLE, DISABLE = "enable", "disable"
_TYPES = {name.lower(): name for name in (SUPER, NORMAL)}
_STATUSES = {name.lower(): name for name in (ENABLE, DISABLE)}

MAX_KEY_CHARACTERS = 255
MAX_ENTRIES_PER_USER = 2_000


@dataclass(frozen=True, slots=True)
class User:
    """A user with its policies. The password is the secret key of its signatures."""

    username: str
    password: str = field(repr=False)
    key: SecretKey = field(repr=False, compare=False)
    is_super: bool = False
    is_enabled: bool = True
    policies: Policies = field(default_factory=Policies, repr=False, compare=False)

    def to_info(self, *, with_password: bool) -> UserInfo:
        return UserInfo(
            self.username,
            self.password if with_password else None,
            SUPER if self.is_super else NORMAL,
            ENABLE if self.is_enabled else DISABLE,
        )


class UserTable:
    """All users by name."""

    __slots__ = ("_entries", "users")

    def __init__(self, users: Mapping[str, User] | None = None, *, entries: int = 0) -> None:
        self.users: Mapping[str, User] = users or {}
        self._entries = entries

    @classmethod
    def of(cls, users: Iterable[UserInfo], acls: Iterable[AclInfo]) -> UserTable:
        """Build a table from the values of a file or of a broker; RefusedError for invalid ones."""
        found: dict[str, User] = {}
        for info in users:
            user = _created(info)
            if user.username in found:
                raise invalid(f"The user {user.username} is existed")
            found[user.username] = user
        entries = 0
        for acl in acls:
            name = username_of(acl.subject)
            if name not in found:
                raise invalid(f"The subject of {acl.subject} is not exist.")
            policies = Policies() if not acl.policies else found[name].policies.updated(acl)
            entries += len(policies) - len(found[name].policies)
            found[name] = replace(found[name], policies=policies)
        return _checked(cls(found, entries=entries))

    # --- reads ----------------------------------------------------------------------------------------------------

    def user(self, username: str) -> User:
        """Return a user; RefusedError if it does not exist."""
        found = self.users.get(username)
        if found is None:
            raise invalid("The user is not exist")
        return found

    def acl(self, subject: str, resource_filter: str = "") -> AclInfo | None:
        """Return the policies of a subject; None without any. RefusedError if the subject does not exist."""
        user = self.users.get(username_of(subject))
        if user is None:
            raise invalid("The subject is not exist.")
        found = user.policies.to_info(user.username, resource_filter)
        return found if found.policies else None

    # --- changes --------------------------------------------------------------------------------------------------

    def with_created(self, info: UserInfo) -> UserTable:
        user = _created(info)
        if user.username in self.users:
            raise invalid("The user is existed")
        return self._with(user)

    def with_updated(self, info: UserInfo) -> UserTable:
        """Missing values stay."""
        user = self.user(info.username or "")
        password = info.password or user.password
        changed = replace(
            user,
            password=password,
            key=user.key if password == user.password else _secret(password),
            is_super=user.is_super if info.user_type is None else _one_of(_TYPES, info.user_type, "user type") == SUPER,
            is_enabled=user.is_enabled
            if info.user_status is None
            else _one_of(_STATUSES, info.user_status, "user status") == ENABLE,
        )
        return self._with(changed)

    def without_user(self, username: str) -> UserTable:
        """Delete a user with its policies; like Apache's, it may be missing."""
        if not username.strip():
            raise invalid("username can not be blank")
        found = dict(self.users)
        user = found.pop(username, None)
        return UserTable(found, entries=self._entries - (len(user.policies) if user is not None else 0))

    def with_acl(self, subject: str, given: AclInfo) -> UserTable:
        """Add entries to the policies of a subject, in place of those of the same resources."""
        user = self.users.get(username_of(subject))
        if user is None:
            raise invalid(f"The subject of {subject} is not exist.")
        return self._with(replace(user, policies=user.policies.updated(given)))

    def without_acl(self, subject: str, kind: str | None, resource: str | None) -> UserTable:
        """Delete the entry of a resource, or without one all policies of a subject."""
        user = self.users.get(username_of(subject))
        if user is None:
            raise invalid("The subject is not exist.")
        if not len(user.policies):
            raise invalid("The acl is not exist.")
        return self._with(replace(user, policies=user.policies.without(kind, resource) if resource else Policies()))

    def _with(self, user: User) -> UserTable:
        before = self.users.get(user.username)
        entries = self._entries + len(user.policies) - (len(before.policies) if before is not None else 0)
        return _checked(UserTable({**self.users, user.username: user}, entries=entries), user)

    @property
    def entries(self) -> int:
        """The number of policy entries of all users."""
        return self._entries


def username_of(subject: str) -> str:
    """Return the name of a user's subject, ``User:NAME``. RefusedError for another kind."""
    if subject[: len(USER_PREFIX)].lower() != USER_PREFIX.lower():
        raise invalid("The subject type is null.")
    return subject[len(USER_PREFIX) :]


def _created(info: UserInfo) -> User:
    for value, name in ((info.username, "username"), (info.password, "password")):
        if not (value or "").strip():
            raise invalid(f"{name} can not be blank")
    username, password = info.username or "", info.password or ""
    _check_key("username", username)
    return User(
        username,
        password,
        _secret(password),
        is_super=_one_of(_TYPES, info.user_type or NORMAL, "user type") == SUPER,
        is_enabled=_one_of(_STATUSES, info.user_status or ENABLE, "user status") == ENABLE,
    )


def _secret(password: str) -> SecretKey:
    _check_key("password", password)
    return SecretKey(password)


def _check_key(name: str, value: str) -> None:
    problem = key_problem(value)
    if problem is None and len(value) > MAX_KEY_CHARACTERS:
        problem = f"is longer than {MAX_KEY_CHARACTERS} characters"
    if problem is None and name == "username" and any(character in value for character in ",/:="):
        problem = "has one of the characters , / : ="  # separators of the gRPC metadata and of subjects
    if problem is not None:
        raise invalid(f"The {name} {problem}.")


def _one_of(names: Mapping[str, str], text: str, what: str) -> str:
    found = names.get(text.lower())
    if found is None:
        raise invalid(f"The {what} is illegal: use {' or '.join(names.values())}.")
    return found


def _checked(table: UserTable, changed: User | None = None) -> UserTable:
    """RefusedError if the table has more users or entries than are allowed."""
    for name, count in ((USERS, len(table.users)), (POLICY_ENTRIES, table.entries)):
        most = STATE_LIMITS[name].total
        if count > most:
            raise RefusedError(f"The broker would have {count:,} {name}, at most {most:,} are allowed.", 1)
    if changed is not None and len(changed.policies) > MAX_ENTRIES_PER_USER:
        raise RefusedError(
            f"User:{changed.username} would have {len(changed.policies):,} policy entries, at most "
            f"{MAX_ENTRIES_PER_USER:,} are allowed.",
            ResponseCode.SYSTEM_ERROR,
        )
    return table


def first_user(text: str) -> UserInfo | None:
    """Parse ``{"username": "…", "password": "…"}``; None without text. ConfigError, without the text, if invalid."""
    from spark_rocket.protocol.wire import json as json_codec

    if not text.strip():
        return None
    try:
        value = json_codec.loads(text.encode())
        info = UserInfo(value["username"], value["password"], SUPER)
        _created(info)
        return info
    except (ValueError, LookupError, TypeError, AttributeError, RefusedError):
        raise ConfigError(
            "Invalid initAuthenticationUser.", remedy='Use JSON: {"username": "…", "password": "…"}.'
        ) from None
