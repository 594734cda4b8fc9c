"""The options of ``format("rocket")``, parsed once into typed values.

Spark hands option names over in lower case, so they are looked up without case; errors always print the documented
spelling. An option that does not exist, or does not belong to what is being done (a write option on a read), is an
error that names the nearest known one: a typing mistake must never be silently ignored.

``OPTIONS`` (option_table.py) is the one list of them. Parsing happens on the driver; the parsed
values travel to the executors, so that an environment variable there cannot change what the driver decided. Pure but
for the environment's name servers and credentials. Corresponds to nothing in RocketMQ; to KafkaSourceProvider in Spark.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from spark_rocket.datasource.bodies.settings import (
    BodySettings,
    body_settings,
)
from spark_rocket.datasource.options.checks import (
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
from spark_rocket.datasource.options.conditions import error
from spark_rocket.datasource.options.credentials import credentials_of
from spark_rocket.datasource.options.other_names import COLUMNS_TO_WRITE, remedy_for
from spark_rocket.datasource.options.parsers import (
    Compression,
    Position,
    Start,
    matching,
    name_servers,
)
from spark_rocket.datasource.options.table import DEFAULT_NAME_SERVER, OPTIONS, READS, WRITES, Scope
from spark_rocket.datasource.options.tls import OPTIONS as TLS_OPTIONS
from spark_rocket.datasource.options.tls import tls_of
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.auth import Credentials
from spark_rocket.remoting.tls.settings import TlsSettings

T = TypeVar("T")


@dataclass(frozen=True)
class LookUp:
    """The messages to look up: those with one of ``values`` among their keys, or as their id."""

    option: str
    column: str
    """``keys`` or ``msgId``."""
    values: tuple[str, ...]


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
    look_up: LookUp | None = None
    """Messages with one of these keys or ids only."""
    topic_pattern: str | None = None
    assigned: tuple[MessageQueue, ...] | None = None
    expected_brokers: tuple[str, ...] | None = None
    """The brokers that must be there; None is those that the checkpoint and ORDER_TOPIC_CONFIG know."""
    wait_for_topic: bool = False
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    dedupe_window: int | None = None
    body: BodySettings | None = None
    """What bodies are, for typed rows."""
    credentials: Credentials | None = None
    tls: TlsSettings | None = None

    def reads(self, queue: MessageQueue) -> bool:
        """Whether a queue belongs to what is read."""
        if self.assigned is not None:
            return queue in self.assigned
        if self.topic_pattern is not None:
            return bool(matching(self.topic_pattern, [queue.topic]))
        return queue.topic in self.topics


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
    credentials: Credentials | None = None
    tls: TlsSettings | None = None


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
    credentials: Credentials | None = None
    tls: TlsSettings | None = None


_BY_KEY = {option.name.lower(): option for option in OPTIONS}
_NOT_WITH_A_STORE = (
    "nameServer",
    "accessKey",
    "secretKey",
    "securityToken",
    "credentialsFile",
    *TLS_OPTIONS,
    "subscribePattern",
    "assign",
    "expectedBrokers",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsetsByTimestamp",
    "groupOffsetsFallback",
    "lookupKeys",
    "lookupMsgIds",
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
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})


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
    look_up = _look_up_of(values)
    if dedupe_window is not None and look_up is not None:
        hint = ": a look-up does not read the messages before those that it finds"
        raise error("BAD_OPTION.TOGETHER", option="dedupeWindow", other=look_up.option, hint=hint)
    return ReadOptions(
        name_server="" if store_path is not None else _name_server_of(values),
        topics=topics,
        topic_pattern=pattern,
        assigned=assigned,
        expected_brokers=as_kind(tuple, values.get("expectedBrokers")),
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
        look_up=look_up,
        dedupe_window=dedupe_window,
        body=body_settings(values, topics, pattern),
        credentials=None if store_path is not None else credentials_of(values),
        tls=None if store_path is not None else tls_of(values),
    )


def _look_up_of(values: Mapping[str, object]) -> LookUp | None:
    given = [
        LookUp(option, column, found)
        for option, column in (("lookupKeys", "keys"), ("lookupMsgIds", "msgId"))
        if (found := as_kind(tuple, values.get(option)))
    ]
    if len(given) > 1:
        raise error("BAD_OPTION.TOGETHER", option="lookupKeys", other="lookupMsgIds", hint="")
    return given[0] if given else None


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
        credentials=credentials_of(values),
        tls=tls_of(values),
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
        credentials=credentials_of(values),
        tls=tls_of(values),
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
        if scopes <= WRITES and key in COLUMNS_TO_WRITE and (option is None or not option.scopes & scopes):
            name, example = COLUMNS_TO_WRITE[key]
            raise error("BAD_OPTION.COLUMN", option=name, example=example)
        if option is None:
            if key not in SPARKS_OWN:
                raise error("BAD_OPTION.UNKNOWN", option=key, hint=remedy_for(key, scopes))
        elif option.scopes & scopes:
            option.parse(option.name, text)
        else:
            wanted = " and ".join(sorted(scope.value for scope in scopes))
            belongs = " and ".join(sorted(scope.value for scope in option.scopes))
            hint = ' Reads name their topics with "subscribe".' if key == "topic" else ""
            hint = ' Writes name their topic with "topic".' if key == "subscribe" else hint
            hint = " Read a store directory with spark.read." if key == "storepath" else hint
            hint = " Views are read with spark.read." if key == "view" else hint
            if key in ("key", "msgid"):
                instead = "lookupKeys" if key == "key" else "lookupMsgIds"
                hint = f' Or say which: .option("view", "messages"). Batch reads have {instead}.'
            raise error("BAD_OPTION.SCOPE", option=option.name, belongs=belongs, wanted=wanted, hint=hint)


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
