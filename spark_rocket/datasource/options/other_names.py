"""Options that people bring along from elsewhere, or mistype: what each is called here, if there is anything like it.

``docs/guides/from-kafka.md`` has the same names in its tables. Pure. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from spark_rocket.datasource.options.table import OPTIONS, WRITES, Scope

FROM_ELSEWHERE: Mapping[str, str] = {
    "kafka.bootstrap.servers": "nameServer",
    "bootstrap.servers": "nameServer",
    "namesrvaddr": "nameServer",
    "group.id": "consumerGroup",
    "kafka.group.id": "consumerGroup",
    "groupidprefix": "consumerGroup",
    "auto.offset.reset": "startingOffsets",
    "kafka.auto.offset.reset": "startingOffsets",
    "fetchoffset.numretries": "retryTimeout",
    "fetchoffset.retryintervalms": "retryTimeout",
    "kafkaconsumer.polltimeoutms": "requestTimeout",
    "kafka.request.timeout.ms": "requestTimeout",
    "kafka.max.partition.fetch.bytes": "pullBatchBytes",
    "kafka.max.poll.records": "pullBatchSize",
    "kafka.security.protocol": "tls",
    "kafka.ssl.truststore.location": "tlsCaFile",
    "kafka.ssl.keystore.location": "tlsCertFile",
    "kafka.batch.size": "sendBatchBytes",
    "kafka.compression.type": "compression",
    "kafka.max.request.size": "maxMessageSize",
    "kafka.delivery.timeout.ms": "retryTimeout",
    "topics": "subscribe",
    "topicspattern": "subscribePattern",
    "maxrowspertrigger": "maxOffsetsPerTrigger",
    "topicpattern": "subscribePattern",
    "startingoffsetsfallback": "groupOffsetsFallback",
    "sep": "csvDelimiter",
    "delimiter": "csvDelimiter",
    "mode": "badRecords",
}
_STORED = "There is none: a row is written when its broker has stored it."
NOT_NEEDED: Mapping[str, str] = {
    "header": "A body is no file: it has no line of names, and csv goes by the schema.",
    "includeheaders": "A message's headers are the column properties, which is there without an option.",
    "acks": _STORED,
    "kafka.acks": _STORED,
    "kafka.linger.ms": "A task sends what Spark hands it at once: there is nothing to linger for.",
    "kafka.isolation.level": "A message of a transaction that is open or rolled back cannot be read.",
    "filterpushdown": "Spark 4.1 to 4.3 apply the filters of one query to others on the same data frame, view or "
    "table, too. To read less, use lookupKeys, lookupMsgIds, tags, assign, or the starting and ending options.",
    "kafka.enable.auto.commit": "With consumerGroup a stream commits what its batches have done.",
}

COLUMNS_TO_WRITE: Mapping[str, tuple[str, str]] = {
    name.lower(): (name, example)
    for name, example in (
        ("body", "to_json(…)"),
        ("tags", 'lit("paid")'),
        ("keys", 'col("id").cast("string")'),
        ("properties", 'create_map(lit("price"), …)'),
        ("shardingKey", 'col("customer")'),
        ("queueId", "lit(0)"),
        ("delayLevel", "lit(3)"),
        ("deliverAt", 'expr("current_timestamp() + INTERVAL 1 MINUTE")'),
    )
}
"""What is no option of a write but a column of its rows, with a value of one."""


def remedy_for(key: str, scopes: Collection[Scope]) -> str:
    """What to do about an option that does not exist, where options of ``scopes`` belong."""
    here = [option.name for option in OPTIONS if option.scopes & frozenset(scopes)]
    if key == "path":  # load("orders"), save("orders"), CREATE TABLE … LOCATION
        option = "topic" if {*scopes} <= WRITES else "subscribe"
        remedy = f'Topics have no path: name the topic with .option("{option}", …) and nothing in load() or save().'
        if option == "subscribe":
            remedy += ' The directory of a stopped broker is read with .option("storePath", …).'
        return remedy
    if key in NOT_NEEDED:
        return NOT_NEEDED[key]
    if FROM_ELSEWHERE.get(key) in here:
        return f"Did you mean {FROM_ELSEWHERE[key]}?"
    if key.startswith(("kafka.", "spark.kafka.")):
        return "Leave it out: there is no Kafka client underneath. See docs/guides/from-kafka.md."
    close = difflib.get_close_matches(key, [option.lower() for option in here], n=1, cutoff=0.5)
    nearest = next((option for option in here if close and option.lower() == close[0]), None)
    return f"Did you mean {nearest}?" if nearest else f"The options here are {', '.join(here)}."
