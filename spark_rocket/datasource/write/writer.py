"""``df.write`` and ``df.writeStream`` with ``format("rocket")``: append, at least once.

Columns are checked on the driver, before the first task. Each task encodes its Arrow batches (``row_encoder.py``) and
sends them (``send.py``). Its last request is acknowledged before ``write`` returns, so a committed task is stored.

Spark creates the stream writer again for every batch and does not pass the batch number. Tasks read the query and the
batch from the local properties of their TaskContext. ``abort`` has nothing to undo: sent messages stay, and a duplicate
has the same ``msgId``. Holds only values; Spark pickles writers. Corresponds to KafkaStreamingWrite in Spark.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
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

from spark_rocket.datasource.capabilities import StreamArrowWriter, arrow_schema
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.bodies import BodySettings
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.processes import PickledByValue, hide_traceback, settle_worker
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, canonical
from spark_rocket.datasource.write.row_encoder import column_or_property
from spark_rocket.datasource.write.send import StoredCounts, sink_for
from spark_rocket.datasource.write.task import send_rows
from spark_rocket.errors import OptionError, RowError, SchemaError, StateError
from spark_rocket.model import TAGS
from spark_rocket.protocol.filter.tags import UNSELECTABLE_TAG

if TYPE_CHECKING:
    from spark_rocket.datasource.bodies.encoding import BodyEncoder

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


# Column names of other connectors.
_OTHER_NAMES = {
    "key": " For Kafka's key, use keys to look up messages, or shardingKey for one queue and order.",
    "headers": " Headers are the column properties, a map<string,string>.",
    "partition": " Kafka's partition is queueId.",
    "timestamp": " Brokers set the time; use deliverAt for delayed delivery.",
} | {
    name.lower(): " It is set when the message is sent and stored."
    for name in MESSAGE_SCHEMA.names
    if name.lower() not in _COLUMNS
}


@dataclass
class Written(WriterCommitMessage):
    """A task's result: messages per topic, number of retried requests, and messages that a broker had not yet flushed
    or replicated as required."""

    topics: dict[str, StoredCounts]
    retries: int = 0
    unconfirmed: int = 0

    @property
    def messages(self) -> int:
        return sum(sent.messages for sent in self.topics.values())


def check_append(overwrite: bool, remedy: str) -> None:
    """Reject modes other than append."""
    if overwrite:
        raise OptionError('format("rocket") supports only append: messages cannot be replaced.', remedy=remedy)


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Reject invalid columns, and columns that would silently be ignored."""
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
                hint += f' body is required: use .withColumnRenamed("{value}", "body").'
            raise SchemaError(
                f'format("rocket") cannot write a column {field.name}.',
                remedy=f"Select only {', '.join(name for name, _, _ in _COLUMNS.values())}, or drop it.{hint}",
            )
        name, kinds, wanted = known
        if name in seen:
            raise SchemaError(f"duplicate column {name}.", remedy="Drop or rename one of them.")
        seen.add(name)
        kind = field.dataType
        fits = isinstance(kind, kinds) and (
            not isinstance(kind, MapType)
            or (isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType))
        )
        if not fits and name == "keys" and isinstance(kind, ArrayType):
            raise SchemaError(
                f"the column keys is {kind.simpleString()}, but must be a string.",
                remedy='RocketMQ separates keys by spaces: .withColumn("keys", array_join("keys", " ")).',
            )
        if not fits:
            raise SchemaError(
                f"the column {name} is {kind.simpleString()}, but must be {wanted}.",
                remedy=f'Cast it, as in .withColumn("{name}", …cast("{wanted.split()[0]}")), or use to_json.',
            )
    if "body" not in seen:
        raise SchemaError(
            "the column body is missing.", remedy='Add it, as in .select(to_json(struct("*")).alias("body")).'
        )
    if "topic" not in seen and options.topic is None:
        raise OptionError(
            "no target topic is set.", remedy='Add .option("topic", "orders"), or a column topic to every row.'
        )


def body_encoder(settings: BodySettings, schema: StructType, where: str = "") -> BodyEncoder:
    """Return the encoder of bodies from columns that are not message columns; SchemaError if it is impossible."""
    from spark_rocket.datasource.bodies.encoding import BodyEncoder

    return BodyEncoder(settings, schema, frozenset(_COLUMNS) - {"body"}, where)


def with_bodies(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Return a task's batches with the Arrow types of ``schema``, and with their column ``body``."""
    where = f"partition {_partition()}"
    encoder = None if options.body is None else body_encoder(options.body, schema, where)
    wanted = arrow_schema(schema).remove_metadata()
    rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        batch = canonical(batch, wanted)
        _check_tags(batch, rows, where)
        yield batch if encoder is None else encoder.encode(batch)
        rows += batch.num_rows


def _check_tags(batch: pa.RecordBatch, rows: int, where: str) -> None:
    """Raise for the first tag that no tag expression selects."""
    columns = {name.lower(): batch.column(index) for index, name in enumerate(batch.schema.names)}
    tags = column_or_property(columns.get("tags"), columns.get("properties"), TAGS)
    if tags is None:
        return
    few = pc.unique(tags)
    bad = few.filter(pc.match_substring_regex(few, UNSELECTABLE_TAG))
    if len(bad):
        row = _first(pc.is_in(tags, value_set=bad))
        raise error("BAD_ROW.TAGS", row=rows + row, where=where, tags=tags[row].as_py())


def _first(mask: pa.Array) -> int:
    return int(pc.index(mask, True).as_py())


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def refuse_values(batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Return a task's batches; RowError if a row has a value in a read-only column.

    A table or view for reads and inserts has such columns. Spark sets the columns that an INSERT omits to null,
    so only a value shows that the INSERT named one.
    """
    rows = 0
    for batch in batches:
        for name in names:
            column = batch.column(name)
            if column.null_count < len(column):
                row = rows + _first(column.is_valid())
                raise RowError(
                    f"row {row} of partition {_partition()}: the column {name} is read-only but has a value.",
                    remedy="Name the columns to write, as in INSERT INTO t (body, tags) SELECT body, tags FROM …",
                )
        rows += batch.num_rows
        yield batch


def write_rows(batches: Iterator[pa.RecordBatch], options: WriteOptions, name: str, batch_id: str) -> Written:
    """Encode and send a task's rows."""
    settle_worker()
    sender = send_rows(batches, options, name, batch_id, _partition())
    return Written(sender.topics, sender.retries, sender.unconfirmed)


def _log_total(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = [message for message in messages if isinstance(message, Written)]
    total, topics = StoredCounts(), dict[str, StoredCounts]()
    for topic, sent in (pair for message in done for pair in message.topics.items()):
        for count in (total, topics.setdefault(topic, StoredCounts())):
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
        log.warning("%s: %d of them are stored but not yet flushed or replicated", what, unconfirmed)


class RocketWriter(PickledByValue, DataSourceArrowWriter):
    """``df.write``. The write's name comes from ``writeId`` or is generated here, once for all tasks."""

    @hide_traceback
    def __init__(self, options: WriteOptions, schema: StructType, only_read: Sequence[str] = ()) -> None:
        """``schema`` has the columns to write; columns in ``only_read`` are also present and must be null."""
        self._options = options
        check_columns(schema, options)
        if options.topic is not None:
            sink_for(options).queues(options.topic)
        self._schema = schema
        self._only_read = tuple(only_read)
        self._name = options.write_id or uuid.uuid4().hex

    @hide_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        batches = refuse_values(iterator, self._only_read)
        return write_rows(with_bodies(batches, self._options, self._schema), self._options, self._name, "")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_total("the write", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("the write failed; messages of %d tasks are already stored and stay", _finished(messages))


class RocketStreamWriter(PickledByValue, StreamArrowWriter):
    """``df.writeStream``. The query's id and the batch number make duplicates of retried batches detectable."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        check_columns(schema, options)
        self._schema = schema

    @hide_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise StateError("Spark did not pass the query and batch to the task.", remedy="Use PySpark 4.2 or newer.")
        return write_rows(with_bodies(iterator, self._options, self._schema), self._options, query, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _log_total(f"batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log.warning("batch %d failed; messages of %d tasks are already stored and stay", batchId, _finished(messages))


def _finished(messages: Sequence[WriterCommitMessage | None]) -> int:
    return sum(message is not None for message in messages)
