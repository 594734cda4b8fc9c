"""What a read selects: its topics or queues, its start and end, and a look-up. Several options give each of them.

Pure. Corresponds to nothing in RocketMQ; to the strategies and offset range limits of KafkaSourceProvider in Spark.
"""

from __future__ import annotations

from dataclasses import replace

from spark_rocket.common.units import Moment
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.parsers import Fallback, LookUp, Position, Start, Strategy, Values
from spark_rocket.model import MessageQueue


def topics_to_read(values: Values) -> tuple[tuple[str, ...], str | None, tuple[MessageQueue, ...] | None]:
    """Return topics, pattern and queues. Only one of the three options can be given."""
    if not any(name in values for name in ("subscribe", "subscribePattern", "assign", "storePath")):
        raise error("BAD_OPTION.MISSING")
    assigned: tuple[MessageQueue, ...] | None = values.get("assign")
    topics = values.get("subscribe", tuple(dict.fromkeys(queue.topic for queue in assigned or ())))
    return topics, values.get("subscribePattern"), assigned


def look_up_of(values: Values) -> LookUp | None:
    ways = (("lookupKeys", "keys"), ("lookupMsgIds", "msgId"))
    return next((LookUp(option, column, values[option]) for option, column in ways if option in values), None)


def starting_position(values: Values, *, is_stream: bool) -> Position:
    """Return the start position from ``startingOffsets`` and its related options."""
    position: Position | None = values.get("startingOffsets")
    moment: Moment | None = values.get("startingTimestamp")
    if position is not None and position.kind is Start.GROUP:
        position = replace(position, fallback=values["groupOffsetsFallback"])
        if position.fallback is Fallback.TIMESTAMP:
            if moment is None:
                raise _no_timestamp("groupOffsetsFallback", "startingTimestamp")
            position = replace(position, timestamp_ms=moment.ms, is_relative=moment.is_relative)
            moment = None
    default = Position(Start.LATEST if is_stream else Start.EARLIEST)
    position = _with_times(values, "starting", position, moment) or default
    has_times = position.kind in (Start.TIMESTAMP, Start.TIMES) or position.fallback is Fallback.TIMESTAMP
    if "startingOffsetsByTimestampStrategy" in values.given and not has_times:
        needed = "startingTimestamp or startingOffsetsByTimestamp"
        raise error("BAD_OPTION.NO_EFFECT", option="startingOffsetsByTimestampStrategy", needed=needed)
    return replace(position, strategy=values.get("startingOffsetsByTimestampStrategy", Strategy.LATEST))


def ending_position(values: Values) -> Position:
    position = _with_times(values, "ending", values.get("endingOffsets"), values.get("endingTimestamp"))
    return position or Position(Start.LATEST)


def _no_timestamp(option: str, needed: str) -> Exception:
    example = f'.option("{needed}", "2026-01-31T12:00:00Z")'
    return error("BAD_OPTION.REQUIRES", option=option, value="'timestamp'", needed=needed, example=example)


def _with_times(values: Values, side: str, position: Position | None, moment: Moment | None) -> Position | None:
    """Return the position of ``startingOffsets`` or ``endingOffsets`` and the two options that give it a time.

    Spark's Kafka source lets the finer option win. Here, two contradicting options are an error.
    """
    option, single, each = f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp"
    times: Position | None = values.get(each)
    if moment is None and times is None:
        if position is not None and position.kind is Start.TIMESTAMP:
            raise _no_timestamp(option, single)
        return position
    if position is not None and position.kind is not Start.TIMESTAMP and option in values.given:
        timed = single if moment is not None else each
        raise error("BAD_OPTION.CONFLICT", case="TIME", option=timed, position=option, kind=position.kind.value)
    return times if moment is None else Position(Start.TIMESTAMP, moment.ms, is_relative=moment.is_relative)
