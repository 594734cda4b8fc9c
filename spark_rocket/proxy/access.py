"""Who may call what by gRPC: the broker's access control, asked with what each request names.

==================================================  =================================================================
SendMessage, EndTransaction, RecallMessage          PUB on the topic
ReceiveMessage, acks, invisible time, dead letters  SUB on the topic and on the group
pulls and offsets of a group, QueryAssignment       SUB on the topic and on the group
Heartbeat, NotifyClientTermination                  SUB on the group, if there is one
Telemetry's settings                                PUB on what is published; SUB on the group and its topics
QueryRoute                                          PUB or SUB on the topic
QueryOffset                                         a signature
==================================================  =================================================================

A method that is not in the list is refused. Who does not show who it is gets UNAUTHORIZED, who may not gets FORBIDDEN.

Thread-safety: event loop only. Corresponds to org.apache.rocketmq.proxy.grpc.interceptor.AuthenticationInterceptor and
to PlainAccessResource.parse of a gRPC message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from spark_rocket.broker.acl.control import AccessControl, NotAuthenticatedError
from spark_rocket.broker.acl.needs import Needs, for_all, need_of_topic
from spark_rocket.broker.acl.rules import ANY, GROUP, PUB, SUB, Need
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.acl import access_key_of
from spark_rocket.proxy.context import Context
from spark_rocket.proxy.definitions import Code
from spark_rocket.proxy.messaging import CLIENT_ID, Check
from spark_rocket.proxy.names import group_of, topic_of
from spark_rocket.proxy.statuses import StatusError


def check_access(control: AccessControl | None, owner: Callable[[str], str | None]) -> Check:
    """What every request goes through before its handler: StatusError for what is not allowed.

    ``owner``: the access key that a client's settings came with. Client ids are no secret: who used another account's
    would be told what that client is told.
    """

    def check(context: Context, request: Any, is_first: bool) -> None:
        if control is None:
            return
        try:
            control.check_grpc(context.peer, context.metadata, lambda: needs_of(request), is_first=is_first)
        except NotAuthenticatedError as error:
            raise StatusError(Code.UNAUTHORIZED, error.message) from None
        except RefusedError as error:
            raise StatusError(Code.FORBIDDEN, error.message) from None
        owned_by = owner(context.metadata[CLIENT_ID])
        if owned_by is not None and owned_by != access_key_of(context.metadata):
            raise StatusError(Code.FORBIDDEN, "the client of this id is another account's: choose another id")

    return check


def needs_of(request: Any) -> Needs:
    """What a request needs. StatusError where it names no legal topic or group."""
    name = type(request).__name__
    find = _NEEDS.get(name)
    if find is None:
        raise StatusError(Code.FORBIDDEN, f"nobody may ask for {name} where there is access control")
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


def _told(request: Any) -> Needs:
    """A client tells of its settings; what else it tells answers what it was asked."""
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
    "TelemetryCommand": _told,
    "NotifyClientTerminationRequest": _of_group,
    "ChangeInvisibleDurationRequest": _read,
    "RecallMessageRequest": _to_topic,
    "SyncLiteSubscriptionRequest": _read,
}
