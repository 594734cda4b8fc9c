"""Complete frames, built once and sent many times, so the load costs almost nothing."""

from __future__ import annotations

import time

from spark_rocket.model import Message
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import SendMessageRequestHeader, SendMessageResponseHeader
from spark_rocket.protocol.wire.headers.pull import PullMessageRequestHeader

BATCH = 500
STAMP_DIGITS = 19
STAMP = b"sent at " + b"0" * STAMP_DIGITS


def properties_of(row: int) -> dict[str, str]:
    return {"TAGS": "bench", "KEYS": f"key-{row:06d}", "UNIQ_KEY": f"7F0000010001{row:020X}", "origin": "EWR"}


def _send_header(topic: str, queue: int, properties: str, *, batch: bool) -> dict[str, str]:
    return SendMessageRequestHeader(
        producer_group="benchmark",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=properties,
        batch=batch,
    ).to_ext_v2()


def send(topic: str, queue: int, body: bytes, **more: str) -> bytes:
    """Build a single send; ``more`` are additional properties."""
    properties = encode_properties({**properties_of(1), **more}).decode()
    header = _send_header(topic, queue, properties, batch=False)
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body).encode()


def send_batch(topic: str, queue: int, size: int, count: int = BATCH) -> bytes:
    """Build a batch send of ``count`` messages."""
    return batch_of(
        topic,
        queue,
        encode_batch_body([Message(topic, payload(size, row), properties_of(row)) for row in range(count)]),
    )


def batch_of(topic: str, queue: int, body: bytes) -> bytes:
    """Build a batch send of an encoded batch."""
    header = _send_header(topic, queue, "", batch=True)
    return RemotingCommand.request(RequestCode.SEND_BATCH_MESSAGE, header, body).encode()


def send_response() -> bytes:
    """Build a broker's response to a send."""
    header = SendMessageResponseHeader(msg_id="7F00000100002A9F0000000000ABCDEF", queue_id=3, queue_offset=1_000_000)
    return RemotingCommand.response(RemotingCommand.request(0), ext_fields=header.to_ext()).encode()


def pull(topic: str, queue: int, offset: int) -> bytes:
    """Build a pull that the broker holds until a message arrives."""
    header = PullMessageRequestHeader(
        consumer_group="benchmark",
        topic=topic,
        queue_id=queue,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=2 | 4,  # SUSPEND and SUBSCRIPTION
        commit_offset=0,
        suspend_timeout_millis=15_000,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header.to_ext()).encode()


def payload(size: int, row: int = 0) -> bytes:
    """Return bytes that compress about as well as JSON."""
    text = f'{{"row":{row},"carrier":"UA","origin":"EWR","dest":"IAH","delay":{row % 97}}}'.encode()
    return (text * (size // len(text) + 1))[:size]
