"""What a pull found, as messages or as Arrow record batches.

Brokers compare hashes of tags only, and may begin in the middle of what was asked for: whatever lies before ``start``
or has none of the tags is left out here. Pure; thread-safe. Corresponds to PullAPIWrapper.processPullResult.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_rocket.client.consume.hooks import Hooks
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import PullResult
from spark_rocket.client.consume.send_back import RETRY_TOPIC
from spark_rocket.client.consume.subscriptions import Subscriptions
from spark_rocket.errors import RunTooLargeError
from spark_rocket.model import RETRY_PREFIX, MessageExt, MessageQueue
from spark_rocket.protocol.filter.tags import TagExpression
from spark_rocket.protocol.record.messages import decode_messages

if TYPE_CHECKING:
    import pyarrow as pa


class Decoder:
    """Of a push consumer: filter hooks have their say, and retried messages look as they did at first."""

    def __init__(self, subscriptions: Subscriptions, hooks: Hooks) -> None:
        self._subscriptions = subscriptions
        self._hooks = hooks

    def messages(self, process_queue: ProcessQueue, found: PullResult) -> list[MessageExt]:
        """Those of a pull that were asked for."""
        queue = process_queue.queue
        messages = messages_of(found, queue, process_queue.end, self._subscriptions.tags_of(queue.topic))
        self._hooks.stats.pulled(queue.topic, len(messages), process_queue.pull_seconds)
        if queue.topic.startswith(RETRY_PREFIX):
            show_origin(messages)
        return self._hooks.choose(queue, messages) if self._hooks.filter else messages

    def batches(self, process_queue: ProcessQueue, found: PullResult) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches; no hook is asked."""
        queue = process_queue.queue
        for batch in batches_of(found, queue, process_queue.end, self._subscriptions.tags_of(queue.topic)):
            self._hooks.stats.pulled(queue.topic, len(batch), process_queue.pull_seconds)
            yield batch


def show_origin(messages: list[MessageExt]) -> None:
    """Give messages that are retried the topic that they were sent to."""
    for message in messages:
        message.topic = message.get_property(RETRY_TOPIC) or message.topic


def messages_of(found: PullResult, queue: MessageQueue, start: int, tags: TagExpression) -> list[MessageExt]:
    """The messages from ``start`` on, in order."""
    messages = decode_messages(found.records, queue.broker_name)
    if not tags.matches_all:
        messages = [message for message in messages if tags.matches(message.tags)]
    if messages and messages[0].queue_offset < start:
        messages = [message for message in messages if message.queue_offset >= start]
    return messages


def batches_of(found: PullResult, queue: MessageQueue, start: int, tags: TagExpression) -> Iterator[pa.RecordBatch]:
    """The same as batches that have rows: one, unless bodies inflate to more than is decoded at once."""
    from spark_rocket.protocol.record.columns import decode_records  # only who wants Arrow pays for loading it

    wanted = None if tags.matches_all else tags.tags
    position: int | None = start
    while position is not None:
        end = None
        try:
            batch = decode_records(found.records, broker_name=queue.broker_name, start_offset=position, tags=wanted)
        except RunTooLargeError as error:
            end = error.queue_offset
            batch = decode_records(
                found.records, broker_name=queue.broker_name, start_offset=position, end_offset=end, tags=wanted
            )
        if len(batch):
            yield batch
        position = end
