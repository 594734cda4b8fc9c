"""Requests that are messages, and replies to them.

The requester sends an ordinary message that says who waits for what: CORRELATION_ID, REPLY_TO_CLIENT (its client id)
and TTL (ms). Whoever consumes it makes a reply of it with :func:`create_reply_message` and sends that; its broker
pushes the reply (326) over the requester's own connection, where it is found by its correlation id.

So both must be connected to the same broker, and the requester known there by a heartbeat. A broker that was restarted
in between knows it again after the next one (30 s).

Thread-safety: all of it. Nothing outlives the process.
Corresponds to RequestResponseFuture, RequestFutureHolder, MessageUtil and ClientRemotingProcessor.receiveReplyMessage.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from concurrent.futures import Future

from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.client.send.outgoing import REPLY
from spark_rocket.client.send.router import left
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
from spark_rocket.protocol.wire.headers import ReplyMessageRequestHeader
from spark_rocket.remoting.address import parse_address
from spark_rocket.remoting.client.deadlines import DeadlineTable
from spark_rocket.remoting.client.promise import Promise

logger = logging.getLogger(__name__)

_ARRIVE_TIME = "ARRIVE_TIME"


def create_reply_message(request: Message, body: bytes | str) -> Message:
    """The reply to a request message that was consumed; send it with any producer."""
    properties = request.properties
    missing = [name for name in (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT) if name not in properties]
    if missing:
        raise ClientError(
            f"A message of {request.topic} is no request: it has no {missing[0]}.",
            remedy="Reply to messages that were sent with Producer.request and were consumed from a broker.",
        )
    known = {name: properties[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if name in properties}
    return Message.of(f"{properties[CLUSTER]}_REPLY_TOPIC", body, properties={MSG_TYPE: REPLY, **known})


class RequestFuture(Promise[MessageExt]):
    """The reply to one request, some day. It may be cancelled: the reply is dropped then."""

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
        return Future.cancel(self)

    def expire(self) -> None:
        """No reply has come in time."""
        self.fail(
            RequestTimeoutError(
                f"No reply to the request to {self.message.topic} within {self._timeout:g} s.",
                remedy="Check that somebody consumes the topic and replies; a longer timeout waits for slow ones.",
                retriable=True,
            )
        )

    def sent(self, sent: Future[SendResult]) -> None:
        """The request's own send has ended."""
        error = sent.exception()
        if error is not None:
            self.fail(error)


class Replies:
    """The requests of one instance that wait; also the handler of PUSH_REPLY_MESSAGE_TO_CLIENT (326)."""

    def __init__(self, instance: ClientInstance) -> None:
        self._waiting: DeadlineTable[str, RequestFuture] = DeadlineTable(instance.remoting.timer, RequestFuture.expire)

    @classmethod
    def of(cls, instance: ClientInstance) -> Replies:
        """The instance's own."""
        replies = instance.members.handlers.setdefault(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, cls(instance))
        assert isinstance(replies, cls)
        return replies

    def expect(self, future: RequestFuture, deadline: float) -> None:
        self._waiting.put(future.correlation_id, future, deadline)

    def forget(self, future: RequestFuture) -> None:
        self._waiting.take(future.correlation_id)

    def __call__(self, address: str, request: RemotingCommand) -> RemotingCommand:
        """A reply has come."""
        reply = reply_of(request)
        future = self._waiting.take(reply.properties.get(CORRELATION_ID, ""))
        if future is None:
            logger.warning(
                "broker %s pushed a reply that nobody waits for: %s", address, reply.properties.get(CORRELATION_ID)
            )
        else:
            future.resolve(reply)
        return RemotingCommand.response(request, ResponseCode.SUCCESS)


def greet_and_wait(instance: ClientInstance, deadline: float) -> None:
    """A broker that has had no heartbeat does not know where to push what is for us."""
    greeted = threading.Event()

    def greet() -> None:
        instance.members.register_at_new_brokers()
        greeted.set()

    instance.later(greet)
    greeted.wait(left(deadline))


def reply_of(request: RemotingCommand) -> MessageExt:
    """The message that a push (326) holds."""
    header = ReplyMessageRequestHeader.from_ext(request.ext_fields)
    body = bytes(request.body)
    if header.sys_flag & COMPRESSED:
        body = decompress_body(body, header.sys_flag)
    properties = decode_properties(header.properties or "")
    properties[_ARRIVE_TIME] = str(time.time_ns() // 1_000_000)
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
    """An address as Java prints its sockets', with a name before it or not.

    ``/1.2.3.4:5``, ``name/1.2.3.4:5``, ``name/<unresolved>:5``, ``/[::1%0]:5``, ``/0:0:0:0:0:0:0:1:5``.
    None of these may cost a reply: what cannot be understood is no address.
    """
    name, _, address = text.rpartition("/")
    for each in (address, f"{name}:{address.rpartition(':')[2]}"):  # a name that was not looked up has no address
        try:
            host, port = parse_address(each)
        except RemotingConnectError:
            continue
        if not host.startswith("<"):
            return host.partition("%")[0], port
    return "", 0
