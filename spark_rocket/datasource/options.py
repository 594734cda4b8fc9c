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

from spark_rocket.datasource.option_parsers import (
    MAX_MESSAGE_SIZE,
    Parser,
    Position,
    Pushdown,
    Start,
    boolean,
    directory,
    group_name,
    name_servers,
    number,
    positions,
    pushdown,
    some_text,
    timestamp,
    topic_names,
    writable_topic,
)
from spark_rocket.errors import OptionError

DEFAULT_NAME_SERVER = "127.0.0.1:9876"

T = TypeVar("T")


class Scope(Enum):
    """What the options are for."""

    READ = "batch reads"
    READ_STREAM = "streaming reads"
    WRITE = "batch writes"
    WRITE_STREAM = "streaming writes"


READS = frozenset({Scope.READ, Scope.READ_STREAM})
WRITES = frozenset({Scope.WRITE, Scope.WRITE_STREAM})


@dataclass(frozen=True)
class ReadOptions:
    """A read's options, parsed. ``docs/datasource.md`` explains each."""

    name_server: str
    topics: tuple[str, ...]
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
    filter_pushdown: Pushdown = Pushdown.OFF


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


@dataclass(frozen=True)
class Option:
    """One documented option."""

    name: str
    scopes: frozenset[Scope]
    parse: Parser
    default: str | None
    meaning: str


OPTIONS: tuple[Option, ...] = (
    Option("nameServer", READS | WRITES, name_servers, None,
           "Name servers as `host:port`, several with `;`. Without it the `NAMESRV_ADDR` environment variable of the "
           f"driver, then `{DEFAULT_NAME_SERVER}`."),
    Option("subscribe", READS, topic_names, None,
           "The topics to read, separated by commas. Required, but for `storePath`."),
    Option("storePath", frozenset({Scope.READ}), directory, None,
           "Read the files of a stopped broker instead of asking brokers: its store directory, or the data directory "
           "of `rocket up`. See [below](#a-store-directory-without-a-broker)."),
    Option("brokerName", frozenset({Scope.READ}), some_text, None,
           "With `storePath`: what stands in the column `brokerName`, and in offsets as JSON. Without it the "
           "name that the store's configuration or its list of topics tells, then `broker-a`."),
    Option("startingOffsets", READS,
           positions(Start.EARLIEST, Start.LATEST, Start.GROUP, Start.TIMESTAMP, Start.OFFSETS), None,
           "Where a new query begins: `earliest`, `latest`, `group` (what `consumerGroup` has committed; earliest "
           "where it has nothing), `timestamp` (see `startingTimestamp`), or JSON. Streams begin at `latest` by "
           "default, batch reads at `earliest`. A restarted stream goes on from its checkpoint instead."),
    Option("startingTimestamp", READS, timestamp, None,
           "The first store time to read, in milliseconds since 1970 or as ISO-8601 (UTC if it has no zone). Sets "
           "`startingOffsets=timestamp`."),
    Option("endingOffsets", frozenset({Scope.READ}), positions(Start.LATEST, Start.TIMESTAMP, Start.OFFSETS), "latest",
           "Where a batch read ends: `latest`, `timestamp` (see `endingTimestamp`), or JSON."),
    Option("endingTimestamp", frozenset({Scope.READ}), timestamp, None,
           "The first store time not to read. Sets `endingOffsets=timestamp`."),
    Option("maxOffsetsPerTrigger", frozenset({Scope.READ_STREAM}), number(1), None,
           "At most so many messages in a micro-batch, shared out in proportion to each queue's lag."),
    Option("failOnDataLoss", READS, boolean, "true",
           "Whether messages that are gone before they were read stop the query (`true`), or it says so once in the "
           "log and goes on from the earliest left (`false`)."),
    Option("consumerGroup", READS, group_name, None,
           "Commit the stream's progress to this group on the brokers, for RocketMQ's tools to show. With "
           "`startingOffsets=group`, where to begin."),
    Option("minPartitions", READS, number(1, 100_000), None,
           "At least so many Spark partitions: ranges of large queues are split."),
    Option("maxRecordsPerPartition", READS, number(1), None, "At most so many messages in a Spark partition."),
    Option("filterPushdown", frozenset({Scope.READ}), pushdown, "false",
           "Whether filters on `topic`, `brokerName`, `queueId`, `queueOffset`, `storeTimestamp` and `tags` decide what "
           "is read (`true`), and those on `keys` and `msgId` are looked up in the brokers' index too (`index`). Needs "
           "`spark.sql.python.filterPushdown.enabled=true`. See [below](#filter-pushdown)."),
    Option("pullBatchSize", READS, number(1, 1_000_000), "32768",
           "At most so many messages asked for in one pull. Brokers may give fewer; Apache's give at most 32."),
    Option("pullBatchBytes", READS, number(1024, 12 * 1024 * 1024), str(4 * 1024 * 1024),
           "At most so many bytes asked for in one pull."),
    Option("arrowBatchRows", READS, number(1, 1_000_000), "32768",
           "Rows at which an Arrow batch is handed to Spark; small pulls are put together until then."),
    Option("arrowBatchBytes", READS, number(1024, 256 * 1024 * 1024), str(4 * 1024 * 1024),
           "Bytes at which an Arrow batch is handed to Spark."),
    Option("topic", WRITES, writable_topic, None, "The topic to write to. It overrides a `topic` column."),
    Option("producerGroup", WRITES, group_name, "spark_rocket_writer", "The producer group that brokers are told."),
    Option("writeId", frozenset({Scope.WRITE}), some_text, None,
           "A name for a batch write. The same rows written again under the same name get the same `msgId`s, so that "
           "a repeat can be told. Without it every write has a name of its own."),
    Option("maxMessageSize", WRITES, number(1024, 12 * 1024 * 1024), str(MAX_MESSAGE_SIZE),
           "The largest body in bytes, as the brokers' `maxMessageSize`."),
    Option("sendBatchSize", WRITES, number(1, 100_000), "10000", "At most so many messages in one request."),
    Option("sendBatchBytes", WRITES, number(1024, MAX_MESSAGE_SIZE), str(2 * 1024 * 1024),
           "Bytes to aim for in one request, never above `maxMessageSize`."),
    Option("maxRequestsInFlight", WRITES, number(1, 1024), "4", "Requests a task has under way at once."),
    Option("requestTimeout", READS | WRITES, number(100, 600_000), "10000",
           "Milliseconds to wait for one answer."),
    Option("retryTimeout", READS | WRITES, number(0, 86_400_000), "60000",
           "Milliseconds during which failed requests are made again before the query fails: how long a broker may be "
           "away."),
)  # fmt: skip

_BY_KEY = {option.name.lower(): option for option in OPTIONS}
_NOT_WITH_A_STORE = (
    "nameServer",
    "filterPushdown",
    "consumerGroup",
    "maxRecordsPerPartition",
    "pullBatchSize",
    "pullBatchBytes",
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
    "topics": "subscribe",
    "subscribepattern": "",
    "assign": "",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "minoffsetspertrigger": "",
    "maxtriggerdelay": "",
    "path": "",
}


def parse_read_options(raw: Mapping[str, str], scope: Scope) -> ReadOptions:
    """Parse a read's options; OptionError says what to change."""
    values = _parse(raw, scope)
    store_path = _as(str, values.get("storePath"))
    _check_store_options(values, store_path)
    topics = values.get("subscribe", () if store_path is not None else None)
    if topics is None:
        raise OptionError(
            "option subscribe is missing.", remedy='Name the topics: .option("subscribe", "orders,payments").'
        )
    default = Start.LATEST if scope is Scope.READ_STREAM else Start.EARLIEST
    starting = _with_timestamp(values, "startingOffsets", "startingTimestamp") or Position(default)
    ending = _with_timestamp(values, "endingOffsets", "endingTimestamp") or Position(Start.LATEST)
    if scope is Scope.READ and starting.kind is Start.LATEST:
        raise OptionError(
            "option startingOffsets is 'latest', and a batch read from there would read nothing.",
            remedy="Use earliest, timestamp or JSON."
            if store_path is not None
            else "Use earliest, timestamp, group or JSON, or spark.readStream.",
        )
    group = _as(str, values.get("consumerGroup"))
    if starting.kind is Start.GROUP and group is None:
        raise OptionError(
            "option startingOffsets is 'group', and no consumerGroup is given.",
            remedy='Add .option("consumerGroup", "…").',
        )
    return ReadOptions(
        name_server="" if store_path is not None else _name_server_of(values),
        topics=_as_topics(topics),
        starting=_for_topics(starting, "startingOffsets", _as_topics(topics)),
        ending=_for_topics(ending, "endingOffsets", _as_topics(topics)),
        consumer_group=group,
        fail_on_data_loss=values["failOnDataLoss"] is True,
        max_offsets_per_trigger=_as(int, values.get("maxOffsetsPerTrigger")),
        min_partitions=_as(int, values.get("minPartitions")),
        max_records_per_partition=_as(int, values.get("maxRecordsPerPartition")),
        pull_batch_size=_int(values, "pullBatchSize"),
        pull_batch_bytes=_int(values, "pullBatchBytes"),
        arrow_batch_rows=_int(values, "arrowBatchRows"),
        arrow_batch_bytes=_int(values, "arrowBatchBytes"),
        request_timeout_ms=_int(values, "requestTimeout"),
        retry_timeout_ms=_int(values, "retryTimeout"),
        store_path=store_path,
        broker_name=_as(str, values.get("brokerName")),
        is_stream=scope is Scope.READ_STREAM,
        filter_pushdown=_as(Pushdown, values.get("filterPushdown")) or Pushdown.OFF,
    )


def _check_store_options(values: Mapping[str, object], store_path: str | None) -> None:
    """What goes with ``storePath``, and what does not; an option without effect must not look as if it had one."""
    if store_path is None:
        if "brokerName" in values:
            raise OptionError(
                "option brokerName is given without storePath.",
                remedy="Leave it out: brokers are found through the name server.",
            )
        return
    given = values["given"]
    assert isinstance(given, frozenset)
    for name in _NOT_WITH_A_STORE:
        if name.lower() in given:
            raise OptionError(
                f"option {name} is given together with storePath.",
                remedy=f"Leave one of them out: {name} is for reading from brokers, storePath for reading files.",
            )
    for name in ("startingOffsets", "endingOffsets"):
        position = _as(Position, values.get(name))
        if position is not None and position.kind is Start.GROUP:
            raise OptionError(
                f"option {name} is 'group' together with storePath.", remedy="Use earliest, timestamp or JSON."
            )
        if position is not None and position.offsets and "subscribe" not in values:
            raise OptionError(
                f"option {name} is offsets as JSON, and subscribe is missing.", remedy="Name their topics in subscribe."
            )


def parse_write_options(raw: Mapping[str, str], scope: Scope) -> WriteOptions:
    """Parse a write's options; OptionError says what to change."""
    values = _parse(raw, scope)
    limit = _int(values, "maxMessageSize")
    return WriteOptions(
        name_server=_name_server_of(values),
        topic=_as(str, values.get("topic")),
        producer_group=str(values["producerGroup"]),
        write_id=_as(str, values.get("writeId")),
        max_message_size=limit,
        send_batch_size=_int(values, "sendBatchSize"),
        send_batch_bytes=min(limit, _int(values, "sendBatchBytes")),
        max_requests_in_flight=_int(values, "maxRequestsInFlight"),
        request_timeout_ms=_int(values, "requestTimeout"),
        retry_timeout_ms=_int(values, "retryTimeout"),
    )


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
            raise OptionError(
                f"option {option.name} is for {belongs}, not for {wanted}.", remedy=f"Leave it out.{hint}"
            )


def _unknown(key: str, scopes: frozenset[Scope]) -> OptionError:
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
    elif key.startswith("option."):
        remedy = "CREATE TABLE … USING rocket is not supported: use spark.read, or a temporary view of it."
    return OptionError(f'format("rocket") has no option {key}.', remedy=remedy)


def _parse(raw: Mapping[str, str], scope: Scope) -> dict[str, object]:
    check_options(raw, frozenset({scope}))
    given = {key.lower(): value for key, value in raw.items()}
    values: dict[str, object] = {}
    for option in OPTIONS:
        text = given.get(option.name.lower(), option.default if scope in option.scopes else None)
        if text is not None:
            values[option.name] = option.parse(option.name, text)
    return values | {"given": frozenset(given)}


def _with_timestamp(values: Mapping[str, object], option: str, companion: str) -> Position | None:
    position = _as(Position, values.get(option))
    moment = _as(int, values.get(companion))
    given = values["given"]
    assert isinstance(given, frozenset)
    if moment is not None:
        if position is not None and position.kind is not Start.TIMESTAMP and option.lower() in given:
            raise OptionError(
                f"option {companion} is given together with {option}={position.kind.value}.",
                remedy=f"Leave one of them out, or set {option}=timestamp.",
            )
        return Position(Start.TIMESTAMP, timestamp_ms=moment)
    if position is not None and position.kind is Start.TIMESTAMP:
        raise OptionError(
            f"option {option} is 'timestamp', and no {companion} is given.",
            remedy=f'Add .option("{companion}", "2026-01-31T12:00:00Z").',
        )
    return position


def _for_topics(position: Position, option: str, topics: tuple[str, ...]) -> Position:
    for queue in position.offsets or {}:
        if queue.topic not in topics:
            raise OptionError(
                f"option {option} names the topic {queue.topic}, which is not subscribed to.",
                remedy=f"The option subscribe names {', '.join(topics)}.",
            )
    return position


def _name_server_of(values: Mapping[str, object]) -> str:
    given = values.get("nameServer")
    if isinstance(given, str):
        return given
    variable = os.environ.get("NAMESRV_ADDR", "").strip()
    return name_servers("NAMESRV_ADDR (environment)", variable) if variable else DEFAULT_NAME_SERVER


def _as(kind: type[T], value: object) -> T | None:
    assert value is None or isinstance(value, kind)
    return value


def _as_topics(value: object) -> tuple[str, ...]:
    assert isinstance(value, tuple)
    return value


def _int(values: Mapping[str, object], option: str) -> int:
    value = values[option]
    assert isinstance(value, int)
    return value
