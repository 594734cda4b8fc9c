"""The error conditions of ``format("rocket")``: name, message and remedy of each.

``make tables`` writes them into ``docs/reference/conditions.md``: a name in a log leads to a line of that page.
The part before the dot is the code of the error class, which is used alone where no condition is more specific.
``{…}`` are placeholders that the raising code fills in. The message names the option, queue or topic; the remedy
specifies what to change. Cases of a condition have the same name, and a message and remedy of their own.

Pure. Corresponds to the error conditions of Spark's Kafka source (kafka-error-conditions.json).
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_rocket.common.values import FrozenValue
from spark_rocket.errors import (
    DataLossError,
    DataSourceError,
    ExactlyOnceError,
    OffsetsError,
    OptionError,
    RenamedCode,
    RowError,
    SchemaError,
)

_CLASSES: dict[str, type[DataSourceError]] = {
    error.code: error for error in (OptionError, SchemaError, RowError, OffsetsError, DataLossError, ExactlyOnceError)
}


@dataclass(frozen=True, eq=False, repr=False)
class Condition(FrozenValue):
    """An error condition. ``text`` and ``remedy`` are templates for ``str.format``."""

    name: str
    text: str
    remedy: str
    case: str = ""
    """The case of the condition that the raising code names; not shown."""


def _cases(name: str, text: str, *remedy: str, **remedies: str) -> list[Condition]:
    """Return cases with the same message: an unnamed one for ``remedy``, then the named ones."""
    return [Condition(name, text, each) for each in remedy] + [
        Condition(name, text, each, case) for case, each in remedies.items()
    ]


CONDITIONS: tuple[Condition, ...] = (
    # --- options: raised on the driver, before any task ----------------------------------------------------------
    *_cases(
        "BAD_OPTION.UNKNOWN",
        'format("rocket") has no option {option}.',
        "Valid options here: {options}.",
        SIMILAR="Did you mean {nearest}?",
        NOT_NEEDED="{reason}",
        KAFKA_CLIENT="Remove it: this source has no Kafka client. See `rocket help from-kafka`.",
        PATH_TO_READ='Topics have no path: name the topic with .option("subscribe", …) and pass nothing to load() or '
        'save(). To read the directory of a stopped broker, use .option("storePath", …).',
        PATH_TO_WRITE='Topics have no path: name the topic with .option("topic", …) and pass nothing to load() or '
        "save().",
    ),
    *_cases(
        "BAD_OPTION.SCOPE",
        "option {option} is for {belongs}, not for {wanted}.",
        "Remove it.",
        topic='Remove it. To read, name topics with "subscribe".',
        subscribe='Remove it. To write, name the topic with "topic".',
        storePath="Remove it. Read a store directory with spark.read.",
        view="Remove it. Read views with spark.read.",
        key='Remove it. Or read the view: .option("view", "messages"). Batch reads have lookupKeys.',
        msgId='Remove it. Or read the view: .option("view", "messages"). Batch reads have lookupMsgIds.',
    ),
    Condition(
        "BAD_OPTION.COLUMN",
        "option {option} is invalid: {option} is a column of written rows.",
        'Use .withColumn("{option}", {example}).',
    ),
    Condition("BAD_OPTION.VALUE", "option {option} is {value}.", "Use {wanted}."),
    Condition("BAD_OPTION.JSON", "option {option} is not valid {what} JSON: {problem}.", "Example: {example}."),
    Condition(
        "BAD_OPTION.MISSING",
        "option subscribe is missing.",
        'Name the topics: .option("subscribe", "orders,payments"), or use subscribePattern or assign.',
    ),
    *_cases(
        "BAD_OPTION.CONFLICT",
        "option {option} cannot be combined with {other}.",
        "Remove one of them.",
        SELECTIONS="Use only one of subscribe, subscribePattern and assign.",
        RENAMED="Remove one of them: they are the same.",
        BODY_FORMAT="Remove one of them: {option} requires {needed}.",
    ),
    Condition(
        "BAD_OPTION.CONFLICT",
        "option expectedBrokers cannot be combined with assign.",
        "Remove expectedBrokers: assign already names its brokers.",
        "ASSIGNED_BROKERS",
    ),
    Condition(
        "BAD_OPTION.CONFLICT",
        "option {option} cannot be combined with {position}={kind}.",
        "Remove one of them, or set {position}=timestamp.",
        "TIME",
    ),
    Condition(
        "BAD_OPTION.CONFLICT",
        "option waitForTopic cannot be combined with startingOffsets or startingOffsetsByTimestamp as JSON.",
        "Remove one of them: a topic that the query waits for is read from its first message.",
        "WAIT_FOR_TOPIC",
    ),
    Condition(
        "BAD_OPTION.CONFLICT",
        "option sqlFilter cannot be combined with tags.",
        "Remove one of them. In SQL92, a message's tag is the property TAGS: sqlFilter=\"TAGS = 'a'\".",
        "FILTERS",
    ),
    Condition(
        "BAD_OPTION.CONFLICT",
        "option dedupeWindow cannot be combined with {other}.",
        "Remove one of them: a lookup does not read the messages before those that it finds.",
        "LOOKUP",
    ),
    Condition(
        "BAD_OPTION.CONFLICT",
        "option {option} cannot be combined with storePath.",
        "Remove one of them: {option} applies to brokers, and storePath reads files.",
        "BROKERS_ONLY",
    ),
    Condition(
        "BAD_OPTION.CONFLICT",
        "option deadLetterTopic cannot be combined with storePath.",
        "Remove deadLetterTopic, and use badRecords=column.",
        "STORE_DEAD_LETTERS",
    ),
    Condition(
        "BAD_OPTION.CONFLICT",
        "option {option}=group cannot be combined with storePath.",
        "Remove one of them, or set {option} to earliest, timestamp or JSON.",
        "STORE_GROUP",
    ),
    Condition(
        "BAD_OPTION.CONFLICT",
        "option stagingTopic cannot be combined with the same name as ledgerTopic or topic.",
        "Name different topics: staging, ledger and target must be different topics.",
        "SAME_TOPIC",
    ),
    Condition(
        "BAD_OPTION.CONFLICT",
        "option {option} cannot be combined with view={view}.",
        "Remove one of them: the view has {options}.",
        "VIEW",
    ),
    Condition("BAD_OPTION.REQUIRES", "option {option} is {value}, which requires {needed}.", "Add {example}."),
    Condition(
        "BAD_OPTION.NO_EFFECT",
        "option {option} has no effect without {needed}.",
        "Remove it, or add {needed}.",
    ),
    Condition(
        "BAD_OPTION.LESS",
        "option {option} is {value}, which is less than {other}, {limit}.",
        "Increase {option}, or decrease {other}.",
    ),
    Condition(
        "BAD_OPTION.GRACE_PERIOD",
        "option gracePeriod is {grace:g}s and requestTimeout is {request:g}s: a send that is pending for that long "
        "could be stored after another driver has read the topic back.",
        "Set gracePeriod to at least {least:g}s (twice requestTimeout), or decrease requestTimeout.",
    ),
    Condition(
        "BAD_OPTION.NOT_READ",
        "option {option} names {what}, which the query does not read.",
        "Add it to {choice} ({chosen}), or remove it.",
    ),
    Condition(
        "BAD_OPTION.NEWER_SPARK",
        "option {option} requires Spark {needed} or the option trigger: Spark {here} does not report the trigger, "
        "and its Trigger.AvailableNow and Trigger.Once end after one micro-batch, which a limit would cut short.",
        "If the query has no trigger or a processing time, set trigger=processingTime. With Trigger.AvailableNow or "
        "Trigger.Once, set trigger=availableNow: their micro-batch then reads all messages, without the limit.",
    ),
    Condition(
        "BAD_OPTION.TRIGGER",
        "option trigger is processingTime, but the query has Trigger.AvailableNow.",
        "Set trigger=availableNow: with a wrong trigger, Spark 4.0 and 4.1 would leave messages unread.",
    ),
    Condition("BAD_OPTION.READS_NOTHING", "a batch read with startingOffsets=latest reads nothing.", "Use {others}."),
    Condition(
        "BAD_OPTION.FUTURE_TIME",
        "option {option} is {time}, which is in the future (now: {now}); {query} cannot wait for it.",
        "Use a time in the past, start the query later, or use {instead}startingOffsets=latest for messages that "
        "are stored from now on.",
    ),
    Condition(
        "BAD_OPTION.NONE",
        'format("rocket") has no options.',
        "Specify what to read or where to write with .option(…). A table gets its options from CREATE TABLE … "
        "USING rocket OPTIONS (…) without a list of columns. A table that was created with a list of columns, AS "
        "SELECT or saveAsTable() has lost its options: recreate it without. For formats that require columns "
        "(bodyFormat json, csv, arrow), use CREATE TEMPORARY VIEW v (id bigint, …) USING rocket OPTIONS (…). "
        "toTable() is not supported.",
    ),
    Condition(
        "BAD_OPTION.SECRET_IN_TABLE",
        "option {option} would be stored with the table, where all its users can read it.",
        "Use credentialsFile, or ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY in the environment.",
    ),
    Condition(
        "BAD_OPTION.WHICH_TABLE",
        "the statement inserts all columns of one rocket table into another, and Spark does not report the target "
        "table.",
        "Name the columns: INSERT INTO t (body, tags) SELECT body, tags FROM ….",
    ),
    # --- columns: raised on the driver, before any task; rows: raised in tasks -----------------------------------
    Condition(
        "BAD_SCHEMA.DDL",
        "the schema {text!r} is invalid {where}: expected {wanted}.",
        "Write columns as in Spark SQL: id bigint, tags array<string>, price decimal(10,2).",
    ),
    *_cases(
        "BAD_SCHEMA.TYPE",
        "the column {column} is {kind}, which {format} does not support.",
        READ="Declare it as string, and convert it in the query.",
        WRITE="Cast it to a supported type such as string, or drop it.",
        EXPORT="Omit it with --columns, or choose another --format. --body-format text reads bodies as strings.",
    ),
    Condition(
        "BAD_ROW.TAGS",
        "row {row} of {where}: tags is {tags!r}, which no consumer can select: it is *, contains ||, or begins or ends "
        "with a blank.",
        "Remove these characters, as in trim(tags), or write the value as a property or key.",
    ),
    # --- positions: raised on the driver, while a batch is planned -----------------------------------------------
    Condition(
        "BAD_OFFSETS.NO_CHECKPOINT",
        "{directory} is not a checkpoint of a streaming query: it has no offsets.",
        "Use the checkpointLocation of the query, on a file system that is mounted on this machine.",
    ),
    Condition(
        "BAD_OFFSETS.CHECKPOINT_LOG",
        "{file} starts with {found}: only version v1 of Spark's offset log is supported.",
        "Use Spark 4.0 to 4.3, or use the offsets of the group.",
    ),
    Condition(
        "BAD_OFFSETS.NOT_OURS",
        'the query of {directory} does not read format("rocket").',
        "Use the checkpoint of a query that does.",
    ),
    Condition(
        "BAD_OFFSETS.NO_SUCH_QUEUE",
        "option {option} names {queue}, which does not exist.",
        "Existing queues: {queues}.",
    ),
    Condition(
        "BAD_OFFSETS.QUEUE_NOT_NAMED",
        "option {option} has no position for {queue}.",
        "Name every queue{how}; missing: {queues}.",
    ),
    Condition(
        "BAD_OFFSETS.AFTER_END",
        "option {option} is {offset} for {queue}, which is beyond its end {end}.",
        "Use -1 for the end of a queue.",
    ),
    Condition(
        "BAD_OFFSETS.NOTHING_SINCE",
        "option {option}: {queue} has no message that was stored at {time} or later.",
        "Use an earlier time, or set startingOffsetsByTimestampStrategy=latest to start at the end of the queue.",
    ),
    Condition(
        "BAD_OFFSETS.NOTHING_COMMITTED",
        "group {group} has no committed offset for {queue}.",
        "Check consumerGroup, or set groupOffsetsFallback to earliest, latest or timestamp.",
    ),
    Condition(
        "BAD_OFFSETS.END_BEFORE_START",
        "{queue} would be read from {start} to {end}: the end is before the start.",
        "Check startingOffsets and endingOffsets, or the timestamps.",
    ),
    Condition(
        "BAD_OFFSETS.NO_TOPIC_MATCHES",
        "option subscribePattern is {pattern!r}, which matches none of the {count} user topics.",
        "The complete name must match. Existing topics: {topics}.",
    ),
    Condition(
        "BAD_OFFSETS.NOT_READABLE",
        "topic {topic} has no readable queue on {brokers}.",
        "Set read permission and read queues there (perm 6, readQueueNums). To read only the queues on other "
        "brokers, name these in expectedBrokers.",
    ),
    Condition(
        "BAD_OFFSETS.CHECKPOINT_VERSION",
        "the checkpoint's offset has version {version}; this spark_rocket supports version {ours}.",
        "Use the spark_rocket that wrote it, or the checkpoint directory of this query.",
    ),
    Condition(
        "BAD_OFFSETS.CHECKPOINT_UNREADABLE",
        "invalid offset in the checkpoint: {problem}.",
        "Restore the checkpoint directory from a backup, or use a new one.",
    ),
    Condition(
        "BAD_OFFSETS.CHECKPOINT_INCOMPLETE",
        "the checkpoint has an end but no start for {queue}.",
        "Restore the checkpoint directory from a backup, or use a new one.",
    ),
    Condition(
        "BAD_OFFSETS.RUNS_BACKWARDS",
        "{queue}: the start {start} of a micro-batch is after its end {end}; nothing was read.",
        "The checkpoint belongs to another query, or the topic was deleted and recreated: use a new checkpoint "
        "directory.",
    ),
    # --- data loss: an error, or logged once (failOnDataLoss=false) ----------------------------------------------
    Condition(
        "DATA_LOSS.MESSAGES_DELETED",
        "{queue}: messages {first} to {last} were deleted before they were read; the earliest remaining message is "
        "{left}.",
        "{go_on}; to prevent this, increase the retention of the broker (fileReservedTime, fileReservedSize, disk "
        "space).",
    ),
    Condition(
        "DATA_LOSS.MESSAGES_MISSING",
        "{queue}: {count} of the messages {first} to {last} were deleted.",
        "{go_on}. Compacted topics have such gaps by design: read them with failOnDataLoss=false.",
    ),
    Condition(
        "DATA_LOSS.QUEUE_SHORTENED",
        "{queue}: expected offset {wanted}, but the queue ends at {end}: the topic was deleted and recreated, its "
        "broker lost messages {end} to {last}, or nameServer is another cluster's.",
        "{go_on}.",
    ),
    Condition(
        "DATA_LOSS.OFFSETS_WENT_BACK",
        "{queue}: its {which} decreased from {was} to {now}: the topic was deleted and recreated, or its broker "
        "lost messages. The stream is at {at}.",
        "{go_on}.",
    ),
    Condition(
        "DATA_LOSS.QUEUE_RECREATED",
        "{queue} was deleted and recreated, or nameServer is another cluster's: its first message was stored at {now}, "
        "but message {offset} of the previous queue was stored at {was}. The stream is at {at} and has not read the "
        "messages before.",
        "{go_on}.",
    ),
    Condition(
        "DATA_LOSS.MESSAGES_REPLACED",
        "{queue}: message {offset}, which the query has passed, was stored at {was}; the message now at this "
        "offset was stored at {now}. The broker lost its newest messages and has stored others since: a backup was "
        "restored, a slave with a lag was promoted, or nameServer is another cluster's.",
        "To continue at message {since}, the first one that was stored later, set failOnDataLoss=false. To start "
        "over, use a new checkpoint directory.",
    ),
    Condition(
        "DATA_LOSS.QUEUE_DELETED",
        "{queue} no longer exists on its broker; the query is at {at}.",
        "Restore the queue (readQueueNums), and read a queue to its end before you remove it. To continue without "
        "it, set failOnDataLoss=false.",
    ),
    Condition(
        "DATA_LOSS.BROKER_UNAVAILABLE",
        "broker {broker} is unavailable, or no longer has queues of {topic}; it is required: {why}.",
        "Start it; the query waits for retryTimeout. If the broker was removed permanently, name the remaining "
        "ones in expectedBrokers. To continue without it while it is unavailable, set failOnDataLoss=false.",
    ),
    Condition(
        "DATA_LOSS.TOPIC_DELETED",
        "topic {topic} does not exist, or none of its brokers is available; the query is at {at}.",
        "Start its brokers if they are down. To continue without the topic, set failOnDataLoss=false.",
    ),
    Condition(
        "DATA_LOSS.NOT_SELECTED",
        "{option}={value} does not select queues of the checkpoint: {at}.",
        "Use a new checkpoint directory to read other topics or queues. To read these again, name them in {option}. "
        "To continue without them, set failOnDataLoss=false once: the checkpoint keeps their positions, and topics "
        "that it does not have are read from their first message.",
    ),
    Condition(
        "DATA_LOSS.STAGED_BLOCK",
        "{queue}: the staged rows at offset {offset} are missing, and their micro-batch is decided but not "
        "completely published. No row was published twice.",
        "Restore the staging topic if it was deleted. Otherwise compare the target topics with the source for that "
        "micro-batch, then start over with a new checkpoint directory (or writeId). To prevent this, increase the "
        "retention of the brokers (fileReservedTime).",
    ),
    # --- deliveryGuarantee=exactlyOnce --------------------------------------------------------------------------
    Condition(
        "EXACTLY_ONCE.NO_TOPIC",
        "topic {topic} of the sink does not exist and could not be created: {problem}",
        "Create it: {commands}.",
    ),
    Condition(
        "EXACTLY_ONCE.CLUSTER_INCOMPLETE",
        "topics {topic} and {staging} of the sink do not exist in the available part of the cluster, and the rest may "
        "have them: {missing}.",
        "Start what is missing, or remove it from nameServer and the cluster. The sink creates its topics only when "
        "all name servers and all known brokers respond: a second ledger would decide micro-batches again.",
    ),
    Condition(
        "EXACTLY_ONCE.LEDGER_UNAVAILABLE",
        "the ledger topic {topic} has no route, but {evidence}: the broker of the ledger is unavailable.",
        "Start the broker. If it is permanently lost, compare the last micro-batch of each query with the target "
        "topics, then run: rocket offsets ledger -n {name_server} --ledger {topic} --replace BROKER. If this ledger "
        "topic never existed, create it on one broker: {commands}.",
    ),
    Condition(
        "EXACTLY_ONCE.LEDGER_ENTRY",
        "the entry {entry} of the name servers does not name the ledger: {problem}",
        "rocket offsets ledger -n {name_server} --ledger {topic} shows entries and queues. Find out who changed the "
        "entry, then set the correct one on all name servers: {commands}.",
    ),
    Condition(
        "EXACTLY_ONCE.LEDGER_ENTRY_REFUSED",
        "the name servers do not store the entry {entry}, which records the place of the ledger: {problem}",
        "Use the addresses of name servers, not of a proxy, in nameServer, or set the entry: {commands}.",
    ),
    Condition(
        "EXACTLY_ONCE.NO_ENTRIES",
        "nameServer {name_server} stores no entry {entry}, which records the place of the ledger: it is a proxy, or "
        "a managed instance ({problem}).",
        "Use the addresses of name servers. If you cannot, have the ledger topic and the staging topic created, and "
        "name a broker with the ledger topic in ledgerBroker: its queue ledgerQueue (0) becomes the ledger.",
    ),
    Condition(
        "EXACTLY_ONCE.LEDGER_PLACE",
        "{queue}, which ledgerTopic, ledgerBroker and ledgerQueue name, is not the ledger: {problem}.",
        "Set these options as they were before: a second ledger would decide micro-batches again. If no query has used "
        "the ledger yet, name a ledger topic and a staging topic ({staging}) that were never used, or delete and "
        "create both.",
    ),
    Condition(
        "EXACTLY_ONCE.LEDGER_REPLACED",
        "{queue} is not the ledger that the entry of the name servers names: {problem}.",
        "Restore the store of the broker. If it is permanently lost, compare the last micro-batch of each query with "
        "the target topics, then run: rocket offsets ledger -n {name_server} --ledger {topic} --replace BROKER.",
    ),
    Condition(
        "EXACTLY_ONCE.LEDGER_QUEUES",
        "the ledger topic {topic} has {count} queues ({where}) and must have one: records of several queues have no "
        "order.",
        "rocket offsets ledger --ledger {topic} shows which queue is the ledger. Delete the others: keep only queue 0 "
        "on that broker.",
    ),
    Condition(
        "EXACTLY_ONCE.FOREIGN_MESSAGE",
        "{queue}: message {offset} ({msg_id}) is not a record of an exactly-once sink.",
        "Find and stop the sender of this message. After the last micro-batch is published, use another "
        "ledgerTopic and a new checkpoint directory for this query.",
    ),
    Condition(
        "EXACTLY_ONCE.LEDGER_VERSION",
        "{queue}: record {offset} has version {version}; this spark_rocket supports version {ours}.",
        "Use the spark_rocket that wrote it, or a newer one.",
    ),
    Condition(
        "EXACTLY_ONCE.LEDGER_EXPIRED",
        "batch {batch} of {query} was decided, but its record in the ledger topic {topic} has expired: whether the "
        "batch is published is unknown.",
        "Compare the target topics with the source for that batch, then start over with a new checkpoint "
        "directory. To prevent this, increase the retention on the broker of the ledger (fileReservedTime).",
    ),
    Condition(
        "EXACTLY_ONCE.WRITE_ID",
        "writeId {write_id!r} was used at {time} for {before}; this write has {now}.",
        "If this is another write, use another writeId: in foreachBatch, the query's id and the batch id, or a name of "
        "the run that changes with the checkpoint. If it repeats that write, it is published: do not repeat it.",
    ),
    Condition(
        "EXACTLY_ONCE.OVERTAKEN",
        "batch {batch} of {query} was overtaken by {by}: another driver uses this checkpoint, or a copy of it.",
        "Run one driver for each checkpoint. This driver stopped publishing.",
    ),
    Condition(
        "EXACTLY_ONCE.NOT_DURABLE",
        "broker {broker} stored messages but did not confirm that they are flushed or replicated: {problem}.",
        "Check its disk and its slave, then restart the query: it resumes.",
    ),
    Condition(
        "EXACTLY_ONCE.TARGET_GONE",
        "{queue} no longer exists, and the rows that were decided for it are not completely published: {problem}",
        "Restore the queues of the topic (writeQueueNums, readQueueNums), then restart the query.",
    ),
    Condition(
        "EXACTLY_ONCE.TARGET_REFUSES",
        "{queue} rejects rows that were decided for it: {problem}",
        "Increase the limit of the broker in the message (maxMessageSize, timerMaxDelaySec), then restart the "
        "query.",
    ),
    Condition(
        "EXACTLY_ONCE.BATCH_QUEUES",
        "topic {topic} on broker {broker} has queue.type=BatchCQ: it stores a batch as one record, so stored rows "
        "cannot be counted.",
        "Write to a topic with queue.type=SimpleCQ, or use deliveryGuarantee=atLeastOnce.",
    ),
    Condition(
        "EXACTLY_ONCE.READ_BACK_GONE",
        "{queue} ended at {recorded} when the micro-batch was decided, and now has the offsets {start} to {end}: "
        "its published rows cannot be counted.",
        "Compare the target topics with the source for that micro-batch, then start over with a new checkpoint "
        "directory (or writeId).",
    ),
    Condition(
        "EXACTLY_ONCE.READ_BACK_GAP",
        "{queue}: {count} of the messages {first} to {last} cannot be read: the published rows of the micro-batch "
        "cannot be counted.",
        "Compare the target topics with the source for that micro-batch, then start over with a new checkpoint "
        "directory (or writeId).",
    ),
    Condition(
        "EXACTLY_ONCE.OUT_OF_ORDER",
        "{queue} has the row {found} of the micro-batch, but not all rows of the block that begins with {missing} "
        "and was stored before it: the broker lost messages that it had acknowledged.",
        "Set flushDiskType=SYNC_FLUSH or brokerRole=SYNC_MASTER. Compare the target topics with the source for "
        "that micro-batch, then start over with a new checkpoint directory (or writeId).",
    ),
    Condition(
        "EXACTLY_ONCE.DUPLICATES",
        "{count} rows of batch {batch} are stored twice in {where}: a request of a failed publisher was stored "
        "after gracePeriod.",
        "Increase gracePeriod. Readers can omit the duplicates by msgId (dedupeWindow).",
    ),
)  # fmt: skip

BY_CASE = {(condition.name, condition.case): condition for condition in CONDITIONS}

FORMER_NAMES = {
    "BAD_OPTION.CONFLICT": "BAD_OPTION.TOGETHER",
    "BAD_OPTION.FUTURE_TIME": "BAD_OPTION.TO_COME",
    "BAD_OPTION.REQUIRES": "BAD_OPTION.ALONE",
    "DATA_LOSS.BROKER_UNAVAILABLE": "DATA_LOSS.BROKER_AWAY",
    "DATA_LOSS.QUEUE_RECREATED": "DATA_LOSS.QUEUE_MADE_ANEW",
    "EXACTLY_ONCE.LEDGER_UNAVAILABLE": "EXACTLY_ONCE.LEDGER_AWAY",
}
"""Former names of conditions, which are accepted until version 0.2."""


def error(name: str, case: str = "", **values: object) -> DataSourceError:
    """Create the error of a condition, or of one of its cases."""
    condition = BY_CASE[name, case]
    kind = _CLASSES[name.partition(".")[0]]
    code = RenamedCode(name, FORMER_NAMES[name]) if name in FORMER_NAMES else name
    return kind(condition.text.format(**values), remedy=condition.remedy.format(**values), code=code)
