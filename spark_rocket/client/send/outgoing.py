"""The request of a send, and the result of its response.

===========================  ==========================================================================================
single message               SEND_MESSAGE_V2 (310); a reply (MSG_TYPE ``reply``) goes out as SEND_REPLY_MESSAGE_V2 (325)
several                      SEND_BATCH_MESSAGE (320), never compressed, as in Java; each message's properties end with
                             a separator, because brokers before 4.9.1 append their own properties without one
properties added             UNIQ_KEY unless there is one, and WAIT=true
body above ``compress_over`` compressed, unless that makes it larger; sysFlag 0x1 and 0x100 LZ4, 0x200 Zstandard, 0x300
===========================  ==========================================================================================

Thread-safety: a packer may be shared; its results belong to one send.
Corresponds to DefaultMQProducerImpl.sendKernelImpl, MessageBatch and MQClientAPIImpl.processSendResponse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

from spark_rocket.client.core.client_config import MAX_MESSAGE_SIZE
from spark_rocket.client.core.routes import DEFAULT_TOPIC_QUEUES
from spark_rocket.client.core.validators import check_topic_to_send
from spark_rocket.common.arguments import checked
from spark_rocket.common.system import now_ms
from spark_rocket.errors import ClientError, IllegalMessageError, MessageTooLargeError
from spark_rocket.model import (
    AUTO_CREATE_TOPIC_KEY,
    DELAY,
    MSG_TYPE,
    RETRY_PREFIX,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
    Message,
    MessageQueue,
    SendResult,
    SendStatus,
)
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.record.batch_body import encode_batch_message
from spark_rocket.protocol.record.compression import COMPRESSION_BITS, compress_body
from spark_rocket.protocol.record.layout import FIXED_SIZE, TRANSACTION_PREPARED
from spark_rocket.protocol.record.properties import MAX_PROPERTIES_LENGTH, PROPERTY_SEPARATOR, encode_properties
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import SendMessageResponseHeader

#: Bytes of a stored message beside its body and properties, with UNIQ_KEY, WAIT and what brokers add.
STORED_OVERHEAD = FIXED_SIZE + 64 + 96
REPLY = "reply"  # MSG_TYPE of a reply

_TIMES = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
_SINGLE = int(RequestCode.SEND_MESSAGE_V2)
_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
_REPLY = int(RequestCode.SEND_REPLY_MESSAGE_V2)
_DEFAULT_QUEUES = str(DEFAULT_TOPIC_QUEUES)

_STORED = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}
STORED_CODES = frozenset(_STORED)


@checked
def split_batch(messages: Sequence[Message], max_size: int = MAX_MESSAGE_SIZE) -> Iterator[list[Message]]:
    """Split messages into batches within the size limit. A message above ``max_size`` gets its own batch.

    Sizes are stored sizes, because brokers up to 4.9.3 compare the stored size of a batch with their limit.
    """
    batch: list[Message] = []
    size = 0
    for message in messages:
        own = len(message.body) + len(encode_properties(message.properties)) + len(message.topic)
        length = own + STORED_OVERHEAD
        if batch and size + length > max_size:
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += length
    if batch:
        yield batch


def is_plain(message: Message) -> bool:
    """Whether a message may be part of a batch: not delayed, transactional, a retry or a reply."""
    properties = message.properties
    if not properties:
        return not message.topic.startswith(RETRY_PREFIX)
    return (
        properties.get(DELAY, "0") == "0"
        and not any(name in properties for name in _TIMES)
        and TRAN_MSG not in properties
        and MSG_TYPE not in properties
        and not message.topic.startswith(RETRY_PREFIX)
    )


def batch_properties(wait: str | None) -> str:
    """Return the properties of a batch itself: brokers read WAIT there."""
    return f"WAIT\x01{wait or 'true'}"


@dataclass(slots=True)
class Outgoing:
    """One send, for any queue."""

    topic: str
    body: Buffer
    _: KW_ONLY
    properties: str = ""
    msg_id: str = ""
    flag: int = 0
    sys_flag: int = 0
    code: int = _BATCH
    count: int = 1

    def request(self, group: str, queue: MessageQueue) -> RemotingCommand:
        """Build the request for a queue. Keys are SendMessageRequestHeader's one-letter names, inlined for speed."""
        ext = {
            "a": group,
            "b": self.topic,
            "c": AUTO_CREATE_TOPIC_KEY,
            "d": _DEFAULT_QUEUES,
            "e": str(queue.queue_id),
            "f": str(self.sys_flag),
            "g": str(now_ms()),
            "h": str(self.flag),
            "i": self.properties,
            "j": "0",
            "k": "false",
            "m": "true" if self.code == _BATCH else "false",
            "n": queue.broker_name,
        }
        return RemotingCommand(self.code, ext_fields=ext, body=self.body)

    def result(self, queue: MessageQueue, response: RemotingCommand) -> SendResult:
        """Decode a response with one of ``STORED_CODES``."""
        ext = response.ext_fields
        try:
            queue_id, offset, offset_msg_id = int(ext["queueId"]), int(ext["queueOffset"]), ext["msgId"]
        except (KeyError, ValueError):
            SendMessageResponseHeader.from_ext(ext)  # raises the precise error
            raise
        if queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        return SendResult(
            _STORED[response.code],
            self.msg_id,
            offset_msg_id,
            queue,
            offset,
            ext.get("transactionId"),
            ext.get("recallHandle"),
            ext.get("MSG_REGION", ""),
            ext.get("TRACE_ON") != "false",
        )


class Packer:
    """Checks messages and encodes them for sending."""

    def __init__(
        self, next_key: Callable[[], str], max_message_size: int, compress_over: int, compress: str, level: int
    ) -> None:
        if compress not in COMPRESSION_BITS:
            raise ClientError(
                f"Invalid compress_type {compress!r}.", remedy=f"Use one of {', '.join(COMPRESSION_BITS)}."
            )
        self.next_key = next_key
        self._max_message_size = max_message_size
        self._compress_over = compress_over
        self._compress = compress
        self._level = level
        self._small = min(compress_over, max_message_size)
        self._checked: set[str] = set()  # topics
        self._plain: set[str] = set()  # topics whose plain messages may be in batches

    def pack(self, message: Message | Sequence[Message]) -> Outgoing:
        if isinstance(message, Message):
            return self._single(message)
        messages = (
            list(message) if isinstance(message, Sequence) and not isinstance(message, str | bytes) else [message]
        )
        if wrong := [type(one).__name__ for one in messages if not isinstance(one, Message)]:
            raise IllegalMessageError(
                f"Expected a Message, got {wrong[0]}.",
                remedy="Create one with Message.of(topic, body), or pass a list of them.",
            )
        return self._batch(messages)

    def encoded(self, topic: str, body: Buffer, count: int, sys_flag: int = 0) -> Outgoing:
        """Wrap ``count`` messages that are already encoded as a batch."""
        if len(body) > self._max_message_size:
            raise MessageTooLargeError(
                f"{count} encoded messages for {topic} take {len(body):,} bytes; the limit is"
                f" {self._max_message_size:,}.",
                remedy="Send smaller batches.",
            )
        return Outgoing(topic, body, sys_flag=sys_flag, count=count)

    def accumulable(self, message: Message) -> tuple[str, bytes] | None:
        """Like ``_piece``; None if the message must be sent alone: large enough to compress, or not plain."""
        body = message.body
        if (
            message.topic in self._plain
            and not message.properties
            and not message.flag
            and type(body) is bytes
            and 0 < len(body) <= self._small
        ):  # fast path: valid, same result as below
            unique_key = self.next_key()
            raw = f"UNIQ_KEY\x01{unique_key}\x02WAIT\x01true\x02".encode()
            return unique_key, encode_batch_message(0, body, raw)
        if len(message.body or b"") > self._compress_over or not is_plain(message):
            return None
        piece = self._piece(message)
        self._plain.add(message.topic)
        return piece

    def _piece(self, message: Message) -> tuple[str, bytes]:
        """Return a message's unique key and its part of the batch body."""
        self._check(message)
        unique_key, raw = self._properties(message)
        return unique_key, encode_batch_message(message.flag, message.body, raw + PROPERTY_SEPARATOR)

    def _single(self, message: Message) -> Outgoing:
        self._check(message)
        body, properties = message.body, message.properties
        unique_key, raw = self._properties(message)
        code, sys_flag = _SINGLE, 0
        if len(body) > self._compress_over:
            packed = compress_body(body, self._level, self._compress)
            if len(packed) < len(body):
                body, sys_flag = packed, COMPRESSION_BITS[self._compress]
        if properties:
            if properties.get(TRAN_MSG) == "true":
                sys_flag |= TRANSACTION_PREPARED
            if properties.get(MSG_TYPE) == REPLY:
                code = _REPLY
            if len(raw) > MAX_PROPERTIES_LENGTH:
                raise MessageTooLargeError(
                    f"A message for {message.topic} has {len(raw):,} bytes of properties; the limit is"
                    f" {MAX_PROPERTIES_LENGTH:,}.",
                    remedy="Move large values into the body.",
                )
        return Outgoing(
            message.topic,
            body,
            properties=raw.decode(),
            msg_id=unique_key,
            flag=message.flag,
            sys_flag=sys_flag,
            code=code,
        )

    def _properties(self, message: Message) -> tuple[str, bytes]:
        """Return a message's unique key, and its encoded properties including the added ones."""
        properties = message.properties
        if not properties:
            unique_key = self.next_key()
            return unique_key, f"UNIQ_KEY\x01{unique_key}\x02WAIT\x01true".encode()
        if UNIQ_KEY not in properties or WAIT not in properties:
            properties = {UNIQ_KEY: self.next_key(), WAIT: "true"} | properties
        return properties[UNIQ_KEY], encode_properties(properties)

    def _batch(self, messages: list[Message]) -> Outgoing:
        if not messages:
            raise ClientError("The batch is empty.", remedy="Send at least one message.")
        topic = messages[0].topic
        for message in messages:
            if message.topic != topic:
                raise ClientError(
                    f"A batch has messages for {topic!r} and {message.topic!r}.", remedy="Send one batch per topic."
                )
            if not is_plain(message):
                raise ClientError(
                    f"A batch for {topic!r} has a delayed, transactional or retry message, or a reply.",
                    remedy="Send such messages individually.",
                )
            if message.properties.get(WAIT, "true") != messages[0].properties.get(WAIT, "true"):
                raise ClientError(
                    f"A batch for {topic!r} has messages with different values of WAIT.",
                    remedy="Send a separate batch for each value.",
                )
        pieces = [self._piece(message) for message in messages]
        body = b"".join([piece for _, piece in pieces])
        if len(body) > self._max_message_size:
            raise MessageTooLargeError(
                f"A batch of {len(messages)} messages for {topic} takes {len(body):,} bytes; the limit is"
                f" {self._max_message_size:,}.",
                remedy="Split it with split_batch(messages).",
            )
        return Outgoing(
            topic,
            body,
            properties=batch_properties(messages[0].properties.get(WAIT)),
            msg_id=",".join([key for key, _ in pieces]),
            count=len(pieces),
        )

    def _check(self, message: Message) -> None:
        if message.topic not in self._checked:
            self._checked.add(check_topic_to_send(message.topic))
        body = message.body
        if type(body) is not bytes and not isinstance(body, bytes | bytearray | memoryview):
            raise IllegalMessageError(
                f"Invalid body type of a message for {message.topic}: {type(body).__name__}.",
                remedy="Use bytes; Message.of() also accepts str.",
            )
        if not body:
            raise IllegalMessageError(
                f"A message for {message.topic} has no body.", remedy="RocketMQ does not support empty messages."
            )
        if len(body) > self._max_message_size:
            raise MessageTooLargeError(
                f"A message for {message.topic} has a body of {len(body):,} bytes; the limit is"
                f" {self._max_message_size:,}.",
                remedy="Send it in parts, or raise max_message_size here and maxMessageSize at the brokers.",
            )
