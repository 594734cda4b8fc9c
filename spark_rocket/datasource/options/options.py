"""The options of ``format("rocket")``: parsed once into typed values, and checked against each other.

Spark passes option names in lower case, so lookups ignore case; errors show the documented spelling. An unknown option,
or one of another operation (a write option on a read), is an error that suggests the nearest known option: a mistyped
option must never be silently ignored. Contradicting options, and options without effect, are rejected.

``OPTIONS`` (``table.py``) is the single list of options and of what each requires. Parsing happens on the driver. The
parsed values are pickled for the executors, so an environment variable there cannot change what the driver decided.
Pure, except for name servers and credentials from the environment. Corresponds to nothing in RocketMQ; to
KafkaSourceProvider in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.offsets import format_queues, name
from spark_rocket.datasource.options.bodies import BodySettings, body_settings
from spark_rocket.datasource.options.connection import connection_of
from spark_rocket.datasource.options.other_names import COLUMNS_TO_WRITE, remedy_for
from spark_rocket.datasource.options.parsers import (
    Compression,
    Fallback,
    Guarantee,
    LookUp,
    Position,
    Start,
    Strategy,
    Values,
    matching,
    now_ms,
)
from spark_rocket.datasource.options.table import OPTIONS, READS, WRITES, Scope
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.auth import Credentials
from spark_rocket.remoting.tls.settings import TlsSettings
from spark_rocket.units import Moment


@dataclass(frozen=True)
class ReadOptions:
    """The parsed options of a read. ``docs/reference/options.md`` describes each."""

    name_server: str
    topics: tuple[str, ...]
    """The topics of ``subscribe`` or ``assign``; empty with ``subscribePattern``."""
    starting: Position
    ending: Position
    fail_on_data_loss: bool
    pull_batch_size: int
    pull_batch_bytes: int
    arrow_batch_rows: int
    arrow_batch_bytes: int
    request_timeout_ms: int
    retry_timeout_ms: int
    consumer_group: str | None = None
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    combine_small_ranges: bool = True
    store_path: str | None = None
    broker_name: str | None = None
    is_stream: bool = False
    tags: tuple[str, ...] | None = None
    """Only messages with one of these tags; None selects all."""
    sql_filter: str | None = None
    max_pulls_in_flight: int = 32
    look_up: LookUp | None = None
    """Only messages with one of these keys or ids."""
    topic_pattern: str | None = None
    assigned: tuple[MessageQueue, ...] | None = None
    expected_brokers: tuple[str, ...] | None = None
    """The brokers that must be available; None: those in the checkpoint and in ORDER_TOPIC_CONFIG."""
    wait_for_topic: bool = False
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    dedupe_window: int | None = None
    body: BodySettings | None = None
    """The body format and its settings, for typed rows."""
    credentials: Credentials | None = None
    tls: TlsSettings | None = None

    def reads(self, queue: MessageQueue) -> bool:
        """Return whether this read includes a queue."""
        if self.assigned is not None:
            return queue in self.assigned
        if self.topic_pattern is not None:
            return bool(matching(self.topic_pattern, [queue.topic]))
        return queue.topic in self.topics

    @property
    def selection(self) -> tuple[str, str]:
        """The option that selects the queues, and its value, for messages."""
        if self.assigned is not None:
            return "assign", format_queues(self.assigned)
        if self.topic_pattern is not None:
            return "subscribePattern", self.topic_pattern
        return "subscribe", ", ".join(self.topics)


@dataclass(frozen=True)
class WriteOptions:
    """The parsed options of a write."""

    name_server: str
    producer_group: str
    max_message_size: int
    send_batch_size: int
    send_batch_bytes: int
    max_requests_in_flight: int
    request_timeout_ms: int
    retry_timeout_ms: int
    topic: str | None = None
    write_id: str | None = None
    compression: str = "none"
    compress_above: int = 4096
    max_delayed_in_flight: int = 256
    exactly_once: bool = False
    staging_topic: str = ""
    ledger_topic: str = ""
    grace_period_ms: int = 20_000
    staging_retention_ms: int = 259_200_000
    body: BodySettings | None = None
    """The body format and its settings, for bodies built from the other columns."""
    credentials: Credentials | None = None
    tls: TlsSettings | None = None


@dataclass(frozen=True)
class ViewOptions:
    """The parsed options of a view. ``views.py`` defines which options each view has."""

    view: str
    name_server: str
    topics: tuple[str, ...]
    request_timeout_ms: int
    consumer_group: str | None = None
    producer_group: str | None = None
    key: str | None = None
    msg_id: str | None = None
    credentials: Credentials | None = None
    tls: TlsSettings | None = None


_BY_KEY = {option.name.lower(): option for option in OPTIONS}
# Spark adds these to the options of a source.
SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname", "outputmode"})


def parse_read_options(raw: Mapping[str, str], scope: Scope) -> ReadOptions:
    """Parse a read's options. OptionError has the remedy."""
    values = _parse(raw, scope)
    check_store(values)
    topics, pattern, assigned = topics_to_read(values)
    own: dict[str, Any] = {
        "topics": topics,
        "topic_pattern": pattern,
        "assigned": assigned,
        "starting": starting_position(values, is_stream=scope is Scope.READ_STREAM),
        "ending": ending_position(values),
        "is_stream": scope is Scope.READ_STREAM,
        "look_up": look_up_of(values),
        "body": body_settings(values, topics, pattern),
    }
    options = ReadOptions(**_same_named(ReadOptions, values) | own | connection_of(values))
    check_read(options, values)
    return options


def _same_named(kind: type, values: Values) -> dict[str, Any]:
    """Map options to the dataclass fields of the same name: ``maxTriggerDelay`` is max_trigger_delay_ms."""
    known = {field.name.removesuffix("_ms"): field.name for field in fields(kind)}
    named = {re.sub(r"([A-Z])", r"_\1", option).lower(): value for option, value in values.items()}
    return {known[name]: value for name, value in named.items() if name in known}


def body_of(raw: Mapping[str, str]) -> BodySettings | None:
    """Return the body settings of a read that may be a batch or a stream."""
    given = {key.lower(): value for key, value in raw.items()}
    found = [option for option in OPTIONS if option.scopes & READS and option.name.lower() in given]
    values = {option.name: option.parse(option.name, given[option.name.lower()]) for option in found}
    return body_settings(Values(values, frozenset(given)))


def parse_write_options(raw: Mapping[str, str], scope: Scope) -> WriteOptions:
    """Parse a write's options. OptionError has the remedy."""
    values = _parse(raw, scope)
    if values["compression"] is Compression.NONE and values.is_given("compressAbove"):
        raise error("BAD_OPTION.NO_EFFECT", option="compressAbove", needed="compression")
    exactly_once = values["deliveryGuarantee"] is Guarantee.EXACTLY_ONCE
    if exactly_once and scope is Scope.WRITE and "writeId" not in values:
        example = '.option("writeId", "a name that stays the same when the write is retried")'
        option, value = "deliveryGuarantee", "exactlyOnce"
        raise error("BAD_OPTION.REQUIRES", option=option, value=value, needed="writeId", example=example)
    if exactly_once and len({values["stagingTopic"], values["ledgerTopic"], values.get("topic")}) < 3:
        hint = ": staging, ledger and target must be different topics"
        other = "the same name as ledgerTopic or topic"
        raise error("BAD_OPTION.CONFLICT", option="stagingTopic", other=other, hint=hint)
    grace, request = values["gracePeriod"] / 1000, values["requestTimeout"] / 1000
    if exactly_once and grace < 2 * request:
        raise error("BAD_OPTION.GRACE_PERIOD", grace=grace, request=request, least=2 * request)
    own: dict[str, Any] = {
        "exactly_once": exactly_once,
        "send_batch_bytes": min(values["maxMessageSize"], values["sendBatchBytes"]),
        "compression": values["compression"].value,
        "body": body_settings(values),
    }
    return WriteOptions(**_same_named(WriteOptions, values) | own | connection_of(values))


def is_view(raw: Mapping[str, str]) -> bool:
    """Return whether the options are those of a view."""
    return any(key.lower() == "view" for key in raw)


def parse_view_options(raw: Mapping[str, str]) -> ViewOptions:
    """Parse a view's options. OptionError has the remedy."""
    values = _parse(raw, Scope.VIEW)
    topics = {"topics": values.get("subscribe", ())}
    return ViewOptions(**_same_named(ViewOptions, values) | topics | connection_of(values))


def belongs_to(key: str, scopes: frozenset[Scope]) -> bool:
    """Return whether an option of this name, in any case, belongs to any of ``scopes``."""
    option = _BY_KEY.get(key.lower())
    return option is not None and bool(option.scopes & scopes)


def check_options(raw: Mapping[str, str], scopes: frozenset[Scope]) -> None:
    """Reject options that belong to none of ``scopes``, and invalid values."""
    for key, text in raw.items():
        key = key.lower()
        option = _BY_KEY.get(key)
        if scopes <= WRITES and key in COLUMNS_TO_WRITE and (option is None or not option.scopes & scopes):
            name, example = COLUMNS_TO_WRITE[key]
            raise error("BAD_OPTION.COLUMN", option=name, example=example)
        if option is None:
            if key not in SPARK_OPTIONS:
                raise error("BAD_OPTION.UNKNOWN", option=key, hint=remedy_for(key, scopes))
        elif option.scopes & scopes:
            option.parse(option.name, text)
        else:
            wanted = " and ".join(sorted(scope.value for scope in scopes))
            belongs = " and ".join(sorted(scope.value for scope in option.scopes))
            hint = ' To read, name topics with "subscribe".' if key == "topic" else ""
            hint = ' To write, name the topic with "topic".' if key == "subscribe" else hint
            hint = " Read a store directory with spark.read." if key == "storepath" else hint
            hint = " Read views with spark.read." if key == "view" else hint
            if key in ("key", "msgid"):
                instead = "lookupKeys" if key == "key" else "lookupMsgIds"
                hint = f' Or read the view: .option("view", "messages"). Batch reads have {instead}.'
            raise error("BAD_OPTION.SCOPE", option=option.name, belongs=belongs, wanted=wanted, hint=hint)


def _parse(raw: Mapping[str, str], scope: Scope) -> Values:
    check_options(raw, frozenset({scope}))
    given = {key.lower(): value for key, value in raw.items()}
    values = Values({}, frozenset(given))
    for option in OPTIONS:
        text = given.get(option.name.lower(), option.default if scope in option.scopes else None)
        if text is not None:
            values[option.name] = option.parse(option.name, text)
    check_needs(values)
    return values


CLOCK_SKEW_MS = 60_000


def _shown(value: object) -> str:
    """Return a parsed value as text, for options that other options require."""
    if isinstance(value, Position):
        return value.kind.value
    return str(value.value if isinstance(value, Enum) else value).lower()


def check_needs(values: Values) -> None:
    """Reject options whose required options (per the table) are missing: they would silently have no effect."""
    for option in OPTIONS:
        for needed in option.needs if values.is_given(option.name) else ():
            other, _, wanted = needed.partition("=")
            found = values.get(other)
            if found is not None and (not wanted or _shown(found) == wanted.lower()):
                continue
            if other == "bodyFormat" and found is not None:
                hint = f": {option.name} requires {needed}"
                given = f"bodyFormat={_shown(found)}"
                raise error("BAD_OPTION.CONFLICT", option=option.name, other=given, hint=hint)
            missing = other if found is None and other == "bodyFormat" else needed
            raise error("BAD_OPTION.NO_EFFECT", option=option.name, needed=missing)


def check_store(values: Values) -> None:
    """Reject options that do not apply to ``storePath``."""
    if "storePath" not in values:
        return
    for known in OPTIONS:
        if known.brokers_only and values.is_given(known.name):
            hint = f": {known.name} applies to brokers, storePath reads files"
            raise error("BAD_OPTION.CONFLICT", option=known.name, other="storePath", hint=hint)
    if values.is_given("deadLetterTopic"):
        raise error("BAD_OPTION.CONFLICT", option="deadLetterTopic", other="storePath", hint=": use badRecords=column")
    for option, position in ((side, values.get(side)) for side in ("startingOffsets", "endingOffsets")):
        if position is not None and position.kind is Start.GROUP:
            hint = f", or set {option} to earliest, timestamp or JSON"
            raise error("BAD_OPTION.CONFLICT", option=f"{option}=group", other="storePath", hint=hint)
        if position is not None and position.offsets and "subscribe" not in values:
            example = "its topics to subscribe"
            raise error(
                "BAD_OPTION.REQUIRES", option=option, value="offsets as JSON", needed="subscribe", example=example
            )


def topics_to_read(values: Values) -> tuple[tuple[str, ...], str | None, tuple[MessageQueue, ...] | None]:
    """Return topics, pattern and queues. Exactly one of the three options must be given."""
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if len(ways) > 1:
        hint = ": use only one of subscribe, subscribePattern and assign"
        raise error("BAD_OPTION.CONFLICT", option=ways[1], other=ways[0], hint=hint)
    if ways == ["assign"] and "expectedBrokers" in values:
        hint = ": assign already names its brokers"
        raise error("BAD_OPTION.CONFLICT", option="expectedBrokers", other="assign", hint=hint)
    if not ways and "storePath" not in values:
        hint = 'Name the topics: .option("subscribe", "orders,payments"), or use subscribePattern or assign.'
        raise error("BAD_OPTION.MISSING", option="subscribe", hint=hint)
    assigned: tuple[MessageQueue, ...] | None = values.get("assign")
    topics = values.get("subscribe", tuple(dict.fromkeys(queue.topic for queue in assigned or ())))
    return topics, values.get("subscribePattern"), assigned


def look_up_of(values: Values) -> LookUp | None:
    ways = (("lookupKeys", "keys"), ("lookupMsgIds", "msgId"))
    given = [LookUp(option, column, values[option]) for option, column in ways if option in values]
    if len(given) > 1:
        raise error("BAD_OPTION.CONFLICT", option="lookupKeys", other="lookupMsgIds", hint="")
    return given[0] if given else None


def starting_position(values: Values, *, is_stream: bool) -> Position:
    """Return the start position from ``startingOffsets`` and its related options."""
    fallback = values.get("groupOffsetsFallback", Fallback.EARLIEST)
    strategy = values.get("startingOffsetsByTimestampStrategy", Strategy.LATEST)
    given: Position | None = values.get("startingOffsets")
    group = given if given is not None and given.kind is Start.GROUP else None
    if group is not None and fallback is Fallback.TIMESTAMP:
        moment: Moment | None = values.get("startingTimestamp")
        if moment is None:
            raise _no_timestamp("groupOffsetsFallback", "startingTimestamp")
        group = Position(Start.GROUP, moment.ms, is_relative=moment.is_relative)
        values = Values({name: value for name, value in values.items() if name != "startingTimestamp"}, values.given)
    position = _position_with_times(values, "starting")
    has_times = position is not None and position.kind in (Start.TIMESTAMP, Start.TIMES)
    has_times = has_times or (group is not None and fallback is Fallback.TIMESTAMP)
    if values.is_given("startingOffsetsByTimestampStrategy") and not has_times:
        needed = "startingTimestamp or startingOffsetsByTimestamp"
        raise error("BAD_OPTION.NO_EFFECT", option="startingOffsetsByTimestampStrategy", needed=needed)
    if group is not None:
        return replace(group, fallback=fallback, strategy=strategy)
    return replace(position or Position(Start.LATEST if is_stream else Start.EARLIEST), strategy=strategy)


def ending_position(values: Values) -> Position:
    return _position_with_times(values, "ending") or Position(Start.LATEST)


def _no_timestamp(option: str, needed: str) -> Exception:
    example = f'.option("{needed}", "2026-01-31T12:00:00Z")'
    return error("BAD_OPTION.REQUIRES", option=option, value="'timestamp'", needed=needed, example=example)


def _position_with_times(values: Values, side: str) -> Position | None:
    """Return the position of ``startingOffsets`` or ``endingOffsets`` and the two options that give it a time.

    Spark's Kafka source lets the finer option win. Here, two contradicting options are an error.
    """
    option, single, each = f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp"
    position: Position | None = values.get(option)
    moment: Moment | None = values.get(single)
    times: Position | None = values.get(each)
    if moment is None and times is None:
        if position is not None and position.kind is Start.TIMESTAMP:
            raise _no_timestamp(option, single)
        return position
    if position is not None and position.kind is not Start.TIMESTAMP and values.is_given(option):
        hint = f", or set {option}=timestamp"
        timed = single if moment is not None else each
        raise error("BAD_OPTION.CONFLICT", option=timed, other=f"{option}={position.kind.value}", hint=hint)
    if moment is not None and times is not None:
        raise error("BAD_OPTION.CONFLICT", option=each, other=single, hint="")
    return times if moment is None else Position(Start.TIMESTAMP, moment.ms, is_relative=moment.is_relative)


def check_read(options: ReadOptions, values: Values) -> None:
    """Reject reads that would return nothing, start at a future time, or contradict themselves."""
    starting, ending = options.starting, options.ending
    if not options.is_stream and starting.kind is Start.LATEST:
        others = "earliest, timestamp or JSON"
        if options.store_path is None:
            others = "earliest, timestamp, group or JSON, or spark.readStream"
        raise error("BAD_OPTION.READS_NOTHING", others=others)
    if options.is_stream or starting.kind is not Start.GROUP:
        _check_not_future(starting, is_stream=options.is_stream)
    if starting.kind is ending.kind is Start.TIMESTAMP and ending.timestamp_ms < starting.timestamp_ms:
        value, limit = format_time(ending.timestamp_ms), format_time(starting.timestamp_ms)
        raise error("BAD_OPTION.LESS", option="endingTimestamp", value=value, other="startingTimestamp", limit=limit)
    for option, position in (("startingOffsets", starting), ("endingOffsets", ending)):
        if position.kind is Start.GROUP and options.consumer_group is None:
            example = '.option("consumerGroup", "…")'
            raise error("BAD_OPTION.REQUIRES", option=option, value="'group'", needed="consumerGroup", example=example)
        _check_named(position, option, options)
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and most < least:
        other = "minOffsetsPerTrigger"
        raise error("BAD_OPTION.LESS", option="maxOffsetsPerTrigger", value=most, other=other, limit=least)
    if options.wait_for_topic and (starting.offsets is not None or starting.times is not None):
        other = "startingOffsets or startingOffsetsByTimestamp as JSON"
        hint = ": a topic that the query waits for is read from its first message"
        raise error("BAD_OPTION.CONFLICT", option="waitForTopic", other=other, hint=hint)
    if options.tags is not None and options.sql_filter is not None:
        hint = "; in SQL92, a message's tag is the property TAGS: sqlFilter=\"TAGS = 'a'\""
        raise error("BAD_OPTION.CONFLICT", option="sqlFilter", other="tags", hint=hint)
    if options.dedupe_window is not None and options.look_up is not None:
        hint = ": a lookup does not read the messages before those that it finds"
        raise error("BAD_OPTION.CONFLICT", option="dedupeWindow", other=options.look_up.option, hint=hint)


def _check_named(position: Position, option: str, options: ReadOptions) -> None:
    """Reject positions of queues that this read does not include."""
    if position.times is not None:
        option += "ByTimestamp"
    for queue in [*(position.offsets or ()), *(position.times or ())]:
        if options.reads(queue):
            continue
        what = f"the topic {queue.topic}" if options.assigned is None else name(queue)
        choice, chosen = options.selection
        raise error("BAD_OPTION.NOT_READ", option=option, what=what, choice=choice, chosen=chosen)


def format_time(ms: int) -> str:
    """Format a time for messages."""
    return datetime.fromtimestamp(min(ms / 1000, 253_402_300_799), UTC).isoformat(" ")


def _check_not_future(starting: Position, *, is_stream: bool) -> None:
    """Reject a start time in the future.

    A stream would begin with the messages that exist now, which are older. A batch would read nothing, except from
    queues with an earlier time.
    """
    times = [starting.timestamp_ms] if starting.times is None else starting.times.values()
    latest = max(times) if is_stream else min(times)
    query, instead = ("a stream", "") if is_stream else ("a batch read", "spark.readStream with ")
    now = now_ms()
    if latest > now + CLOCK_SKEW_MS:
        option = "startingTimestamp" if starting.times is None else "startingOffsetsByTimestamp"
        raise error(
            "BAD_OPTION.FUTURE_TIME",
            option=option,
            time=format_time(latest),
            now=format_time(now),
            query=query,
            instead=instead,
        )
