"""The checks between options: options that contradict each other, have no effect, or would read nothing.

The table declares which options need or exclude others; the other checks compare values. Each check takes parsed
options and raises OptionError. Pure, except that a start in the future is compared with the clock. Corresponds to
``validateGeneralOptions`` of KafkaSourceProvider in Spark.
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
        for needed in option.needs if option.name in values.given else ():
            if _is_set(values, needed):
                continue
            other, shown = needed.partition("=")[0], needed.replace("|", " or ")
            if other == "bodyFormat" and other in values:
                given = f"bodyFormat={_shown(values[other])}"
                raise error("BAD_OPTION.CONFLICT", case="BODY_FORMAT", option=option.name, other=given, needed=shown)
            raise error("BAD_OPTION.NO_EFFECT", option=option.name, needed=other if other == "bodyFormat" else shown)


def check_conflicts(values: Values) -> None:
    """Reject options that the table excludes."""
    for option in OPTIONS:
        for excluded in option.excludes if option.name in values.given else ():
            is_excluding = not excluded.value or _is_set(values, f"{option.name}={excluded.value}")
            if is_excluding and _is_set(values, excluded.other):
                raise error("BAD_OPTION.CONFLICT", case=excluded.case, option=option.name, other=excluded.other)


def _is_set(values: Values, wanted: str) -> bool:
    """Return whether ``name`` has a value, or one of ``name=value|value``."""
    name, _, texts = wanted.partition("=")
    found = values.get(name)
    if found is None or found is Compression.NONE:
        return False
    return not texts or _shown(found) in texts.lower().split("|")


def _shown(value: object) -> str:
    """Return a parsed value as text, for options that other options require or exclude."""
    if isinstance(value, Position):
        value = value.kind
    return str(value.value if isinstance(value, Enum) else value).lower()


def check_store(values: Values) -> None:
    """Reject positions that a store directory cannot have without topics."""
    if "storePath" not in values or "subscribe" in values:
        return
    for option in ("startingOffsets", "endingOffsets"):
        if (position := values.get(option)) is not None and position.offsets:
            example, value = "its topics to subscribe", "offsets as JSON"
            raise error("BAD_OPTION.REQUIRES", option=option, value=value, needed="subscribe", example=example)


def check_write(values: Values, scope: Scope) -> None:
    """Reject writes whose options have no effect or would break the guarantee."""
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
