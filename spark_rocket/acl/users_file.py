"""The file of users and policies: ``users.json`` in ``authConfigPath``, by default ``config/auth`` of the store.

::

    {"users": [UserInfo, …], "acls": [AclInfo, …]}

Apache's broker has the same content in RocksDB. Passwords are plain text, so only the broker's user may read the file.

After a crash: the old or the new content, as :func:`~spark_rocket.common.files.replace_file` guarantees.
Thread-safety: one change at a time. Corresponds to LocalAuthenticationMetadataProvider and
LocalAuthorizationMetadataProvider.
"""

from __future__ import annotations

import os
from pathlib import Path

from spark_rocket.acl.user_table import UserTable
from spark_rocket.common.files import replace_file
from spark_rocket.errors import ConfigError, ProtocolError, RefusedError
from spark_rocket.protocol.wire.bodies.config import AclInfo, UserInfo
from spark_rocket.protocol.wire.json import dumps_standard, loads_tolerant

FILE_NAME = "users.json"
MAX_FILE_BYTES = 64 * 1024 * 1024


def read_users(path: Path) -> UserTable:
    """Read the file; an empty table if there is none. ConfigError if it is invalid or cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return UserTable()
    except OSError as error:
        raise _invalid(path, f"it cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise _invalid(path, f"it is larger than {MAX_FILE_BYTES:,} bytes")
    try:
        value = loads_tolerant(content)
        if not isinstance(value, dict) or not all(isinstance(value.get(name), list) for name in ("users", "acls")):
            raise _invalid(path, "it has no lists 'users' and 'acls'")
        return UserTable.of(map(UserInfo.from_value, value["users"]), map(AclInfo.from_value, value["acls"]))
    except ProtocolError:  # without its text, which may quote a password
        raise _invalid(path, "it is not JSON with users and policies") from None
    except RefusedError as error:
        raise _invalid(path, error.message) from None


def write_users(path: Path, table: UserTable) -> None:
    """Replace the file; on return it is fsynced. OSError if it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    users = [user.to_info(with_password=True).to_value() for user in table.users.values()]
    acls = [user.policies.to_info(name).to_value() for name, user in table.users.items() if len(user.policies)]
    replace_file(path, dumps_standard({"users": users, "acls": acls}), path.stat())


def _invalid(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"Invalid file of users {path}: {reason}.",
        remedy="Restore it from a backup, or delete it to start with initAuthenticationUser only.",
    )
