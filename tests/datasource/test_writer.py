"""Checks of a data frame on the driver, before the first task of a write."""

from __future__ import annotations

import logging
import pickle

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parse import parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.datasource.write import task, writer
from spark_rocket.datasource.write.row_encoder import Block
from spark_rocket.datasource.write.send import StoredCounts, sink_for
from spark_rocket.datasource.write.writer import (
    RocketStreamWriter,
    RocketWriter,
    Written,
    check_append,
    check_columns,
    write_rows,
)
from spark_rocket.errors import (
    NameServerUnreachableError,
    OptionError,
    RocketError,
    RowError,
    SchemaError,
    TopicNotFoundError,
)
from spark_rocket.model import MessageQueue, SendResult, SendStatus
from spark_rocket.remoting.client.promise import Promise, resolved

KINDS: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "tinyint": ByteType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
    "struct<a:int>": StructType([StructField("a", IntegerType())]),
}


def struct(ddl: str) -> StructType:
    """A schema from text, without a session."""
    pairs = [column.split(" ") for column in ddl.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


def options(**given: str) -> WriteOptions:
    return parse_write_options({"nameServer": "x:1"} | given, Scope.WRITE_STREAM)


@pytest.mark.parametrize(
    "schema",
    [
        "body string",
        "BODY binary",
        "body binary, tags string, keys string, properties map<string,string>, shardingKey string, queueId int",
        "body string, queueid bigint, SHARDINGKEY string",
        "body string, queueId tinyint, topic string",
        "body string, delayLevel int, deliverAt timestamp",
    ],
)
def test_valid_frames(schema: str) -> None:
    check_columns(struct(schema), options(topic="t"))


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ("value string", r"cannot write a column value.*Select only body, topic, tags.*body is required.*\"value\""),
        ("tags string", r"the column body is missing.*to_json"),
        ("body bigint", r"the column body is bigint, but must be string or binary.*cast\(\"string\"\)"),
        ("body struct<a:int>", r"the column body is struct<a:int>"),
        ("body string, tags bigint", r"the column tags is bigint, but must be string"),
        ("body string, queueId string", r"the column queueId is string, but must be int"),
        ("body string, properties map<string,int>", r"properties is map<string,int>, but must be map<string,string>"),
        ("body string, delayLevel string", r"the column delayLevel is string, but must be int"),
        ("body string, deliverAt bigint", r"the column deliverAt is bigint, but must be timestamp.*cast"),
        ("body string, Body string", r"duplicate column body"),
        ("body string, offset bigint", r"cannot write a column offset"),
        ("key string, value string", r"cannot write a column key.*withColumnRenamed\(\"value\", \"body\"\)"),
        ("body string, key string", r"cannot write a column key.*Kafka's key, use keys .* or shardingKey"),
        ("body string, headers string", r"cannot write a column headers.*column properties"),
        ("body string, partition int", r"cannot write a column partition.*is queueId"),
        ("body string, timestamp timestamp", r"cannot write a column timestamp.*deliverAt"),
        (
            "body string, queueOffset bigint",
            r"cannot write a column queueOffset.*set when the message is sent and stored",
        ),
        (
            "body string, storetimestamp timestamp",
            r"cannot write a column storetimestamp.*when the message is sent and stored",
        ),
        ("body string, keys array<string>", r"the column keys is array<string>.*array_join\(\"keys\", \" \"\)"),
    ],
)
def test_invalid_frames(schema: str, wrong: str) -> None:
    with pytest.raises(SchemaError, match=wrong):
        check_columns(struct(schema), options(topic="t"))


def test_the_topic_is_an_option_or_a_column() -> None:
    check_columns(struct("body string, topic string"), options())
    with pytest.raises(OptionError, match=r"no target topic is set.*a column topic"):
        check_columns(struct("body string"), options())


def test_only_append() -> None:
    check_append(False, "")
    with pytest.raises(OptionError, match=r"supports only append.*Use mode append"):
        check_append(True, "Use mode append")


def test_a_writer_is_values_only() -> None:
    writer = RocketStreamWriter(options(topic="t"), struct("body string"))
    assert vars(pickle.loads(pickle.dumps(writer))) == vars(writer)


# --- a task -----------------------------------------------------------------------------------------------------


class FakeSink:
    """Stores everything; the first ``failures`` lookups fail."""

    def __init__(self) -> None:
        self.used: list[MessageQueue] = []
        self.failures: list[RocketError] = []
        self.status = SendStatus.SEND_OK

    def queues(self, topic: str, *, ordered: bool = False) -> list[MessageQueue]:
        if self.failures:
            raise self.failures.pop(0)
        return [MessageQueue(topic, "broker-a", number) for number in range(4)]

    def submit(self, block: Block, queue: MessageQueue) -> Promise[SendResult]:
        self.used.append(queue)
        return resolved(SendResult(self.status, "", "", queue, 0))


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> FakeSink:
    fake = FakeSink()
    pauses: list[float] = []
    for module in (task, writer):
        monkeypatch.setattr(module, "sink_for", lambda options: fake)
    settings = {"clock": lambda: sum(pauses), "sleep": pauses.append}
    monkeypatch.setattr(RetryDeadline.__init__, "__kwdefaults__", settings)
    return fake


def write(batch: int = 0, **columns: list[str]) -> Written:
    rows = pa.record_batch({"body": ["a", "b"]} | columns)
    return write_rows(iter([rows]), options(**({} if columns else {"topic": "t"})), "query", str(batch))


@pytest.mark.live
def test_small_micro_batches_are_spread_over_queues(sink: FakeSink) -> None:
    for batch in range(64):
        write(batch)
    assert {sink.used.count(queue) > 5 for queue in sink.queues("t")} == {True}
    first = sink.used[:]
    for batch in range(64):
        write(batch)
    assert sink.used[64:] == first, "a batch that is repeated takes the same way"


def test_columns_that_are_only_read_must_be_null(sink: FakeSink) -> None:
    """As in a table or view for reads and writes: Spark inserts nulls for columns that an INSERT does not name."""
    made = RocketWriter(options(topic="t"), struct("body string"), ["queueOffset", "bornHost"])

    def batch(*offsets: int | None) -> pa.RecordBatch:
        count = len(offsets)
        hosts = pa.nulls(count, pa.string())
        return pa.record_batch({"body": ["a"] * count, "queueOffset": pa.array(offsets, pa.int64()), "bornHost": hosts})

    assert made.write(iter([batch(None, None), batch(None)])).messages == 3
    with pytest.raises(
        RowError, match=r"row 4 of partition 0: the column queueOffset is read-only but has a value.*INSERT INTO t"
    ):
        made.write(iter([batch(None, None), batch(None, None, 7, 8)]))
    assert len(sink.used) == 3


@pytest.mark.parametrize("error", [TopicNotFoundError, NameServerUnreachableError])
def test_an_unavailable_route_is_awaited(sink: FakeSink, error: type[RocketError]) -> None:
    sink.failures = [error("away"), error("away")]
    assert write().messages == 2
    sink.failures = [error("away") for _ in range(100)]
    with pytest.raises(error, match=r"Tried to find t for .*retryTimeout"):
        write()


def test_a_topic_named_only_by_a_row_is_not_awaited(sink: FakeSink) -> None:
    sink.failures = [TopicNotFoundError("no such topic")]
    with pytest.raises(TopicNotFoundError):
        write(topic=["u", "u"])
    assert sink.used == []


def test_unconfirmed_messages_are_counted(sink: FakeSink) -> None:
    assert write().unconfirmed == 0
    sink.status = SendStatus.FLUSH_DISK_TIMEOUT
    assert (write().messages, write().unconfirmed) == (2, 2)


def test_writes_with_different_ids_or_topics_share_a_sink() -> None:
    """A process keeps its sinks: a job may name each of its writes, and begin a topic each day."""
    given: list[dict[str, str]] = [{"writeId": "a"}, {"writeId": "b"}, {"topic": "c"}]
    every = [parse_write_options({"nameServer": "x:1"} | one, Scope.WRITE) for one in given]
    assert len(set(map(sink_for, every))) == 1
    assert sink_for(every[0]) is not sink_for(options(nameServer="y:1"))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"compression": "gzip"}, r"option compression is 'gzip'.*none, zlib, lz4.*zstd"),
        ({"compressAbove": "-1", "compression": "zlib"}, r"option compressAbove is '-1'.*0 to 12582912"),
        ({"compressAbove": "10"}, r"option compressAbove has no effect without compression"),
        ({"maxDelayedInFlight": "0"}, r"option maxDelayedInFlight is '0'.*1 to 8192"),
        ({"dedupeWindow": "5"}, r"option dedupeWindow is for batch reads and streaming reads"),
    ],
)
def test_invalid_options(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        options(**given)


def test_the_driver_logs_written_messages(caplog: pytest.LogCaptureFixture) -> None:
    tasks: list[WriterCommitMessage | None] = [
        Written({"a": StoredCounts(5, 500, 2), "b": StoredCounts(1, 100, 1)}, retries=1, unconfirmed=1),
        Written({"a": StoredCounts(4, 400, 1)}),
        None,
    ]
    with caplog.at_level(logging.INFO, logger="spark_rocket.datasource"):
        RocketStreamWriter(options(topic="t"), struct("body string")).commit(tasks, 7)
    assert "batch 7 wrote messages=10 bytes=1000 requests=4 retries=1 topics=a:9,b:1" in caplog.text
    assert "batch 7: 1 of them are stored but not yet flushed" in caplog.text
