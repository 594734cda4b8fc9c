"""Access control of the gRPC endpoint: required permissions of each method, by the accounts of ``plain_acl.yml``.

==================================================  =================================================================
SendMessage, EndTransaction, RecallMessage          PUB on the topic
ReceiveMessage, acks, invisible time, dead letters  SUB on the topic and on the group
pulls and offsets of a group, QueryAssignment       SUB on the topic and on the group
Heartbeat, NotifyClientTermination                  SUB on the group, if there is one
Telemetry's settings                                PUB on what is published; SUB on the group and its topics
QueryRoute                                          PUB or SUB on the topic
QueryOffset                                         a signature
==================================================  =================================================================

Other methods are refused. Calls without valid authentication get UNAUTHORIZED, calls without permission FORBIDDEN.

Thread-safety: event loop only. Corresponds to org.apache.rocketmq.proxy.grpc.interceptor.AuthenticationInterceptor and
to PlainAccessResource.parse of a gRPC message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from spark_rocket.acl.addresses import parts_of
from spark_rocket.acl.control import FILE_CHECK_INTERVAL_S, AccountControl
from spark_rocket.acl.refusals import NotAuthenticatedError
from spark_rocket.acl.rules import ANY, GROUP, PUB, SUB, Account, Need, Needs, for_all, need_of_topic
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.protocol.auth import Authorization, access_key_of, seconds_of
from spark_rocket.proxy.definitions import Code
from spark_rocket.proxy.messages.names import group_of, topic_of
from spark_rocket.proxy.messages.statuses import StatusError
from spark_rocket.proxy.transport.proxy_context import ProxyContext

DAY_MS = 86_400_000


class GrpcAccessControl(AccountControl):
    """Checks gRPC calls in two steps.

    A signature covers metadata only, so the first step, :meth:`authenticate`, runs before the message is read. The
    second step, :meth:`authorize`, uses the message.
    """

    def __init__(self, path: Path, *, clock: Callable[[], int], clock_skew_ms: int = DAY_MS) -> None:
        """ConfigError for an invalid file.

        ``clock_skew_ms``: the maximum difference between the signed time and ``clock``; 0 for no limit.
        """
        super().__init__(path, clock=clock)
        self._clock_skew_ms = clock_skew_ms

    async def watch(self) -> None:
        """Check the file for changes every second, until cancelled."""
        while True:
            await asyncio.sleep(FILE_CHECK_INTERVAL_S)
            await self.reload_if_changed()

    def authenticate(self, context: ProxyContext) -> None:
        """Raise UNAUTHORIZED unless an account signed the metadata or the address is on a white list."""
        try:
            account = self._account(context)
            if account is not None:
                self._check_signature(context, account)
        except RefusedError as error:
            self.log_refusal(context.peer, error)
            raise StatusError(Code.UNAUTHORIZED, error.message) from None

    def authorize(self, context: ProxyContext, request: Any) -> None:
        """Raise FORBIDDEN if the account lacks a permission under the present rules."""
        try:
            account = self._account(context)
            if account is not None:
                self.check_needs(account, needs_of(request))
        except NotAuthenticatedError as error:  # the account was deleted after the call began
            self.log_refusal(context.peer, error)
            raise StatusError(Code.UNAUTHORIZED, error.message) from None
        except RefusedError as error:
            self.log_refusal(context.peer, error)
            raise StatusError(Code.FORBIDDEN, error.message) from None

    def _account(self, context: ProxyContext) -> Account | None:
        """Return the account of the metadata; None if the address is on a white list."""
        rules = self.rules
        parts = parts_of(context.peer.rpartition(":")[0])
        if any(pattern.matches(parts) for pattern in rules.white):
            self.allowed_by_white_list += 1
            return None
        header = context.metadata.get("authorization")
        if not header:
            return self.known_account(None)
        account = self.known_account(self._parsed(header).access_key)
        if account.white is not None and account.white.matches(parts):
            self.allowed_by_white_list += 1
            return None
        return account

    def _parsed(self, header: str) -> Authorization:
        try:
            return Authorization.parse(header)
        except ProtocolError as error:
            raise self.not_authenticated(f"{error.message} {error.remedy}") from None

    def _check_signature(self, context: ProxyContext, account: Account) -> None:
        date_time = context.metadata.get("x-mq-date-time", "")
        authorization = self._parsed(context.metadata["authorization"])
        if not date_time or not authorization.is_signed_by(account.key, date_time):
            raise self.wrong_signature(account, has_one=True)
        if not self._clock_skew_ms:
            return
        try:
            apart = abs(seconds_of(date_time) * 1000 - self._clock())
        except ProtocolError as error:
            raise self.not_authenticated(f"{error.message} {error.remedy}") from None
        if apart > self._clock_skew_ms:
            raise self.not_authenticated(
                f"the request of accessKey {account.access_key} was signed {apart // 1000} s before or after the "
                f"proxy's time, more than aclMaxClockSkew allows"
            )


def check_owner(context: ProxyContext, owner: str | None) -> None:
    """Raise FORBIDDEN if ``owner``, the access key that registered this client id, is another account's.

    Client ids are not secret: a caller with another account's id would receive the data for that client.
    """
    if owner is not None and owner != access_key_of(context.metadata):
        raise StatusError(Code.FORBIDDEN, "this client id belongs to another account: use another id")


def needs_of(request: Any) -> Needs:
    """Return the permissions that a request needs. StatusError for an invalid topic or group."""
    name = type(request).__name__
    find = _NEEDS.get(name)
    if find is None:
        raise StatusError(Code.FORBIDDEN, f"{name} is not allowed with access control")
    return find(request)


def _topics(resources: Iterable[Any], permission: int) -> list[Need]:
    names = dict.fromkeys(topic_of(resource) for resource in resources)
    return [need_of_topic(name, permission) for name in names if permission != PUB or not for_all(name)]


def _sent(request: Any) -> Needs:
    return tuple(_topics((message.topic for message in request.messages), PUB))


def _to_topic(request: Any) -> Needs:
    return tuple(_topics([request.topic], PUB))


def _read(request: Any) -> Needs:
    return (*_topics([request.topic], SUB), (GROUP, group_of(request.group), SUB))


def _read_queue(request: Any) -> Needs:
    return (*_topics([request.message_queue.topic], SUB), (GROUP, group_of(request.group), SUB))


def _of_group(request: Any) -> Needs:
    return ((GROUP, group_of(request.group), SUB),) if request.HasField("group") and request.group.name else ()


def _telemetry(request: Any) -> Needs:
    """Return the permissions for a client's settings. Other commands respond to requests of the proxy."""
    if not request.HasField("settings"):
        return ()
    settings = request.settings
    if settings.HasField("publishing"):
        return tuple(_topics(settings.publishing.topics, PUB))
    if not settings.HasField("subscription"):
        return ()
    subscription = settings.subscription
    return (*_topics((entry.topic for entry in subscription.subscriptions), SUB), *_of_group(subscription))


def _route(request: Any) -> Needs:
    return tuple(_topics([request.topic], ANY))


_NEEDS: dict[str, Callable[[Any], Needs]] = {
    "QueryRouteRequest": _route,
    "HeartbeatRequest": _of_group,
    "SendMessageRequest": _sent,
    "QueryAssignmentRequest": _read,
    "ReceiveMessageRequest": _read_queue,
    "AckMessageRequest": _read,
    "ForwardMessageToDeadLetterQueueRequest": _read,
    "PullMessageRequest": _read_queue,
    "UpdateOffsetRequest": _read_queue,
    "GetOffsetRequest": _read_queue,
    "QueryOffsetRequest": lambda _: (),
    "EndTransactionRequest": _to_topic,
    "TelemetryCommand": _telemetry,
    "NotifyClientTerminationRequest": _of_group,
    "ChangeInvisibleDurationRequest": _read,
    "RecallMessageRequest": _to_topic,
    "SyncLiteSubscriptionRequest": _read,
}
