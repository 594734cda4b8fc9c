"""The list of the options of ``format("rocket")``: names, what they are for, parsers, defaults, meanings.

docs/datasource.md shows it, and a test compares them. Values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_rocket.datasource.options.bodies import (
    AvroEncoding,
    BadRecords,
    BodyFormat,
    avro_schema,
    delimiter,
    descriptor_file,
    metadata_columns,
)
from spark_rocket.datasource.options.connection import DEFAULT_NAME_SERVER, credentials_file, key_text, pem_file
from spark_rocket.datasource.options.parsers import (
    MAX_MESSAGE_SIZE,
    Compression,
    Fallback,
    Guarantee,
    Parser,
    Start,
    Strategy,
    assigned_queues,
    boolean,
    broker_names,
    directory,
    duration,
    group_name,
    key_list,
    name_servers,
    number,
    one_of,
    positions,
    size,
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
from spark_rocket.remoting.tls.settings import Verify


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
class Option:
    """One documented option."""

    name: str
    scopes: frozenset[Scope]
    parse: Parser
    default: str | None
    meaning: str
    needs: tuple[str, ...] = ()
    """Options without which this one has no effect, some as ``name=value``."""
    brokers_only: bool = False
    """Whether it has no meaning for ``storePath``."""


OPTIONS: tuple[Option, ...] = (
    Option("nameServer", READS | WRITES | VIEWS, name_servers, None,
           "Name servers as `host:port`, several with `;`. Without it the `NAMESRV_ADDR` environment variable of the "
           f"driver, then `{DEFAULT_NAME_SERVER}`.",
           brokers_only=True),
    Option("accessKey", READS | WRITES | VIEWS, key_text, None,
           "Who asks, where brokers want signed requests. Without it and `credentialsFile` the driver's environment "
           "variables `ROCKETMQ_ACCESS_KEY` and `ROCKETMQ_SECRET_KEY`. See [below](#credentials).",
           needs=("secretKey",), brokers_only=True),
    Option("secretKey", READS | WRITES | VIEWS, key_text, None, "The secret that goes with `accessKey`.",
           needs=("accessKey",), brokers_only=True),
    Option("securityToken", READS | WRITES | VIEWS, key_text, None, "The token of temporary keys.",
           needs=("accessKey",), brokers_only=True),
    Option("credentialsFile", READS | WRITES | VIEWS, credentials_file, None,
           "A file that the driver sees, with `accessKey: …` and `secretKey: …`, instead of these options.",
           brokers_only=True),
    Option("tls", READS | WRITES | VIEWS, boolean, None,
           "Whether name servers and brokers are called with TLS. Without it the driver's environment variable "
           "`ROCKETMQ_TLS_ENABLE`, then `false`. See [below](#tls).",
           brokers_only=True),
    Option("tlsCaFile", READS | WRITES | VIEWS, pem_file, None,
           "A PEM file with the CAs whose servers are believed, instead of the system's.",
           needs=("tls=true",), brokers_only=True),
    Option("tlsCertFile", READS | WRITES | VIEWS, pem_file, None,
           "A PEM file with the certificate that is shown to servers that ask for one.",
           needs=("tls=true", "tlsKeyFile"), brokers_only=True),
    Option("tlsKeyFile", READS | WRITES | VIEWS, pem_file, None, "A PEM file with the private key of `tlsCertFile`.",
           needs=("tls=true", "tlsCertFile"), brokers_only=True),
    Option("tlsVerify", READS | WRITES | VIEWS, one_of(Verify), None,
           "What is checked of a server: `full`, its CA and that it has the name or address that was called (that is "
           "so without this option); `ca`, its CA; `none`, nothing.",
           needs=("tls=true",), brokers_only=True),
    Option("subscribe", READS | VIEWS, topic_names, None,
           "The topics to read, separated by commas. One of `subscribe`, `subscribePattern` and `assign` is required, "
           "but for `storePath`."),
    Option("subscribePattern", READS, topic_pattern, None,
           "The topics to read, as a regular expression for whole names. See [below](#what-to-read).",
           brokers_only=True),
    Option("assign", READS, assigned_queues, None,
           'The queues to read, as JSON: `{"orders": {"broker-a": [0, 1]}}`.',
           brokers_only=True),
    Option("expectedBrokers", READS, broker_names, None,
           "The brokers that must be there, by name, separated by commas: each with queues of what is read. Without it "
           "those that a stream's checkpoint or a topic's ORDER_TOPIC_CONFIG names. See "
           "[below](#brokers-that-are-away).",
           brokers_only=True),
    Option("waitForTopic", frozenset({Scope.READ_STREAM}), boolean, "false",
           "Whether topics and queues that do not exist yet are waited for (`true`), and then read from their first "
           "message, or are an error when the stream starts (`false`)."),
    Option("storePath", frozenset({Scope.READ}), directory, None,
           "Read the files of a stopped broker instead of asking brokers: its store directory, or the data directory "
           "of `rocket up`. See [below](#a-store-directory-without-a-broker)."),
    Option("brokerName", frozenset({Scope.READ}), some_text, None,
           "With `storePath`: what stands in the column `brokerName`, and in offsets as JSON. Without it the "
           "name that the store's configuration or its list of topics tells, then `broker-a`.",
           needs=("storePath",)),
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
           "`startingOffsets=timestamp`.",
           brokers_only=True),
    Option("startingOffsetsByTimestampStrategy", READS, one_of(Strategy), "latest",
           "Where a queue begins in which nothing was stored at that time or later: at its end (`latest`), or it is an "
           "`error`.",
           brokers_only=True),
    Option("groupOffsetsFallback", READS, one_of(Fallback), "earliest",
           "With `startingOffsets=group`, where queues begin of which the group has committed nothing: `earliest`, "
           "`latest`, `timestamp` (of `startingTimestamp`), or it is an `error`.",
           needs=("startingOffsets=group",), brokers_only=True),
    Option("endingOffsets", frozenset({Scope.READ}),
           positions(Start.LATEST, Start.GROUP, Start.TIMESTAMP, Start.OFFSETS), "latest",
           "Where a batch read ends: `latest`, `group` (what `consumerGroup` has committed), `timestamp` (see the next "
           "two), or JSON."),
    Option("endingTimestamp", frozenset({Scope.READ}), timestamp, None,
           "The first store time not to read, written as `startingTimestamp` is. Sets `endingOffsets=timestamp`."),
    Option("endingOffsetsByTimestamp", frozenset({Scope.READ}), timestamps, None,
           "The same for each queue, as JSON. Sets `endingOffsets=timestamp`.",
           brokers_only=True),
    Option("maxOffsetsPerTrigger", frozenset({Scope.READ_STREAM}), number(1), None,
           "At most so many messages in a micro-batch, shared out in proportion to each queue's lag."),
    Option("maxBytesPerTrigger", frozenset({Scope.READ_STREAM}), size(1), None,
           "At most so many bytes of stored messages in a micro-batch, by what the brokers "
           "tell of their sizes. See [below](#how-much-at-a-time)."),
    Option("minOffsetsPerTrigger", frozenset({Scope.READ_STREAM}), number(1), None,
           "Wait with a micro-batch until there are so many messages, or `maxTriggerDelay` is over."),
    Option("maxTriggerDelay", frozenset({Scope.READ_STREAM}), duration(1, 30 * 86_400_000), "15m",
           "How long `minOffsetsPerTrigger` may hold messages back.",
           needs=("minOffsetsPerTrigger",)),
    Option("failOnDataLoss", READS, boolean, "true",
           "Whether messages that are gone before they were read, and [brokers that are away](#brokers-that-are-away), "
           "stop the query (`true`), or it says so once in the log and goes on from the earliest left (`false`)."),
    Option("consumerGroup", READS | VIEWS, group_name, None,
           "Commit the stream's progress to this group on the brokers, for RocketMQ's tools to show. With "
           "`startingOffsets=group`, where to begin. Batch reads commit nothing.",
           brokers_only=True),
    Option("minPartitions", READS, number(1, 100_000), None,
           "At least so many Spark partitions: ranges of large queues are split."),
    Option("maxRecordsPerPartition", READS, number(1), None, "At most so many messages in a Spark partition.",
           brokers_only=True),
    Option("lookupKeys", frozenset({Scope.READ}), key_list, None,
           "Only messages with one of these keys, separated by commas. They are looked up in the brokers' index; the "
           "rest of the topic is not read. See [below](#look-ups-by-key).",
           brokers_only=True),
    Option("lookupMsgIds", frozenset({Scope.READ}), key_list, None,
           "Only messages with one of these values of `msgId`, likewise. Not together with `lookupKeys`.",
           brokers_only=True),
    Option("tags", READS, tag_expression, "*",
           "Only messages with one of these tags, as RocketMQ writes them. The broker chooses, and what it sends is "
           "compared again. See [below](#choosing-at-the-broker)."),
    Option("sqlFilter", READS, sql_expression, None,
           "Only messages whose properties fulfil this SQL92 expression. The broker chooses; one that does not filter "
           "so (`enablePropertyFilter`) refuses before the first task. Not together with `tags`. See "
           "[below](#choosing-at-the-broker).",
           brokers_only=True),
    Option("pullBatchSize", READS, number(1, 1_000_000), "32768",
           "At most so many messages asked for in one pull. Brokers may give fewer; Apache's give at most 32.",
           brokers_only=True),
    Option("pullBatchBytes", READS, size(1024, 12 * 1024 * 1024), "4m",
           "At most so many bytes asked for in one pull.",
           brokers_only=True),
    Option("maxPullsInFlight", READS, number(1, 256), "32",
           "Pulls that a task has under way at once where brokers give little at a time, as Apache's do; together they "
           "ask for no more than `pullBatchBytes`. With `tags` or `sqlFilter` it is always one.",
           brokers_only=True),
    Option("arrowBatchRows", READS, number(1, 1_000_000), "32768",
           "Rows at which an Arrow batch is handed to Spark; small pulls are put together until then."),
    Option("arrowBatchBytes", READS, size(1024, 256 * 1024 * 1024), "4m",
           "Bytes at which an Arrow batch is handed to Spark."),
    Option("dedupeWindow", READS, number(1, 10_000_000), None,
           "Leave out messages that are the same, `msgId` and contents, as one of the so many before them in their "
           "queue. See [below](#leaving-out-repeats).",
           brokers_only=True),
    Option("topic", WRITES, writable_topic, None, "The topic to write to. It overrides a `topic` column."),
    Option("producerGroup", WRITES | VIEWS, group_name, "spark_rocket_writer",
           "The producer group that brokers are told."),
    Option("writeId", frozenset({Scope.WRITE}), some_text, None,
           "A name for a batch write. The same rows written again under the same name get the same `msgId`s, so that "
           "a repeat can be told. Without it every write has a name of its own."),
    Option("deliveryGuarantee", WRITES, one_of(Guarantee), "atLeastOnce",
           "`atLeastOnce`, or `exactlyOnce`: each row of a committed micro-batch is stored once, whatever crashes. "
           "Batch writes need `writeId` for it. See [below](#exactly-once)."),
    Option("stagingTopic", WRITES, writable_topic, "ROCKET_SINK_STAGING",
           "With `exactlyOnce`: the topic that rows are staged in before their micro-batch is decided. Sinks may share "
           "it.",
           needs=("deliveryGuarantee=exactlyOnce",)),
    Option("ledgerTopic", WRITES, writable_topic, "ROCKET_SINK_LEDGER",
           "With `exactlyOnce`: the topic with one queue that keeps what was decided. Sinks may share it; a query must "
           "keep its own.",
           needs=("deliveryGuarantee=exactlyOnce",)),
    Option("gracePeriod", WRITES, duration(1000, 600_000), "20s",
           "With `exactlyOnce`: how long requests of a driver that died may be pending, at least twice "
           "`requestTimeout`. After a crash or a lost response the sink waits for this time before it reads back what "
           "is stored.",
           needs=("deliveryGuarantee=exactlyOnce",)),
    Option("stagingRetention", WRITES, duration(60_000, 365 * 86_400_000), "72h",
           "With `exactlyOnce`: the longest time between a crash and the restart. Brokers that keep messages for less "
           "(`fileReservedTime`) are named in the driver's log.",
           needs=("deliveryGuarantee=exactlyOnce",)),
    Option("maxMessageSize", WRITES, size(1024, 12 * 1024 * 1024), "4m",
           "The largest body in bytes, as the brokers' `maxMessageSize`."),
    Option("sendBatchSize", WRITES, number(1, 100_000), "10000", "At most so many messages in one request."),
    Option("sendBatchBytes", WRITES, size(1024, MAX_MESSAGE_SIZE), "2m",
           "Bytes to aim for in one request, never above `maxMessageSize`."),
    Option("maxRequestsInFlight", WRITES, number(1, 1024), "4", "Requests a task has under way at once."),
    Option("maxDelayedInFlight", WRITES, number(1, 8192), "256",
           "Delayed rows that a task has under way at once; each is a request of its own."),
    Option("compression", WRITES, one_of(Compression), "none",
           "How bodies are compressed. Every RocketMQ client reads `zlib`, those of 5.x the others too. See "
           "[below](#compression)."),
    Option("compressAbove", WRITES, size(0, 12 * 1024 * 1024), "4k",
           "Bytes from which on a body is compressed. Only with `compression`."),
    Option("view", VIEWS, view_name, None,
           "Read a cluster's state instead of messages: `cluster`, `brokers`, `topics`, `queues`, `groups`, `lag`, "
           "`consumers`, `producers`, `messages` or `dlq`. See [below](#views-a-clusters-state)."),
    Option("key", VIEWS, some_text, None, "The key to look up in the view `messages`."),
    Option("msgId", VIEWS, some_text, None, "The message id to look up in the view `messages`."),
    Option("bodyFormat", READS | WRITES, one_of(BodyFormat), None,
           "What bodies are: `json`, `csv`, `avro`, `protobuf`, `arrow`, `text` or `variant`. Their values become "
           "typed columns, and columns become bodies. See [below](#typed-rows)."),
    Option("metadataColumns", READS, metadata_columns, None,
           "Which columns of typed rows are the message's: `queueOffset, storeTimestamp as stored_at`, or `*` for "
           "all.",
           needs=("bodyFormat",)),
    Option("badRecords", READS, one_of(BadRecords), "fail",
           "What becomes of bodies that cannot be decoded: `fail`, `null`, `column`, `drop` or `deadLetter`. See "
           "[below](#records-that-cannot-be-decoded).",
           needs=("bodyFormat",)),
    Option("badRecordColumn", READS, some_text, "_bad_record",
           "The column of the schema that such bodies are put into, with `badRecords=column`.",
           needs=("bodyFormat",)),
    Option("deadLetterTopic", READS, writable_topic, None,
           "The topic that such messages are sent to, with `badRecords=deadLetter`.",
           needs=("bodyFormat",)),
    Option("avroSchema", READS | WRITES, avro_schema, None,
           "With `bodyFormat=avro`: the schema as JSON, or the path of a schema file that the driver sees.",
           needs=("bodyFormat=avro",)),
    Option("avroEncoding", READS | WRITES, one_of(AvroEncoding), "auto",
           "With `bodyFormat=avro`: whether bodies are `raw` datums or begin with the header of a `single` object; "
           "`auto` reads both and writes single objects.",
           needs=("bodyFormat=avro",)),
    Option("protobufDescriptor", READS | WRITES, descriptor_file, None,
           "With `bodyFormat=protobuf`: the path of a FileDescriptorSet that the driver sees.",
           needs=("bodyFormat=protobuf",)),
    Option("protobufMessage", READS | WRITES, some_text, None,
           "With `bodyFormat=protobuf`: the full name of the message type.",
           needs=("bodyFormat=protobuf",)),
    Option("csvDelimiter", READS | WRITES, delimiter, ",",
           "With `bodyFormat=csv`: the character between two values, or `tab`.",
           needs=("bodyFormat=csv",)),
    Option("arrowRowsPerMessage", WRITES, number(1, 1_000_000), "1000",
           "With `bodyFormat=arrow`: at most so many rows in a message.",
           needs=("bodyFormat=arrow",)),
    Option("requestTimeout", READS | WRITES | VIEWS, duration(100, 600_000), "10s",
           "How long to wait for one answer.",
           brokers_only=True),
    Option("retryTimeout", READS | WRITES, duration(0, 86_400_000), "1m",
           "How long failed requests are tried again before the query fails: how long a broker may be away.",
           brokers_only=True),
)  # fmt: skip
