"""What a read's options say together: topics or a pattern or queues, where to begin and end, how much at a time.

Each option is parsed by itself (``option_parsers.py``); here they are put together, and what contradicts another one,
or has no effect without it, is refused. Pure. Corresponds to nothing in RocketMQ; to the checks of KafkaSourceProvider
in Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from spark_rocket.datasource.options.conditions import error
from spark_rocket.datasource.options.parsers import Fallback, Position, Start, Strategy, matching, now_ms
from spark_rocket.datasource.plan.offsets import listed, name
from spark_rocket.model import MessageQueue
from spark_rocket.units import Moment

T = TypeVar("T")

CLOCKS_APART_MS = 60_000


def as_kind(kind: type[T], value: object) -> T | None:
    assert value is None or isinstance(value, kind)
    return value


def is_given(values: Mapping[str, object], option: str) -> bool:
    given = values["given"]
    assert isinstance(given, frozenset)
    return option.lower() in given


def what_to_read(
    values: Mapping[str, object], store_path: str | None
) -> tuple[tuple[str, ...], str | None, tuple[MessageQueue, ...] | None]:
    """Topics, pattern and queues; exactly one of the three ways to say it."""
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if len(ways) > 1:
        hint = ": subscribe, subscribePattern and assign exclude each other"
        raise error("BAD_OPTION.TOGETHER", option=ways[1], other=ways[0], hint=hint)
    if ways == ["assign"] and "expectedBrokers" in values:
        hint = ": assign names its brokers itself"
        raise error("BAD_OPTION.TOGETHER", option="expectedBrokers", other="assign", hint=hint)
    if not ways and store_path is None:
        hint = 'Name the topics: .option("subscribe", "orders,payments"), or use subscribePattern or assign.'
        raise error("BAD_OPTION.MISSING", option="subscribe", hint=hint)
    assigned: tuple[MessageQueue, ...] | None = as_kind(tuple, values.get("assign"))
    topics: tuple[str, ...] = as_kind(tuple, values.get("subscribe")) or ()
    if assigned is not None:
        topics = tuple(dict.fromkeys(queue.topic for queue in assigned))
    return topics, as_kind(str, values.get("subscribePattern")), assigned


def starting_position(values: Mapping[str, object]) -> Position | None:
    """Where to begin: ``startingOffsets``, what belongs to it, and what contradicts it."""
    fallback = as_kind(Fallback, values.get("groupOffsetsFallback")) or Fallback.EARLIEST
    strategy = as_kind(Strategy, values.get("startingOffsetsByTimestampStrategy")) or Strategy.LATEST
    group = as_kind(Position, values.get("startingOffsets"))
    if group is None or group.kind is not Start.GROUP:
        group = None
        if is_given(values, "groupOffsetsFallback"):
            raise error("BAD_OPTION.NO_EFFECT", option="groupOffsetsFallback", needed="startingOffsets=group")
    elif fallback is Fallback.TIMESTAMP:
        moment = as_kind(Moment, values.get("startingTimestamp"))
        if moment is None:
            raise error(
                "BAD_OPTION.ALONE",
                option="groupOffsetsFallback",
                value="'timestamp'",
                needed="startingTimestamp",
                example='.option("startingTimestamp", "2026-01-31T12:00:00Z")',
            )
        group = Position(Start.GROUP, moment.ms, is_relative=moment.is_relative)
        values = {name: value for name, value in values.items() if name != "startingTimestamp"}
    position = position_with_times(values, "starting")
    has_times = position is not None and position.kind in (Start.TIMESTAMP, Start.TIMES)
    if is_given(values, "startingOffsetsByTimestampStrategy") and not (
        has_times or (group is not None and fallback is Fallback.TIMESTAMP)
    ):
        needed = "startingTimestamp or startingOffsetsByTimestamp"
        raise error("BAD_OPTION.NO_EFFECT", option="startingOffsetsByTimestampStrategy", needed=needed)
    if group is not None:
        return replace(group, fallback=fallback, strategy=strategy)
    return replace(position, strategy=strategy) if position is not None else None


def position_with_times(values: Mapping[str, object], side: str) -> Position | None:
    """``startingOffsets`` or ``endingOffsets`` with the two options that say a time for it.

    Spark's Kafka source lets the finer option win; here, where two are given that say different things, it is an error.
    """
    option, single, each = f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp"
    position = as_kind(Position, values.get(option))
    moment = as_kind(Moment, values.get(single))
    times = as_kind(Position, values.get(each))
    timed = single if moment is not None else each
    if moment is None and times is None:
        if position is not None and position.kind is Start.TIMESTAMP:
            raise error(
                "BAD_OPTION.ALONE",
                option=option,
                value="'timestamp'",
                needed=single,
                example=f'.option("{single}", "2026-01-31T12:00:00Z")',
            )
        return position
    if position is not None and position.kind is not Start.TIMESTAMP and is_given(values, option):
        hint = f", or set {option}=timestamp"
        raise error("BAD_OPTION.TOGETHER", option=timed, other=f"{option}={position.kind.value}", hint=hint)
    if moment is not None and times is not None:
        raise error("BAD_OPTION.TOGETHER", option=each, other=single, hint="")
    return times if moment is None else Position(Start.TIMESTAMP, moment.ms, is_relative=moment.is_relative)


def check_named(
    position: Position,
    option: str,
    topics: tuple[str, ...],
    pattern: str | None,
    assigned: tuple[MessageQueue, ...] | None,
) -> None:
    """Positions for each queue: only of what is read."""
    if position.times is not None:
        option += "ByTimestamp"
    for queue in [*(position.offsets or ()), *(position.times or ())]:
        what = f"the topic {queue.topic}"
        if pattern is not None:
            choice, chosen, is_read = "subscribePattern", pattern, bool(matching(pattern, [queue.topic]))
        elif assigned is not None:
            choice, chosen, is_read = "assign", listed(assigned), queue in assigned
            what = name(queue)
        else:
            choice, chosen, is_read = "subscribe", ", ".join(topics), queue.topic in topics
        if not is_read:
            raise error("BAD_OPTION.NOT_READ", option=option, what=what, choice=choice, chosen=chosen)


def shown_time(ms: int) -> str:
    """A time in messages to people."""
    return datetime.fromtimestamp(min(ms / 1000, 253_402_300_799), UTC).isoformat(" ")


def check_not_to_come(starting: Position, *, is_stream: bool) -> None:
    """A stream begins at what is there: messages stored before a time that is to come would be read too.

    A batch would read nothing; of its queues some may.
    """
    times = [starting.timestamp_ms] if starting.times is None else starting.times.values()
    latest = max(times) if is_stream else min(times)
    query, instead = ("a stream", "") if is_stream else ("a batch read", "spark.readStream with ")
    now = now_ms()
    if latest > now + CLOCKS_APART_MS:
        option = "startingTimestamp" if starting.times is None else "startingOffsetsByTimestamp"
        raise error(
            "BAD_OPTION.TO_COME",
            option=option,
            time=shown_time(latest),
            now=shown_time(now),
            query=query,
            instead=instead,
        )


def check_times(starting: Position, ending: Position) -> None:
    """From a time to an earlier one there is nothing."""
    if starting.kind is ending.kind is Start.TIMESTAMP and ending.timestamp_ms < starting.timestamp_ms:
        raise error(
            "BAD_OPTION.LESS",
            option="endingTimestamp",
            value=shown_time(ending.timestamp_ms),
            other="startingTimestamp",
            limit=shown_time(starting.timestamp_ms),
        )


def check_limits(values: Mapping[str, object]) -> None:
    least, most = as_kind(int, values.get("minOffsetsPerTrigger")), as_kind(int, values.get("maxOffsetsPerTrigger"))
    if least is None and is_given(values, "maxTriggerDelay"):
        raise error("BAD_OPTION.NO_EFFECT", option="maxTriggerDelay", needed="minOffsetsPerTrigger")
    if least is not None and most is not None and most < least:
        raise error(
            "BAD_OPTION.LESS",
            option="maxOffsetsPerTrigger",
            value=most,
            other="minOffsetsPerTrigger",
            limit=least,
        )
