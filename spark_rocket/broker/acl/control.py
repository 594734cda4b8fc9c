"""Access control: every request of the classic protocol and of gRPC is checked before it is carried out.

In Apache's order: an address of the global white list may do everything; else the access key must be known; from an
account's own white list its access key is enough, for everything; else the request must be signed, and what it names
must be permitted. A refusal says who asked for what and which permission is missing, never a secret or a signature.

The file is looked at every second. A change is read when the file has stayed the same from one look to the next, so
that one that is being written is not taken for less than it will be; it counts from then on, for open connections too.
A file that cannot be used is told once, with its line, and the rules stay as they are; at the start it is an error.

Thread-safety: event loop only; the file is read on a thread. What was decided is remembered with the account and goes
with it. Corresponds to PlainAccessValidator, PlainPermissionManager and the hooks of BrokerController.initialAcl.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from spark_rocket.broker.acl.accounts_file import AccountsFile, change_file, warn_if_open
from spark_rocket.broker.acl.addresses import parts_of
from spark_rocket.broker.acl.needs import NEEDS, OPEN, Needs, key_of, need_of_topic
from spark_rocket.broker.acl.rules import ANY, GROUP, PUB, SUB, Account, AclRules, Need
from spark_rocket.errors import ConfigError, ProtocolError, RefusedError
from spark_rocket.logs import log_once_per
from spark_rocket.protocol.acl import ACCESS_KEY, SIGNATURE, Authorization, is_signed_by, seconds_of
from spark_rocket.protocol.codes import RequestCode, ResponseCode
from spark_rocket.protocol.command import RemotingCommand
from spark_rocket.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    ViewMessageRequestHeader,
)
from spark_rocket.remoting.server import Channel, Handler

_log = logging.getLogger(__name__)
_often = log_once_per(10.0, _log)

_PERMISSION = {PUB: "PUB", SUB: "SUB", ANY: "PUB or SUB"}

_Stat = tuple[int, int, int] | None


class NotAuthenticatedError(RefusedError):
    """It is not shown who asks: no key, an unknown one, or a signature that is not the account's."""


class AccessControl:
    """The rules of one file, and the checks."""

    def __init__(
        self,
        path: Path,
        *,
        topic_at: Callable[[int], str | None],
        clock: Callable[[], int],
        clock_skew_ms: Callable[[], int],
    ) -> None:
        """ConfigError for a file that cannot be used. ``topic_at``: of the message at a physical offset,
        of a half message the topic that it is for."""
        self.path = path
        self.refused = 0
        self.allowed_by_white_list = 0
        self._loaded = self._seen = _stat(path)
        self.rules = AclRules.from_file(path)
        warn_if_open(path)
        self._topic_at = topic_at
        #: Codes whose needs are those of the message that they name by its place.
        self._looking: dict[int, Callable[[RemotingCommand], Needs]] = {
            RequestCode.VIEW_MESSAGE_BY_ID: self._needs_of_view,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._needs_of_send_back,
            RequestCode.END_TRANSACTION: self._needs_of_end,
        }
        self._clock = clock
        self._clock_skew_ms = clock_skew_ms
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

    # --- the classic protocol -------------------------------------------------------------------------------------

    def guarded(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers, behind the check."""
        return {int(code): self._guard(int(code), handler) for code, handler in handlers.items()}

    def _guard(self, code: int, handler: Handler) -> Handler:
        needs_of = self._looking.get(code) or NEEDS.get(code)
        is_for_admins = needs_of is None and code not in OPEN
        is_heartbeat = code == RequestCode.HEART_BEAT
        key_of_fields = key_of(code)
        find = self._account
        signed = is_signed_by

        def guarded(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
            try:
                account = find(channel, request)
                if is_heartbeat:
                    channel.attributes["acl_account"] = request.ext_fields.get(ACCESS_KEY, "")
                if account is not None:
                    key = key_of_fields(request.ext_fields) if key_of_fields is not None else None
                    if key is None or key not in account.met:
                        if is_for_admins and not account.admin:
                            raise self._not_admin(account, code)
                        if needs_of is not None:
                            self._check_needs(account, needs_of(request))
                        if key is not None:
                            account.remember(key)
            except RefusedError as error:
                self._say(channel.remote_addr, error)
                raise
            return handler(channel, request)

        if key_of_fields is None:
            return guarded

        def quick(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
            """Most requests: of an account without a white list, for what it was found to be permitted, and signed.
            Few steps, since sends and pulls take not many more. Whatever else it is goes the long way."""
            ext = request.ext_fields
            account = self.rules.signing.get(ext.get(ACCESS_KEY, ""))
            if account is not None and key_of_fields(ext) in account.met and signed(request, account.key):
                return handler(channel, request)
            return guarded(channel, request)

        return quick

    def _account(self, channel: Channel, request: RemotingCommand) -> Account | None:
        """Who has signed the request; None if its address is enough."""
        rules = self.rules
        if rules.white and self._is_white(rules, channel.attributes, channel.remote_addr):
            return None
        ext = request.ext_fields
        account = rules.accounts.get(ext.get(ACCESS_KEY, ""))
        if account is None:
            raise self._unknown(ext.get(ACCESS_KEY))
        if account.white is not None and account.white.matches(_parts(channel.attributes, channel.remote_addr)):
            self.allowed_by_white_list += 1
            return None
        if not is_signed_by(request, account.key):
            raise self._wrong_signature(account, SIGNATURE in ext)
        return account

    def check_admin(self, channel: Channel, request: RemotingCommand) -> None:
        """For requests about accounts, which have passed the check: an account's own white list is not enough."""
        account = self.rules.accounts.get(request.ext_fields.get(ACCESS_KEY, ""))
        if (
            account is not None
            and not account.admin
            and not self._is_white(self.rules, channel.attributes, channel.remote_addr)
        ):
            raise self._not_admin(account, request.code)

    def is_signed_by_admin(self, request: RemotingCommand) -> bool:
        """Whether an administrator has signed it: white lists do not count."""
        account = self.rules.accounts.get(request.ext_fields.get(ACCESS_KEY, ""))
        return account is not None and account.admin and is_signed_by(request, account.key)

    def _needs_of_view(self, request: RemotingCommand) -> Needs:
        return self._needs_of_message(ViewMessageRequestHeader.from_ext(request.ext_fields).offset, SUB)

    def _needs_of_send_back(self, request: RemotingCommand) -> Needs:
        """The message comes back to the group: it must be one that the group may read."""
        header = ConsumerSendMsgBackRequestHeader.from_ext(request.ext_fields)
        return ((GROUP, header.group, SUB), *self._needs_of_message(header.offset, SUB))

    def _needs_of_end(self, request: RemotingCommand) -> Needs:
        return self._needs_of_message(EndTransactionRequestHeader.from_ext(request.ext_fields).commit_log_offset, PUB)

    def _needs_of_message(self, offset: int, permission: int) -> Needs:
        topic = self._topic_at(offset)
        return () if topic is None else (need_of_topic(topic, permission),)

    def may_ask(self, channel: Channel, topic: str) -> bool:
        """Whether a producer's connection may be shown a transaction to this topic: whose heartbeat made it one may
        send there. (gRPC's producers have said which topics they send to; see proxy/transactions.py.)"""
        access_key = channel.attributes.get("acl_account")
        if access_key is None or self._is_white(self.rules, channel.attributes, channel.remote_addr):
            return True
        account = self.rules.accounts.get(access_key)
        if account is None:
            return False
        if account.white is not None and account.white.matches(_parts(channel.attributes, channel.remote_addr)):
            return True
        return account.unmet((need_of_topic(topic, PUB),)) is None

    # --- gRPC -------------------------------------------------------------------------------------------------------

    def check_grpc(
        self, peer: str, metadata: Mapping[str, str], needs_of: Callable[[], Needs], *, is_first: bool = True
    ) -> None:
        """RefusedError, its kind NotAuthenticatedError where it is not shown who calls.

        A call's later messages come with the metadata of its first, whose time may be long ago.
        """
        try:
            self._check_grpc(peer, metadata, needs_of, is_first)
        except RefusedError as error:
            self._say(peer, error)
            raise

    def _check_grpc(
        self, peer: str, metadata: Mapping[str, str], needs_of: Callable[[], Needs], is_first: bool
    ) -> None:
        rules = self.rules
        parts = parts_of(peer.rpartition(":")[0])
        if any(pattern.matches(parts) for pattern in rules.white):
            self.allowed_by_white_list += 1
            return
        header = metadata.get("authorization")
        if not header:
            raise self._unknown(None)
        try:
            authorization = Authorization.parse(header)
        except ProtocolError as error:
            raise self._not_authenticated(f"{error.message} {error.remedy}") from None
        account = rules.accounts.get(authorization.access_key)
        if account is None:
            raise self._unknown(authorization.access_key)
        if account.white is not None and account.white.matches(parts):
            self.allowed_by_white_list += 1
            return
        date_time = metadata.get("x-mq-date-time", "")
        if not date_time or not authorization.is_signed_by(account.key, date_time):
            raise self._wrong_signature(account, has_one=True)
        if is_first:
            self._check_time(account, date_time)
        needs = needs_of()
        if needs not in account.met:
            self._check_needs(account, needs)
            account.remember(needs)

    def _say(self, peer: str, error: RefusedError) -> None:
        """In the log, once in a while for each machine."""
        host = peer.rpartition(":")[0]
        _often.warning(host, "%s is refused: %s", host, error.message)

    def _check_time(self, account: Account, date_time: str) -> None:
        most = self._clock_skew_ms()
        if not most:
            return
        try:
            apart = abs(seconds_of(date_time) * 1000 - self._clock())
        except ProtocolError as error:
            raise self._not_authenticated(f"{error.message} {error.remedy}") from None
        if apart > most:
            raise self._not_authenticated(
                f"the request of accessKey {account.access_key} was signed {apart // 1000} s away from the broker's "
                f"time, more than aclMaxClockSkew allows"
            )

    # --- both ---------------------------------------------------------------------------------------------------------

    def _is_white(self, rules: AclRules, attributes: dict[str, object], remote_addr: str) -> bool:
        known = attributes.get("acl")
        if known is None or known[0] is not rules:  # type: ignore[index]  # a pair, put there below
            parts = _parts(attributes, remote_addr)
            known = attributes["acl"] = (rules, any(pattern.matches(parts) for pattern in rules.white))
        is_white: bool = known[1]  # type: ignore[index]
        self.allowed_by_white_list += is_white
        return is_white

    def _check_needs(self, account: Account, needs: Needs) -> None:
        missing = account.unmet(needs)
        if missing is not None:
            raise self._no_permission(account, missing)

    def _no_permission(self, account: Account, need: Need) -> RefusedError:
        kind, name, permission = need
        return self._refusal(
            f"accessKey {account.access_key} has no permission {_PERMISSION[permission]} for the {kind} {name[:255]}"
        )

    def _not_admin(self, account: Account, code: int) -> RefusedError:
        return self._refusal(f"request code {code} is for administrators, which accessKey {account.access_key} is not")

    def _unknown(self, access_key: str | None) -> RefusedError:
        if not access_key:
            return self._not_authenticated("the request names no accessKey, and its address is on no white list")
        return self._not_authenticated(f"there is no account with the accessKey {access_key[:100]}")

    def _wrong_signature(self, account: Account, has_one: bool) -> RefusedError:
        what = "is not signed" if not has_one else "has a signature that its secret key did not make"
        return self._not_authenticated(f"the request of accessKey {account.access_key} {what}")

    def _not_authenticated(self, text: str) -> NotAuthenticatedError:
        self.refused += 1
        return NotAuthenticatedError(_printable(text), response_code=ResponseCode.NO_PERMISSION)

    def _refusal(self, text: str) -> RefusedError:
        self.refused += 1
        return RefusedError(_printable(text), response_code=ResponseCode.NO_PERMISSION)


def _printable(text: str) -> str:
    """Names come from anywhere, and go into logs."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _parts(attributes: dict[str, object], remote_addr: str) -> tuple[int, ...]:
    """Of a connection's address, kept with it."""
    known = attributes.get("acl_address")
    if known is None:
        known = attributes["acl_address"] = parts_of(remote_addr.rpartition(":")[0])
    assert isinstance(known, tuple)
    return known


def _stat(path: Path) -> _Stat:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
