"""Resolve positions (``earliest``, ``group``, a time, JSON) to an offset for each queue.

Offsets that a group or a user names are checked against what the queue still has (``losses.py``).

Pure over the ``Queues`` requests. Corresponds to RebalanceImpl.computePullFromWhere, but never guesses.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.loss_policy import LossPolicy
from spark_rocket.datasource.options.parsers import Fallback, Position, Start, Strategy
from spark_rocket.datasource.plan.losses import Seen, fit
from spark_rocket.datasource.plan.queues import Queues
from spark_rocket.datasource.stream_offsets import EARLIEST, LATEST, Positions, format_queues, format_time
from spark_rocket.model import MessageQueue

log = logging.getLogger("spark_rocket.datasource")


def _earliest(queues: Queues, latest: Positions) -> dict[MessageQueue, int]:
    return {queue: min(low, latest[queue]) for queue, low in queues.min_offsets(latest.keys()).items()}


def _at_times(queues: Queues, latest: Positions, position: Position, side: str) -> dict[MessageQueue, int]:
    option, times_ms = f"{side}Timestamp", dict.fromkeys(latest, position.timestamp_ms)
    if position.kind is Start.TIMES:
        option = f"{side}OffsetsByTimestamp"
        times_ms = dict(_named(position.times or {}, latest, option, ""))
    found = queues.offsets_for_times({queue: times_ms[queue] for queue in latest})
    if position.strategy is Strategy.ERROR and (none := sorted(q for q, at in found.items() if at >= latest[q])):
        time = format_time(times_ms[none[0]])
        raise error("BAD_OFFSETS.NOTHING_SINCE", option=option, queue=none[0].name, time=time)
    return {queue: min(offset, latest[queue]) for queue, offset in found.items()}


def resolve_start(
    queues: Queues,
    position: Position,
    latest: Positions,
    *,
    group: str | None,
    loss: LossPolicy,
) -> dict[MessageQueue, int]:
    """Return the first offset to read of each queue in ``latest``."""
    if not latest:
        return {}
    if position.kind is Start.LATEST:
        return dict(latest)
    if position.kind is Start.EARLIEST:
        return _earliest(queues, latest)
    if position.kind in (Start.TIMESTAMP, Start.TIMES):
        return _at_times(queues, latest, position, "starting")
    if position.kind is Start.GROUP:
        assert group is not None
        committed = queues.committed_offsets(group, latest.keys())
        others = {queue: end for queue, end in latest.items() if queue not in committed}
        if others and position.fallback is Fallback.ERROR:
            raise error("BAD_OFFSETS.NOTHING_COMMITTED", group=group, queue=format_queues(others))
        if others and not committed:
            _log_no_offsets(group, format_queues(others), position.fallback.value)
        otherwise = replace(position, kind=_INSTEAD[position.fallback]) if others else position
        fallen_back = resolve_start(queues, otherwise, others, group=group, loss=loss)
        return fit(queues, committed, latest, loss, Seen())[0] | fallen_back
    return _from_json(queues, position, latest, "startingOffsets", loss)


@lru_cache(64)
def _log_no_offsets(group: str, queues: str, instead: str) -> None:
    """Log once, because the group's name may be mistyped."""
    log.warning(
        "group %s has no committed offset for %s: starting at %s (groupOffsetsFallback)", group, queues, instead
    )


_INSTEAD = {
    Fallback.EARLIEST: Start.EARLIEST,
    Fallback.LATEST: Start.LATEST,
    Fallback.TIMESTAMP: Start.TIMESTAMP,
}


def starts_of_new(position: Position, queues: Collection[MessageQueue]) -> list[tuple[Position, set[MessageQueue]]]:
    """Return the starts of queues that appear while a stream runs, or whose broker was unavailable when it began.

    A group's offset and an absolute time mean the same now as at the start of the query. In all other cases, only the
    first message loses nothing.
    """
    new = {*queues}
    earliest = Position(Start.EARLIEST)
    if position.is_relative or position.kind not in (Start.GROUP, Start.TIMESTAMP, Start.TIMES):
        return [(earliest, new)]
    position = replace(position, strategy=Strategy.LATEST)
    if position.kind is Start.TIMES:
        times = {queue: time for queue, time in (position.times or {}).items() if queue in new}
        return [(replace(position, times=times), {*times}), (earliest, new - {*times})]
    if position.fallback is not Fallback.TIMESTAMP:
        position = replace(position, fallback=Fallback.EARLIEST)
    return [(position, new)]


def resolve_end(
    queues: Queues, position: Position, latest: Positions, starts: Positions, *, group: str | None, loss: LossPolicy
) -> dict[MessageQueue, int]:
    """Return the end (exclusive) of each queue in a batch read."""
    if position.kind is Start.LATEST or not latest:
        return dict(latest)
    if position.kind in (Start.TIMESTAMP, Start.TIMES):
        return _at_times(queues, latest, position, "ending")
    if position.kind is Start.GROUP:
        assert group is not None
        ends = dict(starts)  # where the group is behind the start, nothing is read
        for queue, offset in queues.committed_offsets(group, latest.keys()).items():
            if offset > latest[queue]:
                loss.shortened(queue, offset, latest[queue])
            ends[queue] = max(starts[queue], min(offset, latest[queue]))
        return ends
    return _from_json(queues, position, latest, "endingOffsets", None)


def _named(given: Positions, latest: Positions, option: str, how: str) -> Positions:
    """Check that positions are given for each existing queue and for no other, and return them."""
    if unknown := sorted(given.keys() - latest.keys()):
        raise error("BAD_OFFSETS.NO_SUCH_QUEUE", option=option, queue=unknown[0].name, queues=format_queues(latest))
    if missing := sorted(latest.keys() - given.keys()):
        raise error(
            "BAD_OFFSETS.QUEUE_NOT_NAMED", option=option, queue=missing[0].name, how=how, queues=format_queues(missing)
        )
    return given


def _from_json(
    queues: Queues, position: Position, latest: Positions, option: str, loss: LossPolicy | None
) -> dict[MessageQueue, int]:
    given = _named(position.offsets or {}, latest, option, ", with -1 for latest or -2 for earliest")
    earliest = _earliest(queues, {queue: latest[queue] for queue, offset in given.items() if offset == EARLIEST})
    positions = {}
    for queue, offset in given.items():
        if offset == LATEST:
            positions[queue] = latest[queue]
        elif offset == EARLIEST:
            positions[queue] = earliest[queue]
        elif offset > latest[queue]:
            raise error("BAD_OFFSETS.AFTER_END", option=option, offset=offset, queue=queue.name, end=latest[queue])
        else:
            positions[queue] = offset
    return positions if loss is None else fit(queues, positions, latest, loss, Seen())[0]
