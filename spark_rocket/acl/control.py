"""The rules of a ``plain_acl.yml`` that are in force, and the decision whether an account may do something.

In Apache's order: an address of the global white list may do everything; else the access key must be known; from an
account's own white list its access key is enough, for everything; else the request must be signed, and what it names
must be permitted. A refusal says who asked for what and which permission is missing, never a secret or a signature.

The file is looked at every second. A change is read when the file has stayed the same from one look to the next, so
that one that is being written is not taken for less than it will be; it counts from then on, for open connections too.
A file that cannot be used is told once, with its line, and the rules stay as they are; at the start it is an error.

Thread-safety: event loop only; the file is read on a thread. Corresponds to PlainPermissionManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from spark_rocket.acl.accounts_file import AccountsFile, change_file, warn_if_open
from spark_rocket.acl.rules import ANY, PUB, SUB, Account, AclRules, Need
from spark_rocket.errors import ConfigError, RefusedError
from spark_rocket.logs import RateLimited
from spark_rocket.protocol.wire.codes import ResponseCode

_log = logging.getLogger(__name__)
_often = RateLimited(_log)

LOOK_SECONDS = 1.0
_PERMISSION = {PUB: "PUB", SUB: "SUB", ANY: "PUB or SUB"}

_Stat = tuple[int, int, int] | None


class NotAuthenticatedError(RefusedError):
    """It is not shown who asks: no key, an unknown one, or a signature that is not the account's."""


class AccountControl:
    """The rules of one file. Each protocol's checks are a subclass."""

    def __init__(self, path: Path, *, clock: Callable[[], int]) -> None:
        """ConfigError for a file that cannot be used. ``clock``: the wall clock, in milliseconds."""
        self.path = path
        self.refused = 0
        self.allowed_by_white_list = 0
        self._loaded = self._seen = _stat(path)
        self.rules = AclRules.from_file(path)
        warn_if_open(path)
        self._clock = clock
        self._reading = asyncio.Lock()  # so that what was read before a change does not count after it

    # --- the file -----------------------------------------------------------------------------------------------------

    async def look(self) -> bool:
        """Read the file if it has changed, and stayed so since the last look; whether there are other rules now."""
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
                _log.error("Who may do what stays as it was: %s %s", error.message, error.remedy)
                return False
            self.take(rules)
        _log.info("Who may do what is read again from %s: %d accounts.", self.path, len(rules.accounts))
        return True

    async def change(self, edit: Callable[[AccountsFile], None]) -> None:
        """Change the file; on return it is on disk and counts. ConfigError, OSError: nothing is changed."""
        async with self._reading:
            self.take(await asyncio.to_thread(change_file, self.path, edit, self._clock()))

    def take(self, rules: AclRules) -> None:
        """These count from now on."""
        self.rules = rules

    # --- the decision -------------------------------------------------------------------------------------------------

    def known_account(self, access_key: str | None) -> Account:
        """NotAuthenticatedError when there is no such account."""
        account = self.rules.accounts.get(access_key or "")
        if account is None:
            if not access_key:
                raise self.not_authenticated("the request names no accessKey, and its address is on no white list")
            raise self.not_authenticated(f"there is no account with the accessKey {access_key[:100]}")
        return account

    def check_needs(self, account: Account, needs: tuple[Need, ...]) -> None:
        """RefusedError, which names the account, the resource and the permission, for the first that is missing."""
        missing = account.unmet(needs)
        if missing is not None:
            kind, name, permission = missing
            raise self.refusal(
                f"accessKey {account.access_key} has no permission {_PERMISSION[permission]} for the {kind} "
                f"{name[:255]}"
            )

    def wrong_signature(self, account: Account, has_one: bool) -> RefusedError:
        what = "is not signed" if not has_one else "has a signature that its secret key did not make"
        return self.not_authenticated(f"the request of accessKey {account.access_key} {what}")

    def not_authenticated(self, text: str) -> NotAuthenticatedError:
        self.refused += 1
        return NotAuthenticatedError(_printable(text), response_code=ResponseCode.NO_PERMISSION)

    def refusal(self, text: str) -> RefusedError:
        self.refused += 1
        return RefusedError(_printable(text), response_code=ResponseCode.NO_PERMISSION)

    def log_refusal(self, peer: str, error: RefusedError) -> None:
        """In the log, once in a while for each machine."""
        host = peer.rpartition(":")[0]
        _often.warning(host, "%s is refused: %s", host, error.message)


def _printable(text: str) -> str:
    """Names come from anywhere, and go into logs."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _stat(path: Path) -> _Stat:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
