"""The options of ``format("rocket")``: name, type, scope, parser, default and meaning of each.

``make tables`` writes them into ``docs/reference/options.md`` and ``options.zh.md``. Links are relative to these pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from string import ascii_uppercase

from spark_rocket.client.core.client_config import DEFAULT_NAME_SERVER, MAX_MESSAGE_SIZE
from spark_rocket.common.values import FrozenValue
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
_SNAKE_CASE = str.maketrans({letter: f"_{letter.lower()}" for letter in ascii_uppercase})


@dataclass(frozen=True, eq=False, repr=False)
class Excludes(FrozenValue):
    """An option that cannot be combined with this one."""

    other: str
    """``name`` or ``name=value``."""
    case: str = ""
    """The case of ``BAD_OPTION.CONFLICT`` with the reason."""
    value: str = ""
    """The only value of this option that excludes the other one; empty: every value."""


@dataclass(frozen=True, eq=False, repr=False)
class Option(FrozenValue):
    """One documented option."""

    name: str
    scopes: frozenset[Scope]
    type: str
    """The documented type; a test checks the limits of numbers against ``parse``."""
    parse: Parser
    default: str | None
    meaning: str
    chinese: str
    """The meaning in Chinese."""
    needs: tuple[str, ...] = ()
    """Options that this one requires, as ``name``, ``name=value`` or ``name=value|value``."""
    excludes: tuple[Excludes, ...] = ()
    has_field: bool = True
    """Whether the parsed options have a field with its value. Otherwise a field is computed from several options."""
    has_names: bool = False
    """Whether it names topics or groups, which have the namespace on the wire."""

    @cached_property
    def field(self) -> str:
        """The name of its field."""
        name = self.name.translate(_SNAKE_CASE)
        return f"{name}_ms" if self.type.startswith("duration") else name


#: Of options that apply to brokers, and not to files.
_NO_FILES = Excludes("storePath", "BROKERS_ONLY")


_CONNECTION = (
    Option("nameServer", READS | WRITES | VIEWS, "addresses", name_servers, None,
           "Name servers as `host:port`, separated by `;`, or the URL of an address server. Default: the environment "
           f"variable `NAMESRV_ADDR` of the driver, then `{DEFAULT_NAME_SERVER}`.",
           "NameServer，写作 `host:port`，以 `;` 分隔，或者地址服务器的 URL。默认：Driver 的环境变量 `NAMESRV_ADDR`，"
           "其次 `127.0.0.1:9876`。",
           excludes=(_NO_FILES,), has_field=False),
    Option("namespace", READS | WRITES | VIEWS, "string", namespace_name, None,
           "The ID of a managed instance, which names of topics and groups have on the wire. Default: the driver's "
           "environment variable `ROCKETMQ_NAMESPACE`, then the ID in a name server like "
           "`http://MQ_INST_1_a.example.com:80`. An empty text: none. See "
           "[namespaces](../guides/connect.md#namespaces).",
           "托管实例的 ID，即主题和消费组的名称在协议中的前缀。默认：Driver 的环境变量 `ROCKETMQ_NAMESPACE`，其次是 "
           "`http://MQ_INST_1_a.example.com:80` 这样的 NameServer 地址中的 ID。空字符串：无。参见[命名空间"
           "](../guides/connect.zh.md#命名空间实例-id)。",
           has_field=False),
    Option("namespaceV2", READS | WRITES | VIEWS, "string", namespace_name, None,
           "A namespace that requests have in the fields `ns` and `nsd` instead, as with Java's client 5.x.",
           "另一种命名空间：请求在字段 `ns` 和 `nsd` 中带上它，与 Java 客户端 5.x 相同。",
           excludes=(_NO_FILES,), has_field=False),
    Option("accessKey", READS | WRITES | VIEWS, "string", key_text, None,
           "The access key for signed requests. Default: the driver's environment variables `ROCKETMQ_ACCESS_KEY` "
           "and `ROCKETMQ_SECRET_KEY`. See [credentials](../guides/connect.md#credentials).",
           "给请求签名的 Access Key。默认：Driver 的环境变量 `ROCKETMQ_ACCESS_KEY` 和 `ROCKETMQ_SECRET_KEY`。参见[账"
           "号](../guides/connect.zh.md#账号)。",
           needs=("secretKey",), excludes=(Excludes("credentialsFile"), _NO_FILES), has_field=False),
    Option("secretKey", READS | WRITES | VIEWS, "string", key_text, None,
           "The secret key of `accessKey`.",
           "`accessKey` 的密钥。",
           needs=("accessKey",), excludes=(Excludes("credentialsFile"), _NO_FILES), has_field=False),
    Option("securityToken", READS | WRITES | VIEWS, "string", key_text, None,
           "The token of temporary credentials.",
           "临时凭证的令牌。",
           needs=("accessKey",), excludes=(Excludes("credentialsFile"), _NO_FILES), has_field=False),
    Option("credentialsFile", READS | WRITES | VIEWS, "path", credentials_file, None,
           "A file on the driver with `accessKey: …` and `secretKey: …`, instead of the three options above.",
           "Driver 上含有 `accessKey: …` 和 `secretKey: …` 的文件，代替以上三个选项。",
           excludes=(_NO_FILES,), has_field=False),
    Option("tls", READS | WRITES | VIEWS, "boolean", boolean, None,
           "Use TLS for connections to name servers and brokers. Default: the driver's environment variable "
           "`ROCKETMQ_TLS_ENABLE`, then `false`. See [TLS](../guides/connect.md#tls).",
           "与 NameServer 和 Broker 的连接使用 TLS。默认：Driver 的环境变量 `ROCKETMQ_TLS_ENABLE`，其次 `false`。参见"
           " [TLS](../guides/connect.zh.md#tls)。",
           excludes=(_NO_FILES,), has_field=False),
    Option("tlsCaFile", READS | WRITES | VIEWS, "path", pem_file, None,
           "A PEM file with the trusted CAs. Default: the CAs of the system.",
           "含有受信任 CA 的 PEM 文件。默认：系统的 CA。",
           needs=("tls=true",), excludes=(_NO_FILES,), has_field=False),
    Option("tlsCertFile", READS | WRITES | VIEWS, "path", pem_file, None,
           "A PEM file with the client certificate, for servers that request one.",
           "含有客户端证书的 PEM 文件，用于要求证书的服务器。",
           needs=("tls=true", "tlsKeyFile"), excludes=(_NO_FILES,), has_field=False),
    Option("tlsKeyFile", READS | WRITES | VIEWS, "path", pem_file, None,
           "A PEM file with the private key of `tlsCertFile`.",
           "含有 `tlsCertFile` 的私钥的 PEM 文件。",
           needs=("tls=true", "tlsCertFile"), excludes=(_NO_FILES,), has_field=False),
    Option("tlsVerify", READS | WRITES | VIEWS, "`full`, `ca`, `none`", one_of(Verify), None,
           "How server certificates are verified: CA and host name (`full`, the default), CA only (`ca`), or not at "
           "all (`none`).",
           "如何验证服务器的证书：CA 和主机名（`full`，默认）、只验证 CA（`ca`）或不验证（`none`）。",
           needs=("tls=true",), excludes=(_NO_FILES,), has_field=False),
    Option("addressMap", READS | WRITES | VIEWS, "address map", address_map, None,
           "Reachable addresses of brokers that advertise others, as `ADVERTISED=REACHABLE`, separated by commas: "
           "`172.17.0.3:10911=127.0.0.1:10911,broker-b:*=10.0.0.2:*`. Default: the driver's environment variable "
           "`ROCKETMQ_ADDRESS_MAP`. See [addresses](../guides/connect.md#map-addresses-that-spark-cannot-reach).",
           "如果 Broker 公布的地址无法访问，改用这里的地址，写作 `ADVERTISED=REACHABLE`，以逗号分隔："
           "`172.17.0.3:10911=127.0.0.1:10911,broker-b:*=10.0.0.2:*`。默认：Driver 的环境变量 `ROCKETMQ_ADDRESS_MAP`"
           "。参见[地址](../guides/connect.zh.md#映射-spark-无法访问的地址)。",
           excludes=(_NO_FILES,), has_field=False),
    Option("requestTimeout", READS | WRITES | VIEWS, "duration 100ms–10m", duration(100, 600_000), "10s",
           "The timeout of one request.",
           "一个请求的超时时间。",
           excludes=(_NO_FILES,)),
    Option("retryTimeout", READS | WRITES, "duration 0ms–1d", duration(0, 86_400_000), "1m",
           "The retry deadline: failed requests are retried for this long, then the query fails.",
           "重试的期限：失败的请求在这段时间内重试，之后查询失败。",
           excludes=(_NO_FILES,)),
)  # fmt: skip

_WHAT_TO_READ = (
    Option("subscribe", READS | VIEWS, "list", topic_names, None,
           "The topics to read, separated by commas. A read requires one of `subscribe`, `subscribePattern`, "
           "`assign` and `storePath`; `storePath` can be combined with `subscribe`.",
           "要读取的主题，以逗号分隔。读取需要 `subscribe`、`subscribePattern`、`assign` 和 `storePath` 中的一个；"
           "`storePath` 可以与 `subscribe` 同时使用。",
           has_field=False, has_names=True),
    Option("subscribePattern", READS, "regular expression", topic_pattern, None,
           "The topics to read. The expression must match the complete topic name. See "
           "[topics](../guides/read.md#choose-topics).",
           "要读取的主题。表达式必须匹配完整的主题名。参见[主题](../guides/read.zh.md#选择主题)。",
           excludes=(Excludes("subscribe", "SELECTIONS"), _NO_FILES), has_field=False),
    Option("assign", READS, "JSON", assigned_queues, None,
           'The queues to read: `{"orders": {"broker-a": [0, 1]}}`.',
           '要读取的队列：`{"orders": {"broker-a": [0, 1]}}`。',
           excludes=(Excludes("subscribe", "SELECTIONS"), Excludes("subscribePattern", "SELECTIONS"), _NO_FILES),
           has_field=False, has_names=True),
    Option("expectedBrokers", READS, "list", broker_names, None,
           "The brokers that must be available, by name, separated by commas. Default: the brokers in the stream's "
           "checkpoint or in a topic's ORDER_TOPIC_CONFIG. See [unavailable "
           "brokers](../guides/read.md#handle-unavailable-brokers).",
           "必须可用的 Broker 的名称，以逗号分隔。默认：流的 Checkpoint 或主题的 ORDER_TOPIC_CONFIG 中的 Broker。参见"
           "[不可用的 Broker](../guides/read.zh.md#处理不可用的-broker)。",
           excludes=(Excludes("assign", "ASSIGNED_BROKERS"), _NO_FILES)),
    Option("waitForTopic", frozenset({Scope.READ_STREAM}), "boolean", boolean, "false",
           "`true`: wait for missing topics and queues, then read them from their first message. `false`: a missing "
           "topic or queue is an error at the start.",
           "`true`：等待不存在的主题和队列，然后从第一条消息开始读取。`false`：启动时主题或队列不存在就报错。",
           excludes=(Excludes("startingOffsets=JSON", "WAIT_FOR_TOPIC", "true"),
                     Excludes("startingOffsetsByTimestamp", "WAIT_FOR_TOPIC", "true"))),
    Option("storePath", frozenset({Scope.READ}), "path", directory, None,
           "Read the files of a stopped broker: its store directory, or the data directory of `rocket up`. See "
           "[store directories](../guides/sql.md#read-a-store-directory).",
           "读取已停止的 Broker 的文件：它的存储目录，或 `rocket up` 的数据目录。参见[存储目录"
           "](../guides/sql.md#read-a-store-directory)（英文）。"),
    Option("brokerName", frozenset({Scope.READ}), "string", some_text, None,
           "The broker name in the column `brokerName` and in JSON offsets. Default: the name in the store's "
           "configuration or topic list, then `broker-a`.",
           "列 `brokerName` 和 JSON 位点中的 Broker 名称。默认：存储的配置或主题列表中的名称，其次 `broker-a`。",
           needs=("storePath",)),
)  # fmt: skip

_START_AND_END = (
    Option("startingOffsets", READS, "`earliest`, `latest`, `group`, `timestamp`, JSON",
           positions(Start.EARLIEST, Start.LATEST, Start.GROUP, Start.TIMESTAMP, Start.OFFSETS), None,
           "The start of a new query. `group`: the offsets that `consumerGroup` has committed. `timestamp`: see the "
           "next two options. Default: `latest` for streams, `earliest` for batch reads. A restarted stream "
           "continues from its checkpoint.",
           "新查询的起点。`group`：`consumerGroup` 提交的位点。`timestamp`：见后面两个选项。默认：流为 `latest`，批量"
           "读取为 `earliest`。重启的流从 Checkpoint 继续。",
           excludes=(Excludes("storePath", "STORE_GROUP", "group"),), has_field=False, has_names=True),
    Option("startingTimestamp", READS, "time", timestamp, None,
           "The first store time to read. Sets `startingOffsets=timestamp`.",
           "从这个存储时间开始读取。相当于设置 `startingOffsets=timestamp`。",
           has_field=False),
    Option("startingOffsetsByTimestamp", READS, "JSON", timestamps, None,
           'The first store time of each queue: `{"orders": {"broker-a": {"0": 1769860800000, "1": "-2h"}}}`. Sets '
           "`startingOffsets=timestamp`.",
           '每个队列从哪个存储时间开始读取：`{"orders": {"broker-a": {"0": 1769860800000, "1": "-2h"}}}`。相当于设置 '
           "`startingOffsets=timestamp`。",
           excludes=(Excludes("startingTimestamp"), _NO_FILES), has_field=False, has_names=True),
    Option("startingOffsetsByTimestampStrategy", READS, "`latest`, `error`", one_of(Strategy), "latest",
           "For queues without a message at or after the start time: start at the end of the queue (`latest`), or "
           "fail (`error`).",
           "对于在开始时间之后没有消息的队列：从队列末尾开始（`latest`），或者失败（`error`）。",
           excludes=(_NO_FILES,), has_field=False),
    Option("groupOffsetsFallback", READS, "`earliest`, `latest`, `timestamp`, `error`", one_of(Fallback), "earliest",
           "The start of queues without a committed offset. `timestamp` uses `startingTimestamp`.",
           "没有已提交位点的队列的起点。`timestamp` 使用 `startingTimestamp`。",
           needs=("startingOffsets=group",), excludes=(_NO_FILES,), has_field=False),
    Option("endingOffsets", frozenset({Scope.READ}), "`latest`, `group`, `timestamp`, JSON",
           positions(Start.LATEST, Start.GROUP, Start.TIMESTAMP, Start.OFFSETS), "latest",
           "The end of a batch read (exclusive). `group`: the offsets that `consumerGroup` has committed. "
           "`timestamp`: see the next two options.",
           "批量读取的终点（不包含）。`group`：`consumerGroup` 提交的位点。`timestamp`：见后面两个选项。",
           excludes=(Excludes("storePath", "STORE_GROUP", "group"),), has_field=False, has_names=True),
    Option("endingTimestamp", frozenset({Scope.READ}), "time", timestamp, None,
           "The first store time not to read. Sets `endingOffsets=timestamp`.",
           "从这个存储时间起不再读取。相当于设置 `endingOffsets=timestamp`。",
           has_field=False),
    Option("endingOffsetsByTimestamp", frozenset({Scope.READ}), "JSON", timestamps, None,
           "The first store time of each queue not to read, as JSON. Sets `endingOffsets=timestamp`.",
           "每个队列从哪个存储时间起不再读取，写作 JSON。相当于设置 `endingOffsets=timestamp`。",
           excludes=(Excludes("endingTimestamp"), _NO_FILES), has_field=False, has_names=True),
)  # fmt: skip

_LIMITS_AND_PARTITIONS = (
    Option("maxOffsetsPerTrigger", frozenset({Scope.READ_STREAM}), "integer ≥ 1", number(1), None,
           "The maximum number of messages in a micro-batch, divided among the queues in proportion to their lag. "
           "Spark 4.0 and 4.1 also need `trigger`.",
           "一个微批最多包含的消息数，按各队列的堆积比例分配。Spark 4.0 和 4.1 还需要 `trigger`。"),
    Option("maxBytesPerTrigger", frozenset({Scope.READ_STREAM}), "size ≥ 1", size(1), None,
           "The maximum size of the stored messages in a micro-batch. See "
           "[accuracy](#accuracy-of-maxbytespertrigger). Spark 4.0 and 4.1 also need `trigger`.",
           "一个微批中已存储消息的最大大小。参见[精度](#maxbytespertrigger-的精度)。Spark 4.0 和 4.1 还需要 `trigger`"
           "。"),
    Option("trigger", frozenset({Scope.READ_STREAM}), "`processingTime`, `availableNow`", one_of(Trigger), None,
           "The trigger of the query, which Spark 4.0 and 4.1 do not report. There, `maxOffsetsPerTrigger` and "
           "`maxBytesPerTrigger` require it. See [limits before Spark 4.2](#limits-before-spark-42).",
           "查询的触发器，Spark 4.0 和 4.1 不告知它。在这两个版本上，`maxOffsetsPerTrigger` 和 `maxBytesPerTrigger` "
           "需要它。参见 [Spark 4.2 之前的限制](#spark-42-之前的限制)。"),
    Option("minOffsetsPerTrigger", frozenset({Scope.READ_STREAM}), "integer ≥ 1", number(1), None,
           "Delay a micro-batch until this many messages are available or `maxTriggerDelay` has passed.",
           "推迟微批，直到有这么多消息可读，或者经过了 `maxTriggerDelay`。"),
    Option("maxTriggerDelay", frozenset({Scope.READ_STREAM}), "duration 1ms–30d", duration(1, 30 * 86_400_000), "15m",
           "The maximum delay caused by `minOffsetsPerTrigger`.",
           "`minOffsetsPerTrigger` 造成的最长推迟。",
           needs=("minOffsetsPerTrigger",)),
    Option("minPartitions", READS, "integer 1–100000", number(1, 100_000), None,
           "The minimum number of Spark partitions. Large ranges are split.",
           "Spark 分区的最小数量。较大的区间被拆分。"),
    Option("maxRecordsPerPartition", READS, "integer ≥ 1", number(1), None,
           "The maximum number of messages in a Spark partition.",
           "一个 Spark 分区的最大消息数。",
           excludes=(_NO_FILES,)),
    Option("combineSmallRanges", READS, "boolean", boolean, "true",
           "Read small ranges of several queues in one Spark partition, one after the other. `false`: each queue has "
           "its own partitions. See [partitions](#partitions).",
           "在一个 Spark 分区中依次读取多个队列的小区间。`false`：每个队列有自己的分区。参见[分区](#分区)。",
           excludes=(_NO_FILES,)),
)  # fmt: skip

_FILTERS_LOOK_UPS_AND_DUPLICATES = (
    Option("tags", READS, "tag expression", tag_expression, "*",
           "Read only messages with one of these tags. Separate tags as RocketMQ does, with two bars. See "
           "[filters](../guides/read.md#filter-at-the-broker).",
           "只读取带有这些 Tag 之一的消息。与 RocketMQ 一样，用两条竖线分隔 Tag。参见[过滤"
           "](../guides/read.zh.md#在-broker-端过滤)。"),
    Option("sqlFilter", READS, "SQL92 expression", sql_expression, None,
           "Read only messages whose properties match. Requires `enablePropertyFilter=true` on the brokers. "
           "Excludes `tags`. See [filters](../guides/read.md#filter-at-the-broker).",
           "只读取属性匹配的消息。Broker 需要 `enablePropertyFilter=true`。不能与 `tags` 同时使用。参见[过滤"
           "](../guides/read.zh.md#在-broker-端过滤)。",
           excludes=(Excludes("tags", "FILTERS"), _NO_FILES)),
    Option("lookupKeys", frozenset({Scope.READ}), "list", key_list, None,
           "Read only messages with one of these keys, separated by commas or as a JSON list. Uses the index of the "
           "brokers. See [look-ups](../guides/read.md#look-up-messages-by-key).",
           "只读取带有这些 Key 之一的消息，以逗号分隔或写作 JSON 列表。使用 Broker 的索引。参见[查找"
           "](../guides/read.zh.md#按-key-查找消息)。",
           excludes=(Excludes("lookupMsgIds"), _NO_FILES), has_field=False),
    Option("lookupMsgIds", frozenset({Scope.READ}), "list", key_list, None,
           "Read only messages with one of these values of `msgId`. Excludes `lookupKeys`.",
           "只读取 `msgId` 为这些值之一的消息。不能与 `lookupKeys` 同时使用。",
           excludes=(_NO_FILES,), has_field=False),
    Option("dedupeWindow", READS, "integer 1–10000000", number(1, 10_000_000), None,
           "Omit a message if one of this many preceding offsets of its queue has the same `msgId` and contents. "
           "See [duplicates](../guides/read.md#remove-duplicates).",
           "如果同一队列前面这么多个位点中有 `msgId` 和内容都相同的消息，就省略这条消息。参见[重复消息"
           "](../guides/read.zh.md#去除重复消息)。",
           excludes=(Excludes("lookupKeys", "LOOKUP"), Excludes("lookupMsgIds", "LOOKUP"), _NO_FILES)),
)  # fmt: skip

_FAILURES_AND_PROGRESS = (
    Option("failOnDataLoss", READS, "boolean", boolean, "true",
           "`true`: the query fails if messages were deleted before they were read, or if a broker is "
           "[unavailable](../guides/read.md#handle-unavailable-brokers). `false`: it logs this once and continues. "
           "See [data loss](../guides/exactly-once.md#handle-data-loss).",
           "`true`：如果消息在读取之前被删除，或者 Broker [不可用](../guides/read.zh.md#处理不可用的-broker)，查"
           "询失败。`false`：记录一次日志并继续。参见[数据丢失](../guides/exactly-once.zh.md#处理数据丢失)。"),
    Option("consumerGroup", READS | VIEWS, "string", group_name, None,
           "Streams commit their progress to this group on the brokers, for monitoring. Batch reads commit nothing. "
           "Pulls and queries name it, for accounts; without it they name `spark_rocket_reader`. "
           "Required by `startingOffsets=group` and `endingOffsets=group`.",
           "流把进度提交到 Broker 上的这个消费组，用于监控。批量读取不提交。拉取和查询请求以它的名义发送，用于账号权"
           "限；未设置时使用 `spark_rocket_reader`。`startingOffsets=group` 和 `endingOffsets=group` 需要它。",
           excludes=(_NO_FILES,), has_names=True),
)  # fmt: skip

_FETCHING = (
    Option("pullBatchSize", READS, "integer 1–1000000", number(1, 1_000_000), "32768",
           "The maximum number of messages per pull request. Brokers may return fewer; Apache brokers return at "
           "most 32.",
           "每个拉取请求的最大消息数。Broker 可以返回更少；Apache 的 Broker 最多返回 32 条。",
           excludes=(_NO_FILES,)),
    Option("pullBatchBytes", READS, "size 1k–12m", size(1024, 12 * 1024 * 1024), "4m",
           "The maximum number of bytes per pull request.",
           "每个拉取请求的最大字节数。",
           excludes=(_NO_FILES,)),
    Option("maxPullsInFlight", READS, "integer 1–256", number(1, 256), "32",
           "The maximum number of pull requests in flight per task, for brokers that return little per pull. "
           "Together they request at most `pullBatchBytes`. One per queue with `tags` or `sqlFilter`.",
           "每个任务同时进行的拉取请求的最大数量，用于每次返回很少的 Broker。它们合计最多请求 `pullBatchBytes`。使用 "
           "`tags` 或 `sqlFilter` 时每个队列一个。",
           excludes=(_NO_FILES,)),
    Option("arrowBatchRows", READS, "integer 1–1000000", number(1, 1_000_000), "32768",
           "The number of rows at which an Arrow batch is passed to Spark. Small pulls are combined.",
           "一个 Arrow 批次达到这么多行时交给 Spark。较小的拉取结果被合并。"),
    Option("arrowBatchBytes", READS, "size 1k–256m", size(1024, 256 * 1024 * 1024), "4m",
           "The number of bytes at which an Arrow batch is passed to Spark.",
           "一个 Arrow 批次达到这么多字节时交给 Spark。"),
)  # fmt: skip

_WRITING = (
    Option("topic", WRITES, "string", writable_topic, None,
           "The target topic. Overrides the column `topic`.",
           "目标主题。优先于列 `topic`。",
           has_names=True),
    Option("producerGroup", WRITES | VIEWS, "string", group_name, "spark_rocket_writer",
           "The producer group in send requests; for the view `producers`, the group to list.",
           "发送请求中的生产者组；对于视图 `producers`，是要列出的组。",
           has_names=True),
    Option("writeId", frozenset({Scope.WRITE}), "string", some_text, None,
           "The name of a batch write. Rows that are written again under the same name get the same `msgId`. In "
           "`foreachBatch`, include a name that changes with the checkpoint. See [name a batch "
           "write](../guides/exactly-once.md#name-a-batch-write). Default: a random name.",
           "批量写入的名称。以同一名称再次写入的行得到相同的 `msgId`。在 `foreachBatch` 中，名称要包含随 Checkpoint "
           "变化的部分。参见[给批量写入命名](../guides/exactly-once.zh.md#给批量写入命名)。默认：随机的名称。"),
    Option("maxMessageSize", WRITES, "size 1k–12m", size(1024, 12 * 1024 * 1024), "4m",
           "The maximum body size. Use the value of the brokers' setting `maxMessageSize`.",
           "消息体的最大大小。使用 Broker 的设置 `maxMessageSize` 的值。"),
    Option("sendBatchSize", WRITES, "integer 1–100000", number(1, 100_000), "10000",
           "The maximum number of messages per send request.",
           "每个发送请求的最大消息数。"),
    Option("sendBatchBytes", WRITES, "size 1k–4m", size(1024, MAX_MESSAGE_SIZE), "2m",
           "The target size of a send request, at most `maxMessageSize`.",
           "一个发送请求的目标大小，最大为 `maxMessageSize`。"),
    Option("maxRequestsInFlight", WRITES, "integer 1–1024", number(1, 1024), "4",
           "The maximum number of send requests in flight per task.",
           "每个任务同时进行的发送请求的最大数量。"),
    Option("maxDelayedInFlight", WRITES, "integer 1–8192", number(1, 8192), "256",
           "The maximum number of delayed rows in flight per task. Each delayed row is a separate request.",
           "每个任务同时发送的延时行的最大数量。每个延时行是一个单独的请求。"),
    Option("compression", WRITES, "`none`, `zlib`, `lz4`, `zstd`", one_of(Compression), "none",
           "The compression of bodies. All RocketMQ clients read `zlib`; clients of 5.x read the others, too. See "
           "[compression](../guides/write.md#compress-bodies).",
           "消息体的压缩方式。所有 RocketMQ 客户端都能读取 `zlib`；5.x 的客户端也能读取其他方式。参见[压缩"
           "](../guides/write.zh.md#压缩消息体)。",
           has_field=False),
    Option("compressAbove", WRITES, "size 0k–12m", size(0, 12 * 1024 * 1024), "4k",
           "The minimum size of compressed bodies. Requires `compression`.",
           "被压缩的消息体的最小大小。需要 `compression`。",
           needs=("compression",)),
)  # fmt: skip

_WRITING_EXACTLY_ONCE = (
    Option("deliveryGuarantee", WRITES, "`atLeastOnce`, `exactlyOnce`", one_of(Guarantee), "atLeastOnce",
           "`exactlyOnce`: each row of a committed micro-batch is stored exactly once. Batch writes require "
           "`writeId`. See [the exactly-once sink](../guides/exactly-once.md#write-exactly-once).",
           "`exactlyOnce`：已提交的微批中的每一行恰好存储一次。批量写入需要 `writeId`。参见[精确一次的 "
           "Sink](../guides/exactly-once.zh.md#精确一次写入)。",
           has_field=False),
    Option("stagingTopic", WRITES, "string", writable_topic, "ROCKET_SINK_STAGING",
           "The topic for rows of undecided micro-batches. Sinks can share it.",
           "存放尚未决定的微批的行的主题。多个 Sink 可以共用。",
           needs=("deliveryGuarantee=exactlyOnce",), has_names=True),
    Option("ledgerTopic", WRITES, "string", writable_topic, "ROCKET_SINK_LEDGER",
           "The topic with one queue that records the decisions. Sinks can share it. Do not change it for an "
           "existing query.",
           "只有一个队列的主题，记录各个决定。多个 Sink 可以共用。已有的查询不要改变它。",
           needs=("deliveryGuarantee=exactlyOnce",), has_names=True),
    Option("ledgerGroup", WRITES, "string", group_name, "ROCKET_SINK_LEDGER",
           "The group that the sink's requests name. Its offsets remember the last micro-batch of each query. "
           "Sinks can share it. Do not change it for an existing query.",
           "Sink 的请求使用的消费组。它的位点记住每个查询最后的微批。多个 Sink 可以共用。已有的查询不要改变它。",
           needs=("deliveryGuarantee=exactlyOnce",), has_names=True),
    Option("ledgerBroker", WRITES, "string", some_text, None,
           "The broker of the ledger, where the sink cannot store its place at the name servers: behind a proxy, or on "
           "a managed instance. See [give the place of the ledger](../guides/exactly-once.md#give-the-place-of-the-"
           "ledger). Do not change it for an existing query.",
           "账本所在的 Broker，用于 Sink 不能把账本的位置存放在 NameServer 上的情况：在 Proxy 之后，或在托管实例上。"
           "参见[指定账本的位置](../guides/exactly-once.zh.md#指定账本的位置)。已有的查询不要改变它。",
           needs=("deliveryGuarantee=exactlyOnce",)),
    Option("ledgerQueue", WRITES, "integer 0–65535", number(0, 65_535), "0",
           "The queue of `ledgerTopic` on `ledgerBroker` that is the ledger. Do not change it for an existing query.",
           "`ledgerBroker` 上 `ledgerTopic` 中作为账本的队列。已有的查询不要改变它。",
           needs=("ledgerBroker",)),
    Option("gracePeriod", WRITES, "duration 1s–10m", duration(1000, 600_000), "20s",
           "How long requests of a failed driver can still be pending, at least twice `requestTimeout`. After a crash "
           "or a lost response, the sink waits this long before it reads back what is stored.",
           "失败的 Driver 的请求还可能在途多长时间，至少是 `requestTimeout` 的两倍。崩溃或丢失响应之后，Sink 等待这么"
           "长时间，再读回已存储的内容。",
           needs=("deliveryGuarantee=exactlyOnce",)),
    Option("stagingRetention", WRITES, "duration 1m–365d", duration(60_000, 365 * 86_400_000), "72h",
           "The longest expected time between a crash and the restart. The driver logs a warning for brokers with a "
           "shorter `fileReservedTime`.",
           "从崩溃到重启预期的最长时间。如果 Broker 的 `fileReservedTime` 更短，Driver 记录警告。",
           needs=("deliveryGuarantee=exactlyOnce",)),
)  # fmt: skip

_TYPED_ROWS = (
    Option("bodyFormat", READS | WRITES, "`json`, `csv`, `avro`, `protobuf`, `arrow`, `text`, `variant`",
           one_of(BodyFormat), None,
           "The format of bodies, for [typed rows](../guides/typed-rows.md).",
           "消息体的格式，用于[类型化的行](../guides/typed-rows.zh.md)。",
           has_field=False),
    Option("metadataColumns", READS, "list", metadata_columns, None,
           "The message columns in typed rows: `queueOffset, storeTimestamp as stored_at`, or `*` for all.",
           "类型化的行中的消息列：`queueOffset, storeTimestamp as stored_at`，或以 `*` 表示全部。",
           needs=("bodyFormat",), has_field=False),
    Option("timeZone", READS, "time zone", time_zone, None,
           "The time zone of times without one in bodies, with `bodyFormat=json` or `csv`: `Asia/Shanghai`, `+08:00`. "
           "Default: the session's time zone, as in `from_json`; without Spark, UTC.",
           "消息体中没有时区的时间所在的时区，用于 `bodyFormat=json` 或 `csv`：`Asia/Shanghai`、`+08:00`。默认：会话"
           "的时区，与 `from_json` 相同；没有 Spark 时为 UTC。",
           needs=("bodyFormat=json|csv",), has_field=False),
    Option("jsonQuotedValues", READS, "boolean", boolean, "false",
           "`true`: read numbers and booleans in quotation marks as what their column is: "
           '`"7"`, `"true"`, and `"1"` and `"0"` as booleans. See [change data](../guides/typed-rows.md#change-data).',
           '`true`：把引号中的数和布尔值按列的类型读取：`"7"`、`"true"`，以及作为布尔值的 `"1"` 和 `"0"`。参见[变更数'
           "据](../guides/typed-rows.zh.md#变更数据)。",
           needs=("bodyFormat=json",), has_field=False),
    Option("jsonEpochUnits", READS, "list", epoch_units, None,
           "What numbers in columns of type date and timestamp count since 1970: `s`, `ms`, `us`, `ns`, and `days` for "
           "dates; for all columns or for a column: `ms, days, paid_at=us`. See "
           "[numbers as times](../guides/typed-rows.md#numbers-as-times).",
           "类型为 date 和 timestamp 的列中的数，从 1970 年起以什么单位计数：`s`、`ms`、`us`、`ns`，日期还可以用 "
           "`days`；可以对所有列或某一列设置：`ms, days, paid_at=us`。参见[表示时间的数](../guides/typed-rows.zh.md#"
           "表示时间的数)。",
           needs=("bodyFormat=json",), has_field=False),
    Option("badRecords", READS, "`fail`, `null`, `column`, `drop`, `deadLetter`", one_of(BadRecords),
           BodySettings.bad_records.value,
           "The handling of [records that cannot be decoded](../guides/typed-rows.md#handle-invalid-records).",
           "如何处理[无法解码的记录](../guides/typed-rows.zh.md#处理无效记录)。",
           needs=("bodyFormat",), has_field=False),
    Option("badRecordColumn", READS, "string", some_text, BodySettings.bad_record_column,
           "The column for invalid bodies, with `badRecords=column`.",
           "存放无效消息体的列，用于 `badRecords=column`。",
           needs=("bodyFormat",), has_field=False),
    Option("deadLetterTopic", READS, "string", writable_topic, None,
           "The topic for messages with invalid bodies, with `badRecords=deadLetter`.",
           "存放消息体无效的消息的主题，用于 `badRecords=deadLetter`。",
           needs=("bodyFormat",),
           excludes=(Excludes("storePath", "STORE_DEAD_LETTERS"),), has_field=False, has_names=True),
    Option("avroSchema", READS | WRITES, "JSON or path", avro_schema, None,
           "The Avro schema, as JSON or as the path of a file on the driver.",
           "Avro schema，写作 JSON，或 Driver 上文件的路径。",
           needs=("bodyFormat=avro",), has_field=False),
    Option("avroEncoding", READS | WRITES, "`auto`, `raw`, `single`, `confluent`", one_of(AvroEncoding),
           BodySettings.avro_encoding.value,
           "`raw`: raw datums. `single`: single objects with a header. `auto`: reads both, writes single objects. "
           "`confluent`: reads datums with the header of a schema registry.",
           "`raw`：原始数据。`single`：带头部的单对象。`auto`：两种都能读取，写入单对象。`confluent`：读取带有 "
           "schema 注册中心头部的数据。",
           needs=("bodyFormat=avro",), has_field=False),
    Option("protobufDescriptor", READS | WRITES, "path", descriptor_file, None,
           "A FileDescriptorSet on the driver.",
           "Driver 上的 FileDescriptorSet。",
           needs=("bodyFormat=protobuf",), has_field=False),
    Option("protobufMessage", READS | WRITES, "string", some_text, None,
           "The full name of the message type.",
           "消息类型的全名。",
           needs=("bodyFormat=protobuf",), has_field=False),
    Option("csvDelimiter", READS | WRITES, "character", delimiter, BodySettings.csv_delimiter,
           "The ASCII character between two values, or `tab`.",
           "两个值之间的 ASCII 字符，或 `tab`。",
           needs=("bodyFormat=csv",), has_field=False),
    Option("csvEscape", READS | WRITES, "character", escape_character, BodySettings.csv_escape,
           "The ASCII character before a quotation mark, and before itself, in quoted values, as in `from_csv`. "
           '`"` reads and writes doubled quotation marks (RFC 4180).',
           '加引号的值中，引号和它自身之前的 ASCII 字符，与 `from_csv` 相同。`"` 读写成对的引号（RFC 4180）。',
           needs=("bodyFormat=csv",), has_field=False),
    Option("arrowRowsPerMessage", WRITES, "integer 1–1000000", number(1, 1_000_000),
           str(BodySettings.arrow_rows),
           "The maximum number of rows per message.",
           "每条消息的最大行数。",
           needs=("bodyFormat=arrow",), has_field=False),
)  # fmt: skip

_VIEWS = (
    Option("view", VIEWS, "name", view_name, None,
           "Read the state of a cluster instead of messages: `cluster`, `brokers`, `topics`, `queues`, `groups`, "
           "`lag`, `consumers`, `producers`, `messages` or `dlq`. See [views](columns.md#views).",
           "读取集群的状态而不是消息：`cluster`、`brokers`、`topics`、`queues`、`groups`、`lag`、`consumers`、"
           "`producers`、`messages` 或 `dlq`。参见[视图](columns.md#views)（英文）。",
           has_field=False),
    Option("key", VIEWS, "string", some_text, None,
           "The key to look up in the view `messages`.",
           "在视图 `messages` 中查找的 Key。",
           excludes=(Excludes("msgId"),)),
    Option("msgId", VIEWS, "string", some_text, None,
           "The message ID to look up in the view `messages`.",
           "在视图 `messages` 中查找的消息 ID。"),
)  # fmt: skip

SECTIONS: dict[str, tuple[Option, ...]] = {
    "Connection": _CONNECTION,
    "What to read": _WHAT_TO_READ,
    "Start and end": _START_AND_END,
    "Limits and partitions": _LIMITS_AND_PARTITIONS,
    "Filters, look-ups and duplicates": _FILTERS_LOOK_UPS_AND_DUPLICATES,
    "Failures and progress": _FAILURES_AND_PROGRESS,
    "Fetching": _FETCHING,
    "Writing": _WRITING,
    "Writing exactly once": _WRITING_EXACTLY_ONCE,
    "Typed rows": _TYPED_ROWS,
    "Views": _VIEWS,
}
"""The options, by the sections of their reference page."""

OPTIONS: tuple[Option, ...] = tuple(option for section in SECTIONS.values() for option in section)
