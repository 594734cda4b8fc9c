"""A task's part of the exactly-once sink: rows are encoded as for other writes, and staged.

Each block, a whole batch body, becomes the body of one message of the staging topic. Any queue of that topic will do,
so a block is staged again freely when its response is lost; a second copy is never referenced, and retention removes
it. Its rows will be published to the block's queue. Delayed rows of one queue share blocks.

A ``Stager`` belongs to one task and thread. Nothing that it stages is visible until its epoch is decided.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.exactly_once.lanes import is_body_of
from spark_rocket.datasource.exactly_once.manifest import Epoch, StagedBlock
from spark_rocket.datasource.exactly_once.sink_brokers import Brokers, Timing
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.processes import settle_worker
from spark_rocket.datasource.write.row_encoder import Block, RowEncoder, TaskQueues
from spark_rocket.datasource.write.send import BlockSender
from spark_rocket.errors import DataLossError, RowError
from spark_rocket.model import MessageQueue, SendResult, SendStatus


@dataclass
class Staged(WriterCommitMessage):
    """What one task staged for an epoch."""

    epoch: Epoch
    blocks: list[StagedBlock]
    retries: int = 0


class Stager:
    """Stages the blocks of one partition."""

    def __init__(
        self, brokers: Brokers, queues: TaskQueues, options: WriteOptions, epoch: Epoch, partition: int
    ) -> None:
        self._brokers = brokers
        self._queues = queues
        self._options = options
        self._epoch = epoch
        self._partition = partition
        self._unconfirmed: list[StagedBlock] = []
        self._delayed: dict[MessageQueue, list[Block]] = {}
        self.blocks: list[StagedBlock] = []
        self.sender = BlockSender(
            lambda block, queue: brokers.stage_async(queue, block.body),
            queues,
            limit=options.max_requests_in_flight,
            delayed_limit=options.max_delayed_in_flight,
            retry_deadline=Timing.of(options).deadline,
            where=f"partition {partition}",
            on_stored=self._stored,
        )

    def put(self, block: Block) -> None:
        """Stage a block as soon as there is room."""
        if block.topic in (self._options.staging_topic, self._options.ledger_topic):
            raise RowError(
                f"{block.rows()} of partition {self._partition}: topic {block.topic} is the sink's own.",
                remedy="Write to another topic, or rename the sink's with stagingTopic and ledgerTopic.",
            )
        if len(block.body) > self._options.max_message_size:
            raise RowError(
                f"{block.rows()} of partition {self._partition} takes {len(block.body)} bytes with its properties, and "
                f"the limit of a staged block is {self._options.max_message_size} (option maxMessageSize).",
                remedy="Make it smaller, or raise maxMessageSize here and on the brokers.",
            )
        queue = block.queue
        self._brokers.check_target(queue)
        if not block.is_delayed:
            self._stage(queue, block.body, block.count, block)
            return
        together = self._delayed.setdefault(queue, [])
        if sum(len(each.body) for each in together) + len(block.body) > self._options.send_batch_bytes:
            self._stage_delayed(queue)
            together = self._delayed.setdefault(queue, [])
        together.append(block)

    def _stage_delayed(self, queue: MessageQueue) -> None:
        blocks = self._delayed.pop(queue)
        if blocks:
            body = b"".join(block.body for block in blocks)
            self._stage(queue, memoryview(body), len(blocks), blocks[0])

    def _stage(self, queue: MessageQueue, body: memoryview, rows: int, first: Block) -> None:
        number = len(self.blocks)
        self.blocks.append(
            StagedBlock(
                queue, rows, len(body), first.first_row, self._partition, first.sys_flag, first.is_delayed,
                crc=zlib.crc32(body),
            )
        )  # fmt: skip
        topic = self._options.staging_topic
        place = self._queues.drawn(topic, number)
        self.sender.put(Block(topic, place, body, rows, first.first_row, is_free=True, lot=number))

    def _stored(self, block: Block, result: SendResult) -> None:
        staged = self.blocks[block.lot]
        staged.staged, staged.offset = result.queue, result.queue_offset
        if result.status is not SendStatus.SEND_OK:
            self._unconfirmed.append(staged)

    def finish(self) -> None:
        """Wait until everything is staged, and durable where brokers are set so.

        Raises EXACTLY_ONCE.NOT_DURABLE if a block is lost before that; Spark then repeats the task.
        """
        for queue in list(self._delayed):
            self._stage_delayed(queue)
        self.sender.finish()
        for broker in sorted({block.staged.broker_name for block in self._unconfirmed if block.staged}):
            self._brokers.confirm(broker, self._options.staging_topic, Timing.of(self._options))
        for block in self._unconfirmed:
            self._check_stored(block)

    def _check_stored(self, block: StagedBlock) -> None:
        """Read a block back: its broker may have lost it before the confirmation, and stored another message there."""
        assert block.staged is not None
        queue, offset = block.staged, block.offset
        deadline = Timing.of(self._options).deadline()
        try:
            body = deadline.call(lambda: self._brokers.staged_later(queue, offset)(), f"to read {queue.name}")
        except DataLossError:
            body = memoryview(b"")
        if not is_body_of(block, body, self._epoch):
            problem = f"the staged rows at offset {offset} of {queue.name} are gone"
            raise condition("EXACTLY_ONCE.NOT_DURABLE", broker=queue.broker_name, problem=problem)


def stage_rows(batches: Iterator[pa.RecordBatch], brokers: Brokers, options: WriteOptions, epoch: Epoch) -> Staged:
    """Stage all rows of a task."""
    settle_worker()
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0

    key = epoch.key(partition, is_delayed=False)
    queues = TaskQueues(brokers.queues, key, Timing.of(options).deadline)
    encoder = RowEncoder(
        options, queues, key, f"partition {partition}", delayed_key=epoch.key(partition, is_delayed=True)
    )
    stager = Stager(brokers, queues, options, epoch, partition)
    for batch in batches:
        for block in encoder.blocks(batch):
            stager.put(block)
    stager.finish()
    return Staged(epoch, stager.blocks, stager.sender.retries)
