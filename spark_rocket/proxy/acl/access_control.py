"""Access control of the gRPC endpoint: checks every call before its method runs.

What a method needs is declared in its row (``proxy.method_types``). There are two sets of rules: accounts of a
``plain_acl.yml`` (``plain_access_control``, ACL 1.0), and the brokers' users with policies (``user_access_control``,
ACL 2.0). Calls without valid authentication get UNAUTHORIZED, calls without permission FORBIDDEN.

Corresponds to org.apache.rocketmq.proxy.grpc.interceptor.AuthenticationInterceptor, and to
grpc.pipeline.{AuthenticationPipeline, AuthorizationPipeline}.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from spark_rocket.acl.refusals import NotAuthenticatedError, Refusals
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.protocol.auth import Authorization, SecretKey, access_key_of, seconds_of
from spark_rocket.protocol.requests.needs import Pair
from spark_rocket.proxy.definitions import Code
from spark_rocket.proxy.messages.statuses import StatusError
from spark_rocket.proxy.method_types import MethodType
from spark_rocket.proxy.transport.proxy_context import ProxyContext

DAY_MS = 86_400_000

S = TypeVar("S")


class GrpcAccessControl(Refusals, Generic[S]):
    """Checks gRPC calls in two steps. ``S``: an account, or a user.

    A signature covers metadata only, so the first step, :meth:`authenticate`, runs before the message is read. The
    second step, :meth:`authorize`, uses the message, and the rules in force when it arrives.
    """

    clock: Callable[[], int]
    """The wall clock, in milliseconds."""
    clock_skew_ms: int
    """The maximum difference between the signed time and ``clock``; 0 for no limit."""

    async def authenticate(self, context: ProxyContext, rpc: str) -> None:
        """Raise UNAUTHORIZED unless the metadata is signed, or needs no signature.

        ``rpc``: the full name of the request's message, as in white lists.
        """
        await self._decide(context, rpc, lambda subject: self._check_signature(context, self.key_of(subject)))

    async def authorize(self, context: ProxyContext, rpc: str, method: MethodType, request: Any) -> None:
        """Raise FORBIDDEN if a permission that the request needs is missing. StatusError for an invalid name."""
        pairs = method.pairs(request)
        await self._decide(context, rpc, lambda subject: self.check(subject, rpc, pairs, host_of(context)))

    async def _decide(self, context: ProxyContext, rpc: str, check: Callable[[S], None]) -> None:
        try:
            try:
                self._checked(await self.subject(context, rpc), check)
            except RefusedError:
                if not await self.is_outdated(context):
                    raise
                self._checked(await self.subject(context, rpc), check)
        except NotAuthenticatedError as error:  # also if the account was deleted after the call began
            self.log_refusal(context.peer, error)
            raise StatusError(Code.UNAUTHORIZED, error.message) from None
        except RefusedError as error:
            self.log_refusal(context.peer, error)
            raise StatusError(Code.FORBIDDEN, error.message) from None

    @staticmethod
    def _checked(subject: S | None, check: Callable[[S], None]) -> None:
        if subject is not None:
            check(subject)

    # --- the rules ----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def subject(self, context: ProxyContext, rpc: str) -> S | None:
        """Return the account of a call; None if the call needs none. NotAuthenticatedError if it does not exist."""

    @abstractmethod
    def key_of(self, subject: S) -> SecretKey: ...

    @abstractmethod
    def check(self, subject: S, rpc: str, pairs: Iterable[Pair], source: str) -> None:
        """Raise RefusedError if the account lacks a permission."""

    async def is_outdated(self, context: ProxyContext) -> bool:
        """Whether the account of a refused call has been loaded again, so that the call is decided again."""
        return False

    async def watch(self) -> None:
        """Keep the rules up to date, until cancelled."""

    async def close(self) -> None:
        """Cancel pending requests."""

    # --- the signature ------------------------------------------------------------------------------------------------

    def authorization(self, context: ProxyContext) -> Authorization | None:
        """Parse the metadata; None without it. NotAuthenticatedError if it is invalid."""
        header = context.metadata.get("authorization")
        if not header:
            return None
        try:
            return Authorization.parse(header)
        except ProtocolError as error:
            raise self.not_authenticated(f"{error.message} {error.remedy}") from None

    def _check_signature(self, context: ProxyContext, key: SecretKey) -> None:
        date_time = context.metadata.get("x-mq-date-time", "")
        given = self.authorization(context)
        if given is None or not date_time or not given.is_signed_by(key, date_time):
            raise self.wrong_signature(context)
        if not self.clock_skew_ms:
            return
        try:
            apart = abs(seconds_of(date_time) * 1000 - self.clock())
        except ProtocolError as error:
            raise self.not_authenticated(f"{error.message} {error.remedy}") from None
        if apart > self.clock_skew_ms:
            raise self.not_authenticated(
                f"the request of accessKey {given.access_key} was signed {apart // 1000} s before or after the "
                f"proxy's time, more than aclMaxClockSkew allows"
            )

    @abstractmethod
    def wrong_signature(self, context: ProxyContext) -> RefusedError:
        """The refusal of a call with a wrong signature."""


def host_of(context: ProxyContext) -> str:
    """The address of the client, without its port."""
    return context.peer.rpartition(":")[0].strip("[]")


def check_owner(context: ProxyContext, owner: str | None) -> None:
    """Raise FORBIDDEN if ``owner``, the access key that registered this client id, is another account's.

    Client ids are not secret: a caller with another account's id would receive the data for that client.
    """
    if owner is not None and owner != access_key_of(context.metadata):
        raise StatusError(Code.FORBIDDEN, "this client id belongs to another account: use another id")
