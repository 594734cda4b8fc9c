"""The errors of unknown options: the name used here for options of other connectors, and the nearest name for typos.

``docs/guides/from-kafka.md`` lists the same names. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.table import OPTIONS, WRITES, Scope

FOREIGN_NAMES: Mapping[str, str] = {
    "kafka.bootstrap.servers": "nameServer",
    "bootstrap.servers": "nameServer",
    "namesrvAddr": "nameServer",
    "group.id": "consumerGroup",
    "kafka.group.id": "consumerGroup",
    "groupIdPrefix": "consumerGroup",
    "auto.offset.reset": "startingOffsets",
    "kafka.auto.offset.reset": "startingOffsets",
    "fetchOffset.numRetries": "retryTimeout",
    "fetchOffset.retryIntervalMs": "retryTimeout",
    "kafkaConsumer.pollTimeoutMs": "requestTimeout",
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
    "topicsPattern": "subscribePattern",
    "maxRowsPerTrigger": "maxOffsetsPerTrigger",
    "topicPattern": "subscribePattern",
    "startingOffsetsFallback": "groupOffsetsFallback",
    "sep": "csvDelimiter",
    "delimiter": "csvDelimiter",
    "escape": "csvEscape",
    "mode": "badRecords",
}
_STORED = (
    "There is no such option: a row counts as written when its broker has stored it.",
    "没有这个选项：Broker 存储了一行之后，这一行才算写入。",
)
NOT_NEEDED: Mapping[str, tuple[str, str]] = {
    "header": (
        "Each body is one row without a header line; csv uses the schema.",
        "每个消息体是一行，没有标题行；csv 使用 Schema。",
    ),
    "includeHeaders": (
        "Message headers are in the column properties, which needs no option.",
        "消息的属性在列 properties 中，不需要选项。",
    ),
    "acks": _STORED,
    "kafka.acks": _STORED,
    "kafka.linger.ms": (
        "A task sends the rows of each Spark batch at once, without a delay.",
        "任务立即发送 Spark 的每一批行，没有延迟。",
    ),
    "kafka.isolation.level": (
        "Messages of open or rolled back transactions are never read.",
        "从不读取未提交或已回滚的事务的消息。",
    ),
    "filterPushdown": (
        "Spark 4.1 to 4.3 would apply the filters of one query to others on the same data frame, view or table. To "
        "read less, use lookupKeys, lookupMsgIds, tags, assign, or the starting and ending options.",
        "Spark 4.1 到 4.3 会把一个查询的过滤条件用于同一个 DataFrame、视图或表的其他查询。要少读数据，使用 "
        "lookupKeys、lookupMsgIds、tags、assign，或者起点和终点的选项。",
    ),
    "select": (
        'Spark does not pass the columns of select() to Python sources. Use .schema("body binary") before load. It '
        "reads only these columns, and is two to three times as fast.",
        'Spark 不把 select() 的列告知 Python 数据源。在 load 之前使用 .schema("body binary")：只读这些列，快两到三倍。',
    ),
    "kafka.enable.auto.commit": (
        "With consumerGroup, a stream commits the offsets of its finished batches.",
        "设置 consumerGroup 之后，流提交已完成的微批的位点。",
    ),
}
"""Options of these connectors that are not needed here, with the reason in English and in Chinese."""

# Spark passes option names in lower case.
_BY_FOREIGN_NAME = {name.lower(): option for name, option in FOREIGN_NAMES.items()}
_NOT_NEEDED = {name.lower(): english for name, (english, _) in NOT_NEEDED.items()}

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
"""Names that are columns of written rows and not options, each with an example value."""


def unknown_option(key: str, scopes: frozenset[Scope]) -> Exception:
    """Return the error of an unknown option of an operation with ``scopes``."""
    here = {option.name.lower(): option.name for option in OPTIONS if option.scopes & scopes}
    if key == "path":  # load("orders"), save("orders"), CREATE TABLE … LOCATION
        return error("BAD_OPTION.UNKNOWN", case="PATH_TO_WRITE" if scopes <= WRITES else "PATH_TO_READ", option=key)
    if key in _NOT_NEEDED:
        return error("BAD_OPTION.UNKNOWN", case="NOT_NEEDED", option=key, reason=_NOT_NEEDED[key])
    if _BY_FOREIGN_NAME.get(key) in here.values():
        return error("BAD_OPTION.UNKNOWN", case="SIMILAR", option=key, nearest=_BY_FOREIGN_NAME[key])
    if key.startswith(("kafka.", "spark.kafka.")):
        return error("BAD_OPTION.UNKNOWN", case="KAFKA_CLIENT", option=key)
    if close := difflib.get_close_matches(key, here, n=1, cutoff=0.5):
        return error("BAD_OPTION.UNKNOWN", case="SIMILAR", option=key, nearest=here[close[0]])
    return error("BAD_OPTION.UNKNOWN", option=key, options=", ".join(here.values()))
