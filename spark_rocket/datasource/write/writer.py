"""``df.write`` and ``df.writeStream`` with ``format("rocket")``: append, at least once.

Columns are checked on the driver, before the first task. Each task encodes its Arrow batches (``rows.py``) and sends
them (``send.py``); its last request is answered before ``write`` returns, so a committed task is stored.

The stream writer is made anew for every batch and is not told which one: tasks find the query and the batch in the
local properties of their TaskContext. There is nothing to undo in ``abort``: what was sent is there, and a repeat is
told by its ``msgId``. Values only; Spark pickles writers. Corresponds to KafkaStreamingWrite in Spark.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from spark_rocket.datasource.bodies.encoding import BodyEncoder
from spark_rocket.datasource.options.bodies import BodySettings
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.processes import PickledByValue, settle_worker, short
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.datasource.schema import SOURCE_SCHEMA
from spark_rocket.datasource.write.rows import RowEncoder, write_key
from spark_rocket.datasource.write.send import BlockSender, Sent, sink_for
from spark_rocket.errors import OptionError, RowError, SchemaError, StateError, TopicNotFoundError
from spark_rocket.model import MessageQueue

log = logging.getLogger("spark_rocket.datasource")

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"

_INTEGERS = (IntegerType, LongType, ShortType, ByteType)
_COLUMNS: dict[str, tuple[str, tuple[type[DataType], ...], str]] = {
    name.lower(): (name, kinds, wanted)
    for name, kinds, wanted in (
        ("body", (StringType, BinaryType), "string or binary"),
        ("topic", (StringType,), "string"),
        ("tags", (StringType,), "string"),
        ("keys", (StringType,), "string"),
        ("properties", (MapType,), "map<string,string>"),
        ("shardingKey", (StringType,), "string"),
        ("queueId", _INTEGERS, "int"),
        ("delayLevel", _INTEGERS, "int"),
        ("deliverAt", (TimestampType,), "timestamp"),
    )
}


# What others call them.
_OTHER_NAMES = {
    "key": " For Kafka's key: keys, to look messages up by it, or shardingKey, for one queue and order.",
    "headers": " Headers are the column properties, a map<string,string>.",
    "partition": " Kafka's partition is queueId.",
    "timestamp": " Brokers set the time; deliverAt is when consumers may have the message.",
} | {
    name.lower(): " A message gets it when it is sent and stored."
    for name in SOURCE_SCHEMA.names
    if name.lower() not in _COLUMNS
}


@dataclass
class Written(WriterCommitMessage):
    """What one task sent to which topic, how many requests it made again, and how many messages a broker had not yet
    flushed or replicated as it should."""

    topics: dict[str, Sent]
    retries: int = 0
    unconfirmed: int = 0

    @property
    def messages(self) -> int:
        return sum(sent.messages for sent in self.topics.values())


def check_append(overwrite: bool, remedy: str) -> None:
    """Topics only grow."""
    if overwrite:
        raise OptionError('format("rocket") can only append: a topic\'s messages are not replaced.', remedy=remedy)


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Refuse a data frame that cannot be written, or a column that would silently be left out."""
    if options.body is not None:
        schema = body_encoder(options.body, schema).schema
    seen = set()
    names = {field.name.lower() for field in schema.fields}
    for field in schema.fields:
        known = _COLUMNS.get(field.name.lower())
        if known is None:
            hint = _OTHER_NAMES.get(field.name.lower(), "")
            if "body" not in names:
                value = next((other.name for other in schema.fields if other.name.lower() == "value"), field.name)
                hint += f' body is required: .withColumnRenamed("{value}", "body") makes it.'
            raise SchemaError(
                f'format("rocket") cannot write a column {field.name}.',
                remedy=f"Select only {', '.join(name for name, _, _ in _COLUMNS.values())}, or drop it.{hint}",
            )
        name, kinds, wanted = known
        if name in seen:
            raise SchemaError(f"there are two columns {name}.", remedy="Drop or rename one of them.")
        seen.add(name)
        kind = field.dataType
        fits = isinstance(kind, kinds) and (
            not isinstance(kind, MapType)
            or (isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType))
        )
        if not fits and name == "keys" and isinstance(kind, ArrayType):
            raise SchemaError(
                f"the column keys is {kind.simpleString()}, and should be a string.",
                remedy='RocketMQ has spaces between keys: .withColumn("keys", array_join("keys", " ")).',
            )
        if not fits:
            raise SchemaError(
                f"the column {name} is {kind.simpleString()}, and should be {wanted}.",
                remedy=f'Cast it, as in .withColumn("{name}", …cast("{wanted.split()[0]}")), or use to_json.',
            )
    if "body" not in seen:
        raise SchemaError(
            "there is no column body.", remedy='Make one, as in .select(to_json(struct("*")).alias("body")).'
        )
    if "topic" not in seen and options.topic is None:
        raise OptionError(
            "where to write is not said.", remedy='Add .option("topic", "orders"), or a column topic to every row.'
        )


def body_encoder(settings: BodySettings, schema: StructType, where: str = "") -> BodyEncoder:
    """What makes bodies of the columns that are not of a message itself; SchemaError if it cannot."""
    return BodyEncoder(settings, schema, frozenset(_COLUMNS) - {"body"}, where)


def with_bodies(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """A task's batches with their column ``body``."""
    if options.body is None:
        return batches
    context = TaskContext.get()
    encoder = body_encoder(options.body, schema, f"partition {context.partitionId() if context is not None else 0}")
    return (encoder.encode(batch) for batch in batches if batch.num_rows)


def refuse_values(batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """A task's batches; RowError where one has a value in columns that are only read.

    A table or view that is read and inserted into has such columns. Of those that an INSERT leaves out Spark makes
    nulls, so only a value tells that one was named.
    """
    context = TaskContext.get()
    rows = 0
    for batch in batches:
        for name in names:
            column = batch.column(name)
            if column.null_count < len(column):
                row = rows + int(pc.index(column.is_valid(), True).as_py())
                raise RowError(
                    f"row {row} of partition {context.partitionId() if context is not None else 0}: the column {name} "
                    "has a value, and can only be read.",
                    remedy="Name the columns to write, as in INSERT INTO t (body, tags) SELECT body, tags FROM …",
                )
        rows += batch.num_rows
        yield batch


def write_rows(batches: Iterator[pa.RecordBatch], options: WriteOptions, name: str, batch_id: str) -> Written:
    """A task's whole work."""
    settle_worker()
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    sink = sink_for(options)
    key = write_key(name, batch_id, partition)

    def queues_of(topic: str, *, ordered: bool = False) -> list[MessageQueue]:
        try:
            return sink.ordered_queues_of(topic) if ordered else sink.queues_of(topic)
        except TopicNotFoundError as error:
            # Named by the query itself, so it likelier is on a broker that is away than not there.
            error.retriable = topic == options.topic
            raise

    encoder = RowEncoder(options, partial(queues_of, ordered=True), key, f"partition {partition}")
    sender = BlockSender(
        sink.submit,
        queues_of,
        limit=options.max_requests_in_flight,
        delayed_limit=options.max_delayed_in_flight,
        key=key,
        retry_deadline=lambda: RetryDeadline(options.retry_timeout_ms),
        where=f"partition {partition}",
    )
    for batch in batches:
        for block in encoder.blocks(batch):
            sender.put(block)
    sender.finish()
    return Written(sender.topics, sender.retries, sender.unconfirmed)


def _log_total(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = [message for message in messages if isinstance(message, Written)]
    total, topics = Sent(), dict[str, Sent]()
    for topic, sent in (pair for message in done for pair in message.topics.items()):
        for count in (total, topics.setdefault(topic, Sent())):
            count.messages += sent.messages
            count.bytes += sent.bytes
            count.requests += sent.requests
    log.info(
        "%s wrote messages=%d bytes=%d requests=%d retries=%d topics=%s",
        what,
        total.messages,
        total.bytes,
        total.requests,
        sum(message.retries for message in done),
        ",".join(f"{topic}:{sent.messages}" for topic, sent in sorted(topics.items())),
    )
    if unconfirmed := sum(message.unconfirmed for message in done):
        log.warning("%s: %d of them are stored, but were not yet flushed or replicated in time", what, unconfirmed)


class RocketWriter(PickledByValue, DataSourceArrowWriter):
    """``df.write``: the write has a name, from ``writeId`` or made up here, once for all tasks."""

    def __init__(self, options: WriteOptions, schema: StructType, only_read: Sequence[str] = ()) -> None:
        """``schema`` has the columns that are written; those of ``only_read`` come beside them and must be null."""
        check_columns(schema, options)
        if options.topic is not None:
            sink_for(options).queues_of(options.topic)
        self._options = options
        self._schema = schema
        self._only_read = tuple(only_read)
        self._name = options.write_id or uuid.uuid4().hex

    @short
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        batches = refuse_values(iterator, self._only_read)
        return write_rows(with_bodies(batches, self._options, self._schema), self._options, self._name, "")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_total("the write", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("the write failed; messages of %d tasks were already stored and stay", _finished(messages))


class RocketStreamWriter(PickledByValue, DataSourceStreamArrowWriter):
    """``df.writeStream``: the query's id and the batch's number make repeated batches tellable."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options
        self._schema = schema

    @short
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise StateError(
                "Spark did not tell the task its query and batch.", remedy="This needs PySpark 4.2 or newer."
            )
        return write_rows(with_bodies(iterator, self._options, self._schema), self._options, query, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _log_total(f"batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log.warning("batch %d failed; messages of %d tasks were already stored and stay", batchId, _finished(messages))


def _finished(messages: Sequence[WriterCommitMessage | None]) -> int:
    return sum(message is not None for message in messages)
