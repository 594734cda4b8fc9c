"""Access control of the gRPC endpoint by the accounts of ``plain_acl.yml`` (ACL 1.0).

Corresponds to PlainAccessResource.parse of a gRPC message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from spark_rocket.acl.addresses import parts_of
from spark_rocket.acl.control import FILE_CHECK_INTERVAL_S, AccountControl
from spark_rocket.acl.rules import Account
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.auth import SecretKey, access_key_of
from spark_rocket.protocol.requests.needs import Pair
from spark_rocket.proxy.acl.access_control import DAY_MS, GrpcAccessControl, host_of
from spark_rocket.proxy.transport.proxy_context import ProxyContext


class GrpcPlainAccessControl(AccountControl, GrpcAccessControl[Account]):
    """Checks gRPC calls by the accounts of a ``plain_acl.yml``."""

    def __init__(self, path: Path, *, clock: Callable[[], int], clock_skew_ms: int = DAY_MS) -> None:
        """ConfigError for an invalid file."""
        super().__init__(path, clock=clock)
        self.clock = clock
        self.clock_skew_ms = clock_skew_ms

    async def watch(self) -> None:
        """Check the file for changes every second, until cancelled."""
        while True:
            await asyncio.sleep(FILE_CHECK_INTERVAL_S)
            await self.reload_if_changed()

    async def subject(self, context: ProxyContext, rpc: str) -> Account | None:
        """Return the account of the metadata; None if the address is on a white list."""
        rules = self.rules
        parts = parts_of(host_of(context))
        if any(pattern.matches(parts) for pattern in rules.white):
            self.allowed_by_white_list += 1
            return None
        given = self.authorization(context)
        account = self.known_account(None if given is None else given.access_key)
        if account.white is not None and account.white.matches(parts):
            self.allowed_by_white_list += 1
            return None
        return account

    def key_of(self, subject: Account) -> SecretKey:
        return subject.key

    def check(self, subject: Account, rpc: str, pairs: Iterable[Pair], source: str) -> None:
        self.check_permissions(subject, pairs)

    def wrong_signature(self, context: ProxyContext) -> RefusedError:
        return self.not_signed(access_key_of(context.metadata), has_one=True)
