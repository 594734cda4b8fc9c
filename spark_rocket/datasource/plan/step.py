"""One step of a stream: from a checkpoint and the cluster to the end of the next batch, as a function.

========================  =============================================================================================
``Memory``                what a query remembers between steps beside its checkpoint. Empty after a restart
``find_starts``           where the next batch begins: that of the checkpoint, except for new queues and after a loss
``choose_ends``           where it ends: at the ends of the queues, or as far as the limits allow
========================  =============================================================================================

Both functions return the next ``Memory`` and change nothing. A step that raises an error leaves the former memory, so
it can be repeated. The end has all that is needed to read the batch again (``stream_offsets.py``).

Pure over the ``Queues`` requests, except that losses are raised or logged (``LossPolicy``, ``Context.note``).
Corresponds to ``latestOffset`` of KafkaMicroBatchStream in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from spark_rocket.datasource.loss_policy import LossPolicy
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.plan.losses import Seen, fit
from spark_rocket.datasource.plan.queue_selection import FoundQueues, QueueSelection
from spark_rocket.datasource.plan.queues import Queues
from spark_rocket.datasource.plan.ranges import UNSIZED_BATCH_MESSAGES, limit_bytes, limit_ends, limit_unsized
from spark_rocket.datasource.plan.resolve import resolve_start, starts_of_new
from spark_rocket.datasource.stream_offsets import Positions, Stored, StreamOffset
from spark_rocket.model import MessageQueue

RECHECK_SECONDS = 60.0


@dataclass(frozen=True)
class Context:
    """The query: its options, the cluster, and where losses and notes go."""

    queues: Queues
    options: ReadOptions
    selection: QueueSelection
    loss: LossPolicy
    note: Callable[[str], None]
    """Logs a message once."""


@dataclass(frozen=True)
class StreamEnds:
    """The queues and their ends at one time."""

    found: FoundQueues
    latest: Positions
    slaves: frozenset[MessageQueue]
    """The queues whose end a slave reported. It may end elsewhere, so it cannot show that messages were lost."""


@dataclass(frozen=True)
class Memory:
    """What a query remembers between steps beside its checkpoint."""

    seen: Seen = field(default_factory=Seen)
    latest: Positions = field(default_factory=dict)
    """The ends of the queues as of the last request."""
    pinned: StreamEnds | None = None
    """The end of the stream, for AvailableNow."""
    is_pinned_for_checkpoint: bool = False
    suspects: frozenset[MessageQueue] = frozenset()
    """Queues of topics that were missing: if they exist again, they may be others."""
    deleted: frozenset[MessageQueue] = frozenset()
    """Queues that are known to be deleted."""
    compared: float | None = None
    """When all queues were last checked for being recreated."""
    last_batch: float | None = None
    matched_nothing: bool = False


@dataclass(frozen=True)
class Begun:
    """Where the next batch begins."""

    known: StreamOffset
    """The end of the batch before."""
    starts: Positions
    fresh: Positions
    """The starts that are not the end of the batch before: those of new queues, and after a loss."""
    unselected: Positions
    accepted: Positions
    """The starts of queues that were checked and exist."""
    view: StreamEnds
    memory: Memory
    is_first: bool

    @property
    def given(self) -> dict[MessageQueue, int]:
        """The starts that the offset must contain."""
        return {queue: at for queue, at in self.starts.items() if queue in self.fresh or queue not in self.known.ends}

    @property
    def is_unchanged(self) -> bool:
        return not self.is_first and not self.given and self.unselected == self.known.unselected


@dataclass(frozen=True)
class Planned:
    """Where the next batch ends; None if there are no or too few new messages."""

    end: StreamOffset | None
    memory: Memory


def pinned(context: Context, memory: Memory) -> Memory:
    """Make the current ends the end of the stream."""
    view = _look(context, {})
    return replace(memory, pinned=view, latest=view.latest)


def selected(context: Context, offset: StreamOffset) -> dict[MessageQueue, int]:
    """Return the positions of the selected queues. A queue that was read and is no longer selected is a loss."""
    dropped = {queue: at for queue, at in offset.ends.items() if not context.selection.has(queue)}
    if dropped:
        context.loss.not_selected(*context.options.selection, dropped)
    return {queue: at for queue, at in offset.positions.items() if context.selection.has(queue)}


# --- starts ----------------------------------------------------------------------------------------------------------


def find_starts(context: Context, previous: StreamOffset | None, memory: Memory, now: float) -> Begun:
    """Return where the batch after ``previous`` begins."""
    known = previous if previous is not None else StreamOffset({})
    before = selected(context, known)
    unselected = {queue: at for queue, at in known.positions.items() if queue not in before}
    view, memory = _view_for(context, before, memory)
    if previous is None:
        memory = _check_all_found(context, view.found, (), memory)
        options = context.options
        group = options.consumer_group
        fresh = resolve_start(context.queues, options.starting, view.latest, group=group, loss=context.loss)
    else:
        memory = _note_lost_topics(context, before, view, memory)
        firsts = {**previous.firsts, **memory.seen.firsts}
        memory = replace(memory, seen=replace(memory.seen, firsts=firsts))
        fresh, memory = _new_starts(context, before, view, previous.lasts, memory, now)
    starts = before | fresh
    checked = (view.latest.keys() & before.keys()) - view.slaves
    accepted = {queue: starts[queue] for queue in checked}
    return Begun(known, starts, fresh, unselected, accepted, view, memory, previous is None)


def _view_for(context: Context, before: Positions, memory: Memory) -> tuple[StreamEnds, Memory]:
    """Return the pinned view, or the current one. A view was pinned without the checkpoint: if that has more queues,
    pin again, once."""
    view = memory.pinned
    if view is None:
        view = _look(context, before)
        return view, replace(memory, latest=view.latest)
    if not memory.is_pinned_for_checkpoint:
        memory = replace(memory, is_pinned_for_checkpoint=True)
        if before.keys() - view.latest.keys():
            view = _look(context, before)
            memory = replace(memory, pinned=view, latest=view.latest)
    return view, memory


def _look(context: Context, before: Positions) -> StreamEnds:
    found = context.selection.complete(context.loss, before)
    latest = context.queues.max_offsets(found.wanted, before)
    slaves = frozenset(context.queues.from_slaves)
    if slaves:
        names = ", ".join(sorted({queue.broker_name for queue in slaves}))
        context.note(f"The masters of {names} are unavailable: reading from their slaves, which may lag.")
    return StreamEnds(found, latest, slaves)


def _check_all_found(context: Context, found: FoundQueues, known: Collection[MessageQueue], memory: Memory) -> Memory:
    problem = context.selection.problem(found, known)
    if context.options.topic_pattern is not None and not found.wanted and not memory.matched_nothing:
        memory = replace(memory, matched_nothing=True)  # check and log once
        context.note(f"{context.selection.nothing_matches().message} Waiting for matching topics.")
    if problem is None:
        return memory
    if not context.options.wait_for_topic:
        raise problem
    context.note(f"{problem.message} Waiting for it (waitForTopic=true).")
    return memory


def _note_lost_topics(context: Context, before: Positions, view: StreamEnds, memory: Memory) -> Memory:
    """Handle missing topics: deleted, waited for, or never created."""
    missing = view.found.missing.keys() & {queue.topic for queue in before}
    for topic in sorted(missing - view.found.unavailable):
        context.loss.topic_deleted(topic, before)
    lost = {queue for queue in before if queue.topic in missing}
    memory = replace(memory, suspects=memory.suspects | lost)
    return _check_all_found(context, view.found, before, memory)


def _new_starts(
    context: Context, before: Positions, view: StreamEnds, lasts: Stored, memory: Memory, now: float
) -> tuple[dict[MessageQueue, int], Memory]:
    """Return the starts that are not the end of the previous batch: new queues, and queues after data loss."""
    moved: dict[MessageQueue, int] = {}
    options, latest = context.options, view.latest
    new = latest.keys() - before.keys()
    for position, queues in starts_of_new(options.starting, new):
        ends = {queue: latest[queue] for queue in queues}
        moved |= resolve_start(context.queues, position, ends, group=options.consumer_group, loss=context.loss)
    old = {queue: before[queue] for queue in latest if queue not in new and queue not in view.slaves}
    seen, compared = memory.seen, memory.compared
    suspects = memory.suspects & old.keys()
    # The first message is about to be learned: until then the last one tells whether the queue is still the same.
    suspects |= {queue for queue in old if queue not in seen.firsts and queue not in seen.asked}
    if compared is None or now - compared >= RECHECK_SECONDS:
        compared, seen, suspects = now, replace(seen, asked=frozenset()), frozenset(old)
    fitted, seen = fit(context.queues, old, latest, context.loss, seen, suspects, lasts)
    moved |= {queue: start for queue, start in fitted.items() if start != before[queue]}
    return moved, replace(memory, seen=seen, compared=compared, suspects=memory.suspects - suspects)


# --- ends ------------------------------------------------------------------------------------------------------------


def choose_ends(
    context: Context, begun: Begun, now: float, max_records: int | None = None, *, is_limited: bool = True
) -> Planned:
    """Return where the batch ends. ``is_limited``: apply the limits of the options in addition to ``max_records``."""
    starts, memory = begun.starts, begun.memory
    # Retention may delete past an end that is cached or pinned.
    latest = {queue: max(end, starts[queue]) for queue, end in begun.view.latest.items()}
    if memory.pinned is not None:
        memory = replace(memory, pinned=replace(begun.view, latest=latest))
    filled = {queue for queue, end in latest.items() if end} - begun.view.slaves
    memory = replace(memory, seen=memory.seen.learned(context.queues, filled))
    memory = _note_absent(context, starts, latest, begun.view.found, memory)
    begin = {queue: starts[queue] for queue in latest}
    if is_limited and begun.is_unchanged and _has_too_few(context.options, begin, latest, memory, now):
        return Planned(None, memory)
    upto = limit_ends(begin, latest, max_records) if max_records is not None else dict(latest)
    if is_limited and context.options.max_bytes_per_trigger is not None:
        upto = _limited(context, begin, upto, context.options.max_bytes_per_trigger)
    ends = {**starts, **upto}
    if begun.is_unchanged and ends == begun.known.ends:
        return Planned(None, memory)
    kept = ends.keys() | begun.unselected.keys()
    firsts = {queue: first for queue, first in memory.seen.firsts.items() if queue in kept}
    lasts = _lasts(context, begun, ends)
    end = StreamOffset(ends, begun.given, firsts, lasts, begun.unselected)
    return Planned(end, replace(memory, last_batch=now))


def _lasts(context: Context, begun: Begun, ends: Positions) -> Stored:
    """Return the last messages before the ends: requested for queues that moved, else (or if unknown) as before."""
    before, fresh = begun.known.positions, begun.fresh
    moved = {queue: end - 1 for queue, end in ends.items() if end and (queue in fresh or end != before.get(queue))}
    lasts = {queue: (moved[queue], stored) for queue, stored in context.queues.store_times(moved).items()}
    return {queue: last for queue, last in begun.known.lasts.items() if queue not in fresh} | lasts


def _limited(
    context: Context, starts: Positions, ends: dict[MessageQueue, int], max_bytes: int
) -> dict[MessageQueue, int]:
    limited = limit_bytes(starts, ends, max_bytes, context.queues.message_sizes)
    if limited is None:
        context.note(
            "The brokers do not report message sizes, so maxBytesPerTrigger cannot be applied: "
            f"a batch reads {UNSIZED_BATCH_MESSAGES} messages of each queue instead."
        )
        limited = limit_unsized(starts, ends)
    return limited


def _has_too_few(options: ReadOptions, starts: Positions, latest: Positions, memory: Memory, now: float) -> bool:
    """Return whether there are too few messages yet. The first batch of a query or of a restart does not wait."""
    least = options.min_offsets_per_trigger
    if least is None or memory.pinned is not None or memory.last_batch is None:
        return False
    if now - memory.last_batch >= options.max_trigger_delay_ms / 1000:
        return False
    return sum(latest[queue] - starts[queue] for queue in latest) < least


def _note_absent(context: Context, starts: Positions, latest: Positions, found: FoundQueues, memory: Memory) -> Memory:
    deleted = set(memory.deleted - latest.keys())
    absent = sorted(starts.keys() - latest.keys() - deleted - found.queues)
    brokers = {(queue.topic, queue.broker_name) for queue in found.queues} if absent else set()
    for queue in absent:
        if (queue.topic, queue.broker_name) not in brokers:
            context.note(f"{queue.name} cannot be read now; the stream keeps its position.")
            continue
        # The broker has the topic with fewer queues. A queue that was read to its end is not a loss.
        if context.queues.max_offsets([queue])[queue] != starts[queue]:
            context.loss.queue_deleted(queue, starts[queue])
        deleted.add(queue)
    return replace(memory, deleted=frozenset(deleted))
