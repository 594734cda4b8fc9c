"""Endpoints of access control: accounts of ACL 1.0, users and permissions of ACL 2.0.

Brokers with equal accounts are shown together, and a change applies to the brokers that the page names. Secrets are in
no response and in no log line. A change of the console's own account needs ``own``: the page warns before.
Corresponds to AclController of RocketMQ's dashboard.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from spark_rocket.client.admin import AccessMode, BrokerAccounts, Failures, default_perms
from spark_rocket.client.admin.base import record_failure
from spark_rocket.common.attributes import pick
from spark_rocket.console.api.context import ApiContext, ApiRequest, confirmed
from spark_rocket.console.responses import Refused, failures_json
from spark_rocket.protocol.wire.bodies.config import AclInfo, PlainAccessConfig, UserInfo

_REFRESH_MS = 10_000
_PERMISSIONS = ("DENY", "PUB", "SUB", "PUB|SUB")
_NAMED = re.compile(r"[^=,\s]+=(?:DENY|PUB|SUB|PUB\|SUB)")
_USER_TYPES = ("Normal", "Super")
_USER_STATUSES = ("enable", "disable")
_DECISIONS = ("Allow", "Deny")
_POLICY_TYPES = ("Custom", "Default")
_ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
_RESOURCE = re.compile(r"\*|(?:Cluster|Namespace|Topic|Group):[^\s,]+")
MAX_ENTRIES = 10_000


class _Change(Protocol):
    """Changes one broker, given by address; returns it if it applied the change, or records the error."""

    def __call__(self, *, broker: str, failed: Failures) -> list[str]: ...


class AccountApi:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def show(self, request: ApiRequest) -> dict[str, Any]:
        """Return the accounts of all brokers. ``own``: the account of this console."""
        admin = self._context.admin
        failed: Failures = {}
        access = admin.access_modes(failed=failed)
        of_mode = {mode: [one for one in access if one.mode is mode] for mode in AccessMode}
        files = admin.broker_accounts(brokers=of_mode[AccessMode.PLAIN], failed=failed)
        users = admin.broker_users(of_mode[AccessMode.AUTH], failed=failed)
        return {
            "refresh": _REFRESH_MS,
            "own": admin.access_key,
            "off": [one.name for one in of_mode[AccessMode.OFF]],
            "files": [_file(one) for one in files],
            "users": [
                {
                    "brokers": [pick(broker, "name address") for broker in one.brokers],
                    "users": _users(one.users, one.acls),
                }
                for one in users
            ],
            "failed": failures_json(failed),
        }

    # --- ACL 1.0 ----------------------------------------------------------------------------------------------

    def put(self, request: ApiRequest) -> dict[str, Any]:
        """Create or change an account. Missing fields stay unchanged. ``from``: the account as it was shown."""
        account = self._account(request, "account")
        admin = self._context.changing
        secret = request.text("secret", "") or None
        is_new = request.flag("create")
        if is_new and secret is None:
            raise Refused("A new account needs a secret key.", remedy="Enter one.")
        given: dict[str, Any] = {
            "secret_key": secret,
            "topic_perms": _permissions(request, "topics"),
            "group_perms": _permissions(request, "groups"),
            "default_topic_perm": _one_of(request, "otherTopics", _PERMISSIONS),
            "default_group_perm": _one_of(request, "otherGroups", _PERMISSIONS),
            "white_remote_address": request.text("white") if "white" in request.body else None,
        }

        is_admin: dict[str, bool] = {}

        def check(address: str) -> None:
            known = admin.acl_config(address).account(account)
            if known is None:
                if not is_new:
                    text = f"Broker {address} has no account {account}."
                    raise Refused(text, remedy="Create it.", code="NO_SUCH_ACCOUNT")
            elif is_new:
                raise Refused(
                    f"Account {account} exists on {address}.",
                    remedy="Change it, or use another access key.",
                    code="ACCOUNT_EXISTS",
                )
            else:
                _check_unchanged(request, _account(known), f"Account {account}")
            is_admin[address] = request.flag("admin") if known is None or "admin" in request.body else known.admin

        def change(*, broker: str, failed: Failures) -> list[str]:
            return admin.update_account(account, admin=is_admin[broker], **given, broker=broker, failed=failed)

        return self._change(request, f"{'Created' if is_new else 'Changed'} account {account}", change, check)

    def delete(self, request: ApiRequest) -> dict[str, Any]:
        account = self._account(request, "account")
        confirmed(request, account)

        def delete(*, broker: str, failed: Failures) -> list[str]:
            return self._context.changing.delete_account_of(account, [broker], failed=failed)

        return self._change(request, f"Deleted account {account}", delete)

    def put_white(self, request: ApiRequest) -> dict[str, Any]:
        """Replace the addresses that have all permissions without a signature. ``from``: as they were shown."""
        addresses = _strings(request, "addresses")
        admin = self._context.changing
        if admin.access_key is None and not request.flag("own"):
            raise _own_access("This console has no account: its access depends on the white list.")

        def check(address: str) -> None:
            if "from" in request.body:
                _check_unchanged(request, admin.acl_config(address).global_white_addrs, "The white list")

        return self._change(
            request, "Changed the white list", partial(admin.update_global_white_addrs, addresses), check
        )

    # --- ACL 2.0 ----------------------------------------------------------------------------------------------

    def put_user(self, request: ApiRequest) -> dict[str, Any]:
        """Create or change a user. Missing fields stay unchanged. ``from``: the user as it was shown."""
        user = self._account(request, "user")
        admin = self._context.changing
        password = request.text("password", "") or None
        kind = _one_of(request, "type", _USER_TYPES)
        status = _one_of(request, "status", _USER_STATUSES)
        if not request.flag("create"):
            change = partial(admin.update_user, user, password=password, user_type=kind, user_status=status)
            return self._change(request, f"Changed user {user}", change, self._check_user(request, user))
        if password is None:
            raise Refused("A new user needs a password.", remedy="Enter one.")
        create = partial(admin.create_user, user, password, user_type=kind or "Normal")
        return self._change(request, f"Created user {user}", create)

    def delete_user(self, request: ApiRequest) -> dict[str, Any]:
        user = self._account(request, "user")
        confirmed(request, user)
        return self._change(request, f"Deleted user {user}", partial(self._context.changing.delete_user, user))

    def put_permission(self, request: ApiRequest) -> dict[str, Any]:
        """Allow or deny a user actions on a resource. ``from``: the user as it was shown, also for a deletion."""
        user, resource = self._account(request, "user"), self._resource(request)
        actions = _strings(request, "actions")
        if not actions or not set(actions) <= set(_ACTIONS):
            raise Refused("Invalid actions.", remedy=f"Use one or more of {', '.join(_ACTIONS)}.")
        decision = _one_of(request, "decision", _DECISIONS) or "Allow"
        change = partial(
            self._context.changing.put_permission,
            user,
            resource,
            actions,
            decision=decision,
            source_ips=_strings(request, "sourceIps") if "sourceIps" in request.body else [],
            policy_type=_one_of(request, "policyType", _POLICY_TYPES) or "Custom",
        )
        done = f"Changed the permission of {user} on {resource}"
        return self._change(request, done, change, self._check_user(request, user))

    def delete_permission(self, request: ApiRequest) -> dict[str, Any]:
        user, resource = self._account(request, "user"), self._resource(request)
        kind = _one_of(request, "policyType", _POLICY_TYPES) or "Custom"
        delete = partial(self._context.changing.delete_permission, user, resource, policy_type=kind)
        done = f"Deleted the permission of {user} on {resource}"
        return self._change(request, done, delete, self._check_user(request, user))

    def _resource(self, request: ApiRequest) -> str:
        """Return the resource with the name on the wire, as pages show it."""
        return self._context.admin.namespace.wrap_resource(_resource(request))

    def _check_user(self, request: ApiRequest, user: str) -> Callable[[str], None]:
        def check(address: str) -> None:
            if "from" in request.body:
                admin = self._context.changing
                rows = _users(admin.users(address), admin.acls(address))
                _check_unchanged(request, next((row for row in rows if row["name"] == user), None), f"User {user}")

        return check

    # --- both -------------------------------------------------------------------------------------------------

    def _account(self, request: ApiRequest, name: str) -> str:
        """Return the account of a change. Refused for the console's own, unless its user was warned."""
        account = request.text(name).strip()
        if not account:
            raise Refused(f"Missing {name}.", remedy=f"Fill in {name}.")
        if account == self._context.changing.access_key and not request.flag("own"):
            raise _own_access(f"{account} is the account of this console.")
        return account

    def _change(
        self,
        request: ApiRequest,
        done: str,
        change: _Change,
        check: Callable[[str], None] = lambda address: None,
    ) -> dict[str, Any]:
        """Change one broker after the other; a failure is reported and does not stop the others.

        All are checked before the first is changed: brokers may share a file of accounts.
        """
        addresses = [self._context.broker_address(address) for address in dict.fromkeys(_strings(request, "brokers"))]
        if not addresses:
            raise Refused("No brokers given.", remedy="Select them on the page.")
        changed: list[str] = []
        failed: Failures = {}
        for address in addresses:
            with record_failure(failed, address):
                check(address)
        for address in addresses:
            if address not in failed:
                with record_failure(failed, address):
                    changed += change(broker=address, failed=failed)
        if not changed:
            raise next(iter(failed.values()))
        return {
            "done": f"{done} on {', '.join(changed)}.",
            "failed": failures_json(failed),
        }


def _own_access(text: str) -> Refused:
    return Refused(text, remedy="Confirm on the page that the console may lose its access.", code="OWN_ACCOUNT")


def _check_unchanged(request: ApiRequest, now: object, what: str) -> None:
    """Refuse a change if what the page showed, ``from``, is no longer so."""
    if "from" in request.body and request.body["from"] != now:
        raise Refused(
            f"{what} has changed in the meantime.",
            remedy="Check the page, and change it again if needed.",
            code="ACCOUNTS_CHANGED",
        )


def _file(found: BrokerAccounts) -> dict[str, Any]:
    config = found.config
    return {
        "brokers": [pick(one, "name=broker address version=counter changed=changed_ms?") for one in found.versions],
        "white": None if config is None else config.global_white_addrs,
        "accounts": None if config is None else [_account(one) for one in config.plain_access_configs[:MAX_ENTRIES]],
    }


def _account(account: PlainAccessConfig) -> dict[str, Any]:
    """Return an account without its secret, with the implicit permissions."""
    topics, groups = default_perms(account)
    return {
        **pick(account, "name=access_key admin"),
        "topics": account.topic_perms or [],
        "groups": account.group_perms or [],
        "otherTopics": topics,
        "otherGroups": groups,
        "white": account.white_remote_address or "",
    }


def _users(users: list[UserInfo], acls: list[AclInfo]) -> list[dict[str, Any]]:
    permissions = {acl.subject.removeprefix("User:"): _permissions_of(acl) for acl in acls}
    rows = {
        user.username or "": {"name": user.username or ""} | pick(user, "type=user_type status=user_status")
        for user in users[:MAX_ENTRIES]
    }
    for subject in permissions:
        rows.setdefault(subject, {"name": subject, "type": None, "status": None})
    return [row | {"permissions": permissions.get(name, [])} for name, row in sorted(rows.items())]


def _permissions_of(acl: AclInfo) -> list[dict[str, Any]]:
    return [
        pick(entry, "resource actions decision")
        | {"policyType": policy.policy_type or "Custom", "sourceIps": entry.source_ips or []}
        for policy in acl.policies
        for entry in policy.entries
    ]


def _strings(request: ApiRequest, name: str) -> list[str]:
    value = request.body.get(name)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Refused(f"Invalid {name}.", remedy=f"Send {name} as a list of strings.")
    return [one.strip() for one in value if one.strip()]


def _permissions(request: ApiRequest, name: str) -> list[str] | None:
    if name not in request.body:
        return None
    found = _strings(request, name)
    for one in found:
        if not _NAMED.fullmatch(one):
            raise Refused(
                f"Invalid permission {one[:80]!r}.", remedy=f"Use NAME=PERMISSION, with {', '.join(_PERMISSIONS)}."
            )
    return found


def _one_of(request: ApiRequest, name: str, allowed: tuple[str, ...]) -> str | None:
    if name not in request.body:
        return None
    value = request.text(name)
    if value not in allowed:
        raise Refused(f"Invalid {name} {value[:40]!r}.", remedy=f"Use {', '.join(allowed)}.")
    return value


def _resource(request: ApiRequest) -> str:
    resource = request.text("resource").strip()
    if not _RESOURCE.fullmatch(resource):
        raise Refused(
            f"Invalid resource {resource[:80]!r}.",
            remedy="Use Topic:NAME, Group:NAME, Cluster:NAME or Namespace:NAME, where NAME may end with *, or * alone.",
        )
    return resource
