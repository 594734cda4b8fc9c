"""Plan the micro-batches of a backlog of 2 billion messages in 256 queues: the real planner over brokers in memory.

The ceiling is the same plan over a short backlog: planning costs the same however long the backlog is.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Collection, Iterator, Mapping

from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.client.core.routes import TopicRoute
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.planner import StreamPlanner
from spark_rocket.datasource.plan.ranges import ranges_between
from spark_rocket.datasource.plan.tasks import Task
from spark_rocket.datasource.stream_offsets import Positions, StreamOffset, parse_stream_offset, starts_of
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.route import TopicRouteData

QUEUES, BROKERS = 256, 4
BACKLOG = 2_000_000_000
PER_BATCH = 10_000_000
MESSAGE_BYTES = 1024
_ROUNDS = 5


class StoredBacklog:
    """``Queues`` in memory: some queues are up to three times as long as others."""

    from_slaves: Collection[MessageQueue] = ()

    def __init__(self, messages: int) -> None:
        parts = [2 + number % 5 for number in range(QUEUES)]
        edges = [messages * sum(parts[:number]) // sum(parts) for number in range(QUEUES + 1)]
        per_broker = QUEUES // BROKERS
        self.ends = {
            MessageQueue("events", f"broker-{number // per_broker}", number % per_broker): edges[number + 1]
            - edges[number]
            for number in range(QUEUES)
        }

    def topics(self) -> list[str]:
        return ["events"]

    def route(self, topic: str) -> TopicRoute:
        return TopicRoute("events", tuple(self.ends), (), {}, {}, TopicRouteData())

    def brokers(self) -> Collection[str]:
        return {queue.broker_name for queue in self.ends}

    def configured(self) -> Mapping[str, Collection[str]]:
        return {}

    def min_offsets(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        return dict.fromkeys(queues, 0)

    def max_offsets(
        self, queues: Collection[MessageQueue], going_on: Positions | None = None
    ) -> dict[MessageQueue, int]:
        return {queue: self.ends[queue] for queue in queues}

    def first_times(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        return dict.fromkeys(queues, 0)

    def store_times(self, at: Positions) -> dict[MessageQueue, int]:
        return dict(at)

    def offsets_for_times(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        return {queue: min(moment, self.ends[queue]) for queue, moment in times_ms.items()}

    def committed_offsets(self, group: str, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        return {}

    def message_sizes(self, starts: Positions, count: int) -> dict[MessageQueue, list[int]]:
        return {queue: [MESSAGE_BYTES] * min(count, self.ends[queue] - start) for queue, start in starts.items()}

    known_sizes = message_sizes

    def commit_offsets(self, group: str, ends: Positions) -> dict[MessageQueue, RocketError]:
        return {}


def backlog_options(**more: str) -> ReadOptions:
    options = {"subscribe": "events", "nameServer": "none:1", "startingOffsets": "earliest"}
    return parse_read_options({**options, **more}, Scope.READ_STREAM)


def micro_batches(stored: StoredBacklog, options: ReadOptions) -> Iterator[tuple[StreamOffset, list[Task]]]:
    """Plan micro-batches to the end of the backlog, through the JSON of the checkpoint as Spark does."""
    planner = StreamPlanner(stored, options)
    previous: StreamOffset | None = None
    while (end := planner.next_end(previous, options.max_offsets_per_trigger)) is not None:
        yield end, planner.tasks(end, ranges_between(starts_of(previous, end), end.ends))
        previous = parse_stream_offset(end.to_json())


def _milliseconds(messages: int) -> float:
    plans = micro_batches(StoredBacklog(messages), backlog_options(maxOffsetsPerTrigger=str(PER_BATCH)))
    next(plans)
    begun = time.perf_counter()
    for _ in range(_ROUNDS):
        next(plans)
    return (time.perf_counter() - begun) * 1000 / _ROUNDS


def _peak_kib(messages: int) -> float:
    plans = micro_batches(StoredBacklog(messages), backlog_options(maxOffsetsPerTrigger=str(PER_BATCH)))
    next(plans)
    tracemalloc.start()
    try:
        for _ in range(_ROUNDS):
            next(plans)
        return tracemalloc.get_traced_memory()[1] / 1024
    finally:
        tracemalloc.stop()


_CEILING = f"the same over {(_ROUNDS + 1) * PER_BATCH:,} messages"


@benchmark("plan.backlog.time", unit="ms", ceiling=_CEILING, lower_is_better=True)
def plan_time(lab: Lab, _: str) -> Pair:
    """A micro-batch of 10 million of 2 billion messages in 256 queues, without requests."""
    return Pair(lambda: _milliseconds(BACKLOG), lambda: _milliseconds((_ROUNDS + 1) * PER_BATCH))


@benchmark("plan.backlog.memory", unit="KiB", ceiling=_CEILING, lower_is_better=True)
def plan_memory(lab: Lab, _: str) -> Pair:
    """The peak of the memory that its plan allocates."""
    return Pair(lambda: _peak_kib(BACKLOG), lambda: _peak_kib((_ROUNDS + 1) * PER_BATCH))
