"""Reading and changing ``plain_acl.yml`` by request.

A change reads the present file, creates the new content, validates it with the same parser (``rules``), and only then
replaces the file atomically, with the file's permissions. The previous content is retained as ``.bak``. Each change
increments the file's ``dataVersion``. Comments are lost, as with Apache's broker; the ``.bak`` has them.

Thread-safety: one change at a time. Corresponds to PlainPermissionManager.{updateAccessConfig, deleteAccessConfig,
updateGlobalWhiteAddrsConfig, getAllAclConfig} of RocketMQ 4.9 and AclUtils.writeDataObject.
"""

from __future__ import annotations

import logging
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from spark_rocket.acl.rules import OF_ACCOUNT, AclRules, read_file
from spark_rocket.common.files import replace_file
from spark_rocket.errors import ConfigError, ProtocolError
from spark_rocket.protocol.wire.bodies.config import DataVersion, PlainAccessConfig
from spark_rocket.protocol.wire.headers.admin import CreateAccessConfigRequestHeader

_log = logging.getLogger(__name__)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PART = re.compile(r"(?:[^,{]|\{[^}]*\}?)+")  # commas within braces are not separators: 10.0.0.{7,9}


@dataclass(slots=True)
class AccountsFile:
    """The file's content, for changes."""

    white: list[str]
    accounts: list[PlainAccessConfig]
    version: DataVersion

    @classmethod
    def of(cls, content: bytes, source: str) -> AccountsFile:
        """Parse a file's content; ConfigError as from ``AclRules.from_bytes``."""
        AclRules.from_bytes(content, source)
        values = _plain(yaml.compose(content, Loader=_LOADER))
        accounts = values.get("accounts") or []
        return cls(
            values.get("globalWhiteRemoteAddresses") or [],
            [PlainAccessConfig.from_value(account) for account in accounts],
            _version(values.get("dataVersion")),
        )

    @classmethod
    def read(cls, path: Path) -> AccountsFile:
        return cls.of(read_file(path), str(path))

    def put(self, given: CreateAccessConfigRequestHeader) -> None:
        """Create or change an account: missing fields are not changed, empty permissions or addresses are removed."""
        account = next((one for one in self.accounts if one.access_key == given.access_key), None)
        if account is None:
            account = PlainAccessConfig(given.access_key)
            self.accounts.append(account)
        account.secret_key = given.secret_key or account.secret_key
        account.admin = given.admin
        account.default_topic_perm = given.default_topic_perm or account.default_topic_perm
        account.default_group_perm = given.default_group_perm or account.default_group_perm
        if given.white_remote_address is not None:
            account.white_remote_address = given.white_remote_address
        if given.topic_perms is not None:
            account.topic_perms = _parts(given.topic_perms)
        if given.group_perms is not None:
            account.group_perms = _parts(given.group_perms)

    def delete(self, access_key: str) -> bool:
        """Delete an account; False if it does not exist."""
        before = len(self.accounts)
        self.accounts = [account for account in self.accounts if account.access_key != access_key]
        return len(self.accounts) < before

    def set_white(self, addresses: str) -> None:
        """Replace the white list with these comma-separated addresses."""
        self.white = _parts(addresses)

    def to_yaml(self) -> bytes:
        accounts = [account.to_value() for account in self.accounts]
        values = {
            "globalWhiteRemoteAddresses": self.white,
            "accounts": [{name: one[name] for name in OF_ACCOUNT if name in one} for one in accounts],
            "dataVersion": [{"counter": self.version.counter, "timestamp": self.version.timestamp}],
        }
        text: bytes = yaml.dump(
            values, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=1 << 20, encoding="utf-8"
        )
        return text


def warn_if_open(path: Path) -> None:
    """Log a warning if every user can read or change the file: its secrets are plain text."""
    try:
        mode = path.stat().st_mode
    except OSError:  # it was read a moment ago; the next read reports a missing file
        return
    can = [verb for bit, verb in ((stat.S_IROTH, "read"), (stat.S_IWOTH, "change")) if mode & bit]
    if can:
        _log.warning(
            "Every user of this machine can %s the access control file %s (mode %03o), which has plain-text secrets. "
            "Run chmod 600 on it.",
            " and ".join(can),
            path,
            mode & 0o777,
        )


def change_file(path: Path, edit: Callable[[AccountsFile], None], now_ms: int) -> AclRules:
    """Change the file; returns its new rules.

    ConfigError for an invalid change, OSError if the file cannot be written; then nothing is changed.
    """
    path = path.resolve()  # replace the target of a symbolic link, not the link
    before = read_file(path)
    file = AccountsFile.of(before, str(path))
    edit(file)
    file.version = file.version.next(now_ms)
    try:
        content = file.to_yaml()
    except (yaml.YAMLError, UnicodeError):
        raise ConfigError("the change has a string that cannot be written as YAML.") from None
    rules = AclRules.from_bytes(content, "")
    like = path.stat()
    replace_file(path.with_name(path.name + ".bak"), before, like)
    replace_file(path, content, like)
    return rules


def _parts(text: str) -> list[str]:
    return [part.strip() for part in _PART.findall(text) if part.strip()]


def _plain(node: yaml.Node | None) -> Any:
    """The node's value with all scalars as strings, without YAML's conversions; None for null."""
    if isinstance(node, yaml.MappingNode):
        return {key.value: _plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    return None if node is None or node.tag == "tag:yaml.org,2002:null" else node.value


def _version(value: Any) -> DataVersion:
    """Parse a version; the initial one if it is missing or invalid, as in Apache's broker."""
    try:
        return DataVersion.from_value(value[0]) if isinstance(value, list) and value else DataVersion()
    except ProtocolError:
        return DataVersion()
