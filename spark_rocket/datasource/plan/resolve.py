"""Resolve positions (``earliest``, ``group``, a time, JSON) to an offset for each queue, and detect data loss.

Each position is checked against what the queue still has. Data loss means that messages were deleted before they were
read, or that a queue now ends earlier than before. By default it is an error. With ``failOnDataLoss=false``, it is
logged once, and reading continues from the earliest available message.

Pure over the ``Queues`` requests. Corresponds to RebalanceImpl.computePullFromWhere, but never guesses.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.loss_policy import LossPolicy, Replaced
from spark_rocket.datasource.offsets import EARLIEST, LATEST, Positions, Stored, format_queues, name
from spark_rocket.datasource.options.options import format_time
from spark_rocket.datasource.options.parsers import Fallback, Position, Start, Strategy
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue

log = logging.getLogger("spark_rocket.datasource")


@dataclass(frozen=True)
class Route:
    """A topic's current route, from the name servers."""

    queues: tuple[MessageQueue, ...]
    """The readable queues."""
    unreadable: frozenset[str] = frozenset()
    """Brokers that have the topic, but no readable queue of it."""


class Queues(Protocol):
    """The requests of planning, each for many queues. Tests implement them with a table.

    Each is retried until it succeeds or ``retryTimeout`` has passed, except ``commit_offsets`` and
    ``known_sizes``.
    """

    @property
    def from_slaves(self) -> Collection[MessageQueue]:
        """The queues whose ends a slave reported while the master is unavailable: they may lack new messages."""

    def topics(self) -> list[str]:
        """Return all topics known to the name server, except those named after clusters and brokers."""

    def route(self, topic: str) -> Route:
        """Request the route without a cache. TopicNotFoundError if no name server knows the topic."""

    def brokers(self) -> Collection[str] | None:
        """Return all brokers known to the name server now; None if it does not report them."""

    def configured(self) -> Mapping[str, Collection[str]]:
        """Return the brokers that ORDER_TOPIC_CONFIG assigns to each of its topics, available or not."""

    def min_offsets(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]: ...
    def max_offsets(self, queues: Collection[MessageQueue], going_on: Positions = ...) -> dict[MessageQueue, int]:
        """Return the queues' ends. ``going_on`` has the positions of queues that are already being read. For those, a
        slave may report the end while the master is unavailable, if it is not before the position. A first position
        must come from the master: a slave may also lack the oldest messages."""

    def first_times(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the store time of each queue's first message, in ms; omits empty queues and unknown times."""

    def store_times(self, at: Positions) -> dict[MessageQueue, int]:
        """Return the store time of the message at an offset of each queue, in ms; omits offsets without a message."""

    def offsets_for_times(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]: ...
    def committed_offsets(self, group: str, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """Return committed offsets; omits queues without one."""

    def message_sizes(self, starts: Positions, count: int) -> dict[MessageQueue, list[int]]:
        """Return the sizes in bytes of up to ``count`` stored messages from each start on."""

    def known_sizes(self, starts: Positions, count: int) -> dict[MessageQueue, list[int]]:
        """Like ``message_sizes``, without retries; omits queues of brokers that do not report sizes now."""

    def commit_offsets(self, group: str, ends: Positions) -> dict[MessageQueue, RocketError]:
        """Commit offsets without waiting for unavailable brokers; return the queues that failed, with the error.

        An offset beyond a queue's end is not committed. It moves backwards only if the group's is beyond the end.
        """


class Seen:
    """The offsets and first messages that queues were seen to have.

    A queue that ends earlier than before was recreated, or lost messages. ``firsts``, which the checkpoint stores,
    detects a queue that was recreated and has grown since. A queue's messages keep their offsets and store times. If a
    message at the offset of a former first message has another store time, or one at a smaller offset a later one, the
    queue is another one with the same name: it was recreated, or it is in another cluster.
    """

    def __init__(self) -> None:
        self.lows: dict[MessageQueue, int] = {}
        self.ends: dict[MessageQueue, int] = {}
        self.firsts: dict[MessageQueue, tuple[int, int]] = {}
        self.asked: set[MessageQueue] = set()

    def note(self, lows: Positions, ends: Positions) -> None:
        self.lows |= lows
        self.ends |= ends

    def forget(self, queue: MessageQueue) -> None:
        for known in (self.lows, self.ends, self.firsts):
            known.pop(queue, None)
        self.asked.discard(queue)

    def learn(self, queues: Queues, unknown: Collection[MessageQueue]) -> None:
        """Request first messages, once per queue. Request times last: retention only makes them later."""
        new = [queue for queue in unknown if queue not in self.firsts and queue not in self.asked]
        if new:
            self.asked.update(new)
            lows = self.lows | queues.min_offsets([queue for queue in new if queue not in self.lows])
            self.firsts |= {queue: (lows[queue], stored) for queue, stored in queues.first_times(new).items()}

    def recreated(self, queues: Queues, suspects: Collection[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        """Return the first messages of recreated queues. Offsets are requested last: retention only makes them larger,
        and a larger offset proves nothing."""
        known = [queue for queue in suspects if queue in self.firsts]
        times = queues.first_times(known) if known else {}
        lows = queues.min_offsets(times.keys()) if times else {}
        return {
            queue: (lows[queue], stored)
            for queue, stored in times.items()
            if _is_another((lows[queue], stored), self.firsts[queue])
        }


def _is_another(first: tuple[int, int], known: tuple[int, int]) -> bool:
    """Return whether a queue with this first message (offset, store time) never had the known one."""
    return first[0] <= known[0] and (first[1] > known[1] or (first[0] == known[0] and first[1] != known[1]))


def compare(queues: Queues, lasts: Stored) -> tuple[set[MessageQueue], dict[MessageQueue, Replaced]]:
    """Return the queues that still have this message of theirs, and those that have another message at its offset.

    Queues without a message there are omitted. Another message is there if the broker lost its newest messages (a copy
    was restored, or a slave that lagged behind was promoted) and has stored others since. Those have later store times,
    so the first of them is found by time.
    """
    times = queues.store_times({queue: offset for queue, (offset, _) in lasts.items()}) if lasts else {}
    others = {queue: stored for queue, stored in times.items() if stored != lasts[queue][1]}
    since = queues.offsets_for_times({queue: lasts[queue][1] + 1 for queue in others}) if others else {}
    return times.keys() - others.keys(), {
        queue: Replaced(*lasts[queue], stored, min(since[queue], lasts[queue][0])) for queue, stored in others.items()
    }


def fit(
    queues: Queues,
    starts: Positions,
    latest: Positions,
    loss: LossPolicy,
    seen: Seen | None = None,
    suspects: Collection[MessageQueue] = (),
    lasts: Stored = MappingProxyType({}),
) -> dict[MessageQueue, int]:
    """Check starts against what the queues have; return where reading can begin.

    Queues that have grown are checked for their message of ``lasts``, one before the start: if it is there, no message
    from the start on was deleted. ``suspects`` are checked for being recreated.
    """
    behind = {queue for queue, start in starts.items() if start != latest[queue]}
    grown = {queue for queue in behind & lasts.keys() if starts[queue] < latest[queue]}
    same, others = compare(queues, {q: lasts[q] for q in grown if lasts[q][0] < starts[q]})
    first = queues.min_offsets(sorted(behind - same))
    seen = seen or Seen()
    back = {queue for queue, low in first.items() if low < seen.lows.get(queue, 0)}
    recreated = seen.recreated(queues, {*suspects, *back, *others} & {q for q in starts if starts[q] <= latest[q]})
    fitted = {}
    for queue, start in starts.items():
        low, end = first.get(queue, start), latest[queue]
        was_first, was_end = seen.lows.get(queue, 0), seen.ends.get(queue, 0)
        if queue in recreated:
            low, stored = recreated[queue]
            loss.recreated(queue, seen.firsts[queue][0], seen.firsts[queue][1], stored, start)
            seen.firsts[queue] = recreated[queue]
            start = min(low, end)
        elif start > end:
            if end == 0 and queue.topic not in queues.topics():
                loss.topic_deleted(queue.topic, starts)
            else:
                loss.shortened(queue, start, end)
            seen.forget(queue)  # the next messages belong to another queue
            start = low
        elif start < low:
            loss.deleted(queue, start, low)
            start = low
        elif queue in others:
            loss.replaced(queue, others[queue])
            start = max(low, others[queue].since)
        elif queue in back and queue not in seen.firsts:  # else a promoted slave, which retained more
            loss.went_back(queue, "first message", was_first, low, start)
            start = low
        elif end < was_end:  # a broker that lost its newest messages is likelier than a recreated topic: continue here
            loss.went_back(queue, "end", was_end, end, start)
        fitted[queue] = start
    seen.note(first, {queue: latest[queue] for queue in starts})
    return fitted


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
        raise error("BAD_OFFSETS.NOTHING_SINCE", option=option, queue=name(none[0]), time=time)
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
        return fit(queues, committed, latest, loss) | fallen_back
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
        raise error("BAD_OFFSETS.NO_SUCH_QUEUE", option=option, queue=name(unknown[0]), queues=format_queues(latest))
    if missing := sorted(latest.keys() - given.keys()):
        raise error(
            "BAD_OFFSETS.QUEUE_NOT_NAMED", option=option, queue=name(missing[0]), how=how, queues=format_queues(missing)
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
            raise error("BAD_OFFSETS.AFTER_END", option=option, offset=offset, queue=name(queue), end=latest[queue])
        else:
            positions[queue] = offset
    return positions if loss is None else fit(queues, positions, latest, loss)
