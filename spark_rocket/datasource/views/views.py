"""A cluster's state as data frames: ``spark.read.format("rocket").option("view", "lag").load()``.

Each view has a fixed schema and its own options. ``VIEWS`` defines them; ``docs/reference/columns.md`` lists them. One
task sends requests to the servers when the query runs (``view_rows.py``) and converts the responses to rows.

Holds only values until ``read``. Corresponds to the list commands of RocketMQ's mqadmin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_rocket.datasource.capabilities import arrow_schema
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.options import ViewOptions
from spark_rocket.datasource.options.parse import parse_view_options
from spark_rocket.datasource.processes import PickledByValue, hide_traceback_while
from spark_rocket.datasource.schema import known_columns
from spark_rocket.datasource.spark_schema import SOURCE_SCHEMA

_TEXT, _INT, _LONG, _TIME, _FLAG = StringType(), IntegerType(), LongType(), TimestampType(), BooleanType()
_TEXTS, _MAP = ArrayType(StringType(), False), MapType(StringType(), StringType(), False)
_BATCH_ROWS = 4096


@dataclass(frozen=True)
class View:
    """A view. ``takes`` are its optional options, ``needs`` the required ones."""

    row: str
    schema: StructType
    takes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def _schema(*, keys: int, **columns: DataType) -> StructType:
    """Build a schema whose first ``keys`` columns are never null."""
    return StructType([StructField(name, kind, at >= keys) for at, (name, kind) in enumerate(columns.items())])


VIEWS: dict[str, View] = {
    "cluster": View(
        "an address of a broker, as the name server knows it",
        _schema(keys=4, cluster=_TEXT, brokerName=_TEXT, brokerId=_LONG, address=_TEXT, zone=_TEXT),
    ),
    "brokers": View(
        "a broker, a master or a slave, and what it reports about itself",
        _schema(
            keys=4, cluster=_TEXT, brokerName=_TEXT, brokerId=_LONG, address=_TEXT,
            version=_TEXT, startTime=_TIME, putTps=DoubleType(), getTps=DoubleType(), messagesToday=_LONG,
            commitLogMinOffset=_LONG, commitLogMaxOffset=_LONG, diskRatio=DoubleType(), info=_MAP, error=_TEXT,
        ),
    ),
    "topics": View(
        "a topic on a broker",
        _schema(
            keys=9, topic=_TEXT, cluster=_TEXT, brokerName=_TEXT, readQueues=_INT, writeQueues=_INT, perm=_TEXT,
            order=_FLAG, isSystem=_FLAG, attributes=_MAP, type=_TEXT,
        ),
        takes=("subscribe",),
    ),
    "queues": View(
        "a queue",
        _schema(
            keys=6, topic=_TEXT, brokerName=_TEXT, queueId=_INT, minOffset=_LONG, maxOffset=_LONG, messages=_LONG,
            lastUpdateTime=_TIME,
        ),
        takes=("subscribe",),
    ),
    "groups": View(
        "a consumer group",
        _schema(
            keys=4, group=_TEXT, members=_INT, brokers=_TEXTS, topics=_TEXTS,
            consumeType=_TEXT, messageModel=_TEXT, consumeFromWhere=_TEXT, retryMaxTimes=_INT,
        ),
        takes=("consumerGroup",),
    ),
    "lag": View(
        "a queue of a group",
        _schema(
            keys=7, group=_TEXT, topic=_TEXT, brokerName=_TEXT, queueId=_INT, brokerOffset=_LONG, consumerOffset=_LONG,
            lag=_LONG, lastConsumeTime=_TIME,
        ),
        takes=("consumerGroup", "subscribe"),
    ),
    "consumers": View(
        "a client that is connected to a broker as a member of a group",
        _schema(
            keys=7, group=_TEXT, clientId=_TEXT, brokerName=_TEXT, address=_TEXT, language=_TEXT, version=_INT,
            subscription=_MAP, consumeType=_TEXT, messageModel=_TEXT,
        ),
        takes=("consumerGroup",),
    ),
    "producers": View(
        "a client that is connected to a broker as a producer of a group",
        _schema(
            keys=6, group=_TEXT, clientId=_TEXT, brokerName=_TEXT, address=_TEXT, language=_TEXT, version=_INT
        ),
        needs=("producerGroup",),
    ),
    "messages": View(
        "a message with a key or an id",
        SOURCE_SCHEMA,
        takes=("key", "msgId"),
        needs=("subscribe",),
    ),
    "dlq": View(
        "a dead letter of a group",
        StructType(
            [
                StructField("group", _TEXT, False),
                StructField("originTopic", _TEXT, True),
                StructField("originMsgId", _TEXT, True),
                *(field for field in SOURCE_SCHEMA.fields if field.name != "topic"),
            ]
        ),
        needs=("consumerGroup",),
    ),
}  # fmt: skip

_ALWAYS = ("view", "nameServer", "requestTimeout")


def view_schema(raw: Mapping[str, str]) -> StructType:
    """Return the columns of the view that the options name."""
    return VIEWS[checked_view_options(raw).view].schema


def checked_view_options(raw: Mapping[str, str]) -> ViewOptions:
    """Parse a view's options. Raises OptionError for missing options and options of other views."""
    options = parse_view_options(raw)
    view = VIEWS[options.view]
    given = {key.lower() for key in raw}
    mine = [*_ALWAYS, *view.needs, *view.takes]
    for name in dict.fromkeys(name for other in VIEWS.values() for name in (*other.takes, *other.needs)):
        if name.lower() in given and name not in mine:
            others = ", ".join(mine[1:])
            raise error("BAD_OPTION.CONFLICT", case="VIEW", option=name, view=options.view, options=others)
    shown = repr(options.view)
    for name in view.needs:
        if name.lower() not in given:
            example = f'.option("{name}", "…")'
            raise error("BAD_OPTION.REQUIRES", option="view", value=shown, needed=name, example=example)
    if options.view == "messages" and options.key is None and options.msg_id is None:
        example = '.option("key", "…") or .option("msgId", "…"); to read an entire topic, remove view'
        raise error("BAD_OPTION.REQUIRES", option="view", value=shown, needed="key or msgId", example=example)
    return options


class ViewReader(PickledByValue, DataSourceReader):
    """Requests the state and yields the rows, in one task."""

    def __init__(self, options: ViewOptions, schema: StructType) -> None:
        self._options = options
        whole = arrow_schema(VIEWS[options.view].schema)
        self._columns = known_columns(arrow_schema(schema), whole, f"the view {options.view}")
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return hide_traceback_while(self._batches(), self._options.namespace)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        from spark_rocket.datasource.views.view_rows import batches_of, rows_of

        target = arrow_schema(self._schema)
        whole = arrow_schema(VIEWS[self._options.view].schema)
        if self._options.view in ("messages", "dlq"):
            for batch in batches_of(self._options, whole):
                yield pa.RecordBatch.from_arrays([batch.column(name) for name in self._columns], schema=target)
            return
        rows = iter(rows_of(self._options))
        while some := list(islice(rows, _BATCH_ROWS)):
            yield pa.RecordBatch.from_pylist(
                [
                    {field.name: row.get(name) for field, name in zip(target, self._columns, strict=True)}
                    for row in some
                ],
                schema=target,
            )
