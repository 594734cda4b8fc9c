"""Sends messages: one or a batch; waiting, with a future, or without an answer.

=========================  ==============================================================================
which queue                ``queue=`` given; chosen by ``selector``; else the next in turn
what is tried again        only sends whose queue is ours to choose: on another broker, ``retry_times`` more
                           times, after lost connections, time-outs and the codes 1, 2, 14, 17 (the broker does
                           not have the topic yet), 16 and 215 (this broker does not take it now)
what is stored twice       a send that is tried again may have been carried out: at least once, same UNIQ_KEY
=========================  ==============================================================================

A topic that does not exist is sent to the brokers that create topics by themselves (TBW102), as Java's client does.
Bodies above ``compress_over`` bytes go out as zlib, level 5. Every message gets a UNIQ_KEY unless it has one.

Thread-safety: all methods; one producer can serve every thread of a process. No state outlives it.
Corresponds to org.apache.rocketmq.client.producer.DefaultMQProducer.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeAlias

from spark_rocket.client.config import MAX_MESSAGE_SIZE, ClientConfig
from spark_rocket.client.instance import Client, ClientInstance
from spark_rocket.client.routes import AUTO_CREATE_TOPIC, DEFAULT_TOPIC_QUEUES
from spark_rocket.errors import ClientError, MessageTooLargeError, RemotingError, RocketError
from spark_rocket.model import DELAY, SHARDING_KEY, TRAN_MSG, UNIQ_KEY, WAIT, Message, MessageQueue, SendResult, SendStatus
from spark_rocket.protocol.codes import RequestCode, ResponseCode
from spark_rocket.protocol.command import Buffer, RemotingCommand
from spark_rocket.protocol.compression import compress_body
from spark_rocket.protocol.headers import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
)
from spark_rocket.protocol.properties import MAX_PROPERTIES_LENGTH, encode_properties
from spark_rocket.protocol.recall_handle import RecallMessageHandle
from spark_rocket.protocol.record import COMPRESSED, COMPRESSION_ZLIB, TRANSACTION_PREPARED, encode_batch_body
from spark_rocket.protocol.subscription import java_hash

DEFAULT_GROUP = "spark_rocket_producer"
BATCH_OVERHEAD = 22  # bytes that each message of a batch takes beside its body and properties

Selector: TypeAlias = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]

_STORED = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}
_STORED_CODES = frozenset(_STORED)
_ELSEWHERE = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.FLOW_CONTROL,
    }
)


def select_by_sharding_key(queues: Sequence[MessageQueue], message: Message, key: Any = None) -> MessageQueue:
    """A selector: messages with the same key (the argument, else ``__SHARDINGKEY``) go to the same queue, in order."""
    text = message.properties.get(SHARDING_KEY, "") if key is None else str(key)
    return queues[abs(java_hash(text)) % len(queues)]


def split_batch(messages: Sequence[Message], max_size: int = MAX_MESSAGE_SIZE) -> Iterator[list[Message]]:
    """Cut messages into batches that a broker takes. A message above ``max_size`` gets a batch of its own."""
    batch: list[Message] = []
    size = 0
    for message in messages:
        # The UNIQ_KEY and WAIT that sending adds take about 60 bytes.
        length = len(message.body) + len(encode_properties(message.properties)) + BATCH_OVERHEAD + 64
        if batch and size + length > max_size:
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += length
    if batch:
        yield batch


class _Prepared:
    """What one send puts on the wire, whichever queue it goes to in the end."""

    __slots__ = ("batch", "body", "flag", "msg_id", "properties", "sys_flag", "topic")

    def __init__(
        self,
        topic: str,
        body: Buffer,
        *,
        properties: str = "",
        msg_id: str = "",
        flag: int = 0,
        sys_flag: int = 0,
        batch: bool = False,
    ) -> None:
        self.topic = topic
        self.body = body
        self.properties = properties
        self.msg_id = msg_id
        self.flag = flag
        self.sys_flag = sys_flag
        self.batch = batch


class Producer(Client):
    """``with Producer("group") as producer: producer.send(Message.of("topic", "body"))``

    ``send_timeout`` (seconds) is for each attempt.
    """

    def __init__(
        self,
        group: str = DEFAULT_GROUP,
        *,
        name_server: str | None = None,
        send_timeout: float = 3.0,
        retry_times: int = 2,
        compress_over: int = 4096,
        max_message_size: int = MAX_MESSAGE_SIZE,
    ) -> None:
        super().__init__(ClientConfig.of(name_server))
        self.group = group
        self.max_message_size = max_message_size
        self._send_timeout = send_timeout
        self._retry_times = retry_times
        self._compress_over = compress_over
        self._turns = itertools.count(threading.get_ident() % 1024)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- sending ----------------------------------------------------------------------------------------------

    def send(
        self,
        message: Message | Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: Any = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send and wait until the broker has it. A sequence of messages of one topic goes out as one batch."""
        prepared = self._prepare(message)
        fixed = self._fixed_queue(message, queue, selector, selector_arg)
        if fixed is not None:
            return self._send(prepared, fixed, timeout)
        avoid: str | None = None
        for attempt in range(self._retry_times + 1):
            chosen = self._next_queue(prepared.topic, avoid)
            try:
                return self._send(prepared, chosen, timeout)
            except RocketError as error:
                if attempt == self._retry_times or not self._may_go_elsewhere(error, prepared.topic):
                    raise
                avoid = chosen.broker_name
        raise AssertionError("the loop returns or raises")

    def send_async(
        self,
        message: Message | Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: Any = None,
        timeout: float | None = None,
    ) -> Future[SendResult]:
        """Send and give a future; ``add_done_callback`` makes it a call-back, which must be short."""
        prepared = self._prepare(message)
        fixed = self._fixed_queue(message, queue, selector, selector_arg)
        if fixed is not None:
            return self._submit(prepared, fixed, timeout)
        result: Future[SendResult] = Future()
        result.set_running_or_notify_cancel()
        self._try_async(prepared, result, timeout, self._retry_times, None)
        return result

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: Any = None,
        timeout: float | None = None,
    ) -> None:
        """Send and do not ask whether it arrived."""
        prepared = self._prepare(message)
        chosen = self._fixed_queue(message, queue, selector, selector_arg) or self._next_queue(prepared.topic, None)
        instance = self._instance()
        request = self._request(prepared, chosen)
        instance.remoting.invoke_oneway(instance.routes.master(chosen), request, timeout or self._send_timeout)

    def send_batch_body(
        self, queue: MessageQueue, body: Buffer, count: int, *, timeout: float | None = None
    ) -> SendResult:
        """Send ``count`` messages that are encoded already (``protocol.columnar.encode_batch``), without a copy.

        One queue, one attempt: the caller knows what may be sent again. ``msg_id`` of the result is empty.
        """
        return self._send(self._encoded(queue, body, count), queue, timeout)

    def send_batch_body_async(
        self, queue: MessageQueue, body: Buffer, count: int, *, timeout: float | None = None
    ) -> Future[SendResult]:
        """As ``send_batch_body``, with a future. ``body`` must not change until it is done."""
        return self._submit(self._encoded(queue, body, count), queue, timeout)

    def recall_message(self, topic: str, handle: str, *, timeout: float | None = None) -> str:
        """Take back a message that waits for its time, by ``SendResult.recall_handle``; returns its id.

        BrokerError if it is due already, or if the broker allows no recalls (``recallMessageEnable``).
        """
        where = MessageQueue(topic, RecallMessageHandle.decode(handle).broker_name, 0)
        header = RecallMessageRequestHeader(topic=topic, recall_handle=handle, producer_group=self.group)
        instance = self._instance()
        answer = instance.invoke(
            instance.routes.master(where),
            RemotingCommand.request(RequestCode.RECALL_MESSAGE, header.to_ext()),
            f"the recall from {topic}",
            topic=topic,
            timeout=timeout or self._send_timeout,
        )
        return RecallMessageResponseHeader.from_ext(answer.ext_fields).msg_id

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that take the topic's messages, sorted."""
        return list(self._instance().routes.publish_route(topic))

    # --- what goes out ----------------------------------------------------------------------------------------

    def _prepare(self, message: Message | Sequence[Message]) -> _Prepared:
        if isinstance(message, Message):
            body = self._checked_body(message)
            properties = self._complete(message)
            sys_flag = 0
            if len(body) > self._compress_over:
                packed = compress_body(body)
                if len(packed) < len(body):
                    body, sys_flag = packed, COMPRESSED | COMPRESSION_ZLIB
            if properties.get(TRAN_MSG) == "true":
                sys_flag |= TRANSACTION_PREPARED
            raw = encode_properties(properties)
            if len(raw) > MAX_PROPERTIES_LENGTH:
                raise MessageTooLargeError(
                    f"A message for {message.topic} has {len(raw):,} bytes of properties; the limit is"
                    f" {MAX_PROPERTIES_LENGTH:,}.",
                    remedy="Move large values into the body.",
                )
            return _Prepared(
                message.topic,
                body,
                properties=raw.decode(),
                msg_id=properties[UNIQ_KEY],
                flag=message.flag,
                sys_flag=sys_flag,
            )
        return self._prepare_batch(list(message))

    def _prepare_batch(self, messages: list[Message]) -> _Prepared:
        if not messages:
            raise ClientError("A batch of no messages cannot be sent.", remedy="Send at least one.")
        topic = messages[0].topic
        for message in messages:
            if message.topic != topic:
                raise ClientError(
                    f"A batch holds messages for {topic!r} and for {message.topic!r}.", remedy="Send a batch per topic."
                )
            if message.properties.get(DELAY, "0") != "0" or topic.startswith("%RETRY%"):
                raise ClientError(
                    f"A batch for {topic!r} holds a delayed or retry message.", remedy="Send such messages singly."
                )
        every = [self._complete(message) for message in messages]
        body = encode_batch_body(
            (message.flag, self._checked_body(message), encode_properties(properties))
            for message, properties in zip(messages, every, strict=True)
        )
        if len(body) > self.max_message_size:
            raise MessageTooLargeError(
                f"A batch of {len(messages)} messages for {topic} takes {len(body):,} bytes; the limit is"
                f" {self.max_message_size:,}.",
                remedy="Cut it with split_batch(messages).",
            )
        return _Prepared(topic, body, msg_id=",".join(properties[UNIQ_KEY] for properties in every), batch=True)

    def _encoded(self, queue: MessageQueue, body: Buffer, count: int) -> _Prepared:
        if len(body) > self.max_message_size:
            raise MessageTooLargeError(
                f"{count} encoded messages for {queue.topic} take {len(body):,} bytes; the limit is"
                f" {self.max_message_size:,}.",
                remedy="Send fewer at a time.",
            )
        return _Prepared(queue.topic, body, batch=True)

    def _checked_body(self, message: Message) -> bytes:
        if len(message.body) > self.max_message_size:
            raise MessageTooLargeError(
                f"A message for {message.topic} has a body of {len(message.body):,} bytes; the limit is"
                f" {self.max_message_size:,}.",
                remedy="Send it in parts, or raise max_message_size here and maxMessageSize at the brokers.",
            )
        return message.body

    def _complete(self, message: Message) -> dict[str, str]:
        properties = message.properties
        if UNIQ_KEY in properties and WAIT in properties:
            return properties
        return {UNIQ_KEY: self._instance().next_key(), WAIT: "true"} | properties

    def _request(self, prepared: _Prepared, queue: MessageQueue) -> RemotingCommand:
        header = SendMessageRequestHeader(
            producer_group=self.group,
            topic=prepared.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=DEFAULT_TOPIC_QUEUES,
            queue_id=queue.queue_id,
            sys_flag=prepared.sys_flag,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=prepared.flag,
            properties=prepared.properties,
            batch=prepared.batch,
            broker_name=queue.broker_name,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if prepared.batch else RequestCode.SEND_MESSAGE_V2
        return RemotingCommand.request(code, header.to_ext_v2(), prepared.body)

    # --- where it goes ----------------------------------------------------------------------------------------

    def _fixed_queue(
        self,
        message: Message | Sequence[Message],
        queue: MessageQueue | None,
        selector: Selector | None,
        selector_arg: Any,
    ) -> MessageQueue | None:
        first = message if isinstance(message, Message) else message[0]
        if queue is not None:
            if queue.topic != first.topic:
                raise ClientError(
                    f"A message for {first.topic!r} cannot go to a queue of {queue.topic!r}.",
                    remedy="Take the queue from queues(message.topic).",
                )
            return queue
        return None if selector is None else selector(self.queues(first.topic), first, selector_arg)

    def _next_queue(self, topic: str, avoid: str | None) -> MessageQueue:
        queues: Sequence[MessageQueue] = self._instance().routes.publish_route(topic)
        if avoid is not None:
            queues = [queue for queue in queues if queue.broker_name != avoid] or queues
        return queues[next(self._turns) % len(queues)]

    def _may_go_elsewhere(self, error: RocketError, topic: str) -> bool:
        """Whether another broker may take what this one did not; the route is asked for again."""
        if not isinstance(error, RemotingError) and error.response_code not in _ELSEWHERE:
            return False
        routes = self._instance().routes
        if isinstance(error, RemotingError):
            try:
                routes.refresh(topic)
            except RocketError:
                pass  # a topic not made yet, or no name server: what is known must do
        return True

    # --- the exchange -----------------------------------------------------------------------------------------

    def _send(self, prepared: _Prepared, queue: MessageQueue, timeout: float | None) -> SendResult:
        instance = self._instance()
        answer = instance.invoke(
            instance.routes.master(queue),
            self._request(prepared, queue),
            f"the send to {queue.topic}",
            topic=queue.topic,
            timeout=timeout or self._send_timeout,
            allowed=_STORED_CODES,
        )
        return _result(prepared, queue, answer)

    def _submit(self, prepared: _Prepared, queue: MessageQueue, timeout: float | None) -> Future[SendResult]:
        instance = self._instance()
        return instance.invoke_async(
            instance.routes.master(queue),
            self._request(prepared, queue),
            f"the send to {queue.topic}",
            lambda answer: _result(prepared, queue, answer),
            topic=queue.topic,
            timeout=timeout or self._send_timeout,
            allowed=_STORED_CODES,
        )

    def _try_async(
        self, prepared: _Prepared, result: Future[SendResult], timeout: float | None, left: int, avoid: str | None
    ) -> None:
        """One attempt; its failure starts the next on the instance's own thread, since connecting blocks."""
        instance: ClientInstance = self._instance()
        try:
            queue = self._next_queue(prepared.topic, avoid)
            attempt = self._submit(prepared, queue, timeout)
        except RocketError as error:
            result.set_exception(error)
            return

        def again(error: RocketError) -> None:
            try:
                elsewhere = self._may_go_elsewhere(error, prepared.topic)
            except RocketError:  # closed meanwhile
                elsewhere = False
            if elsewhere:
                self._try_async(prepared, result, timeout, left - 1, queue.broker_name)
            else:
                result.set_exception(error)

        def done(answered: Future[SendResult]) -> None:
            error = answered.exception()
            if error is None:
                result.set_result(answered.result())
            elif left > 0 and isinstance(error, RocketError):
                instance.later(lambda: again(error))
            else:
                result.set_exception(error)

        attempt.add_done_callback(done)


def _result(prepared: _Prepared, queue: MessageQueue, answer: RemotingCommand) -> SendResult:
    header = SendMessageResponseHeader.from_ext(answer.ext_fields)
    return SendResult(
        status=_STORED[answer.code],
        msg_id=prepared.msg_id,
        offset_msg_id=header.msg_id,
        queue=MessageQueue(queue.topic, queue.broker_name, header.queue_id),
        queue_offset=header.queue_offset,
        transaction_id=header.transaction_id,
        recall_handle=header.recall_handle,
    )
