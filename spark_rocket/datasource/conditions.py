"""The error conditions of ``format("rocket")``: name, message and remedy of each.

``docs/reference/conditions.md`` lists them, so that a name in a log leads to a line of that page; a test compares both.
The part before the dot is the code of the error class, which is used alone where no condition is more specific.
``{…}`` are placeholders that the raising code fills in. The message names the option, queue or topic; the remedy
specifies what to change.

Pure. Corresponds to the error conditions of Spark's Kafka source (kafka-error-conditions.json).
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_rocket.errors import DataLossError, DataSourceError, ExactlyOnceError, OffsetsError, OptionError

_CLASSES: dict[str, type[DataSourceError]] = {
    error.code: error for error in (OptionError, OffsetsError, DataLossError, ExactlyOnceError)
}


@dataclass(frozen=True)
class Condition:
    """An error condition. ``text`` and ``remedy`` are templates for ``str.format``."""

    name: str
    text: str
    remedy: str


CONDITIONS: tuple[Condition, ...] = (
    # --- options: raised on the driver, before any task ----------------------------------------------------------
    Condition("BAD_OPTION.UNKNOWN", 'format("rocket") has no option {option}.', "{hint}"),
    Condition("BAD_OPTION.SCOPE", "option {option} is for {belongs}, not for {wanted}.", "Leave it out.{hint}"),
    Condition(
        "BAD_OPTION.COLUMN",
        "option {option} is a column of the rows that are written.",
        'Use .withColumn("{option}", {example}).',
    ),
    Condition("BAD_OPTION.VALUE", "option {option} is {value}.", "It should be {wanted}."),
    Condition("BAD_OPTION.JSON", "option {option} is not {what} JSON: {problem}.", "Write it as {example}."),
    Condition("BAD_OPTION.MISSING", "option {option} is missing.", "{hint}"),
    Condition("BAD_OPTION.TOGETHER", "option {option} is given together with {other}.", "Leave one of them out{hint}."),
    Condition("BAD_OPTION.ALONE", "option {option} is {value}, and no {needed} is given.", "Add {example}."),
    Condition("BAD_OPTION.NO_EFFECT", "option {option} is given without {needed}.", "Leave it out, or add {needed}."),
    Condition("BAD_OPTION.LESS", "option {option} is {value}, and {other} is {limit}.", "Make {option} the larger."),
    Condition(
        "BAD_OPTION.GRACE_PERIOD",
        "option gracePeriod is {grace:g}s and requestTimeout is {request:g}s: a send that is pending for so long could "
        "be stored after another driver has read the topic back.",
        "Set gracePeriod to at least {least:g}s (twice requestTimeout), or lower requestTimeout.",
    ),
    Condition(
        "BAD_OPTION.NOT_READ",
        "option {option} names {what}, which is not subscribed to.",
        "The option {choice} is {chosen}.",
    ),
    Condition(
        "BAD_OPTION.READS_NOTHING",
        "option startingOffsets is 'latest', and a batch read from there would read nothing.",
        "Use {others}.",
    ),
    Condition(
        "BAD_OPTION.TO_COME",
        "option {option} is {time}, which is still to come (it is {now}), and {query} cannot wait for it.",
        "Choose a time that has passed, start the query then, or use {instead}startingOffsets=latest for what is "
        "stored from now on.",
    ),
    Condition(
        "BAD_OPTION.NONE",
        'format("rocket") was given no options.',
        "Say what to read or where to write with .option(…). A table has them from CREATE TABLE … USING rocket "
        "OPTIONS (…) without a list of columns; one made with such a list, AS SELECT or by saveAsTable() has lost its "
        "options: make it again without. For bodies that need columns (bodyFormat json, csv, arrow) use CREATE "
        "TEMPORARY VIEW v (id bigint, …) USING rocket OPTIONS (…). "
        "toTable() cannot write to one.",
    ),
    Condition(
        "BAD_OPTION.SECRET_IN_TABLE",
        "option {option} would be kept with the table, where everybody who sees the table can read it.",
        "Use credentialsFile, or ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY in the environment.",
    ),
    Condition(
        "BAD_OPTION.WHICH_TABLE",
        "all columns of one rocket table are inserted into another as they are, and Spark does not tell into which.",
        "Name the columns: INSERT INTO t (body, tags) SELECT body, tags FROM ….",
    ),
    # --- positions: raised on the driver, while a batch is planned -----------------------------------------------
    Condition(
        "BAD_OFFSETS.NO_CHECKPOINT",
        "{directory} is no checkpoint of a streaming query: it has no offsets.",
        "Name the directory that the query has as checkpointLocation, on a file system that is mounted here.",
    ),
    Condition(
        "BAD_OFFSETS.CHECKPOINT_LOG",
        "{file} begins with {found}, and only version v1 of Spark's offset log is understood.",
        "Use a Spark of 4.2 or 4.3, or ask the group's offsets instead.",
    ),
    Condition(
        "BAD_OFFSETS.NOT_OURS",
        "the query of {directory} reads nothing with format(\"rocket\").",
        "Name the checkpoint of a query that does.",
    ),
    Condition(
        "BAD_OFFSETS.NO_SUCH_QUEUE",
        "option {option} names {queue}, and there is no such queue.",
        "The queues are {queues}.",
    ),
    Condition(
        "BAD_OFFSETS.QUEUE_NOT_NAMED",
        "option {option} does not say where {queue} begins or ends.",
        "Name every queue{how}; missing are {queues}.",
    ),
    Condition(
        "BAD_OFFSETS.AFTER_END",
        "option {option} is {offset} for {queue}, and the queue ends at {end}.",
        "Use -1 for the end of a queue.",
    ),
    Condition(
        "BAD_OFFSETS.NOTHING_SINCE",
        "option {option}: no message of {queue} was stored at {time} or later.",
        "Choose an earlier time, or set startingOffsetsByTimestampStrategy=latest to begin at the queue's end.",
    ),
    Condition(
        "BAD_OFFSETS.NOTHING_COMMITTED",
        "group {group} has committed nothing for {queue}.",
        "Check consumerGroup, or say with groupOffsetsFallback where such queues begin: earliest, latest or timestamp.",
    ),
    Condition(
        "BAD_OFFSETS.END_BEFORE_START",
        "{queue} would be read from {start} to {end}: the end is before the start.",
        "Check startingOffsets and endingOffsets (or the time stamps).",
    ),
    Condition(
        "BAD_OFFSETS.NO_TOPIC_MATCHES",
        "option subscribePattern is {pattern!r}, and none of the {count} topics of users has such a name.",
        "The whole name must match. Topics there are: {topics}.",
    ),
    Condition(
        "BAD_OFFSETS.NOT_READABLE",
        "topic {topic} has no queue that may be read on {brokers}.",
        "Give it read permission and queues to read there (perm 6, readQueueNums). To read what other brokers have of "
        "it, name them with expectedBrokers.",
    ),
    Condition(
        "BAD_OFFSETS.CHECKPOINT_VERSION",
        "the checkpoint's offset is of version {version}, and this spark_rocket reads version {ours}.",
        "Use the spark_rocket that wrote it, or a checkpoint directory that belongs to this query.",
    ),
    Condition(
        "BAD_OFFSETS.CHECKPOINT_UNREADABLE",
        "the checkpoint's offset cannot be read: {problem}.",
        "Restore the checkpoint directory from a copy, or start with a new one.",
    ),
    Condition(
        "BAD_OFFSETS.CHECKPOINT_INCOMPLETE",
        "the checkpoint says where {queue} ends but not where it begins.",
        "Restore the checkpoint directory from a copy, or start with a new one.",
    ),
    Condition(
        "BAD_OFFSETS.RUNS_BACKWARDS",
        "{queue}: a batch would run backwards from {start} to {end}; nothing was read.",
        "The checkpoint is not this query's, or the topic was deleted and created again: start with a new checkpoint "
        "directory.",
    ),
    # --- data loss: an error, or logged once (failOnDataLoss=false) ----------------------------------------------
    Condition(
        "DATA_LOSS.MESSAGES_DELETED",
        "{queue}: messages {first} to {last} were deleted before they were read; the next one left is {left}.",
        "{go_on}; to prevent it, let the broker keep messages longer (fileReservedTime, fileReservedSize, more disk).",
    ),
    Condition(
        "DATA_LOSS.MESSAGES_MISSING",
        "{queue}: {count} of the messages {first} to {last} were deleted.",
        "{go_on}. Compacted topics have such gaps by design: read them with failOnDataLoss=false.",
    ),
    Condition(
        "DATA_LOSS.QUEUE_SHORTENED",
        "{queue}: offset {wanted} was expected, but the queue now ends at {end}: the topic was deleted and created "
        "again, or its broker lost messages {end} to {last}.",
        "{go_on}.",
    ),
    Condition(
        "DATA_LOSS.OFFSETS_WENT_BACK",
        "{queue}: its {which} was {was} and is now {now}: the topic was deleted and created again, or its broker lost "
        "messages. The stream is at {at}.",
        "{go_on}.",
    ),
    Condition(
        "DATA_LOSS.QUEUE_MADE_ANEW",
        "{queue} was deleted and created again: its first message was stored at {now}, while message {offset} of the "
        "queue that was read had been stored at {was}. The stream is at {at}, and has not read what is before that.",
        "{go_on}.",
    ),
    Condition(
        "DATA_LOSS.MESSAGES_REPLACED",
        "{queue}: message {offset}, which the query has passed, was stored at {was}; the message in its place now was "
        "stored at {now}. The broker lost its newest messages and has stored others since: a copy was restored, or a "
        "slave that lagged behind took its master's place.",
        "To go on from message {since}, the first one that was stored later, set failOnDataLoss=false. To begin anew, "
        "use a new checkpoint directory.",
    ),
    Condition(
        "DATA_LOSS.QUEUE_DELETED",
        "{queue} is no longer one of the topic's queues on its broker, and the query was at {at}.",
        "Give the topic its queues back (readQueueNums) and read them to the end before taking them away. To go on "
        "without it, set failOnDataLoss=false.",
    ),
    Condition(
        "DATA_LOSS.BROKER_AWAY",
        "broker {broker} is away, or no longer has queues of {topic}; it is needed, for {why}.",
        "Start it; the option retryTimeout says how long it is waited for. If it is gone for good, name the brokers "
        "that are left with expectedBrokers. To go on without it as long as it is away, set failOnDataLoss=false.",
    ),
    Condition(
        "DATA_LOSS.TOPIC_DELETED",
        "topic {topic} no longer exists, or none of its brokers is there; the query had come to {at}.",
        "Start its brokers if they are down. To go on without it, leave it out of what is read, or set "
        "failOnDataLoss=false.",
    ),
    Condition(
        "DATA_LOSS.STAGED_BLOCK",
        "{queue}: the staged rows at offset {offset} are gone, and their micro-batch is decided but not wholly "
        "published. Nothing was published twice.",
        "Restore the staging topic if it was deleted. Else begin anew with a new checkpoint directory (or writeId) and "
        "compare the target topics with the source for that micro-batch. To prevent it, let brokers keep messages "
        "longer (fileReservedTime).",
    ),
    # --- deliveryGuarantee=exactlyOnce --------------------------------------------------------------------------
    Condition(
        "EXACTLY_ONCE.NO_TOPIC",
        "the sink's topic {topic} does not exist and could not be created: {problem}",
        "Create it: {commands}.",
    ),
    Condition(
        "EXACTLY_ONCE.LEDGER_AWAY",
        "the ledger topic {topic} has no route, but {staging} has one: the ledger's broker is away.",
        "Start it. If this ledger topic never existed, create it on one broker: {commands}.",
    ),
    Condition(
        "EXACTLY_ONCE.LEDGER_QUEUES",
        "the ledger topic {topic} has {count} queues, and one is needed: records of several queues have no order.",
        "Name another ledgerTopic for new queries. For one that has written to it, keep only queue 0 on the broker "
        "that has its records.",
    ),
    Condition(
        "EXACTLY_ONCE.FOREIGN_MESSAGE",
        "{queue}: message {offset} ({msg_id}) is not a record of an exactly-once sink.",
        "Find out what sends to the ledger topic and stop it. Then give this query another ledgerTopic and a new "
        "checkpoint directory, once its last micro-batch is published.",
    ),
    Condition(
        "EXACTLY_ONCE.LEDGER_VERSION",
        "{queue}: record {offset} is of version {version}, and this spark_rocket reads version {ours}.",
        "Use the spark_rocket that wrote it, or a newer one.",
    ),
    Condition(
        "EXACTLY_ONCE.LEDGER_EXPIRED",
        "batch {batch} of {query} was decided before, and the ledger topic {topic} has no record of it any more: it "
        "cannot be told whether the batch is published.",
        "Compare the target topics with the source for that batch, then begin anew with a new checkpoint directory. To "
        "prevent it, let the ledger's broker keep messages longer (fileReservedTime).",
    ),
    Condition(
        "EXACTLY_ONCE.OVERTAKEN",
        "batch {batch} of {query} was overtaken by {by}: another driver uses this checkpoint, or a copy of it.",
        "Run one driver for each checkpoint. This driver stopped publishing.",
    ),
    Condition(
        "EXACTLY_ONCE.NOT_DURABLE",
        "broker {broker} has stored messages, and does not confirm that they are flushed or replicated: {problem}.",
        "Check its disk and its slave, then start the query again: it goes on where it is.",
    ),
    Condition(
        "EXACTLY_ONCE.TARGET_GONE",
        "{queue} does not exist any more, and rows that were decided for it are not all published: {problem}",
        "Give the topic its queues back (writeQueueNums, readQueueNums), then start the query again.",
    ),
    Condition(
        "EXACTLY_ONCE.TARGET_REFUSES",
        "{queue} does not take rows that were decided for it: {problem}",
        "Raise the broker's limit that it names (maxMessageSize, timerMaxDelaySec), then start the query again.",
    ),
    Condition(
        "EXACTLY_ONCE.BATCH_QUEUES",
        "topic {topic} on broker {broker} has queue.type=BatchCQ: it stores a batch as one record, so stored rows "
        "cannot be counted.",
        "Write to a topic with queue.type=SimpleCQ, or use deliveryGuarantee=atLeastOnce.",
    ),
    Condition(
        "EXACTLY_ONCE.READ_BACK_GONE",
        "{queue} ended at {recorded} when the micro-batch was decided, and now has the offsets {start} to {end}: its "
        "published rows cannot be counted.",
        "Compare the target topics with the source for that micro-batch, then begin anew with a new checkpoint "
        "directory (or writeId).",
    ),
    Condition(
        "EXACTLY_ONCE.READ_BACK_GAP",
        "{queue}: {count} of the messages {first} to {last} cannot be read: the published rows of the micro-batch "
        "cannot be counted.",
        "Compare the target topics with the source for that micro-batch, then begin anew with a new checkpoint "
        "directory (or writeId).",
    ),
    Condition(
        "EXACTLY_ONCE.OUT_OF_ORDER",
        "{queue} has the row {found} of the micro-batch, but not all rows of the block that begins with {missing} and "
        "was stored before it: the broker lost messages that it had acknowledged.",
        "Set flushDiskType=SYNC_FLUSH or brokerRole=SYNC_MASTER. Compare the target topics with the source for that "
        "micro-batch, then begin anew with a new checkpoint directory (or writeId).",
    ),
    Condition(
        "EXACTLY_ONCE.DUPLICATES",
        "{count} rows of batch {batch} are stored twice in {where}: a request of a publisher that died was stored "
        "after gracePeriod.",
        "Raise gracePeriod. Readers can leave the duplicates out by msgId (dedupeWindow).",
    ),
)  # fmt: skip

_BY_NAME = {condition.name: condition for condition in CONDITIONS}


def error(name: str, **values: object) -> DataSourceError:
    """Create the error of a condition."""
    condition = _BY_NAME[name]
    kind = _CLASSES[name.partition(".")[0]]
    return kind(condition.text.format(**values), remedy=condition.remedy.format(**values), code=name)
