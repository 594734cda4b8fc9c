"""Accounts of ``plain_acl.yml`` as users and policies (``migrateAuthFromV1Enabled``).

An account becomes a user unless one of its name exists. Entries for topics and groups become its custom policy, the
default permissions its default policy. PUB and SUB become Pub and Sub; DENY denies all actions. As in Apache's broker,
reads of offsets need the action Get in addition, and addresses of white lists are not converted.

Thread-safety: pure functions but for the file. Corresponds to org.apache.rocketmq.auth.migration.AuthMigrator.
"""

from __future__ import annotations

from pathlib import Path

from spark_rocket.acl.accounts_file import AccountsFile
from spark_rocket.acl.policies import ALL, ALLOW, CUSTOM, DEFAULT, DENY, USER_PREFIX
from spark_rocket.acl.user_table import NORMAL, SUPER, UserTable
from spark_rocket.protocol.wire.bodies.config import AclInfo, PlainAccessConfig, PolicyEntryInfo, PolicyInfo, UserInfo


def migrated(table: UserTable, path: Path) -> UserTable:
    """Return the table with the accounts of the file. ConfigError for an invalid file, RefusedError for a name."""
    for account in AccountsFile.read(path).accounts:
        if account.access_key in table.users:
            continue
        table = table.with_created(UserInfo(account.access_key, account.secret_key, SUPER if account.admin else NORMAL))
        policies = _policies(account)
        if policies:
            subject = USER_PREFIX + account.access_key
            table = table.with_acl(subject, AclInfo(subject, policies))
    return table


def _policies(account: PlainAccessConfig) -> list[PolicyInfo]:
    custom = [
        _entry(f"{kind}:{name.strip()}", permission)
        for kind, given in (("Topic", account.topic_perms), ("Group", account.group_perms))
        for name, _, permission in (one.partition("=") for one in given or ())
    ]
    default = [
        _entry(f"{kind}:*", permission)
        for kind, permission in (("Topic", account.default_topic_perm), ("Group", account.default_group_perm))
        if permission
    ]
    return [PolicyInfo(kind, entries) for kind, entries in ((CUSTOM, custom), (DEFAULT, default)) if entries]


def _entry(resource: str, permission: str) -> PolicyEntryInfo:
    permission = permission.strip()
    if permission == "DENY":
        return PolicyEntryInfo(resource, [ALL], None, DENY)
    return PolicyEntryInfo(resource, [part.capitalize() for part in permission.split("|")], None, ALLOW)
