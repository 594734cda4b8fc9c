"""Request messages and their replies.

A requester sends an ordinary message with CORRELATION_ID, REPLY_TO_CLIENT (its client id) and TTL (ms). The consumer
creates a reply with :func:`create_reply_message` and sends it. Its broker pushes the reply (326) over the connection of
the requester, which finds the request by the correlation id.

So both must be connected to the same broker, and the requester must be registered there by a heartbeat. A restarted
broker has the requester again after the next heartbeat (30 s).

Nothing outlives the process. Corresponds to RequestResponseFuture, RequestFutureHolder, MessageUtil and
ClientRemotingProcessor.receiveReplyMessage.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from concurrent.futures import CancelledError, Future
from functools import partial

from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.client.send.outgoing import REPLY
from spark_rocket.common.arguments import checked
from spark_rocket.common.logs import RateLimited
from spark_rocket.common.system import now_ms, time_left
from spark_rocket.errors import ClientError, RemotingConnectError, RequestTimeoutError
from spark_rocket.model import (
    CLUSTER,
    CORRELATION_ID,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    TTL,
    Message,
    MessageExt,
    SendResult,
)
from spark_rocket.protocol.record.compression import decompress_body
from spark_rocket.protocol.record.layout import COMPRESSED
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import ReplyMessageRequestHeader
from spark_rocket.remoting.address import parse_address
from spark_rocket.remoting.client.promise import Promise

logger = logging.getLogger(__name__)
_often = RateLimited(logger)

_ARRIVE_TIME = "ARRIVE_TIME"


@checked
def create_reply_message(request: Message, body: bytes | str) -> Message:
    """Create the reply to a consumed request message; send it with any producer."""
    properties = request.properties
    missing = [name for name in (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT) if name not in properties]
    if missing:
        raise ClientError(
            f"A message of {request.topic} is not a request: {missing[0]} is missing.",
            remedy="Reply to messages that were sent with Producer.request and consumed from a broker.",
        )
    known = {name: properties[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if name in properties}
    return Message.of(f"{properties[CLUSTER]}_REPLY_TOPIC", body, properties={MSG_TYPE: REPLY, **known})


class RequestFuture(Promise[MessageExt]):
    """The future reply to one request. If it is cancelled, the reply is dropped."""

    def __init__(self, instance: ClientInstance, message: Message, timeout: float) -> None:
        super().__init__()
        self.correlation_id = str(uuid.uuid4())
        self.message = Message(
            message.topic,
            message.body,
            {
                **message.properties,
                CORRELATION_ID: self.correlation_id,
                REPLY_TO_CLIENT: instance.client_id,
                TTL: str(int(timeout * 1000)),
            },
            message.flag,
        )
        self._timeout = timeout
        replies = Replies.of(instance)
        replies.expect(self, time.monotonic() + timeout)
        self.add_done_callback(lambda _: replies.forget(self))

    def cancel(self) -> bool:
        self.fail(CancelledError())
        return self.cancelled()

    def expire(self) -> None:
        self.fail(
            RequestTimeoutError(
                f"No reply to the request to {self.message.topic} within {self._timeout:g} s.",
                remedy="Check that a consumer of the topic sends replies, or set a longer timeout.",
                retriable=True,
            )
        )

    def sent(self, sent: Future[SendResult]) -> None:
        error = sent.exception()
        if error is not None:
            self.fail(error)


class Replies:
    """The pending requests of one instance; also the handler of PUSH_REPLY_MESSAGE_TO_CLIENT (326)."""

    def __init__(self, instance: ClientInstance) -> None:
        self._call_at = instance.remoting.call_at
        self._pending: dict[str, RequestFuture] = {}

    @classmethod
    def of(cls, instance: ClientInstance) -> Replies:
        replies = instance.members.handlers.setdefault(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, cls(instance))
        assert isinstance(replies, cls)
        return replies

    def expect(self, future: RequestFuture, deadline: float) -> None:
        self._pending[future.correlation_id] = future
        self._call_at(deadline, partial(self._expire, future.correlation_id))

    def forget(self, future: RequestFuture) -> None:
        self._pending.pop(future.correlation_id, None)

    def _expire(self, correlation_id: str) -> None:
        future = self._pending.pop(correlation_id, None)
        if future is not None:
            future.expire()

    def __call__(self, address: str, request: RemotingCommand) -> RemotingCommand:
        reply = reply_of(request)
        future = self._pending.pop(reply.properties.get(CORRELATION_ID, ""), None)
        if future is None:
            _often.warning(
                address,
                "dropped a reply of broker %s: no pending request %s",
                address,
                reply.properties.get(CORRELATION_ID),
            )
        else:
            future.resolve(reply)
        return RemotingCommand.response(request, ResponseCode.SUCCESS)


def register_and_wait(instance: ClientInstance, deadline: float) -> None:
    """Register at new brokers and wait: a broker without a heartbeat does not know the connection for pushes."""
    registered = threading.Event()

    def register() -> None:
        instance.members.register_at_new_brokers()
        registered.set()

    instance.later(register)
    registered.wait(time_left(deadline))


def reply_of(request: RemotingCommand) -> MessageExt:
    """Decode the message of a push (326)."""
    header = ReplyMessageRequestHeader.from_ext(request.ext_fields)
    body = bytes(request.body)
    if header.sys_flag & COMPRESSED:
        body = decompress_body(body, header.sys_flag)
    properties = decode_properties(header.properties or "")
    properties[_ARRIVE_TIME] = str(now_ms())
    return MessageExt(
        topic=header.topic,
        body=body,
        properties=properties,
        flag=header.flag,
        queue_id=header.queue_id,
        sys_flag=header.sys_flag & ~COMPRESSED,
        born_timestamp=header.born_timestamp,
        born_host=_host(header.born_host),
        store_timestamp=header.store_timestamp,
        store_host=_host(header.store_host),
        reconsume_times=header.reconsume_times or 0,
    )


def _host(text: str) -> tuple[str, int]:
    """Parse an address as printed by Java's sockets, with or without a name.

    ``/1.2.3.4:5``, ``name/1.2.3.4:5``, ``name/<unresolved>:5``, ``/[::1%0]:5``, ``/0:0:0:0:0:0:0:1:5``.
    An invalid address must not lose a reply: the result is then empty.
    """
    name, _, address = text.rpartition("/")
    for each in (address, f"{name}:{address.rpartition(':')[2]}"):  # an unresolved name has no address
        try:
            host, port = parse_address(each)
        except RemotingConnectError:
            continue
        if not host.startswith("<"):
            return host.partition("%")[0], port
    return "", 0
