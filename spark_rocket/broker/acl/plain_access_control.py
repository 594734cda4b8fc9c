"""Access control of a broker by the accounts of ``plain_acl.yml`` (ACL 1.0).

A code without a row is for administrators. Apache's ACL 1.0 does not check requests that pop, ack, peek, reply, lock
queues, end a transaction or view a message by id, nor the message that is sent back, and has a list of administrators'
codes, which does not include codes added later.

Corresponds to PlainAccessValidator and the hooks of BrokerController.initialAcl.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_rocket.acl.addresses import parts_of
from spark_rocket.acl.control import AccountControl
from spark_rocket.acl.rules import PUB, Account, need_of_topic
from spark_rocket.broker.acl.access_control import ACCOUNT, AccessControl, note_account
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.auth import ACCESS_KEY, SIGNATURE, is_signed_by
from spark_rocket.protocol.requests.needs import PlainAccess
from spark_rocket.protocol.requests.request_type import RequestType
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel


class PlainAccessControl(AccountControl, AccessControl):
    """Checks the requests to one broker by the accounts of ``plain_acl.yml``."""

    def __init__(self, path: Path, *, topic_at: Callable[[int], str | None], clock: Callable[[], int]) -> None:
        """Load the file; ConfigError if it is invalid."""
        super().__init__(path, clock=clock)
        self.topic_at = topic_at

    def check(self, channel: Channel, request: RemotingCommand, code: int, row: RequestType | None) -> Account | None:
        account = self._account(channel, request)
        note_account(channel, request, code)
        access = PlainAccess.ADMIN if row is None else row.plain_access
        if account is not None:
            if access is PlainAccess.ADMIN and not account.admin:
                raise self._not_admin(account, code)
            if access is PlainAccess.PERMISSIONS and row is not None:
                self.check_permissions(account, row.pairs(request, self.topic_at))
        return account

    def _account(self, channel: Channel, request: RemotingCommand) -> Account | None:
        """The account that signed the request; None if the connection's address is on a white list."""
        if self._is_white(channel):
            return None
        ext = request.ext_fields
        account = self.known_account(ext.get(ACCESS_KEY))
        if _is_white_for(account, channel):
            self.allowed_by_white_list += 1
            return None
        if not is_signed_by(request, account.key):
            raise self.not_signed(account.access_key, has_one=SIGNATURE in ext)
        return account

    def check_admin(self, channel: Channel, request: RemotingCommand) -> None:
        """Check a request about accounts again: for these, an account's own white list is not sufficient."""
        account = self.rules.accounts.get(request.ext_fields.get(ACCESS_KEY, ""))
        if account is not None and not account.admin and not self._is_white(channel):
            raise self._not_admin(account, request.code)

    def is_signed_by_admin(self, request: RemotingCommand) -> bool:
        """Whether an administrator signed the request; white lists are ignored."""
        account = self.rules.accounts.get(request.ext_fields.get(ACCESS_KEY, ""))
        return account is not None and account.admin and is_signed_by(request, account.key)

    def may_ask(self, channel: Channel, topic: str) -> bool:
        access_key = channel.attributes.get(ACCOUNT)
        if access_key is None or self._is_white(channel):
            return True
        account = self.rules.accounts.get(access_key)
        if account is None:
            return False
        return _is_white_for(account, channel) or account.unmet((need_of_topic(topic, PUB),)) is None

    def _is_white(self, channel: Channel) -> bool:
        """Whether the connection's address is on the global white list."""
        white = self.rules.white
        if not white:
            return False
        parts = _parts(channel)
        found = any(pattern.matches(parts) for pattern in white)
        self.allowed_by_white_list += found
        return found

    def _not_admin(self, account: Account, code: int) -> RefusedError:
        return self.refusal(f"request code {code} is for administrators; accessKey {account.access_key} is not one")


def _is_white_for(account: Account, channel: Channel) -> bool:
    return account.white is not None and account.white.matches(_parts(channel))


def _parts(channel: Channel) -> tuple[int, ...]:
    """The parts of a connection's address, cached with the connection."""
    parts = channel.attributes.get("acl_address")
    if parts is None:
        parts = channel.attributes["acl_address"] = parts_of(channel.remote_addr.rpartition(":")[0])
    assert isinstance(parts, tuple)
    return parts
