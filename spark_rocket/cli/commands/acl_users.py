"""``rocket acl`` for brokers with ACL 2.0: users and their permissions.

Corresponds to mqadmin's createUser, updateUser, deleteUser, getUser, listUser, createAcl, updateAcl, deleteAcl, getAcl
and listAcl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import bundle, yes_option
from spark_rocket.cli.connect import Link, cluster_option, complete_brokers, connection
from spark_rocket.cli.show import Column
from spark_rocket.common.attributes import pick
from spark_rocket.errors import ClientError

if TYPE_CHECKING:
    from spark_rocket.client import Admin
    from spark_rocket.client.admin import AccessMode, BrokerAccess, BrokerUsers, Failures
    from spark_rocket.protocol.wire.bodies.config import AclInfo, PolicyEntryInfo, UserInfo

HIDDEN = "********"
_ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")

where_options = bundle(
    "where",
    lambda broker, cluster_name: {"broker": broker, "cluster": cluster_name},
    cluster_option,
    click.option("--broker", metavar="BROKER", shell_complete=complete_brokers, help="only this broker"),
)


# --- which kind -------------------------------------------------------------------------------------------------------


def of_mode(access: Sequence[BrokerAccess], mode: AccessMode) -> list[BrokerAccess]:
    return [broker for broker in access if broker.mode is mode]


def one_mode(access: Sequence[BrokerAccess]) -> AccessMode:
    """Return the kind of access control that all of these brokers have. ClientError if there are two, or none."""
    from spark_rocket.client.admin import AccessMode

    modes = {broker.mode for broker in access}
    if len(modes) == 1 and AccessMode.OFF not in modes:
        return modes.pop()
    if modes <= {AccessMode.OFF}:
        raise ClientError(
            "These brokers have no access control: every client may do everything.",
            remedy="Set authenticationEnabled=true (ACL 2.0) or aclEnable=true (ACL 1.0) in broker.conf.",
        )
    kinds = ", ".join(f"{broker.name} has {title(broker.mode)}" for broker in access)
    raise ClientError(f"The brokers have different access control: {kinds}.", remedy="Select brokers with --broker.")


def title(mode: AccessMode) -> str:
    return {"OFF": "no access control", "PLAIN": "ACL 1.0", "AUTH": "ACL 2.0"}[mode.value]


def _check_users(access: Sequence[BrokerAccess], instead: str) -> None:
    """UsageError if the brokers have the accounts of ACL 1.0."""
    from spark_rocket.client.admin import AccessMode

    if one_mode(access) is AccessMode.PLAIN:
        raise click.UsageError(f"These brokers have accounts (ACL 1.0), not users: {instead}")


# --- reads ------------------------------------------------------------------------------------------------------------


def _names(found: BrokerUsers) -> str:
    return ", ".join(f"{broker.name} {broker.address}" for broker in found.brokers)


def _shown(user: UserInfo, secrets: bool) -> dict[str, Any]:
    password = user.password if secrets or user.password is None else HIDDEN
    return {**pick(user, "username userType=user_type userStatus=user_status"), "password": password}


def _permissions(found: BrokerUsers, username: str) -> Iterator[dict[str, Any]]:
    for policy in found.policies(username):
        for entry in policy.entries:
            yield {
                **pick(entry, "resource decision actions"),
                "sourceIps": entry.source_ips or [],
                "policyType": policy.policy_type or "Custom",
            }


def _text(permission: dict[str, Any]) -> str:
    deny = "deny " if permission["decision"] == "Deny" else ""
    sources = f" from {','.join(permission['sourceIps'])}" if permission["sourceIps"] else ""
    default = " (default)" if permission["policyType"] == "Default" else ""
    return f"{deny}{permission['resource']}={','.join(permission['actions'])}{sources}{default}"


_USERS = (
    Column("username", "USER"),
    Column("userType", "TYPE"),
    Column("userStatus", "STATUS"),
    Column("permissions", "PERMISSIONS"),
    Column("password", "PASSWORD", spare=True),
)


def document(found: BrokerUsers, secrets: bool) -> list[dict[str, Any]]:
    users = [
        _shown(user, secrets) | {"permissions": list(_permissions(found, user.username or ""))} for user in found.users
    ]
    return [pick(broker, "brokerName=name address") | {"acl": "2.0", "users": users} for broker in found.brokers]


def print_users(found: BrokerUsers, secrets: bool) -> None:
    rows = []
    for user in found.users:
        texts = "\n".join(map(_text, _permissions(found, user.username or "")))
        rows.append(_shown(user, secrets) | {"permissions": "everything" if user.user_type == "Super" else texts})
    columns = _USERS if secrets else _USERS[:-1]
    heading = "\n".join(f"{broker.name} {broker.address}: ACL 2.0" for broker in found.brokers)
    show.table(rows, columns, title=heading, empty="No users.")


def user_documents(found: BrokerUsers, user: UserInfo, secrets: bool) -> list[dict[str, Any]]:
    shown = _shown(user, secrets) | {"permissions": list(_permissions(found, user.username or ""))}
    return [pick(broker, "brokerName=name address") | {"acl": "2.0"} | shown for broker in found.brokers]


def print_user(found: BrokerUsers, user: UserInfo, secrets: bool) -> None:
    username = user.username or ""
    texts = "\n".join(map(_text, _permissions(found, username)))
    show.record(
        {
            "type": user.user_type,
            "status": user.user_status,
            "permissions": "everything" if user.user_type == "Super" else texts or "none",
            "password": _shown(user, secrets)["password"] or "not reported",
        },
        f"{username} on {_names(found)}: ACL 2.0",
    )


# --- changes of users -------------------------------------------------------------------------------------------------


def update_user(
    admin: Admin,
    access: Sequence[BrokerAccess],
    username: str,
    *,
    password: str | None,
    prompt: Callable[[str], str],
    is_super: bool | None,
    is_enabled: bool | None,
    yes: bool,
    failed: Failures,
) -> tuple[str, list[str]] | None:
    """Create or change a user after confirmation; return what was done, and where. None if nothing had to be."""
    states = admin.broker_users(access, failed=failed)
    if failed:
        return None
    if password is None and any(one.user(username) is None for one in states):
        password = prompt(username)
    given: dict[str, Any] = {
        "password": password,
        "user_type": None if is_super is None else ("Super" if is_super else "Normal"),
        "user_status": None if is_enabled is None else ("enable" if is_enabled else "disable"),
    }
    changes = [(one, rows) for one in states if (rows := _changes(one.user(username), given))]
    if not changes:
        print("Already up to date.")
        return None
    for one, rows in changes:
        show.table(rows, _CHANGES, title=f"On {_names(one)}:")
    show.confirm(f"Apply these changes to user {username}?", yes)
    done: list[str] = []
    for one, _ in changes:
        is_new = one.user(username) is None
        for broker in one.brokers:
            where: dict[str, Any] = {"broker": broker.address, "failed": failed}
            if is_new:
                done += admin.create_user(username, password or "", user_type=given["user_type"] or "Normal", **where)
            if not is_new or is_enabled is False:
                done += admin.update_user(username, **given, **where)
    return f"Updated user {username}", list(dict.fromkeys(done))


_CHANGES = (Column("name", "WHAT"), Column("from", "NOW"), Column("to", "THEN"))


def _changes(user: UserInfo | None, given: dict[str, Any]) -> list[dict[str, Any]]:
    names = {"password": "password", "user_type": "type", "user_status": "status"}
    rows = []
    for field, name in names.items():
        value = given[field] or ("Normal" if user is None and field == "user_type" else None)
        before = getattr(user, field) if user is not None else None
        if value is None or value == before:
            continue
        hidden = field == "password"
        rows.append({"name": name, "from": HIDDEN if hidden and before else before, "to": HIDDEN if hidden else value})
    return rows


def delete_user(
    admin: Admin, access: Sequence[BrokerAccess], username: str, *, yes: bool, failed: Failures
) -> list[str] | None:
    """Delete a user after confirmation; return where. None if brokers did not respond."""
    states = admin.broker_users(access, failed=failed)
    if failed:
        return None
    having = [one for one in states if one.user(username) is not None]
    if not having:
        raise unknown_user(username)
    print(f"User {username} is on {', '.join(map(_names, having))}.")
    if any([user.username for user in one.users if user.user_type == "Super"] == [username] for one in having):
        print("It is the last Super user. Without one, users cannot be changed.")
    show.confirm(f"Delete user {username} with its permissions?", yes)
    done: list[str] = []
    for broker in (broker for one in having for broker in one.brokers):
        done += admin.delete_user(username, broker=broker.address, failed=failed)
    return done


def unknown_user(username: str) -> ClientError:
    return ClientError(f"No broker has a user {username!r}.", remedy="`rocket acl list` shows the users.")


# --- changes of permissions -------------------------------------------------------------------------------------------


def _action(text: str) -> list[str]:
    names = {name.lower(): name for name in _ACTIONS}
    found = []
    for part in text.replace("|", ",").split(","):
        name = names.get(part.strip().lower())
        if name is None:
            raise click.BadParameter(f"invalid action {part!r}: use {', '.join(_ACTIONS)}")
        found.append(name)
    return found


_username = click.argument("username", metavar="USER")
_default = click.option("--default", "is_default", is_flag=True, help="of the Default policy, where no other matches")
_INSTEAD = "use `rocket acl update {} --topic TOPIC=PERM --group GROUP=PERM`."


def _decision_arguments(verb: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments and options of :func:`_put`."""
    for decorator in (
        where_options,
        _default,
        click.option("--from", "sources", multiple=True, metavar="ADDRESS", help="only from this address or network"),
        connection,
        click.argument("actions", type=_action, nargs=-1, required=True, metavar="ACTION…"),
        click.argument("resource", metavar="RESOURCE"),
        _username,
    ):
        verb = decorator(verb)
    return verb


@click.command(short_help="allow a user actions on a resource (ACL 2.0)")
@_decision_arguments
def allow(**given: Any) -> None:
    """Allow USER actions on RESOURCE: Topic:NAME, Group:NAME or Cluster:NAME, with * at the end for a prefix, or '*'.

    ACTION is Pub, Sub, Create, Update, Delete, Get, List or All. Actions that are allowed already stay.

    \b
    rocket acl allow billing Topic:orders Sub Get
    rocket acl allow billing 'Group:billing*' Sub Get
    """
    _put("Allow", **given)


@click.command(short_help="deny a user actions on a resource (ACL 2.0)")
@_decision_arguments
def deny(**given: Any) -> None:
    """Deny USER actions on RESOURCE. The most specific resource decides. A resource is either allowed or denied."""
    _put("Deny", **given)


def _put(
    decision: str,
    *,
    link: Link,
    username: str,
    resource: str,
    actions: tuple[list[str], ...],
    sources: tuple[str, ...],
    is_default: bool,
    where: dict[str, str | None],
) -> None:
    from spark_rocket.client.admin.base import record_failure

    policy_type = "Default" if is_default else "Custom"
    with link.partial() as (admin, failed):
        resource = admin.namespace.wrap_resource(resource)
        access = admin.access_modes(**where, failed=failed)
        _check_users(access, _INSTEAD.format(username))
        given = list(dict.fromkeys(action for part in actions for action in part))
        done: list[str] = []
        for broker in access:
            with record_failure(failed, broker.name):
                known = _entry(admin.acl(broker.address, username), resource, policy_type)
                names, ips = given, list(sources)
                if known is not None and known.decision == decision:
                    names, ips = list(dict.fromkeys((*known.actions, *given))), ips or known.source_ips or []
                more: dict[str, Any] = {"decision": decision, "policy_type": policy_type, "broker": broker.address}
                admin.put_permission(username, resource, names, source_ips=ips, **more)
                done.append(broker.name)
        verb = "Allowed" if decision == "Allow" else "Denied"
        report(f"{verb} {username} {','.join(given)} on {resource}", done, failed)


def _entry(acl: AclInfo | None, resource: str, policy_type: str) -> PolicyEntryInfo | None:
    """The entry of a resource. The kind of a resource has any case."""
    kind, colon, name = resource.partition(":")
    key = f"{kind.capitalize()}{colon}{name}"
    policies = [] if acl is None else [one for one in acl.policies if (one.policy_type or "Custom") == policy_type]
    return next((entry for one in policies for entry in one.entries if entry.resource == key), None)


@click.command(short_help="delete permissions of a user (ACL 2.0)")
@_username
@click.argument("resource", metavar="[RESOURCE]", required=False)
@connection
@_default
@where_options
@yes_option
def revoke(
    link: Link, username: str, resource: str | None, is_default: bool, where: dict[str, str | None], yes: bool
) -> None:
    """Delete the permission of USER on RESOURCE, or without RESOURCE all of its permissions, after confirmation."""
    with link.partial() as (admin, failed):
        _check_users(admin.access_modes(**where, failed=failed), _INSTEAD.format(username))
        resource = resource and admin.namespace.wrap_resource(resource)
        what = f"the permission of {username} on {resource}" if resource else f"all permissions of {username}"
        show.confirm(f"Delete {what}?", yes)
        policy_type = "Default" if is_default else "Custom"
        done = admin.delete_permission(username, resource, policy_type=policy_type, **where, failed=failed)
        report(f"Deleted {what}", done, failed)


def report(what: str, done: Sequence[str], failed: Failures) -> None:
    if done:
        print(f"{what} on {', '.join(done)} only." if failed else f"{what}.")
