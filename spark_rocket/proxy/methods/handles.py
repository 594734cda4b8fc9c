"""Receipt handles, by which clients identify received messages.

A handle is the broker's receipt with a ninth part, separated by spaces:

``startOffset popTime invisibleTime reviveQueueId topicFlag brokerName queueId offset commitLogOffset``

Clients send it with every ack and change, which go to the broker in it. Malformed and expired handles, and handles of
other clusters, are refused with INVALID_RECEIPT_HANDLE.

Thread-safety: pure functions behind a small cache. Corresponds to org.apache.rocketmq.common.consumer.ReceiptHandle.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from spark_rocket.errors import ProtocolError, RemotingTimeoutError, RocketError
from spark_rocket.protocol.ids import FLAG_NORMAL, ExtraInfo, parse_extra_info, real_topic
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.proxy.definitions import Code
from spark_rocket.proxy.messages.statuses import StatusError, refusal_of

_NO_RECEIPT = (ResponseCode.NO_MESSAGE, ResponseCode.INVALID_PARAMETER, ResponseCode.MESSAGE_ILLEGAL)
_MAX_SPAN = 1 << 16
_MAX_QUEUE = (1 << 31) - 1
_MAX_OFFSET = (1 << 63) - 1
_MAX_CHARACTERS = 1_000


class Handle(NamedTuple):
    """A parsed handle: the common part of the messages of one queue in one pop, and the message's offset.

    ``physical_offset`` is −1 if the handle does not contain the position in the log.
    """

    info: ExtraInfo
    offset: int
    physical_offset: int
    text: str

    def topic(self, topic: str, group: str) -> str:
        """Return the message's stored topic: ``topic`` itself, or the group's retry topic for it."""
        return real_topic(topic, group, self.info.flag)


def read_handle(text: str, now: int) -> Handle:
    """Parse a handle. StatusError with INVALID_RECEIPT_HANDLE if it is malformed or expired."""
    parts = text.rsplit(" ", 2 if text.count(" ", 0, _MAX_CHARACTERS) > 7 else 1)
    try:
        info = _info_of(parts[0])
        offset = int(parts[1])
        physical_offset = int(parts[2]) if len(parts) > 2 else -1
    except (ProtocolError, ValueError, IndexError):
        raise invalid_handle(
            f"malformed receipt handle {text[:100]!r}: use the handle of the received message"
        ) from None
    if (
        info.offset >= 0
        or max(info.queue_id, info.revive_queue_id) > _MAX_QUEUE
        or not info.start_offset <= offset < info.start_offset + _MAX_SPAN
        or max(offset, physical_offset) > _MAX_OFFSET
    ):
        raise invalid_handle(f"receipt handle {text[:100]!r} has an invalid offset")
    if info.pop_time + info.invisible_time <= now:
        raise invalid_handle("receipt handle is expired: the message is delivered again, with a new one")
    return Handle(info, offset, physical_offset, text)


@lru_cache(4096)
def _info_of(head: str) -> ExtraInfo:
    """Parse a handle without its offsets."""
    if len(head) > _MAX_CHARACTERS:
        raise ValueError
    return parse_extra_info(head)


def fields_of(group: str, topic: str, handle: Handle) -> dict[str, str]:
    """Return the fields of ACK_MESSAGE, and of CHANGE_MESSAGE_INVISIBLETIME without the time."""
    info = handle.info
    return {
        "consumerGroup": group,
        "topic": handle.topic(topic, group),
        "queueId": str(info.queue_id),
        "extraInfo": handle.text,
        "offset": str(handle.offset),
    }


def refusal(response: RemotingCommand, handle: Handle) -> StatusError:
    """Convert a broker's error response to an ack or a change."""
    forged = response.code == ResponseCode.TOPIC_NOT_EXIST and handle.info.flag != FLAG_NORMAL
    if response.code in _NO_RECEIPT or forged:
        return refusal_of(response, Code.INVALID_RECEIPT_HANDLE)
    return refusal_of(response)


def unreachable(error: RocketError) -> StatusError:
    """Convert the error of an unavailable broker for a handle."""
    code = Code.PROXY_TIMEOUT if isinstance(error, RemotingTimeoutError) else Code.INTERNAL_SERVER_ERROR
    return StatusError(code, f"{error.message} {error.remedy}".rstrip())


def invalid_handle(message: str) -> StatusError:
    """Create an INVALID_RECEIPT_HANDLE error."""
    return StatusError(Code.INVALID_RECEIPT_HANDLE, message)
