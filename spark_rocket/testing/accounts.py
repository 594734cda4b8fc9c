"""Access control of a test cluster: accounts of ACL 1.0 (``plain_acl.yml``), or users with policies (ACL 2.0).

Permissions have one notation for both kinds: a resource of ACL 2.0, and the actions on it. For ACL 1.0, the actions Pub
and Sub become PUB and SUB, and a resource is one name, or ``*`` for the default permission.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

from spark_rocket.client import Admin
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.auth import Credentials, inner_credentials_text

Permissions = Mapping[str, Iterable[str]]
"""``{"Topic:orders": ["Sub", "Get"], "Group:billing": ["Sub"]}``"""


class AclKind(StrEnum):
    """The kind of access control of a cluster."""

    V1 = "1.0"
    """Accounts of ``plain_acl.yml``."""
    V2 = "2.0"
    """Users with policies."""

    @classmethod
    def of(cls, text: str) -> AclKind:
        try:
            return cls(text)
        except ValueError:
            raise ConfigError(f"Invalid acl {text!r}.", remedy='Use "1.0" or "2.0".') from None

    def settings(self, administrator: Credentials, file: Path) -> dict[str, object]:
        """Broker settings with one administrator. For ACL 1.0, ``file`` is created if missing."""
        own: dict[str, object] = {"innerClientAuthenticationCredentials": inner_credentials_text(administrator)}
        if self is AclKind.V2:
            return own | {"authenticationEnabled": True, "authorizationEnabled": True}
        if not file.exists():
            access_key, secret_key = json.dumps(administrator.access_key), json.dumps(administrator.secret_key)
            file.touch(0o600)
            file.write_text(
                f"accounts:\n  - accessKey: {access_key}\n    secretKey: {secret_key}\n    admin: true\n",
                encoding="utf-8",
            )
        return own | {"aclEnable": True, "aclFile": str(file)}

    def set_account(self, admin: Admin, account: Credentials, permissions: Permissions) -> None:
        """Create or replace an account on all brokers."""
        if self is AclKind.V2:
            admin.delete_user(account.access_key)
            admin.create_user(account.access_key, account.secret_key)
            for resource, actions in permissions.items():
                admin.put_permission(account.access_key, resource, list(actions))
            return
        topics, groups = (_plain_permissions(kind, permissions) for kind in ("Topic", "Group"))
        admin.update_account(
            account.access_key,
            admin=False,
            secret_key=account.secret_key,
            default_topic_perm=topics.pop("*", "DENY"),
            default_group_perm=groups.pop("*", "DENY"),
            topic_perms=[f"{name}={permission}" for name, permission in topics.items()],
            group_perms=[f"{name}={permission}" for name, permission in groups.items()],
        )


def _plain_permissions(kind: str, permissions: Permissions) -> dict[str, str]:
    """The permissions of ACL 1.0 on topics or groups by name: ``PUB|SUB``."""
    found = {}
    for resource, actions in permissions.items():
        of_kind, _, name = resource.partition(":")
        if of_kind not in ("Topic", "Group") or (name.endswith("*") and name != "*"):
            raise ConfigError(
                f"ACL 1.0 has no resource {resource!r}.", remedy="Use Topic:NAME or Group:NAME, with * for all names."
            )
        if of_kind == kind:
            found[name] = "|".join(action.upper() for action in actions if action in ("Pub", "Sub")) or "DENY"
    return found
