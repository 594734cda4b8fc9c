"""The rules in force of a ``plain_acl.yml``, and the authorization of requests.

Checks, in Apache's order: addresses of the global white list have all permissions. Otherwise the access key must exist.
From an address of the account's own white list, its access key is sufficient for all permissions. Otherwise the request
must be signed, and the account must have the required permissions. A refusal names account, resource and missing
permission, never a secret or a signature.

The file is checked every second. A change is loaded once two successive checks find the same file, so that a file
that is still being written is not loaded. It then applies to open connections, too. An invalid file is logged once,
with its line, and the rules remain unchanged; at the start it is an error.

Thread-safety: event loop only; the file is read on a thread. Corresponds to PlainPermissionManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from spark_rocket.acl.accounts_file import AccountsFile, change_file, warn_if_open
from spark_rocket.acl.refusals import Refusals
from spark_rocket.acl.rules import ANY, GROUP, PUB, SUB, TOPIC, Account, AclRules, Needs, for_all
from spark_rocket.errors import ConfigError, RefusedError
from spark_rocket.protocol.requests.needs import Pair, Permission, Resource

_log = logging.getLogger(__name__)

FILE_CHECK_INTERVAL_S = 1.0
_PERMISSIONS = {Permission.PUB: PUB, Permission.SUB: SUB, Permission.ANY: ANY}
_NAMES = {permission: name.value for name, permission in _PERMISSIONS.items()}

_Stat = tuple[int, int, int] | None


class AccountControl(Refusals):
    """The rules of one file. Each protocol's checks are a subclass."""

    def __init__(self, path: Path, *, clock: Callable[[], int]) -> None:
        """Load the file; ConfigError if it is invalid. ``clock``: the wall clock, in milliseconds."""
        super().__init__()
        self.path = path
        self._loaded = self._seen = _stat(path)
        self.rules = AclRules.from_file(path)
        warn_if_open(path)
        self._clock = clock
        self._reading = asyncio.Lock()  # so that content read before a change is not applied after it

    # --- the file -----------------------------------------------------------------------------------------------------

    async def reload_if_changed(self) -> bool:
        """Load the file if it has changed, and not changed again since the last check; returns whether it did."""
        found = _stat(self.path)
        if found == self._loaded:
            self._seen = found
            return False
        if found != self._seen:
            self._seen = found
            return False
        self._loaded = found
        async with self._reading:
            try:
                rules = await asyncio.to_thread(AclRules.from_file, self.path)
            except ConfigError as error:
                _log.error("Accounts and permissions are not reloaded: %s %s", error.message, error.remedy)
                return False
            self.take(rules)
        _log.info("reloaded %d accounts from %s", len(rules.accounts), self.path)
        return True

    async def change(self, edit: Callable[[AccountsFile], None]) -> None:
        """Change the file; on return the change is durable and in effect. After ConfigError or OSError, no change."""
        async with self._reading:
            self.take(await asyncio.to_thread(change_file, self.path, edit, self._clock()))

    def take(self, rules: AclRules) -> None:
        """Apply these rules."""
        self.rules = rules

    # --- the decision -------------------------------------------------------------------------------------------------

    def known_account(self, access_key: str | None) -> Account:
        """Return the account; NotAuthenticatedError if it does not exist."""
        account = self.rules.accounts.get(access_key or "")
        if account is None:
            if not access_key:
                raise self.not_authenticated("the request names no accessKey, and its address is on no white list")
            raise self.not_authenticated(f"there is no account with the accessKey {access_key[:100]}")
        return account

    def check_permissions(self, account: Account, pairs: Iterable[Pair]) -> None:
        """Raise RefusedError with account, resource and permission for the first missing permission."""
        missing = account.unmet(_needs(pairs))
        if missing is not None:
            kind, name, permission = missing
            raise self.refusal(
                f"accessKey {account.access_key} has no permission {_NAMES[permission]} for the {kind} {name[:255]}"
            )

    def not_signed(self, access_key: str, *, has_one: bool) -> RefusedError:
        what = "is not signed" if not has_one else "has a signature that its secret key did not make"
        return self.not_authenticated(f"the request of accessKey {access_key} {what}")


def _needs(pairs: Iterable[Pair]) -> Needs:
    """The permissions of ACL 1.0. All accounts may send to the trace topic and to reply topics."""
    return tuple(
        (GROUP if pair.resource is Resource.GROUP else TOPIC, pair.name, _PERMISSIONS[pair.permission])
        for pair in pairs
        if pair.permission is not None and not (pair.permission is Permission.PUB and for_all(pair.name))
    )


def _stat(path: Path) -> _Stat:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
