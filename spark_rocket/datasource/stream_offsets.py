"""Positions in queues as JSON: the offsets in a Spark checkpoint, and the JSON form of ``startingOffsets``.

Both are public formats. An offset is always the *next* one: the first message not yet read.

The checkpoint's JSON (version 1)::

    {"initial": true, "version": 1}                                       constant, before the first plan
    {"offsets": {TOPIC: {BROKER: {QUEUE: next}}}, "version": 1}           where a batch ends
    {"offsets": {…}, "start": {TOPIC: {BROKER: {QUEUE: first}}}, "version": 1}
    {"first": {TOPIC: {BROKER: {QUEUE: [offset, store time in ms]}}}, "offsets": {…}, "version": 1}
    {"last": {TOPIC: {BROKER: {QUEUE: [offset, store time in ms]}}}, "offsets": {…}, "version": 1}
    {"offsets": {…}, "unselected": {TOPIC: {BROKER: {QUEUE: next}}}, "version": 1}
    {"latest": {TOPIC: {BROKER: {QUEUE: next}}}, "offsets": {…}, "version": 1}

``start`` lists the queues whose batch does *not* begin where the previous offset ended: all queues of the first batch,
new queues, queues that were moved forward after data loss, and queues that are selected again. A batch can therefore be
planned again from its two offsets alone, in a new process and at another time, and reads the same messages.

``first`` is a message that was once the first of its queue. It detects a queue that was deleted and created again.
``last`` is the last message before the queue's end offset. It detects a queue that lost its newest messages and has
grown again.

``unselected`` lists the queues that the query has read and that the options no longer select, with their positions. A
queue that is selected again continues there.

``latest`` has the ends of the queues that are beyond the end of a limited batch, where Spark does not request them for
its progress (4.0 and 4.1). Nothing but the lag depends on it.

Spark compares offsets as text, so the text is stable: keys are sorted as text at every level, numbers are integers.

The option's JSON is the inner tree alone, ``{"orders": {"broker-a": {"0": 123, "1": -2}}}``; -1 is latest, -2
earliest.

Pure and immutable, so safe from any thread. Corresponds to the offset tables of RemoteBrokerOffsetStore.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, TypeVar

from spark_rocket.common.units import moment_text
from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.conditions import error
from spark_rocket.model import MessageQueue

V = TypeVar("V")

VERSION = 1
LATEST = -1
EARLIEST = -2
_MOST_ITEMS = 8

Positions = Mapping[MessageQueue, int]
Stored = Mapping[MessageQueue, tuple[int, int]]
"""One message of each queue: its offset and its store time in ms."""
Tree = dict[str, dict[str, dict[str, V]]]

_QUEUE_ID = re.compile("0|[1-9][0-9]{0,8}")  # exactly one spelling per queue
_EXAMPLE = '{"topic": {"broker-a": {"0": 123, "1": -2}}} with -1 for latest and -2 for earliest'


def to_tree(positions: Mapping[MessageQueue, V]) -> Tree[V]:
    """Nest positions by topic, broker and queue; every level is sorted as text."""
    tree: Tree[V] = {}
    for queue in sorted(positions, key=lambda q: (q.topic, q.broker_name, str(q.queue_id))):
        brokers = tree.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = positions[queue]
    return tree


def from_tree(tree: object, *, lowest: int = 0) -> dict[MessageQueue, int]:
    """Read a nested tree. Raises ValueError with the reason if it is invalid."""
    positions: dict[MessageQueue, int] = {}
    for queue, value in _leaves(tree):
        if not _is_number(value, lowest):
            raise ValueError(f"invalid offset {json.dumps(value)} for {queue.name}")
        positions[queue] = value
    return positions


def _stored_from(tree: object) -> dict[MessageQueue, tuple[int, int]]:
    stored: dict[MessageQueue, tuple[int, int]] = {}
    for queue, value in _leaves(tree):
        if not isinstance(value, list) or len(value) != 2 or not all(_is_number(each, 0) for each in value):
            raise ValueError(f"invalid value {json.dumps(value)} for {queue.name}, expected [offset, store time]")
        stored[queue] = (value[0], value[1])
    return stored


def _leaves(tree: object) -> Iterator[tuple[MessageQueue, Any]]:
    for topic, brokers in _entries(tree, "topics"):
        for broker, queues in _entries(brokers, f"the brokers of {topic}"):
            for queue_id, value in _entries(queues, f"the queues of {topic}/{broker}"):
                if not _QUEUE_ID.fullmatch(queue_id):
                    raise ValueError(f"invalid queue number {queue_id!r} in {topic}/{broker}")
                yield MessageQueue(topic, broker, int(queue_id)), value


def _is_number(value: object, lowest: int) -> bool:
    return type(value) is int and lowest <= value < 2**63


def no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Reject duplicate names. For ``json.loads``, which would silently use the last value."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        twice = next(key for at, (key, _) in enumerate(pairs) if key in dict(pairs[:at]))
        raise ValueError(f"duplicate name {twice!r}")
    return entries


def _entries(value: object, what: str) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} should be a JSON object, not {json.dumps(value)}")
    return list(value.items())


def parse_offsets_option(text: str, option: str) -> dict[MessageQueue, int]:
    """Read the JSON of ``startingOffsets`` or ``endingOffsets``. -1 and -2 are not resolved."""
    try:
        positions = from_tree(json.loads(text, object_pairs_hook=no_duplicates), lowest=EARLIEST)
        if not positions:
            raise ValueError("it lists no queues")
    except (ValueError, RecursionError) as problem:
        raise error("BAD_OPTION.JSON", option=option, what="offsets", problem=problem, example=_EXAMPLE) from None
    return positions


@dataclass(frozen=True, eq=False, repr=False)
class StreamOffset(FrozenValue):
    """Where a batch ends, and where its queues begin unless that is the end of the previous batch.

    ``unselected`` has the positions of queues that the options no longer select. ``firsts``, ``lasts`` and ``latest``
    are not compared. They hold a message that was once the first of its queue, the last message before the queue's end
    offset, and the ends of queues beyond that of the batch, for the lag.
    """

    ends: Positions
    starts: Positions = field(default_factory=dict)
    firsts: Stored = field(default_factory=dict, compare=False)
    lasts: Stored = field(default_factory=dict, compare=False)
    unselected: Positions = field(default_factory=dict)
    latest: Positions = field(default_factory=dict, compare=False)

    @property
    def positions(self) -> Positions:
        """The next offset of every queue that the query has ever read."""
        return {**self.unselected, **self.ends}

    def to_json(self) -> dict[str, object]:
        """Return the offset as Spark stores it. Equal offsets give equal text."""
        value: dict[str, object] = {}
        if self.firsts:
            value["first"] = to_tree({queue: list(first) for queue, first in self.firsts.items()})
        if self.lasts:
            value["last"] = to_tree({queue: list(last) for queue, last in self.lasts.items()})
        if self.latest:
            value["latest"] = to_tree(self.latest)
        value["offsets"] = to_tree(self.ends)
        if self.starts:
            value["start"] = to_tree(self.starts)
        if self.unselected:
            value["unselected"] = to_tree(self.unselected)
        value["version"] = VERSION
        return value


def initial_offset() -> dict[str, object]:
    """Return the constant marker for "nothing planned yet"."""
    return {"initial": True, "version": VERSION}


def parse_stream_offset(value: Mapping[str, object]) -> StreamOffset | None:
    """Read an offset of a checkpoint. None is the initial marker."""
    version = value.get("version") if isinstance(value, Mapping) else None
    if version != VERSION:
        raise error("BAD_OFFSETS.CHECKPOINT_VERSION", version=repr(version), ours=VERSION)
    if value.get("initial") is True:
        return None
    try:
        return StreamOffset(
            from_tree(value.get("offsets")),
            from_tree(value.get("start", {})),
            _stored_from(value.get("first", {})),
            _stored_from(value.get("last", {})),
            from_tree(value.get("unselected", {})),
            from_tree(value.get("latest", {})),
        )
    except ValueError as problem:
        raise error("BAD_OFFSETS.CHECKPOINT_UNREADABLE", problem=problem) from None


def starts_of(previous: StreamOffset | None, end: StreamOffset) -> dict[MessageQueue, int]:
    """Return the first offset of each queue in the batch that ends at ``end``."""
    before: Positions = previous.ends if previous is not None else {}
    starts: dict[MessageQueue, int] = {}
    for queue in end.ends:
        start = end.starts.get(queue, before.get(queue))
        if start is None:
            raise error("BAD_OFFSETS.CHECKPOINT_INCOMPLETE", queue=queue.name)
        starts[queue] = start
    return starts


def format_queues(queues: Iterable[MessageQueue]) -> str:
    """Format queues for messages: the first few, then the number of the others."""
    return format_some([queue.name for queue in sorted(queues)])


def format_positions(positions: Positions) -> str:
    """Format queues with their offsets for messages: ``orders/broker-a/3 at 17``."""
    return format_some([f"{queue.name} at {positions[queue]}" for queue in sorted(positions)])


def format_time(ms: int) -> str:
    """Format a time for messages."""
    return moment_text(ms, "milliseconds" if ms % 1000 else "seconds", UTC)


def format_some(items: list[str]) -> str:
    """Join the first few items, then the number of the others."""
    more = f" and {len(items) - _MOST_ITEMS} more" if len(items) > _MOST_ITEMS else ""
    return ", ".join(items[:_MOST_ITEMS]) + more
