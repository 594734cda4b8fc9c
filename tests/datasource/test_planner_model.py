"""A model of the stream planner: random histories of a cluster, of triggers and of restarts.

In a history queues grow and appear, retention deletes from their front, masters become unavailable and return, topics
are recreated, limits vary, and the process of the query restarts at any point, also between planning a batch and
reading it. After each trigger and at the end:

* no message is in two batches, and no queue's offset moves backwards, unless its topic was recreated;
* no message is skipped, unless it was deleted before it was read, which is logged, or is an error with failOnDataLoss;
* a new process that plans the batch again from the checkpoint reads the same messages;
* a step is a function: repeated with the same memory, it has the same result.

Hypothesis shortens a history that fails. ``PLANNER_HISTORIES`` sets the number; ``make long`` takes 1,000.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan import planner as module
from spark_rocket.datasource.plan.planner import Begun, Memory, StreamPlanner
from spark_rocket.datasource.plan.ranges import OffsetRange, ranges_between
from spark_rocket.datasource.stream_offsets import StreamOffset, parse_stream_offset, starts_of
from spark_rocket.errors import DataLossError, RemotingConnectError
from spark_rocket.model import MessageQueue
from tests.datasource.fakes import FakeQueues, q
from tests.kit.sampling import ALL

pytestmark = [pytest.mark.long] if ALL else []
QUEUES = [q(0), q(1), q(2, "orders-b", "broker-b")]
_LATER_MS = 1_000_000  # between the messages of a queue and those of the recreated one

Message = tuple[MessageQueue, int, int]
"""A queue, the number of times that it was recreated, and an offset."""


class World:
    """A cluster, a query with its checkpoint, and what was read."""

    def __init__(self, options: dict[str, str]) -> None:
        self.queues = FakeQueues()
        self.queues.spans = dict.fromkeys(QUEUES[:2], (0, 0))
        self.options = options
        self.now = 0.0
        self.lives: Counter[MessageQueue] = Counter()
        self.read: Counter[Message] = Counter()
        self.lost: set[Message] = set()
        self.unseen: set[MessageQueue] = set()
        self.checkpoint: list[StreamOffset] = []
        self.restart()

    def start(self) -> StreamPlanner:
        raw = {"nameServer": "x:1", "subscribePattern": "orders.*", "startingOffsets": "earliest", **self.options}
        return StreamPlanner(self.queues, parse_read_options(raw, Scope.READ_STREAM), clock=lambda: self.now)

    @property
    def previous(self) -> StreamOffset | None:
        """The newest offset as a process finds it in the checkpoint."""
        if not self.checkpoint:
            return None
        return parse_stream_offset(json.loads(json.dumps(self.checkpoint[-1].to_json())))

    def position(self, queue: MessageQueue) -> int:
        return self.checkpoint[-1].ends.get(queue, 0) if self.checkpoint else 0

    def messages(self, span: OffsetRange) -> list[Message]:
        """What a task reads of a range. It reports the messages that are gone since the batch was planned."""
        low, end = self.queues.spans[span.queue]
        if (span.start < low or span.end > end) and self.options["failOnDataLoss"] == "true":
            raise DataLossError("the queue was shortened")
        return [(span.queue, self.lives[span.queue], at) for at in range(max(span.start, low), min(span.end, end))]

    # --- events ------------------------------------------------------------------------------------------------------

    def grow(self, queue: MessageQueue, count: int) -> None:
        """Messages arrive; the queue may be new."""
        low, end = self.queues.spans.get(queue, (0, 0))
        self.queues.spans[queue] = (low, end + count)

    def retain(self, queue: MessageQueue, count: int, beyond: bool) -> None:
        """Retention deletes messages, of unread ones too if ``beyond``."""
        if queue not in self.queues.spans or queue in self.unseen:
            return
        low, end = self.queues.spans[queue]
        until = min(low + count, end if beyond else min(end, self.position(queue)))
        until = max(until, low)
        self.lose(queue, low, until)
        self.queues.spans[queue] = (until, end)

    def recreate(self, queue: MessageQueue, count: int) -> None:
        """Delete a topic and create it again, unless nothing can tell that the queue is another one: the query has
        never seen a message of it, has not seen it since it was last recreated, reads from a slave, or has pinned
        its end."""
        is_told = self.position(queue) == 0 or self.is_known(queue)
        is_away = self.is_pinned or queue in self.queues.masterless
        if queue in self.queues.spans and queue not in self.unseen and is_told and not is_away:
            self.unseen.add(queue)
            if self.checkpoint and self.is_known(queue):
                self.lose(queue, *self.queues.spans[queue])
            else:  # nor can anything tell that messages were gone before
                self.lost = {message for message in self.lost if message[0] != queue}
            self.lives[queue] += 1
            self.queues.spans[queue] = (0, count)
            self.queues.began[queue] = self.lives[queue] * _LATER_MS
            self.now += module.RECHECK_SECONDS

    def is_known(self, queue: MessageQueue) -> bool:
        return queue in self.checkpoint[-1].firsts or queue in self.checkpoint[-1].lasts

    def lose(self, queue: MessageQueue, low: int, end: int) -> None:
        """Note the unread ones of these messages, if the query has a position in the queue: of its checkpoint, or the
        end that its first process has pinned, where it begins if everything before is deleted."""
        if self.checkpoint and queue in self.checkpoint[-1].ends:
            begin = low
        elif not self.checkpoint and queue in self.pinned:
            begin = max(low, self.pinned[queue])
        else:
            return
        gone = {(queue, self.lives[queue], at) for at in range(begin, end)}
        self.lost |= {message for message in gone if not self.read[message]}

    def master(self, queue: MessageQueue, is_there: bool) -> None:
        if queue not in self.unseen:  # a slave has the new queue at once
            (self.queues.masterless.discard if is_there else self.queues.masterless.add)(queue)

    def restart(self) -> None:
        self.plan = self.start()
        self.is_pinned = False
        self.pinned: dict[MessageQueue, int] = {}
        if not self.checkpoint:  # the query begins with this process
            self.lost.clear()

    def pin(self) -> None:
        """AvailableNow: a new process reads what is there now."""
        self.restart()
        if not self.queues.masterless:
            self.plan.pin()
            self.is_pinned = True
            self.pinned = {queue: end for queue, (_, end) in self.queues.spans.items()}

    def trigger(self, limit: int | None, is_restarted: bool) -> bool:
        """Plan a batch and read it. ``is_restarted``: by another process, as after a crash."""
        self.now += 1
        before = self.previous
        end = self.plan.next_end(before, limit)
        if not self.is_pinned:
            self.unseen.clear()
        if end is None:
            return False
        spans = ranges_between(starts_of(before, end), end.ends)
        assert limit is None or sum(span.size for span in spans) <= limit
        assert self.is_pinned or all(span.end <= self.queues.spans[span.queue][1] for span in spans)
        stored = parse_stream_offset(json.loads(json.dumps(end.to_json())))
        assert stored == end
        assert stored is not None
        again = ranges_between(starts_of(self.previous, stored), stored.ends)
        assert again == spans, "the checkpoint has all of the batch"
        if is_restarted:
            self.restart()
            assert self.plan.remaining(stored, again) == spans, "another process reads the same messages"
        for queue, at in end.ends.items():
            was = self.position(queue)
            assert at >= was or queue in end.starts, f"{queue} moved backwards from {was} to {at}"
        self.read.update(message for span in spans for message in self.messages(span))
        self.checkpoint.append(end)
        return True

    def finish(self) -> None:
        """Everything returns; the query reads to the end."""
        self.queues.masterless.clear()
        self.now += module.RECHECK_SECONDS
        self.restart()
        while self.trigger(None, is_restarted=False):
            pass

    def check(self) -> None:
        twice = {message: count for message, count in self.read.items() if count > 1}
        assert not twice, f"in several batches: {twice}"
        there = {
            (queue, self.lives[queue], at) for queue, (low, end) in self.queues.spans.items() for at in range(low, end)
        }
        assert there <= self.read.keys(), f"skipped: {sorted(there - self.read.keys())}"


queues_ = st.sampled_from(QUEUES)
few = st.integers(0, 12)
HARMLESS = st.one_of(
    st.tuples(st.just("grow"), queues_, few),
    st.tuples(st.just("retain"), queues_, few, st.just(False)),
    st.tuples(st.just("master"), queues_, st.booleans()),
    st.tuples(st.just("restart")),
    st.tuples(st.just("pin")),
    st.tuples(st.just("trigger"), st.none() | st.integers(1, 9), st.booleans()),
)
HARMFUL = st.one_of(
    st.tuples(st.just("retain"), queues_, few, st.just(True)), st.tuples(st.just("recreate"), queues_, few)
)
HISTORIES = int(os.environ.get("PLANNER_HISTORIES", 1000 if ALL else 60))
STABLE = settings(max_examples=HISTORIES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def happen(world: World, events: list[tuple[object, ...]]) -> None:
    for name, *arguments in events:
        event: Callable[..., object] = getattr(world, str(name))
        try:
            event(*arguments)
        except RemotingConnectError:
            assert world.queues.masterless, "a step that fails can be repeated"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without retries, and without the log lines of each history."""
    monkeypatch.setattr(logging.getLogger("spark_rocket.datasource"), "disabled", True)


@STABLE
@given(st.lists(HARMLESS, max_size=40))
def test_each_message_is_in_one_batch(events: list[tuple[object, ...]]) -> None:
    """Without losses nothing is logged or raised, and every message is read once."""
    world = World({"failOnDataLoss": "true"})
    happen(world, events)
    world.finish()
    world.check()
    assert not world.lost


@STABLE
@example([("trigger", None, False), ("grow", QUEUES[0], 1), ("retain", QUEUES[0], 1, True), ("recreate", QUEUES[0], 1)])
@example([("pin",), ("grow", QUEUES[0], 1), ("retain", QUEUES[0], 1, True), ("trigger", None, False)])
@given(st.lists(HARMLESS | HARMFUL, max_size=40))
def test_a_lost_message_is_reported(events: list[tuple[object, ...]]) -> None:
    """The query fails at the first loss, with what it has read until then."""
    world = World({"failOnDataLoss": "true"})
    try:
        happen(world, events)
        world.finish()
    except DataLossError:
        assert world.lost or any(world.lives.values()), "nothing was lost"
    else:
        world.check()
        filled = {queue for queue, (low, end) in world.queues.spans.items() if low < end}
        unreported = {message for message in world.lost if message[0] in filled}
        assert not unreported, "a loss was not reported, except of queues that are empty since"
    assert max(world.read.values(), default=0) <= 1


@STABLE
@given(st.lists(HARMLESS | HARMFUL, max_size=40))
def test_a_query_that_continues_after_losses(events: list[tuple[object, ...]]) -> None:
    """All that is left is read, and nothing twice."""
    world = World({"failOnDataLoss": "false"})
    happen(world, events)
    world.finish()
    world.check()


@STABLE
@given(st.lists(HARMLESS | HARMFUL, max_size=25))
def test_a_step_is_a_function(events: list[tuple[object, ...]]) -> None:
    """Each half of a step is repeated with the same memory, and has the same result."""
    find_starts, choose_ends = StreamPlanner.find_starts, StreamPlanner.choose_ends

    def starts(planner: StreamPlanner, previous: StreamOffset | None, memory: Memory, now: float) -> Begun:
        first, again = (find_starts(planner, previous, memory, now) for _ in range(2))
        assert first == again
        return again

    def ends(
        planner: StreamPlanner, begun: Begun, now: float, limit: int | None, *, is_limited: bool
    ) -> tuple[StreamOffset | None, Memory]:
        first, again = (choose_ends(planner, begun, now, limit, is_limited=is_limited) for _ in range(2))
        assert first == again
        assert first[0] is None or again[0] is None or first[0].to_json() == again[0].to_json()
        return again

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamPlanner, "find_starts", starts)
        patch.setattr(StreamPlanner, "choose_ends", ends)
        world = World({"failOnDataLoss": "false"})
        happen(world, events)
        world.finish()
        world.check()
