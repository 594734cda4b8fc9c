"""``rocket acl …``: accounts of brokers with ACL 1.0, users with permissions of brokers with ACL 2.0 (``acl_users``).

The verbs ask the brokers which kind they have. Each broker has its own accounts or users. Without ``--broker`` or
``--cluster``, the verbs apply to all brokers, including slaves. Brokers with equal accounts are shown together.

Exit status: 0 success, 1 failure at one broker or more, 2 invalid command line.
Corresponds to mqadmin's updateAclConfig, deleteAclConfig, updateGlobalWhiteAddr, clusterAclConfigVersion, getAclConfig.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import PATH, exclusive, json_option, text_of, yes_option
from spark_rocket.cli.commands import acl_users
from spark_rocket.cli.commands.acl_users import HIDDEN, allow, deny, of_mode, one_mode, revoke, where_options
from spark_rocket.cli.connect import Link, connection
from spark_rocket.cli.show import Column
from spark_rocket.cli.verbs import VerbGroup
from spark_rocket.common.attributes import pick
from spark_rocket.common.units import second_text
from spark_rocket.errors import ClientError

if TYPE_CHECKING:
    from spark_rocket.client import Admin
    from spark_rocket.client.admin import AclVersion, BrokerAccess, BrokerAccounts, BrokerUsers, Failures
    from spark_rocket.protocol.namespace import Namespace
    from spark_rocket.protocol.wire.bodies.config import PlainAccessConfig

_PERMISSIONS = ("DENY", "PUB", "SUB", "PUB|SUB")
_VERSION = "cluster brokerName=broker address"


_secrets = click.option("--secrets", is_flag=True, help="show secret keys")


@click.group(cls=VerbGroup)
def acl() -> None:
    """Manage accounts (ACL 1.0), or users and permissions (ACL 2.0), of brokers with access control.

    These verbs need the account of an administrator or Super user (--access-key or --credentials).
    """


acl.add_command(allow)
acl.add_command(deny)
acl.add_command(revoke)


def _title(found: BrokerAccounts) -> str:
    return "\n".join(
        f"{one.broker} {one.address}: ACL 1.0, version {one.counter}"
        + (f" of {second_text(one.changed_ms)}" if one.changed_ms else "")
        for one in found.versions
    )


def _names(found: BrokerAccounts) -> str:
    return ", ".join(f"{one.broker} {one.address}" for one in found.versions)


def _document(found: BrokerAccounts, version: AclVersion, secrets: bool) -> dict[str, Any]:
    accounts = None
    if found.config is not None:
        accounts = [_hidden(one, secrets).to_value() for one in found.config.plain_access_configs]
    return {
        **pick(version, f"{_VERSION} version=counter changed=changed_ms"),
        "acl": "1.0",
        "globalWhiteAddrs": found.config.global_white_addrs if found.config is not None else None,
        "accounts": accounts,
    }


def _hidden(account: PlainAccessConfig, secrets: bool) -> PlainAccessConfig:
    return account if secrets or account.secret_key is None else replace(account, secret_key=HIDDEN)


def _row(account: PlainAccessConfig) -> dict[str, Any]:
    from spark_rocket.client.admin import default_perms

    return account.to_value() | dict(zip(("defaultTopicPerm", "defaultGroupPerm"), default_perms(account), strict=True))


_ACCOUNTS = (
    Column("accessKey", "ACCESS KEY"),
    Column("admin"),
    Column("topicPerms", "TOPICS"),
    Column("groupPerms", "GROUPS"),
    Column("defaultTopicPerm", "OTHER TOPICS"),
    Column("defaultGroupPerm", "OTHER GROUPS"),
    Column("whiteRemoteAddress", "UNSIGNED FROM", spare=True),
    Column("secretKey", "SECRET KEY", spare=True),
)


@acl.command("list", short_help="accounts, or users, of brokers")
@connection
@where_options
@_secrets
@json_option
def list_accounts(link: Link, where: dict[str, str | None], secrets: bool, as_json: bool) -> None:
    """List accounts or users with their permissions, and the kind of access control of each broker.

    For ACL 1.0, also white-listed addresses, and the version of each broker's file.
    """
    with link.partial() as (admin, failed):
        access = admin.access_modes(**where, failed=failed)
        states, users, off = _states(admin, access, failed)
        if as_json:
            documents = [_document(one, version, secrets) for one in states for version in one.versions]
            documents += [document for one in users for document in acl_users.document(one, secrets)]
            show.document([*documents, *(pick(one, "brokerName=name address") | {"acl": None} for one in off)])
            return
        prints = [partial(_print_accounts, one, secrets) for one in states]
        prints += [partial(acl_users.print_users, one, secrets) for one in users]
        open_brokers = [f"{one.name} {one.address}: no access control. Every client may do everything." for one in off]
        prints += [partial(print, line) for line in open_brokers]
        _print_each(prints)


def _states(
    admin: Admin, access: Sequence[BrokerAccess], failed: Failures
) -> tuple[list[BrokerAccounts], list[BrokerUsers], list[BrokerAccess]]:
    """Return what brokers with accounts, with users and without access control have."""
    from spark_rocket.client.admin import AccessMode

    accounts: list[BrokerAccounts] = []
    if plain := of_mode(access, AccessMode.PLAIN):
        accounts = admin.broker_accounts(brokers=plain, failed=failed)
    users = admin.broker_users(of_mode(access, AccessMode.AUTH), failed=failed)
    return accounts, users, of_mode(access, AccessMode.OFF)


def _print_accounts(one: BrokerAccounts, secrets: bool) -> None:
    if one.config is None:
        print(f"{_title(one)}\nThese brokers do not report their accounts.")
        return
    white = ", ".join(one.config.global_white_addrs)
    show.table(
        [_row(_hidden(account, secrets)) for account in one.config.plain_access_configs],
        _ACCOUNTS if secrets else _ACCOUNTS[:-1],
        title=_title(one),
        foot=f"All permissions without a signature: {white}." if white else "",
        empty="No accounts.",
    )


@acl.command("show", short_help="one account, or user")
@click.argument("key", metavar="ACCESS_KEY")
@connection
@where_options
@_secrets
@json_option
def show_account(link: Link, key: str, where: dict[str, str | None], secrets: bool, as_json: bool) -> None:
    """Show the permissions of the account, or user, ACCESS_KEY on each broker that has it."""
    with link.partial() as (admin, failed):
        states, of_users, _ = _states(admin, admin.access_modes(**where, failed=failed), failed)
        found = [(one, account) for one in states if (account := one.account(key)) is not None]
        users = [(one, user) for one in of_users if (user := one.user(key)) is not None]
        if not found and not users:
            _check_complete(states, failed)
            raise _unknown(key) if states or not of_users else acl_users.unknown_user(key)
        if as_json:
            documents = [
                pick(version, _VERSION) | {"acl": "1.0"} | _hidden(account, secrets).to_value()
                for one, account in found
                for version in one.versions
            ]
            documents += [document for pair in users for document in acl_users.user_documents(*pair, secrets)]
            show.document(documents)
            return
        prints = [partial(_print_account, one, account, secrets) for one, account in found]
        prints += [partial(acl_users.print_user, one, user, secrets) for one, user in users]
        _print_each(prints)


def _print_each(prints: Sequence[Callable[[], None]]) -> None:
    for i, print_one in enumerate(prints):
        if i:
            print()
        print_one()


def _print_account(one: BrokerAccounts, account: PlainAccessConfig, secrets: bool) -> None:
    show.record(
        {
            "administrator": account.admin,
            "topics": account.topic_perms,
            "other topics": _row(account)["defaultTopicPerm"],
            "groups": account.group_perms,
            "other groups": _row(account)["defaultGroupPerm"],
            "unsigned from": account.white_remote_address,
            "secret key": _hidden(account, secrets).secret_key or "not reported",
        },
        f"{account.access_key} on {_names(one)}: ACL 1.0",
    )


def _check_complete(states: Sequence[BrokerAccounts], failed: Failures) -> None:
    """Raise if a broker did not report its accounts: the account may exist there."""
    if failed:
        raise next(iter(failed.values()))
    if any(one.config is None for one in states):
        raise ClientError("These brokers do not report their accounts.", remedy="Check their plain_acl.yml.")


def _unknown(access_key: str) -> ClientError:
    return ClientError(f"No broker has an account {access_key!r}.", remedy="`rocket acl list` shows the accounts.")


# --- changes ---------------------------------------------------------------------------------------------------------


def _permission(text: str) -> str:
    found = text.strip().upper()
    if found == "SUB|PUB":
        return "PUB|SUB"
    if found not in _PERMISSIONS:
        raise click.BadParameter(f"invalid permission {text!r}: use {', '.join(_PERMISSIONS[:-1])} or 'PUB|SUB'")
    return found


def _named_permission(text: str) -> tuple[str, str]:
    name, equals, permission = text.partition("=")
    if not equals or not name.strip() or "," in name:
        raise click.BadParameter(f"invalid NAME=PERMISSION {text!r}: use for example orders=PUB or orders='PUB|SUB'")
    return name.strip(), _permission(permission)


@acl.command(short_help="create or change an account, or user")
@click.argument("key", metavar="ACCESS_KEY")
@connection
@click.option(
    "--secret", metavar="KEY", help="secret key, visible to all users of this machine; prompted for a new account"
)
@click.option("--secret-file", type=PATH, metavar="FILE", help="file with only the secret key, - for stdin")
@click.option(
    "--admin/--no-admin", "is_admin", default=None, help="administrator, or Super user, rights (new accounts: none)"
)
@click.option("--enable/--disable", "is_enabled", default=None, help="status of a user (ACL 2.0)")
@click.option(
    "--topic", "topics", type=_named_permission, multiple=True, metavar="TOPIC=PERM", help="permission on a topic"
)
@click.option(
    "--group", "groups", type=_named_permission, multiple=True, metavar="GROUP=PERM", help="permission on a group"
)
@click.option("--no-topic", "no_topics", multiple=True, metavar="TOPIC", help="remove the entry of this topic")
@click.option("--no-group", "no_groups", multiple=True, metavar="GROUP", help="remove the entry of this group")
@click.option("--other-topics", type=_permission, metavar="PERM", help="permission on all other topics (DENY)")
@click.option("--other-groups", type=_permission, metavar="PERM", help="permission on all other groups (DENY)")
@click.option("--unsigned-from", metavar="ADDRESS", help="address that needs no signature; '' for none")
@where_options
@yes_option
def update(
    link: Link,
    key: str,
    secret: str | None,
    secret_file: Path | None,
    is_admin: bool | None,
    is_enabled: bool | None,
    topics: tuple[tuple[str, str], ...],
    groups: tuple[tuple[str, str], ...],
    no_topics: tuple[str, ...],
    no_groups: tuple[str, ...],
    other_topics: str | None,
    other_groups: str | None,
    unsigned_from: str | None,
    where: dict[str, str | None],
    yes: bool,
) -> None:
    """Create or change the account, or user, ACCESS_KEY. Other settings stay. Shows the changes, asks for confirmation.

    PERM is PUB (send), SUB (consume), 'PUB|SUB' or DENY. With ACL 2.0, `rocket acl allow` sets permissions.

    \b
    rocket acl update billing --topic orders=SUB --group billing=SUB
    """
    exclusive({"--secret": secret, "--secret-file": secret_file})
    secret = _secret(secret, secret_file)
    plain: dict[str, object] = {"--topic": topics, "--group": groups, "--no-topic": no_topics, "--no-group": no_groups}
    plain |= {"--other-topics": other_topics, "--other-groups": other_groups, "--unsigned-from": unsigned_from}
    with link.partial() as (admin, failed):
        access = admin.access_modes(**where, failed=failed)
        if failed:
            return
        if _has_users(access, plain, {"--enable or --disable": is_enabled}):
            options: dict[str, Any] = {"password": secret, "is_super": is_admin, "is_enabled": is_enabled}
            changed = acl_users.update_user(
                admin, access, key, **options, prompt=_prompt_secret, yes=yes, failed=failed
            )
            if changed is not None:
                acl_users.report(*changed, failed)
            return
        states = admin.broker_accounts(brokers=access, failed=failed)
        if failed:
            return
        known = [one.account(key) for one in states]
        if any(one.config is None for one in states) and is_admin is None:
            raise click.UsageError("These brokers do not report their accounts: give --admin or --no-admin.")
        if secret is None and None in known and all(one.config is not None for one in states):
            secret = _prompt_secret(key)
        changes: list[tuple[BrokerAccounts, dict[str, Any]]] = []
        for one, account in zip(states, known, strict=True):
            given: dict[str, Any] = {
                "admin": (account is not None and account.admin) if is_admin is None else is_admin,
                "topic_perms": _merged(account.topic_perms if account else None, topics, no_topics, admin.namespace),
                "group_perms": _merged(account.group_perms if account else None, groups, no_groups, admin.namespace),
                "default_topic_perm": other_topics,
                "default_group_perm": other_groups,
                "white_remote_address": unsigned_from,
                "secret_key": secret,
            }
            if rows := _changes(account, given):
                changes.append((one, given))
                show.table(rows, _CHANGES, title=f"On {_names(one)}:")
        if not changes:
            print("Already up to date.")
            return
        show.confirm(f"Apply these changes to account {key}?", yes)
        done: list[str] = []
        for one, given in changes:
            for version in one.versions:
                done += admin.update_account(key, **given, broker=version.address, failed=failed)
        acl_users.report(f"Updated account {key}", done, failed)


def _has_users(access: Sequence[BrokerAccess], plain: Mapping[str, object], of_users: Mapping[str, object]) -> bool:
    """Whether the brokers have users. UsageError for options of the other kind."""
    from spark_rocket.client.admin import AccessMode

    is_users = one_mode(access) is AccessMode.AUTH
    given = [name for name, value in (plain if is_users else of_users).items() if value not in (None, ())]
    if given and is_users:
        raise click.UsageError(
            f"These brokers have users (ACL 2.0), without {given[0]}: use `rocket acl allow USER RESOURCE ACTION…`."
        )
    if given:
        raise click.UsageError(f"These brokers have accounts (ACL 1.0), without {given[0]}.")
    return is_users


def _secret(secret: str | None, file: Path | None) -> str | None:
    return secret if file is None else text_of(file).strip()


def _prompt_secret(access_key: str) -> str:
    if not sys.stdin.isatty():
        raise click.UsageError(f"Account {access_key} is new: give --secret-file (- for stdin) or --secret.")
    found: str = click.prompt(f"Secret key of {access_key}", hide_input=True, confirmation_prompt=True, err=True)
    return found


def _merged(
    known: list[str] | None, given: Sequence[tuple[str, str]], taken: Sequence[str], namespace: Namespace
) -> list[str] | None:
    """Return the complete list, which brokers require, with the names on the wire; None for no change."""
    if not given and not taken:
        return None
    given, taken = [(namespace.wrap(name), one) for name, one in given], [namespace.wrap(name) for name in taken]
    table = dict(one.split("=", 1) for one in known or ())
    table = {name.strip(): permission.strip() for name, permission in table.items()} | dict(given)
    return [f"{name}={permission}" for name, permission in table.items() if name not in taken]


_CHANGES = (Column("name", "WHAT"), Column("from", "NOW"), Column("to", "THEN"))
_NAMES = {
    "admin": "administrator",
    "topic_perms": "topics",
    "group_perms": "groups",
    "default_topic_perm": "other topics",
    "default_group_perm": "other groups",
    "white_remote_address": "unsigned from",
    "secret_key": "secret key",
}


def _changes(account: PlainAccessConfig | None, given: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, value in given.items():
        before = getattr(account, name) if account is not None else None
        if value is None or (value == before and account is not None):
            continue
        shown = (HIDDEN if before else None, HIDDEN) if name == "secret_key" else (before, value)
        rows.append({"name": _NAMES[name], "from": shown[0], "to": shown[1]})
    return rows


@acl.command(short_help="delete an account, or user")
@click.argument("key", metavar="ACCESS_KEY")
@connection
@where_options
@yes_option
def delete(link: Link, key: str, where: dict[str, str | None], yes: bool) -> None:
    """Delete the account, or user, ACCESS_KEY, after confirmation. Its next requests are refused."""
    with link.partial() as (admin, failed):
        access = admin.access_modes(**where, failed=failed)
        if failed:
            return
        if _has_users(access, {}, {}):
            deleted = acl_users.delete_user(admin, access, key, yes=yes, failed=failed)
            if deleted is not None:
                acl_users.report(f"Deleted user {key}", deleted, failed)
            return
        states = admin.broker_accounts(brokers=access, failed=failed)
        if failed:
            return
        having = [one for one in states if one.config is None or one.account(key) is not None]
        if not having:
            raise _unknown(key)
        print(f"Account {key} is on {', '.join(_names(one) for one in having)}.")
        if any(_is_last_admin(one, key) for one in having):
            print("It is the last administrator. Without one, accounts can be changed only in the brokers' files.")
        show.confirm(f"Delete account {key}?", yes)
        addresses = [version.address for one in having for version in one.versions]
        done = admin.delete_account_of(key, addresses, failed=failed)
        acl_users.report(f"Deleted account {key}", done, failed)


def _is_last_admin(one: BrokerAccounts, access_key: str) -> bool:
    accounts = one.config.plain_access_configs if one.config is not None else []
    return [account.access_key for account in accounts if account.admin] == [access_key]


@acl.command("white-list", short_help="show or set addresses with all permissions")
@click.argument("addresses", nargs=-1, metavar="[ADDRESS]…")
@connection
@click.option("--clear", is_flag=True, help="remove all addresses")
@where_options
@yes_option
@json_option
def white_list(
    link: Link,
    addresses: tuple[str, ...],
    clear: bool,
    where: dict[str, str | None],
    yes: bool,
    as_json: bool,
) -> None:
    """Show the addresses that have all permissions without a signature, or replace them with ADDRESS….

    ADDRESS is an address (10.0.0.7), a pattern (10.0.0.*, 10.0.*.*), a set ('10.0.0.{7,9}') or a range (10.0.0.5-20).
    """
    exclusive({"ADDRESS": addresses or None, "--clear": clear, "--json": as_json})
    with link.partial() as (admin, failed):
        access = admin.access_modes(**where, failed=failed)
        _has_users(access, {"a white list": True}, {})
        states = admin.broker_accounts(brokers=access, failed=failed)
        rows = [
            pick(version, "brokerName=broker address")
            | {"globalWhiteAddrs": None if one.config is None else one.config.global_white_addrs}
            for one in states
            for version in one.versions
        ]
        if as_json:
            show.document(rows)
            return
        show.table(rows, _WHITE, empty="No broker reports its white list.")
        if failed or not (addresses or clear):
            return
        them = ", ".join(addresses) if addresses else "no address"
        show.confirm(f"Grant all permissions without a signature to {them} only?", yes)
        done = admin.update_global_white_addrs(addresses, **where, failed=failed)
        acl_users.report("Updated the white list", done, failed)


_WHITE = (
    Column("brokerName", "BROKER"),
    Column("address"),
    Column("globalWhiteAddrs", "WHITE LIST"),
)
