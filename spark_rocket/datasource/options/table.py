"""The options of ``format("rocket")``: name, type, scope, parser, default and meaning of each.

``docs/reference/options.md`` lists them; a test compares the page with this table. Links are relative to that page.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_rocket.client.core.client_config import DEFAULT_NAME_SERVER, MAX_MESSAGE_SIZE
from spark_rocket.datasource.options.bodies import (
    AvroEncoding,
    BadRecords,
    BodyFormat,
    BodySettings,
    avro_schema,
    delimiter,
    descriptor_file,
    epoch_units,
    escape_character,
    metadata_columns,
    time_zone,
)
from spark_rocket.datasource.options.connection import address_map, credentials_file, key_text, namespace_name, pem_file
from spark_rocket.datasource.options.parsers import (
    Compression,
    Fallback,
    Guarantee,
    Parser,
    Start,
    Strategy,
    Trigger,
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
    """The operations that an option applies to."""

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
    type: str
    """The documented type; a test checks the limits of numbers against ``parse``."""
    parse: Parser
    default: str | None
    meaning: str
    needs: tuple[str, ...] = ()
    """Options that this one requires, as ``name`` or ``name=value``."""
    brokers_only: bool = False
    """Whether the option is invalid together with ``storePath``."""


OPTIONS: tuple[Option, ...] = (
    # --- connection ---------------------------------------------------------------------------------------------------
    Option("nameServer", READS | WRITES | VIEWS, "addresses", name_servers, None,
           "Name servers as `host:port`, separated by `;`, or the URL of an address server. Default: the environment "
           f"variable `NAMESRV_ADDR` of the driver, then `{DEFAULT_NAME_SERVER}`.",
           brokers_only=True),
    Option("namespace", READS | WRITES | VIEWS, "string", namespace_name, None,
           "The ID of a managed instance, which names of topics and groups have on the wire. Default: the driver's "
           "environment variable `ROCKETMQ_NAMESPACE`, then the ID in a name server like "
           "`http://MQ_INST_1_a.example.com:80`. An empty text: none. See "
           "[namespaces](../guides/connect.md#namespaces)."),
    Option("namespaceV2", READS | WRITES | VIEWS, "string", namespace_name, None,
           "A namespace that requests have in the fields `ns` and `nsd` instead, as with Java's client 5.x.",
           brokers_only=True),
    Option("accessKey", READS | WRITES | VIEWS, "string", key_text, None,
           "The access key for signed requests. Default: the driver's environment variables `ROCKETMQ_ACCESS_KEY` "
           "and `ROCKETMQ_SECRET_KEY`. See [credentials](../guides/connect.md#credentials).",
           needs=("secretKey",), brokers_only=True),
    Option("secretKey", READS | WRITES | VIEWS, "string", key_text, None,
           "The secret key of `accessKey`.",
           needs=("accessKey",), brokers_only=True),
    Option("securityToken", READS | WRITES | VIEWS, "string", key_text, None,
           "The token of temporary credentials.",
           needs=("accessKey",), brokers_only=True),
    Option("credentialsFile", READS | WRITES | VIEWS, "path", credentials_file, None,
           "A file on the driver with `accessKey: …` and `secretKey: …`, instead of the three options above.",
           brokers_only=True),
    Option("tls", READS | WRITES | VIEWS, "boolean", boolean, None,
           "Use TLS for connections to name servers and brokers. Default: the driver's environment variable "
           "`ROCKETMQ_TLS_ENABLE`, then `false`. See [TLS](../guides/connect.md#tls).",
           brokers_only=True),
    Option("tlsCaFile", READS | WRITES | VIEWS, "path", pem_file, None,
           "A PEM file with the trusted CAs. Default: the CAs of the system.",
           needs=("tls=true",), brokers_only=True),
    Option("tlsCertFile", READS | WRITES | VIEWS, "path", pem_file, None,
           "A PEM file with the client certificate, for servers that request one.",
           needs=("tls=true", "tlsKeyFile"), brokers_only=True),
    Option("tlsKeyFile", READS | WRITES | VIEWS, "path", pem_file, None,
           "A PEM file with the private key of `tlsCertFile`.",
           needs=("tls=true", "tlsCertFile"), brokers_only=True),
    Option("tlsVerify", READS | WRITES | VIEWS, "`full`, `ca`, `none`", one_of(Verify), None,
           "How server certificates are verified: CA and host name (`full`, the default), CA only (`ca`), or not at "
           "all (`none`).",
           needs=("tls=true",), brokers_only=True),
    Option("addressMap", READS | WRITES | VIEWS, "address map", address_map, None,
           "Reachable addresses of brokers that advertise others, as `ADVERTISED=REACHABLE`, separated by commas: "
           "`172.17.0.3:10911=127.0.0.1:10911,broker-b:*=10.0.0.2:*`. Default: the driver's environment variable "
           "`ROCKETMQ_ADDRESS_MAP`. See [addresses](../guides/connect.md#map-addresses-that-spark-cannot-reach).",
           brokers_only=True),
    Option("requestTimeout", READS | WRITES | VIEWS, "duration 100ms–10m", duration(100, 600_000), "10s",
           "The timeout of one request.",
           brokers_only=True),
    Option("retryTimeout", READS | WRITES, "duration 0ms–1d", duration(0, 86_400_000), "1m",
           "The retry deadline: failed requests are retried for this long, then the query fails.",
           brokers_only=True),
    # --- what to read -------------------------------------------------------------------------------------------------
    Option("subscribe", READS | VIEWS, "list", topic_names, None,
           "The topics to read, separated by commas. A read requires one of `subscribe`, `subscribePattern`, "
           "`assign` and `storePath`; `storePath` can be combined with `subscribe`."),
    Option("subscribePattern", READS, "regular expression", topic_pattern, None,
           "The topics to read. The expression must match the complete topic name. See "
           "[topics](../guides/read.md#choose-topics).",
           brokers_only=True),
    Option("assign", READS, "JSON", assigned_queues, None,
           'The queues to read: `{"orders": {"broker-a": [0, 1]}}`.',
           brokers_only=True),
    Option("expectedBrokers", READS, "list", broker_names, None,
           "The brokers that must be available, by name, separated by commas. Default: the brokers in the stream's "
           "checkpoint or in a topic's ORDER_TOPIC_CONFIG. See [unavailable "
           "brokers](../guides/read.md#handle-unavailable-brokers).",
           brokers_only=True),
    Option("waitForTopic", frozenset({Scope.READ_STREAM}), "boolean", boolean, "false",
           "`true`: wait for missing topics and queues, then read them from their first message. `false`: a missing "
           "topic or queue is an error at the start."),
    Option("storePath", frozenset({Scope.READ}), "path", directory, None,
           "Read the files of a stopped broker: its store directory, or the data directory of `rocket up`. See "
           "[store directories](../guides/sql.md#read-a-store-directory)."),
    Option("brokerName", frozenset({Scope.READ}), "string", some_text, None,
           "The broker name in the column `brokerName` and in JSON offsets. Default: the name in the store's "
           "configuration or topic list, then `broker-a`.",
           needs=("storePath",)),
    # --- start and end ------------------------------------------------------------------------------------------------
    Option("startingOffsets", READS, "`earliest`, `latest`, `group`, `timestamp`, JSON",
           positions(Start.EARLIEST, Start.LATEST, Start.GROUP, Start.TIMESTAMP, Start.OFFSETS), None,
           "The start of a new query. `group`: the offsets that `consumerGroup` has committed. `timestamp`: see the "
           "next two options. Default: `latest` for streams, `earliest` for batch reads. A restarted stream "
           "continues from its checkpoint."),
    Option("startingTimestamp", READS, "time", timestamp, None,
           "The first store time to read. Sets `startingOffsets=timestamp`."),
    Option("startingOffsetsByTimestamp", READS, "JSON", timestamps, None,
           'The first store time of each queue: `{"orders": {"broker-a": {"0": 1769860800000, "1": "-2h"}}}`. Sets '
           "`startingOffsets=timestamp`.",
           brokers_only=True),
    Option("startingOffsetsByTimestampStrategy", READS, "`latest`, `error`", one_of(Strategy), "latest",
           "For queues without a message at or after the start time: start at the end of the queue (`latest`), or "
           "fail (`error`).",
           brokers_only=True),
    Option("groupOffsetsFallback", READS, "`earliest`, `latest`, `timestamp`, `error`", one_of(Fallback), "earliest",
           "The start of queues without a committed offset. `timestamp` uses `startingTimestamp`.",
           needs=("startingOffsets=group",), brokers_only=True),
    Option("endingOffsets", frozenset({Scope.READ}), "`latest`, `group`, `timestamp`, JSON",
           positions(Start.LATEST, Start.GROUP, Start.TIMESTAMP, Start.OFFSETS), "latest",
           "The end of a batch read (exclusive). `group`: the offsets that `consumerGroup` has committed. "
           "`timestamp`: see the next two options."),
    Option("endingTimestamp", frozenset({Scope.READ}), "time", timestamp, None,
           "The first store time not to read. Sets `endingOffsets=timestamp`."),
    Option("endingOffsetsByTimestamp", frozenset({Scope.READ}), "JSON", timestamps, None,
           "The first store time of each queue not to read, as JSON. Sets `endingOffsets=timestamp`.",
           brokers_only=True),
    # --- limits and partitions ----------------------------------------------------------------------------------------
    Option("maxOffsetsPerTrigger", frozenset({Scope.READ_STREAM}), "integer ≥ 1", number(1), None,
           "The maximum number of messages in a micro-batch, divided among the queues in proportion to their lag. "
           "Spark 4.0 and 4.1 also need `trigger`."),
    Option("maxBytesPerTrigger", frozenset({Scope.READ_STREAM}), "size ≥ 1", size(1), None,
           "The maximum size of the stored messages in a micro-batch. See "
           "[accuracy](#accuracy-of-maxbytespertrigger). Spark 4.0 and 4.1 also need `trigger`."),
    Option("trigger", frozenset({Scope.READ_STREAM}), "`processingTime`, `availableNow`", one_of(Trigger), None,
           "The trigger of the query, which Spark 4.0 and 4.1 do not report. There, `maxOffsetsPerTrigger` and "
           "`maxBytesPerTrigger` require it. See [limits before Spark 4.2](#limits-before-spark-42)."),
    Option("minOffsetsPerTrigger", frozenset({Scope.READ_STREAM}), "integer ≥ 1", number(1), None,
           "Delay a micro-batch until this many messages are available or `maxTriggerDelay` has passed."),
    Option("maxTriggerDelay", frozenset({Scope.READ_STREAM}), "duration 1ms–30d", duration(1, 30 * 86_400_000), "15m",
           "The maximum delay caused by `minOffsetsPerTrigger`.",
           needs=("minOffsetsPerTrigger",)),
    Option("minPartitions", READS, "integer 1–100000", number(1, 100_000), None,
           "The minimum number of Spark partitions. Large ranges are split."),
    Option("maxRecordsPerPartition", READS, "integer ≥ 1", number(1), None,
           "The maximum number of messages in a Spark partition.",
           brokers_only=True),
    Option("combineSmallRanges", READS, "boolean", boolean, "true",
           "Read small ranges of several queues in one Spark partition, one after the other. `false`: each queue has "
           "its own partitions. See [partitions](#partitions).",
           brokers_only=True),
    # --- filters, look-ups and duplicates -----------------------------------------------------------------------------
    Option("tags", READS, "tag expression", tag_expression, "*",
           "Read only messages with one of these tags. Separate tags as RocketMQ does, with two bars. See "
           "[filters](../guides/read.md#filter-at-the-broker)."),
    Option("sqlFilter", READS, "SQL92 expression", sql_expression, None,
           "Read only messages whose properties match. Requires `enablePropertyFilter=true` on the brokers. "
           "Excludes `tags`. See [filters](../guides/read.md#filter-at-the-broker).",
           brokers_only=True),
    Option("lookupKeys", frozenset({Scope.READ}), "list", key_list, None,
           "Read only messages with one of these keys, separated by commas or as a JSON list. Uses the index of the "
           "brokers. See [look-ups](../guides/read.md#look-up-messages-by-key).",
           brokers_only=True),
    Option("lookupMsgIds", frozenset({Scope.READ}), "list", key_list, None,
           "Read only messages with one of these values of `msgId`. Excludes `lookupKeys`.",
           brokers_only=True),
    Option("dedupeWindow", READS, "integer 1–10000000", number(1, 10_000_000), None,
           "Omit a message if one of this many preceding offsets of its queue has the same `msgId` and contents. "
           "See [duplicates](../guides/read.md#remove-duplicates).",
           brokers_only=True),
    # --- failures and progress ----------------------------------------------------------------------------------------
    Option("failOnDataLoss", READS, "boolean", boolean, "true",
           "`true`: the query fails if messages were deleted before they were read, or if a broker is "
           "[unavailable](../guides/read.md#handle-unavailable-brokers). `false`: it logs this once and continues. "
           "See [data loss](../guides/exactly-once.md#handle-data-loss)."),
    Option("consumerGroup", READS | VIEWS, "string", group_name, None,
           "Streams commit their progress to this group on the brokers, for monitoring. Batch reads commit nothing. "
           "Pulls and queries name it, for accounts; without it they name `spark_rocket_reader`. "
           "Required by `startingOffsets=group` and `endingOffsets=group`.",
           brokers_only=True),
    # --- fetching -----------------------------------------------------------------------------------------------------
    Option("pullBatchSize", READS, "integer 1–1000000", number(1, 1_000_000), "32768",
           "The maximum number of messages per pull request. Brokers may return fewer; Apache brokers return at "
           "most 32.",
           brokers_only=True),
    Option("pullBatchBytes", READS, "size 1k–12m", size(1024, 12 * 1024 * 1024), "4m",
           "The maximum number of bytes per pull request.",
           brokers_only=True),
    Option("maxPullsInFlight", READS, "integer 1–256", number(1, 256), "32",
           "The maximum number of pull requests in flight per task, for brokers that return little per pull. "
           "Together they request at most `pullBatchBytes`. One per queue with `tags` or `sqlFilter`.",
           brokers_only=True),
    Option("arrowBatchRows", READS, "integer 1–1000000", number(1, 1_000_000), "32768",
           "The number of rows at which an Arrow batch is passed to Spark. Small pulls are combined."),
    Option("arrowBatchBytes", READS, "size 1k–256m", size(1024, 256 * 1024 * 1024), "4m",
           "The number of bytes at which an Arrow batch is passed to Spark."),
    # --- writing ------------------------------------------------------------------------------------------------------
    Option("topic", WRITES, "string", writable_topic, None,
           "The target topic. Overrides the column `topic`."),
    Option("producerGroup", WRITES | VIEWS, "string", group_name, "spark_rocket_writer",
           "The producer group in send requests; for the view `producers`, the group to list."),
    Option("writeId", frozenset({Scope.WRITE}), "string", some_text, None,
           "The name of a batch write. Rows that are written again under the same name get the same `msgId`. In "
           "`foreachBatch`, include a name that changes with the checkpoint. See [name a batch "
           "write](../guides/exactly-once.md#name-a-batch-write). Default: a random name."),
    Option("maxMessageSize", WRITES, "size 1k–12m", size(1024, 12 * 1024 * 1024), "4m",
           "The maximum body size. Use the value of the brokers' setting `maxMessageSize`."),
    Option("sendBatchSize", WRITES, "integer 1–100000", number(1, 100_000), "10000",
           "The maximum number of messages per send request."),
    Option("sendBatchBytes", WRITES, "size 1k–4m", size(1024, MAX_MESSAGE_SIZE), "2m",
           "The target size of a send request, at most `maxMessageSize`."),
    Option("maxRequestsInFlight", WRITES, "integer 1–1024", number(1, 1024), "4",
           "The maximum number of send requests in flight per task."),
    Option("maxDelayedInFlight", WRITES, "integer 1–8192", number(1, 8192), "256",
           "The maximum number of delayed rows in flight per task. Each delayed row is a separate request."),
    Option("compression", WRITES, "`none`, `zlib`, `lz4`, `zstd`", one_of(Compression), "none",
           "The compression of bodies. All RocketMQ clients read `zlib`; clients of 5.x read the others, too. See "
           "[compression](../guides/write.md#compress-bodies)."),
    Option("compressAbove", WRITES, "size 0k–12m", size(0, 12 * 1024 * 1024), "4k",
           "The minimum size of compressed bodies. Requires `compression`."),
    # --- writing exactly once -----------------------------------------------------------------------------------------
    Option("deliveryGuarantee", WRITES, "`atLeastOnce`, `exactlyOnce`", one_of(Guarantee), "atLeastOnce",
           "`exactlyOnce`: each row of a committed micro-batch is stored exactly once. Batch writes require "
           "`writeId`. See [the exactly-once sink](../guides/exactly-once.md#write-exactly-once)."),
    Option("stagingTopic", WRITES, "string", writable_topic, "ROCKET_SINK_STAGING",
           "The topic for rows of undecided micro-batches. Sinks can share it.",
           needs=("deliveryGuarantee=exactlyOnce",)),
    Option("ledgerTopic", WRITES, "string", writable_topic, "ROCKET_SINK_LEDGER",
           "The topic with one queue that records the decisions. Sinks can share it. Do not change it for an "
           "existing query.",
           needs=("deliveryGuarantee=exactlyOnce",)),
    Option("ledgerGroup", WRITES, "string", group_name, "ROCKET_SINK_LEDGER",
           "The group that the sink's requests name. Its offsets remember the last micro-batch of each query. "
           "Sinks can share it. Do not change it for an existing query.",
           needs=("deliveryGuarantee=exactlyOnce",)),
    Option("ledgerBroker", WRITES, "string", some_text, None,
           "The broker of the ledger, where the sink cannot store its place at the name servers: behind a proxy, or on "
           "a managed instance. See [give the place of the ledger](../guides/exactly-once.md#give-the-place-of-the-"
           "ledger). Do not change it for an existing query.",
           needs=("deliveryGuarantee=exactlyOnce",)),
    Option("ledgerQueue", WRITES, "integer 0–65535", number(0, 65_535), "0",
           "The queue of `ledgerTopic` on `ledgerBroker` that is the ledger. Do not change it for an existing query.",
           needs=("ledgerBroker",)),
    Option("gracePeriod", WRITES, "duration 1s–10m", duration(1000, 600_000), "20s",
           "How long requests of a failed driver can still be pending, at least twice `requestTimeout`. After a crash "
           "or a lost response, the sink waits this long before it reads back what is stored.",
           needs=("deliveryGuarantee=exactlyOnce",)),
    Option("stagingRetention", WRITES, "duration 1m–365d", duration(60_000, 365 * 86_400_000), "72h",
           "The longest expected time between a crash and the restart. The driver logs a warning for brokers with a "
           "shorter `fileReservedTime`.",
           needs=("deliveryGuarantee=exactlyOnce",)),
    # --- typed rows ---------------------------------------------------------------------------------------------------
    Option("bodyFormat", READS | WRITES, "`json`, `csv`, `avro`, `protobuf`, `arrow`, `text`, `variant`",
           one_of(BodyFormat), None,
           "The format of bodies, for [typed rows](../guides/typed-rows.md)."),
    Option("metadataColumns", READS, "list", metadata_columns, None,
           "The message columns in typed rows: `queueOffset, storeTimestamp as stored_at`, or `*` for all.",
           needs=("bodyFormat",)),
    Option("timeZone", READS, "time zone", time_zone, None,
           "The time zone of times without one in bodies, with `bodyFormat=json` or `csv`: `Asia/Shanghai`, `+08:00`. "
           "Default: the session's time zone, as in `from_json`; without Spark, UTC.",
           needs=("bodyFormat",)),
    Option("jsonQuotedValues", READS, "boolean", boolean, "false",
           "`true`: read numbers and booleans in quotation marks as what their column is: "
           '`"7"`, `"true"`, and `"1"` and `"0"` as booleans. See [change data](../guides/typed-rows.md#change-data).',
           needs=("bodyFormat=json",)),
    Option("jsonEpochUnits", READS, "list", epoch_units, None,
           "What numbers in columns of type date and timestamp count since 1970: `s`, `ms`, `us`, `ns`, and `days` for "
           "dates; for all columns or for a column: `ms, days, paid_at=us`. See "
           "[numbers as times](../guides/typed-rows.md#numbers-as-times).",
           needs=("bodyFormat=json",)),
    Option("badRecords", READS, "`fail`, `null`, `column`, `drop`, `deadLetter`", one_of(BadRecords),
           BodySettings.bad_records.value,
           "The handling of [records that cannot be decoded](../guides/typed-rows.md#handle-invalid-records).",
           needs=("bodyFormat",)),
    Option("badRecordColumn", READS, "string", some_text, BodySettings.bad_record_column,
           "The column for invalid bodies, with `badRecords=column`.",
           needs=("bodyFormat",)),
    Option("deadLetterTopic", READS, "string", writable_topic, None,
           "The topic for messages with invalid bodies, with `badRecords=deadLetter`.",
           needs=("bodyFormat",)),
    Option("avroSchema", READS | WRITES, "JSON or path", avro_schema, None,
           "The Avro schema, as JSON or as the path of a file on the driver.",
           needs=("bodyFormat=avro",)),
    Option("avroEncoding", READS | WRITES, "`auto`, `raw`, `single`, `confluent`", one_of(AvroEncoding),
           BodySettings.avro_encoding.value,
           "`raw`: raw datums. `single`: single objects with a header. `auto`: reads both, writes single objects. "
           "`confluent`: reads datums with the header of a schema registry.",
           needs=("bodyFormat=avro",)),
    Option("protobufDescriptor", READS | WRITES, "path", descriptor_file, None,
           "A FileDescriptorSet on the driver.",
           needs=("bodyFormat=protobuf",)),
    Option("protobufMessage", READS | WRITES, "string", some_text, None,
           "The full name of the message type.",
           needs=("bodyFormat=protobuf",)),
    Option("csvDelimiter", READS | WRITES, "character", delimiter, BodySettings.csv_delimiter,
           "The ASCII character between two values, or `tab`.",
           needs=("bodyFormat=csv",)),
    Option("csvEscape", READS | WRITES, "character", escape_character, BodySettings.csv_escape,
           "The ASCII character before a quotation mark, and before itself, in quoted values, as in `from_csv`. "
           '`"` reads and writes doubled quotation marks (RFC 4180).',
           needs=("bodyFormat=csv",)),
    Option("arrowRowsPerMessage", WRITES, "integer 1–1000000", number(1, 1_000_000),
           str(BodySettings.arrow_rows),
           "The maximum number of rows per message.",
           needs=("bodyFormat=arrow",)),
    # --- views --------------------------------------------------------------------------------------------------------
    Option("view", VIEWS, "name", view_name, None,
           "Read the state of a cluster instead of messages: `cluster`, `brokers`, `topics`, `queues`, `groups`, "
           "`lag`, `consumers`, `producers`, `messages` or `dlq`. See [views](columns.md#views)."),
    Option("key", VIEWS, "string", some_text, None,
           "The key to look up in the view `messages`."),
    Option("msgId", VIEWS, "string", some_text, None,
           "The message ID to look up in the view `messages`."),
)  # fmt: skip
