"""Where blocks are sent: one ``Producer`` per process and set of options, found again by the next task.

A block goes out as it is encoded, as one batch send. A message that is delayed, or too large to be in a batch, goes out
alone.
Thread-safe as the producer is. Corresponds to MQClientAPIImpl.sendMessage.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from functools import cache

from spark_rocket.client.send.producer import Producer
from spark_rocket.datasource.options.credentials import connecting
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.write.rows import Block
from spark_rocket.model import Message, MessageQueue, SendResult
from spark_rocket.protocol.record.batch import decode_batch_body
from spark_rocket.protocol.record.properties import decode_properties


class Sink:
    """Topics that blocks can be sent to."""

    def __init__(self, options: WriteOptions) -> None:
        self._limit = options.max_message_size
        self._producer = Producer(
            options.producer_group,
            name_server=options.name_server,
            send_timeout=options.request_timeout_ms / 1000,
            max_message_size=options.max_message_size,
            # Of messages that go alone; blocks are compressed already.
            compress_msg_body_over_howmuch=options.max_message_size
            if options.compression == "none"
            else options.compress_above - 1,
            compress_type="zlib" if options.compression == "none" else options.compression,
            member=False,  # tasks come and go: brokers need not know them
            **connecting(options.credentials, options.tls),
        )

    def queues_of(self, topic: str) -> list[MessageQueue]:
        """The queues that take messages. Raises TopicNotFoundError or NameServerUnreachableError."""
        return self._producer.queues(topic)

    def ordered_queues_of(self, topic: str) -> list[MessageQueue]:
        """Those that sharding keys choose among: of brokers that are away, too."""
        return self._producer.queues(topic, ordered=True)

    def submit(self, block: Block, queue: MessageQueue) -> Future[SendResult]:
        """Send once; the future's error says whether it may be sent again."""
        if len(block.body) <= self._limit and not block.is_delayed:
            return self._producer.send_batch_body_async(queue, block.body, block.count, sys_flag=block.sys_flag)
        ((flag, body, properties),) = decode_batch_body(block.body)
        message = Message(queue.topic, bytes(body), decode_properties(bytes(properties)), flag)
        return self._producer.send_async(message, queue=queue)


def sink_for(options: WriteOptions) -> Sink:
    """This process's sink for these options. Writes that differ in their name alone share it."""
    return _sink_for(replace(options, write_id=None))


@cache
def _sink_for(options: WriteOptions) -> Sink:
    return Sink(options)
