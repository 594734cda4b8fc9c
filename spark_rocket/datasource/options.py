"""The options of ``format("rocket")``, parsed once into typed values.

Spark hands option names over in lower case, so they are looked up without case; errors always print the documented
spelling. An option that does not exist, or does not belong to what is being done (a write option on a read), is an
error that names the nearest known one: a typing mistake must never be silently ignored.

``OPTIONS`` is the one list of them, and ``docs/datasource.md`` shows it. Parsing happens on the driver; the parsed
values travel to the executors, so that an environment variable there cannot change what the driver decided. Pure but
for the ``NAMESRV_ADDR`` environment variable. Corresponds to nothing in RocketMQ; to KafkaSourceProvider in Spark.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from spark_rocket.datasource.body_formats.settings import (
    BodySettings,
    avro_encoding,
    avro_schema,
    bad_records,
    body_format,
    body_settings,
    delimiter,
    descriptor_file,
    metadata_columns,
)
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.option_checks import (
    as_kind,
    check_limits,
    check_named,
    check_not_to_come,
    check_times,
    is_given,
    position_with_times,
    starting_position,
    what_to_read,
)
from spark_rocket.datasource.option_parsers import (
    MAX_MESSAGE_SIZE,
    Compression,
    Fallback,
    Parser,
    Position,
    Pushdown,
    Start,
    Strategy,
    assigned_queues,
    boolean,
    directory,
    duration,
    group_name,
    name_servers,
    number,
    one_of,
    positions,
    pushdown,
    some_text,
    sql_expression,
    tag_expression,
    timestamp,
    timestamps,
    topic_names,
    topic_pattern,
    view_name,
    writable_topic,
)
from spark_rocket.errors import DataSourceError
from spark_rocket.model import MessageQueue

DEFAULT_NAME_SERVER = "127.0.0.1:9876"

T = TypeVar("T")


class Scope(Enum):
    """What the options are for."""

    READ = "batch reads"
    READ_STREAM = "streaming reads"
    WRITE = "batch writes"
    WRITE_STREAM = "streaming writes"
    VIEW = "views"


READS = frozenset({Scope.READ, Scope.READ_STREAM})
WRITES = frozenset({Scope.WRITE, Scope.WRITE_STREAM})
VIEWS = frozenset({Scope.VIEW})


@dataclass(frozen=True)
class ReadOptions:
    """A read's options, parsed. ``docs/datasource.md`` explains each."""

    name_server: str
    topics: tuple[str, ...]
    """Those of ``subscribe`` or ``assign``; none with ``subscribePattern``."""
    starting: Position
    ending: Position
    consumer_group: str | None
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    pull_batch_size: int
    pull_batch_bytes: int
    arrow_batch_rows: int
    arrow_batch_bytes: int
    request_timeout_ms: int
    retry_timeout_ms: int
    store_path: str | None = None
    broker_name: str | None = None
    is_stream: bool = False
    tags: tuple[str, ...] | None = None
    """Messages with one of these tags only; None is all."""
    sql_filter: str | None = None
    max_pulls_in_flight: int = 32
    filter_pushdown: Pushdown = Pushdown.OFF
    topic_pattern: str | None = None
    assigned: tuple[MessageQueue, ...] | None = None
    wait_for_topic: bool = False
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    dedupe_window: int | None = None
    body: BodySettings | None = None
    """What bodies are, for typed rows."""


@dataclass(frozen=True)
class WriteOptions:
    """A write's options, parsed."""

    name_server: str
    topic: str | None
    producer_group: str
    write_id: str | None
    max_message_size: int
    send_batch_size: int
    send_batch_bytes: int
    max_requests_in_flight: int
    request_timeout_ms: int
    retry_timeout_ms: int
    compression: str = "none"
    compress_above: int = 4096
    max_delayed_in_flight: int = 256
    body: BodySettings | None = None
    """What bodies are made as, from all other columns."""


@dataclass(frozen=True)
class ViewOptions:
    """A view's options, parsed; ``views.py`` says which belong to which."""

    view: str
    name_server: str
    topics: tuple[str, ...]
    consumer_group: str | None
    producer_group: str | None
    key: str | None
    msg_id: str | None
    request_timeout_ms: int


@dataclass(frozen=True)
class Option:
    """One documented option."""

    name: str
    scopes: frozenset[Scope]
    parse: Parser
    default: str | None
    meaning: str


OPTIONS: tuple[Option, ...] = (
    Option("nameServer", READS | WRITES | VIEWS, name_servers, None,
           "Name servers as `host:port`, several with `;`. Without it the `NAMESRV_ADDR` environment variable of the "
           f"driver, then `{DEFAULT_NAME_SERVER}`."),
    Option("subscribe", READS | VIEWS, topic_names, None,
           "The topics to read, separated by commas. One of `subscribe`, `subscribePattern` and `assign` is required, "
           "but for `storePath`."),
    Option("subscribePattern", READS, topic_pattern, None,
           "The topics to read, as a regular expression for whole names. See [below](#what-to-read)."),
    Option("assign", READS, assigned_queues, None,
           'The queues to read, as JSON: `{"orders": {"broker-a": [0, 1]}}`.'),
    Option("waitForTopic", frozenset({Scope.READ_STREAM}), boolean, "false",
           "Whether topics and queues that do not exist yet are waited for (`true`), and then read from their first "
           "message, or are an error when the stream starts (`false`)."),
    Option("storePath", frozenset({Scope.READ}), directory, None,
           "Read the files of a stopped broker instead of asking brokers: its store directory, or the data directory "
           "of `rocket up`. See [below](#a-store-directory-without-a-broker)."),
    Option("brokerName", frozenset({Scope.READ}), some_text, None,
           "With `storePath`: what stands in the column `brokerName`, and in offsets as JSON. Without it the "
           "name that the store's configuration or its list of topics tells, then `broker-a`."),
    Option("startingOffsets", READS,
           positions(Start.EARLIEST, Start.LATEST, Start.GROUP, Start.TIMESTAMP, Start.OFFSETS), None,
           "Where a new query begins: `earliest`, `latest`, `group` (what `consumerGroup` has committed), `timestamp` "
           "(see the next two), or JSON. Streams begin at `latest` by default, batch reads at `earliest`. A restarted "
           "stream goes on from its checkpoint instead."),
    Option("startingTimestamp", READS, timestamp, None,
           "The first store time to read: milliseconds since 1970, ISO-8601 (UTC if it has no zone), or how long ago, "
           "such as `-2h`, `-30m` or `-1d`. Sets `startingOffsets=timestamp`."),
    Option("startingOffsetsByTimestamp", READS, timestamps, None,
           'The same for each queue, as JSON: `{"orders": {"broker-a": {"0": 1769860800000, "1": "-2h"}}}`. Sets '
           "`startingOffsets=timestamp`."),
    Option("startingOffsetsByTimestampStrategy", READS, one_of(Strategy), "latest",
           "Where a queue begins in which nothing was stored at that time or later: at its end (`latest`), or it is an "
           "`error`."),
    Option("groupOffsetsFallback", READS, one_of(Fallback), "earliest",
           "With `startingOffsets=group`, where queues begin of which the group has committed nothing: `earliest`, "
           "`latest`, `timestamp` (of `startingTimestamp`), or it is an `error`."),
    Option("endingOffsets", frozenset({Scope.READ}),
           positions(Start.LATEST, Start.GROUP, Start.TIMESTAMP, Start.OFFSETS), "latest",
           "Where a batch read ends: `latest`, `group` (what `consumerGroup` has committed), `timestamp` (see the next "
           "two), or JSON."),
    Option("endingTimestamp", frozenset({Scope.READ}), timestamp, None,
           "The first store time not to read, written as `startingTimestamp` is. Sets `endingOffsets=timestamp`."),
    Option("endingOffsetsByTimestamp", frozenset({Scope.READ}), timestamps, None,
           "The same for each queue, as JSON. Sets `endingOffsets=timestamp`."),
    Option("maxOffsetsPerTrigger", frozenset({Scope.READ_STREAM}), number(1), None,
           "At most so many messages in a micro-batch, shared out in proportion to each queue's lag."),
    Option("maxBytesPerTrigger", frozenset({Scope.READ_STREAM}), number(1), None,
           "At most so many bytes (a number without a unit) of stored messages in a micro-batch, by what the brokers "
           "tell of their sizes. See [below](#how-much-at-a-time)."),
    Option("minOffsetsPerTrigger", frozenset({Scope.READ_STREAM}), number(1), None,
           "Wait with a micro-batch until there are so many messages, or `maxTriggerDelay` is over."),
    Option("maxTriggerDelay", frozenset({Scope.READ_STREAM}), duration(1, 30 * 86_400_000), "15m",
           "How long `minOffsetsPerTrigger` may hold messages back: a number with `ms`, `s`, `m`, `h` or `d`."),
    Option("failOnDataLoss", READS, boolean, "true",
           "Whether messages that are gone before they were read stop the query (`true`), or it says so once in the "
           "log and goes on from the earliest left (`false`)."),
    Option("consumerGroup", READS | VIEWS, group_name, None,
           "Commit the stream's progress to this group on the brokers, for RocketMQ's tools to show. With "
           "`startingOffsets=group`, where to begin. Batch reads commit nothing."),
    Option("minPartitions", READS, number(1, 100_000), None,
           "At least so many Spark partitions: ranges of large queues are split."),
    Option("maxRecordsPerPartition", READS, number(1), None, "At most so many messages in a Spark partition."),
    Option("filterPushdown", frozenset({Scope.READ}), pushdown, "false",
           "Whether filters on `topic`, `brokerName`, `queueId`, `queueOffset`, `storeTimestamp` and `tags` decide "
           "what is read (`true`), and those on `keys` and `msgId` are looked up in the brokers' index too (`index`). "
           "Needs `spark.sql.python.filterPushdown.enabled=true`. See [below](#filter-pushdown)."),
    Option("tags", READS, tag_expression, "*",
           "Only messages with one of these tags, as RocketMQ writes them. The broker chooses, and what it sends is "
           "compared again. See [below](#choosing-at-the-broker)."),
    Option("sqlFilter", READS, sql_expression, None,
           "Only messages whose properties fulfil this SQL92 expression. The broker chooses; one that does not filter "
           "so (`enablePropertyFilter`) refuses before the first task. Not together with `tags`. See "
           "[below](#choosing-at-the-broker)."),
    Option("pullBatchSize", READS, number(1, 1_000_000), "32768",
           "At most so many messages asked for in one pull. Brokers may give fewer; Apache's give at most 32."),
    Option("pullBatchBytes", READS, number(1024, 12 * 1024 * 1024), str(4 * 1024 * 1024),
           "At most so many bytes asked for in one pull."),
    Option("maxPullsInFlight", READS, number(1, 256), "32",
           "Pulls that a task has under way at once where brokers give little at a time, as Apache's do; together they "
           "ask for no more than `pullBatchBytes`. With `tags` or `sqlFilter` it is always one."),
    Option("arrowBatchRows", READS, number(1, 1_000_000), "32768",
           "Rows at which an Arrow batch is handed to Spark; small pulls are put together until then."),
    Option("arrowBatchBytes", READS, number(1024, 256 * 1024 * 1024), str(4 * 1024 * 1024),
           "Bytes at which an Arrow batch is handed to Spark."),
    Option("dedupeWindow", READS, number(1, 10_000_000), None,
           "Leave out messages that are the same, `msgId` and contents, as one of the so many before them in their "
           "queue. See [below](#leaving-out-repeats)."),
    Option("topic", WRITES, writable_topic, None, "The topic to write to. It overrides a `topic` column."),
    Option("producerGroup", WRITES | VIEWS, group_name, "spark_rocket_writer",
           "The producer group that brokers are told."),
    Option("writeId", frozenset({Scope.WRITE}), some_text, None,
           "A name for a batch write. The same rows written again under the same name get the same `msgId`s, so that "
           "a repeat can be told. Without it every write has a name of its own."),
    Option("maxMessageSize", WRITES, number(1024, 12 * 1024 * 1024), str(MAX_MESSAGE_SIZE),
           "The largest body in bytes, as the brokers' `maxMessageSize`."),
    Option("sendBatchSize", WRITES, number(1, 100_000), "10000", "At most so many messages in one request."),
    Option("sendBatchBytes", WRITES, number(1024, MAX_MESSAGE_SIZE), str(2 * 1024 * 1024),
           "Bytes to aim for in one request, never above `maxMessageSize`."),
    Option("maxRequestsInFlight", WRITES, number(1, 1024), "4", "Requests a task has under way at once."),
    Option("maxDelayedInFlight", WRITES, number(1, 8192), "256",
           "Delayed rows that a task has under way at once; each is a request of its own."),
    Option("compression", WRITES, one_of(Compression), "none",
           "How bodies are compressed. Every RocketMQ client reads `zlib`, those of 5.x the others too. See "
           "[below](#compression)."),
    Option("compressAbove", WRITES, number(0, 12 * 1024 * 1024), "4096",
           "Bytes from which on a body is compressed. Only with `compression`."),
    Option("view", VIEWS, view_name, None,
           "Read a cluster's state instead of messages: `cluster`, `brokers`, `topics`, `queues`, `groups`, `lag`, "
           "`consumers`, `producers`, `messages` or `dlq`. See [below](#views-a-clusters-state)."),
    Option("key", VIEWS, some_text, None, "The key to look up in the view `messages`."),
    Option("msgId", VIEWS, some_text, None, "The message id to look up in the view `messages`."),
    Option("bodyFormat", READS | WRITES, body_format, None,
           "What bodies are: `json`, `csv`, `avro`, `protobuf`, `arrow`, `text` or `variant`. Their values become "
           "typed columns, and columns become bodies. See [below](#typed-rows)."),
    Option("metadataColumns", READS, metadata_columns, None,
           "Which columns of typed rows are the message's: `queueOffset, storeTimestamp as stored_at`, or `*` for "
           "all."),
    Option("badRecords", READS, bad_records, "fail",
           "What becomes of bodies that cannot be decoded: `fail`, `null`, `column`, `drop` or `deadLetter`. See "
           "[below](#records-that-cannot-be-decoded)."),
    Option("badRecordColumn", READS, some_text, "_bad_record",
           "The column of the schema that such bodies are put into, with `badRecords=column`."),
    Option("deadLetterTopic", READS, writable_topic, None,
           "The topic that such messages are sent to, with `badRecords=deadLetter`."),
    Option("avroSchema", READS | WRITES, avro_schema, None,
           "With `bodyFormat=avro`: the schema as JSON, or the path of a schema file that the driver sees."),
    Option("avroEncoding", READS | WRITES, avro_encoding, "auto",
           "With `bodyFormat=avro`: whether bodies are `raw` datums or begin with the header of a `single` object; "
           "`auto` reads both and writes single objects."),
    Option("protobufDescriptor", READS | WRITES, descriptor_file, None,
           "With `bodyFormat=protobuf`: the path of a FileDescriptorSet that the driver sees."),
    Option("protobufMessage", READS | WRITES, some_text, None,
           "With `bodyFormat=protobuf`: the full name of the message type."),
    Option("csvDelimiter", READS | WRITES, delimiter, ",",
           "With `bodyFormat=csv`: the character between two values, or `tab`."),
    Option("arrowRowsPerMessage", WRITES, number(1, 1_000_000), "1000",
           "With `bodyFormat=arrow`: at most so many rows in a message."),
    Option("requestTimeout", READS | WRITES | VIEWS, number(100, 600_000), "10000",
           "Milliseconds (a number without a unit) to wait for one answer."),
    Option("retryTimeout", READS | WRITES, number(0, 86_400_000), "60000",
           "Milliseconds during which failed requests are made again before the query fails: how long a broker may be "
           "away."),
)  # fmt: skip

_BY_KEY = {option.name.lower(): option for option in OPTIONS}
_NOT_WITH_A_STORE = (
    "nameServer",
    "subscribePattern",
    "assign",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsetsByTimestamp",
    "groupOffsetsFallback",
    "filterPushdown",
    "consumerGroup",
    "maxRecordsPerPartition",
    "pullBatchSize",
    "pullBatchBytes",
    "maxPullsInFlight",
    "sqlFilter",
    "dedupeWindow",
    "requestTimeout",
    "retryTimeout",
)
# Spark puts these beside ours; they are not for the source.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})
# Names that people bring along, and what they are called here. "" is: there is no such option yet.
_FROM_ELSEWHERE = {
    "kafka.bootstrap.servers": "nameServer",
    "bootstrap.servers": "nameServer",
    "namesrvaddr": "nameServer",
    "group.id": "consumerGroup",
    "kafka.group.id": "consumerGroup",
    "groupidprefix": "consumerGroup",
    "fetchoffset.numretries": "retryTimeout",
    "fetchoffset.retryintervalms": "retryTimeout",
    "kafkaconsumer.polltimeoutms": "requestTimeout",
    "topics": "subscribe",
    "topicspattern": "subscribePattern",
    "maxrowspertrigger": "maxOffsetsPerTrigger",
    "topicpattern": "subscribePattern",
    "startingoffsetsfallback": "groupOffsetsFallback",
    "path": "",
    "sep": "csvDelimiter",
    "delimiter": "csvDelimiter",
    "mode": "badRecords",
}
_NOT_NEEDED = {
    "header": "A body is no file: it has no line of names, and csv goes by the schema.",
    "includeheaders": "A message's headers are the column properties, which is there without an option.",
    "acks": "There is none: a row is written when its broker has stored it.",
    "kafka.acks": "There is none: a row is written when its broker has stored it.",
}


def parse_read_options(raw: Mapping[str, str], scope: Scope) -> ReadOptions:
    """Parse a read's options; OptionError says what to change."""
    values = _parse(raw, scope)
    store_path = as_kind(str, values.get("storePath"))
    _check_store_options(values, store_path)
    topics, pattern, assigned = what_to_read(values, store_path)
    default = Start.LATEST if scope is Scope.READ_STREAM else Start.EARLIEST
    starting = starting_position(values) or Position(default)
    ending = position_with_times(values, "ending") or Position(Start.LATEST)
    if scope is Scope.READ and starting.kind is Start.LATEST:
        others = "earliest, timestamp or JSON"
        if store_path is None:
            others = "earliest, timestamp, group or JSON, or spark.readStream"
        raise error("BAD_OPTION.READS_NOTHING", others=others)
    if scope is Scope.READ_STREAM:
        check_not_to_come(starting, is_stream=True)
    elif starting.kind is not Start.GROUP:
        check_not_to_come(starting, is_stream=False)
        check_times(starting, ending)
    group = as_kind(str, values.get("consumerGroup"))
    for option, position in (("startingOffsets", starting), ("endingOffsets", ending)):
        if position.kind is Start.GROUP and group is None:
            raise error(
                "BAD_OPTION.ALONE",
                option=option,
                value="'group'",
                needed="consumerGroup",
                example='.option("consumerGroup", "…")',
            )
        check_named(position, option, topics, pattern, assigned)
    wait_for_topic = values.get("waitForTopic") is True
    if wait_for_topic and (starting.offsets is not None or starting.times is not None):
        raise error(
            "BAD_OPTION.TOGETHER",
            option="waitForTopic",
            other="startingOffsets or startingOffsetsByTimestamp as JSON",
            hint=": a topic that is waited for is read from its first message",
        )
    check_limits(values)
    tags = as_kind(tuple, values.get("tags"))
    sql_filter = as_kind(str, values.get("sqlFilter"))
    if tags is not None and sql_filter is not None:
        hint = "; in SQL92 a message's tag is the property TAGS: sqlFilter=\"TAGS = 'a'\""
        raise error("BAD_OPTION.TOGETHER", option="sqlFilter", other="tags", hint=hint)
    dedupe_window = as_kind(int, values.get("dedupeWindow"))
    if dedupe_window is not None and values.get("filterPushdown") is Pushdown.INDEX:
        hint = ", or set filterPushdown=true: what the index finds has no messages before it"
        raise error("BAD_OPTION.TOGETHER", option="dedupeWindow", other="filterPushdown=index", hint=hint)
    return ReadOptions(
        name_server="" if store_path is not None else _name_server_of(values),
        topics=topics,
        topic_pattern=pattern,
        assigned=assigned,
        wait_for_topic=wait_for_topic,
        starting=starting,
        ending=ending,
        consumer_group=group,
        fail_on_data_loss=values["failOnDataLoss"] is True,
        max_offsets_per_trigger=as_kind(int, values.get("maxOffsetsPerTrigger")),
        max_bytes_per_trigger=as_kind(int, values.get("maxBytesPerTrigger")),
        min_offsets_per_trigger=as_kind(int, values.get("minOffsetsPerTrigger")),
        max_trigger_delay_ms=as_kind(int, values.get("maxTriggerDelay")) or 900_000,
        min_partitions=as_kind(int, values.get("minPartitions")),
        max_records_per_partition=as_kind(int, values.get("maxRecordsPerPartition")),
        pull_batch_size=_int(values, "pullBatchSize"),
        pull_batch_bytes=_int(values, "pullBatchBytes"),
        arrow_batch_rows=_int(values, "arrowBatchRows"),
        arrow_batch_bytes=_int(values, "arrowBatchBytes"),
        request_timeout_ms=_int(values, "requestTimeout"),
        retry_timeout_ms=_int(values, "retryTimeout"),
        store_path=store_path,
        broker_name=as_kind(str, values.get("brokerName")),
        is_stream=scope is Scope.READ_STREAM,
        tags=tags,
        sql_filter=sql_filter,
        max_pulls_in_flight=_int(values, "maxPullsInFlight"),
        filter_pushdown=as_kind(Pushdown, values.get("filterPushdown")) or Pushdown.OFF,
        dedupe_window=dedupe_window,
        body=body_settings(values, topics, pattern),
    )


def body_of(raw: Mapping[str, str]) -> BodySettings | None:
    """What a read's options say of bodies, where it is not known yet whether it is a stream."""
    given = {key.lower(): value for key, value in raw.items()}
    values: dict[str, object] = {"given": frozenset(given)}
    for option in OPTIONS:
        if option.scopes & READS and (text := given.get(option.name.lower())) is not None:
            values[option.name] = option.parse(option.name, text)
    return body_settings(values)


def _check_store_options(values: Mapping[str, object], store_path: str | None) -> None:
    """What goes with ``storePath``, and what does not; an option without effect must not look as if it had one."""
    if store_path is None:
        if "brokerName" in values:
            raise error("BAD_OPTION.NO_EFFECT", option="brokerName", needed="storePath")
        return
    for name in _NOT_WITH_A_STORE:
        if is_given(values, name):
            hint = f": {name} is for reading from brokers, storePath for reading files"
            raise error("BAD_OPTION.TOGETHER", option=name, other="storePath", hint=hint)
    if is_given(values, "deadLetterTopic"):
        raise error("BAD_OPTION.TOGETHER", option="deadLetterTopic", other="storePath", hint=": use badRecords=column")
    for name in ("startingOffsets", "endingOffsets"):
        position = as_kind(Position, values.get(name))
        if position is not None and position.kind is Start.GROUP:
            hint = f", or set {name} to earliest, timestamp or JSON"
            raise error("BAD_OPTION.TOGETHER", option=f"{name}=group", other="storePath", hint=hint)
        if position is not None and position.offsets and "subscribe" not in values:
            example = "the topics that it names to subscribe"
            raise error("BAD_OPTION.ALONE", option=name, value="offsets as JSON", needed="subscribe", example=example)


def parse_write_options(raw: Mapping[str, str], scope: Scope) -> WriteOptions:
    """Parse a write's options; OptionError says what to change."""
    values = _parse(raw, scope)
    limit = _int(values, "maxMessageSize")
    given = values["given"]
    assert isinstance(given, frozenset)
    compression = values["compression"]
    assert isinstance(compression, Compression)
    if compression is Compression.NONE and "compressabove" in given:
        raise error("BAD_OPTION.NO_EFFECT", option="compressAbove", needed="compression")
    return WriteOptions(
        name_server=_name_server_of(values),
        topic=as_kind(str, values.get("topic")),
        producer_group=str(values["producerGroup"]),
        write_id=as_kind(str, values.get("writeId")),
        max_message_size=limit,
        send_batch_size=_int(values, "sendBatchSize"),
        send_batch_bytes=min(limit, _int(values, "sendBatchBytes")),
        max_requests_in_flight=_int(values, "maxRequestsInFlight"),
        request_timeout_ms=_int(values, "requestTimeout"),
        retry_timeout_ms=_int(values, "retryTimeout"),
        compression=compression.value,
        compress_above=_int(values, "compressAbove"),
        max_delayed_in_flight=_int(values, "maxDelayedInFlight"),
        body=body_settings(values),
    )


def is_view(raw: Mapping[str, str]) -> bool:
    """Whether the options are those of a view."""
    return any(key.lower() == "view" for key in raw)


def parse_view_options(raw: Mapping[str, str]) -> ViewOptions:
    """Parse a view's options; OptionError says what to change."""
    values = _parse(raw, Scope.VIEW)
    return ViewOptions(
        view=str(values["view"]),
        name_server=_name_server_of(values),
        topics=as_kind(tuple, values.get("subscribe")) or (),
        consumer_group=as_kind(str, values.get("consumerGroup")),
        producer_group=as_kind(str, values.get("producerGroup")),
        key=as_kind(str, values.get("key")),
        msg_id=as_kind(str, values.get("msgId")),
        request_timeout_ms=_int(values, "requestTimeout"),
    )


def belongs_to(key: str, scopes: frozenset[Scope]) -> bool:
    """Whether an option of this name, in any case, is one of any of ``scopes``."""
    option = _BY_KEY.get(key.lower())
    return option is not None and bool(option.scopes & scopes)


def check_options(raw: Mapping[str, str], scopes: frozenset[Scope]) -> None:
    """Refuse what is no option of any of ``scopes``, and values that would not do in any."""
    for key, text in raw.items():
        key = key.lower()
        option = _BY_KEY.get(key)
        if option is None:
            if key not in _SPARKS_OWN:
                raise _unknown(key, scopes)
        elif option.scopes & scopes:
            option.parse(option.name, text)
        else:
            wanted = " and ".join(sorted(scope.value for scope in scopes))
            belongs = " and ".join(sorted(scope.value for scope in option.scopes))
            hint = ' Reads name their topics with "subscribe".' if key == "topic" else ""
            hint = ' Writes name their topic with "topic".' if key == "subscribe" else hint
            hint = " Read a store directory with spark.read." if key == "storepath" else hint
            hint = " Views are read with spark.read." if key == "view" else hint
            hint = ' Or say which: .option("view", "messages").' if key in ("key", "msgid") else hint
            raise error("BAD_OPTION.SCOPE", option=option.name, belongs=belongs, wanted=wanted, hint=hint)


def _unknown(key: str, scopes: frozenset[Scope]) -> DataSourceError:
    here = [option.name for option in OPTIONS if option.scopes & scopes]
    nearest = _FROM_ELSEWHERE.get(key)
    if nearest is None:
        close = difflib.get_close_matches(key, [option.lower() for option in here], n=1, cutoff=0.5)
        nearest = next((option for option in here if close and option.lower() == close[0]), "")
    remedy = f"Did you mean {nearest}?" if nearest else f"The options here are {', '.join(here)}."
    if key == "path":  # load("orders"), save("orders"), CREATE TABLE … LOCATION
        option = "topic" if scopes <= {Scope.WRITE, Scope.WRITE_STREAM} else "subscribe"
        remedy = f'Topics have no path: name the topic with .option("{option}", …) and nothing in load() or save().'
        if option == "subscribe":
            remedy += ' The directory of a stopped broker is read with .option("storePath", …).'
    elif key in _NOT_NEEDED:
        remedy = _NOT_NEEDED[key]
    elif key.startswith("option."):
        remedy = "CREATE TABLE … USING rocket is not supported: use spark.read, or a temporary view of it."
    return error("BAD_OPTION.UNKNOWN", option=key, hint=remedy)


def _parse(raw: Mapping[str, str], scope: Scope) -> dict[str, object]:
    check_options(raw, frozenset({scope}))
    given = {key.lower(): value for key, value in raw.items()}
    values: dict[str, object] = {}
    for option in OPTIONS:
        text = given.get(option.name.lower(), option.default if scope in option.scopes else None)
        if text is not None:
            values[option.name] = option.parse(option.name, text)
    return values | {"given": frozenset(given)}


def _name_server_of(values: Mapping[str, object]) -> str:
    given = values.get("nameServer")
    if isinstance(given, str):
        return given
    variable = os.environ.get("NAMESRV_ADDR", "").strip()
    return name_servers("NAMESRV_ADDR (environment)", variable) if variable else DEFAULT_NAME_SERVER


def _int(values: Mapping[str, object], option: str) -> int:
    value = values[option]
    assert isinstance(value, int)
    return value
