"""Encode and send the rows of one task: what the writers of Spark and dead letters share.

Belongs to one thread. The last request is acknowledged when ``send_rows`` returns.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.datasource.write.row_encoder import RowEncoder, TaskQueues, write_key
from spark_rocket.datasource.write.send import BlockSender, sink_for
from spark_rocket.errors import TopicNotFoundError
from spark_rocket.model import MessageQueue


def send_rows(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, name: str, batch_id: str = "", partition: int = 0
) -> BlockSender:
    """Send a task's rows; return the sender, which has counted them. ``name`` and ``batch_id`` identify the write."""
    sink = sink_for(options)
    where = f"partition {partition}"

    def queues_of(topic: str, *, ordered: bool = False) -> list[MessageQueue]:
        try:
            return sink.queues(topic, ordered=ordered)
        except TopicNotFoundError as problem:
            # The option names the topic, so an unavailable broker is likelier than a missing topic.
            problem.retriable = topic == options.topic
            raise

    def retry_deadline() -> RetryDeadline:
        return RetryDeadline(options.retry_timeout_ms)

    key = write_key(name, batch_id, partition)
    queues = TaskQueues(queues_of, key, retry_deadline)
    encoder = RowEncoder(options, queues, key, where)
    sender = BlockSender(
        sink.submit,
        queues,
        limit=options.max_requests_in_flight,
        delayed_limit=options.max_delayed_in_flight,
        retry_deadline=retry_deadline,
        where=where,
    )
    for batch in batches:
        for block in encoder.blocks(batch):
            sender.put(block)
    sender.finish()
    return sender
