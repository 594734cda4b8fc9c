"""The checks between options: options that contradict each other, have no effect, or would read nothing.

Each check takes parsed options and raises OptionError. Pure, except that a start in the future is compared with the
clock. Corresponds to ``validateGeneralOptions`` of KafkaSourceProvider in Spark.
"""

from __future__ import annotations

from enum import Enum

from spark_rocket.common.system import now_ms
from spark_rocket.common.units import future_text
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parsers import Compression, Guarantee, Position, Start, Values
from spark_rocket.datasource.options.table import OPTIONS, Scope
from spark_rocket.datasource.stream_offsets import format_time


def check_needs(values: Values) -> None:
    """Reject options whose required options (per the table) are missing: they would silently have no effect."""
    for option in OPTIONS:
        for needed in option.needs if values.is_given(option.name) else ():
            other, _, wanted = needed.partition("=")
            found = values.get(other)
            if found is not None and (not wanted or _shown(found) == wanted.lower()):
                continue
            if other == "bodyFormat" and found is not None:
                given = f"bodyFormat={_shown(found)}"
                raise error("BAD_OPTION.CONFLICT", case="BODY_FORMAT", option=option.name, other=given, needed=needed)
            missing = other if found is None and other == "bodyFormat" else needed
            raise error("BAD_OPTION.NO_EFFECT", option=option.name, needed=missing)


def _shown(value: object) -> str:
    """Return a parsed value as text, for options that other options require."""
    if isinstance(value, Position):
        return value.kind.value
    return str(value.value if isinstance(value, Enum) else value).lower()


def check_store(values: Values) -> None:
    """Reject options that do not apply to ``storePath``."""
    if "storePath" not in values:
        return
    for known in OPTIONS:
        if known.brokers_only and values.is_given(known.name):
            raise error("BAD_OPTION.CONFLICT", case="BROKERS_ONLY", option=known.name)
    if values.is_given("deadLetterTopic"):
        raise error("BAD_OPTION.CONFLICT", case="STORE_DEAD_LETTERS")
    for option, position in ((side, values.get(side)) for side in ("startingOffsets", "endingOffsets")):
        if position is not None and position.kind is Start.GROUP:
            raise error("BAD_OPTION.CONFLICT", case="STORE_GROUP", option=option)
        if position is not None and position.offsets and "subscribe" not in values:
            example = "its topics to subscribe"
            raise error(
                "BAD_OPTION.REQUIRES", option=option, value="offsets as JSON", needed="subscribe", example=example
            )


def check_write(values: Values, scope: Scope) -> None:
    """Reject writes whose options have no effect or would break the guarantee."""
    if values["compression"] is Compression.NONE and values.is_given("compressAbove"):
        raise error("BAD_OPTION.NO_EFFECT", option="compressAbove", needed="compression")
    if values["deliveryGuarantee"] is not Guarantee.EXACTLY_ONCE:
        return
    if scope is Scope.WRITE and "writeId" not in values:
        example = '.option("writeId", "a name that stays the same when the write is retried")'
        option, value = "deliveryGuarantee", "exactlyOnce"
        raise error("BAD_OPTION.REQUIRES", option=option, value=value, needed="writeId", example=example)
    if len({values["stagingTopic"], values["ledgerTopic"], values.get("topic")}) < 3:
        raise error("BAD_OPTION.CONFLICT", case="SAME_TOPIC")
    grace, request = values["gracePeriod"] / 1000, values["requestTimeout"] / 1000
    if grace < 2 * request:
        raise error("BAD_OPTION.GRACE_PERIOD", grace=grace, request=request, least=2 * request)


def check_read(options: ReadOptions) -> None:
    """Reject reads that would return nothing, start at a future time, or contradict themselves."""
    _check_positions(options)
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and most < least:
        other = "minOffsetsPerTrigger"
        raise error("BAD_OPTION.LESS", option="maxOffsetsPerTrigger", value=most, other=other, limit=least)
    if options.wait_for_topic and (options.starting.offsets is not None or options.starting.times is not None):
        raise error("BAD_OPTION.CONFLICT", case="WAIT_FOR_TOPIC")
    if options.tags is not None and options.sql_filter is not None:
        raise error("BAD_OPTION.CONFLICT", case="FILTERS")
    if options.dedupe_window is not None and options.look_up is not None:
        raise error("BAD_OPTION.CONFLICT", case="LOOKUP", other=options.look_up.option)


def _check_positions(options: ReadOptions) -> None:
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


def _check_named(position: Position, option: str, options: ReadOptions) -> None:
    """Reject positions of queues that this read does not include."""
    if position.times is not None:
        option += "ByTimestamp"
    for queue in [*(position.offsets or ()), *(position.times or ())]:
        if options.reads(queue):
            continue
        what = f"the topic {queue.topic}" if options.assigned is None else queue.name
        choice, chosen = options.selection
        raise error("BAD_OPTION.NOT_READ", option=option, what=what, choice=choice, chosen=chosen)


def _check_not_future(starting: Position, *, is_stream: bool) -> None:
    """Reject a start time in the future.

    A stream would begin with the messages that exist now, which are older. A batch would read nothing, except from
    queues with an earlier time.
    """
    times = [starting.timestamp_ms] if starting.times is None else starting.times.values()
    latest = max(times) if is_stream else min(times)
    query, instead = ("a stream", "") if is_stream else ("a batch read", "spark.readStream with ")
    now = now_ms()
    if future_text(latest, now):
        option = "startingTimestamp" if starting.times is None else "startingOffsetsByTimestamp"
        raise error(
            "BAD_OPTION.FUTURE_TIME",
            option=option,
            time=format_time(latest),
            now=format_time(now),
            query=query,
            instead=instead,
        )
