"""Access control of a broker: checks every Remoting request before it is handled.

What a request needs is declared in its row (``protocol.requests``). There are two sets of rules: accounts of
``plain_acl.yml`` (``plain_access_control``, ACL 1.0), and users with policies (``user_access_control``, ACL 2.0).

A permission that was granted is remembered with the connection, for the same request code, account and names, and
with it the order of the signed fields. The signature of every request is verified, unless ``verifies_once``: then a
connection that signed a request need not sign the next ones that are remembered. What is remembered ends with the rules
that granted it: a change of accounts replaces them.

Corresponds to the hooks of BrokerController.initialAcl and AuthenticationPipeline.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeAlias

from spark_rocket.acl.refusals import Refusals
from spark_rocket.errors import RefusedError
from spark_rocket.model import HALF_TOPIC
from spark_rocket.protocol.auth import ACCESS_KEY, SecretKey, Verifier
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.record import view_record
from spark_rocket.protocol.requests import BROKER_REQUESTS
from spark_rocket.protocol.requests.needs import TopicAt
from spark_rocket.protocol.requests.request_type import RequestType
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.remoting_server import Handler
from spark_rocket.store.message_store import MessageStore

ACCOUNT = "acl_account"
"""The attribute of a channel with the access key of its last heartbeat."""
_GRANTED = "acl_granted"
_MAX_GRANTED = 256
_MAX_GRANTED_CHARACTERS = 1_024


class Subject(Protocol):
    """An account or a user, as the check of its signature needs it."""

    @property
    def key(self) -> SecretKey: ...


_Key: TypeAlias = tuple[int, str | tuple[str | None, ...]]
"""Request code, and the values that decide: a single one is not in a tuple."""


class _Granted(NamedTuple):
    """What one set of rules granted to a connection: request code, access key and names -> who signs."""

    rules: Any
    verifiers: dict[_Key, Verifier]


class AccessControl(Refusals):
    """Checks the requests to one broker."""

    rules: Any
    """The accounts and permissions in force; another object after each change."""
    verifies_once = False
    """Whether a signature that a connection has shown is sufficient for its further requests of the same code, account
    and names (Apache's StatefulAuthenticationStrategy, which does so for all of an account's requests)."""
    topic_at: TopicAt
    """Returns the topic of the message at a physical offset; for a half message, its real topic."""

    def guarded(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        return {int(code): self._guard(int(code), handler) for code, handler in handlers.items()}

    def _guard(self, code: int, handler: Handler) -> Handler:
        row = BROKER_REQUESTS.get(code)
        decided_by = row.decided_by if row is not None else None
        if decided_by is None:
            return self._checked(code, row, handler)
        names, once = (ACCESS_KEY, *decided_by), self.verifies_once
        values_of = itemgetter(*names)

        def guarded(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
            fields = request.ext_fields
            try:  # nearly all requests have them all
                key = code, values_of(fields)
            except KeyError:
                key = code, tuple(map(fields.get, names))
            granted = channel.attributes.get(_GRANTED)
            if granted is not None and granted.rules is self.rules:
                verifier = granted.verifiers.get(key)
                if verifier is not None and (once or verifier.is_signed(request)):
                    return handler(channel, request)
            subject = self._check(channel, request, code, row)
            if subject is not None:
                self._remember(channel, key, subject)
            return handler(channel, request)

        return guarded

    def _checked(self, code: int, row: RequestType | None, handler: Handler) -> Handler:
        def checked(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
            self._check(channel, request, code, row)
            return handler(channel, request)

        return checked

    def _check(self, channel: Channel, request: RemotingCommand, code: int, row: RequestType | None) -> Subject | None:
        try:
            return self.check(channel, request, code, row)
        except RefusedError as error:
            self.log_refusal(channel.remote_addr, error)
            raise

    def _remember(self, channel: Channel, key: _Key, subject: Subject) -> None:
        granted = channel.attributes.get(_GRANTED)
        if granted is None or granted.rules is not self.rules or len(granted.verifiers) >= _MAX_GRANTED:
            granted = channel.attributes[_GRANTED] = _Granted(self.rules, {})
        if sum(map(len, filter(None, key[1]))) <= _MAX_GRANTED_CHARACTERS:
            granted.verifiers[key] = Verifier(subject.key)

    @abstractmethod
    def check(self, channel: Channel, request: RemotingCommand, code: int, row: RequestType | None) -> Subject | None:
        """Raise RefusedError unless the request is allowed; return who signed it, None if it needs no signature."""

    @abstractmethod
    def may_ask(self, channel: Channel, topic: str) -> bool:
        """Whether a producer's connection may receive checks of transactions of this topic.

        The account of its heartbeat must have permission to send to the topic.
        """

    async def reload_if_changed(self) -> bool:
        """Load the rules if their file has changed; returns whether it did."""
        return False


def note_account(channel: Channel, request: RemotingCommand, code: int) -> None:
    """Note the account of a heartbeat with its connection."""
    if code == RequestCode.HEART_BEAT:
        channel.attributes[ACCOUNT] = request.ext_fields.get(ACCESS_KEY, "")


def topic_at(store: MessageStore, physical_offset: int) -> str | None:
    """The topic of the message at an offset of the log, for a half message its real topic; None if there is none.

    RefusedError if the offset is inside a message: a body may contain bytes that look like a message.
    """
    record = store.look_message_by_offset(physical_offset)
    if record is None:
        return None
    view = view_record(record)
    topic = str(view.topic, "utf-8", "replace")
    if not store.is_message(topic, view.queue_id, view.queue_offset, physical_offset):
        raise RefusedError(f"no message begins at offset {physical_offset} of the log", ResponseCode.NO_PERMISSION)
    if topic != HALF_TOPIC:
        return topic
    return str(find_property(bytes(view.properties), b"REAL_TOPIC") or view.topic, "utf-8", "replace")
